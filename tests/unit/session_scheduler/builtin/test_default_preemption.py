"""The cases of kube-scheduler's tests of DefaultPreemption and its preemption package, as full cycles in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from msgspec.structs import replace

from session_scheduler.builtin.default_preemption import DefaultPreemption, DefaultPreemptionArguments
from session_scheduler.config.parsing import validated
from session_scheduler.errors import InputError
from session_scheduler.model.columns import tie_break
from session_scheduler.model.groups import Group, GroupRef, Task
from session_scheduler.model.label_selectors import Selector
from session_scheduler.model.meta import LabelSelector, LabelSelectorRequirement, ObjectMeta
from session_scheduler.model.objects import Affinity, Node, Pod, PodStatus
from session_scheduler.model.policy import (
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from session_scheduler.model.units import Unit
from session_scheduler.state import budgets as budget_counts
from session_scheduler.testing import FakeCluster, gang, node, pod, pod_group

from ....tools.preempting import ended

NEGATIVE, LOW, MID, HIGH, HIGHEST = -100, 0, 100, 1000, 10000
SMALL, MEDIUM, LARGE, ALL = "100m", "200m", "300m", "500m"
ZONE: Final = "topology.kubernetes.io/zone"


def running(name: str, where: str, cpu: str = SMALL, priority: int = LOW, since: int = 1, **options: Any) -> Pod:
    made = pod(name, bound_to=where, cpu=cpu, memory="1Mi", priority=priority, **options)
    return replace(made, status=PodStatus(phase="Running", start_time=f"2026-01-01T00:00:{since:02}Z"))


def budget(
    name: str, allowed: int, labels: dict[str, str] | None, *, gone: tuple[str, ...] = (), namespace: str = "default"
) -> PodDisruptionBudget:
    selector = None if labels is None else LabelSelector(match_labels=labels)
    return PodDisruptionBudget(
        metadata=ObjectMeta(name=name, namespace=namespace),
        spec=PodDisruptionBudgetSpec(selector=selector),
        status=PodDisruptionBudgetStatus(disruptions_allowed=allowed, disrupted_pods=dict.fromkeys(gone, "")),
    )


def run_cycle(*objects: Any, nodes: int = 2, arguments: DefaultPreemptionArguments | None = None) -> FakeCluster:
    """One cycle over nodes n1, n2 and so on with half a core each."""
    cluster = FakeCluster(checked=False)
    cluster.add(*(node(f"n{number}", cpu=ALL, labels={ZONE: f"z{number % 2}"}) for number in range(1, nodes + 1)))
    cluster.add(*objects)
    cluster.run(*([] if arguments is None else [DefaultPreemption(arguments)]))
    return cluster


@dataclass
class Case:
    """Running pods on nodes of half a core, and the victims for a pod with this request and priority."""

    running: list[Pod]
    victims: list[str]
    cpu: str = ALL
    priority: int = HIGH
    budgets: list[PodDisruptionBudget] = field(default_factory=list)
    pod: dict[str, Any] = field(default_factory=dict)
    nodes: int = 2


X, Y = {"app": "x"}, {"app": "y"}
CHOICES: Final = {
    "a higher priority makes it fit": Case([running("a", "n1", ALL), running("b", "n2", ALL, HIGHEST)], ["a"]),
    "an equal priority does not": Case([running("a", "n1", ALL, HIGH), running("b", "n2", ALL, HIGH)], []),
    "more than a node has": Case([running("a", "n1"), running("b", "n2")], [], cpu="600m"),
    "pods of higher priority leave too little": Case(
        [running("a", "n1"), running("b", "n1", LARGE, HIGHEST), running("c", "n2", LARGE, HIGHEST)], [], cpu=LARGE
    ),
    "the small one of lowest priority stays": Case(
        [running("a", "n1", SMALL, LOW), running("b", "n1", LARGE, MID), running("c", "n2", LARGE, HIGH)], ["b"],
        cpu=LARGE,
    ),
    "several victims of mixed priorities": Case(
        [running("a", "n1", SMALL, MID), running("b", "n1", SMALL, LOW), running("c", "n1", MEDIUM, MID),
         running("d", "n1", SMALL, HIGH), running("e", "n2", LARGE, HIGH)], ["b", "c"], cpu=LARGE,
    ),
    "of equal ones those that started later": Case(
        [running("a", "n1", SMALL, LOW, 5), running("b", "n1", SMALL, LOW, 4), running("c", "n1", MEDIUM, MID, 3),
         running("d", "n1", SMALL, HIGH, 2), running("e", "n2", LARGE, HIGH, 1)], ["a", "c"], cpu=LARGE,
    ),
    "anti-affinity to a victim": Case(
        [running("a", "n1", SMALL, LOW, labels=X), running("b", "n1", SMALL, MID), running("c", "n2", ALL, HIGH)],
        ["a"], cpu=SMALL,
        pod={"affinity": Affinity(pod_anti_affinity={"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": X}}]})},
    ),
    "a running pod's anti-affinity to the new one": Case(
        [running("a", "n1", SMALL, LOW, affinity=Affinity(pod_anti_affinity={
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": ZONE, "labelSelector": {"matchLabels": X}}]})), running("c", "n2", ALL, HIGH)],
        ["a"], cpu=SMALL, pod={"labels": X},
    ),
    "a spread that is too wide": Case(
        [running("a", "n1", SMALL, LOW, labels=X), running("b", "n1", SMALL, MID, labels=X),
         running("c", "n2", ALL, HIGH)], ["a", "b"], cpu=SMALL,
        pod={"labels": X, "topology_spread_constraints": (
            {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
             "labelSelector": {"matchLabels": X}},)},
    ),
    "a host port": Case(
        [running("a", "n1", SMALL, LOW, host_port=80), running("b", "n2", SMALL, HIGH, host_port=80)], ["a"],
        cpu=SMALL, pod={"host_port": 80},
    ),
    "two pods of a budget that allows one disruption": Case(
        [running("a", "n1", MEDIUM, MID, labels=X), running("b", "n1", MEDIUM, MID, labels=X),
         running("c", "n2", ALL, HIGH)], ["a", "b"], cpu="400m", budgets=[budget("x", 1, X)],
    ),
    "budgets come before priorities on a node": Case(
        [running("a", "n1", LARGE, LOW, labels=X), running("b", "n1", MEDIUM, MID), running("c", "n2", ALL, HIGH)],
        ["b"], cpu=MEDIUM, budgets=[budget("x", 0, X)],
    ),
    "a budget's terminating pod violates nothing": Case(
        [running("a", "n1", MEDIUM, LOW, labels=X), running("b", "n1", MEDIUM, MID), running("c", "n2", ALL, HIGH)],
        ["a"], cpu=MEDIUM, budgets=[budget("x", 0, X, gone=("a",))],
    ),
    "another node violates no budget": Case(
        [running("a", "n1", ALL, LOW, labels=X), running("b", "n2", ALL, MID)], ["b"], budgets=[budget("x", 0, X)]
    ),
    "the fewest violations": Case(
        [running("a", "n1", MEDIUM, LOW, labels=X), running("b", "n1", LARGE, LOW, labels=X),
         running("c", "n2", ALL, MID, labels=X)], ["c"], budgets=[budget("x", 0, X)],
    ),
    "a budget that allows the disruption": Case(
        [running("a", "n1", ALL, LOW, labels=X), running("b", "n2", ALL, MID)], ["a"], budgets=[budget("x", 1, X)]
    ),
    "as many violations: the lowest highest priority": Case(
        [running("a1", "n1", MEDIUM, HIGH), running("a2", "n1", LARGE, LOW, labels=X),
         running("b", "n2", ALL, MID, labels=X)], ["b"], priority=HIGHEST, budgets=[budget("x", 0, X)],
    ),
    "every budget of a pod counts": Case(
        [running("a", "n1", ALL, LOW, labels=X | {"tier": "1"}), running("b", "n2", ALL, MID)], ["b"],
        budgets=[budget("x", 5, X), budget("tier", 0, {"tier": "1"})],
    ),
    "a budget without a selector matches no pod": Case(
        [running("a", "n1", ALL, LOW, labels=X), running("b", "n2", ALL, MID)], ["a"],
        budgets=[budget("none", 0, None), budget("empty", 0, {})],
    ),
    "a budget of another namespace matches no pod": Case(
        [running("a", "n1", ALL, LOW, labels=X), running("b", "n2", ALL, MID)], ["a"],
        budgets=[budget("x", 0, X, namespace="other")],
    ),
    "a budget with an invalid selector matches no pod": Case(
        [running("a", "n1", ALL, LOW, labels=X), running("b", "n2", ALL, MID)], ["a"],
        budgets=[replace(budget("x", 0, X), spec=PodDisruptionBudgetSpec(selector=LabelSelector(
            match_expressions=(LabelSelectorRequirement(key="app", operator="Odd"),))))],
    ),
    "the lowest highest priority": Case(
        [running("a1", "n1", MEDIUM, MID), running("a2", "n1", LARGE, MID), running("b1", "n2", MEDIUM, MID),
         running("b2", "n2", MEDIUM, LOW), running("c1", "n3", MEDIUM, LOW), running("c2", "n3", MEDIUM, LOW)],
        ["c1", "c2"], nodes=3,
    ),
    "then the lowest sum of priorities": Case(
        [running("a1", "n1", MEDIUM, MID), running("a2", "n1", LARGE, MID), running("b1", "n2", LARGE, MID),
         running("b2", "n2", MEDIUM, LOW), running("c1", "n3", MEDIUM, MID), running("c2", "n3", MEDIUM, MID)],
        ["b1", "b2"], nodes=3,
    ),
    "negative priorities do not make many victims cheap": Case(
        [running("a1", "n1", SMALL, MID), running("a2", "n1", SMALL, NEGATIVE), running("a3", "n1", SMALL, NEGATIVE),
         running("b1", "n2", LARGE, MID), running("b2", "n2", MEDIUM, NEGATIVE), running("c1", "n3", MEDIUM, MID),
         running("c2", "n3", SMALL, NEGATIVE), running("c3", "n3", SMALL, LOW)], ["b1", "b2"], nodes=3,
    ),
    "the highest priority goes before the sum, and that before the number": Case(
        [running("a1", "n1", SMALL, MID), running("a2", "n1", SMALL, LOW), running("a3", "n1", SMALL, LOW),
         running("b1", "n2", LARGE, HIGH),
         running("c1", "n3", MEDIUM, MID), running("c2", "n3", SMALL, LOW), running("c3", "n3", SMALL, LOW),
         running("c4", "n3", SMALL, LOW),
         running("d1", "n4", MEDIUM, MID), running("d2", "n4", SMALL, MID), running("d3", "n4", SMALL, MID),
         running("d4", "n4", SMALL, NEGATIVE)], ["a1", "a2", "a3"], priority=HIGHEST, nodes=4,
    ),
    "then the latest of the first starts": Case(
        [running("a1", "n1", MEDIUM, MID, 2), running("a2", "n1", MEDIUM, MID, 2), running("b1", "n2", MEDIUM, MID, 3),
         running("b2", "n2", MEDIUM, MID, 3), running("c1", "n3", MEDIUM, MID, 1), running("c2", "n3", MEDIUM, MID, 1)],
        ["b1", "b2"], nodes=3,
    ),
    "of each node the first start counts": Case(
        [running("a1", "n1", MEDIUM, MID, 4), running("a2", "n1", MEDIUM, MID, 2), running("b1", "n2", MEDIUM, MID, 5),
         running("b2", "n2", MEDIUM, MID, 1), running("c1", "n3", MEDIUM, MID, 3), running("c2", "n3", MEDIUM, MID, 6)],
        ["c1", "c2"], nodes=3,
    ),
    "and only of the most important victims": Case(
        [running("a1", "n1", MEDIUM, LOW, 4), running("a2", "n1", MEDIUM, MID, 2), running("b1", "n2", MEDIUM, MID, 6),
         running("b2", "n2", MEDIUM, LOW, 1), running("c1", "n3", MEDIUM, LOW, 3), running("c2", "n3", MEDIUM, MID, 5)],
        ["b1", "b2"], nodes=3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_a_pod_preempts_the_right_victims(name: str) -> None:
    case = CHOICES[name]
    new = pod("new", cpu=case.cpu, memory="1Mi", priority=case.priority, **case.pod)
    cluster = run_cycle(*case.running, *case.budgets, new, nodes=case.nodes)
    assert ended(cluster) == case.victims
    nodes = {one.spec.node_name for one in case.running if one.metadata.name in case.victims}
    nominated = asyncio.run(cluster.memory.get(Pod, "default", "new")).status.nominated_node_name
    assert {nominated} - {""} == nodes


# ---------------------------------------------------------------------- candidates


def victims_on(nodes: int) -> list[Pod]:
    """A pod on each node; its priority is the node's number."""
    return [running(f"r{number}", f"n{number}", ALL, number) for number in range(1, nodes + 1)]


def one_for_each_offset(nodes: int) -> list[str]:
    """Names of pods, each with a different first node for its dry run."""
    names = {tie_break(0, f"default/{number}") % nodes: str(number) for number in range(20 * nodes)}
    assert len(names) == nodes
    return list(names.values())


@pytest.mark.parametrize(("absolute", "percentage", "candidates"), [(2, 0, 2), (0, 40, 4), (100, 10, 10), (1, 10, 1)])
def test_the_dry_run_stops_after_the_configured_number_of_candidates(
    absolute: int, percentage: int, candidates: int
) -> None:
    arguments = DefaultPreemptionArguments(
        min_candidate_nodes_absolute=absolute, min_candidate_nodes_percentage=percentage
    )
    chosen = set()
    for name in one_for_each_offset(10):
        cluster = run_cycle(*victims_on(10), pod(name, cpu=ALL, priority=HIGH), nodes=10, arguments=arguments)
        chosen.update(ended(cluster))
    assert len(chosen) <= 11 - candidates
    assert (len(chosen) == 1) is (candidates == 10)
    assert "r1" in chosen


def test_the_dry_run_continues_until_a_candidate_violates_no_budget() -> None:
    arguments = DefaultPreemptionArguments(min_candidate_nodes_absolute=1, min_candidate_nodes_percentage=0)
    guarded = [replace(one, metadata=replace(one.metadata, labels=X)) for one in victims_on(5)[:4]]
    for name in map(str, range(5)):
        cluster = run_cycle(
            *guarded,
            victims_on(5)[4],
            budget("x", 0, X),
            pod(name, cpu=ALL, priority=HIGH),
            nodes=5,
            arguments=arguments,
        )
        assert ended(cluster) == ["r5"]


def test_equal_pods_choose_the_same_in_every_run() -> None:
    equal = [running(f"r{number}", f"n{number}", ALL, LOW) for number in range(1, 6)]
    runs = [ended(run_cycle(*equal, pod("new", cpu=ALL, priority=HIGH), nodes=5)) for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(runs[0]) == 1


def test_the_two_numbers_of_candidates_must_not_both_be_0() -> None:
    with pytest.raises(InputError, match="minCandidateNodesAbsolute"):
        validated(
            DefaultPreemptionArguments,
            {"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0},
            "file",
        )


@pytest.mark.parametrize(
    ("unschedulable", "text"),
    [
        ({"unschedulable": True}, "1 node(s) were unschedulable"),
        ({"cpu": "200m"}, "1 Insufficient cpu"),
    ],
)
def test_a_node_where_preemption_cannot_help_is_not_a_candidate(unschedulable: dict[str, Any], text: str) -> None:
    cluster = FakeCluster(checked=False)
    cluster.add(node("n1", **unschedulable), running("a", "n1", "200m"), pod("new", cpu="300m", priority=HIGH))
    cluster.run()
    assert ended(cluster) == []
    cluster.assert_pending(
        "new", f"0/1 nodes are available: {text}. preemption: 0/1 nodes are available: 1 Preemption is not helpful for "
        "scheduling."
    )  # fmt: skip


def test_the_message_counts_the_reasons_of_nodes_without_a_candidate() -> None:
    there = [running("a", "n1", ALL, HIGH), running("b", "n2", SMALL), running("c", "n2", LARGE, HIGHEST)]
    cluster = run_cycle(*there, running("d", "n3", ALL, HIGH), pod("new", cpu=LARGE, priority=HIGH), nodes=3)
    cluster.assert_pending(
        "new",
        "preemption: 0/3 nodes are available: 1 Insufficient cpu, 2 No preemption victims found for incoming pod.",
    )


# ---------------------------------------------------------------------- nominations


def test_a_pod_that_no_longer_fits_its_nominated_node_preempts_on_another() -> None:
    cluster = run_cycle(running("a", "n1", ALL), running("b", "n2", ALL, MID), pod("new", cpu=ALL, priority=HIGH))
    assert ended(cluster) == ["a"]
    tainted = asyncio.run(cluster.memory.get(Node, "", "n1"))
    cluster.add(replace(tainted, spec=replace(tainted.spec, unschedulable=True)))
    cluster.scheduler.queue.requeue_now("Pod default/new", cluster.clock.now())
    cluster.run()
    assert ended(cluster) == ["a", "b"]


def test_a_pod_stays_nominated_while_a_pod_on_its_node_terminates_by_itself() -> None:
    ending = running("a", "n1", ALL)
    ending = replace(ending, metadata=replace(ending.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    new = replace(pod("new", cpu=ALL, priority=HIGH), status=PodStatus(nominated_node_name="n1"))
    cluster = run_cycle(ending, new, nodes=1)
    assert asyncio.run(cluster.memory.get(Pod, "default", "new")).status.nominated_node_name == "n1"
    assert "preemption" not in cluster.reasons("new")


def test_a_pod_without_victims_loses_its_nomination() -> None:
    new = replace(pod("new", cpu=ALL, priority=HIGH), status=PodStatus(nominated_node_name="n1"))
    cluster = run_cycle(running("a", "n1", ALL, HIGH), new, nodes=1)
    assert asyncio.run(cluster.memory.get(Pod, "default", "new")).status.nominated_node_name == ""


# ---------------------------------------------------------------------- gangs


def grouped(name: str, group: str, where: str, cpu: str = ALL, priority: int = LOW, since: int = 1, **more: Any) -> Pod:
    return running(name, where, cpu, priority, since, group=group, **more)


WHOLE: Final = "PodGroup"
GANGS: Final = {
    "the lower priority": Case([running("a", "n1", ALL, LOW), running("b", "n2", ALL, MID)], ["a"]),
    "as few as suffice": Case([running("a", "n1", SMALL), running("b", "n1", SMALL), running("c", "n2", ALL, HIGH)],
                              ["b"], cpu="400m"),
    "what violates no budget": Case([running("a", "n1", ALL, LOW, labels=X), running("b", "n2", ALL, MID)], ["b"],
                                    budgets=[budget("x", 0, X)]),
    "the lower priority where all violate one": Case(
        [running("a", "n1", ALL, LOW, labels=X), running("b", "n2", ALL, MID, labels=X)], ["a"],
        budgets=[budget("x", 0, X)]),
    "a pod rather than a group of the same priority": Case(
        [grouped("a", "whole", "n1"), running("b", "n2", ALL)], ["b"]),
    "a pod rather than a member of a group": Case([grouped("a", "each", "n1"), running("b", "n2", ALL)], ["b"]),
    "of two groups the smaller": Case(
        [grouped("a", "whole", "n1", "250m"), grouped("b", "whole", "n1", "250m"), grouped("c", "other", "n2")], ["c"]),
    "of equal pods the one that started last": Case(
        [running("a", "n1", ALL, since=2), running("b", "n2", ALL, since=1)], ["a"]),
    "of a group's members the one that started last": Case(
        [grouped("a", "each", "n1", since=2), grouped("b", "each", "n2", since=1)], ["a"]),
    "of equal groups the one that started last": Case(
        [grouped("a", "whole", "n1", since=1), grouped("b", "other", "n2", since=2)], ["b"]),
    "the member that is in no budget": Case(
        [grouped("a", "each", "n1", labels=X), grouped("b", "each", "n2")], ["b"], budgets=[budget("x", 0, X)]),
    "members of a group rather than a pod of a higher priority": Case(
        [grouped("a", "each", "n1"), running("b", "n2", ALL, MID)], ["a"]),
    "a whole group within its budget": Case(
        [grouped("a", "whole", "n1", "250m", labels=X), grouped("b", "whole", "n1", "250m", labels=X),
         running("c", "n2", ALL, MID)], ["a", "b"], budgets=[budget("x", 2, X)]),
    "no whole group if a budget allows one disruption": Case(
        [grouped("a", "whole", "n1", "250m", labels=X), grouped("b", "whole", "n1", "250m", labels=X),
         running("c", "n2", ALL, MID)], ["c"], budgets=[budget("x", 1, X)]),
    "no victims without running pods": Case([], [], cpu="600m"),
    "a budget of one member counts for all": Case(
        [grouped("a", "whole", "n1", labels=X), grouped("b", "whole", "n3", SMALL), running("c", "n2", ALL, MID)],
        ["c"], budgets=[budget("x", 0, X)], nodes=3, cpu="450m"),
    "no victim of a higher priority": Case([running("a", "n1", ALL, HIGHEST), running("b", "n2", ALL, HIGHEST)], []),
}  # fmt: skip


@pytest.mark.parametrize("name", GANGS)
def test_a_gang_preempts_the_right_victims(name: str) -> None:
    case = GANGS[name]
    groups = [
        pod_group("whole", 1, disruption_mode=WHOLE), pod_group("other", 1, disruption_mode=WHOLE),
        pod_group("each", 1),
    ]  # fmt: skip
    extra = [running("full", "n3", "400m", HIGHEST)] if case.nodes == 3 else []
    new = gang("new", 1, cpu=case.cpu, memory="1Mi", priority=case.priority)
    two = [replace(new[0], spec=replace(new[0].spec, priority=case.priority)), *new[1:]]
    cluster = run_cycle(*groups, *case.running, *extra, *case.budgets, *two, nodes=case.nodes)
    assert ended(cluster) == case.victims


def test_a_gang_of_three_preempts_the_three_least_important_pods_of_the_cluster() -> None:
    there = [
        grouped("a", "one", "n1", since=3), grouped("b", "one", "n2", since=2), grouped("c", "two", "n3", since=1),
        running("d", "n4", ALL, MID), grouped("e", "three", "n5", priority=HIGH),
    ]  # fmt: skip
    cluster = run_cycle(
        *(pod_group(name, 1) for name in ("one", "two", "three")), *there, pod_group("new", 3, priority=HIGH),
        *(pod(f"new-{number}", group="new", cpu=ALL, memory="1Mi", priority=HIGH) for number in range(3)), nodes=5,
    )  # fmt: skip
    assert ended(cluster) == ["a", "b", "c"]


@pytest.mark.parametrize(("group", "own", "preempts"), [(HIGH, LOW, True), (LOW, HIGH, False)])
def test_a_gang_preempts_with_the_priority_of_its_pod_group(group: int, own: int, preempts: bool) -> None:
    made = gang("new", 2, cpu=ALL, memory="1Mi", priority=own)
    made[0] = replace(made[0], spec=replace(made[0].spec, priority=group))
    cluster = run_cycle(running("a", "n1", ALL, MID), running("b", "n2", ALL, MID), *made)
    assert bool(ended(cluster)) is preempts


@pytest.mark.parametrize(("group", "own", "ends"), [(LOW, HIGHEST, True), (HIGHEST, LOW, False)])
def test_a_group_preempted_as_a_whole_has_the_priority_of_its_pod_group(group: int, own: int, ends: bool) -> None:
    old = pod_group("old", 2, priority=group, disruption_mode=WHOLE)
    members = [grouped("a", "old", "n1", ALL, own), grouped("b", "old", "n2", ALL, own)]
    for new in (gang("new", 2, cpu=ALL, memory="1Mi", priority=HIGH), [pod("new", cpu=ALL, priority=HIGH)]):
        cluster = run_cycle(old, *members, *new)
        assert ended(cluster) == (["a", "b"] if ends else [])


@pytest.mark.parametrize(
    ("group", "own", "ends"), [(HIGH, LOW, False), (LOW, HIGH, False), (LOW, LOW, True), (None, LOW, True)]
)
def test_a_preemptor_must_exceed_the_priorities_of_a_member_and_its_group(
    group: int | None, own: int, ends: bool
) -> None:
    old = pod_group("old", 2, priority=group)
    members = [grouped(f"o{number}", "old", f"n{number}", priority=own) for number in (1, 2)]
    cluster = run_cycle(old, *members, pod("new", cpu=ALL, priority=HIGH))
    assert bool(ended(cluster)) is ends


def test_a_gang_with_a_member_that_must_not_preempt_waits() -> None:
    made = gang("new", 2, cpu=ALL, memory="1Mi", priority=HIGH)
    made[1] = replace(made[1], spec=replace(made[1].spec, preemption_policy="Never"))
    cluster = run_cycle(running("a", "n1", ALL), running("b", "n2", ALL), *made)
    assert ended(cluster) == []
    cluster.assert_pending("new-0", "preemption: not eligible due to preemptionPolicy=Never.")


def test_a_gang_whose_bind_is_in_flight_is_not_preempted() -> None:
    """The cycle that assumes its members also looks for victims for another pod."""
    first = gang("first", 2, cpu=ALL, memory="1Mi", priority=HIGH)
    cluster = run_cycle(*first, pod("late", cpu=ALL, priority=HIGH))
    assert ended(cluster) == []
    assert {cluster.node_of("first-0"), cluster.node_of("first-1")} == {"n1", "n2"}


def test_budgets_are_matched_once_for_pods_with_equal_relevant_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not 1,000 pods times 50 budgets: the budgets read only one label, which has 5 values."""
    budgets = {f"default/b{number}": budget(f"b{number}", number, {"app": str(number % 5)}) for number in range(50)}
    group = Group(GroupRef("default", "x", kind="Pod"))
    labels = [{"app": str(number % 5), "pod-name": f"p{number}"} for number in range(1000)]
    no_class: Any = None
    units = [Unit((Task(pod(f"p{n}", labels=each), no_class, group),), 0) for n, each in enumerate(labels)]
    evaluated: list[Selector] = []
    real = Selector.matches
    monkeypatch.setattr(Selector, "matches", lambda one, labels: evaluated.append(one) or real(one, labels))
    found = budget_counts.Budgets(budgets)
    for _ in range(3):
        violating, others = found.split(units)
        assert [len(violating), len(others)] == [1000 - sum(range(5)), sum(range(5))]
    assert len(evaluated) == 5 * 50


def test_budgets_are_parsed_again_only_after_one_of_them_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    real = budget_counts.Budgets
    monkeypatch.setattr(budget_counts, "Budgets", lambda *budgets: read.append(1) or real(*budgets))
    cluster = run_cycle(running("a", "n1", ALL, LOW, labels=X), pod("new", cpu=ALL, priority=HIGH), nodes=1)
    assert len(read) == 1
    cluster.add(pod("more", cpu=ALL, priority=HIGH), pod("most", cpu=ALL, priority=HIGHEST))
    cluster.run()
    assert len(read) == 1
    cluster.add(budget("x", 0, X), pod("last", cpu=ALL, priority=HIGHEST))
    cluster.run()
    assert len(read) == 2
