"""Filters and scores compared with kube-scheduler 1.36.3, node by node, on 12 clusters of 50 pods.

`cases/` holds what kube-scheduler answered for each pending pod, judged alone: where it fits, which plugin refused
every other node first, and the total scores. Here the built-ins are asked in order, without the core's evaluation.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from session_scheduler.builtin import BUILTIN, DEFAULT_PLUGINS
from session_scheduler.hookspecs import SKIP, Normalise, Refusal
from session_scheduler.model.classes import ClassTable, TaskClass
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.objects import Node, Pod

CASES = sorted((Path(__file__).parent / "cases").glob("case-*.json.gz"))
OURS = frozenset({
    "NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit",
})  # fmt: skip
"""The filters of which every refusal is compared: kube-scheduler asks all of them before any other."""
EXCLUDED_FIRST = "PreFilterResult"
"""What the cases name for a node that was left out before any filter ran: NodeAffinity named other nodes."""


@dataclass
class Answer:
    """What the built-ins say of one pod."""

    failed: dict[str, str] = field(default_factory=dict)
    scores: dict[str, int] = field(default_factory=dict)


class Cluster:
    """One case: its nodes and existing pods as columns, and the plugins in kube-scheduler's default order."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self.plugins = [(BUILTIN[name](None), weight) for name, weight in DEFAULT_PLUGINS if name in OURS | SCORES]
        self.table = NodeTable()
        self.classes = ClassTable(self.table, footprints=[p.footprint for p, _ in self.plugins if hasattr(p, "footprint")])
        for node in case["nodes"]:
            self.table.put(msgspec.convert(node, Node))
        for existing in case["existing"]:
            pod = msgspec.convert(existing, Pod)
            self.table.add_usage(self.table.row_of[pod.spec.node_name], self.classes.of(pod), 1)
        self.pods = {pod["metadata"]["name"]: msgspec.convert(pod, Pod) for pod in case["pods"]}
        self.expected: Mapping[str, Any] = case["expect"]

    def judge(self, pod: Pod) -> Answer:
        """Every plugin in order: the first that refuses a node, and the total score of the others."""
        cls = self.classes.of(pod)
        answer = Answer()
        nodes = self.table.all_rows()
        mask = self.table.valid()
        prepared = [(plugin, weight, _prepare(plugin, cls)) for plugin, weight in self.plugins]
        asked = [(plugin, weight, state) for plugin, weight, state in prepared if state is not SKIP]
        for plugin, _, state in asked:
            if hasattr(plugin, "filter"):
                before = mask.copy()
                _call(plugin.filter, cls=cls, nodes=nodes, mask=mask, state=state)
                for row in np.flatnonzero(before & ~mask):
                    answer.failed[self.table.nodes[row].metadata.name] = plugin.name
        total = np.zeros(len(nodes), np.int64)
        for plugin, weight, state in asked:
            raw = _call(plugin.score, cls=cls, nodes=nodes, mask=mask, state=state) if hasattr(plugin, "score") else None
            if raw is not None:
                total += weight * _normalised(raw, mask, plugin.normalise)
        answer.scores = {self.table.nodes[row].metadata.name: int(total[row]) for row in np.flatnonzero(mask)}
        return answer


SCORES = frozenset({"NodeResourcesBalancedAllocation"})


def _prepare(plugin: Any, cls: TaskClass) -> Any:
    state = _call(plugin.prepare, cls=cls) if hasattr(plugin, "prepare") else None
    assert not isinstance(state, Refusal), state
    return state


def _call(hook: Any, **given: Any) -> Any:
    names = hook.__code__.co_varnames[1 : hook.__code__.co_argcount]
    return hook(*(given[name] for name in names))


def _normalised(raw: Any, mask: Any, how: Normalise) -> Any:
    highest = int(raw[mask].max(initial=0))
    if how is Normalise.NONE:
        return raw
    shares = raw * 100 // highest if highest else np.zeros_like(raw)
    return shares if how is Normalise.MAX else 100 - shares


@cache
def _cluster(path: Path) -> Cluster:
    return Cluster(json.loads(gzip.decompress(path.read_bytes())))


@cache
def _answers(path: Path) -> dict[str, Answer]:
    cluster = _cluster(path)
    return {name: cluster.judge(pod) for name, pod in cluster.pods.items()}


def _refused_by_ours_only(expected: Mapping[str, Any]) -> bool:
    return set(expected["failed"].values()) <= OURS | {EXCLUDED_FIRST}


def _between_pods(pod: Pod) -> bool:
    """Whether other pods decide: (anti)affinity between pods, or spread over domains."""
    affinity = pod.spec.affinity
    terms = affinity is not None and (affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None)
    return terms or bool(pod.spec.topology_spread_constraints)


by_case = pytest.mark.parametrize("path", CASES, ids=lambda path: path.name.partition(".")[0])


@by_case
def test_the_first_refusing_plugin_of_every_node_is_kube_schedulers(path: Path) -> None:
    wrong = []
    for name, expected in _cluster(path).expected.items():
        failed = _answers(path)[name].failed
        for node in _cluster(path).table.names():
            right, ours = expected["failed"].get(node), failed.get(node)
            if right == EXCLUDED_FIRST:
                agreed = ours in OURS
            else:
                agreed = ours == (right if right in OURS else None)
            if not agreed:
                wrong.append((name, node, right, ours))
    assert wrong == []


@by_case
def test_pods_that_only_these_plugins_refuse_fit_the_same_nodes(path: Path) -> None:
    expected = {n: set(e["feasible"]) for n, e in _cluster(path).expected.items() if _refused_by_ours_only(e)}
    assert {name: set(_answers(path)[name].scores) for name in expected} == expected


def test_329_pods_are_refused_by_these_plugins_only() -> None:
    assert sum(_refused_by_ours_only(e) for path in CASES for e in _cluster(path).expected.values()) == 329


def test_total_scores_are_equal_where_no_pod_looks_at_other_pods() -> None:
    path = next(path for path in CASES if path.name.startswith("case-11"))
    cluster = _cluster(path)
    alone = [
        name
        for name, expected in cluster.expected.items()
        if _refused_by_ours_only(expected) and not _between_pods(cluster.pods[name])
    ]
    assert len(alone) == 20
    assert {n: _answers(path)[n].scores for n in alone} == {n: cluster.expected[n].get("scores") or {} for n in alone}
