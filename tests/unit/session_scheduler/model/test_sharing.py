"""Equal parts of decoded pods and nodes are one object."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from session_scheduler.cluster.documents import read_documents
from session_scheduler.cluster.kube_kinds import resource_of
from session_scheduler.model import sharing
from session_scheduler.model.objects import Node, ObjectMeta, Pod, PodCondition

CONDITION = {"type": "Ready", "status": "True", "lastTransitionTime": "2030-01-01T00:00:00Z"}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "labels": {"app": "a"}},
        "spec": {"containers": [container], "tolerations": [{"key": "a"}], **spec},
        "status": {"conditions": [CONDITION, {"type": name, "status": "True"}]},
    }


def page(kind: type[Any], *items: dict[str, Any], keep: Callable[[Any], bool] | None = None) -> tuple[Any, ...]:
    text = json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()
    return resource_of(kind).page(text, keep).items or ()


def test_pods_of_one_template_share_their_spec_and_labels() -> None:
    first, second = page(Pod, pod("a"), pod("b"))
    assert first.spec is second.spec
    assert first.metadata.labels is second.metadata.labels
    assert (first.metadata.name, second.metadata.name) == ("a", "b")
    assert first.status.conditions[0] is second.status.conditions[0]
    assert second.status.conditions[1] == PodCondition(type="b", status="True")


def test_pods_on_nodes_share_the_parts_of_their_specs() -> None:
    (first,), (second,) = page(Pod, pod("a", nodeName="n1")), page(Pod, pod("b", nodeName="n2"))
    assert (first.spec.node_name, second.spec.node_name) == ("n1", "n2")
    assert first.spec.containers is second.spec.containers
    assert first.spec.tolerations is second.spec.tolerations
    assert first.spec.node_selector is second.spec.node_selector


def test_pods_that_a_list_does_not_keep_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_known", {})
    assert page(Pod, pod("a"), pod("b"), keep=lambda _: False) == ()
    assert not sharing._known


def test_the_object_of_an_event_shares_with_a_list() -> None:
    (listed,) = page(Pod, pod("a"))
    line = resource_of(Pod).line(json.dumps({"type": "ADDED", "object": pod("b")}).encode())
    assert line is not None
    assert isinstance(line.object, Pod)
    assert line.object.spec is listed.spec


def test_nodes_share_amounts_and_images() -> None:
    status = {"allocatable": {"cpu": "4"}, "images": [{"names": ["x"], "sizeBytes": 7}]}
    nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status} for name in "ab"]
    first, second = page(Node, *nodes)
    assert first.status.allocatable is second.status.allocatable
    assert first.status.images[0] is second.status.images[0]


def test_pods_of_manifests_share_their_spec(tmp_path: Any) -> None:
    file = tmp_path / "pods.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod("a"), pod("b")]}))
    first, second = (document.typed(Pod) for document in read_documents([str(file)], None))
    assert first.spec is second.spec


def test_values_of_different_fields_or_amounts_are_not_mixed_up() -> None:
    labels = {"metadata": {"name": "p", "labels": {"key": "a"}}}
    (one,) = page(Pod, {**pod("p", nodeName="n", nodeSelector={"key": "a"}), **labels})
    (two,) = page(Pod, pod("q", containers=[{"name": "c", "resources": {"requests": {"cpu": 1}}}]))
    assert one.metadata.labels == one.spec.node_selector == {"key": "a"}
    assert one.spec.tolerations[0].key == "a"
    assert two.spec.containers[0].resources.requests == {"cpu": 1}


def test_a_value_that_json_cannot_have_is_left_to_the_checks() -> None:
    labels = {"a": "\ud800"}
    assert sharing.shared(Pod(metadata=ObjectMeta(name="p", labels=labels))).metadata.labels is labels


def test_large_parts_are_not_remembered() -> None:
    large = {"metadata": {"name": "p", "annotations": {"key": "a" * 5000}}}
    (first,), (second,) = page(Pod, {**pod("p"), **large}), page(Pod, {**pod("p"), **large})
    assert first.metadata.annotations == second.metadata.annotations
    assert first.metadata.annotations is not second.metadata.annotations
    assert first.spec is second.spec


def test_parts_without_an_equal_one_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_MOST_KNOWN", 10)
    for number in range(100):
        page(Pod, pod(f"p{number}", schedulerName=f"s{number}"))
    assert len(sharing._known) <= 10
