"""The workload of a pod."""

from __future__ import annotations

import pytest
from tests.tools.slurm_workloads import COSCHEDULING, Stored, pod_of, workload

from fluence_plugins.slurm_bridge.workloads.workload import (
    DEPTH,
    JOB,
    NotAllowedError,
    TranslationError,
    root_of,
    workload_of,
)

JOBSET = workload("JobSet", "set", asked={"qos": "of-the-set"})
SET_JOB = workload("Job", "set-workers-0", owner=JOBSET, parallelism=4)
LWS = workload("LeaderWorkerSet", "serve", size=4)


async def test_a_pod_without_owner_is_its_own_root() -> None:
    pod, workloads = pod_of(None, "p"), Stored()
    assert await root_of(pod, workloads) == workload_of(pod)
    assert workloads.asked == []


async def test_a_pod_of_a_job_has_the_job_as_its_root() -> None:
    job = workload("Job", "train")
    assert await root_of(pod_of(job, "train-0"), Stored(job)) == job


async def test_the_highest_known_owner_is_the_root_and_knows_the_job_between() -> None:
    root = await root_of(pod_of(SET_JOB, "p"), Stored(JOBSET, SET_JOB))
    assert (root.kind, root.metadata.name, root.part) == ("JobSet", "set", SET_JOB)


async def test_owners_above_the_known_kinds_are_not_read() -> None:
    cron = workload("CronJob", "nightly")
    job = workload("Job", "nightly-1", owner=cron)
    workloads = Stored(job)
    assert await root_of(pod_of(job, "p"), workloads) == job
    assert workloads.asked == ["Job physics/nightly-1"]


async def test_a_worker_is_of_the_set_above_its_leader() -> None:
    leaders = workload("StatefulSet", "serve", owner=LWS)
    leader = workload("Pod", "serve-0", owner=leaders)
    workers = workload("StatefulSet", "serve-0", owner=leader)
    workloads = Stored(LWS, leaders, leader, workers)
    assert await root_of(pod_of(workers, "serve-0-1"), workloads) == LWS
    assert await root_of(pod_of(leaders, "serve-0"), workloads) == LWS


async def test_a_pod_of_a_stateful_set_without_an_owner_is_its_own_root() -> None:
    owner, pod = workload("StatefulSet", "db"), pod_of(workload("StatefulSet", "db"), "db-0")
    assert await root_of(pod, Stored(owner)) == workload_of(pod)


async def test_another_version_of_an_api_is_the_same_kind() -> None:
    newer = workload("JobSet", "set", api_version="jobset.x-k8s.io/v1")
    job = workload("Job", "set-0", owner=newer)
    assert (await root_of(pod_of(job, "p"), Stored(newer, job))).metadata.name == "set"


@pytest.mark.parametrize("native", [True, False])
async def test_a_pod_group_has_precedence_over_owners(native: bool) -> None:
    job = workload("Job", "train", asked={"account": "a"})
    group = workload("PodGroup", "ring", min_count=2)
    pod = pod_of(job, "p", group="ring") if native else pod_of(job, "p", labels={"scheduling.k8s.io/pod-group": "ring"})
    root = await root_of(pod, Stored(job, group))
    assert (root.kind, root.metadata.name, root.min_count, root.above) == ("PodGroup", "ring", 2, (job,))


@pytest.mark.parametrize("there", [True, False])
async def test_the_workload_of_a_native_group_has_precedence_over_its_owner(there: bool) -> None:
    job, made_from = workload("Job", "train"), workload("Workload", "train-w")
    group = workload("PodGroup", "ring", template="train-w")
    stored = Stored(job, group, *([made_from] if there else []))
    assert (await root_of(pod_of(job, "p", group="ring"), stored)).above == ((made_from, job) if there else (job,))


async def test_the_native_group_has_precedence_over_the_coscheduling_group() -> None:
    native, other = workload("PodGroup", "ring"), workload("PodGroup", "old", api_version=COSCHEDULING)
    pod = pod_of(None, "p", group="ring", labels={"scheduling.x-k8s.io/pod-group": "old"})
    assert (await root_of(pod, Stored(native, other))).metadata.name == "ring"


async def test_a_coscheduling_group_has_precedence_over_owners() -> None:
    job, group = workload("Job", "train"), workload("PodGroup", "ring", api_version=COSCHEDULING)
    native = workload("PodGroup", "ring")
    pod = pod_of(job, "p", labels={"scheduling.x-k8s.io/pod-group": "ring"})
    assert await root_of(pod, Stored(job, group, native)) == group
    assert await root_of(pod, Stored(job, native)) == native


async def test_a_missing_pod_group_is_named() -> None:
    with pytest.raises(TranslationError, match=r"^Pod physics/p: PodGroup physics/ring does not exist; "):
        await root_of(pod_of(None, "p", group="ring"), Stored())


async def test_a_missing_owner_is_named() -> None:
    with pytest.raises(TranslationError, match=r"its owner Job physics/train \(uid uid-Job-train\) is gone"):
        await root_of(pod_of(workload("Job", "train"), "p"), Stored())


async def test_another_object_of_the_owners_name_is_not_the_owner() -> None:
    with pytest.raises(TranslationError, match="was replaced by another object of that name"):
        await root_of(pod_of(workload("Job", "train"), "p"), Stored(workload("Job", "train", uid="new")))


async def test_a_known_owner_without_permission_is_an_error() -> None:
    with pytest.raises(NotAllowedError, match="allow the scheduler to get"):
        await root_of(pod_of(SET_JOB, "p"), Stored(JOBSET, SET_JOB, forbidden=[JOBSET.of_kind]))
    with pytest.raises(NotAllowedError, match="allow the scheduler to get"):
        await root_of(pod_of(SET_JOB, "p"), Stored(JOBSET, SET_JOB, forbidden=[JOB]))


async def test_an_owner_above_a_known_kind_without_permission_is_ignored() -> None:
    above = workload("ReplicaSet", "operator")
    job = workload("Job", "train", owner=above)
    assert await root_of(pod_of(job, "p"), Stored(job, above, forbidden=[above.of_kind])) == job


async def test_owners_that_own_each_other_are_rejected() -> None:
    first = workload("Job", "a", owner=workload("Job", "b"))
    second = workload("Job", "b", owner=first)
    with pytest.raises(TranslationError, match=r"owner references form a cycle through Job physics/a"):
        await root_of(pod_of(first, "p"), Stored(first, second))


@pytest.mark.parametrize("above", [DEPTH, DEPTH + 1])
async def test_the_number_of_owners_is_limited(above: int) -> None:
    chain = [workload("Job", "j0")]
    for number in range(1, above):
        chain.append(workload("Job", f"j{number}", owner=chain[-1]))
    pod = pod_of(chain[-1], "p")
    if above <= DEPTH:
        assert (await root_of(pod, Stored(*chain))).metadata.name == "j0"
    else:
        with pytest.raises(TranslationError, match="its chain of owners is longer than 32"):
            await root_of(pod, Stored(*chain))
