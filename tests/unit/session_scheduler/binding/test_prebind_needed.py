"""Plugins that report that they have nothing to do before a bind: the binder does not call them."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from session_scheduler import hookimpl
from session_scheduler.config.settings import DEFAULT_SCHEDULER_NAME
from session_scheduler.errors import AttemptError
from session_scheduler.model.objects import Pod
from session_scheduler.testing import FakeCluster, gang, node, pod

from ....tools.volumes import claim, storage_class, using, volume


class Choosy:
    """Has something to do for the pods that it is given by name, and keeps all that it was asked."""

    def __init__(self, *wanted, name="choosy"):
        self.name, self._wanted = name, wanted
        self.asked, self.called = [], []

    @hookimpl
    def prebind_needed(self, binding):
        self.asked.append((binding.task.name, dict(binding.holds)))
        return binding.task.name in self._wanted

    @hookimpl
    async def prebind(self, binding):
        self.called.append((binding.task.name, dict(binding.holds)))
        binding.annotations[self.name] = binding.task.name


class Answering:
    """Its `prebind_needed` returns what `answer` returns."""

    name = "answering"

    def __init__(self, answer):
        self._answer = answer

    @hookimpl
    def prebind_needed(self):
        return self._answer()

    @hookimpl
    async def prebind(self, binding):
        raise AssertionError("not to be called")


def stages(cluster):
    """What is measured of a binding while a cycle runs."""
    seen = []
    cluster.scheduler.observer.stage = lambda stage, seconds: seen.append(stage)
    cluster.run()
    return [stage for stage in seen if stage not in ("session", "settle")]  # codespell:ignore settle


def annotations_of(cluster, name):
    return next(one for one in cluster.memory.objects(Pod) if one.key == f"default/{name}").metadata.annotations


def test_a_plugin_without_anything_to_do_is_not_called_and_the_stage_is_not_entered() -> None:
    plugin = Choosy()
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("p"))
    cluster.start(plugin)
    assert stages(cluster) == ["bind"]
    cluster.assert_bound("p")
    assert (plugin.asked, plugin.called) == ([("p", {})], [])


def test_only_the_members_that_need_it_are_called_and_of_several_plugins_only_those() -> None:
    first, second = Choosy("g-1", name="first"), Choosy("g-0", "g-2", name="second")
    cluster = FakeCluster()
    cluster.nodes(2)
    cluster.add(gang("g", 3))
    cluster.start(first, second)
    assert stages(cluster) == ["prebind", "plan", "bind"]
    assert [name for name, _ in first.called] == ["g-1"]
    assert sorted(name for name, _ in second.called) == ["g-0", "g-2"]
    for number, name in enumerate(("second", "first", "second")):
        assert annotations_of(cluster, f"g-{number}")[name] == f"g-{number}"


def test_all_are_asked_before_the_first_is_called() -> None:
    order = []

    class Notes(Choosy):
        @hookimpl
        def prebind_needed(self, binding):
            order.append(f"asked {self.name}")
            return True

        @hookimpl
        async def prebind(self, binding):
            order.append(f"called {self.name}")

    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("p"))
    cluster.run(Notes(name="a"), Notes(name="b"))
    assert order == ["asked a", "asked b", "called a", "called b"]


def test_each_plugin_is_asked_with_what_it_holds_itself() -> None:
    plugin, other = Choosy("p", name="holder"), Choosy("p", name="other")
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("p"))
    cluster.start(plugin, other)
    binding_of = cluster.scheduler.binder._binding
    held = {plugin.name: {"on": "n1"}}
    cluster.scheduler.binder._binding = lambda task, _: replace(binding_of(task, held))  # type: ignore[method-assign, assignment]
    cluster.run()
    assert plugin.asked == plugin.called == [("p", {"on": "n1"})]
    assert other.asked == other.called == [("p", {})]


def test_a_plugin_that_does_not_say_is_called() -> None:
    called = []

    class Silent:
        name = "silent"

        @hookimpl
        async def prebind(self, binding):
            await asyncio.sleep(0)
            called.append(self.name)

    class WithoutOpinion(Silent):
        name = "without"

        @hookimpl
        def prebind_needed(self):
            return None

    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("p"))
    cluster.run(Silent(), WithoutOpinion())
    assert called == ["silent", "without"]


def raising(error):
    def answer():
        raise error

    return answer


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda: "no", "plugin answering failed in prebind_needed: expected True or False, got 'no'"),
        (lambda: 1, "plugin answering failed in prebind_needed: expected True or False, got 1"),
        (
            raising(KeyError("x")),
            "plugin answering failed in prebind_needed: KeyError: 'x' "
            f"at tests/unit/session_scheduler/binding/test_prebind_needed.py:{raising.__code__.co_firstlineno + 2}",
        ),
    ],
)
def test_an_answer_that_is_none_and_a_failure_fail_the_group_by_the_plugins_and_the_pods_name(answer, reason) -> None:
    cluster = FakeCluster()
    cluster.nodes(2)
    cluster.add(gang("g", 2))
    (bound,) = cluster.run(Answering(answer))
    assert bound.bound == []
    assert set(bound.failed.values()) == {f"{reason} (pod default/g-0 of group PodGroup default/g)"}
    assert set(cluster.placements().values()) == {None}


def test_an_error_that_ends_the_attempt_is_told_as_kube_scheduler_tells_it() -> None:
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("p"))
    (bound,) = cluster.run(Answering(raising(AttemptError("no state"))))
    assert list(bound.failed.values()) == ['running PreBindPreFlight "answering": no state']


def test_kube_schedulers_plugins_are_called_for_pods_with_claims_alone() -> None:
    cluster = FakeCluster()
    cluster.add(node("n1"), storage_class("local"), volume("v", on="n1"), volume("w", on="n1"), claim("c"))
    cluster.add(pod("plain"), pod("waits", volumes=using("c")))
    cluster.run()
    calls = cluster.scheduler.profiles[DEFAULT_SCHEDULER_NAME]
    asked = {call.plugin: call.calls for call in calls.functions("prebind_needed")}
    assert asked == {"VolumeBinding": 2, "DynamicResources": 2, "GpuSharing": 2}
    once = {"VolumeBinding": 1, "DynamicResources": 0, "GpuSharing": 0}
    assert {call.plugin: call.calls for call in calls.functions("prebind")} == once
    cluster.add(pod("bound", volumes=using("c")))
    cluster.run()
    cluster.assert_bound("bound")
    assert {call.plugin: call.calls for call in calls.functions("prebind")} == once
