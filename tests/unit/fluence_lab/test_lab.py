"""The notebook API: load, change, run, compare; DataFrames and views."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

import fluence_lab
from fluence_lab import Lab, Run, compare, load, of
from session_scheduler import InputError, NodeInfo, PluginArguments, Refusal, Session, hookimpl
from session_scheduler.model.objects import Pod
from session_scheduler.testing import gang, node, pod, taint

GPU = "nvidia.com/gpu"
EXAMPLE = Path(__file__).parents[3] / "examples" / "14-gpu-fleet"


@pytest.fixture(scope="module")
def small() -> Lab:
    nodes = [node(f"n{number}", cpu=2, labels={"topology.kubernetes.io/zone": "a"}) for number in (1, 2)]
    return of(*nodes, pod("a", cpu=1), pod("b", cpu=2), pod("c", cpu=2), pod("large", cpu=9))


def reason_of(run: Run, name: str) -> str:
    return str(run.decisions.loc[("default", name), "reason"])


def nodes_of(run: Run) -> dict[str, str | None]:
    return {pod["name"]: pod["node"] for pod in run.result["pods"]}


# ------------------------------------------------------------------ DataFrames


def test_tables_show_the_cluster_before_and_after_a_run(small: Lab) -> None:
    run = small.run()
    assert small.pods["phase"].tolist() == ["Pending"] * 4
    assert run.pods["phase"].tolist() == ["Bound", "Bound", "Pending", "Pending"]
    assert run.pods.loc[("default", "a"), "cpu"] == 1.0
    assert str(run.pods["created"].dtype).startswith("datetime64")
    assert run.pods["started"].isna().all()
    assert run.nodes["cpu allocated"].sum() == 3.0
    assert run.nodes["topology.kubernetes.io/zone"].tolist() == ["a", "a"]
    assert run.queues.loc["default", "allocated cpu"] == "3"
    assert "Insufficient cpu" in reason_of(run, "large")
    assert list(run.decisions.columns) == ["group", "node", "reason"]
    assert (run.scheduled, run.unschedulable) == (2, 2)


def test_gangs_and_gpus_have_tables() -> None:
    share = {"fluence.flux-framework.org/gpu-fraction": "0.5"}
    run = of(node("n1", offers={GPU: 2}), *gang("g", 2, annotations=share), pod("w", requests={GPU: 2})).run()
    assert run.gangs.loc[("default", "g"), "placed"] == 2
    held = run.gpus[run.gpus["share"] > 0]
    assert held["pod"].tolist() == ["default/g-0", "default/g-1"]
    assert held["share"].tolist() == [0.5, 0.5]
    assert len(run.gpus) == 3  # two holders of one GPU, and a free one


def test_without_pandas_a_table_is_an_error_that_names_the_extra(small: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setattr("session_scheduler.base.extras.find_spec", lambda _: None)
    with pytest.raises(
        InputError, match=r"^a DataFrame needs pandas, .* run pip install 'fluence-scheduler\[notebook\]'$"
    ):
        _ = small.run().nodes


# ------------------------------------------------------------------ changes


def test_each_change_returns_another_lab(small: Lab) -> None:
    before = nodes_of(small.run())
    assert nodes_of(small.add_nodes(1, like="n1").run())["c"] is not None
    assert nodes_of(small.add(node("huge", cpu=16)).run())["large"] == "huge"
    assert nodes_of(small.with_queue("default", limit={"cpu": 1}).run()) == {**before, "b": None, "c": None}
    tainted = small.add(node("huge", cpu=16, taints=[taint("example.com/not-for-pods")]))
    assert nodes_of(tainted.run())["large"] is None
    assert nodes_of(tainted.without_plugin("TaintToleration").run())["large"] == "huge"
    assert nodes_of(small.run()) == before


def test_a_function_in_a_cell_rejects_nodes(small: Lab) -> None:
    def only_second(pod: Pod, node: NodeInfo) -> Refusal | None:
        return Refusal("node(s) were not n2") if pod.metadata.name == "a" and node.name != "n2" else None

    run = small.with_plugin(only_second).run()
    assert nodes_of(run)["a"] == "n2"
    never = small.with_plugin(lambda: False, name="never").run()
    assert never.scheduled == 0
    assert "node(s) were rejected by never" in reason_of(never, "a")
    texts = small.with_plugin(lambda node: f"not {node.name}", name="texts").run()
    assert "1 not n1, 1 not n2" in reason_of(texts, "a")
    assert small.with_plugin(lambda session, task, group: True, name="all").run().scheduled == 2


def test_a_function_in_a_cell_scores_nodes(small: Lab) -> None:
    for wanted in ("n1", "n2"):
        assert nodes_of(small.with_score(_prefers(wanted), weight=1000).run())["a"] == wanted


def _prefers(wanted: str) -> Any:
    def prefers(node: NodeInfo) -> float:
        return float(node.name == wanted)

    return prefers


def test_a_class_in_a_cell_is_a_plugin(small: Lab) -> None:
    class Reason(PluginArguments):
        reason: str = "never"

    class Never:
        Arguments = Reason

        def __init__(self, arguments: Reason) -> None:
            self.reason = arguments.reason

        @hookimpl
        def on_session_open(self, session: Session) -> None:
            session.add_predicate(lambda task, group, node: self.reason)

    class Empty:
        @hookimpl
        def on_session_open(self, session: Session) -> None:
            session.add_predicate(lambda task, group, node: "empty")

    class Constructed(Empty):
        def __init__(self) -> None:
            self.constructed = True

    assert "2 empty" in reason_of(small.with_plugin(Empty).run(), "a")
    assert "2 empty" in reason_of(small.with_plugin(Constructed).run(), "a")
    run = small.with_plugin(Never, reason="because").run()
    assert "2 because" in reason_of(run, "a")


def test_an_installed_plugin_gets_arguments(small: Lab) -> None:
    strategy = {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 1}]}
    packed = small.add(node("n3", cpu=64)).with_plugin("NodeResourcesFit", weight=100, scoringStrategy=strategy).run()
    assert nodes_of(packed)["a"] in ("n1", "n2")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda lab: lab.with_plugin(lambda thing: None, name="f"), "plugin f: unknown parameter 'thing'; a function"),
        (lambda lab: lab.with_plugin(lambda: None), "a lambda has no name; pass name="),
        (lambda lab: lab.with_plugin(_prefers, weight=3, name="f"), "plugin f: a function cannot have args"),
        (lambda lab: lab.with_plugin("Unknown").run(), "no plugin 'Unknown' is installed"),
        (lambda lab: lab.without_plugin("Unknown"), "no profile enables this plugin"),
        (lambda lab: lab.add_nodes(1, like="n9"), "no node or file is named 'n9'; name a node of the cluster"),
        (lambda lab: lab.verdicts("unknown"), "pod default/unknown: not found"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(small: Lab, change: Any, text: str) -> None:
    with pytest.raises(InputError, match=text) as error:
        change(small)
    assert "\n" not in str(error.value)


# ------------------------------------------------------------------ views


def test_views_show_themselves_in_a_notebook(small: Lab) -> None:
    run = small.run()
    for shown in (small, run, run.view(), run.explain("large"), run.overview(), run.why_pending(), run.node_map(),
                  run.queue_tree(), run.gang_chart(), compare(small.run("a"), run)):  # fmt: skip
        assert "<iframe" in shown._repr_html_()
    with pytest.raises(InputError, match="is on node n"):
        run.explain("a")


def test_a_cell_says_what_would_help_and_has_no_timings_of_one_pod(small: Lab) -> None:
    reasons = next(table for table in small.why_pending().tables if table.name == "reasons")
    changes = {row[3]: row[2] for row in reasons.rows}
    assert changes["default/large"] == "9 cpu were free on n1 (2 of 2 now)"
    assert [figure.name for figure in small.explain("large").figures] == ["verdicts"]


def test_two_runs_are_compared(small: Lab) -> None:
    compared = compare(small.run("now"), small.add(node("huge", cpu=16)).run("with huge"))
    assert compared.pods.loc[("default", "large"), "node: with huge"] == "huge"
    assert dict(compared.summary.loc["scheduled"]) == {"now": 2.0, "with huge": 4.0}
    assert dict(compared.summary.loc["cpu utilisation"]) == {"now": 0.75, "with huge": 0.7}
    view = compared.view()
    assert view.title == "Comparison: now and with huge"
    assert "now: 2 placed; with huge: 4 placed." in view.summary
    assert "Cpu, now: 75" in view.figures[0].text


def test_equal_names_of_runs_are_distinguished(small: Lab) -> None:
    run = small.run()
    assert list(compare(run, run).summary.columns) == ["first", "second"]
    named = small.run("x")
    assert list(compare(named, named).summary.columns) == ["x (1)", "x (2)"]


# ------------------------------------------------------------------ loading


def test_files_are_loaded_with_their_configuration() -> None:
    lab = load(EXAMPLE / "cluster.yaml", EXAMPLE / "workloads.yaml", config=EXAMPLE / "config.yaml")
    assert lab.run().scheduled == 10
    assert load(EXAMPLE).run().result == lab.run().result
    without = lab.without_plugin("GpuFragmentation").run()
    assert (without.scheduled, without.unschedulable) == (9, 1)


def test_resources_of_a_directory_are_virtual_devices() -> None:
    run = load(EXAMPLE.parent / "01-quickstart").run()
    assert run.decisions.loc[("default", "sampler"), "backend"] in ("aurora", "borealis")


async def test_a_lab_works_while_the_notebooks_event_loop_runs(small: Lab) -> None:
    assert asyncio.get_running_loop().is_running()
    assert small.run().scheduled == 2


def test_the_package_has_the_names_of_the_notebook_api() -> None:
    assert fluence_lab.load is load
    with pytest.raises(AttributeError, match="has no attribute 'unknown'"):
        _ = fluence_lab.unknown
