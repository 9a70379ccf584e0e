"""The search for devices finds the same devices and errors as a search that tries all combinations, within limits of
queues, too.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import pytest

from session_scheduler.builtin.devices import evaluation
from session_scheduler.builtin.devices.errors import AllocationError
from session_scheduler.builtin.devices.search import NO_LIMITS, Ask, Candidate, Chosen, Search
from session_scheduler.config.settings import DeviceResourceConfig, QueueConfig, SchedulerConfig
from session_scheduler.model.devices import DeviceClass, ResourceClaim, ResourceClaimSpec, ResourceSlice
from session_scheduler.model.queues import QUEUE_LABEL
from session_scheduler.testing import FakeCluster, pod

DRIVER = "d.example.com"
A100 = "a100.fluence.flux-framework.org/devices"
MEMORY = "memory.fluence.flux-framework.org/capacity"
RESOURCES = (DeviceResourceConfig(name="a100", device_attributes={f"{DRIVER}/model": "A100"}),
             DeviceResourceConfig(name="memory", capacity=f"{DRIVER}/memory"))  # fmt: skip
MODELS = ("A100", "A100", "T4")


class Exhaustive(Search):
    """Tries all combinations."""

    def _kind(self, claim: int, request: int, ask: Ask, one: Candidate) -> object:
        return one.id

    def _beyond_limits(self, claim: int, request: int, ask: Ask, number: int, start: int) -> bool:
        return False


class Compared(Search):
    """Compares itself with an exhaustive search."""

    seen: ClassVar[Counter[str]]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._args = args
        self._tries = 0

    def _choose(self, claim: int, ask: Ask, one: Candidate, *, must: bool) -> int | None:
        self._tries += 1
        return super()._choose(claim, ask, one, must=must)

    def run(self, claims: Sequence[ResourceClaimSpec]) -> list[list[Chosen]] | None:
        *given, _, limits = self._args
        every = Exhaustive(*given, 10_000_000, limits)
        expected = result(every, claims)
        before = self.steps
        if isinstance(expected, str):
            self.seen["error"] += 1
            with pytest.raises(AllocationError) as error:
                super().run(claims)
            assert str(error.value) == expected
            raise error.value
        found = super().run(claims)
        assert shown(found) == expected
        used, used_by_all = before - self.steps, 10_000_000 - every.steps
        assert self._tries <= used <= used_by_all
        self.seen["fewer steps"] += used < used_by_all
        if found is None and limits.listed:
            unlimited = result(Exhaustive(*given, 10_000_000, NO_LIMITS), claims)
            if isinstance(unlimited, list):
                assert self.exceeded
                assert every.exceeded
                self.seen["limited"] += 1
        self.seen["found" if found is not None else "none"] += 1
        return found


def result(search: Search, claims: Sequence[ResourceClaimSpec]) -> object:
    try:
        return shown(search.run(claims))
    except AllocationError as error:
        return str(error)


def shown(found: list[list[Chosen]] | None) -> object:
    return found and [[(one.ask.full, one.of.id, one.consumed) for one in claim] for claim in found]


def made(kind: Any, name: str, namespace: str = "", **fields: Any) -> Any:
    return msgspec.convert({"kind": kind.__name__, "metadata": {"name": name, "namespace": namespace}, **fields}, kind)


def device(rng: random.Random, number: int, sets: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {"model": {"string": rng.choice(MODELS)}, "uuid": {"string": f"uuid-{number}"},
                                  "numa": {"int": rng.randrange(2)}}  # fmt: skip
    if rng.random() < 0.02:
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
    devices = [device(rng, number, sets) for number in range(rng.randint(1, 7))]
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


def run(seed: int) -> None:
    rng = random.Random(seed)
    limits = {}
    if rng.random() < 0.7:
        limits[A100] = rng.randint(0, 4)
    if rng.random() < 0.7:
        limits[MEMORY] = f"{rng.randint(1, 12) * 10}Gi"
    queues = (
        QueueConfig(name="top", limit=limits),
        QueueConfig(name="a", parent="top", limit={A100: rng.randint(1, 6)}),
    )
    config = SchedulerConfig(queues=queues, device_resources=RESOURCES)
    cluster = FakeCluster(config=config).nodes(2).add(made(DeviceClass, "gpu", spec={}))
    cluster.add(*machine(rng, "n1"), *machine(rng, "n2"))
    for number in range(3):
        names = [f"c{number}-{index}" for index in range(rng.choice((1, 1, 2)))]
        entries = tuple({"name": name, "resourceClaimName": name} for name in names)
        cluster.add(*(claim(rng, name) for name in names))
        cluster.add(pod(f"p{number}", labels={QUEUE_LABEL: "a"}, resource_claims=entries)).run(cycles=1)


def test_a_search_finds_what_an_exhaustive_search_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "Search", Compared)
    Compared.seen = seen = Counter()
    for seed in range(150):
        run(seed)
    assert min(seen[name] for name in ("found", "none", "limited", "fewer steps", "error")) >= 20
