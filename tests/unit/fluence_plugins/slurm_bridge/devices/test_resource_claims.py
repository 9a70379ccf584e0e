"""Claims for the devices that Slurm allocated, in a cluster in memory, with given shares."""

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
    """Creates the claim for the given shares before each bind."""

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
    """Let the pod fit only on this node."""
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


def test_nvidia_gpus_are_found_by_name_but_not_their_partitions() -> None:
    parts = {"name": "gpu-1-mig-1g10gb-14-1"}
    cluster, bridge = world(slice_of(NVIDIA, "n1", parts, *nvidia(0, 1)), user("p", gpu_nvidia_com=1))
    bridge.shares["p"] = gave((indexed(NVIDIA, (1,)),))
    cluster.run()
    assert devices_of(the_claim(cluster)) == [(NVIDIA, "n1", "gpu-1")]


def test_on_an_exclusive_node_a_claim_has_only_the_requested_devices() -> None:
    cluster, bridge = world(slice_of(NVIDIA, "n1", *nvidia(*range(8))), user("p", gpu_nvidia_com=2))
    bridge.shares["p"] = gave((indexed(NVIDIA, tuple(range(8))),), cores=tuple(range(64)))
    cluster.run()
    assert [device for _, _, device in devices_of(the_claim(cluster))] == ["gpu-0", "gpu-1"]


def test_each_device_class_has_its_own_request() -> None:
    cluster, bridge = world(
        slice_of(NVIDIA, "n1", *nvidia(0, 1)), slice_of(GPU, "n1", example(0)),
        user("p", gpu_nvidia_com=1, gpu_example_com=1),
    )  # fmt: skip
    bridge.shares["p"] = gave((indexed(NVIDIA, (1,)), indexed(GPU, (0,))))
    cluster.run()
    found = the_claim(cluster)
    assert devices_of(found) == [(GPU, "n1", "dev-9"), (NVIDIA, "n1", "gpu-1")]
    assert len({one.name for one in found.spec.devices.requests}) == 2


def test_slurm_numbers_the_devices_of_all_types_of_a_gres_in_order() -> None:
    """slurmctld 26.05 answers so for a node with `gpu:a:2,gpu:b:2`: the devices of the second type are 2 and 3."""
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
def test_the_first_index_of_a_type_is_the_number_of_devices_listed_before_it(text: str, count: int) -> None:
    assert before(text, "gpu", "b") == count


def test_cpus_are_those_of_the_cores_counted_over_sockets_with_their_siblings() -> None:
    every = [cpu(number, core=number % 4 // 2, socket=number % 2) for number in range(8)]
    every.append(cpu(8, 0, 0, **{"dra.cpu/coreType": {"string": "e-core"}}))
    cluster, bridge = world(slice_of(CPU, "n1", *reversed(every)), user("p", dra_cpu=4))
    bridge.shares["p"] = gave(cores=(1, 2, 3))
    cluster.run()
    names = [device for _, _, device in devices_of(the_claim(cluster))]
    assert names == ["cpu-1", "cpu-2", "cpu-5", "cpu-6"]  # core 1 (socket 0) and core 2 (the first of socket 1)


def test_the_claim_has_the_driver_configuration_of_its_class() -> None:
    opaque = {"driver": GPU, "parameters": {"sharing": "none"}}
    cluster, bridge = world(slice_of(GPU, "n1", example(0)), user("p", gpu_example_com=1))
    cluster.add(device_class(config=[{"opaque": opaque}]))
    bridge.shares["p"] = gave((indexed(GPU, (0,)),))
    cluster.run()
    allocation = the_claim(cluster).status.allocation
    assert allocation is not None
    assert [(one.source, one.opaque) for one in allocation.devices.config] == [("FromClass", opaque)]


def test_selectors_find_the_devices_of_a_class_that_is_not_named_after_its_driver() -> None:
    expression = f'device.attributes["{GPU}"].index > 1'
    large = device_class("large", selectors=[{"cel": {"expression": expression}}])
    devices = [example(index, f"dev-{index}") for index in range(4)]
    cluster, bridge = world(slice_of(GPU, "n1", *devices), large, user("p", large=1), user("q", large=1))
    bridge.shares.update(p=gave((indexed("large", (3,)),)), q=gave((indexed("large", (0,)),)))
    cluster.run()
    assert devices_of(the_claim(cluster)) == [(GPU, "n1", "dev-3")]
    cluster.assert_pending("q", "no device has index 0")


def test_devices_of_other_drivers_are_identified_by_the_number_at_the_end_of_their_name() -> None:
    cluster, bridge = world(slice_of("npu.example.com", "n1", {"name": "npu-a"}, {"name": "npu-12"}),
                            device_class("npu.example.com"), user("p", npu_example_com=1))  # fmt: skip
    bridge.shares["p"] = gave((indexed("npu.example.com", (12,)),))
    cluster.run()
    assert devices_of(the_claim(cluster)) == [("npu.example.com", "n1", "npu-12")]


def test_devices_of_other_nodes_and_of_obsolete_slices_are_ignored() -> None:
    cluster, bridge = world(
        slice_of(NVIDIA, "n2", *nvidia(0)), slice_of(NVIDIA, "n1", *nvidia(0), suffix="-old"),
        slice_of(NVIDIA, "n1", *nvidia(1), generation=2), user("p", gpu_nvidia_com=1),
    )  # fmt: skip
    bridge.shares["p"] = gave((indexed(NVIDIA, (0,)),))
    cluster.run()
    cluster.assert_pending("p", "no device has index 0; make the node's ResourceSlices and its GRES in Slurm agree")
    assert claims_of(cluster) == []


def test_a_retry_after_a_failed_bind_reuses_its_claim() -> None:
    cluster, bridge = world(slice_of(NVIDIA, "n1", *nvidia(0, 1)), user("p", gpu_nvidia_com=1))
    bridge.shares["p"] = gave((indexed(NVIDIA, (1,)),))
    bridge.fails = 1
    cluster.run()
    before = the_claim(cluster)
    cluster.advance(60).schedule()
    cluster.assert_bound("p", "n1")
    after = the_claim(cluster)
    assert (after.metadata.uid, after.status) == (before.metadata.uid, before.status)


def test_the_next_scheduler_reuses_the_claim_of_one_that_died() -> None:
    cluster, bridge = world(slice_of(NVIDIA, "n1", *nvidia(0, 1)), user("p", gpu_nvidia_com=1))
    bridge.shares["p"] = gave((indexed(NVIDIA, (1,)),))
    bridge.fails = 1
    cluster.run()
    allocated = the_claim(cluster)
    made_only = replace(allocated, status=type(allocated.status)())  # as if the scheduler died right after the creation
    cluster.memory.put(made_only)
    cluster.advance(60).schedule()
    cluster.assert_bound("p", "n1")
    assert devices_of(the_claim(cluster)) == devices_of(allocated)


def test_devices_that_the_pod_already_has_are_preferred() -> None:
    cluster, bridge = world(slice_of(NVIDIA, "n1", *nvidia(0, 1, 2)), user("p", gpu_nvidia_com=1))
    bridge.shares["p"] = gave((indexed(NVIDIA, (2,)),))
    bridge.fails = 1
    cluster.run()
    bridge.shares["p"] = gave((indexed(NVIDIA, (0, 1, 2)),))
    cluster.advance(60).schedule()
    assert devices_of(the_claim(cluster)) == [(NVIDIA, "n1", "gpu-2")]


def test_if_slurm_allocates_another_node_the_claim_has_only_that_nodes_devices() -> None:
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
    """A node with two CPUs per core allocates an even number of them."""
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


def test_a_device_of_a_running_pod_is_not_claimed_again() -> None:
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


def test_devices_of_a_pod_without_a_node_are_claimed_for_the_pod_that_slurm_names_now() -> None:
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
        (gave(), f"Slurm allocated no GRES of type {NVIDIA} on node n1; add it to the node's Gres="),
        (gave((indexed("v100", (0,)),)), f"Slurm allocated no GRES of type {NVIDIA} on node n1"),
        (gave((indexed(NVIDIA, ()),)), "Slurm does not report which index it allocated; set File= for the devices in"),
        (gave((indexed(NVIDIA, (7, 0)),)), f"only 1 of 2 devices of class {NVIDIA} that Slurm allocated on "
                                         "node n1 are available: no device has index 7"),
        (gave((indexed(NVIDIA, (0, 0)),)), "cancel the Slurm job; the scheduler then submits another one"),
    ],
)  # fmt: skip
def test_a_share_that_does_not_match_the_node_is_rejected_in_one_line(share: NodeShare, text: str) -> None:
    cluster, bridge = world(slice_of(NVIDIA, "n1", *nvidia(0, 1)), user("p", gpu_nvidia_com=2))
    bridge.shares["p"] = share
    cluster.run()
    cluster.assert_pending("p", text)
    assert claims_of(cluster) == []


def test_an_index_of_two_devices_is_ambiguous() -> None:
    devices = [example(0, "a"), example(0, "b"), example(1, "c")]
    cluster, bridge = world(slice_of(GPU, "n1", *devices), user("p", gpu_example_com=1))
    bridge.shares["p"] = gave((indexed(GPU, (0,)),))
    cluster.run()
    cluster.assert_pending("p", "index 0 belongs to a and b")


def test_more_devices_than_a_claim_can_have_are_rejected() -> None:
    cluster, bridge = world(slice_of(CPU, "n1", *(cpu(n, n, 0) for n in range(64))), user("p", dra_cpu=33))
    bridge.shares["p"] = gave(cores=tuple(range(64)))
    cluster.run()
    cluster.assert_pending("p", "a claim can have at most 32 devices, but the pod needs 33")


def test_an_invalid_selector_is_reported_with_its_class() -> None:
    wrong = device_class(selectors=[{"cel": {"expression": "device.nothing =="}}])
    cluster, bridge = world(slice_of(GPU, "n1", example(0)), wrong, user("p", gpu_example_com=1))
    bridge.shares["p"] = gave((indexed(GPU, (0,)),))
    cluster.run()
    cluster.assert_pending("p", f"DeviceClass {GPU}: selector #0: CEL compile error")


# ------------------------------------------------------------------ concurrency


class Late:
    """A stale view of a cluster: its claims appear only after so many reads."""

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


async def test_two_concurrent_binds_create_one_claim() -> None:
    cluster = MemoryCluster()
    for obj in (device_class(NVIDIA), slice_of(NVIDIA, "n1", *nvidia(0, 1, 2)), user("p", gpu_nvidia_com=1)):
        cluster.put(obj)
    share = gave((indexed(NVIDIA, (1,)),))
    await asyncio.gather(*[claim(await binding_of(cluster, asks), share) for asks in (6, 9)])
    (found,) = cluster.objects(ResourceClaim)
    assert devices_of(found) == [(NVIDIA, "n1", "gpu-1")]
    assert [one.name for one in found.status.reserved_for] == ["p"]


async def test_a_stale_view_of_the_claim_is_not_trusted() -> None:
    """Devices were allocated, released and allocated again, but the view shows only the first allocation."""
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


# ------------------------------------------------------------------ before the request to Slurm


def container(name: str, **amounts: int) -> Container:
    requests = {f"{CLASS_PREFIX}{key.replace('_', '.')}": amount for key, amount in amounts.items()}
    return Container(name=name, resources=ResourceRequirements(limits=dict(requests)))


def with_containers(*containers: Container, first: tuple[Container, ...] = ()) -> Pod:
    plain = pod("p")
    return replace(plain, spec=replace(plain.spec, containers=containers, init_containers=first))


def test_a_pod_with_its_own_claims_must_request_extended_resources_instead() -> None:
    reason = refusal(pod("p", resource_claims=({"name": "gpu", "resourceClaimName": "mine"},)))
    assert reason is not None
    assert reason.startswith("spec.resourceClaims: ")
    assert f"request {CLASS_PREFIX}<class>" in reason


def test_one_container_can_request_a_class_and_all_containers_cpus() -> None:
    reason = refusal(with_containers(container("a", gpu_nvidia_com=1), container("b", gpu_nvidia_com=1)))
    assert reason is not None
    assert f"DeviceClass {NVIDIA} is requested by the containers a and b" in reason
    a, b = container("a", gpu_nvidia_com=1, dra_cpu=1), container("b", gpu_example_com=1, dra_cpu=2)
    assert refusal(with_containers(a, b)) is None
    assert {need.name: (need.count, need.containers) for need in needs(with_containers(a, b))} == {
        NVIDIA: (1, ("a",)), GPU: (1, ("b",)), CPU: (3, ("a", "b")),
    }  # fmt: skip


def test_an_init_container_counts_as_a_requesting_container() -> None:
    started, then = container("i", gpu_nvidia_com=1), container("a", gpu_nvidia_com=1)
    assert refusal(with_containers(then, first=(started,))) is not None
    assert refusal(pod("p")) is None
