"""The deallocation of claims that keep a pod from all nodes and that no other pod uses, so that they get other devices.

Source: kube-scheduler's plugin DynamicResources (PostFilter).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager

import structlog

from session_scheduler.base.background import alongside
from session_scheduler.builtin.devices.claims import is_for_group_of, made_by_owner
from session_scheduler.errors import FluenceError
from session_scheduler.framework.bindings import Runtime
from session_scheduler.framework.session import Session
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.devices import ResourceClaim, ResourceClaimStatus
from session_scheduler.model.groups import Phase, Task

_log = structlog.get_logger(__name__)


class Repairs:
    """The claims to deallocate. Sessions note them, and a background task writes them, because sessions do no I/O."""

    def __init__(self) -> None:
        self.waiting: dict[str, ResourceClaim] = {}
        """By uid."""
        self._noted: asyncio.Event | None = None

    def note(
        self,
        session: Session,
        unavailable: Mapping[TaskClass, Mapping[str, ResourceClaim]],
        extended: Collection[TaskClass],
    ) -> None:
        """Note one claim of each pod that the session could not place: an unusable one that is otherwise unused, or,
        for a class with extended resources, the claim of a failed attempt.
        """
        if not unavailable and not extended:
            return
        made = made_by_owner(session.objects(ResourceClaim).values()) if extended else {}
        # the claims of pods in flight are not reserved for them yet
        used = {key for task in session.snapshot.cache.tasks.values() if task.phase is Phase.ASSUMED
                for key in task.cls.claims}  # fmt: skip
        for outcome in session.outcomes.values():
            for task in outcome.group.tasks.values():
                if task.node is not None:
                    continue
                claims = [*unavailable.get(task.cls, {}).values()]
                if task.cls in extended:
                    claims += made.get(task.uid, ())
                claim = next((claim for claim in claims if claim.key not in used and _is_idle(claim, task)), None)
                if claim is not None:
                    self.waiting[claim.metadata.uid] = claim
        if self.waiting and self._noted is not None:
            self._noted.set()

    @asynccontextmanager
    async def serve(self, runtime: Runtime) -> AsyncGenerator[None]:
        """Deallocate noted claims while this context is entered."""
        self._noted = asyncio.Event()
        async with alongside(self._run(runtime, self._noted)):
            yield

    async def _run(self, runtime: Runtime, noted: asyncio.Event) -> None:
        while True:
            await noted.wait()
            noted.clear()
            while self.waiting:
                _, claim = self.waiting.popitem()
                if not runtime.elected or runtime.cluster is None:
                    continue
                try:
                    await runtime.cluster.allocate_claim(claim, ResourceClaimStatus())
                    _log.info(
                        "deallocated a claim, because its pod fits no node with the claim's devices", claim=claim.key
                    )
                except FluenceError as error:  # the claim changed: the next session checks it again
                    _log.info("failed to deallocate a claim", claim=claim.key, error=str(error))


def _is_idle(claim: ResourceClaim, task: Task) -> bool:
    """Whether no pod uses a claim: it is reserved at most for this pod, or for its PodGroup without pods on nodes."""
    unplaced = all(member.node is None for member in task.group.tasks.values())
    return all(
        one.uid == task.uid or (unplaced and is_for_group_of(one, task.pod)) for one in claim.status.reserved_for
    )
