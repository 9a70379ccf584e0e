"""The benchmark's measure, policies, bound and command, on hand-computed states and a generated trace."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from itertools import product as combinations
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from session_scheduler.config.settings import SchedulerConfig, load_config

from . import policies, product, report
from .__main__ import main
from .bound import upper_bound
from .fleet import Fleet
from .fragmentation import Fragmentation, typical
from .progress import Progress, at
from .trace import NODES_FILE, WHOLE, Run, Shape, TraceNode, generated, read_nodes, read_pods, run_of

ROOT = Path(__file__).parents[3]
HALF = Shape(1000, 1, 1, 500)
PAIR = Shape(4000, 1, 2, WHOLE)
NODE = TraceNode(8000, 1000, 2, "A")


def fragmented(workload: list[Shape], cpu: int, gpus: list[int], model: str = "A") -> float:
    fleet = Fleet([TraceNode(64_000, 1000, len(gpus), model)])
    fleet.cpu[0], fleet.gpu[0] = cpu, gpus
    return float(Fragmentation(fleet, workload).now(np.array([0]))[0])


# ------------------------------------------------------------------ fragmentation


@pytest.mark.parametrize(
    ("cpu", "gpus", "expected"),
    [
        (8000, [1000, 1000], 0),  # all shapes can use both GPUs
        (8000, [300, 1000], 0.75 * 300 + 0.25 * 1300),  # a half cannot use 300, and a pair nothing
        (8000, [300, 400], 700),  # no shape fits
        (2000, [1000, 1000], 0.25 * 2000),  # the cpu is too little for a pair
        (500, [300, 1000], 1300),  # the cpu is too little for every shape
        (500, [0, 0], 0),  # nothing is left to be fragmented
    ],
)
def test_fragmentation_is_what_the_workload_cannot_use_on_average(cpu: int, gpus: list[int], expected: float) -> None:
    assert fragmented([HALF] * 3 + [PAIR], cpu, gpus) == pytest.approx(expected)


def test_all_gpus_of_another_model_and_all_gpus_for_pods_without_any_are_fragmented() -> None:
    workload = [replace(HALF, models=("B",)), replace(HALF, models=("A", "C")), Shape(1000, 1, 0, 0), HALF]
    assert fragmented(workload, 8000, [1000, 600]) == pytest.approx(2 / 4 * 1600)


def test_typical_shapes_are_the_most_frequent_ones_with_95_percent_of_all_pods() -> None:
    rare = [Shape(cpu, 1, 1, WHOLE) for cpu in (1, 2, 3)]
    shapes, frequencies = typical([HALF] * 60 + [PAIR] * 35 + rare + [HALF, HALF])
    assert shapes == [replace(HALF, memory=0), replace(PAIR, memory=0)]
    assert frequencies == pytest.approx([62 / 97, 35 / 97])


# ------------------------------------------------------------------ policies


def test_best_fit_takes_the_fullest_node_and_the_fullest_gpu() -> None:
    fleet = Fleet([NODE, NODE, NODE])
    fleet.gpu[1] = 700, 600
    fleet.gpu[2] = 200, 1000
    policy = policies.BestFit(fleet, [])
    assert policy.scores(HALF, np.arange(3)).tolist() == [87, 92, 92]  # 100 · (1 - 7/256 - left/16), rounded down
    assert policy.gpu(HALF, 1) == 1
    assert policy.gpu(HALF, 2) == 1


def test_fgd_takes_the_node_and_the_gpu_where_fragmentation_grows_least() -> None:
    fleet = Fleet([NODE, NODE])
    fleet.gpu[1] = 600, 500
    policy = policies.Fgd(fleet, [HALF] * 3 + [PAIR])
    # node 0: from 0 to 0.25 · 1500, score 100 · sigmoid(-0.375); node 1: from 0.25 · 1100 to 0.25 · 600 on GPU 1
    assert policy.scores(HALF, np.arange(2)).tolist() == [40, 53]
    assert policy.gpu(HALF, 1) == 1  # on GPU 0, 100 would be left, which a half cannot use
    fleet.place(HALF, 1, 1)
    policy.changed(1)
    assert policy.scores(HALF, np.arange(2)).tolist() == [40, 51]  # from 0.25 · 600 to 100
    assert policy.gpu(HALF, 1) == 0


@pytest.mark.parametrize("kind", [policies.BestFit, policies.Fgd])
def test_a_policy_refuses_only_pods_that_fit_nowhere(kind: type[policies.BestFit] | type[policies.Fgd]) -> None:
    nodes, pods = generated(3)
    run = run_of(nodes, pods, 3)
    points = policies.place(run, pods, kind)
    largest = 100 * max(pod.total for pod in pods) / run.capacity
    assert [point.arrived for point in points] == sorted({point.arrived for point in points})
    for before, after in pairwise(points):
        assert before.allocated <= after.allocated <= after.arrived + largest
        assert before.refused <= after.refused
    assert 70 < points[-1].allocated <= upper_bound(run, run.pods) <= 100
    assert points[-1].fragmented <= 100 - points[-1].allocated + 1e-9
    assert points == policies.place(run, pods, kind)


# ------------------------------------------------------------------ runs and points


def test_a_variants_pods_arrive_first_and_sampled_ones_follow() -> None:
    nodes, pods = generated(1)
    run = run_of(nodes, pods[:60], 5, 2.0)
    assert Counter(run.pods[:60]) == Counter(pods[:60])
    assert set(run.pods[60:]) <= set(pods[:60])
    requested = sum(pod.total for pod in run.pods)
    assert 2 * run.capacity - 4 * WHOLE <= requested <= 2 * run.capacity + 3 * WHOLE
    assert Counter(run.nodes) == Counter(nodes)
    assert run == run_of(nodes, pods[:60], 5, 2.0) != run_of(nodes, pods[:60], 6, 2.0)


def test_random_pods_are_left_out_if_a_variant_requests_more_than_the_arrivals() -> None:
    nodes, pods = generated(1)
    run = run_of(nodes, pods, 5, 0.5)
    assert sum(pod.total for pod in run.pods) <= 0.5 * run.capacity
    assert not Counter(run.pods) - Counter(pods)


def test_a_point_is_recorded_for_each_percent_of_arrivals() -> None:
    fleet = Fleet([NODE])
    progress = Progress(fleet, [HALF])
    fleet.place(HALF, 0)
    progress.placed(HALF, 0)
    progress.refused(PAIR)
    progress.refused(Shape(9000, 1, 0, 0))
    points = progress.points()
    assert [point.arrived for point in points] == list(range(1, 126))
    assert (at(points, 25).allocated, at(points, 25).refused) == (25, 0)
    assert (at(points, 124).allocated, at(points, 124).refused) == (25, 1)
    assert points[-1] == at(points, 130)
    assert points[-1].refused == 2


# ------------------------------------------------------------------ the bound


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([Shape(1, 1, 1, 700)] * 5, 70),  # one of them on each GPU
        ([Shape(1, 1, 1, 700)] * 2 + [Shape(1, 1, 1, 300)], 85),
        ([Shape(1, 1, 4, WHOLE)], 0),  # no node has four GPUs
        ([Shape(1, 1, 2, WHOLE, ("B",))] * 2, 0),
        ([Shape(1, 1, 1, WHOLE, ("A",))] * 2 + [HALF], 100),
        ([HALF], 25),
        ([Shape(1, 1, 0, 0)], 0),
    ],
)
def test_the_bound_is_tight_where_only_gpus_limit(pods: list[Shape], expected: float) -> None:
    assert upper_bound(Run((NODE,), tuple(pods)), pods) == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("seed", range(8))
def test_no_placement_exceeds_the_bound(seed: int) -> None:
    _, pods = generated(seed)
    nodes = (NODE, TraceNode(8000, 1000, 1, "B"))
    few = [replace(pod, cpu=1, memory=1) for pod in pods if pod.gpus][:5]
    best = 0
    for rows in combinations((None, (0, 0), (0, 1), (1, 0)), repeat=len(few)):
        fleet, used = Fleet(nodes), 0
        for pod, place in zip(few, rows, strict=True):
            if place is None:
                continue
            row, gpu = place
            if not fleet.fits(pod)[row] or (pod.shares and fleet.gpu[row, gpu] < pod.thousandths):
                break
            fleet.place(pod, row, gpu)
            used += pod.total
        else:
            best = max(best, used)
    run = Run(nodes, tuple(few))
    assert upper_bound(run, few) >= 100 * best / run.capacity - 1e-6


# ------------------------------------------------------------------ this project's placement


def test_a_replay_accepts_the_schedulers_placement_and_counts_it() -> None:
    nodes, pods = generated(2, nodes=6, pods=40)
    run = run_of(nodes, pods, 2)
    placed = product.place(run, SchedulerConfig())
    points = product.replay(run, pods, placed.placements)
    assert points[-1].refused == placed.placements.count(None) > 0
    allocated = sum(pod.total for pod, place in zip(run.pods, placed.placements, strict=True) if place is not None)
    assert points[-1].allocated == pytest.approx(100 * allocated / run.capacity)


def test_no_decision_knows_the_pods_that_arrive_later() -> None:
    config = load_config(ROOT / "examples" / "14-gpu-fleet" / "config.yaml")
    run = run_of(*generated(5, nodes=12, pods=120), 5)
    first = replace(run, pods=run.pods[:64])  # two batches
    assert product.place(run, config).placements[:64] == product.place(first, config).placements


def test_a_slot_is_one_gpu_that_no_pod_uses_yet() -> None:
    run = Run((NODE,), (Shape(1, 1, 1, WHOLE), HALF, HALF))
    places = (product.Placement(0, None), product.Placement(0, 0), product.Placement(0, 0))
    assert product.replay(run, [HALF], places)[-1].allocated == 100


@pytest.mark.parametrize(
    ("pods", "slots", "message"),
    [
        ((HALF, HALF, HALF), (0, 0, 0), "does not fit node 0: 6000m cpu, GPUs [0, 1000]"),
        ((Shape(1, 1, 1, WHOLE), HALF, HALF), (None, 0, 1), "does not fit node 0: 6999m cpu, GPUs [0, 500]"),
        ((PAIR, Shape(4001, 1, 0, 0)), (None, None), "does not fit node 0: 4000m cpu, GPUs [0, 0]"),
        ((HALF,), (None,), "has no slot on node 0"),
    ],
)
def test_a_replay_rejects_a_placement_that_the_node_does_not_fit(
    pods: tuple[Shape, ...], slots: tuple[int | None, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=r"^Shape") as error:
        product.replay(Run((NODE,), pods), [HALF], [product.Placement(0, slot) for slot in slots])
    assert message in str(error.value)


# ------------------------------------------------------------------ the command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """OPENB_DIR with a generated trace in the form of the real one."""
    nodes, pods = generated(4, nodes=8, pods=50)
    with (tmp_path / NODES_FILE).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("sn", "cpu_milli", "memory_mib", "gpu", "model"))
        writer.writerows((f"n{i}", node.cpu, node.memory, node.gpus, node.model) for i, node in enumerate(nodes))
    for variant in ("default", "other"):
        with (tmp_path / f"openb_pod_list_{variant}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec"))
            for index, pod in enumerate(pods):
                amounts = (pod.cpu, pod.memory, pod.gpus, pod.thousandths)
                writer.writerow((f"p{index}", *amounts, "|".join(pod.models)))
    monkeypatch.setenv("OPENB_DIR", str(tmp_path))
    return tmp_path


def test_the_trace_is_read(folder: Path) -> None:
    assert (read_nodes(folder), read_pods(folder, "other")) == generated(4, nodes=8, pods=50)


def test_the_command_prints_the_table_and_writes_the_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = folder / "fleet" / "config.yaml"
    config.parent.mkdir()
    config.write_text("apiVersion: fluence.flux-framework.org/v1alpha1\nkind: SchedulerConfiguration\n")
    result = folder / "result.json"
    main(["--seeds", "1", "--arrivals", "1.2", "--config", str(config), "--json", str(result)])
    shown, logged = capsys.readouterr()
    lines = [line.split() for line in shown.splitlines()]
    assert " ".join(lines[0]) == "variant BestFit BestFit (paper) FGD FGD (paper) default fleet bound gap"
    assert [line[0] for line in lines[1:]] == ["default", "other", "mean"]
    assert lines[1][4:7] == ["92.86", "/", "93.08"]
    assert lines[2][4] == "-"
    assert "other, seed 42: FGD allocated " in logged
    found = json.loads(result.read_text())["variants"]["default"]
    assert found["allocated"]["default"] == found["allocated"]["fleet"]
    assert lines[1][1] == f"{found['allocated']['BestFit'][0]:.2f}"
    assert found["curves"]["FGD"][-1]["arrived"] in (119, 120)
    assert [run["policy"] for run in found["runs"]] == ["BestFit", "FGD", "default", "fleet"]


def test_the_report_is_drawn_and_stored_for_the_documentation(tmp_path: Path) -> None:
    def curve(factor: float) -> list[dict[str, float]]:
        return [
            {"arrived": percent, "allocated": factor * percent, "fragmented": 5, "refused": percent - 1}
            for percent in range(1, 84)
        ]

    runs = [{"seed": 42}, {"seed": 43}]
    found = {"variants": {"cpu200": {"curves": {"FGD": curve(1), "default": curve(0.5)}, "runs": runs}}}
    result, stored, drawn = tmp_path / "result.json", tmp_path / "benchmarks.json", tmp_path / "plot.svg"
    result.write_text(json.dumps(found))
    before = (ROOT / "docs" / "benchmarks.json").read_text()
    stored.write_text(before)
    report.main([str(result), "cpu200", str(stored)])
    plot = json.loads(stored.read_text())["gpu_fleet"]
    assert plot["title"] == "Placing the trace openb, variant cpu200: mean of 2 seeds"
    assert plot["series"] == ["FGD", "Fluence, by default"]
    assert plot["panels"][0] == {"title": "GPUs allocated, %", "rows": [[80, 80, 40], [82, 82, 41]]}
    assert plot["panels"][2]["rows"][1] == [82, 81, 81]
    assert stored.read_text().startswith(before.split('"gpu_fleet"')[0].rstrip(" \n,{}"))
    report.main([str(result), "cpu200", str(drawn)])
    parts = [one.get("d") for one in ElementTree.parse(drawn).findall(".//{*}path")]
    assert len(parts) == 2 + 3 * 3  # the legend; in each panel an axis and two lines
    assert parts[3:5] == ["M34.0 22.1L226.0 14.0", "M34.0 184.0L226.0 180.0"]  # from 80 to 82, and from 40 to 41


def test_the_command_names_the_missing_folder_and_unknown_variants(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match=r"^--variants cpu1: .* has default, other$"):
        main(["--variants", "other,cpu1"])
    monkeypatch.delenv("OPENB_DIR")
    with pytest.raises(SystemExit, match=f"^OPENB_DIR must name the folder with the trace's {NODES_FILE}: see docs/"):
        main([])
