"""Who may read the endpoints: the API server reviews tokens and rights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from session_scheduler.base.clock import StoppedClock
from session_scheduler.cluster.errors import Forbidden, Unavailable
from session_scheduler.config.settings import Serving
from session_scheduler.reporting.metrics import Metrics
from session_scheduler.sdk import http_authorization
from session_scheduler.sdk.access_reviews import MOST_CACHED
from session_scheduler.sdk.http_authorization import (
    NO_REVIEW,
    NO_TOKEN,
    WRONG_TOKEN,
    DelegatedAuthorization,
    authorization_of,
)
from session_scheduler.sdk.http_server import Endpoints

ALICE = {"username": "alice", "uid": "7", "groups": ["team"], "extra": {"scopes": ["read"]}}
LIMIT = aiohttp.ClientTimeout(total=20)


class ApiServer:
    """Answers reviews: `users` by token, `allowed` paths by user. Records the bodies."""

    def __init__(self) -> None:
        self.users: dict[str, dict[str, Any]] = {"secret-of-alice": ALICE}
        self.allowed = {("alice", "/explain/a/p")}
        self.audiences: list[str] | None = None
        self.bodies: list[dict[str, Any]] = []
        self.raises: BaseException | None = None
        self.answers: bytes | None = None
        self.hangs = False

    async def write(self, method: str, path: str, body: bytes, *, what: str, fenced: bool) -> bytes:
        assert (method, fenced) == ("POST", False)
        review = json.loads(body)
        assert path == f"apis/{review['apiVersion']}/{review['kind'].lower()}s"
        assert what == review["kind"]
        self.bodies.append(review)
        if self.hangs:
            await asyncio.Event().wait()
        if self.raises is not None:
            raise self.raises
        if self.answers is not None:
            return self.answers
        spec, status = review["spec"], {}
        if review["kind"] == "TokenReview":
            user = self.users.get(spec["token"])
            status = {"authenticated": True, "user": user} if user else {"error": "invalid bearer token"}
            status |= {"audiences": self.audiences} if self.audiences is not None else {}
        else:
            status = {"allowed": (spec["user"], spec["nonResourceAttributes"]["path"]) in self.allowed}
        return json.dumps({**review, "status": status}).encode()

    @property
    def kinds(self) -> list[str]:
        return [body["kind"] for body in self.bodies]


class World:
    def __init__(self, **options: Any) -> None:
        self.server, self.clock = ApiServer(), StoppedClock(100.0)
        self.ask = DelegatedAuthorization(self.server, clock=self.clock, **options)  # type: ignore[arg-type]


@pytest.fixture
def world() -> World:
    return World()


async def test_a_user_with_the_right_is_allowed_by_two_reviews(world: World) -> None:
    assert await world.ask("Bearer secret-of-alice", "/explain/a/p") is None
    token, access = world.server.bodies
    assert token["spec"] == {"token": "secret-of-alice"}
    assert access["spec"] == {
        "user": "alice", "uid": "7", "groups": ["team"], "extra": {"scopes": ["read"]},
        "nonResourceAttributes": {"path": "/explain/a/p", "verb": "get"},
    }  # fmt: skip


async def test_a_user_without_the_right_is_named_and_told_the_remedy(world: World) -> None:
    denial = await world.ask("bearer  secret-of-alice", "/configz")
    assert denial == (
        403,
        "user alice has no permission to get /configz; bind the user to a ClusterRole such as fluence-reader",
    )


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer  ", "Basic YTpi", "secret-of-alice"])
async def test_without_a_bearer_token_nothing_is_reviewed(world: World, header: str) -> None:
    assert await world.ask(header, "/configz") == NO_TOKEN
    assert world.server.bodies == []


async def test_a_denial_is_one_line(world: World) -> None:
    denial = await world.ask("Bearer secret-of-alice", "/explain/a/p\nforged: line")
    assert denial is not None
    assert denial.text.startswith("user alice has no permission to get /explain/a/p forged: line; ")


async def test_a_token_with_other_characters_is_denied_without_a_review(world: World) -> None:
    assert await world.ask("Bearer tok\udcffen", "/configz") == WRONG_TOKEN
    assert world.server.bodies == []


async def test_an_unknown_token_is_denied(world: World) -> None:
    assert await world.ask("Bearer wrong", "/configz") == WRONG_TOKEN
    assert world.server.kinds == ["TokenReview"]


@pytest.mark.parametrize("header", ["Bearer secret-of-alice", "Bearer wrong"])
async def test_answers_are_cached_for_ten_seconds(world: World, header: str) -> None:
    first = await world.ask(header, "/explain/a/p")
    reviews = len(world.server.bodies)
    world.clock.advance(9.9)
    assert await world.ask(header, "/explain/a/p") == first
    assert len(world.server.bodies) == reviews
    world.clock.advance(0.2)
    await world.ask(header, "/explain/a/p")
    assert len(world.server.bodies) == 2 * reviews


async def test_a_revoked_token_and_a_removed_right_end_with_the_cache(world: World) -> None:
    await world.ask("Bearer secret-of-alice", "/explain/a/p")
    world.clock.advance(11.0)
    world.server.allowed.clear()
    denial = await world.ask("Bearer secret-of-alice", "/explain/a/p")
    assert denial is not None
    assert denial.status == 403
    world.clock.advance(11.0)
    world.server.users.clear()
    assert await world.ask("Bearer secret-of-alice", "/explain/a/p") == WRONG_TOKEN


async def test_the_right_to_one_path_is_not_one_to_another(world: World) -> None:
    assert await world.ask("Bearer secret-of-alice", "/explain/a/p") is None
    assert await world.ask("Bearer secret-of-alice", "/explain/b/p") is not None
    assert world.server.kinds == ["TokenReview", "SubjectAccessReview", "SubjectAccessReview"]


async def test_the_caches_are_bounded_and_contain_no_token(world: World) -> None:
    for number in range(MOST_CACHED + 50):
        await world.ask(f"Bearer wrong-{number}", "/configz")
    assert len(world.ask._reviews._users._entries) == MOST_CACHED
    assert "wrong-" not in repr(world.ask._reviews._users._entries)


@pytest.mark.parametrize("error", [Unavailable("TokenReview: no response in time"), Forbidden("TokenReview: 403")])
async def test_without_a_review_the_path_is_closed_and_one_line_is_logged(world: World, error: Exception) -> None:
    world.server.raises = error
    with capture_logs() as logs:
        assert await world.ask("Bearer secret-of-alice", "/configz") == NO_REVIEW
        assert await world.ask("Bearer secret-of-alice", "/configz") == NO_REVIEW
    assert [(log["log_level"], log["why"]) for log in logs] == [("warning", str(error))]
    assert "secret-of-alice" not in repr(logs)
    world.server.raises = None
    assert await world.ask("Bearer secret-of-alice", "/explain/a/p") is None


async def test_a_review_without_a_response_in_time_closes_the_path(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_authorization, "REVIEW_SECONDS", 0.01)
    world.server.hangs = True
    with capture_logs() as logs:
        assert await world.ask("Bearer secret-of-alice", "/configz") == NO_REVIEW
    assert [log["why"] for log in logs] == ["no response within 0.01 s"]


@pytest.mark.parametrize(
    "answer", [b"<html>secret-of-alice", b"[]", b'{"status": {"authenticated": "secret-of-alice"}}']
)
async def test_a_response_that_is_no_review_closes_the_path_and_is_not_logged(world: World, answer: bytes) -> None:
    world.server.answers = answer
    with capture_logs() as logs:
        assert await world.ask("Bearer secret-of-alice", "/configz") == NO_REVIEW
    assert "secret-of-alice" not in repr(logs)


async def test_an_empty_status_allows_nothing(world: World) -> None:
    world.server.answers = b'{"status": {}}'
    assert await world.ask("Bearer secret-of-alice", "/configz") == WRONG_TOKEN


@pytest.mark.parametrize(
    ("answered", "accepted"), [(None, False), ([], False), (["other"], False), (["fluence"], True)]
)
async def test_a_token_for_another_audience_is_denied(answered: list[str] | None, accepted: bool) -> None:
    world = World(audiences=["fluence"])
    world.server.audiences = answered
    assert (await world.ask("Bearer secret-of-alice", "/explain/a/p") is None) is accepted
    assert world.server.bodies[0]["spec"] == {"token": "secret-of-alice", "audiences": ["fluence"]}


async def test_a_configuration_chooses_the_authorization() -> None:
    server: Any = ApiServer()
    assert authorization_of(Serving(authorization="none"), server) is None
    assert isinstance(authorization_of(Serving(), server), DelegatedAuthorization)


# ------------------------------------------------------------------ over HTTP


@asynccontextmanager
async def served(world: World, **options: Any) -> AsyncIterator[Any]:
    async def explain(namespace: str, name: str) -> tuple[int, Any]:
        return 200, {"name": f"{namespace}/{name}"}

    serving = Serving(host="127.0.0.1", port=0)
    endpoints = Endpoints(
        serving, metrics=Metrics(), health=lambda: None, ready=dict, config=lambda: {"seed": 7}, explain=explain,
        plugins=lambda *_: (200, b"all is well", "text/plain"), authorize=world.ask, clock=world.clock, **options,
    )  # fmt: skip
    async with endpoints, aiohttp.ClientSession(timeout=LIMIT) as session:

        async def ask(path: str, token: str = "", method: str = "GET") -> tuple[int, str, Any]:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            url = f"http://127.0.0.1:{endpoints.address[1]}{path}"
            async with session.request(method, url, headers=headers) as answer:
                return answer.status, await answer.text(), answer.headers

        yield ask


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/metrics"])
async def test_probes_and_metrics_are_open(world: World, path: str) -> None:
    async with served(world) as ask:
        assert (await ask(path))[0] == 200
    assert world.server.bodies == []


@pytest.mark.parametrize("path", ["/configz", "/explain/a/p", "/plugins/mine/page", "/", "/healthz/x", "//metrics"])
async def test_every_other_path_needs_a_token_and_the_right(world: World, path: str) -> None:
    async with served(world) as ask:
        status, text, headers = await ask(path)
        assert (status, text) == (401, "send a token for the cluster: `Authorization: Bearer TOKEN`\n")
        assert headers["WWW-Authenticate"] == "Bearer"
        world.server.allowed = set()
        status, text, headers = await ask(path, "secret-of-alice")
        assert status == 403
        assert text.startswith("user alice has no permission to get ")
        assert text.count("\n") == 1
        assert "WWW-Authenticate" not in headers


async def test_a_reader_is_answered(world: World) -> None:
    async with served(world) as ask:
        assert (await ask("/explain/a/p", "secret-of-alice"))[:2] == (200, '{\n  "name": "a/p"\n}\n')
        assert (await ask("/explain/a/p", "secret-of-alice", "HEAD"))[0] == 200
        assert (await ask("/explain/a%2Fp", "secret-of-alice"))[0] == 404


async def test_a_long_token_is_accepted(world: World) -> None:
    world.server.users["x" * 8000] = ALICE
    async with served(world) as ask:
        assert (await ask("/explain/a/p", "x" * 8000))[0] == 200


# ------------------------------------------------------------------ floods


async def test_a_flood_is_rejected_before_any_work(world: World) -> None:
    async with served(world) as ask:
        answers = [await ask("/explain/a/p", f"wrong-{number}") for number in range(100)]
        assert [status for status, _, _ in answers] == [401] * 20 + [429] * 80
        assert len(world.server.bodies) == 20
        _, text, headers = answers[-1]
        assert (text, headers["Retry-After"]) == ("too many requests; retry after 1 s\n", "1")
        assert (await ask("/healthz"))[:2] == (200, "ok")
        world.clock.advance(1.0)
        assert (await ask("/explain/a/p", "secret-of-alice"))[0] == 200


async def test_a_flood_of_scrapes_computes_no_more_than_the_limit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    scrapes = []
    exposition = Metrics.exposition
    monkeypatch.setattr(Metrics, "exposition", lambda *asked: scrapes.append(1) or exposition(*asked))
    async with served(world) as ask:
        answers = [(await ask("/metrics"))[0] for _ in range(200)]
    assert answers == [200] * 20 + [429] * 180
    assert len(scrapes) == 20


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/metrics", "/configz", "/nothing"])
async def test_every_path_has_a_limit(world: World, path: str) -> None:
    async with served(world) as ask:
        assert [(await ask(path))[0] for _ in range(21)][-1] == 429
