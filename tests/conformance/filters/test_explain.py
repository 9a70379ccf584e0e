"""The command `explain` compared with kube-scheduler's answers, on case files, with the default configuration."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from session_scheduler.builtin import BUILTIN
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.offline.explain import explain

CASES = sorted((Path(__file__).parent / "cases").glob("case-*.json.gz"))
KUBE_SCHEDULERS_ORDER = (
    "NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit",
    "VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone", "PodTopologySpread", "InterPodAffinity",
)  # fmt: skip
ADVISING = (
    "NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit",
    "PodTopologySpread",
)  # fmt: skip
"""The filters that always propose a change that would help."""


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name.partition(".")[0])
def test_explain_refuses_what_kube_scheduler_refuses_and_scores_what_fits_as_it_does(
    case: Path, tmp_path: Path
) -> None:
    wanted = json.loads(gzip.decompress(case.read_bytes()))
    answers = explained(case, wanted, tmp_path)
    assert set(answers) == set(wanted["expect"])
    for name, expected in wanted["expect"].items():
        for node, verdict in answers[name]["nodes"].items():
            assert agrees(verdict, expected["failed"].get(node)), (name, node, verdict, expected["failed"].get(node))
            assert verdict.get("score") == expected["scores"].get(node), (name, node, verdict)
            assert is_accounted_for(verdict), (name, node, verdict)


def agrees(verdict: dict[str, Any], refused_by: str | None) -> bool:
    """Whether our verdict equals kube-scheduler's; a node that only an unimplemented filter refuses should fit."""
    if refused_by == "PreFilterResult":
        return verdict["fits"] is False
    if refused_by is None or refused_by not in BUILTIN:
        return verdict["fits"] is True
    return verdict["fits"] is False and verdict["plugin"] == refused_by


def is_accounted_for(verdict: dict[str, Any]) -> bool:
    """Whether the score is the sum of its parts, or the refusing plugin comes first with a change that would help."""
    if verdict["fits"]:
        return verdict["score"] == sum(part["weight"] * part["score"] for part in verdict["scores"])
    first = verdict["fitsIf"][0]
    named = [refusing["plugin"] for refusing in verdict["fitsIf"]]
    in_order = named == sorted(named, key=list(BUILTIN).index)
    return in_order and first["plugin"] == verdict["plugin"] and (bool(first["changes"]) or named[0] not in ADVISING)


def test_a_refused_node_has_a_reason_of_the_refusing_plugin(tmp_path: Path) -> None:
    """For each pod that fits no node: each node names the refusing plugin with one of that plugin's reasons."""
    texts = {
        "NodeUnschedulable": ("node(s) were unschedulable",),
        "NodeName": ("node(s) didn't match the requested node name",),
        "TaintToleration": ("node(s) had untolerated taint(s)",),
        "NodeAffinity": ("node(s) didn't match", "node(s) didn't satisfy plugin(s) [NodeAffinity]"),
        "NodePorts": ("node(s) didn't have free ports",),
        "NodeResourcesFit": ("Insufficient ", "Too many pods"),
        "PodTopologySpread": ("node(s) didn't match pod topology spread",),
        "InterPodAffinity": ("node(s) didn't match pod", "node(s) didn't satisfy existing pods"),
    }
    held = 0
    for case in CASES:
        wanted = json.loads(gzip.decompress(case.read_bytes()))
        for pod in explained(case, wanted, tmp_path).values():
            if wanted["expect"][pod["name"]]["feasible"]:
                continue
            held += 1
            for node, verdict in pod["nodes"].items():
                assert verdict["reason"].startswith(texts[verdict["plugin"]]), (pod["name"], node, verdict)
    assert held > 50


def explained(case: Path, wanted: dict[str, Any], folder: Path) -> dict[str, Any]:
    file = folder / f"{case.name}.json"
    items = [*wanted["nodes"], *wanted["existing"], *wanted["pods"]]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return {pod["name"]: pod for pod in explain([str(file)], config=SchedulerConfig())["pods"]}


def test_the_filters_are_in_kube_schedulers_order() -> None:
    here = [name for name in BUILTIN if name in KUBE_SCHEDULERS_ORDER]
    assert here == [name for name in KUBE_SCHEDULERS_ORDER if name in here]
