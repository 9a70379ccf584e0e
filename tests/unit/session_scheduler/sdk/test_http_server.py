"""What probes, Prometheus and administrators are answered."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from session_scheduler.base.clock import StoppedClock
from session_scheduler.config.settings import Serving
from session_scheduler.errors import InputError
from session_scheduler.reporting.metrics import OPENMETRICS, TEXT, Metrics
from session_scheduler.sdk import http_server
from session_scheduler.sdk.http_server import Endpoints

LOCAL = Serving(host="127.0.0.1", port=0)
LIMIT = aiohttp.ClientTimeout(total=20)


@dataclass
class State:
    """What the scheduler says of itself."""

    stuck: str | None = None
    checks: dict[str, str | None] = field(default_factory=lambda: {"synced": None, "recovered": None})
    config: Any = field(default_factory=lambda: {"seed": 7})
    metrics: Metrics = field(default_factory=Metrics)


@dataclass
class Client:
    state: State
    port: int
    session: aiohttp.ClientSession

    async def ask(self, path: str, method: str = "GET", **more: Any) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.port}{path}"
        async with self.session.request(method, url, **more) as answer:
            return answer.status, await answer.text()


def endpoints(state: State, serving: Serving = LOCAL, **more: Any) -> Endpoints:
    return Endpoints(
        serving,
        metrics=state.metrics,
        health=lambda: state.stuck,
        ready=lambda: state.checks,
        config=lambda: state.config,
        **more,
    )


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    state = State()
    served = endpoints(state)
    _, port = await served.start()
    async with aiohttp.ClientSession(timeout=LIMIT) as session:
        yield Client(state, port, session)
    await served.stop()


async def raw(port: int, request: bytes, limit: float = 20) -> bytes:
    """Everything that is answered until the server closes the connection, within so many seconds."""
    async with asyncio.timeout(limit):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer


# ------------------------------------------------------------------ health


async def test_a_scheduler_that_makes_progress_is_healthy(client: Client) -> None:
    assert await client.ask("/healthz") == (200, "ok")


async def test_one_that_is_stuck_is_not_and_says_why_in_one_line(client: Client) -> None:
    client.state.stuck = "no cycle ended\nfor 60 s"
    status, text = await client.ask("/healthz")
    assert (status, text) == (503, "[-]scheduler failed: no cycle ended for 60 s\nhealthz check failed\n")
    assert (await client.ask("/livez"))[1] == text.replace("healthz", "livez")


async def test_readiness_is_ok_or_a_line_for_each_check(client: Client) -> None:
    assert await client.ask("/readyz") == (200, "ok")
    client.state.checks["recovered"] = "2 plans are left"
    lines = "[+]synced ok\n[-]recovered failed: 2 plans are left\nreadyz check failed\n"
    assert await client.ask("/readyz") == (503, lines)


async def test_verbose_shows_the_checks_that_pass(client: Client) -> None:
    assert await client.ask("/readyz?verbose") == (200, "[+]synced ok\n[+]recovered ok\nreadyz check passed\n")
    assert await client.ask("/healthz?verbose=1") == (200, "[+]scheduler ok\nhealthz check passed\n")


# ------------------------------------------------------------------ served paths


async def test_metrics_come_in_the_format_that_is_accepted(client: Client) -> None:
    client.state.metrics.evictions.add()
    for accept, content_type in (("*/*", TEXT), ("application/openmetrics-text;version=1.0.0", OPENMETRICS)):
        url = f"http://127.0.0.1:{client.port}/metrics"
        async with client.session.get(url, headers={"Accept": accept}) as answer:
            assert (answer.status, answer.headers["Content-Type"]) == (200, content_type)
            assert "fluence_gang_evictions_total 1.0" in await answer.text()


async def test_the_configuration_in_effect_is_json(client: Client) -> None:
    client.state.config = {"profiles": [{"schedulerName": "größer"}]}
    url = f"http://127.0.0.1:{client.port}/configz"
    async with client.session.get(url) as answer:
        assert answer.content_type == "application/json"
        assert json.loads(await answer.text()) == client.state.config


async def test_another_server_names_its_own_check_and_may_have_no_configuration() -> None:
    state = State(stuck="it hangs")
    served = Endpoints(LOCAL, metrics=state.metrics, health=lambda: state.stuck, ready=lambda: state.checks,
                       health_check="webhook")  # fmt: skip
    _, port = await served.start()
    async with aiohttp.ClientSession(timeout=LIMIT) as session:
        client = Client(state, port, session)
        assert await client.ask("/healthz") == (503, "[-]webhook failed: it hangs\nhealthz check failed\n")
        assert (await client.ask("/configz"))[0] == 404
        assert (await client.ask("/metrics"))[0] == 200
    await served.stop()


# ------------------------------------------------------------------ refused requests


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/livez", "/readyz", "/configz"])
async def test_head_is_answered_without_a_body_and_no_other_method_is(client: Client, path: str) -> None:
    assert await client.ask(path, "HEAD") == (200, "")
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        assert (await client.ask(path, method))[0] == 405


@pytest.mark.parametrize("path", ["/", "/metrics/", "/healthz/x", "/configz.json", "/%2e%2e/etc/passwd", "//metrics"])
async def test_nothing_else_is_served(client: Client, path: str) -> None:
    assert (await client.ask(path))[0] == 404


async def test_what_a_callable_raises_is_logged_and_not_shown(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    client.state.config = {"bad": object()}
    status, text = await client.ask("/configz")
    assert status == 500
    assert "object" not in text
    assert [(log.levelname, log.message) for log in caplog.records] == [("ERROR", "a request failed: /configz")]
    assert await client.ask("/healthz") == (200, "ok")


LONG = b"a" * 20_480
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
REFUSED = {
    "line": (b"GET /" + LONG + b" HTTP/1.1\r\n\r\n", TOO_LARGE),
    "header": (b"GET / HTTP/1.1\r\nA: " + LONG + b"\r\n\r\n", TOO_LARGE),
    "garbage": (b"no http\r\n\r\n", b"HTTP/1.1 400 Bad Request\r\n"),
}


@pytest.mark.parametrize(("sent", "refusal"), REFUSED.values(), ids=REFUSED)
async def test_a_request_that_is_too_large_or_none_is_refused_and_fills_no_log(
    client: Client, sent: bytes, refusal: bytes, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert (await raw(client.port, sent)).startswith(refusal)
    assert caplog.records == []
    assert capsys.readouterr() == ("", "")


async def test_a_body_is_not_waited_for(client: Client) -> None:
    request = b"POST /configz HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\nabc"
    answer = await raw(client.port, request, limit=8)  # the server would wait for 10
    assert answer.startswith(b"HTTP/1.1 405")


async def test_a_client_that_goes_on_sending_a_body_is_disconnected(client: Client) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", client.port)
    writer.write(b"POST /configz HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n")
    with pytest.raises(ConnectionError):
        await _send(writer, 50 << 20)
    writer.transport.abort()


async def _send(writer: asyncio.StreamWriter, size: int) -> None:
    for _ in range(size >> 16):
        writer.write(b"a" * (1 << 16))
        await writer.drain()


async def test_a_second_request_on_the_connection_changes_nothing_of_the_first(client: Client) -> None:
    answer = await raw(client.port, b"GET /healthz HTTP/1.1\r\n\r\nPOST /configz HTTP/1.1\r\nA: b\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nok")


@pytest.mark.parametrize(
    "sent", [b"POST /metrics HTTP/1.1\r\n\r\n", b"garbage\r\n\r\n", b"GET /a%2fb HTTP/1.1\r\n\r\n"]
)
async def test_requests_that_are_rejected_anyway_have_a_rate_limit_too(sent: bytes) -> None:
    serving = Serving(host="127.0.0.1", port=0, requests_per_second=1)
    served = endpoints(State(), serving, clock=StoppedClock())
    _, port = await served.start()
    try:
        statuses = [(await raw(port, sent)).split(b" ", 2)[1] for _ in range(50)]
    finally:
        await served.stop()
    assert statuses[0] in (b"405", b"400", b"404")
    assert statuses[-1] == b"429"


async def test_idle_connections_do_not_displace_a_response_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_MOST_CONNECTIONS", 4)
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def explain(_namespace: str, _name: str) -> tuple[int, Any]:
        asked.set()
        await go_on.wait()
        return 200, {}

    served = endpoints(State(), explain=explain)
    _, port = await served.start()
    writers = []
    try:
        async with asyncio.TaskGroup() as tasks:
            answered = tasks.create_task(raw(port, b"GET /explain/a/p HTTP/1.1\r\n\r\n"))
            await asked.wait()
            for _ in range(8):
                writers.append((await asyncio.open_connection("127.0.0.1", port))[1])
            go_on.set()
        assert answered.result().startswith(b"HTTP/1.1 200")
    finally:
        for writer in writers:
            writer.close()
        await served.stop()


@pytest.mark.parametrize("start", [b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nHost: x\r\n"])
async def test_a_connection_that_says_nothing_more_is_closed(start: bytes) -> None:
    served = endpoints(State(), idle_seconds=0.05)
    _, port = await served.start()
    assert await raw(port, start) == b""
    await served.stop()


# ------------------------------------------------------------------ start and stop


async def test_an_address_that_is_in_use_is_named_with_the_field_and_a_remedy() -> None:
    first = endpoints(State())
    host, port = await first.start()
    second = endpoints(State(), Serving(host=host, port=port))
    with pytest.raises(
        InputError, match=rf"^serving\.port: 127\.0\.0\.1:{port} is in use; choose another port [^\n]*$"
    ):
        await second.start()
    await second.stop()
    await first.stop()


@pytest.mark.parametrize("host", ["192.0.2.1", "a..b"])
async def test_a_host_that_is_not_this_machine_s_is_named(host: str) -> None:
    with pytest.raises(InputError, match=r"^serving\.host: [^\n]*; give an address of this machine$"):
        await endpoints(State(), Serving(host=host, port=0)).start()


async def test_what_cannot_be_served_is_named_as_the_caller_calls_it() -> None:
    async with endpoints(State()) as first:
        host, port = first.address
        with pytest.raises(InputError, match=r"^--port: 127\.0\.0\.1:\d+ is in use"):
            await endpoints(State(), Serving(host=host, port=port), fields=("--host", "--port")).start()


async def test_one_that_serves_every_ipv6_address_answers_ipv4_too() -> None:
    async with endpoints(State(), Serving(host="::", port=0)) as served:
        _, port = served.address
        assert (await raw(port, b"GET /healthz HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_nobody_is_answered_after_stop_which_may_be_called_again() -> None:
    served = endpoints(State())
    _, port = await served.start()
    await served.stop()
    await served.stop()
    with pytest.raises(ConnectionRefusedError):
        await raw(port, b"")


async def test_an_open_connection_does_not_keep_it_from_stopping() -> None:
    async with endpoints(State()) as served:
        _, port = served.address
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    async with asyncio.timeout(20):
        await reader.read()
    writer.close()


async def failing(served: Endpoints, ports: list[int]) -> None:
    async with served:
        ports.append(served.address[1])
        raise KeyError


async def test_it_stops_when_what_it_stands_around_fails() -> None:
    ports: list[int] = []
    with pytest.raises(KeyError):
        await failing(endpoints(State()), ports)
    with pytest.raises(ConnectionRefusedError):
        await raw(ports[0], b"")


async def test_a_pod_is_explained_by_its_namespace_and_name():
    async def explain(namespace, name):
        return (200, {"name": f"{namespace}/{name}"}) if name == "p" else (404, {"error": "none"})

    served = endpoints(State(), explain=explain)
    _, port = await served.start()
    try:
        async with aiohttp.ClientSession(timeout=LIMIT) as session:
            client = Client(State(), port, session)
            assert await client.ask("/explain/a/p") == (200, '{\n  "name": "a/p"\n}\n')
            assert (await client.ask("/explain/a/q"))[0] == 404
            assert (await client.ask("/explain/a"))[0] == 404
            assert (await client.ask("/explain/a/p", method="POST"))[0] == 405
    finally:
        await served.stop()


async def test_a_response_in_flight_may_complete_when_the_server_stops(monkeypatch):
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def explain(_namespace, _name):
        asked.set()
        await go_on.wait()
        return 200, {}

    served = endpoints(State(), explain=explain)
    _, port = await served.start()
    async with asyncio.TaskGroup() as tasks:
        answered = tasks.create_task(raw(port, b"GET /explain/a/p HTTP/1.1\r\n\r\n"))
        await asked.wait()
        stopped = tasks.create_task(served.stop())
        await asyncio.sleep(0)
        go_on.set()
    assert answered.result().startswith(b"HTTP/1.1 200")
    assert stopped.done()


async def test_a_response_that_never_comes_does_not_keep_it_from_stopping(monkeypatch, caplog):
    monkeypatch.setattr(http_server, "SHUTDOWN_SECONDS", 0.01)
    asked = asyncio.Event()

    async def explain(_namespace, _name):
        asked.set()
        await asyncio.Event().wait()

    served = endpoints(State(), explain=explain)
    _, port = await served.start()
    answered = asyncio.create_task(raw(port, b"GET /explain/a/p HTTP/1.1\r\n\r\n"))
    await asked.wait()
    await served.stop()
    assert await answered == b""
    assert caplog.records == []
