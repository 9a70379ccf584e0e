"""The reports and metrics of a live scheduler."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from session_scheduler.base.clock import StoppedClock
from session_scheduler.cluster.port import Change
from session_scheduler.framework.bindings import Failure
from session_scheduler.framework.statement import PlacementResult
from session_scheduler.hookspecs import Refusal
from session_scheduler.model.groups import Group, GroupRef, Phase, Task
from session_scheduler.reporting.live_observer import LiveObserver
from session_scheduler.reporting.metrics import Metrics
from session_scheduler.reporting.recorder import Recorder
from session_scheduler.testing import pod, pod_group


class Reports(Recorder):
    """Records its calls."""

    def __init__(self):
        self.reported = []

    def seen(self, pod):
        """Records nothing."""

    def scheduled(self, one, node):
        self.reported.append(("scheduled", one.metadata.name, node))

    def unschedulable(self, one, reason):
        self.reported.append(("unschedulable", one.metadata.name, reason))

    def gated(self, one, reason):
        self.reported.append(("gated", one.metadata.name, reason))

    def nominated(self, one, reason):
        self.reported.append(("nominated", one.metadata.name, reason))

    def failed(self, one, reason):
        self.reported.append(("failed", one.metadata.name, reason))

    def group(self, group, status, reason, message):
        self.reported.append(("group", group.metadata.name, status, reason, message))

    def record(self, obj, message):
        self.reported.append(("event", obj.metadata.name, message.reason, message.warning, message.note))

    def forget(self, uid):
        self.reported.append(("forget", uid))


class World:
    def __init__(self):
        self.reports, self.metrics, self.clock = Reports(), Metrics("1"), StoppedClock()
        self.observer = LiveObserver(self.reports, self.metrics, self.clock)

    @property
    def reported(self):
        """What was reported since this was last read."""
        reported, self.reports.reported = self.reports.reported, []
        return reported

    def count(self, start):
        """The sum of the metric's samples with this prefix."""
        text = self.metrics.exposition()[0].decode()
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(start))


@pytest.fixture
def world() -> World:
    return World()


def with_uid(one, uid):
    return replace(one, metadata=replace(one.metadata, uid=uid))


def a_group(size=2, min_count=2, *, missing=False, phase=Phase.PENDING):
    group = Group(GroupRef("default", "g"), None if missing else pod_group("g", min_count))
    for index in range(size):
        one = with_uid(pod(f"g-{index}", group="g"), f"u{index}")
        task = Task(one, None, group)  # type: ignore[arg-type]
        task.phase = phase
        group.tasks[task.uid] = task
    return group


def refused(group, *, failed=False, reason="0/4 nodes are available"):
    reasons = dict.fromkeys(group.tasks.values(), "Insufficient cpu")
    return PlacementResult(group, reasons=reasons, refusal=Refusal(reason, failed=failed))


def test_a_gang_that_does_not_fit_is_reported_at_once_with_each_pod(world: World):
    world.observer.decided(refused(a_group()))
    assert world.reported == [
        ("unschedulable", "g-0", "Insufficient cpu"),
        ("unschedulable", "g-1", "Insufficient cpu"),
        ("group", "g", "False", "Unschedulable", "0/4 nodes are available"),
    ]
    assert world.count('fluence_groups_total{result="unschedulable"}') == 1
    assert world.count('fluence_pods_total{result="unschedulable"}') == 2


def test_the_write_of_the_nominated_node_sets_the_condition_of_a_nominated_pod(world: World):
    outcome = refused(a_group())
    first, _ = outcome.reasons
    outcome.nominated[first] = "n1"
    world.observer.decided(outcome)
    assert world.reported[:2] == [
        ("nominated", "g-0", "Insufficient cpu"),
        ("unschedulable", "g-1", "Insufficient cpu"),
    ]


def test_a_pod_already_nominated_in_its_status_gets_its_condition_as_usual(world: World):
    outcome = refused(a_group())
    first, _ = outcome.reasons
    first.pod = replace(first.pod, status=replace(first.pod.status, nominated_node_name="n1"))
    outcome.nominated[first] = "n1"
    world.observer.decided(outcome)
    assert world.reported[0] == ("unschedulable", "g-0", "Insufficient cpu")


def test_a_failure_of_the_scheduler_is_reported_as_such(world: World):
    world.observer.decided(refused(a_group(), failed=True, reason="plugin x failed"))
    assert world.reported[-1] == ("group", "g", "False", "SchedulerError", "plugin x failed")
    world.observer.decided(refused(a_group(), failed=True))
    assert world.reported[0] == ("failed", "g-0", "Insufficient cpu")
    assert world.count('fluence_pods_total{result="error"}') == 4


@pytest.mark.parametrize("group", [a_group(1), a_group(2, missing=True)])
def test_an_incomplete_group_is_reported_only_if_it_stays_incomplete(world: World, group):
    world.observer.decided(refused(group))
    world.clock.advance(0.5)
    world.observer.decided(refused(group, reason="newer"))
    world.observer.report_incomplete(world.clock.now())
    assert world.reported == []
    assert world.observer.next_time() == 1.0
    world.clock.advance(0.5)
    world.observer.report_incomplete(world.clock.now())
    reported = world.reported
    assert reported[0] == ("unschedulable", "g-0", "Insufficient cpu")
    assert [line for line in reported if line[0] == "group"] == (
        [] if group.missing else [("group", "g", "False", "Unschedulable", "newer")]
    )
    assert world.observer.next_time() is None
    world.observer.report_incomplete(world.clock.now() + 5)
    assert world.reported == []


def test_a_group_completed_and_placed_meanwhile_is_not_reported_as_waiting(world: World):
    group = a_group(1)
    world.observer.decided(refused(group))
    group.tasks.update(a_group(2).tasks)
    world.observer.decided(PlacementResult(group, placed=list(group.tasks.values())))
    world.clock.advance(5)
    world.observer.report_incomplete(world.clock.now())
    assert world.reported == []


def test_pods_bound_meanwhile_are_not_reported_as_waiting(world: World):
    group = a_group(2)
    outcome = refused(group)
    group.tasks["u0"].phase = Phase.BOUND
    world.observer.decided(outcome)
    assert [line[1] for line in world.reported if line[0] == "unschedulable"] == ["g-1"]


def test_a_pod_that_a_plugin_keeps_out_is_reported_once_if_it_stays_out(world: World):
    task = next(iter(a_group(phase=Phase.GATED).tasks.values()))
    world.observer.gated(task, "no claim yet")
    assert world.observer.next_time() == 1.0
    world.clock.advance(0.5)
    world.observer.gated(task, "no claim")
    world.observer.report_incomplete(world.clock.now())
    assert world.reported == []
    world.clock.advance(0.5)
    world.observer.report_incomplete(world.clock.now())
    assert world.reported == [("gated", "g-0", "no claim")]
    assert world.observer.next_time() is None


@pytest.mark.parametrize("end", ["opened", "deleted", "being deleted"])
def test_a_pod_whose_gate_opens_or_that_is_deleted_is_not_reported_as_kept_out(world: World, end):
    task = next(iter(a_group(phase=Phase.GATED).tasks.values()))
    world.observer.gated(task, "no claim")
    if end == "opened":
        task.phase = Phase.PENDING
    elif end == "deleted":
        world.observer.seen(Change.DELETED, task.pod)
    else:
        task.pod = replace(task.pod, metadata=replace(task.pod.metadata, deletion_timestamp="2000-01-01T00:00:00Z"))
    world.clock.advance(2.0)
    world.observer.report_incomplete(world.clock.now())
    assert [entry for entry in world.reported if entry[0] == "gated"] == []


def test_a_running_gang_is_not_reported_as_unschedulable_for_an_additional_pod(world: World):
    group = a_group(3, 2, phase=Phase.BOUND)
    group.tasks["u2"].phase = Phase.PENDING
    outcome = PlacementResult(group, reasons={group.tasks["u2"]: "Insufficient cpu"}, refusal=Refusal("no"))
    world.observer.decided(outcome)
    assert world.reported == [("unschedulable", "g-2", "Insufficient cpu")]


# ------------------------------------------------------------------ binding


def test_a_bound_pod_is_reported_and_the_time_to_its_event_is_measured_once(world: World):
    task = next(iter(a_group().tasks.values()))
    world.observer.bound(task, "n1")
    assert world.reported == [("scheduled", "g-0", "n1")]
    world.clock.advance(0.25)
    seen = with_uid(pod("g-0", bound_to="n1"), task.uid)
    for _ in range(2):
        world.observer.seen(Change.MODIFIED, seen)
    assert world.count("fluence_watch_lag_seconds_count") == 1
    assert world.count("fluence_watch_lag_seconds_sum") == 0.25


def test_an_event_that_shows_the_pod_unbound_measures_nothing(world: World):
    task = next(iter(a_group().tasks.values()))
    world.observer.bound(task, "n1")
    world.observer.seen(Change.MODIFIED, task.pod)
    assert world.count("fluence_watch_lag_seconds_count") == 0


def test_the_reports_about_a_deleted_pod_are_forgotten(world: World):
    task = next(iter(a_group().tasks.values()))
    world.observer.bound(task, "n1")
    world.observer.seen(Change.DELETED, task.pod)
    assert world.reported[-1] == ("forget", "u0")
    assert world.observer._bound_at == {}


@pytest.mark.parametrize(("sent", "errors"), [(True, 1), (False, 0)])
def test_only_sent_requests_count_as_errors_by_their_answer(world: World, sent, errors):
    task = next(iter(a_group().tasks.values()))
    world.observer.bind_failed(Failure(task, "n1", "why", task.pod, sent=sent, cause="Conflict"))
    assert world.count("fluence_bind_errors_total") == errors
    world.observer.failed(task, "binding to n1 failed: why")
    assert world.reported == [("failed", "g-0", "binding to n1 failed: why")]


# ------------------------------------------------------------------ gangs


def test_a_gang_that_timed_out_is_reported_with_numbers(world: World):
    world.observer.gang_timed_out(a_group(3, 3), 2, 60.0)
    text = (
        "2 pods were bound within 60 s, but the gang needs at least 3: the scheduler evicts the bound pods, and the "
        "gang starts over"
    )
    assert world.reported == [("group", "g", "False", "Unschedulable", text)]
    assert world.count('fluence_groups_total{result="timeout"}') == 1


def test_a_gang_that_timed_out_without_its_leader_is_reported_as_such(world: World):
    group = a_group(3, 3, phase=Phase.BOUND)
    group.pod_group = pod_group("g", 3, sub_groups="leader=1")
    world.observer.gang_timed_out(group, 3, 60.0)
    ((*_, text),) = world.reported
    assert text.startswith(
        "3 pods were bound within 60 s, but the gang needs at least 3 and lacks 1 pod of sub-group leader: "
    )


def test_a_started_gang_is_reported_as_scheduled(world: World):
    world.observer.group_scheduled(pod_group("g", 2), "minCount pods are bound")
    assert world.reported == [("group", "g", "True", "Scheduled", "minCount pods are bound")]


def test_a_problem_of_an_object_is_a_warning_about_it(world: World):
    world.observer.problem(pod("odd"), "its record is none")
    assert world.reported == [("event", "odd", "FluenceRecovery", True, "its record is none")]


def test_the_end_of_work_calls_its_callback(world: World):
    called = []
    world.observer.finished()
    LiveObserver(world.reports, world.metrics, world.clock, finished=lambda: called.append(1)).finished()
    assert called == [1]


def test_a_found_plan_is_counted_by_its_outcome(world: World):
    world.observer.recovered("rolled forward", 3)
    world.observer.recovered("aborted", 0)
    assert world.count("fluence_recoveries_total") == 2
    assert world.count("fluence_recovered_pods_total") == 3
