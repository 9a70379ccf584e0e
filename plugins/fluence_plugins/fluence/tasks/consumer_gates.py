"""Opens the gates of consumers once their producer runs, and deletes those whose producer is not to come.

All that it knows is in the API server, so that another replica goes on where one ended. Pods are followed only while
some consumer waits: sessions see those first, and cost one look at an annotation.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from fluence_plugins.fluence.tasks.coordinated_pods import CoordinatedPods, decide
from fluence_plugins.resources.coordination import GATE, Group, waits
from fluence_plugins.resources.names import BACKEND_ANNOTATION
from session_scheduler.errors import ChangedMeanwhileError, FluenceError
from session_scheduler.model.objects import Pod
from session_scheduler.sdk.bindings import Runtime
from session_scheduler.sdk.tasks import alongside, follow

if TYPE_CHECKING:
    from prometheus_client import Metric

    from session_scheduler.sdk.cluster import Cluster

log = logging.getLogger("fluence")

GRACE_SECONDS: Final = 60.0
"""How long consumers that no controller made are left waiting without a producer that may still run."""
AGAIN_SECONDS: Final = 5.0
"""After which what failed is tried again; each time after twice as long."""
_MOST_DOUBLINGS: Final = 4
_CHECK_SECONDS: Final = 1.0
"""Between two looks while something is to happen of which no event tells."""
_AT_ONCE: Final = 16
"""Requests."""
_MOST_A_TURN: Final = 256
"""Pods that are written before it is looked anew at what there is to do."""


@dataclass(frozen=True, slots=True)
class _Problem:
    """What failed, when that is to be tried again, and how often it has failed; the text is empty for a conflict."""

    text: str
    due: float
    times: int


class ConsumerGates:
    """Follows producers and consumers. `counts` are pods by what became of them."""

    def __init__(
        self,
        *,
        grace: float = GRACE_SECONDS,
        again: float = AGAIN_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._grace = grace
        self._again = again
        self._recheck_seconds = min(_CHECK_SECONDS, again)
        self._now = now
        self._seen = False
        """Whether a consumer was seen that waits, and none follows producers yet."""
        self._wanted: asyncio.Event | None = None
        """The same, while tasks run."""
        self._changed = asyncio.Event()
        self._names: set[str] = set()
        """The schedulerNames of consumers that were seen: pods of other schedulers are theirs to let go."""
        self._pods: CoordinatedPods | None = None
        """None while it is not known which there are."""
        self._orphaned: dict[Group, float] = {}
        """Since when consumers that people made are without a producer."""
        self._problems: dict[str, _Problem] = {}
        """By uid of a consumer that is there."""
        self.counts = {"ungated": 0, "deleted": 0, "failed": 0}

    def observe(self, pod: Pod) -> None:
        """A pod is there: where it is a consumer that waits, producers are followed from now on."""
        if not waits(pod):
            return
        self._seen = True
        if self._wanted is not None:
            self._wanted.set()
        if pod.spec.scheduler_name not in self._names:
            self._names.add(pod.spec.scheduler_name)
            if self._pods is not None:
                self._pods.all_changed()
                self._changed.set()

    def metric(self) -> Metric:
        """The counts."""
        from prometheus_client.core import CounterMetricFamily  # only where it is asked for

        text = "Consumers that waited for their producer, by what became of them; failed are attempts."
        family = CounterMetricFamily("fluence_consumers", text, labels=["result"])
        for result, count in self.counts.items():
            family.add_metric([result], count)
        return family

    @asynccontextmanager
    async def serve(self, runtime: Runtime) -> AsyncGenerator[None]:
        """Open gates for as long as this is entered."""
        if runtime.cluster is None:
            yield
            return
        self._changed, self._wanted = asyncio.Event(), asyncio.Event()
        if self._seen:
            self._wanted.set()
        try:
            async with alongside(self._run(runtime, runtime.cluster, self._wanted)):
                yield
        finally:
            self._wanted = None

    async def _run(self, runtime: Runtime, cluster: Cluster, wanted: asyncio.Event) -> None:
        while True:
            await wanted.wait()
            wanted.clear()
            self._seen, self._pods = False, None
            async with alongside(self._follow(cluster)):
                await self._serve_all(runtime, cluster)

    # ------------------------------------------------------------------ what there is

    async def _follow(self, cluster: Cluster) -> None:
        failed = partial(log.warning, "[fluence] producers and consumers cannot be followed: %s")
        await follow(cluster, Pod, self._begin, failed=failed, pause=self._recheck_seconds)

    def _begin(self, there: tuple[Pod, ...]) -> Callable[[Pod, bool], None]:
        pods = self._pods = CoordinatedPods(there)
        self._problems = {uid: problem for uid, problem in self._problems.items() if uid in pods}
        self._changed.set()
        return partial(self._take, pods)

    def _take(self, pods: CoordinatedPods, pod: Pod, gone: bool) -> None:
        if gone:
            pods.drop(pod.metadata.uid)
        else:
            pods.put(pod)
        if pod.metadata.uid not in pods:
            self._problems.pop(pod.metadata.uid, None)
        if pods.changed:
            self._changed.set()

    # ------------------------------------------------------------------ what is done

    async def _serve_all(self, runtime: Runtime, cluster: Cluster) -> None:
        """Until no consumer waits any more."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(
                    self._recheck_seconds if self._orphaned or self._problems or not runtime.elected else None
                ):
                    await self._changed.wait()
            self._changed.clear()
            if self._pods is not None and runtime.elected:
                await self._turn(runtime, cluster, self._pods)
                if not self._pods.any_waits(self._names):
                    return

    async def _turn(self, runtime: Runtime, cluster: Cluster, pods: CoordinatedPods) -> None:
        """Look at the groups of which something was heard, and at those whose time has come."""
        now = self._now()
        late = [group for group, since in self._orphaned.items() if now - since >= self._grace]
        pods.recheck(uid for uid, problem in self._problems.items() if problem.due <= now)
        groups = pods.changed | dict.fromkeys(late)
        pods.changed = {}
        there = [pod for pod in pods.of(groups).values() if not waits(pod) or pod.spec.scheduler_name in self._names]
        turn = decide(there, late)
        for group in groups:
            if group in turn.waiting:
                self._orphaned.setdefault(group, now)
            else:
                self._orphaned.pop(group, None)
        works: list[tuple[Pod, Callable[[], Awaitable[None]]]] = [
            *((pod, partial(self._open, runtime, cluster, pod, told)) for pod, told in turn.open.values()),
            *((pod, partial(self._delete, runtime, cluster, pod)) for pod in turn.delete.values()),
        ]
        due = [
            work for work in works if (known := self._problems.get(work[0].metadata.uid)) is None or known.due <= now
        ]
        for start in range(0, len(due[:_MOST_A_TURN]), _AT_ONCE):
            if runtime.elected:
                await asyncio.gather(*(work() for _, work in due[start : start + _AT_ONCE]))
        left = due[_MOST_A_TURN:]
        if left:  # whether they are still to be let go is for the next turn to say
            pods.recheck(pod.metadata.uid for pod, _ in left)
            self._changed.set()

    async def _open(self, runtime: Runtime, cluster: Cluster, pod: Pod, told: Mapping[str, str | None]) -> None:
        async def opened() -> None:
            written = await cluster.open_gate(pod, GATE, told)
            if self._pods is not None and self._pods.is_now(pod):
                self._pods.put(written)

        if await self._done(runtime, pod, opened()):
            backend = told.get(BACKEND_ANNOTATION)
            on = f" on {backend}" if backend else ""
            self._report(runtime, pod, "ungated", "ProducerRuns", f"its producer runs{on}: the gate {GATE} is open")

    async def _delete(self, runtime: Runtime, cluster: Cluster, pod: Pod) -> None:
        async def deleted() -> None:
            await cluster.delete(pod, resource_version=pod.metadata.resource_version)
            if self._pods is not None and self._pods.is_now(pod):
                self._pods.drop(pod.metadata.uid)

        if await self._done(runtime, pod, deleted()):
            text = f"its producer has failed or is gone, and none came within {self._grace:g} s: it is deleted"
            self._report(runtime, pod, "deleted", "ProducerGone", text)

    def _report(self, runtime: Runtime, pod: Pod, result: str, reason: str, text: str) -> None:
        self.counts[result] += 1
        log.info("[fluence] consumer %s: %s", pod.key, text)
        runtime.tell(pod, reason, text)

    async def _done(self, runtime: Runtime, pod: Pod, work: Awaitable[None]) -> bool:
        """Whether it was done; else it is tried again: at the pod's next event, or some time later."""
        uid = pod.metadata.uid
        try:
            await work
        except ChangedMeanwhileError as error:
            log.debug("[fluence] consumer %s: has changed meanwhile: %s", pod.key, error)
            self._retry_later(uid, "")
            return False
        except FluenceError as error:
            self.counts["failed"] += 1
            text = (
                f"its gate {GATE} cannot be opened, or it cannot be deleted: {error}: see docs/how-to/quantum-gangs.md"
            )
            known = self._problems.get(uid)
            if known is None or known.text != text:
                log.warning("[fluence] consumer %s: %s", pod.key, text)
                runtime.tell(pod, "ProducerNotFollowed", text)
            self._retry_later(uid, text)
            return False
        self._problems.pop(uid, None)
        return True

    def _retry_later(self, uid: str, text: str) -> None:
        if self._pods is None or uid not in self._pods:
            return
        known = self._problems.get(uid)
        times = known.times + 1 if known is not None and text else 0
        wait = self._again * 2 ** min(times, _MOST_DOUBLINGS) if text else self._recheck_seconds
        self._problems[uid] = _Problem(text, self._now() + wait, times)
