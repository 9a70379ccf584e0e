"""The limits of queues on devices by attribute and capacity (`Proportion`), as DynamicResources uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from session_scheduler.builtin.devices.search import NO_LIMITS, Limits
from session_scheduler.framework.session import Session
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import NodeView
from session_scheduler.model.device_amounts import most_devices
from session_scheduler.model.devices import Allocation, ResourceClaim
from session_scheduler.model.events import ClusterEvent
from session_scheduler.model.queue_objects import Queue

_REMEMBERED: Final = 10_000
"""How many classes are remembered as limited."""
_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


class QueueLimits:
    """Finds what the claims of a pod may still get, and which classes such limits have kept from nodes."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._limited: dict[TaskClass, None] = {}

    def open(self, session: Session) -> None:
        """Use the queues of this session from now on."""
        self._session = session

    @property
    def possible(self) -> bool:
        """Whether devices may count by attribute or capacity."""
        return self._session is None or bool(self._session.queues.devices.by_device)

    def decided(self, claim: str, allocation: Allocation | None) -> None:
        """Count a claim (its key) with an allocation that is not written yet; None ends that."""
        if self._session is not None:
            self._session.queues.claim_decided(claim, allocation)

    # ------------------------------------------------------------------ evaluation

    def of(self, cls: TaskClass, claims: Sequence[ResourceClaim], own: Mapping[str, int] = _NOTHING) -> Limits:
        """The limits on what these claims may get, without those that they cannot exceed.

        `own`: what the pod itself counts with, if it is not placed yet.
        """
        session = self._session
        if session is None or not claims or not session.queues.devices.by_device:
            return NO_LIMITS
        use, group = session.queues, session.snapshot.cache.group_of_class(cls)
        count = sum(map(most_devices, claims))
        listed = [replace(limit, left=limit.left - own.get(limit.resource.name, 0))
                  for limit in use.device_limits(group, [claim.key for claim in claims])]  # fmt: skip
        largest = use.claims.devices.largest
        near = tuple(limit for limit in listed if limit.left < count * largest(limit.resource.name))
        return Limits(near, len(claims)) if near else NO_LIMITS

    def on(
        self, cls: TaskClass, claims: Sequence[ResourceClaim], nodes: NodeView, indices: Any
    ) -> list[tuple[Limits, Any]]:
        """The limits on what these claims of a pod that is not placed may get, each with its nodes' indices: the node
        can decide what the pod itself counts with.
        """
        found: list[tuple[dict[str, int], Any]] = [({}, indices)]
        for one in self._session.queues.devices.by_device if self._session is not None and claims else ():
            amount = one.of(cls.queue_amounts)
            if amount:
                there, more = one.mask(nodes), {one.name: amount}
                found = [part for own, rows in found
                         for part in ((own, rows[~there[rows]]), (own | more, rows[there[rows]]))]  # fmt: skip
        return [(self.of(cls, claims, own), rows) for own, rows in found if len(rows)]

    # ------------------------------------------------------------------ queueing hints

    def note(self, cls: TaskClass) -> None:
        """Note that limits may keep pods of this class from nodes."""
        if len(self._limited) >= _REMEMBERED:
            self._limited.clear()
        self._limited[cls] = None

    def freed(self, cls: TaskClass, event: ClusterEvent) -> bool:
        """Whether a deleted pod had devices, or counted in a limit on the pod's devices."""
        return cls in self._limited or (event.old_class is not None and event.old_class.uses_devices)

    def changed(self, cls: TaskClass, event: ClusterEvent) -> bool:
        """Whether a change of queues, or of the queues of pods, may change a limit on the pod's devices."""
        return cls in self._limited and (event.old is None or event.new is None or event.resource is not Queue
                                         or event.old.spec != event.new.spec)  # fmt: skip
