"""Filters and scores compared with kube-scheduler 1.36.3, node by node.

`cases/` holds what kube-scheduler answered for each pending pod, judged alone: where it fits, which plugin refused
every other node first, and the total scores. `case-*` are 12 clusters of 50 usual pods (oracle/make_cases.py),
`edge-*` are at the edges of the formats (make_edge_cases.py). Here the built-ins are asked in order, without the core's
evaluation.
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
from session_scheduler.model.classes import ClassTable
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.objects import Node, Pod

CASES = sorted((Path(__file__).parent / "cases").glob("case-*.json.gz"))
OURS = frozenset({
    "NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit",
})  # fmt: skip
"""The filters of which every refusal is compared: kube-scheduler asks all of them before any other."""
EDGES = sorted((Path(__file__).parent / "cases").glob("edge-*.json.gz"))
EXCLUDED_FIRST = "PreFilterResult"
"""What the cases name for a node that was left out before any filter ran: NodeAffinity named other nodes."""


@dataclass
class Answer:
    """What the built-ins say of one pod."""

    failed: dict[str, str] = field(default_factory=dict)
    scores: dict[str, int] = field(default_factory=dict)
    error: str | None = None


class Cluster:
    """One case: its nodes and existing pods as columns, and the plugins in kube-scheduler's default order."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self.plugins = [(BUILTIN[name](None), weight) for name, weight in DEFAULT_PLUGINS if name in OURS | SCORES]
        self.table = NodeTable()
        footprints = [plugin.footprint for plugin, _ in self.plugins if hasattr(plugin, "footprint")]
        self.classes = ClassTable(self.table, footprints=footprints)
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
        asked = [(p, weight, _call(p, "prepare", cls=cls)) for p, weight in self.plugins]
        for plugin, _, state in asked:
            if isinstance(state, Refusal):
                return Answer(error=f"{plugin.name}: {state.reason}")
        given = {"cls": cls, "nodes": self.table.all_rows(), "mask": self.table.valid()}
        answer = Answer()
        total = np.zeros(self.table.size, np.int64)
        for plugin, _, state in asked:
            before = given["mask"].copy()
            if state is not SKIP:
                _call(plugin, "filter", **given, state=state)
            answer.failed |= dict.fromkeys(self._names(before & ~given["mask"]), plugin.name)
        for plugin, weight, state in asked:
            raw = _call(plugin, "score", **given, state=state) if state is not SKIP else None
            if raw is not None:
                total += weight * _normalised(raw, given["mask"], plugin.normalise)
        answer.scores = dict(zip(self._names(given["mask"]), total[given["mask"]].tolist(), strict=True))
        return answer

    def _names(self, mask: Any) -> list[str]:
        return [self.table.nodes[row].metadata.name for row in np.flatnonzero(mask)]


SCORES = frozenset({"NodeResourcesBalancedAllocation"})


def _call(plugin: Any, name: str, **given: Any) -> Any:
    """The answer of a hook that takes some of what is given; None where the plugin has no such hook."""
    hook = getattr(plugin, name, None)
    if hook is None:
        return None
    wanted = hook.__code__.co_varnames[1 : hook.__code__.co_argcount]
    return hook(*(given[argument] for argument in wanted))


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


def _by(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.name.partition(".")[0])


@_by(CASES + EDGES)
def test_the_first_refusing_plugin_of_every_node_is_kube_schedulers(path: Path) -> None:
    wrong = []
    for name, expected in _cluster(path).expected.items():
        failed = _answers(path)[name].failed
        if "error" in expected:
            continue
        for node in _cluster(path).table.names():
            right, ours = expected["failed"].get(node), failed.get(node)
            if not (ours in OURS if right == EXCLUDED_FIRST else ours == (right if right in OURS else None)):
                wrong.append((name, node, right, ours))
    assert wrong == []


@_by(CASES)
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


@_by(EDGES)
def test_total_scores_and_whole_refusals_are_equal_at_the_edges_of_the_formats(path: Path) -> None:
    expected = {name: (e["scores"], e.get("error")) for name, e in _cluster(path).expected.items()}
    assert {name: (answer.scores, answer.error) for name, answer in _answers(path).items()} == expected


def test_the_edge_cases_score_and_refuse_enough_to_tell() -> None:
    answers = [answer for path in EDGES for answer in _cluster(path).expected.values()]
    assert sum(len(answer["scores"]) for answer in answers) > 100
    assert {plugin for answer in answers for plugin in answer["failed"].values()} >= OURS - {"NodeName"}
    assert any(answer.get("error") for answer in answers)
