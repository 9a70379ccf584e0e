"""Device resources: queues limit and share GPUs by model, although the node decides which model a pod gets."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from session_scheduler.config.settings import DeviceResourceConfig, QueueConfig, SchedulerConfig
from session_scheduler.errors import InputError
from session_scheduler.model.objects import Pod, PodGroup
from session_scheduler.model.queue_objects import Queue, QueueObjectSpec
from session_scheduler.model.queues import QUEUE_LABEL, shown_amounts
from session_scheduler.state.configured_queues import check_configured
from session_scheduler.testing import FakeCluster, gang, pod, pod_group

from .test_device_quota import BIG, counts, either, fair, taken
from .test_device_quota import GPUS as GPU_CLASS
from .test_dynamic_resources import claim, device_class, made, slice_of, user

WHOLE = "nvidia.com/gpu"
FRACTION = "fluence.flux-framework.org/gpu-fraction"
MEMORY = "fluence.flux-framework.org/gpu-memory"
MODEL = "nvidia.com/gpu.product"
A100 = "a100.fluence.flux-framework.org/devices"
GPUS = "gpus.fluence.flux-framework.org/devices"
BY_MODEL = DeviceResourceConfig(name="a100", resources=(WHOLE, FRACTION), node_selector={MODEL: "A100"})
ALL = DeviceResourceConfig(name="gpus", resources=(WHOLE, FRACTION))


def fleet(
    *queues: QueueConfig,
    models: tuple[str, ...] = ("A100", "T4"),
    gpus: int = 4,
    devices: Any = (BY_MODEL, ALL),
    evaluation: Any = "heap",
) -> FakeCluster:
    """One node of each model."""
    config = SchedulerConfig(bindings_in_flight=1_000, queues=queues, device_resources=devices)
    cluster = FakeCluster(config=config, evaluation=evaluation)
    for number, model in enumerate(models):
        cluster.node(f"n{number + 1}", cpu="64", offers={WHOLE: gpus}, labels={MODEL: model})
    return cluster


def of(name: str, queue: str, gpus: int = 1, **options: Any) -> Pod:
    return pod(name, queue=queue, requests={WHOLE: gpus}, **options)


def on(cluster: FakeCluster, *names: str) -> list[str | None]:
    return sorted(map(cluster.node_of, names), key=str)


def test_a_limit_of_a_model_leaves_pods_the_other_models() -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 1}))
    cluster.add(of(f"p{n}", "a") for n in range(5))
    cluster.run()
    assert on(cluster, *(f"p{n}" for n in range(5))) == ["n1", "n2", "n2", "n2", "n2"]
    assert counts(cluster, "a", A100) == (1000, 0)
    assert counts(cluster, "a", GPUS) == (5000, 0)


def test_a_pod_that_fits_only_the_limited_model_waits_with_the_limit_as_its_reason() -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: "1.5"}), models=("A100", "A100"))
    cluster.add(of("one", "a"))
    cluster.run()
    cluster.add(of("two", "a"))
    cluster.run()
    why = f"queue 'a' has reached its limit of {A100}: limit 1500m, allocated 1, requested 1"
    cluster.assert_pending("two", f"0/2 nodes are available: 2 {why}.")
    cluster.delete_pod("one")
    cluster.run()
    cluster.assert_bound("two")


def test_a_node_of_another_model_requeues_the_pods() -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 0}), models=("A100",))
    cluster.add(of("p", "a"))
    cluster.run()
    assert cluster.node_of("p") is None
    cluster.node("other", cpu="64", offers={WHOLE: 1}, labels={MODEL: "T4"})
    cluster.run()
    assert cluster.node_of("p") == "other"


def test_a_gang_stays_within_the_limit_of_a_model_as_a_whole() -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 2}))
    cluster.add(gang("g", 6, labels={QUEUE_LABEL: "a"}, requests={WHOLE: 1}))
    cluster.run()
    assert [node for node in cluster.placements().values() if node == "n1"] == ["n1"] * 2
    cluster = fleet(QueueConfig(name="a", limit={A100: 2}))
    cluster.add(gang("g", 7, labels={QUEUE_LABEL: "a"}, requests={WHOLE: 1}))
    cluster.run()
    assert not any(cluster.placements().values())


def test_equal_pods_of_other_queues_are_not_limited() -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 0}), QueueConfig(name="b"))
    cluster.add(*(of(f"{queue}{n}", queue) for n in range(4) for queue in "ab"))
    cluster.run()
    cluster.assert_all_bound()
    assert on(cluster, *(f"a{n}" for n in range(4))) == ["n2"] * 4
    assert on(cluster, *(f"b{n}" for n in range(4))) == ["n1"] * 4


def test_the_deserved_amount_limits_only_pods_that_are_not_preemptible() -> None:
    cluster = fleet(QueueConfig(name="a", deserved={A100: 1}))
    cluster.add(*(of(f"low{n}", "a") for n in range(2)), *(of(f"high{n}", "a", priority=100) for n in range(4)))
    cluster.run()
    cluster.assert_all_bound()
    assert sorted(on(cluster, *(f"high{n}" for n in range(4))), key=str).count("n1") <= 1
    assert cluster.scheduler.cache.queues.counts("a").kept.get(A100, 0) <= 1000


@pytest.mark.parametrize("label", ["", "scheduling.k8s.io/pod-group", "scheduling.x-k8s.io/pod-group"])
def test_the_label_of_the_pod_group_decides(label: str) -> None:
    """Pods name their group in a label or, without one, in the spec."""
    cluster = fleet(QueueConfig(name="a", limit={A100: 0}), QueueConfig(name="b"))
    for name, queue in (("ga", "a"), ("gb", "b")):
        options: dict[str, Any] = {"labels": {QUEUE_LABEL: "b"}, "requests": {WHOLE: 1}}
        if label:
            cluster.group(name, 4).pods(4, prefix=name, **options | {"labels": {QUEUE_LABEL: "b", label: name}})
        else:
            cluster.gang(name, 4, **options)
        group = cluster.find(PodGroup, name)
        cluster.add(replace(group, metadata=replace(group.metadata, labels={QUEUE_LABEL: queue})))
    cluster.run()
    placed = cluster.placements()
    assert {node for name, node in placed.items() if "/ga-" in name} == {"n2"}
    assert {node for name, node in placed.items() if "/gb-" in name} == {"n1"}


def test_preemptible_pods_stay_preemptible_when_an_equal_pod_is_gone() -> None:
    cluster = fleet(QueueConfig(name="a", deserved={A100: 1}), models=("A100",), gpus=6)
    cluster.add(of("first", "a", 2), of("second", "a", 2)).run()
    cluster.delete_pod("first").run()
    cluster.add(of("third", "a", 2)).run()
    cluster.assert_all_bound()


def test_a_pod_that_moves_to_another_queue_leaves_equal_pods_in_theirs() -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 3}), QueueConfig(name="b", limit={A100: 0}), models=("A100",))
    cluster.add(of("first", "a"), of("second", "a")).run()
    first = cluster.find(Pod, "first")
    cluster.add(replace(first, metadata=replace(first.metadata, labels={QUEUE_LABEL: "b"}))).run()
    cluster.add(of("third", "a")).run()
    cluster.assert_all_bound()


def test_parts_count_as_parts_beside_whole_gpus() -> None:
    cluster = fleet(QueueConfig(name="a", limit={GPUS: "2500m"}), models=("T4", "T4"))
    parts = [pod(f"s{n}", queue="a", annotations={FRACTION: "0.4"}) for n in range(2)]
    cluster.add(of("w", "a", 2), *parts)
    cluster.run()
    assert cluster.node_of("w")
    assert sorted(bool(cluster.node_of(f"s{n}")) for n in range(2)) == [False, True]
    assert counts(cluster, "a", GPUS) == (2400, 400)


def test_a_pod_counts_as_each_model_that_it_may_get_until_it_is_placed() -> None:
    cluster = fleet(QueueConfig(name="a"), models=("T4",))
    cluster.add(of("any", "a", 9), of("a100", "a", 9, node_selector={MODEL: "A100"}),
                of("t4", "a", 9, node_selector={MODEL: "T4"}))  # fmt: skip
    cluster.run()
    assert counts(cluster, "a", A100) == (0, 18_000)
    assert counts(cluster, "a", GPUS) == (0, 27_000)


def test_a_pod_that_selects_the_model_exceeds_the_limit_before_any_node_is_evaluated() -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 1}))
    cluster.add(of("p", "a", 2, node_selector={MODEL: "A100"}))
    cluster.run()
    cluster.assert_pending("p", f"queue 'a' has reached its limit of {A100}: limit 1, allocated 0, requested 2")


def test_counts_follow_the_labels_of_the_node() -> None:
    cluster = fleet(QueueConfig(name="a"), models=("T4",))
    cluster.add(of("p", "a"))
    cluster.run()
    assert counts(cluster, "a", A100) == (0, 0)
    cluster.node("n1", cpu="64", offers={WHOLE: 4}, labels={MODEL: "A100"})
    cluster.run()
    assert counts(cluster, "a", A100) == (1000, 0)


def test_another_label_of_a_node_requeues_pods_at_the_limit_of_its_model() -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 1}), models=("A100", "A100"))
    wanted: dict[str, Any] = {"node_selector": {MODEL: "A100"}}
    cluster.add(of("one", "a", **wanted), of("waits", "a", **wanted), pod("other"))
    cluster.run()
    cluster.assert_bound("one")
    cluster.assert_pending("waits", f"queue 'a' has reached its limit of {A100}")
    name = str(cluster.node_of("one"))
    cluster.node(name, cpu="64", offers={WHOLE: 4}, labels={MODEL: "T4"})
    cluster.advance(30)
    cluster.run()
    cluster.assert_bound("waits")


def test_a_nominated_pod_counts_with_the_new_labels_of_its_node() -> None:
    cluster = fleet(QueueConfig(name="a", limit={A100: 4}), models=("A100",))
    cluster.add(of("low", "a", gpus=4))
    cluster.run()
    cluster.add(of("high", "a", gpus=4, priority=9))
    cluster.run()
    assert taken(cluster) == ["low"]
    use = cluster.scheduler.cache.queues
    assert use.counts("a").decided.get(A100) == 4000
    cluster.node("n1", cpu="64", offers={WHOLE: 4}, labels={MODEL: "T4"})
    cluster._sync()
    assert A100 not in use.counts("a").decided


@pytest.mark.parametrize("evaluation", ["naive", "heap", "board"])
@pytest.mark.parametrize("selector", [{}, {MODEL: "A100"}])
def test_a_nominated_pod_counts_toward_the_limit_of_the_model_of_its_node(
    selector: dict[str, str], evaluation: Any
) -> None:
    """One of its two victims is gone, so the limit has space for a pod on another node; the nominated pod needs it."""
    cluster = with_nominated("A100", evaluation)
    cluster.add(of("next", "a", 2, node_selector=selector)).run(cycles=2)
    why = f"queue 'a' has reached its limit of {A100}: limit 4, allocated {6 if selector else 4}, requested 2"
    cluster.assert_pending("next", why if selector else f"0/2 nodes are available: 1 Insufficient {WHOLE}, 1 {why}.")
    cluster.add(of("more-urgent", "a", 2, priority=10, node_selector={"kubernetes.io/hostname": "n2"})).run(cycles=2)
    cluster.assert_bound("more-urgent")
    cluster.delete_pod("more-urgent")
    cluster.delete_pod("low-1")
    cluster.run(cycles=2)
    cluster.assert_bound("high", "n1")
    cluster.assert_pending("next", f"limit of {A100}: limit 4, allocated 4, requested 2")


@pytest.mark.parametrize("evaluation", ["naive", "heap", "board"])
def test_a_pod_that_is_nominated_for_another_model_does_not_count(evaluation: Any) -> None:
    cluster = with_nominated("T4", evaluation)
    cluster.add(of("next", "a", 2)).run()
    cluster.assert_bound("next", "n2")


@pytest.mark.parametrize("evaluation", ["naive", "heap", "board"])
def test_the_end_of_a_nomination_requeues_pods_at_the_limit_of_its_model(evaluation: Any) -> None:
    cluster = with_nominated("A100", evaluation)
    cluster.add(of("next", "a", 2)).run(cycles=2)
    cluster.assert_pending("next")
    cluster.delete_pod("high")
    cluster.run()
    cluster.assert_bound("next")


@pytest.mark.parametrize("evaluation", ["naive", "heap", "board"])
def test_a_nominated_pod_does_not_count_toward_its_own_limit_elsewhere(evaluation: Any) -> None:
    """The limit leaves it the whole of another node that becomes free first, also beside an equal pod that waits."""
    cluster = with_nominated("A100", evaluation, limit=6)
    cluster.add(of("equal", "a", 4, priority=9)).run(cycles=2)
    cluster.assert_pending("equal")
    cluster.node("n3", cpu="64", offers={WHOLE: 4}, labels={MODEL: "A100"})
    cluster.run(cycles=2)
    cluster.assert_bound("high", "n3")
    cluster.assert_pending("equal")


@pytest.mark.parametrize("evaluation", ["naive", "heap", "board"])
@pytest.mark.parametrize("selector", [{}, {MODEL: "A100"}])
@pytest.mark.parametrize("grouped", [False, True])
def test_pods_preempt_within_the_limit_of_a_model_in_one_session(
    grouped: bool, selector: dict[str, str], evaluation: Any
) -> None:
    """The victims of the first pod make space in the limit for it, and those of the second pod for that one."""
    cluster = fleet(QueueConfig(name="a", limit={A100: 8}), models=("A100", "A100"), evaluation=evaluation)
    cluster.add(of(f"low-{n}", "a", 4, priority=-1) for n in range(2)).run()
    options: dict[str, Any] = {"priority": 9, "node_selector": selector, **({"group": "g"} if grouped else {})}
    if grouped:  # it has started, so its other pods preempt one by one
        cluster.add(pod_group("g", None, labels={QUEUE_LABEL: "a"}), pod("runs", group="g", bound_to="n1"))
    cluster.add(of(f"high-{n}", "a", 4, **options) for n in range(3)).run()
    assert taken(cluster) == ["low-0", "low-1"]
    nominated = [cluster.find(Pod, f"high-{n}").status.nominated_node_name for n in range(3)]
    assert sorted(nominated) == ["", "n1", "n2"]


@pytest.mark.parametrize("evaluation", ["naive", "heap", "board"])
def test_victims_of_other_schedulers_leave_no_space_in_a_limit(evaluation: Any) -> None:
    """They do not count in queues, although their labels name one."""
    cluster = fleet(QueueConfig(name="a", limit={A100: 4}), models=(), evaluation=evaluation)
    labels = {MODEL: "A100", "pool": "x"}
    for name in ("n1", "n2"):
        cluster.node(name, cpu="64", offers={WHOLE: 4}, labels=labels)
    cluster.node("n3", cpu="64", offers={WHOLE: 32}, labels={MODEL: "T4"})
    options: dict[str, Any] = {"scheduler": "other", "node_selector": {MODEL: "A100"}}
    cluster.add(of(f"low-{n}", "a", 4, priority=-1, bound_to=f"n{n}", **options) for n in (1, 2)).run()
    cluster.add(pod_group("g", None, labels={QUEUE_LABEL: "a"}), pod("runs", group="g", bound_to="n1"))
    cluster.add(of(f"high-{n}", "a", 4, priority=9, group="g", node_selector={"pool": "x"}) for n in (1, 2)).run()
    assert taken(cluster) == ["low-1"]
    cluster.assert_nominated("high-1", "n1")
    cluster.assert_pending("high-2", f"queue 'a' has reached its limit of {A100}")


@pytest.mark.parametrize("evaluation", ["naive", "heap", "board"])
def test_the_next_pod_of_a_queue_counts_with_the_models_that_it_selects(evaluation: Any) -> None:
    """Two pods of a queue request equal amounts, but only the first one selects a model."""
    queues = [QueueConfig(name=name) for name in "abc"]
    cluster = fleet(*queues, models=("A100",), gpus=16, evaluation=evaluation)
    cluster.node("n2", cpu="64", offers={WHOLE: 10}, labels={MODEL: "T4"})
    cluster.add(of("c", "c", 12, bound_to="n1"), of("b", "b", 6, bound_to="n2")).run()
    cluster.add(of("a-0", "a", 4, priority=5, node_selector={MODEL: "A100"}), of("a-1", "a", 4, priority=1))
    cluster.add(of("b-0", "b", 4)).run()
    cluster.assert_bound("a-0", "n1")
    cluster.assert_bound("a-1", "n2")
    cluster.assert_pending("b-0")


def with_nominated(model: str, evaluation: Any, limit: int = 4) -> FakeCluster:
    """A pod that is nominated for n1 and waits for one of two victims. Two GPUs of n2 are free, which is an A100."""
    config = SchedulerConfig(
        bindings_in_flight=1_000, queues=(QueueConfig(name="a", limit={A100: limit}), QueueConfig(name="b")),
        device_resources=(BY_MODEL, ALL),
    )  # fmt: skip
    cluster = FakeCluster(config=config, evaluation=evaluation)
    cluster.node("n1", cpu="64", offers={WHOLE: 4}, labels={MODEL: model})
    cluster.node("n2", cpu="64", offers={WHOLE: 4}, labels={MODEL: "A100", "kubernetes.io/hostname": "n2"})
    cluster.add(of("other", "b", 2, bound_to="n2"))
    cluster.add(of(f"low-{n}", "a", 2, priority=-1, bound_to="n1") for n in range(2)).run()
    cluster.add(of("high", "a", 4, priority=9)).run(cycles=2)
    assert taken(cluster) == ["low-0", "low-1"]
    cluster.assert_nominated("high", "n1")
    return cluster.delete_pod("low-0")


def test_claims_count_by_class_on_all_nodes() -> None:
    devices = (DeviceResourceConfig(name="a100", resources=(WHOLE, BIG, GPU_CLASS), node_selector={MODEL: "A100"}),)
    cluster = fleet(QueueConfig(name="a", limit={A100: 3}), devices=devices)
    cluster.add(device_class(), device_class("big"), slice_of("n2", "d0", "d1", "d2"))
    cluster.add(claim("c", 2), claim("d", 2), user("p", "c", queue="a"))
    cluster.run()
    cluster.add(user("q", "d", queue="a"))
    cluster.run()
    cluster.assert_pending("q", f"queue 'a' has reached its limit of {A100}: limit 3, allocated 2, requested 2")
    assert counts(cluster, "a", A100) == (2000, 2000)
    assert fair(cluster, "a", A100) == 3000


def test_of_the_alternatives_of_a_claim_the_larger_sum_counts() -> None:
    devices = (DeviceResourceConfig(name="gpus", resources=(GPU_CLASS, BIG)),)
    cluster = fleet(QueueConfig(name="a", limit={GPUS: 3}), devices=devices)
    cluster.add(device_class(), device_class("big"), slice_of("n2", "d0", "d1", "d2"))
    cluster.add(either("c", ("big", 2), ("gpu", 1)), user("p", "c", queue="a"))
    cluster.add(either("d", ("big", 4), ("gpu", 1)), user("q", "d", queue="a"))
    cluster.run()
    cluster.assert_bound("p")
    cluster.assert_pending("q", f"queue 'a' has reached its limit of {GPUS}: limit 3, allocated 2, requested 4")


def test_queues_share_a_model_and_reclaim_what_they_deserve() -> None:
    cluster = fleet(QueueConfig(name="a"), QueueConfig(name="b", deserved={A100: 3}))
    wanted: dict[str, Any] = {"node_selector": {MODEL: "A100"}}
    cluster.add(of(f"a{n}", "a", **wanted) for n in range(4))
    cluster.run()
    cluster.assert_all_bound()
    cluster.add(of(f"b{n}", "b", **wanted) for n in range(4))
    cluster.run(cycles=2)
    assert [fair(cluster, queue, A100) for queue in "ab"] == [500, 3500]
    assert len(taken(cluster)) == 3


@pytest.mark.parametrize("evaluation", ["naive", "heap", "board"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("models", [("A100", "T4"), ("T4", "A100")])
def test_equal_pods_on_other_models_are_other_victims(models: tuple[str, ...], seed: int, evaluation: Any) -> None:
    """The queue keeps the A100s that it deserves, and gives up the T4s."""
    queues = (QueueConfig(name="a", deserved={A100: 4}), QueueConfig(name="b"))
    config = SchedulerConfig(bindings_in_flight=1_000, seed=seed, queues=queues, device_resources=(BY_MODEL, ALL))
    cluster = FakeCluster(config=config, evaluation=evaluation)
    for number, model in enumerate(models):
        cluster.node(f"n{number}", cpu="64", offers={WHOLE: 4}, labels={MODEL: model})
    cluster.add(of(f"a{n}", "a") for n in range(8))
    cluster.run()
    cluster.assert_all_bound()
    cluster.add(of(f"b{n}", "b") for n in range(4))
    cluster.run(cycles=3)
    assert on(cluster, *taken(cluster)) == [f"n{models.index('T4')}"] * 4


def test_amounts_are_shown_in_whole_devices_and_thousandths() -> None:
    assert shown_amounts({A100: 2500, GPUS: 3000}) == {A100: "2500m", GPUS: "3"}


# ------------------------------------------------------------------ configuration


def test_a_queue_with_an_unknown_device_resource_is_not_ready() -> None:
    cluster = fleet(devices=())
    cluster.add(Queue(metadata=made(PodGroup, "a").metadata, spec=QueueObjectSpec(limit={A100: 1})))
    cluster.add(of("p", "a"))
    cluster.run()
    text = f"limit.{A100}: unknown device resource; add it to deviceResources in the scheduler's configuration"
    cluster.assert_pending("p", f"queue 'a' is not ready: {text}")


@pytest.mark.parametrize("name", ["cpu", "memory", "pods", "hugepages-2Mi", MEMORY, GPUS])
def test_the_configuration_rejects_amounts_that_do_not_count_devices(name: str) -> None:
    wrong = DeviceResourceConfig(name="a100", resources=(WHOLE, name))
    with pytest.raises(InputError) as error:
        check_configured((), "file", (ALL, wrong))
    remedy = (
        f"use an extended resource such as nvidia.com/gpu, {FRACTION}, or CLASS.deviceclass.resource.k8s.io/devices"
    )
    assert str(error.value) == f"file: deviceResources[1].resources[1]: {name!r} does not count devices; {remedy}"


def test_the_configuration_rejects_an_amount_that_would_count_twice() -> None:
    with pytest.raises(InputError, match=r"deviceResources\[0\]\.resources\[1\].*duplicates resources\[0\]; remove"):
        check_configured((), "file", (DeviceResourceConfig(name="a100", resources=(WHOLE, WHOLE)),))


def test_the_configuration_rejects_names_twice_and_unknown_ones_in_queues() -> None:
    with pytest.raises(ValueError, match="deviceResources"):
        SchedulerConfig(device_resources=(ALL, ALL))
    with pytest.raises(InputError, match="unknown device resource"):
        check_configured((QueueConfig(name="a", limit={A100: 1}),), "file", (ALL,))
