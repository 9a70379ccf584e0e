"""Like test_faults_gangs, for a gang with reserved devices."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .faults.reserved import RESERVED
from .faults.reserved import WRITES as RESERVED_WRITES
from .faults.writes import KILLS, OTHERS, Kind, count_writes, kind_id, one_write
from .harness import ControlPlane

_CHANCE = random.Random(4)
CASES = [(kind, _CHANCE.randint(1, RESERVED_WRITES)) for kind in (*KILLS, *OTHERS)]


def test_a_kept_gangs_life_has_as_many_writes_as_the_faults_are_spread_over(
    fault_plane: ControlPlane, tmp_path: Path
) -> None:
    assert count_writes(fault_plane, tmp_path, RESERVED) >= RESERVED_WRITES


@pytest.mark.parametrize(("kind", "number"), CASES, ids=kind_id)
def test_a_write_that_goes_wrong_gives_no_reserved_device_away(
    fault_plane: ControlPlane, tmp_path: Path, kind: Kind, number: int
) -> None:
    one_write(fault_plane, tmp_path, kind, number, RESERVED)
