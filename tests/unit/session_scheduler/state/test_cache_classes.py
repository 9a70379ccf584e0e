"""When a pod's class is looked for: not again for one on a node whose needs are what they were."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from session_scheduler.model.class_table import ClassTable
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.objects import Node, ObjectMeta, Pod
from session_scheduler.state.cache import Cache

ASKED_OF = "fluence-test/asked-of"


class Classes:
    """A cache whose only plugin has each pod's annotation in the class's key, and notes whom it was asked about."""

    def __init__(self) -> None:
        table = NodeTable()
        self.asked: list[str] = []
        self.cache = Cache(table, ClassTable(table, [self._key]), {"default-scheduler"}.__contains__)
        self.cache.put(Node(metadata=ObjectMeta(name="n")))

    def _key(self, pod: Pod) -> str | None:
        self.asked.append(pod.metadata.name)
        return pod.metadata.annotations.get(ASKED_OF)

    def put(self, pod: Pod) -> list[str]:
        """Take a pod in; whom the plugin was asked about."""
        self.asked.clear()
        self.cache.put(pod)
        return self.asked

    def requests(self) -> dict[str, int]:
        return dict(self.cache.tasks["p"].cls.requests)


def a_pod(node: str = "", *, cpu: str = "1", claims: Any = (), **meta: Any) -> Pod:
    return msgspec.convert({
        "metadata": {"name": "p", "namespace": "ns", "uid": "p", **meta},
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
        "status": {"resourceClaimStatuses": claims},
    }, Pod)  # fmt: skip


def placed(classes: Classes) -> None:
    """A session has put the pod on the node; its bind is under way."""
    classes.put(a_pod())
    classes.cache.occupy(classes.cache.tasks["p"], "n")


def test_the_event_of_a_bind_asks_nobody_for_the_class() -> None:
    classes = Classes()
    placed(classes)
    cls = classes.cache.tasks["p"].cls
    assert classes.put(a_pod("n", annotations={"held": "{}"}, resourceVersion="2")) == []
    assert classes.cache.tasks["p"].cls is cls
    assert classes.cache.tasks["p"].pod.spec.node_name == "n"


CLAIM = {"name": "c", "resourceClaimName": "d"}


@pytest.mark.parametrize("changed", [a_pod("n", cpu="2"), a_pod("n", labels={"app": "a"}), a_pod("n", claims=[CLAIM])])
def test_what_a_running_pod_needs_may_change(changed: Pod) -> None:
    classes = Classes()
    placed(classes)
    assert classes.put(changed) == ["p"]
    assert classes.requests()["cpu"] == (2000 if changed.spec.containers[0].resources.requests["cpu"] == "2" else 1000)


def test_an_annotation_that_comes_to_a_running_pod_is_asked_about() -> None:
    classes = Classes()
    classes.put(a_pod("n"))
    assert classes.put(a_pod("n", annotations={ASKED_OF: "one"})) == ["p"]


def test_an_annotation_that_changed_or_went_is_asked_about() -> None:
    classes = Classes()
    classes.put(a_pod("n", annotations={ASKED_OF: "one"}))
    assert classes.put(a_pod("n", annotations={ASKED_OF: "two"})) == ["p"]
    assert classes.put(a_pod("n")) == ["p"]


def test_a_pod_that_waits_is_asked_about_each_time() -> None:
    classes = Classes()
    classes.put(a_pod())
    before = classes.cache.tasks["p"].cls
    assert classes.put(a_pod(annotations={ASKED_OF: "one"})) == ["p"]
    assert classes.cache.tasks["p"].cls is not before


def test_a_pod_that_was_wrong_is_looked_at_again() -> None:
    classes = Classes()
    classes.put(a_pod("n", cpu="much"))
    assert "Pod ns/p" in classes.cache.problems
    wrong = a_pod("n", cpu="much")
    assert classes.put(replace(wrong, metadata=replace(wrong.metadata, resource_version="2"))) == ["p"]
    assert "Pod ns/p" in classes.cache.problems
