"""`simulate --explain`: a pod at the moment of its decision; and reasons on which `explain` and `simulate` agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from session_scheduler.cli import main

QUEUE = "fluence.flux-framework.org"
GROUP = "scheduling.x-k8s.io/pod-group"


def node(name: str, cpu: int) -> dict[str, Any]:
    allocatable = {"cpu": cpu, "memory": "8Gi", "pods": 10}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": allocatable}}


def pod(name: str, cpu: int, scheduler: str = "fluence", labels: dict[str, str] | None = None, **spec: Any) -> Any:
    containers = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels or {}},
            "spec": {"schedulerName": scheduler, "containers": containers, **spec}}  # fmt: skip


def gang(name: str, least: int, *pods: dict[str, Any]) -> list[dict[str, Any]]:
    for one in pods:
        one["metadata"]["labels"][GROUP] = name
    return [{"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": name},
             "spec": {"minMember": least}}, *pods]  # fmt: skip


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(
        f"apiVersion: {QUEUE}/v1alpha1\nkind: SchedulerConfiguration\n"
        "profiles: [{plugins: [{name: fluence, enabled: false}]}]\n"
    )
    return tmp_path / "m.json"


def answer(file: Path, capsys: pytest.CaptureFixture[str], items: list[dict[str, Any]], *words: str) -> dict[str, Any]:
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    assert main([words[0], str(file), *words[1:], "--config", "config.yaml", "-o", "json"]) in (0, 1)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def at_decision(file: Path, capsys: pytest.CaptureFixture[str], items: list[dict[str, Any]], name: str) -> Any:
    (found,) = answer(file, capsys, items, "simulate", "--explain", f"default/{name}")["explain"]["pods"]
    return found


ORDER = [node("n1", 2), node("n2", 4), pod("a", 3), pod("b", 2), pod("c", 2)]


@pytest.mark.parametrize(
    ("name", "placed", "fits"),
    [
        ("a", "n2", {"n1": False, "n2": True}),
        ("b", "n1", {"n1": True, "n2": False}),
        ("c", None, {"n1": False, "n2": False}),
    ],
)
def test_a_pod_is_explained_beside_the_pods_that_were_placed_before_it(
    file: Path, capsys: pytest.CaptureFixture[str], name: str, placed: str | None, fits: dict[str, bool]
) -> None:
    found = at_decision(file, capsys, ORDER, name)
    assert (found["name"], found["node"], found["reason"]) == (name, placed, None)
    assert {node: verdict["fits"] for node, verdict in found["nodes"].items()} == fits


def test_the_simulation_is_the_same_with_an_explanation(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = answer(file, capsys, ORDER, "simulate")
    explained = answer(file, capsys, ORDER, "simulate", "--explain", "default/b")
    assert {key: value for key, value in explained.items() if key != "explain"} == plain
    assert "simulate" not in explained["explain"]["seconds"]


def test_the_table_follows_those_of_the_simulation(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": ORDER}))
    assert main(["simulate", str(file), "--config", "config.yaml", "--explain", "default/b"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-5:-3] == ["", "default/b: placed on n1"]
    assert lines[-6] == "2 scheduled, 1 unschedulable, 0 left out"
    assert lines[-2].split()[:2] == ["n1", "yes"]


def test_a_pod_that_needs_a_preemption_is_explained_after_it(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    low = pod("low", 2, nodeName="n1", priority=0)
    result = answer(file, capsys, [node("n1", 2), low, pod("high", 2, priority=5)], "simulate", "--explain",
                    "default/high")  # fmt: skip
    (found,) = result["explain"]["pods"]
    assert [one["name"] for one in result["preempted"]] == ["low"]
    assert (found["node"], found["nodes"]["n1"]["fits"]) == ("n1", True)


def test_a_what_if_is_explained_with_its_changes(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = answer(file, capsys, ORDER, "simulate", "--explain", "default/c", "--add-nodes", "1xn1")
    (found,) = result["explain"]["pods"]
    assert (found["node"], found["nodes"]["n1-added-1"]["fits"]) == ("n1-added-1", True)
    assert result["diff"]["summary"]["after"]["scheduled"] == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("default/d", "--explain default/d: no pending pod with this namespace and name; did you mean default/da?"),
        ("default/runs", "--explain default/runs: already on node n1; name a pending pod"),
        ("default/theirs", "--explain default/theirs: no profile has schedulerName fluense; did you mean fluence?"),
    ],
)
def test_a_pod_that_is_not_simulated_is_an_error(
    file: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    items = [node("n1", 2), pod("runs", 1, nodeName="n1"), pod("theirs", 1, scheduler="fluense"), pod("da", 1)]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    assert main(["simulate", str(file), "--config", "config.yaml", "--explain", name]) == 2
    assert capsys.readouterr().err == f"fluence: {message}\n"


def test_a_diff_has_no_explanation(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(json.dumps(pod("a", 1)))
    words = ["simulate", str(file), "--add-nodes", "1", "-o", "diff", "--explain", "default/a"]
    assert main(words) == 2
    assert capsys.readouterr().err == (
        "fluence: -o diff: shows no explanation; remove --explain, or choose another format\n"
    )


# ------------------------------------------------------------------ the same reasons


def queued(name: str, cpu: int) -> dict[str, Any]:
    return pod(name, cpu, labels={f"{QUEUE}/queue": "q"})


LIMITED = {"apiVersion": f"{QUEUE}/v1alpha1", "kind": "Queue", "metadata": {"name": "q"}, "spec": {"limit": {"cpu": 2}}}


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ([node("n", 8), LIMITED, queued("p", 3)],
         "queue 'q' has reached its limit of cpu: limit 2, allocated 0, requested 3"),
        ([node("n", 8), *gang("g", 3, pod("p", 1))],
         "pod group default/g needs 3 pods to start and has 1"),
        ([node("n", 6), *gang("g", 2, pod("p", 4), pod("q", 4))],
         "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled: 0/1 nodes are available: "
         "1 Insufficient cpu."),
    ],
    ids=["a queue at its limit", "a gang without members", "a gang that fits in part"],
)  # fmt: skip
def test_explain_status_and_simulate_report_the_same_reason(
    file: Path, capsys: pytest.CaptureFixture[str], items: list[dict[str, Any]], reason: str
) -> None:
    for words in (["explain"], ["explain", "--pod", "default/p"]):
        assert answer(file, capsys, items, *words)["pods"][0]["reason"] == reason
    assert at_decision(file, capsys, items, "p")["reason"] == reason
    assert answer(file, capsys, items, "status")["waiting"][0]["reason"] == reason
    assert answer(file, capsys, items, "simulate")["pods"][0]["reason"].startswith(reason.removesuffix("."))


def test_a_gang_that_fits_has_no_reason(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = [node("n", 8), *gang("g", 2, pod("p", 4), pod("q", 4))]
    assert [one["reason"] for one in answer(file, capsys, items, "explain")["pods"]] == [None, None]
    waiting = answer(file, capsys, items, "status")["waiting"]
    assert waiting[0]["reason"] == "not tried yet: the pod fits on 1 of 1 nodes"
