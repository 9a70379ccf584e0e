"""Claims for the devices that Slurm gave, in a cluster in memory; the shares are made by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fluence_plugins.slurm_bridge.devices.node_devices import before
from fluence_plugins.slurm_bridge.devices.resource_claims import claim, needs, refusal
from fluence_plugins.slurm_bridge.slurm.model import Gres, NodeShare
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.errors import AttemptError
from session_scheduler.framework.bindings import Binding
from session_scheduler.hookspecs import hookimpl
from session_scheduler.model.devices import CLASS_PREFIX, EXTENDED_CLAIM, DeviceClass, ResourceClaim, ResourceSlice
from session_scheduler.model.groups import Task
from session_scheduler.model.objects import Container, Pod, ResourceRequirements
from session_scheduler.testing import FakeCluster, pod

GPU = "gpu.example.com"
NVIDIA = "gpu.nvidia.com"
CPU = "dra.cpu"


def indexed(type_: str, indices: tuple[int, ...]) -> Gres:
    return Gres(name="gpu", type=type_, count=len(indices), indices=indices)


def gave(gres: tuple[Gres, ...] = (), cores: tuple[int, ...] = ()) -> NodeShare:
    return NodeShare(node="slurm-1", cores=cores, gres=gres, memory_mib=0)


class Bridge:
    """Claims `shares` before each bind."""

    name = "bridge"

    def __init__(self) -> None:
        self.shares: dict[str, NodeShare] = {}
        self.gres = ""
        self.fails = 0
        """So many binds fail after the claim."""

    @hookimpl
    async def prebind(self, binding: Binding) -> None:
        await claim(binding, self.shares[binding.pod.metadata.name], self.gres)
        if self.fails:
            self.fails -= 1
            raise AttemptError("something else failed")


def made(kind: Any, name: str, **fields: Any) -> Any:
    return msgspec.convert({"kind": kind.__name__, "metadata": {"name": name}, **fields}, kind)


def device_class(name: str = GPU, **spec: Any) -> DeviceClass:
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "{name}"'}}], **spec}
    found: DeviceClass = made(DeviceClass, name, spec=spec)
    return found


def slice_of(driver: str, node: str, *devices: dict[str, Any], generation: int = 1, suffix: str = "") -> ResourceSlice:
    spec = {"driver": driver, "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1}}  # fmt: skip
    found: ResourceSlice = made(ResourceSlice, f"{node}-{driver}{suffix}", spec=spec)
    return found


def example(index: int, name: str = "") -> dict[str, Any]:
    return {"name": name or f"dev-{9 - index}", "attributes": {"index": {"int": index}}}


def nvidia(*indices: int) -> list[dict[str, Any]]:
    return [{"name": f"gpu-{index}"} for index in indices]


def cpu(number: int, core: int, socket: int, **more: Any) -> dict[str, Any]:
    values = {"cpuID": number, "coreID": core, "socketID": socket}
    attributes = {f"{CPU}/{name}": {"int": value} for name, value in values.items()}
    return {"name": f"cpu-{number}", "attributes": {**attributes, **more}}


def user(name: str, scheduler: str = "fluence", **amounts: int) -> Pod:
    requests = {f"{CLASS_PREFIX}{key.replace('_', '.')}": amount for key, amount in amounts.items()}
    return pod(name, requests=requests, scheduler=scheduler)


def world(*objects: Any, nodes: int = 1) -> tuple[FakeCluster, Bridge]:
    cluster, bridge = FakeCluster(), Bridge()
    cluster.nodes(nodes).without("DynamicResources").use(bridge)
    cluster.add(device_class(), device_class(NVIDIA), device_class(CPU), *objects)
    return cluster, bridge


def claims_of(cluster: FakeCluster) -> list[ResourceClaim]:
    return sorted(cluster.memory.objects(ResourceClaim), key=lambda one: one.metadata.name)


def devices_of(claim: ResourceClaim) -> list[tuple[str, str, str]]:
    allocation = claim.status.allocation
    return [(one.driver, one.pool, one.device) for one in allocation.devices.results] if allocation else []


def the_claim(cluster: FakeCluster) -> ResourceClaim:
    (found,) = claims_of(cluster)
    return found


def move(cluster: FakeCluster, name: str, node: str) -> None:
    """Let the pod fit on this node only."""
    for n in (1, 2):
        cluster.node(f"n{n}", unschedulable=node != f"n{n}")
    assert cluster.node_of(name) is None


def test_the_pods_claim_has_the_devices_whose_index_slurm_gave() -> None:
    devices = [example(index) for index in range(4)]
    cluster, bridge = world(slice_of(GPU, "n1", *devices), user("p", gpu_example_com=2))
    bridge.shares["p"] = gave((indexed(GPU, (1, 3)),))
    cluster.run()
    cluster.assert_bound("p", "n1")
    found = the_claim(cluster)
    assert devices_of(found) == [(GPU, "n1", "dev-6"), (GPU, "n1", "dev-8")]
    assert found.metadata.annotations == {EXTENDED_CLAIM: "true"}
    assert [(one.name, one.controller) for one in found.metadata.owner_references] == [("p", True)]
    (request,) = found.spec.devices.requests
    assert request.exactly is not None
    assert (request.exactly.device_class_name, request.exactly.count) == (GPU, 2)
    allocation = found.status.allocation
    assert allocation is not None
    assert allocation.node_selector is not None
    (term,) = allocation.node_selector.node_selector_terms
    assert [(one.key, one.values) for one in term.match_fields] == [("metadata.name", ("n1",))]
    bound = asyncio.run(cluster.memory.get(Pod, "default", "p"))
    assert [one.uid for one in found.status.reserved_for] == [bound.metadata.uid]
    named = bound.status.extended_resource_claim_status
    assert named is not None
    assert named.resource_claim_name == found.metadata.name
    (mapping,) = named.request_mappings
    container = bound.spec.containers[0].name
    asked = (mapping.container_name, mapping.resource_name, mapping.request_name)
    assert asked == (container, CLASS_PREFIX + GPU, request.name)


def test_gpus_of_nvidia_are_found_by_their_name_and_parts_of_them_are_none() -> None:
    parts = {"name": "gpu-1-mig-1g10gb-14-1"}
    cluster, bridge = world(slice_of(NVIDIA, "n1", parts, *nvidia(0, 1)), user("p", gpu_nvidia_com=1))
    bridge.shares["p"] = gave((indexed(NVIDIA, (1,)),))
    cluster.run()
    assert devices_of(the_claim(cluster)) == [(NVIDIA, "n1", "gpu-1")]


def test_of_a_whole_node_only_as_many_are_claimed_as_the_pod_asks_for() -> None:
    cluster, bridge = world(slice_of(NVIDIA, "n1", *nvidia(*range(8))), user("p", gpu_nvidia_com=2))
    bridge.shares["p"] = gave((indexed(NVIDIA, tuple(range(8))),), cores=tuple(range(64)))
    cluster.run()
    assert [device for _, _, device in devices_of(the_claim(cluster))] == ["gpu-0", "gpu-1"]


def test_classes_beside_each_other_have_a_request_each() -> None:
    cluster, bridge = world(
        slice_of(NVIDIA, "n1", *nvidia(0, 1)), slice_of(GPU, "n1", example(0)),
        user("p", gpu_nvidia_com=1, gpu_example_com=1),
    )  # fmt: skip
    bridge.shares["p"] = gave((indexed(NVIDIA, (1,)), indexed(GPU, (0,))))
    cluster.run()
    found = the_claim(cluster)
    assert devices_of(found) == [(GPU, "n1", "dev-9"), (NVIDIA, "n1", "gpu-1")]
    assert len({one.name for one in found.spec.devices.requests}) == 2


def test_slurm_counts_all_types_of_a_gres_in_turn() -> None:
    """As slurmctld 26.05 answers for a node with `gpu:a:2,gpu:b:2`: those of the second type are 2 and 3."""
    cluster, bridge = world(slice_of(GPU, "n1", example(0), example(1)), slice_of(NVIDIA, "n1", *nvidia(0, 1)),
                            user("p", gpu_nvidia_com=1, gpu_example_com=1))  # fmt: skip
    bridge.gres = f"gpu:{GPU}:2(S:0-1),gpu:{NVIDIA}:2(S:0-1)"
    bridge.shares["p"] = gave((indexed(GPU, (1,)), indexed(NVIDIA, (2,))))
    cluster.run()
    assert devices_of(the_claim(cluster)) == [(GPU, "n1", "dev-8"), (NVIDIA, "n1", "gpu-0")]


@pytest.mark.parametrize(
    ("text", "count"),
    [("", 0), ("gpu:4", 0), ("gpu:b:4", 0), ("gpu:a:3,gpu:b:4", 3), ("shard:8,gpu:a:3,gpu:c:1,gpu:b:4(IDX:0)", 4),
     ("gpu:2,gpu:a:1", 0), ("(null)", 0), ("gpu:a:3", 0)],
)  # fmt: skip
def test_what_comes_before_a_type_is_what_the_node_lists_of_its_name(text: str, count: int) -> None:
    assert before(text, "gpu", "b") == count


def test_cpus_are_those_of_the_cores_counted_over_sockets_with_their_siblings() -> None:
    every = [cpu(number, core=number % 4 // 2, socket=number % 2) for number in range(8)]
    every.append(cpu(8, 0, 0, **{"dra.cpu/coreType": {"string": "e-core"}}))
    cluster, bridge = world(slice_of(CPU, "n1", *reversed(every)), user("p", dra_cpu=4))
    bridge.shares["p"] = gave(cores=(1, 2, 3))
    cluster.run()
    names = [device for _, _, device in devices_of(the_claim(cluster))]
    assert names == ["cpu-1", "cpu-2", "cpu-5", "cpu-6"]  # cores 1 (socket 0) and 2 (the first of socket 1)


def test_what_a_class_says_to_its_driver_is_in_the_claim() -> None:
    reported = {"driver": GPU, "parameters": {"sharing": "none"}}
    cluster, bridge = world(slice_of(GPU, "n1", example(0)), user("p", gpu_example_com=1))
    cluster.add(device_class(config=[{"opaque": reported}]))
    bridge.shares["p"] = gave((indexed(GPU, (0,)),))
    cluster.run()
    allocation = the_claim(cluster).status.allocation
    assert allocation is not None
    assert [(one.source, one.opaque) for one in allocation.devices.config] == [("FromClass", reported)]


def test_a_class_of_another_name_than_its_driver_is_what_its_selectors_pick() -> None:
    expression = f'device.attributes["{GPU}"].index > 1'
    large = device_class("large", selectors=[{"cel": {"expression": expression}}])
    devices = [example(index, f"dev-{index}") for index in range(4)]
    cluster, bridge = world(slice_of(GPU, "n1", *devices), large, user("p", large=1), user("q", large=1))
    bridge.shares.update(p=gave((indexed("large", (3,)),)), q=gave((indexed("large", (0,)),)))
    cluster.run()
    assert devices_of(the_claim(cluster)) == [(GPU, "n1", "dev-3")]
    cluster.assert_pending("q", "no device has index 0")


def test_other_drivers_devices_are_known_by_the_number_that_their_name_ends_with() -> None:
    cluster, bridge = world(slice_of("npu.example.com", "n1", {"name": "npu-a"}, {"name": "npu-12"}),
                            device_class("npu.example.com"), user("p", npu_example_com=1))  # fmt: skip
    bridge.shares["p"] = gave((indexed("npu.example.com", (12,)),))
    cluster.run()
    assert devices_of(the_claim(cluster)) == [("npu.example.com", "n1", "npu-12")]


def test_devices_of_other_nodes_and_of_obsolete_slices_are_not_the_nodes() -> None:
    cluster, bridge = world(
        slice_of(NVIDIA, "n2", *nvidia(0)), slice_of(NVIDIA, "n1", *nvidia(0), suffix="-old"),
        slice_of(NVIDIA, "n1", *nvidia(1), generation=2), user("p", gpu_nvidia_com=1),
    )  # fmt: skip
    bridge.shares["p"] = gave((indexed(NVIDIA, (0,)),))
    cluster.run()
    cluster.assert_pending("p", "no device has index 0: make the node's ResourceSlices and its GRES in Slurm agree")
    assert claims_of(cluster) == []


def test_a_try_after_a_bind_that_failed_meets_its_own_claim() -> None:
    cluster, bridge = world(slice_of(NVIDIA, "n1", *nvidia(0, 1)), user("p", gpu_nvidia_com=1))
    bridge.shares["p"] = gave((indexed(NVIDIA, (1,)),))
    bridge.fails = 1
    cluster.run()
    before = the_claim(cluster)
    cluster.advance(60).schedule()
    cluster.assert_bound("p", "n1")
    after = the_claim(cluster)
    assert (after.metadata.uid, after.status) == (before.metadata.uid, before.status)


def test_a_scheduler_that_comes_after_one_that_died_goes_on_with_the_claim() -> None:
    cluster, bridge = world(slice_of(NVIDIA, "n1", *nvidia(0, 1)), user("p", gpu_nvidia_com=1))
    bridge.shares["p"] = gave((indexed(NVIDIA, (1,)),))
    bridge.fails = 1
    cluster.run()
    allocated = the_claim(cluster)
    made_only = replace(allocated, status=type(allocated.status)())  # as if it died right after the creation
    cluster.memory.put(made_only)
    cluster.advance(60).schedule()
    cluster.assert_bound("p", "n1")
    assert devices_of(the_claim(cluster)) == devices_of(allocated)


def test_the_devices_that_the_pod_has_already_come_first() -> None:
    cluster, bridge = world(slice_of(NVIDIA, "n1", *nvidia(0, 1, 2)), user("p", gpu_nvidia_com=1))
    bridge.shares["p"] = gave((indexed(NVIDIA, (2,)),))
    bridge.fails = 1
    cluster.run()
    bridge.shares["p"] = gave((indexed(NVIDIA, (0, 1, 2)),))
    cluster.advance(60).schedule()
    assert devices_of(the_claim(cluster)) == [(NVIDIA, "n1", "gpu-2")]


def test_where_slurm_gives_another_node_the_claim_has_that_nodes_devices_and_no_others() -> None:
    slices = [slice_of(NVIDIA, f"n{n}", *nvidia(0, 1)) for n in (1, 2)]
    cluster, bridge = world(*slices, user("p", gpu_nvidia_com=1), nodes=2)
    bridge.shares["p"] = gave((indexed(NVIDIA, (0,)),))
    bridge.fails = 1
    move(cluster, "p", "n1")
    cluster.run()
    assert devices_of(the_claim(cluster)) == [(NVIDIA, "n1", "gpu-0")]
    move(cluster, "p", "n2")
    bridge.shares["p"] = gave((indexed(NVIDIA, (1,)),))
    cluster.advance(60).schedule()
    cluster.assert_bound("p", "n2")
    assert devices_of(the_claim(cluster)) == [(NVIDIA, "n2", "gpu-1")]


def test_a_claim_of_other_requests_is_emptied_and_the_pod_names_the_new_one() -> None:
    """A node with two CPUs a core gives an even number of them."""
    slices = [slice_of(CPU, f"n{n}", *(cpu(c, c // n, 0) for c in range(4))) for n in (1, 2)]
    cluster, bridge = world(*slices, user("p", dra_cpu=1), nodes=2)
    bridge.shares["p"] = gave(cores=(0,))
    bridge.fails = 1
    move(cluster, "p", "n1")
    cluster.run()
    first = the_claim(cluster).metadata.name
    move(cluster, "p", "n2")
    cluster.advance(60).schedule()
    cluster.assert_bound("p", "n2")
    named = asyncio.run(cluster.memory.get(Pod, "default", "p")).status.extended_resource_claim_status
    assert named is not None
    found = {one.metadata.name: devices_of(one) for one in claims_of(cluster)}
    assert found == {first: [], named.resource_claim_name: [(CPU, "n2", "cpu-0"), (CPU, "n2", "cpu-1")]}


def test_a_device_that_a_running_pod_has_is_not_claimed_again_and_another_of_the_share_is() -> None:
    slices = slice_of(NVIDIA, "n1", *nvidia(0, 1))
    cluster, bridge = world(slices, user("first", gpu_nvidia_com=1))
    bridge.shares["first"] = gave((indexed(NVIDIA, (0,)),))
    cluster.run()
    cluster.assert_bound("first", "n1")
    used = the_claim(cluster)
    cluster.add(user("second", gpu_nvidia_com=1), user("third", gpu_nvidia_com=1))
    bridge.shares.update(second=gave((indexed(NVIDIA, (0, 1)),)), third=gave((indexed(NVIDIA, (0,)),)))
    cluster.run()
    cluster.assert_bound("second", "n1")
    cluster.assert_pending("third", f"gpu-0 is still allocated to ResourceClaim {used.key}")


def test_what_a_pod_that_is_on_no_node_was_given_earlier_is_given_to_whom_slurm_says_now() -> None:
    cluster, bridge = world(slice_of(NVIDIA, "n1", *nvidia(0)), user("first", gpu_nvidia_com=1))
    bridge.shares["first"] = gave((indexed(NVIDIA, (0,)),))
    bridge.fails = 1
    cluster.run()
    assert devices_of(the_claim(cluster)) == [(NVIDIA, "n1", "gpu-0")]
    cluster.add(user("second", gpu_nvidia_com=1))
    bridge.shares["second"] = gave((indexed(NVIDIA, (0,)),))
    cluster.schedule()
    cluster.assert_bound("second", "n1")


def test_a_pod_without_device_classes_gets_no_claim() -> None:
    cluster, bridge = world(pod("p", requests={"cpu": 1}))
    bridge.shares["p"] = gave(cores=(0,))
    cluster.run()
    cluster.assert_bound("p", "n1")
    assert claims_of(cluster) == []


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (gave(), f"Slurm allocated no GRES of type {NVIDIA} on node n1: add it to the node's Gres="),
        (gave((indexed("v100", (0,)),)), f"Slurm allocated no GRES of type {NVIDIA} on node n1"),
        (gave((indexed(NVIDIA, ()),)), "Slurm does not report which index it allocated: set File= of the devices in"),
        (gave((indexed(NVIDIA, (7, 0)),)), f"only 1 of 2 devices of class {NVIDIA} that Slurm allocated on "
                                         "node n1 are available: no device has index 7"),
        (gave((indexed(NVIDIA, (0, 0)),)), "cancel the Slurm job; the scheduler then submits another one"),
    ],
)  # fmt: skip
def test_a_share_that_the_node_cannot_meet_is_refused_in_one_line(share: NodeShare, text: str) -> None:
    cluster, bridge = world(slice_of(NVIDIA, "n1", *nvidia(0, 1)), user("p", gpu_nvidia_com=2))
    bridge.shares["p"] = share
    cluster.run()
    cluster.assert_pending("p", text)
    assert claims_of(cluster) == []


def test_two_devices_of_one_index_are_none_that_slurm_could_mean() -> None:
    devices = [example(0, "a"), example(0, "b"), example(1, "c")]
    cluster, bridge = world(slice_of(GPU, "n1", *devices), user("p", gpu_example_com=1))
    bridge.shares["p"] = gave((indexed(GPU, (0,)),))
    cluster.run()
    cluster.assert_pending("p", "index 0 belongs to a and b")


def test_more_devices_than_a_claim_may_have_are_refused() -> None:
    cluster, bridge = world(slice_of(CPU, "n1", *(cpu(n, n, 0) for n in range(64))), user("p", dra_cpu=33))
    bridge.shares["p"] = gave(cores=tuple(range(64)))
    cluster.run()
    cluster.assert_pending("p", "a claim can have 32 devices, and the pod needs 33")


def test_a_wrong_selector_of_a_class_is_told_with_the_class() -> None:
    wrong = device_class(selectors=[{"cel": {"expression": "device.nothing =="}}])
    cluster, bridge = world(slice_of(GPU, "n1", example(0)), wrong, user("p", gpu_example_com=1))
    bridge.shares["p"] = gave((indexed(GPU, (0,)),))
    cluster.run()
    cluster.assert_pending("p", f"DeviceClass {GPU}: selector #0: CEL compile error")


# ------------------------------------------------------------------ two at once


class Late:
    """What was seen of a cluster: what it is now once it was asked so often."""

    def __init__(self, cluster: MemoryCluster, asks: int) -> None:
        self._cluster, self._asks = cluster, asks
        self._claims: dict[str, ResourceClaim] = {}

    def __call__(self, kind: type[Any]) -> dict[str, Any]:
        found = {one.key: one for one in self._cluster.objects(kind)}
        if kind is not ResourceClaim:
            return found
        self._asks -= 1
        if self._asks <= 0:
            self._claims = found
        return self._claims


async def binding_of(cluster: MemoryCluster, asks: int) -> Binding:
    found = await cluster.get(Pod, "default", "p")
    task = Task(found, None, None)  # type: ignore[arg-type]
    return Binding(task, "n1", {}, cluster, Late(cluster, asks))


async def test_two_that_claim_at_once_and_see_nothing_of_each_other_make_one_claim() -> None:
    cluster = MemoryCluster()
    for obj in (device_class(NVIDIA), slice_of(NVIDIA, "n1", *nvidia(0, 1, 2)), user("p", gpu_nvidia_com=1)):
        cluster.put(obj)
    share = gave((indexed(NVIDIA, (1,)),))
    await asyncio.gather(*[claim(await binding_of(cluster, asks), share) for asks in (6, 9)])
    (found,) = cluster.objects(ResourceClaim)
    assert devices_of(found) == [(NVIDIA, "n1", "gpu-1")]
    assert [one.name for one in found.status.reserved_for] == ["p"]


async def test_what_is_seen_late_of_the_claim_does_not_pass_for_what_it_is() -> None:
    """Devices were given, taken back and given again, and only the first of that is seen."""
    cluster = MemoryCluster()
    for obj in (device_class(NVIDIA), slice_of(NVIDIA, "n1", *nvidia(0, 1, 2)), user("p", gpu_nvidia_com=1)):
        cluster.put(obj)
    late = await binding_of(cluster, 1)
    await claim(late, gave((indexed(NVIDIA, (1,)),)))
    seen = await binding_of(cluster, 1)
    seen.objects(ResourceClaim)
    late.objects._asks = 5  # type: ignore[attr-defined]
    await claim(seen, gave((indexed(NVIDIA, (2,)),)))
    await claim(late, gave((indexed(NVIDIA, (1,)),)))
    (found,) = cluster.objects(ResourceClaim)
    assert devices_of(found) == [(NVIDIA, "n1", "gpu-1")]


async def test_a_claim_that_is_being_deleted_is_not_used() -> None:
    cluster = MemoryCluster()
    for obj in (device_class(NVIDIA), slice_of(NVIDIA, "n1", *nvidia(0)), user("p", gpu_nvidia_com=1)):
        cluster.put(obj)
    binding = await binding_of(cluster, 1)
    await claim(binding, gave((indexed(NVIDIA, (0,)),)))
    (found,) = cluster.objects(ResourceClaim)
    await cluster.delete(found)
    with pytest.raises(AttemptError, match="is being deleted: the scheduler creates it again once it is gone"):
        await claim(binding, gave((indexed(NVIDIA, (0,)),)))


# ------------------------------------------------------------------ before Slurm is asked


def container(name: str, **amounts: int) -> Container:
    requests = {f"{CLASS_PREFIX}{key.replace('_', '.')}": amount for key, amount in amounts.items()}
    return Container(name=name, resources=ResourceRequirements(limits=dict(requests)))


def with_containers(*containers: Container, first: tuple[Container, ...] = ()) -> Pod:
    plain = pod("p")
    return replace(plain, spec=replace(plain.spec, containers=containers, init_containers=first))


def test_a_pod_with_claims_of_its_own_is_told_to_request_extended_resources() -> None:
    reported = refusal(pod("p", resource_claims=({"name": "gpu", "resourceClaimName": "mine"},)))
    assert reported is not None
    assert reported.startswith("spec.resourceClaims: ")
    assert f"request {CLASS_PREFIX}<class>" in reported


def test_a_class_is_asked_for_by_one_container_and_cpus_by_any_number() -> None:
    reported = refusal(with_containers(container("a", gpu_nvidia_com=1), container("b", gpu_nvidia_com=1)))
    assert reported is not None
    assert f"DeviceClass {NVIDIA} is requested by the containers a and b" in reported
    a, b = container("a", gpu_nvidia_com=1, dra_cpu=1), container("b", gpu_example_com=1, dra_cpu=2)
    assert refusal(with_containers(a, b)) is None
    assert {need.name: (need.count, need.containers) for need in needs(with_containers(a, b))} == {
        NVIDIA: (1, ("a",)), GPU: (1, ("b",)), CPU: (3, ("a", "b")),
    }  # fmt: skip


def test_an_init_container_counts_as_one_that_asks() -> None:
    started, then = container("i", gpu_nvidia_com=1), container("a", gpu_nvidia_com=1)
    assert refusal(with_containers(then, first=(started,))) is not None
    assert refusal(pod("p")) is None
