"""The example of a quantum gang, as the webhook's handlers admit it and as `simulate` places it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from fluence_plugins.env_injection.handlers import Refusal

from ..tools.admitting import Object, admitted, handlers, pods_of

FOLDER = Path(__file__).parents[2] / "examples" / "09-quantum-gang"
HEAD = "# The pods that the webhook and the Job controller create from apply/workloads.yaml. A test compares them.\n"


def as_admitted() -> list[Object]:
    """The objects after admission by the webhook: each Job as its pods."""
    through = handlers(None, str(FOLDER / "resources.yaml"))
    made: list[Object] = []
    for workload in yaml.safe_load_all((FOLDER / "apply" / "workloads.yaml").read_text()):
        whole = admitted(workload, through)
        assert not isinstance(whole, Refusal), whole
        for each in pods_of(whole) if whole["kind"] == "Job" else [whole]:
            answer = admitted(each, through)
            assert not isinstance(answer, Refusal), answer
            made.append(answer)
    return made


def simulated(*words: str | Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "session_scheduler.cli", "simulate", *map(str, words), "-o", "json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode in (0, 1), ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def test_the_admitted_pods_equal_the_handlers_result() -> None:
    assert list(yaml.safe_load_all((FOLDER / "admitted.yaml").read_text())) == as_admitted()


def test_the_producer_and_the_independent_pods_are_placed_and_consumers_wait_for_their_gate() -> None:
    answer = simulated(FOLDER)
    pods = {pod["name"]: pod for pod in answer["pods"]}
    groups = {group["name"]: (group["minCount"], group["scheduled"]) for group in answer["groups"]}
    assert groups == {"post-processing": (2, 2), "samplers": (2, 2), "vqe": (3, 0), "vqe-producer": (1, 1)}
    assert pods["vqe-0"]["backend"] == "aurora"
    assert pods["vqe-0"]["env"]["FLUXION_REGION"] == "us-east-1"
    assert [pods[f"samplers-{index}"]["backend"] for index in range(2)] == ["borealis", "borealis"]
    for index in (1, 2, 3):
        assert pods[f"vqe-{index}"]["node"] is None
        assert "quantum.braket/ready" in pods[f"vqe-{index}"]["reason"]


def test_behind_the_open_gate_the_consumers_start_together_and_without_a_device(tmp_path: Path) -> None:
    made = as_admitted()
    for each in made:
        each["spec"].pop("schedulingGates", None)
    file = tmp_path / "open.yaml"
    file.write_text(yaml.safe_dump_all(made))
    answer = simulated(FOLDER / "cluster.yaml", file, "--resources", FOLDER / "resources.yaml")
    assert answer["summary"]["unschedulable"] == 0
    consumers = [pod for pod in answer["pods"] if pod["group"] == "vqe"]
    assert len(consumers) == 3
    assert {pod["backend"] for pod in consumers} == {None}


if __name__ == "__main__":
    (FOLDER / "admitted.yaml").write_text(HEAD + yaml.safe_dump_all(as_admitted(), sort_keys=False))
