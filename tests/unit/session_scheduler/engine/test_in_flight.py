"""Work that goes on outside the scheduler's turns."""

from __future__ import annotations

import asyncio
from typing import Any

from session_scheduler.engine.in_flight import InFlight


async def test_what_begins_while_other_work_is_waited_for_goes_on() -> None:
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
