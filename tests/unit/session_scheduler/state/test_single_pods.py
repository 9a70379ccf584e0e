"""The order of the single pods on a node, as preemption reads it, after changes of pods, groups and nodes."""

from __future__ import annotations

from msgspec.structs import replace

from session_scheduler.model.groups import Phase
from session_scheduler.model.objects import ObjectMeta, PriorityClass
from session_scheduler.testing import FakeCluster, node, pod, pod_group


def bound(name, *, started="2026-01-01T00:00:00Z", on="n1", **fields):
    made = pod(name, bound_to=on, **fields)
    return replace(made, metadata=replace(made.metadata, uid=name), status=replace(made.status, start_time=started))


def cache_with(*objects):
    cluster = FakeCluster()
    cluster.add(node("n1"), node("n2"), *objects)
    return cluster.start().cache


def order(cache, on="n1"):
    """The names of the pods on a node, the most important first; None if one of them is in a group."""
    units = cache.single_pods.on(cache.table.row_of[on])
    return None if units is None else [unit.tasks[0].name for unit in units]


def test_higher_priorities_and_earlier_starts_come_first():
    cache = cache_with(
        bound("late", started="2026-01-02T00:00:00Z"), bound("early"), bound("high", priority=1, started="2026-01-03")
    )
    assert order(cache) == ["high", "early", "late"]
    assert order(cache, on="n2") == []


def test_the_units_are_the_same_until_a_pod_changes():
    cache = cache_with(bound("one"), bound("two"))
    units = cache.single_pods.on(0)
    assert cache.single_pods.on(0) is units
    cache.put(bound("elsewhere", on="n2"))
    assert cache.single_pods.on(0) is units
    cache.put(bound("one"))
    assert cache.single_pods.on(0) is not units


def test_a_new_start_time_changes_the_order():
    cache = cache_with(bound("one"), bound("two", started="2026-01-02T00:00:00Z"))
    assert order(cache) == ["one", "two"]
    cache.put(bound("one", started="2026-01-03T00:00:00Z"))
    assert order(cache) == ["two", "one"]


def test_pods_that_come_and_go_change_the_order():
    cache = cache_with(bound("one"))
    assert order(cache) == ["one"]
    cache.put(bound("two", priority=1))
    assert order(cache) == ["two", "one"]
    cache.remove(bound("one"))
    assert not cache.single_pods.by_row, "a deleted pod stays in memory"
    assert order(cache) == ["two"]
    (task,) = cache.tasks.values()
    cache.vacate(task, Phase.RELEASING)
    assert order(cache) == []


def test_a_new_value_of_a_priority_class_changes_the_order():
    cache = cache_with(bound("one"), bound("two", priority_class_name="high", started="2026-01-02T00:00:00Z"))
    assert order(cache) == ["one", "two"]
    cache.put(PriorityClass(metadata=ObjectMeta(name="high"), value=100))
    assert order(cache) == ["two", "one"]


def test_a_pod_of_a_group_has_no_unit_of_its_own():
    cache = cache_with(bound("one"), pod_group("gang", 2))
    assert order(cache) == ["one"]
    cache.put(bound("member", group="gang"))
    assert order(cache) is None


def test_a_node_that_is_removed_and_added_again_has_its_pods():
    cache = cache_with(bound("one"))
    assert order(cache) == ["one"]
    cache.remove(node("n1"))
    cache.put(node("n3"))
    assert order(cache, on="n3") == []
    cache.put(node("n1"))
    assert order(cache) == ["one"]
