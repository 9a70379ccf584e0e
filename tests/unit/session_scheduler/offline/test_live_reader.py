"""What is read of a live cluster, and how refused requests are handled."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from session_scheduler.cluster.errors import ClusterError, Forbidden, NotFound, Unavailable
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.model.devices import DeviceTaintRule
from session_scheduler.model.gang_plan import PLAN_ANNOTATION
from session_scheduler.model.node_topology import NodeResourceTopology
from session_scheduler.model.objects import ConfigMap, KubeObject, Node, ObjectMeta, PodGroup
from session_scheduler.model.storage import CSINode
from session_scheduler.offline import live_reader
from session_scheduler.testing import node, pod, pod_group


class Cluster(MemoryCluster):
    """Refuses some kinds, and knows who may write."""

    def __init__(self, *objects: Any, refused: dict[type, ClusterError] | None = None) -> None:
        super().__init__(objects)
        self._refused = refused or {}
        self.fence: Any = None

    def fence_writes(self, check: Any) -> None:
        self.fence = check

    async def list(self, kind: Any, **options: Any) -> Any:
        if kind in self._refused:
            raise self._refused[kind]
        return await super().list(kind, **options)


def names(found: Any) -> list[str]:
    return [obj.metadata.name for obj in found]


async def test_all_kinds_are_listed_and_every_write_is_rejected() -> None:
    cluster = Cluster(node("n1"), pod("p"), pod_group("g", 2))
    assert names(await live_reader._listed(cluster, "kube-system")) == ["n1", "g", "p"]
    with pytest.raises(RuntimeError, match="only reads the cluster"):
        cluster.fence()


async def test_a_plan_in_a_config_map_is_read_with_its_group() -> None:
    group = pod_group("g", 2)
    text = json.dumps({"attempt": "a", "configMap": "fluence-plan-u.a"})
    annotations = {PLAN_ANNOTATION: text}
    planned = PodGroup(metadata=ObjectMeta(name="g", namespace="default", uid="u", annotations=annotations),
                       spec=group.spec)  # fmt: skip
    plan = ConfigMap(metadata=ObjectMeta(name="fluence-plan-u.a", namespace="schedulers"))
    other = ConfigMap(metadata=ObjectMeta(name="other", namespace="schedulers"))
    cluster = Cluster(planned, plan, other)
    assert names(await live_reader._listed(cluster, "schedulers")) == ["g", "fluence-plan-u.a"]
    assert names(await live_reader._listed(Cluster(planned), "schedulers")) == ["g"]


@pytest.mark.parametrize("error", [Forbidden("list of csinodes: 403: no"), NotFound("list of csinodes: 404: what?")])
async def test_a_rejected_list_of_an_optional_kind_counts_as_empty_with_a_warning(error: ClusterError) -> None:
    with capture_logs() as logs:
        found = await live_reader._listed(Cluster(node("n1"), refused={CSINode: error}), "kube-system")
    assert names(found) == ["n1"]
    (line,) = logs
    assert line["event"].startswith(f"continuing without CSINode objects: {error}; ")


@pytest.mark.parametrize("kind", [DeviceTaintRule, NodeResourceTopology])
async def test_a_kind_that_few_clusters_serve_causes_no_warning(kind: type[KubeObject]) -> None:
    cluster = Cluster(node("n1"), refused={kind: NotFound("404: no page")})
    with capture_logs() as logs:
        found = await live_reader._listed(cluster, "kube-system")
    assert names(found) == ["n1"]
    assert logs == []


@pytest.mark.parametrize("enabled", [True, False])
async def test_a_forbidden_kind_of_one_plugin_causes_a_warning_only_with_the_plugin(enabled: bool) -> None:
    cluster = Cluster(node("n1"), refused={NodeResourceTopology: Forbidden("403: no")})
    with capture_logs() as logs:
        found = await live_reader._listed(cluster, "kube-system", {"NodeResourceTopologyMatch"} if enabled else ())
    assert names(found) == ["n1"]
    assert [line["event"] for line in logs] == (
        ["continuing without NodeResourceTopology objects: 403: no; grant your account the verbs get, list and watch "
         "on NodeResourceTopology objects (in its ClusterRole)"] if enabled else []
    )  # fmt: skip


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (Forbidden("list of nodes: 403: no"), "grant your account the verbs get, list and watch on Node objects"),
        (Unavailable("list of nodes: no answer in time"), "check the cluster's address in the kubeconfig"),
    ],
)
async def test_a_rejected_list_of_a_required_kind_is_an_error_with_a_remedy(error: ClusterError, remedy: str) -> None:
    with pytest.raises(type(error)) as raised:
        await live_reader._listed(Cluster(refused={Node: error}), "kube-system")
    assert str(raised.value).startswith(f"{error}; {remedy}")
    assert "\n" not in str(raised.value)
