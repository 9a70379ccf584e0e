"""What plugins answer over HTTP: their own paths, bounded, without harm to others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import pytest

from session_scheduler import Session, hookimpl
from session_scheduler.config.settings import Serving
from session_scheduler.reporting.metrics import Metrics
from session_scheduler.sdk.http_server import Endpoints
from session_scheduler.server.plugin_routes import LARGEST, PluginRoutes
from session_scheduler.testing import FakeCluster, pod

LIMIT = aiohttp.ClientTimeout(total=20)


class Plugin:
    name = "mine"
    hook_seconds = 0.5

    def __init__(self, handler: Callable[[Mapping[str, str]], Any]) -> None:
        self._handler = handler
        self.sessions = 0

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        self.sessions += 1
        session.add_http_handler("what/now", self._handler)


def routes_of(plugin: object) -> PluginRoutes:
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("p"))
    cluster.run(plugin)
    return PluginRoutes(cluster.scheduler.profiles.values())


def loops(_: Any) -> None:
    while True:
        pass


async def asked(routes: PluginRoutes, *paths: str, method: str = "GET") -> list[tuple[int, str, str]]:
    metrics = Metrics()
    serving = Endpoints(
        Serving(host="127.0.0.1", port=0), metrics=metrics, health=lambda: None, ready=dict, plugins=routes
    )
    async with serving, aiohttp.ClientSession(timeout=LIMIT) as client:
        found = []
        for path in paths:
            async with client.request(method, f"http://127.0.0.1:{serving.address[1]}{path}") as answer:
                found.append((answer.status, await answer.text(), answer.headers["Content-Type"]))
        return found


def test_a_plugin_answers_under_its_own_prefix_between_sessions() -> None:
    routes = routes_of(Plugin(lambda query: {"asked": dict(query)}))
    found = asyncio.run(asked(routes, "/plugins/mine/what/now?a=1", "/plugins/mine/else", "/plugins/other/what/now"))
    assert (found[0][0], json.loads(found[0][1]), found[0][2]) == (200, {"asked": {"a": "1"}}, "application/json")
    assert [status for status, _, _ in found[1:]] == [404, 404]


def test_a_text_is_answered_as_it_is() -> None:
    routes = routes_of(Plugin(lambda query: "all is well"))
    assert routes("mine", "what/now", {}) == (200, b"all is well", "text/plain; charset=utf-8")


def test_nothing_can_be_changed() -> None:
    routes = routes_of(Plugin(lambda query: "x"))
    assert asyncio.run(asked(routes, "/plugins/mine/what/now", method="POST"))[0][0] == 405


@pytest.mark.parametrize(
    "handler",
    [lambda query: 1 / 0, lambda query: object(), lambda query: "x" * (LARGEST + 1), lambda query: "\ud800", loops],
)
def test_one_that_fails_is_told_by_name_and_the_server_goes_on(handler: Callable[[Mapping[str, str]], Any]) -> None:
    routes = routes_of(Plugin(handler))
    found = asyncio.run(asked(routes, "/plugins/mine/what/now", "/healthz"))
    assert found[0][:2] == (500, "plugin mine failed; see the logs\n")
    assert found[1][:2] == (200, "ok")
