"""Reads of workloads from a cluster."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fluence_plugins.slurm_bridge.workloads.cluster_reader import ClusterWorkloads
from fluence_plugins.slurm_bridge.workloads.workload import NotAllowedError, Workload, root_of
from session_scheduler.cluster.errors import Forbidden, Unavailable
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.model.meta import ObjectMeta, OwnerReference
from session_scheduler.model.objects import Pod, PodGroupTemplateReference, WorkloadPodGroupTemplateReference
from session_scheduler.model.related import StatefulSet
from session_scheduler.model.workload_objects import (
    Job,
    JobSet,
    JobSpec,
    LeaderWorkerSet,
    LeaderWorkerSetSpec,
    LeaderWorkerTemplate,
)
from session_scheduler.model.workload_objects import Workload as GroupWorkload
from session_scheduler.testing import pod, pod_group

COSCHEDULING = "scheduling.x-k8s.io/v1alpha1"


def owned(name: str, owner: Any = None) -> ObjectMeta:
    owners: tuple[OwnerReference, ...] = ()
    if owner is not None:
        owners = (OwnerReference(api_version=owner.api_version, kind=type(owner).__name__, name=owner.metadata.name,
                                 uid=owner.metadata.uid, controller=True),)  # fmt: skip
    return ObjectMeta(name=name, namespace="physics", owner_references=owners)


def pod_in(name: str, owner: Any = None, **options: Any) -> Pod:
    made = pod(name, **options)
    return replace(made, metadata=replace(owned(name, owner), labels=made.metadata.labels))


async def root(cluster: MemoryCluster, of: Pod) -> Workload:
    return await root_of(of, ClusterWorkloads(cluster))


async def test_a_job_of_a_job_set_is_read() -> None:
    cluster = MemoryCluster()
    job_set = await cluster.create(JobSet(metadata=owned("set")))
    spec = JobSpec(parallelism=4, completions=3, active_deadline_seconds=90)
    job = await cluster.create(Job(metadata=owned("set-0", job_set), spec=spec))
    found = await root(cluster, pod_in("p", job))
    assert (found.kind, found.metadata) == ("JobSet", job_set.metadata)
    assert found.part == Workload(api_version="batch/v1", kind="Job", metadata=job.metadata, parallelism=4,
                                  completions=3, active_deadline_seconds=90)  # fmt: skip


async def test_a_leader_worker_set_is_read_through_its_stateful_sets() -> None:
    cluster = MemoryCluster()
    spec = LeaderWorkerSetSpec(leader_worker_template=LeaderWorkerTemplate(size=4), startup_policy="LeaderReady")
    lws = await cluster.create(LeaderWorkerSet(metadata=owned("serve"), spec=spec))
    leaders = await cluster.create(StatefulSet(metadata=owned("serve", lws)))
    leader = await cluster.create(pod_in("serve-0", leaders))
    workers = await cluster.create(StatefulSet(metadata=owned("serve-0", leader)))
    found = await root(cluster, pod_in("serve-0-1", workers))
    assert (found.kind, found.size, found.startup_policy) == ("LeaderWorkerSet", 4, "LeaderReady")


@pytest.mark.parametrize(("coscheduling", "api_version"), [(False, "scheduling.k8s.io/v1alpha2"), (True, COSCHEDULING)])
async def test_pod_groups_of_both_apis_are_read(coscheduling: bool, api_version: str) -> None:
    cluster = MemoryCluster()
    for native in (True, False):
        await cluster.create(pod_group("ring", 3 if native else 2, namespace="physics", coscheduling=not native))
    named = {"labels": {"scheduling.x-k8s.io/pod-group": "ring"}} if coscheduling else {"group": "ring"}
    found = await root(cluster, pod_in("p", **named))
    assert (found.api_version, found.min_count) == (api_version, 2 if coscheduling else 3)


async def test_the_workload_that_a_native_group_was_made_from_is_read() -> None:
    cluster = MemoryCluster()
    made_from = await cluster.create(GroupWorkload(metadata=owned("train-w")))
    group = pod_group("ring", 3, namespace="physics")
    named = PodGroupTemplateReference(workload=WorkloadPodGroupTemplateReference(workload_name="train-w"))
    await cluster.create(replace(group, spec=replace(group.spec, pod_group_template_ref=named)))
    assert [one.metadata for one in (await root(cluster, pod_in("p", group="ring"))).above] == [made_from.metadata]


async def test_missing_objects_and_unknown_kinds_are_none() -> None:
    workloads = ClusterWorkloads(MemoryCluster())
    assert await workloads.get("batch/v1", "Job", "physics", "none") is None
    assert await workloads.get("batch/v1", "CronJob", "physics", "none") is None


class Refusing(MemoryCluster):
    """Answers all requests with one error."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    async def get(self, *_: Any, **__: Any) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("api_version", "kind", "right"),
    [
        ("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets.jobset.x-k8s.io"),
        ("v1", "Pod", "pods"),
        ("batch/v1", "Job", "jobs.batch"),
    ],
)
async def test_a_missing_permission_is_named(api_version: str, kind: str, right: str) -> None:
    workloads = ClusterWorkloads(Refusing(Forbidden("403")))
    with pytest.raises(NotAllowedError, match=rf"^cannot read {kind} physics/x; .* get {right} \(403\)$"):
        await workloads.get(api_version, kind, "physics", "x")


async def test_an_unreachable_cluster_raises_its_own_error() -> None:
    with pytest.raises(Unavailable):
        await ClusterWorkloads(Refusing(Unavailable("later"))).get("batch/v1", "Job", "physics", "x")
