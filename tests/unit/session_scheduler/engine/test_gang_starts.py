"""Plans that a scheduler finds at its start: it carries them out or aborts them, and never mixes them."""

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


def test_a_gang_is_bound_by_a_plan_with_all_its_nodes():
    world = World().start().run()
    world.assert_whole()
    assert world.attempts() == {world.attempt()} != {""}
    assert world.heard.scheduled == [f"minCount pods are bound (attempt {world.attempt()})"]
    plan = world.written_plan()
    assert {part.name: part.node for part in plan.pods.values()} == world.places()
    assert {part.node: part.holds for part in plan.pods.values()} == {
        node: {"slots": {"slot": node}} for node in world.places().values()
    }


# ------------------------------------------------------------------ found at the start


def test_a_plan_without_bound_pods_is_carried_out():
    world = World()
    world.plan(g_0="n4", g_1="n3")
    world.start().run()
    assert world.places() == {"g-0": "n4", "g-1": "n3"}
    assert (world.attempts(), world.attempt()) == ({"theirs"}, "theirs")
    world.assert_whole()
    assert world.heard.recoveries == [("rolled forward", 2)]


def test_a_partly_bound_gang_is_completed_by_the_same_plan():
    world = World(3)
    world.plan(g_0="n4", g_1="n3", g_2="n2")
    world.bind("g-1", "n3")
    world.start().run()
    assert world.places() == {"g-0": "n4", "g-1": "n3", "g-2": "n2"}
    assert world.attempts() == {"theirs"}
    world.assert_whole()


def test_resources_of_a_found_plan_are_reserved_until_it_is_carried_out():
    world = World(nodes=2)
    world.cluster.add(pod("a"))  # comes first in every order
    world.plan(g_0="n2", g_1="n1")
    world.start().run()
    assert world.places() == {"a": "", "g-0": "n2", "g-1": "n1"}


@pytest.mark.parametrize("gone", ["node", "pod"])
def test_a_plan_without_bound_pods_is_aborted_if_a_part_is_gone(gone):
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


def test_a_plan_whose_resources_cannot_be_allocated_is_aborted():
    world = World()
    world.plan(g_0="n4", g_1="n3")
    world.cluster.add(pod("other"))
    world.bind("other", "n4", attempt="-")
    world.start().run()
    world.assert_whole()
    assert "theirs" not in world.attempts()


def test_a_begun_plan_without_one_of_its_nodes_continues_around_its_bound_pods():
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


def test_a_begun_abort_is_completed():
    world = World()
    world.plan(state="abort", g_0="n4", g_1="n3")
    late = world.request("g-0", "n4")
    world.start().run()
    world.assert_whole()
    assert world.attempts() == {world.attempt()} != {"theirs"}
    with pytest.raises(Conflict):
        asyncio.run(late())


def test_an_abort_too_late_for_one_pod_is_reverted():
    world = World(3)
    world.plan(state="abort", g_0="n4", g_1="n3", g_2="n2")
    world.bind("g-1", "n3")
    world.start().run()
    assert world.places() == {"g-0": "n4", "g-1": "n3", "g-2": "n2"}
    assert world.attempts() == {"theirs"}
    assert world.written_plan().state == "active"


def test_an_abort_that_finds_a_bound_pod_is_reverted():
    world = World()
    world.plan(state="abort", g_0="n4", g_1="n3")
    late = world.request("g-0", "n4")
    world.start()
    asyncio.run(late())
    asyncio.run(world.scheduler.cycle())  # directly in the store: no event reports it before the abort
    world.run()
    assert world.places() == {"g-0": "n4", "g-1": "n3"}
    assert world.attempts() == {"theirs"}


def test_a_completely_bound_gang_is_acknowledged_again():
    world = World()
    world.plan(g_0="n4", g_1="n3")
    world.bind("g-0", "n4")
    world.bind("g-1", "n3")
    world.start()
    observe(world.scheduler, world.heard)
    asyncio.run(world.scheduler.plan_recovery.start())
    assert world.heard.scheduled == ["minCount pods are bound (attempt theirs)"]


def test_the_plan_of_a_group_without_pods_is_removed():
    world = World()
    world.plan(g_0="n4", g_1="n3")
    world.delete(Pod, "g-0")
    world.delete(Pod, "g-1")
    world.start().run(1)
    assert PLAN_ANNOTATION not in world.group().metadata.annotations


def test_a_large_plan_is_read_from_its_config_map():
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
    # the writer's holdings, with their padding, exceed a pod's annotations: the whole plan is aborted
    assert world.attempts() == {world.attempt()} != {"theirs"}
    assert world.memory._store(ConfigMap).objects == {}


# ------------------------------------------------------------------ plugins that fail


def test_a_plugin_that_fails_to_recover_a_found_plan_is_called_again_later():
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
def test_a_gang_is_bound_in_spite_of_an_invalid_plan(text):
    world = World()
    world.annotate(text)
    world.start().run()
    world.assert_whole()
    assert world.attempts() == {world.attempt()}


def test_a_plan_with_foreign_pods_is_not_carried_out():
    world = World()
    world.cluster.add(pod("other", namespace="elsewhere"))
    other = world.memory._get(Pod, ("", "elsewhere", "other")).metadata.uid
    world.plan(
        pods={other: PlannedPod.of("other", "n1", {}), "unknown": PlannedPod.of("x", "n2", {})}, g_0="n4", g_1="n3"
    )
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
def test_an_invalid_record_does_not_prevent_the_start(text):
    world = World()
    world.cluster.add(pod("odd", annotations={HELD_ANNOTATION: text}, bound_to="n1"))
    world.start().run()
    assert all(world.places().values())


# ------------------------------------------------------------------ deleted groups


def test_no_pod_is_bound_into_a_terminating_group():
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


def test_a_plan_is_removed_when_the_last_pod_ends():
    world = World().start().run()
    world.delete(Pod, "g-0")
    world.run(1)
    assert world.attempt()
    world.delete(Pod, "g-1")
    world.run(2)
    assert PLAN_ANNOTATION not in world.group().metadata.annotations
    assert world.slots.held == {}


def test_a_plan_written_while_the_last_pod_ends_is_removed_too():
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


def test_a_group_deleted_while_its_plan_is_written_is_not_added_to_the_cache():
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


def test_the_answer_of_a_write_does_not_hide_a_later_state_of_the_group():
    world = World().start()
    bind = world.memory.bind

    async def changed_before(*names, **options):
        world.memory.bind = bind
        now = await world.memory.patch_metadata(world.group(), annotations={"theirs": "later"})
        await world.scheduler.event_handlers.apply("MODIFIED", now)
        await bind(*names, **options)

    world.memory.bind = changed_before
    asyncio.run(world.scheduler.cycle())  # directly in the store: no later event reports the newer state again
    (known,) = world.scheduler.cache.pod_groups()
    assert known.metadata.annotations["theirs"] == "later"
    assert known.metadata.annotations[PLAN_ANNOTATION]


def test_a_foreign_change_requeues_a_group_even_if_a_write_returned_it_before_the_event():
    world = World()
    asyncio.run(world.memory.patch_metadata(world.group(), annotations={SUB_GROUPS_ANNOTATION: "worker=many"}))
    world.start().run()
    (group,) = world.scheduler.cache.groups.values()
    assert world.scheduler.queue.is_unschedulable(group.key)
    fixed = asyncio.run(world.memory.patch_metadata(world.group(), annotations={SUB_GROUPS_ANNOTATION: None}))
    world.scheduler.event_handlers.requeuer.ingest_written(fixed)
    world.run()
    world.assert_whole()


def test_a_found_plan_writes_the_record_of_holdings_too():
    world = World()
    world.plan(g_0="n4", g_1="n3")
    world.start().run()
    record = json.loads(world.pod().metadata.annotations[HELD_ANNOTATION])
    assert record == {"uid": world.pod().metadata.uid, "plugins": {"slots": {"slot": "n4"}}}


def test_plugins_annotate_the_pods_of_a_found_plan(monkeypatch: pytest.MonkeyPatch):
    def on_session_open(self, session):
        session.add_bind_mutation(lambda task, node: {"example.com/node": node})

    monkeypatch.setattr(Slots, "on_session_open", hookimpl(on_session_open), raising=False)
    world = World()
    world.plan(g_0="n4", g_1="n3")
    world.start().run()
    assert world.attempts() == {"theirs"}
    assert [world.pod(name).metadata.annotations["example.com/node"] for name in ("g-0", "g-1")] == ["n4", "n3"]


# ------------------------------------------------------------------ effects on others


def test_a_pod_that_joins_a_started_gang_does_not_change_its_plan():
    world = World(nodes=5)
    world.cluster.add(pod("alone"))
    world.start().run()
    attempt = world.attempt()
    world.cluster.add(replace_labels(world.pod("alone"), {"scheduling.k8s.io/pod-group": "g"}))
    world.run()
    assert world.attempt() == attempt != ""


def test_a_pod_that_ends_during_its_bind_does_not_stay_pending():
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


def test_a_later_plan_that_cannot_be_voided_does_not_block_other_groups():
    world = World(1, nodes=5).start().run()
    world.cluster.advance(60)
    world.cluster.add(pod_group("h", 2), pod("h-0", group="h"), pod("h-1", group="h"))
    forged = GangPlan("forged", "unknown", {world.pod("h-0").metadata.uid: PlannedPod.of("h-0", "n1", {})}, "abort")
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


async def test_a_plugin_that_raises_a_cancellation_fails_only_its_group():
    async def prebind(binding):
        raise asyncio.CancelledError

    with pytest.raises(PluginError, match="cancelled"):
        await HookCall("p", "prebind", prebind).wait(None)


def test_a_plan_read_before_its_pods_is_read_again_and_never_truncated():
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
