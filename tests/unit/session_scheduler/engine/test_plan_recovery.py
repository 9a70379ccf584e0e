"""Late and lost requests between two lives of a scheduler or of a PodGroup."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from session_scheduler.cluster.errors import Conflict, Forbidden
from session_scheduler.engine.plan_recovery import PlanRecovery
from session_scheduler.model.objects import Pod, PodCondition, PodGroup
from session_scheduler.testing import pod, pod_group, queue

from .gangs_world import World


def set_scheduled(world: World, message):
    """Set the PodGroup's condition to scheduled."""
    condition = PodCondition(type="PodGroupScheduled", status="True", message=message)
    group = world.group()
    world.cluster.add(replace(group, status=replace(group.status, conditions=(condition,))))
    world.run(1)


def test_a_gang_without_a_scheduled_condition_is_acknowledged_again():
    world = World().start().run()
    reported = [f"minCount pods are bound (attempt {world.attempt()})"]
    assert world.heard.scheduled == reported
    world.scheduler.gang_starts.remind()
    assert world.heard.scheduled == reported * 2
    set_scheduled(world, "minCount pods are bound (attempt another)")
    world.scheduler.gang_starts.remind()
    assert world.heard.scheduled == reported * 3
    set_scheduled(world, *reported)
    world.scheduler.gang_starts.remind()
    assert world.heard.scheduled == reported * 3


def test_a_gang_that_has_not_started_gets_no_scheduled_condition():
    world = World(nodes=1).start().run()
    world.scheduler.gang_starts.remind()
    assert world.heard.scheduled == []


def test_a_request_of_the_previous_podgroup_binds_no_pod_of_the_new_plan():
    world = World()
    late = world.request("g-0", "n4")
    world.delete(PodGroup, "g")
    world.cluster.add(pod_group("g", 2))
    world.start()
    bind, void = world.memory.bind, []

    async def first_the_late_one(*names, **options):
        if not void:
            with pytest.raises(Conflict):
                await late()
            void.append(True)
        await bind(*names, **options)

    world.memory.bind = first_the_late_one  # type: ignore[method-assign]
    world.run()
    assert void
    world.assert_whole()
    assert world.attempts() == {world.attempt()}


def test_pods_younger_than_their_podgroup_are_bound_without_a_touch():
    world = World().start()
    patch, touched = world.memory.patch_metadata, []

    async def counted(obj, **options):
        touched.extend([obj.metadata.name] if isinstance(obj, Pod) else [])
        return await patch(obj, **options)

    world.memory.patch_metadata = counted
    world.run()
    world.assert_whole()
    assert touched == []


def test_a_replacement_of_a_pod_lost_during_a_start_gets_its_node():
    world = World(3, nodes=12)
    world.plan(g_0="n9", g_1="n8", g_2="n7")
    world.bind("g-1", "n8")
    world.delete(Pod, "g-0")
    world.cluster.add(pod("g-0", group="g"))
    world.start().run()
    assert world.places() == {"g-0": "n9", "g-1": "n8", "g-2": "n7"}
    world.assert_whole()
    plan = world.written_plan()
    assert {part.name: part.node for part in plan.pods.values()} == world.places()
    assert world.pod("g-0").metadata.uid in plan.pods


def test_repeated_failures_of_a_bind_increase_the_backoff():
    world = World(1, nodes=1)
    world.cluster.add(pod("p"))
    world.delete(Pod, "g-0")
    world.start()
    tried = []

    async def refused(namespace, name, **options):
        tried.append(world.cluster.clock.now())
        raise Forbidden("never")

    world.memory.bind = refused  # type: ignore[method-assign]
    world.run(30)
    assert tried == [0, 1, 3, 7, 15, 25]


def test_a_successful_bind_resets_the_backoff():
    world = World(1, nodes=1)
    bind = world.memory.bind
    world.start()

    async def refused(*_, **__):
        raise Forbidden("not yet")

    world.memory.bind = refused  # type: ignore[method-assign]
    world.run(10)
    world.memory.bind = bind  # type: ignore[method-assign]
    asyncio.run(world.cluster._deliver())
    world.run(10)
    world.assert_whole()
    assert world.scheduler.queue.next_after(0.0) is None


def test_a_bug_with_a_plan_is_raised_and_does_not_block_others(monkeypatch: pytest.MonkeyPatch):
    async def broken(adoption, group):
        raise ZeroDivisionError(group.key)

    monkeypatch.setattr(PlanRecovery, "_review", broken)
    world = World()
    world.plan(g_0="n1", g_1="n2")
    world.cluster.add(pod("other"))
    world.start()
    with pytest.raises(ZeroDivisionError):
        world.cluster.run()
    placed = world.places()
    assert placed.pop("other")
    assert placed == {"g-0": "", "g-1": ""}
    monkeypatch.undo()
    world.run().assert_whole()


def test_a_plan_above_its_queues_limit_is_aborted_and_the_reason_reported():
    world = World(queue="team", cpu="1")
    world.cluster.add(queue("team", limit={"cpu": 1}))
    world.plan(g_0="n1", g_1="n2")
    world.start().run()
    assert world.places() == {"g-0": "", "g-1": ""}
    assert world.heard.recoveries == [("aborted", 0)]
    assert world.heard.problems == [
        "PodGroup default/g: 1 of 2 pods of its plan are not placed: "
        "queue 'team' has reached its limit of cpu: limit 1, allocated 1, requested 1"
    ]


def test_a_started_plan_places_only_the_pods_within_its_queues_limit():
    world = World(3, queue="team", cpu="1")
    world.cluster.add(queue("team", limit={"cpu": 2}))
    world.plan(g_0="n1", g_1="n2", g_2="n3")
    world.bind("g-0", "n1")
    world.start().run()
    assert sorted(world.places().values()) == ["", "n1", "n2"]
    (problem,) = world.heard.problems
    assert problem.startswith("PodGroup default/g: 1 of 2 pods of its plan are not placed: queue 'team' has reached")


def test_a_plan_within_its_queues_limit_is_carried_out():
    world = World(queue="team", cpu="1")
    world.cluster.add(queue("team", limit={"cpu": 2}))
    world.plan(g_0="n4", g_1="n3")
    world.start().run()
    assert (world.places(), world.heard.problems) == ({"g-0": "n4", "g-1": "n3"}, [])
