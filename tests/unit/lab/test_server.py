"""The dashboard's HTTP server: pages, JSON, events, headers and limits, with a fake cluster and fake users."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import CookieJar, StreamReader
from aiohttp.test_utils import TestClient, TestServer
from structlog.testing import capture_logs

from fluence_lab import drawing
from fluence_lab.dashboard import pages, server, streams
from fluence_lab.dashboard.access import DeniedError, LocalAccess, Reader
from fluence_lab.dashboard.feeds import Subject
from fluence_lab.dashboard.server import Dashboard
from fluence_lab.panels import Panel, PanelContext, Search
from fluence_lab.view import Column, Figure, Table, View
from session_scheduler.base.clock import StoppedClock
from session_scheduler.model.objects import Pod
from session_scheduler.observation.values import Observed
from session_scheduler.sdk.access_reviews import User
from session_scheduler.sdk.signals import background

from .observations import observed, pod, pods
from .waiting import until

READS = {"alice": None, "bob": frozenset({"science"}), "carol": frozenset()}


class FakeAccess:
    hint = "A token of the tests"

    def __init__(self) -> None:
        self.reads: dict[str, frozenset[str] | None] = dict(READS)

    async def user(self, token: str) -> User:
        if token not in self.reads:
            raise DeniedError(401, "the API server does not accept this token: it is invalid or has expired")
        return User(token)

    async def reader(self, user: User, namespaces: Iterable[str]) -> Reader:
        allowed = self.reads[user.username]
        return Reader(user.username, allowed if allowed is None else allowed & set(namespaces))


class FakeObserver:
    def __init__(self) -> None:
        self.version = 0
        self.explained: list[str] = []
        self.error: Exception | None = None
        self.set([pod("science/x"), pod("finance/secret"), pod("finance/<b>")])

    def set(self, rows: list[dict[str, Any]]) -> None:
        self.version += 1
        self._now = msgspec.structs.replace(observed(), pods=pods(rows), version=self.version)

    def observe(self) -> Observed:
        if self.error is not None:
            raise self.error
        return self._now

    async def verdicts(self, key: str) -> dict[str, Any]:
        self.explained.append(key)
        return {"reason": f"about {key}"}

    def plugin(self, _name: str) -> object | None:
        return None

    def pods(self) -> Mapping[str, Pod]:
        return {}


def listing(context: PanelContext) -> View:
    keys = context.observed.pods.keys
    verdict = context.verdicts(context.query.get("pod", "")) or {}
    rows = tuple((key,) for key in keys)
    table = Table("pods", "Pods", (Column("Pod", link="listing?pod={}"),), rows)
    return View("listing", "Listing", f"{len(keys)} pods. {verdict.get('reason', '')}", tables=(table,))


def broken(_: PanelContext) -> View:
    raise ValueError("<no numbers>")


PANELS = [
    Panel("listing", "Listing", listing, order=1),
    Panel("broken", "Broken", broken),
    Panel("empty", "Empty", lambda _: None),
]


class World:
    def __init__(self) -> None:
        self.clock, self.access, self.observer = StoppedClock(100.0), FakeAccess(), FakeObserver()
        self.dashboard = self.made(self.access)

    def made(self, access: Any) -> Dashboard:
        return Dashboard(self.observer, access, PANELS, live=True, now=self.clock.now, wall=self.clock.wall)

    @asynccontextmanager
    async def client(self, user: str = "", dashboard: Dashboard | None = None) -> AsyncIterator[TestClient[Any, Any]]:
        server = TestServer((dashboard or self.dashboard).application())
        headers = {"Authorization": f"Bearer {user}"} if user else {}
        async with TestClient(server, headers=headers, cookie_jar=CookieJar(unsafe=True)) as client:
            yield client


@pytest.fixture
def world() -> World:
    return World()


async def text_of(client: TestClient[Any, Any], path: str) -> tuple[int, str]:
    async with client.get(path, allow_redirects=False) as response:
        return response.status, await response.text()


async def test_a_page_and_its_json_show_the_same(world: World) -> None:
    async with world.client("alice") as client:
        status, text = await text_of(client, "/listing")
        assert status == 200
        assert '<p id="summary" aria-live="polite">3 pods. </p>' in text
        assert "science/x" in text
        for path in ("/api/listing", "/listing?format=json"):
            answer = json.loads((await text_of(client, path))[1])
            assert answer["summary"] == "3 pods. "
            assert answer["tables"]["pods"]["rows"] == [["science/x"], ["finance/secret"], ["finance/<b>"]]


async def test_files_have_their_note_on_each_page_and_no_history(world: World) -> None:
    seen: list[int] = []

    def counting(context: PanelContext) -> View:
        seen.append(len(context.history.times))
        return listing(context)

    panels = [Panel("listing", "Listing", counting)]
    dashboard = Dashboard(world.observer, FakeAccess(), panels, live=False, note="Nothing was scheduled.")
    await dashboard.pages.update()
    async with world.client("alice", dashboard) as client:
        _, text = await text_of(client, "/listing")
    assert '<p id="notes">a test. Nothing was scheduled.</p>' in text
    assert set(seen) == {0}


async def test_a_figure_without_data_is_its_text(world: World) -> None:
    def page(context: PanelContext) -> View:
        number = len(context.observed.pods.keys)
        bars = {**drawing.rows(["x"] * number), "n": [1] * number}
        figure = Figure(
            "f",
            "F",
            f"{number} bars.",
            {"bars": bars},
            lambda sources: drawing.bars(sources["bars"], "n", drawing.BLUE, "n"),
        )
        return View("page", "Page", "", (figure,), (Table("t", "T", (Column("x"),), (), optional=True),))

    dashboard = Dashboard(world.observer, world.access, [Panel("page", "Page", page)], live=True)
    async with world.client("alice", dashboard) as client:
        _, full = await text_of(client, "/page")
        world.observer.set([])
        await dashboard.pages.update()
        _, empty = await text_of(client, "/page")
    assert 'id="figure-page-f"' in full
    assert 'id="figure-page-f"' not in empty
    assert '<figcaption id="text-f">0 bars.</figcaption>' in empty
    assert '<script type="application/json" id="figures">{}</script>' in empty
    assert '<div data-table="t"></div>' in full


async def test_texts_are_escaped(world: World) -> None:
    async with world.client("alice") as client:
        text = (await text_of(client, "/listing?pod=%22%3E%3Cscript%3E"))[1]
    assert "<b>" not in text.replace("<button>", "")
    assert '"><script>' not in text


async def test_other_namespaces_are_sums(world: World) -> None:
    async with world.client("bob") as client:
        text = (await text_of(client, "/listing"))[1]
        assert "finance/" not in text
        assert "In namespaces that you have no permission to read: pending 2" in text
        assert "1 pods." in text


async def test_a_pod_of_another_namespace_is_not_explained(world: World) -> None:
    async with world.client("bob") as client:
        await text_of(client, "/listing?pod=finance/secret")
        assert world.observer.explained == []
        assert "about science/x" in (await text_of(client, "/listing?pod=science/x"))[1]
        assert world.observer.explained == ["science/x"]


@pytest.mark.parametrize("path", ["/listing", "/", "/nothing", "/api/listing", "/events/listing"])
async def test_without_a_session_nothing_is_shown(world: World, path: str) -> None:
    async with world.client() as client:
        status, text = await text_of(client, path)
    assert status in (401, 404)
    assert "science" not in text


async def test_the_headers_forbid_other_hosts_frames_and_caches(world: World) -> None:
    async with world.client("alice") as client:
        for path in ("/listing", "/api/listing", "/nothing", "/login", "/healthz"):
            async with client.get(path) as response:
                policy = response.headers["Content-Security-Policy"]
                assert "default-src 'none'; script-src 'self';" in policy
                assert "frame-ancestors 'none'" in policy
                assert "http" not in policy
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["Cache-Control"] == "no-store"


async def test_pages_have_no_inline_script_and_name_no_other_host(world: World) -> None:
    async with world.client("alice") as client:
        text = (await text_of(client, "/listing"))[1]
    assert "<script>" not in text
    assert "://" not in text
    assert " onclick" not in text


async def test_static_files_are_cached_by_their_content(world: World) -> None:
    async with world.client("alice") as client:
        text = (await text_of(client, "/listing"))[1]
        path = text.partition('rel="stylesheet" href="')[2].partition('"')[0]
        async with client.get(f"/{path}") as response:
            assert response.status == 200
            assert response.headers["Cache-Control"] == "public, max-age=31536000, immutable"
        name = path.rpartition("/")[2]
        for wrong in (f"/static/0/{name}", "/static/0/..%2fserver.py", "/static/0/server.py"):
            assert (await text_of(client, wrong))[0] == 404


async def test_head_has_no_body(world: World) -> None:
    async with world.client("alice") as client, client.head("/listing") as response:
        assert response.status == 200
        assert await response.read() == b""


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nothing", 404), ("POST", "/listing", 405),
                                                        ("DELETE", "/", 405), ("GET", "/empty", 404)])  # fmt: skip
async def test_what_does_not_exist_is_refused_in_words(world: World, method: str, path: str, status: int) -> None:
    async with world.client("alice") as client, client.request(method, path) as response:
        assert response.status == status
        assert (await response.json())["error"] in ("this page does not exist", "read only; use GET")


async def test_a_long_query_is_refused(world: World) -> None:
    async with world.client("alice") as client:
        assert (await text_of(client, f"/api/listing?pod={'x' * 600}"))[0] == 400
        assert (await text_of(client, "/api/listing?" + "&".join(f"k{n}=1" for n in range(9))))[0] == 400


async def test_a_panel_that_fails_shows_its_error_and_is_logged_once(world: World) -> None:
    async with world.client("alice") as client:
        with capture_logs() as logs:
            for user in range(3):
                text = (await text_of(client, f"/broken?user={user}"))[1]
                assert "This page failed: ValueError: &lt;no numbers&gt;" in text
            assert (await text_of(client, "/listing"))[0] == 200
    assert [log["panel"] for log in logs if log["event"] == "a panel failed"] == ["broken"]


async def test_a_panels_error_names_no_pod_to_a_reader_of_some_namespaces(world: World) -> None:
    async with world.client("bob") as client:
        text = (await text_of(client, "/broken"))[1]
    assert "This page failed; see the dashboard&#39;s log." in text
    assert "numbers" not in text


async def test_an_error_of_the_verdicts_is_shown_and_other_pages_are_updated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def verdicts(key: str) -> dict[str, Any]:
        raise KeyError(key)

    monkeypatch.setattr(world.dashboard.pages._verdicts, "_explain", verdicts)
    async with (
        world.client("alice") as client,
        client.get("/events/listing?pod=finance/secret&since=0") as failed,
        client.get("/events/listing?since=2") as other,
    ):
        assert "This page failed: KeyError" in (await next_event(failed.content))[1]["summary"]
        world.observer.set([pod("science/x")])
        await world.dashboard.pages.update()
        assert (await next_event(other.content))[1]["summary"] == "1 pods. "


async def test_readers_of_the_same_namespaces_share_what_they_see(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, seen_by = [], Observed.seen_by

    def counted(self: Observed, namespaces: frozenset[str] | None) -> Observed:
        found.append(namespaces)
        return seen_by(self, namespaces)

    monkeypatch.setattr(Observed, "seen_by", counted)
    async with world.client("bob") as client:
        for number in range(5):
            assert "finance/" not in (await text_of(client, f"/listing?number={number}"))[1]
    assert found == [READS["bob"]]
    async with world.client("carol") as client:
        assert "science/" not in (await text_of(client, "/listing"))[1]
    world.observer.set([pod("science/y")])
    async with world.client("bob") as client:
        assert "science/y" in (await text_of(client, "/listing"))[1]
    assert found == [READS["bob"], READS["carol"], READS["bob"]]


async def test_the_sets_of_namespaces_are_bounded(world: World) -> None:
    for number in range(3 * pages.MOST_SEEN):
        world.dashboard.pages._observed(frozenset({f"n{number}"}))
    assert len(world.dashboard.pages._seen[1]) == pages.MOST_SEEN


async def test_ages_and_series_go_on_while_nothing_changes(world: World) -> None:
    begin = world.clock.wall()
    for _ in range(3):
        world.clock.advance(10)
        await world.dashboard.pages.update()
    assert world.dashboard.pages.recorder.history(None).times.tolist() == [begin, begin + 10, begin + 20, begin + 30]
    assert world.dashboard.pages._context(Subject("listing", None, ())).observed.time == begin + 30


async def test_a_panel_without_a_view_is_not_listed(world: World) -> None:
    async with world.client("alice") as client:
        text = (await text_of(client, "/listing"))[1]
    assert '<a href="listing" aria-current="page">Listing</a>' in text
    assert ">Empty<" not in text


async def test_a_panel_is_listed_once_it_has_something_to_show(world: World) -> None:
    dashboard = Dashboard(
        world.observer,
        world.access,
        [PANELS[0], Panel("late", "Late", lambda context: listing(context) if world.observer.version > 1 else None)],
        live=True,
        now=world.clock.now,
        wall=world.clock.wall,
    )
    async with world.client("alice", dashboard) as client:
        assert ">Late<" not in (await text_of(client, "/listing"))[1]
        world.observer.set([pod("science/x")])
        world.clock.advance(pages.PANELS_SECONDS)
        assert ">Late<" in (await text_of(client, "/listing"))[1]


async def test_a_panel_shows_what_it_fetched(world: World) -> None:
    async def fetch(api: object) -> object:
        return f"what {api} reads"

    def view(context: PanelContext) -> View | None:
        return None if context.fetched is None else View("fetched", "Fetched", str(context.fetched))

    panels = [PANELS[0], Panel("fetched", "Fetched", view, fetch=fetch)]
    dashboard = Dashboard(
        world.observer,
        world.access,
        panels,
        live=True,
        now=world.clock.now,
        wall=world.clock.wall,
    )
    async with world.client("alice", dashboard) as client:
        assert (await text_of(client, "/fetched"))[0] == 404
        async with background(dashboard.pages.fetches.run("the client")):
            await until(lambda: dashboard.pages.fetches.get("fetched"))
        assert "what the client reads" in (await text_of(client, "/fetched"))[1]


# ---------------------------------------------------------------------- sign in


async def sign_in(client: TestClient[Any, Any], token: str, **headers: str) -> tuple[int, str, str]:
    origin = {"Origin": f"http://{client.host}:{client.port}"} | headers
    async with client.post("/login", data={"token": token}, headers=origin, allow_redirects=False) as response:
        return response.status, response.headers.get("Location", ""), await response.text()


async def test_a_user_signs_in_and_out(world: World) -> None:
    async with world.client() as client:
        assert (await sign_in(client, "bob"))[:2] == (303, "listing")
        (cookie,) = client.session.cookie_jar
        assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/")
        assert (await text_of(client, "/listing"))[0] == 200
        origin = {"Origin": f"http://{client.host}:{client.port}"}
        async with client.post("/logout", headers=origin, allow_redirects=False) as response:
            assert response.status == 303
        client.session.cookie_jar.update_cookies({cookie.key: cookie.value})
        assert (await text_of(client, "/listing"))[0] == 401


@pytest.mark.parametrize(("protocol", "secure"), [("https", True), ("http", False), ("", False)])
async def test_behind_a_proxy_with_tls_the_cookie_is_secure(world: World, protocol: str, secure: bool) -> None:
    async with world.client() as client:
        assert (await sign_in(client, "bob", **{"X-Forwarded-Proto": protocol}))[0] == 303
        (cookie,) = client.session.cookie_jar
    assert bool(cookie["secure"]) == secure


async def test_a_wrong_token_shows_the_form_again(world: World) -> None:
    async with world.client() as client:
        status, _, text = await sign_in(client, "mallory")
    assert status == 401
    assert "The API server does not accept this token" in text
    assert "mallory" not in text


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Origin": "null"},
                                     {"Sec-Fetch-Site": "cross-site"}])  # fmt: skip
async def test_forms_of_other_sites_are_refused(world: World, headers: dict[str, str]) -> None:
    async with world.client() as client:
        assert (await sign_in(client, "bob", **headers))[0] == 403
        assert not list(client.session.cookie_jar)


async def test_sign_ins_are_limited(world: World) -> None:
    async with world.client() as client:
        statuses = [(await sign_in(client, "mallory"))[0] for _ in range(6)]
    assert statuses == [401] * 4 + [429] * 2


async def test_requests_are_limited_but_not_probes(world: World) -> None:
    async with world.client("alice") as client:
        statuses = [(await text_of(client, "/api/listing"))[0] for _ in range(int(4 * server.REQUESTS_PER_SECOND) + 5)]
        assert (await text_of(client, "/healthz")) == (200, "ok")
    assert statuses.count(429) == 5


async def test_the_address_with_a_token_works_once(world: World) -> None:
    access, shown = LocalAccess(), []
    access.show = shown.append
    access.renew()
    async with world.client(dashboard=world.made(access)) as client:
        async with client.head(f"/?token={shown[0]}") as response:
            assert response.status == 200
        async with client.get(f"/?token={shown[0]}", allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (303, "listing")
        assert (await text_of(client, "/listing"))[0] == 200
        assert (await text_of(client, f"/?token={shown[0]}"))[0] == 401


async def test_a_session_ends_with_its_time(world: World) -> None:
    async with world.client() as client:
        await sign_in(client, "bob")
        world.clock.advance(13 * 3600)
        assert (await text_of(client, "/listing"))[0] == 401


# ---------------------------------------------------------------------- events


async def next_event(lines: StreamReader) -> tuple[str, Any]:
    number, data = "", None
    async with asyncio.timeout(10):
        async for line in lines:
            if line.startswith(b"id: "):
                number = line[4:].decode().strip()
            elif line.startswith((b"data: ", b"event: ")):
                data = line.decode().strip()
            elif not line.strip() and data is not None:
                return number, json.loads(data[6:]) if data.startswith("data: ") else data
    raise AssertionError("the stream ended")


async def test_events_carry_what_changed(world: World) -> None:
    async with world.client("alice") as client, client.get("/events/listing?since=1") as response:
        assert response.content_type == "text/event-stream"
        world.observer.set([pod("science/x"), pod("science/y")])
        await world.dashboard.pages.update()
        number, change = await next_event(response.content)
        assert number == "2"
        assert change["summary"] == "2 pods. "
        assert "science/y" in change["tables"]["pods"]
        assert "finance" not in change["tables"]["pods"]


async def test_a_page_with_a_search_has_its_field_with_the_value_of_the_query(world: World) -> None:
    def view(context: PanelContext) -> View:
        return View("found", "Found", f"{context.query.get('name', '')!r}")

    panels = [Panel("found", "Found", view, search=Search("name", "Find names", "a part")), *PANELS]
    dashboard = Dashboard(world.observer, world.access, panels, live=True)
    async with world.client("alice", dashboard) as client:
        _, text = await text_of(client, '/found?name="<x>')
        _, other = await text_of(client, "/listing")
    assert '<form role="search" aria-label="This page" action="found">' in text
    assert '<label for="search">Find names</label>' in text
    assert 'name="name" type="search" placeholder="a part" value="&#34;&lt;x&gt;"' in text
    assert 'id="search"' not in other


async def test_events_name_the_parts_when_one_comes_or_goes(world: World) -> None:
    def view(context: PanelContext) -> View:
        tables = [Table(name, name, (), ()) for name in ("always", "sometimes")]
        return View("parts", "Parts", "", tables=tuple(tables[: world.observer.version]))

    panel = Panel("parts", "Parts", view)
    dashboard = Dashboard(
        world.observer,
        world.access,
        [panel],
        live=True,
        now=world.clock.now,
        wall=world.clock.wall,
    )
    async with world.client("alice", dashboard) as client, client.get("/events/parts?since=0") as response:
        assert (await next_event(response.content))[1]["parts"] == ["table always"]
        world.observer.set([])
        await dashboard.pages.update()
        assert (await next_event(response.content))[1]["parts"] == ["table always", "table sometimes"]


async def test_a_wrong_host_or_number_is_no_error_of_the_server(world: World) -> None:
    async with world.client() as client, client.get("/listing", headers={"Host": "here:port"}) as response:
        assert response.status == 400
    async with world.client("alice") as client, client.get("/events/listing?since=²") as response:
        assert response.status == 200


async def test_a_page_has_the_number_of_what_it_shows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def listed() -> list[Panel]:
        world.observer.set([pod("science/x")])
        await world.dashboard.pages.feeds.current(Subject("listing", None, ()))
        return PANELS

    monkeypatch.setattr(world.dashboard.pages, "listed", listed)
    async with world.client("alice") as client:
        text = (await text_of(client, "/listing"))[1]
    assert "3 pods." in text
    assert 'data-number="1"' in text


async def test_events_of_a_user_have_no_other_namespace(world: World) -> None:
    async with world.client("bob") as client, client.get("/events/listing?since=0") as response:
        _, change = await next_event(response.content)
    assert "science/x" in change["tables"]["pods"]
    assert "finance" not in json.dumps(change)


async def test_a_stream_ends_when_the_permissions_change(world: World) -> None:
    async with world.client("bob") as client, client.get("/events/listing?since=0") as response:
        world.access.reads["bob"] = frozenset()
        world.observer.set([pod("science/x"), pod("science/y")])
        await world.dashboard.pages.update()
        text = (await asyncio.wait_for(response.content.read(), 10)).decode()
    assert text.endswith("event: end\ndata: {}\n\n")


async def test_open_pages_are_limited_by_session(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STREAMS_PER_SESSION", 2)
    async with world.client("alice") as client:
        async with client.get("/events/listing"), client.get("/events/listing"):
            status, text = await text_of(client, "/events/listing")
            assert (status, json.loads(text)) == (429, {"error": "more than 2 pages are open; close some"})
        await until(lambda: not world.dashboard._streams._open)


async def test_an_observer_that_cannot_follow_ends_the_updates(world: World) -> None:
    world.observer.error = RuntimeError("the API server refuses to list pods")
    with pytest.raises(RuntimeError):
        await world.dashboard.pages.update()
