from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from session_scheduler.builtin import gpu_usability
from session_scheduler.builtin.gpu_fragmentation import request_of
from session_scheduler.builtin.gpu_usability import (
    GPUS,
    MOST_REQUESTS,
    MOST_SELECTORS,
    GpuRequest,
    Losses,
    Workload,
    most_frequent,
    weights_of,
)
from session_scheduler.model.gpu_reservations import reservation_pod
from session_scheduler.model.gpu_shares import GPU_COUNT, GPU_FRACTION, GPU_MEMORY, WHOLE
from session_scheduler.model.meta import ObjectMeta
from session_scheduler.model.objects import Node, Pod
from session_scheduler.registry.registry import PluginArgumentsError
from session_scheduler.testing.builders import gang, pod
from session_scheduler.testing.evaluations import check_evaluations
from session_scheduler.testing.fake_cluster import FakeCluster

NVIDIA = "nvidia.com/gpu"
PRODUCT = "nvidia.com/gpu.product"
HALF, ONE, PAIR = GpuRequest(1000, 0, 1, 500), GpuRequest(4000, 0, 1, WHOLE), GpuRequest(2000, 8, 2, WHOLE)
GROUP = np.zeros(1, np.int64)


def fleet(**options: Any) -> FakeCluster:
    return FakeCluster(**options).use("GpuFragmentation", weight=100)


def node(cluster: FakeCluster, name: str, gpus: int = 0, cpu: str = "16", product: str = "", memory: int = 0) -> None:
    labels = ({PRODUCT: product} if product else {}) | ({f"{NVIDIA}.memory": str(memory)} if memory else {})
    cluster.node(name, cpu=cpu, offers={NVIDIA: gpus} if gpus else {}, labels=labels)


def part(name: str, fraction: str, **options: Any) -> Pod:
    return pod(name, annotations={GPU_FRACTION: fraction}, **options)


def whole(name: str, count: int = 1, cpu: str = "1", **options: Any) -> Pod:
    return pod(name, requests={NVIDIA: count, "cpu": cpu}, **options)


def state(cpu: int, *gpus: int, memory: int = 100, takes: tuple[int, int] = (1, 1)) -> Any:
    return np.array([[cpu, memory, *takes, *sorted(gpus)]], np.int64)


def usable(states: Any, *, mixed: bool = True) -> list[float]:
    return Workload([HALF, ONE, PAIR], [0], mixed=mixed).usable(states, GROUP)[0].tolist()


# ------------------------------------------------------------------ the measure


def test_a_request_can_use_the_free_parts_of_the_gpus_that_it_fits_on() -> None:
    assert usable(state(16_000, 300, 700, 1000, 1000)) == [2700, 2000, 2000]
    assert usable(state(16_000, 300, 700, 1000)) == [1700, 1000, 0]
    assert usable(state(16_000, 300, 400)) == [0, 0, 0]


def test_cpu_and_memory_limit_what_a_request_can_use_to_the_root_of_their_fraction() -> None:
    assert usable(state(6_000, 700, 1000, 1000, 1000)) == pytest.approx([3700, 3000 * 0.5**0.5, 3000])
    assert usable(state(16_000, 1000, 1000, 1000, 1000, memory=12)) == pytest.approx([4000, 4000, 4000 * 0.75**0.5])
    assert usable(state(1_000, 1000, 1000)) == pytest.approx([2000 * 0.5**0.5, 0, 0])
    assert usable(state(999, 1000, 1000)) == [0, 0, 0]


def test_without_reservation_pods_whole_and_shared_gpus_exclude_each_other() -> None:
    assert usable(state(16_000, 1000, takes=(1, 0))) == [0, 1000, 0]
    assert usable(state(16_000, 1000, takes=(0, 1))) == [1000, 0, 0]
    separate = Workload([HALF, ONE], [0], mixed=False)
    shared = separate.after(state(16_000, 1000, 1000), GROUP, HALF)
    assert shared.tolist() == [[15_000, 100, 0, 1, 500, 1000]]
    assert separate.after(state(16_000, 1000, 1000), GROUP, ONE).tolist() == [[12_000, 100, 1, 0, 0, 1000]]


def test_a_share_is_placed_on_the_fullest_gpus_that_fit() -> None:
    workload = Workload([HALF], [0], mixed=True)
    two = GpuRequest(0, 0, 2, 300)
    assert workload.after(state(10, 200, 400, 600, 1000), GROUP, two).tolist() == [[10, 100, 1, 1, 200, 100, 300, 1000]]


def test_a_share_by_memory_depends_on_the_memory_of_the_nodes_gpus() -> None:
    memories = [0, 1000, 3000]
    workload = Workload([GpuRequest(0, 0, 1, 0, 1500)], memories, mixed=True)
    states = np.repeat(state(0, 400, 500, 1000), 3, axis=0)
    assert workload.usable(states, np.arange(3)).tolist() == [[0], [0], [1500]]


def test_scarce_requests_weigh_more_and_only_where_their_nodes_are() -> None:
    usable = np.array([[1000, 0], [3000, 0]])
    accepted = np.array([[True, True], [True, False]])
    amounts = np.array([500, 1000])
    weights = weights_of(np.array([[4, 9], [3, 0]]), amounts, usable, accepted)
    common, scarce = 4 / (4 * 500 + 4000), 3 / (3 * 500 + 1000)
    assert weights.tolist() == [[2**20, 0], [round(2**20 * common / (common + scarce)), 0]]
    assert weights_of(np.array([[0, 9], [0, 0]]), amounts, usable, accepted).tolist() == [[0, 0], [0, 0]]


def test_requests_that_are_alike_count_as_the_most_frequent_of_them() -> None:
    few, frequent, other = (GpuRequest(cpu, 2**30, 1, 500) for cpu in (4100, 4900, 5200))
    less = replace(few, thousandths=400)
    pods = {(few, b"a"): 2, (frequent, b"a"): 3, (other, b"a"): 1, (few, b"b"): 0, (less, b"b"): 1}
    found = {(frequent, b"a"): 5, (frequent, b"b"): 0, (less, b"b"): 1, (other, b"a"): 1}
    assert most_frequent(pods) == found
    assert most_frequent(dict(reversed(pods.items()))) == found


def test_only_the_most_frequent_requests_and_selectors_are_weighed() -> None:
    sizes = {(GpuRequest(1, 1, 1, size), b"%d" % (size % 2)): size for size in range(1, 1000)}
    assert sorted(most_frequent(sizes).values()) == [*range(1000 - MOST_REQUESTS, 1000)]
    selectors = {(HALF, b"%d" % number): number for number in range(1, 1000)}
    assert sorted(most_frequent(selectors).values()) == [*range(1000 - MOST_SELECTORS, 1000)]


def many(number: int) -> dict[tuple[GpuRequest, int], int]:
    return {(GpuRequest(1000 + one, one, 1, 1 + one % WHOLE), 0): 1 for one in range(number)}


def test_what_is_kept_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_usability, "_KEPT_BYTES", 10_000)
    losses = Losses(np.zeros(4, np.int64), GPUS + 2, mixed=True)
    states, rows = np.repeat(state(16_000, 1000, 1000), 4, axis=0), np.arange(4)
    accepted = np.ones((1, 4), np.bool_)
    assert losses.weigh(many(60), states, accepted)
    for size in range(1, 400):
        losses.of(GpuRequest(0, 0, 1, size), rows, states)
    assert len(losses._kept) == 10_000 // (4 * (96 * 4 + 24))
    found = losses.of(HALF, rows, states).tolist()
    for first in range(0, 600, 60):  # other requests replace them
        losses.weigh({(GpuRequest(1, first + one, 1, 1), 0): 1 for one in range(60)}, states, accepted)
        assert losses._unchanged.amounts.shape[1] >= len(losses._requests) <= 96
    losses.weigh(many(60), states, accepted)
    assert losses.of(HALF, rows, states).tolist() == found


@pytest.mark.parametrize("number", [100, 1000])
def test_the_first_score_of_a_class_evaluates_a_limited_number_of_requests(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fleet()
    for index in range(20):
        node(cluster, f"n{index}", 8, cpu="64")
    cluster.add(*(part(f"p{index}", f"0.{1 + index % 999:03}") for index in range(number))).run()
    evaluated, usable = [], Workload.usable

    def counted(workload: Workload, states: Any, kinds: Any) -> Any:
        found = usable(workload, states, kinds)
        evaluated.append(found.size)
        return found

    monkeypatch.setattr(Workload, "usable", counted)
    cluster.add(whole("new", 3)).run()
    assert 0 < sum(evaluated) <= 3 * 20 * 96  # all nodes may have changed, and the new request is one more


def test_what_a_pod_requests_of_gpus() -> None:
    cluster = FakeCluster().use("GpuSharing", {"wholeGpus": "reserved"})
    n1 = Node(metadata=ObjectMeta(name="n1"))
    held = reservation_pod("held", "kube-system", n1, 0, resource=NVIDIA, image="pause", priority_class_name="")
    pair = pod("pair", annotations={GPU_FRACTION: "0.4", GPU_COUNT: "2"}, requests={"cpu": "2"})
    mib = pod("mib", annotations={GPU_MEMORY: "600"}, requests={"cpu": 0, "memory": 7})
    cluster.add(pair, mib, whole("three", 3), pod("web", requests={"cpu": 1}), held)
    cluster.schedule()
    tasks = {task.name: request_of(task.cls, (NVIDIA,)) for task in cluster.scheduler.cache.tasks.values()}
    default = 100 * 2**20
    assert tasks == {
        "pair": GpuRequest(2000, default, 2, 400), "mib": GpuRequest(0, 7, 1, 0, 600), "web": GpuRequest(1000, default),
        "three": GpuRequest(1000, default, 3, WHOLE), "held": GpuRequest(1, 16 * 2**20),
    }  # fmt: skip


# ------------------------------------------------------------------ decisions


def first_pod(clusters: tuple[FakeCluster, FakeCluster], *later: Pod, first: Pod) -> list[str | None]:
    """Where `first` runs, with and without the plugin, if it is placed before the others. One node, `share`, shares."""
    found = []
    for cluster in clusters:
        node(cluster, "share", 1, cpu="1")
        cluster.add(part("sharer", "0.5", node_selector={"kubernetes.io/hostname": "share"}), *later, first)
        cluster.run()
        found.append(cluster.placements()[f"default/{first.metadata.name}"])
    return found


def test_a_pod_with_one_gpu_leaves_complete_nodes_to_pods_with_several() -> None:
    clusters = (fleet(), FakeCluster())
    for cluster in clusters:
        for name in ("a", "b"):
            node(cluster, name, 4, cpu="32")
        node(cluster, "odd", 1, cpu="8")
    fours = [whole(f"four-{index}", 4) for index in range(2)]
    assert first_pod(clusters, *fours, first=whole("one", priority=9)) in (["odd", "a"], ["odd", "b"])
    clusters[0].assert_all_bound()


def test_a_pod_without_gpus_leaves_cpu_to_gpus() -> None:
    clusters = (fleet(), FakeCluster())
    for cluster in clusters:
        node(cluster, "tight", 4, cpu="16")
        node(cluster, "wide", 1, cpu="12")
    ones = [whole(f"one-{index}", cpu="4") for index in range(5)]
    web = pod("web", requests={"cpu": "4"}, priority=9)
    assert first_pod(clusters, *ones, first=web) == ["wide", "tight"]
    clusters[0].assert_all_bound()


def test_a_pod_for_any_model_leaves_the_model_that_others_need() -> None:
    clusters = (fleet(), FakeCluster())
    for cluster in clusters:
        node(cluster, "rare", 1, cpu="32", product="T4")
        for index in range(2):
            node(cluster, f"common-{index}", 1, product="G2")
    only = part("only", "0.6", node_selector={PRODUCT: "T4"})
    anywhere, without = first_pod(clusters, only, first=part("any", "0.6", requests={"cpu": "4"}, priority=9))
    assert (anywhere or "").startswith("common")
    assert without == "rare"
    clusters[0].assert_all_bound()


def test_scores_are_kube_schedulers_until_a_pod_shares_a_gpu() -> None:
    found = []
    for cluster in (fleet(), FakeCluster()):
        node(cluster, "a", 4)
        node(cluster, "b", 1)
        cluster.add(*(whole(f"p{index}") for index in range(3)), pod("web"))
        cluster.run()
        found.append(cluster.placements())
    assert found[0] == found[1]


MIXED = [
    part("s0", "0.5"), part("s1", "0.3"), whole("w0"), whole("w1", 2), part("s2", "0.8"),
    pod("web", requests={"cpu": "6"}), pod("mib", annotations={GPU_MEMORY: "600"}),
    pod("pair", annotations={GPU_FRACTION: "0.4", GPU_COUNT: "2"}),
    part("only", "0.25", node_selector={PRODUCT: "T4"}), whole("w2", cpu="5"), part("s3", "0.5"), part("s4", "0.7"),
]  # fmt: skip


def build(cluster: FakeCluster, prefix: str = "") -> FakeCluster:
    for index in range(3):
        node(cluster, f"{prefix}g{index}", 4, cpu="12", product="G2")
        node(cluster, f"{prefix}t{index}", 2, cpu="24", product="T4", memory=1000)
        node(cluster, f"{prefix}plain{index}", cpu="4")
    return cluster


def test_each_evaluation_makes_the_same_decisions() -> None:
    def scenario(cluster: FakeCluster) -> None:
        cluster.use("GpuFragmentation", weight=100)
        build(cluster).add(*MIXED, *gang("ring", 3, requests={NVIDIA: 1, "cpu": "2"}))
        cluster.run()

    check_evaluations(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_a_restarted_scheduler_makes_the_same_decisions(seed: int) -> None:
    found = []
    for restarts in (False, True):
        cluster, random = build(build(fleet(), "first-"), "last-"), Random(seed)
        for index in range(36):
            cpu = {"cpu": random.choice((1, 2, 3))}
            share = part(f"s{index}", random.choice(("0.2", "0.3", "0.5", "0.7")), requests=cpu)
            cluster.add(random.choice((share, share, whole(f"w{index}", random.choice((1, 2))), pod(f"p{index}"))))
            cluster.run()
            if index % 7 == 3:
                cluster.delete_pod(random.choice([key.partition("/")[2] for key in cluster.placements()]))
            if restarts:
                cluster.restart()
        cluster.assert_all_bound()
        found.append(cluster.placements())
    assert found[0] == found[1]


def test_scores_are_kube_schedulers_again_when_no_pod_shares_a_gpu_any_more() -> None:
    cluster = fleet()
    node(cluster, "tight", 4, cpu="16")
    node(cluster, "wide", 1, cpu="12")
    cluster.add(part("sharer", "0.5")).run()
    cluster.delete_pod("sharer")
    cluster.add(*(whole(f"one-{index}", cpu="4") for index in range(5)), pod("web", requests={"cpu": "4"}, priority=9))
    cluster.run()
    assert cluster.node_of("web") == "tight"  # "wide" while a pod shares a GPU


def test_the_arguments_of_gpu_sharing_hold() -> None:
    cluster = FakeCluster().use("GpuSharing", {"resources": ["amd.com/gpu"]}).use("GpuFragmentation", weight=100)
    cluster.node("tight", cpu="16", offers={"amd.com/gpu": 4}).node("wide", cpu="12", offers={"amd.com/gpu": 1})
    cluster.add(part("sharer", "0.5", node_selector={"kubernetes.io/hostname": "wide"}),
                *(pod(f"one-{index}", requests={"amd.com/gpu": 1, "cpu": 4}) for index in range(4)),
                pod("web", requests={"cpu": 4}, priority=9))  # fmt: skip
    cluster.run()
    assert cluster.node_of("web") == "wide"


def test_it_has_no_arguments_and_does_nothing_without_gpu_sharing() -> None:
    with pytest.raises(PluginArgumentsError, match="the plugin has no arguments; remove them"):
        FakeCluster().use("GpuFragmentation", {"wholeGpus": "reserved"}).start()
    cluster = fleet().without("GpuSharing")
    node(cluster, "a", 1)
    cluster.add(part("sharer", "0.5"), whole("one")).run()
    assert cluster.node_of("one") == "a"
