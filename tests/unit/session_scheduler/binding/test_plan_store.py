"""Plans on PodGroups: compare-and-swap whatever becomes of the answers; a ConfigMap where they are large."""

from __future__ import annotations

import base64
import json
import zlib
from random import Random

import msgspec
import pytest
from structlog.testing import capture_logs

from session_scheduler.binding.plan_store import PlanStore, PlanSwap
from session_scheduler.cluster.errors import Conflict, Forbidden, Invalid, NotFound, Unavailable
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.model.gang_plan import (
    ANNOTATION_LIMIT,
    PLAN_ANNOTATION,
    GangPlan,
    NeedsConfigMap,
    PlanError,
    PlannedPod,
    attempt_of,
    config_map_of,
    is_active,
    new_attempt,
    plan_here,
)
from session_scheduler.model.objects import ConfigMap, ObjectMeta, PodGroup
from session_scheduler.testing import pod, pod_group

GROUPS = "scheduling.k8s.io"


def a_plan(attempt="a-1", state="active", **nodes):
    places = nodes or {"u1": "n1", "u2": "n2"}
    pods = {uid: PlannedPod.of(uid, node, {"slots": {"node": node, "slot": 1}}) for uid, node in places.items()}
    return GangPlan(attempt, "me", pods, state)


def a_large_plan(attempt="a-1", state="active"):
    """Nothing that packs well, and more of it than an annotation takes."""
    noise = Random(1).randbytes(ANNOTATION_LIMIT).hex()
    return GangPlan(attempt, "me", {"u1": PlannedPod.of("p", "n1", {"slots": {"noise": noise}})}, state)


class Net(MemoryCluster):
    """Each patch meets the next fate: done, lost before or after it was done, or kept until `late` is awaited."""

    def __init__(self, *objects):
        super().__init__(objects)
        self.fates, self.kept, self.reads_fail = [], [], 0

    async def patch_metadata(self, obj, **options):
        fate = self.fates.pop(0) if self.fates else "done"
        if fate == "late":
            self.kept.append((obj, options))
        if fate in ("late", "lost before"):
            raise Unavailable(fate)
        answer = await super().patch_metadata(obj, **options)
        if fate == "lost after":
            raise Unavailable(fate)
        return answer

    async def get(self, kind, namespace, name, *, api_version=""):
        if self.reads_fail:
            self.reads_fail -= 1
            raise Unavailable("no read")
        return await super().get(kind, namespace, name, api_version=api_version)

    async def late(self):
        """What was kept arrives. Returns the error that it ends in."""
        obj, options = self.kept.pop(0)
        try:
            await super().patch_metadata(obj, **options)
        except Conflict as error:
            return error
        return None

    async def group(self):
        return await MemoryCluster.get(self, PodGroup, "default", "g")

    def config_maps(self):
        """The attempts of the plans in ConfigMaps, and the names of other ConfigMaps."""
        return sorted(name.rpartition(".")[2] for _, _, name in self._store(ConfigMap).objects)


@pytest.fixture
async def net():
    return Net(pod_group("g", 2))


async def with_plan(net: Net, plan):
    await PlanStore(net).swap(await net.group(), plan)
    return await net.group()


# ------------------------------------------------------------------ round trips


@pytest.mark.parametrize("state", ["active", "abort"])
async def test_a_plan_is_read_as_it_was_written(net: Net, state):
    swapped = await PlanStore(net).swap(await net.group(), a_plan(state=state))
    assert swapped == await net.group()
    assert plan_here(swapped) == a_plan(state=state)
    assert attempt_of(swapped) == "a-1"
    assert is_active(swapped, "a-1") is (state == "active")
    assert not is_active(swapped, "a-2")


async def test_a_group_without_a_plan_has_none(net: Net):
    group = await net.group()
    assert (plan_here(group), await PlanStore(net).read(group), attempt_of(group)) == (None, None, "")


async def test_a_plan_is_taken_away(net: Net):
    group = await PlanStore(net).swap(await with_plan(net, a_plan()), None)
    assert PLAN_ANNOTATION not in group.metadata.annotations


def test_no_two_attempts_have_one_name():
    assert len({new_attempt() for _ in range(100)}) == 100


# ------------------------------------------------------------------ compare and swap


@pytest.mark.parametrize("fates", [["done"], ["lost before"], ["lost after"], ["lost before", "lost after"]])
async def test_a_swap_whose_answers_were_lost_ends_with_the_plan_there(net: Net, fates):
    net.fates = fates
    assert plan_here(await PlanStore(net).swap(await net.group(), a_plan())) == a_plan()
    assert plan_here(await net.group()) == a_plan()


async def test_a_swap_goes_on_where_something_else_of_the_group_was_changed(net: Net):
    group = await net.group()
    await net.patch_metadata(group, annotations={"theirs": "x"})
    assert plan_here(await PlanStore(net).swap(group, a_plan())) == a_plan()
    assert (await net.group()).metadata.annotations["theirs"] == "x"


async def test_of_two_swaps_from_the_same_state_one_wins(net: Net):
    group = await net.group()
    await PlanStore(net).swap(group, a_plan("a-1"))
    with pytest.raises(Conflict, match="a different plan"):
        await PlanStore(net).swap(group, a_plan("a-2"))
    assert attempt_of(await net.group()) == "a-1"


async def test_a_swap_that_nobody_answers_says_so_and_may_land_later(net: Net):
    group = await net.group()
    net.fates = ["late"] * 5
    with pytest.raises(Unavailable):
        await PlanStore(net).swap(group, a_plan("a-1"))
    assert await net.late() is None
    assert attempt_of(await net.group()) == "a-1"
    with pytest.raises(Conflict):  # a replica that decided before it landed
        await PlanStore(net).swap(group, a_plan("a-2"))


async def test_a_swap_that_comes_late_is_void_once_another_was_done(net: Net):
    net.fates = ["late", "done"]
    await PlanStore(net).swap(await net.group(), a_plan("a-1"))
    await PlanStore(net).swap(await net.group(), None)
    assert isinstance(await net.late(), Conflict)
    assert attempt_of(await net.group()) == ""


async def test_a_swap_of_which_not_even_the_group_can_be_read_is_unknown(net: Net):
    net.fates, net.reads_fail = ["lost after"], 1
    with pytest.raises(Unavailable):
        await PlanStore(net).swap(await net.group(), a_plan())


async def test_a_group_that_was_created_again_gets_no_plan_of_the_one_before(net: Net):
    group = await net.group()
    await net.delete(group)
    net.put(pod_group("g", 2))
    with pytest.raises(NotFound, match="was recreated"):
        await PlanStore(net).swap(group, a_plan())
    assert attempt_of(await net.group()) == ""


async def test_a_group_that_is_gone_is_not_found(net: Net):
    group = await net.group()
    await net.delete(group)
    with pytest.raises(NotFound):
        await PlanStore(net).swap(group, a_plan())


# ------------------------------------------------------------------ large plans


async def test_a_large_plan_is_in_a_config_map_of_the_scheduler_s_namespace(net: Net):
    store = PlanStore(net, namespace="schedulers")
    group = await store.swap(await net.group(), a_large_plan())
    written = await net.get(ConfigMap, "schedulers", f"fluence-plan-{group.metadata.uid}.a-1")
    assert written.metadata.labels == {"app.kubernetes.io/managed-by": "fluence"}
    assert (written.data["podGroup"], written.data["apiVersion"]) == ("default/g", group.api_version)
    assert len(group.metadata.annotations[PLAN_ANNOTATION]) < 1000
    assert (attempt_of(group), is_active(group, "a-1")) == ("a-1", True)
    with pytest.raises(NeedsConfigMap):
        plan_here(group)
    assert await store.read(group) == a_large_plan()


async def test_the_config_map_stays_with_its_plan_and_goes_with_it(net: Net):
    store = PlanStore(net)
    group = await store.swap(await with_plan(net, a_large_plan()), a_large_plan(state="abort"))
    assert await store.read(group) == a_large_plan(state="abort")
    await store.swap(group, a_plan("a-2"))
    assert net.config_maps() == []


async def test_the_config_map_of_a_plan_that_lost_is_not_left(net: Net):
    group = await net.group()
    await with_plan(net, a_large_plan("a-1"))
    with pytest.raises(Conflict):
        await PlanStore(net).swap(group, a_large_plan("a-2"))
    assert net.config_maps() == ["a-1"]


async def test_the_config_map_of_a_plan_that_may_yet_land_is_left(net: Net):
    net.fates = ["late"] * 5
    with pytest.raises(Unavailable):
        await PlanStore(net).swap(await net.group(), a_large_plan())
    assert await net.late() is None
    assert await PlanStore(net).read(await net.group()) == a_large_plan()


async def test_a_plan_whose_config_map_is_gone_is_none_that_can_be_read(net: Net):
    group = await with_plan(net, a_large_plan())
    name = config_map_of(group)
    await net.delete(await net.get(ConfigMap, "kube-system", name))
    with pytest.raises(PlanError, match=f"its plan's ConfigMap kube-system/{name} does not exist"):
        await PlanStore(net).read(group)


async def test_the_config_map_of_a_deleted_pod_group_is_deleted_when_its_plan_is_removed(net: Net):
    group = await with_plan(net, a_large_plan())
    await net.delete(group)
    with pytest.raises(NotFound):
        await PlanStore(net).swap(group, None)
    assert net.config_maps() == []


async def test_config_maps_of_deleted_and_recreated_pod_groups_are_deleted_before_the_next_large_plan(net: Net):
    store = PlanStore(net)
    for name, attempt in (("deleted", "a-2"), ("recreated", "a-3"), ("stays", "a-4")):
        group = net.put(pod_group(name, 2))
        await store.swap(group, a_large_plan(attempt))
        if name != "stays":
            await net.delete(group)
    net.put(pod_group("recreated", 2))
    other = ConfigMap(metadata=ObjectMeta(name="fluence-plan-other", namespace="kube-system"))
    unknown = ConfigMap(metadata=ObjectMeta(name="fluence-plan-u.unknown", namespace="kube-system"))
    elsewhere = ConfigMap(metadata=ObjectMeta(name="fluence-plan-u.elsewhere", namespace="default"),
                          data={"podGroup": "default/deleted"})  # fmt: skip
    labels = {"app.kubernetes.io/managed-by": "fluence"}
    unserved = ConfigMap(metadata=ObjectMeta(name="fluence-plan-u.unserved", namespace="kube-system", labels=labels),
                         data={"podGroup": "default/deleted", "apiVersion": "example.com/v1"})  # fmt: skip
    for one in (other, unknown, elsewhere, unserved):
        await net.create(one)
    await with_plan(net, a_large_plan())
    assert net.config_maps() == ["a-1", "a-4", "elsewhere", "fluence-plan-other", "unknown", "unserved"]


async def test_config_maps_of_deleted_pod_groups_are_looked_for_once(net: Net, monkeypatch: pytest.MonkeyPatch):
    store, listed = PlanStore(net), []
    list_all = net.list

    async def counted(kind, **options):
        listed.append(options["labels"])
        return await list_all(kind, **options)

    monkeypatch.setattr(net, "list", counted)
    for name, attempt in (("one", "a-2"), ("two", "a-3")):
        await store.swap(net.put(pod_group(name, 2)), a_large_plan(attempt))
    assert listed == [{"app.kubernetes.io/managed-by": "fluence"}]


async def test_a_large_plan_is_written_even_if_config_maps_cannot_be_listed(net: Net):
    async def forbidden(kind, *, namespace="", **_):
        raise Forbidden(f"no list in {namespace}")

    net.list = forbidden  # type: ignore[method-assign]
    with capture_logs() as logs:
        assert await PlanStore(net).read(await with_plan(net, a_large_plan())) == a_large_plan()
    (line,) = logs
    assert line["event"] == "failed to look for ConfigMaps of plans whose PodGroup is gone"
    assert (line["log_level"], line["error"]) == ("warning", "no list in kube-system")


# ------------------------------------------------------------------ foreign writes


def packed(text):
    return base64.b64encode(zlib.compress(text.encode(), 1)).decode()


def forged(net: Net, text):
    group = pod_group("g", 2)
    if not isinstance(text, str):
        text = json.dumps(text).replace("UID", net._get(PodGroup, (GROUPS, "default", "g")).metadata.uid)
    group.metadata.annotations[PLAN_ANNOTATION] = text
    return net.put(group)


DEEP = '{"u1":{"name":"p","node":"n","plugins":{"a":' + "[" * 100_000 + "]" * 100_000 + "}}}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no plan",
        "[]",
        "{}",
        {"attempt": ""},
        {"attempt": "a b"},
        {"attempt": "a" * 64},
        {"attempt": "a-1", "state": "done"},
        '{"attempt":"a-1","x":' + "[" * 100_000 + "]" * 100_000 + "}",
        {"attempt": "a-1", "configMap": "victim"},
        {"attempt": "a-1", "configMap": "fluence-plan-a-1"},
        {"attempt": "a-1", "configMap": "fluence-plan-another.a-1"},
        {"attempt": "a-1", "configMap": "fluence-plan-UID.a-2"},
    ],
)
async def test_what_is_no_plan_is_told_to_be_none_and_is_replaced(net: Net, text):
    group = forged(net, text)
    assert (attempt_of(group), is_active(group, "a-1")) == ("", False)
    with pytest.raises(PlanError, match="is not a valid plan"):
        plan_here(group)
    with pytest.raises(PlanError, match="is not a valid plan"):
        await PlanStore(net).read(group)
    assert plan_here(await PlanStore(net).swap(group, a_plan())) == a_plan()


@pytest.mark.parametrize(
    "pods",
    [
        "",
        "%%%",
        "AAAA",
        packed("no json"),
        packed("[]"),
        packed('{"u1":{}}'),
        packed('{"u1":{"name":1,"node":"n"}}'),
        packed(DEEP),
    ],
)
async def test_pods_that_cannot_be_read_are_told(net: Net, pods):
    group = forged(net, {"attempt": "a-1", "pods": pods})
    with pytest.raises(PlanError, match="cannot be read"):
        plan_here(group)


async def test_a_plan_that_unpacks_to_more_than_can_be_is_not_unpacked_to_its_end(net: Net):
    bomb = base64.b64encode(zlib.compress(b" " * (65 * 1024 * 1024), 1)).decode()
    with pytest.raises(PlanError, match="more than"):
        plan_here(forged(net, {"attempt": "a-1", "pods": bomb}))


async def test_a_forged_plan_lets_nobody_delete_another_config_map(net: Net):
    await net.create(ConfigMap(metadata=ObjectMeta(name="victim", namespace="kube-system"), data={}))
    group = forged(net, {"attempt": "a-1", "configMap": "victim"})
    await PlanStore(net).swap(group, None)
    assert net.config_maps() == ["victim"]


async def test_a_forged_plan_cannot_name_the_plan_of_another_pod_group(net: Net):
    store = PlanStore(net)
    victim = await store.swap(net.put(pod_group("victim", 2)), a_large_plan())
    group = forged(net, {"attempt": "a-1", "configMap": config_map_of(victim)})
    with pytest.raises(PlanError, match="configMap does not match the PodGroup's uid and the attempt"):
        await store.read(group)
    await store.swap(group, None)
    assert await store.read(victim) == a_large_plan()


async def test_pods_are_touched_before_a_plan_that_cannot_be_read_is_replaced(net: Net):
    planned = net.put(pod("p"))
    uid, version = planned.metadata.uid, planned.metadata.resource_version
    swap, part = PlanSwap(forged(net, "{}")), PlannedPod.of("p", "n1", {})
    _, touched = await PlanStore(net).put_in_force(swap, {uid: part}, [planned])
    assert set(touched) == {uid}
    with pytest.raises(Conflict):  # a request of the previous plan
        await net.bind("default", "p", node="n2", uid=uid, resource_version=version, annotations={})


# ------------------------------------------------------------------ the cost of foreign writes


async def test_a_plan_that_unpacks_to_far_more_than_it_is_is_refused(net: Net):
    noughts = '{"u1":{"name":"","node":"","plugins":{"x":[' + "[]," * 2_000_000 + "[]]}}}"
    group = forged(net, {"attempt": "a-1", "pods": packed(noughts)})
    with pytest.raises(PlanError, match="unpacks to more than"):
        plan_here(group)


def test_a_plan_s_holdings_are_decoded_for_the_pods_that_are_asked_for_only():
    plan = GangPlan("a-1", "me", {"u1": PlannedPod("p", "n1", msgspec.Raw(b"{" * 9))})
    assert plan.pods["u1"].plugins == msgspec.Raw(b"{" * 9)
    assert plan.pods["u1"].holds == {}


def test_of_a_plan_are_kept_its_known_pods_and_as_many_others_as_may_be_of_use():
    pods = {f"u{index}": PlannedPod.of(f"p{index}", "n1", {}) for index in range(10)}
    kept = GangPlan("a-1", "me", pods).of_interest({"u3"}, {"p5"}, 2)
    assert set(kept.pods) == {"u0", "u1", "u3", "u5"}
    assert kept.gone == 6


@pytest.mark.parametrize("refusal", [Forbidden, Invalid])
async def test_the_config_map_of_a_plan_that_is_refused_is_not_left_behind(net: Net, refusal):
    async def refuse(obj, **options):
        raise refusal("no")

    net.patch_metadata = refuse  # type: ignore[method-assign]
    with pytest.raises(refusal):
        await PlanStore(net).swap(net._get(PodGroup, (GROUPS, "default", "g")), a_large_plan())
    assert not net._store(ConfigMap).objects


@pytest.mark.parametrize("repeated", [1, 1_000, 900_000])
async def test_what_is_written_can_be_read_or_is_not_written(net: Net, repeated):
    group = net._get(PodGroup, (GROUPS, "default", "g"))
    plan = GangPlan("a-1", "me", {f"u{at}": PlannedPod.of("p", "n1", {"x": "a" * repeated}) for at in range(20)})
    try:
        group = await PlanStore(net).swap(group, plan)
    except Invalid:
        assert repeated == 900_000
        assert PLAN_ANNOTATION not in net._get(PodGroup, (GROUPS, "default", "g")).metadata.annotations
    else:
        assert await PlanStore(net).read(group) == plan
