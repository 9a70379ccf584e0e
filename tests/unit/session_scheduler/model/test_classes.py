"""Which pods are of one class, and what a class holds."""

from __future__ import annotations

from typing import Any

import msgspec

from session_scheduler.model.classes import ClassTable, host_ports
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.objects import Pod


def pod(name: str = "p", labels: dict[str, str] | None = None, **spec: Any) -> Pod:
    spec.setdefault("containers", [{"name": "c", "resources": {"requests": {"cpu": "1"}}}])
    return msgspec.convert({"kind": "Pod", "metadata": {"name": name, "labels": labels or {}}, "spec": spec}, Pod)


def same(a: Pod, b: Pod) -> bool:
    classes = ClassTable(NodeTable())
    return classes.of(a) is classes.of(b)


def test_names_labels_and_token_volumes_do_not_make_a_class() -> None:
    token = [{"name": "kube-api-access-x7f2q", "projected": {}}]
    other = [{"name": "kube-api-access-9zzzz", "projected": {}}]
    assert same(pod("a", {"index": "0"}, volumes=token), pod("b", {"index": "1"}, volumes=other))


def test_needs_make_a_class() -> None:
    assert not same(pod(), pod(nodeSelector={"disk": "ssd"}))
    assert not same(pod(), pod(tolerations=[{"operator": "Exists"}]))
    assert not same(pod(), pod(volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]))


def test_what_a_plugin_reads_makes_a_class() -> None:
    classes = ClassTable(NodeTable(), class_keys=[lambda pod: pod.metadata.labels.get("team")])
    assert classes.of(pod("a", {"team": "x"})) is classes.of(pod("b", {"team": "x"}))
    assert classes.of(pod("a", {"team": "x"})) is not classes.of(pod("c", {"team": "y"}))


def test_labels_make_a_class_only_where_a_selector_of_the_pods_own_reads_them() -> None:
    spread = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]
    assert not same(
        pod("a", {"app": "x"}, topologySpreadConstraints=spread), pod("b", {}, topologySpreadConstraints=spread)
    )


def test_on_the_hosts_network_every_container_port_is_a_host_port() -> None:
    containers = [{"name": "c", "ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 8081}]}]
    assert host_ports(pod(containers=containers)) == (("0.0.0.0", "TCP", 8081),)
    assert host_ports(pod(containers=containers, hostNetwork=True)) == (
        ("0.0.0.0", "TCP", 80),
        ("0.0.0.0", "TCP", 8081),
    )


def test_classes_without_pods_are_forgotten() -> None:
    classes = ClassTable(NodeTable())
    kept = classes.of(pod())
    classes.of(pod(nodeSelector={"a": "b"}))
    classes.forget_unused([kept])
    assert len(classes) == 1
    assert classes.of(pod()) is kept
