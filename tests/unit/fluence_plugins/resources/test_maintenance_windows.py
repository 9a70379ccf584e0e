"""Maintenance windows of resources.yaml: what is read, what is refused, and what is closed when."""

from __future__ import annotations

import math

import pytest

from fluence_plugins.resources.config import load_resources
from fluence_plugins.resources.errors import ResourcesError
from fluence_plugins.resources.maintenance_windows import MAX_WINDOWS, NOTHING_CLOSED, Window, closed_for

TREES = "resources: [{type: qpu, name: aurora}, {type: qpu, count: 2}]\n"
TIMES = "start: 2026-11-23T08:00:00Z, end: 2026-11-23T12:00:00Z"
EIGHT, TWELVE = 1795420800.0, 1795435200.0


def test_windows_are_read_with_and_without_virtual_resources() -> None:
    one = f"windows: [{{name: firmware, nodes: [n1, n2, n1], {TIMES}}}]"
    for text in (one, TREES + one):
        assert load_resources(text, "f").windows == (Window(EIGHT, TWELVE, ("n1", "n2"), (), "firmware"),)
    assert load_resources(TREES, "f").windows == ()


def test_a_window_tells_its_name_and_its_times() -> None:
    assert (
        str(Window(EIGHT, TWELVE, name="x")) == "maintenance window x from 2026-11-23T08:00:00Z to 2026-11-23T12:00:00Z"
    )
    assert str(Window(EIGHT, TWELVE)).startswith("maintenance window from 2026")


def test_backends_are_named_as_written_or_numbered() -> None:
    text = f"{TREES}windows: [{{backends: [aurora, qpu0, qpu1], {TIMES}}}]"
    assert load_resources(text, "f").windows[0].backends == ("aurora", "qpu0", "qpu1")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{}", "f: windows: must be a list; start each window with"),
        ("[n1]", "f: windows[0]: must be a mapping"),
        (f"[{{{TIMES}}}]", "f: windows[0]: must have either `nodes:` or `backends:`"),
        (f"[{{nodes: [], {TIMES}}}]", "f: windows[0]: must have either `nodes:` or `backends:`"),
        (f"[{{nodes: [n1], backends: [aurora], {TIMES}}}]", "f: windows[0]: must have either `nodes:` or `backends:`"),
        (f"[{{nodes: n1, {TIMES}}}]", "f: windows[0].nodes: must be a list of names"),
        (f"[{{nodes: [[]], {TIMES}}}]", "f: windows[0].nodes[0]: "),
        (f"[{{backends: [borealis], {TIMES}}}]", "f: windows[0].backends[0]: 'borealis' is not a backend of this file"),
        (f"[{{backends: [qpu], {TIMES}}}]", "f: windows[0].backends[0]: 'qpu' is not a backend"),
        (f"[{{nodes: [n1], until: 3, {TIMES}}}]", "f: windows[0].until: unknown field; use one of"),
        (f"[{{nodes: [n1], name: 'a b', {TIMES}}}]", "f: windows[0].name: 'a b' is not a valid name"),
        ("[{nodes: [n1], end: 2026-11-23T12:00:00Z}]", "f: windows[0].start: is missing; write a time such as"),
        ("[{nodes: [n1], start: tomorrow, end: 2026-11-23T12:00:00Z}]",
         "f: windows[0].start: 'tomorrow' is not a valid time"),
        ("[{nodes: [n1], start: 2026-11-23T12:00:00Z, end: 2026-11-23T08:00:00Z}]", "f: windows[0].end: 2026-11-23T08"),
        ("[{nodes: [n1], start: 2026-02-30T12:00:00Z, end: 2026-11-23T08:00:00Z}]", "f: windows[0].start: "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_by_field_and_remedy(written: str, said: str) -> None:
    with pytest.raises(ResourcesError) as error:
        load_resources(f"{TREES}windows: {written}", "f")
    assert str(error.value).startswith(said)


def test_there_are_bounds() -> None:
    many = f"- {{nodes: [n1], {TIMES}}}\n" * (MAX_WINDOWS + 1)
    with pytest.raises(ResourcesError, match="windows: has more than 1000 entries"):
        load_resources(f"{TREES}windows:\n{many}", "f")
    names = ", ".join(f"n{index}" for index in range(11_000))
    two = f"- {{nodes: [{names}], {TIMES}}}\n" * 2
    with pytest.raises(ResourcesError, match="windows: name more than 20000"):
        load_resources(f"{TREES}windows:\n{two}", "f")


def test_what_would_reach_into_a_window_is_closed_out_and_a_past_window_is_none() -> None:
    windows = (Window(100.0, 200.0, ("n1",)), Window(150.0, 300.0, ("n1", "n2"), name="late"), Window(0, 9, (), ("q",)))
    assert closed_for(windows, 50.0, 100.0) is NOTHING_CLOSED
    assert closed_for(windows, 50.0, 101.0).nodes == {"n1": windows[0]}
    assert closed_for(windows, 50.0, math.inf).nodes == {"n1": windows[1], "n2": windows[1]}
    assert closed_for(windows, 199.0, 200.0).nodes == {"n1": windows[1], "n2": windows[1]}
    assert closed_for(windows, 300.0, math.inf) is NOTHING_CLOSED
    assert closed_for(windows, 5.0, 6.0).backends == {"q": windows[2]}
