"""The backfill action: a pending gang reserves nodes, and pods that end before it starts use them."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.hookspecs import Reservation, hookimpl
from session_scheduler.model.objects import Pod
from session_scheduler.model.times import time_text
from session_scheduler.testing.builders import gang, pod, pod_group
from session_scheduler.testing.fake_cluster import FakeCluster

DURATION = "fluence.flux-framework.org/duration"
BACKFILL = "allocate", "preempt", "backfill"


def cluster_of(nodes: int = 2, cpu: str = "4", actions: Any = BACKFILL, **options: Any) -> FakeCluster:
    cluster = FakeCluster(config=SchedulerConfig(bindings_in_flight=1_000, actions=actions, **options))
    cluster.nodes(nodes, cpu=cpu)
    return cluster


def lasting(name: str, seconds: int, cpu: str = "4", **options: Any) -> Pod:
    return pod(name, cpu=cpu, annotations={DURATION: str(seconds)}, **options)


def placed(cluster: FakeCluster) -> set[str]:
    cluster.run()
    return {name.partition("/")[2] for name, node in cluster.placements().items() if node}


def running(cluster: FakeCluster, *pods: Pod) -> FakeCluster:
    """Add running pods, so that their ends are known."""
    cluster.add(*pods)
    assert placed(cluster) >= {one.metadata.name for one in pods}
    return cluster


def test_a_gang_reserves_the_nodes_where_it_can_start_the_earliest() -> None:
    cluster = running(cluster_of(3), lasting("soon", 1000, bound_to="n1"), lasting("late", 9000, bound_to="n2"))
    cluster.add(*gang("g", 2, cpu="4"), pod("endless", cpu="1"))
    assert placed(cluster) == {"soon", "late"}
    assert {cluster.scheduler.cache.nominations.node_of(task) for task in tasks(cluster, "g-")} == {"n1", "n3"}
    assert "nodes are reserved for the gang" in cluster.reasons("g-0")


def test_the_condition_names_the_start_and_stays_the_same_on_each_retry() -> None:
    cluster = running(cluster_of(2), lasting("first", 1000, bound_to="n1"))
    cluster.add(*gang("g", 2, cpu="4"))
    cluster.run()
    said = cluster.find(Pod, "g-0").status.conditions[0].message
    start = next(iter(cluster.scheduler.cache.nominations.starts.values()))
    assert said.endswith(
        f"nodes are reserved for the gang, and it can start at {time_text(datetime.fromtimestamp(start, UTC))}"
    )
    cluster.advance(500)
    cluster.scheduler.queue.activate("PodGroup default/g", cluster.clock.now())
    cluster.run()
    assert cluster.reasons("g-0") == said


def tasks(cluster: FakeCluster, prefix: str) -> list[Any]:
    return [task for task in cluster.scheduler.cache.tasks.values() if task.name.startswith(prefix)]


def test_without_the_action_nothing_is_reserved() -> None:
    cluster = running(cluster_of(2, actions=("allocate", "preempt")), lasting("soon", 1000, bound_to="n1"))
    cluster.add(*gang("g", 2, cpu="4"), pod("endless", cpu="1"))
    assert placed(cluster) == {"soon", "endless"}


def test_only_pods_that_end_before_the_gang_starts_use_its_nodes() -> None:
    cluster = running(cluster_of(2), lasting("first", 1000, bound_to="n1"))
    cluster.add(*gang("g", 2, cpu="4"), lasting("short", 500, cpu="1"), lasting("long", 2000, cpu="1"),
                pod("endless", cpu="1"))  # fmt: skip
    assert placed(cluster) == {"first", "short"}


def test_active_deadline_seconds_is_a_known_end_like_the_annotation() -> None:
    cluster = running(cluster_of(2), pod("first", cpu="4", bound_to="n1", active_deadline_seconds=1000))
    cluster.add(*gang("g", 2, cpu="4"), pod("short", cpu="1", active_deadline_seconds=500))
    assert placed(cluster) == {"first", "short"}


def test_a_gang_whose_members_end_in_time_is_backfilled_all_or_nothing() -> None:
    cluster = running(cluster_of(3), lasting("first", 1000, bound_to="n1"))
    cluster.add(*gang("g", 3, cpu="4"), *gang("small", 2, cpu="3", annotations={DURATION: "500"}))
    assert placed(cluster) == {"first", "small-0", "small-1"}


def test_pods_that_leave_the_reserved_capacity_free_are_placed_whatever_their_duration() -> None:
    cluster = running(cluster_of(2, cpu="8"), lasting("first", 1000, cpu="6", bound_to="n1"))
    cluster.add(*gang("g", 2, cpu="6"), pod("beside", cpu="2"), pod("also", cpu="2"), pod("too-much", cpu="1"))
    assert placed(cluster) == {"first", "beside", "also"}


def test_the_gang_starts_on_its_nodes_after_the_other_pods_end() -> None:
    cluster = running(cluster_of(2), lasting("first", 1000, bound_to="n1"))
    cluster.add(*gang("g", 2, cpu="4"), lasting("short", 500, cpu="1"))
    placed(cluster)
    cluster.end("short")
    cluster.end("first")
    cluster.advance(1000)
    cluster.add(pod("endless", cpu="1"))
    assert {"g-0", "g-1"} <= placed(cluster)
    cluster.assert_pending("endless")
    assert not cluster.scheduler.cache.nominations.starts


def test_a_gang_of_higher_priority_gets_a_reservation_in_addition_to_a_lower_one() -> None:
    cluster = running(cluster_of(2), lasting("first", 1000, priority=9, bound_to="n1"))
    cluster.add(*gang("low", 2, cpu="4"))
    placed(cluster)
    cluster.add(*gang("other", 2, cpu="4"), *gang("high", 2, cpu="4", priority=5))
    placed(cluster)
    starts = {task.group.name for task in cluster.scheduler.cache.nominations.starts}
    assert starts == {"low", "high"}


def test_the_configuration_limits_the_number_of_reservations() -> None:
    for number in (1, 2):
        there = [lasting(f"p{i}", 1000, bound_to=f"n{i}") for i in range(1, 5)]
        cluster = running(cluster_of(4, reservations=number), *there)
        cluster.add(*gang("a", 2, cpu="4"), *gang("b", 2, cpu="4"), *gang("c", 2, cpu="4"))
        placed(cluster)
        assert len({task.group.name for task in cluster.scheduler.cache.nominations.starts}) == number


def test_nothing_is_reserved_without_known_ends() -> None:
    cluster = running(
        cluster_of(2), pod("endless", cpu="4", bound_to="n1"), lasting("late", 100, cpu="1", bound_to="n2")
    )
    cluster.add(*gang("g", 2, cpu="4"), pod("other", cpu="1"))
    assert "other" in placed(cluster)
    assert not cluster.scheduler.cache.nominations


def test_pods_that_this_session_places_count_with_their_durations() -> None:
    cluster = cluster_of(2)
    cluster.add(lasting("first", 1000, priority=3), *gang("g", 2, cpu="4", priority=2), pod("endless", cpu="1"))
    assert placed(cluster) == {"first"}


def test_nothing_is_backfilled_beside_a_pod_that_exceeds_its_duration() -> None:
    cluster = running(cluster_of(2), lasting("first", 1000, bound_to="n1"))
    cluster.advance(5000)
    cluster.add(*gang("g", 2, cpu="4"), lasting("short", 10, cpu="1"))
    assert placed(cluster) == {"first"}
    assert {cluster.scheduler.cache.nominations.node_of(task) for task in tasks(cluster, "g-")} == {"n1", "n2"}


def test_the_remaining_pods_of_a_basic_group_are_backfilled_if_others_fit_elsewhere() -> None:
    cluster = running(cluster_of(2).node("n3", cpu="3"), lasting("first", 1000, bound_to="n1"))
    cluster.add(*gang("g", 2, cpu="4"))
    cluster.run()
    cluster.add(*gang("b", 2, min_count=1, cpu="3", annotations={DURATION: "500"}))
    assert placed(cluster) == {"first", "b-0", "b-1"}


def test_backfilled_pods_use_their_queues_quota_until_the_gang_starts() -> None:
    cluster = cluster_of(3, queues=(QueueConfig(name="a", limit={"cpu": 9}),))
    running(cluster, *(lasting(f"p{number}", 1000, bound_to=f"n{number}") for number in (1, 2)))
    cluster.add(*gang("g", 2, cpu="4", queue="a"))
    cluster.run()
    cluster.add(lasting("short", 500, cpu="2", queue="a"), lasting("long", 2000, cpu="2", queue="a"))
    assert placed(cluster) == {"p1", "p2", "short"}


def test_a_reservation_does_not_reduce_the_current_share_of_any_queue() -> None:
    for also in ((), gang("g", 2, cpu="4", queue="a")):
        queues = tuple(QueueConfig(name=name, deserved={"cpu": cpu}) for name, cpu in (("a", 4), ("b", 4)))
        cluster = cluster_of(2, actions=(*BACKFILL, "reclaim"), queues=queues)
        running(
            cluster, lasting("own", 9000, bound_to="n1", queue="a"), lasting("theirs", 9000, cpu="3", bound_to="n2")
        )
        cluster.add(also)
        cluster.run()
        assert bool(cluster.scheduler.cache.nominations) is bool(also)
        cluster.add(pod("waits", cpu="4", queue="b"))
        cluster.run(cycles=2)
        assert not any(task.pod.metadata.deletion_timestamp for task in tasks(cluster, "own"))


def test_a_queue_that_comes_first_uses_nodes_reserved_for_another_queues_gang_without_evictions() -> None:
    for share, bound in ((6, "n2"), (0, None)):
        queues = QueueConfig(name="a", deserved={"cpu": 2}), QueueConfig(name="b", deserved={"cpu": share})
        cluster = cluster_of(2, actions=(*BACKFILL, "reclaim"), queues=queues)
        running(cluster, lasting("own", 9000, bound_to="n1", queue="a" if share else "b"))
        cluster.add(gang("g", 2, cpu="4", queue="a"))
        cluster.run()
        cluster.add(pod("waits", cpu="4", queue="b"))
        cluster.run()
        assert cluster.node_of("waits") == bound
        assert not any(task.pod.metadata.deletion_timestamp for task in tasks(cluster, "own"))


def test_a_plugin_that_places_groups_yields_to_reservations_for_the_longest_duration_of_a_gang() -> None:
    left: list[set[str]] = []

    class Places:
        name = "places"

        @hookimpl
        def place_group(self, session: Any, tasks: Any) -> None:
            if session.nominated.backfills:
                left.append({task.group.name for there in session.yields_to(tasks).values() for task in there})

    cluster = cluster_of(2, cpu="5", reservations=2)
    cluster.use(Places())
    running(cluster, lasting("soon", 1000, bound_to="n1"), lasting("late", 5000, bound_to="n2"))
    cluster.add(*gang("a", 2, cpu="2500m"), *gang("b", 2, cpu="2500m"))
    cluster.run()
    starts = cluster.scheduler.cache.nominations.starts
    assert {task.group.name for task in starts} == {"a", "b"}
    cluster.add(pod_group("m", 2), *(lasting(f"m-{seconds}", seconds, cpu="1", group="m") for seconds in (500, 3000)))
    cluster.run()
    assert left
    assert all("a" in names for names in left)


def test_a_reservation_is_given_up_when_the_gang_is_deleted() -> None:
    cluster = running(cluster_of(2), lasting("first", 1000, bound_to="n1"))
    cluster.add(*gang("g", 2, cpu="4"), pod("endless", cpu="1"))
    assert placed(cluster) == {"first"}
    cluster.delete_pod("g-0")
    cluster.delete_pod("g-1")
    cluster.advance(30)
    assert placed(cluster) == {"first", "endless"}


def test_a_new_leader_keeps_the_reservation_of_the_old_one() -> None:
    cluster = running(cluster_of(2), lasting("first", 1000, bound_to="n1"))
    cluster.add(*gang("g", 2, cpu="4"))
    placed(cluster)
    cluster.restart()
    cluster.add(pod("endless", cpu="1", priority=-1))
    assert placed(cluster) == {"first"}


class _Elsewhere:
    """Answers `reservation` for all gangs."""

    name = "elsewhere"
    start = 700.0

    @hookimpl
    def reservation(self, session: Any, trial: Any) -> Reservation | None:
        return Reservation(dict.fromkeys(trial.tasks, "n2"), session.wall + self.start)


def test_a_plugin_can_decide_a_gangs_reservation_instead_of_the_core() -> None:
    cluster = cluster_of(3)
    cluster.use(_Elsewhere())
    running(cluster, *(lasting(f"p{number}", 1000, bound_to=f"n{number}", cpu="3") for number in range(1, 4)))
    cluster.add(*gang("g", 2, cpu="4"), lasting("short", 600, cpu="1"), lasting("long", 800, cpu="1"))
    cluster.run()
    assert {cluster.scheduler.cache.nominations.node_of(task) for task in tasks(cluster, "g-")} == {"n2"}
    assert cluster.node_of("long") != "n2"


@pytest.mark.parametrize(
    "answer",
    [
        lambda session, trial: "n1",
        lambda session, trial: Reservation({}, session.wall + 1),
        lambda session, trial: Reservation(dict.fromkeys(trial.tasks, "nowhere"), session.wall + 1),
        lambda session, trial: Reservation(dict.fromkeys(trial.tasks, "n1"), session.wall - 1),
        lambda session, trial: Reservation(dict.fromkeys(trial.tasks, "n1"), math.nan),
        lambda session, trial: Reservation(dict.fromkeys([*trial.tasks, "other"], "n1"), session.wall + 1),  # type: ignore[list-item]
    ],
)
def test_an_invalid_reservation_fails_the_gang_with_the_plugins_name(answer: Any) -> None:
    class Wrong(_Elsewhere):
        @hookimpl
        def reservation(self, session: Any, trial: Any) -> Any:
            return answer(session, trial)

    cluster = cluster_of(1)
    cluster.use(Wrong())
    cluster.add(*gang("g", 2, cpu="4"), pod("other", cpu="1"))
    assert placed(cluster) == {"other"}
    assert "elsewhere" in cluster.reasons("g-0")
    assert "expected None, or a Reservation with the trial's tasks" in cluster.reasons("g-0")
