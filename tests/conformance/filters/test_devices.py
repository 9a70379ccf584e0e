"""DynamicResources compared with kube-scheduler 1.36.3, node by node: reasons, scores and allocations.

`devices-*` are clusters with claims, classes and slices of every kind (make_device_cases.py); `taint-rules-*` also have
DeviceTaintRules (add_taint_rules.py). `table-devices` are small clusters, each about one condition (device_table,
devices.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from session_scheduler.builtin.dynamic_resources import DynamicResources
from session_scheduler.framework.evaluation import evaluate
from session_scheduler.framework.hooks import PluginError
from session_scheduler.framework.scores import totals
from session_scheduler.framework.session import Session
from session_scheduler.model.devices import Allocation, DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from session_scheduler.model.groups import Task
from session_scheduler.model.objects import Node, Pod
from session_scheduler.model.quantity import billionths
from session_scheduler.testing import FakeCluster

from .recorded import content

HERE = Path(__file__).parent
CASES = sorted((HERE / "cases").glob("devices-*.json.gz"))
TAINT_RULES = sorted((HERE / "cases").glob("taint-rules-*.json.gz"))
TABLE: dict[str, Any] = content(HERE / "cases" / "table-devices.json.gz")["clusters"]
KINDS: dict[str, type[Any]] = {
    "nodes": Node, "deviceClasses": DeviceClass, "resourceSlices": ResourceSlice,
    "deviceTaintRules": DeviceTaintRule, "resourceClaims": ResourceClaim, "pods": Pod,
}  # fmt: skip


@dataclass
class Answer:
    """The result of one pod, node by node."""

    refused: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    scores: dict[str, int] = field(default_factory=dict)
    allocations: dict[str, dict[str, Any]] = field(default_factory=dict)
    error: str | None = None
    """The refusal of the pod as a whole."""
    aborts: set[str] = field(default_factory=set)
    """The errors that end the pod's attempt at a node: kube-scheduler may report any of them."""


def evaluated(content: dict[str, Any]) -> dict[str, Answer]:
    cluster = FakeCluster(checked=False)
    for name, kind in KINDS.items():
        for obj in content.get(name) or ():
            value = msgspec.convert({**obj, "kind": kind.__name__}, kind)
            if isinstance(value, Pod):
                value = msgspec.structs.replace(
                    value, spec=msgspec.structs.replace(value.spec, scheduler_name="fluence")
                )
            cluster.memory.put(value)
    scheduler = cluster.start()
    (calls,) = scheduler.profiles.values()
    session = scheduler.sessions.open(calls, tuple(scheduler.cache.groups.values()))
    plugin = calls.instances["DynamicResources"]
    assert isinstance(plugin, DynamicResources)
    return {task.name: answer(session, plugin, task) for task in list(scheduler.cache.unbound.values())}


def answer(session: Session, plugin: DynamicResources, task: Task) -> Answer:
    try:
        plan = session.evaluation(task.cls)
    except PluginError as error:
        return Answer(error=f"DynamicResources: {error}")
    if plan.refusal is not None:
        return Answer(error=f"{plan.refusal.plugin}: {plan.refusal.reason}")
    view, mask = session.table.all_rows(), session.table.valid()
    try:
        refused = evaluate(plan, view, mask, task)
    except PluginError as error:
        return Answer(aborts={" ".join(str(error).split())})
    total = totals(plan, view, mask, task)
    found = Answer({view.node(row).metadata.name: (v.plugin, list(v.reasons)) for row, v in refused.items()})
    for row in np.flatnonzero(mask).tolist():
        name = view.node(row).metadata.name
        found.scores[name] = int(total[row])
        allocated = allocations_on(session, plugin, task, row)
        if allocated:
            found.allocations[name] = allocated
    return found


def allocations_on(session: Session, plugin: DynamicResources, task: Task, row: int) -> dict[str, Any]:
    """The allocations of the pod's claims on a node, freed at once."""
    with session.ledger.statement(task.group) as statement:
        statement.allocate(task, row)
        return {held.claim.key: plain(held.allocation) for held in plugin._holdings.of_pod(task.uid)
                if task.pod.spec.resource_claims and held.claim.metadata.name}  # fmt: skip


def plain(allocation: Allocation | Mapping[str, Any]) -> dict[str, Any]:
    """An allocation without generated values; amounts as numbers."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(allocation))
    for result in found.get("devices", {}).get("results", ()):
        if "shareID" in result:
            result["shareID"] = True
        if "consumedCapacity" in result:
            result["consumedCapacity"] = {name: billionths(q) for name, q in result["consumedCapacity"].items()}
    return found


def expected(content: dict[str, Any]) -> dict[str, Answer]:
    found = {}
    for name, one in content["expect"].items():
        refused = {node: (plugin, one["reasons"][node]) for node, plugin in one["failed"].items()}
        allocations = {node: {claim: plain(a) for claim, a in claims.items()}
                       for node, claims in one.get("allocations", {}).items()}  # fmt: skip
        aborts = {" ".join(text.split()) for text in one.get("aborts", {}).values()}
        found[name] = Answer(refused, one["scores"], allocations, one.get("error"), aborts)
    return found


def difference(ours: Answer, theirs: Answer) -> Any:
    """The differences between two answers; None if they agree."""
    if theirs.aborts or ours.aborts:
        return None if ours.aborts and ours.aborts <= theirs.aborts else (ours, theirs.aborts)
    if ours.error != theirs.error:
        return ours.error, theirs.error
    if ours.refused != theirs.refused:
        return [(node, ours.refused.get(node), theirs.refused.get(node))
                for node in ours.refused.keys() | theirs.refused.keys()
                if ours.refused.get(node) != theirs.refused.get(node)]  # fmt: skip
    if ours.scores != theirs.scores:
        return ours.scores, theirs.scores
    if ours.allocations != theirs.allocations:
        return [(node, ours.allocations.get(node), theirs.allocations.get(node))
                for node in ours.allocations.keys() | theirs.allocations.keys()
                if ours.allocations.get(node) != theirs.allocations.get(node)]  # fmt: skip
    return None


def by_case(path: Path) -> str:
    return path.name.partition(".")[0]


def wrong(content: dict[str, Any]) -> dict[str, Any]:
    ours, theirs = evaluated(content), expected(content)
    assert ours.keys() == theirs.keys()
    found = {name: difference(ours[name], theirs[name]) for name in ours}
    return {name: one for name, one in found.items() if one is not None}


@pytest.mark.parametrize("path", CASES + TAINT_RULES, ids=by_case)
def test_refusals_scores_and_allocations_equal_kube_schedulers(path: Path) -> None:
    assert wrong(content(path)) == {}


def test_taint_rules_change_many_answers() -> None:
    for path in TAINT_RULES:
        without = evaluated({**content(path), "deviceTaintRules": []})
        assert sum(difference(without[name], one) is not None for name, one in expected(content(path)).items()) > 3


@pytest.mark.parametrize("cluster", sorted(TABLE))
def test_each_condition_of_an_allocation_gives_kube_schedulers_answers(cluster: str) -> None:
    assert wrong(TABLE[cluster]) == {}


def test_the_list_names_the_pods_that_cover_kube_schedulers_cases() -> None:
    rows = re.findall(r"^\| (\S+) \| (\S+/\S+) \|$", (HERE / "devices.md").read_text(), re.MULTILINE)
    asked = {(case, f"{name}/{pod}") for name, one in TABLE.items() for pod, cases in one["covers"].items()
             for case in cases}  # fmt: skip
    assert set(rows) == asked


def test_the_cases_cover_enough_answers() -> None:
    answers = [one for path in CASES for one in expected(content(path)).values()]
    texts = {reason for one in answers for plugin, reasons in one.refused.values() if plugin == "DynamicResources"
             for reason in reasons if not one.aborts}  # fmt: skip
    assert texts >= {
        "cannot allocate all claims", "invalid resource pools were encountered",
        "resourceclaim not available on the node",
    }  # fmt: skip
    assert sum(len(claims) for one in answers for claims in one.allocations.values()) > 100
    assert any(len(set(one.scores.values())) > 1 for one in answers)
    assert len({abort.partition(":")[2][:40] for one in answers for abort in one.aborts}) >= 3
    results = [
        result
        for one in answers
        for claims in one.allocations.values()
        for allocation in claims.values()
        for result in allocation["devices"].get("results", ())
    ]
    for field_name in ("adminAccess", "tolerations", "shareID", "consumedCapacity", "bindingConditions"):
        assert any(field_name in result for result in results), field_name
    assert any("/" in result["request"] for result in results)
    assert len({one.error.partition(" ")[2][:20] for one in answers if one.error is not None}) >= 4
