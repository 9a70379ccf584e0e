"""Freed capacity requeues the groups that may fit it, best first, and no others: counted in attempts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from session_scheduler import Session, hookimpl
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.framework.observer import Observer
from session_scheduler.model.events import ActionType, ClusterEvent, ClusterEventWithHint
from session_scheduler.model.groups import Group
from session_scheduler.model.objects import Node, Pod, Taint, Toleration
from session_scheduler.testing import FakeCluster, gang, node, pod, pod_group, priority_class

from ....tools.attempts import Attempts
from ....tools.observing import observe

DURATION = "fluence.flux-framework.org/duration"
DEDICATED = Taint(key="dedicated", effect="NoSchedule")
TOLERANT = (Toleration(operator="Exists"),)


def full(
    *waiting: Any, cpu: int = 4, config: SchedulerConfig | None = None, plugin: object = None, seconds: float = 11
) -> FakeCluster:
    """Two full nodes, and groups that were refused once, some seconds ago."""
    cluster = FakeCluster(checked=False, config=config)
    cluster.add(node("n1", cpu=cpu), node("n2", cpu=cpu))
    cluster.add(pod("first", cpu=cpu, bound_to="n1", priority=100), pod("second", cpu=cpu, bound_to="n2", priority=100))
    for some in waiting:
        cluster.add(some)
    cluster.run(*(() if plugin is None else (plugin,)))
    return cluster.advance(seconds)


def attempts(cluster: FakeCluster) -> Attempts:
    """Counts the attempts from now on."""
    return observe(cluster.scheduler, Attempts())


class Slow:
    """Each attempt takes most of a second."""

    name = "slow"

    def __init__(self) -> None:
        self.clock: Any = None
        self.attempts = 0

    @hookimpl
    def prefilter(self) -> None:
        self.attempts += 1
        if self.clock is not None:
            self.clock.advance(0.6)


def test_one_emptied_node_costs_as_many_attempts_as_it_fits_pods() -> None:
    cluster = full(*(pod(f"p{number}", cpu=f"{400 + number % 50}m") for number in range(500)), cpu=8)
    counted = attempts(cluster)
    cluster.delete(Pod, "first").run(cycles=3)
    placed = [name for name in counted.of if cluster.node_of(name) == "n1"]
    assert len(placed) == 19
    assert counted.of.total() == len(placed)


def test_a_pod_that_ends_on_a_node_where_no_pod_fits_costs_nothing() -> None:
    cluster = full(*(pod(f"p{number}", cpu="5") for number in range(20)))
    counted = attempts(cluster)
    cluster.delete(Pod, "first").run(cycles=3)
    assert not counted.of
    assert not cluster.scheduler.left_over
    assert not cluster.scheduler.queue.has_freed("fluence")


def test_capacity_goes_to_the_highest_priority_and_then_to_the_oldest() -> None:
    cluster = full(pod("low", cpu=2, priority=1), pod("old", cpu=2, priority=2), pod("young", cpu=2, priority=2))
    counted = attempts(cluster)
    cluster.delete(Pod, "first").run()
    assert counted.of == {"old": 1, "young": 1}
    cluster.delete(Pod, "old").run(cycles=2)
    assert counted.of == {"old": 1, "young": 1, "low": 1}


def test_a_smaller_group_gets_what_larger_ones_leave() -> None:
    cluster = full(pod("a", cpu=3, priority=3), pod("b", cpu=3, priority=2), pod("c", cpu=1, priority=1))
    counted = attempts(cluster)
    cluster.delete(Pod, "first").run()
    assert counted.of == {"a": 1, "c": 1}


def test_groups_that_other_filters_reject_do_not_keep_capacity_from_the_next_one() -> None:
    refused = [pod(f"p{number}", cpu=4, priority=10) for number in range(5)]
    cluster = full(*refused, pod("tolerant", cpu=4, tolerations=TOLERANT))
    counted = attempts(cluster)
    cluster.add(node("n1", cpu=4, taints=(DEDICATED,)))
    cluster.delete(Pod, "first").run()
    cluster.assert_bound("tolerant", "n1")
    assert counted.of == {f"p{number}": 1 for number in range(5)} | {"tolerant": 1}
    cluster.run(cycles=3)
    assert counted.of.total() == 6, "each event costs one attempt"


def test_a_changed_priority_class_changes_whose_turn_it_is() -> None:
    cluster = FakeCluster(checked=False)
    cluster.add(priority_class("later", 1), node("n1", cpu=4), pod("runs", cpu=4, bound_to="n1", priority=100))
    named = pod("named", cpu=4)
    named = replace(named, spec=replace(named.spec, priority_class_name="later"))
    cluster.add(named, pod("plain", cpu=4, priority=5)).run()
    cluster.advance(11).add(priority_class("later", 10)).run()
    counted = attempts(cluster)
    cluster.delete(Pod, "runs").run()
    cluster.assert_bound("named", "n1")
    assert counted.of == {"named": 1}


@pytest.mark.parametrize("changes", ["class", "priority"])
@pytest.mark.parametrize("after", [True, False])
def test_an_event_stays_noted_while_the_only_group_that_waits_for_it_changes(changes: str, after: bool) -> None:
    named = pod("waits", cpu=4)
    named = replace(named, spec=replace(named.spec, priority_class_name="later"))
    cluster = full(priority_class("later", 1), named)
    tolerant = replace(named, spec=replace(named.spec, tolerations=TOLERANT))
    if after:
        cluster.delete(Pod, "first")
    cluster.add(tolerant if changes == "class" else priority_class("later", 7))
    if not after:
        cluster.delete(Pod, "first")
    cluster.run(cycles=2)
    cluster.assert_bound("waits", "n1")


def test_a_pod_that_leaves_its_group_takes_its_priority_along() -> None:
    cluster = full()
    cluster.add(pod_group("g"), pod("high", cpu=5, group="g", priority=10), pod("low", cpu=4, group="g", priority=1))
    cluster.add(pod("plain", cpu=4, priority=5)).run()
    cluster.advance(11).delete(Pod, "high").run()
    counted = attempts(cluster)
    cluster.delete(Pod, "first").run()
    cluster.assert_bound("plain", "n1")
    assert counted.of == {"plain": 1}


def test_a_group_is_attempted_once_for_an_event_that_is_kept_for_others() -> None:
    cluster = full(node("n3", cpu=1), pod("small", cpu=1, bound_to="n3"), pod("old", cpu=4))
    cluster.add(pod("young", cpu=4)).run()  # in backoff
    counted = attempts(cluster)
    cluster.add(node("n1", cpu=4, taints=(DEDICATED,)), pod("new", cpu=9)).delete(Pod, "first").run()
    assert counted.of == {"new": 1, "old": 1}
    cluster.advance(11).delete(Pod, "small").run(cycles=2)
    assert counted.of == {"new": 1, "old": 1, "young": 1}


def test_active_groups_and_those_that_may_fit_are_attempted_in_one_order() -> None:
    cluster = full(pod("high", cpu=4, priority=10), pod("low", cpu=4, priority=1))
    counted = attempts(cluster)
    cluster.add(pod("new", cpu=4, priority=5)).delete(Pod, "first").run()
    cluster.assert_bound("high", "n1")
    assert counted.of == {"high": 1, "new": 1}


def test_a_group_in_backoff_waits_for_active_ones_only() -> None:
    cluster = full(pod("waits", cpu=4), seconds=0)
    cluster.add(pod("new", cpu=4)).delete(Pod, "first").run()
    cluster.assert_bound("new", "n1")
    assert cluster.scheduler.left_over
    counted = attempts(cluster)
    cluster.run()
    assert not counted.of
    assert not cluster.scheduler.left_over
    cluster.delete(Pod, "second").run()
    cluster.assert_bound("waits", "n2")


def test_what_a_cycle_had_no_time_for_follows_in_the_next_ones() -> None:
    slow, config = Slow(), SchedulerConfig(cycle_seconds=1)
    cluster = full(*(pod(f"p{number}", cpu=1) for number in range(9)), config=config, plugin=slow)
    slow.clock, slow.attempts = cluster.clock, 0
    cluster.delete(Pod, "first").run()
    assert slow.attempts == 2
    assert cluster.scheduler.left_over
    cluster.run(cycles=3)
    assert slow.attempts == len(cluster.pods_on("n1")) == 4
    assert not cluster.scheduler.left_over


def test_a_partly_bound_gang_goes_first() -> None:
    cluster = full(pod("high", cpu=4, priority=10), pod("low", cpu=4, priority=1))
    cluster.scheduler.gang_starts._deadlines["Pod default/low"] = math.inf
    cluster.delete(Pod, "first").run()
    cluster.assert_bound("low", "n1")


def test_a_partly_bound_gang_that_is_rejected_is_attempted_once() -> None:
    cluster = full(pod("first-gang", cpu=4, priority=1), pod("other", cpu=4, priority=1))
    counted = attempts(cluster)
    cluster.scheduler.gang_starts._deadlines["Pod default/first-gang"] = math.inf
    cluster.add(node("n1", cpu=4, taints=(DEDICATED,))).delete(Pod, "first").run()
    assert counted.of == {"first-gang": 1, "other": 1}


def test_a_gang_is_retried_when_its_smallest_member_fits() -> None:
    members = gang("g", 2, cpu=1)
    cluster = full(members, pod("large", cpu=3), cpu=4)
    cluster.add(pod("small", cpu=2, bound_to="n3"), node("n3", cpu=2)).run()
    counted = attempts(cluster)
    cluster.delete(Pod, "small").run()
    assert counted.of == {"g": 1}
    cluster.assert_bound("g-0", "n3")


def test_the_pods_that_a_group_may_evict_count_as_free() -> None:
    cluster = FakeCluster(checked=False)
    cluster.add(node("n1", cpu=4), pod("important", cpu=3, priority=20, bound_to="n1"))
    cluster.add(pod("victim", cpu=1, priority=1, bound_to="n1"), pod("equal", cpu=4, priority=1))
    cluster.add(pod("waits", cpu=4, priority=10)).run()
    counted = attempts(cluster)
    cluster.delete(Pod, "important").run()
    assert counted.of == {"waits": 1}
    assert cluster.find(Pod, "waits").status.nominated_node_name == "n1"
    cluster.finish_deletions().run(cycles=2)
    cluster.assert_bound("waits", "n1")


def one_evictable_after(important: str) -> FakeCluster:
    """Two full nodes. On n2 a pod of priority 10 may evict the other pods when `important` ends."""
    cluster = FakeCluster(checked=False)
    cluster.add(node("n1", cpu=4), pod("v1", cpu=4, priority=1, bound_to="n1"))
    cluster.add(node("n2", cpu=4), pod(important, cpu=2, priority=100, bound_to="n2"))
    return cluster.add(pod("v2", cpu=2, priority=1, bound_to="n2"))


def test_a_group_may_evict_pods_while_an_equal_one_waits_for_its_victims() -> None:
    cluster = one_evictable_after("important")
    cluster.add(pod("p1", cpu=4, priority=10)).run(cycles=2)
    cluster.add(pod("p2", cpu=4, priority=10)).run(cycles=2)
    cluster.advance(15).run(cycles=2)
    cluster.delete(Pod, "important").run(cycles=2)
    assert cluster.find(Pod, "p2").status.nominated_node_name == "n2"


def test_a_group_with_reserved_nodes_may_evict_pods() -> None:
    lasts, actions = {DURATION: "3000"}, ("allocate", "preempt", "backfill")
    config = SchedulerConfig(bindings_in_flight=1000, actions=actions)
    cluster = FakeCluster(checked=False, config=config).nodes(4, cpu="4")
    cluster.add(pod("a", cpu=4, annotations=lasts, bound_to="n1", priority=100))
    cluster.add(pod("b", cpu=4, annotations=lasts, bound_to="n3", priority=100))
    cluster.add(pod("important", cpu=2, bound_to="n2", priority=100), pod("v2", cpu=2, bound_to="n2", priority=1))
    cluster.add(pod("v4", cpu=4, bound_to="n4", priority=1), *gang("g", 2, cpu=4, priority=50)).run(cycles=2)
    nominated = cluster.scheduler.cache.nominations.node_by_uid
    assert sorted(nominated.values()) == ["n1", "n3"]
    cluster.advance(15).delete(Pod, "important").run(cycles=2)
    assert sorted(nominated.values()) == ["n2", "n4"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_nominated_group_evicts_pods_that_took_its_place(restarts: bool) -> None:
    cluster = FakeCluster(checked=False).add(node("n1", cpu=4))
    cluster.add(pod(f"v{number}", cpu=2, priority=1, bound_to="n1") for number in range(2))
    cluster.add(pod("waits", cpu=4, priority=10)).run(cycles=2)
    if restarts:
        cluster.restart()
        cluster.run()
        cluster.advance(15).run()
    cluster.add(pod("other", cpu=1, priority=1, bound_to="n1")).run()
    cluster.finish_deletions().run(cycles=2)
    cluster.advance(15).run(cycles=2)
    cluster.finish_deletions().run(cycles=2)
    cluster.assert_bound("waits", "n1")


def test_a_gang_member_that_ends_no_longer_protects_the_others_on_their_nodes() -> None:
    cluster = FakeCluster(checked=False).add(node("n1", cpu=4), node("n2", cpu=1), pod_group("g", 2))
    cluster.add(pod("low", cpu=4, group="g", priority=1, bound_to="n1"))
    cluster.add(pod("high", cpu=1, group="g", priority=100, bound_to="n2"))
    cluster.add(pod("waits", cpu=4, priority=10)).run(cycles=2)
    assert not cluster.find(Pod, "waits").status.nominated_node_name
    cluster.delete(Pod, "high").run(cycles=2)
    assert cluster.find(Pod, "waits").status.nominated_node_name == "n1"


def test_a_group_that_waits_for_its_victims_is_not_retried_for_those_of_others() -> None:
    cluster = FakeCluster(checked=False)
    for number in range(4):
        cluster.add(node(f"n{number}", cpu=4))
        cluster.add(pod(f"low{number}-{part}", cpu=2, priority=1, bound_to=f"n{number}") for part in range(2))
    cluster.add(pod(f"high{number}", cpu=4, priority=10) for number in range(4)).run(cycles=2)
    counted = attempts(cluster)
    nominated = {name: cluster.find(Pod, name).status.nominated_node_name for name in ("high0", "high1")}
    for key in [key for key in cluster.pods_on(nominated["high0"]) if key.startswith("default/low")]:
        cluster.delete_pod(key.partition("/")[2]).run()
    assert counted.of == {"high0": 1}
    cluster.assert_bound("high0", nominated["high0"])


def test_events_that_no_group_fits_are_compared_once() -> None:
    cluster = full(pod("waits", cpu=4), seconds=0)
    asked = []
    freed = cluster.scheduler.queue._freed
    evictable = freed._evictable
    freed._evictable = lambda node: (asked.append(node), evictable(node))[1]
    cluster.add(node(f"m{number}", cpu=1) for number in range(9))
    cluster.delete(Pod, "first")
    for number in range(3):
        cluster.add(pod(f"new{number}", cpu=9)).run()
    assert sorted(asked) == ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "n1", "n1", "n1"]


class Requeues(Observer):
    """Lists the requeued groups."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def requeued(self, event: str, plugin: str, groups: Sequence[Group]) -> None:
        self.names += [group.name for group in groups]


def test_the_order_of_requeues_does_not_depend_on_hashes() -> None:
    cluster = FakeCluster(checked=False, config=SchedulerConfig(actions=("allocate",)))
    cluster.add(node("n1", cpu=100), pod("runs", cpu=100, bound_to="n1"))
    names = [f"p{number:02}" for number in range(50)]
    for number, name in enumerate(names):
        cluster.queue(f"of-{name}").add(pod(name, cpu=51 + number, queue=f"of-{name}"))
    cluster.run()
    requeues = observe(cluster.scheduler, Requeues())
    cluster.delete(Pod, "runs").run()
    assert requeues.names == names


class Fails:
    """A plugin that fails in the hook that `hook` names."""

    name = "fails"

    def __init__(self) -> None:
        self.hook = ""

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        self._fail("on_session_open", session)

    @hookimpl
    def on_nodes_changed(self, changes: Any) -> None:
        self._fail("on_nodes_changed", changes)

    def _fail(self, hook: str, _: object) -> None:
        if self.hook == hook:
            raise ValueError("not now")


@pytest.mark.parametrize("hook", ["on_session_open", "on_nodes_changed"])
def test_while_a_plugin_fails_the_scheduler_does_not_retry_at_once(hook: str) -> None:
    plugin = Fails()
    cluster = full(pod("waits", cpu=4), plugin=plugin)
    plugin.hook = hook
    cluster.delete(Pod, "first").run(cycles=2)
    assert not cluster.scheduler.left_over
    plugin.hook = ""
    cluster.run()
    cluster.assert_bound("waits", "n1")


class ByName:
    """Orders groups by their name, backwards."""

    name = "by-name"

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        session.add_job_order(lambda group: tuple(-ord(letter) for letter in group.name))


def test_a_gang_member_whose_bind_fails_no_longer_protects_the_others() -> None:
    cluster = FakeCluster(checked=False).add(node("n1", cpu=4), node("n2", cpu=1), pod_group("z", 2))
    cluster.add(pod(f"old{number}", cpu=2, group="z", priority=1, bound_to="n1") for number in range(2))
    cluster.add(pod("more", cpu=1, group="z", priority=1), pod("a", cpu=4, priority=10))
    cluster.fail_binds("more", times=1).run(ByName())
    counted = attempts(cluster)
    cluster.run()
    assert counted.of["a"] == 1
    assert cluster.find(Pod, "a").status.nominated_node_name == "n1"


def test_a_plugins_order_decides_among_all_groups_that_may_fit() -> None:
    cluster = full(*(pod(name, cpu=4) for name in ("a", "b", "c")), pod("d", cpu=5), plugin=ByName())
    counted = attempts(cluster)
    cluster.delete(Pod, "first").run()
    cluster.assert_bound("c", "n1")
    assert counted.of == {"a": 1, "b": 1, "c": 1}


def test_queues_share_freed_capacity() -> None:
    config = SchedulerConfig(actions=("allocate", "preempt"))
    cluster = FakeCluster(checked=False, config=config).queue("a").queue("b")
    cluster.add(node("n1", cpu=4), pod("runs", cpu=4, queue="a", bound_to="n1"))
    cluster.add(pod(f"{queue}{number}", cpu=1, queue=queue) for queue in "ab" for number in range(10)).run()
    counted = attempts(cluster)
    cluster.advance(11).delete(Pod, "runs").run()
    placed = cluster.pods_on("n1")
    assert sorted(key.partition("/")[2][0] for key in placed) == ["a", "a", "b", "b"]
    assert counted.of.total() <= 6, "at most the next group of each queue beside those that fit"


def test_with_consolidation_every_end_of_a_pod_may_help() -> None:
    config = SchedulerConfig(actions=("allocate", "consolidate"))
    cluster = full(pod("waits", cpu=4), config=config)
    cluster.add(node("n3", cpu=2), pod("small", cpu=1, bound_to="n3"), pod("other", cpu=1, bound_to="n3")).run()
    counted = attempts(cluster)
    cluster.delete(Pod, "small").run()
    assert counted.of == {"waits": 1}


@pytest.mark.parametrize("fails", [True, False])
def test_a_failed_bind_frees_its_node_for_the_groups_that_fit(fails: bool) -> None:
    cluster = full(pod("a", cpu=4, priority=2), pod("b", cpu=4, priority=1), pod("c", cpu=5))
    if fails:
        cluster.fail_binds("a", times=1)
    counted = attempts(cluster)
    cluster.delete(Pod, "first").run()
    cluster.run()
    assert counted.of["b"] == fails
    assert counted.of["c"] == 0
    cluster.assert_bound("b" if fails else "a", "n1")


class Licences:
    """A plugin that requires something free on the node, and counts the calls of its functions."""

    name = "licences"

    def __init__(self, amounts: Any) -> None:
        self.amounts = amounts
        self.hinted = 0

    @hookimpl
    def filter(self, mask: Any) -> None:
        mask[:] = False

    @hookimpl
    def events_to_register(self) -> list[ClusterEventWithHint]:
        return [ClusterEventWithHint(Pod, ActionType.DELETE, self._hint, self._required),
                ClusterEventWithHint(Node, ActionType.ADD, None, self._required)]  # fmt: skip

    def _hint(self, _: Any, event: ClusterEvent) -> bool:
        self.hinted += 1
        return event.node == "n1"

    def _required(self, _: Any) -> Any:
        return self.amounts


@pytest.mark.parametrize(
    ("amounts", "ends", "retried"),
    [
        ({"x.org/licence": 1}, "first", True),
        ({"x.org/licence": 2}, "first", False),
        ({"x.org/licence": 1}, "second", False),
        ({"x.org/other": 1}, "first", False),
        ({}, "first", True),
        (None, "first", True),
        ({"x.org/licence": "many"}, "first", True),
        ({"x.org/licence": -(2**64)}, "first", True),
    ],
)
def test_a_plugin_declares_what_must_be_free(amounts: Any, ends: str, retried: bool) -> None:
    plugin, cluster = Licences(amounts), FakeCluster(checked=False)
    held = {"x.org/licence": 1}
    cluster.add(node("n1", offers=held), node("n2", offers=held))
    cluster.add(pod("first", requests=held, bound_to="n1"), pod("second", requests=held, bound_to="n2"))
    cluster.add(pod("a"), pod("b", labels={"app": "b"})).run(plugin)
    counted = attempts(cluster)
    cluster.advance(11).delete(Pod, ends).run()
    assert counted.of == ({"a": 1, "b": 1} if retried else {})
    assert bool(plugin.hinted) == (retried or ends == "second"), "asked last"
    cluster.add(node("n3", offers={"x.org/licence": 5, "x.org/other": 5})).run()
    assert counted.of == ({"a": 2, "b": 2} if retried else {"a": 1, "b": 1})


@pytest.mark.parametrize("plugin", [None, ByName()], ids=["one by one", "all at once"])
def test_gangs_that_are_retried_start_with_their_minimums(plugin: object) -> None:
    cluster = full(gang("g", 4, min_count=2, cpu=1), gang("h", 4, min_count=2, cpu=1), plugin=plugin)
    cluster.delete(Pod, "first").run()
    assert sorted(cluster.pods_on("n1")) == ["default/g-0", "default/g-1", "default/h-0", "default/h-1"]


def test_a_plugin_may_declare_more_than_any_node_can_have() -> None:
    cluster, held = FakeCluster(checked=False), {"x.org/licence": 1}
    cluster.add(node("n1", offers=held), pod("first", requests=held, bound_to="n1"))
    cluster.add(pod("a"), pod("b", labels={"app": "b"})).run(Licences({"x.org/licence": 2**64}))
    counted = attempts(cluster)
    cluster.advance(11).delete(Pod, "first").run(cycles=2)
    assert not counted.of
    assert not cluster.scheduler.queue.has_freed("fluence")
