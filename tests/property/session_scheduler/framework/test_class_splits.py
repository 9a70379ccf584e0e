"""Random plugins that read random fields of pods: every pod gets the answer that it gets when it is alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from zlib import crc32

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from session_scheduler import Normalise, Refusal, Scope, hookimpl
from session_scheduler.model.objects import Pod
from session_scheduler.testing import FakeCluster, node, pod

KEYS: Final = ("a", "b", "c")
VALUES: Final = st.sampled_from(["x", "y", "z"])
READS: Final[dict[str, Callable[[Pod], object]]] = {
    "annotation": lambda one: one.metadata.annotations.get("a"),
    "another annotation": lambda one: "b" in one.metadata.annotations,
    "all annotations": lambda one: sorted(one.metadata.annotations.items()),
    "label": lambda one: one.metadata.labels.get("a", "none"),
    "number of labels": lambda one: len(one.metadata.labels),
    "priority": lambda one: one.spec.priority,
    "restart policy": lambda one: one.spec.restart_policy,
    "name": lambda one: one.metadata.name,
    "containers": lambda one: [container.name for container in one.spec.containers],
    "one after another": lambda one: one.metadata.labels.get(one.metadata.annotations.get("a", "a"), "none"),
    "selector": lambda one: one.spec.node_selector,
}
CHOICE: Final = st.lists(st.sampled_from(sorted(READS)), max_size=3)
UNUSED: Final = ("NodeResourcesFit", "NodeResourcesBalancedAllocation")
"""Without them, no pod changes the answers for another."""


class Reader:
    """Rejects and scores nodes by a hash of the fields that it reads."""

    name = "reader"
    normalise = Normalise.NONE

    def __init__(self, scope: Scope, **reads: list[str]) -> None:
        self.filter_scope = self.score_scope = scope
        self._reads = reads
        self._kept: dict[Any, Pod] = {}

    def _hash(self, hook: str, one: Pod, more: str = "") -> int:
        return crc32(repr([hook, more, *(READS[name](one) for name in self._reads[hook])]).encode())

    def _hashes(self, hook: str, one: Pod, nodes: Any) -> Any:
        names = (nodes.node(index).metadata.name for index in range(len(nodes)))
        return np.array([self._hash(hook, one, name) for name in names], np.int64)

    @hookimpl
    def prefilter(self, group: Any) -> Refusal | None:
        if all(self._hash("prefilter", task.pod) % 7 for task in group.tasks.values()):
            return None
        return Refusal("not this group")

    @hookimpl
    def prepare(self, cls: Any) -> Refusal | None:
        self._kept[cls] = cls.pod
        return None if self._hash("prepare", cls.pod) % 7 else Refusal(f"not {self._hash('prepare', cls.pod)}")

    @hookimpl
    def filter(self, cls: Any, nodes: Any, mask: Any) -> None:
        mask &= self._hashes("filter", self._kept[cls], nodes) % 3 > 0

    @hookimpl
    def score(self, cls: Any, nodes: Any) -> Any:
        return self._hashes("score", cls.pod, nodes) % 101

    @hookimpl
    def why(self, cls: Any, nodes: Any) -> Any:
        return [[f"hash {value}"] for value in self._hashes("why", cls.pod, nodes).tolist()]


@st.composite
def pods(draw: st.DrawFn) -> list[Pod]:
    mappings = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3)
    return [
        pod(
            f"p{number}", annotations=draw(mappings), labels=draw(mappings),
            priority=draw(st.sampled_from([None, 0, 5])), restart_policy=draw(st.sampled_from(["", "Always"])),
        )
        for number in range(draw(st.integers(2, 7)))
    ]  # fmt: skip


def answers(reader: Reader, mode: str, given: list[Pod], *, explain_first: bool) -> dict[str, object]:
    """By pod: its node and reason, and each node's verdict."""
    cluster = FakeCluster(evaluation=mode).without(*UNUSED)
    cluster.add(*(node(f"n{number}") for number in range(4)), *given)
    cluster.start(reader)
    verdicts = {one.metadata.name: cluster.verdicts(one.metadata.name) for one in given} if explain_first else {}
    cluster.run()
    names = [one.metadata.name for one in given]
    return {
        name: (cluster.node_of(name), cluster.reasons(name) if cluster.node_of(name) is None else "",
               verdicts.get(name))
        for name in names
    }  # fmt: skip


@given(
    pods=pods(), scope=st.sampled_from(Scope), mode=st.sampled_from(["naive", "board", "heap"]), first=st.booleans(),
    reads=st.fixed_dictionaries(dict.fromkeys(("prefilter", "prepare", "filter", "score", "why"), CHOICE)),
)  # fmt: skip
def test_every_pod_gets_the_answer_that_it_gets_alone(
    pods: list[Pod], scope: Scope, mode: str, first: bool, reads: dict[str, list[str]]
) -> None:
    together = answers(Reader(scope, **reads), mode, pods, explain_first=first)
    for one in pods:
        alone = answers(Reader(scope, **reads), "naive", [one], explain_first=first)
        assert together[one.metadata.name] == alone[one.metadata.name]
