"""The live cluster beyond the port suite, on a real API server."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from http import HTTPStatus
from pathlib import Path

import pytest

from fluence_plugins.slurm_bridge.names import JOBID_LABEL
from session_scheduler.cluster.errors import Forbidden, TooManyRequests
from session_scheduler.cluster.kube_access import load_access
from session_scheduler.cluster.kube_requests import ApiClient
from session_scheduler.cluster.kubernetes import KubernetesCluster, connect
from session_scheduler.cluster.port import Change, Event, WatchEvent
from session_scheduler.model.objects import (
    ConfigMap,
    Container,
    GangPolicy,
    Node,
    ObjectMeta,
    Pod,
    PodGroup,
    PodGroupSpec,
    PodSpec,
    PriorityClass,
    SchedulingPolicy,
)

from .harness import ADMIN, SCHEDULER, ControlPlane
from .relay import Relay

COSCHEDULING = "scheduling.x-k8s.io/v1alpha1"
PATIENCE = 30.0


@pytest.fixture
async def admin(control_plane: ControlPlane) -> AsyncIterator[KubernetesCluster]:
    async with await connect(str(control_plane.kubeconfig(ADMIN))) as cluster:
        yield cluster


@pytest.fixture
async def cluster(control_plane: ControlPlane) -> AsyncIterator[KubernetesCluster]:
    """As the scheduler's own user."""
    async with await connect(str(control_plane.kubeconfig(SCHEDULER))) as cluster:
        yield cluster


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    return control_plane.new_namespace()


@pytest.fixture
def coscheduling(control_plane: ControlPlane) -> Iterator[None]:
    """Install the coscheduling plugin's PodGroup API, as its administrator would."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "subresources": {"status": {}},
               "schema": {"openAPIV3Schema": schema}}  # fmt: skip
    names = {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup", "listKind": "PodGroupList"}
    spec = {"group": "scheduling.x-k8s.io", "scope": "Namespaced", "names": names, "versions": [version]}
    control_plane.create({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                          "metadata": {"name": "podgroups.scheduling.x-k8s.io"}, "spec": spec})  # fmt: skip
    control_plane.wait_for(f"/apis/{COSCHEDULING}/podgroups", lambda answer: "items" in answer)
    control_plane.wait_for(f"/apis/{COSCHEDULING}", lambda answer: "resources" in answer)
    yield
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/podgroups.scheduling.x-k8s.io"
    control_plane.request("DELETE", path)
    control_plane.wait_for(path, lambda answer: answer.get("code") == HTTPStatus.NOT_FOUND)


def a_pod(namespace: str, name: str) -> Pod:
    spec = PodSpec(scheduler_name="fluence", containers=(Container(name="main", image="example.com/none"),))
    return Pod(metadata=ObjectMeta(name=name, namespace=namespace), spec=spec)


def gang(namespace: str, name: str) -> PodGroup:
    spec = PodGroupSpec(scheduling_policy=SchedulingPolicy(gang=GangPolicy(min_count=2)))
    return PodGroup(metadata=ObjectMeta(name=name, namespace=namespace), spec=spec)


def coscheduled(namespace: str, name: str) -> PodGroup:
    metadata = ObjectMeta(name=name, namespace=namespace)
    return PodGroup(api_version=COSCHEDULING, metadata=metadata, spec=PodGroupSpec(min_member=3))


# ---------------------------------------------------------------------- lists and watches


async def test_a_list_in_pages_is_the_whole_list(
    control_plane: ControlPlane, admin: KubernetesCluster, namespace: str
) -> None:
    await asyncio.gather(*(admin.create(a_pod(namespace, f"pod-{number:02}")) for number in range(25)))
    client = ApiClient(await load_access(str(control_plane.kubeconfig(SCHEDULER)), None))
    async with KubernetesCluster(client, page_size=7) as paged:
        in_pages, whole = await paged.list(Pod), await admin.list(Pod)
    assert in_pages.items == whole.items
    assert sum(pod.metadata.namespace == namespace for pod in in_pages.items) == 25


async def test_nodes_and_priority_classes_are_listed_with_what_the_scheduler_reads(
    control_plane: ControlPlane, cluster: KubernetesCluster
) -> None:
    control_plane.new_node("listed", **{"example.com/device": "2"})
    (node,) = [node for node in (await cluster.list(Node)).items if node.metadata.name == "listed"]
    assert node.status.allocatable["example.com/device"] == "2"
    assert node.spec.taints == ()
    classes = {found.metadata.name: found.value for found in (await cluster.list(PriorityClass)).items}
    assert classes["system-node-critical"] == 2_000_001_000


async def test_groups_of_both_apis_are_listed_and_watched_together(
    coscheduling: None, cluster: KubernetesCluster, admin: KubernetesCluster, namespace: str
) -> None:
    await admin.create(gang(namespace, "same"))
    await admin.create(coscheduled(namespace, "same"))
    listing = await cluster.list(PodGroup)
    here = [group for group in listing.items if group.metadata.namespace == namespace]
    assert [(group.native, group.min_count) for group in here] == [(True, 2), (False, 3)]
    seen: list[WatchEvent[PodGroup]] = []
    await admin.create(gang(namespace, "later"))
    await cluster.patch_metadata(here[1], annotations={"plan": "x"})
    async with asyncio.timeout(PATIENCE), aclosing(cluster.watch(PodGroup, listing.resource_version)) as watch:
        async for event in watch:
            seen.append(event)
            if len(seen) == 2:
                break
    changed = {(event.change, event.object.native) for event in seen if event.object}
    assert changed == {(Change.ADDED, True), (Change.MODIFIED, False)}
    async with asyncio.timeout(PATIENCE), aclosing(cluster.watch(PodGroup, seen[0].resource_version)) as watch:
        assert await anext(watch) == seen[1]


async def test_a_coscheduling_groups_annotations_are_swapped_like_a_native_ones(
    coscheduling: None, cluster: KubernetesCluster, admin: KubernetesCluster, namespace: str
) -> None:
    group = await admin.create(coscheduled(namespace, "one"))
    swapped = await cluster.patch_metadata(group, annotations={"plan": "x"}, labels={"l": "y"},
                                           resource_version=group.metadata.resource_version)  # fmt: skip
    found = await cluster.get(PodGroup, namespace, "one", api_version=COSCHEDULING)
    assert found == swapped
    assert (found.metadata.annotations["plan"], found.metadata.labels["l"]) == ("x", "y")


async def test_a_watch_goes_on_without_a_gap_after_its_connection_was_cut(
    control_plane: ControlPlane, admin: KubernetesCluster, namespace: str, tmp_path: Path
) -> None:
    async with Relay(control_plane.port) as relay:
        kubeconfig = tmp_path / "kubeconfig"
        direct = control_plane.kubeconfig(SCHEDULER).read_text()
        kubeconfig.write_text(direct.replace(f":{control_plane.port}", f":{relay.port}"))
        async with await connect(str(kubeconfig)) as cluster, asyncio.timeout(PATIENCE):
            version = (await cluster.list(Pod)).resource_version
            pod = await admin.create(a_pod(namespace, "one"))
            watch = cluster.watch(Pod, version)
            first = await anext(watch)
            assert relay.cut() >= 1
            with pytest.raises(StopAsyncIteration):  # it ends without an error
                await anext(watch)
            await admin.patch_metadata(pod, annotations={"a": "b"})  # without a watch
            async with aclosing(cluster.watch(Pod, first.resource_version)) as again:
                second = await anext(again)
    assert first.object == pod
    assert second.object is not None
    assert second.object.metadata.annotations == {"a": "b"}


def test_who_is_cancelled_at_any_moment_leaves_no_connection(control_plane: ControlPlane) -> None:
    async def cancelled_after(turns: int) -> None:
        async with await connect(str(control_plane.kubeconfig(SCHEDULER))) as cluster:
            listing = asyncio.ensure_future(cluster.list(Node))
            for _ in range(turns):
                await asyncio.sleep(0)
            listing.cancel()
            await asyncio.gather(listing, return_exceptions=True)

    for turns in range(40):  # iterations of the event loop: from before the connection until after the response
        asyncio.run(cancelled_after(turns))
        gc.collect()  # unclosed connections warn now, and warnings are errors


# ---------------------------------------------------------------------- writes


async def test_what_the_role_does_not_allow_is_forbidden(cluster: KubernetesCluster, namespace: str) -> None:
    with pytest.raises(Forbidden, match="cannot create resource"):
        await cluster.create(a_pod(namespace, "one"))


async def test_a_pods_labels_and_annotations_are_changed_without_the_right_to_patch_pods(
    cluster: KubernetesCluster, admin: KubernetesCluster, namespace: str
) -> None:
    pod = await admin.create(a_pod(namespace, "one"))
    patched = await cluster.patch_metadata(pod, annotations={"a": "b"}, labels={JOBID_LABEL: "7"})
    assert (patched.metadata.annotations, patched.metadata.labels) == ({"a": "b"}, {JOBID_LABEL: "7"})


async def test_a_disruption_budget_is_said_with_its_wait(
    control_plane: ControlPlane, cluster: KubernetesCluster, admin: KubernetesCluster, namespace: str
) -> None:
    control_plane.create({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
                          "metadata": {"name": "budget", "namespace": namespace},
                          "spec": {"minAvailable": 1, "selector": {"matchLabels": {"kept": "yes"}}}})  # fmt: skip
    pod = await admin.create(a_pod(namespace, "one"))
    pod = await admin.patch_metadata(pod, labels={"kept": "yes"})
    await cluster.bind(namespace, "one", node="node", uid=pod.metadata.uid,
                       resource_version=pod.metadata.resource_version, annotations={})  # fmt: skip
    path = f"/api/v1/namespaces/{namespace}/pods/one/status"
    control_plane.request("PATCH", path, {"status": {"phase": "Running"}})  # budgets do not apply to pending pods
    with pytest.raises(TooManyRequests) as caught:
        await cluster.evict(pod)
    assert caught.value.retry_after >= 1.0
    assert (await cluster.get(Pod, namespace, "one")).metadata.deletion_timestamp is None


async def test_an_event_is_found_where_people_look_for_it(
    control_plane: ControlPlane, cluster: KubernetesCluster, admin: KubernetesCluster, namespace: str
) -> None:
    pod = await admin.create(a_pod(namespace, "one"))
    note = "0/4 nodes are available: 4 Insufficient cpu."
    for _ in range(2):
        await cluster.record_event(Event(pod, "FailedScheduling", "Scheduling", note, warning=True))
    found = control_plane.request("GET", f"/api/v1/namespaces/{namespace}/events")[1]["items"]  # as kubectl describe
    assert [(event["reason"], event["message"], event["type"]) for event in found] == [
        ("FailedScheduling", note, "Warning")
    ] * 2
    assert {event["involvedObject"]["uid"] for event in found} == {pod.metadata.uid}


async def test_a_new_token_is_found_once_the_old_one_is_refused(control_plane: ControlPlane, tmp_path: Path) -> None:
    good = control_plane.kubeconfig(SCHEDULER).read_text()
    path = tmp_path / "kubeconfig"
    path.write_text(good.replace("token: ", "token: stale"))
    async with await connect(str(path)) as cluster:
        with pytest.raises(Forbidden, match="401"):
            await cluster.list(Node)
        path.write_text(good)
        assert (await cluster.list(Node)).resource_version


async def test_a_certificate_that_nothing_vouches_for_is_refused(control_plane: ControlPlane, tmp_path: Path) -> None:
    lines = control_plane.kubeconfig(SCHEDULER).read_text().splitlines(keepends=True)
    path = tmp_path / "kubeconfig"
    path.write_text("".join(line for line in lines if "certificate-authority" not in line))
    async with await connect(str(path)) as cluster:
        with pytest.raises(Exception, match="certificate verify failed"):
            await cluster.create(ConfigMap(metadata=ObjectMeta(name="c", namespace="default")))
