"""Claims in a cluster in memory: allocations that are held, written, shared, freed and repaired.

tests/conformance/filters compares filters and allocations with kube-scheduler. Not covered of kube-scheduler's own
tests: features behind gates that are off by default (list attributes, node allocatable resources), its caches and
metrics, and time limits, which are work limits here.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from session_scheduler import hookimpl
from session_scheduler.builtin.devices.holdings import Holdings
from session_scheduler.builtin.dynamic_resources import DynamicResources, DynamicResourcesArguments
from session_scheduler.cluster.errors import Conflict, Unavailable
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.framework.bindings import Runtime
from session_scheduler.framework.board import Board
from session_scheduler.framework.evaluation import Evaluation
from session_scheduler.model.devices import (
    CONSUMERS_LIMIT,
    FINALIZER,
    Allocation,
    Consumer,
    DeviceClass,
    DeviceCondition,
    DeviceStatus,
    ResourceClaim,
    ResourceClaimStatus,
    ResourceSlice,
)
from session_scheduler.model.groups import Phase
from session_scheduler.model.objects import Pod
from session_scheduler.offline.status import status_of
from session_scheduler.testing import FakeCluster, gang, pod

DRIVER = "d.example.com"


def plugin_of(scheduler: Scheduler) -> DynamicResources:
    (calls,) = scheduler.profiles.values()
    plugin = calls.instances["DynamicResources"]
    assert isinstance(plugin, DynamicResources)
    return plugin


def made(kind: Any, name: str, namespace: str = "", **fields: Any) -> Any:
    return msgspec.convert({"kind": kind.__name__, "metadata": {"name": name, "namespace": namespace}, **fields}, kind)


def device_class(name: str = "gpu", **spec: Any) -> DeviceClass:
    found: DeviceClass = made(DeviceClass, name, spec=spec)
    return found


def slice_of(node: str, *devices: str, pool: str = "", slices: int = 1, **of_each: Any) -> ResourceSlice:
    spec = {"driver": DRIVER, "nodeName": node, "devices": [{"name": name, **of_each} for name in devices],
            "pool": {"name": pool or node, "generation": 1, "resourceSliceCount": slices}}  # fmt: skip
    found: ResourceSlice = made(ResourceSlice, f"{pool or node}-devices", spec=spec)
    return found


def claim(name: str, count: int = 1, **exactly: Any) -> ResourceClaim:
    request = {"name": "r", "exactly": {"deviceClassName": "gpu", "count": count, **exactly}}
    found: ResourceClaim = made(ResourceClaim, name, "default", spec={"devices": {"requests": [request]}})
    return found


def user(name: str, *claims: str, **options: Any) -> Pod:
    entries = tuple({"name": f"e{n}", "resourceClaimName": one} for n, one in enumerate(claims))
    return pod(name, resource_claims=entries, **options)


def world(*objects: Any, nodes: int = 2, devices: tuple[str, ...] = ("a", "b"), **of_each: Any) -> FakeCluster:
    cluster = FakeCluster()
    cluster.nodes(nodes)
    cluster.add(device_class(), slice_of("n1", *devices, **of_each), *objects)
    return cluster


def status(cluster: FakeCluster, name: str) -> ResourceClaimStatus:
    found = asyncio.run(cluster.memory.get(ResourceClaim, "default", name))
    return found.status


def devices_of(cluster: FakeCluster, name: str) -> list[str]:
    allocation = status(cluster, name).allocation
    return [result.device for result in allocation.devices.results] if allocation is not None else []


def users_of(cluster: FakeCluster, name: str) -> list[str]:
    return sorted(consumer.name for consumer in status(cluster, name).reserved_for)


def test_each_pod_gets_devices_of_its_own_written_before_it_is_bound() -> None:
    cluster = world(*(claim(f"c{n}") for n in range(3)), *(user(f"p{n}", f"c{n}") for n in range(3)))
    cluster.run()
    placed = {name: node for name, node in cluster.placements().items() if node is not None}
    assert set(placed.values()) == {"n1"}
    assert len(placed) == 2
    names = [name.replace("default/p", "c") for name in placed]
    assert sorted(devices_of(cluster, name)[0] for name in names) == ["a", "b"]
    for name in names:
        stored = asyncio.run(cluster.memory.get(ResourceClaim, "default", name))
        assert stored.metadata.finalizers == (FINALIZER,)
        assert stored.status.allocation is not None
        assert stored.status.allocation.allocation_timestamp is not None
    (waits,) = {"p0", "p1", "p2"} - {name.removeprefix("default/") for name in placed}
    cluster.assert_pending(waits, "0/2 nodes are available: 2 cannot allocate all claims.")


def in_memory(kind: type) -> int:
    """The number of objects of a type."""
    return sum(isinstance(one, kind) for one in gc.get_objects())


class Counts:
    """Counts the objects of a type that a session keeps."""

    name = "counts"
    kept = 0

    def __init__(self, kind: type) -> None:
        self.kind = kind

    @hookimpl
    def on_session_close(self) -> None:
        self.kept = in_memory(self.kind)


def test_a_placed_pod_with_its_own_claim_leaves_no_board_in_its_session() -> None:
    """Each such pod has a class of its own, and a board has columns over all nodes."""
    gc.collect()
    counts = Counts(Board)
    devices = tuple(f"d{n}" for n in range(30))
    cluster = world(*(claim(f"c{n}") for n in range(30)), *(user(f"p{n}", f"c{n}") for n in range(30)), devices=devices)
    cluster.start(counts)
    before = in_memory(Board)
    cluster.run()
    assert set(cluster.placements().values()) == {"n1"}
    assert counts.kept - before <= 2


def test_a_placed_pod_with_its_own_claim_leaves_no_evaluation_beside_nominated_pods() -> None:
    counts = Counts(Evaluation)
    devices = tuple(f"d{n}" for n in range(30))
    cluster = world(*(claim(f"c{n}") for n in range(30)), devices=devices)
    only = {"only": "n3"}
    cluster.node("n3", cpu="1", labels=only).add(pod("low", cpu="1", priority=1, bound_to="n3"))
    cluster.add(pod("high", cpu="1", priority=10, node_selector=only))
    cluster.start(counts)
    cluster.run()
    assert cluster.scheduler.cache.nominations.node_by_uid
    cluster.add(user(f"p{n}", f"c{n}", priority=1) for n in range(30))
    gc.collect()
    before = in_memory(Evaluation)
    cluster.run()
    assert sum(node == "n1" for node in cluster.placements().values()) == 30
    assert counts.kept - before <= 4


def test_pods_share_a_claim_and_follow_it() -> None:
    cluster = world(claim("c"), *(user(f"p{n}", "c") for n in range(3)))
    cluster.run(cycles=3)
    assert set(cluster.placements().values()) == {"n1"}
    assert users_of(cluster, "c") == ["p0", "p1", "p2"]
    assert len(devices_of(cluster, "c")) == 1


def test_a_gang_shares_a_claim_that_is_allocated_with_its_first_member() -> None:
    members = [replace(one, spec=replace(one.spec, resource_claims=({"name": "e", "resourceClaimName": "c"},)))
               if isinstance(one, Pod) else one for one in gang("g", 3)]  # fmt: skip
    cluster = world(claim("c"), members)
    cluster.run(cycles=2)
    assert set(cluster.placements().values()) == {"n1"}
    assert users_of(cluster, "c") == ["g-0", "g-1", "g-2"]


def test_a_gang_that_lacks_a_device_holds_none() -> None:
    entries = [({"name": "e", "resourceClaimName": f"c{n}"},) for n in range(3)]
    members = gang("g", 3)
    pods = [one for one in members if isinstance(one, Pod)]
    own = [
        replace(one, spec=replace(one.spec, resource_claims=entry)) for one, entry in zip(pods, entries, strict=True)
    ]
    cluster = world(members[0], *own, *(claim(f"c{n}") for n in range(3)), claim("single"))
    cluster.run()
    assert not any(cluster.placements().values())
    cluster.add(user("after", "single"))
    cluster.run()
    cluster.assert_bound("after", "n1")


def test_devices_of_a_deallocated_claim_go_to_a_pending_pod() -> None:
    cluster = world(claim("c0"), claim("c1"), user("p0", "c0"), devices=("a",))
    cluster.run()
    cluster.add(user("p1", "c1"))
    cluster.run()
    cluster.assert_pending("p1", "cannot allocate all claims")
    cluster.memory.put(
        replace(asyncio.run(cluster.memory.get(ResourceClaim, "default", "c0")), status=ResourceClaimStatus())
    )
    cluster.advance(60)
    cluster.run()
    cluster.assert_bound("p1", "n1")


@pytest.mark.parametrize("arrives", [claim("c"), device_class("other"), slice_of("n2", "x")], ids=lambda o: o.key)
def test_only_the_object_that_a_pod_waits_for_requeues_it(arrives: Any) -> None:
    objects = [one for one in (claim("c"), device_class("other"), slice_of("n2", "x")) if one.key != arrives.key]
    cluster = world(*objects, user("p", "c"), devices=())
    if arrives.key != "default/c":
        cluster.delete(ResourceClaim, "c")
        wants = "other" if arrives.key == "other" else "gpu"
        cluster.add(claim("c", deviceClassName=wants))
    cluster.run()
    cluster.assert_pending("p")
    cluster.add(claim("unrelated"), pod("another", bound_to="n1"))
    cluster.advance(20)
    cluster.run()
    cluster.assert_pending("p")
    task = cluster.scheduler.cache.tasks[_uid(cluster, "p")]
    gated = arrives.key == "default/c"  # a pod with a missing claim is gated
    assert cluster.scheduler.queue.is_unschedulable(task.group.key) is not gated
    assert (task.phase is Phase.GATED) is gated
    cluster.add(arrives)
    cluster.run()
    cluster.assert_bound("p", "n2")


def _uid(cluster: FakeCluster, name: str) -> str:
    return asyncio.run(cluster.memory.get(Pod, "default", name)).metadata.uid


WAITS: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "no claim": ([], {"resourceClaimName": "c"}, 'could not find ResourceClaim "default/c"'),
    "not made yet": ([], {"resourceClaimTemplateName": "t"}, 'pod "default/p": ResourceClaim not created yet'),
    "neither": ([], {}, 'pod "default/p", spec.resourceClaim "e": none of the supported fields are set'),
    "unknown class": ([claim("c", deviceClassName="no")], {"resourceClaimName": "c"},
                      "request r: device class no does not exist"),
    "wrong selector": ([claim("c", selectors=[{"cel": {"expression": "device.nothing"}}])], {"resourceClaimName": "c"},
                       "claim default/c: selector #0: CEL compile error"),
    "unknown mode": ([claim("c", allocationMode="Some")], {"resourceClaimName": "c"},
                     "claim default/c, request r: unsupported count mode Some"),
    "too many": ([claim("c", 33)], {"resourceClaimName": "c"},
                 "claim default/c: number of requested devices 33 exceeds the claim limit of 32"),
}  # fmt: skip


@pytest.mark.parametrize("case", WAITS)
def test_a_wrong_claim_fails_its_own_pod_with_kube_schedulers_reason(case: str) -> None:
    objects, entry, reason = WAITS[case]
    cluster = world(
        *objects, claim("right"), user("right", "right"), pod("p", resource_claims=({"name": "e", **entry},))
    )
    cluster.run()
    cluster.assert_pending("p", reason)
    cluster.assert_bound("right", "n1")


ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "no selector": ({"selectors": [{"cel": {"expression": "device.attributes["}}]},
                    "claim default/c: selector #0: CEL compile error: compilation failed"),
    "no result": ({"selectors": [{"cel": {"expression": 'device.attributes["x"].y'}}]},
                  "claim default/c: selector #0: CEL runtime error: no such key: y"),
    "unknown mode": ({"allocationMode": "Some"}, "claim default/c, request r: unsupported count mode Some"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_in_a_claim_fails_the_attempt_like_kube_scheduler_and_the_pod_is_retried(case: str) -> None:
    wrong, problem = ERRORS[case]
    cluster = world(claim("c", **wrong), claim("d"), user("p", "c"), user("q", "d"))
    cluster.run()
    cluster.assert_bound("q", "n1")
    cluster.assert_pending("p", f'running "DynamicResources" filter plugin: {problem}')
    key = cluster.scheduler.cache.tasks[_uid(cluster, "p")].group.key
    refusal = cluster.scheduler.outcomes[key].refusal
    assert refusal is not None
    assert refusal.failed  # reported as SchedulerError
    assert not cluster.scheduler.queue.is_unschedulable(key)
    cluster.add(claim("c"))
    cluster.advance(20)
    cluster.run()
    cluster.assert_bound("p", "n1")


def test_a_claim_without_a_class_name_fails_the_attempt_before_the_filters() -> None:
    cluster = world(claim("c", deviceClassName=""), user("p", "c"))
    cluster.run()
    cluster.assert_pending("p", 'running PreFilter plugin "DynamicResources": request r: unsupported request type')


def test_a_pod_waits_for_a_claim_with_the_maximum_number_of_consumers() -> None:
    consumers = tuple(Consumer(resource="pods", name=f"p{n}", uid=f"u{n}") for n in range(CONSUMERS_LIMIT))
    full = allocated_to(claim("c"), "n1", "a")
    cluster = world(replace(full, status=replace(full.status, reserved_for=consumers)), user("p", "c"))
    cluster.run()
    cluster.assert_pending("p", "resourceclaim in use")


def test_an_allocation_with_an_invalid_node_selector_fails_the_attempt_and_keeps_its_devices() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "Near", "values": ["a"]}]}]
    status = {"allocation": {"nodeSelector": {"nodeSelectorTerms": terms}}}
    cluster = world(replace(claim("c"), status=msgspec.convert(status, ResourceClaimStatus)), user("p", "c"))
    cluster.run()
    cluster.assert_pending("p", "resource claim default/c: status.allocation.nodeSelector.nodeSelectorTerms[0]."
                           "matchExpressions[0].operator: 'Near' is unknown")  # fmt: skip
    assert not plugin_of(cluster.scheduler)._repairs.waiting


def test_a_pool_with_invalid_quantities_is_invalid_and_other_pools_still_work() -> None:
    counters = made(ResourceSlice, "counters", spec={
        "driver": DRIVER, "nodeName": "n1", "pool": {"name": "bad", "generation": 1, "resourceSliceCount": 2},
        "sharedCounters": [{"name": "whole", "counters": {"memory": {"value": "4"}}}]})  # fmt: skip
    consumes = [{"counterSet": "whole", "counters": {"memory": {"value": "much"}}}]
    bad = slice_of("n1", "x", pool="bad", slices=2, consumesCounters=consumes)
    cluster = world(bad, counters, claim("c", 2), claim("d"), user("p", "c"), user("q", "d"))
    cluster.run()
    assert devices_of(cluster, "c") == ["a", "b"]
    cluster.assert_pending("q", "2 invalid resource pools were encountered")


@pytest.mark.parametrize("since", ["yesterday", "2026-01-01T00:00:00"])
def test_an_invalid_allocation_timestamp_does_not_time_out_devices(since: str) -> None:
    result = {"request": "r", "driver": DRIVER, "pool": "n1", "device": "a", "bindingConditions": ["ready"]}
    reported = {"allocation": {"devices": {"results": [result]}, "allocationTimestamp": since}}
    cluster = world(replace(claim("c"), status=msgspec.convert(reported, ResourceClaimStatus)), user("p", "c"))
    scheduler = cluster.start()
    plugin_of(scheduler)._writer._timeout = 0.1
    cluster.run()
    cluster.assert_pending("p", "device binding timeout: claim=c")


def test_a_claim_that_another_client_allocated_in_the_meantime_keeps_its_allocation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = world(claim("c"), user("p", "c"))
    write = cluster.memory.allocate_claim

    async def raced(self: Any, one: ResourceClaim, wanted: ResourceClaimStatus) -> ResourceClaim:
        monkeypatch.setattr(cluster.memory, "allocate_claim", write)
        assert wanted.allocation is not None
        other = tuple(replace(result, device="b") for result in wanted.allocation.devices.results)
        taken = replace(wanted.allocation, devices=replace(wanted.allocation.devices, results=other))
        cluster.scheduler.cache.put(cluster.memory.put(replace(one, status=ResourceClaimStatus(allocation=taken))))
        raise Conflict("it moved")

    monkeypatch.setattr(cluster.memory, "allocate_claim", raced.__get__(cluster.memory))
    cluster.run()
    cluster.assert_pending("p", "was allocated elsewhere in the meantime")
    cluster.advance(60)
    cluster.run()
    cluster.assert_bound("p", "n1")
    assert devices_of(cluster, "c") == ["b"]


def test_devices_are_free_again_after_a_failed_write(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = world(claim("c"), claim("d"), user("p", "c"), devices=("a",))

    async def refused(*_: Any) -> Any:
        raise Unavailable("the API server is away")

    with monkeypatch.context() as patched:
        patched.setattr(cluster.memory, "allocate_claim", refused)
        cluster.run()
    cluster.assert_pending("p", "the API server is away")
    cluster.delete(Pod, "p")
    cluster.add(user("q", "d"))
    cluster.run()
    cluster.assert_bound("q", "n1")


def test_a_claim_that_keeps_its_only_user_from_all_nodes_is_deallocated() -> None:
    stuck = claim("c")
    cluster = world(stuck, user("p", "c"))
    plugin = DynamicResources()
    cluster.run()
    stored = asyncio.run(cluster.memory.get(ResourceClaim, "default", "c"))
    failed = DeviceStatus(driver=DRIVER, pool="n1", device="a", conditions=())
    assert stored.status.devices == ()
    assert failed.device in {"a", "b"}

    async def repaired() -> ResourceClaim:
        async with plugin.serve(Runtime(lambda *_: None, lambda: True, cluster.memory)):
            plugin._repairs.waiting[stored.metadata.uid] = stored
            assert plugin._repairs._noted is not None
            plugin._repairs._noted.set()
            async with asyncio.timeout(10):
                while cluster.find(ResourceClaim, "c").status != ResourceClaimStatus():  # noqa: ASYNC110
                    await asyncio.sleep(0)
        return await cluster.memory.get(ResourceClaim, "default", "c")

    assert asyncio.run(repaired()).status == ResourceClaimStatus()


def test_a_claim_whose_devices_failed_to_bind_is_noted_for_deallocation() -> None:
    cluster = world(claim("c"), devices=("a",), bindingConditions=["ready"], bindingFailureConditions=["broken"])
    stored = asyncio.run(cluster.memory.get(ResourceClaim, "default", "c"))
    result = {"request": "r", "driver": DRIVER, "pool": "n1", "device": "a", "bindingConditions": ["ready"],
              "bindingFailureConditions": ["broken"]}  # fmt: skip
    broken = DeviceCondition(type="broken", status="True", reason="Fan", message="it smells")
    reported = DeviceStatus(driver=DRIVER, pool="n1", device="a", conditions=(broken,))
    allocated = msgspec.convert({"allocation": {"devices": {"results": [result]}}}, ResourceClaimStatus)
    cluster.memory.put(replace(stored, status=replace(allocated, devices=(reported,))))
    cluster.add(user("p", "c"))
    scheduler = cluster.start()
    cluster.run()
    cluster.assert_pending("p", "0/2 nodes are available: 2 resourceclaim not available on the node.")
    assert [one.key for one in plugin_of(scheduler)._repairs.waiting.values()] == ["default/c"]


def test_a_pod_is_bound_only_once_its_devices_are_usable() -> None:
    cluster = world(claim("c"), user("p", "c"), devices=("a",), bindingConditions=["ready"])
    DynamicResourcesArguments(binding_timeout_seconds=1)
    scheduler = cluster.start()
    plugin_of(scheduler)._writer._timeout = 0.1
    reported: list[tuple[str, str, str]] = []
    scheduler.binder._record_event = lambda pod, reason, note: reported.append((pod.key, reason, note))
    cluster.run()
    cluster.assert_pending("p", 'running PreBind plugin "DynamicResources": device binding timeout: claim=c')
    assert devices_of(cluster, "c") == ["a"]
    waits = "waiting for binding conditions for device on node n1"
    assert reported == [("default/p", "BindingConditionsPending", waits)]


def allocated_to(one: ResourceClaim, node: str, device: str) -> ResourceClaim:
    """The claim allocated with a device of one node."""
    only = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    result = {"request": "r", "driver": DRIVER, "pool": node, "device": device}
    reported = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [only]}}
    return replace(one, status=msgspec.convert({"allocation": reported}, ResourceClaimStatus))


def test_a_claim_that_is_usable_where_the_pod_may_go_keeps_its_devices() -> None:
    cluster = world(allocated_to(claim("c"), "n1", "a"), user("p", "c", node_selector={"no": "node"}))
    cluster.run()
    cluster.assert_pending("p")
    assert not plugin_of(cluster.scheduler)._repairs.waiting


def test_an_allocation_by_another_client_counts_in_addition_to_the_held_one() -> None:
    holdings, free = Holdings(), claim("c")
    free = replace(free, metadata=replace(free.metadata, uid="u", resource_version="1"))
    ours, theirs = (allocated_to(free, "n1", device) for device in ("a", "b"))
    theirs = replace(theirs, metadata=replace(free.metadata, resource_version="2"))
    holdings.see({free.key: free}, 1)
    assert ours.status.allocation is not None
    holdings.hold("pod", free, ours.status.allocation)
    holdings.see({free.key: theirs}, 2)
    assert [holdings.usage.is_exclusive((DRIVER, "n1", device)) for device in ("a", "b")] == [True, True]
    holdings.release("pod")
    assert [holdings.usage.is_exclusive((DRIVER, "n1", device)) for device in ("a", "b")] == [False, True]
    holdings.see({}, 3)
    assert not holdings.usage.is_exclusive((DRIVER, "n1", "b"))


def test_queues_learn_of_each_allocation_that_is_held_and_of_its_end() -> None:
    seen: list[Allocation | None] = []
    holdings, free = Holdings(lambda _, allocation: seen.append(allocation)), claim("c")
    free = replace(free, metadata=replace(free.metadata, uid="u", resource_version="1"))
    ours = allocated_to(free, "n1", "a")
    allocation = ours.status.allocation
    assert allocation is not None
    holdings.see({free.key: free}, 1)
    holdings.hold("pod", free, allocation)
    holdings.release("pod")
    assert seen == [allocation, None]

    holdings.hold("pod", free, allocation)
    holdings.wrote(replace(ours, metadata=replace(free.metadata, resource_version="2")))
    holdings.release("pod")
    assert seen == [allocation, None, allocation, allocation], "the allocation is written"
    holdings.see({free.key: replace(free, metadata=replace(free.metadata, resource_version="4"))}, 2)
    assert seen[4:] == [None], "the watch shows the claim after its deallocation"


def test_devices_of_a_claim_deleted_before_its_write_was_answered_are_free() -> None:
    holdings, free = Holdings(), claim("c")
    free = replace(free, metadata=replace(free.metadata, uid="u", resource_version="1"))
    ours = allocated_to(free, "n1", "a")
    holdings.see({free.key: free}, 1)
    assert ours.status.allocation is not None
    holdings.hold("pod", free, ours.status.allocation)
    holdings.see({}, 2)
    holdings.wrote(replace(ours, metadata=replace(free.metadata, resource_version="5")))
    holdings.release("pod")
    holdings.see({}, 2, 4)
    assert holdings.usage.is_exclusive((DRIVER, "n1", "a"))
    holdings.see({}, 2, 6)
    assert not holdings.usage.is_exclusive((DRIVER, "n1", "a"))


def test_devices_for_extended_resources_are_free_after_the_claim_is_deleted() -> None:
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(device_class(extendedResourceName="example.com/gpu"), slice_of("n1", "a"))
    for name in ("p", "q", "r"):
        cluster.add(pod(name, requests={"example.com/gpu": 1}))
        cluster.run()
        cluster.assert_bound(name, "n1")
        (made_for_it,) = cluster.memory.objects(ResourceClaim)
        cluster.delete(Pod, name)
        freed = replace(made_for_it, metadata=replace(made_for_it.metadata, finalizers=()))
        cluster.memory.put(replace(freed, status=ResourceClaimStatus()))
        cluster.delete(ResourceClaim, made_for_it.metadata.name)


def test_a_report_names_the_devices_of_a_pods_claims() -> None:
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("plain"))
    cluster.run()
    assert cluster.plugin("DynamicResources").report(cluster.find(Pod, "plain")) is None, "no pod has claims"
    cluster.add(device_class(extendedResourceName="example.com/gpu"), slice_of("n1", *"abcd"))
    earlier = allocated_to(claim("earlier"), "n1", "d")
    cluster.add(claim("c"), claim("wide", 9), earlier, user("first", "c"), user("later", "c"), user("waits", "wide"),
                user("has", "earlier"), pod("extended", requests={"example.com/gpu": 2}))  # fmt: skip
    cluster.run(cycles=2)
    shown = {name: cluster.plugin("DynamicResources").report(cluster.find(Pod, name))["devices"]
             for name in ("plain", "first", "later", "has", "extended", "waits")}  # fmt: skip
    (own,) = shown["first"]
    rest = sorted({f"{DRIVER}/n1/{device}" for device in "abc"} - {own})
    assert shown == {"plain": [], "first": [own], "later": [own], "has": [f"{DRIVER}/n1/d"], "extended": rest,
                     "waits": []}  # fmt: skip


def test_status_names_the_devices_of_bound_pods_after_a_restart() -> None:
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(device_class(), slice_of("n1", "a"), claim("c"), user("p", "c"))
    cluster.run()
    (held,) = status_of(cluster.restart().start())["held"]
    assert held["devices"] == [f"{DRIVER}/n1/a"]


def test_extended_resources_become_devices_on_nodes_that_do_not_offer_them() -> None:
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(device_class(extendedResourceName="example.com/gpu"), slice_of("n1", "a", "b"))
    cluster.add(pod("p", requests={"example.com/gpu": 2}), pod("q", requests={"example.com/gpu": 1}))
    cluster.run()
    (bound,) = [name for name, node in cluster.placements().items() if node]
    named = asyncio.run(cluster.memory.get(Pod, *bound.split("/"))).status.extended_resource_claim_status
    assert named is not None
    assert {one.resource_name for one in named.request_mappings} == {"example.com/gpu"}
    assert users_of(cluster, named.resource_claim_name) == [bound.removeprefix("default/")]


def test_an_attempt_stops_at_its_work_limit_and_the_next_one_gets_further() -> None:
    plugin = DynamicResources(DynamicResourcesArguments(selector_cost=30))
    expression = f'device.attributes["{DRIVER}"].n == 0 || [1, 2, 3].all(x, x > 0)'
    cluster = FakeCluster()
    cluster.nodes(4)
    cluster.add(device_class(), claim("c", selectors=[{"cel": {"expression": expression}}]), user("p", "c"))
    for number in range(1, 5):
        cluster.add(slice_of(f"n{number}", "a", attributes={"n": {"int": number}}))
    scheduler = cluster.start()
    plugin_of(scheduler)._evaluator._cost = plugin._evaluator._cost
    cluster.run()
    cluster.assert_pending("p", "timed out trying to allocate devices")
    for _ in range(6):
        cluster.advance(400)
        cluster.run()
    assert cluster.node_of("p") is not None


def test_the_selector_cost_limit_applies_to_all_pods_of_a_session_together() -> None:
    expressions = [f"[{n}, 2, 3].all(x, x >= 0)" for n in range(4)]
    claims = [claim(f"c{n}", selectors=[{"cel": {"expression": one}}]) for n, one in enumerate(expressions)]
    users = [user(f"p{n}", f"c{n}") for n in range(4)]
    cluster = world(*claims, *users, pod("other"), devices=("a", "b", "c", "d"))
    scheduler = cluster.start()
    plugin_of(scheduler)._evaluator._cost = 30
    cluster.run()
    assert [cluster.node_of(f"p{n}") for n in range(4)].count(None) >= 2
    cluster.assert_pending("p3", "node n1: timed out trying to allocate devices")
    cluster.assert_bound("other")
    for _ in range(3):
        cluster.advance(20)
        cluster.run()
    assert [cluster.node_of(f"p{n}") for n in range(4)] == ["n1"] * 4


def test_another_namespace_has_its_own_selector_cost_limit() -> None:
    expressions = [f"[{n}, 2, 3].all(x, x >= 0)" for n in range(5)]
    claims = [claim(f"c{n}", selectors=[{"cel": {"expression": one}}]) for n, one in enumerate(expressions)]
    calm = replace(claims[4], metadata=replace(claims[4].metadata, namespace="calm"))
    users = [user(f"p{n}", f"c{n}") for n in range(4)]
    cluster = world(*claims[:4], calm, *users, user("calm", "c4", namespace="calm"), devices=tuple("abcde"))
    plugin_of(cluster.start())._evaluator._cost = 30
    cluster.run()
    assert [cluster.node_of(f"p{n}") for n in range(4)].count(None) >= 2
    assert cluster.placements()["calm/calm"] == "n1"


def test_a_claim_write_checks_the_resource_version_and_the_number_of_consumers() -> None:
    async def run() -> None:
        cluster = MemoryCluster([claim("c")])
        read = await cluster.get(ResourceClaim, "default", "c")
        consumers = tuple(Consumer(resource="pods", name=f"p{n}", uid=f"u{n}") for n in range(CONSUMERS_LIMIT + 1))
        with pytest.raises(Exception, match="Too many: 257"):
            await cluster.allocate_claim(read, ResourceClaimStatus(reserved_for=consumers))
        await cluster.allocate_claim(read, ResourceClaimStatus(reserved_for=consumers[1:]))
        with pytest.raises(Conflict):
            await cluster.allocate_claim(read, ResourceClaimStatus())

    asyncio.run(run())
