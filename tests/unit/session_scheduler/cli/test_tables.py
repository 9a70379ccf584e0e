import sys

import pytest

from session_scheduler.cli.tables import print_tables

POD = {"namespace": "a", "name": "p", "group": None, "node": None, "backend": None, "reason": "[bold]no[/bold] room"}


def _printed(capsys: pytest.CaptureFixture[str], result) -> list[str]:
    print_tables(result)
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
    lines = _printed(capsys, {"pods": [POD | {"reason": None, "nodes": {"n": verdict}}]})
    assert lines[-1] == "n: Insufficient cpu"


def test_on_a_wide_terminal_reasons_are_a_column(terminal, capsys: pytest.CaptureFixture[str]):
    terminal(120)
    lines = _printed(capsys, {"pods": [POD | {"reason": REASON}], "groups": [], "summary": {"scheduled": 0}})
    assert lines[0].split()[-1] == "REASON"
    assert lines[1].rstrip().endswith(REASON)
