"""Work that goes on outside the scheduler's turns."""

from __future__ import annotations

import asyncio
from typing import Any

from session_scheduler.engine.in_flight import InFlight


async def test_what_begins_while_other_work_is_waited_for_goes_on() -> None:
    settled: list[str] = []
    errors: list[BaseException] = []
    under_way: InFlight[str] = InFlight(lambda: None)
    may_end = asyncio.Event()

    async def settle(group: str, _: Any) -> None:
        settled.append(group)

    async def later() -> None:
        await may_end.wait()

    async def first() -> None:
        under_way.start("later", later(), settle)

    under_way.start("first", first(), settle)
    await under_way.wait(errors)
    await under_way.complete_ended(errors)
    assert (settled, errors, under_way.groups) == (["first"], [], ["later"])
    may_end.set()
    await under_way.wait(errors)
    await under_way.complete_ended(errors)
    assert (settled, errors, len(under_way)) == (["first", "later"], [], 0)
