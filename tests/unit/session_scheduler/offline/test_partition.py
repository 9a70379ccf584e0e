"""Commands with a partition in the configuration: they use its nodes, the pods on them, and its own pods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from session_scheduler.cli import main

CONFIG = """
apiVersion: fluence.flux-framework.org/v1alpha1
kind: SchedulerConfiguration
partition: {nodeSelector: {pool: a}}
"""
NODE = """
apiVersion: v1
kind: Node
metadata: {name: NAME, labels: {pool: POOL}}
status: {allocatable: {cpu: "CPUS", memory: 8Gi, pods: "10"}}
---
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec: {SPEC, containers: [{name: c, image: i, resources: {requests: {cpu: "2"}}}]}
---
"""


def node(name: str, pool: str, cpus: int) -> str:
    return NODE.replace("NAME", name).replace("POOL", pool).replace("CPUS", str(cpus))


def pod(name: str, spec: str) -> str:
    return POD.replace("NAME", name).replace("SPEC", spec)


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Of a command: a cluster whose partition `a` has room for one more pod."""
    objects = [
        node("a1", "a", 4), node("b1", "b", 64), pod("theirs-here", "schedulerName: other, nodeName: a1, priority: 9"),
        pod("theirs-there", "schedulerName: other, nodeName: b1"), pod("one", "schedulerName: fluence, priority: 2"),
        pod("two", "schedulerName: fluence, priority: 1"),
    ]  # fmt: skip
    (tmp_path / "cluster.yaml").write_text("".join(objects))
    (tmp_path / "config.yaml").write_text(CONFIG)
    return [str(tmp_path / "cluster.yaml"), "--config", str(tmp_path / "config.yaml")]


def answer(capsys: pytest.CaptureFixture[str], command: str, *arguments: str) -> Any:
    capsys.readouterr()
    main([command, *arguments, "-o", "json"])
    return json.loads(capsys.readouterr().out)


def test_simulate_places_pods_on_the_partition_s_nodes_beside_all_pods_there(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(capsys, "simulate", *arguments)
    assert {each["name"]: each["node"] for each in found["pods"]} == {"one": "a1", "two": None}
    assert found["pods"][1]["reason"].startswith("0/1 nodes are available: 1 Insufficient cpu.")


def test_explain_names_the_partition_s_nodes(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "explain", *arguments)
    assert [list(each["nodes"]) for each in found["pods"]] == [["a1"], ["a1"]]


def test_a_snapshot_has_the_partition_and_what_it_needs(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before = answer(capsys, "simulate", *arguments)
    assert main(["snapshot", *arguments, "-o", str(tmp_path / "s.json")]) == 0
    text = (tmp_path / "s.json").read_text()
    assert all(name in text for name in ("a1", "theirs-here", "one", "two"))
    assert not any(name in text for name in ("b1", "theirs-there"))
    assert answer(capsys, "simulate", str(tmp_path / "s.json"))["pods"] == before["pods"]
