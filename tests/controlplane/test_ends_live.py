"""SIGTERM while the API server does not respond: it is stopped, not killed, so that no connection breaks."""

from __future__ import annotations

import http.client
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import pytest

from .conftest import new_control_plane
from .faults.world import LEASE, World
from .harness import SCHEDULER, ControlPlane
from .proxy import Fault
from .scheduler_process import Ended, SchedulerProcess, Settings

WITHIN = 10.0
"""Seconds within which a scheduler ends after SIGTERM."""
PATIENCE = 60.0
ELECTION = Settings(election=True, lease_seconds=15, renew_seconds=10.0, retry_seconds=2.0)
"""Timeouts as shipped."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A separate control plane, because its API server is stopped."""
    with new_control_plane(tmp_path_factory.mktemp("silent")) as plane:
        yield plane


@contextmanager
def silent(plane: ControlPlane) -> Iterator[None]:
    """Stop the API server; the system still accepts connections for it."""
    handle = plane._programs["kube-apiserver"]._handle
    handle.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        handle.send_signal(signal.SIGCONT)


@pytest.fixture
def scheduler(plane: ControlPlane, tmp_path: Path) -> Iterator[SchedulerProcess]:
    plane.request("DELETE", LEASE)
    with SchedulerProcess(tmp_path, plane.kubeconfig(SCHEDULER), ELECTION) as process:
        yield process


def wait_serving(scheduler: SchedulerProcess) -> None:
    """Wait until it responds to health checks: by then it sends requests to the API server."""

    def serves() -> bool:
        with suppress(OSError, http.client.HTTPException):
            return scheduler.get("/healthz")[0] == HTTPStatus.OK
        return False

    assert scheduler._program is not None
    scheduler._program.wait_until(serves, PATIENCE)


def assert_in_time(ended: Ended, scheduler: SchedulerProcess) -> None:
    assert ended.status == 0, scheduler.tail()
    assert ended.seconds < WITHIN, scheduler.tail()


def test_a_leader_ends_in_time_when_the_api_server_is_silent(plane: ControlPlane, scheduler: SchedulerProcess) -> None:
    scheduler.start()
    scheduler.wait_ready()
    with silent(plane):
        assert_in_time(scheduler.terminate(), scheduler)


def test_a_replica_that_stands_by_ends_in_time_when_the_api_server_is_silent(
    plane: ControlPlane, scheduler: SchedulerProcess, tmp_path: Path
) -> None:
    with SchedulerProcess(tmp_path, plane.kubeconfig(SCHEDULER), ELECTION, "leader") as leader:
        leader.start()
        leader.wait_ready()
        scheduler.start()
        scheduler.wait_ready()
        with silent(plane):
            assert_in_time(scheduler.terminate(), scheduler)


@pytest.mark.parametrize("election", [True, False], ids=["elected", "alone"])
def test_a_replica_that_never_got_an_answer_ends_in_time(
    plane: ControlPlane, scheduler: SchedulerProcess, election: bool
) -> None:
    scheduler.settings = replace(ELECTION, election=election)
    with silent(plane):
        scheduler.start()
        wait_serving(scheduler)
        assert_in_time(scheduler.terminate(), scheduler)


def test_a_leader_with_binds_under_way_ends_in_time_when_the_api_server_is_silent(
    plane: ControlPlane, tmp_path: Path
) -> None:
    with World(plane, tmp_path, ELECTION) as world:
        for _ in range(4):
            world.add_node(devices=0)
        world.create_gang("first", device=False)
        world.keep_alive(False)
        scheduler, proxy = world.new_scheduler(), world.proxies[0]
        held = proxy.at(3, Fault.HOLD)
        scheduler.start()
        world.until("a bind in flight", held.struck.is_set)
        with silent(plane):
            assert_in_time(scheduler.terminate(), scheduler)
        proxy.release(held)
        world.check_now()
        plane.request("DELETE", LEASE)  # so that no replica waits for its end
        scheduler.start()
        world.wait_whole("first")
