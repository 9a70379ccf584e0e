"""What is wanted is written where it is not there, and nowhere else; nothing of others' is taken or looked at."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fluence_plugins.master_queue.api.informer_store import (
    FLAVORS,
    LOCAL_QUEUES,
    QUEUES,
    ObservedFlavor,
    ObservedQueue,
    Store,
)
from fluence_plugins.master_queue.api.kueue import (
    ClusterQueue,
    ClusterQueueSpec,
    LocalQueue,
    LocalQueueSpec,
    ResourceFlavor,
    ResourceFlavorSpec,
)
from fluence_plugins.master_queue.api.server_side_apply import MANAGER, Applier, differs
from fluence_plugins.master_queue.api.server_side_apply import plain as body
from fluence_plugins.master_queue.metrics import MasterQueueMetrics
from session_scheduler.cluster.dynamic_informer import Change
from session_scheduler.model.meta import ObjectMeta, OwnerReference
from session_scheduler.model.objects import Taint
from session_scheduler.sdk.dynamic_client import Conflict, Forbidden, Unavailable

from ..applied_world import Applied

OWNER = OwnerReference(api_version="vk.io/v1", kind="MasterQueue", name="m", uid="m1", controller=True)
OTHER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c1"}
PATH = "apis/kueue.x-k8s.io/v1beta2/resourceflavors/f"
QUEUE_PATH = "apis/kueue.x-k8s.io/v1beta2/clusterqueues/q"


def flavor(labels: dict[str, str] | None = None, node: str = "n", *taints: Taint) -> ResourceFlavor:
    meta = ObjectMeta(name="f", labels=labels or {}, owner_references=(OWNER,))
    return ResourceFlavor(metadata=meta, spec=ResourceFlavorSpec(node_labels={"host": node}, node_taints=taints))


def queue(**changes: Any) -> ClusterQueue:
    spec: dict[str, Any] = {"cohort_name": "c", "queueing_strategy": "BestEffortFIFO", "stop_policy": "None"}
    spec |= {"namespace_selector": {}, "resource_groups": (), **changes}
    return ClusterQueue(metadata=ObjectMeta(name="q", owner_references=(OWNER,)), spec=ClusterQueueSpec(**spec))


def seen(obj: Any, kind: type = ObservedFlavor) -> Any:
    return msgspec.convert(obj, kind)


# ------------------------------------------------------------------ whether there is a difference


def there(**changes: Any) -> dict[str, Any]:
    """What a flavor with a label and a taint is, as the API server has it after it was applied."""
    obj = Applied().written(PATH, body(WANTED), MANAGER)
    for place, value in changes.items():
        at = obj
        *steps, last = place.split("__")
        for step in steps:
            at = at[step]
        at[last] = value
    return obj


WANTED = flavor({"site": "one"}, "n", Taint(key="a", value="b", effect="NoSchedule"))
TAINT = {"key": "a", "value": "b", "effect": "NoSchedule"}


def test_an_applied_object_does_not_differ() -> None:
    assert not differs(body(WANTED), seen(there()))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("metadata__labels", {"site": "one", "team": "a"}),
        ("metadata__annotations", {"a": "b"}),
        ("metadata__ownerReferences", [OTHER, {**body(OWNER), "blockOwnerDeletion": True}]),
        ("spec__topologyName", "t"),
        ("metadata__finalizers", ["kueue.x-k8s.io/resource-in-use"]),
        ("status", {"x": 1}),
    ],
)
def test_fields_that_other_managers_added_are_not_a_difference(place: str, value: Any) -> None:
    assert not differs(body(WANTED), seen(there(**{place: value})))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("metadata__labels", {"site": "two"}),
        ("metadata__labels", {}),
        ("metadata__ownerReferences", []),
        ("metadata__ownerReferences", [OTHER]),
        ("metadata__ownerReferences", [{**body(OWNER), "controller": False}]),
        ("spec", {}),
        ("spec__nodeLabels", {"host": "m"}),
        ("spec__nodeLabels", {"host": "n", "zone": "z"}),
        ("spec__nodeTaints", []),
        ("spec__nodeTaints", [TAINT, {"key": "c", "effect": "NoSchedule"}]),
        ("spec__nodeTaints", [{**TAINT, "timeAdded": "2026-01-01T00:00:00Z"}]),
    ],
)
def test_another_value_and_an_addition_to_an_atomic_value_are_differences(place: str, value: Any) -> None:
    assert differs(body(WANTED), seen(there(**{place: value})))


def test_granular_mappings_are_compared_field_by_field() -> None:
    wanted = queue(preemption={"reclaimWithinCohort": "Any"})
    obj = Applied().written(QUEUE_PATH, body(wanted), MANAGER)
    obj["spec"]["preemption"]["withinClusterQueue"] = "Never"  # a default
    obj["spec"]["fairSharing"] = {"weight": "1"}
    assert not differs(body(wanted), seen(obj, ObservedQueue))
    obj["spec"]["preemption"]["reclaimWithinCohort"] = "Never"
    assert differs(body(wanted), seen(obj, ObservedQueue))


def test_a_selector_is_an_atomic_value() -> None:
    obj = Applied().written(QUEUE_PATH, body(queue()), MANAGER)
    obj["spec"]["namespaceSelector"] = {"matchLabels": {"a": "b"}}
    assert differs(body(queue()), seen(obj, ObservedQueue))


@pytest.mark.parametrize(
    "less",
    [
        flavor({}, "n", *WANTED.spec.node_taints),
        flavor({"other": "x"}, "n", *WANTED.spec.node_taints),
        flavor({"site": "one"}, "n"),
    ],
)
def test_an_owned_field_that_is_no_longer_desired_is_a_difference(less: ResourceFlavor) -> None:
    assert differs(body(less), seen(there()))


def test_a_part_of_a_mapping_that_is_no_longer_desired_is_a_difference() -> None:
    obj = Applied().written(QUEUE_PATH, body(queue(preemption={"a": "x", "b": "y"})), MANAGER)
    assert differs(body(queue(preemption={"a": "x"})), seen(obj, ObservedQueue))
    assert differs(body(queue(preemption={})), seen(obj, ObservedQueue))
    assert differs(body(queue()), seen(obj, ObservedQueue))


@pytest.mark.parametrize(
    ("manager", "operation", "subresource"),
    [("kueue", "Apply", ""), (MANAGER, "Update", ""), (MANAGER, "Apply", "status"), (f"{MANAGER}-2", "Apply", "")],
)
def test_fields_of_another_manager_are_not_a_difference(manager: str, operation: str, subresource: str) -> None:
    obj = there()
    fields = {"f:spec": {"f:stopPolicy": {}}, "f:metadata": {"f:labels": {"f:team": {}}}, "f:status": {"f:x": {}}}
    theirs = {"manager": manager, "operation": operation, "subresource": subresource, "fieldsV1": fields}
    obj["metadata"]["managedFields"].append(theirs)
    assert not differs(body(WANTED), seen(obj))


def test_an_object_with_the_desired_values_of_other_managers_is_written() -> None:
    """So that what is wanted no more goes later on."""
    obj = there()
    obj["metadata"]["managedFields"][0]["operation"] = "Update"
    assert differs(body(WANTED), seen(obj))


# ------------------------------------------------------------------ every wish ends


LABELS = ("a", "b", "c")


def some(chance: random.Random, names: tuple[str, ...]) -> dict[str, str]:
    return {name: chance.choice("xy") for name in names if chance.random() < 0.5}


def any_wish(chance: random.Random) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    if chance.random() < 0.7:
        spec["nodeLabels"] = some(chance, LABELS)
    if chance.random() < 0.7:
        spec["namespaceSelector"] = {"matchLabels": some(chance, LABELS)} if chance.random() < 0.5 else {}
    if chance.random() < 0.7:
        spec["nodeTaints"] = [some(chance, LABELS) for _ in range(chance.randrange(3))]
    if chance.random() < 0.7:
        nested = {"borrowWithinCohort": some(chance, LABELS)} if chance.random() < 0.5 else {}
        spec["preemption"] = {**some(chance, LABELS), **nested}
    if chance.random() < 0.5:
        spec["stopPolicy"] = chance.choice(("None", "Hold"))
    meta: dict[str, Any] = {"name": "f"}
    if labels := some(chance, LABELS):
        meta["labels"] = labels
    if chance.random() < 0.5:
        meta["ownerReferences"] = [body(OWNER)]
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": meta, "spec": spec}


def content(obj: dict[str, Any]) -> tuple[Any, ...]:
    """What managers see of an object; an empty mapping without a manager counts as absent."""
    meta = obj["metadata"]
    spec = {name: value for name, value in obj.get("spec", {}).items() if value or name in ("nodeLabels", "nodeTaints")}
    return meta.get("labels") or {}, meta.get("ownerReferences") or [], spec


@pytest.mark.parametrize("seed", range(40))
def test_an_object_differs_exactly_if_applying_it_would_change_it(seed: int) -> None:
    chance = random.Random(seed)
    server = Applied()
    for _ in range(30):
        who = chance.choice((("kubectl", "Apply"), ("kueue", "Update"), (MANAGER, "Apply"), (MANAGER, "Apply")))
        server.written(PATH, any_wish(chance), who[0], operation=who[1])
        wish = any_wish(chance)
        before = server.objects[PATH]
        quiet = not differs(wish, seen(before))
        after = server.written(PATH, wish, MANAGER)
        assert not differs(wish, seen(after)), wish
        if quiet:
            assert content(before) == content(after), wish


# ------------------------------------------------------------------ writing


class World:
    def __init__(self) -> None:
        self.api, self.store, self.meter, self.now = Applied(), Store(), MasterQueueMetrics(), 1000.0
        self.applier = Applier(self.api, self.store, self.meter, lambda: self.now)  # type: ignore[arg-type]

    def reported(self, path: str = PATH, kind: type = ObservedFlavor) -> None:
        """The event of the object as it is now."""
        self.store.observe(Change.MODIFIED, seen(self.api.objects[path], kind))

    @property
    def counted(self) -> dict[tuple[str, str], int]:
        return dict(self.meter._applies)


@pytest.fixture
def world() -> World:
    return World()


async def test_an_unknown_object_is_created_without_force_and_stored_at_once(world: World) -> None:
    assert await world.applier.apply(FLAVORS, WANTED)
    assert world.api.asked == [("apply", PATH, body(WANTED), False)]
    assert world.store.get(ObservedFlavor, "f").metadata.uid == "uid-1"
    assert not await world.applier.apply(FLAVORS, WANTED)
    assert len(world.api.asked) == 1
    assert world.counted == {("ResourceFlavor", "created"): 1}


async def test_a_known_object_is_changed_by_uid_and_with_force(world: World) -> None:
    await world.applier.apply(FLAVORS, WANTED)
    world.api.written(PATH, {**body(WANTED), "spec": {"nodeLabels": {"host": "x"}}}, "kubectl")
    world.reported()
    assert await world.applier.apply(FLAVORS, WANTED)
    _, _, sent, force = world.api.asked[-1]
    assert isinstance(sent, dict)
    assert (force, sent["metadata"]["uid"]) == (True, "uid-1")
    assert world.api.objects[PATH]["spec"]["nodeLabels"] == {"host": "n"}
    assert not await world.applier.apply(FLAVORS, WANTED)
    assert world.counted == {("ResourceFlavor", "created"): 1, ("ResourceFlavor", "changed"): 1}


async def test_an_object_in_a_namespace_has_its_path_and_key(world: World) -> None:
    wanted = LocalQueue(
        metadata=ObjectMeta(name="a", namespace="one", owner_references=(OWNER,)),
        spec=LocalQueueSpec(cluster_queue="q"),
    )
    assert await world.applier.apply(LOCAL_QUEUES, wanted)
    assert world.api.asked[0][1] == "apis/kueue.x-k8s.io/v1beta2/namespaces/one/localqueues/a"
    assert not await world.applier.apply(LOCAL_QUEUES, wanted)


async def test_an_object_that_another_client_created_meanwhile_is_not_overwritten(world: World) -> None:
    world.api.written(PATH, body(flavor(node="theirs")), "kubectl")
    with pytest.raises(Conflict):
        await world.applier.apply(FLAVORS, WANTED)
    assert world.api.objects[PATH]["spec"]["nodeLabels"] == {"host": "theirs"}
    assert world.store.get(ObservedFlavor, "f") is None
    assert world.counted == {("ResourceFlavor", "conflict"): 1}


async def test_a_recreated_object_is_not_mistaken_for_the_known_one(world: World) -> None:
    await world.applier.apply(FLAVORS, WANTED)
    del world.api.objects[PATH]
    world.api.written(PATH, body(flavor(node="theirs")), "kubectl")
    with pytest.raises(Conflict):
        await world.applier.apply(FLAVORS, flavor(node="other"))
    assert world.api.objects[PATH]["spec"]["nodeLabels"] == {"host": "theirs"}


async def test_an_object_of_another_owner_is_not_written(world: World) -> None:
    theirs = {**body(WANTED), "metadata": {"name": "f", "ownerReferences": [{**body(OWNER), "uid": "m2"}]}}
    world.api.written(PATH, theirs, MANAGER)
    world.reported()
    with pytest.raises(Conflict, match="resourceflavors f: has another owner; rename the MasterQueue, or that object"):
        await world.applier.apply(FLAVORS, WANTED)
    assert world.api.asked == []


async def test_an_error_is_counted_and_the_write_retried(world: World) -> None:
    world.api.error = Unavailable("no answer")
    for _ in range(2):
        with pytest.raises(Unavailable):
            await world.applier.apply(FLAVORS, WANTED)
    world.api.error = None
    assert await world.applier.apply(FLAVORS, WANTED)
    assert world.counted == {("ResourceFlavor", "error"): 2, ("ResourceFlavor", "created"): 1}


# ------------------------------------------------------------------ another client changes it back


def holds(obj: dict[str, Any]) -> None:
    obj["spec"]["stopPolicy"] = "Hold"


async def tried(world: World, wanted: ClusterQueue | None = None) -> str:
    """What becomes of a try to bring the queue to what is wanted."""
    asked = len(world.api.asked)
    try:
        found = "written" if await world.applier.apply(QUEUES, wanted or queue()) else "as wanted"
    except Conflict as error:
        found = "too early" if "clusterqueues q: another client (see managedFields)" in str(error) else str(error)
    assert len(world.api.asked) - asked == (found == "written")
    return found


async def test_an_object_that_another_client_reverts_is_written_ever_more_rarely(world: World) -> None:
    world.api.webhook = holds
    assert [await tried(world) for _ in range(5)] == ["written"] * 3 + ["too early"] * 2
    for pause in (2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        world.now += pause - 0.1
        assert await tried(world) == "too early"
        world.now += 0.1
        assert await tried(world) == "written"


async def test_another_desired_state_is_written_at_once(world: World) -> None:
    world.api.webhook = holds
    while await tried(world) == "written":
        pass
    assert await tried(world, queue(cohort_name="d")) == "written"
    assert await tried(world) == "written"


async def test_nothing_is_written_once_no_client_reverts_the_object(world: World) -> None:
    world.api.webhook = holds
    while await tried(world) == "written":
        pass
    world.api.webhook = lambda obj: None
    world.now += 2.0
    assert [await tried(world), await tried(world)] == ["written", "as wanted"]
    assert world.api.objects[QUEUE_PATH]["spec"]["stopPolicy"] == "None"


async def test_old_reverts_are_forgotten(world: World) -> None:
    world.api.webhook = holds
    for seconds in (0.0, 599.0, 601.0):
        world.now += seconds
        found = [await tried(world) for _ in range(4)]
        assert found.count("written") == (1 if seconds == 599.0 else 3)


async def test_the_number_of_remembered_writes_is_limited(world: World) -> None:
    """As of LocalQueues whose namespaces come and go."""
    for number in range(100):
        world.now += 10.0
        await world.applier.apply(FLAVORS, replace(WANTED, metadata=replace(WANTED.metadata, name=f"f{number}")))
    assert len(world.applier._last) == 61
    world.now += 601.0
    await world.applier.apply(FLAVORS, WANTED)
    assert len(world.applier._last) == 1


async def test_an_object_that_the_controller_deleted_is_created_again_at_once(world: World) -> None:
    for _ in range(6):
        assert await tried(world) == "written"
        known = world.store.get(ObservedQueue, "q")
        await world.applier.delete(QUEUES, known)
        world.store.observe(Change.DELETED, known)


# ------------------------------------------------------------------ deleting


async def test_an_object_is_deleted_by_uid_and_a_missing_one_is_no_error(world: World) -> None:
    await world.applier.apply(FLAVORS, WANTED)
    known = world.store.get(ObservedFlavor, "f")
    await world.applier.delete(FLAVORS, known)
    await world.applier.delete(FLAVORS, known)
    assert world.api.asked[1:] == [("delete", PATH, "uid-1", False)] * 2
    assert world.api.objects == {}


@pytest.mark.parametrize(
    ("error", "result"), [(Conflict("409"), "conflict"), (Forbidden("403"), "error"), (Unavailable("no"), "error")]
)
async def test_a_deletion_that_fails_is_counted_and_raised(world: World, error: Exception, result: str) -> None:
    await world.applier.apply(FLAVORS, WANTED)
    world.api.error = error
    with pytest.raises(type(error)):
        await world.applier.delete(FLAVORS, world.store.get(ObservedFlavor, "f"))
    assert world.counted == {("ResourceFlavor", "created"): 1, ("ResourceFlavor", result): 1}
