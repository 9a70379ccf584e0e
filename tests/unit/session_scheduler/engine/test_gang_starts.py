"""Plans that a scheduler finds when it starts: carried out as their writers wanted, or taken back, never mixed."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec.structs import replace
from tests.tools.observing import observe

from session_scheduler import hookimpl
from session_scheduler.binding.plan_store import PlanStore
from session_scheduler.cluster.errors import Conflict, Unavailable
from session_scheduler.framework.bindings import HELD_ANNOTATION
from session_scheduler.framework.hooks import HookCall, PluginError
from session_scheduler.model.gang_plan import ANNOTATION_LIMIT, PLAN_ANNOTATION, GangPlan, PlannedPod
from session_scheduler.model.groups import Phase
from session_scheduler.model.objects import ConfigMap, Node, Pod, PodGroup
from session_scheduler.model.sub_groups import SUB_GROUPS_ANNOTATION
from session_scheduler.testing import pod, pod_group

from .gangs_world import Slots, World


def replace_labels(obj, labels):
    return replace(obj, metadata=replace(obj.metadata, labels=labels))


def test_a_gang_is_bound_by_a_plan_that_says_where_all_of_it_goes():
    world = World().start().run()
    world.assert_whole()
    assert world.attempts() == {world.attempt()} != {""}
    assert world.heard.scheduled == [f"minCount pods are bound, by attempt {world.attempt()}"]
    plan = world.written_plan()
    assert {part.name: part.node for part in plan.pods.values()} == world.places()
    assert {part.node: part.holds for part in plan.pods.values()} == {
        node: {"slots": {"slot": node}} for node in world.places().values()
    }


# ------------------------------------------------------------------ found at the start


def test_a_plan_by_which_nothing_was_bound_is_carried_out_as_it_says():
    world = World()
    world.plan(g_0="n4", g_1="n3")
    world.start().run()
    assert world.places() == {"g-0": "n4", "g-1": "n3"}
    assert (world.attempts(), world.attempt()) == ({"theirs"}, "theirs")
    world.assert_whole()
    assert world.heard.recoveries == [("rolled forward", 2)]


def test_a_gang_that_was_bound_in_part_is_bound_to_its_end_by_the_same_plan():
    world = World(3)
    world.plan(g_0="n4", g_1="n3", g_2="n2")
    world.bind("g-1", "n3")
    world.start().run()
    assert world.places() == {"g-0": "n4", "g-1": "n3", "g-2": "n2"}
    assert world.attempts() == {"theirs"}
    world.assert_whole()


def test_what_a_found_plan_holds_is_given_to_nobody_before_it_is_carried_out():
    world = World(nodes=2)
    world.cluster.add(pod("a"))  # comes first in every order
    world.plan(g_0="n2", g_1="n1")
    world.start().run()
    assert world.places() == {"a": "", "g-0": "n2", "g-1": "n1"}


@pytest.mark.parametrize("gone", ["node", "pod"])
def test_a_plan_of_which_nothing_was_bound_and_something_is_gone_is_taken_back(gone):
    world = World()
    world.plan(g_0="n4", g_1="n3")
    late = world.request("g-0", "n4")
    if gone == "node":
        world.memory._remove(world.memory._get(Node, ("", "", "n3")))
    else:
        world.delete(Pod, "g-1")
        world.cluster.add(pod("g-1", group="g"))
    world.start().run()
    world.assert_whole()
    assert world.attempts() == {world.attempt()} != {"theirs"}
    with pytest.raises(Conflict):
        asyncio.run(late())


def test_a_plan_whose_holdings_cannot_be_held_is_taken_back():
    world = World()
    world.plan(g_0="n4", g_1="n3")
    world.cluster.add(pod("other"))
    world.bind("other", "n4", attempt="-")
    world.start().run()
    world.assert_whole()
    assert "theirs" not in world.attempts()


def test_a_begun_plan_of_which_a_node_is_gone_goes_on_elsewhere_around_its_bound_pods():
    world = World(3)
    world.plan(g_0="n4", g_1="n3", g_2="n2")
    world.bind("g-1", "n3")
    late = world.request("g-0", "n4")
    world.memory._remove(world.memory._get(Node, ("", "", "n4")))
    world.start().run()
    world.assert_whole()
    assert world.places()["g-1"] == "n3"
    kept = world.written_plan().pods[world.pod("g-1").metadata.uid]
    assert (kept.node, kept.bound) == ("n3", True)
    with pytest.raises(Conflict):
        asyncio.run(late())


def test_an_abort_that_was_begun_is_ended():
    world = World()
    world.plan(state="abort", g_0="n4", g_1="n3")
    late = world.request("g-0", "n4")
    world.start().run()
    world.assert_whole()
    assert world.attempts() == {world.attempt()} != {"theirs"}
    with pytest.raises(Conflict):
        asyncio.run(late())


def test_an_abort_that_came_too_late_for_one_pod_is_taken_back():
    world = World(3)
    world.plan(state="abort", g_0="n4", g_1="n3", g_2="n2")
    world.bind("g-1", "n3")
    world.start().run()
    assert world.places() == {"g-0": "n4", "g-1": "n3", "g-2": "n2"}
    assert world.attempts() == {"theirs"}
    assert world.written_plan().state == "active"


def test_an_abort_during_which_a_pod_turns_out_to_be_bound_is_taken_back():
    world = World()
    world.plan(state="abort", g_0="n4", g_1="n3")
    late = world.request("g-0", "n4")
    world.start()
    asyncio.run(late())
    asyncio.run(world.scheduler.cycle())  # alone: no event reports it before the abort
    world.run()
    assert world.places() == {"g-0": "n4", "g-1": "n3"}
    assert world.attempts() == {"theirs"}


def test_a_gang_that_is_all_bound_is_acknowledged_again():
    world = World()
    world.plan(g_0="n4", g_1="n3")
    world.bind("g-0", "n4")
    world.bind("g-1", "n3")
    world.start()
    observe(world.scheduler, world.heard)
    asyncio.run(world.scheduler.plan_recovery.start())
    assert world.heard.scheduled == ["minCount pods are bound, by attempt theirs"]


def test_the_plan_of_a_group_without_pods_is_taken_away():
    world = World()
    world.plan(g_0="n4", g_1="n3")
    world.delete(Pod, "g-0")
    world.delete(Pod, "g-1")
    world.start().run(1)
    assert PLAN_ANNOTATION not in world.group().metadata.annotations


def test_a_large_plan_is_found_in_its_config_map():
    world = World()
    noise = {"g-0": "n4", "g-1": "n3"}
    pods = {
        world.pod(name).metadata.uid: PlannedPod.of(
            name, node, {"slots": {"slot": node}, "noise": [hash((name, i)) for i in range(ANNOTATION_LIMIT // 12)]}
        )
        for name, node in noise.items()
    }
    world.plan(pods=pods)
    assert "configMap" in world.group().metadata.annotations[PLAN_ANNOTATION]
    world.start().run()
    # what its writer held, noise and all, is more than a pod's annotations take: it is taken back, whole
    assert world.attempts() == {world.attempt()} != {"theirs"}
    assert world.memory._store(ConfigMap).objects == {}


# ------------------------------------------------------------------ plugins that fail


def test_a_plugin_that_fails_to_hold_a_found_plan_is_asked_again_later():
    world = World()
    world.plan(g_0="n4", g_1="n3")
    world.start()
    world.slots.fails = 1
    world.cluster.run()
    assert set(world.phases().values()) == {Phase.PENDING}
    assert world.slots.held == {}
    world.cluster.assert_pending("g-0", "plugin slots failed in recover: OSError: no graph")
    world.cluster.advance(1)
    world.run()
    assert world.places() == {"g-0": "n4", "g-1": "n3"}
    world.assert_whole()


# ------------------------------------------------------------------ invalid plans


@pytest.mark.parametrize(
    "text", ["nonsense", "{}", '{"attempt":"a","configMap":"victim"}', '{"attempt":"a","pods":"AAAA"}', "[" * 100_000]
)
def test_a_gang_is_bound_in_spite_of_what_stands_where_its_plan_should_be(text):
    world = World()
    world.annotate(text)
    world.start().run()
    world.assert_whole()
    assert world.attempts() == {world.attempt()}


def test_a_plan_with_others_pods_is_not_carried_out():
    world = World()
    world.cluster.add(pod("other", namespace="elsewhere"))
    other = world.memory._get(Pod, ("", "elsewhere", "other")).metadata.uid
    world.plan(pods={other: PlannedPod.of("other", "n1", {}), "none": PlannedPod.of("x", "n2", {})}, g_0="n4", g_1="n3")
    world.start().run()
    assert "theirs" not in world.attempts()
    assert all(world.places()[name] for name in ("g-0", "g-1"))


def test_a_plan_for_nodes_that_the_filters_refuse_is_not_carried_out():
    world = World()
    world.memory.put(world.memory._get(Node, ("", "", "n4")).__class__(
        metadata=world.memory._get(Node, ("", "", "n4")).metadata,
        spec=world.memory._get(Node, ("", "", "n4")).spec.__class__(unschedulable=True),
        status=world.memory._get(Node, ("", "", "n4")).status,
    ))  # fmt: skip
    world.plan(g_0="n4", g_1="n3")
    world.start().run()
    world.assert_whole()
    assert "n4" not in world.places().values()


@pytest.mark.parametrize("text", ["[" * 100_000, '{"plugins":{"slots":' + "[" * 100_000, "7"])
def test_a_record_that_is_none_keeps_no_scheduler_from_starting(text):
    world = World()
    world.cluster.add(pod("odd", annotations={HELD_ANNOTATION: text}, bound_to="n1"))
    world.start().run()
    assert all(world.places().values())


# ------------------------------------------------------------------ groups that go


def test_nothing_is_bound_into_a_group_that_is_being_deleted():
    world = World()
    world.plan(g_0="n4", g_1="n3")
    world.memory._write(world.group(), deletion_timestamp="2026-01-01T00:00:00Z")
    world.start().run()
    assert set(world.places().values()) == {""}
    world.cluster.assert_pending("g-0", "PodGroup default/g is being deleted")
    world.delete(PodGroup, "g")
    world.cluster.add(pod_group("g", 2))
    world.run()
    world.assert_whole()


def test_a_plan_goes_when_the_last_pod_ends():
    world = World().start().run()
    world.delete(Pod, "g-0")
    world.run(1)
    assert world.attempt()
    world.delete(Pod, "g-1")
    world.run(2)
    assert PLAN_ANNOTATION not in world.group().metadata.annotations
    assert world.slots.held == {}


def test_a_plan_that_is_written_while_the_last_pod_ends_goes_too():
    world = World().start()
    patch = world.memory.patch_metadata

    async def ended_before(obj, **options):
        world.memory.patch_metadata = patch
        for name in ("g-0", "g-1"):
            gone = world.pod(name)
            world.delete(Pod, name)
            await world.scheduler.event_handlers.apply("DELETED", gone)
        return await patch(obj, **options)

    world.memory.patch_metadata = ended_before
    world.run(3)
    assert PLAN_ANNOTATION not in world.group().metadata.annotations


def test_a_group_that_is_deleted_while_its_plan_is_written_is_not_taken_for_one_that_is_there():
    world = World().start()
    bind = world.memory.bind

    async def deleted_before(*names, **options):
        world.memory.bind = bind
        gone = world.group()
        world.delete(PodGroup, "g")
        await world.scheduler.event_handlers.apply("DELETED", gone)
        await bind(*names, **options)

    world.memory.bind = deleted_before
    world.cluster.run()
    assert list(world.scheduler.cache.pod_groups()) == []


def test_what_a_write_answered_does_not_hide_a_later_state_of_the_group():
    world = World().start()
    bind = world.memory.bind

    async def changed_before(*names, **options):
        world.memory.bind = bind
        now = await world.memory.patch_metadata(world.group(), annotations={"theirs": "later"})
        await world.scheduler.event_handlers.apply("MODIFIED", now)
        await bind(*names, **options)

    world.memory.bind = changed_before
    asyncio.run(world.scheduler.cycle())  # alone: no later event shows the later state again
    (known,) = world.scheduler.cache.pod_groups()
    assert known.metadata.annotations["theirs"] == "later"
    assert known.metadata.annotations[PLAN_ANNOTATION]


def test_what_others_changed_of_a_group_requeues_it_also_where_a_write_answered_it_before_the_event():
    world = World()
    asyncio.run(world.memory.patch_metadata(world.group(), annotations={SUB_GROUPS_ANNOTATION: "worker=many"}))
    world.start().run()
    (group,) = world.scheduler.cache.groups.values()
    assert world.scheduler.queue.is_unschedulable(group.key)
    fixed = asyncio.run(world.memory.patch_metadata(world.group(), annotations={SUB_GROUPS_ANNOTATION: None}))
    world.scheduler.event_handlers.requeuer.ingest_written(fixed)
    world.run()
    world.assert_whole()


def test_a_record_of_what_is_held_is_written_by_a_found_plan_too():
    world = World()
    world.plan(g_0="n4", g_1="n3")
    world.start().run()
    record = json.loads(world.pod().metadata.annotations[HELD_ANNOTATION])
    assert record == {"uid": world.pod().metadata.uid, "plugins": {"slots": {"slot": "n4"}}}


def test_plugins_annotate_what_a_found_plan_binds(monkeypatch: pytest.MonkeyPatch):
    def on_session_open(self, session):
        session.add_bind_mutation(lambda task, node: {"example.com/node": node})

    monkeypatch.setattr(Slots, "on_session_open", hookimpl(on_session_open), raising=False)
    world = World()
    world.plan(g_0="n4", g_1="n3")
    world.start().run()
    assert world.attempts() == {"theirs"}
    assert [world.pod(name).metadata.annotations["example.com/node"] for name in ("g-0", "g-1")] == ["n4", "n3"]


# ------------------------------------------------------------------ what must not stop or cost others


def test_a_pod_that_joins_a_started_gang_leaves_its_plan_where_it_is():
    world = World(nodes=5)
    world.cluster.add(pod("alone"))
    world.start().run()
    attempt = world.attempt()
    world.cluster.add(replace_labels(world.pod("alone"), {"scheduling.k8s.io/pod-group": "g"}))
    world.run()
    assert world.attempt() == attempt != ""


def test_a_pod_that_ends_while_it_is_bound_is_not_remembered_as_one_that_waits():
    world = World()
    world.cluster.add(pod("p"))
    world.start()
    bind = world.memory.bind

    async def too_late(namespace, name, **options):
        if name == "p":
            await world.scheduler.event_handlers.apply("DELETED", world.pod("p"))
            raise Conflict("gone")
        await bind(namespace, name, **options)

    world.memory.bind = too_late  # type: ignore[method-assign]
    world.run(1)
    assert world.scheduler.queue.next_after(0.0) is None


def test_a_plan_that_appears_later_and_cannot_be_voided_keeps_nobody_else_waiting():
    world = World(1, nodes=5).start().run()
    world.cluster.advance(60)
    world.cluster.add(pod_group("h", 2), pod("h-0", group="h"), pod("h-1", group="h"))
    forged = GangPlan("forged", "none", {world.pod("h-0").metadata.uid: PlannedPod.of("h-0", "n1", {})}, "abort")
    group = world.memory._get(PodGroup, ("scheduling.k8s.io", "default", "h"))
    asyncio.run(PlanStore(world.memory).swap(group, forged))
    patch = world.memory.patch_metadata

    async def refusing(obj, **options):
        if obj.metadata.name.startswith("h"):
            raise Unavailable("no answer")
        return await patch(obj, **options)

    world.memory.patch_metadata = refusing
    world.cluster.add(pod("other"))
    world.run()
    assert world.places()["other"] != ""


async def test_a_plugin_that_ends_in_a_cancellation_of_its_own_fails_its_group_only():
    async def prebind(binding):
        raise asyncio.CancelledError

    with pytest.raises(PluginError, match="cancelled"):
        await HookCall("p", "prebind", prebind).wait(None)


def test_a_plan_that_was_read_before_its_pods_were_known_is_read_again_and_never_cut_down_on_its_group():
    world = World(4, nodes=4)
    plan = world.plan(g_0="n1", g_1="n2", g_2="n3", g_3="n4")
    late = [world.pod(f"g-{index}") for index in (1, 2, 3)]
    pods = world.memory._store(Pod).objects
    for one in late:
        del pods["", "default", one.metadata.name]
    world.start()
    assert world.written_plan().pods == plan.pods
    for one in late:
        pods["", "default", one.metadata.name] = one
    world.run()
    assert world.places() == {"g-0": "n1", "g-1": "n2", "g-2": "n3", "g-3": "n4"}
    assert set(world.written_plan().pods) == set(plan.pods)
