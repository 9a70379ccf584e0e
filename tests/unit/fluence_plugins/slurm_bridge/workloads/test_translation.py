"""Translation of pods to the Slurm job that stands in for them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.tools.slurm_workloads import COSCHEDULING, pod_of, references, workload

from fluence_plugins.slurm_bridge.slurm.placeholder import Placeholder, PodIdentity
from fluence_plugins.slurm_bridge.workloads.translation import Terms, expected, group_of, ordered, translate
from fluence_plugins.slurm_bridge.workloads.workload import TranslationError, Workload, workload_of
from session_scheduler.model.groups import GroupRef
from session_scheduler.model.objects import Container, Pod, ResourceRequirements

LWS = "leaderworkerset.sigs.k8s.io/"
JOBSET = workload("JobSet", "set", part=workload("Job", "set-workers-0", parallelism=2, active_deadline_seconds=61))


def worker(index: int, group: str = "1") -> Pod:
    labels = {LWS + "name": "serve", LWS + "group-index": group, LWS + "worker-index": str(index)}
    return pod_of(None, f"serve-{group}" + (f"-{index}" if index else ""), labels=labels)


def needing(name: str, *containers: ResourceRequirements, init: tuple[ResourceRequirements, ...] = ()) -> Pod:
    pod = pod_of(None, name)
    made = tuple(Container(name=f"c{number}", resources=one) for number, one in enumerate(containers))
    before = tuple(Container(name=f"i{number}", resources=one) for number, one in enumerate(init))
    return replace(pod, spec=replace(pod.spec, containers=made, init_containers=before))


def needs(**amounts: dict[str, str | int | float]) -> ResourceRequirements:
    return ResourceRequirements(**amounts)


# ------------------------------------------------------------------ workloads


def test_a_pod_alone() -> None:
    pod = pod_of(None, "p", cpu="1500m", memory="100Mi")
    assert translate(workload_of(pod), [pod]) == Placeholder(
        name="p",
        pods=(PodIdentity("physics", "p", "uid-p"),),
        minimum_nodes=1,
        maximum_nodes=1,
        cpus_per_task=2,
        memory_mib=100,
    )
    assert expected(workload_of(pod)) is None


@pytest.mark.parametrize(
    ("seconds", "minutes"), [(None, None), (0, None), (1, 1), (60, 1), (61, 2), (2**62, 2**32 - 3)]
)
def test_a_pod_of_a_job_has_its_own_slurm_job_with_the_deadline(seconds: int | None, minutes: int | None) -> None:
    root = workload("Job", "train", parallelism=3, active_deadline_seconds=seconds)
    job = translate(root, [pod_of(root, "train-0")])
    assert (job.name, job.minimum_nodes, job.maximum_nodes, job.time_limit_minutes) == ("train", 1, 1, minutes)
    assert expected(root) is None


def test_a_requested_time_limit_overrides_the_deadline() -> None:
    root = workload("Job", "train", active_deadline_seconds=600, asked={"timelimit": "5"})
    assert translate(root, [pod_of(root, "p")]).time_limit_minutes == 5


def test_a_job_of_a_job_set_is_one_slurm_job() -> None:
    job = translate(JOBSET, [pod_of(JOBSET.part, f"set-workers-0-{index}") for index in range(2)])
    assert (job.name, job.minimum_nodes, job.maximum_nodes, job.time_limit_minutes) == ("set-workers-0", 2, 2, 2)


@pytest.mark.parametrize(
    ("parallelism", "completions", "count"), [(4, None, 4), (4, 2, 2), (2, 4, 2), (None, None, 1), (None, 3, 1)]
)
def test_a_job_of_a_job_set_waits_for_the_pods_that_run_at_a_time(
    parallelism: int | None, completions: int | None, count: int
) -> None:
    part = workload("Job", "set-0", parallelism=parallelism, completions=completions)
    assert expected(workload("JobSet", "set", part=part)) == count


@pytest.mark.parametrize("api_version", ["scheduling.k8s.io/v1alpha2", COSCHEDULING])
def test_a_pod_group_is_one_slurm_job_of_its_name(api_version: str) -> None:
    root = workload("PodGroup", "ring", api_version=api_version, min_count=2)
    job = translate(root, [pod_of(None, f"p{index}") for index in range(4)])
    assert (job.name, job.minimum_nodes, job.maximum_nodes, job.tasks_per_node) == ("ring", 4, 4, 1)
    assert expected(root) == 2


def test_a_group_of_a_leader_worker_set_is_one_slurm_job() -> None:
    root = workload("LeaderWorkerSet", "serve", size=3)
    job = translate(root, [worker(2), worker(0), worker(1)])
    assert (job.name, job.minimum_nodes, job.maximum_nodes) == ("serve-1", 3, 3)
    assert [one.name for one in job.pods] == ["serve-1", "serve-1-1", "serve-1-2"]
    assert expected(root) == 3


def test_workers_that_wait_for_a_running_leader_are_rejected() -> None:
    root = workload("LeaderWorkerSet", "serve", size=3, startup_policy="LeaderReady")
    with pytest.raises(TranslationError, match=r"^LeaderWorkerSet physics/serve: spec.startupPolicy: .*LeaderCreated$"):
        translate(root, [worker(0)])


def test_a_job_names_its_pods() -> None:
    with pytest.raises(TranslationError, match="no pods"):
        translate(workload("PodGroup", "ring"), [])


def test_all_requests_are_in_the_job() -> None:
    asked = {"account": "a", "constraints": "c", "cpu-per-task": "3", "exclusive": "false", "gres": "GPU:V100:2",
             "group-id": "g", "job-name": "n", "licenses": "l", "max-nodes": "7", "mem-per-node": "2Gi",
             "min-nodes": "2", "partition": "p", "priority": "9", "qos": "q", "reservation": "r", "timelimit": "5",
             "user-id": "u", "wckey": "w"}  # fmt: skip
    pod = pod_of(None, "p", requests={"nvidia.com/gpu": 1})
    job = translate(workload("Job", "train", asked=asked), [pod], Terms(known_gres={("gpu", "V100")}))
    assert job == Placeholder(
        name="n", pods=(PodIdentity("physics", "p", "uid-p"),), minimum_nodes=2, maximum_nodes=2, cpus_per_task=3,
        memory_mib=2048, gres="gres/gpu:V100=2", account="a", constraints="c", exclusive=False, user_id="u",
        group_id="g", licenses="l", partition="p", priority=9, qos="q", reservation="r", time_limit_minutes=5,
        wckey="w",
    )  # fmt: skip


def test_fewer_nodes_than_pods_are_refused_and_a_minimum_below_them_changes_nothing() -> None:
    pods = [pod_of(None, f"p{index}") for index in range(4)]
    assert translate(workload("PodGroup", "ring", asked={"min-nodes": "1", "max-nodes": "4"}), pods).minimum_nodes == 4
    with pytest.raises(TranslationError, match=r"^PodGroup physics/ring: .*max-nodes is 3, but 4 nodes are needed"):
        translate(workload("PodGroup", "ring", asked={"max-nodes": "3"}), pods)


def test_annotations_of_the_pod_do_not_count_where_it_has_an_owner() -> None:
    pod = pod_of(workload("Job", "train"), "p", annotations={"slurmjob.slinky.slurm.net/qos": "mine"})
    assert translate(workload("Job", "train"), [pod]).qos == ""
    assert translate(workload_of(pod), [pod]).qos == "mine"


# ------------------------------------------------------------------ resource requests


def test_cpu_and_memory_are_the_maximum_of_requests_and_limits_of_all_pods() -> None:
    first = needing("a", needs(requests={"cpu": "1", "memory": "1Gi"}, limits={"cpu": "2500m"}))
    second = needing("b", needs(requests={"cpu": "2", "memory": "1000M"}, limits={"memory": "1025Mi"}))
    job = translate(workload("PodGroup", "ring"), [first, second])
    assert (job.cpus_per_task, job.memory_mib) == (3, 1025)


def test_containers_are_added_up_and_init_containers_count_if_larger() -> None:
    main = needs(requests={"cpu": "1", "memory": "1Mi"}, limits={"cpu": "2"})
    job = translate(workload("Job", "j"), [needing("a", main, main, init=(needs(limits={"memory": "3Mi"}),))])
    assert (job.cpus_per_task, job.memory_mib) == (4, 3)


def test_pods_without_requests_get_slurms_defaults() -> None:
    job = translate(workload("Job", "j"), [needing("a", ResourceRequirements())])
    assert (job.cpus_per_task, job.memory_mib, job.gres) == (None, None, "")


def test_gpus_of_pods_become_generic_resources() -> None:
    pods = [needing("a", needs(limits={"nvidia.com/gpu": "2"})), needing("b", needs(requests={"example.com/x": 1}))]
    assert translate(workload("PodGroup", "g"), pods).gres == "gres/gpu=2"
    assert translate(workload("PodGroup", "g"), pods, Terms(resources={"example.com/x": "x"})).gres == "gres/x=1"


def test_cpus_that_a_device_class_gives_are_cpus() -> None:
    pod = needing("a", needs(requests={"cpu": "1", "deviceclass.resource.kubernetes.io/dra.cpu": "4"}))
    job = translate(workload("Job", "j"), [pod])
    assert (job.cpus_per_task, job.gres) == (4, "")


@pytest.mark.parametrize(
    ("amounts", "problem"),
    [
        ({"cpu": "much"}, "Pod physics/a: spec.containers"),
        ({"cpu": "70000"}, "Job physics/j: a pod requests 70000 CPUs"),
        ({"nvidia.com/gpu": "1", "deviceclass.resource.kubernetes.io/a100": "1"}, "with and without a type"),
    ],
)
def test_requests_that_slurm_would_reject_are_rejected(amounts: dict[str, str | int | float], problem: str) -> None:
    with pytest.raises(TranslationError, match=problem):
        translate(workload("Job", "j"), [needing("a", needs(requests=amounts))])


# ------------------------------------------------------------------ order


@pytest.mark.parametrize("key", ["batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index"])
def test_pods_are_in_order_of_their_index(key: str) -> None:
    pods = [pod_of(None, name, labels={key: index}) for name, index in (("c", "10"), ("b", "2"), ("a", "11"))]
    assert [pod.metadata.name for pod in ordered(pods)] == ["b", "c", "a"]


def test_the_completion_index_may_be_an_annotation() -> None:
    key = "batch.kubernetes.io/job-completion-index"
    pods = [pod_of(None, "a", annotations={key: "1"}), pod_of(None, "b", annotations={key: "0"})]
    assert [pod.metadata.name for pod in ordered(pods)] == ["b", "a"]


def test_pods_without_an_index_are_in_the_natural_order_of_their_names_behind_those_that_have_one() -> None:
    names = ["p", "p02", "p2", "p10", "q-1-x", "q-1-y", "q-10-a"]
    first = pod_of(None, "z", labels={"apps.kubernetes.io/pod-index": "0"})
    odd = pod_of(None, "r", labels={"apps.kubernetes.io/pod-index": "zero"})
    pods = [odd, *(pod_of(None, name) for name in reversed(names)), first]
    assert [pod.metadata.name for pod in ordered(pods)] == ["z", *names, "r"]


def test_the_pods_of_one_owner_stay_together() -> None:
    key = "batch.kubernetes.io/job-completion-index"
    pods = [
        pod_of(workload("Job", owner), f"{owner}-{index}", labels={key: str(index)})
        for index in (1, 0)
        for owner in ("j10", "j2")
    ]
    assert [pod.metadata.name for pod in ordered(pods)] == ["j2-0", "j2-1", "j10-0", "j10-1"]


def test_the_worker_index_goes_before_that_of_the_stateful_set() -> None:
    leader, first = worker(0, "7"), worker(1, "7")
    leader = replace(leader, metadata=replace(leader.metadata, labels={**leader.metadata.labels,
                                                                     "apps.kubernetes.io/pod-index": "7"}))  # fmt: skip
    assert ordered([first, leader]) == (leader, first)


# ------------------------------------------------------------------ groups


def group(pod: Pod) -> GroupRef | None:
    return group_of(pod, pod.metadata.owner_references)


def test_single_pods_and_pods_of_jobs_are_in_no_group() -> None:
    assert group(pod_of(None, "p")) is None
    assert group(pod_of(workload("Job", "train"), "p")) is None


def in_job_set(owner: Workload, **options: str) -> Pod:
    return pod_of(owner, "p", labels={"jobset.sigs.k8s.io/jobset-name": "set"}, **options)


def test_pods_of_a_job_in_a_job_set_are_a_group() -> None:
    job = workload("Job", "set-workers-0")
    assert group(in_job_set(job)) == GroupRef("physics", "set-workers-0", kind="JobSet", api_group="")
    assert group(pod_of(None, "p", labels={"jobset.sigs.k8s.io/jobset-name": "set"})) is None


def test_pods_of_one_group_of_a_leader_worker_set_are_a_group() -> None:
    assert group(worker(0)) == group(worker(2)) == GroupRef("physics", "serve-1", kind="LeaderWorkerSet", api_group="")
    assert group(worker(0, "2")) != group(worker(0, "1"))


def test_pods_that_name_a_pod_group_are_left_to_the_core() -> None:
    assert group(in_job_set(workload("Job", "j"), group="ring")) is None
    for label in ("scheduling.k8s.io/pod-group", "scheduling.x-k8s.io/pod-group"):
        pod = worker(0)
        labels = {**pod.metadata.labels, label: "ring"}
        assert group(replace(pod, metadata=replace(pod.metadata, labels=labels))) is None


def test_a_pod_group_that_owns_a_pod_is_its_group() -> None:
    pod = pod_of(workload("PodGroup", "ring"), "p")
    assert group(pod) == GroupRef("physics", "ring")
    owners = references(workload("PodGroup", "ring", api_version=COSCHEDULING))
    other = "scheduling.x-k8s.io"
    assert group_of(pod, owners) == GroupRef("physics", "ring", kind=f"PodGroup.{other}", api_group=other)
