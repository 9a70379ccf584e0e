"""Costs of preemption and reclaim with queues: they depend on what changed, not on nodes × preemptors."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from session_scheduler.actions.eligible import EligibleVictims
from session_scheduler.actions.trial import Trial
from session_scheduler.builtin.proportion import QueueOrder
from session_scheduler.builtin.reclaiming import Reclaiming
from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.framework import nominated_pods
from session_scheduler.framework.board import Board
from session_scheduler.framework.callback_runner import CallbackRunner
from session_scheduler.framework.callbacks import Scenario
from session_scheduler.framework.nominated_pods import NominatedPods
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import hookimpl
from session_scheduler.model.reclaim_rules import DAMAGES, Reclaim
from session_scheduler.model.units import units_in_order
from session_scheduler.state import single_pods
from session_scheduler.testing import FakeCluster, node, pod

NODES = 60
WAITING = 20
QUEUES = 6
COUNTED: tuple[tuple[type, str], ...] = (
    (EligibleVictims, "units_on"), (Trial, "objection"), (Trial, "fit_each"), (Trial, "reprieve"),
    (NominatedPods, "expected_on"), (NominatedPods, "yielded_to"), (CallbackRunner, "preemptable"),
    (Reclaiming, "is_reclaimable"),
)  # fmt: skip


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of these methods was called."""
    found: Counter[str] = Counter()
    for owner, name in COUNTED:
        monkeypatch.setattr(owner, name, _counted(getattr(owner, name), found, name))
    return found


def _counted(method: Any, found: Counter[str], name: str) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        found[name] += 1
        return method(*arguments, **options)

    return call


def full_cluster(*plugins: object, evaluation: str = "heap") -> FakeCluster:
    """Nodes that are full with pods of one queue; other queues deserve a part."""
    names = ["full", *(f"q{number}" for number in range(QUEUES))]
    queues = tuple(QueueConfig(name=name, deserved={"cpu": 2 * NODES // len(names)}) for name in names)
    actions = ("allocate", "preempt", "reclaim")
    cluster = FakeCluster(
        config=SchedulerConfig(bindings_in_flight=1_000, queues=queues, actions=actions),
        checked=False, evaluation=evaluation,
    )  # fmt: skip
    cluster.add(node(f"n{number}", cpu="2") for number in range(NODES))
    cluster.add(pod(f"r{number}", cpu="1", queue="full", bound_to=f"n{number % NODES}") for number in range(2 * NODES))
    cluster.start(*plugins)
    return cluster


def test_the_victims_of_a_node_are_listed_again_only_after_a_change(calls: Counter[str]) -> None:
    cluster = full_cluster()
    cluster.add(pod(f"p{number}", cpu="1", queue="q0") for number in range(WAITING))
    cluster.run()
    victims = len(cluster.scheduler.cache.preempted)
    assert victims > 10
    assert NODES <= calls["units_on"] <= NODES + 2 * victims


def test_the_pods_of_a_node_are_sorted_once_for_all_kinds_of_preemptors(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = full_cluster()
    sizes = ("1", "500m", "250m")
    cluster.add(pod(f"p{number}", cpu=sizes[number % 3], queue="q0") for number in range(WAITING))
    calls: Counter[str] = Counter()
    monkeypatch.setattr(single_pods, "units_in_order", _counted(units_in_order, calls, "nodes"))
    cluster.run()
    victims = len(cluster.scheduler.cache.preempted)
    assert victims > 10
    assert NODES <= calls["nodes"] <= NODES + 2 * victims
    sorted_before = calls["nodes"]
    cluster.add(pod("late", cpu="1", queue="q0"))
    cluster.run()
    assert calls["nodes"] <= sorted_before + 2 * victims


def test_callbacks_evaluate_alike_victims_once_for_each_preemptor(calls: Counter[str]) -> None:
    cluster = full_cluster()
    cluster.add(pod(f"p{number}", cpu="1", queue="q0") for number in range(WAITING))
    cluster.run()
    assert len(cluster.scheduler.cache.preempted) > 10
    assert calls["objection"] <= 4 * WAITING


def test_dry_runs_call_no_filters_if_filters_compare_only_amounts(calls: Counter[str]) -> None:
    cluster = full_cluster()
    cluster.add(pod(f"p{number}", cpu="1", queue="q0") for number in range(WAITING))
    cluster.run()
    assert calls["reprieve"] > 10
    assert calls["fit_each"] == 0


def test_reclaimable_callbacks_are_asked_once_for_equal_victims_of_a_preemptor(calls: Counter[str]) -> None:
    cluster = full_cluster()
    cluster.add(pod(f"p{number}", cpu="1", queue="q0") for number in range(WAITING))
    cluster.run()
    assert len(cluster.scheduler.cache.preempted) > 10
    assert WAITING // 2 < calls["is_reclaimable"] <= 2 * WAITING


def test_pods_that_ask_the_same_share_the_rules_of_reclaim(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    monkeypatch.setattr(Reclaim, "__init__", _counted(Reclaim.__init__, calls, "rules"))
    cluster = full_cluster()
    cluster.add(pod(f"p{number}", cpu="200", queue="q0") for number in range(WAITING))
    cluster.run()
    assert not cluster.scheduler.cache.preempted
    assert 0 < calls["rules"] <= len(DAMAGES)


def test_what_a_pod_may_reclaim_is_looked_up_once_for_all_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    monkeypatch.setattr(Reclaiming, "_asked", _counted(Reclaiming._asked, calls, "asked"))
    cluster = full_cluster()
    cluster.add(pod(f"p{number}", cpu="1", queue="q0") for number in range(WAITING))
    cluster.run()
    assert len(cluster.scheduler.cache.preempted) > 10
    assert WAITING // 2 < calls["asked"] <= 2 * WAITING


def test_decisions_without_placements_do_not_compare_rejected_nodes_with_nominated_pods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: Counter[str] = Counter()
    counting = nominated_pods._Counting
    monkeypatch.setattr(counting, "run", _counted(counting.run, calls, "run"))
    cluster = full_cluster()
    cluster.add(pod(f"p{number}", cpu="1", queue=f"q{number % QUEUES}") for number in range(WAITING))
    cluster.run()
    assert len(cluster.scheduler.cache.nominations.node_by_uid) > 10
    assert calls["run"] <= QUEUES


def test_preemptors_call_no_filter_again_if_only_victims_and_nominations_change() -> None:
    cluster = full_cluster()
    cluster.add(pod(f"p{number}", cpu="1", queue="q0") for number in range(WAITING))
    cluster.run()
    assert len(cluster.scheduler.cache.preempted) > 10
    (profile,) = cluster.scheduler.profiles.values()
    calls = {call.plugin: call.calls for call in profile.functions("filter")}
    assert 0 < calls["NodeUnschedulable"] < WAITING // 2
    assert 0 < calls["NodeResourcesFit"] < WAITING // 2


def test_rules_evaluate_equal_amounts_of_victims_once_for_each_preemptor(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    monkeypatch.setattr(Reclaim, "objection", _counted(Reclaim.objection, calls, "objection"))
    cluster = full_cluster()
    cluster.add(pod(f"p{number}", cpu="1", queue="q0") for number in range(WAITING))
    cluster.run()
    assert WAITING // 2 < calls["objection"] <= WAITING


def test_reclaim_reads_the_key_of_each_queue_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = full_cluster()
    cluster.add(pod(f"p{number}", cpu="1", queue=f"q{number % QUEUES}") for number in range(WAITING))
    calls: Counter[str] = Counter()
    monkeypatch.setattr(QueueOrder, "key", _counted(QueueOrder.key, calls, "key"))
    cluster.run()
    assert len(cluster.scheduler.cache.preempted) > 10
    assert calls["key"] == 2 * QUEUES  # in `allocate` and in `reclaim`


def test_a_placement_reads_only_the_keys_below_its_top_level_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    tops = [QueueConfig(name=f"top{number}") for number in range(QUEUES)]
    below = [QueueConfig(name=f"q{number}", parent=f"top{number}") for number in range(QUEUES)]
    cluster = FakeCluster(config=SchedulerConfig(bindings_in_flight=1_000, queues=(*tops, *below)), checked=False)
    cluster.add(node(f"n{number}", cpu="2") for number in range(NODES))
    cluster.start()
    cluster.add(pod(f"p{number}", cpu="1", queue=f"q{number % QUEUES}") for number in range(WAITING))
    calls: Counter[str] = Counter()
    monkeypatch.setattr(QueueOrder, "key", _counted(QueueOrder.key, calls, "key"))
    cluster.run()
    assert not cluster.scheduler.cache.unbound
    assert WAITING // 2 < calls["key"] <= QUEUES + WAITING


def test_each_job_order_is_called_once_for_a_group_in_a_session() -> None:
    called: Counter[str] = Counter()

    class Order:
        name = "order"

        @hookimpl
        def on_session_open(self, session: Session) -> None:
            session.add_job_order(lambda group: called.update((group.name,)))

    cluster = full_cluster(Order())
    cluster.add(pod(f"p{number}", cpu="1", queue=f"q{number % QUEUES}") for number in range(WAITING))
    cluster.run()
    assert len(cluster.scheduler.cache.preempted) > 10
    assert called == Counter(f"p{number}" for number in range(WAITING))


def test_reclaim_lists_no_victims_on_nodes_of_queues_within_their_share(calls: Counter[str]) -> None:
    cluster = full_cluster()
    cluster.add(node(f"own{number}", cpu="2") for number in range(8))
    cluster.add(pod(f"own{number}", cpu="2", queue="q1", bound_to=f"own{number}") for number in range(8))
    cluster.add(pod(f"p{number}", cpu="1", queue="q2") for number in range(4))
    cluster.run()
    victims = len(cluster.scheduler.cache.preempted)
    assert victims > 2
    assert NODES <= calls["units_on"] <= NODES + victims


def test_preemption_lists_no_victims_on_nodes_without_pods_of_the_queue(calls: Counter[str]) -> None:
    cluster = full_cluster()
    for name in range(QUEUES):
        cluster.add(pod(f"p{name}-{priority}", cpu="1", queue=f"q{name}", priority=priority) for priority in (100, 200))
    cluster.run()
    assert calls["preemptable"] == 0
    assert calls["units_on"] <= NODES + 2 * len(cluster.scheduler.cache.preempted)


def test_nominated_pods_of_other_queues_are_not_visited_one_by_one(calls: Counter[str]) -> None:
    cluster = full_cluster()
    cluster.add(pod(f"p{number}", cpu="1", queue=f"q{number % QUEUES}", priority=100) for number in range(WAITING))
    cluster.run()
    nominated = len(cluster.scheduler.cache.nominations.node_by_uid)
    assert nominated > 10
    calls.clear()
    cluster.add(pod(f"more{number}", cpu="1", queue=f"q{number % QUEUES}", priority=100) for number in range(WAITING))
    cluster.run()
    assert len(cluster.scheduler.cache.nominations.node_by_uid) > nominated
    assert calls["yielded_to"] == 0
    assert calls["expected_on"] == 0


def test_the_nominated_pods_of_a_queue_are_found_without_those_of_other_queues() -> None:
    cluster = full_cluster()
    cluster.add(pod(f"p{number}", cpu="1", queue=f"q{number % QUEUES}", priority=100) for number in range(WAITING))
    cluster.run()
    below = cluster.scheduler.cache.nominations.below
    assert [len(tasks) for tasks in below(101, "q0")] == [len(range(0, WAITING, QUEUES))]
    assert not list(below(100, "q0"))
    assert sorted(map(len, below(101, ""))) == sorted(len(range(first, WAITING, QUEUES)) for first in range(QUEUES))


def test_the_kinds_of_nominated_pods_are_compared_once_for_alike_preemptors(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = full_cluster()
    cluster.add(pod(f"p{number}", cpu="1", queue=f"q{number % QUEUES}", priority=100) for number in range(WAITING))
    cluster.run()
    assert len(cluster.scheduler.cache.nominations.node_by_uid) > 10
    calls: Counter[str] = Counter()
    monkeypatch.setattr(nominated_pods, "_is_first", _counted(nominated_pods._is_first, calls, "compared"))
    selector = {"no": "where"}
    cluster.add(pod(f"more{number}", cpu="1", queue="q0", priority=100, node_selector=selector) for number in range(2))
    cluster.run()
    two = calls["compared"]
    cluster.add(
        pod(f"more{number}", cpu="1", queue="q0", priority=100, node_selector=selector) for number in range(2, 22)
    )
    calls.clear()
    cluster.run()
    assert 0 < calls["compared"] <= two


def test_a_pod_that_fits_nowhere_counts_no_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = full_cluster()
    calls: Counter[str] = Counter()
    monkeypatch.setattr(Board, "capacity", _counted(Board.capacity, calls, "capacity"))
    cluster.add(pod(f"p{number}", cpu="1", queue="q0") for number in range(WAITING))
    cluster.run()
    assert len(cluster.scheduler.cache.preempted) > 10
    assert calls["capacity"] == 0


def test_system_critical_pods_preempt_in_every_queue() -> None:
    cluster = full_cluster()
    cluster.add(pod("critical", cpu="1", queue="q0", priority=2_000_000_000))
    cluster.run()
    cluster.assert_pending("critical")
    assert len(cluster.scheduler.cache.preempted) == 1


def test_preempt_validators_evaluate_alike_victims_once_for_each_preemptor(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    method = _counted(Reclaiming.exceeded_bound, calls, "validated")
    monkeypatch.setattr(Reclaiming, "exceeded_bound", method)
    cluster = full_cluster()
    cluster.add(pod(f"p{number}", cpu="1", queue="full", priority=50) for number in range(WAITING))
    cluster.run()
    assert len(cluster.scheduler.cache.preempted) == WAITING
    assert WAITING <= calls["validated"] <= 3 * WAITING


def test_preempt_validators_are_asked_about_victims_of_each_priority() -> None:
    class Spares:
        name = "spares"

        @hookimpl
        def on_session_open(self, session: Session) -> None:
            session.add_preempt_validator(self._check, alike=True)

        def _check(self, scenario: Scenario) -> str | None:
            return "too high" if any(task.priority < 10 for task in scenario.victims) else None

    cluster = full_cluster(Spares())
    cluster.add(node("last", cpu="1"), pod("ten", cpu="1", queue="full", priority=10, bound_to="last"))
    cluster.add(pod("p", cpu="1", queue="full", priority=50))
    cluster.run()
    assert [cluster.scheduler.cache.tasks[uid].name for uid in cluster.scheduler.cache.preempted] == ["ten"]


def test_a_pod_that_waits_for_its_victims_is_not_retried_when_other_nominations_end() -> None:
    cluster = full_cluster()
    cluster.add(pod(f"p{number}", cpu="1", queue=f"q{number % QUEUES}", priority=100) for number in range(WAITING))
    cluster.run()
    assert len(cluster.scheduler.cache.nominations.node_by_uid) == WAITING
    cluster.advance(11)
    cluster.run()
    (profile,) = cluster.scheduler.profiles.values()
    (postfilter,) = profile.functions("postfilter")
    before = postfilter.calls
    cluster.delete_pod("p0")
    cluster.run(cycles=2)
    assert len(cluster.scheduler.cache.nominations.node_by_uid) == WAITING - 1
    assert postfilter.calls == before
    cluster.finish_deletions()
    cluster.advance(11)
    cluster.run(cycles=2)
    assert sum(node is not None for name, node in cluster.placements().items() if "/p" in name) == WAITING - 1


class Keeps:
    """How much of trials a session has cached when it closes."""

    name = "keeps"

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        self._trials = session.trials

    @hookimpl
    def on_session_close(self) -> None:
        trials = self._trials
        self.cached = [len(one) for one in (trials.preemptible, trials.lasting, trials.rows_with_victims)]


def test_the_naive_evaluation_keeps_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    monkeypatch.setattr(Reclaim, "__init__", _counted(Reclaim.__init__, calls, "rules"))
    monkeypatch.setattr(QueueOrder, "key", _counted(QueueOrder.key, calls, "key"))
    monkeypatch.setattr(QueueOrder, "changed", _counted(QueueOrder.changed, calls, "changed"))
    monkeypatch.setattr(nominated_pods, "_is_first", _counted(nominated_pods._is_first, calls, "compared"))
    monkeypatch.setattr(single_pods, "units_in_order", _counted(units_in_order, calls, "sorted"))
    found = []
    for evaluation in ("heap", "naive"):
        calls.clear()
        keeps = Keeps()
        cluster = full_cluster(keeps, evaluation=evaluation)
        cluster.add(pod(f"p{number}", cpu="1", queue=f"q{number % QUEUES}", priority=100) for number in range(WAITING))
        cluster.run()
        nominated = {**cluster.scheduler.cache.nominations.node_by_uid}
        assert len(nominated) == WAITING
        assert all(keeps.cached) if evaluation == "heap" else not any(keeps.cached)
        found.append((nominated, calls.copy()))
    (nodes, few), (same_nodes, many) = found
    assert nodes == same_nodes
    assert many["changed"] == many["sorted"] == 0
    assert few["sorted"] > 0
    assert all(many[what] > 2 * few[what] for what in ("rules", "key", "compared"))
