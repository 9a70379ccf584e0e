"""The job table: which pods and jobs belong together, and the actions if they disagree."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fluence_plugins.slurm_bridge.jobs.job_table import JobTable, identity
from fluence_plugins.slurm_bridge.names import FINALIZER, JOBID_LABEL, SCHEDULER_NAME
from fluence_plugins.slurm_bridge.slurm.model import Job, JobComment
from fluence_plugins.slurm_bridge.slurm.placeholder import PodIdentity
from session_scheduler.model.objects import Pod
from session_scheduler.testing import pod

from ..sample_jobs import job

CLUSTER = "here"


def bridged(name: str, job_id: int | None = None, *, node: str = "", phase: str = "Pending", **metadata: Any) -> Pod:
    """A pod of the bridge's scheduler; with a job's number it has that job's label and finalizer."""
    labels = {JOBID_LABEL: str(job_id)} if job_id is not None else {}
    finalizers = (FINALIZER,) if job_id is not None else ()
    made = pod(name, scheduler=SCHEDULER_NAME, bound_to=node)
    meta = replace(made.metadata, **{"uid": f"uid-{name}", "labels": labels, "finalizers": finalizers, **metadata})
    return replace(made, metadata=meta, status=replace(made.status, phase=phase))


def table_of(*pods: Pod, jobs: tuple[Job, ...] = ()) -> JobTable:
    table = JobTable(SCHEDULER_NAME, CLUSTER)
    table.replace_pods(pods)
    table.replace_jobs(jobs)
    table.refresh()
    return table


def stands(table: JobTable) -> dict[str, tuple[int, tuple[str, ...] | None]]:
    return {table.pods[uid].metadata.name: (one.job_id, one.nodes) for uid, one in table.pod_jobs.items()}


def test_a_pods_job_is_in_its_label_else_in_the_jobs_comment() -> None:
    labelled, named, keyed, nobodys = bridged("a", 1), bridged("b"), bridged("c"), bridged("d")
    others = (
        job(1, labelled),
        job(2, named),
        job(3, keyed, uids=False, cluster=""),
        job(4, bridged("d"), cluster="elsewhere"),
    )
    table = table_of(labelled, named, keyed, nobodys, jobs=others)
    assert stands(table) == {"a": (1, None), "b": (2, None), "c": (3, None)}


def test_a_recreated_pod_does_not_belong_to_the_job_of_its_predecessor() -> None:
    before = bridged("a")
    table = table_of(bridged("a", uid="another"), jobs=(job(1, before),))
    assert stands(table) == {}
    assert [number for number, _ in table.actions().cancel] == [1]


def test_of_two_jobs_for_a_pod_the_one_with_nodes_counts_and_the_other_is_cancelled() -> None:
    one = bridged("a")
    table = table_of(one, jobs=(job(1, one), job(2, one, nodes=("n1",))))
    assert stands(table) == {"a": (2, ("n1",))}
    assert [number for number, _ in table.actions().cancel] == [1]


def test_a_pod_without_its_jobs_label_gets_it() -> None:
    one = bridged("a")
    table = table_of(one, jobs=(job(1, one),))
    assert [(pod.metadata.name, number) for pod, number in table.actions().label] == [("a", 1)]
    assert table_of(bridged("a", 1), jobs=(job(1, bridged("a", 1)),)).actions().label == []


def test_a_job_offers_its_nodes_once_no_waiting_pod_names_another_job() -> None:
    """Bound with the label of its former job, which has ended, the pod would be deleted."""
    relabelled, other = bridged("a", 1), bridged("b")
    second = job(2, relabelled, other, nodes=("n1", "n2"))
    table = table_of(relabelled, other, jobs=(job(1, relabelled, states=("CANCELLED",)), second))
    assert stands(table) == {"a": (2, None), "b": (2, None)}
    assert table.pod_jobs["uid-b"].text == (
        "Slurm job 2 has nodes n1, n2, but the label of pod default/a names another job"
    )
    table.put_pod(bridged("a", 2))
    assert table.refresh() == ["uid-a", "uid-b"]
    assert stands(table) == {"a": (2, ("n1", "n2")), "b": (2, ("n1", "n2"))}
    table.put_pod(bridged("a", 1, node="n1"))
    table.refresh()
    assert stands(table)["b"] == (2, ("n1", "n2")), "of bound pods it depends no more"


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "TIMEOUT"])
def test_running_pods_of_an_ended_job_are_deleted_and_waiting_ones_lose_it(state: str) -> None:
    running, waiting = bridged("a", 1, node="n1", phase="Running"), bridged("b", 1)
    table = table_of(running, waiting, jobs=(job(1, running, waiting, states=(state,)),))
    assert [(pod.metadata.name, why) for pod, why in table.actions().delete] == [
        ("a", f"its Slurm job 1 has ended: {state}")
    ]
    assert stands(table) == {}


def test_an_unlisted_job_is_read_by_number_before_its_pods_are_deleted() -> None:
    table = table_of(bridged("a", 1, node="n1", phase="Running"))
    assert table.missing_jobs() == [1]
    assert table.actions().delete == []
    table.mark_unknown(1)
    assert [pod.metadata.name for pod, _ in table.actions().delete] == ["a"]


def test_a_job_that_is_back_is_not_lost() -> None:
    one = bridged("a", 1, node="n1", phase="Running")
    table = table_of(one)
    table.replace_jobs((job(1, one, nodes=("n1",)),))
    assert table.missing_jobs() == []
    table.replace_jobs((), unreadable=(1,))
    assert table.missing_jobs() == []
    assert table.actions().delete == []


def test_a_job_is_cancelled_with_its_last_pod_and_finalizers_wait_for_that() -> None:
    done, runs = bridged("a", 1, node="n1", phase="Succeeded"), bridged("b", 1, node="n2", phase="Running")
    both = job(1, done, runs, nodes=("n1", "n2"))
    table = table_of(done, runs, jobs=(both,))
    first = table.actions()
    assert [pod.metadata.name for pod in first.release] == ["a"], "the job continues for the other pod"
    assert first.cancel == []
    failed = bridged("b", 1, node="n2", phase="Failed")
    table = table_of(done, failed, jobs=(both,))
    duties = table.actions()
    assert ([number for number, _ in duties.cancel], duties.release) == ([1], [])
    table.mark_cancelled(1)
    assert {pod.metadata.name for pod in table.actions().release} == {"a", "b"}


def test_a_deleted_pod_that_never_ran_is_over_at_once_but_a_running_one_is_not() -> None:
    goes = bridged("a", 1, deletion_timestamp="2026-01-01T00:00:00Z")
    ends = bridged("b", 2, node="n1", phase="Running", deletion_timestamp="2026-01-01T00:00:00Z")
    table = table_of(goes, ends, jobs=(job(1, goes), job(2, ends, nodes=("n1",))))
    assert [number for number, _ in table.actions().cancel] == [1]
    assert table.actions().delete == []


def test_jobs_of_others_are_left_alone() -> None:
    strange = job(1, bridged("x"), cluster="elsewhere")
    original = job(2, bridged("y"), uids=False, cluster="")
    people = job(3, comment=None)
    assert table_of(jobs=(strange, original, people)).actions().cancel == []
    ours = job(4, bridged("z"))
    assert [number for number, _ in table_of(jobs=(ours,)).actions().cancel] == [4]


def test_a_job_of_the_original_is_cancelled_once_its_labelled_pods_are_over() -> None:
    done = bridged("y", 2, node="n1", phase="Succeeded")
    table = table_of(done, jobs=(job(2, done, uids=False, cluster="", nodes=("n1",)),))
    assert [number for number, _ in table.actions().cancel] == [2]


def test_only_facts_that_sessions_read_count_as_a_change() -> None:
    one, two = bridged("a", 1), bridged("b", 2)
    table = table_of(one, two, jobs=(job(1, one, reason="Priority"), job(2, two)))
    table.replace_jobs((job(1, one, reason="Priority"), job(2, two)))
    assert table.refresh() == []
    table.replace_jobs((job(1, one, reason="Resources"), job(2, two, nodes=("n1",))))
    assert set(table.refresh()) == {one.metadata.uid, two.metadata.uid}
    assert "Slurm job 1 is pending: Resources" in table.pod_jobs[one.metadata.uid].text


def test_an_expected_start_is_reported_again_only_if_it_changes_by_much() -> None:
    one = bridged("a", 1)
    table = table_of(one, jobs=(job(1, one, start=1_800_000_000),))
    assert "expected to start at 2027-01-15T08:00:00Z" in table.pod_jobs[one.metadata.uid].text
    table.replace_jobs((job(1, one, start=1_800_000_030),))
    assert table.refresh() == []
    table.replace_jobs((job(1, one, start=1_800_000_060),))
    assert table.refresh() == [one.metadata.uid]


def test_the_pods_of_a_stand_are_in_the_jobs_order() -> None:
    pods = [bridged(name, 1) for name in ("b", "a", "c")]
    table = table_of(*reversed(pods), jobs=(job(1, *pods, nodes=("n1", "n2", "n3")),))
    stand = table.pod_jobs[pods[0].metadata.uid]
    assert stand.pods == tuple(one.metadata.uid for one in pods)


def test_a_comment_names_pods_by_uid_where_it_has_them() -> None:
    comment = JobComment(pods=(PodIdentity("default", "a", "u1"),), cluster=CLUSTER)
    assert comment.pods[0].key == "default/a"


def test_schedulers_of_one_cluster_leave_each_others_jobs_alone() -> None:
    table = JobTable(SCHEDULER_NAME, identity("here", SCHEDULER_NAME))
    table.replace_pods([])
    table.replace_jobs([job(1, bridged("a"), cluster=identity("here", "another"))])
    assert table.actions().cancel == []
