"""The bridge: one job for each pod or group despite faults, and pods that follow their job's outcome."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator, Sized
from typing import Any

import pytest
from msgspec.structs import replace

from fluence_plugins.slurm_bridge.jobs.submitter import in_turns
from fluence_plugins.slurm_bridge.names import EXTERNAL_NODE_LABEL, JOB, JOBID_LABEL
from fluence_plugins.slurm_bridge.slurm.errors import JobNotPendingError, TokenError, UnavailableError
from fluence_plugins.slurm_bridge.workloads import translation
from session_scheduler.cluster.errors import Forbidden
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.model.objects import Pod, PodGroup
from session_scheduler.testing import pod, pod_group

from ..bridged import TICK, UNSURE, Bridged, slurm_of, waiting

GANG = "PodGroup default/g"


def gang(*names: str, size: int | None = None) -> Bridged:
    """A world with a PodGroup of this minimum."""
    world = Bridged(*(waiting(name, group="g") for name in names))
    world.cluster.put(pod_group("g", size or len(names)))
    world.needed[GANG] = size or len(names)
    return world


def _queue(*errors: Exception) -> deque[Exception]:
    return deque(errors)


def assert_consistent(world: Bridged) -> None:
    """Assert the invariants of an idle bridge."""
    jobs = Counter(named.uid for job in world.live_jobs() if job.comment for named in job.comment.pods)
    for one in world.pods():
        if one.status.phase not in ("Succeeded", "Failed"):
            assert jobs[one.metadata.uid] == 1, f"{one.key} has {jobs[one.metadata.uid]} jobs"


# ---------------------------------------------------------------------- from pod to node


def test_a_pod_gets_a_job_its_marks_and_a_node() -> None:
    with Bridged(waiting("a")) as world:
        world.rest()
        assert [job.job_id for job in world.slurm.of("default/a")] == [1]
        assert world.marks("a") == (1, True)
        assert world.nodes() == {}
        world.live()
        assert world.nodes() == {"a": "n1"}
        assert world.requeued["Pod default/a"] >= 1
        assert_consistent(world)


def test_pods_of_other_schedulers_are_left_alone() -> None:
    with Bridged(waiting("a"), pod("other")) as world:
        other = world.pod("other")
        world.live()
        assert world.pod("other") == other
        assert [job.comment.pods[0].name for job in world.live_jobs() if job.comment] == ["a"]


def test_nothing_is_requested_again_without_a_change() -> None:
    with Bridged(waiting("a")) as world:
        world.slurm.hold("n1", "n2", "n3", "n4")
        world.live()
        requeued, calls = Counter(world.requeued), list(world.slurm.calls)
        asked = dict(world.slurm.reads)
        world.live(60)
        world.session(all_groups=True)
        world.rest()
        assert (world.requeued, world.slurm.calls) == (requeued, calls), "no requeue and no request without a change"
        assert world.slurm.reads["job"] == asked["job"]
        assert world.slurm.reads["jobs"] - asked["jobs"] <= 60 / TICK + 4, "one list per tick for all pods"
        assert "Resources" in world.bridge.facts().pod_jobs["uid-a"].text


def test_repeated_requests_of_sessions_read_no_workloads() -> None:
    class Counting(MemoryCluster):
        gets = 0

        async def get(self, *args: Any, **more: Any) -> Any:
            self.gets += 1
            return await super().get(*args, **more)

    cluster = Counting([waiting("a", group="g"), pod_group("g", 1)])
    with Bridged(cluster=cluster) as world:
        world.slurm.hold("n1", "n2", "n3", "n4")
        world.live()
        before = cluster.gets
        for number in range(100):
            world.candidates = ("n1", "n2") if number % 2 else ("n1", "n2", "n3")
            world.session(all_groups=True)
            world.rest(TICK)
        assert cluster.gets - before <= 2
        world.cluster.put(replace(cluster.objects(PodGroup)[0], metadata=replace(
            cluster.objects(PodGroup)[0].metadata, annotations={f"{JOB}job-name": "renamed"})))  # fmt: skip
        world.rest(61)
        world.session(all_groups=True)
        world.rest()
        assert world.live_jobs()[0].name == "renamed", "the bridge reads a changed workload within a minute"


def test_slurm_is_polled_less_often_while_no_job_waits() -> None:
    with Bridged(waiting("a")) as world:
        world.live()
        before = world.slurm.reads["jobs"]
        world.rest(60)
        assert world.slurm.reads["jobs"] - before <= 60 / (10 * TICK) + 1


def test_a_gang_is_one_job_with_a_node_for_each_pod() -> None:
    with gang("a", "b", "c", "d") as world:
        world.live()
        assert world.writes("submit") == 1
        assert world.writes("update") == 0
        assert world.nodes() == {"a": "n1", "b": "n2", "c": "n3", "d": "n4"}


def test_an_incomplete_gang_gets_no_job_and_a_reason() -> None:
    with gang("a", "b", "c", size=4) as world:
        world.rest(30)
        assert world.writes("submit") == 0
        assert "3 of the 4 pods that start together" in world.problem(GANG)
        world.put(waiting("d", group="g"))
        world.live()
        assert world.writes("submit") == 1
        assert len(world.nodes()) == 4
        assert world.problem(GANG) == ""


def test_a_gangs_pod_that_is_recreated_after_the_start_gets_its_own_job() -> None:
    world = gang("a", "b", "c")
    with world:
        world.live()
        world.end("c", "Failed")
        world.rest()
        world.delete("c")
        world.run_pending()
    again = Bridged(cluster=world.cluster, slurm=world.slurm)
    again.needed = world.needed
    with again:
        again.put(waiting("c", uid="uid-c2", group="g"))
        again.live()
        assert again.nodes().keys() == {"a", "b", "c"}
        assert again.writes("submit") == 2
        assert again.marks("c") == (2, True)


def test_five_hundred_groups_at_once_cost_a_few_requests_each() -> None:
    nodes = [f"n{number}" for number in range(600)]
    with Bridged(*(waiting(f"p{number}") for number in range(500)), slurm=slurm_of(*nodes)) as world:
        world.live(10 * TICK)
        assert len(world.nodes()) == 500
        assert world.writes("submit") == 500
        assert world.writes("update") == 0
        assert world.slurm.reads["job"] == 500
        assert world.slurm.reads["jobs"] <= 20
        assert max(world.requeued.values()) <= 3
        assert_consistent(world)


# ---------------------------------------------------------------------- lost responses


def test_a_submission_whose_response_was_lost_is_found_again() -> None:
    with Bridged(waiting("a")) as world:
        world.slurm.loses.append("submit")
        world.live(60)
        assert world.writes("submit") == 1
        assert world.nodes() == {"a": "n1"}
        assert world.marks("a") == (1, True)
        assert world.problem("Pod default/a") == ""


def test_a_lost_submission_is_repeated_once_slurm_can_no_longer_execute_it() -> None:
    with Bridged(waiting("a")) as world:
        world.slurm.fails["submit"] = _queue(UnavailableError("POST job/submit", "timeout", sent=True))
        world.rest(UNSURE - 2 * TICK)
        world.session(all_groups=True)
        world.rest(TICK)
        assert world.writes("submit") == 0, "Slurm may still execute the first one"
        assert "Slurm may have executed the request" in world.problem("Pod default/a")
        world.live(4 * TICK)
        assert world.writes("submit") == 1
        assert world.nodes() == {"a": "n1"}


def test_a_submission_that_was_not_sent_is_soon_retried() -> None:
    with Bridged(waiting("a")) as world:
        world.slurm.fails["submit"] = _queue(*[UnavailableError("POST job/submit", "no connection", sent=False)] * 2)
        world.live(20)
        assert world.nodes() == {"a": "n1"}
        assert len(world.slurm.kept) == 1


def test_a_job_that_cannot_be_read_after_its_submission_is_not_submitted_twice() -> None:
    with Bridged(waiting("a")) as world:
        world.slurm.fails["job"] = _queue(*[UnavailableError("GET job/1", "timeout", sent=True)] * 3)
        world.rest(TICK)
        for _ in range(5):
            world.session(all_groups=True)
            world.run_pending()
        world.live(30)
        assert world.writes("submit") == 1
        assert world.nodes() == {"a": "n1"}


def test_the_next_scheduler_finds_the_job_of_one_that_died_before_it_labelled_the_pod() -> None:
    cluster, slurm = Refusing([waiting("a")]), slurm_of()
    cluster.refused = {"patch_metadata"}
    with Bridged(cluster=cluster, slurm=slurm) as world:
        world.rest()
        assert world.writes("submit") == 1
        assert world.marks("a") == (None, False)
    cluster.refused = set()
    with Bridged(cluster=cluster, slurm=slurm) as world:
        world.live()
        assert world.writes("submit") == 1
        assert world.marks("a") == (1, True)
        assert world.nodes() == {"a": "n1"}


def test_of_two_jobs_for_a_pod_one_is_cancelled() -> None:
    with Bridged(waiting("a")) as world:
        world.rest()
        placeholder = world.slurm.kept[1].asked
        world._do(world.slurm.submit(placeholder, world.bridge._defaults, ("n1",)))
        world.live(30)
        assert [job.job_id for job in world.live_jobs()] == [1]
        assert_consistent(world)


# ---------------------------------------------------------------------- changes while the job waits


def test_a_pod_more_or_less_is_one_update() -> None:
    world = gang("a", "b", size=2)
    with world:
        world.slurm.hold("n1", "n2", "n3")
        world.live()
        world.put(waiting("c", group="g"))
        world.live(10)
        assert world.writes("update") == 1
        assert len(world.slurm.kept[2].asked.pods) == 3
        assert world.marks("c") == (2, True)
        world.delete("c")
        world.live(10)
        assert not world.is_there("c"), "it loses its finalizer, because the job continues for the others"
        assert world.writes("update") == 2
        assert len(world.slurm.kept[2].asked.pods) == 2
        assert world.writes("submit") == 1
        world.live(60)
        assert world.writes("update") == 2


def test_nodes_that_are_full_for_a_while_are_no_reason_to_update() -> None:
    with Bridged(waiting("a")) as world:
        world.slurm.hold("n1", "n2", "n3", "n4")
        world.live()
        world.candidates = ("n2", "n3")
        world.session(all_groups=True)
        world.rest()
        assert world.writes("update") == 0
        world.slurm.set_node("n1", features=())
        world.slurm.nodes_by_name["n5"] = slurm_of("n5").nodes_by_name["n5"]
        world.candidates = ("n1", "n2", "n5")
        world.session(all_groups=True)
        world.rest()
        assert world.writes("update") == 1
        assert world.slurm.kept[2].candidates == ("n1", "n2", "n5")


def test_a_job_that_starts_while_it_is_updated_is_read_again() -> None:
    world = gang("a", "b", size=2)
    with world:
        held = world.slurm.hold("n1", "n2", "n3")
        world.live()
        world.put(waiting("c", group="g"))

        async def started(*_: Any) -> None:
            world.slurm.end(held)
            world.slurm.step()
            world.slurm.calls.append(("update", None))
            raise JobNotPendingError("POST job/2", 2073, "Job is no longer pending execution")

        world.slurm.update = started  # type: ignore[method-assign, assignment]
        world.rest()
        del world.slurm.update
        assert world.nodes().keys() >= {"a", "b"}
        world.live(10)
        assert world.writes("update") == 1
        assert world.nodes().keys() == {"a", "b", "c"}
        assert world.marks("c") == (3, True)
        assert_consistent(world)


def test_a_pod_deleted_before_its_job_starts_takes_the_job_with_it() -> None:
    with Bridged(waiting("a")) as world:
        world.slurm.hold("n1", "n2", "n3", "n4")
        world.live()
        world.delete("a")
        world.rest()
        assert world.live_jobs() == []
        assert not world.is_there("a")


def test_a_recreated_pod_gets_its_own_job() -> None:
    with Bridged(waiting("a")) as world:
        world.live()
        world.delete("a")
        world.finish()
        world.rest()
        assert not world.is_there("a")
        world.put(waiting("a", uid="another"))
        world.live()
        assert world.marks("a") == (2, True)
        assert [job.job_id for job in world.live_jobs()] == [2]
        assert world.nodes() == {"a": "n1"}


# ---------------------------------------------------------------------- requests that Slurm rejects


class Annotated:
    """A pod with annotations for the bridge."""

    def __init__(self, **said: str) -> None:
        self.said = {f"{JOB}{key}": value for key, value in said.items()}

    def __call__(self, one: Pod) -> Pod:
        return replace(one, metadata=replace(one.metadata, annotations=self.said))


def test_a_rejection_by_slurm_is_reported_once_and_retried_with_backoff() -> None:
    with Bridged(Annotated(partition="none")(waiting("a"))) as world:
        world.slurm.calls.clear()
        world.rest(3600)
        assert "Invalid partition name specified" in world.problem("Pod default/a")
        assert "ESLURM_INVALID_PARTITION_NAME" in world.problem("Pod default/a")
        assert 5 <= world.writes("submit") <= 18, "the backoff doubles up to five minutes"
        assert world.requeued["Pod default/a"] == 1
        before = world.writes("submit")
        for _ in range(20):
            world.session(all_groups=True)
            world.run_pending()
        assert world.writes("submit") == before, "repeated requests of sessions do not shorten the backoff"


def test_a_fixed_annotation_is_noticed_at_once() -> None:
    with Bridged(Annotated(partition="none")(waiting("a"))) as world:
        world.rest(600)
        world.change("a", Annotated())
        world.live(2 * TICK)
        assert world.nodes() == {"a": "n1"}
        assert world.problem("Pod default/a") == ""


def test_an_invalid_annotation_sends_no_request() -> None:
    with Bridged(Annotated(timelimit="soon")(waiting("a"))) as world:
        world.rest(600)
        assert "timelimit" in world.problem("Pod default/a")
        assert world.slurm.calls == []
        assert world.requeued["Pod default/a"] == 1


def test_a_fixed_workload_is_noticed_within_a_minute() -> None:
    world = gang("a")
    wrong = world.cluster.objects(PodGroup)[0]
    world.cluster.put(replace(wrong, metadata=replace(wrong.metadata, annotations={f"{JOB}partition": "none"})))
    with world:
        world.rest(900)
        assert "Invalid partition name" in world.problem(GANG)
        world.cluster.put(wrong)
        world.live(62)
        assert world.nodes() == {"a": "n1"}


def test_a_request_that_fits_on_no_node_reports_the_candidates() -> None:
    with gang("a", "b", "c", "d", "e") as world:
        world.rest()
        assert (
            f"{GANG} needs 5 nodes in Slurm, but fits on 4 there (4 in the cluster); add nodes to Slurm, "
            f"or give them the label {EXTERNAL_NODE_LABEL}"
        ) in world.problem(GANG)
        assert world.writes("submit") == 0


def test_the_problem_of_an_ended_pod_is_dropped() -> None:
    with Bridged(Annotated(partition="none")(waiting("a"))) as world:
        world.rest()
        world.end("a", "Failed")
        world.rest(30)
        assert world.bridge.facts().problems == {}
        before = len(world.slurm.calls)
        world.rest(600)
        assert len(world.slurm.calls) == before


def test_a_rejection_that_lasts_for_weeks_does_not_stop_the_bridge() -> None:
    with Bridged(Annotated(partition="none")(waiting("a"))) as world:
        for _ in range(1100):
            world.rest(TICK, session=False)
            world.time += 320
        world.put(waiting("b"))
        world.live()
        assert world.nodes() == {"b": "n1"}


def test_an_unexpected_error_of_one_group_is_reported_and_other_groups_are_served(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def translate(root: Any, pods: Any, terms: Any) -> Any:
        if pods[0].metadata.name == "a":
            raise KeyError("odd")
        return translation.translate(root, pods, terms)

    monkeypatch.setattr("fluence_plugins.slurm_bridge.jobs.submitter.translate", translate)
    with Bridged(waiting("a"), waiting("b")) as world:
        world.live(60)
        assert world.nodes() == {"b": "n1"}
        assert "a bug in the plugin slurm-bridge (KeyError" in world.problem("Pod default/a")
        assert 1 <= sum(record.levelname == "ERROR" for record in caplog.records) <= 6
    caplog.clear()


# ---------------------------------------------------------------------- Slurm is unavailable


def test_slurm_away_and_back() -> None:
    with Bridged(waiting("a")) as world:
        world.slurm.down = True
        world.rest(10)
        assert world.problem("Pod default/a").startswith("Slurm is unavailable")
        world.put(waiting("b"))
        world.rest(20)
        assert world.problem("Pod default/b").startswith("Slurm is unavailable"), "later pods get the reason, too"
        assert sum(world.requeued.values()) <= 2
        assert world.slurm.reads["jobs"] <= 8, "with backoff"
        world.slurm.down = False
        world.live(16)
        assert world.nodes().keys() == {"a", "b"}
        assert world.bridge.facts().problems == {}
        assert world.writes("submit") == 2


def test_while_slurm_is_away_running_pods_run_and_ended_ones_wait() -> None:
    with Bridged(waiting("a"), waiting("b")) as world:
        world.live()
        world.slurm.down = True
        world.end("a")
        world.delete("a")
        world.rest(60)
        assert world.is_there("a"), "the bridge must cancel its job first"
        assert world.pod("b").metadata.deletion_timestamp is None
        world.slurm.down = False
        world.rest(16)
        assert not world.is_there("a")
        assert [job.comment.pods[0].name for job in world.live_jobs() if job.comment] == ["b"]


def test_an_expired_token_is_reported_and_read_again() -> None:
    with Bridged(waiting("a")) as world:
        error = TokenError("/token", "Slurm does not take it")
        world.slurm.fails["jobs"] = _queue(*[error] * 4)
        world.rest(2)
        assert "token file /token" in world.problem("Pod default/a")
        world.live(30)
        assert world.nodes() == {"a": "n1"}
        assert world.requeued["Pod default/a"] <= 4


# ---------------------------------------------------------------------- ended jobs


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"])
def test_pods_of_an_ended_job_are_deleted(state: str) -> None:
    with gang("a", "b") as world:
        world.live()
        world.slurm.end(1, state)
        world.rest(6)
        assert all(world.pod(name).metadata.deletion_timestamp for name in ("a", "b"))
        reported = [(name, text) for name, reason, text in world.reported if reason == "SlurmJobEnded"]
        note = f"its Slurm job 1 has ended: {state}: the scheduler deletes the pod"
        assert sorted(reported) == [("a", note), ("b", note)]
        world.finish()
        world.rest()
        assert world.pods() == []


def test_pods_of_a_job_that_slurm_no_longer_lists_are_deleted() -> None:
    with Bridged(waiting("a")) as world:
        world.live()
        world.slurm.forget(1)
        world.rest(6)
        assert world.pod("a").metadata.deletion_timestamp
        assert "no longer known to Slurm" in world.reported[-1][2]


def test_a_requeued_job_loses_its_nodes_and_its_pods_are_deleted() -> None:
    with Bridged(waiting("a")) as world:
        world.live()
        world.slurm.kept[1].shares = {}
        world.slurm.change(1, states=frozenset({"PENDING", "REQUEUED"}), nodes=())
        world.rest(6)
        assert "Slurm requeued its job 1" in world.reported[-1][2]
        world.finish()
        world.rest()
        assert world.pods() == []
        assert world.live_jobs() == []


@pytest.mark.parametrize("states", [{"SUSPENDED"}, {"RUNNING", "COMPLETING"}, {"RUNNING", "CONFIGURING"}, {"STOPPED"}])
def test_a_job_in_a_transitional_state_deletes_no_pods(states: set[str]) -> None:
    with Bridged(waiting("a")) as world:
        world.live()
        world.slurm.change(1, states=frozenset(states))
        world.rest(30)
        assert world.pod("a").metadata.deletion_timestamp is None
        assert world.writes("submit") == 1
        assert world.writes("cancel") == 0


def test_a_pending_pod_with_a_suspended_job_stays_pending() -> None:
    with Bridged(waiting("a")) as world:
        world.rest()
        world.slurm.change(1, states=frozenset({"SUSPENDED"}), nodes=("n1",))
        world.rest(10)
        world.session(all_groups=True)
        world.rest()
        assert "SUSPENDED" in world.bridge.facts().pod_jobs["uid-a"].text
        assert (world.writes("submit"), world.writes("update")) == (1, 0)


@pytest.mark.parametrize("how", ["end", "forget"])
def test_a_job_that_ends_before_its_pods_start_is_followed_by_another(how: str) -> None:
    with Bridged(waiting("a")) as world:
        held = world.slurm.hold("n1", "n2", "n3", "n4")
        world.live()
        job = world.live_jobs()[0].job_id
        if how == "end":
            world.slurm.end(job, "CANCELLED")
        else:
            world.slurm.forget(job)
        world.rest(6)
        assert world.writes("submit") == 2
        world.slurm.end(held)
        world.live()
        assert world.nodes() == {"a": "n1"}
        assert world.marks("a") == (world.live_jobs()[0].job_id, True)


class Conflicting(MemoryCluster):
    """Rejects some writes of metadata, because another client is always faster."""

    conflicts = 0

    async def patch_metadata(self, obj: Any, **fields: Any) -> Any:
        if self.conflicts:
            self.conflicts -= 1
            current = self.objects(Pod)[0]
            self.put(current)  # with another resourceVersion
        return await super().patch_metadata(obj, **fields)


def test_a_pod_whose_label_still_names_an_ended_job_starts_on_the_nodes_of_its_new_job_and_stays() -> None:
    cluster = Conflicting([waiting("a")])
    with Bridged(cluster=cluster) as world:
        held = world.slurm.hold("n1", "n2", "n3", "n4")
        world.live()
        world.slurm.end(world.live_jobs()[0].job_id, "CANCELLED")
        world.slurm.end(held)
        cluster.conflicts = 3
        world.live(10)
        assert cluster.conflicts == 0
        assert world.nodes() == {"a": "n1"}
        assert world.marks("a") == (world.live_jobs()[0].job_id, True)
        assert world.reported == []


def test_a_rejected_label_is_written_again_when_the_pod_has_changed() -> None:
    cluster = Conflicting([waiting("a")])
    with Bridged(cluster=cluster) as world:
        cluster.conflicts = 3
        world.rest(TICK)
        assert (cluster.conflicts, world.marks("a")) == (0, (1, True)), "it needs no further tick"


def test_the_job_is_cancelled_before_its_last_ended_pod_loses_the_finalizer() -> None:
    with gang("a", "b") as world:
        world.live()
        world.end("a")
        world.rest()
        assert world.marks("a") == (1, False), "the job continues for the other pod, without this one"
        assert world.writes("cancel") == 0
        world.slurm.fails["cancel"] = _queue(UnavailableError("DELETE job/1", "timeout", sent=True))
        world.end("b")
        world.rest(TICK)
        assert world.marks("b") == (1, True)
        world.rest(6)
        assert world.live_jobs() == []
        assert world.marks("b") == (1, False)


def test_ended_pods_cost_nothing_once_slurm_no_longer_lists_their_jobs() -> None:
    with Bridged(*(waiting(f"p{number}") for number in range(4))) as world:
        world.live()
        for number in range(4):
            world.end(f"p{number}")
        world.rest()
        for number in list(world.slurm.kept):
            world.slurm.forget(number)
        before = world.slurm.reads["job"]
        world.put(waiting("a"))
        world.live(60)
        assert world.slurm.reads["job"] - before <= 2


# ---------------------------------------------------------------------- other replicas and owners


def test_a_replica_that_does_not_lead_sends_no_requests() -> None:
    cluster, slurm = MemoryCluster([waiting("a")]), slurm_of()
    with Bridged(cluster=cluster, slurm=slurm, elected=False) as other:
        other.rest(30)
        assert (slurm.calls, slurm.reads) == ([], {})
        with Bridged(cluster=cluster, slurm=slurm) as leader:
            leader.live()
            leader.elected = False
            other.elected = True
            other.live()
            leader.end("a")
            leader.rest()
            assert leader.writes("cancel") == 0
        other.rest()
        assert other.live_jobs() == []
        assert other.writes("submit") == 1


def test_a_replica_that_leads_again_discards_its_old_state() -> None:
    cluster, slurm = MemoryCluster([waiting("a")]), slurm_of()
    with Bridged(cluster=cluster, slurm=slurm) as one, Bridged(cluster=cluster, slurm=slurm, elected=False) as two:
        slurm.hold("n1", "n2", "n3", "n4")
        one.live()
        one.elected, two.elected = False, True
        one.rest(TICK)
        slurm.end(1)
        two.live()
        one.elected, two.elected = True, False
        one.live()
        assert one.reported == []
        assert one.pod("a").metadata.deletion_timestamp is None
        assert one.nodes() == {"a": "n1"}


def test_jobs_of_users_and_other_clusters_are_left_alone_whatever_labels_pods_have() -> None:
    with Bridged(waiting("x"), name="elsewhere") as elsewhere:
        elsewhere.rest()
        peoples = elsewhere.slurm.hold("n2")
        marked = replace(waiting("a"), metadata=replace(waiting("a").metadata, labels={JOBID_LABEL: "1"}))
        forged = replace(waiting("b"), metadata=replace(waiting("b").metadata, labels={JOBID_LABEL: str(peoples)}))
        with Bridged(marked, forged, slurm=elsewhere.slurm) as world:
            world.live()
            assert world.nodes().keys() == {"a", "b"}
            assert {world.marks("a")[0], world.marks("b")[0]} & {1, peoples} == set()
            for name in ("a", "b"):
                world.end(name)
            world.rest()
            assert not world.slurm.kept[1].job.ended
            assert not world.slurm.kept[peoples].job.ended


# ---------------------------------------------------------------------- permissions


class Refusing(MemoryCluster):
    """Rejects the given calls and counts them."""

    refused: set[str]
    times: Counter[str]

    def _may(self, what: str) -> None:
        if what in self.__dict__.get("refused", set()):
            self.__dict__.setdefault("times", Counter())[what] += 1
            raise Forbidden(f"pods is forbidden: cannot {what}")

    async def patch_metadata(self, *args: Any, **more: Any) -> Any:
        self._may("patch_metadata")
        return await super().patch_metadata(*args, **more)

    async def delete(self, *args: Any, **more: Any) -> None:
        self._may("delete")
        await super().delete(*args, **more)


@pytest.mark.parametrize("what", ["patch_metadata", "delete"])
def test_a_missing_permission_is_reported_once_and_retried_with_backoff(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Refusing([waiting("a")])
    if what == "patch_metadata":
        cluster.refused = {what}
    with Bridged(cluster=cluster) as world:
        world.live()
        assert world.nodes() == {"a": "n1"}
        if what == "delete":
            world.slurm.end(1)
            cluster.refused = {what}
        world.rest(1800)
        assert 5 <= cluster.times[what] <= 20
        assert sum("cannot " + what in record.message for record in caplog.records) == 1
        cluster.refused = set()
        world.rest(301)
        if what == "patch_metadata":
            assert world.marks("a") == (1, True), "running pods need them, too"
        else:
            assert world.pod("a").metadata.deletion_timestamp


# ---------------------------------------------------------------------- state


def test_no_state_is_kept_of_deleted_pods() -> None:
    with Bridged() as world:
        for number in range(60):
            name = f"p{number}"
            world.put(Annotated(partition="none")(waiting(name)) if number % 5 == 0 else waiting(name))
            world.live(2 * TICK)
            if number % 5:
                world.end(name)
            world.delete(name)
            world.finish()
            world.rest(2 * TICK)
            for job_id in [job_id for job_id, kept in world.slurm.kept.items() if kept.job.ended]:
                world.slurm.forget(job_id)
        world.rest(700)
        submitter, nodes, table = world.bridge._submitter, world.bridge._nodes, world.table
        assert submitter is not None
        assert nodes is not None
        kept: list[Sized] = [submitter._groups, submitter._tracked, submitter.reconciler._failed,
                submitter._problems, submitter._specs, submitter._ambiguous, submitter._requests,
                submitter._unobserved, submitter._fulfilled, nodes._shares, nodes._reading, table.pods,
                table.jobs, table.ended, table.pod_jobs, table._labelled, table._uids, table._gone,
                table._by_uid, table._by_key]  # fmt: skip
        assert [len(one) for one in kept] == [0] * len(kept)


def test_shares_are_requested_once_for_all_pods_of_a_job() -> None:
    with gang("a", "b", "c") as world:
        world.live()

        async def all_pods() -> list[Any]:
            nodes = [f"n{number % 3 + 1}" for number in range(99)]
            return await asyncio.gather(*(world.bridge.share_of(1, node) for node in nodes), return_exceptions=True)

        world.slurm.fails["resources"] = _queue(UnavailableError("GET resources/1", "timeout", sent=True))
        assert all(isinstance(found, UnavailableError) for found in world._do(all_pods()))
        assert world.slurm.reads["resources"] == 1
        found = world._do(all_pods())
        assert [share.node for share, _ in found[:3]] == ["n1", "n2", "n3"]
        assert world.slurm.reads["resources"] == 2


@pytest.fixture(autouse=True)
def _errors_of_the_plugin_are_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_request_for_pods_that_the_bridge_has_not_seen_yet_is_not_lost() -> None:
    with Bridged() as world:
        late, gone = waiting("late"), waiting("gone")
        world.want("PodGroup default/g", [late, gone], [late, gone])
        world.rest(TICK, session=False)
        assert world.live_jobs() == []
        world.put(late)
        world.rest(TICK, session=False)
        assert world.live_jobs() == [], "the bridge waits for the other pod, too"
        world.rest(5, session=False)
        (job,) = world.live_jobs()
        assert job.comment is not None
        assert [one.name for one in job.comment.pods] == ["late"], "the other pod was deleted before the bridge saw it"


def test_the_group_of_a_pod_that_the_bridge_sees_after_a_full_list_is_requeued_with_its_job() -> None:
    with Bridged() as world:
        late = waiting("late")
        world.time += 60  # then the next list is a full one
        world.want("Pod default/late", [late], [late])
        world.rest(TICK, session=False)
        world.put(late)
        world.rest(TICK, session=False)
        assert len(world.live_jobs()) == 1
        before = world.requeued["Pod default/late"]
        world.slurm.step()
        world.rest(TICK, session=False)
        assert world.requeued["Pod default/late"] == before + 1, "the job has a node"


def test_the_namespaces_take_turns() -> None:
    busy = [f"Pod busy/p{number}" for number in range(100)]
    assert list(in_turns([*busy, "PodGroup calm/g", "Pod calm/p"]))[:5] == [
        "Pod busy/p0", "PodGroup calm/g", "Pod busy/p1", "Pod calm/p", "Pod busy/p2"]  # fmt: skip
    assert list(in_turns(busy)) == busy


def test_a_pod_of_another_namespace_gets_its_job_in_the_first_turn() -> None:
    busy = (waiting(f"p{number}", namespace="busy") for number in range(100))
    with Bridged(*busy, waiting("late", namespace="calm")) as world:
        world.live()
        number, _ = world.marks("late")
        assert number == 2, "jobs are numbered in the order of their submission"
