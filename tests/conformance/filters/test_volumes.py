"""The volume plugins compared with kube-scheduler 1.36.3, node by node, with all reasons.

`volumes-*` are clusters with claims, volumes, classes, CSI drivers and attachments (make_volume_cases.py).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from session_scheduler.framework.evaluation import evaluate
from session_scheduler.framework.session import Session
from session_scheduler.model.objects import Node, Pod
from session_scheduler.model.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from session_scheduler.testing import FakeCluster

from .recorded import content

CASES = sorted((Path(__file__).parent / "cases").glob("volumes-*.json.gz"))
KINDS: dict[str, type[Any]] = {
    "nodes": Node, "existing": Pod, "claims": PersistentVolumeClaim, "volumes": PersistentVolume,
    "storageClasses": StorageClass, "csiNodes": CSINode, "csiDrivers": CSIDriver,
    "csiStorageCapacities": CSIStorageCapacity, "volumeAttachments": VolumeAttachment, "pods": Pod,
}  # fmt: skip
VOLUME_PLUGINS = {"VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone"}
Answer = tuple[dict[str, tuple[str, list[str]]], str | None]
"""By node: the plugin that refuses it first, with its reasons; and the refusal of the pod as a whole."""


@cache
def evaluated(path: Path) -> dict[str, Answer]:
    cluster = FakeCluster(checked=False)
    for field, kind in KINDS.items():
        cluster.add(msgspec.convert({**obj, "kind": kind.__name__}, kind) for obj in content(path).get(field) or ())
    scheduler = cluster.start()
    (calls,) = scheduler.profiles.values()
    session = scheduler.sessions.open(calls, tuple(scheduler.cache.groups.values()))
    return {task.name: answer(session, task) for task in scheduler.cache.unbound.values()}


def answer(session: Session, task: Any) -> Answer:
    plan = session.evaluation(task.cls)
    if plan.refusal is not None:
        return {}, f"{plan.refusal.plugin}: {plan.refusal.reason}"
    view = session.table.all_rows()
    refused = evaluate(plan, view, session.table.valid(), task)
    return {view.node(row).metadata.name: (v.plugin, list(v.reasons)) for row, v in refused.items()}, None


def expected(path: Path) -> dict[str, Answer]:
    found = {}
    for name, one in content(path)["expect"].items():
        refused = {node: (plugin, sorted(one["reasons"][node])) for node, plugin in one["failed"].items()}
        found[name] = (refused, one.get("error"))
    return found


def by_case(path: Path) -> str:
    return path.name.partition(".")[0]


@pytest.mark.parametrize("path", CASES, ids=by_case)
def test_every_node_is_refused_by_kube_schedulers_plugin_with_its_reasons(path: Path) -> None:
    ours = {
        name: ({n: (p, sorted(r)) for n, (p, r) in nodes.items()}, e) for name, (nodes, e) in evaluated(path).items()
    }
    wanted = expected(path)
    assert ours.keys() == wanted.keys()
    wrong = {name: (ours[name], wanted[name]) for name in ours if ours[name] != wanted[name]}
    assert wrong == {}


def test_the_cases_cover_enough_answers_of_each_plugin() -> None:
    answers = [one for path in CASES for one in expected(path).values()]
    refusals = [(plugin, reason) for nodes, _ in answers for plugin, reasons in nodes.values() for reason in reasons]
    assert {plugin for plugin, _ in refusals} == VOLUME_PLUGINS
    assert {plugin: len({reason for p, reason in refusals if p == plugin}) for plugin in VOLUME_PLUGINS} == {
        "VolumeRestrictions": 2, "NodeVolumeLimits": 1, "VolumeBinding": 4, "VolumeZone": 1,
    }  # fmt: skip
    whole = {error.partition('"')[0] for _, error in answers if error is not None}
    assert len(whole) >= 7
    assert sum(not nodes and error is None for nodes, error in answers) > 20  # and many fit everywhere
