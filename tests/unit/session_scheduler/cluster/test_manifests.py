"""Loading manifests: files, objects, defaults and generated values."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import structlog.testing

from session_scheduler.cluster.errors import ManifestError
from session_scheduler.cluster.manifests import load_manifests
from session_scheduler.errors import InputError
from session_scheduler.model.related import Service

from .loading import container, load, node, pod

GROUP = {
    "apiVersion": "scheduling.k8s.io/v1alpha2",
    "kind": "PodGroup",
    "metadata": {"name": "gang"},
    "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}},
}
COSCHEDULING = {
    "apiVersion": "scheduling.x-k8s.io/v1alpha1",
    "kind": "PodGroup",
    "metadata": {"name": "gang"},
    "spec": {"minMember": 2},
}


def saved(*items: dict[str, object], kind: str = "List") -> bytes:
    return json.dumps({"apiVersion": "v1", "kind": kind, "items": items}).encode()


def names(loaded: object) -> list[str]:
    return [p.metadata.name for p in loaded.pods]  # type: ignore[attr-defined]


# ---------------------------------------------------------------------- files


def test_the_manifests_of_a_directory_are_read_by_name_and_not_recursively(tmp_path: Path) -> None:
    for file, name in (("b.yaml", "b"), ("a.json", "a"), ("c.yml", "c"), ("notes.txt", "n"), ("deeper/d.yaml", "d")):
        place = tmp_path / file
        place.parent.mkdir(exist_ok=True)
        place.write_text(json.dumps(pod(name)))
    assert names(load_manifests([str(tmp_path)])) == ["a", "b", "c"]


def test_files_are_read_in_the_order_given_and_dash_is_standard_input(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(json.dumps(pod("one")))
    assert names(load_manifests(["-", str(file)], io.BytesIO(json.dumps(pod("two")).encode()))) == ["two", "one"]


@pytest.mark.parametrize("kind", ["List", "PodList"])
@pytest.mark.parametrize("pretty", [None, 2])
def test_a_saved_list_is_read_as_json_and_as_yaml(kind: str, pretty: int | None) -> None:
    items = [pod("a", creationTimestamp=None), {**pod("b"), "status": {"conditions": [
        {"type": "Ready", "status": "True", "lastProbeTime": None}], "phase": None}}]  # fmt: skip
    text = json.dumps({"apiVersion": "v1", "kind": kind, "items": items}, indent=pretty)
    as_json = load_manifests(["-"], io.BytesIO(text.encode()))
    as_yaml = load_manifests(["-"], io.BytesIO(b"# saved\n" + text.encode()))
    assert as_json == as_yaml
    assert names(as_json) == ["a", "b"]
    assert as_json.pods[1].status.phase == "Pending"


def test_items_of_a_typed_list_need_no_kind() -> None:
    items: list[dict[str, object]] = [{"metadata": {"name": name}, "spec": container()} for name in "ab"]
    assert names(load_manifests(["-"], io.BytesIO(saved(*items, kind="PodList")))) == ["a", "b"]


def test_json_objects_may_follow_each_other() -> None:
    text = json.dumps(pod("a")) + "\n" + json.dumps(pod("b"))
    assert names(load_manifests(["-"], io.BytesIO(text.encode()))) == ["a", "b"]


def test_empty_files_have_no_objects() -> None:
    assert load_manifests(["-"], io.BytesIO(b"")).objects == ()


# ---------------------------------------------------------------------- objects


def test_kinds_that_no_scheduler_reads_are_counted() -> None:
    service = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    foreign = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "j"}}
    loaded = load(service, foreign, service, pod())
    assert loaded.ignored == {"Job": 1, "Secret": 2}
    assert names(loaded) == ["p"]


def test_node_resource_topologies_are_read() -> None:
    zone = {"name": "node-0", "type": "Node", "resources": [{"name": "cpu", "capacity": 4, "available": "3500m"}]}
    loaded = load({"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
                   "metadata": {"name": "n1"}, "zones": [zone]})  # fmt: skip
    assert [one.zones[0].resources[0].available for one in loaded.topologies] == ["3500m"]
    assert loaded.objects == loaded.topologies
    assert loaded.ignored == {}


def test_ignored_kinds_that_may_create_pods_are_logged() -> None:
    kinds = ("v1 Secret", "v1 ConfigMap", "rbac.authorization.k8s.io/v1 Role", "v1 Widget", "v1 Widget",
             "serving.knative.dev/v1 Service", "ray.io/v1 RayJob")  # fmt: skip
    documents = [dict(zip(("apiVersion", "kind"), kind.split(), strict=True)) for kind in kinds]
    with structlog.testing.capture_logs() as logs:
        load(*documents[:3])
        assert not logs
        load(*documents)
    assert [(log["log_level"], log["event"]) for log in logs] == [
        ("warning", "ignoring 1 RayJob, 1 Service, 2 Widget: the scheduler does not read these kinds")
    ]


def test_the_default_namespace_is_default_and_nodes_have_none() -> None:
    loaded = load(pod(), pod(namespace="other"), {**node("n"), "metadata": {"name": "n", "namespace": "odd"}})
    assert [o.metadata.namespace for o in loaded.objects] == ["", "default", "other"]


def test_a_null_is_an_absent_field() -> None:
    loaded = load(pod(labels=None, spec={"nodeName": None, "affinity": {"podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": None}}, "tolerations": None}))  # fmt: skip
    spec = loaded.pods[0].spec
    assert (spec.node_name, spec.tolerations) == ("", ())
    assert spec.affinity is not None
    assert spec.affinity.pod_affinity == {}


def test_an_annotations_prefix_may_have_capitals() -> None:
    assert load(pod(annotations={"Example.COM/Key": "x"})).pods[0].metadata.annotations == {"Example.COM/Key": "x"}


def test_both_pod_group_apis_are_read_and_may_share_a_name() -> None:
    native, coscheduling = load(GROUP, COSCHEDULING).pod_groups
    assert (native.native, native.min_count) == (True, 3)
    assert (coscheduling.native, coscheduling.min_count) == (False, 2)
    assert native.metadata.uid != coscheduling.metadata.uid


def test_the_default_of_allocatable_is_the_capacity() -> None:
    assert load(node("n")).nodes[0].status.allocatable["memory"] == "8Gi"


def test_ports_on_the_hosts_network_are_host_ports() -> None:
    spec = {**container(ports=[{"containerPort": 80}]), "hostNetwork": True}
    assert load(pod(spec=spec)).pods[0].spec.containers[0].ports[0].host_port == 80


# ---------------------------------------------------------------------- what the API server adds


def test_generated_identities_are_the_same_in_every_run() -> None:
    first, second = (load(pod("a"), pod("b"), node("n")) for _ in range(2))
    assert first == second
    assert len({o.metadata.uid for o in first.objects}) == 3
    assert all(o.metadata.resource_version for o in first.objects)


def test_generated_creation_times_are_later_than_given_ones_in_the_order_of_the_files() -> None:
    old = pod("old", creationTimestamp="2026-01-31T12:00:00Z", uid="u", resourceVersion="7")
    loaded = load(pod("z"), old, pod("a"))
    in_time = sorted(loaded.pods, key=lambda p: p.metadata.creation_timestamp or "")
    assert [p.metadata.name for p in in_time] == ["old", "z", "a"]
    assert (loaded.pods[1].metadata.uid, loaded.pods[1].metadata.resource_version) == ("u", "7")


def test_creation_times_can_be_generated_after_the_last_possible_time() -> None:
    loaded = load(pod("last", creationTimestamp="9999-12-31T23:59:59Z"), pod("new"))
    assert loaded.pods[1].metadata.creation_timestamp == "9999-12-31T00:00:01.000002Z"


def test_generated_names_count_up_and_avoid_names_that_are_taken() -> None:
    generated = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "job-"}, "spec": container()}
    assert names(load(generated, pod("job-1"), generated, generated)) == ["job-0", "job-1", "job-2", "job-3"]


def test_priorities_come_from_their_classes_before_or_after_the_pod() -> None:
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 50,
            "preemptionPolicy": "Never"}  # fmt: skip
    group = {**GROUP, "spec": {**GROUP["spec"], "priorityClassName": "high"}}  # type: ignore[dict-item]
    loaded = load(
        pod("a", spec={"priorityClassName": "high"}),
        pod("b", spec={"priorityClassName": "system-node-critical"}),
        pod("c"),
        pod("saved", spec={"priorityClassName": "gone", "priority": 9}),
        high,
        group,
    )
    assert [p.spec.priority for p in loaded.pods] == [50, 2_000_001_000, 0, 9]
    assert loaded.pods[0].spec.preemption_policy == "Never"
    assert loaded.pod_groups[0].spec.priority == 50


def test_the_lowest_global_default_is_the_priority_of_pods_that_name_no_class() -> None:
    classes = [{"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": f"d{value}"},
                "value": value, "globalDefault": True} for value in (20, 10)]  # fmt: skip
    spec = load(*classes, pod()).pods[0].spec
    assert (spec.priority, spec.priority_class_name) == (10, "d10")


def test_a_manifest_error_is_an_input_error_with_its_parts() -> None:
    with pytest.raises(InputError) as raised:
        load(pod(spec=container(resources={"requests": {"cpu": "much"}})))
    error = raised.value
    assert isinstance(error, ManifestError)
    assert (error.file, error.object) == ("<stdin>", "Pod p")
    assert error.field == "spec.containers[0].resources.requests.cpu"


def test_a_saved_cluster_has_its_nodes_its_running_pods_and_the_missing_pods_of_workloads() -> None:
    loaded = load_manifests([str(Path(__file__).with_name("saved_cluster.yaml"))])
    assert [n.metadata.name for n in loaded.nodes] == ["worker-1", "worker-2"]
    assert loaded.nodes[0].status.allocatable["cpu"] == "3920m"
    placed = {p.key: p.spec.node_name for p in loaded.pods}
    assert placed == {"shop/web-0": "", "shop/web-7d9c5b8f6-4x2kp": "worker-1", "shop/web-7d9c5b8f6-q9w7z": "worker-1"}
    missing = loaded.pods[0]
    assert missing.metadata.owner_references[0].uid == "5d9d8f3e-2a44-4f3b-9a0e-3c7a1f3f0d01"
    assert (missing.metadata.creation_timestamp or "") > "2026-01-06T09:00:01Z"
    assert missing.spec.scheduler_name == "fluence"
    assert loaded.ignored == {}
    services = [obj for obj in loaded.related if isinstance(obj, Service)]
    assert [(service.key, service.spec.selector) for service in services] == [("shop/web", None)]
