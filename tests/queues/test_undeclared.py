"""What docs/how-to/queue-remote-pools.md says of requests for resources without a limit, on an unmodified Kueue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .kueue_peer import UNDECLARED_IGNORED, Kueue
from .plane import WORKLOADS, QueuesPlane
from .samples import JOB, LOCAL_QUEUE, cluster_queue, flavor, read

FLAVOR = "masterqueue-interlink-podman-firenze"
POOL = {"cpu": 8, "memory": "32Gi", "pods": 10}


@pytest.fixture
def strict_plane(kueue_plane: QueuesPlane, worker_kueue: tuple[QueuesPlane, Kueue]) -> Iterator[QueuesPlane]:
    """The plane with a Kueue that checks every resource, as it does by default."""
    _, kueue = worker_kueue
    kueue.restart({})
    try:
        yield kueue_plane
    finally:
        kueue.restart(UNDECLARED_IGNORED)


def lent(plane: QueuesPlane, limits: dict[str, Any]) -> str:
    """The document's Job beside a branch that may borrow this much; the job's name."""
    plane.create(flavor(FLAVOR))
    plane.create(cluster_queue("masterqueue", "masterqueue", {FLAVOR: POOL}))
    plane.create(cluster_queue("group1", "masterqueue", {FLAVOR: dict.fromkeys(limits, 0)}, {FLAVOR: limits}))
    plane.add(read(LOCAL_QUEUE))
    name: str = plane.add(read(JOB))["metadata"]["name"]
    return name


def test_a_job_that_asks_for_more_than_is_lent_by_name_waits(strict_plane: QueuesPlane) -> None:
    job = lent(strict_plane, {"pods": 30})
    why = "unavailable in ClusterQueue"  # before, Kueue may not have heard of the queues yet
    strict_plane.until(WORKLOADS, lambda found: [why in _refused(one) for one in found.values()] == [True])
    assert _suspended(strict_plane, job)


def test_it_is_admitted_where_the_limits_name_all_that_it_asks_for(strict_plane: QueuesPlane) -> None:
    job = lent(strict_plane, {"cpu": 4, "memory": "8Gi", "pods": 30})
    (workload,) = strict_plane.until(
        WORKLOADS, lambda found: any("admission" in one.get("status", {}) for one in found.values())
    ).values()
    (assigned,) = workload["status"]["admission"]["podSetAssignments"]
    assert assigned["resourceUsage"] == {"cpu": "1", "memory": "200Mi", "pods": "1"}
    strict_plane.wait_for(f"/apis/batch/v1/namespaces/default/jobs/{job}", lambda answer: not answer["spec"]["suspend"])


def _suspended(plane: QueuesPlane, job: str) -> bool:
    return bool(plane.request("GET", f"/apis/batch/v1/namespaces/default/jobs/{job}")[1]["spec"]["suspend"])


def _refused(workload: dict[str, Any]) -> str:
    """Why no quota is reserved for it; empty where that is not said."""
    conditions = workload.get("status", {}).get("conditions", ())
    return next(
        (one["message"] for one in conditions if (one["type"], one["status"]) == ("QuotaReserved", "False")), ""
    )
