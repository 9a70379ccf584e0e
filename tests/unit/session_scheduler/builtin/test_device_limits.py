"""The search for devices within the limits of queues: what it excludes, and how many steps it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from session_scheduler.builtin.devices import evaluation
from session_scheduler.builtin.devices.search import Chosen, Search
from session_scheduler.config.settings import DeviceResourceConfig, QueueConfig
from session_scheduler.model.devices import DeviceClass, ResourceClaim, ResourceClaimSpec
from session_scheduler.model.queue_objects import Queue, QueueObjectSpec

from .test_device_attributes import A100, MEMORY, MODEL, MODES, fleet, gpus, of, only, part
from .test_device_quota import counts
from .test_dynamic_resources import DRIVER, claim, devices_of, made


@pytest.fixture(name="steps")
def _steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of each search."""
    used: list[int] = []

    class Counting(Search):
        def run(self, claims: Sequence[ResourceClaimSpec]) -> list[list[Chosen]] | None:
            before = self.steps
            try:
                return super().run(claims)
            finally:
                used.append(before - self.steps)

    monkeypatch.setattr(evaluation, "Search", Counting)
    return used


def requests(name: str, *counts: int) -> ResourceClaim:
    """A claim with several requests."""
    listed = [{"name": f"r{n}", "exactly": {"deviceClassName": "gpu", "count": count}}
              for n, count in enumerate(counts)]  # fmt: skip
    found: ResourceClaim = made(ResourceClaim, name, "default", spec={"devices": {"requests": listed}})
    return found


# ------------------------------------------------------------------ results


@MODES
def test_a_queue_above_its_limit_of_a_model_gets_other_models(evaluation: str) -> None:
    def queue(limit: int) -> Queue:
        return Queue(metadata=made(DeviceClass, "a").metadata, spec=QueueObjectSpec(limit={A100: limit}))

    cluster = fleet(QueueConfig(name="b"), evaluation=evaluation).add(queue(2), gpus("n1", "A100", "A100", "T4", "T4"))
    cluster.add(*(claim(f"c{n}") for n in range(2)), *(of(f"p{n}", "a", f"c{n}") for n in range(2)))
    cluster.run()
    assert counts(cluster, "a", A100) == (2000, 0)
    cluster.add(queue(1)).run()
    cluster.add(claim("t", selectors=only("T4")), of("t", "a", "t"), claim("any"), of("any", "a", "any"))
    cluster.run()
    assert sorted(devices_of(cluster, "t") + devices_of(cluster, "any")) == ["t4-2", "t4-3"]


BOTH = DeviceResourceConfig(name="a100", resources=("nvidia.com/gpu",), device_attributes={MODEL: "A100"})
BY_LABEL = DeviceResourceConfig(name="a100", resources=("nvidia.com/gpu",), device_attributes={MODEL: "A100"},
                                node_selector={"model": "A100"})  # fmt: skip


@MODES
def test_the_gpus_that_a_pod_gets_by_a_device_plugin_count_with_those_of_its_claim(evaluation: str) -> None:
    queue = QueueConfig(name="a", limit={A100: 2})
    cluster = fleet(queue, evaluation=evaluation, devices=(BOTH,)).add(gpus("n3", "A100", "A100"))
    cluster.node("n3", cpu="64", offers={"nvidia.com/gpu": 2})
    cluster.add(claim("c", 2), of("p", "a", "c", requests={"nvidia.com/gpu": 1}))
    cluster.run()
    why = f"1 queue 'a' has reached its limit of {A100}: limit 2, allocated 0"
    cluster.assert_pending("p", f"0/3 nodes are available: {why}, 2 Insufficient nvidia.com/gpu.")
    cluster.add(claim("d"), of("q", "a", "d", requests={"nvidia.com/gpu": 1})).run()
    cluster.assert_bound("q", "n3")
    assert counts(cluster, "a", A100)[0] == 2000


def test_gpus_of_a_device_plugin_count_with_those_of_the_claim_only_on_the_nodes_of_the_model() -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 1}), devices=(BY_LABEL,)).add(gpus("n3", "A100"))
    cluster.node("n3", cpu="64", offers={"nvidia.com/gpu": 2}, labels={"model": "A100"})
    cluster.add(claim("c"), of("p", "a", "c", requests={"nvidia.com/gpu": 1}))
    cluster.run()
    cluster.assert_pending("p", f"1 queue 'a' has reached its limit of {A100}: limit 1, allocated 0")
    cluster.node("n4", cpu="64", offers={"nvidia.com/gpu": 2}, labels={"model": "T4"}).add(gpus("n4", "A100"))
    cluster.run()
    cluster.assert_bound("p", "n4")
    assert counts(cluster, "a", A100) == (1000, 0)


# ------------------------------------------------------------------ steps


@pytest.mark.parametrize(("devices", "count", "limit"), [(16, 8, 7), (32, 8, 6), (56, 5, 4)])
def test_equal_devices_are_one_choice(steps: list[int], devices: int, count: int, limit: int) -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: limit}))
    cluster.add(gpus("n1", *["A100"] * devices), gpus("n2", *["T4"] * count))
    cluster.add(claim("c", count), of("p", "a", "c"))
    cluster.run(cycles=1)
    cluster.assert_bound("p", "n2")
    assert steps == [limit + 2, count + 1, count + 1, count + 1]  # n1, its reason, n2, and the allocation


def unlike(devices: int) -> Any:
    """Partitions that differ in the counters that they consume."""
    listed = [{"name": f"p{n}", "capacity": {"memory": {"value": "5Gi"}}, "attributes": {"model": {"string": "A100"}},
               "consumesCounters": [{"counterSet": "gpu", "counters": {f"slice{n}": {"value": "1"}}}]}
              for n in range(devices)]  # fmt: skip
    sets = [{"name": "gpu", "counters": {f"slice{n}": {"value": "1"} for n in range(devices)}}]
    return (part("n1-devices", "n1", slices=2, devices=listed),
            part("n1-counters", "n1", slices=2, sharedCounters=sets))  # fmt: skip


@pytest.mark.parametrize("asked", [(8,), (4, 4), (1, 2, 5)])
@pytest.mark.parametrize("devices", [16, 32, 56])
def test_the_search_leaves_requests_that_exceed_a_limit_at_least(
    steps: list[int], devices: int, asked: tuple[int, ...]
) -> None:
    cluster = fleet(QueueConfig(name="a", limit={MEMORY: "30Gi"}))
    cluster.add(*unlike(devices), gpus("n2", *["T4"] * 8, memory="1Gi"))
    cluster.add(requests("c", *asked), of("p", "a", "c"))
    cluster.run(cycles=1)
    cluster.assert_bound("p", "n2")
    assert steps[0] < 24 * devices


@pytest.mark.parametrize("devices", [16, 32, 56])
def test_limits_that_exclude_each_other_do_not_try_all_combinations(steps: list[int], devices: int) -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 4, MEMORY: "300Gi"}))
    listed = [{"name": f"d{n}", "capacity": {"memory": {"value": "80Gi" if n % 2 else "10Gi"}},
               "attributes": {"model": {"string": "T4" if n % 2 else "A100"}, "uuid": {"string": f"uuid-{n}"}}}
              for n in range(devices)]  # fmt: skip
    cluster.add(part("n1-devices", "n1", devices=listed), gpus("n2", *["T4"] * 8, memory="1Gi"))
    cluster.add(claim("c", 8), of("p", "a", "c"))
    cluster.run(cycles=1)
    cluster.assert_bound("p", "n2")
    assert steps[0] < 300


def test_a_search_for_the_reason_that_takes_too_many_steps_reports_the_limit() -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 1})).add(gpus("n1", *["A100"] * 8))
    cluster.add(claim("c", 8), of("p", "a", "c"))
    cluster.start()
    cluster.plugin("DynamicResources")._evaluator._steps = 6
    cluster.run()
    cluster.assert_pending("p", f"1 queue 'a' has reached its limit of {A100}: limit 1, allocated 0")


def test_each_rejected_device_costs_a_step() -> None:
    taint = [{"key": "broken", "effect": "NoSchedule"}]
    devices = [{"name": f"d{n}", "taints": [{**taint[0], "value": str(n)}]} for n in range(8)]
    cluster = fleet(QueueConfig(name="a")).add(part("n1-devices", "n1", devices=devices))
    cluster.add(claim("c"), of("p", "a", "c"))
    cluster.start()
    cluster.plugin("DynamicResources")._evaluator._steps = 8
    cluster.run()
    cluster.assert_pending("p", "node n1: timed out trying to allocate devices")


def test_devices_with_different_values_of_a_constraint_are_not_interchangeable() -> None:
    devices = [{"name": f"d{n}", "attributes": {"numa": {"int": numa}}} for n, numa in enumerate((0, 1, 1))]
    cluster = fleet(QueueConfig(name="a")).add(part("n1-devices", "n1", devices=devices))
    found = made(ResourceClaim, "c", "default", spec={"devices": {
        "requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "count": 2}}],
        "constraints": [{"matchAttribute": f"{DRIVER}/numa"}]}})  # fmt: skip
    cluster.add(found, of("p", "a", "c")).run()
    assert devices_of(cluster, "c") == ["d1", "d2"]
