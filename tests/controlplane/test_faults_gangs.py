"""A part of `make faults` for gangs: SIGKILL at every write of a gang's life, and a sample of the other faults.

In every run each pod is in one place, nothing is allocated twice or without a live owner, each gang is bound
all-or-nothing, and a pod with a device has an annotation that names it.
"""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import pytest

from .faults.leaders import six_leaders
from .faults.outages import (
    api_server_restarted,
    clock_jumps,
    history_forgotten,
    node_lost_after_binds,
    node_lost_before_binds,
    stopped_politely,
    watches_cut,
)
from .faults.writes import ELECTED_KILLS, KILLS, OTHERS, SLOW, Kind, count_writes, kind_id, one_write
from .harness import ControlPlane

WRITES = 11
"""A gang of eight's life: its plan, a binding for each pod, its condition, the removal of its plan."""
_CHANCE = random.Random(4)
CASES = [
    *product(KILLS, range(1, WRITES + 1)),
    *((kind, _CHANCE.randint(1, WRITES)) for kind in OTHERS),
    *((_CHANCE.choice(ELECTED_KILLS), _CHANCE.choice(part)) for part in ((1, 2, 3), (5, 6, 7), (9, 10, 11))),
]
"""Each kill at each write, each other fault at one, and killed leaders: at the start, during the binds, at the end."""


def test_a_gangs_life_has_as_many_writes_as_the_faults_are_spread_over(
    fault_plane: ControlPlane, tmp_path: Path
) -> None:
    assert count_writes(fault_plane, tmp_path) == WRITES


@pytest.mark.parametrize(("kind", "number"), CASES, ids=kind_id)
def test_a_write_that_goes_wrong_leaves_a_gang_whole(
    fault_plane: ControlPlane, tmp_path: Path, kind: Kind, number: int
) -> None:
    one_write(fault_plane, tmp_path, kind, number)


def test_a_leader_that_stood_still_changes_nothing_when_it_goes_on(fault_plane: ControlPlane, tmp_path: Path) -> None:
    one_write(fault_plane, tmp_path, SLOW[1], 4)


@pytest.mark.parametrize(("number", "seconds"), [(5, 2.0), (9, 12.0)], ids=["amid-binds", "after-the-last-bind"])
def test_the_api_servers_crash_is_outlived(
    fault_plane: ControlPlane, tmp_path: Path, number: int, seconds: float
) -> None:
    api_server_restarted(fault_plane, tmp_path, number, seconds)


def test_what_happened_unheard_is_found_where_history_is_forgotten(fault_plane: ControlPlane, tmp_path: Path) -> None:
    history_forgotten(fault_plane, tmp_path)


def test_gangs_come_and_go_while_watches_break(fault_plane: ControlPlane, tmp_path: Path) -> None:
    watches_cut(fault_plane, tmp_path, seed=4, gangs=3)


@pytest.mark.parametrize("number", [1, 4])
def test_a_gang_whose_node_goes_while_it_is_bound_becomes_whole_elsewhere(
    fault_plane: ControlPlane, tmp_path: Path, number: int
) -> None:
    node_lost_before_binds(fault_plane, tmp_path, number)


def test_a_running_gang_whose_node_goes_keeps_the_other_pods(fault_plane: ControlPlane, tmp_path: Path) -> None:
    node_lost_after_binds(fault_plane, tmp_path)


def test_the_time_of_day_decides_nothing(fault_plane: ControlPlane, tmp_path: Path) -> None:
    clock_jumps(fault_plane, tmp_path)


def test_a_scheduler_that_is_asked_to_end_does_so_in_time(fault_plane: ControlPlane, tmp_path: Path) -> None:
    stopped_politely(fault_plane, tmp_path, number=4)


@pytest.mark.parametrize("elected", [True, False], ids=["with-election", "without"])
def test_overlapping_leaders_mix_no_plans(fault_plane: ControlPlane, tmp_path: Path, elected: bool) -> None:
    six_leaders(fault_plane, tmp_path, elected=elected, gangs=20, seed=4)
