"""Workloads: creation of the pods that their controllers would create, without those that exist."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest

from session_scheduler.model.objects import Pod

from .loading import load, node, pod, selecting, template, workload

INDEX = "batch.kubernetes.io/job-completion-index"
ONCE: dict[str, Any] = {"restartPolicy": "Never"}


def names(*manifests: dict[str, Any]) -> list[str]:
    return [p.metadata.name for p in load(*manifests).pods]


def made(*manifests: dict[str, Any]) -> dict[str, Pod]:
    return {p.metadata.name: p for p in load(*manifests).pods}


def owned(name: str, kind: str, owner: str, *, phase: str = "Running", **fields: Any) -> dict[str, Any]:
    """Return a saved pod with a controller with the uid `<owner>-uid`."""
    spec = fields.pop("spec", {"nodeName": "n"})
    return {**pod(name, spec=spec, ownerReferences=controller(kind, owner), **fields), "status": {"phase": phase}}


def controller(kind: str, owner: str) -> list[dict[str, Any]]:
    return [{"apiVersion": "x/v1", "kind": kind, "name": owner, "uid": f"{owner}-uid", "controller": True}]


def saved(kind: str, spec: dict[str, Any], name: str = "w", **metadata: Any) -> dict[str, Any]:
    """Return a workload with a uid, as in a saved cluster."""
    return workload(kind, spec, name, metadata={"uid": f"{name}-uid", **metadata})


# ---------------------------------------------------------------------- replicas


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet"])
def test_replicas_become_pods_named_after_their_owner(kind: str) -> None:
    pods = made(workload(kind, selecting(replicas=3), metadata={"namespace": "team"}))
    assert list(pods) == ["w-0", "w-1", "w-2"]
    (ref,) = pods["w-1"].metadata.owner_references
    assert (ref.kind, ref.name, ref.controller) == (kind, "w", True)
    assert pods["w-1"].metadata.namespace == "team"
    assert pods["w-1"].metadata.labels["app"] == "w"
    assert len({p.metadata.uid for p in pods.values()}) == 3


def test_a_replication_controller_makes_its_replicas_with_and_without_a_selector() -> None:
    spec = {"replicas": 2, "template": template()}
    owned = pod("w-x", ownerReferences=[{"apiVersion": "v1", "kind": "ReplicationController", "name": "w", "uid": "u",
                                         "controller": True}])  # fmt: skip
    for fields in ({}, {"selector": {"app": "w"}}):
        loaded = load(workload("ReplicationController", {**spec, **fields}, metadata={"uid": "u"}), owned)
        assert [p.metadata.name for p in loaded.pods] == ["w-0", "w-x"]
        assert loaded.pods[0].metadata.owner_references[0].kind == "ReplicationController"


def test_the_default_number_of_replicas_is_one() -> None:
    assert names(workload("Deployment", selecting())) == ["w-0"]
    assert names(workload("Deployment", selecting(replicas=0))) == []


def test_pods_are_at_the_position_of_their_workload_in_the_file() -> None:
    assert names(pod("a"), workload("Deployment", selecting(replicas=2)), pod("b")) == ["a", "w-0", "w-1", "b"]


def test_a_stateful_sets_pods_carry_their_ordinal() -> None:
    pods = made(workload("StatefulSet", selecting(replicas=2, ordinals={"start": 5})))
    assert [p.metadata.labels["apps.kubernetes.io/pod-index"] for p in pods.values()] == ["5", "6"]
    assert list(pods) == ["w-5", "w-6"]


def test_only_missing_pods_are_created_and_ended_pods_do_not_count() -> None:
    pods = [owned("w-x", "ReplicaSet", "w"), owned("w-y", "ReplicaSet", "w", phase="Failed"),
            owned("w-z", "ReplicaSet", "w", deletionTimestamp="2026-01-01T00:00:00Z"),
            owned("w-0", "ReplicaSet", "another")]  # fmt: skip
    found = names(*pods, saved("ReplicaSet", selecting(replicas=3)))
    assert found[4:] == ["w-1", "w-2"]


def test_a_deployments_pods_are_found_through_its_replica_sets() -> None:
    deployment = saved("Deployment", selecting(replicas=3), "d")
    replica_set = saved("ReplicaSet", selecting(replicas=3), "r", ownerReferences=controller("Deployment", "d"))
    pods = [owned("r-x", "ReplicaSet", "r"), owned("r-y", "ReplicaSet", "r")]
    assert names(deployment, replica_set, *pods) == ["d-0", "r-x", "r-y"]
    assert names(replica_set, *pods) == ["r-0", "r-x", "r-y"]


def test_workloads_may_own_themselves_and_each_other_and_be_deeper_than_the_recursion_limit() -> None:
    alone = saved("ReplicaSet", selecting(replicas=2), "r", ownerReferences=controller("ReplicaSet", "r"))
    assert names(alone, owned("r-x", "ReplicaSet", "r")) == ["r-0", "r-x"]
    ring = [saved("ReplicaSet", selecting(replicas=2), name, ownerReferences=controller("ReplicaSet", other))
            for name, other in (("a", "b"), ("b", "a"))]  # fmt: skip
    assert names(*ring, owned("a-x", "ReplicaSet", "a")) == ["a-0", "b-0", "a-x"]
    deep = [saved("ReplicaSet", selecting(replicas=1), f"r{n}", ownerReferences=controller("ReplicaSet", f"r{n - 1}"))
            for n in range(300)]  # fmt: skip
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 250)
    try:
        assert names(*deep, owned("last", "ReplicaSet", "r299")) == ["last"]
    finally:
        sys.setrecursionlimit(limit)


def test_a_deployments_pods_are_found_by_its_selector_if_the_list_has_no_replica_sets() -> None:
    deployment = saved("Deployment", selecting(replicas=2), "d")
    pods = [owned("r-x", "ReplicaSet", "r", labels={"app": "w"}), owned("q-x", "ReplicaSet", "q", labels={"app": "q"})]
    assert names(deployment, *pods) == ["d-0", "r-x", "q-x"]


def test_a_stateful_set_fills_the_gaps_between_its_pods() -> None:
    assert names(saved("StatefulSet", selecting(replicas=3)), owned("w-1", "StatefulSet", "w")) == [
        "w-0", "w-2", "w-1"
    ]  # fmt: skip


def test_pods_are_matched_by_kind_and_name_if_the_owner_has_no_uid() -> None:
    assert names(workload("ReplicaSet", selecting(replicas=2)), owned("w-x", "ReplicaSet", "w")) == ["w-0", "w-x"]
    assert names(workload("Deployment", selecting()), owned("w-x", "StatefulSet", "w")) == ["w-0", "w-x"]


# ---------------------------------------------------------------------- jobs


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ({}, 1),
        ({"parallelism": 3}, 3),
        ({"parallelism": 3, "completions": 2}, 2),
        ({"parallelism": 2, "completions": 5}, 2),
        ({"parallelism": 0}, 0),
        ({"parallelism": 3, "suspend": True}, 0),
    ],
)
def test_a_job_starts_as_many_pods_as_may_run_at_once(spec: dict[str, Any], count: int) -> None:
    job = workload("Job", {**spec, "template": template(**ONCE)})
    assert names(job) == [f"w-{i}" for i in range(count)]


def test_an_indexed_jobs_pods_carry_their_index() -> None:
    spec = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template(**ONCE)}
    pods = made(workload("Job", spec))
    assert [p.metadata.annotations[INDEX] for p in pods.values()] == ["0", "1"]
    assert [p.metadata.labels[INDEX] for p in pods.values()] == ["0", "1"]
    assert pods["w-1"].metadata.labels["batch.kubernetes.io/job-name"] == "w"


def test_a_jobs_ended_pods_are_not_started_again() -> None:
    spec = {"parallelism": 3, "completions": 4, "template": template(**ONCE)}
    pods = [owned("w-a", "Job", "w", phase="Succeeded"), owned("w-b", "Job", "w", phase="Succeeded"),
            owned("w-c", "Job", "w")]  # fmt: skip
    assert names(saved("Job", spec), *pods) == ["w-0", "w-a", "w-b", "w-c"]


def test_an_indexed_job_starts_the_lowest_indexes_that_are_neither_done_nor_running() -> None:
    spec = {"parallelism": 3, "completions": 8, "completionMode": "Indexed", "template": template(**ONCE)}
    job = {**saved("Job", spec), "status": {"succeeded": 3, "completedIndexes": "0,2-3"}}
    running = owned("w-4-x", "Job", "w", annotations={INDEX: "4"})
    failed = owned("w-1", "Job", "w", phase="Failed", annotations={INDEX: "1"})
    assert names(running, failed, job) == ["w-4-x", "w-1", "w-1-0", "w-5"]


@pytest.mark.parametrize("condition", ["Complete", "Failed"])
def test_a_finished_job_starts_nothing(condition: str) -> None:
    job = saved("Job", {"template": template(**ONCE)})
    assert names({**job, "status": {"conditions": [{"type": condition, "status": "True"}]}}) == []


def test_a_work_queue_that_has_begun_to_drain_starts_nothing_more() -> None:
    job = saved("Job", {"parallelism": 3, "template": template(**ONCE)})
    assert names(job, owned("w-a", "Job", "w", phase="Succeeded")) == ["w-a"]


def test_a_cron_job_is_one_job_of_its_template_unless_it_has_one_or_is_suspended() -> None:
    spec = {"jobTemplate": {"spec": {"parallelism": 2, "template": template(**ONCE)}}}
    assert names(workload("CronJob", spec)) == ["w-0", "w-1"]
    assert names(workload("CronJob", {**spec, "suspend": True})) == []
    job = saved(
        "Job", {"parallelism": 2, "template": template(**ONCE)}, "w-1", ownerReferences=controller("CronJob", "w")
    )
    assert names(saved("CronJob", spec), job) == ["w-1-0", "w-1-1"]


# ---------------------------------------------------------------------- sets of jobs and of groups


def test_the_default_restart_policy_of_a_job_set_is_on_failure() -> None:
    jobs = [{"name": "a", "template": {"spec": {"template": template()}}}]
    assert names(workload("JobSet", {"replicatedJobs": jobs})) == ["w-a-0-0"]


def job_set() -> dict[str, Any]:
    jobs = [
        {"name": "driver", "template": {"spec": {"template": template(**ONCE)}}},
        {"name": "worker", "replicas": 2, "template": {"spec": {"parallelism": 2, "template": template(**ONCE)}}},
    ]
    return {"replicatedJobs": jobs}


def test_a_job_sets_pods_are_those_of_its_jobs() -> None:
    pods = made(workload("JobSet", job_set()))
    assert list(pods) == ["w-driver-0-0", "w-worker-0-0", "w-worker-0-1", "w-worker-1-0", "w-worker-1-1"]
    last = pods["w-worker-1-1"].metadata
    assert last.labels["jobset.sigs.k8s.io/jobset-name"] == "w"
    assert last.labels["jobset.sigs.k8s.io/replicatedjob-name"] == "worker"
    assert last.labels["jobset.sigs.k8s.io/job-index"] == "1"
    assert last.labels["job-name"] == "w-worker-1"
    assert last.annotations[INDEX] == "1"
    assert last.owner_references[0].kind == "JobSet"


def test_existing_jobs_of_a_job_set_are_not_created_again() -> None:
    job = saved(
        "Job", {"parallelism": 2, "template": template(**ONCE)}, "w-worker-0", ownerReferences=controller("JobSet", "w")
    )
    expected = ["w-driver-0-0", "w-worker-1-0", "w-worker-1-1"]
    assert names(saved("JobSet", job_set()), job) == [*expected, "w-worker-0-0", "w-worker-0-1"]
    without_jobs = owned("w-worker-0-0-x", "Job", "w-worker-0", labels={"jobset.sigs.k8s.io/jobset-name": "w"})
    assert names(saved("JobSet", job_set()), without_jobs) == [*expected, "w-worker-0-0-x"]
    assert names(saved("JobSet", {**job_set(), "suspend": True})) == []


def leader_workers(**fields: Any) -> dict[str, Any]:
    both = {"size": 3, "workerTemplate": template(nodeSelector={"role": "worker"}), **fields}
    return {"replicas": 2, "leaderWorkerTemplate": both}


def test_a_leader_worker_set_is_groups_of_a_leader_and_its_workers() -> None:
    pods = made(workload("LeaderWorkerSet", leader_workers(leaderTemplate=template(nodeSelector={"role": "leader"}))))
    assert list(pods) == ["w-0", "w-0-1", "w-0-2", "w-1", "w-1-1", "w-1-2"]
    assert pods["w-1"].spec.node_selector == {"role": "leader"}
    assert pods["w-1-2"].spec.node_selector == {"role": "worker"}
    assert pods["w-1-2"].metadata.labels["leaderworkerset.sigs.k8s.io/group-index"] == "1"
    assert pods["w-1-2"].metadata.labels["leaderworkerset.sigs.k8s.io/worker-index"] == "2"


def test_without_a_leader_template_the_leader_is_a_worker() -> None:
    assert made(workload("LeaderWorkerSet", leader_workers()))["w-0"].spec.node_selector == {"role": "worker"}


def test_a_leader_worker_sets_stateful_sets_and_pods_are_not_made_twice() -> None:
    stateful = saved("StatefulSet", selecting(replicas=2), "w", ownerReferences=controller("LeaderWorkerSet", "w"))
    workers = saved(
        "StatefulSet", selecting(replicas=2, ordinals={"start": 1}), "w-0", ownerReferences=controller("Pod", "w-0")
    )
    pods = [owned("w-0", "StatefulSet", "w"), owned("w-0-1", "StatefulSet", "w-0")]
    found = names(saved("LeaderWorkerSet", leader_workers()), stateful, workers, *pods)
    assert found == ["w-0-2", "w-1", "w-1-1", "w-1-2", "w-0", "w-0-1"]


# ---------------------------------------------------------------------- daemons


def test_a_daemon_set_has_a_pod_for_each_node_that_it_would_select() -> None:
    nodes = [node("plain"), node("ssd", labels={"disk": "ssd"}),
             node("tainted", labels={"disk": "ssd"}, taints=[{"key": "a", "effect": "NoSchedule"}]),
             node("preferred", labels={"disk": "ssd"}, taints=[{"key": "a", "effect": "PreferNoSchedule"}]),
             node("cordoned", labels={"disk": "ssd"}, unschedulable=True,
                  taints=[{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}])]  # fmt: skip
    daemon = workload("DaemonSet", selecting(template=template(nodeSelector={"disk": "ssd"})))
    pods = made(daemon, *nodes)
    assert {name: bound_to(p) for name, p in pods.items()} == {"w-0": "ssd", "w-1": "preferred", "w-2": "cordoned"}


def bound_to(made_pod: Pod) -> str:
    affinity = made_pod.spec.affinity
    assert affinity is not None
    assert affinity.node_affinity is not None
    assert affinity.node_affinity.required is not None
    (term,) = affinity.node_affinity.required.node_selector_terms
    (field,) = term.match_fields
    assert (field.key, field.operator, term.match_expressions) == ("metadata.name", "In", ())
    return field.values[0]


@pytest.mark.parametrize(
    ("operator", "values", "selected"),
    [("In", ["8"], ["b"]), ("NotIn", ["8"], ["a", "c"]), ("Exists", [], ["b", "c"]), ("DoesNotExist", [], ["a"]),
     ("Gt", ["8"], ["c"]), ("Lt", ["9"], ["b"])],
)  # fmt: skip
def test_a_daemon_sets_node_affinity_decides_and_is_replaced(
    operator: str, values: list[str], selected: list[str]
) -> None:
    terms = [{"matchExpressions": [{"key": "gen", "operator": operator, "values": values}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    daemon = workload("DaemonSet", selecting(template=template(affinity=affinity)))
    nodes = [node("a"), node("b", labels={"gen": "8"}), node("c", labels={"gen": "9"})]
    assert [bound_to(p) for p in load(daemon, *nodes).pods] == selected


def test_daemon_pods_get_the_controllers_tolerations() -> None:
    def tolerated(**spec: Any) -> set[tuple[str, str]]:
        (made_pod,) = load(workload("DaemonSet", selecting(template=template(**spec))), node("n")).pods
        return {(t.key.removeprefix("node.kubernetes.io/"), t.effect) for t in made_pod.spec.tolerations}

    usual = {
        ("not-ready", "NoExecute"), ("unreachable", "NoExecute"), ("unschedulable", "NoSchedule"),
        ("disk-pressure", "NoSchedule"), ("memory-pressure", "NoSchedule"), ("pid-pressure", "NoSchedule"),
    }  # fmt: skip
    assert tolerated() == usual
    own = [{"key": "own", "operator": "Exists", "effect": "NoSchedule"}]
    assert tolerated(tolerations=own, hostNetwork=True) == {
        *usual, ("own", "NoSchedule"), ("network-unavailable", "NoSchedule")
    }  # fmt: skip


def test_nodes_that_have_their_daemon_pod_get_no_second_one() -> None:
    bound = owned("w-x", "DaemonSet", "w", spec={"nodeName": "a"})
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    waiting = owned("w-y", "DaemonSet", "w", spec={"affinity": affinity}, phase="Pending")
    pods = made(node("a"), node("b"), node("c"), saved("DaemonSet", selecting()), bound, waiting)
    assert list(pods) == ["w-0", "w-x", "w-y"]
    assert bound_to(pods["w-0"]) == "c"
