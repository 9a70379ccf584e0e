"""Observed pods: they read like pods, and note what is read beyond the class key."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from session_scheduler.model.objects import Pod
from session_scheduler.model.pod_reads import Observed, Path, PodReads, reading
from session_scheduler.testing import pod

POD = pod("p", labels={"app": "db"}, annotations={"rack": "r1", "tier": "1"}, priority=7)
METADATA, ANNOTATIONS = ("metadata",), ("metadata", "annotations")


def read(function: Callable[[Pod], object], reads: PodReads | None = None) -> tuple[object, list[Path]]:
    """What a function reads of an observed pod, and which reads are noted."""
    reading.beyond = {}
    try:
        answer = function(cast("Pod", Observed(POD, reads or PodReads())))
        return answer, list(reading.beyond)
    finally:
        reading.beyond = None


@pytest.mark.parametrize(
    ("function", "noted"),
    [
        (lambda p: p.metadata.annotations["rack"], [(*ANNOTATIONS, "rack")]),
        (lambda p: p.metadata.annotations.get("rack"), [(*ANNOTATIONS, "rack")]),
        (lambda p: p.metadata.annotations.get("none", "x"), [(*ANNOTATIONS, "none")]),
        (lambda p: "rack" in p.metadata.annotations, [(*ANNOTATIONS, "rack")]),
        (lambda p: p.spec.priority, [("spec", "priority")]),
        (lambda p: p.metadata.labels["app"], [("metadata", "labels", "app")]),
        (lambda p: sorted(p.metadata.annotations), [ANNOTATIONS]),
        (lambda p: sorted(p.metadata.annotations.items()), [ANNOTATIONS]),
        (lambda p: len(p.metadata.annotations), [ANNOTATIONS]),
        (lambda p: bool(p.metadata.annotations), [ANNOTATIONS]),
        (lambda p: {**p.metadata.annotations}, [ANNOTATIONS]),
        (lambda p: dict(p.metadata.annotations), [ANNOTATIONS]),
        (lambda p: p.metadata.annotations.copy(), [ANNOTATIONS]),
        (lambda p: p.metadata.annotations | {"x": "y"}, [ANNOTATIONS]),
        (lambda p: {"x": "y"} | p.metadata.annotations, [ANNOTATIONS]),
        (lambda p: p.metadata.annotations == {"x": "y"}, [ANNOTATIONS]),
        (lambda p: p.metadata.annotations == p.metadata.annotations, [ANNOTATIONS]),
        (lambda p: repr(p.metadata.annotations), [ANNOTATIONS]),
        (lambda p: json.dumps(dict(p.metadata.labels)), [("metadata", "labels")]),
        (lambda p: p.key, [("key",)]),
        (lambda p: p.terminal, [("terminal",)]),
        (lambda p: p.metadata == POD.metadata, [METADATA]),
        (lambda p: repr(p.spec), [("spec",)]),
        (lambda p: p == POD, [()]),
        (lambda p: p.status.phase, [("status", "phase")]),
        (lambda p: p.spec.containers[0].resources.requests, [("spec", "containers")]),
        (lambda p: p.spec.node_selector, []),
        (lambda p: p.metadata.namespace, []),
        (lambda p: isinstance(p, Pod), []),
        (lambda p: isinstance(p.metadata.labels, dict), []),
    ],
)  # fmt: skip
def test_an_observed_pod_reads_like_the_pod_and_notes_the_reads(
    function: Callable[[Pod], object], noted: list[Path]
) -> None:
    answer, paths = read(function)
    assert answer == function(POD)
    assert paths == noted


@pytest.mark.parametrize(
    "function",
    [
        lambda p: p.metadata.annotations["none"],
        lambda p: p.metadata.nothing,
        lambda p: hash(p.metadata.annotations),
        lambda p: setattr(p.metadata, "name", "x"),
        lambda p: p.metadata.annotations.__setitem__("x", "y"),
    ],
)
def test_what_a_pod_does_not_allow_an_observed_pod_does_not_allow(function: Callable[[Any], object]) -> None:
    with pytest.raises((KeyError, AttributeError, TypeError)):
        read(function)
    assert POD.metadata.annotations == {"rack": "r1", "tier": "1"}


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_an_observed_pod_cannot_be_copied(copied: Callable[[object], object]) -> None:
    with pytest.raises(TypeError, match="read the fields that you need"):
        read(copied)


def test_a_field_in_the_class_key_is_not_noted_again() -> None:
    reads = PodReads()
    assert reads.values(POD) is None
    read(lambda p: (p.metadata.annotations.get("rack"), p.metadata.annotations.get("none")), reads)
    assert reads.any_new
    assert reads.accept()
    assert not reads.accept()
    assert reads.values(POD) == ["r1", None]
    assert read(lambda p: p.metadata.annotations["rack"], reads)[1] == []
    read(lambda p: list(p.metadata.annotations), reads)
    reads.accept()
    assert read(lambda p: p.metadata.annotations["tier"], reads)[1] == []


def test_after_many_keys_the_class_key_has_the_whole_mapping() -> None:
    reads = PodReads()
    read(lambda p: [p.metadata.annotations.get(f"key-{number}") for number in range(65)], reads)
    read(lambda p: p.metadata.labels.get("app"), reads)
    reads.accept()
    assert reads.values(POD) == ["db", POD.metadata.annotations]
