"""Tokens, sessions, and what a user may read."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from fluence_lab.dashboard.access import (
    MOST_OF_USER,
    MOST_SESSIONS,
    READER_SECONDS,
    SESSION_SECONDS,
    DeniedError,
    LocalAccess,
    ReviewedAccess,
    Sessions,
    expiry,
)
from session_scheduler.base.clock import StoppedClock
from session_scheduler.cluster.errors import Unavailable
from session_scheduler.sdk.access_reviews import AccessReviews, User

ALICE = User("alice", "7", ("team",))


class ApiServer:
    """Answers reviews: `allowed` are (verb, resource or path, namespace)."""

    def __init__(self) -> None:
        self.allowed = {("get", "/dashboard", ""), ("list", "pods", "science")}
        self.reviews: list[dict[str, Any]] = []
        self.raises: Exception | None = None

    async def write(self, method: str, path: str, body: bytes, *, what: str, fenced: bool) -> bytes:
        assert (method, fenced) == ("POST", False)
        if self.raises is not None:
            raise self.raises
        review = json.loads(body)
        self.reviews.append(review)
        spec = review["spec"]
        if what == "TokenReview":
            good = spec["token"] == "secret"
            return json.dumps({"status": {"authenticated": good, "user": {"username": "alice"}}}).encode()
        if "nonResourceAttributes" in spec:
            asked = ("get", spec["nonResourceAttributes"]["path"], "")
        else:
            resource = spec["resourceAttributes"]
            asked = (resource["verb"], resource["resource"], resource.get("namespace", "*"))
        return json.dumps({"status": {"allowed": asked in self.allowed}}).encode()


class World:
    def __init__(self) -> None:
        self.server, self.clock = ApiServer(), StoppedClock(100.0)
        reviews = AccessReviews(self.server, clock=self.clock, seconds=30.0)  # type: ignore[arg-type]
        self.access = ReviewedAccess(reviews, self.clock.now)


async def test_a_user_reads_the_namespaces_in_which_it_may_list_pods() -> None:
    world = World()
    reader = await world.access.reader(await world.access.user("secret"), {"science", "finance"})
    assert (reader.name, reader.namespaces) == ("alice", frozenset({"science"}))


async def test_who_may_list_all_pods_reads_everything_with_one_review() -> None:
    world = World()
    world.server.allowed.add(("list", "pods", "*"))
    assert (await world.access.reader(ALICE, {f"n{n}" for n in range(100)})).namespaces is None
    assert len(world.server.reviews) == 2


async def test_reviews_are_used_again_for_thirty_seconds() -> None:
    world = World()
    await world.access.reader(ALICE, {"science"})
    asked = len(world.server.reviews)
    world.clock.advance(29)
    assert (await world.access.reader(ALICE, {"science"})).namespaces == frozenset({"science"})
    assert len(world.server.reviews) == asked
    world.server.allowed.remove(("list", "pods", "science"))
    world.clock.advance(2)
    assert (await world.access.reader(ALICE, {"science"})).namespaces == frozenset()


async def test_open_pages_of_one_user_share_one_look_at_all_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    world, looked = World(), []
    may = ReviewedAccess._may

    async def counted(self: ReviewedAccess, user: User, **attributes: Any) -> bool:
        looked.append(attributes)
        return await may(self, user, **attributes)

    monkeypatch.setattr(ReviewedAccess, "_may", counted)
    for _ in range(100):
        assert (await world.access.reader(ALICE, {"science", "finance"})).namespaces == frozenset({"science"})
    assert len(looked) == 4
    world.server.allowed.add(("list", "pods", "new"))
    assert (await world.access.reader(ALICE, {"science", "new"})).namespaces == frozenset({"science", "new"})
    world.clock.advance(READER_SECONDS)
    await world.access.reader(ALICE, {"science", "new"})
    assert len(looked) == 12


async def test_remembered_readers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluence_lab.dashboard.access.MOST_READERS", 3)
    world = World()
    for number in range(10):
        await world.access.reader(User(f"user {number}"), ())
    assert len(world.access._readers) == 3


async def test_one_users_permission_is_not_anothers() -> None:
    world = World()
    await world.access.reader(ALICE, {"science"})
    asked = len(world.server.reviews)
    await world.access.reader(User("alice", "7", ("other",)), {"science"})
    assert len(world.server.reviews) == 2 * asked


async def test_a_user_without_the_path_is_denied_in_words() -> None:
    world = World()
    world.server.allowed.clear()
    with pytest.raises(
        DeniedError, match="user alice has no permission to get /dashboard; bind the user to a ClusterRole"
    ) as denied:
        await world.access.reader(ALICE, ())
    assert denied.value.status == 403


@pytest.mark.parametrize("token", ["", "wrong", "é", "a" * 20_000])
async def test_a_wrong_token_is_denied(token: str) -> None:
    with pytest.raises(DeniedError) as denied:
        await World().access.user(token)
    assert denied.value.status == 401


async def test_without_a_review_nothing_is_shown() -> None:
    world = World()
    world.server.raises = Unavailable("TokenReview: no response in time")
    with pytest.raises(DeniedError) as denied:
        await world.access.user("secret")
    assert (denied.value.status, "secret" in denied.value.text) == (503, False)
    with pytest.raises(DeniedError):
        await world.access.reader(ALICE, ())


async def test_the_local_token_works_once() -> None:
    access, shown = LocalAccess(), []
    access.show = shown.append
    with pytest.raises(DeniedError):
        await access.user("")
    access.renew()
    assert (await access.reader(await access.user(shown[0]), ())).namespaces is None
    assert len(set(shown)) == 2
    with pytest.raises(DeniedError, match="was used before"):
        await access.user(shown[0])
    await access.user(shown[1])


def new_sessions() -> tuple[Sessions, StoppedClock]:
    clock = StoppedClock(0.0, wall=1_000_000.0)
    return Sessions(clock.now, clock.wall), clock


def token_until(expires: float) -> str:
    payload = base64.urlsafe_b64encode(json.dumps({"exp": expires}).encode()).decode().rstrip("=")
    return f"head.{payload}.signature"


def test_a_session_ends_after_twelve_hours_or_by_sign_out() -> None:
    sessions, clock = new_sessions()
    first, second = sessions.begin(ALICE, "secret"), sessions.begin(ALICE, "secret")
    assert first != second
    sessions.end(second)
    assert sessions.get(second) is None
    clock.advance(SESSION_SECONDS - 1)
    found = sessions.get(first)
    assert found is not None
    assert found.user == ALICE
    clock.advance(1)
    assert sessions.get(first) is None


def test_a_session_ends_with_its_token() -> None:
    sessions, clock = new_sessions()
    secret = sessions.begin(ALICE, token_until(1_000_060))
    clock.advance(59)
    assert sessions.get(secret) is not None
    clock.advance(1)
    assert sessions.get(secret) is None


def test_sessions_are_bounded_and_keep_no_token() -> None:
    sessions, _ = new_sessions()
    first = sessions.begin(ALICE, "the-token")
    for number in range(MOST_SESSIONS):
        last = sessions.begin(User(f"user {number}"), "the-token")
    assert sessions.get(first) is None
    assert sessions.get(last) is not None
    assert "the-token" not in repr(sessions._sessions)


def test_the_sessions_of_one_user_do_not_end_those_of_others() -> None:
    sessions, _ = new_sessions()
    other = sessions.begin(User("bob"), "")
    first = sessions.begin(ALICE, "")
    for _ in range(MOST_SESSIONS):
        last = sessions.begin(ALICE, "")
    assert sessions.get(first) is None
    assert sessions.get(last) is not None
    assert sessions.get(other) is not None
    assert len(sessions._sessions) == MOST_OF_USER + 1


@pytest.mark.parametrize("token", ["secret", "a.b.c", "a.bm90IGpzb24.c", f"a.{base64.b64encode(b'[]').decode()}.c"])
def test_another_token_does_not_expire(token: str) -> None:
    assert expiry(token) == float("inf")
