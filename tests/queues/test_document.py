"""The document's MasterQueue: what it yields for what pools publish, and its test job from there to a bound pod."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from ..controlplane.scheduler_process import SchedulerProcess, Settings, kubeconfig_for
from ..tools.real_programs import report_on_failure
from .nats_peer import NatsServer
from .plane import CLUSTER_QUEUES, FLAVORS, MASTER_QUEUES, PODS, QueuesPlane
from .samples import JOB, LOCAL_FLAVOR, LOCAL_MASTER_QUEUE, LOCAL_QUEUE, VIRTUAL_NODE, master_queue, read

SUBJECT = "interlink.resources"
POOL = "podman-firenze"
FLAVOR = f"masterqueue-interlink-{POOL}"
PUBLISHED = {
    "quotas": {"cpu": "8", "memory": "32Gi", "pods": 200},
    "labels": ["site=firenze"],
    "taints": ["example.com/slow=yes:PreferNoSchedule"],
}
DEFAULTS = {
    "queueingStrategy": "BestEffortFIFO",
    "stopPolicy": "None",
    "namespaceSelector": {},
    "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"},
    "preemption": {
        "borrowWithinCohort": {"policy": "Never"},
        "reclaimWithinCohort": "Never",
        "withinClusterQueue": "Never",
    },
}
"""What every ClusterQueue has whose template says no more than the document's."""


BINDING: dict[str, Any] = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "fluence-run-keeps-master-queues"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "fluence-master-queue"},
    "subjects": [{"kind": "ServiceAccount", "name": "fluence", "namespace": "kube-system"}],
}
"""What the scheduler's account needs beside its own rights."""


@contextmanager
def running(plane: QueuesPlane, folder: Path) -> Iterator[SchedulerProcess]:
    """`fluence run` that schedules pods of its name and keeps MasterQueues."""
    plugins = [{"name": "fluence"}, {"name": "master-queue", "args": {}}]
    settings = Settings(more={"profiles": [{"schedulerName": "fluence", "plugins": plugins}]})
    path = f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{BINDING['metadata']['name']}"
    if plane.request("GET", path)[0] == HTTPStatus.NOT_FOUND:
        plane.create(BINDING)
    with SchedulerProcess(folder, kubeconfig_for(plane, folder), settings) as scheduler:
        scheduler.start()
        scheduler.wait_ready()
        yield scheduler
        assert scheduler.terminate().status == 0


@pytest.fixture
def kept(
    request: pytest.FixtureRequest, plane: QueuesPlane, nats: NatsServer, tmp_path: Path
) -> Iterator[dict[str, Any]]:
    """The document's MasterQueue, kept by a controller that listens."""
    master = plane.create(master_queue(nats.url))
    with running(plane, tmp_path) as scheduler, report_on_failure(request, scheduler.tail):
        nats.wait_subscribed(f"{SUBJECT}.*")
        yield master


def owner(master: dict[str, Any]) -> dict[str, Any]:
    """How what is made for it names it."""
    meta = master["metadata"]
    return {"apiVersion": "vk.io/v1", "kind": "MasterQueue", "name": meta["name"], "uid": meta["uid"],
            "controller": True}  # fmt: skip


def group(quotas: dict[str, list[dict[str, str]]]) -> list[dict[str, Any]]:
    """resourceGroups of one group: the quotas of each flavor."""
    covered = [one["name"] for one in next(iter(quotas.values()))]
    flavors = [{"name": flavor, "resources": resources} for flavor, resources in quotas.items()]
    return [{"coveredResources": covered, "flavors": flavors}]


def quota(resource: str, amount: str, limit: str | None = None) -> dict[str, str]:
    """One of a flavor's resources."""
    return {"name": resource, "nominalQuota": amount} | ({} if limit is None else {"borrowingLimit": limit})


def test_a_published_pool_yields_the_objects_that_the_document_describes(
    kept: dict[str, Any], plane: QueuesPlane, nats: NatsServer
) -> None:
    nats.publish(f"{SUBJECT}.{POOL}", PUBLISHED)
    queues = until_flavors(plane, [FLAVOR])
    assert set(queues) == {"masterqueue", "group1"}
    main = [quota("cpu", "8"), quota("memory", "32Gi"), quota("pods", "100")]
    assert queues["masterqueue"]["spec"] == DEFAULTS | {
        "cohortName": "masterqueue", "resourceGroups": group({FLAVOR: main})}  # fmt: skip
    assert queues["group1"]["spec"] == DEFAULTS | {
        "cohortName": "masterqueue", "resourceGroups": group({FLAVOR: [quota("pods", "0", "30")]})}  # fmt: skip
    flavor = plane.items(FLAVORS)[FLAVOR]
    assert flavor["metadata"]["labels"] == {"site": "firenze"}
    assert flavor["spec"] == {
        "nodeLabels": {"kubernetes.io/hostname": VIRTUAL_NODE},
        "nodeTaints": [
            {"key": "virtual-node.interlink/no-schedule", "value": "true", "effect": "NoSchedule"},
            {"key": "example.com/slow", "value": "yes", "effect": "PreferNoSchedule"},
        ],
        "tolerations": [{"key": "pool.vk.io", "operator": "Equal", "value": POOL, "effect": "NoSchedule"}],
    }
    for made in (*queues.values(), flavor):
        assert made["metadata"]["ownerReferences"] == [owner(kept)]


def test_a_branch_may_borrow_its_limit_from_each_pool(
    kept: dict[str, Any], plane: QueuesPlane, nats: NatsServer
) -> None:
    other = "masterqueue-interlink-slurm-cineca"
    for pool in (POOL, "slurm-cineca"):
        nats.publish(f"{SUBJECT}.{pool}", {"quotas": {"pods": 40}})
    found = until_flavors(plane, [FLAVOR, other])
    assert found["group1"]["spec"]["resourceGroups"] == group(
        {name: [quota("pods", "0", "30")] for name in (FLAVOR, other)}
    )
    assert found["masterqueue"]["spec"]["resourceGroups"] == group(
        {name: [quota("pods", "40")] for name in (FLAVOR, other)}
    )


def test_a_local_flavor_is_lent_without_any_pool(plane: QueuesPlane, tmp_path: Path) -> None:
    plane.create(read(LOCAL_FLAVOR))
    plane.create(read(LOCAL_MASTER_QUEUE))
    with running(plane, tmp_path):
        found = until_flavors(plane, ["local-cpu"])
    assert found["group1"]["spec"]["resourceGroups"] == group({"local-cpu": [quota("pods", "0", "30")]})
    assert found["masterqueue"]["spec"]["resourceGroups"] == group({"local-cpu": [quota("pods", "100")]})
    assert "ownerReferences" not in plane.items(FLAVORS)["local-cpu"]["metadata"]


def test_the_documents_job_goes_from_a_pools_publication_to_a_bound_pod(
    kueue_plane: QueuesPlane, nats: NatsServer, tmp_path: Path
) -> None:
    virtual_node(kueue_plane)
    kueue_plane.create(master_queue(nats.url))
    with running(kueue_plane, tmp_path):
        kueue_plane.add(read(LOCAL_QUEUE))
        job = read(JOB)
        job["spec"]["template"]["spec"]["schedulerName"] = "fluence"
        name = kueue_plane.add(job)["metadata"]["name"]
        nats.wait_subscribed(f"{SUBJECT}.*")
        kueue_plane.until(CLUSTER_QUEUES, lambda found: _stop_policy(found, "group1") == "Hold")
        path = f"/apis/batch/v1/namespaces/default/jobs/{name}"
        assert kueue_plane.request("GET", path)[1]["spec"]["suspend"] is True
        nats.publish(f"{SUBJECT}.{POOL}", {"quotas": {"cpu": "8", "memory": "32Gi", "pods": 10}})
        (pod,) = kueue_plane.wait_for(PODS, _bound)["items"]
    assert pod["spec"]["nodeName"] == VIRTUAL_NODE
    assert pod["spec"]["nodeSelector"] == {"kubernetes.io/hostname": VIRTUAL_NODE}
    status = kueue_plane.items(MASTER_QUEUES)["masterqueue"]["status"]
    assert [(one["name"], one["state"]) for one in status["pools"]] == [(POOL, "Active")]


def virtual_node(plane: QueuesPlane) -> None:
    """The node of a virtual kubelet, as InterLink's is."""
    plane.new_node(VIRTUAL_NODE)
    taint = {"key": "virtual-node.interlink/no-schedule", "value": "true", "effect": "NoSchedule"}
    changed = {"metadata": {"labels": {"kubernetes.io/hostname": VIRTUAL_NODE}}, "spec": {"taints": [taint]}}
    status, answer = plane.request("PATCH", f"/api/v1/nodes/{VIRTUAL_NODE}", changed)
    assert status == 200, answer


def until_flavors(plane: QueuesPlane, names: list[str]) -> dict[str, dict[str, Any]]:
    """The ClusterQueues, once both have these flavors: each is written in its turn."""
    both = ("group1", "masterqueue")
    return plane.until(CLUSTER_QUEUES, lambda queues: all(sorted(_flavors(queues, one)) == names for one in both))


def _flavors(queues: dict[str, dict[str, Any]], name: str) -> list[str]:
    groups = queues.get(name, {}).get("spec", {}).get("resourceGroups", [])
    return [flavor["name"] for one in groups for flavor in one["flavors"]]


def _stop_policy(queues: dict[str, dict[str, Any]], name: str) -> str | None:
    return queues[name]["spec"]["stopPolicy"] if name in queues else None


def _bound(pods: dict[str, Any]) -> bool:
    return len(pods["items"]) == 1 and "nodeName" in pods["items"][0]["spec"]
