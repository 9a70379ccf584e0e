"""An API server in memory whose binds fail where a test says so."""

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
    """It is not done, and the API server says so."""
    LOST = "lost"
    """It is not done, and there is no answer: the connection broke before."""
    UNHEARD = "unheard"
    """It is done, and there is no answer: the connection broke after."""


@dataclass(slots=True)
class _Fault:
    answer: Answer
    text: str
    left: int | None
    """How many binds are still to fail; None for all."""


class FaultyCluster(MemoryCluster):
    """A cluster in memory; `faults` are the pods (namespace/name) whose binds fail."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._faults: dict[str, _Fault] = {}

    @property
    def version(self) -> int:
        """Moves with every write."""
        return self._version

    def fail(self, pod: str, answer: Answer, text: str, times: int | None) -> None:
        """Let the next binds of a pod (namespace/name) fail, `times` of them or all."""
        if times is not None and times < 1:
            raise ValueError(f"binds of {pod} cannot fail {times} times: say once or more, or None for ever")
        self._faults[pod] = _Fault(answer, text, times)

    def stop_failing(self) -> None:
        """From now on binds succeed."""
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
