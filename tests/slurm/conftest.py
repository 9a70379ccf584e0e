"""A real Slurm for the tests in this folder: one for each pytest worker, ended with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..controlplane.conftest import new_control_plane
from ..controlplane.harness import ControlPlane
from ..tools.real_programs import made, report_on_failure
from .bridge_world import BridgeWorld, give_rights
from .peer import SlurmPeer


@pytest.fixture(scope="session")
def worker_peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmPeer]:
    """The worker's own; for a test, `peer`."""
    logs = tmp_path_factory.mktemp("slurm")
    with made(lambda: SlurmPeer(logs)) as slurm:
        yield slurm


@pytest.fixture
def peer(request: pytest.FixtureRequest, worker_peer: SlurmPeer) -> Iterator[SlurmPeer]:
    """Slurm without nodes and without jobs that have not ended; what it says is shown where the test fails."""
    worker_peer.write_token()
    with report_on_failure(request, worker_peer.report):
        yield worker_peer
    worker_peer.clear()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane for the module's tests of the bridge, with the rights of the option for Slurm."""
    with new_control_plane(tmp_path_factory.mktemp("bridge-plane"), controllers=True) as control_plane:
        give_rights(control_plane)
        yield control_plane


@pytest.fixture
def world(
    plane: ControlPlane, peer: SlurmPeer, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[BridgeWorld]:
    """The bridge between both; what was said is shown where the test fails."""
    with BridgeWorld(plane, tmp_path, peer=peer) as bridge, report_on_failure(request, bridge.report):
        yield bridge
