"""The in-memory cluster beyond the port: bounded history, bookmarks, and the simulated kubelet."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from session_scheduler.cluster.errors import Gone, TooManyRequests
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.cluster.port import Change
from session_scheduler.model.objects import ConfigMap, Container, Node, ObjectMeta, Pod, PodGroup, PodSpec, PodStatus
from session_scheduler.model.queue_objects import Queue


def a_pod(name: str, **spec: object) -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="ns"), spec=PodSpec(containers=(Container(name="c"),), **spec))  # type: ignore[arg-type]


def a_node(name: str) -> Node:
    return Node(metadata=ObjectMeta(name=name))


async def test_objects_given_at_the_start_keep_their_uid_and_status_and_get_versions_of_this_cluster() -> None:
    given = Pod(metadata=ObjectMeta(name="p", uid="u", resource_version="9000"), status=PodStatus(phase="Running"))
    cluster = MemoryCluster([a_node("n"), given])
    pod = await cluster.get(Pod, "default", "p")
    assert (pod.metadata.uid, pod.metadata.resource_version, pod.status.phase) == ("u", "2", "Running")
    assert (await cluster.list(Pod)).resource_version == "2"


async def test_a_watcher_that_falls_behind_the_history_is_gone() -> None:
    cluster = MemoryCluster(history=5)
    behind, close = cluster.watch(Node, "0"), cluster.watch(Node, "0")
    cluster.put(a_node("n0"))
    for watch in (behind, close):
        await anext(watch)
    for number in range(1, 30):
        cluster.put(a_node(f"n{number}"))
        await anext(close)
    with pytest.raises(Gone):
        await anext(behind)
    with pytest.raises(Gone):
        await anext(cluster.watch(Node, "1"))
    await close.aclose()


async def test_history_keeps_at_least_the_configured_number() -> None:
    cluster = MemoryCluster(history=5)
    for number in range(100):
        cluster.put(a_node(f"n{number}"))
        last = int((await cluster.list(Node)).resource_version)
        watch = cluster.watch(Node, str(max(0, last - 5)))
        seen = [await anext(watch) for _ in range(min(5, last))]
        assert seen[-1].resource_version == str(last)
        await watch.aclose()


async def test_a_bookmark_updates_the_version_of_a_quiet_watch() -> None:
    cluster = MemoryCluster()
    for number in range(10):
        cluster.put(a_node(f"n{number}"))
    watch = cluster.watch(Pod, "0")
    cluster.send_bookmarks()
    bookmark = await anext(watch)
    assert (bookmark.change, bookmark.object, bookmark.resource_version) == (Change.BOOKMARK, None, "10")
    await watch.aclose()


async def test_a_broken_connection_ends_the_watch_and_nothing_is_lost() -> None:
    cluster = MemoryCluster()
    watch = cluster.watch(Node, "0")
    waiting = asyncio.ensure_future(anext(watch, None))
    await asyncio.sleep(0)
    cluster.end_watches()
    assert await waiting is None
    cluster.put(a_node("n"))
    again = cluster.watch(Node, "0")
    assert (await anext(again)).change is Change.ADDED
    await again.aclose()


async def test_put_adds_then_modifies_and_keeps_the_uid() -> None:
    cluster = MemoryCluster()
    first, second = cluster.put(a_node("n")), cluster.put(a_node("n"))
    assert first.metadata.uid == second.metadata.uid != ""
    assert int(second.metadata.resource_version) > int(first.metadata.resource_version)
    watch = cluster.watch(Node, "0")
    assert [(await anext(watch)).change for _ in range(2)] == [Change.ADDED, Change.MODIFIED]
    await watch.aclose()


async def test_groups_of_both_apis_may_share_a_name() -> None:
    coscheduling = "scheduling.x-k8s.io/v1alpha1"
    meta = ObjectMeta(name="g", namespace="ns")
    cluster = MemoryCluster([PodGroup(metadata=meta), PodGroup(metadata=meta, api_version=coscheduling)])
    assert [group.native for group in (await cluster.list(PodGroup)).items] == [True, False]
    found = await cluster.get(PodGroup, "ns", "g", api_version=coscheduling)
    await cluster.patch_metadata(found, annotations={"plan": "x"})
    assert (await cluster.get(PodGroup, "ns", "g")).metadata.annotations == {}


async def test_pods_with_a_grace_period_are_removed_by_the_kubelet() -> None:
    now = datetime(2026, 1, 31, 12, tzinfo=UTC)
    cluster = MemoryCluster([a_pod("p", node_name="n", termination_grace_period_seconds=90)], now=lambda: now)
    pod = await cluster.get(Pod, "ns", "p")
    await cluster.evict(pod)
    assert (await cluster.get(Pod, "ns", "p")).metadata.deletion_timestamp == "2026-01-31T12:01:30Z"
    cluster.finish_deletions()
    assert (await cluster.list(Pod)).items == ()


async def test_a_pod_that_has_ended_needs_no_grace() -> None:
    ended = Pod(metadata=ObjectMeta(name="p", namespace="ns"), spec=PodSpec(node_name="n"),
                status=PodStatus(phase="Succeeded"))  # fmt: skip
    cluster = MemoryCluster([ended])
    await cluster.delete(await cluster.get(Pod, "ns", "p"))
    assert (await cluster.list(Pod)).items == ()


async def test_a_disruption_budget_rejects_an_eviction() -> None:
    cluster = MemoryCluster([a_pod("p")], may_evict=lambda pod: pod.metadata.name != "p")
    pod = await cluster.get(Pod, "ns", "p")
    with pytest.raises(TooManyRequests) as refused:
        await cluster.evict(pod)
    assert refused.value.retry_after > 0
    assert (await cluster.list(Pod)).items == (pod,)


async def test_a_re_created_pod_has_another_uid() -> None:
    cluster = MemoryCluster()
    first = await cluster.create(a_pod("p"))
    await cluster.delete(first)
    assert (await cluster.create(a_pod("p"))).metadata.uid != first.metadata.uid


async def test_the_same_calls_make_the_same_cluster() -> None:
    async def run() -> tuple[Pod, ...]:
        now = datetime(2026, 1, 31, 12, tzinfo=UTC)
        cluster = MemoryCluster([a_node("n")], now=lambda: now)
        for _ in range(3):
            metadata = ObjectMeta(generate_name="p-", namespace="ns")
            pod = replace(a_pod(""), metadata=metadata)
            made = await cluster.create(pod)
            await cluster.bind("ns", made.metadata.name, node="n", uid=made.metadata.uid,
                               resource_version=made.metadata.resource_version, annotations={})  # fmt: skip
        return (await cluster.list(Pod)).items

    assert await run() == await run()


async def test_a_binding_checks_neither_node_nor_phase_nor_annotations_as_the_api_server_does_not() -> None:
    failed = Pod(metadata=ObjectMeta(name="p", namespace="ns"), status=PodStatus(phase="Failed"))
    cluster = MemoryCluster([failed])
    pod = await cluster.get(Pod, "ns", "p")
    version, wild = pod.metadata.resource_version, {"no key": "x" * 300_000}
    await cluster.bind("ns", "p", node="nowhere", uid=pod.metadata.uid, resource_version=version, annotations=wild)
    assert (await cluster.get(Pod, "ns", "p")).spec.node_name == "nowhere"


async def test_cluster_scoped_objects_get_no_namespace() -> None:
    cluster = MemoryCluster([])
    assert (await cluster.create(Queue(metadata=ObjectMeta(name="q")))).metadata.namespace == ""
    assert (await cluster.create(ConfigMap(metadata=ObjectMeta(name="c")))).metadata.namespace == "default"
