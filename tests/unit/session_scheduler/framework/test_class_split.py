"""A plugin that reads a field of a pod without `class_key` gets classes split by that field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from session_scheduler import ActionType, ClusterEventWithHint, Refusal, Scope, hookimpl
from session_scheduler.model.objects import Node
from session_scheduler.testing import FakeCluster, check_evaluations, gang, pod

RACK = "rack"


def wanted(one: Any) -> str | None:
    """A helper of a plugin, outside of it."""
    rack: str | None = one.metadata.annotations.get(RACK)
    return rack


class Racks:
    """Keeps pods on the node that their annotation names; counts the calls of its filter."""

    name = "racks"
    filter_scope = Scope.STATIC

    def __init__(self, arguments: object = None) -> None:
        self.calls = 0

    @hookimpl
    def filter(self, cls: Any, nodes: Any, mask: Any) -> None:
        self.calls += 1
        if (rack := wanted(cls.pod)) is not None:
            mask &= nodes.named(rack)


def racked(plugin: object, pods: int = 6, **options: Any) -> FakeCluster:
    cluster = FakeCluster(**options)
    cluster.nodes(3)
    for number in range(pods):
        cluster.pod(f"p{number}", annotations={RACK: f"n{number % 3 + 1}"}, priority=number % 3)
    cluster.run(plugin)
    return cluster


def placed_by_rack(cluster: FakeCluster) -> bool:
    return cluster.placements() == {f"default/p{number}": f"n{number % 3 + 1}" for number in range(6)}


def with_hooks(**hooks: Any) -> Any:
    return type("Plugin", (), {"name": "racks", **{name: hookimpl(function) for name, function in hooks.items()}})()


def by_filter(self: Any, cls: Any, nodes: Any, mask: Any) -> None:
    mask &= nodes.named(cls.pod.metadata.annotations[RACK])


def by_iteration(self: Any, cls: Any, nodes: Any, mask: Any) -> None:
    for value in cls.pod.metadata.annotations.values():
        mask &= nodes.named(value)


def by_priority(self: Any, cls: Any, nodes: Any, mask: Any) -> None:
    mask &= nodes.named(f"n{cls.pod.spec.priority + 1}")


def by_name(self: Any, cls: Any, nodes: Any, mask: Any) -> None:
    mask &= nodes.named(f"n{int(cls.pod.metadata.name[1:]) % 3 + 1}")


def by_prepared_pod(self: Any, nodes: Any, mask: Any, state: Any) -> None:
    mask &= nodes.named(state.metadata.annotations[RACK])


def by_score(self: Any, cls: Any, nodes: Any) -> Any:
    return nodes.named(cls.pod.metadata.annotations[RACK]).astype(np.int64) * 100


def by_predicate(self: Any, session: Any) -> None:
    session.add_predicate(
        lambda task, group, node: None if node.name == task.pod.metadata.annotations[RACK] else "another rack",
        scope=Scope.STATIC,
    )


def by_node_order(self: Any, session: Any) -> None:
    session.add_node_order(
        lambda task, node: 1000.0 * (node.name == task.pod.metadata.annotations[RACK]), scope=Scope.STATIC
    )


@pytest.mark.parametrize("evaluation", ["naive", "board", "heap"])
@pytest.mark.parametrize(
    "hooks",
    [
        {"filter": by_filter}, {"filter": by_iteration}, {"filter": by_priority}, {"filter": by_name},
        {"prepare": lambda self, cls: cls.pod, "filter": by_prepared_pod}, {"score": by_score},
        {"on_session_open": by_predicate}, {"on_session_open": by_node_order},
    ],
)  # fmt: skip
def test_every_pod_gets_the_answer_for_its_own_fields(hooks: dict[str, Any], evaluation: str) -> None:
    assert placed_by_rack(racked(with_hooks(**hooks), evaluation=evaluation))


@pytest.mark.parametrize(("hook", "warnings"), [(by_name, 1), (by_filter, 0)])
def test_a_plugin_that_reads_names_is_reported_once(hook: Any, warnings: int) -> None:
    with capture_logs() as logs:
        racked(with_hooks(filter=hook))
    found = [(log["plugin"], log["hook"]) for log in logs if "is evaluated alone" in log["event"]]
    assert found == [("racks", "filter")] * warnings


def test_a_gang_of_pods_with_different_annotations_is_placed_by_them() -> None:
    cluster = FakeCluster()
    cluster.nodes(3)
    members = gang("g", 3)
    cluster.add(*members[:1])
    for number in range(3):
        cluster.pod(f"g-{number}", group="g", annotations={RACK: f"n{number + 1}"})
    cluster.run(Racks())
    assert cluster.placements() == {f"default/g-{number}": f"n{number + 1}" for number in range(3)}


def test_pods_with_equal_values_still_share_the_answer() -> None:
    plugin = Racks()
    cluster = racked(plugin, 60)
    assert set(cluster.placements().values()) == {"n1", "n2", "n3"}
    assert plugin.calls == 1 + 3  # the one that was discarded, then one for each value


def test_a_plugin_that_reads_only_what_the_class_covers_splits_no_class() -> None:
    def covered(self: Any, cls: Any, nodes: Any, mask: Any) -> None:
        assert cls.pod.metadata.namespace == "default"
        assert not cls.pod.spec.tolerations

    cluster = racked(with_hooks(filter=covered))
    assert len({task.cls for task in cluster.scheduler.cache.tasks.values()}) == 1


def test_a_plugin_with_a_complete_class_key_is_not_observed() -> None:
    class Complete(Racks):
        class_key_complete = True

    plugin = Complete()
    cluster = racked(plugin)
    assert plugin.calls == 1
    assert not placed_by_rack(cluster)  # its class key is not complete: that was its promise


def test_a_declared_class_key_is_kept() -> None:
    class Declared(Racks):
        @hookimpl
        def class_key(self, pod: Any) -> str | None:
            return wanted(pod)

    assert placed_by_rack(racked(Declared()))


def test_reasons_and_what_would_help_are_the_pods_own() -> None:
    def why(self: Any, cls: Any, nodes: Any) -> Any:
        return [[f"not in {cls.pod.metadata.annotations[RACK]}"]] * len(nodes)

    def fits_if(self: Any, cls: Any, nodes: Any) -> Any:
        return [[f"{cls.pod.metadata.annotations[RACK]} existed"]] * len(nodes)

    def nowhere(self: Any, mask: Any) -> None:
        mask[:] = False

    cluster = racked(with_hooks(filter=nowhere, why=why, fits_if=fits_if))
    for number in range(6):
        rack = f"n{number % 3 + 1}"
        cluster.assert_pending(f"p{number}", f"0/3 nodes are available: 3 not in {rack}.")
        assert {verdict.reason for verdict in cluster.verdicts(f"p{number}").values()} == {f"not in {rack}"}


def test_a_refusal_of_a_class_is_the_pods_own() -> None:
    cluster = racked(with_hooks(prepare=lambda self, cls: Refusal(f"no {cls.pod.metadata.annotations[RACK]}")))
    for number in range(6):
        cluster.assert_pending(f"p{number}", f"no n{number % 3 + 1}")


def test_counters_count_each_pod_under_its_own_key() -> None:
    def footprint(self: Any, cls: Any) -> Any:
        return [("rack", cls.pod.metadata.annotations.get(RACK))]

    cluster = racked(with_hooks(footprint=footprint))
    table = cluster.scheduler.cache.table
    for rack in ("n1", "n2", "n3"):
        assert int(table.all_rows().counter(("rack", rack)).sum()) == 2


def test_a_field_that_is_first_read_in_a_trial_of_preemption_splits_the_class() -> None:
    def on_empty_nodes(self: Any, cls: Any, nodes: Any, mask: Any) -> None:
        if (nodes.used("pods") == 0).any() and cls.pod.metadata.annotations.get(RACK) == "none":
            mask[nodes.used("pods") == 0] = False

    plugin = with_hooks(filter=on_empty_nodes)
    type(plugin).filter_scope = Scope.NODE
    cluster = FakeCluster()
    cluster.nodes(2, cpu="1")
    for number in (1, 2):
        cluster.pod(f"low{number}", cpu="1", priority=0, bound_to=f"n{number}")
    cluster.pod("none", cpu="1", priority=9, annotations={RACK: "none"})
    cluster.pod("any", cpu="1", priority=9)
    cluster.run(plugin)
    cluster.assert_pending(
        "none",
        "0/2 nodes are available: 2 Insufficient cpu. "
        "preemption: 0/2 nodes are available: 2 node(s) were rejected by racks.",
    )
    cluster.finish_deletions().advance(30).schedule().assert_bound("any")
    cluster.assert_pending("none")


def test_verdicts_are_right_before_any_cycle() -> None:
    cluster = FakeCluster()
    cluster.nodes(3)
    for number in range(3):
        cluster.pod(f"p{number}", annotations={RACK: f"n{number + 1}"})
    cluster.start(Racks())
    for number in range(3):
        fits = {name for name, verdict in cluster.verdicts(f"p{number}").items() if verdict.fits}
        assert fits == {f"n{number + 1}"}


def test_a_hint_is_asked_for_each_value_that_it_reads() -> None:
    class Waits(Racks):
        @hookimpl
        def events_to_register(self) -> Any:
            return [ClusterEventWithHint(Node, ActionType.ADD, self.is_new)]

        def is_new(self, cls: Any, event: Any) -> bool:
            return bool(event.new.metadata.name == cls.pod.metadata.annotations[RACK])

    cluster = FakeCluster()
    cluster.nodes(1)
    for number in range(3):
        cluster.pod(f"p{number}", annotations={RACK: f"n{number + 1}"})
    cluster.run(Waits())
    cluster.node("n3")
    cluster.advance(60)
    cluster.run()
    cluster.assert_bound("p0", "n1").assert_bound("p2", "n3").assert_pending("p1")


def test_a_changed_annotation_changes_the_class() -> None:
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.pod("p", annotations={RACK: "n9"})
    cluster.run(Racks())
    cluster.assert_pending("p")
    cluster.pod("p", annotations={RACK: "n1"})
    cluster.advance(60)
    cluster.run()
    cluster.assert_bound("p", "n1")


def test_the_check_of_evaluations_places_by_the_annotation() -> None:
    def scenario(cluster: FakeCluster) -> None:
        cluster.use(Racks).nodes(3)
        cluster.add(pod(f"p{number}", annotations={RACK: f"n{number + 1}"}) for number in range(3))
        cluster.schedule()
        for number in range(3):
            cluster.assert_bound(f"p{number}", f"n{number + 1}")

    check_evaluations(scenario)
