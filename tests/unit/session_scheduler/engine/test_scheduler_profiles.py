"""Several profiles for one cluster: each places and frees the pods of its own schedulerName."""

from __future__ import annotations

import asyncio

import pytest

from session_scheduler import hookimpl
from session_scheduler.builtin import BUILTIN
from session_scheduler.engine.scheduler import KINDS, Scheduler, watched_kinds
from session_scheduler.model.node_topology import NodeResourceTopology
from session_scheduler.model.objects import Pod
from session_scheduler.registry.validation import hook_calls
from session_scheduler.testing import FakeCluster, pod, pod_group

from ....tools.numa import guaranteed, topology


class Recorder:
    """Records the pods of a profile's plugin calls, in order."""

    def __init__(self, name):
        self.name, self.calls = name, []

    @hookimpl
    async def prebind(self, binding):
        self.calls.append(f"bind {binding.task.name}")

    @hookimpl
    async def cancel(self, allocation):
        self.calls.append(f"cancel {allocation.pod.metadata.name}")


class Profiles:
    """A cluster with the profiles a and b, each with its own plugin."""

    def __init__(self, *objects):
        self.a, self.b = Recorder("a"), Recorder("b")
        self.cluster = FakeCluster()
        self.cluster.nodes(2)
        self.cluster.add(*objects)
        builtins = [(name, plugin(None), None) for name, plugin in BUILTIN.items()]
        calls = {
            reported.name: hook_calls([*builtins, (reported.name, reported, None)]) for reported in (self.a, self.b)
        }
        scheduler = Scheduler(self.cluster.memory, self.cluster.config, calls, self.cluster.clock)
        asyncio.run(scheduler.start())
        self.cluster._known, self.cluster._scheduler = self.cluster._objects(), scheduler

    def run(self):
        self.cluster.advance(60)
        self.cluster.run()


MIXED = "PodGroup default/g: its pods have different schedulerNames, a and b; give all of them the same one"


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("least", [2, None])
def test_a_group_whose_pending_pods_name_two_schedulers_is_refused_with_both_names(order, least):
    world = Profiles(pod_group("g", least), *(pod(name, group="g", scheduler=name) for name in order))
    world.run()
    world.cluster.assert_pending("a", MIXED)
    world.cluster.assert_pending("b", MIXED)
    assert world.a.calls == world.b.calls == []


def test_a_refused_group_is_placed_once_its_pods_name_one_scheduler():
    world = Profiles(pod_group("g", 1), pod("a", group="g", scheduler="a"), pod("b", group="g", scheduler="b"))
    world.run()
    world.cluster.delete(Pod, "a")
    world.cluster.run()
    world.cluster.assert_bound("b")
    assert world.b.calls == ["bind b"]


def test_a_member_of_another_profile_does_not_block_the_rest_and_each_profile_frees_its_own():
    world = Profiles(pod_group("g", 1), pod("a", group="g", scheduler="a"))
    world.run()
    world.cluster.add(pod("b", group="g", scheduler="b"))
    world.run()
    world.cluster.delete(Pod, "a")
    world.cluster.delete(Pod, "b")
    world.run()
    assert world.a.calls == ["bind a", "cancel a"]
    assert world.b.calls == ["bind b", "cancel b"]


def test_a_gated_member_of_another_scheduler_does_not_lend_its_profile_to_the_others():
    gated = pod("gated", group="g", scheduler="b", gates=["x"])
    world = Profiles(pod_group("g", 1), pod("a", group="g", scheduler="a"), gated)
    world.run()
    assert (world.a.calls, world.b.calls) == (["bind a"], [])


def test_profiles_share_the_gpus_of_a_node_without_allocating_a_part_twice():
    parts = [
        pod(f"{name}{index}", scheduler=name, annotations={"fluence.flux-framework.org/gpu-fraction": "0.6"})
        for index in range(2)
        for name in "ab"
    ]
    world = Profiles()
    world.cluster.remove_node("n2")
    world.cluster.node("n1", offers={"nvidia.com/gpu": 2})
    world.cluster.add(*parts)
    world.run()
    given = [
        one.metadata.annotations.get("fluence.flux-framework.org/gpu") for one in world.cluster.memory.objects(Pod)
    ]
    assert sorted(map(str, given)) == ["0", "1", "None", "None"]


def test_profiles_share_the_numa_nodes_of_a_node():
    world = Profiles()
    world.cluster.remove_node("n2")
    world.cluster.node("n1", cpu=32).add(topology("n1", {"cpu": 8}, {"cpu": 8}))
    world.cluster.add(*(guaranteed(f"{name}{index}", cpu=5, scheduler=name) for index in range(2) for name in "ab"))
    world.run()
    assert len([one for one in world.cluster.memory.objects(Pod) if one.spec.node_name]) == 2


@pytest.mark.parametrize("enabled", [True, False])
def test_a_kind_that_only_one_plugin_reads_is_watched_with_it(enabled):
    names = [name for name in BUILTIN if enabled or name != "NodeResourceTopologyMatch"]
    calls = {"a": hook_calls([]), "b": hook_calls([(name, BUILTIN[name](None), None) for name in names])}
    assert (NodeResourceTopology in watched_kinds(calls)) is enabled
    assert set(KINDS) - set(watched_kinds(calls)) == ({NodeResourceTopology} if not enabled else set())
