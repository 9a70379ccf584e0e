"""An upgrade with gang plans in flight and pods bound by an older commit: nothing is lost, and nothing is bound twice.

`upgrade/recorded` has the state that the scheduler of that commit left in a real API server when it was killed. Each
test loads a recording into a cluster, and starts this tree's scheduler. `python -m tests.controlplane.upgrade.live`
does the same with both schedulers, and writes the recordings.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import new_control_plane
from .harness import ControlPlane
from .upgrade.recording import RECORDED, cluster_of, load
from .upgrade.situations import PRIORITIES, SITUATIONS, upgrade


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with new_control_plane(tmp_path_factory.mktemp("upgrade-plane")) as found:
        for priority in PRIORITIES:
            found.create(priority)
        yield found


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_an_older_scheduler_left_is_finished_and_stays(plane: ControlPlane, tmp_path: Path, name: str) -> None:
    situation = SITUATIONS[name]
    with cluster_of(plane, tmp_path, situation, situation.settings) as crash:
        load(crash.world, situation)
        upgrade(crash, situation)


def test_every_recording_is_used() -> None:
    assert {path.stem for path in RECORDED.iterdir()} == set(SITUATIONS)
