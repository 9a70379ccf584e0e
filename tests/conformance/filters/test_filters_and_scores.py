"""Filters and scores compared with kube-scheduler 1.36.3, node by node.

`cases/` holds kube-scheduler's answers for each pending pod, evaluated alone: the nodes that fit, the plugin that
refused every other node first, and the total scores. `case-*` are 12 clusters of 50 usual pods (oracle/make_cases.py),
`edge-*` are at the edges of the formats (make_edge_cases.py), `near-*` are full of constraints between pods
(make_near_cases.py), `resize-*` have pods that are being resized (make_resize_cases.py), `ratio-*` score by a shape
(make_ratio_cases.py). The built-in plugins evaluate one pod after the other in a session that places none.
"""

from __future__ import annotations

import asyncio
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

from session_scheduler.base.clock import StoppedClock
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.config.settings import PluginConfig, Profile, SchedulerConfig
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.framework.evaluation import evaluate
from session_scheduler.framework.scores import totals
from session_scheduler.model import related
from session_scheduler.model.groups import Task
from session_scheduler.model.objects import Node, Pod
from session_scheduler.registry.registry import Registry

CASES = sorted((Path(__file__).parent / "cases").glob("case-*.json.gz"))
EDGES = sorted((Path(__file__).parent / "cases").glob("edge-*.json.gz"))
NEAR = sorted((Path(__file__).parent / "cases").glob("near-*.json.gz"))
RESIZES = sorted((Path(__file__).parent / "cases").glob("resize-*.json.gz"))
RATIOS = sorted((Path(__file__).parent / "cases").glob("ratio-*.json.gz"))
EXCLUDED_FIRST = "PreFilterResult"
"""The cases' name for a node that was excluded before any filter ran, because NodeAffinity named other nodes."""
RELATED = {
    "namespaces": related.Namespace,
    "services": related.Service,
    "replicationControllers": related.ReplicationController,
    "replicaSets": related.ReplicaSet,
    "statefulSets": related.StatefulSet,
}


@dataclass
class Answer:
    """The answer of the built-in plugins for one pod."""

    failed: dict[str, str] = field(default_factory=dict)
    scores: dict[str, int] = field(default_factory=dict)
    error: str | None = None


class Cluster:
    """One case in a session with kube-scheduler's plugins."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        related = [msgspec.convert(one, type_) for kind, type_ in RELATED.items() for one in case.get(kind, ())]
        nodes = [msgspec.convert(node, Node) for node in case["nodes"]]
        pods = [_ours(msgspec.convert(pod, Pod)) for pod in (*case["existing"], *case["pods"])]
        arguments = [PluginConfig(name=name, args=args) for name, args in case.get("args", {}).items()]
        without = PluginConfig(name="fluence", enabled=False)
        config = SchedulerConfig(profiles=(Profile(plugins=(*arguments, without)),))
        memory = MemoryCluster([*related, *nodes, *pods])
        scheduler = Scheduler(memory, config, Registry(BUILTIN).load_calls(config), StoppedClock())
        asyncio.run(scheduler.start())
        (calls,) = scheduler.profiles.values()
        self.session = scheduler.sessions.open(calls, tuple(scheduler.cache.groups.values()))
        self.tasks = {task.name: task for task in scheduler.cache.tasks.values() if task.node is None}
        self.expected: Mapping[str, Any] = case["expect"]

    def evaluate(self, task: Task) -> Answer:
        """Run every plugin in order: the first that refuses each node, and the total score of the others."""
        plan = self.session.evaluation(task.cls)
        if plan.refusal is not None:
            return Answer(error=f"{plan.refusal.plugin}: {plan.refusal.reason}")
        view, mask = self.session.table.all_rows(), self.session.table.valid()
        refused = evaluate(plan, view, mask, task)
        total = totals(plan, view, mask, task)
        names = {row: name for name, row in self.session.table.row_of.items()}
        failed = {names[row]: verdict.plugin for row, verdict in refused.items()}
        return Answer(failed, {names[row]: int(total[row]) for row in np.flatnonzero(mask).tolist()})


def _ours(pod: Pod) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, scheduler_name="fluence"))


@cache
def _cluster(path: Path) -> Cluster:
    return Cluster(json.loads(gzip.decompress(path.read_bytes())))


@cache
def _answers(path: Path) -> dict[str, Answer]:
    cluster = _cluster(path)
    return {name: cluster.evaluate(task) for name, task in cluster.tasks.items()}


def _by(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.name.partition(".")[0])


def _same_plugin(expected: str | None, ours: str | None) -> bool:
    return ours is not None if expected == EXCLUDED_FIRST else ours == expected


@_by(CASES + EDGES + NEAR + RESIZES + RATIOS)
def test_the_first_refusing_plugin_of_every_node_is_kube_schedulers(path: Path) -> None:
    wrong = []
    for name, expected in _cluster(path).expected.items():
        failed = _answers(path)[name].failed
        for node in _cluster(path).session.table.names() if "error" not in expected else ():
            if not _same_plugin(expected["failed"].get(node), failed.get(node)):
                wrong.append((name, node, expected["failed"].get(node), failed.get(node)))
    assert wrong == []


@_by(CASES + EDGES + NEAR + RESIZES + RATIOS)
def test_every_pod_fits_the_same_nodes_with_the_same_total_scores_or_is_refused_as_a_whole(path: Path) -> None:
    expected = {name: (e.get("scores") or {}, e.get("error")) for name, e in _cluster(path).expected.items()}
    assert {name: (answer.scores, answer.error) for name, answer in _answers(path).items()} == expected


def test_the_cases_are_600_pods_that_cover_the_filters() -> None:
    answers = [answer for path in CASES for answer in _cluster(path).expected.values()]
    assert len(answers) == 600
    refusing = {plugin for answer in answers for plugin in answer["failed"].values()}
    assert refusing >= set(BUILTIN) & {"PodTopologySpread", "InterPodAffinity", "NodeResourcesFit", "NodePorts"}


def test_the_edge_cases_cover_enough_scores_and_refusals() -> None:
    answers = [answer for path in EDGES for answer in _cluster(path).expected.values()]
    assert sum(len(answer["scores"]) for answer in answers) > 100
    refusing = {plugin for answer in answers for plugin in answer["failed"].values()}
    first = {"NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit"}
    assert refusing >= first
    assert any(answer.get("error") for answer in answers)


def test_in_the_resize_cases_the_status_of_running_pods_decides() -> None:
    """A scheduler that reads only the spec gives another answer for many pods."""
    for path in RESIZES:
        case = json.loads(gzip.decompress(path.read_bytes()))
        without = [{**pod, "status": {}} for pod in case["existing"]]
        by_spec = Cluster({**case, "existing": without})
        answers = {name: by_spec.evaluate(task).scores for name, task in by_spec.tasks.items()}
        assert sum(answers[name] != answer.scores for name, answer in _answers(path).items()) > 20
