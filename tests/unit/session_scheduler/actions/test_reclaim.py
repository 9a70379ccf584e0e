"""The reclaim action with Proportion: a queue gets its share in one cycle, and pods are not evicted back and forth."""

from __future__ import annotations

from typing import Any

import pytest

from session_scheduler import Scenario, Session
from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.hookspecs import hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.groups import Group, Task
from session_scheduler.model.meta import LabelSelector
from session_scheduler.model.objects import ObjectMeta, Pod
from session_scheduler.model.policy import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from session_scheduler.testing.builders import gang, node, pod, pod_group
from session_scheduler.testing.fake_cluster import FakeCluster

LABEL = "fluence.flux-framework.org/queue"
KEPT = {"fluence.flux-framework.org/preemptibility": "non-preemptible"}
TWO = ({"name": "a", "deserved": {"cpu": 4}}, {"name": "b", "deserved": {"cpu": 4}})


_ACTIONS = "allocate", "preempt", "reclaim"


def cluster_of(*queues: dict[str, Any], nodes: int = 2, cpu: str = "4", actions: Any = _ACTIONS) -> Any:
    config = SchedulerConfig(bindings_in_flight=1_000, actions=actions,
                             queues=tuple(QueueConfig(**queue) for queue in queues))  # fmt: skip
    cluster = FakeCluster(config=config)
    cluster.nodes(nodes, cpu=cpu)
    return cluster


def of(name: str, queue: str, **options: Any) -> Pod:
    return pod(name, cpu=options.pop("cpu", "1"), labels={LABEL: queue, **options.pop("labels", {})}, **options)


def running(cluster: FakeCluster, queue: str) -> list[str]:
    """The bound pods of a queue that are not terminating."""
    return sorted(
        task.name for task in cluster.scheduler.cache.bound_tasks()
        if task.group.queue == queue and task.pod.metadata.deletion_timestamp is None
    )  # fmt: skip


def ending(cluster: FakeCluster) -> set[str]:
    return {task.name for task in cluster.scheduler.cache.tasks.values() if task.pod.metadata.deletion_timestamp}


def waiting(cluster: FakeCluster, name: str) -> list[Task]:
    return [task for task in cluster.scheduler.cache.unbound.values() if task.name.endswith(name)]


def full_of(queue: str, cluster: FakeCluster, count: int = 8, **options: Any) -> None:
    cluster.add(*(of(f"{queue}{number}", queue, **options) for number in range(count)))
    cluster.run()
    assert len(running(cluster, queue)) == count


def test_an_under_served_queue_gets_its_share_in_one_cycle_and_no_more() -> None:
    cluster = cluster_of(*TWO)
    full_of("a", cluster)
    cluster.add(*(of(f"b{number}", "b") for number in range(8)))
    cluster.run()
    assert len(ending(cluster)) == 4
    cluster.finish_deletions()
    cluster.run(cycles=2)
    assert (len(running(cluster, "a")), len(running(cluster, "b"))) == (4, 4)


def test_without_the_action_no_pods_are_evicted() -> None:
    cluster = cluster_of(*TWO, actions=("allocate", "preempt"))
    full_of("a", cluster)
    cluster.add(of("b0", "b"))
    cluster.run(cycles=2)
    assert not ending(cluster)


def test_a_queue_within_its_share_loses_nothing() -> None:
    cluster = cluster_of({"name": "a", "deserved": {"cpu": 6}}, {"name": "b", "deserved": {"cpu": 2}})
    full_of("a", cluster, 6)
    full_of("b", cluster, 2)
    cluster.add(of("b-more", "b"), of("a-more", "a"))
    cluster.run(cycles=3)
    assert not ending(cluster)


def test_non_preemptible_pods_are_not_reclaimed() -> None:
    cluster = cluster_of({"name": "a", "deserved": {"cpu": 8}}, {"name": "b", "deserved": {"cpu": 4}})
    full_of("a", cluster, labels=KEPT)
    cluster.add(of("b0", "b"))
    cluster.run(cycles=2)
    assert not ending(cluster)


def test_priorities_in_the_other_queue_only_decide_the_order_of_victims() -> None:
    cluster = cluster_of(*TWO)
    cluster.add(*(of(f"a{number}", "a", priority=50 if number < 6 else 10) for number in range(8)))
    cluster.run()
    cluster.add(of("b0", "b"), of("b1", "b"))
    cluster.run()
    assert ending(cluster) == {"a6", "a7"}


def test_a_gang_reclaims_its_queues_share_all_or_nothing() -> None:
    cluster = cluster_of(*TWO)
    full_of("a", cluster)
    cluster.add(*gang("g", 5, cpu="1", labels={LABEL: "b"}), *gang("h", 4, cpu="1", labels={LABEL: "b"}))
    cluster.run()
    assert len(ending(cluster)) == 4, "four are b's share, five are not"
    cluster.finish_deletions()
    cluster.run(cycles=2)
    assert {name[0] for name in running(cluster, "b")} == {"h"}
    assert len(running(cluster, "b")) == 4


def test_a_gang_takes_from_each_queue_only_its_surplus() -> None:
    """The pods of c are the least important, but c has only one above its share."""
    queues = ({"name": name, "deserved": {"cpu": 4}} for name in "abc")
    cluster = cluster_of(*queues, nodes=3)
    cluster.add(
        *(of(f"a{number}", "a", priority=50) for number in range(7)), *(of(f"c{number}", "c") for number in range(5))
    )
    cluster.run()
    cluster.add(*gang("g", 4, cpu="1", labels={LABEL: "b"}))
    cluster.run()
    assert sorted(name[0] for name in ending(cluster)) == ["a", "a", "a", "c"]


def test_a_gang_takes_from_child_queues_together_only_their_parents_surplus() -> None:
    """Each of a1 and a2 could give up two pods, but their parent only two in all."""
    queues = ({"name": "a"}, {"name": "a1", "parent": "a"}, {"name": "a2", "parent": "a"}, {"name": "b"}, {"name": "c"})
    cluster = cluster_of(*queues, nodes=3)
    cluster.add(*(of(f"{queue}-{number}", queue) for queue in ("a1", "a2") for number in range(3)))
    cluster.add(*(of(f"c{number}", "c", priority=50) for number in range(6)))
    cluster.run()
    cluster.add(*gang("g", 4, cpu="1", labels={LABEL: "b"}))
    cluster.run()
    assert sorted(name[0] for name in ending(cluster)) == ["a", "a", "c", "c"]


@pytest.mark.parametrize("names", [("p1-big", "p2-small"), ("p1-small", "p2-big")])
def test_each_pod_of_a_basic_group_reclaims_for_itself(names: tuple[str, str]) -> None:
    """The big one exceeds the queue's share, whether it comes before the small one or after it."""
    cluster = cluster_of(*TWO)
    full_of("a", cluster)
    cluster.add(pod_group("g", labels={LABEL: "b"}))
    cluster.add(*(of(name, "b", cpu="5" if name.endswith("big") else "1", group="g") for name in names))
    cluster.run()
    assert len(ending(cluster)) == 1
    nominated = [cluster.scheduler.cache.nominations.node_of(task) for task in waiting(cluster, "small")]
    assert all(nominated)


def test_other_pods_do_not_get_the_freed_capacity_while_victims_terminate() -> None:
    cluster = cluster_of(*TWO, nodes=1, cpu="8")
    full_of("a", cluster)
    cluster.add(*gang("g", 4, cpu="1", labels={LABEL: "b"}), *(of(f"more{number}", "a") for number in range(4)))
    cluster.run()
    victims = sorted(ending(cluster))
    assert len(victims) == 4
    for name in victims:
        cluster.delete(Pod, name)
        cluster.run()
        assert len(ending(cluster)) == len([one for one in victims if one > name]), "no other pod is evicted"
    cluster.run(cycles=2)
    assert len(running(cluster, "b")) == 4


@pytest.mark.parametrize("size", [1, 3])
def test_two_competing_queues_under_load_reach_a_stable_state(size: int) -> None:
    """A controller recreates evicted pods. From some cycle on no pods are evicted."""
    cluster = cluster_of(*TWO, nodes=3, cpu="3")
    names = iter(range(1000))

    def more(queue: str) -> None:
        number = next(names)
        if size == 1:
            cluster.add(of(f"{queue}-{number}", queue))
        else:
            cluster.add(*gang(f"{queue}-{number}", size, cpu="1", labels={LABEL: queue}))

    for _ in range(6):
        more("a")
    cluster.run()
    ended = []
    for turn in range(12):
        if turn == 1:
            for _ in range(6):
                more("b")
        cluster.run()
        leaving = ending(cluster)
        ended.append(len(leaving))
        for name in sorted(leaving):
            more(name[0])
        cluster.finish_deletions()
        cluster.advance(11.0)
    assert sum(ended) > 0
    assert ended[-6:] == [0] * 6
    if size == 1:
        assert min(len(running(cluster, "a")), len(running(cluster, "b"))) == 4


def test_a_plugin_can_spare_pods() -> None:
    class Spares:
        name = "spares"

        @hookimpl
        def on_session_open(self, session: Any) -> None:
            session.add_reclaimable(lambda _, victim: not victim.name.startswith("a0"))

    cluster = cluster_of({"name": "a", "deserved": {"cpu": 0}}, {"name": "b", "deserved": {"cpu": 8}})
    cluster.start(Spares())
    full_of("a", cluster)
    cluster.add(*(of(f"b{number}", "b") for number in range(8)))
    cluster.run()
    assert len(ending(cluster)) == 7
    assert "a0" not in ending(cluster)


def test_pods_of_another_scheduler_count_in_no_queue() -> None:
    cluster = cluster_of({"name": "b", "deserved": {"cpu": 8}})
    cluster.add(*(pod(f"x{number}", cpu="1", scheduler="other", bound_to="n1") for number in range(4)))
    full_of("b", cluster, 4)
    cluster.add(of("b-more", "b"))
    cluster.run(cycles=2)
    assert not ending(cluster)


def test_the_limit_includes_pods_that_wait_for_victims() -> None:
    """Otherwise a smaller pod of its queue would use up the limit on another node after the evictions."""
    cluster = cluster_of({"name": "a"}, {"name": "b", "deserved": {"cpu": 2}, "limit": {"cpu": 2}}, nodes=1)
    full_of("a", cluster, 4)
    cluster.add(of("b0", "b", cpu="2"))
    cluster.run()
    assert len(ending(cluster)) == 2
    cluster.nodes(1, prefix="m", cpu="1")
    cluster.add(of("b1", "b"))
    cluster.run(cycles=2)
    cluster.assert_pending("b1", "queue 'b' has reached its limit of cpu: limit 2, allocated 2, requested 1")
    cluster.finish_deletions()
    cluster.run(cycles=2)
    cluster.assert_bound("b0")


def test_several_preemptors_of_one_cycle_stay_within_their_queues_quota() -> None:
    cluster = cluster_of({"name": "a", "deserved": {"cpu": 2}}, nodes=1)
    full_of("a", cluster, 4)
    cluster.add(*(of(f"high{number}", "a", priority=1000) for number in range(4)))
    cluster.run()
    assert len(ending(cluster)) == 2
    cluster.finish_deletions()
    cluster.run(cycles=2)
    assert len([name for name in running(cluster, "a") if name.startswith("high")]) == 2


# ------------------------------------------------------------------ under a full limit of the parent queue

UNDER = (
    {"name": "p", "limit": {"cpu": 8}},
    {"name": "a", "parent": "p", "deserved": {"cpu": 4}},
    {"name": "b", "parent": "p", "deserved": {"cpu": 4}},
    {"name": "other", "deserved": {"cpu": 1}},
)


def test_a_queue_reclaims_its_deserved_share_from_a_sibling_that_fills_the_parents_limit() -> None:
    """The nodes have free capacity: only victims below the full queue help."""
    cluster = cluster_of(*UNDER, nodes=4)
    full_of("a", cluster)
    full_of("other", cluster, 4)
    cluster.add(*(of(f"b{number}", "b") for number in range(6)))
    cluster.run()
    assert (len(ending(cluster)), {name[0] for name in ending(cluster)}) == (4, {"a"})
    cluster.finish_deletions()
    cluster.run(cycles=2)
    assert [len(running(cluster, queue)) for queue in ("a", "b", "other")] == [4, 4, 4]


def test_a_pod_that_waits_under_a_full_limit_keeps_its_nomination_when_it_is_retried() -> None:
    cluster = cluster_of(*UNDER, nodes=4)
    full_of("a", cluster)
    cluster.add(of("b0", "b", cpu="2"))
    cluster.run()
    (task,) = (one for one in cluster.scheduler.cache.tasks.values() if one.name == "b0")
    place, before = cluster.scheduler.cache.nominations.node_of(task), ending(cluster)
    assert place is not None
    assert len(before) == 2
    cluster.scheduler.queue.requeue(task.group.key, "test")
    cluster.run(cycles=2)
    assert (cluster.scheduler.cache.nominations.node_of(task), ending(cluster)) == (place, before)


def test_a_gang_reclaims_its_deserved_share_under_a_full_limit() -> None:
    cluster = cluster_of(*UNDER, nodes=4)
    full_of("a", cluster)
    cluster.add(*gang("g", 4, cpu="1", labels={LABEL: "b"}))
    cluster.run()
    assert len(ending(cluster)) == 4
    cluster.finish_deletions()
    cluster.run(cycles=2)
    assert (len(running(cluster, "a")), len(running(cluster, "b"))) == (4, 4)


def test_no_pods_are_evicted_if_the_queues_own_limit_is_full() -> None:
    cluster = cluster_of(
        {"name": "a", "deserved": {"cpu": 4}}, {"name": "b", "deserved": {"cpu": 2}, "limit": {"cpu": 2}}
    )
    full_of("a", cluster, 6)
    full_of("b", cluster, 2)
    cluster.add(of("b-more", "b"))
    cluster.run(cycles=2)
    assert not ending(cluster)


def test_a_pod_takes_several_victims_from_a_sibling_queue() -> None:
    """The parent queue is at its share: only all of the victims together bring it below."""
    queues = ({"name": "p", "deserved": {"cpu": 8}}, *UNDER[1:3])
    cluster = cluster_of(*queues)
    full_of("a", cluster)
    cluster.add(of("b0", "b", cpu="3"))
    cluster.run()
    assert len(ending(cluster)) == 3


def test_a_queue_that_deserves_nothing_yields_to_one_below_its_deserved_share() -> None:
    """The fair shares are 5 and 3; freeing 5 CPUs evicts pods with 6."""
    cluster = cluster_of({"name": "a"}, {"name": "b", "deserved": {"cpu": 5}}, nodes=0)
    cluster.nodes(1, cpu="6")
    cluster.add(node("small", cpu="2"))
    full_of("a", cluster, 4, cpu="2")
    cluster.add(of("b0", "b", cpu="5"))
    cluster.run()
    assert len(ending(cluster)) == 3
    cluster.finish_deletions()
    cluster.add(of("a-more", "a", cpu="2"))
    cluster.run(cycles=3)
    assert not ending(cluster)
    assert running(cluster, "b") == ["b0"]


def test_candidates_are_ranked_again_after_a_budget_is_used_up() -> None:
    """The two equal pods are the least important, but the budget allows the eviction of one."""
    cluster = cluster_of({"name": "a", "deserved": {"cpu": 2}}, {"name": "b", "deserved": {"cpu": 4}}, nodes=3, cpu="2")
    for number in range(3):
        more = {"priority": 50} if number == 2 else {"labels": {"guarded": "yes"}}
        cluster.add(of(f"a{number}", "a", cpu="2", bound_to=f"n{number + 1}", **more))
    selector = LabelSelector(match_labels={"guarded": "yes"})
    cluster.add(
        PodDisruptionBudget(
            metadata=ObjectMeta(name="budget", namespace="default"),
            spec=PodDisruptionBudgetSpec(selector=selector),
            status=PodDisruptionBudgetStatus(disruptions_allowed=1),
        )
    )
    cluster.add(of("b0", "b", cpu="2"), of("b1", "b", cpu="2"))
    cluster.run()
    assert len(ending(cluster)) == 2
    assert "a2" in ending(cluster)


def test_can_reclaim_runs_before_the_reclaimable_callbacks() -> None:
    asked: set[str] = set()

    def may_end(group: Group, _: Group) -> bool:
        asked.add(group.name)
        return True

    class Frozen:
        name = "frozen"

        @hookimpl
        def on_session_open(self, session: Any) -> None:
            session.add_can_reclaim(lambda group: "it is Sunday" if group.name == "b0" else None)
            session.add_reclaimable(may_end)

    cluster = cluster_of(*TWO)
    cluster.start(Frozen())
    full_of("a", cluster)
    cluster.add(of("b0", "b"), of("b1", "b"))
    cluster.run()
    assert (len(ending(cluster)), asked) == (1, {"b1"})


def test_candidates_are_ranked_again_after_a_queue_has_no_surplus_left() -> None:
    """On each node the pod of `a` is the victim until `a` is down to its share; then those of `c` are."""
    shares = {"a": 4, "b": 6, "c": 2}
    cluster = cluster_of(*({"name": name, "deserved": {"cpu": cpu}} for name, cpu in shares.items()), nodes=6, cpu="2")
    for number in range(1, 7):
        cluster.add(of(f"a{number}", "a", bound_to=f"n{number}"))
        cluster.add(of(f"c{number}", "c", bound_to=f"n{number}", priority=10))
    cluster.add(*(of(f"b{number}", "b") for number in range(6)))
    cluster.run()
    assert sorted(name[0] for name in ending(cluster)) == ["a", "a", "c", "c", "c", "c"]


def test_the_share_of_an_unschedulable_pod_is_free_after_the_pod_is_deleted() -> None:
    """As long as c requests its share, b gets none of it."""
    cluster = cluster_of({"name": "a"}, {"name": "b", "deserved": {"cpu": 2}}, {"name": "c", "deserved": {"cpu": 6}})
    full_of("a", cluster, labels={"fluence.flux-framework.org/preemptibility": "preemptible"})
    cluster.add(of("huge", "c", cpu="6"))
    cluster.run()
    cluster.add(*(of(f"b{number}", "b", cpu="2") for number in range(2)))
    cluster.run()
    assert len(ending(cluster)) == 2, "b gets what it deserves, and no fair share beyond"
    cluster.finish_deletions()
    cluster.run(cycles=2)
    assert len(ending(cluster)) == 0
    cluster.delete(Pod, "huge")
    cluster.run()
    assert len(ending(cluster)) == 2


class Slow:
    """Each evaluation of a class and each search for victims takes this many seconds, from `start` on."""

    name = "slow"

    def __init__(self, evaluation: float = 0, search: float = 0) -> None:
        self.evaluation = evaluation
        self.search = search
        self.clock: Any = None

    @hookimpl
    def prefilter(self) -> None:
        self._advance(self.evaluation)

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        session.add_reclaim_validator(self._validated)

    def _validated(self, _: Scenario) -> None:
        self._advance(self.search)

    def _advance(self, seconds: float) -> None:
        if self.clock is not None:
            self.clock.advance(seconds)


@pytest.mark.parametrize("seconds", [{"evaluation": 0.6}, {"search": 0.6}, {"search": 2}])
def test_groups_reclaim_even_if_the_time_of_an_action_ends(seconds: dict[str, float]) -> None:
    queues = QueueConfig(name="a", deserved={"cpu": 4}), QueueConfig(name="b", deserved={"cpu": 4})
    config = SchedulerConfig(bindings_in_flight=1_000, cycle_seconds=1, queues=queues)
    cluster, slow = FakeCluster(config=config).nodes(2, cpu="4"), Slow(**seconds)
    cluster.start(slow)
    full_of("b", cluster)
    slow.clock = cluster.clock
    names = [f"a{number}" for number in range(4)]
    cluster.add(of(name, "a") for name in names).run(cycles=6)
    assert all(cluster.find(Pod, name).status.nominated_node_name for name in names)
    assert not cluster.scheduler.left_over


class Reads:
    """Reads an annotation of each waiting pod, which no plugin has read before."""

    name = "reads"

    @hookimpl
    def prepare(self, cls: TaskClass) -> None:
        cls.pod.metadata.annotations.get(f"x.org/{cls.pod.spec.priority}")


def test_a_group_reclaims_even_if_a_plugin_reads_a_new_field_of_another_pod() -> None:
    cluster = cluster_of(*TWO)
    cluster.start(Reads())
    full_of("b", cluster)
    cluster.add(of("a", "a"), of("other", "a", priority=-1)).run(cycles=3)
    assert cluster.find(Pod, "a").status.nominated_node_name
