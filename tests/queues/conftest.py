"""What the tests in this folder run against: real API servers, Kueue and nats-servers, ended with them.

`plane` has Kueue's definitions and no Kueue; `kueue_plane` has Kueue's controller too. Both are made once for each
pytest worker, and are empty of queues for each test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..tools.real_programs import made, report_on_failure
from .kueue_peer import Kueue
from .nats_peer import Auth, NatsServer
from .plane import QueuesPlane


@pytest.fixture(scope="session")
def worker_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueuesPlane]:
    """The worker's own; for a test, `plane`."""
    folder = tmp_path_factory.mktemp("queues-plane")
    with made(lambda: QueuesPlane(folder)) as plane:
        yield plane


@pytest.fixture(scope="session")
def worker_kueue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[QueuesPlane, Kueue]]:
    """Likewise, for `kueue_plane`."""
    folder = tmp_path_factory.mktemp("kueue-plane")
    with (
        made(lambda: QueuesPlane(folder, controllers=True)) as plane,
        made(lambda: Kueue(folder / "kueue", plane)) as kueue,
    ):
        yield plane, kueue


@pytest.fixture
def plane(worker_plane: QueuesPlane) -> Iterator[QueuesPlane]:
    """An API server with the definitions, without controllers and Kueue."""
    yield worker_plane
    worker_plane.clear()


@pytest.fixture
def kueue_plane(request: pytest.FixtureRequest, worker_kueue: tuple[QueuesPlane, Kueue]) -> Iterator[QueuesPlane]:
    """An API server with Kueue and the controllers of Kubernetes; what Kueue says is shown where the test fails."""
    plane, kueue = worker_kueue
    with report_on_failure(request, lambda: "\n".join(kueue.log.read_text(errors="replace").splitlines()[-40:])):
        yield plane
    plane.clear()


@pytest.fixture
def nats(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NatsServer]:
    """A nats-server with a name and a password; parametrised indirectly, with what `Auth` names."""
    auth = getattr(request, "param", Auth.PASSWORD)
    with made(lambda: NatsServer(tmp_path / "nats", auth=auth)) as server:
        yield server


@pytest.fixture
def tls_nats(tmp_path: Path) -> Iterator[NatsServer]:
    """A nats-server with a name and a password that speaks TLS alone; `ca_file` verifies it."""
    with made(lambda: NatsServer(tmp_path / "nats", tls=True)) as server:
        yield server
