"""The consolidate action: pods move only if a group fits then and the moved pods fit on other nodes."""

from __future__ import annotations

from typing import Any

import pytest

from session_scheduler.config.settings import ConsolidationConfig, QueueConfig, SchedulerConfig
from session_scheduler.hookspecs import hookimpl
from session_scheduler.model.meta import LabelSelector, ObjectMeta
from session_scheduler.model.objects import Pod
from session_scheduler.model.policy import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from session_scheduler.testing.builders import gang, pod, pod_group, pods
from session_scheduler.testing.fake_cluster import FakeCluster

from ....tools.replacing import of_controller, replace_ended, replacement

KINDS = ("DaemonSet", "Node")


def cluster_of(*nodes: str, actions: Any = ("allocate", "consolidate"), **options: Any) -> FakeCluster:
    """A cluster of nodes with these numbers of CPUs."""
    cluster = FakeCluster(config=SchedulerConfig(bindings_in_flight=1_000, actions=actions, **options))
    for number, cpu in enumerate(nodes, 1):
        cluster.node(f"n{number}", cpu=cpu)
    return cluster


def ending(cluster: FakeCluster) -> set[str]:
    return {one.metadata.name for one in cluster.memory.objects(Pod) if one.metadata.deletion_timestamp}


def on(name: str, node: str, cpu: str = "1", **options: Any) -> Pod:
    return of_controller(pod(name, cpu=cpu, bound_to=node, **options))


def fragmented(**options: Any) -> FakeCluster:
    """Two nodes of four CPUs; half of each is free."""
    cluster = cluster_of("4", "4", **options)
    cluster.add(on("a", "n1", "2"), on("b", "n2", "2"))
    return cluster


def finish_moves(cluster: FakeCluster, cycles: int = 4) -> None:
    """Run cycles in which moved pods terminate and their controllers recreate them."""
    for _ in range(cycles):
        cluster.run()
        replace_ended(cluster)
        cluster.advance(1.0)
    cluster.run()


def test_a_pod_fits_after_a_move_and_the_moved_pod_runs_on_another_node() -> None:
    cluster = fragmented()
    cluster.add(pod("big", cpu="4"))
    cluster.run()
    assert len(ending(cluster)) == 1
    finish_moves(cluster)
    cluster.assert_all_bound()
    assert {cluster.node_of("big")} == {"n1", "n2"} - {cluster.node_of("a+") or cluster.node_of("b+")}


def test_a_gang_fits_after_moves_and_all_of_it_runs() -> None:
    cluster = cluster_of("4", "4", "4", "4")
    cluster.add(on(name, f"n{number}", "2") for number, name in enumerate("abcd", 1))
    cluster.add(*gang("g", 2, cpu="3"))
    finish_moves(cluster)
    cluster.assert_all_bound()
    assert len([name for name in cluster.placements() if name.endswith("+")]) == 2


@pytest.mark.parametrize("seed", range(4))
def test_moved_pods_avoid_the_nodes_that_other_members_need_whatever_the_scores(seed: int) -> None:
    cluster = cluster_of("4", "4", "2", "2", seed=seed)
    cluster.add(on("a", "n1", "2"), on("b", "n2", "2"), *gang("g", 2, cpu="3"))
    finish_moves(cluster)
    cluster.assert_all_bound()


def test_nothing_is_moved_if_only_a_part_of_the_gang_would_fit() -> None:
    cluster = fragmented()
    cluster.add(*gang("g", 2, cpu="3"))
    finish_moves(cluster)
    cluster.assert_bound("a", "n1").assert_bound("b", "n2")
    assert "consolidation" not in cluster.reasons("g-0")


def test_pods_are_moved_for_the_sub_group_that_a_gang_lacks() -> None:
    cluster = cluster_of("4", "4", "2")
    cluster.add(on("a", "n1", "2"), on("b", "n2", "2"))
    cluster.group("g", 2, sub_groups="leader=1,worker=1")
    cluster.add(pods("w", 4, cpu="1", group="g", sub_group="worker"))
    cluster.pod("leader", cpu="4", group="g", sub_group="leader")
    finish_moves(cluster)
    cluster.assert_bound("leader").assert_bound("w-0")
    assert len([name for name in cluster.placements() if name.endswith("+")]) == 1


def test_nothing_is_moved_for_members_beyond_those_that_a_gang_needs() -> None:
    cluster = cluster_of("4", "4", "4", "2", "2", "2")
    cluster.add(on(name, f"n{number}", "2") for number, name in enumerate("abc", 1))
    cluster.add(*gang("g", 3, min_count=2, cpu="3"))
    cluster.run()
    assert len(ending(cluster)) == 2


def test_nothing_is_moved_that_fits_on_no_other_node() -> None:
    cluster = cluster_of("4", "4")
    cluster.add(on("a", "n1", "3"), on("b", "n2", "2"), pod("big", cpu="4"))
    finish_moves(cluster)
    cluster.assert_bound("a", "n1").assert_bound("b", "n2").assert_pending("big")


def test_without_the_action_nothing_is_moved() -> None:
    cluster = fragmented(actions=("allocate", "reclaim"))
    cluster.add(pod("big", cpu="4"))
    cluster.run(cycles=2)
    assert not ending(cluster)


def test_the_fewest_and_least_important_pods_are_moved() -> None:
    cluster = cluster_of("4", "4", "4")
    cluster.add(on("a1", "n1"), on("a2", "n1"), on("b", "n2", "2", priority=5), on("c", "n3", "2"))
    cluster.add(pod("big", cpu="4", priority=5))
    cluster.run()
    assert ending(cluster) in ({"c"}, {"b"})
    assert len(ending(cluster)) == 1


@pytest.mark.parametrize(("most", "moved"), [(1, 0), (2, 2)])
def test_no_more_than_max_moves_pods_are_moved_for_a_group(most: int, moved: int) -> None:
    cluster = cluster_of("4", "4", "2", "2", consolidation=ConsolidationConfig(max_moves=most))
    cluster.add(on("a", "n1", "2"), on("b", "n2", "2"), *gang("g", 2, cpu="4"))
    cluster.run()
    assert len(ending(cluster)) == moved


def test_pods_beside_which_the_group_fits_stay() -> None:
    cluster = cluster_of("4", "4")
    cluster.add(on("a1", "n1", priority=1), on("a2", "n1", priority=2), on("a3", "n1", priority=3))
    cluster.add(on("b", "n2", "3", priority=9))
    cluster.add(pod("big", cpu="2", priority=3))
    cluster.run()
    assert ending(cluster) == {"a1"}


@pytest.mark.parametrize("why", ["bare", "DaemonSet", "Node", "important", "kept", "claims", "other scheduler"])
def test_some_pods_are_never_moved(why: str) -> None:
    cluster = cluster_of("4", "4")
    for name, node in (("a", "n1"), ("b", "n2")):
        kept = {"fluence.flux-framework.org/preemptibility": "non-preemptible"} if why == "kept" else {}
        claims = ({"name": "d", "resourceClaimTemplateName": "t"},) if why == "claims" else ()
        one = pod(name, cpu="2", bound_to=node, priority=11 if why == "important" else 10, labels=kept,
                  resource_claims=claims, scheduler="other" if why == "other scheduler" else "fluence")  # fmt: skip
        cluster.add(one if why == "bare" else of_controller(one, kind=why if why in KINDS else "ReplicaSet"))
    cluster.add(pod("big", cpu="4", priority=10))
    cluster.run(cycles=2)
    assert not ending(cluster)


def test_members_of_gangs_are_never_moved() -> None:
    cluster = fragmented()
    cluster.add(*gang("old", 2, cpu="2"))
    cluster.run()
    cluster.delete_pod("a").delete_pod("b")
    cluster.add(pod("big", cpu="4"))
    cluster.run(cycles=2)
    assert not ending(cluster)


def budget(allowed: int) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        metadata=ObjectMeta(name="budget", namespace="default"),
        spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": "x"})),
        status=PodDisruptionBudgetStatus(disruptions_allowed=allowed),
    )


@pytest.mark.parametrize(("allowed", "moved"), [(0, 0), (1, 0), (2, 2)])
def test_moves_respect_disruption_budgets(allowed: int, moved: int) -> None:
    cluster = cluster_of("4", "2", "2", "2", "2")
    cluster.add(budget(allowed), *(on(name, "n1", "2", labels={"app": "x"}) for name in "ab"))
    cluster.add(*(on(name, f"n{number}", "1", priority=5) for number, name in enumerate("wxyz", 2)))
    cluster.add(pod("big", cpu="4"))
    cluster.delete_pod("w").delete_pod("x")
    cluster.run()
    assert len(ending(cluster)) == moved


def test_preemption_counts_the_budget_that_moves_use_in_the_same_session() -> None:
    cluster = cluster_of(actions=("allocate", "consolidate", "preempt"))
    for number, of in enumerate("xxyy", 1):
        cluster.node(f"n{number}", cpu="4", labels={"of": of})
    cluster.add(budget(1), on("a", "n1", "2", labels={"app": "x"}), on("b", "n2", "2", priority=1000))
    cluster.pod("c", cpu="4", bound_to="n3", labels={"app": "x"}).pod("d", cpu="4", bound_to="n4", priority=5)
    cluster.pod("moves", cpu="4", priority=100, node_selector={"of": "x"})
    cluster.pod("preempts", cpu="4", priority=50, node_selector={"of": "y"})
    cluster.run()
    assert ending(cluster) == {"a", "d"}, "c is less important than d, but its budget is used up"


def test_moves_whose_evictions_the_api_server_rejects_are_retried_later() -> None:
    cluster = fragmented()
    cluster.memory._may_evict = lambda _: False
    cluster.add(pod("big", cpu="4"))
    cluster.run(cycles=3)
    assert not ending(cluster)
    cluster.memory._may_evict = lambda _: True
    cluster.advance(400.0)
    finish_moves(cluster)
    cluster.assert_all_bound()


def test_a_controllers_pods_are_not_moved_again_within_rest_seconds() -> None:
    cluster = cluster_of("2", "2", "2", consolidation=ConsolidationConfig(rest_seconds=100))
    cluster.add(*(of_controller(pod(f"w{number}", cpu="1", bound_to=f"n{number}"), "w") for number in (1, 2, 3)))
    cluster.add(pod("big", cpu="2"))
    finish_moves(cluster)
    cluster.assert_bound("big")
    cluster.add(pod("bigger", cpu="2"))
    cluster.delete_pod(next(name for name in cluster.placements() if name.endswith("+")))
    finish_moves(cluster, 2)
    cluster.assert_pending("bigger")
    cluster.advance(500.0)
    finish_moves(cluster)
    cluster.assert_bound("bigger")


def test_the_freed_capacity_is_reserved_for_the_group() -> None:
    cluster = fragmented()
    cluster.add(pod("big", cpu="4"))
    cluster.run()
    cluster.add(pod("thief", cpu="2"), pod("late", cpu="1"))
    finish_moves(cluster)
    cluster.assert_bound("big")


def test_the_replacement_of_a_moved_pod_goes_to_the_node_found_for_it() -> None:
    """Without that, the smaller one would use the only node that fits the larger one."""
    cluster = cluster_of("4", "3", "1")
    cluster.add(on("large", "n1", "3"), on("small", "n1", "1"), pod("big", cpu="4"))
    cluster.run()
    assert ending(cluster) == {"large", "small"}
    small, large = (cluster.find(Pod, name) for name in ("small", "large"))
    cluster.add(replacement(small), replacement(large))
    cluster.run()
    cluster.assert_bound("small+", "n3")
    cluster.assert_bound("large+", "n2")


def test_the_next_group_gets_moves_after_the_moved_pods_are_replaced() -> None:
    cluster = cluster_of("4", "4", "4", "4")
    cluster.add(on(name, f"n{number}", "2") for number, name in enumerate("abcd", 1))
    cluster.add(pod("one", cpu="4"), pod("two", cpu="4"))
    cluster.run()
    assert len(ending(cluster)) == 1, "both groups would use the same free capacity"
    finish_moves(cluster)
    cluster.assert_all_bound()


def test_missing_replacements_delay_other_moves_for_a_limited_time() -> None:
    cluster = cluster_of("4", "4", "4", "4")
    cluster.add(on(name, f"n{number}", "2") for number, name in enumerate("abcd", 1))
    cluster.add(pod("one", cpu="4"), pod("two", cpu="4"))
    cluster.run()
    cluster.finish_deletions()
    cluster.run(cycles=2)
    assert not ending(cluster)
    cluster.advance(61.0)
    cluster.run(cycles=2)
    assert len(ending(cluster)) == 1


def test_nominations_are_kept_without_the_preemption_plugin() -> None:
    cluster = fragmented().without("DefaultPreemption")
    cluster.add(pod("big", cpu="4"))
    cluster.run()
    node = cluster.find(Pod, "big").status.nominated_node_name
    cluster.add(cluster.find(Pod, "big"))
    cluster.advance(400.0)
    cluster.run(cycles=2)
    assert node
    assert cluster.find(Pod, "big").status.nominated_node_name == node
    finish_moves(cluster)
    cluster.assert_bound("big", node)


def test_after_a_restart_the_nomination_is_kept_until_the_moved_pods_have_left() -> None:
    cluster = fragmented()
    cluster.add(pod("big", cpu="4"))
    cluster.run()
    node = cluster.find(Pod, "big").status.nominated_node_name
    cluster.restart()
    cluster.run(cycles=2)
    assert cluster.find(Pod, "big").status.nominated_node_name == node
    assert "pods that move to other nodes are still on" in cluster.reasons("big")
    finish_moves(cluster)
    cluster.assert_bound("big", node)


def test_the_conditions_of_the_moved_and_the_waiting_pod_name_the_reason() -> None:
    cluster = fragmented()
    cluster.add(pod("big", cpu="4"))
    cluster.run()
    (name,) = ending(cluster)
    (condition,) = cluster.find(Pod, name).status.conditions
    assert (condition.type, condition.reason) == ("DisruptionTarget", "ConsolidationByScheduler")
    assert condition.message == "fluence: moved so that a pod fits"
    reason = cluster.find(Pod, "big").status.conditions[0].message
    assert reason.endswith(f". consolidation: these pods move to other nodes to make room: default/{name}.")


def test_a_plugin_can_veto_moves() -> None:
    class Keeps:
        name = "keeps"

        @hookimpl
        def on_session_open(self, session: Any) -> None:
            session.add_preemptable(lambda _, victim: victim.name != "a")
            session.add_preempt_validator(lambda scenario: "no" if "b" in {t.name for t in scenario.victims} else None)

    cluster = fragmented()
    cluster.start(Keeps())
    cluster.add(pod("big", cpu="4"))
    cluster.run(cycles=2)
    assert not ending(cluster)


def test_no_pods_are_moved_for_a_pod_with_preemption_policy_never() -> None:
    cluster = fragmented()
    cluster.add(pod("big", cpu="4", preemption_policy="Never"))
    cluster.run(cycles=2)
    assert not ending(cluster)


def test_no_pods_are_moved_for_a_pod_above_its_queues_limit() -> None:
    queues = (QueueConfig(name="q", limit={"cpu": 7}),)
    cluster = fragmented(queues=queues)
    cluster.add(pod("big", cpu="4", queue="q"))
    cluster.run(cycles=2)
    assert not ending(cluster), "pods of other queues stay, too"


def test_a_plugin_that_fails_during_the_simulation_fails_the_group_and_changes_nothing() -> None:
    class Fails:
        name = "fails"

        @hookimpl
        def on_session_open(self, session: Any) -> None:
            session.add_event_handler(deallocate=self._deallocated)

        def _deallocated(self, event: Any) -> None:
            if event.task.name in ("a", "b"):
                raise RuntimeError("no")

    cluster = fragmented()
    cluster.start(Fails())
    cluster.add(pod("big", cpu="4"))
    cluster.run()
    assert not ending(cluster)
    assert "fails" in cluster.reasons("big")
    assert {task.name: task.node for task in cluster.scheduler.cache.bound_tasks()} == {"a": "n1", "b": "n2"}


@pytest.mark.parametrize(("others", "moves"), [("", True), ("b", False)])
def test_no_pods_move_for_a_pod_that_reclaim_could_evict_again(others: str, moves: bool) -> None:
    """Queue a would have eight CPUs. Its share is four as long as b requests what it deserves."""
    queues = tuple(QueueConfig(name=name, deserved={"cpu": 4}) for name in "ab")
    cluster = cluster_of("4", "4", actions=("allocate", "preempt", "reclaim", "consolidate"), queues=queues)
    cluster.add(on("a0", "n1", "2", queue="a"), on("a1", "n2", "2", queue="a"))
    cluster.add(pod("nowhere", cpu="4", queue=others, node_selector={"no": "where"}) if others else ())
    cluster.run()
    cluster.add(pod("new", cpu="4", queue="a"))
    cluster.run()
    assert bool(ending(cluster)) is moves


# ------------------------------------------------------------------ gangs that move, groups in one domain


def moving_gangs(*nodes: str, **options: Any) -> FakeCluster:
    return cluster_of(*nodes, consolidation=ConsolidationConfig(move_gangs=True), **options)


def old_gang(*nodes: str, topology: str | None = None) -> list[Any]:
    """A running gang of a Job, one member on each node."""
    members = [pod(f"old-{number}", group="old", cpu="2", bound_to=node) for number, node in enumerate(nodes)]
    return [pod_group("old", len(nodes), topology=topology), *(of_controller(one, "old", "Job") for one in members)]


@pytest.mark.parametrize("move", [False, True])
def test_a_gang_moves_as_a_whole_if_the_configuration_allows_it(move: bool) -> None:
    cluster = moving_gangs("4", "4", "2", "2") if move else cluster_of("4", "4", "2", "2")
    cluster.add(*old_gang("n1", "n2"))
    cluster.run()
    cluster.add(pod("big", cpu="4"))
    cluster.run()
    assert ending(cluster) == ({"old-0", "old-1"} if move else set())
    if move:
        finish_moves(cluster)
        cluster.assert_all_bound()


def test_a_gang_moves_only_if_all_of_its_members_fit_at_once() -> None:
    cluster = moving_gangs("4", "4", "1")
    cluster.add(*old_gang("n1", "n1", "n2"), on("fills", "n2", "2"))
    cluster.run()
    cluster.add(pod("big", cpu="4"))
    cluster.run()
    assert not ending(cluster)


def test_a_gang_moves_to_one_topology_domain() -> None:
    cluster = moving_gangs(actions=("allocate", "consolidate"))
    for number, (cpu, rack) in enumerate((("4", "a"), ("4", "a"), ("2", "b"), ("2", "c"), ("2", "c")), 1):
        cluster.node(f"n{number}", cpu=cpu, labels={"rack": rack})
    cluster.add(*old_gang("n1", "n2", topology="rack"))
    cluster.run()
    cluster.add(pod("big", cpu="4"))
    cluster.run()
    assert ending(cluster) == {"old-0", "old-1"}
    finish_moves(cluster)
    cluster.assert_all_bound()
    assert {cluster.node_of(f"old-{number}+") for number in range(2)} in ({"n4", "n5"}, {"n2"})


@pytest.mark.parametrize("move", [False, True])
def test_pods_move_for_a_gang_in_one_topology_domain_if_the_configuration_allows_it(move: bool) -> None:
    cluster = cluster_of(consolidation=ConsolidationConfig(move_gangs=move))
    for number, rack in enumerate("aabb", 1):
        cluster.node(f"n{number}", cpu="2", labels={"rack": rack})
    cluster.add(on("a", "n1", "1"), on("b", "n3", "1"))
    cluster.run()
    cluster.add(*gang("g", 2, cpu="2", topology="rack"))
    cluster.run()
    assert len(ending(cluster)) == move
    if move:
        finish_moves(cluster)
        cluster.assert_all_bound()
