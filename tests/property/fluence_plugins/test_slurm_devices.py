"""For any slices and any allocation by Slurm, a claim gets devices of the share, or none and a reason of one line."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fluence_plugins.slurm_bridge.devices.resource_claims import claim
from fluence_plugins.slurm_bridge.slurm.model import Gres, NodeShare
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.errors import AttemptError
from session_scheduler.framework.bindings import Binding
from session_scheduler.model.devices import CLASS_PREFIX, RESULTS_LIMIT, DeviceClass, ResourceClaim, ResourceSlice
from session_scheduler.model.groups import Task
from session_scheduler.model.objects import Pod
from session_scheduler.testing import pod

GPU, CPU = "gpu.example.com", "dra.cpu"
small = st.integers(-1, 5)


def indexed(type_: str, indices: tuple[int, ...]) -> Gres:
    return Gres(name="gpu", type=type_, count=len(indices), indices=indices)


def gave(gres: tuple[Gres, ...] = (), cores: tuple[int, ...] = ()) -> NodeShare:
    return NodeShare(node="slurm-1", cores=cores, gres=gres, memory_mib=0)


def attributes(**values: Any) -> dict[str, Any]:
    return {name: {"int": value} for name, value in values.items() if value is not None}


gpus = st.lists(st.one_of(st.none(), small), max_size=6).map(
    lambda found: [{"name": f"dev-{n}", "attributes": attributes(index=index)} for n, index in enumerate(found)]
)
cpus = st.lists(st.tuples(st.one_of(st.none(), small), small, st.integers(0, 1)), max_size=8).map(
    lambda found: [
        {"name": f"cpu-{n}", "attributes": attributes(cpuID=cpu, coreID=core, socketID=socket)}
        for n, (cpu, core, socket) in enumerate(found)
    ]
)
indices = st.lists(st.integers(0, 6), max_size=8).map(tuple)
shares = st.builds(
    gave, st.lists(st.builds(indexed, st.sampled_from([GPU, "other"]), indices), max_size=3).map(tuple), indices
)
asks = st.dictionaries(st.sampled_from([GPU, CPU]), st.integers(1, 4))


def slice_of(driver: str, node: str, generation: int, devices: list[dict[str, Any]]) -> ResourceSlice:
    spec = {"driver": driver, "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1}}  # fmt: skip
    plain = {"kind": "ResourceSlice", "metadata": {"name": f"{driver}-{node}-{generation}"}, "spec": spec}
    return msgspec.convert(plain, ResourceSlice)


def cluster_of(asked: dict[str, int], slices: list[ResourceSlice]) -> MemoryCluster:
    cluster = MemoryCluster()
    for name in (GPU, CPU):
        cluster.put(msgspec.convert({"kind": "DeviceClass", "metadata": {"name": name}, "spec": {
            "selectors": [{"cel": {"expression": f'device.driver == "{name}"'}}]}}, DeviceClass))  # fmt: skip
    for one in slices:
        cluster.put(one)
    cluster.put(pod("p", requests={CLASS_PREFIX + name: amount for name, amount in asked.items()}))
    return cluster


async def tried(cluster: MemoryCluster, share: NodeShare) -> str:
    found = await cluster.get(Pod, "default", "p")
    seen: Any = lambda kind: {one.key: one for one in cluster.objects(kind)}  # noqa: E731 (a value of no kind)
    try:
        await claim(Binding(Task(found, None, None), "n1", {}, cluster, seen), share)  # type: ignore[arg-type]
    except AttemptError as error:
        return str(error)
    return ""


@given(asks, gpus, gpus, cpus, st.lists(shares, min_size=1, max_size=3))
def test_a_claim_gets_devices_of_the_share_or_a_reason_of_one_line(
    asked: dict[str, int],
    old: list[dict[str, Any]],
    new: list[dict[str, Any]],
    cores: list[dict[str, Any]],
    tries: list[NodeShare],
) -> None:
    slices = [slice_of(GPU, "n1", 1, old), slice_of(GPU, "n1", 2, new), slice_of(CPU, "n1", 1, cores)]
    cluster = cluster_of(asked, [*slices, slice_of(GPU, "n2", 1, old)])
    for share in tries:
        reason = asyncio.run(tried(cluster, share))
        allocated = [one for one in cluster.objects(ResourceClaim) if one.status.allocation is not None]
        if reason:
            assert "\n" not in reason
            continue
        assert len(allocated) == (1 if asked else 0)
        for one in allocated:
            assert one.status.allocation is not None
            results = one.status.allocation.devices.results
            names = [(result.driver, result.device) for result in results]
            assert len(set(names)) == len(names) <= RESULTS_LIMIT
            counts = {name: sum(driver == name for driver, _ in names) for name in (GPU, CPU)}
            assert counts[GPU] == asked.get(GPU, 0)
            assert counts[CPU] >= asked.get(CPU, 0)
            given_ = {index for gres in share.gres if gres.type == GPU for index in gres.indices}
            by_name = {device["name"]: device["attributes"] for device in new}
            for driver, name in names:
                if driver == GPU:
                    own = by_name[name].get("index", {"int": int(name.removeprefix("dev-"))})["int"]
                    assert own in given_


@given(asks, gpus, cpus, shares)
def test_claiming_again_changes_nothing(
    asked: dict[str, int], devices: list[dict[str, Any]], cores: list[dict[str, Any]], share: NodeShare
) -> None:
    cluster = cluster_of(asked, [slice_of(GPU, "n1", 1, devices), slice_of(CPU, "n1", 1, cores)])
    reasons, states = [], []
    for _ in range(2):
        reasons.append(asyncio.run(tried(cluster, share)))
        states.append([(one.metadata.uid, one.spec, one.status) for one in cluster.objects(ResourceClaim)])
    assert reasons[0] == reasons[1]
    assert states[0] == states[1]
