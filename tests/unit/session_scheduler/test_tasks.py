"""Tasks beside others: they end with their context, and do not fail in silence."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from session_scheduler.tasks import alongside


def test_a_task_ends_with_its_context() -> None:
    ended = []

    async def works() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def serve() -> None:
        async with alongside(works()):
            await asyncio.sleep(0)
            assert not ended

    asyncio.run(serve())
    assert ended


def test_a_task_that_fails_is_told_when_it_does() -> None:
    async def fails() -> None:
        raise KeyError("a bug")

    async def serve() -> list[str]:
        with capture_logs() as logged:
            async with alongside(fails()):
                for _ in range(5):
                    await asyncio.sleep(0)
                return [entry["log_level"] for entry in logged]

    assert asyncio.run(serve()) == ["error"]
