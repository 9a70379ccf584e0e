"""The client of an HTTP extender over real connections: codes, timeouts, sizes and TLS."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from session_scheduler.cluster import extender_client
from session_scheduler.cluster.extender_client import ExtenderClient, ExtenderError
from session_scheduler.config.extenders import ExtenderConfig
from session_scheduler.errors import InputError

from ...fluence_plugins.slurm_bridge.trusting import server_certificate

POD = msgspec.Raw(b"{}")
NODES = {"n1": POD, "n2": POD}
Serve = Callable[..., Any]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    runners: list[web.AppRunner] = []

    async def start(answer: Any, tls: ssl.SSLContext | None = None) -> str:
        async def handle(request: web.Request) -> web.StreamResponse:
            await request.read()
            found = answer(request)
            response: web.StreamResponse = await found if asyncio.iscoroutine(found) else found
            return response

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        return f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


def client(url: str, called: Any = lambda *_: None, **fields: Any) -> ExtenderClient:
    values = {"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True, "httpTimeout": "5s", **fields}
    return ExtenderClient(ExtenderConfig.model_validate(values, strict=False), "file: extenders[0]", called)


def all_pass(_: web.Request) -> web.Response:
    return web.json_response({"NodeNames": ["n1", "n2"]})


async def test_calls_are_posts_of_json_and_are_reported(serve: Serve) -> None:
    seen, calls = [], []

    def answer(request: web.Request) -> web.Response:
        seen.append((request.method, request.path, request.headers["Content-Type"]))
        return all_pass(request)

    one = client(await serve(answer) + "/scheduler/", lambda *call: calls.append(call))
    assert (await one.filter(POD, NODES)).passed == ("n1", "n2")
    await one.close()
    assert seen == [("POST", "/scheduler/filter", "application/json")]
    ((name, verb, code, _),) = calls
    assert (name, verb, code) == (one.name, "filter", "200")


@pytest.mark.parametrize("status", [204, 302, 404, 500])
async def test_any_other_status_is_an_error_in_kube_schedulers_words(serve: Serve, status: int) -> None:
    url = await serve(lambda _: web.Response(status=status, headers={"Location": "/elsewhere"}))
    one = client(url)
    with pytest.raises(ExtenderError) as caught:
        await one.filter(POD, NODES)
    assert str(caught.value) == f"failed filter with extender at URL {url}/filter, code {status}"
    await one.close()


async def test_a_slow_answer_and_a_refused_connection_are_errors(serve: Serve) -> None:
    async def slow(_: web.Request) -> web.Response:
        await asyncio.sleep(5)
        return web.Response()

    calls: list[Any] = []
    url = await serve(slow)
    one = client(url, lambda *call: calls.append(call), httpTimeout="100ms")
    with pytest.raises(ExtenderError, match=r"no answer within 0\.1 s"):
        await one.filter(POD, NODES)
    await one.close()
    assert calls[0][2] == "timeout"
    gone = client("http://127.0.0.1:1")
    with pytest.raises(ExtenderError, match=r'Post "http://127.0.0.1:1/filter": '):
        await gone.filter(POD, NODES)
    await gone.close()


async def test_a_large_answer_is_not_read_to_its_end(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extender_client, "_LARGEST_ANSWER", 1 << 20)
    one = client(await serve(lambda _: web.Response(body=b" " * (2 << 20))))
    with pytest.raises(ExtenderError, match="the answer is larger than 1 MiB"):
        await one.filter(POD, NODES)
    await one.close()


@pytest.mark.parametrize("as_data", [False, True])
async def test_the_certificate_is_verified_by_the_given_ca(serve: Serve, tmp_path: Path, as_data: bool) -> None:
    trusted = server_certificate(tmp_path, "extender.example.com")
    url = await serve(all_pass, trusted.context)
    ca = {"caData": base64.b64encode(trusted.ca_file.read_bytes()).decode()} if as_data else {
        "caFile": str(trusted.ca_file)}  # fmt: skip
    good = client(url, tlsConfig={**ca, "serverName": "extender.example.com"})
    assert (await good.filter(POD, NODES)).passed == ("n1", "n2")
    await good.close()
    for wrong in (client(url, tlsConfig=ca), client(url, enableHTTPS=True)):  # another name, another CA
        with pytest.raises(ExtenderError, match="certificate verify failed"):
            await wrong.filter(POD, NODES)
        await wrong.close()
    insecure = client(url, tlsConfig={"insecure": True})
    assert (await insecure.filter(POD, NODES)).passed == ("n1", "n2")
    await insecure.close()


@pytest.mark.parametrize(("tls", "problem"), [
    ({"caFile": "/none"}, "file: extenders[0].tlsConfig.caFile: cannot be used ("),
    ({"caData": "?"}, "file: extenders[0].tlsConfig.caData: cannot be used ("),
    ({"certData": "YQ==", "keyData": "YQ=="}, "file: extenders[0].tlsConfig.certData: cannot be used ("),
])  # fmt: skip
def test_unusable_keys_are_named(tls: dict[str, str], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        client("https://127.0.0.1", tlsConfig=tls)
    assert str(caught.value).startswith(problem)


async def test_victims_are_sent_whole_or_by_uid(serve: Serve) -> None:
    bodies = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.json_response({"nodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}}})

    victims, pods = {"n1": extender_client.MetaVictims(("u",), 2)}, {"u": msgspec.Raw(b'{"metadata":{"name":"v"}}')}
    url = await serve(answer)
    for cached in (True, False):
        one = client(url, preemptVerb="preempt", nodeCacheCapable=cached)
        found = await one.preempt(POD, victims, pods)
        await one.close()
        assert found == {"n1": extender_client.MetaVictims(("u",), 1)}
    assert bodies[0] == {"Pod": {}, "NodeNameToVictims": None,
                         "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "u"}], "NumPDBViolations": 2}}}  # fmt: skip
    whole = {"n1": {"Pods": [{"metadata": {"name": "v"}}], "NumPDBViolations": 2}}
    assert bodies[1] == {"Pod": {}, "NodeNameToVictims": whole, "NodeNameToMetaVictims": None}
