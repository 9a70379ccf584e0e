"""The numbers of views are those of the observation, also of an empty cluster and for readers of some namespaces."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.unit.lab.observations import NOW, nodes, observed, pod

from fluence_lab.history import History, Stay
from fluence_lab.panels import PanelContext
from fluence_lab.render import fragments, update
from fluence_lab.view import Table, View
from fluence_lab.views import gangs as gangs_module
from fluence_lab.views import nodes as nodes_module
from fluence_lab.views.explained import changes_of
from fluence_lab.views.gangs import Window, gangs, windows_of
from fluence_lab.views.nodes import nodes as nodes_view
from fluence_lab.views.overview import overview
from fluence_lab.views.pending import pending
from fluence_lab.views.plugin_timings import plugin_timings
from fluence_lab.views.queues import queues
from fluence_lab.views.simulated import simulated
from session_scheduler.observation.values import Gang, Gpu


def table(view: View, name: str) -> Table:
    return next(table for table in view.tables if table.name == name)


def source(view: View, figure: str, name: str) -> Mapping[str, Any]:
    return next(one for one in view.figures if one.name == figure).sources[name]


def queue(name: str, depth: int = 0, **amounts: Mapping[str, str]) -> dict[str, Any]:
    kinds = ("deserved", "limit", "fairShare", "allocated", "pending")
    return {
        "name": name, "parent": None, "depth": depth, "priority": 0, "overQuotaWeight": 1, "ready": True,
        "reason": None, **{kind: amounts.get(kind, {}) for kind in kinds},
    }  # fmt: skip


def gang(name: str, **fields: Any) -> Gang:
    values = {"queue": "q", "priority": 0, "min_count": 2, "pending": 1, "placed": 0, "created": NOW - 100, **fields}
    return Gang(namespace="a", name=name, reason=None, **values)


EMPTY = observed()


@pytest.mark.parametrize("view", [
    overview(EMPTY), pending(EMPTY), nodes_view(EMPTY), gangs(EMPTY), queues(()),
], ids=lambda view: view.name)  # fmt: skip
def test_a_view_of_an_empty_cluster_has_no_figure_and_no_empty_table(view: View) -> None:
    assert view.summary
    assert {name: figure["item"] for name, figure in fragments(view).figures.items()} == {
        figure.name: None for figure in view.figures
    }
    shown = {name for name, html in fragments(view).tables.items() if html}
    assert shown == {"overview": {"pods", "resources"}, "nodes": {"nodes"}, "queues": {"queues"}}.get(view.name, set())
    assert fragments(view).tables.keys() == {table.name for table in view.tables}
    json.dumps(update(view), allow_nan=False)


# ------------------------------------------------------------------ overview


def test_the_overview_counts_pods_by_phase_and_those_of_other_namespaces() -> None:
    rows = [pod("a/p", phase="Running", node=0), pod("a/q"), pod("a/r", phase="Gated")]
    view = overview(observed(nodes(["n1"]), rows, hidden={"pending": 3, "running": 20}))
    assert view.summary.startswith("5 pods are pending and 21 run on 1 node.")
    assert table(view, "pods").rows == (
        ("Gated", 1), ("Pending", 1), ("Bound", 0), ("Running", 1), ("Terminating", 0),
        ("Pending, in other namespaces", 3), ("Running, in other namespaces", 20),
    )  # fmt: skip


def test_the_overview_names_pods_that_are_bound_and_do_not_run_yet() -> None:
    rows = [pod("a/p", phase="Bound", node=0), pod("a/q", phase="Bound", node=0), pod("a/r")]
    view = overview(observed(nodes(["n1"]), rows))
    assert view.summary.startswith("1 pod is pending, 2 are bound and 0 run on 1 node.")


def test_the_overview_sums_resources_over_nodes() -> None:
    view = overview(observed(nodes(["n1", "n2"], cpu=8, used=[3, 5])))
    assert table(view, "resources").rows == (
        ("cpu", "8 cores", "16 cores", "8 cores", "50 %"),
        ("memory", "64 GiB", "128 GiB", "64 GiB", "50 %"),
    )
    assert source(view, "utilisation", "bars")["share"] == [50, 50]


def test_series_have_only_the_times_at_which_all_numbers_are_known() -> None:
    history = History(
        times=np.array([NOW, NOW + 1, NOW + 2]),
        series={"pending": np.array([1.0, np.nan, 3.0]), "running": np.array([5.0, 6.0, 7.0])},
    )
    view = overview(observed(), history)
    lines = source(view, "over-time", "lines")
    assert lines["pending"].tolist() == [1, 3]
    assert lines["time"].tolist() == [1000 * NOW, 1000 * (NOW + 2)]
    assert [figure.text for figure in view.figures[1:]] == [
        "At the end of 0 minutes: 3 pending and 7 running pods.",
        "No information about cycles; set --scheduler-metrics or --prometheus to show them.",
    ]


def test_a_long_line_has_the_last_value_of_each_step() -> None:
    def lines(number: int) -> Mapping[str, Any]:
        numbers = np.arange(float(number))
        history = History(times=NOW + numbers, series={"pending": numbers, "running": numbers})
        return source(overview(observed(), history), "over-time", "lines")

    assert lines(1000)["pending"].tolist() == list(range(1000))
    drawn = lines(86_410)["pending"].tolist()
    assert 500 < len(drawn) < 1003
    assert drawn[-1] == 86_409
    assert {b - a for a, b in pairwise(drawn[:-1])} == {128.0}
    assert lines(86_420)["pending"].tolist()[:-1] == drawn[:-1]  # the others stay as time passes


@pytest.mark.parametrize(("number", "drawn"), [(1, False), (9, False), (10, True)])
def test_lines_over_time_are_drawn_when_the_axis_has_room_for_seconds(number: int, drawn: bool) -> None:
    times = NOW + np.arange(float(number))
    view = overview(observed(), History(times, {"pending": np.ones(number), "running": np.zeros(number)}))
    lines, rates = view.figures[1:]
    assert (lines.has_data, rates.has_data) == (drawn, False)
    assert lines.text.endswith("1 pending and 0 running pods.")


def test_a_single_sample_has_no_duration_in_words() -> None:
    view = overview(observed(), History(np.array([NOW]), {"pending": np.ones(1), "running": np.zeros(1)}))
    assert view.figures[1].text == "1 pending and 0 running pods."


# ------------------------------------------------------------------ pending

VERDICTS = {
    "namespace": "a", "name": "p1", "reason": None, "summary": "0/2 nodes are available: 2 Insufficient cpu.",
    "nodes": {
        "n1": {"fits": False, "plugin": "Fit", "reason": "Insufficient cpu",
               "fitsIf": [{"plugin": "Fit", "changes": ["1 cpu were free on n1 (0 now)"]},
                          {"plugin": "Taint", "changes": ["the taint x were tolerated"]}]},
        "n2": {"fits": False, "plugin": "Fit", "reason": "Insufficient cpu",
               "fitsIf": [{"plugin": "Fit", "changes": ["2 cpu were free on n2 (0 now)"]}]},
        "n3": {"fits": False, "plugin": "Other", "reason": "no", "fitsIf": [{"plugin": "Other", "changes": None}]},
        "n4": {"fits": True, "score": 7, "scores": [{"plugin": "Fit", "weight": 1, "raw": 7, "score": 7}]},
    },
}  # fmt: skip
WAITING = [
    pod("a/p1", reason="no cpu", created=NOW - 10),
    pod("a/p2", reason="no cpu", created=NOW - 50),
    pod("b/other", reason="a gate", created=np.nan),
    pod("a/done", node=0, phase="Running"),
]


def test_reasons_are_grouped_with_what_would_help_the_longest_waiting_pod() -> None:
    asked: list[str] = []

    def verdicts(key: str) -> Mapping[str, Any]:
        asked.append(key)
        return {**VERDICTS, "group": "g"}

    view = pending(observed(nodes(["n1"]), WAITING), {}, verdicts)
    assert table(view, "reasons").rows == (
        (2, "no cpu", "2 cpu were free on n2 (0 now)", "a/p2"),
        (1, "a gate", "2 cpu were free on n2 (0 now)", "b/other"),
    )
    assert asked == ["a/p2", "b/other"]
    assert view.summary == "3 pods wait, for 2 reasons. The most frequent one, with 2 pods: No cpu."


def test_only_a_pod_of_a_gang_that_fits_on_a_node_has_changes() -> None:
    assert changes_of({**VERDICTS, "group": None}) == ""
    assert changes_of(VERDICTS) == ""
    assert changes_of({**VERDICTS, "group": "g"}) == "2 cpu were free on n2 (0 now)"
    assert changes_of({**VERDICTS, "reason": "3 of 4 pods fit"}) == "2 cpu were free on n2 (0 now)"


def test_a_search_shows_the_pods_with_the_text_in_their_name() -> None:
    view = pending(observed(nodes(["n1"]), WAITING), {"search": "oth"})
    assert [row[0] for row in table(view, "pods").rows] == ["b/other"]
    assert view.summary.startswith("1 pending pod of 3 has 'oth' in its name, for 1 reason.")


def test_the_pods_of_other_namespaces_are_a_number() -> None:
    view = pending(observed(nodes(["n1"]), WAITING).seen_by(frozenset({"a"})))
    assert "b/other" not in json.dumps(update(view))
    assert view.summary.endswith("1 more waits in other namespaces.")


def test_a_chosen_pod_has_a_heat_map_of_all_rejections_and_tables_of_its_nodes() -> None:
    view = pending(observed(nodes(["n1"]), WAITING), {"pod": "a/p1"}, lambda _: VERDICTS)
    cells = source(view, "verdicts", "rejected")
    assert sorted(zip(cells["plugin"], cells["node"], strict=True)) == [
        ("Fit", "n1"), ("Fit", "n2"), ("Other", "n3"), ("Taint", "n1"),
    ]  # fmt: skip
    assert source(view, "verdicts", "fits")["node"] == ["n4"]
    assert table(view, "rejected").rows[0][:4] == (2, "Fit", "Insufficient cpu", "n1 and n2")
    assert table(view, "fitting").rows == (("n4", 7, 7),)


@pytest.mark.parametrize("answer", [None, {}])
def test_a_chosen_pod_that_does_not_wait_is_named(answer: Mapping[str, Any] | None) -> None:
    view = pending(observed(nodes(["n1"]), WAITING), {"pod": "a/gone"}, lambda _: answer)
    assert view.summary.endswith("Pending pod a/gone was not found.")


def test_many_nodes_with_equal_verdicts_share_a_column() -> None:
    refusal = VERDICTS["nodes"]["n2"]  # type: ignore[index]
    answer = {**VERDICTS, "nodes": {f"n{row}": refusal for row in range(1000)}}
    view = pending(observed(nodes(["n1"]), WAITING), {"pod": "a/p1"}, lambda _: answer)
    assert source(view, "verdicts", "rejected")["node"] == ["1,000 nodes such as n0"]


def test_nodes_that_the_verdicts_leave_out_are_counted() -> None:
    answer = {**VERDICTS, "leftOut": 4500, "refusals": {"Fit": 4999, "Taint": 1}}
    view = pending(observed(nodes(["n1"]), WAITING), {"pod": "a/p1"}, lambda _: answer)
    assert view.figures[1].text.endswith(
        "4,500 nodes are not shown. Among all nodes, Fit is the first to reject 4,999 nodes and Taint is the first to "
        "reject 1 node."
    )


def test_a_table_shows_200_rows_and_counts_the_others() -> None:
    view = pending(observed(nodes(["n1"]), [pod(f"a/p{row}") for row in range(250)]))
    pods = table(view, "pods")
    assert (len(pods.rows), pods.left_out) == (200, 50)
    assert "50 more are not shown." in fragments(view).tables["pods"]


# ------------------------------------------------------------------ queues


def test_queues_are_indented_and_have_their_amounts_in_cores_and_bytes() -> None:
    view = queues([
        queue("science", fairShare={"cpu": "12"}, limit={"cpu": "12"}),
        queue("physics", 1, deserved={"cpu": "500m"}, allocated={"cpu": "13", "memory": "2Gi"}, fairShare={"cpu": "8"}),
    ])  # fmt: skip
    assert table(view, "queues").rows == (
        ("science", 0, 1, "cpu", None, None, "12 cores", "12 cores", None, None),
        (
            "\N{NO-BREAK SPACE}\N{NO-BREAK SPACE}physics",
            0,
            1,
            "cpu",
            "0.5 cores",
            "13 cores",
            "8 cores",
            None,
            None,
            None,
        ),
        ("\N{NO-BREAK SPACE}\N{NO-BREAK SPACE}physics", 0, 1, "memory", None, "2 GiB", None, None, None, None),
    )
    assert source(view, "queue-cpu", "bars")["allocated"] == [0, 13]
    assert source(view, "queue-memory", "bars")["allocated"] == [0, 2]
    assert view.summary == "2 queues. physics has more than its fair share."
    cpu, memory = source(view, "queue-cpu", "bars")["fair"], source(view, "queue-memory", "bars")["fair"]
    assert (cpu, memory[1]) == ([12, 8], pytest.approx(np.nan, nan_ok=True))


def test_queues_show_parts_of_devices() -> None:
    fraction, model = "fluence.flux-framework.org/gpu-fraction", "a100.fluence.flux-framework.org/devices"
    view = queues([queue("a", allocated={fraction: "400m", model: "2500m"}, fairShare={fraction: "500m", model: "3"})])
    assert [row[3:7] for row in table(view, "queues").rows] == [
        (model, None, "2.5", "3"), (fraction, None, "0.4", "0.5"),
    ]  # fmt: skip
    assert source(view, "queue-a100-fluence-flux-framework-org-devices", "bars")["allocated"] == [2.5]


# ------------------------------------------------------------------ nodes

LEVELS: dict[str, list[str | None]] = {"zone": ["a", "a", "b", None], "rack": ["r1", "r2", "r1", "r9"]}


def test_the_map_has_a_row_for_each_rack_and_the_fill_of_each_node() -> None:
    known = nodes(["n1", "n2", "n3", "n4"], cpu=8, used=[0, 2, 4, 8], levels=LEVELS)
    view = nodes_view(observed(known))
    cells = source(view, "map", "cells")
    assert dict(zip(cells["name"], cells["fill"], strict=True)) == {
        "n1": "0 %",
        "n2": "25 %",
        "n3": "50 %",
        "n4": "100 %",
    }
    assert source(view, "map", "labels")["label"] == ["(none) / r9", "a / r1", "a / r2", "b / r1"]
    assert table(view, "blocks").rows[0] == ("(none) / r9", 1, 0, "100 %", "50 %")
    assert cells["mark"] == ["n4\n100 %", "n1\n0 %", "n2\n25 %", "n3\n50 %"]
    assert table(view, "nodes").rows[1][5] == "2 of 8 cores"


def test_racks_of_equal_names_in_two_zones_are_two_domains() -> None:
    view = nodes_view(observed(nodes(["n1", "n2", "n3", "n4"], levels=LEVELS)))
    assert view.summary == "4 nodes in 2 zone domains and 4 rack domains, all ready."


def test_the_names_of_nodes_are_left_out_where_a_narrow_screen_has_no_room() -> None:
    marks = {}
    for number in (8, 10, 13):
        marks[number] = source(nodes_view(observed(nodes([f"node-{row:02}" for row in range(number)]))), "map", "cells")
    assert [each["mark"][0] for each in marks.values()] == ["node-00\n0 %", "0 %", ""]


def test_a_block_of_the_query_shows_its_nodes_by_the_resource_of_the_query() -> None:
    known = nodes(["n1", "n2", "n3", "n4"], used=[0, 2, 4, 8], levels=LEVELS)
    view = nodes_view(observed(known), {"block": "b / r1", "resource": "memory"})
    assert source(view, "map", "cells")["name"] == ["n3"]
    assert source(view, "map", "cells")["amount"] == ["32 GiB of 64 GiB"]
    assert [row[0] for row in table(view, "nodes").rows] == ["n3"]


@pytest.mark.parametrize("levels", [True, False])
def test_with_many_nodes_the_map_shows_blocks(levels: bool) -> None:
    number = nodes_module.MOST_NODES + 100
    names = [f"n{row}" for row in range(number)]
    racks = {"rack": [f"r{row % 4}" for row in range(number)]} if levels else None
    view = nodes_view(observed(nodes(names, cpu=8, used=[4] * number, levels=racks)))
    cells = source(view, "map", "cells")
    assert len(cells["name"]) == (4 if levels else 6)
    assert sum(cells["nodes"]) == number
    assert set(cells["fill"]) == {"50 %"}
    assert table(view, "nodes").left_out == number - 200


def test_the_gpus_of_each_of_many_nodes_are_found_by_search() -> None:
    names = [f"gpu-{number}" for number in range(1213)]
    gpus = [Gpu(row, "nvidia.com/gpu", index, None, {}) for row in range(1213) for index in range(8)]
    known = observed(nodes(names, gpus=gpus))
    view = nodes_view(known)
    assert view.figures[1].text == (
        "9,704 of 9,704 GPUs are free, and 0 are shared. The figure shows the first 40 of 1,213 nodes; for others, "
        "search or open a block."
    )
    assert {column.title: column.link for column in table(view, "gpus").columns}["Node"] == "nodes?node={}"
    for name in ("gpu-1", "gpu-777", "gpu-1212"):
        view = nodes_view(known, {"node": name})
        assert view.summary.endswith(f" Pods hold 0 of 8 GPUs. 1 node has {name!r} in its name.")
        assert source(view, "gpus", "labels")["label"] == [name]
        assert [row[:3] for row in table(view, "gpus").rows] == [(name, "nvidia.com/gpu", index) for index in range(8)]
        assert [row[0] for row in table(view, "nodes").rows] == [name]
        assert [row[1] for row in table(view, "blocks").rows] in ([100], [13])
    part = nodes_view(known, {"node": "gpu-77"})
    assert [row[0] for row in table(part, "nodes").rows] == ["gpu-77"]
    part = nodes_view(known, {"node": "pu-77"})
    assert [row[0] for row in table(part, "nodes").rows] == ["gpu-77", *(f"gpu-77{digit}" for digit in range(10))]
    assert part.summary.endswith(" 11 nodes have 'pu-77' in their names.")
    assert nodes_view(known, {"node": "none"}).summary.endswith(" 0 nodes have 'none' in their names.")


def test_gpus_have_their_index_their_holders_and_their_shares() -> None:
    gpus = [Gpu(0, "nvidia.com/gpu", 0, "H100", {"a/p": 0.5, "b/q": 0.25}), Gpu(0, "nvidia.com/gpu", 1, None, {})]
    view = nodes_view(observed(nodes(["n1"], gpus=gpus)))
    assert table(view, "gpus").rows == (
        ("n1", "nvidia.com/gpu", 0, "H100", "75 %", "a/p 50 % and b/q 25 %"),
        ("n1", "nvidia.com/gpu", 1, None, "0 %", "free"),
    )
    assert source(view, "gpus", "cells")["mark"] == ["75 %", "free"]
    assert view.summary == "1 node, all ready. Pods hold 0.75 of 2 GPUs."


# ------------------------------------------------------------------ gangs


def test_a_gang_waits_from_its_creation_to_its_last_bind_and_runs_until_now() -> None:
    rows = [
        pod("a/p1", group="g", node=0, phase="Running", created=NOW - 100, bound=NOW - 60, started=NOW - 50),
        pod("a/p2", group="g", node=0, phase="Bound", created=NOW - 90, bound=NOW - 30),
    ]
    view = gangs(observed(nodes(["n1"]), rows, gangs=[gang("g", pending=0, placed=2)]))
    spans = {
        kind: [(bar["from"], bar["to"]) for bar in [source(view, "gantt", kind)]]
        for kind in ("waits", "starts", "runs")
    }
    assert spans == {
        "waits": [([1000 * (NOW - 100)], [1000 * (NOW - 30)])],
        "starts": [([1000 * (NOW - 60)], [1000 * NOW])],
        "runs": [([1000 * (NOW - 50)], [1000 * NOW])],
    }


def test_members_that_are_gone_end_or_were_evicted() -> None:
    stays = (
        Stay("a/p1", "g", "q", "n1", NOW - 100, NOW - 90, NOW - 80, NOW - 20, evicted=True),
        Stay("a/p2", "g", "q", "n1", NOW - 100, NOW - 90, NOW - 80, NOW - 10),
        Stay("a/single", None, "q", "n1", NOW - 100, NOW - 90, NOW - 80, NOW - 10),
    )
    view = gangs(observed(), History(stays=stays), {"gang": "a/g"})
    assert source(view, "gantt", "evicted")["name"] == ["a/p1"]
    assert source(view, "gantt", "ended")["name"] == ["a/p2"]
    assert table(view, "members").rows == (
        ("a/p1", "evicted", "n1", "10s", "60s"),
        ("a/p2", "ended", "n1", "10s", "70s"),
    )
    assert view.summary.endswith("a/g has 2 members; all are gone.")


def test_a_pod_of_an_equal_group_name_in_another_namespace_is_no_member() -> None:
    rows = [pod("a/p", group="g"), pod("b/p", group="g")]
    view = gangs(observed(nodes(["n1"]), rows, gangs=[gang("g")]), query={"gang": "a/g"})
    assert [row[0] for row in table(view, "members").rows] == ["a/p"]


def test_members_with_unknown_times_are_listed_without_bars() -> None:
    view = gangs(observed(rows=[pod("a/p", group="g", created=np.nan)], gangs=[gang("g", created=np.nan)]))
    assert source(view, "gantt", "waits")["name"] == []
    assert table(view, "gangs").rows == (("a/g", "q", 0, 2, 0, 1, "", None),)
    json.dumps(update(view), allow_nan=False)


def test_waiting_gangs_come_first_and_the_chart_is_bounded() -> None:
    known = [gang(f"g{row}", pending=0, placed=2) for row in range(100)] + [gang("waits")]
    rows = [pod(f"a/p{one.name}", group=one.name) for one in known]
    view = gangs(observed(rows=rows, gangs=known))
    shown = source(view, "gantt", "labels")["label"]
    assert (shown[0], len(shown)) == ("a/waits", gangs_module._MOST_GANGS)


def test_windows_near_the_present_are_bands() -> None:
    windows = [Window(NOW - 10, NOW + 10, "now"), Window(NOW + 86400, NOW + 90000, "tomorrow")]
    view = gangs(observed(rows=[pod("a/p", group="g")], gangs=[gang("g")]), windows=windows)
    assert source(view, "gantt", "windows")["name"] == ["now"]


def test_windows_come_from_the_plugin_fluence_if_it_is_loaded() -> None:
    class Plugin:
        windows = (Window(1, 2, "w"),)

    assert windows_of(PanelContext(EMPTY)) == []
    found = windows_of(PanelContext(EMPTY, plugin=lambda name: Plugin() if name == "fluence" else None))
    assert [(window.start, window.end) for window in found] == [(1, 2)]


# ------------------------------------------------------------------ results


def test_nodes_with_equally_many_placed_pods_are_in_natural_order() -> None:
    pods = [
        {"namespace": "a", "name": name, "group": None, "node": name, "backend": None, "reason": None}
        for name in ("n10", "n2")
    ]
    view = simulated({"pods": pods, "groups": [], "summary": {"scheduled": 2, "unschedulable": 0}})
    assert view.figures[0].text == "1 pod: n2 and 1 pod: n10."
    assert view.figures[1].has_data is False


def test_the_table_of_a_simulation_shows_devices_if_a_pod_has_any() -> None:
    one = {"namespace": "a", "name": "p", "group": None, "node": "n", "backend": None, "reason": None}
    result = {"pods": [one], "groups": [], "summary": {"scheduled": 1, "unschedulable": 0}}
    assert [column.title for column in table(simulated(result), "pods").columns][-1] == "Reason"
    assert "Devices" not in [column.title for column in table(simulated(result), "pods").columns]
    result = {**result, "pods": [one, {**one, "name": "q", "devices": ["gpu 0", "gpu 2"]}]}
    shown = table(simulated(result), "pods")
    place = [column.title for column in shown.columns].index("Devices")
    assert [row[place] for row in shown.rows] == ["", "gpu 0, gpu 2"]


# ------------------------------------------------------------------ timings


def test_plugin_timings_are_shown_if_the_scheduler_reports_them() -> None:
    assert plugin_timings(History()) is None
    view = plugin_timings(History(timings={"Fit": {"seconds": 3, "calls": 1000}, "Taint": {"seconds": 1}}))
    assert view is not None
    assert view.summary == "2 plugins took 4 s in all. Fit took the most: 3 s, 75 %."
    assert table(view, "plugins").rows == (("Fit", 1000, 3, 3000, "75 %"), ("Taint", 0, 1, None, "25 %"))
