"""Session callbacks: the effect of each one, and errors for invalid answers, which name the plugin."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from session_scheduler import Scenario, Session, hookimpl
from session_scheduler.framework.hooks import PluginError
from session_scheduler.model.objects import Pod
from session_scheduler.testing import FakeCluster, gang, node, pod
from session_scheduler.testing.builders import pod_group

from ....tools.preempting import ended

Register = Callable[[Session], None]


class Plugin:
    """Registers the given callbacks, and keeps the session."""

    def __init__(self, register: Register, name: str = "mine") -> None:
        self.name, self._register = name, register
        self.session: Session | None = None

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        self.session = session
        self._register(session)


def cluster_of(*objects: Any, nodes: int = 0) -> FakeCluster:
    cluster = FakeCluster(checked=False)
    cluster.nodes(nodes)
    cluster.add(*objects)
    return cluster


def opened(*registers: Register, nodes: int = 2) -> Session:
    """Return a session with callbacks of plugins named a, b and so on."""
    cluster = cluster_of(pod("p"), nodes=nodes)
    scheduler = cluster.start(*(Plugin(register, name) for register, name in zip(registers, "abcd", strict=False)))
    return scheduler.sessions.open(scheduler.profiles["fluence"], scheduler._due("fluence")[0])


def low_and_high(**high: Any) -> FakeCluster:
    """Two full nodes with one low-priority pod each, and a pod that needs one of them."""
    running = (pod(f"low-{name}", cpu="1", priority=1, bound_to=name) for name in ("n1", "n2"))
    return cluster_of(node("n1", cpu="1"), node("n2", cpu="1"), *running, pod("high", cpu="1", priority=10, **high))


# ------------------------------------------------------------------ pre-allocation


def test_pre_allocation_refuses_a_group_before_it_is_tried() -> None:
    asked = []

    def check(group: Any) -> str | None:
        asked.append(group.name)
        return "the licence server is closed" if group.name == "g" else None

    cluster = cluster_of(gang("g", 2), pod("p"), nodes=2)
    cluster.run(Plugin(lambda session: session.add_pre_allocation(check)))
    cluster.assert_pending("g-0", "the licence server is closed")
    cluster.assert_bound("p")
    assert sorted(asked) == ["g", "p"]


# ------------------------------------------------------------------ subset nodes


def parts(session: Session, *some: Any) -> list[Any]:
    """Return the parts of a set of nodes (the last argument), given as lists of names."""
    *names, whole = some
    found = []
    for part in names:
        mask = np.zeros(session.table.size, np.bool_)
        mask[[session.table.row_of[name] for name in part]] = True
        found.append(mask & whole)
    return found


def halves(session: Session) -> None:
    session.add_subset_nodes(lambda group, mask: parts(session, ["n1", "n4"], ["n2", "n3"], mask))


def test_a_gang_stays_in_one_of_the_parts() -> None:
    """Four nodes fit one pod each, in parts of two: three pods fit in no part, two share one."""

    cluster = cluster_of(gang("three", 3, cpu="3"), gang("two", 2, cpu="3"), nodes=4)
    cluster.run(Plugin(halves))
    assert {cluster.node_of("two-0"), cluster.node_of("two-1")} in ({"n1", "n4"}, {"n2", "n3"})
    assert cluster.node_of("three-0") is None


def test_the_next_plugin_divides_the_parts_and_none_keeps_them() -> None:
    def first(session: Session) -> None:
        session.add_subset_nodes(lambda group, mask: [part for part in parts(session, ["n1"], mask) if part.any()])

    cluster = cluster_of(pod("p"), nodes=4)
    cluster.run(
        Plugin(halves, "a"), Plugin(lambda session: session.add_subset_nodes(lambda *_: None), "b"), Plugin(first, "c")
    )
    cluster.assert_bound("p", "n1")


def test_topology_domains_are_divided() -> None:
    def register(session: Session) -> None:
        session.add_subset_nodes(lambda group, mask: parts(session, ["b2"], mask))

    nodes = [node(name, labels={"zone": name[0]}) for name in ("a1", "a2", "b1", "b2")]
    cluster = cluster_of(*nodes, gang("g", 2, topology="zone"))
    cluster.run(Plugin(register))
    assert (cluster.node_of("g-0"), cluster.node_of("g-1")) == ("b2", "b2")


def test_a_group_without_offered_nodes_gets_a_reason() -> None:
    cluster = cluster_of(pod("p"), nodes=1)
    cluster.run(Plugin(lambda session: session.add_subset_nodes(lambda *_: [])))
    cluster.assert_pending("p", "plugins offer the group no nodes")


def test_no_pod_is_preempted_on_nodes_that_are_not_offered() -> None:
    cluster = low_and_high()
    cluster.run(Plugin(lambda session: session.add_subset_nodes(lambda group, mask: parts(session, ["n2"], mask))))
    assert ended(cluster) == ["low-n2"]
    cluster = low_and_high()
    cluster.run(Plugin(lambda session: session.add_subset_nodes(lambda group, mask: [])))
    assert ended(cluster) == []


# ------------------------------------------------------------------ preemption


def test_a_protected_pod_is_not_preempted() -> None:
    cluster = low_and_high()
    cluster.run(Plugin(lambda session: session.add_preemptable(lambda group, victim: victim.name != "low-n1")))
    assert ended(cluster) == ["low-n2"]


def test_if_all_pods_are_protected_none_is_preempted_and_the_pod_waits() -> None:
    cluster = low_and_high()
    cluster.run(Plugin(lambda session: session.add_preemptable(lambda group, victim: False)))
    assert ended(cluster) == []
    cluster.assert_pending("high", "No preemption victims found")


def test_without_alike_each_group_of_a_class_is_evaluated_on_its_own() -> None:
    """Both waiting pods have the same class, but a victim is protected from only one of them."""
    cluster = low_and_high()
    cluster.add(pod("other", cpu="1", priority=10))
    cluster.run(Plugin(lambda session: session.add_preemptable(lambda group, victim: group.name == "other")))
    assert len(ended(cluster)) == 1
    cluster.assert_pending("high", "No preemption victims found")


def test_no_member_of_a_protected_group_is_preempted() -> None:
    def register(session: Session) -> None:
        session.add_preemptable(lambda group, victim: victim.name != "g")

    cluster = cluster_of(
        node("n1", cpu="1"), node("n2", cpu="1"), pod_group("g", 2, disruption_mode="PodGroup"),
        *(pod(f"g-{n}", cpu="1", priority=1, group="g", bound_to=f"n{n}") for n in (1, 2)),
        pod("high", cpu="1", priority=10),
    )  # fmt: skip
    cluster.run(Plugin(register))
    assert ended(cluster) == []


def test_if_a_validator_rejects_a_scenario_another_one_is_taken() -> None:
    scenarios: list[Scenario] = []

    def check(scenario: Scenario) -> str | None:
        scenarios.append(scenario)
        return "n1 is under audit" if "n1" in scenario.nominated.values() else None

    cluster = low_and_high()
    cluster.run(Plugin(lambda session: session.add_preempt_validator(check)))
    assert ended(cluster) == ["low-n2"]
    names = {(next(iter(one.nominated.values())), tuple(task.name for task in one.victims)) for one in scenarios}
    assert names == {("n1", ("low-n1",)), ("n2", ("low-n2",))}


def test_a_validators_reason_is_reported() -> None:
    cluster = low_and_high()
    cluster.run(Plugin(lambda session: session.add_preempt_validator(lambda scenario: "there is an audit")))
    assert ended(cluster) == []
    cluster.assert_pending("high", "preemption: 0/2 nodes are available: 2 there is an audit.")


def test_a_validator_gets_the_whole_scenario_of_a_gang() -> None:
    def check(scenario: Scenario) -> str | None:
        return "two at once are too many" if len(scenario.victims) > 1 else None

    running = [pod(f"low-{name}", cpu="1", priority=1, bound_to=name) for name in ("n1", "n2")]
    cluster = cluster_of(node("n1", cpu="1"), node("n2", cpu="1"), *running, gang("g", 2, cpu="1", priority=10))
    cluster.run(Plugin(lambda session: session.add_preempt_validator(check)))
    assert ended(cluster) == []
    cluster.assert_pending("g-0", "two at once are too many")


# ------------------------------------------------------------------ reclaiming


def some_scenario(session: Session) -> Scenario:
    (group,) = session.groups()
    (task,) = group.tasks.values()
    return Scenario(group, {task: "n1"}, (task,))


def test_reclaimable_returns_the_victims_that_all_plugins_allow() -> None:
    def spares(name: str) -> Register:
        return lambda session: session.add_reclaimable(lambda group, victim: victim.name != name)

    cluster = cluster_of(pod("p"), *(pod(name, bound_to="n1") for name in "xyz"), nodes=1)
    scheduler = cluster.start(Plugin(spares("x"), "a"), Plugin(spares("y"), "b"))
    session = scheduler.sessions.open(scheduler.profiles["fluence"], scheduler._due("fluence")[0])
    (group,) = session.groups()
    victims = sorted(scheduler.cache.tasks_on("n1"), key=lambda task: task.name)
    assert [task.name for task in session.reclaimable(group, victims)] == ["z"]
    assert session.runner.preemptable(group, victims) == victims
    refusal = session.reclaim_refusal(Scenario(group, {}, victims))
    assert refusal is not None
    assert (refusal.plugin, "Pod default/x" in refusal.reason) == ("a", True)


def damages(*answers: Any) -> list[int | None] | None:
    """The damages of two units of victims, as plugins with these answers see them."""

    def register(answer: Any) -> Register:
        return lambda session: session.add_reclaimable(lambda *_: True, together=lambda group, units: answer)

    session = opened(*map(register, answers))
    (group,) = session.groups()
    return session.runner.reclaim_damages(group, [(), ()])


def test_the_damage_of_victims_is_the_most_that_any_plugin_sees() -> None:
    assert damages() is None
    assert damages([0, 2], (1, 1)) == [1, 2]
    assert damages([0, None], (None, 1)) == [None, None]


@pytest.mark.parametrize("answer", [None, [0], [0, -1], [0, True], [0, "1"]])
def test_an_invalid_damage_is_an_error(answer: Any) -> None:
    with pytest.raises(PluginError, match=r"expected a number of 0 or more, or None, for each of 2 units, got "):
        damages(answer)


def test_a_reclaim_validator_refuses_the_scenario_by_name() -> None:
    session = opened(
        lambda session: session.add_reclaim_validator(lambda scenario: None),
        lambda session: session.add_reclaim_validator(lambda scenario: f"not {scenario.group.name}"),
    )
    refusal = session.reclaim_refusal(some_scenario(session))
    assert refusal is not None
    assert (refusal.reason, refusal.plugin) == ("not p", "b")
    assert session.runner.preempt_refusal(some_scenario(session)) is None


# ------------------------------------------------------------------ queues


@pytest.mark.parametrize("kind", ["allocated", "deserved", "fair_share"])
def test_the_first_known_share_counts(kind: str) -> None:
    def answers(share: Mapping[str, float] | None) -> Register:
        return lambda session: getattr(session, f"add_queue_{kind}")(lambda queue: share if queue == "q" else None)

    session = opened(answers(None), answers({"cpu": 500}), answers({"cpu": 1}))
    assert getattr(session, f"queue_{kind}")("q") == {"cpu": 500}
    assert getattr(session, f"queue_{kind}")("other") is None


# ------------------------------------------------------------------ orders


def test_gpus_are_ordered_by_the_sum_of_all_plugins_then_by_index() -> None:
    def prefers(**worth: float) -> Register:
        return lambda session: session.add_gpu_order(lambda task, node, gpu: worth.get(f"{node.name}_{gpu}", 0))

    session = opened(prefers(n1_2=5, n1_10=3), prefers(n1_10=3))
    task = next(task for group in session.groups() for task in group.tasks.values())
    assert session.gpu_order(task, "n1", ["10", "2", "1", "0"]) == ["10", "2", "0", "1"]
    assert session.gpu_order(task, "n2", ["10", "9"]) == ["9", "10"]


def test_sub_groups_are_ordered_by_keys_then_by_name() -> None:
    session = opened(lambda session: session.add_sub_group_order(lambda group, name: name != "leader"))
    (group,) = session.groups()
    names = ["b", "leader", "a"]
    assert sorted(names, key=lambda name: session.runner.sub_group_key(group, name)) == ["leader", "a", "b"]


# ------------------------------------------------------------------ bind mutation


def annotations_of(cluster: FakeCluster, name: str) -> Mapping[str, str]:
    return asyncio.run(cluster.memory.get(Pod, "default", name)).metadata.annotations


def test_annotations_are_bound_with_the_pod_and_prebind_sees_them() -> None:
    seen = {}

    class Sees(Plugin):
        @hookimpl
        async def prebind(self, binding: Any) -> None:
            seen.update(binding.annotations)

    def adds(**own: str) -> Register:
        return lambda session: session.add_bind_mutation(lambda task, node: own | {"node": node})

    cluster = cluster_of(pod("p"), nodes=1)
    cluster.run(Plugin(adds(a="1", b="1"), "a"), Sees(adds(b="2"), "b"))
    assert seen == {"a": "1", "b": "2", "node": "n1"}
    assert {key: annotations_of(cluster, "p")[key] for key in seen} == seen


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        ({"no key!": "x"}, "no key!"),
        ({"fluence.flux-framework.org/held": "x"}, "is reserved"),
        ({"a": "x" * 300_000}, "shorten them"),
        ({"a": 5}, "expected a mapping of annotation keys to strings, or None, got "),
        ("a=b", "expected a mapping of annotation keys to strings, or None, got "),
    ],
)
def test_an_invalid_annotation_fails_the_group(answer: Any, part: str) -> None:
    def register(session: Session) -> None:
        session.add_bind_mutation(lambda task, node: answer if task.name == "bad" else None)

    cluster = cluster_of(pod("bad"), pod("good"), nodes=1)
    cluster.run(Plugin(register))
    cluster.assert_pending("bad", "plugin mine failed in bind mutation")
    cluster.assert_pending("bad", part)
    cluster.assert_bound("good")


# ------------------------------------------------------------------ wrong answers


def beyond(session: Session) -> None:
    session.add_subset_nodes(lambda group, mask: parts(session, ["n1"], mask))
    session.add_subset_nodes(lambda group, mask: [mask | True])


FAILING: dict[str, tuple[Callable[[Any], None], str, str]] = {
    "pre-allocation": (
        lambda s: s.add_pre_allocation(lambda g: g.name == "high"), "pre-allocation",
        "expected a string or None as the reason, got True",
    ),
    "subset of numbers": (
        lambda s: s.add_subset_nodes(lambda g, m: [m * 1]), "subset nodes", "expected masks of 2 bools",
    ),
    "subset of wrong shape": (
        lambda s: s.add_subset_nodes(lambda g, m: [m[1:]]), "subset nodes", "expected masks of 2 bools",
    ),
    "subset beyond": (beyond, "subset nodes", "a part contains rows outside the set of nodes to divide"),
    "subset none": (lambda s: s.add_subset_nodes(lambda g, m: 5), "subset nodes", "TypeError"),
    "preemptable None": (
        lambda s: s.add_preemptable(lambda g, v: None), "preemptable", "expected True or False, got None",
    ),
    "preemptable raises": (lambda s: s.add_preemptable(lambda g, v: 1 / 0), "preemptable", "ZeroDivisionError"),
    "validator False": (
        lambda s: s.add_preempt_validator(lambda one: False), "preempt validator",
        "expected a string or None as the reason, got False",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILING)
def test_an_invalid_answer_fails_the_group_and_no_pod_is_preempted(case: str) -> None:
    register, kind, part = FAILING[case]
    cluster = low_and_high()
    cluster.run(Plugin(register))
    assert ended(cluster) == []
    cluster.assert_pending("high", f"plugin mine failed in {kind}")
    cluster.assert_pending("high", part)


@pytest.mark.parametrize("share", [5, {"cpu": -1}, {"cpu": float("nan")}, {"cpu": True}, {1: 1}, {"cpu": "1"}])
def test_an_invalid_share_is_an_error(share: Any) -> None:
    session = opened(lambda session: session.add_queue_deserved(lambda queue: share))
    with pytest.raises(PluginError, match=r"plugin a failed in queue deserved: expected a mapping .* or None, got "):
        session.queue_deserved("q")


@pytest.mark.parametrize("score", [None, "1", float("nan"), float("inf"), True])
def test_an_invalid_gpu_score_is_an_error(score: Any) -> None:
    session = opened(lambda session: session.add_gpu_order(lambda task, node, gpu: score))
    (group,) = session.groups()
    with pytest.raises(PluginError, match=r"plugin a failed in gpu order: expected a number .* as the score, got "):
        session.gpu_order(next(iter(group.tasks.values())), "n1", ["0", "1"])


@pytest.mark.parametrize("path", ["", "/x", "X", "a//b", "../etc", "a/b/c/d/e", "a" * 64, 5])
def test_an_invalid_path_fails_the_session(path: Any) -> None:
    with pytest.raises(PluginError, match=r"plugin a failed in on_session_open: ValueError: .* is not a valid path"):
        opened(lambda session: session.add_http_handler(path, lambda query: "x"))


def test_the_number_of_a_plugins_paths_is_limited() -> None:
    def register(session: Session) -> None:
        for number in [*range(16), 0]:
            session.add_http_handler(f"p{number}", lambda query: "x")

    assert len(opened(register).calls.http_handlers["a"]) == 16
    with pytest.raises(PluginError, match="cannot add path 'more': a plugin may serve at most 16 paths"):
        opened(lambda session: (register(session), session.add_http_handler("more", lambda query: "x"))[0])


def test_the_reference_names_every_callback() -> None:
    reference = (Path(__file__).parents[4] / "docs" / "reference" / "callbacks.md").read_text()
    registering = {name for name in dir(Session) if name.startswith(("add_", "set_"))}
    assert registering == set(re.findall(r"`((?:add|set)_\w+)`", reference))


def test_a_closed_session_keeps_no_callback() -> None:
    names = [
        name
        for name in dir(Session)
        if name.startswith("add_") and name not in ("add_event_handler", "add_trial_handler", "add_http_handler")
    ]

    def register(session: Session) -> None:
        for name in names:
            getattr(session, name)(lambda *_: None)

    session = opened(register)
    session.forget()
    assert not [name for name, kept in vars(session.registered).items() if isinstance(kept, list) and kept]
