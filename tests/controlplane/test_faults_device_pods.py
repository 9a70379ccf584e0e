"""Like test_faults_gangs, for a single pod with a device."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import pytest

from .faults.device_pods import (
    DEVICE_POD,
    ended_unheard,
    ended_while_the_api_server_is_away,
    former_leader,
    handed_on_by_six_leaders,
    handed_on_while_watches_break,
)
from .faults.writes import ELECTED_KILLS, KILLS, OTHERS, SLOW, Kind, count_writes, kind_id, one_write
from .harness import ControlPlane

DEVICE_POD_WRITES = 3
"""A device pod's life: its binding, the condition of another pod that waits, and that pod's binding."""
_CHANCE = random.Random(4)
CASES = [
    *product(KILLS, range(1, DEVICE_POD_WRITES + 1)),
    *((kind, _CHANCE.randint(1, DEVICE_POD_WRITES)) for kind in OTHERS),
    (ELECTED_KILLS[0], 3),
    (ELECTED_KILLS[1], 1),
    (SLOW[1], 1),
    (SLOW[1], 3),
]
"""Each kill at each write, each other fault at one, and leaders that are killed or stopped."""


def test_a_device_pods_life_has_as_many_writes_as_the_faults_are_spread_over(
    fault_plane: ControlPlane, tmp_path: Path
) -> None:
    assert count_writes(fault_plane, tmp_path, DEVICE_POD) == DEVICE_POD_WRITES


@pytest.mark.parametrize(("kind", "number"), CASES, ids=kind_id)
def test_a_write_that_goes_wrong_gives_no_device_twice(
    fault_plane: ControlPlane, tmp_path: Path, kind: Kind, number: int
) -> None:
    one_write(fault_plane, tmp_path, kind, number, DEVICE_POD)


@pytest.mark.parametrize("deleted", [False, True], ids=["ended", "deleted"])
def test_the_device_of_a_pod_that_ended_unheard_is_the_next_ones(
    fault_plane: ControlPlane, tmp_path: Path, deleted: bool
) -> None:
    ended_unheard(fault_plane, tmp_path, deleted=deleted)


def test_the_device_of_a_pod_that_ended_as_the_api_server_died_is_the_next_ones(
    fault_plane: ControlPlane, tmp_path: Path
) -> None:
    ended_while_the_api_server_is_away(fault_plane, tmp_path)


def test_a_device_goes_from_pod_to_pod_while_watches_break(fault_plane: ControlPlane, tmp_path: Path) -> None:
    handed_on_while_watches_break(fault_plane, tmp_path, seed=4, pods=4)


def test_a_former_leaders_late_bind_takes_no_device_under_the_fencing_policy(
    fault_plane: ControlPlane, tmp_path: Path
) -> None:
    former_leader(fault_plane, tmp_path)


def test_a_device_goes_from_pod_to_pod_while_leaders_come_and_go(fault_plane: ControlPlane, tmp_path: Path) -> None:
    handed_on_by_six_leaders(fault_plane, tmp_path, seed=4, pods=4)
