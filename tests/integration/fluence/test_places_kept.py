"""A partly bound gang keeps the device of a member whose bind failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.testing import FakeCluster

DEVICE = "fluxion.flux-framework.org/qpu"


@pytest.mark.parametrize("actions", [("allocate", "preempt"), ("allocate", "preempt", "backfill")])
def test_no_other_pod_gets_the_device_of_a_member_whose_bind_failed(tmp_path: Path, actions: tuple[str, ...]) -> None:
    """All pods fit on the nodes: only the graph's resources are scarce."""
    file = tmp_path / "resources.yaml"
    file.write_text("resources: [{type: qpu, name: q, count: 2}]\n")
    config = SchedulerConfig(actions=actions)
    cluster = FakeCluster(config=config).use("fluence", {"resources": str(file)})
    cluster.nodes(2, cpu="8", offers={DEVICE: 4})
    cluster.gang("g", 2, cpu="1", requests={DEVICE: 1}).pod("late", cpu="1", requests={DEVICE: 1})
    cluster.fail_binds("g-1", times=1).run(cycles=4)
    cluster.assert_pending("g-1").assert_pending("late")
    cluster.advance(1).schedule().assert_bound("g-0").assert_bound("g-1").assert_pending("late")
    cluster.end("g-0").advance(10).schedule().assert_bound("late")
