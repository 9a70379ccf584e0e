"""The limits of the ways through the core. The trace runs pytest, so it has a process of its own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from tests.architecture.import_graph import ROOT
from tests.architecture.trace import WAYS, Limit, Way, excess

LIMIT = replace(next(iter(WAYS.values())), test="test", files=2, climbs=1)


def test_a_group_a_watched_object_and_a_decision_take_short_ways() -> None:
    ended = subprocess.run([sys.executable, "-m", "tests.architecture.trace"], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(" climbs: ") == len(WAYS)


@pytest.mark.parametrize(
    ("limit", "way", "wrong"),
    [
        (LIMIT, Way(["a", "b"], [("a", "b")], complete=True), []),
        (LIMIT, Way(["a", "b", "c"], [], complete=True), ["test: 3 files, expected at most 2"]),
        (LIMIT, Way(["a"], [("a", "b"), ("b", "a")], complete=True), ["test: 2 climbs, expected at most 1"]),
        (LIMIT, Way(["a"], []), ["test does not take this way"]),
        (LIMIT, None, ["test failed"]),
    ],
)
def test_a_way_that_is_too_long_or_is_not_taken_is_reported(limit: Limit, way: Way | None, wrong: list[str]) -> None:
    assert excess(limit, way) == wrong
