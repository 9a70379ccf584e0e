"""The reclaim action with Proportion: a queue gets its share in one cycle, and nothing goes to and fro."""

from __future__ import annotations

from typing import Any

import pytest

from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.hookspecs import hookimpl
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
    """The pods of a queue that are bound and not asked to end."""
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


def test_without_the_action_nobody_ends() -> None:
    cluster = cluster_of(*TWO, actions=("allocate", "preempt"))
    full_of("a", cluster)
    cluster.add(of("b0", "b"))
    cluster.run(cycles=2)
    assert not ending(cluster)


def test_what_a_queue_does_not_have_beyond_its_share_is_not_taken() -> None:
    cluster = cluster_of({"name": "a", "deserved": {"cpu": 6}}, {"name": "b", "deserved": {"cpu": 2}})
    full_of("a", cluster, 6)
    full_of("b", cluster, 2)
    cluster.add(of("b-more", "b"), of("a-more", "a"))
    cluster.run(cycles=3)
    assert not ending(cluster)


def test_pods_that_are_not_preemptible_do_not_end_for_a_share() -> None:
    cluster = cluster_of({"name": "a", "deserved": {"cpu": 8}}, {"name": "b", "deserved": {"cpu": 4}})
    full_of("a", cluster, labels=KEPT)
    cluster.add(of("b0", "b"))
    cluster.run(cycles=2)
    assert not ending(cluster)


def test_the_priority_of_who_has_too_much_does_not_save_it_but_decides_who_goes_first() -> None:
    cluster = cluster_of(*TWO)
    cluster.add(*(of(f"a{number}", "a", priority=50 if number < 6 else 10) for number in range(8)))
    cluster.run()
    cluster.add(of("b0", "b"), of("b1", "b"))
    cluster.run()
    assert ending(cluster) == {"a6", "a7"}


def test_a_gang_gets_its_queues_share_whole_or_not_at_all() -> None:
    cluster = cluster_of(*TWO)
    full_of("a", cluster)
    cluster.add(*gang("g", 5, cpu="1", labels={LABEL: "b"}), *gang("h", 4, cpu="1", labels={LABEL: "b"}))
    cluster.run()
    assert len(ending(cluster)) == 4, "four are b's share, five are not"
    cluster.finish_deletions()
    cluster.run(cycles=2)
    assert {name[0] for name in running(cluster, "b")} == {"h"}
    assert len(running(cluster, "b")) == 4


def test_a_gang_takes_from_each_queue_only_what_that_has_too_much() -> None:
    """The pods of c matter least, but c has only one too many."""
    queues = ({"name": name, "deserved": {"cpu": 4}} for name in "abc")
    cluster = cluster_of(*queues, nodes=3)
    cluster.add(
        *(of(f"a{number}", "a", priority=50) for number in range(7)), *(of(f"c{number}", "c") for number in range(5))
    )
    cluster.run()
    cluster.add(*gang("g", 4, cpu="1", labels={LABEL: "b"}))
    cluster.run()
    assert sorted(name[0] for name in ending(cluster)) == ["a", "a", "a", "c"]


def test_a_gang_takes_from_queues_below_one_together_only_what_that_one_has_too_much() -> None:
    """Each of a1 and a2 could give two, the queue above them only two in all."""
    queues = ({"name": "a"}, {"name": "a1", "parent": "a"}, {"name": "a2", "parent": "a"}, {"name": "b"}, {"name": "c"})
    cluster = cluster_of(*queues, nodes=3)
    cluster.add(*(of(f"{queue}-{number}", queue) for queue in ("a1", "a2") for number in range(3)))
    cluster.add(*(of(f"c{number}", "c", priority=50) for number in range(6)))
    cluster.run()
    cluster.add(*gang("g", 4, cpu="1", labels={LABEL: "b"}))
    cluster.run()
    assert sorted(name[0] for name in ending(cluster)) == ["a", "a", "c", "c"]


@pytest.mark.parametrize("names", [("p1-big", "p2-small"), ("p1-small", "p2-big")])
def test_of_pods_that_need_not_start_together_each_takes_what_it_needs_itself(names: tuple[str, str]) -> None:
    """The big one would be more than the queue's share, whether it comes before the small one or after it."""
    cluster = cluster_of(*TWO)
    full_of("a", cluster)
    cluster.add(pod_group("g", labels={LABEL: "b"}))
    cluster.add(*(of(name, "b", cpu="5" if name.endswith("big") else "1", group="g") for name in names))
    cluster.run()
    assert len(ending(cluster)) == 1
    nominated = [cluster.scheduler.cache.nominations.node_of(task) for task in waiting(cluster, "small")]
    assert all(nominated)


def test_others_do_not_get_the_room_while_victims_end() -> None:
    cluster = cluster_of(*TWO, nodes=1, cpu="8")
    full_of("a", cluster)
    cluster.add(*gang("g", 4, cpu="1", labels={LABEL: "b"}), *(of(f"more{number}", "a") for number in range(4)))
    cluster.run()
    victims = sorted(ending(cluster))
    assert len(victims) == 4
    for name in victims:
        cluster.delete(Pod, name)
        cluster.run()
        assert len(ending(cluster)) == len([one for one in victims if one > name]), "nobody else is made to end"
    cluster.run(cycles=2)
    assert len(running(cluster, "b")) == 4


@pytest.mark.parametrize("size", [1, 3])
def test_two_opposite_queues_under_load_come_to_rest(size: int) -> None:
    """Whatever ends comes anew, as a controller would have it: from some cycle on nobody is made to end any more."""
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


def test_a_plugin_can_spare_whom_it_will() -> None:
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


def test_pods_that_another_scheduler_placed_are_nobodys_share() -> None:
    cluster = cluster_of({"name": "b", "deserved": {"cpu": 8}})
    cluster.add(*(pod(f"x{number}", cpu="1", scheduler="other", bound_to="n1") for number in range(4)))
    full_of("b", cluster, 4)
    cluster.add(of("b-more", "b"))
    cluster.run(cycles=2)
    assert not ending(cluster)


def test_the_limit_of_who_waits_for_victims_is_kept_for_it() -> None:
    """Else a smaller pod of its own queue takes the limit on another node, and the victims have ended for nothing."""
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


def test_of_several_that_preempt_in_one_cycle_no_more_are_let_than_the_queue_may_have() -> None:
    cluster = cluster_of({"name": "a", "deserved": {"cpu": 2}}, nodes=1)
    full_of("a", cluster, 4)
    cluster.add(*(of(f"high{number}", "a", priority=1000) for number in range(4)))
    cluster.run()
    assert len(ending(cluster)) == 2
    cluster.finish_deletions()
    cluster.run(cycles=2)
    assert len([name for name in running(cluster, "a") if name.startswith("high")]) == 2


# ------------------------------------------------------------------ under a full limit of the queue above

UNDER = (
    {"name": "p", "limit": {"cpu": 8}},
    {"name": "a", "parent": "p", "deserved": {"cpu": 4}},
    {"name": "b", "parent": "p", "deserved": {"cpu": 4}},
    {"name": "other", "deserved": {"cpu": 1}},
)


def test_what_a_queue_deserves_comes_back_from_a_sibling_that_fills_the_limit_above_both() -> None:
    """There is room on nodes: only pods below the full queue help."""
    cluster = cluster_of(*UNDER, nodes=4)
    full_of("a", cluster)
    full_of("other", cluster, 4)
    cluster.add(*(of(f"b{number}", "b") for number in range(6)))
    cluster.run()
    assert (len(ending(cluster)), {name[0] for name in ending(cluster)}) == (4, {"a"})
    cluster.finish_deletions()
    cluster.run(cycles=2)
    assert [len(running(cluster, queue)) for queue in ("a", "b", "other")] == [4, 4, 4]


def test_a_pod_that_waits_for_room_below_a_limit_keeps_its_place_when_it_is_tried_again() -> None:
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


def test_a_gang_takes_what_its_queue_deserves_from_under_a_full_limit_whole() -> None:
    cluster = cluster_of(*UNDER, nodes=4)
    full_of("a", cluster)
    cluster.add(*gang("g", 4, cpu="1", labels={LABEL: "b"}))
    cluster.run()
    assert len(ending(cluster)) == 4
    cluster.finish_deletions()
    cluster.run(cycles=2)
    assert (len(running(cluster, "a")), len(running(cluster, "b"))) == (4, 4)


def test_nobody_ends_where_the_queues_own_limit_is_in_the_way() -> None:
    cluster = cluster_of(
        {"name": "a", "deserved": {"cpu": 4}}, {"name": "b", "deserved": {"cpu": 2}, "limit": {"cpu": 2}}
    )
    full_of("a", cluster, 6)
    full_of("b", cluster, 2)
    cluster.add(of("b-more", "b"))
    cluster.run(cycles=2)
    assert not ending(cluster)


def test_a_pod_that_needs_more_than_one_victim_takes_them_from_beside_it_below_one_queue() -> None:
    """The queue above both has its share: only all of the victims together make room in it."""
    queues = ({"name": "p", "deserved": {"cpu": 8}}, *UNDER[1:3])
    cluster = cluster_of(*queues)
    full_of("a", cluster)
    cluster.add(of("b0", "b", cpu="3"))
    cluster.run()
    assert len(ending(cluster)) == 3


def test_who_deserves_nothing_keeps_nothing_from_who_has_less_than_it_deserves() -> None:
    """Fair shares are 5 and 3; a place of 5 CPUs costs pods of 6."""
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


def test_what_a_node_costs_is_looked_at_again_once_a_budget_is_used_up() -> None:
    """The two that are alike matter least, but only one of them may end."""
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


def test_a_plugin_that_says_that_a_group_may_take_nothing_back_is_asked_first() -> None:
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


def test_what_a_node_costs_is_looked_at_again_once_a_queue_has_no_more_to_give() -> None:
    """On each node a pod of `a` goes first, until `a` has its share; from then on those of `c` do."""
    shares = {"a": 4, "b": 6, "c": 2}
    cluster = cluster_of(*({"name": name, "deserved": {"cpu": cpu}} for name, cpu in shares.items()), nodes=6, cpu="2")
    for number in range(1, 7):
        cluster.add(of(f"a{number}", "a", bound_to=f"n{number}"))
        cluster.add(of(f"c{number}", "c", bound_to=f"n{number}", priority=10))
    cluster.add(*(of(f"b{number}", "b") for number in range(6)))
    cluster.run()
    assert sorted(name[0] for name in ending(cluster)) == ["a", "a", "c", "c", "c", "c"]


def test_a_share_that_was_kept_for_a_pod_that_fits_nowhere_goes_to_others_once_that_pod_is_gone() -> None:
    """What c asks for is its share as long as it asks for it: b has none of it until then, and is told."""
    cluster = cluster_of({"name": "a"}, {"name": "b", "deserved": {"cpu": 2}}, {"name": "c", "deserved": {"cpu": 6}})
    full_of("a", cluster, labels={"fluence.flux-framework.org/preemptibility": "preemptible"})
    cluster.add(of("huge", "c", cpu="6"))
    cluster.run()
    cluster.add(*(of(f"b{number}", "b", cpu="2") for number in range(2)))
    cluster.run()
    assert len(ending(cluster)) == 2, "b has what it deserves, and no fair share beyond"
    cluster.finish_deletions()
    cluster.run(cycles=2)
    assert len(ending(cluster)) == 0
    cluster.delete(Pod, "huge")
    cluster.run()
    assert len(ending(cluster)) == 2
