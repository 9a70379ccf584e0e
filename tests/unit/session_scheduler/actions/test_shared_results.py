"""Results of preemption and reclaim that equal groups share: they lead to what each group alone would lead to."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import convert
from msgspec.structs import replace

from session_scheduler import Session, hookimpl
from session_scheduler.builtin.default_preemption import DefaultPreemption
from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.hookspecs import NoPreemption, Preemption, Trial
from session_scheduler.model.events import ActionType, ClusterEventWithHint
from session_scheduler.model.objects import Affinity, Pod, PodStatus
from session_scheduler.testing import FakeCluster, pod, pod_group

from ..builtin.test_default_preemption import budget

NON_PREEMPTIBLE = {"fluence.flux-framework.org/preemptibility": "non-preemptible"}
EVALUATIONS = "naive", "board", "heap"


class ByName:
    """Groups come in the order of their names."""

    name = "by-name"

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        session.add_job_order(lambda group: group.name)


class Guard:
    """Spares pods without the label `free`."""

    name = "guard"

    @hookimpl
    def events_to_register(self) -> list[ClusterEventWithHint]:
        return [ClusterEventWithHint(Pod, ActionType.UPDATE_POD_LABEL)]

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        session.add_preemptable(
            lambda group, victim: all("free" in task.pod.metadata.labels for task in victim.tasks.values()), alike=True
        )


class OnlySecond:
    """Only the group p2 may reclaim. The callback promises nothing."""

    name = "only-second"

    def __init__(self, kind: str) -> None:
        self._kind = kind

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        if self._kind == "reclaimable":
            session.add_reclaimable(lambda group, victim: group.name == "p2")
        elif self._kind == "alike":
            session.add_reclaimable(lambda group, victim: group.name == "p2", alike=lambda group: group.name)
        else:
            session.add_reclaim_validator(lambda scenario: None if scenario.group.name == "p2" else "not this one")


def rejectors(cluster: FakeCluster) -> dict[str, set[str]]:
    """By pod: the plugins whose queueing hints can requeue it."""
    return {key.split("/")[-1]: {plugin for _, plugins in waiting.unschedulable.wants for plugin in plugins}
            for key, waiting in cluster.scheduler.queue._waiting.items() if waiting.unschedulable}  # fmt: skip


def nominated(cluster: FakeCluster, *names: str) -> dict[str, bool]:
    found: dict[str, Any] = {name: cluster.find(Pod, name) for name in names}
    return {name: bool(each.status.nominated_node_name) for name, each in found.items()}


@pytest.mark.parametrize(
    ("queue", "labels"), [("q", NON_PREEMPTIBLE), ("other", {})], ids=["not preemptible", "other queue"]
)
def test_equal_pods_wait_for_the_plugin_that_limits_preemption(queue: str, labels: dict[str, str]) -> None:
    cluster = FakeCluster(checked=False, config=SchedulerConfig(actions=("allocate", "preempt")))
    cluster.queue("q").queue("other").nodes(2, cpu="4")
    cluster.add(pod(f"v{n}", cpu="4", priority=1, bound_to=f"n{n}", queue=queue, labels=labels) for n in (1, 2))
    cluster.add(pod(f"p{n}", cpu="4", priority=10, queue="q") for n in (1, 2)).run(cycles=2)
    cluster.advance(15).run()
    assert rejectors(cluster) == {name: {"NodeResourcesFit", "Proportion"} for name in ("p1", "p2")}
    cluster.add(pod(f"v{n}", cpu="4", priority=1, bound_to=f"n{n}", queue="q") for n in (1, 2)).run(cycles=4)
    assert nominated(cluster, "p1", "p2") == {"p1": True, "p2": True}


def test_equal_pods_wait_for_the_plugin_that_spares_victims() -> None:
    cluster = FakeCluster(checked=False).nodes(2, cpu="4")
    cluster.add(pod(f"v{n}", cpu="4", priority=1, bound_to=f"n{n}") for n in (1, 2))
    cluster.add(pod(f"p{n}", cpu="4", priority=10) for n in (1, 2)).run(Guard(), cycles=2)
    cluster.advance(15).run()
    assert rejectors(cluster) == {name: {"NodeResourcesFit", "guard"} for name in ("p1", "p2")}
    cluster.add(pod(f"v{n}", cpu="4", priority=1, bound_to=f"n{n}", labels={"free": "1"}) for n in (1, 2)).run(cycles=4)
    assert nominated(cluster, "p1", "p2") == {"p1": True, "p2": True}


def test_a_pod_for_which_results_of_nodes_are_reused_waits_for_the_plugin_that_spares_victims() -> None:
    cluster = FakeCluster(checked=False).nodes(2, cpu="4").node("small", cpu="1")
    cluster.add(pod(f"v{n}", cpu="4", priority=1, bound_to=f"n{n}") for n in (1, 2))
    cluster.add(pod(f"p{n}", cpu="4", priority=10) for n in (1, 3)).pod("p2", cpu="1", priority=10)
    cluster.run(ByName(), Guard())
    cluster.assert_bound("p2", "small")  # its placement ends the reuse of the whole answer
    assert rejectors(cluster) == {name: {"NodeResourcesFit", "guard"} for name in ("p1", "p3")}


@pytest.mark.parametrize("kind", ["reclaimable", "alike", "validator"])
@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_a_failed_reclaim_is_shared_only_between_groups_for_which_callbacks_promise_it(
    evaluation: Any, kind: str
) -> None:
    queues = tuple(QueueConfig(name=name, deserved={"cpu": 4}) for name in "ab")
    config = SchedulerConfig(actions=("allocate", "preempt", "reclaim"), queues=queues)
    cluster = FakeCluster(checked=False, evaluation=evaluation, config=config).nodes(2, cpu="4")
    cluster.add(pod(f"b{n}", cpu="1", queue="b") for n in range(8)).run(OnlySecond(kind))
    cluster.add(pod(f"p{n}", cpu="1", queue="a") for n in (1, 2)).run(cycles=2)
    assert nominated(cluster, "p1", "p2") == {"p1": False, "p2": True}


@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_a_gang_with_a_bind_in_flight_is_no_victim_on_its_other_nodes(evaluation: Any) -> None:
    cluster = FakeCluster(checked=False, evaluation=evaluation)
    cluster.node("n1", cpu="4").node("n2", cpu="4").node("n3", cpu="1").node("n4", cpu="1")
    cluster.add(pod_group("b", 2, disruption_mode="Pod"), pod("b1", cpu="4", group="b", priority=1, bound_to="n1"))
    cluster.add(pod("b2", cpu="1", group="b", priority=1, bound_to="n3"), pod("b3", cpu="1", group="b", priority=1))
    cluster.add(pod("victim", cpu="4", bound_to="n2"), pod("a", cpu="4", priority=10), pod("c", cpu="4", priority=10))
    cluster.run(ByName())
    cluster.assert_bound("b3", "n4")
    assert nominated(cluster, "a", "c") == {"a": True, "c": False}


class FailsAfterChoosing(DefaultPreemption):
    """Evicts the pods on n1 and n2 for g-1, which goes to another node, and fails for g-3."""

    @hookimpl
    def postfilter(self, session: Session, trial: Trial) -> Preemption | NoPreemption | None:
        task = trial.tasks[0]
        if task.name == "g-1":
            victims = [*session.snapshot.cache.tasks_on("n1"), *session.snapshot.cache.tasks_on("n2")]
            return Preemption({task: "small"}, tuple(victims), "small")
        if task.name == "g-3":
            raise RuntimeError("no answer for g-3")
        return super().postfilter(session, trial)


@pytest.mark.parametrize("protected", [False, True])
@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_victims_of_a_failed_attempt_cost_the_next_group_as_much_as_others(evaluation: Any, protected: bool) -> None:
    """The dry runs for g-2 find one of the victims for g-1 free of cost. The disruption budget allows two evictions."""
    cluster = FakeCluster(checked=False, evaluation=evaluation).nodes(3, cpu="4").node("small", cpu="1")
    cluster.add([budget("b", 2, {"app": "low"})] if protected else [])
    cluster.add(pod(f"low-{n}", cpu="4", priority=4 - n, bound_to=f"n{n}", labels={"app": "low"}) for n in (1, 2, 3))
    cluster.add(pod_group("g", None), pod("g-0", group="g", priority=10, bound_to="small"))
    cluster.add(pod(f"g-{n}", group="g", cpu="4", priority=10) for n in (1, 2, 3)).pod("next", cpu="4", priority=10)
    cluster.run(ByName(), FailsAfterChoosing())
    cluster.assert_pending("g-1", "no answer for g-3")
    assert cluster.find(Pod, "next").status.nominated_node_name == "n3"


@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_more_victims_for_a_nominated_pod_count_for_the_next_group(evaluation: Any) -> None:
    """The pod keeps its nomination, so the nominations are the same before and after."""
    config = SchedulerConfig(queues=(QueueConfig(name="q", limit={"cpu": 13}),))
    cluster = FakeCluster(checked=False, evaluation=evaluation, config=config).node("n1", cpu="8").node("n2", cpu="1")
    cluster.add(pod(f"low{n}", cpu=cpu, priority=1, bound_to=f"n{n}", queue="q") for n, cpu in ((1, 8), (2, 1)))
    first = pod("p1", cpu="4", priority=10, queue="q")
    cluster.add(replace(first, status=PodStatus(nominated_node_name="n1")), pod("p2", cpu="4", priority=10, queue="q"))
    cluster.run(ByName())
    assert nominated(cluster, "p1", "p2") == {"p1": True, "p2": True}


@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_a_pod_preempts_where_a_pod_of_its_group_was_placed_though_an_equal_pod_could_not(evaluation: Any) -> None:
    """Until g-0 is placed, no node has the pod that they must be with, so evicting others would not help."""
    term = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}
    beside = convert({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}, Affinity)
    cluster = FakeCluster(checked=False, evaluation=evaluation).node("n1", cpu="4")
    cluster.add(pod("low", cpu="2", priority=1, bound_to="n1"), pod("a", cpu="3", priority=10, affinity=beside))
    cluster.add(pod_group("g", None), pod("g-0", group="g", cpu="1", priority=10, labels={"app": "web"}))
    cluster.add(pod("g-1", group="g", cpu="3", priority=10, affinity=beside))
    cluster.run(ByName())
    assert nominated(cluster, "a", "g-1") == {"a": False, "g-1": True}
