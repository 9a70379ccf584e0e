"""The endpoint /explain/NS/POD of a live scheduler: what its last cycle said of a pod, and each node's verdict now.

A session is opened for it between two turns, over the state that the next cycle would see, and nothing of it is
committed. Bounded: few may wait, an answer shows so many nodes, and of the scheduler's time it takes a tenth at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from session_scheduler.actions.best_part import is_gang
from session_scheduler.base.clock import Clock
from session_scheduler.engine.explain import explain_gang, explain_task, head_of, reason_of
from session_scheduler.model.groups import Phase

if TYPE_CHECKING:
    from session_scheduler.engine.scheduler import Scheduler

Answer = tuple[int, dict[str, Any]]
"""An HTTP status, and JSON."""
MOST_NODES: Final = 100
_MOST_ASKED: Final = 16
_PATIENCE: Final = 10.0
_SHARE: Final = 9.0
"""So many times as long as an answer took nothing is answered after it."""
_WAYS: Final = 4
"""Ways in which a gang's best part is looked for."""


class Explanations:
    """Takes questions at any time and answers them between two turns of the loop; `notify` ends its rest."""

    def __init__(self, scheduler: Scheduler, clock: Clock, notify: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._notify = notify
        self._asked: deque[tuple[str, asyncio.Future[Answer]]] = deque()
        self._not_before = 0.0

    async def ask(self, namespace: str, name: str) -> Answer:
        """What is known of a pod: 200 with it, 404 where there is none, 503 where too many ask."""
        if len(self._asked) >= _MOST_ASKED:
            return 503, {"error": f"{_MOST_ASKED} pods are being explained: ask again in a moment"}
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asked.append((f"{namespace}/{name}", future))
        self._notify()
        try:
            async with asyncio.timeout(_PATIENCE):
                return await future
        except TimeoutError:
            return 503, {"error": f"no turn of the scheduler came to it within {_PATIENCE:g} s: ask again"}

    def next_time(self) -> float | None:
        """When there is something to answer; None for never."""
        return self._not_before if self._asked else None

    def run(self) -> None:
        """Answer the first that still waits, if it is time."""
        while self._asked and self._asked[0][1].done():
            self._asked.popleft()
        started = self._clock.now()
        if not self._asked or started < self._not_before:
            return
        key, future = self._asked.popleft()
        try:
            future.set_result(explained(self._scheduler, key))
        except Exception as error:  # noqa: BLE001 (the request fails with it, and the scheduler goes on)
            future.set_exception(error)
        ended = self._clock.now()
        self._not_before = ended + _SHARE * (ended - started)


def explained(scheduler: Scheduler, key: str) -> Answer:
    """What is known of the pod of that namespace/name; nothing is changed."""
    task = next((task for task in scheduler.cache.tasks.values() if task.key == key), None)
    if task is None:
        return 404, {"error": f"pod {key}: no pod of this scheduler has that namespace and name, or it has ended"}
    head = {**head_of(task), "phase": task.phase.value, "node": task.node}
    if task.phase not in (Phase.PENDING, Phase.GATED):
        return 200, {**head, "lastCycle": None, "reason": None, "nodes": {}, "refusals": {}, "leftOut": 0, "gang": None}
    if task.pod.spec.scheduler_name not in scheduler.profiles:
        return 404, {"error": f"pod {key}: another scheduler, {task.pod.spec.scheduler_name}, is to place it"}
    of_pod = explain_task(scheduler, task, most=MOST_NODES)
    return 200, {
        **head,
        "lastCycle": reason_of(scheduler, task),
        **{name: of_pod[name] for name in ("reason", "fitsIf") if name in of_pod},
        "nodes": of_pod["nodes"],
        "refusals": dict(sorted(of_pod["refusals"].items())),
        "leftOut": of_pod["leftOut"],
        "gang": explain_gang(scheduler, task.group, ways=_WAYS) if is_gang(task.group) else None,
    }
