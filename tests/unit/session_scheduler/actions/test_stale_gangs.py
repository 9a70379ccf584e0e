"""The stale-gang-eviction action: a gang that lost required members is evicted, and starts again."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from session_scheduler.cluster.errors import TooManyRequests
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.hookspecs import hookimpl
from session_scheduler.model.gang_plan import PLAN_ANNOTATION
from session_scheduler.model.group_api import SCHEDULED
from session_scheduler.model.objects import Pod, PodCondition, PodGroup, PodGroupStatus
from session_scheduler.testing.builders import gang, pod
from session_scheduler.testing.fake_cluster import FakeCluster


def cluster_of(nodes: int = 3, *, actions: Any = ("allocate", "stale-gang-eviction")) -> FakeCluster:
    config = SchedulerConfig(bindings_in_flight=1_000, actions=actions, stale_gang_seconds=60)
    return FakeCluster(config=config).nodes(nodes, cpu="4")


def running(size: int = 3, min_count: int | None = None, **options: Any) -> FakeCluster:
    cluster = cluster_of(**options)
    cluster.add(gang("g", size, min_count=min_count, cpu="4"))
    cluster.run()
    assert len([node for node in cluster.placements().values() if node]) == size
    return cluster


def ending(cluster: FakeCluster) -> set[str]:
    return {task.name for task in cluster.scheduler.cache.tasks.values() if task.pod.metadata.deletion_timestamp}


def lose(cluster: FakeCluster, name: str, *, succeeded: bool = False) -> None:
    cluster.end(name, succeeded=succeeded)
    cluster.run()


def later(cluster: FakeCluster, seconds: float = 61) -> set[str]:
    cluster.advance(seconds)
    cluster.run(cycles=2)
    return ending(cluster)


def test_the_remaining_members_of_a_stale_gang_are_evicted_after_the_timeout() -> None:
    cluster = running()
    lose(cluster, "g-1")
    assert later(cluster, 59) == set()
    assert later(cluster, 2) == {"g-0", "g-2"}


def test_without_the_action_the_other_members_keep_running() -> None:
    cluster = running(actions=("allocate",))
    lose(cluster, "g-1")
    assert later(cluster, 1000) == set()


def test_a_gang_that_is_complete_again_in_time_keeps_running() -> None:
    cluster = running()
    lose(cluster, "g-1")
    cluster.add(pod("g-1-again", cpu="4", group="g"))
    cluster.run()
    cluster.assert_bound("g-1-again")
    assert later(cluster, 1000) == set()


def test_the_gang_starts_again_after_its_members_terminated_and_were_recreated() -> None:
    cluster = running()
    lose(cluster, "g-1")
    assert later(cluster) == {"g-0", "g-2"}
    cluster.add(pod("again-0", cpu="4", group="g"))
    cluster.run()
    cluster.assert_pending("again-0")
    cluster.finish_deletions()
    cluster.add(pod("again-1", cpu="4", group="g"), pod("again-2", cpu="4", group="g"))
    cluster.advance(30)
    cluster.run(cycles=2)
    for number in range(3):
        cluster.assert_bound(f"again-{number}")
    assert later(cluster, 1000) == set()


def test_a_member_that_succeeded_is_not_lost() -> None:
    cluster = running()
    lose(cluster, "g-0", succeeded=True)
    lose(cluster, "g-1", succeeded=True)
    assert later(cluster, 1000) == set()


def test_a_failed_member_is_lost_although_others_succeeded() -> None:
    cluster = running()
    lose(cluster, "g-0", succeeded=True)
    lose(cluster, "g-1")
    assert later(cluster) == {"g-2"}


def test_an_elastic_gang_may_lose_members_above_its_minimum() -> None:
    cluster = running(3, 2)
    lose(cluster, "g-1")
    assert later(cluster, 1000) == set()
    lose(cluster, "g-2")
    assert later(cluster) == {"g-0"}


def crew(minima: str) -> FakeCluster:
    """A running leader with four workers."""
    cluster = cluster_of(5)
    cluster.group("g", 2, sub_groups=minima).pod("leader", cpu="4", group="g", sub_group="leader")
    cluster.pods(4, prefix="worker", cpu="4", group="g", sub_group="worker")
    cluster.run()
    return cluster.assert_all_bound()


def test_workers_that_lost_their_leader_are_evicted_whatever_their_number() -> None:
    cluster = crew("leader=1,worker=2")
    lose(cluster, "leader")
    assert later(cluster) == {f"worker-{number}" for number in range(4)}


def test_a_sub_group_may_lose_members_above_its_minimum() -> None:
    cluster = crew("leader=1,worker=2")
    lose(cluster, "worker-0")
    lose(cluster, "worker-1")
    assert later(cluster) == set()
    lose(cluster, "worker-2")
    assert later(cluster) == {"leader", "worker-3"}


def test_a_leader_that_succeeded_is_not_lost_whichever_worker_is() -> None:
    cluster = crew("leader=1,worker=2")
    lose(cluster, "leader", succeeded=True)
    lose(cluster, "worker-0")
    assert later(cluster) == set()
    for number in (1, 2):
        lose(cluster, f"worker-{number}")
    assert later(cluster) == {"worker-3"}


def test_workers_without_a_minimum_are_evicted_when_their_leader_is_lost() -> None:
    cluster = crew("leader=1")
    lose(cluster, "leader")
    assert len(later(cluster)) == 4


def test_a_gang_whose_members_are_deleted_one_after_the_other_becomes_stale() -> None:
    cluster = running(3)
    for name in ("g-0", "g-1"):
        cluster.delete_pod(name)
    cluster.run()
    cluster.finish_deletions()
    cluster.run()
    assert later(cluster) == {"g-2"}


def test_basic_groups_and_single_pods_never_become_stale() -> None:
    cluster = cluster_of()
    cluster.add(*gang("basic", 2, min_count=1, cpu="1"), pod("alone", cpu="1"))
    cluster.run()
    lose(cluster, "basic-0")
    assert later(cluster, 1000) == set()


def test_a_gang_without_running_members_starts_again() -> None:
    cluster = running(2, nodes=2)
    cluster.add(pod("waits", cpu="4", group="g"))
    cluster.run()
    lose(cluster, "g-0")
    lose(cluster, "g-1")
    cluster.add(pod("also", cpu="4", group="g"))
    cluster.advance(100)
    cluster.run(cycles=2)
    cluster.assert_bound("waits")
    cluster.assert_bound("also")
    assert ending(cluster) == set()


def test_a_loss_before_a_restart_evicts_no_pods() -> None:
    cluster = running()
    group = cluster.find(PodGroup, "g")
    plan = group.metadata.annotations[PLAN_ANNOTATION]  # the condition must name its attempt
    started = PodGroupStatus(conditions=(PodCondition(SCHEDULED, "True", "Scheduled", plan),))
    cluster.add(replace(group, status=started))
    lose(cluster, "g-1")
    cluster.restart()
    assert later(cluster, 1000) == set()


def test_a_plugin_that_fails_for_one_stale_gang_does_not_keep_others() -> None:
    class Guard:
        name = "guard"

        @hookimpl
        def on_session_open(self, session: Any) -> None:
            session.add_event_handler(deallocate=self.ended)

        def ended(self, event: Any) -> None:
            if event.task.name.startswith("g-"):
                raise RuntimeError("not these")

    cluster = cluster_of(4)
    cluster.use(Guard())
    cluster.add(gang("g", 2, cpu="4"), gang("h", 2, cpu="4"))
    cluster.run()
    lose(cluster, "g-1")
    lose(cluster, "h-1")
    assert later(cluster) == {"h-0"}


def test_members_whose_eviction_is_rejected_are_deleted() -> None:
    cluster = running()
    memory: Any = cluster.memory

    async def refuse(one: Pod) -> None:
        raise TooManyRequests(f"{one.key}: its disruption budget allows none")

    memory.evict = refuse
    lose(cluster, "g-1")
    assert later(cluster) == set()
    assert later(cluster, 6) == {"g-0", "g-2"}


def test_the_timeout_starts_again_when_a_complete_gang_loses_another_member() -> None:
    cluster = running()
    lose(cluster, "g-1")
    taken = {cluster.node_of("g-0"), cluster.node_of("g-2")}
    free = next(node for node in ("n1", "n2", "n3") if node not in taken)
    cluster.advance(50)
    cluster.add(pod("again", cpu="4", group="g", bound_to=free))
    cluster.assert_invariants()  # applies the event without a session
    cluster.advance(50)
    cluster.end("again", succeeded=False)
    assert later(cluster, 1) == set()
    assert later(cluster, 60) == {"g-0", "g-2"}


def test_after_a_restart_an_incomplete_gang_becomes_stale_when_it_loses_another_member() -> None:
    cluster = running(4, nodes=4)
    group = cluster.find(PodGroup, "g")
    plan = group.metadata.annotations[PLAN_ANNOTATION]
    started = PodGroupStatus(conditions=(PodCondition(SCHEDULED, "True", "Scheduled", plan),))
    cluster.add(replace(group, status=started))
    lose(cluster, "g-1")
    cluster.restart()
    assert later(cluster, 1000) == set()
    lose(cluster, "g-2")
    assert later(cluster, 59) == set()
    assert later(cluster, 2) == {"g-0", "g-3"}


def test_a_stale_gang_with_a_member_of_another_scheduler_is_evicted() -> None:
    for number in (11, 12):  # its uid is the first of all, or not
        cluster = cluster_of(4)
        cluster.add(pod(f"theirs{number}", cpu="4", group="g", scheduler="other", bound_to="n4"))
        cluster.add(*gang("g", 3, min_count=4, cpu="4"))
        cluster.run()
        lose(cluster, "g-1")
        assert later(cluster) == {f"theirs{number}", "g-0", "g-2"}


def test_no_session_opens_for_a_stale_gang_whose_members_all_terminate() -> None:
    opened = []

    class Counts:
        name = "counts"

        @hookimpl
        def on_session_open(self, session: Any) -> None:
            opened.append(session.now)

    cluster = cluster_of()
    cluster.use(Counts())
    cluster.add(gang("g", 3, cpu="4"))
    cluster.run()
    lose(cluster, "g-1")
    for name in ("g-0", "g-2"):
        one = cluster.find(Pod, name)
        cluster.add(replace(one, metadata=replace(one.metadata, deletion_timestamp="2026-01-01T00:00:00Z")))
    before = len(opened)
    cluster.advance(61)
    cluster.run(cycles=10)
    assert len(opened) == before
