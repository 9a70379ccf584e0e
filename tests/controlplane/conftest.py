"""Fixtures with a control plane: one for each pytest worker, stopped with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..tools.real_programs import made, report_on_failure
from .harness import ControlPlane
from .scenarios_world import Scenario


def new_control_plane(folder: Path, *, controllers: bool = False, kube_scheduler: bool = False) -> ControlPlane:
    """A control plane, not yet started. If its programs are missing, tests are skipped; in CI they fail."""
    return made(lambda: ControlPlane(folder, controllers=controllers, kube_scheduler=kube_scheduler))


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd and an API server, with only the API server's own objects."""
    with new_control_plane(tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane


@pytest.fixture(scope="session")
def fault_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A separate control plane for tests that kill it, or that check all of its objects."""
    with new_control_plane(tmp_path_factory.mktemp("fault-plane")) as plane:
        yield plane


@pytest.fixture(scope="session")
def scenario_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with the controllers, and with kube-scheduler for its own pods."""
    folder = tmp_path_factory.mktemp("scenario-plane")
    with new_control_plane(folder, controllers=True, kube_scheduler=True) as plane:
        yield plane


@pytest.fixture
def scenario(request: pytest.FixtureRequest, scenario_plane: ControlPlane, tmp_path: Path) -> Iterator[Scenario]:
    """A scenario with its own namespace and nodes; on failure it prints the schedulers' logs."""
    with Scenario(scenario_plane, tmp_path) as world, report_on_failure(request, world.report):
        yield world
