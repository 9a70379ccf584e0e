"""A short run of the soak; a broken rule is found, reported, and reduced to the necessary events."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fluence_plugins.fluence.graph.allocations import Allocations

from .run import Found, fewest, options, play, run, summary

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("seed", "policy"), [(1, "first"), (2, "low")])
def test_some_minutes_of_random_events_break_no_rule(seed: int, policy: str) -> None:
    lines: list[str] = []
    given = options(["--minutes", "4", "--seed", str(seed), "--policy", policy, "--every", "60", "--no-shrink"])
    found = run(given, lines.append)
    assert found.good, found.problem
    assert found.events > 60
    assert len(lines) == found.rests
    assert list(summary(found))[-1] == "no rule was broken"


def test_equal_seeds_play_alike() -> None:
    def played() -> tuple[int, dict[str, int], str]:
        found = Found(5, "first")
        play(found, iter(range(40)), lambda _: False, every=100, report=lambda _: None)
        return found.bound, found.counts, found.problem

    assert played() == played()


def test_a_broken_rule_is_found_and_reduced_to_few_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler frees nothing when a pod ends."""
    monkeypatch.setattr(Allocations, "free", lambda *_: None)
    found = Found(1, "first")
    played = play(found, iter(range(60)), lambda _: False, every=100, report=lambda _: None)
    assert found.problem.partition("\n")[0].endswith("runs nowhere")
    found.fewest = fewest(found, played, every=100, seconds=60)
    assert 1 <= len(found.fewest) < len(played)

    def breaks_it(events: list[int]) -> bool:
        again = Found(1, "first")
        play(again, iter(events), lambda _: False, every=100, report=lambda _: None)
        return again.problem.partition("\n")[0].endswith("runs nowhere")

    assert breaks_it(found.fewest)
    assert not any(breaks_it([one for one in found.fewest if one != left_out]) for left_out in found.fewest)
    assert f"--only {','.join(map(str, found.fewest))}" in list(summary(found))[-1]


def test_the_command_prints_and_writes_its_result(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = [sys.executable, "-m", "tests.soak.run", "--minutes", "0.5", "--every", "10", "--json", str(file)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1] == "no rule was broken"
    found: dict[str, Any] = json.loads(file.read_text())
    assert (found["seed"], found["problem"], found["steady"]) == (1, "", True)
