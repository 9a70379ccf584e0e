"""The peers themselves: nats-server as a pool meets it, and Kueue with queues that are made by hand."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from .nats_peer import Auth, NatsServer
from .plane import CLUSTER_QUEUES, FLAVORS, LOCAL_QUEUES, PODS, WORKLOADS, QueuesPlane
from .samples import JOB, LOCAL_QUEUE, VIRTUAL_NODE, cluster_queue, flavor, read

_POOL = "podman-firenze"
_FLAVOR = f"masterqueue-interlink-{_POOL}"


def submitted(plane: QueuesPlane, **changed: object) -> dict[str, Any]:
    """The document's Job, created; its pods are of no consequence here."""
    return plane.add({**read(JOB), **changed})


def pods_only(plane: QueuesPlane, limit: int = 30) -> None:
    """The queues that the document describes for one pool of 100 pods."""
    plane.create(flavor(_FLAVOR, pool=_POOL))
    plane.create(cluster_queue("masterqueue", "masterqueue", {_FLAVOR: {"pods": 100}}))
    plane.create(cluster_queue("group1", "masterqueue", {_FLAVOR: {"pods": 0}}, {_FLAVOR: {"pods": limit}}))
    plane.add(read(LOCAL_QUEUE))


def admitted(plane: QueuesPlane, job: str) -> dict[str, Any]:
    """The job once Kueue has let it go."""
    path = f"/apis/batch/v1/namespaces/default/jobs/{job}"
    found: dict[str, Any] = plane.wait_for(path, lambda answer: answer["spec"]["suspend"] is False)
    return found


@pytest.mark.parametrize("auth", Auth)
@pytest.mark.parametrize("tls", [False, True])
def test_pools_publish_in_each_way_of_saying_who_they_are(auth: Auth, tls: bool, tmp_path: Path) -> None:
    with NatsServer(tmp_path, auth=auth, tls=tls) as server:
        server.publish("interlink.resources.a", {"quotas": {"pods": 1}})
        with server.away(), pytest.raises(OSError, match="refused"):
            server.publish("interlink.resources.a", {})
        server.publish("interlink.resources.a", b"{}")
        assert server.connections() == []
        assert server.subscriptions() == []


def test_nats_server_refuses_who_is_not_known(nats: NatsServer) -> None:
    nats.password = "other"
    with pytest.raises(AssertionError, match="Authorization Violation"):
        nats.publish("interlink.resources.a", {})


def test_the_documents_job_is_admitted_by_borrowing(kueue_plane: QueuesPlane) -> None:
    pods_only(kueue_plane)
    job = submitted(kueue_plane)
    assert job["spec"]["suspend"] is True
    spec = admitted(kueue_plane, job["metadata"]["name"])["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"kubernetes.io/hostname": VIRTUAL_NODE}
    assert spec["tolerations"] == [
        {"key": "virtual-node.interlink/no-schedule", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "pool.vk.io", "operator": "Equal", "value": _POOL, "effect": "NoSchedule"},
    ]
    (workload,) = kueue_plane.items(WORKLOADS).values()
    (assigned,) = workload["status"]["admission"]["podSetAssignments"]
    assert workload["status"]["admission"]["clusterQueue"] == "group1"
    assert assigned["flavors"] == {"pods": _FLAVOR}
    queue = kueue_plane.until_counted("group1", "reservingWorkloads", 1)
    assert queue["status"]["flavorsReservation"] == [
        {"name": _FLAVOR, "resources": [{"name": "pods", "total": "1", "borrowed": "1"}]}
    ]
    assert kueue_plane.item(CLUSTER_QUEUES, "group1") is not None
    (pod,) = kueue_plane.wait_for(PODS, lambda answer: len(answer["items"]) == 1)["items"]
    assert pod["spec"]["nodeSelector"] == {"kubernetes.io/hostname": VIRTUAL_NODE}


def test_a_second_job_waits_where_only_one_pod_may_be_borrowed(kueue_plane: QueuesPlane) -> None:
    pods_only(kueue_plane, limit=1)
    first = submitted(kueue_plane)
    admitted(kueue_plane, first["metadata"]["name"])
    second = submitted(kueue_plane)
    kueue_plane.until_counted("group1", "pendingWorkloads", 1)
    path = f"/apis/batch/v1/namespaces/default/jobs/{second['metadata']['name']}"
    assert kueue_plane.request("GET", path)[1]["spec"]["suspend"] is True
    assert (
        kueue_plane.request(
            "DELETE", f"/apis/batch/v1/namespaces/default/jobs/{first['metadata']['name']}?propagationPolicy=Background"
        )[0]
        == HTTPStatus.OK
    )
    admitted(kueue_plane, second["metadata"]["name"])


def test_kueue_keeps_a_flavor_while_a_queue_names_it(kueue_plane: QueuesPlane) -> None:
    pods_only(kueue_plane)
    assert kueue_plane.request("DELETE", f"{FLAVORS}/{_FLAVOR}")[0] == HTTPStatus.OK
    kept = kueue_plane.item(FLAVORS, _FLAVOR)
    assert kept is not None
    assert kept["metadata"]["finalizers"] == ["kueue.x-k8s.io/resource-in-use"]
    for queue in ("group1", "masterqueue"):
        assert kueue_plane.request("DELETE", f"{CLUSTER_QUEUES}/{queue}")[0] == HTTPStatus.OK
    kueue_plane.until(FLAVORS, lambda found: _FLAVOR not in found)
    assert set(kueue_plane.items(LOCAL_QUEUES)) == {"gr1"}
