"""The search for devices finds the same devices and errors as a search that tries all combinations, within limits of
queues, too.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from session_scheduler.builtin.devices.errors import AllocationError
from session_scheduler.builtin.devices.inventory import Inventory
from session_scheduler.builtin.devices.matching import Matching
from session_scheduler.builtin.devices.search import NO_LIMITS, Ask, Candidate, Chosen, Limits, Search
from session_scheduler.builtin.devices.usage import Usage
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.device_resources import DeviceLimit, DeviceResource
from session_scheduler.model.devices import AllocatedDevice, Allocation, DeviceClass, ResourceClaim, ResourceSlice
from session_scheduler.testing import node

DRIVER = "d.example.com"
A100 = DeviceResource("a100", device_attributes={f"{DRIVER}/model": "A100"})
MEMORY = DeviceResource("memory", capacity=f"{DRIVER}/memory")
GIB = 1 << 30
STEPS = 10_000_000
MODELS = ("A100", "A100", "T4")


class Exhaustive(Search):
    """Tries all combinations."""

    def _kind(self, claim: int, request: int, ask: Ask, one: Candidate) -> object:
        return one.id

    def _beyond_limits(self, claim: int, request: int, ask: Ask, number: int, start: int) -> bool:
        return False


class Counting(Search):
    """Counts the tried devices."""

    tries = 0

    def _choose(self, claim: int, ask: Ask, one: Candidate, *, must: bool) -> int | None:
        self.tries += 1
        return super()._choose(claim, ask, one, must=must)


def result(search: Search, claims: Sequence[ResourceClaim]) -> object:
    try:
        return shown(search.run([one.spec for one in claims]))
    except AllocationError as error:
        return str(error)


def shown(found: list[list[Chosen]] | None) -> object:
    return found and [[(one.ask.full, one.of.id, one.consumed) for one in claim] for claim in found]


def made(kind: Any, name: str, namespace: str = "", **fields: Any) -> Any:
    return msgspec.convert({"kind": kind.__name__, "metadata": {"name": name, "namespace": namespace}, **fields}, kind)


def device(rng: random.Random, number: int, sets: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {"model": {"string": rng.choice(MODELS)}, "uuid": {"string": f"uuid-{number}"},
                                  "numa": {"int": rng.randrange(2)}}  # fmt: skip
    if rng.random() < 0.04:
        del attributes["model"]  # selectors of the model fail
    found: dict[str, Any] = {"name": f"d{number}", "attributes": attributes}
    if rng.random() < 0.9:
        found["capacity"] = {"memory": {"value": rng.choice(("10Gi", "10Gi", "20Gi", "40Gi"))}}
    if rng.random() < 0.2:
        found["allowMultipleAllocations"] = True
    if sets and rng.random() < 0.5:
        amount = {"value": str(rng.randint(1, 3))}
        found["consumesCounters"] = [{"counterSet": "gpu", "counters": {f"slice{rng.randrange(sets)}": amount}}]
    if rng.random() < 0.1:
        found["taints"] = [{"key": "broken", "effect": "NoSchedule"}]
    return found


def machine(rng: random.Random, name: str) -> list[ResourceSlice]:
    sets = rng.choice((0, 0, 1, 2))
    spec = {"driver": DRIVER, "nodeName": name, "pool": {"name": name, "resourceSliceCount": 2 if sets else 1}}
    devices = [device(rng, number, sets) for number in range(rng.randint(2, 8))]
    parts = [made(ResourceSlice, f"{name}-devices", spec={**spec, "devices": devices})]
    if sets:
        counters = {f"slice{number}": {"value": "4"} for number in range(sets)}
        shared = [{"name": "gpu", "counters": counters}]
        parts.append(made(ResourceSlice, f"{name}-counters", spec={**spec, "sharedCounters": shared}))
    return parts


def request(rng: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {"deviceClassName": "gpu", "count": rng.choice((1, 1, 2, 2, 3))}
    kind = rng.random()
    if kind < 0.25:
        model = rng.choice(MODELS)
        found["selectors"] = [{"cel": {"expression": f'device.attributes["{DRIVER}"].model == "{model}"'}}]
    elif kind < 0.3:
        found["selectors"] = [{"cel": {"expression": f'device.attributes["{DRIVER}"].uuid != "uuid-1"'}}]
    if rng.random() < 0.15:
        found["capacity"] = {"requests": {"memory": rng.choice(("5Gi", "20Gi"))}}
    if rng.random() < 0.1:
        found["tolerations"] = [{"operator": "Exists"}]
    return found


def claim(rng: random.Random, name: str) -> ResourceClaim:
    requests: list[dict[str, Any]] = []
    for number in range(rng.choice((1, 1, 2, 3))):
        if rng.random() < 0.2:
            listed = [{"name": f"s{index}", **request(rng)} for index in range(2)]
            requests.append({"name": f"r{number}", "firstAvailable": listed})
            continue
        exactly = request(rng)
        special = rng.random()
        if special < 0.05:
            exactly |= {"allocationMode": "All", "count": 0}
        elif special < 0.1:
            exactly["adminAccess"] = True
        requests.append({"name": f"r{number}", "exactly": exactly})
    constraints: list[dict[str, Any]] = []
    if rng.random() < 0.3:
        kind, attribute = rng.choice(("matchAttribute", "distinctAttribute")), rng.choice(("numa", "model"))
        constraints.append({kind: f"{DRIVER}/{attribute}", "requests": ["r0"] if rng.random() < 0.5 else []})
    found: ResourceClaim = made(ResourceClaim, name, "default",
                                spec={"devices": {"requests": requests, "constraints": constraints}})  # fmt: skip
    return found


def used(rng: random.Random, parts: Sequence[ResourceSlice]) -> Usage:
    """Some of the devices are allocated."""
    usage = Usage()
    for part in parts:
        for one in part.spec.devices:
            shared = bool(one.allow_multiple_allocations)
            if rng.random() < 0.1:
                found = AllocatedDevice(request="r", driver=DRIVER, pool=part.spec.pool.name, device=one.name,
                                        share_id="s" if shared else None,
                                        consumed_capacity={"memory": "5Gi"} if shared else {})  # fmt: skip
                allocation = Allocation()
                usage.add(msgspec.structs.replace(
                    allocation, devices=msgspec.structs.replace(allocation.devices, results=(found,))))  # fmt: skip
    return usage


def limits(rng: random.Random, claims: int) -> Limits:
    listed = []
    for _ in range(rng.randint(0, 3)):
        if rng.random() < 0.6:
            listed.append(DeviceLimit(A100, rng.randint(-1, 4) * 1000, "too many"))
        else:
            listed.append(DeviceLimit(MEMORY, rng.randint(-1, 12) * 10 * GIB, "too much"))
    return Limits(tuple(listed), rng.randint(1, claims)) if listed else NO_LIMITS


def compare(seed: int, seen: Counter[str]) -> None:
    rng = random.Random(seed)
    table = NodeTable()
    row = table.put(node("n1"))
    parts = machine(rng, "n1")
    claims = [claim(rng, f"c{number}") for number in range(rng.choice((1, 1, 2)))]
    inventory, usage, within = Inventory(parts, table.all_rows()), used(rng, parts), limits(rng, len(claims))
    classes = {"gpu": made(DeviceClass, "gpu", spec={})}

    def search(kind: type[Search], of_queues: Limits) -> Any:
        matching = Matching()
        matching.left = STEPS
        return kind(row, inventory.of(row).pools, inventory, usage, classes, matching, STEPS, of_queues)

    every, pruned = search(Exhaustive, within), search(Counting, within)
    expected = result(every, claims)
    assert result(pruned, claims) == expected, seed
    steps, of_every = STEPS - pruned.steps, STEPS - every.steps
    assert pruned.tries <= steps <= of_every, seed
    seen["error" if isinstance(expected, str) else "none" if expected is None else "found"] += 1
    seen["fewer steps"] += steps < of_every
    if expected is None and within.listed and isinstance(result(search(Exhaustive, NO_LIMITS), claims), list):
        assert pruned.exceeded, seed
        assert every.exceeded, seed
        seen["limited"] += 1


def test_a_search_finds_what_an_exhaustive_search_finds() -> None:
    seen = Counter[str]()
    for seed in range(3000):
        compare(seed, seen)
    assert min(seen[name] for name in ("error", "none", "found", "fewer steps", "limited")) >= 100, seen
