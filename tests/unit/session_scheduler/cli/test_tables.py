import sys
from datetime import UTC, datetime

import pytest

from session_scheduler.cli.pod_rows import stem
from session_scheduler.cli.tables import print_parts, print_tables
from session_scheduler.sdk.commands import TableRows

POD: dict[str, object] = {
    "namespace": "a",
    "name": "p",
    "group": None,
    "node": None,
    "backend": None,
    "reason": "[bold]no[/bold] room",
}


def _printed(capsys: pytest.CaptureFixture[str], result, **options) -> list[str]:
    print_tables(result, **options)
    return capsys.readouterr().out.splitlines()


def test_markup_in_a_reason_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]):
    lines = _printed(capsys, {"pods": [POD], "groups": [], "summary": {"scheduled": 0, "unschedulable": 1}})
    assert lines[1].endswith("[bold]no[/bold] room")


def test_a_long_reason_stays_on_one_line_where_no_terminal_shows_it(capsys: pytest.CaptureFixture[str]):
    pod = POD | {"reason": "word " * 200 + "end"}
    lines = _printed(capsys, {"pods": [pod], "groups": [], "summary": {"scheduled": 0, "unschedulable": 1}})
    assert lines[1].endswith("word end")


def test_groups_come_before_pods_and_the_summary_last(capsys: pytest.CaptureFixture[str]):
    group = {"namespace": "a", "name": "g", "minCount": 2, "scheduled": 0}
    summary = {"scheduled": 0, "unschedulable": 1, "leftOut": 3, "problems": {"a/g": "is broken"}}
    lines = _printed(capsys, {"pods": [POD], "groups": [group], "summary": summary})
    assert lines[1].split() == ["a", "g", "2", "0"]
    assert lines[4].split()[:2] == ["a", "p"]
    assert lines[-2:] == ["a/g: is broken", "0 scheduled, 1 unschedulable, 3 left out"]


def test_whoever_ended_for_others_is_shown(capsys: pytest.CaptureFixture[str]):
    victim = {"namespace": "a", "name": "low", "node": "n1"}
    summary = {"scheduled": 0, "unschedulable": 1}
    lines = _printed(capsys, {"pods": [POD], "groups": [], "summary": summary, "preempted": [victim]})
    assert [line.split() for line in lines[3:5]] == [["NAMESPACE", "PREEMPTED", "NODE"], ["a", "low", "n1"]]


def test_whoever_is_moved_is_shown_with_where_to(capsys: pytest.CaptureFixture[str]):
    move = {"namespace": "a", "name": "p", "node": "n1", "to": "n2"}
    summary = {"scheduled": 0, "unschedulable": 1}
    lines = _printed(capsys, {"pods": [POD], "groups": [], "summary": summary, "moved": [move]})
    assert [line.split() for line in lines[3:5]] == [["NAMESPACE", "MOVED", "FROM", "TO"], ["a", "p", "n1", "n2"]]


def test_explain_without_pending_pods_says_so(capsys: pytest.CaptureFixture[str]):
    assert _printed(capsys, {"pods": []}) == ["no pending pods"]


def test_explain_shows_what_refuses_the_pod_as_a_whole(capsys: pytest.CaptureFixture[str]):
    pod = {"namespace": "a", "name": "p", "reason": "a gate", "nodes": {"n": {"fits": True, "score": 7}}}
    lines = _printed(capsys, {"pods": [pod]})
    assert lines[0] == "a/p: a gate"
    assert lines[2].split() == ["n", "yes", "7", "-", "-"]


def test_the_counts_of_a_gang_agree_with_their_verbs(capsys: pytest.CaptureFixture[str]):
    crew = {
        "namespace": "a",
        "name": "crew",
        "reason": None,
        "minCount": 3,
        "placeable": 1,
        "refused": {},
        "placement": {},
    }
    parts = {"worker": {"minimum": 3, "started": 1, "placeable": 1}}
    lines = _printed(capsys, {"pods": [], "groups": [crew | {"started": 1, "subGroups": parts}]})
    assert "group a/crew: 1 pod can be placed now, 2 are needed" in lines
    assert "  sub-group worker: 1 can be placed now, 1 is running (minimum: 3); 1 missing" in lines
    lines = _printed(capsys, {"pods": [], "groups": [crew | {"started": 2}]})
    assert "group a/crew: 1 pod can be placed now, 1 is needed" in lines


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Standard output as a terminal of so many columns."""

    def of_width(columns: int) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("LINES", "25")

    return of_width


REASON = "0/3 nodes are available: 3 Insufficient cpu."


def test_on_a_narrow_terminal_a_pods_reason_has_lines_of_its_own(terminal, capsys: pytest.CaptureFixture[str]):
    terminal(40)
    placed = POD | {"name": "q", "reason": None}
    pods = [POD | {"reason": REASON}, placed]
    lines = _printed(capsys, {"pods": pods, "groups": [], "summary": {"scheduled": 1, "unschedulable": 1}})
    assert "REASON" not in lines[0]
    assert " ".join(lines[3:5]).split() == f"a/p: {REASON}".split()
    assert not any(line.startswith("a/q: ") for line in lines)


def test_on_a_narrow_terminal_a_nodes_reason_has_lines_of_its_own(terminal, capsys: pytest.CaptureFixture[str]):
    terminal(40)
    verdict = {"fits": False, "plugin": "NodeResourcesFit", "reason": "Insufficient cpu"}
    lines = _printed(capsys, {"pods": [POD | {"reason": None, "summary": "none", "nodes": {"n": verdict}}]})
    assert lines[-1] == "n: Insufficient cpu"


def test_on_a_wide_terminal_reasons_are_a_column(terminal, capsys: pytest.CaptureFixture[str]):
    terminal(120)
    lines = _printed(capsys, {"pods": [POD | {"reason": REASON}], "groups": [], "summary": {"scheduled": 0}})
    assert lines[0].split()[-1] == "REASON"
    assert lines[1].rstrip().endswith(REASON)


def _words(lines: list[str]) -> list[str]:
    """The words of lines that a terminal wrapped."""
    return " ".join(lines).split()


def test_on_a_terminal_of_80_columns_a_reason_wraps_in_its_column_and_nothing_is_cut(terminal, capsys):
    terminal(80)
    reason = "no qpu with region=mars-1 exists; offered are aurora (connectivity=all-to-all, region=us-east-1)"
    lines = _printed(capsys, {"pods": [POD | {"reason": reason}], "groups": [], "summary": {"scheduled": 0}})
    assert lines[0].split() == ["NAMESPACE", "POD", "GROUP", "NODE", "REASON"]
    assert _words(lines[1:-2]) == ["a", "p", "-", "-", *reason.split()]
    assert all(len(line) <= 80 for line in lines)


def test_queues_whose_amounts_are_wider_than_the_terminal_have_a_row_for_each_resource(terminal, capsys):
    gpus = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"
    amounts = {"deserved": {gpus: "4", "cpu": "64"}, "limit": {gpus: "8"}, "fairShare": {gpus: "4", "cpu": "64"},
               "allocated": {"cpu": "500m"}, "pending": {}}  # fmt: skip
    research = {"name": "research", "depth": 0, "reason": None, **amounts}
    vision = {"name": "vision", "depth": 1, "reason": "a reason", **{key: {} for key in amounts}}
    terminal(120)
    lines = _printed(capsys, {"queues": [research, vision]})
    assert [line.split() for line in lines] == [
        ["QUEUE", "RESOURCE", "DESERVED", "LIMIT", "FAIR", "SHARE", "ALLOCATED", "PENDING"],
        ["research", "cpu", "64", "-", "64", "500m", "-"],
        ["research", gpus, "4", "8", "4", "-", "-"],
        ["vision", "-", "-", "-", "-", "-", "-"],
        ["vision:", "a", "reason"],
    ]
    terminal(300)
    assert len(_printed(capsys, {"queues": [research, vision]})) == 3


def test_a_cell_that_is_wider_than_the_terminal_is_folded_and_not_cut(terminal, capsys):
    terminal(30)
    name = "x" * 63
    lines = _printed(capsys, {"pods": [POD | {"name": name, "reason": None, "node": name}], "summary": {}})
    assert "".join(lines).count("x") == 126
    assert not any("…" in line for line in lines)


def test_columns_of_plugins_are_shown_if_a_pod_has_a_value_there(capsys: pytest.CaptureFixture[str]):
    placed = POD | {"node": "n1", "reason": None}
    pods = [placed, placed | {"name": "q", "devices": ["gpu 0", "gpu 2"]}]
    result = {"pods": pods, "groups": [], "summary": {"scheduled": 2}}
    assert _printed(capsys, result)[:3] == [
        "NAMESPACE  POD  GROUP  NODE  DEVICES       REASON",
        "a          p    -      n1    -             -",
        "a          q    -      n1    gpu 0, gpu 2  -",
    ]
    pods.append(placed | {"name": "r", "backend": "aurora"})
    assert _printed(capsys, result)[0].split() == ["NAMESPACE", "POD", "GROUP", "NODE", "BACKEND", "DEVICES", "REASON"]


# ------------------------------------------------------------------ equal reasons


def _gang(size: int, **keys) -> list[dict[str, object]]:
    return [POD | {"name": f"training-{index}", "group": "training", "reason": REASON} | keys for index in range(size)]


def _simulated(capsys: pytest.CaptureFixture[str], pods) -> list[str]:
    return _printed(capsys, {"pods": pods, "groups": [], "summary": {"scheduled": 0}})[1:-2]


def test_the_pods_of_a_gang_that_wait_for_one_reason_are_one_row_with_their_count(capsys):
    lines = _simulated(capsys, [*_gang(20), POD | {"name": "other", "reason": REASON}])
    assert lines == [
        f"a          training-0 … training-19 (20 pods)  training  -     {REASON}",
        f"a          other                               -         -     {REASON}",
    ]


def test_two_pods_are_both_named(capsys):
    assert _simulated(capsys, _gang(2)) == [f"a          training-0, training-1  training  -     {REASON}"]


def test_pods_that_are_placed_have_a_row_each(capsys):
    assert len(_simulated(capsys, _gang(3, node="n1", reason=None))) == 3


def test_pods_of_other_namespaces_groups_controllers_or_reasons_are_other_rows(capsys):
    pods = [POD | {"name": "web-0"}, POD | {"name": "web-1", "namespace": "b"}, POD | {"name": "db-2"},
            POD | {"name": "web-3", "group": "g"}, POD | {"name": "web-4", "reason": REASON}]  # fmt: skip
    assert len(_simulated(capsys, pods)) == 5


@pytest.mark.parametrize(("name", "expected"), [
    ("training-19", "training"), ("web-5d4f9c7b8d-x2zwq", "web"), ("train-3-8xk2l", "train"), ("single", "single"),
    ("my-app", "my-app"), ("7", "7"),
])  # fmt: skip
def test_what_controllers_append_is_not_part_of_a_stem(name: str, expected: str):
    assert stem(name) == expected


def test_a_longest_name_of_ambiguous_suffixes_has_its_stem_in_linear_time():
    suffixes = "-22222" * 41  # each is a number and a random suffix: backtracking over both would not end
    assert stem(f"p{suffixes}-app") == f"p{suffixes}-app"
    assert stem(f"pods{suffixes}-a{suffixes}") == f"pods{suffixes}-a"


def test_in_a_gangs_explanation_equal_reasons_are_one_row(capsys):
    group = {"namespace": "a", "name": "g", "minCount": 4, "started": 0, "placeable": 1, "reason": None,
             "placement": {"g-0": "n1"}, "refused": {f"g-{index}": REASON for index in range(1, 5)}}  # fmt: skip
    lines = _printed(capsys, {"pods": [POD | {"nodes": {}}], "groups": [group]})
    assert [line.split() for line in lines[-2:]] == [
        ["g-0", "n1", "-"], ["g-1", "…", "g-4", "(4", "pods)", "-", *REASON.split()]
    ]  # fmt: skip


# ------------------------------------------------------------------ many nodes


def _verdicts(fitting: int, other: int) -> dict[str, object]:
    refused: dict[str, object] = {
        "fits": False,
        "plugin": "NodeResourcesFit",
        "reason": "Insufficient cpu",
        "fitsIf": [],
    }
    return {f"n{index}": {"fits": True, "score": index} for index in range(fitting)} | {
        f"m{index}": refused for index in range(other)
    }


SUMMARY = "5/500 nodes are available: 495 Insufficient cpu."


def _many(count: int = 3) -> list[dict[str, object]]:
    nodes = _verdicts(5, 495)
    return [POD | {"name": f"p-{index}", "reason": None, "summary": SUMMARY, "nodes": nodes} for index in range(count)]


def test_explain_shows_a_summary_instead_of_many_nodes_and_offers_the_table(capsys):
    assert _printed(capsys, {"pods": _many()}) == [
        "a/p-0 … p-2 (3 pods): no plugin rejects the pod as a whole",
        SUMMARY,
        "highest scores: n4 (4), n3 (3), n2 (2)",
        "",
        "To see each node, add --all-nodes.",
    ]


def test_the_first_line_of_a_pod_that_fits_no_node_is_the_summary(capsys):
    summary = "0/500 nodes are available: 500 Insufficient cpu."
    pod = POD | {"reason": None, "summary": summary, "nodes": _verdicts(0, 500)}
    assert _printed(capsys, {"pods": [pod]}) == [f"a/p: {summary}", "", "To see each node, add --all-nodes."]
    assert _printed(capsys, {"pods": [pod]}, all_nodes=True)[0] == f"a/p: {summary}"
    empty = POD | {"reason": None, "summary": "no nodes available to schedule pods", "nodes": {}}
    assert _printed(capsys, {"pods": [empty]}) == ["a/p: no nodes available to schedule pods"]


def test_with_all_nodes_explain_shows_each_of_them(capsys):
    lines = _printed(capsys, {"pods": _many()}, all_nodes=True)
    assert lines[1].split() == ["NODE", "FITS", "SCORE", "PLUGIN", "REASON"]
    assert len(lines) == 2 + 500


def test_pods_with_equal_verdicts_on_few_nodes_share_one_table(capsys):
    pods = [POD | {"name": f"p-{index}", "reason": None, "nodes": _verdicts(1, 2)} for index in range(100)]
    lines = _printed(capsys, {"pods": [*pods, POD | {"name": "p-100", "reason": "x", "nodes": _verdicts(1, 2)}]})
    assert lines[0] == "a/p-0 … p-99 (100 pods): no plugin rejects the pod as a whole"
    assert lines[6] == "a/p-100: x"
    assert len(lines) == 5 + 1 + 5


# ------------------------------------------------------------------ ages

NOW = datetime(2026, 1, 2, 3, 10, tzinfo=UTC)


def _status(capsys: pytest.CaptureFixture[str], *, held=(), waiting=(), now: datetime | None = NOW) -> list[list[str]]:
    result = {"held": held, "waiting": waiting, "queues": [], "summary": {}}
    return [line.split() for line in _printed(capsys, result, now=now)]


def _held(since: str | None, until: str | None = None) -> dict[str, object]:
    return {"namespace": "a", "name": "p", "group": None, "queue": "q", "node": "n", "jobid": None, "devices": [],
            "since": since, "until": until}  # fmt: skip


def _waiting(name: str, since: str | None) -> dict[str, object]:
    return {"namespace": "a", "name": name, "group": None, "queue": "q", "since": since, "nominated": None,
            "reason": "no"}  # fmt: skip


def test_times_are_shown_as_ages(capsys):
    lines = _status(capsys, held=[_held("2026-01-02T03:06:48.123456Z", "2026-01-04T07:10:00Z")])
    assert lines[0] == ["NAMESPACE", "HELD", "BY", "GROUP", "QUEUE", "NODE", "JOBID", "AGE", "ENDS", "IN", "DEVICES"]
    assert lines[1] == ["a", "p", "-", "q", "n", "-", "3m11s", "2d4h", "-"]


def test_an_end_that_has_passed_is_overdue_and_an_unknown_time_is_a_dash(capsys):
    held = [_held(None), _held("2026-01-02T03:00:00Z", "2026-01-02T03:05:00Z")]
    lines = _status(capsys, held=held)
    assert [line[6:-1] for line in lines[1:3]] == [["-", "-"], ["10m", "overdue", "5m"]]


def test_pods_in_one_row_have_the_age_of_the_oldest(capsys):
    times = ["2026-01-02T03:09:58Z", "2026-01-02T03:09:50Z", None]
    lines = _status(capsys, waiting=[_waiting(f"p-{index}", time) for index, time in enumerate(times)])
    assert lines[1] == ["a", "p-0", "…", "p-2", "(3", "pods)", "-", "q", "10s", "-", "no"]


def test_no_time_that_is_shown_is_after_the_one_that_ages_count_up_to(capsys):
    waiting = [_waiting("p", "2026-01-02T03:00:00Z"), _waiting("q", "2026-01-02T03:02:00Z")]
    lines = _status(capsys, waiting=waiting, now=None)
    assert [line[4] for line in lines[1:3]] == ["2m", "0s"]


# ------------------------------------------------------------------ plugins


def _plugin(name: str, **keys) -> dict[str, object]:
    return {"name": name, "origin": "built-in", "distribution": "core", "version": "1.0", "hooks": ("filter", "why"),
            "summary": "Refuses what does not fit. " * 5, "problem": ""} | keys  # fmt: skip


def test_the_list_of_plugins_fits_80_columns_also_where_no_terminal_shows_it(capsys):
    added = _plugin("rack", origin="entry point", distribution="acme", problem="cannot be imported: reinstall it")
    lines = _printed(capsys, {"plugins": [_plugin("NodeResourcesBalancedAllocation"), added]})
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["BUILT-IN", "SUMMARY"]
    assert _words(lines[1 : lines.index("")]) == [
        "NodeResourcesBalancedAllocation",
        *("Refuses what does not fit. " * 5).split(),
    ]
    assert [line.split() for line in lines[-2:]] == [
        ["PLUGIN", "DISTRIBUTION", "SUMMARY"], ["rack", "acme", "1.0", "cannot", "be", "imported:", "reinstall", "it"]
    ]  # fmt: skip


def test_a_table_without_rows_is_only_its_header(capsys: pytest.CaptureFixture[str]):
    print_parts([TableRows(("A", "B"), []), "end"])
    assert capsys.readouterr().out == "A  B\nend\n"


def test_columns_are_aligned_by_the_width_that_a_terminal_shows(capsys: pytest.CaptureFixture[str]):
    print_parts([TableRows(("POD", "COUNT", "NODE"), [("日本", 1, "n1"), ("a", 100, None)], ("COUNT",))])
    assert capsys.readouterr().out.splitlines() == ["POD   COUNT  NODE", "日本      1  n1", "a       100  -"]


def test_a_row_is_one_line_without_control_characters(capsys: pytest.CaptureFixture[str]):
    print_parts([TableRows(("A", "B"), [("x\ty", "b"), ("one\ntwo", "c"), ("a\u2028b", "\x1b[2J")]), "\x1b]0;t\x07"])
    assert capsys.readouterr().out == "A        B\nx y      b\none two  c\na b       [2J\n ]0;t\n"


def test_a_row_with_too_few_cells_is_an_error():
    with pytest.raises(ValueError, match=r"expected rows of 2 cells \(A, B\), got \('x',\)"):
        TableRows(("A", "B"), [("x",)])
    with pytest.raises(ValueError, match="expected a table with columns, got none"):
        TableRows((), [])
