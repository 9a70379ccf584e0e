"""Priorities from PriorityClasses and the default, while classes are added, changed and deleted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from session_scheduler.model.objects import ObjectMeta, PriorityClass
from session_scheduler.testing import FakeCluster, pod, pod_group


def priority_class(name, value, *, default=False):
    return PriorityClass(metadata=ObjectMeta(name=name), value=value, global_default=default)


def cache_with(*objects):
    cluster = FakeCluster()
    cluster.add(*objects)
    return cluster.start().cache


def priorities(cache):
    return {task.name: task.priority for task in cache.tasks.values()}


def test_the_default_priority_ends_with_its_class():
    cache = cache_with(pod("p"))
    cache.put(priority_class("usual", 7, default=True))
    assert priorities(cache) == {"p": 7}
    cache.remove(priority_class("usual", 7, default=True))
    assert priorities(cache) == {"p": 0}


def test_a_class_that_is_no_longer_the_default_gives_none():
    cache = cache_with(pod("p"))
    cache.put(priority_class("usual", 7, default=True))
    cache.put(priority_class("usual", 7))
    assert priorities(cache) == {"p": 0}


@pytest.mark.parametrize("order", [(5, 9), (9, 5)])
def test_of_two_defaults_the_lower_counts_and_the_other_takes_its_place(order):
    cache = cache_with(pod("p"))
    for value in order:
        cache.put(priority_class(f"default-{value}", value, default=True))
    assert priorities(cache) == {"p": 5}
    cache.remove(priority_class("default-5", 5))
    assert priorities(cache) == {"p": 9}


def test_a_pod_whose_class_is_deleted_has_the_default_priority():
    cache = cache_with(pod("p", priority_class_name="high"))
    cache.put(priority_class("high", 100))
    assert priorities(cache) == {"p": 100}
    cache.remove(priority_class("high", 100))
    assert priorities(cache) == {"p": 0}


def test_the_system_classes_are_known_without_their_objects():
    cache = cache_with(pod("p", priority_class_name="system-cluster-critical"))
    cache.remove(priority_class("system-cluster-critical", 1))
    assert priorities(cache) == {"p": 2_000_000_000}


def group_of_class(name, **options):
    group = pod_group("g", 1, **options)
    return replace(group, spec=replace(group.spec, priority_class_name=name))


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (pod_group("g", 1, priority=3), 3),
        (group_of_class("high", priority=3), 3),
        (group_of_class("high"), 1000),
        (group_of_class("unknown"), 40),
        (pod_group("g", 1), 40),
    ],
)
def test_a_groups_priority_is_its_own_then_its_classes_then_the_highest_of_its_pods(group, expected):
    members = [pod("p", group="g", priority=40), pod("q", group="g", priority=7)]
    cache = cache_with(priority_class("high", 1000), group, *members)
    assert cache.groups["PodGroup default/g"].priority == expected


def test_a_groups_priority_follows_its_class_and_ends_with_the_pod_group():
    group = group_of_class("high")
    cache = cache_with(pod("p", group="g", priority=40))
    found = cache.groups["PodGroup default/g"]
    seen = [found.priority]
    for change in (
        lambda: cache.put(group),
        lambda: cache.put(priority_class("high", 1000)),
        lambda: cache.put(priority_class("high", 5)),
        lambda: cache.remove(priority_class("high", 5)),
        lambda: cache.put(priority_class("high", 6)),
        lambda: cache.remove(group),
    ):
        change()
        seen.append(found.priority)
    assert seen == [40, 40, 1000, 5, 40, 6, 40]
