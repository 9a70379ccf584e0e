"""An API server in memory that injects faults into binds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from session_scheduler.cluster.errors import Forbidden, Unavailable
from session_scheduler.cluster.memory import MemoryCluster


class Answer(Enum):
    """How a bind fails."""

    REFUSED = "refused"
    """The API server rejects it."""
    LOST = "lost"
    """The request is lost: no bind and no response."""
    UNHEARD = "unheard"
    """The response is lost: the pod is bound."""


@dataclass(slots=True)
class _Fault:
    answer: Answer
    text: str
    left: int | None
    """How many more binds fail; None for all."""


class FaultyCluster(MemoryCluster):
    """A cluster in memory with faults by pod (namespace/name)."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._faults: dict[str, _Fault] = {}

    @property
    def version(self) -> int:
        """Changes with every write."""
        return self._version

    def fail(self, pod: str, answer: Answer, text: str, times: int | None) -> None:
        """Make the next `times` binds of a pod (namespace/name) fail, or all."""
        if times is not None and times < 1:
            raise ValueError(f"expected times to be at least 1, or None for all binds of {pod}, got {times}")
        self._faults[pod] = _Fault(answer, text, times)

    def stop_failing(self) -> None:
        """Let all further binds succeed."""
        self._faults.clear()

    # more than five parameters: the fields of a Binding
    async def bind(
        self,
        namespace: str,
        name: str,
        *,
        node: str,
        uid: str,
        resource_version: str,
        annotations: Mapping[str, str],
    ) -> None:
        """See `port.Cluster`."""
        fault = self._next(f"{namespace}/{name}")
        if fault is None or fault.answer is Answer.UNHEARD:
            await super().bind(
                namespace, name, node=node, uid=uid, resource_version=resource_version, annotations=annotations
            )
        if fault is not None:
            raise Forbidden(fault.text) if fault.answer is Answer.REFUSED else Unavailable(fault.text)

    def _next(self, pod: str) -> _Fault | None:
        fault = self._faults.get(pod)
        if fault is not None and fault.left is not None:
            fault.left -= 1
            if not fault.left:
                del self._faults[pod]
        return fault
