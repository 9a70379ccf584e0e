"""The endpoint /explain/NS/POD of a live scheduler: a pod's last cycle, and each node's verdict now.

It opens a session between two turns of the loop, over the state that the next cycle sees, and commits nothing. Limits:
the requests that wait, the nodes of a response, and a tenth of the scheduler's time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from session_scheduler.base.clock import Clock
from session_scheduler.engine.explain import explain_one, head_of, reason_of
from session_scheduler.model.groups import Phase

if TYPE_CHECKING:
    from session_scheduler.engine.scheduler import Scheduler

Answer = tuple[int, dict[str, Any]]
"""HTTP status and JSON."""
MOST_NODES: Final = 100
_MOST_ASKED: Final = 16
_TIMEOUT: Final = 10.0
_SHARE: Final = 9.0
"""After an explanation the endpoint pauses this many times as long as it took."""
_WAYS: Final = 4
"""How many orders of a gang's pods are tried."""


class Explanations:
    """Accepts requests at any time and handles them between two turns of the loop; `notify` starts a turn."""

    def __init__(self, scheduler: Scheduler, clock: Clock, notify: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._notify = notify
        self._asked: deque[tuple[str, asyncio.Future[Answer]]] = deque()
        self._not_before = 0.0

    async def ask(self, namespace: str, name: str) -> Answer:
        """Explain a pod: 200, 404 if the pod does not exist, 503 if too many requests wait."""
        if len(self._asked) >= _MOST_ASKED:
            return 503, {"error": f"{_MOST_ASKED} requests are waiting; retry in a moment"}
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asked.append((f"{namespace}/{name}", future))
        self._notify()
        try:
            async with asyncio.timeout(_TIMEOUT):
                return await future
        except TimeoutError:
            return 503, {"error": f"the scheduler did not reach this request within {_TIMEOUT:g} s; retry"}

    def next_time(self) -> float | None:
        """When to call `run`; None for never."""
        return self._not_before if self._asked else None

    def run(self) -> None:
        """Handle the first request that still waits, if it is due."""
        while self._asked and self._asked[0][1].done():
            self._asked.popleft()
        started = self._clock.now()
        if not self._asked or started < self._not_before:
            return
        key, future = self._asked.popleft()
        try:
            future.set_result(explained(self._scheduler, key))
        except Exception as error:  # noqa: BLE001 (only the request fails)
            future.set_exception(error)
        ended = self._clock.now()
        self._not_before = ended + _SHARE * (ended - started)


def explained(scheduler: Scheduler, key: str) -> Answer:
    """Explain the pod of that namespace/name; changes nothing."""
    task = next((task for task in scheduler.cache.tasks.values() if task.key == key), None)
    if task is None:
        return 404, {"error": f"pod {key}: not found among the pods of this scheduler; it may have finished"}
    head = {**head_of(task), "phase": task.phase.value, "node": task.node}
    if task.phase not in (Phase.PENDING, Phase.GATED):
        return 200, {**head, "lastCycle": None, "reason": None, "nodes": {}, "refusals": {}, "leftOut": 0, "gang": None}
    if task.pod.spec.scheduler_name not in scheduler.profiles:
        return 404, {
            "error": f"pod {key}: its schedulerName is {task.pod.spec.scheduler_name}, which no profile serves"
        }
    of_pod = explain_one(scheduler, task, MOST_NODES, ways=_WAYS)
    return 200, {
        **head,
        "lastCycle": reason_of(scheduler, task),
        **{name: of_pod[name] for name in ("reason", "fitsIf") if name in of_pod},
        "nodes": of_pod["nodes"],
        "refusals": of_pod["refusals"],
        "leftOut": of_pod["leftOut"],
        "gang": of_pod["gang"],
    }
