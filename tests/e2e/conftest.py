"""One real cluster for the tests that need it, with deploy/ applied as it is; made once, as one fits a machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..controlplane.binaries import MissingBinaries
from .cluster import RealCluster
from .deployed import Deployed
from .inside import SCRATCH
from .node import missing_programs


def _unavailable(why: str) -> None:
    """Where a real node cannot be, tests are skipped; under CI they fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def deployed() -> Iterator[Deployed]:
    """The cluster, with everything of deploy/ ready in it."""
    if SCRATCH not in os.environ:
        _unavailable("a kubelet runs in namespaces of its own: run `make e2e`, as root")
    if missing := missing_programs():
        _unavailable(f"{', '.join(missing)}: not on this machine: run `make e2e-packages`, as root, on a Debian")
    try:
        cluster = RealCluster(Path(os.environ[SCRATCH]))
    except MissingBinaries as missing_binaries:
        _unavailable(str(missing_binaries))
    with cluster:
        world = Deployed(cluster)
        world.apply_all()
        yield world


@pytest.fixture(autouse=True)
def reported(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where a test fails, what the cluster says is shown; pods of a test end with it."""
    failed = request.session.testsfailed
    yield
    if "deployed" in request.fixturenames:
        world: Deployed = request.getfixturevalue("deployed")
        if request.session.testsfailed > failed:
            print(world.report())
        world.tidy()
