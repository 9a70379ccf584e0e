"""Like test_faults_gangs, for a producer and its consumers."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import pytest

from .faults.producers import PRODUCER
from .faults.producers import WRITES as PRODUCER_WRITES
from .faults.writes import KILLS, OTHERS, Kind, count_writes, kind_id, one_write
from .harness import ControlPlane

_CHANCE = random.Random(4)
CASES = [
    *product(KILLS, range(1, PRODUCER_WRITES + 1)),
    *((kind, _CHANCE.randint(1, PRODUCER_WRITES)) for kind in OTHERS),
]
"""Each kill at each write, and each other fault at one."""


def test_a_producers_life_has_as_many_writes_as_the_faults_are_spread_over(
    fault_plane: ControlPlane, tmp_path: Path
) -> None:
    assert count_writes(fault_plane, tmp_path, PRODUCER) >= PRODUCER_WRITES


@pytest.mark.parametrize(("kind", "number"), CASES, ids=kind_id)
def test_a_write_that_goes_wrong_leaves_no_consumer_behind_its_gate(
    fault_plane: ControlPlane, tmp_path: Path, kind: Kind, number: int
) -> None:
    one_write(fault_plane, tmp_path, kind, number, PRODUCER)
