"""Tasks beside others: they end with their context, and do not fail in silence. What they follow they hear all of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from session_scheduler.base.background import alongside
from session_scheduler.cluster.errors import ClusterError, Gone, Unavailable
from session_scheduler.cluster.follow import follow
from session_scheduler.cluster.port import Change, Cluster, Listing, WatchEvent
from session_scheduler.model.objects import ObjectMeta, Pod


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


# ---------------------------------------------------------------------- following


def pod(name: str) -> Pod:
    return Pod(metadata=ObjectMeta(name=name))


class Scripted:
    """Answers each list and each watch with the next of the script, and ends where there is none."""

    def __init__(self, *script: list[str] | list[tuple[Change, str]] | ClusterError) -> None:
        self._script = iter(script)
        self.asked: list[str] = []
        self._version = 0

    def _next(self, asked: str) -> Any:
        self.asked.append(asked)
        answer = next(self._script, None)
        if answer is None:
            raise asyncio.CancelledError
        if isinstance(answer, ClusterError):
            raise answer
        self._version += 10
        return answer

    async def list(self, kind: type[Pod]) -> Listing[Pod]:
        assert kind is Pod
        names = self._next("list")
        return Listing(tuple(map(pod, names)), str(self._version))

    async def watch(self, kind: type[Pod], version: str) -> AsyncGenerator[WatchEvent[Pod]]:
        assert kind is Pod
        for number, (change, name) in enumerate(self._next(version)):
            yield WatchEvent(change, pod(name) if name else None, f"{self._version}.{number}")


async def heard(*script: list[str] | list[tuple[Change, str]] | ClusterError) -> tuple[list[str], list[str]]:
    """What the follower receives, and what the cluster was asked for."""
    cluster, reported = Scripted(*script), list[str]()

    def begin(there: tuple[Pod, ...]) -> Callable[[Pod, bool], None]:
        reported.append(",".join(one.metadata.name for one in there))
        return lambda one, gone: reported.append(f"{'-' if gone else '+'}{one.metadata.name}")

    failed: Callable[[Exception], None] = lambda error: reported.append(str(error))  # noqa: E731
    with pytest.raises(asyncio.CancelledError):
        await follow(cast(Cluster, cluster), Pod, begin, failed=failed, pause=0.0)
    return reported, cluster.asked


async def test_what_is_there_is_told_and_then_each_change_while_watches_tell_anything() -> None:
    changes = [(Change.ADDED, "b"), (Change.MODIFIED, "b"), (Change.DELETED, "a")]
    reported, asked = await heard(["a"], changes, [(Change.BOOKMARK, "")], [(Change.ADDED, "c")])
    assert reported == ["a", "+b", "+b", "-a", "+c"]
    assert asked == ["list", "10", "20.2", "30.0", "40.0"]


async def test_after_a_watch_that_told_nothing_everything_is_told_anew() -> None:
    reported, asked = await heard(["a"], [], ["b"], [(Change.DELETED, "b")])
    assert reported == ["a", "b", "-b"]
    assert asked == ["list", "10", "list", "30", "40.0"]


async def test_a_list_or_a_watch_that_fails_is_told_and_it_begins_anew() -> None:
    reported, asked = await heard(Unavailable("no answer"), ["a"], [(Change.ADDED, "b")], Gone("too old"), ["c"])
    assert reported == ["no answer", "a", "+b", "too old", "c"]
    assert asked == ["list", "list", "10", "20.0", "list", "30"]
