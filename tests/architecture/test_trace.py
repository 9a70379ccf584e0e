"""The limits of the call paths through the core. The trace runs pytest, so it runs in a separate process."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from tests.architecture.import_graph import ROOT
from tests.architecture.trace import CALL_PATHS, CallPath, Limit, excess

LIMIT = replace(next(iter(CALL_PATHS.values())), test="test", files=2, climbs=1)


def test_a_group_a_watched_object_and_a_decision_take_short_paths() -> None:
    ended = subprocess.run([sys.executable, "-m", "tests.architecture.trace"], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(" climbs: ") == len(CALL_PATHS)


@pytest.mark.parametrize(
    ("limit", "path", "wrong"),
    [
        (LIMIT, CallPath(["a", "b"], [("a", "b")], complete=True), []),
        (LIMIT, CallPath(["a", "b", "c"], [], complete=True), ["test: 3 files, expected at most 2"]),
        (LIMIT, CallPath(["a"], [("a", "b"), ("b", "a")], complete=True), ["test: 2 climbs, expected at most 1"]),
        (LIMIT, CallPath(["a"], []), ["test does not take this path"]),
        (LIMIT, None, ["test failed"]),
    ],
)
def test_a_path_too_long_or_not_taken_is_reported(limit: Limit, path: CallPath | None, wrong: list[str]) -> None:
    assert excess(limit, path) == wrong
