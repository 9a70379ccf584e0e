"""The client for objects of any kind: single objects and lists."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec.structs import replace

from session_scheduler.cluster import dynamic_client as client
from session_scheduler.cluster import errors
from session_scheduler.cluster.dynamic_client import KubeApi
from session_scheduler.errors import InputError

PATH = "/api/v1/namespaces/one/secrets"


class Secret(msgspec.Struct, frozen=True, tag_field="kind", tag="Secret"):
    data: dict[str, str] = {}


class Server:
    """Responds to every request with `status` and `body`, or with the next of `answers`; stores the requests."""

    def __init__(self) -> None:
        self.status, self.body = 200, '{"kind": "Secret"}'
        self.asked: list[tuple[str, str, str | None, str]] = []
        self.silent = False
        self.answers: list[tuple[int, Any]] = []

    async def answer(self, request: web.Request) -> web.Response:
        content = request.headers.get("Content-Type")
        self.asked.append((request.method, request.path_qs, content, await request.text()))
        if self.silent:
            await asyncio.Event().wait()
        if self.answers:
            status, body = self.answers.pop(0)
            return web.json_response(body, status=status)
        return web.Response(status=self.status, text=self.body)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def api(server: Server, tmp_path: Path) -> AsyncIterator[KubeApi]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.answer)
    served = TestServer(application)
    await served.start_server(shutdown_timeout=0)
    file = tmp_path / "kubeconfig"
    file.write_text(f"""
apiVersion: v1
kind: Config
current-context: one
clusters: [{{name: one, cluster: {{server: "{served.make_url("")}"}}}}]
users: [{{name: one, user: {{}}}}]
contexts: [{{name: one, context: {{cluster: one, user: one}}}}]
""")
    async with await client.connect(str(file)) as api:
        yield api
    await served.close()


async def test_each_request_is_sent_to_its_path_as_json(server: Server, api: KubeApi) -> None:
    assert await api.get(f"{PATH}/a?x=y") == {"kind": "Secret"}
    await api.create(PATH, {"a": "ä"})
    await api.replace(f"{PATH}/a", {"b": 1})
    await api.patch(f"{PATH}/a", {"c": None})
    await api.patch(f"{PATH}/a", [{"op": "test"}], client.JSON_PATCH)
    assert server.asked == [
        ("GET", f"{PATH}/a?x=y", None, ""),
        ("POST", PATH, "application/json", '{"a": "ä"}'),
        ("PUT", f"{PATH}/a", "application/json", '{"b": 1}'),
        ("PATCH", f"{PATH}/a", "application/merge-patch+json", '{"c": null}'),
        ("PATCH", f"{PATH}/a", "application/json-patch+json", '[{"op": "test"}]'),
    ]


async def test_an_apply_sends_its_manager_and_whether_it_is_forced(server: Server, api: KubeApi) -> None:
    server.body = '{"kind": "Secret", "metadata": {"uid": "u"}}'
    assert await api.apply(f"{PATH}/a", {"a": "ä"}, manager="one & two") == {"kind": "Secret", "metadata": {"uid": "u"}}
    await api.apply(f"{PATH}/a", {}, manager="one", force=True)
    assert server.asked == [
        ("PATCH", f"{PATH}/a?fieldManager=one+%26+two&force=false", "application/apply-patch+yaml", '{"a": "ä"}'),
        ("PATCH", f"{PATH}/a?fieldManager=one&force=true", "application/apply-patch+yaml", "{}"),
    ]


async def test_only_the_object_with_the_uid_is_deleted(server: Server, api: KubeApi) -> None:
    server.body = '{"kind": "Status", "status": "Success"}'
    await api.delete(f"{PATH}/a", "u-1")
    ((method, path, content, body),) = server.asked
    assert (method, path, content) == ("DELETE", f"{PATH}/a", "application/json")
    assert json.loads(body) == {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "u-1"}}


REFUSED: list[Callable[[KubeApi], Awaitable[object]]] = [
    lambda api: api.apply(f"{PATH}/a", {}, manager="one"), lambda api: api.delete(f"{PATH}/a", "u-1"),
    lambda api: api.list(f"{PATH}/a", Secret, labels="a=b"),
]  # fmt: skip


@pytest.mark.parametrize("ask", REFUSED, ids=["apply", "delete", "list"])
@pytest.mark.parametrize(("status", "reason", "error"), [
    (404, "NotFound", errors.NotFound), (409, "Conflict", errors.Conflict), (403, "Forbidden", errors.Forbidden),
    (422, "Invalid", errors.Invalid),
])  # fmt: skip
async def test_the_error_of_an_apply_deletion_or_list_names_the_path_without_the_query(
    server: Server,
    api: KubeApi,
    status: int,
    reason: str,
    error: type[Exception],
    ask: Callable[[KubeApi], Awaitable[object]],
) -> None:
    server.status, server.body = status, f'{{"kind": "Status", "reason": "{reason}", "message": "no"}}'
    with pytest.raises(error, match=rf"^{PATH}/a: {status}: no$"):
        await ask(api)
    assert len(server.asked) == 1


@pytest.mark.parametrize(("status", "reason", "error"), [
    (404, "NotFound", errors.NotFound), (409, "AlreadyExists", errors.AlreadyExists),
    (409, "Conflict", errors.Conflict), (403, "Forbidden", errors.Forbidden), (422, "Invalid", errors.Invalid),
])  # fmt: skip
async def test_an_error_names_the_path(
    server: Server, api: KubeApi, status: int, reason: str, error: type[Exception]
) -> None:
    server.status, server.body = status, f'{{"kind": "Status", "reason": "{reason}", "message": "no"}}'
    with pytest.raises(error, match=rf"^{PATH}/a: {status}: no$"):
        await api.replace(f"{PATH}/a", {})


@pytest.mark.parametrize("body", ["", "[]", "<html>", "1", "[" * 100_000], ids=["", "[]", "<html>", "1", "deep"])
async def test_a_response_that_is_not_an_object_is_an_error(server: Server, api: KubeApi, body: str) -> None:
    server.body = body
    for ask in (api.get(PATH), api.list(PATH, Secret)):
        with pytest.raises(errors.Unavailable, match=rf"^{PATH}: the response is not a JSON object$"):
            await ask


ASKING: list[Callable[[KubeApi], Awaitable[object]]] = [
    lambda api: api.get(PATH), lambda api: api.create(PATH, {}), lambda api: api.replace(PATH, {}),
    lambda api: api.patch(PATH, {}), lambda api: api.apply(PATH, {}, manager="one"), lambda api: api.delete(PATH, "u"),
    lambda api: api.list(PATH, Secret),
]  # fmt: skip


@pytest.mark.parametrize("ask", ASKING, ids=["get", "create", "replace", "patch", "apply", "delete", "list"])
async def test_a_request_without_a_response_times_out(
    server: Server, api: KubeApi, monkeypatch: pytest.MonkeyPatch, ask: Callable[[KubeApi], Awaitable[object]]
) -> None:
    settings = api.client.settings
    assert max(settings.timeout, settings.write_timeout, settings.connect_timeout) <= 10
    assert max(settings.read_patience, settings.write_patience) <= 15
    server.silent = True
    brisk = replace(settings, timeout=0.05, write_timeout=0.05, tries=1)
    monkeypatch.setattr(api.client, "settings", brisk)
    async with asyncio.timeout(20):
        with pytest.raises(errors.Unavailable, match=rf"^{PATH}: no response in time$"):
            await ask(api)


# ---------------------------------------------------------------------- lists


def page(*items: dict[str, Any], go_on: str = "") -> tuple[int, Any]:
    return 200, {"metadata": {"resourceVersion": "7", "continue": go_on}, "items": list(items) or None}


def secret(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": {"name": name}}


EXPIRED = 410, {"kind": "Status", "reason": "Expired", "message": "too old", "metadata": {"continue": "inconsistent"}}


def queries(server: Server) -> list[str]:
    return [path.removeprefix(PATH) for _, path, _, _ in server.asked]


async def test_a_list_is_fetched_in_pages_with_its_selectors(server: Server, api: KubeApi) -> None:
    server.answers = [page(secret("a"), secret("b"), go_on="m&re"), page(go_on="most"), page(secret("c"))]
    found = await api.list(PATH, Secret, labels="a in (b,c)", fields="d!=e")
    assert [one.data for one in found] == [{"name": "a"}, {"name": "b"}, {"name": "c"}]
    chosen = "labelSelector=a+in+(b,c)&fieldSelector=d!%3De"
    assert queries(server) == [
        f"?limit=500&{chosen}", f"?limit=500&continue=m%26re&{chosen}", f"?limit=500&continue=most&{chosen}",
    ]  # fmt: skip


async def test_an_empty_list_without_selectors_sends_none(server: Server, api: KubeApi) -> None:
    server.answers = [page()]
    assert await api.list(PATH, Secret) == ()
    assert queries(server) == ["?limit=500"]


async def test_a_list_whose_pages_expire_is_fetched_again_so_that_it_shows_one_moment(
    server: Server, api: KubeApi
) -> None:
    server.answers = [page(secret("old"), go_on="more"), EXPIRED, page(secret("new"), go_on="more"), page(secret("b"))]
    assert [one.data["name"] for one in await api.list(PATH, Secret)] == ["new", "b"]
    assert queries(server) == ["?limit=500", "?limit=500&continue=more"] * 2


async def test_a_list_whose_pages_expire_twice_fails_and_is_never_fetched_in_one_page(
    server: Server, api: KubeApi
) -> None:
    server.answers = [page(secret("a"), go_on="more"), EXPIRED] * 2
    with pytest.raises(errors.ClusterError, match=rf"^{PATH}: 410: too old$"):
        await api.list(PATH, Secret)
    assert queries(server) == ["?limit=500", "?limit=500&continue=more"] * 2


@pytest.mark.parametrize(("answer", "why"), [
    (page(secret("a"), {"data": 1}), r".*`object`.*`\$\.items\[1\]\.data`"),
    (page({"kind": "ConfigMap"}), r".*'ConfigMap'.*`\$\.items\[0\]\.kind`"),
    ((200, {"kind": "Status"}), r".*`metadata`"),
])  # fmt: skip
async def test_objects_of_another_kind_are_unreadable(
    server: Server, api: KubeApi, answer: tuple[int, Any], why: str
) -> None:
    server.answers = [answer]
    with pytest.raises(errors.Unreadable, match=f"^{PATH}: {why}$"):
        await api.list(PATH, Secret)


async def test_a_cluster_that_is_not_configured_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none: the file does not exist"):
        await client.connect(str(tmp_path / "none"))
