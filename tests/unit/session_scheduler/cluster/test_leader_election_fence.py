"""The fence: a replica that does not lead sends no write except the Lease's, not even as a retry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from session_scheduler.cluster.errors import NotLeading, Unavailable
from session_scheduler.cluster.kube_access import Access
from session_scheduler.cluster.kube_requests import RequestSettings
from session_scheduler.cluster.kubernetes import KubernetesCluster
from session_scheduler.cluster.leader_election import Fence
from session_scheduler.cluster.port import Event
from session_scheduler.config.settings import LeaderElection
from session_scheduler.model.objects import ConfigMap, Lease, ObjectMeta, Pod, PodCondition, PodGroup

from .fake_api import FakeApi, Hangs, refuses, says

NAMED = ObjectMeta(namespace="ns", name="name", uid="uid", resource_version="7")
POD = Pod(metadata=NAMED)
OBJECT = says({"kind": "Pod", "metadata": {"uid": "uid"}})
LEASE = says({"kind": "Lease", "metadata": {}})


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi([OBJECT]) as fake:
        yield fake


def fenced(api: FakeApi, **settings: Any) -> tuple[KubernetesCluster, Fence]:
    """A cluster whose writes check a fence of 10 s, with the same clock."""
    cluster, fence = KubernetesCluster(api.client(**settings)), Fence(api.time, 10.0)
    cluster.fence_writes(fence.check)
    return cluster, fence


async def every_write(cluster: KubernetesCluster) -> list[BaseException | object]:
    """Return the results of each kind of write."""
    condition = PodCondition(type="PodScheduled", status="False")
    writes = (
        cluster.create(ConfigMap(metadata=ObjectMeta(namespace="ns", name="plan"))),
        cluster.bind("ns", "name", node="n", uid="uid", resource_version="7", annotations={}),
        cluster.patch_metadata(PodGroup(metadata=NAMED), annotations={"a": "b"}),
        cluster.patch_status(POD, conditions=[condition]),
        cluster.evict(POD),
        cluster.delete(POD),
        cluster.record_event(Event(POD, "Scheduled", "Binding", "note")),
    )
    return await asyncio.gather(*writes, return_exceptions=True)


def writes_seen(api: FakeApi) -> list[str]:
    return [seen.method for seen in api.seen if seen.method != "GET"]


async def test_a_replica_that_never_led_writes_nothing(api: FakeApi) -> None:
    cluster, _ = fenced(api)
    answers = await every_write(cluster)
    assert [type(answer) for answer in answers] == [NotLeading] * len(answers)
    assert writes_seen(api) == []


async def test_a_leader_writes_until_its_deadline_and_not_after(api: FakeApi) -> None:
    cluster, fence = fenced(api)
    fence.renewed(api.time.now())
    await api.time.sleep(9.99)
    answers = await every_write(cluster)
    assert not any(isinstance(answer, NotLeading) for answer in answers)
    assert len(writes_seen(api)) == len(answers)
    await api.time.sleep(0.01)
    answers = await every_write(cluster)
    assert all(isinstance(answer, NotLeading) for answer in answers)
    assert len(writes_seen(api)) == len(answers)


async def test_reads_and_the_lease_need_no_leader(api: FakeApi) -> None:
    cluster, _ = fenced(api)
    assert await cluster.get(Pod, "ns", "name")
    api.replies = [LEASE]
    await cluster.create(Lease(metadata=ObjectMeta(namespace="ns", name="lease")))
    await cluster.replace(Lease(metadata=NAMED))
    assert writes_seen(api) == ["POST", "PUT"]


async def test_a_write_is_not_retried_after_the_deadline(api: FakeApi) -> None:
    api.replies = [refuses(429, "TooManyRequests", Retry_After="3"), OBJECT]
    cluster, fence = fenced(api)
    fence.renewed(api.time.now())
    await api.time.sleep(8.0)
    with pytest.raises(NotLeading):
        await cluster.patch_metadata(POD, annotations={"a": "b"})
    assert writes_seen(api) == ["PATCH"]
    assert api.time.now() >= 11.0


async def test_a_write_is_not_retried_with_a_new_token_after_the_deadline(api: FakeApi) -> None:
    async def renew() -> Access:
        await api.time.sleep(5.0)
        return Access(api.url)

    api.replies = [refuses(401, "Unauthorized"), OBJECT]
    fence = Fence(api.time, 10.0)
    cluster = KubernetesCluster(api.client(Access(api.url, renew=renew)))
    cluster.fence_writes(fence.check)
    fence.renewed(api.time.now())
    await api.time.sleep(6.0)
    with pytest.raises(NotLeading):
        await cluster.patch_metadata(POD, annotations={"a": "b"})
    assert writes_seen(api) == ["PATCH"]


async def test_a_write_is_not_sent_if_the_lease_expires_while_credentials_are_read(api: FakeApi) -> None:
    async def slowly() -> str:
        await api.time.sleep(11.0)
        return "Bearer token"

    fence = Fence(api.time, 10.0)
    cluster = KubernetesCluster(api.client(Access(api.url, authorization=slowly)))
    cluster.fence_writes(fence.check)
    fence.renewed(api.time.now())
    with pytest.raises(NotLeading):
        await cluster.patch_metadata(POD, annotations={"a": "b"})
    assert api.seen == []


async def test_waiting_for_a_connection_counts_against_a_writes_time(api: FakeApi) -> None:
    hanging = Hangs(b"{")
    api.replies = [hanging, OBJECT]
    cluster, fence = fenced(api, connections=1, write_timeout=0.05)
    fence.renewed(api.time.now())
    reading = asyncio.ensure_future(cluster.get(Pod, "ns", "name"))
    await asyncio.wait_for(hanging.reached.wait(), 10)
    with pytest.raises(Unavailable, match="no response in time"):
        await cluster.patch_metadata(POD, annotations={"a": "b"})
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert writes_seen(api) == []


async def test_a_write_without_a_response_times_out_before_another_replica_can_lead(api: FakeApi) -> None:
    given_up = asyncio.Event()

    async def never(request: web.Request) -> web.StreamResponse:
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()
        return web.Response()

    api.replies = [never]
    cluster, fence = fenced(api, write_timeout=0.05)
    fence.renewed(api.time.now())
    with pytest.raises(Unavailable, match="no response in time"):
        await cluster.patch_metadata(POD, annotations={"a": "b"})
    await asyncio.wait_for(given_up.wait(), 10)


@pytest.mark.parametrize(("lease", "renew"), [(15, 10.0), (5, 3.0), (1, 0.9), (3600, 10.0)])
def test_a_leaders_writes_end_before_its_lease(lease: int, renew: float) -> None:
    election = LeaderElection(lease_seconds=lease, renew_seconds=renew, retry_seconds=0.5)
    settings = RequestSettings.for_leader(election)
    assert 0 < settings.write_timeout < lease - renew
    assert settings.write_timeout <= RequestSettings().write_timeout
    assert settings.timeout == RequestSettings().timeout
