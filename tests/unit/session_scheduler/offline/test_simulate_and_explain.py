"""The JSON of `simulate` and `explain`, over clusters in memory."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from session_scheduler import Refusal, hookimpl
from session_scheduler.binding.binder import Request
from session_scheduler.cli import main
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.engine.completion import Bound
from session_scheduler.engine.explain import explain_pending
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.framework.statement import Decision, PlacementResult
from session_scheduler.offline.simulate import place_all
from session_scheduler.offline.state import ClusterState
from session_scheduler.testing import FakeCluster, gang, node, pod, pod_group

from ....tools.replacing import of_controller

HERE = "tests/unit/session_scheduler/offline/test_simulate_and_explain.py"
CONSOLIDATING = ("allocate", "consolidate")


def simulated(*objects, plugins=(), actions=("allocate", "preempt", "reclaim")):
    cluster = FakeCluster(config=SchedulerConfig(bindings_in_flight=1_000, actions=actions))
    cluster.add(*objects)
    return json.loads(json.dumps(asyncio.run(place_all(cluster.start(*plugins)))))


def explained(*objects, plugins=()):
    cluster = FakeCluster()
    cluster.add(*objects)
    scheduler = cluster.start(*plugins)
    before = scheduler.cache.table.digest()
    answer = json.loads(json.dumps(explain_pending(scheduler)))
    assert scheduler.cache.table.digest() == before
    return {one["name"]: one for one in answer["pods"]}


def test_placed_pods_leave_no_results_of_their_attempts_and_decisions():
    kept = [count_of(PlacementResult, Decision, Request, asyncio.Task)]
    cluster = FakeCluster(config=SchedulerConfig(bindings_in_flight=1_000))
    cluster.add(node("n1", cpu="64"), *(pod(f"p{number}") for number in range(30)), pod("large", cpu="99"))
    scheduler = cluster.start()
    assert asyncio.run(place_all(scheduler))["summary"]["scheduled"] == 30
    assert list(scheduler.outcomes) == ["Pod default/large"]
    kept.append(count_of(PlacementResult, Decision, Request, asyncio.Task))
    assert kept[1] <= kept[0] + 1  # the outcome of the pod that waits


def count_of(*kinds):
    return sum(isinstance(one, kinds) for one in gc.get_objects())


def test_every_pending_pod_is_listed_with_its_node_or_its_reason():
    answer = simulated(
        node("n1"), gang("g", 2), pod("large", cpu="9"), pod("lost", group="nowhere"), pod("gated", gates=["x"]),
        pod("running", bound_to="n1"), pod("theirs", scheduler="other"),
    )  # fmt: skip
    reported = {one["name"]: (one["group"], one["node"], one["reason"]) for one in answer["pods"]}
    assert reported == {
        "g-0": ("g", "n1", None),
        "g-1": ("g", "n1", None),
        "gated": (None, None, "Scheduling is blocked due to non-empty scheduling gates: x"),
        "large": (
            None, None, "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: "
            "1 Preemption is not helpful for scheduling.",
        ),
        "lost": (
            "nowhere", None,
            "PodGroup default/nowhere (scheduling.k8s.io) does not exist; create it, or remove the group from the pod",
        ),
    }  # fmt: skip
    assert {one["name"]: one["scheduled"] for one in answer["groups"]} == {"g": 2, "nowhere": 0}
    assert answer["summary"] == {"scheduled": 2, "unschedulable": 3, "leftOut": 1, "problems": {}}


def test_a_missing_group_is_the_reason_in_explain_too():
    reported = explained(node("n1"), pod("lost", group="nowhere"))["lost"]
    assert reported["reason"].startswith("PodGroup default/nowhere (scheduling.k8s.io) does not exist")
    assert reported["nodes"]["n1"]["fits"]


class Opinions:
    """Refuses some groups, places none, and can fail."""

    name = "opinions"

    def __init__(self):
        self.open = 0

    @hookimpl
    def on_session_open(self):
        self.open += 1

    @hookimpl
    def on_session_close(self):
        self.open -= 1

    @hookimpl
    def prefilter(self, group):
        if group.name == "raises":
            raise ValueError("boom")
        return Refusal("not today") if group.name == "refused" else None

    @hookimpl
    def place_group(self, tasks):
        return Refusal("no vertex") if tasks[0].name != "fits" else None


def test_explain_reports_what_rejects_a_pod_on_all_nodes_and_closes_its_sessions():
    opinions = Opinions()
    pods = [pod(name) for name in ("fits", "refused", "raises", "unmatched")] + [pod("gated", gates=["x"])]
    reported = explained(node("n1"), *pods, plugins=[opinions])
    line = Opinions.prefilter.__code__.co_firstlineno
    assert {name: one["reason"] for name, one in reported.items()} == {
        "fits": None,
        "refused": "not today",
        "raises": f"plugin opinions failed in prefilter: ValueError: boom at {HERE}:{line + 3}",
        "unmatched": "no vertex",
        "gated": reported["gated"]["reason"],
    }
    assert "gate" in reported["gated"]["reason"]
    assert all(one["nodes"]["n1"]["fits"] for name, one in reported.items() if name != "gated")
    assert opinions.open == 0


def test_explain_names_the_first_filter_that_rejects_each_node():
    nodes = explained(node("n1", unschedulable=True, cpu="1"), node("n2", cpu="1"), node("n3"), pod("p", cpu="2"))["p"][
        "nodes"
    ]
    assert nodes["n1"]["plugin"] == "NodeUnschedulable"
    assert nodes["n2"] == {
        "fits": False, "plugin": "NodeResourcesFit", "reason": "Insufficient cpu",
        "fitsIf": [{"plugin": "NodeResourcesFit", "changes": ["2 cpu were free on n2 (1 of 1 now)"]}],
    }  # fmt: skip
    assert nodes["n3"]["fits"]


@pytest.mark.parametrize("name", ["prefilter", "report"])
def test_simulate_continues_after_a_plugin_fails(name):
    def fails(self):
        raise ValueError("boom")

    plugin = type("Plugin", (), {"name": "p", name: hookimpl(fails)})()
    result = simulated(node("n1"), pod("a"), plugins=[plugin])
    text = f"plugin p failed in {name}: ValueError: boom at {HERE}:{fails.__code__.co_firstlineno + 1}"
    if name == "prefilter":
        assert result["pods"][0]["reason"] == text
    else:
        assert result["summary"]["problems"] == {"Plugin p": text}
        assert result["pods"][0]["node"] == "n1"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"node": "hacked"}, "the column 'node' is reserved"),
        (["x"], "expected a mapping of column names to values, got list"),
        ({"x": object()}, "expected JSON values"),
        ({"devices": "gpu 0"}, "expected `devices` to be a list of strings, got 'gpu 0'"),
        ({"devices": [0, 1]}, "expected `devices` to be a list of strings, got [0, 1]"),
    ],
)
def test_a_plugins_report_cannot_change_the_fields_of_the_core(answer, problem):
    plugin = type("Plugin", (), {"name": "p", "report": hookimpl(lambda self: answer)})()
    result = simulated(node("n1", unschedulable=True), pod("a"), plugins=[plugin])
    assert result["pods"][0]["node"] is None
    assert result["summary"]["unschedulable"] == 1
    assert problem in result["summary"]["problems"]["Plugin p"]


def test_the_devices_of_all_plugins_are_reported():
    plugins = [
        type("Plugin", (), {"name": name, "report": hookimpl(lambda self: {"devices": [f"{self.name} 0"]})})()
        for name in ("gpu", "nic")
    ]
    devices = simulated(node("n1"), pod("a"), plugins=plugins)["pods"][0]["devices"]
    assert sorted(devices) == ["gpu 0", "nic 0"]


def test_a_plugin_that_exits_fails_its_own_group_only():
    def exits(self, group):
        if group.name == "a":
            raise SystemExit(0)

    plugin = type("Plugin", (), {"name": "p", "prefilter": hookimpl(exits)})()
    result = simulated(node("n1"), pod("a"), pod("b"), plugins=[plugin])["pods"]
    assert [one["node"] for one in result] == [None, "n1"]
    assert "plugin p failed in prefilter: SystemExit" in result[0]["reason"]


def test_explain_reports_that_a_gang_has_too_few_pods():
    answer = explained(node("n1"), pod_group("g", 3), pod("a", group="g"))["a"]
    assert answer["nodes"]["n1"]["fits"]
    assert answer["reason"] == "pod group default/g needs 3 pods to start and has 1"


def deleting(group):
    return replace(group, metadata=replace(group.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))


@pytest.mark.parametrize(
    ("group", "gates", "reason"),
    [
        (pod_group("refused", 3), (), "not today"),
        (deleting(pod_group("g", 1)), (),
         "PodGroup default/g is being deleted: the scheduler no longer places its pods"),
        (pod_group("refused", 1), ("foo/bar",), "Scheduling is blocked due to non-empty scheduling gates: foo/bar"),
    ],
)  # fmt: skip
def test_explain_and_simulate_report_the_same_reason_for_a_group(group, gates, reason):
    objects = node("n1"), group, pod("a", group=group.metadata.name, gates=gates)
    assert explained(*objects, plugins=[Opinions()])["a"]["reason"] == reason
    assert simulated(*objects, plugins=[Opinions()])["pods"][0]["reason"] == reason


def test_the_reason_of_a_gang_with_rejected_pods_counts_those_that_fit():
    class Rejects:
        name = "rejects"

        @hookimpl
        def class_key(self, pod):
            return pod.metadata.name

        @hookimpl
        def prepare(self, cls):
            return Refusal("rejected") if cls.pod.metadata.name == "b" else None

    objects = node("n1"), pod_group("g", 2), pod("a", group="g"), pod("b", group="g")
    reasons = {one["name"]: one["reason"] for one in simulated(*objects, plugins=[Rejects()])["pods"]}
    assert reasons["a"] == "pod group default/g needs 2 pods to start and has 2, but only 1 can be placed"


def test_a_group_without_min_count_is_listed_as_basic():
    (group,) = simulated(node("n1"), pod_group("g"), pod("a", group="g"))["groups"]
    assert group == {"namespace": "default", "name": "g", "minCount": 1, "scheduled": 1}


def test_preempted_pods_are_listed_and_the_preemptors_are_placed():
    answer = simulated(
        node("n1", cpu="2"), pod("low", cpu="2", priority=1, bound_to="n1"), pod("other", cpu="2", priority=0),
        gang("g", 2, cpu="1", priority=10),
    )  # fmt: skip
    assert answer["preempted"] == [{"namespace": "default", "name": "low", "node": "n1"}]
    assert {one["name"]: one["node"] for one in answer["pods"]} == {"g-0": "n1", "g-1": "n1", "other": None}


def test_moved_pods_are_listed_with_their_new_nodes():
    """One that the same run has placed before is listed where it is then, and once."""
    answer = simulated(
        node("n1", cpu="4"), node("n2", cpu="4"), pod("a", cpu="3", priority=50, bound_to="n1"),
        of_controller(pod("b", cpu="1", priority=50)), pod("c", cpu="4", priority=50), actions=CONSOLIDATING,
    )  # fmt: skip
    assert answer["moved"] == [{"namespace": "default", "name": "b", "node": "n2", "to": "n1"}]
    assert {one["name"]: one["node"] for one in answer["pods"]} == {"b": "n1", "c": "n2"}
    assert "preempted" not in answer


def test_without_preempted_pods_the_output_has_no_list_of_them():
    assert "preempted" not in simulated(node("n1"), pod("p"))


POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec: {{{scheduler}containers: [{{name: c, image: i}}]}}
"""


def pods_of_schedulers(folder: Path, **names: str) -> str:
    """A file of pods, each with its schedulerName; an empty one is the API server's default."""
    texts = [POD.format(name=name, scheduler=f"schedulerName: {one}, " if one else "") for name, one in names.items()]
    (folder / "pods.yaml").write_text("---\n".join(texts))
    return str(folder / "pods.yaml")


def test_pods_that_no_profile_serves_are_listed_with_the_nearest_scheduler_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = pods_of_schedulers(tmp_path, a="fluense", b="", c="fluence")
    assert main(["simulate", file, "-o", "json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert [pod["name"] for pod in result["pods"]] == ["c"]
    assert result["leftOut"] == [
        {"namespace": "default", "name": "a", "schedulerName": "fluense",
         "reason": "no profile has schedulerName fluense; did you mean fluence?"},
        {"namespace": "default", "name": "b", "schedulerName": "default-scheduler",
         "reason": "no profile has schedulerName default-scheduler; set spec.schedulerName to fluence, or add a "
         "profile"},
    ]  # fmt: skip
    assert result["summary"]["leftOut"] == 2
    assert main(["simulate", file]) == 1
    assert "default    a         no profile has schedulerName fluense; did you mean" in capsys.readouterr().out
    assert main(["simulate", pods_of_schedulers(tmp_path, c="fluence"), "-o", "json"]) == 1
    assert "leftOut" not in json.loads(capsys.readouterr().out)


def test_explain_reports_that_no_profile_serves_a_pod(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = pods_of_schedulers(tmp_path, a="fluense", c="fluence")
    assert main(["explain", file, "-o", "json"]) == 0
    reasons = {pod["name"]: pod["reason"] for pod in json.loads(capsys.readouterr().out)["pods"]}
    assert reasons == {"a": "no profile has schedulerName fluense; did you mean fluence?", "c": None}
    assert main(["explain", file, "--pod", "default/a"]) == 0
    assert capsys.readouterr().out.startswith(f"default/a: {reasons['a']}\n")


@pytest.mark.parametrize("options", [[], ["-o", "json"], ["--without-plugin", "NodeName", "-o", "diff"]])
def test_the_exit_status_is_2_if_no_profile_serves_any_pod_of_the_files(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", pods_of_schedulers(tmp_path, a="fluense", b=""), *options]) == 2
    captured = capsys.readouterr()
    assert captured.err == (
        "fluence: no profile serves any of these pods; correct their schedulerName, or add a profile\n"
    )
    assert captured.out


def test_a_state_without_pods_is_valid(tmp_path: Path) -> None:
    (tmp_path / "n.yaml").write_text("apiVersion: v1\nkind: Node\nmetadata: {name: n}\n")
    assert main(["simulate", str(tmp_path)]) == 0
    assert main(["snapshot", pods_of_schedulers(tmp_path, a="other"), "-o", str(tmp_path / "s.json")]) == 0
    assert main(["simulate", str(tmp_path / "s.json")]) == 0, "the pods were in the cluster"


def test_a_simulation_runs_no_cycle_once_every_pod_is_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    cycles = []
    cycle = Scheduler.cycle

    async def counted(scheduler: Scheduler) -> list[Bound]:
        cycles.append(len(scheduler.cache.unbound))
        return await cycle(scheduler)

    monkeypatch.setattr(Scheduler, "cycle", counted)
    result = simulated(node("n"), pod("a"), pod("b"))
    assert result["summary"]["scheduled"] == 2
    assert cycles == [2]


def test_the_repr_of_a_state_does_not_list_its_objects():
    """asyncio computes it when a command ends."""
    assert "n1" not in repr(ClusterState((node("n1"),)))
