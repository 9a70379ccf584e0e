"""The command's `explain` against kube-scheduler's answers, on the cases as files, with the default configuration."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from session_scheduler.builtin import BUILTIN
from session_scheduler.config import SchedulerConfig
from session_scheduler.explain import explain

CASES = sorted((Path(__file__).parent / "cases").glob("case-*.json.gz"))
KUBE_SCHEDULERS_ORDER = (
    "NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit",
    "VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone", "PodTopologySpread", "InterPodAffinity",
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name.partition(".")[0])
def test_explain_refuses_what_kube_scheduler_refuses_and_scores_what_fits_as_it_does(
    case: Path, tmp_path: Path
) -> None:
    wanted = json.loads(gzip.decompress(case.read_bytes()))
    file = tmp_path / "case.json"
    items = [*wanted["nodes"], *wanted["existing"], *wanted["pods"]]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    answers = {pod["name"]: pod for pod in explain([str(file)], config=SchedulerConfig())["pods"]}
    assert set(answers) == set(wanted["expect"])
    for name, expected in wanted["expect"].items():
        for node, verdict in answers[name]["nodes"].items():
            assert agrees(verdict, expected["failed"].get(node)), (name, node, verdict, expected["failed"].get(node))
            assert verdict.get("score") == expected["scores"].get(node), (name, node, verdict)


def agrees(verdict: dict[str, Any], refused_by: str | None) -> bool:
    """Whether our verdict is kube-scheduler's; what only a filter that is not here refuses, we let pass."""
    if refused_by == "PreFilterResult":
        return verdict["fits"] is False
    if refused_by is None or refused_by not in BUILTIN:
        return verdict["fits"] is True
    return verdict["fits"] is False and verdict["plugin"] == refused_by


def test_the_filters_that_exist_here_are_kube_schedulers_first_ones_in_its_order() -> None:
    here = [name for name in BUILTIN if name in KUBE_SCHEDULERS_ORDER]
    assert here == [name for name in KUBE_SCHEDULERS_ORDER if name in here]
