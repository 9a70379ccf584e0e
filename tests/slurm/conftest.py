"""A real Slurm for the tests in this folder: one for each pytest worker, ended with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .peer import SlurmPeer
from .programs import MissingSlurm


def new_peer(logs: Path) -> SlurmPeer:
    """A Slurm, not yet started. Where it cannot run, tests are skipped; under CI they fail."""
    try:
        return SlurmPeer(logs)
    except MissingSlurm as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def worker_peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmPeer]:
    """The worker's own; for a test, `peer`."""
    with new_peer(tmp_path_factory.mktemp("slurm")) as slurm:
        yield slurm


@pytest.fixture
def peer(request: pytest.FixtureRequest, worker_peer: SlurmPeer) -> Iterator[SlurmPeer]:
    """Slurm without nodes and without jobs that have not ended; what it says is shown where the test fails."""
    failed = request.session.testsfailed
    worker_peer.write_token()
    yield worker_peer
    if request.session.testsfailed > failed:
        print(worker_peer.report())
    worker_peer.clear()
