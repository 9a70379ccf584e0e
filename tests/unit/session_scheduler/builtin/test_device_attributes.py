"""Device resources by attribute and capacity: the allocation decides what a claim counts with."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from session_scheduler.config.settings import DeviceResourceConfig, QueueConfig, SchedulerConfig
from session_scheduler.errors import InputError
from session_scheduler.model.devices import DeviceClass, ResourceClaim, ResourceSlice
from session_scheduler.model.objects import Pod
from session_scheduler.model.queue_objects import Queue, QueueObjectSpec
from session_scheduler.model.queues import QUEUE_LABEL, shown_amounts
from session_scheduler.state.configured_queues import check_configured
from session_scheduler.testing import FakeCluster, gang, pod

from .test_device_quota import counts, fair, freed, taken
from .test_dynamic_resources import DRIVER, allocated_to, claim, device_class, devices_of, made, user

MODEL = f"{DRIVER}/model"
A100 = "a100.fluence.flux-framework.org/devices"
MEMORY = "memory.fluence.flux-framework.org/capacity"
BY_MODEL = DeviceResourceConfig(name="a100", device_attributes={MODEL: "A100"})
BY_MEMORY = DeviceResourceConfig(name="memory", capacity=f"{DRIVER}/memory")
MODES = pytest.mark.parametrize("evaluation", ["naive", "heap", "board"])


def gpus(node: str, *models: str, generation: int = 1, memory: str = "40Gi") -> ResourceSlice:
    """A slice of GPUs, named by model and number."""
    devices = [{"name": f"{model.lower()}-{n}", "attributes": {"model": {"string": model}},
                "capacity": {"memory": {"value": memory}}} for n, model in enumerate(models)]  # fmt: skip
    return part(f"{node}-devices", node, devices=devices, generation=generation)


def part(name: str, node: str, *, generation: int = 1, slices: int = 1, **spec: Any) -> ResourceSlice:
    pool = {"name": node, "generation": generation, "resourceSliceCount": slices}
    found: ResourceSlice = made(ResourceSlice, name, spec={"driver": DRIVER, "nodeName": node, "pool": pool, **spec})
    return found


def fleet(*queues: QueueConfig, evaluation: Any = "board", devices: Any = (BY_MODEL, BY_MEMORY)) -> FakeCluster:
    config = SchedulerConfig(bindings_in_flight=1_000, queues=queues, device_resources=devices)
    cluster = FakeCluster(config=config, evaluation=evaluation)
    return cluster.nodes(2, cpu="64").add(device_class())


def of(name: str, queue: str, *claims: str, **options: Any) -> Pod:
    return user(name, *claims, labels={QUEUE_LABEL: queue}, **options)


def only(model: str) -> list[Any]:
    return [{"cel": {"expression": f'device.attributes["{DRIVER}"].model == "{model}"'}}]


def either(name: str, *requests: tuple[str, int]) -> ResourceClaim:
    """A claim for a number of devices of one of several models."""
    listed = [{"name": f"s{n}", "deviceClassName": "gpu", "count": count, "selectors": only(model)}
              for n, (model, count) in enumerate(requests)]  # fmt: skip
    spec = {"devices": {"requests": [{"name": "r", "firstAvailable": listed}]}}
    found: ResourceClaim = made(ResourceClaim, name, "default", spec=spec)
    return found


# ------------------------------------------------------------------ limits


@MODES
def test_a_limit_of_a_model_leaves_claims_the_other_models(evaluation: str) -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 1}), evaluation=evaluation)
    cluster.add(gpus("n1", "A100", "A100", "T4"), gpus("n2", "A100", "T4"))
    cluster.add(*(claim(f"c{n}") for n in range(4)), *(of(f"p{n}", "a", f"c{n}") for n in range(4)))
    cluster.run()
    got = sorted(device for n in range(4) for device in devices_of(cluster, f"c{n}"))
    assert [device.partition("-")[0] for device in got] == ["a100", "t4", "t4"]
    assert counts(cluster, "a", A100) == (1000, 1000)
    (waits,) = [f"p{n}" for n in range(4) if cluster.node_of(f"p{n}") is None]
    why = f"queue 'a' has reached its limit of {A100}: limit 1, allocated 1"
    cluster.assert_pending(waits, f"0/2 nodes are available: 2 {why}.")


@MODES
def test_each_node_has_its_own_reason(evaluation: str) -> None:
    """The first node has no devices, also none for the extended resource, which the second node offers itself."""
    cluster = fleet(QueueConfig(name="a", limit={A100: 0}), evaluation=evaluation).add(gpus("n2", "A100"))
    cluster.add(device_class("other", extendedResourceName="example.com/gpu"))
    cluster.node("n2", cpu="64", offers={"example.com/gpu": 1})
    cluster.add(claim("c"), of("p", "a", "c", requests={"example.com/gpu": 1})).run()
    why = f"queue 'a' has reached its limit of {A100}: limit 0, allocated 0"
    cluster.assert_pending("p", f"0/2 nodes are available: 1 cannot allocate all claims, 1 {why}.")


def test_a_claim_that_selects_the_model_exceeds_the_limit_before_any_node_is_evaluated() -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 1})).add(gpus("n1", "A100", "A100"))
    cluster.add(claim("c", 2, selectors=only("A100")), of("p", "a", "c"))
    cluster.run()
    cluster.assert_pending("p", f"queue 'a' has reached its limit of {A100}: limit 1, allocated 0, requested 2")
    assert counts(cluster, "a", A100) == (0, 2000)


def test_selectors_of_the_device_class_fix_the_model_too() -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 1})).add(gpus("n1", "A100", "A100"))
    cluster.add(device_class(selectors=only("A100")), claim("c", 2), of("p", "a", "c"))
    cluster.run()
    cluster.assert_pending("p", f"queue 'a' has reached its limit of {A100}: limit 1, allocated 0, requested 2")
    cluster.add(device_class(selectors=only("T4")), gpus("n2", "T4", "T4"))
    cluster.run()
    cluster.assert_bound("p", "n2")
    assert counts(cluster, "a", A100) == (0, 0)


def test_a_claim_counts_as_each_model_that_it_may_get_until_it_is_allocated() -> None:
    cluster = fleet(QueueConfig(name="a"))
    cluster.add(claim("any", 2), claim("t4", 3, selectors=only("T4")), either("either", ("A100", 4), ("T4", 9)))
    cluster.add(of("p", "a", "any", cpu="65"), of("q", "a", "t4", cpu="65"), of("r", "a", "either", cpu="65"))
    cluster.run()
    assert counts(cluster, "a", A100) == (0, 6000)


def test_a_limit_excludes_the_first_alternative_of_a_claim() -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 1})).add(gpus("n1", "A100", "A100", "T4"))
    cluster.add(either("c", ("A100", 2), ("T4", 1)), of("p", "a", "c"))
    cluster.run()
    assert devices_of(cluster, "c") == ["t4-2"]
    assert counts(cluster, "a", A100) == (0, 0)


def test_a_gang_stays_within_the_limit_of_a_model_as_a_whole() -> None:
    for count, fits in ((4, True), (5, False)):
        cluster = fleet(QueueConfig(name="a", limit={A100: 2}))
        cluster.add(gpus("n1", "A100", "A100", "A100", "T4"), gpus("n2", "A100", "T4"))
        entries = [({"name": "e", "resourceClaimName": f"c{n}"},) for n in range(count)]
        objects = gang("g", count, labels={QUEUE_LABEL: "a"})
        pods = [one for one in objects if isinstance(one, Pod)]
        members = [replace(one, spec=replace(one.spec, resource_claims=entry))
                   for one, entry in zip(pods, entries, strict=True)]  # fmt: skip
        cluster.add(objects[0], *members, *(claim(f"c{n}") for n in range(count)))
        cluster.run()
        assert all(cluster.placements().values()) == fits
        assert any(cluster.placements().values()) == fits
        assert counts(cluster, "a", A100)[0] == 2000 * fits


@pytest.mark.parametrize("selectors", [{}, {"selectors": only("A100")}])
def test_a_claim_leaves_a_nominated_pod_what_a_limit_allows(selectors: dict[str, Any]) -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 2}))
    cluster.add(gpus("n1", "A100", "A100"), gpus("n2", "A100"))
    on_n1: dict[str, Any] = {"node_selector": {"kubernetes.io/hostname": "n1"}}
    for name in ("v0", "v1"):
        cluster.add(claim(f"c-{name}", selectors=only("A100")), of(name, "a", f"c-{name}", **on_n1))
    cluster.run()
    cluster.assert_all_bound()
    cluster.add(claim("c-high", 2, selectors=only("A100")), of("high", "a", "c-high", priority=9)).run(cycles=2)
    assert taken(cluster) == ["v0", "v1"]
    cluster.delete_pod("v0")
    freed(cluster, "v0")
    cluster.add(claim("c-next", **selectors), of("next", "a", "c-next", priority=5)).run(cycles=2)
    cluster.assert_pending("next", "queue 'a' has reached its limit")
    cluster.delete_pod("v1")
    freed(cluster, "v1")
    cluster.run(cycles=2)
    cluster.assert_bound("high", "n1")
    assert cluster.node_of("next") is None


def test_the_limit_of_an_ancestor_applies_to_all_queues_below() -> None:
    cluster = fleet(QueueConfig(name="top", limit={A100: 1}), QueueConfig(name="a", parent="top"),
                    QueueConfig(name="b", parent="top"), QueueConfig(name="c"))  # fmt: skip
    cluster.add(gpus("n1", "A100", "A100", "A100"))
    cluster.add(*(claim(f"c{n}") for n in range(3)), of("p0", "a", "c0"), of("p1", "b", "c1"), of("p2", "c", "c2"))
    cluster.run()
    cluster.assert_bound("p2")
    assert counts(cluster, "top", A100) == (1000, 1000)


def test_all_devices_stay_within_the_limit() -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 1})).add(gpus("n1", "A100", "A100"), gpus("n2", "A100", "T4"))
    cluster.add(claim("c", allocationMode="All"), of("p", "a", "c"))
    cluster.run()
    cluster.assert_bound("p", "n2")
    assert counts(cluster, "a", A100) == (1000, 0)


def test_pods_that_are_not_preemptible_stay_within_the_deserved_devices() -> None:
    cluster = fleet(QueueConfig(name="a", deserved={A100: 1})).add(gpus("n1", "A100", "A100"))
    cluster.add(claim("c0"), claim("c1"), of("p0", "a", "c0", priority=100), of("p1", "a", "c1", priority=100))
    cluster.run()
    (waits,) = [f"p{n}" for n in range(2) if cluster.node_of(f"p{n}") is None]
    text = f"queue 'a' has reached its deserved {A100} for non-preemptible pods: deserved 1, allocated 1"
    cluster.assert_pending(waits, f"1 {text}")


def test_a_limit_that_claims_cannot_exceed_evaluates_equal_claims_once() -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 4})).add(gpus("n1", *["A100"] * 9))
    cluster.add(*(claim(f"c{n}") for n in range(4)), *(of(f"p{n}", "a", f"c{n}") for n in range(4)))
    cluster.run()
    cluster.assert_all_bound()
    assert len(cluster.plugin("DynamicResources")._evaluator._outcomes) == 1
    cluster.add(claim("c4"), of("p4", "a", "c4")).run()
    cluster.assert_pending("p4", "limit 4, allocated 4")
    assert len(cluster.plugin("DynamicResources")._evaluator._outcomes) == 2


def test_pods_that_share_an_allocated_claim_add_nothing() -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 1})).add(gpus("n1", "A100"))
    cluster.add(claim("c"), *(of(f"p{n}", "a", "c") for n in range(3)))
    cluster.run()
    cluster.assert_all_bound()
    assert counts(cluster, "a", A100) == (1000, 0)


@MODES
def test_a_limit_on_devices_without_the_plugin_for_queues_is_not_enforced(evaluation: str) -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 0}), evaluation=evaluation).without("Proportion")
    cluster.add(gpus("n1", "A100"), claim("c"), of("p", "a", "c"))
    cluster.run()
    cluster.assert_bound("p")


# ------------------------------------------------------------------ retries


def test_a_pod_waits_until_a_claim_with_devices_of_the_model_is_freed() -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 1})).add(gpus("n1", "A100", "A100"))
    cluster.add(claim("c0"), of("p0", "a", "c0"))
    cluster.run()
    cluster.add(claim("c1"), of("p1", "a", "c1"))
    cluster.run()
    assert cluster.node_of("p1") is None
    cluster.delete_pod("p0")
    cluster.delete(ResourceClaim, "c0")
    cluster.advance(30)
    cluster.run()
    cluster.assert_bound("p1")


def test_a_higher_limit_and_a_pod_that_leaves_the_queue_requeue_the_others() -> None:
    def queue(limit: int) -> Queue:
        return Queue(metadata=made(DeviceClass, "a").metadata, spec=QueueObjectSpec(limit={A100: limit}))

    cluster = fleet(QueueConfig(name="b")).add(queue(1), gpus("n1", "A100", "A100", "A100"))
    cluster.add(claim("c0"), of("p0", "a", "c0"))
    cluster.run()
    cluster.add(claim("c1"), of("p1", "a", "c1"))
    cluster.run()
    assert cluster.node_of("p1") is None
    first = cluster.find(Pod, "p0")
    cluster.add(replace(first, metadata=replace(first.metadata, labels={QUEUE_LABEL: "b"})))
    cluster.advance(30)
    cluster.run()
    cluster.assert_bound("p1")
    cluster.add(claim("c2"), of("p2", "a", "c2"))
    cluster.run()
    assert cluster.node_of("p2") is None
    cluster.add(queue(2))
    cluster.advance(30)
    cluster.run()
    cluster.assert_bound("p2")


# ------------------------------------------------------------------ counts


def test_counts_follow_the_slices() -> None:
    cluster = fleet(QueueConfig(name="a")).add(gpus("n1", "T4"), claim("c"), of("p", "a", "c"))
    cluster.run()
    assert counts(cluster, "a", A100) == (0, 0)
    newer = gpus("n1", "A100", generation=2)
    names = replace(newer, spec=replace(newer.spec, devices=(replace(newer.spec.devices[0], name="t4-0"),)))
    cluster.add(names).run()
    assert counts(cluster, "a", A100) == (1000, 0)
    cluster.delete(ResourceSlice, "n1-devices").run()
    assert counts(cluster, "a", A100) == (0, 0)


@pytest.mark.parametrize(("value", "wanted", "equal"), [
    ({"string": "1"}, "1", True), ({"string": "1"}, 1, False), ({"int": 1}, 1, True), ({"int": 1}, True, False),
    ({"bool": True}, True, True), ({"version": "1.2.3"}, "1.2.3", True), ({}, "1", False),
])  # fmt: skip
@pytest.mark.parametrize("name", ["model", MODEL])
def test_values_are_compared_with_their_types(name: str, value: Any, wanted: Any, equal: bool) -> None:
    devices = (DeviceResourceConfig(name="a100", device_attributes={MODEL: wanted}),)
    cluster = fleet(QueueConfig(name="a"), devices=devices)
    known = gpus("n1", "x")
    device = made(ResourceSlice, "x", spec={"devices": [{"name": "x-0", "attributes": {name: value}}]}).spec.devices
    cluster.add(replace(known, spec=replace(known.spec, devices=device)), claim("c"), of("p", "a", "c"))
    cluster.run()
    assert counts(cluster, "a", A100) == (1000 * equal, 0)


def test_devices_with_admin_access_do_not_count() -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 0})).add(gpus("n1", "A100"))
    cluster.add(claim("c", adminAccess=True), of("p", "a", "c"))
    cluster.run()
    cluster.assert_bound("p")
    assert counts(cluster, "a", A100) == (0, 0)


def test_requests_for_the_resource_of_a_device_plugin_add_to_the_devices() -> None:
    whole = DeviceResourceConfig(name="a100", resources=("nvidia.com/gpu",), node_selector={"model": "A100"},
                                 device_attributes={MODEL: "A100"})  # fmt: skip
    cluster = fleet(QueueConfig(name="a", limit={A100: 2}), devices=(whole,)).add(gpus("n1", "A100", "A100"))
    cluster.node("n3", cpu="64", offers={"nvidia.com/gpu": 2}, labels={"model": "A100"})
    cluster.add(pod("w", queue="a", requests={"nvidia.com/gpu": 1}), claim("c0"), of("p0", "a", "c0"))
    cluster.run()
    cluster.add(claim("c1"), of("p1", "a", "c1"))
    cluster.run()
    assert counts(cluster, "a", A100) == (2000, 1000)
    assert fair(cluster, "a", A100) == 2000
    cluster.assert_pending("p1", f"1 queue 'a' has reached its limit of {A100}: limit 2, allocated 2")
    cluster.delete_pod("w")
    cluster.advance(30)
    cluster.run()
    cluster.assert_bound("p1")


# ------------------------------------------------------------------ shares and reclaim


def test_queues_share_a_model_and_reclaim_what_they_deserve() -> None:
    cluster = fleet(QueueConfig(name="a"), QueueConfig(name="b", deserved={A100: 1}))
    cluster.add(gpus("n1", "A100", "A100", "T4"), allocated_to(claim("foreign"), "n1", "t4-2"))
    cluster.add(*(claim(f"c{n}", selectors=only("A100")) for n in range(4)))
    cluster.add(of("a0", "a", "c0"), of("a1", "a", "c1"))
    cluster.run()
    cluster.assert_all_bound()
    cluster.add(of("b0", "b", "c2"), of("b1", "b", "c3"))
    cluster.run(cycles=3)
    assert [fair(cluster, queue, A100) for queue in "ab"] == [500, 1500]
    assert len(taken(cluster)) == 1


# ------------------------------------------------------------------ capacity


def test_capacities_of_devices_count_and_are_limited() -> None:
    cluster = fleet(QueueConfig(name="a", limit={MEMORY: "50Gi"}))
    cluster.add(gpus("n1", "A100", "A100"), gpus("n2", "T4", "T4", memory="10Gi"))
    cluster.add(*(claim(f"c{n}") for n in range(4)), *(of(f"p{n}", "a", f"c{n}") for n in range(4)))
    cluster.run()
    assert shown_amounts({MEMORY: counts(cluster, "a", MEMORY)[0]})[MEMORY] in ("50Gi", "20Gi")
    waiting = [f"p{n}" for n in range(4) if cluster.node_of(f"p{n}") is None]
    assert waiting
    cluster.assert_pending(waiting[0], f"queue 'a' has reached its limit of {MEMORY}: limit 50Gi, allocated")


def partitions(node: str, *, shares: tuple[int, ...]) -> ResourceSlice:
    """Partitions of one GPU with 8 memory slices of 5Gi: each takes some of them."""
    devices = [{"name": f"p{n}", "attributes": {"model": {"string": "A100"}},
                "capacity": {"memory": {"value": f"{5 * share}Gi"}},
                "consumesCounters": [{"counterSet": "gpu", "counters": {"slices": {"value": str(share)}}}]}
               for n, share in enumerate(shares)]  # fmt: skip
    return part(f"{node}-partitions", node, slices=2, devices=devices)


def counters(node: str) -> ResourceSlice:
    sets = [{"name": "gpu", "counters": {"slices": {"value": "8"}}}]
    return part(f"{node}-counters", node, slices=2, sharedCounters=sets)


def test_partitions_count_with_their_capacity_and_share_that_of_their_device() -> None:
    cluster = fleet(QueueConfig(name="a", limit={MEMORY: "25Gi"}), QueueConfig(name="b"))
    cluster.add(counters("n1"), partitions("n1", shares=(4, 4, 2, 2, 1, 8)))
    cluster.add(*(claim(f"c{n}") for n in range(3)), *(of(f"p{n}", "a", f"c{n}") for n in range(3)))
    cluster.run()
    assert counts(cluster, "a", MEMORY)[0] <= 25 << 30
    assert counts(cluster, "a", MEMORY)[0] >= 20 << 30
    total = cluster.scheduler.cache.queues.claims.devices.total
    assert total == {MEMORY: 40 << 30, A100: 6000}
    cluster.add(partitions("n1", shares=(4, 4, 2, 2, 1, 1, 1, 1, 1, 1, 1, 8))).run()
    assert total == {MEMORY: 40 << 30, A100: 8000}


def test_a_shared_device_counts_with_the_capacity_that_each_claim_consumes() -> None:
    cluster = fleet(QueueConfig(name="a", limit={MEMORY: "30Gi"}))
    known = gpus("n1", "A100")
    shared = replace(known.spec.devices[0], allow_multiple_allocations=True)
    cluster.add(replace(known, spec=replace(known.spec, devices=(shared,))))
    cluster.add(*(claim(f"c{n}", capacity={"requests": {"memory": "12Gi"}}) for n in range(3)))
    cluster.add(*(of(f"p{n}", "a", f"c{n}") for n in range(3)))
    cluster.run()
    assert counts(cluster, "a", MEMORY) == (24 << 30, 12 << 30)
    (waits,) = [f"p{n}" for n in range(3) if cluster.node_of(f"p{n}") is None]
    why = f"queue 'a' has reached its limit of {MEMORY}: limit 30Gi, allocated 24Gi, requested 12Gi"
    cluster.assert_pending(waits, why)


# ------------------------------------------------------------------ configuration


NO_NODES = "nodeSelector: has no effect, because devices of claims are counted on all nodes; remove it"


@pytest.mark.parametrize(("wrong", "text"), [
    ({}, "resources: list at least one resource, or set deviceAttributes or capacity"),
    ({"resources": ("nvidia.com/gpu",), "capacity": f"{DRIVER}/memory"},
     "capacity: its unit differs from that of resources; remove one of the two"),
    ({"resources": ("gpu.deviceclass.resource.k8s.io/devices",), "device_attributes": {MODEL: "A100"}},
     "resources[0]: 'gpu.deviceclass.resource.k8s.io/devices' counts devices of claims, which deviceAttributes already "
     "counts; remove this resource"),
    ({"node_selector": {"model": "A100"}, "capacity": f"{DRIVER}/memory"}, NO_NODES),
    ({"node_selector": {"model": "A100"}, "device_attributes": {MODEL: "A100"}}, NO_NODES),
    ({"node_selector": {"model": "A100"}, "resources": ("gpu.deviceclass.resource.k8s.io/devices",)}, NO_NODES),
])  # fmt: skip
def test_the_configuration_rejects_what_does_not_count(wrong: Any, text: str) -> None:
    with pytest.raises(InputError) as error:
        check_configured((), "file", (DeviceResourceConfig(name="a100", **wrong),))
    assert str(error.value) == f"file: deviceResources[0].{text}"


@pytest.mark.parametrize("name", ["model", "a/b/c", "/model", "d.example.com/"])
def test_the_configuration_rejects_names_without_a_domain(name: str) -> None:
    with pytest.raises(ValueError, match="device_attributes"):
        DeviceResourceConfig(name="a100", device_attributes={name: "x"})
    with pytest.raises(ValueError, match="capacity"):
        DeviceResourceConfig(name="a100", capacity=name)
