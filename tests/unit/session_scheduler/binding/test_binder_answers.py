"""One pod's bind: what each answer, or its absence, lets be known, and what comes late is void."""

from __future__ import annotations

import asyncio

import pytest

from session_scheduler.binding.binder import Binder, Request
from session_scheduler.binding.plan_store import PlanStore
from session_scheduler.cluster.errors import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    NotLeading,
    TooManyRequests,
    Unavailable,
)
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.framework.bindings import HELD_ANNOTATION, Failure
from session_scheduler.model.class_table import ClassTable
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.gang_plan import ATTEMPT_ANNOTATION, GangPlan, PlannedPod
from session_scheduler.model.groups import Group, GroupRef, Task
from session_scheduler.model.objects import Pod, PodGroup
from session_scheduler.testing import pod, pod_group

HELD = '{"plugins":{"slots":{"slot":1}},"uid":"u"}'


class Net(MemoryCluster):
    """The pod `p` in group `g`. Each request of a kind meets its next fate: an error, "lost", "late" or "done"."""

    def __init__(self):
        super().__init__([pod_group("g", 2), pod("p", group="g")])
        self.fates = {"bind": [], "patch": [], "get": []}
        self.asked, self.kept = [], []
        self.before_read = None
        """What another client does before a pod is read the next time."""

    async def _meet(self, kind, request):
        self.asked.append(kind)
        fate = self.fates[kind].pop(0) if self.fates[kind] else "done"
        if isinstance(fate, Exception):
            raise fate
        if fate == "late":
            self.kept.append(request)
            raise Unavailable("timeout")
        answer = await request()
        if fate == "lost":
            raise Unavailable("timeout")
        return answer

    async def bind(self, *names, **options):
        return await self._meet("bind", lambda: MemoryCluster.bind(self, *names, **options))

    async def patch_metadata(self, obj, **options):
        return await self._meet("patch", lambda: MemoryCluster.patch_metadata(self, obj, **options))

    async def get(self, kind, *names, **options):
        if kind is Pod and self.before_read is not None:
            act, self.before_read = self.before_read, None
            await act()
        return await self._meet("get", lambda: MemoryCluster.get(self, kind, *names, **options))

    async def late(self):
        """What was kept arrives; the kinds of the errors that it ends in."""
        answers = await asyncio.gather(*(request() for request in self.kept), return_exceptions=True)
        return [type(answer) for answer in answers]

    def pod(self):
        return self._get(Pod, ("", "default", "p"))

    async def change(self, **annotations):
        """Another client writes to the pod."""
        await MemoryCluster.patch_metadata(self, self.pod(), annotations=annotations)

    async def bind_elsewhere(self, node="n2", **annotations):
        metadata = self.pod().metadata
        await MemoryCluster.bind(self, "default", "p", node=node, uid=metadata.uid,
                                 resource_version=metadata.resource_version, annotations=annotations)  # fmt: skip

    async def with_plan(self, state="active"):
        plan = GangPlan("a-1", "me", {self.pod().metadata.uid: PlannedPod.of("p", "n1", {})}, state)
        group = await MemoryCluster.get(self, PodGroup, "default", "g")
        return await PlanStore(self).swap(group, plan)


@pytest.fixture
async def net():
    return Net()


def binder(net: Net):
    return Binder(net, 1)


def request_for(net: Net, *, group=None, annotations=None):
    table = NodeTable(0)
    task = Task(net.pod(), ClassTable(table).of(net.pod()), Group(GroupRef("default", "g")))
    own = {HELD_ANNOTATION: HELD, **(annotations or {})}
    if group is None:
        return Request(task, "n1", net.pod(), own)
    return Request(task, "n1", net.pod(), {**own, ATTEMPT_ANNOTATION: "a-1"}, group, "a-1")


async def test_a_bind_that_is_answered_asks_nothing_else(net: Net):
    assert await binder(net).bind(request_for(net)) is None
    assert net.asked == ["bind"]
    assert (net.pod().spec.node_name, net.pod().metadata.annotations[HELD_ANNOTATION]) == ("n1", HELD)


@pytest.mark.parametrize(
    "error", [NotFound("gone"), Invalid("bad"), Forbidden("no"), TooManyRequests("slow"), NotLeading("lost")]
)
async def test_a_refusal_is_final_and_asks_nothing_else(net: Net, error):
    net.fates["bind"] = [error]
    failure = await binder(net).bind(request_for(net))
    assert (failure.sent, failure.unknown, failure.cause) == (True, False, type(error).__name__)
    assert failure.reason == f"binding to n1 failed: {error}"
    assert net.asked == ["bind"]


async def test_a_bind_that_was_done_although_its_answer_was_lost_is_done(net: Net):
    net.fates["bind"] = ["lost"]
    assert await binder(net).bind(request_for(net)) is None
    assert net.pod().metadata.annotations[HELD_ANNOTATION] == HELD
    assert ATTEMPT_ANNOTATION not in net.pod().metadata.annotations


async def test_a_bind_that_was_not_done_is_sent_again_and_the_first_one_comes_too_late(net: Net):
    net.fates["bind"] = ["late"]
    assert await binder(net).bind(request_for(net)) is None
    assert net.asked == ["bind", "patch", "bind"]
    assert net.pod().spec.node_name == "n1"
    assert await net.late() == [Conflict]


async def test_binds_that_are_never_answered_end_as_failures_that_cannot_come_true(net: Net):
    net.fates["bind"] = ["late"] * 4
    failure = await binder(net).bind(request_for(net))
    assert (failure.unknown, failure.cause) == (False, "Unavailable")
    assert await net.late() == [Conflict] * 4
    assert not net.pod().spec.node_name


async def test_a_bind_of_which_nothing_can_be_learnt_is_unknown(net: Net):
    net.fates = {"bind": ["late"], "patch": ["late"], "get": []}
    failure = await binder(net).bind(request_for(net))
    assert (failure.sent, failure.unknown) == (True, True)


async def test_an_unknown_outcome_says_why_the_cluster_does_not_tell_it(net: Net):
    net.fates["bind"], net.fates["get"] = [Conflict("changed")], [Forbidden("cannot get pods")]
    failure = await binder(net).bind(request_for(net))
    assert (failure.unknown, failure.why_unknown) == (True, "cannot get pods")
    assert failure.reason == "binding to n1 failed: changed"
    assert not (await binder(net).resolve(failure)).unknown


async def test_a_touch_whose_answer_was_lost_leaves_the_outcome_unknown_until_it_is_looked_at(net: Net):
    net.fates = {"bind": ["late"], "patch": ["lost"], "get": []}
    failure = await binder(net).bind(request_for(net))
    assert failure.unknown
    looked = await binder(net).resolve(failure)
    assert not looked.unknown
    assert await net.late() == [Conflict]


@pytest.mark.parametrize("landed", [True, False])
async def test_a_look_decides_for_good(net: Net, landed):
    net.fates = {"bind": ["lost" if landed else "late"], "patch": [Unavailable("x")], "get": []}
    failure = await binder(net).bind(request_for(net))
    looked = await binder(net).resolve(failure)
    assert looked is None if landed else looked.unknown is False
    if not landed:
        assert await net.late() == [Conflict]


async def test_a_look_that_is_not_answered_leaves_the_doubt(net: Net):
    net.fates = {"bind": ["late"], "patch": [Unavailable("x")] * 2, "get": []}
    failure = await binder(net).bind(request_for(net))
    assert (await binder(net).resolve(failure)).unknown


async def test_a_look_at_a_pod_that_is_gone_ends_the_doubt(net: Net):
    net.fates = {"bind": ["late"], "patch": [Unavailable("x")], "get": []}
    failure = await binder(net).bind(request_for(net))
    await net.delete(net.pod())
    assert (await binder(net).resolve(failure)).unknown is False


async def test_a_pod_that_was_made_again_is_not_taken_for_the_one_that_was_to_be_bound(net: Net):
    request = request_for(net)
    await net.delete(net.pod())
    net.put(pod("p", group="g"))
    failure = await binder(net).bind(request)
    assert (failure.unknown, failure.cause) == (False, "Conflict")
    assert not net.pod().spec.node_name
    await net.bind_elsewhere("n1", **{HELD_ANNOTATION: HELD})
    assert not failure.landed(net.pod())


# ------------------------------------------------------------------ conflicts


async def test_a_pod_that_waits_as_before_is_bound_although_its_resource_version_moved(net: Net):
    request = request_for(net)
    await net.change(theirs="x")
    assert await binder(net).bind(request) is None
    assert net.asked == ["bind", "get", "bind"]
    assert net.pod().metadata.annotations["theirs"] == "x"


@pytest.mark.parametrize("change", ["labels", "spec", "deleted", "bound"])
async def test_a_pod_that_waits_no_more_as_it_did_is_left_alone(net: Net, change):
    request = request_for(net)
    if change == "labels":
        await MemoryCluster.patch_metadata(net, net.pod(), labels={"app": "other"})
    elif change == "spec":
        net.put(pod("p", group="g", cpu="3"))
    elif change == "deleted":
        net._write(net.pod(), deletion_timestamp="2026-01-01T00:00:00Z")
    else:
        await net.bind_elsewhere()
    failure = await binder(net).bind(request)
    assert (failure.unknown, failure.cause) == (False, "Conflict")
    assert net.asked == ["bind", "get"]
    assert net.pod().spec.node_name == ("n2" if change == "bound" else "")


async def test_a_pod_that_another_bound_there_with_another_record_is_not_ours(net: Net):
    request = request_for(net)
    await net.bind_elsewhere("n1", **{HELD_ANNOTATION: "other"})
    assert (await binder(net).bind(request)).unknown is False


async def test_a_pod_that_another_replica_bound_by_the_same_plan_is_bound(net: Net):
    request = request_for(net, group=await net.with_plan())
    await net.bind_elsewhere("n1", **{HELD_ANNOTATION: HELD, ATTEMPT_ANNOTATION: "a-1"})
    assert await binder(net).bind(request) is None


async def test_a_pod_that_others_change_all_the_time_is_given_up_after_some_tries(net: Net):
    bind, tries = net.bind, []

    async def changed_before(*names, **options):
        tries.append(names)
        await net.change(x=str(len(tries)))
        await bind(*names, **options)

    net.bind = changed_before  # type: ignore[method-assign]
    failure = await binder(net).bind(request_for(net))
    assert (failure.cause, failure.unknown, len(tries)) == ("Conflict", False, 4)


# ------------------------------------------------------------------ the plan


@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_pod_of_a_plan_is_bound_again_only_while_the_plan_stands(net: Net, goes_on):
    request = request_for(net, group=await net.with_plan())
    await net.change(theirs="x")
    if not goes_on:
        await net.with_plan("abort")
    failure = await binder(net).bind(request)
    assert (failure is None, bool(net.pod().spec.node_name)) == (goes_on, goes_on)


async def test_a_pod_of_a_plan_that_cannot_be_read_is_not_bound_again(net: Net):
    request = request_for(net, group=await net.with_plan())
    await net.change(theirs="x")
    net.fates["get"] = ["done", Unavailable("x")]
    assert (await binder(net).bind(request)).cause == "Conflict"


async def test_a_pod_of_a_plan_whose_group_was_made_again_is_not_bound_again(net: Net):
    request = request_for(net, group=await net.with_plan())
    await net.change(theirs="x")
    await net.delete(await MemoryCluster.get(net, PodGroup, "default", "g"))
    net.put(pod_group("g", 2))
    assert (await binder(net).bind(request)).cause == "Conflict"


async def test_the_plan_is_read_after_the_pod_so_that_an_abort_between_the_two_is_seen_or_voids_the_bind(net: Net):
    """An abort changes the plan, then touches the pod: whichever of them was read before, the pod is not bound."""
    request = request_for(net, group=await net.with_plan())
    await net.change(theirs="x")

    async def abort():
        await net.with_plan("abort")
        await net.change(**{ATTEMPT_ANNOTATION: "touched"})

    net.before_read = abort
    assert (await binder(net).bind(request)).cause == "Conflict"
    assert not net.pod().spec.node_name


# ------------------------------------------------------------------ touches


async def test_a_touch_voids_what_is_on_its_way_and_returns_the_pod_as_it_is(net: Net):
    old = net.pod()
    touched = await PlanStore(net).touch(old)
    assert touched == net.pod()
    with pytest.raises(Conflict):
        await net.bind("default", "p", node="n1", uid=old.metadata.uid,
                       resource_version=old.metadata.resource_version, annotations={})  # fmt: skip


async def test_a_touch_of_a_pod_that_was_bound_meanwhile_changes_nothing(net: Net):
    old = net.pod()
    await net.bind_elsewhere(**{ATTEMPT_ANNOTATION: "a-1"})
    touched = await PlanStore(net).touch(old)
    assert (touched.spec.node_name, touched.metadata.annotations[ATTEMPT_ANNOTATION]) == ("n2", "a-1")
    assert touched == net.pod()


async def test_a_touch_that_comes_late_does_not_change_a_pod_that_was_bound_before_it(net: Net):
    net.fates["patch"] = ["late"]
    with pytest.raises(Unavailable):
        await PlanStore(net).touch(net.pod())
    await net.bind_elsewhere(**{ATTEMPT_ANNOTATION: "a-1"})
    assert await net.late() == [Conflict]
    assert net.pod().metadata.annotations[ATTEMPT_ANNOTATION] == "a-1"


async def test_two_touches_leave_two_values(net: Net):
    first = await PlanStore(net).touch(net.pod())
    second = await PlanStore(net).touch(first)
    values = [one.metadata.annotations[ATTEMPT_ANNOTATION] for one in (first, second)]
    assert len(set(values)) == 2
    assert int(second.metadata.resource_version) > int(first.metadata.resource_version)


def test_a_failure_of_what_was_never_sent_has_not_landed():
    one = pod("p", bound_to="n1")
    task = Task(one, None, Group(GroupRef("default", "g")))  # type: ignore[arg-type]
    assert not Failure(task, "n1", "why", one).landed(one)
    assert Failure(task, "n1", "why", one, sent=True).landed(one)
