"""What a cluster can give to a pool: its nodes, less what others have of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import msgspec
import pytest

from fluence_plugins.master_queue.pool.capacity import Part, capacity, free, lesser
from session_scheduler.cluster.kube_requests import ApiClient
from session_scheduler.errors import InputError
from session_scheduler.model.objects import Node, Pod
from session_scheduler.sdk.dynamic_client import ClusterError, Invalid, KubeApi

Manifest = dict[str, Any]


def node(name: str = "n1", *, ready: str = "True", spec: Manifest | None = None, **allocatable: str) -> Manifest:
    has = {"cpu": "8", "memory": "32Gi", "pods": "110"} | allocatable
    return {"metadata": {"name": name}, "spec": spec or {},
            "status": {"allocatable": has, "conditions": [{"type": "Ready", "status": ready}]}}  # fmt: skip


def pod(namespace: str = "other", on: str = "n1", phase: str = "Running", **requests: str) -> Manifest:
    container = {"name": "c", "resources": {"requests": requests}}
    return {"metadata": {"name": "p", "namespace": namespace}, "spec": {"nodeName": on, "containers": [container]},
            "status": {"phase": phase}}  # fmt: skip


def given(nodes: list[Manifest], pods: list[Manifest], part: Part | None = None) -> dict[str, int]:
    return free(
        [msgspec.convert(one | {"kind": "Node"}, Node) for one in nodes],
        [msgspec.convert(one | {"kind": "Pod"}, Pod) for one in pods],
        part or Part(),
    )


def test_the_capacity_of_an_empty_cluster_is_the_sum_of_its_nodes() -> None:
    more: dict[str, Any] = {"nvidia.com/gpu": "2", "ephemeral-storage": "1Ti"}
    nodes = [node(), node("n2", cpu="500m", **more)]
    assert given(nodes, []) == {"cpu": 8500, "memory": 64 * 2**30 * 1000, "pods": 220000, "nvidia.com/gpu": 2000}


def test_requests_of_other_pods_are_subtracted_from_their_nodes() -> None:
    found = given([node()], [pod(cpu="1500m", memory="2Gi"), pod()])
    assert found == {"cpu": 6500, "memory": 30 * 2**30 * 1000, "pods": 108000}


def test_a_pod_that_is_being_resized_has_what_its_status_reports() -> None:
    shrinks = pod(cpu="1", memory="1Gi")
    actual = {"requests": {"cpu": "3", "memory": "1Gi"}}
    shrinks["status"]["containerStatuses"] = [{"name": "c", "resources": actual}]
    assert given([node()], [shrinks]) == {"cpu": 5000, "memory": 31 * 2**30 * 1000, "pods": 109000}


def test_pods_of_the_pool_itself_are_not_subtracted_because_kueue_counts_them() -> None:
    part = Part(own=frozenset({"offloaded"}))
    assert given([node()], [pod("offloaded", cpu="4")], part) == given([node()], [])


@pytest.mark.parametrize("other", [
    pod(on="", phase="Pending", cpu="4"), pod(phase="Succeeded", cpu="4"), pod(phase="Failed", cpu="4"),
    pod(on="elsewhere", cpu="4"),
], ids=["not bound", "succeeded", "failed", "on another node"])  # fmt: skip
def test_pods_that_use_no_node_are_not_subtracted(other: Manifest) -> None:
    assert given([node()], [other]) == given([node()], [])


def test_an_overcommitted_node_reduces_no_other() -> None:
    assert given([node(cpu="1"), node("n2", cpu="2")], [pod(cpu="5")])["cpu"] == 2000


@pytest.mark.parametrize("away", [
    node(ready="False"), node(ready="Unknown"), node(spec={"unschedulable": True}),
    node(spec={"taints": [{"key": "k", "effect": "NoSchedule"}]}),
    node(spec={"taints": [{"key": "k", "effect": "NoExecute"}]}),
], ids=["not ready", "unknown", "cordoned", "NoSchedule", "NoExecute"])  # fmt: skip
def test_nodes_that_accept_no_pods_do_not_count(away: Manifest) -> None:
    assert given([away], []) == {}
    assert given([node("n2"), away], [pod(cpu="1")])["cpu"] == 8000


def test_nodes_with_tolerated_or_preferred_taints_count() -> None:
    taints = [{"key": "gpu", "effect": "NoSchedule"}, {"key": "old", "effect": "PreferNoSchedule"}]
    assert given([node(spec={"taints": taints})], [], Part(tolerated=frozenset({"gpu"})))["cpu"] == 8000


def test_an_invalid_amount_is_ignored_and_the_others_count() -> None:
    assert given([node()], [pod(cpu="much", memory="2Gi")]) == {
        "cpu": 8000,
        "memory": 30 * 2**30 * 1000,
        "pods": 109000,
    }


def test_the_smaller_of_two_amounts_counts_and_a_missing_resource_is_zero() -> None:
    first = {"cpu": "8", "memory": "32Gi", "pods": "10"}
    assert lesser(first, {"cpu": "500m", "memory": "64Gi", "nvidia.com/gpu": "1"}) == {
        "cpu": "500m", "memory": "32Gi", "pods": "10", "nvidia.com/gpu": "0",
    }  # fmt: skip
    assert lesser(first, {}) == first


# ---------------------------------------------------------------------- reading


class Api:
    """Two pages of nodes, and one of pods."""

    def __init__(self, error: Exception | None = None, pods: list[Manifest] | None = None) -> None:
        self.asked: list[tuple[str, Mapping[str, str]]] = []
        self._error = error
        self._pods = [pod(cpu="1")] if pods is None else pods

    async def read(self, path: str, query: Mapping[str, str], *, what: str) -> bytes:
        if self._error is not None:
            raise self._error
        self.asked.append((what, dict(query)))
        go_on = "more" if path == "api/v1/nodes" and "continue" not in query else ""
        items = self._pods if path == "api/v1/pods" else [node()] if go_on else [node("n2")]
        return msgspec.json.encode({"items": items, "metadata": {"continue": go_on}})


def asked_for(api: Api, part: Part) -> dict[str, str]:
    return asyncio.run(capacity(KubeApi(cast(ApiClient, api)), part))


def test_all_pages_are_read_with_the_selector_and_amounts_are_written_as_quantities() -> None:
    api = Api()
    found = asked_for(api, Part(selector="zone=a"))
    assert found == {"cpu": "15", "memory": "64Gi", "pods": "219"}
    assert [(path, query.get("labelSelector"), query.get("continue")) for path, query in api.asked] == [
        ("/api/v1/nodes", "zone=a", None), ("/api/v1/nodes", "zone=a", "more"), ("/api/v1/pods", None, None),
    ]  # fmt: skip


def test_an_invalid_selector_is_the_users_error_and_a_silent_cluster_is_not() -> None:
    with pytest.raises(InputError, match="--selector: 'a b' is not a valid label selector"):
        asked_for(Api(Invalid("unable to parse")), Part(selector="a b"))
    with pytest.raises(ClusterError, match="no answer"):
        asked_for(Api(ClusterError("no answer")), Part())


def test_an_invalid_pod_is_an_error_that_names_its_field() -> None:
    with pytest.raises(ClusterError, match=r"^/api/v1/pods: .*\.nodeName`: the server is not a Kubernetes API server"):
        asked_for(Api(pods=[{"spec": {"nodeName": 1}}]), Part())
