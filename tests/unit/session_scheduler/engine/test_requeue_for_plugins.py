"""The events that external plugins register, and plugins without registered events or with invalid ones."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as text_families

from session_scheduler import ActionType, ClusterEvent, ClusterEventWithHint, hookimpl
from session_scheduler.framework.hooks import PluginError
from session_scheduler.model.objects import Node
from session_scheduler.model.storage import PersistentVolume
from session_scheduler.reporting.metrics import Metrics
from session_scheduler.testing import FakeCluster, node, pod

from ....tools.volumes import volume


class Refuses:
    """Refuses every node, and counts its calls."""

    name = "refuses"

    def __init__(self) -> None:
        self.tries = 0

    @hookimpl
    def prefilter(self) -> None:
        self.tries += 1

    @hookimpl
    def filter(self, mask: Any) -> None:
        mask[:] = False


class Waits(Refuses):
    """Registers its events."""

    def __init__(self, *events: ClusterEventWithHint) -> None:
        super().__init__()
        self.events = events

    @hookimpl
    def events_to_register(self) -> Any:
        return self.events


def tried_after(plugin: Refuses, *changes: Any) -> bool:
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("waits"), pod("runs", bound_to="n1"))
    cluster.run(plugin)
    before = plugin.tries
    for change in changes:
        cluster.add(change)
    cluster.run(cycles=2)
    return plugin.tries > before


@pytest.mark.parametrize(
    "change",
    [node("n2"), node("n1", labels={"a": "b"}), node("n1", cpu=5), pod("more", bound_to="n1"), volume("v")],
    ids=["a node comes", "a label", "more cpu", "a pod is bound", "a volume comes"],
)
def test_a_plugin_without_registered_events_is_requeued_by_every_event(change: Any) -> None:
    assert tried_after(Refuses(), change)


def test_even_that_plugin_needs_an_event() -> None:
    assert not tried_after(Refuses())
    assert not tried_after(Refuses(), node("n1"))


def test_a_plugin_is_requeued_only_by_its_registered_events() -> None:
    on_label = ClusterEventWithHint(Node, ActionType.UPDATE_NODE_LABEL)
    assert tried_after(Waits(on_label), node("n1", labels={"a": "b"}))
    assert not tried_after(Waits(on_label), node("n2"))
    assert not tried_after(Waits(on_label), pod("more", bound_to="n1"))
    assert tried_after(Waits(ClusterEventWithHint(PersistentVolume)), volume("v"))
    assert not tried_after(Waits(), node("n2"))


def test_a_hint_receives_the_event_and_decides_and_a_failing_hint_requeues() -> None:
    seen: list[tuple[str | None, str]] = []

    def named_m(_: Any, event: ClusterEvent) -> bool:
        seen.append((event.old and event.old.metadata.name, event.new.metadata.name))
        return bool(event.new.metadata.name == "m")

    registered = ClusterEventWithHint(Node, ActionType.ADD, named_m)
    assert not tried_after(Waits(registered), node("n2"))
    assert tried_after(Waits(registered), node("m"))
    assert seen == [(None, "n2"), (None, "m")]
    fails: Any = lambda *_: 1 / 0  # noqa: E731
    assert tried_after(Waits(ClusterEventWithHint(Node, ActionType.ADD, fails)), node("n2"))


def test_an_invalid_event_is_an_error_when_the_scheduler_is_created() -> None:
    with pytest.raises(PluginError, match="expected a ClusterEventWithHint, got"):
        tried_after(Waits("Node"))  # type: ignore[arg-type]


def test_groups_of_equal_priority_are_ordered_by_waiting_time() -> None:
    order: list[str] = []

    class Order(Refuses):
        @hookimpl
        def prefilter(self, group: Any) -> None:  # type: ignore[override]  # hooks name what they ask for
            order.append(group.name)

    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("old"), pod("high", priority=5))
    cluster.run(Order())
    cluster.advance(1)
    cluster.add(pod("young"))
    cluster.run()
    cluster.advance(20)
    cluster.add(node("n2"))
    cluster.run()
    assert order == ["high", "old", "young", "high", "old", "young"]
    cluster.advance(1)
    cluster.add(pod("last"), node("n3"))
    cluster.run()
    assert order[6:] == ["last"]  # the others are in backoff, and one group is due
    cluster.run()
    assert order[7:] == ["high", "old", "young"]


def test_a_plugins_hints_are_timed_together_for_all_events() -> None:
    hints = [ClusterEventWithHint(Node, action, lambda *_: False) for action in (ActionType.ADD, ActionType.UPDATE)]
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("waits"))
    cluster.run(Waits(*hints))
    cluster.add(node("n2"), node("n1", labels={"a": "b"}))
    cluster.run()
    metrics = Metrics()
    metrics.follow_profiles(cluster.scheduler.profiles)
    families = text_families(metrics.exposition()[0].decode())
    shown = [(sample.name, *sorted(sample.labels.items())) for family in families for sample in family.samples]
    assert len(set(shown)) == len(shown)
    (asked,) = [
        call for call in cluster.scheduler.profiles["fluence"].hooks["queueing_hint"] if call.plugin == "refuses"
    ]
    assert asked.calls == 2
