"""The examples run and have the effects that they describe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NODES = """
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Node, metadata: {name: plain}, status: {allocatable: {cpu: "4", memory: 8Gi, pods: "110"}}}
  - apiVersion: v1
    kind: Node
    metadata: {name: cheap, labels: {kai.scheduler/instance-type: spot}}
    status: {allocatable: {cpu: "64", memory: 256Gi, pods: "110"}}
"""


def fluence(*words: str | Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(path)} if path else None
    command = [sys.executable, "-m", "session_scheduler.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def placed(answer: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    assert answer.returncode in (0, 1), answer.stderr
    return {pod["name"]: pod for pod in json.loads(answer.stdout)["pods"]}


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    file = tmp_path / "nodes.yaml"
    file.write_text(NODES)
    return file


def test_the_quickstart_places_a_gang_and_a_device_and_gives_a_reason() -> None:
    folder = EXAMPLES / "01-quickstart"
    answer = fluence("simulate", folder, "-o", "json")
    pods = placed(answer)
    assert answer.returncode == 1
    assert {pods[name]["group"] for name in ("training-0", "training-1")} == {"training"}
    assert all(pods[name]["node"] for name in ("training-0", "training-1", "sampler"))
    assert pods["sampler"]["env"]["FLUXION_BACKEND"] == pods["sampler"]["backend"] in ("aurora", "borealis")
    assert pods["homesick"]["node"] is None
    assert "region=mars-1" in pods["homesick"]["reason"]


def test_each_waiting_pod_gets_a_reason_and_a_remedy() -> None:
    folder = EXAMPLES / "02-why-pending"
    assert {pod["node"] for pod in placed(fluence("simulate", folder, "-o", "json")).values()} == {None}
    explained = json.loads(fluence("explain", folder, "-o", "json").stdout)
    pods = {pod["name"]: pod["nodes"] for pod in explained["pods"]}
    assert {node: verdict["plugin"] for node, verdict in pods["train-0"].items()} == {
        "n1": "NodeResourcesFit", "n2": "TaintToleration", "n3": "NodeAffinity"}  # fmt: skip
    assert pods["web-1"]["n1"]["plugin"] == "PodTopologySpread"
    assert pods["render-0"]["n3"]["fits"] is True
    (gang,) = explained["groups"]
    assert (gang["minCount"], gang["placeable"]) == (5, 4)


def test_the_urgent_gang_preempts_the_pods_that_no_budget_protects() -> None:
    answer = fluence("simulate", EXAMPLES / "10-preemption", "-o", "json")
    pods = placed(answer)
    assert {pods[f"forecast-{index}"]["node"] for index in range(2)} == {"n2"}
    assert {pod["name"] for pod in json.loads(answer.stdout)["preempted"]} == {"render-1", "render-2"}
    assert (pods["report"]["node"], pods["render-3"]["node"]) == (None, None)


def test_each_example_has_a_readme_with_the_command_for_its_folder_and_the_index_names_it() -> None:
    """Another test runs the command and compares what it prints."""
    index = (EXAMPLES / "README.md").read_text()
    folders = sorted(path for path in EXAMPLES.iterdir() if path.is_dir())
    for folder in folders:
        assert f"]({folder.name}/README.md)" in index
        text = (folder / "README.md").read_text()
        assert "```console\n$ " in text
        placed_here = (folder / "cluster.yaml").exists()
        assert placed_here is (f"\n$ fluence simulate examples/{folder.name}\n" in text)
    numbers = [int(folder.name.partition("-")[0]) for folder in folders if folder.name[0].isdigit()]
    assert numbers == [*range(1, len(numbers) + 1)]


def test_the_podgroup_example_is_placed_completely(nodes: Path) -> None:
    answer = fluence("simulate", nodes, EXAMPLES / "podgroup.yaml", "-o", "json")
    assert answer.returncode == 0
    groups = json.loads(answer.stdout)["groups"]
    assert groups == [{"namespace": "default", "name": "training", "minCount": 2, "scheduled": 2}]


def test_the_quantum_pod_names_no_backend_and_gets_one(nodes: Path) -> None:
    resources = EXAMPLES / "01-quickstart" / "resources.yaml"
    text = (EXAMPLES / "quantum-pod.yaml").read_text()
    assert "aurora" not in text
    assert "borealis" not in text
    answer = fluence("simulate", nodes, EXAMPLES / "quantum-pod.yaml", "--resources", resources, "-o", "json")
    assert placed(answer)["sampler"]["backend"] in ("aurora", "borealis")


def test_the_teams_of_the_queues_example_get_their_shares_and_no_more_than_the_limit() -> None:
    folder = EXAMPLES / "03-queues"
    answer = fluence("simulate", folder, "-o", "json")
    pods = placed(answer)
    on_nodes = Counter(name.partition("-")[0] for name, pod in pods.items() if pod["node"])
    assert on_nodes == {"backup": 4, "collide": 8, "fold": 4}
    why = "queue 'science' has reached its limit of cpu: limit 12, allocated 12, requested 1"
    assert {pod["reason"] for pod in pods.values() if not pod["node"]} == {why}
    shown = {one["name"]: one for one in json.loads(fluence("queues", folder, "-o", "json").stdout)["queues"]}
    assert {name: one["fairShare"].get("cpu") for name, one in shown.items()} == {
        "default": None, "science": "12", "physics": "8", "biology": "4", "operations": "4"}  # fmt: skip
    assert shown["physics"]["pending"] == {"cpu": "16", "memory": "16Gi", "pods": "16"}
    table = fluence("queues", folder).stdout.splitlines()
    assert table[0].split() == ["QUEUE", "DESERVED", "LIMIT", "FAIR", "SHARE", "ALLOCATED", "PENDING", "REASON"]
    assert [line.split()[0] for line in table[1:]] == ["default", "operations", "science", "biology", "physics"]


def test_the_pods_of_the_gpu_example_share_one_nodes_gpus_and_leave_the_others_whole() -> None:
    folder = EXAMPLES / "04-gpu-sharing"
    answer = fluence("simulate", folder, "-o", "json")
    pods = placed(answer)
    assert answer.returncode == 1
    shared = {pods[name]["node"] for name in ("notebook-0", "notebook-1", "notebook-2", "notebook-3", "server")}
    assert len(shared) == 1
    assert shared | {pods["training"]["node"]} == {"g1", "g2"}
    assert len({pods[f"notebook-{index}"]["gpus"] for index in range(4)}) == 1
    assert {pods["notebook-0"]["gpus"], pods["server"]["gpus"]} == {"0", "1"}
    assert pods["training"]["gpus"] is None
    assert "1 Insufficient shared GPU, 1 node(s) had whole GPUs allocated to other pods" in pods["late"]["reason"]
    (late,) = (one for one in json.loads(fluence("explain", folder, "-o", "json").stdout)["pods"]
               if one["name"] == "late")  # fmt: skip
    assert all(one["fits"] for one in late["nodes"].values()), "expected it to fit alone"


def test_the_gang_of_the_partitions_example_gets_a_whole_gpu_a_partition_and_two_shares_of_different_gpus() -> None:
    answer = fluence("simulate", EXAMPLES / "15-gpu-partitions", "-o", "json")
    pods = placed(answer)
    assert answer.returncode == 1
    devices = {name: [one.rpartition("/")[2] for one in pod["devices"]] for name, pod in pods.items()}
    (whole,), (part,), (share,) = devices["model"], devices["embedding"], devices["speech-0"]
    assert devices["speech-1"] == [share]
    assert {whole, part.partition("-mig-")[0], share.removesuffix("-shared")} == {"gpu-0", "gpu-1", "gpu-2"}
    (other,) = devices["notebook"]
    assert other != part
    assert other.partition("-mig-")[0] == part.partition("-mig-")[0]
    assert devices["speech-2"] == devices["training"] == []


def test_leader_and_workers_start_together_and_a_leader_never_alone() -> None:
    folder = EXAMPLES / "05-leader-and-workers"
    answer = fluence("simulate", folder, "-o", "json")
    pods = placed(answer)
    assert answer.returncode == 1
    on_nodes = Counter(name.rpartition("-")[0] for name, pod in pods.items() if pod["node"])
    assert on_nodes == {"simulation-leader": 1, "simulation-worker": 5}
    why = "pod group default/analysis needs 2 pods of sub-group worker to start and has 1"
    assert {pod["reason"] for pod in pods.values() if not pod["node"]} == {why}
    assert why in (ROOT / "docs" / "how-to" / "start-pods-together.md").read_text()


def test_all_small_pods_run_with_cpu_in_millicores_and_by_default_all_but_the_gang() -> None:
    folder = EXAMPLES / "06-small-pods"
    answer = fluence("simulate", folder, "-o", "json")
    pods = placed(answer)
    assert answer.returncode == 0
    assert len(pods) == 19
    assert (pods["on-nvidia"]["node"], pods["on-amd"]["node"]) == ("n1", "n2")
    by_default = fluence("simulate", folder / "cluster.yaml", folder / "workloads.yaml", "-o", "json")
    assert by_default.returncode == 1
    waiting = {name for name, pod in placed(by_default).items() if not pod["node"]}
    assert waiting == {f"trace-{index}" for index in range(6)}


# ------------------------------------------------------------------ the plugins


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's distribution, installed into its own folder as a user would."""
    source = tmp_path_factory.mktemp("source")
    folder = EXAMPLES / "plugins"
    for file in [folder / "pyproject.toml", *(folder / "src").glob("*.py")]:
        copy = source / file.relative_to(folder)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(file.read_text())
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(target), str(source)], check=True, timeout=120, capture_output=True)
    return target


def configuration(folder: Path, *plugins: dict[str, Any]) -> Path:
    file = folder / "config.yaml"
    header = {"apiVersion": "fluence.flux-framework.org/v1alpha1", "kind": "SchedulerConfiguration"}
    file.write_text(yaml.safe_dump({**header, "profiles": [{"schedulerName": "fluence", "plugins": list(plugins)}]}))
    return file


def pods_file(folder: Path) -> Path:
    """One pod that must not be preempted, by its label, and one that may be."""
    file = folder / "pods.json"
    label = "fluence.flux-framework.org/preemptibility"
    container = {"name": "c", "resources": {"requests": {"cpu": "3"}}}
    items = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {label: value}},
            "spec": {"schedulerName": "fluence", "containers": [container]},
        }
        for name, value in (("keep-1", "non-preemptible"), ("keep-2", "non-preemptible"), ("may-go", "preemptible"))
    ]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return file


def test_the_spot_plugin_keeps_pods_that_must_stay_off_spot_nodes(installed: Path, nodes: Path, tmp_path: Path) -> None:
    config = configuration(tmp_path, {"name": "spot-instance-manager"})
    pods = placed(fluence("simulate", nodes, pods_file(tmp_path), "--config", config, "-o", "json", path=installed))
    assert {pods[name]["node"] for name in ("keep-1", "keep-2")} == {"plain", None}
    refused = next(pod for pod in pods.values() if pod["node"] is None)
    assert "spot instances" in refused["reason"]
    assert pods["may-go"]["node"] == "cheap"


def test_without_the_spot_plugin_the_same_pods_go_to_the_larger_node(nodes: Path, tmp_path: Path) -> None:
    pods = placed(fluence("simulate", nodes, pods_file(tmp_path), "-o", "json"))
    assert {pods[name]["node"] for name in ("keep-1", "keep-2")} == {"cheap"}


def test_the_spot_plugins_arguments_are_typed_and_checked(installed: Path, nodes: Path, tmp_path: Path) -> None:
    config = configuration(tmp_path, {"name": "spot-instance-manager", "args": {"nonSpotScore": "high"}})
    answer = fluence("simulate", nodes, pods_file(tmp_path), "--config", config, path=installed)
    assert answer.returncode == 2
    assert "args.nonSpotScore" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_the_tracker_counts_placements(installed: Path, nodes: Path, tmp_path: Path) -> None:
    config = configuration(tmp_path, {"name": "namespace-allocation-tracker"})
    answer = fluence("simulate", nodes, pods_file(tmp_path), "--config", config, path=installed)
    assert "default: 3 pods placed" in answer.stderr


def test_installed_plugins_are_listed_with_their_distribution(installed: Path) -> None:
    listed = json.loads(fluence("plugins", "-o", "json", path=installed).stdout)["plugins"]
    spot = next(plugin for plugin in listed if plugin["name"] == "spot-instance-manager")
    assert (spot["distribution"], spot["version"]) == ("fluence-example-plugins", "0.1.0")


def test_each_example_plugin_is_short() -> None:
    for file in (EXAMPLES / "plugins" / "src").glob("*.py"):
        assert len(file.read_text().splitlines()) < 60


def test_pods_share_a_device_up_to_its_limit_and_a_queue_respects_its_own() -> None:
    folder = EXAMPLES / "11-sharing"
    pods = placed(fluence("simulate", folder, "-o", "json"))
    held = Counter(pod["backend"] for pod in pods.values() if pod["node"])
    assert held == {"simmer": 4, "east": 2}
    (waiting,) = (name for name, pod in pods.items() if not pod["node"])
    assert waiting.startswith("sense-")
    limit = (
        "queue 'sensing' has reached its limit of fluxion.flux-framework.org/sampler: limit 2, allocated 2, requested 1"
    )
    assert pods[waiting]["reason"] == limit


def test_the_groups_of_the_topology_example_stay_in_one_rack_or_are_spread_over_several() -> None:
    folder = EXAMPLES / "07-topology"
    levels = {"zone": "topology.kubernetes.io/zone", "rack": "example.com/rack"}
    answer = fluence("simulate", folder, "-o", "json")
    assert answer.returncode == 1
    options = [word for kind, label in levels.items() for word in ("--topology", f"{kind}={label}")]
    graph = json.loads(fluence("graph", folder / "cluster.yaml", *options).stdout)["graph"]
    paths = [vertex["metadata"]["paths"]["containment"] for vertex in graph["nodes"]]
    level_of = {path.rpartition("/")[2]: path.split("/")[2:-1] for path in paths if path.count("/") == 4}
    assert level_of["n3"] == ["zone=a", "rack=r2"]
    racks: dict[str, list[Any]] = {}
    for name, pod in placed(answer).items():
        racks.setdefault(name.rpartition("-")[0], []).append(pod["node"] and tuple(level_of[pod["node"]]))
    assert racks["training"] == [("zone=a", "rack=r2")] * 8
    assert len(set(racks["database"])) == 3
    assert {zone for zone, _ in racks["service"]} == {"zone=b"}
    assert len(set(racks["service"])) == 3
    assert racks["simulation"] == [None] * 6
    why = (
        "no rack has room for 6 pods; in rack r1 of zone a, 5 of 6 pods fit: "
        "6 pods request 6 cores, and 2 candidate nodes have 5 of 6 free"
    )
    assert why in placed(answer)["simulation-0"]["reason"]


def test_the_reason_for_a_gang_that_is_too_large_names_the_rack_that_lacks_the_least(tmp_path: Path) -> None:
    folder = EXAMPLES / "07-topology"
    larger = tmp_path / "larger.yaml"
    text = (folder / "workloads.yaml").read_text()
    larger.write_text(text.replace("minCount: 6", "minCount: 9").replace(": 6\n", ": 9\n"))
    answer = fluence("explain", folder / "cluster.yaml", larger, "--config", folder / "config.yaml")
    why = (
        "no rack has room for 9 pods; in rack r2 of zone a, 8 of 9 pods fit: "
        "9 pods request 9 cores, and 2 candidate nodes have 8 even when empty"
    )
    assert why in answer.stdout


def test_a_gang_has_a_reservation_at_nine_o_clock_and_windows_stay_free() -> None:
    folder = EXAMPLES / "08-time"
    pods = placed(fluence("simulate", folder, "-o", "json"))
    assert {name for name, pod in pods.items() if pod["node"]} == {"short"}
    assert pods["short"]["backend"] == "aurora"
    for number in range(4):
        assert pods[f"climate-{number}"]["reason"].endswith("and it can start at 2026-11-23T09:00:00Z")
    firmware = "node n5 must be free for maintenance window firmware from 2026-11-23T12:00:00Z to 2026-11-23T14:00:00Z"
    assert firmware in pods["archive"]["reason"]
    calibration = "backend borealis is in maintenance window calibration from 2026-11-23T07:00:00Z to 2026-11-23T10:00"
    assert calibration in pods["calibrated"]["reason"]


def test_pods_are_aligned_with_the_numa_nodes_of_a_node() -> None:
    pods = placed(fluence("simulate", EXAMPLES / "17-numa", "-o", "json"))
    assert (pods["aligned"]["node"], pods["burstable"]["node"], pods["wide"]["node"]) == ("n1", "n1", None)
    assert "1 cannot align pod." in pods["wide"]["reason"]


def test_gangs_are_placed_in_one_block_or_below_one_spine() -> None:
    pods = placed(fluence("simulate", EXAMPLES / "18-network", "-o", "json"))
    blocks = {name: {pods[f"{name}-{number}"]["node"][0] for number in range(count)}
              for name, count in (("small", 4), ("large", 6))}  # fmt: skip
    assert len(blocks["small"]) == 1
    assert blocks["large"] in ({"a", "b"}, {"c", "d"})
