"""Work that continues outside the scheduler's turns."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from session_scheduler.engine.in_flight import InFlight


async def test_work_that_begins_while_other_work_is_awaited_continues() -> None:
    completed: list[str] = []
    errors: list[BaseException] = []
    in_flight: InFlight[str] = InFlight(lambda: None)
    may_end = asyncio.Event()

    async def run_pending(group: str, _: Any) -> None:
        completed.append(group)

    async def later() -> None:
        await may_end.wait()

    async def first() -> None:
        in_flight.start("later", later(), run_pending)

    in_flight.start("first", first(), run_pending)
    await in_flight.wait(errors)
    await in_flight.complete_ended(errors)
    assert (completed, errors, in_flight.groups) == (["first"], [], ["later"])
    may_end.set()
    await in_flight.wait(errors)
    await in_flight.complete_ended(errors)
    assert (completed, errors, len(in_flight)) == (["first", "later"], [], 0)


async def test_work_that_has_ended_keeps_its_result_but_no_task() -> None:
    results: list[str] = []
    in_flight: InFlight[str] = InFlight(lambda: None)

    async def work(number: int) -> int:
        return number

    async def complete(group: str, result: int) -> None:
        results.append(f"{group} {result}")

    for number in range(50):
        in_flight.start(f"g{number}", work(number), complete)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(in_flight) == 50
    assert len(asyncio.all_tasks()) == 1
    held = [one for one in gc.get_objects() if isinstance(one, asyncio.Task) and one.done()]
    assert held == []
    await in_flight.complete_ended([])
    assert results == [f"g{number} {number}" for number in range(50)]
