"""The pages of plugins show what the loaded plugin and the pods' objects say, and no pod of another namespace."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.unit.lab.observations import nodes, observed, pod

from fluence_lab.panels import Panel, PanelContext
from fluence_lab.render import fragments, update
from fluence_lab.view import Table, View
from fluence_plugins.fluence import panel as resource_graph
from fluence_plugins.master_queue import panel as master_queue
from fluence_plugins.master_queue.arguments import MasterQueueArguments
from fluence_plugins.master_queue.plugin import MasterQueuePlugin
from fluence_plugins.slurm_bridge import names as slurm_names
from fluence_plugins.slurm_bridge import panel as slurm
from fluence_plugins.slurm_bridge.plugin import SlurmBridgePlugin
from session_scheduler.builtin import BUILTIN
from session_scheduler.config.settings import load_config
from session_scheduler.model.objects import ObjectMeta, Pod, PodSpec
from session_scheduler.observation.files import simulated
from session_scheduler.observation.observer import Observer
from session_scheduler.registry.registry import Registry

TIME = Path(__file__).parents[3] / "examples/08-time"


def table(view: View | None, name: str) -> Table:
    assert view is not None
    return next(table for table in view.tables if table.name == name)


@pytest.mark.parametrize("panel", [resource_graph.PANEL, slurm.PANEL, master_queue.PANEL], ids=lambda panel: panel.name)
def test_a_page_of_a_plugin_that_is_not_loaded_does_not_exist(panel: Panel) -> None:
    assert panel.view(PanelContext(observed())) is None
    assert panel.view(PanelContext(observed(), plugin=lambda _: object())) is None


# ------------------------------------------------------------------ resource graph


@pytest.fixture
async def observer(tmp_path: Path) -> Observer:
    resources = tmp_path / "resources.yaml"
    text = (TIME / "resources.yaml").read_text()
    resources.write_text(text.replace("resources:\n", "resources:\n  - {name: spare, type: qpu, status: down}\n", 1))
    config = Registry(BUILTIN).with_arguments(
        load_config(TIME / "config.yaml"), "fluence", {"resources": str(resources)}
    )
    files = [str(TIME / "cluster.yaml"), str(TIME / "workloads.yaml")]
    return (await simulated(files, config=config))[1]


def context(observer: Observer, namespaces: frozenset[str] | None = None) -> PanelContext:
    seen = PanelContext(observer.observe().seen_by(namespaces), namespaces=namespaces, plugin=observer.plugin)
    pods = {key: pod for key, pod in observer.pods().items() if seen.may_read(key)}
    return PanelContext(seen.observed, namespaces=namespaces, plugin=observer.plugin, pods=lambda: pods)


async def test_devices_have_their_state_their_holders_and_their_windows(observer: Observer) -> None:
    view = resource_graph.PANEL.view(context(observer))
    rows = {row[0].rpartition("/")[2]: row[1:5] for row in table(view, "resources").rows}
    assert rows == {
        "aurora": ("qpu", "aurora", "up", "default/short"),
        "borealis": ("qpu", "borealis", "up", None),
        "spare": ("qpu", "spare", "drained", None),
    }
    assert view is not None
    assert view.summary == "3 virtual resources of 3 backends, and 5 nodes. Pods hold 1. Drained: spare."
    sources = view.figures[0].sources
    assert sources["held"]["name"] == ["default/short"]
    assert sources["drained"]["name"] == ["drained"]
    assert "calibration" in sources["windows"]["name"][0]
    assert fragments(view).figures


async def test_holders_of_other_namespaces_have_no_name(observer: Observer) -> None:
    view = resource_graph.PANEL.view(context(observer, frozenset({"science"})))
    assert view is not None
    assert "default/short" not in json.dumps(update(view))
    assert view.figures[0].sources["held"]["name"] == ["(another namespace)"]


async def test_reservations_of_waiting_gangs_are_those_of_the_verdicts(observer: Observer) -> None:
    known = context(observer)
    gang = {"reservation": {"start": "2026-11-23T10:00:00Z", "nodes": {"p1": "n10", "p2": "n2"}}}
    with_verdicts = PanelContext(
        known.observed, plugin=known.plugin, pods=known.pods, verdicts=lambda _: {"gang": gang}
    )
    [name] = [f"{gang.namespace}/{gang.name}" for gang in known.observed.gangs if gang.pending]
    view = resource_graph.PANEL.view(with_verdicts)
    assert table(view, "reservations").rows == ((name, "2026-11-23T10:00:00Z", "n2, n10"),)


async def test_reservations_of_waiting_gangs_are_on_the_time_axis(observer: Observer) -> None:
    known = context(observer)
    start = datetime.fromtimestamp(int(known.observed.time) + 7200, UTC)
    text = f"{start:%Y-%m-%dT%H:%M:%SZ}"
    gang = {"reservation": {"start": text, "nodes": {"p1": "n10", "p2": "n2"}}}
    with_verdicts = PanelContext(
        known.observed, plugin=known.plugin, pods=known.pods, verdicts=lambda _: {"gang": gang}
    )
    [name] = [f"{gang.namespace}/{gang.name}" for gang in known.observed.gangs if gang.pending]
    view = resource_graph.PANEL.view(with_verdicts)
    assert view is not None
    timeline = view.figures[0]
    bar = {key: column[0] for key, column in timeline.sources["reserved"].items()}
    assert bar["name"] == f"{name}: n2, n10"
    assert bar["from"] == 1000 * start.timestamp()
    assert bar["to"] == pytest.approx(bar["from"] + 600_000, abs=1000)
    labels = timeline.sources["labels"]
    assert dict(zip(labels["y"], labels["label"], strict=True))[bar["y"]] == f"{name}, reserved"
    assert timeline.text.endswith(f"Nodes are reserved for {name} from {text}.")
    assert fragments(view).figures


# ------------------------------------------------------------------ Slurm jobs


def slurm_pod(name: str, job: str | None, scheduler: str = "slurm") -> Pod:
    labels = {} if job is None else {slurm_names.JOBID_LABEL: job}
    metadata = ObjectMeta(name=name, namespace="a", uid=name, labels=labels)
    return Pod(metadata=metadata, spec=PodSpec(scheduler_name=scheduler))


def test_pods_are_grouped_by_the_slurm_job_of_their_label() -> None:
    plugin = SlurmBridgePlugin.__new__(SlurmBridgePlugin)
    plugin.__dict__["_arguments"] = type("Arguments", (), {"scheduler_name": "slurm"})()
    rows = [
        pod("a/r1", node=1, phase="Running"),
        pod("a/r2", node=0, phase="Running"),
        pod("a/w", reason="Slurm job 8 is pending: Priority"),
        pod("a/new", reason="a Slurm job is being submitted", created=float("nan")),
        pod("a/other", node=0, phase="Running"),
    ]
    objects = {
        "a/r1": slurm_pod("r1", "7"), "a/r2": slurm_pod("r2", "7"), "a/w": slurm_pod("w", "8"),
        "a/new": slurm_pod("new", None), "a/other": slurm_pod("other", "9", "default-scheduler"),
    }  # fmt: skip
    known = observed(nodes(["n1", "n2"]), rows)
    view = slurm.PANEL.view(PanelContext(known, plugin=lambda _: plugin, pods=lambda: objects))
    assert table(view, "jobs").rows == (
        (7, "running", 2, "a/r1 and a/r2", "n1 and n2", "60s", None),
        (8, "waiting", 1, "a/w", None, "60s", "Slurm job 8 is pending: Priority"),
        (None, "without a job", 1, "a/new", None, "", "a Slurm job is being submitted"),
    )
    assert view is not None
    assert view.summary == "2 Slurm jobs: 1 running and 1 waiting. 1 pod without a job."
    assert view.figures[0].sources["bars"]["pods"] == [2, 0, 1, 1]
    assert fragments(view).figures


# ------------------------------------------------------------------ MasterQueue pools

REPORT: dict[str, Any] = {
    "masterQueues": [{
        "name": "mq", "ready": True, "natsConnected": True, "problems": ["flavor f: no pool"],
        "pools": [
            {"flavor": "f", "pool": "p1", "state": "Active", "ageSeconds": 5,
             "resources": {"cpu": {"quota": "8", "used": "2", "lent": "500m"}}},
            {"flavor": "f", "pool": "p2", "state": "Waiting", "ageSeconds": None, "resources": {}},
        ],
        "queues": [{"name": "q", "cohort": "c", "stopPolicy": "None", "pendingWorkloads": 3, "admittedWorkloads": 4}],
    }],
}  # fmt: skip


def test_pools_have_their_quota_and_how_much_of_it_is_used() -> None:
    plugin = MasterQueuePlugin(MasterQueueArguments())
    known = PanelContext(observed(), plugin=lambda _: plugin)
    assert master_queue.PANEL.view(known) is None  # nothing was read yet
    view = master_queue.PANEL.view(PanelContext(observed(), plugin=lambda _: plugin, fetched=REPORT))
    assert table(view, "pools").rows == (
        ("mq", "f", "p1", "Active", "5s", "cpu", "8", "2", "500m"),
        ("mq", "f", "p2", "Waiting", None, "", None, None, None),
    )
    assert table(view, "queues").rows == (("mq", "q", "c", "None", 3, 4),)
    assert view is not None
    assert view.summary == "1 MasterQueue with 2 pools; 1 is active."
    assert view.figures[0].sources["bars"]["share"] == [25]
    assert fragments(view).figures


def test_problems_of_pools_are_shown_to_readers_of_all_namespaces() -> None:
    plugin = MasterQueuePlugin(MasterQueueArguments())
    everything = PanelContext(observed(), plugin=lambda _: plugin, fetched=REPORT)
    view = master_queue.PANEL.view(everything)
    assert table(view, "problems").rows == (("mq", "flavor f: no pool"),)
    some = PanelContext(observed(), plugin=lambda _: plugin, fetched=REPORT, namespaces=frozenset({"a"}))
    assert "no pool" not in json.dumps(update(master_queue.PANEL.view(some)))  # type: ignore[arg-type]


async def test_a_fetch_reads_what_pool_list_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    async def read(api: object, now: float) -> dict[str, Any]:
        asked.append(api)
        return REPORT

    monkeypatch.setattr("fluence_plugins.master_queue.pool.report.read", read)
    assert master_queue.PANEL.fetch is not None
    api = object()
    assert await master_queue.PANEL.fetch(api) == REPORT
    assert asked == [api]
