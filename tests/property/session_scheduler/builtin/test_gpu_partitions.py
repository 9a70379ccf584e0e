"""GPUs that DRA drivers publish whole, as partitions and as shares: no memory of a GPU is allocated twice."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from session_scheduler.model.devices import DeviceClass, ResourceClaim, ResourceClaimStatus, ResourceSlice
from session_scheduler.model.objects import Pod
from session_scheduler.model.quantity import parse_quantity
from session_scheduler.testing import FakeCluster, gang, pod

DRIVER: Final = "gpu.example.com"
SLICES: Final = 8
"""The memory slices of a GPU: a partition consumes adjacent ones, as MIG's placements do."""
SIZES: Final = {"whole": 8, "half": 4, "quarter": 2}
MEMORY: Final = 80
NODES: Final = ("n1", "n2")
GPUS: Final = 2


def made(kind: Any, name: str, **fields: Any) -> Any:
    return msgspec.convert({"kind": kind.__name__, "metadata": {"name": name}, **fields}, kind)


def device(gpu: str, first: int, size: int, use: str, **more: Any) -> dict[str, Any]:
    counters = {f"slice-{number}": {"value": "1"} for number in range(first, first + size)}
    name = f"{gpu}-{use}-{first}"
    return {"name": name, "attributes": {"use": {"string": use}},
            "consumesCounters": [{"counterSet": gpu, "counters": counters}], **more}  # fmt: skip


def slices_of(node: str) -> list[ResourceSlice]:
    gpus = [f"gpu-{number}" for number in range(GPUS)]
    devices = [device(gpu, first, size, use) for gpu in gpus for use, size in SIZES.items()
               for first in range(0, SLICES, size)]  # fmt: skip
    policy = {"default": str(MEMORY), "validRange": {"min": "1"}}
    shared = {"allowMultipleAllocations": True,
              "capacity": {"memory": {"value": str(MEMORY), "requestPolicy": policy}}}  # fmt: skip
    devices += [device(gpu, 0, SLICES, "share", **shared) for gpu in gpus]
    counters = [{"name": gpu, "counters": {f"slice-{number}": {"value": "1"} for number in range(SLICES)}}
                for gpu in gpus]  # fmt: skip
    base = {"driver": DRIVER, "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 2}}
    return [made(ResourceSlice, f"{node}-counters", spec={**base, "sharedCounters": counters}),
            made(ResourceSlice, f"{node}-devices", spec={**base, "devices": devices})]  # fmt: skip


def world() -> FakeCluster:
    cluster = FakeCluster()
    for node in NODES:
        cluster.node(node, cpu="64")
        cluster.add(*slices_of(node))
    for use in (*SIZES, "share"):
        chosen = f'device.attributes["{DRIVER}"].use == "{use}"'
        cluster.add(made(DeviceClass, use, spec={"selectors": [{"cel": {"expression": chosen}}]}))
    return cluster


def claim(name: str, wanted: str | int) -> ResourceClaim:
    """A claim for a use, a number of shared memory, or (`any`) the largest use that is free."""
    if isinstance(wanted, int):
        exactly = {"deviceClassName": "share", "capacity": {"requests": {"memory": str(wanted)}}}
        request: dict[str, Any] = {"name": "r", "exactly": exactly}
    elif wanted == "any":
        request = {"name": "r", "firstAvailable": [{"name": use, "deviceClassName": use} for use in SIZES]}
    else:
        request = {"name": "r", "exactly": {"deviceClassName": wanted}}
    spec = {"devices": {"requests": [request]}}
    found: ResourceClaim = msgspec.convert(
        {"kind": "ResourceClaim", "metadata": {"name": name, "namespace": "default"}, "spec": spec}, ResourceClaim
    )
    return found


def add_group(cluster: FakeCluster, name: str, wanted: list[str | int]) -> None:
    """A gang with a claim for each member; a single pod for one."""
    cluster.add(*(claim(f"{name}-{number}", one) for number, one in enumerate(wanted)))
    members = gang(name, len(wanted)) if len(wanted) > 1 else [pod(f"{name}-0")]
    for one in members:
        if isinstance(one, Pod):
            entries = ({"name": "gpu", "resourceClaimName": one.metadata.name},)
            cluster.add(replace(one, spec=replace(one.spec, resource_claims=entries)))
        else:
            cluster.add(one)


def end(cluster: FakeCluster, name: str) -> None:
    """Delete a pod and its claim, as its owner and the controllers do."""
    cluster.delete_pod(name)
    own = cluster.find(ResourceClaim, name)
    cluster.add(replace(own, status=ResourceClaimStatus(), metadata=replace(own.metadata, finalizers=())))
    cluster.run()
    cluster.delete(ResourceClaim, name)


def used(cluster: FakeCluster) -> tuple[Counter[tuple[str, str, str]], Counter[tuple[str, str]]]:
    """The allocated counters, and the allocated memory of each shared device. Raises AssertionError for a device that
    two claims have exclusively.
    """
    devices = {(part.spec.pool.name, one.name): one
               for part in cluster.memory.objects(ResourceSlice) for one in part.spec.devices}  # fmt: skip
    exclusive: Counter[tuple[str, str]] = Counter()
    memory: Counter[tuple[str, str]] = Counter()
    for one in cluster.memory.objects(ResourceClaim):
        for result in one.status.allocation.devices.results if one.status.allocation is not None else ():
            place = result.pool, result.device
            if result.share_id is None:
                exclusive[place] += 1
            else:
                memory[place] += int(parse_quantity(result.consumed_capacity["memory"]))
    assert max(exclusive.values(), default=0) <= 1
    counters = Counter(
        (place[0], consumed.counter_set, name)
        for place in {*exclusive, *memory}
        for consumed in devices[place].consumes_counters
        for name in consumed.counters
    )
    return counters, memory


def check(cluster: FakeCluster) -> None:
    counters, memory = used(cluster)
    twice = [place for place, number in counters.items() if number > 1]
    assert not twice, f"memory of a GPU is allocated twice: {twice}"
    assert all(amount <= MEMORY for amount in memory.values()), memory
    claims = cluster.memory.objects(ResourceClaim)
    allocated = {one.metadata.name for one in claims if one.status.allocation is not None}
    bound = {one.metadata.name for one in cluster.memory.objects(Pod) if one.spec.node_name}
    assert allocated == bound, "a pod is bound with its claim, or neither"


def fits(cluster: FakeCluster, wanted: str | int) -> bool:
    """Whether a single claim can be allocated, by trying every device."""
    counters, memory = used(cluster)
    for part in cluster.memory.objects(ResourceSlice):
        node = part.spec.pool.name
        for one in part.spec.devices:
            use = one.attributes["use"].string_value
            free = not any(counters[node, consumed.counter_set, name]
                           for consumed in one.consumes_counters for name in consumed.counters)  # fmt: skip
            if isinstance(wanted, int):
                there = memory[node, one.name]
                if use == "share" and (free or there) and there + wanted <= MEMORY:
                    return True
            elif free and use != "share" and wanted in (use, "any"):
                return True
    return False


WANTED = st.sampled_from([*SIZES, "any", 10, 30, 50])
STEPS = st.lists(st.one_of(st.lists(WANTED, min_size=1, max_size=4), st.integers(0, 9)), max_size=10)


@given(STEPS, WANTED)
def test_no_memory_of_a_gpu_is_allocated_twice(steps: list[list[str | int] | int], last: str | int) -> None:
    cluster = world()
    cluster.run()
    for number, step in enumerate(steps):
        if isinstance(step, list):
            add_group(cluster, f"g{number}", step)
        else:
            bound = sorted(one.metadata.name for one in cluster.memory.objects(Pod) if one.spec.node_name)
            if bound:
                end(cluster, bound[step % len(bound)])
        cluster.run()
        check(cluster)
    for one in list(cluster.memory.objects(Pod)):  # the last pod has no competitors
        if not one.spec.node_name:
            cluster.delete_pod(one.metadata.name)
    cluster.run()
    expected = fits(cluster, last)
    add_group(cluster, "last", [last])
    cluster.run()
    check(cluster)
    assert bool(cluster.node_of("last-0")) is expected


@pytest.mark.parametrize(
    ("wanted", "starts"),
    [
        (["whole", "whole", "whole", "whole"], True),
        (["whole", "whole", "whole", "half", "half"], True),
        (["whole", "whole", "whole", "half", 10, 30, 50], False),
        (["whole", "whole", "half", "half", 30, 50], True),
        (["whole", "whole", "half", "quarter", "quarter", 80], True),
        (["half"] * 8 + ["quarter"], False),
        (["whole", "whole", "whole", 50, 30, 10], False),
    ],
)
def test_a_gang_with_every_use_starts_with_all_devices_or_none(wanted: list[str | int], starts: bool) -> None:
    """There are four GPUs. The order of the members does not matter."""
    for order in (wanted, wanted[::-1]):
        cluster = world()
        add_group(cluster, "g", order)
        cluster.run()
        check(cluster)
        assert sum(one is not None for one in cluster.placements().values()) == (len(wanted) if starts else 0)
