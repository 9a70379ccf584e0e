"""When the cache computes a pod's class: not for a pod on a node whose needs have not changed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from session_scheduler.model import pod_terms
from session_scheduler.model.class_table import ClassTable
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.objects import Affinity, Node, ObjectMeta, Pod, PodSpec
from session_scheduler.state.cache import Cache

ANNOTATION = "fluence-test/class-key"


class Classes:
    """A cache with one plugin, whose class key is an annotation; it records the pods whose class the cache computes."""

    def __init__(self) -> None:
        table = NodeTable()
        self.computed: list[str] = []
        self.cache = Cache(table, ClassTable(table, [self._key]), {"default-scheduler"}.__contains__)
        self.cache.put(Node(metadata=ObjectMeta(name="n")))

    def _key(self, pod: Pod) -> str | None:
        self.computed.append(pod.metadata.name)
        return pod.metadata.annotations.get(ANNOTATION)

    def put(self, pod: Pod) -> list[str]:
        """Put a pod in the cache. Returns the pods whose class the cache has computed."""
        self.computed.clear()
        self.cache.put(pod)
        return self.computed

    def requests(self) -> dict[str, int]:
        return dict(self.cache.tasks["p"].cls.requests)


def a_pod(node: str = "", *, cpu: str = "1", claims: Any = (), actual: str = "", **meta: Any) -> Pod:
    requests = {"cpu": actual}
    statuses = [{"name": "c", "allocatedResources": requests, "resources": {"requests": requests}}] if actual else []
    return msgspec.convert({
        "metadata": {"name": "p", "namespace": "ns", "uid": "p", **meta},
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
        "status": {"resourceClaimStatuses": claims, "containerStatuses": statuses},
    }, Pod)  # fmt: skip


def placed(classes: Classes) -> None:
    """A session has placed the pod on the node; its bind is in flight."""
    classes.put(a_pod())
    classes.cache.occupy(classes.cache.tasks["p"], "n")


def test_the_event_of_a_bind_does_not_compute_the_class() -> None:
    classes = Classes()
    placed(classes)
    cls = classes.cache.tasks["p"].cls
    assert classes.put(a_pod("n", annotations={"held": "{}"}, resourceVersion="2")) == []
    assert classes.cache.tasks["p"].cls is cls
    assert classes.cache.tasks["p"].pod.spec.node_name == "n"


CLAIM = {"name": "c", "resourceClaimName": "d"}


@pytest.mark.parametrize("changed", [a_pod("n", cpu="2"), a_pod("n", labels={"app": "a"}), a_pod("n", claims=[CLAIM])])
def test_changed_needs_of_a_running_pod_compute_its_class(changed: Pod) -> None:
    classes = Classes()
    placed(classes)
    assert classes.put(changed) == ["p"]
    assert classes.requests()["cpu"] == (2000 if changed.spec.containers[0].resources.requests["cpu"] == "2" else 1000)


def test_a_status_that_agrees_with_the_spec_does_not_compute_the_class() -> None:
    classes = Classes()
    placed(classes)
    assert classes.put(a_pod("n", actual="1")) == []
    assert classes.put(a_pod("n", actual="1000m")) == []


def test_a_status_alone_computes_the_class_of_a_resized_pod() -> None:
    classes = Classes()
    placed(classes)
    assert classes.put(a_pod("n", cpu="250m", actual="1")) == []
    assert classes.requests()["cpu"] == 1000
    assert classes.put(a_pod("n", cpu="250m", actual="250m")) == ["p"]
    assert classes.requests()["cpu"] == 250


def test_the_status_of_a_pod_that_lost_its_node_does_not_count() -> None:
    classes = Classes()
    classes.put(a_pod("n", cpu="1", actual="3"))
    assert classes.requests()["cpu"] == 3000
    classes.put(a_pod(cpu="1", actual="3"))
    assert classes.requests()["cpu"] == 1000


def test_a_new_annotation_of_a_running_pod_computes_its_class() -> None:
    classes = Classes()
    classes.put(a_pod("n"))
    assert classes.put(a_pod("n", annotations={ANNOTATION: "one"})) == ["p"]


def test_a_changed_or_removed_annotation_computes_the_class() -> None:
    classes = Classes()
    classes.put(a_pod("n", annotations={ANNOTATION: "one"}))
    assert classes.put(a_pod("n", annotations={ANNOTATION: "two"})) == ["p"]
    assert classes.put(a_pod("n")) == ["p"]


def test_each_update_of_a_pending_pod_computes_its_class() -> None:
    classes = Classes()
    classes.put(a_pod())
    before = classes.cache.tasks["p"].cls
    assert classes.put(a_pod(annotations={ANNOTATION: "one"})) == ["p"]
    assert classes.cache.tasks["p"].cls is not before


def test_an_update_of_an_invalid_pod_computes_its_class() -> None:
    classes = Classes()
    classes.put(a_pod("n", cpu="much"))
    assert "Pod ns/p" in classes.cache.problems
    wrong = a_pod("n", cpu="much")
    assert classes.put(replace(wrong, metadata=replace(wrong.metadata, resource_version="2"))) == ["p"]
    assert "Pod ns/p" in classes.cache.problems


def an_enemy(name: str, namespace: str, label: str, **term: Any) -> Pod:
    """A pod with required anti-affinity to pods with this label."""
    term |= {"topologyKey": "zone", "labelSelector": {"matchExpressions": [{"key": label, "operator": "Exists"}]}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    pod = a_pod(name=name, namespace=namespace, uid=name)
    return replace(pod, spec=replace(pod.spec, affinity=msgspec.convert(affinity, Affinity)))


def test_the_terms_of_a_new_pod_count_although_its_selector_splits_classes_of_a_crowded_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_terms, "MOST_OF_A_NAMESPACE", 2)
    cache = Classes().cache
    for number in range(3):
        cache.put(an_enemy(f"a{number}", "a", f"key{number}", namespaceSelector={}))
    for number in range(20):
        cache.put(a_pod(name=f"b{number}", namespace="b", uid=f"b{number}", labels={"app": f"{number}"}))
    cache.put(an_enemy("new", "b", "app"))
    assert len({task.cls for task in cache.tasks.values()}) == 24
    cls = cache.tasks["new"].cls
    assert cls.terms.held[0] in cache.table.terms.concerning("b", {"app": "0"}, {})
    cache.put(an_enemy("equal", "b", "app"))
    assert cache.tasks["equal"].cls is cls


def test_new_classes_of_a_crowded_table_rarely_cost_a_pass_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_terms, "MOST_OF_A_NAMESPACE", 2)
    classes, passes = Classes(), []
    forget = ClassTable.forget_unused
    monkeypatch.setattr(ClassTable, "forget_unused", lambda *args: passes.append(1) or forget(*args))
    for number in range(3):
        classes.put(an_enemy(f"a{number}", "a", f"key{number}", namespaceSelector={}))
    for number in range(1000):
        classes.put(a_pod(name=f"b{number}", namespace="b", uid=f"b{number}", cpu=str(number)))
    assert 4 < len(passes) < 20


def test_the_number_of_pods_is_kept_by_class() -> None:
    classes = Classes()

    def put(name: str, value: str, node: str = "") -> None:
        metadata = ObjectMeta(name=name, uid=name, annotations={ANNOTATION: value})
        classes.put(Pod(metadata=metadata, spec=PodSpec(node_name=node)))

    for name, value, node in (("a", "1", ""), ("b", "1", "n"), ("c", "2", ""), ("c", "1", ""), ("a", "2", "n")):
        put(name, value, node)
        tasks = classes.cache.tasks.values()
        assert classes.cache.pods_of == Counter(task.cls for task in tasks)
    classes.cache.remove(Pod(metadata=ObjectMeta(name="a", uid="a")))
    assert list(classes.cache.pods_of.values()) == [2]
