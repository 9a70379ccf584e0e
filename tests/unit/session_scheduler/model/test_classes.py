"""Task classes: which pods share a class, and what it contains."""

from __future__ import annotations

from typing import Any

import msgspec

from session_scheduler.model.class_table import ClassTable
from session_scheduler.model.classes import host_ports
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.objects import ObjectMeta, Pod


def pod(name: str = "p", labels: dict[str, str] | None = None, **spec: Any) -> Pod:
    spec.setdefault("containers", [{"name": "c", "resources": {"requests": {"cpu": "1"}}}])
    return msgspec.convert({"kind": "Pod", "metadata": {"name": name, "labels": labels or {}}, "spec": spec}, Pod)


def same(a: Pod, b: Pod) -> bool:
    classes = ClassTable(NodeTable())
    return classes.of(a) is classes.of(b)


def test_names_labels_and_token_volumes_do_not_distinguish_classes() -> None:
    token = [{"name": "kube-api-access-x7f2q", "projected": {}}]
    other = [{"name": "kube-api-access-9zzzz", "projected": {}}]
    assert same(pod("a", {"index": "0"}, volumes=token), pod("b", {"index": "1"}, volumes=other))


def test_needs_distinguish_classes() -> None:
    assert not same(pod(), pod(nodeSelector={"disk": "ssd"}))
    assert not same(pod(), pod(tolerations=[{"operator": "Exists"}]))
    assert not same(pod(), pod(volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]))


def test_a_plugins_class_key_distinguishes_classes() -> None:
    classes = ClassTable(NodeTable(), class_keys=[lambda pod: pod.metadata.labels.get("team")])
    assert classes.of(pod("a", {"team": "x"})) is classes.of(pod("b", {"team": "x"}))
    assert classes.of(pod("a", {"team": "x"})) is not classes.of(pod("c", {"team": "y"}))


def spread(selector: dict[str, Any], **more: Any) -> dict[str, Any]:
    where = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    return {**where, "labelSelector": selector, **more}


def test_labels_distinguish_classes_only_if_a_selector_reads_them() -> None:
    constraints = [spread({"matchLabels": {"app": "x"}}, matchLabelKeys=["hash"])]
    classes = ClassTable(NodeTable())
    a = classes.of(pod("a", {"app": "x", "index": "0"}, topologySpreadConstraints=constraints))
    assert classes.of(pod("b", {"app": "x", "index": "1"}, topologySpreadConstraints=constraints)) is a
    assert classes.of(pod("c", {"app": "y"}, topologySpreadConstraints=constraints)) is not a
    assert classes.of(pod("d", {"app": "x", "hash": "1"}, topologySpreadConstraints=constraints)) is not a
    assert classes.of(pod("e", {"app": "x"})) is not classes.of(pod("f", {"app": "y"}))


def test_a_term_reads_labels_only_in_its_namespaces() -> None:
    def term(**fields: Any) -> dict[str, Any]:
        selector = {"matchExpressions": [{"key": "app", "operator": "Exists"}]}
        required = [{"topologyKey": "zone", "labelSelector": selector, **fields}]
        return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}

    def distinguished(namespace: str, **fields: Any) -> bool:
        classes = ClassTable(NodeTable())
        classes.of(pod("reads", affinity=term(**fields)))

        def there(name: str) -> Pod:
            metadata = ObjectMeta(name=name, namespace=namespace, labels={"app": name})
            return msgspec.structs.replace(pod(name), metadata=metadata)

        return classes.of(there("a")) is not classes.of(there("b"))

    assert distinguished("")  # the namespace of the pod with the term
    assert not distinguished("other")
    assert distinguished("other", namespaces=["other"])
    assert not distinguished("third", namespaces=["other"])
    assert distinguished("third", namespaceSelector={"matchLabels": {"team": "x"}})


def test_newly_read_label_keys_are_returned_once() -> None:
    classes = ClassTable(NodeTable())
    classes.of(pod("plain", {"app": "x"}))
    assert classes.drain_newly_read() == []
    classes.of(pod("reads", topologySpreadConstraints=[spread({"matchLabels": {"app": "x"}})]))
    assert classes.drain_newly_read() == [("", "app")]
    classes.of(pod("reads too", topologySpreadConstraints=[spread({"matchLabels": {"app": "y"}})]))
    assert classes.drain_newly_read() == []


def test_with_host_network_every_container_port_is_a_host_port() -> None:
    containers = [{"name": "c", "ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 8081}]}]
    assert host_ports(pod(containers=containers)) == (("0.0.0.0", "TCP", 8081),)
    assert host_ports(pod(containers=containers, hostNetwork=True)) == (
        ("0.0.0.0", "TCP", 80),
        ("0.0.0.0", "TCP", 8081),
    )


def test_unused_classes_are_dropped() -> None:
    classes = ClassTable(NodeTable())
    kept = classes.of(pod())
    classes.of(pod(nodeSelector={"a": "b"}))
    classes.forget_unused([kept])
    assert len(classes) == 1
    assert classes.of(pod()) is kept
