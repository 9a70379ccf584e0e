"""Retries of requests: which failures are retried, and when."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from session_scheduler.base.http_pool import probed_socket
from session_scheduler.cluster.errors import Forbidden, NotFound, TooManyRequests, Unavailable
from session_scheduler.cluster.kube_access import Access
from session_scheduler.cluster.kube_errors import Refusal
from session_scheduler.cluster.kube_requests import ApiClient
from session_scheduler.errors import InputError

from .fake_api import FakeApi, Hangs, Reply, breaks, refuses, says

BUSY = refuses(429, "TooManyRequests")
DOWN = refuses(503)
FINE = says({"fine": True})


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as fake:
        yield fake


async def read(client: ApiClient) -> bytes:
    return await client.read("api/v1/pods", what="pods")


async def write(client: ApiClient, **options: Any) -> bytes:
    return await client.write("POST", "api/v1/pods", b"{}", what="Pod ns/p", **options)


@pytest.mark.parametrize("failure", [DOWN, refuses(500), refuses(504), BUSY, breaks])
async def test_a_read_is_retried_until_it_succeeds(api: FakeApi, failure: Reply) -> None:
    api.replies = [failure, failure, FINE]
    assert await read(api.client()) == b'{"fine":true}'
    assert len(api.seen) == 3


async def test_pauses_grow_up_to_their_bound(api: FakeApi) -> None:
    api.replies = [DOWN]
    with pytest.raises(Unavailable):
        await read(api.client(first_pause=1.0, longest_pause=4.0, tries=6, read_patience=100.0))
    assert len(api.seen) == 6
    for pause, longest in zip(api.time.slept, (1.0, 2.0, 4.0, 4.0, 4.0), strict=True):
        assert longest / 2 <= pause <= longest


@pytest.mark.parametrize("send", [read, write])
async def test_the_servers_own_wait_is_kept(api: FakeApi, send: Any) -> None:
    api.replies = [refuses(429, Retry_After="3"), FINE]
    await send(api.client())
    assert 3.0 <= api.time.slept[0] <= 3.1


@pytest.mark.parametrize("send", [read, write])
async def test_a_wait_beyond_the_time_limit_is_left_to_the_caller(api: FakeApi, send: Any) -> None:
    api.replies = [refuses(429, Retry_After="60")]
    with pytest.raises(TooManyRequests) as caught:
        await send(api.client())
    assert caught.value.retry_after == 60.0
    assert (len(api.seen), api.time.slept) == (1, [])


@pytest.mark.parametrize("failure", [DOWN, refuses(500), refuses(504), breaks, refuses(503, Retry_After="1")])
async def test_a_write_with_an_unknown_outcome_is_not_retried(api: FakeApi, failure: Reply) -> None:
    api.replies = [failure, FINE]
    with pytest.raises(Unavailable, match="Pod ns/p"):
        await write(api.client())
    assert len(api.seen) == 1


async def test_a_write_that_flow_control_rejected_is_retried(api: FakeApi) -> None:
    api.replies = [BUSY, FINE]
    await write(api.client())
    assert len(api.seen) == 2


async def test_without_when_busy_a_429_is_not_retried(api: FakeApi) -> None:
    api.replies = [BUSY, FINE]
    with pytest.raises(TooManyRequests):
        await write(api.client(), when_busy=False)
    assert len(api.seen) == 1


@pytest.mark.parametrize("send", [read, write])
async def test_requests_are_retried_if_no_connection_is_made(api: FakeApi, send: Any) -> None:
    client = api.client(Access("http://127.0.0.1:1"), tries=3)
    with pytest.raises(Unavailable):
        await send(client)
    assert len(api.time.slept) == 2


async def test_a_missing_response_is_unavailable(api: FakeApi) -> None:
    hanging = Hangs()
    api.replies = [hanging]
    with pytest.raises(Unavailable, match="Pod ns/p: no response in time"):
        await write(api.client(write_timeout=0.02))
    await asyncio.wait_for(hanging.left.wait(), 10)


async def test_a_cancelled_request_leaves_no_connection(api: FakeApi) -> None:
    hanging = Hangs(b"{")
    api.replies = [hanging]
    reading = asyncio.ensure_future(read(api.client()))
    await asyncio.wait_for(hanging.reached.wait(), 10)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await asyncio.wait_for(hanging.left.wait(), 10)


async def test_a_final_refusal_is_raised_at_once(api: FakeApi) -> None:
    api.replies = [refuses(404, "NotFound", "pods not found"), FINE]
    with pytest.raises(NotFound, match="pods: 404: pods not found"):
        await read(api.client())
    assert api.time.slept == []


# ---------------------------------------------------------------------- credentials


def token(text: str, api: FakeApi, renew: Any = None) -> Access:
    async def authorization() -> str:
        return f"Bearer {text}"

    return Access(api.url, authorization=authorization, renew=renew)


async def test_concurrent_requests_renew_a_stale_token_once(api: FakeApi) -> None:
    renewals = []

    async def renew() -> Access:
        renewals.append(1)
        return token("new", api)

    async def by_token(request: Any) -> Any:
        right = request.headers["Authorization"] == "Bearer new"
        return await (FINE if right else refuses(401))(request)

    api.replies = [by_token]
    client = api.client(token("old", api, renew))
    await asyncio.gather(*(send(client) for send in (read, write, read, write)))
    assert len(renewals) == 1
    assert api.time.slept == []


async def test_a_token_that_stays_wrong_is_forbidden(api: FakeApi) -> None:
    async def renew() -> Access:
        return token("other", api, renew)

    api.replies = [refuses(401, "Unauthorized")]
    with pytest.raises(Forbidden):
        await read(api.client(token("old", api, renew)))
    assert len(api.seen) == 2


async def test_without_a_configuration_to_renew_the_error_is_raised(api: FakeApi) -> None:
    async def renew() -> Access:
        raise InputError("kubeconfig f: there is no such file")

    api.replies = [refuses(401, "Unauthorized")]
    with pytest.raises(Forbidden):
        await write(api.client(token("old", api, renew)))
    assert len(api.seen) == 1


def test_a_connection_that_only_waits_is_probed() -> None:
    address = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 1))
    with probed_socket(address) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15


async def test_a_raised_error_leaves_no_reference_cycle(api: FakeApi) -> None:
    api.replies = [refuses(404, "NotFound")]
    client = api.client()
    gc.disable()
    try:
        with suppress(NotFound):
            await write(client)
        assert not [one for one in gc.get_objects() if isinstance(one, Refusal)]
    finally:
        gc.enable()
