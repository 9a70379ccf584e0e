"""The same snapshot, configuration and seed give the same decisions, byte for byte, for every hash seed."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parents[2] / "conformance" / "filters" / "cases"
COMMAND = "import sys; from session_scheduler.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pods with many needs, a gang and devices, more than the cluster can hold; as manifests and two snapshots."""
    folder = tmp_path_factory.mktemp("same")
    case = json.loads(gzip.decompress((CASES / "case-03.json.gz").read_bytes()))
    items = [*case["nodes"], *case["existing"], *case["pods"]]
    for pod in case["pods"]:
        pod["spec"]["schedulerName"] = "fluence"
    offered = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    twins = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"twin-{number}", "labels": {"twin": "yes"}},
         "spec": {}, "status": {"allocatable": offered, "capacity": offered}}
        for number in range(8)
    ]  # fmt: skip
    either = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "either"},
              "spec": {"schedulerName": "fluence", "nodeSelector": {"twin": "yes"}, "priority": 1000,
                       "containers": [{"name": "c", "image": "i"}]}}  # fmt: skip
    items += [*twins, either]
    group = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": "g"},
             "spec": {"schedulingPolicy": {"gang": {"minCount": 4}}}}  # fmt: skip
    requests = {"cpu": "1", "fluxion.flux-framework.org/qpu": "1"}
    members = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"g-{number}"},
         "spec": {"schedulerName": "fluence", "schedulingGroup": {"podGroupName": "g"}, "priority": 100,
                  "containers": [{"name": "c", "image": "i", "resources": {"requests": requests, "limits": requests}}]}}
        for number in range(4)
    ]  # fmt: skip
    (folder / "m.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*items, group, *members]}))
    (folder / "r.yaml").write_text("resources: [{type: qpu, count: 6, attributes: {region: north}}]")
    config = "apiVersion: fluence.flux-framework.org/v1alpha1\nkind: SchedulerConfiguration\nseed: 5\n"
    (folder / "c.yaml").write_text(config)
    for name in ("s.json", "s.yaml"):
        run(folder, "1", "snapshot", "m.json", "--config", "c.yaml", "--resources", "r.yaml", "-o", name)
    return folder


def run(folder: Path, hash_seed: str, *arguments: str) -> bytes:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", COMMAND, *arguments]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True)
    assert done.returncode in (0, 1), done.stderr.decode()
    return done.stdout


def test_a_snapshot_gives_the_decisions_of_its_manifests_for_every_hash_seed(files: Path) -> None:
    of_manifests = run(files, "2", "simulate", "m.json", "--config", "c.yaml", "--resources", "r.yaml", "-o", "json")
    decided = json.loads(of_manifests)
    assert decided["summary"]["scheduled"] > 10
    assert decided["summary"]["unschedulable"] > 0
    assert [one["backend"] for one in decided["pods"] if one["group"] == "g"].count(None) == 0
    for hash_seed, file in (("0", "s.json"), ("1", "s.yaml"), ("4294967295", "s.json")):
        assert run(files, hash_seed, "simulate", file, "-o", "json") == of_manifests


def test_a_snapshot_of_a_snapshot_is_equal(files: Path) -> None:
    assert run(files, "0", "snapshot", "s.yaml") == (files / "s.json").read_bytes()


def test_another_seed_gives_other_decisions(files: Path) -> None:
    taken = set()
    for seed in range(4):  # the plugin fluence has its own order of equal nodes
        config = (files / "c.yaml").read_text().replace("seed: 5", f"seed: {seed}")
        (files / "other.yaml").write_text(f"{config}profiles: [{{plugins: [{{name: fluence, enabled: false}}]}}]\n")
        pods = json.loads(run(files, "0", "simulate", "s.json", "--config", "other.yaml", "-o", "json"))["pods"]
        taken.add(next(pod["node"] for pod in pods if pod["name"] == "either"))
    assert len(taken) > 1
