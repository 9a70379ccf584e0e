"""A control plane for the tests in this folder: one for each pytest worker, ended with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..tools.real_programs import made, told_where_it_fails
from .harness import ControlPlane
from .scenarios_world import Scenario


def new_control_plane(folder: Path, *, controllers: bool = False, kube_scheduler: bool = False) -> ControlPlane:
    """A control plane, not yet started. Where its programs are not built, tests are skipped; under CI they fail."""
    return made(lambda: ControlPlane(folder, controllers=controllers, kube_scheduler=kube_scheduler))


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd and an API server, with nothing in it but what the API server makes."""
    with new_control_plane(tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane


@pytest.fixture(scope="session")
def fault_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of its own for tests that kill it, and that judge all that is in it."""
    with new_control_plane(tmp_path_factory.mktemp("fault-plane")) as plane:
        yield plane


@pytest.fixture(scope="session")
def scenario_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with everything that clusters have: the controllers, and kube-scheduler for its own pods."""
    folder = tmp_path_factory.mktemp("scenario-plane")
    with new_control_plane(folder, controllers=True, kube_scheduler=True) as plane:
        yield plane


@pytest.fixture
def scenario(request: pytest.FixtureRequest, scenario_plane: ControlPlane, tmp_path: Path) -> Iterator[Scenario]:
    """One scenario's own namespace and nodes; what its schedulers said is shown where the test fails."""
    with Scenario(scenario_plane, tmp_path) as world, told_where_it_fails(request, world.report):
        yield world
