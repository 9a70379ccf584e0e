from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from session_scheduler.builtin.gpu_amounts import GpuAmounts, Gpus
from session_scheduler.builtin.gpu_columns import GpuColumns
from session_scheduler.builtin.gpu_demand import kept_whole
from session_scheduler.builtin.gpu_sharing import GpuSharing
from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.engine.explain import explain_pending
from session_scheduler.framework.bindings import Holding
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import hookimpl
from session_scheduler.model.columns import NodeTable, NodeView
from session_scheduler.model.gpu_shares import (
    GPU,
    GPU_COUNT,
    GPU_FRACTION,
    GPU_MEMORY,
    MOST_GPUS,
    GpuUse,
    Share,
    counted,
)
from session_scheduler.model.groups import Task
from session_scheduler.model.meta import ObjectMeta
from session_scheduler.model.objects import Node, NodeStatus, Pod
from session_scheduler.offline.status import status_of
from session_scheduler.testing.builders import gang, pod
from session_scheduler.testing.evaluations import check_evaluations
from session_scheduler.testing.fake_cluster import FakeCluster

from ....tools.replacing import of_controller, replacement

NVIDIA = "nvidia.com/gpu"
MEMORY = "nvidia.com/gpu.memory"


def gpus(count: int, nodes: int = 1, memory: int = 0, **options: Any) -> FakeCluster:
    cluster = FakeCluster(**options)
    labels = {MEMORY: str(memory)} if memory else {}
    cluster.nodes(nodes, cpu="64", offers={NVIDIA: count} if count else {}, labels=labels)
    return cluster


def part(name: str, fraction: str = "", *, memory: str = "", count: str = "", gpu: str = "", **options: Any) -> Pod:
    written = {GPU_FRACTION: fraction, GPU_MEMORY: memory, GPU_COUNT: count, GPU: gpu}
    return pod(name, annotations={key: text for key, text in written.items() if text}, **options)


def whole(name: str, count: int = 1, **options: Any) -> Pod:
    return pod(name, requests={NVIDIA: count}, **options)


def given(cluster: FakeCluster, *names: str) -> list[str | None]:
    return [cluster.find(Pod, name).metadata.annotations.get(GPU) for name in names]


def used(cluster: FakeCluster, node: str) -> dict[tuple[int, bool], int]:
    """By GPU, and whether in MiB: the counted usage of a node; EVERY, -1, counts on every GPU."""
    table = cluster.scheduler.cache.table
    row = table.row_of[node]
    keys = [(gpu, in_mib) for gpu in range(-1, MOST_GPUS) for in_mib in (False, True)]
    found = {key: int(table.counter(GpuUse(key[0], in_mib=key[1]))[row]) for key in keys}
    return {key: amount for key, amount in found.items() if amount}


def changes_for(cluster: FakeCluster, name: str, node: str) -> list[str]:
    """The changes that `fluence explain` reports for a pending pod."""
    (found,) = (one for one in explain_pending(cluster.scheduler)["pods"] if one["name"] == name)
    return [change for one in found["nodes"][node]["fitsIf"] for change in one["changes"]]


class Prefers:
    """A gpu order by index."""

    name = "prefers"

    def __init__(self, worth: Callable[[Any, Any, str], float]) -> None:
        self._worth = worth

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        session.add_gpu_order(self._worth)


# ------------------------------------------------------------------ which GPUs a pod gets


def test_pods_get_the_fullest_gpu_that_fits_and_the_binding_writes_it() -> None:
    cluster = gpus(2)
    for name, fraction in (("a", "0.5"), ("b", "0.6"), ("c", "0.4"), ("d", "0.5"), ("e", "0.1")):
        cluster.add(part(name, fraction))
        cluster.run()
    assert given(cluster, "a", "b", "c", "d") == ["0", "1", "1", "0"]
    cluster.assert_pending("e", "0/1 nodes are available: 1 Insufficient shared GPU.")


def test_thousandths_are_counted_exactly() -> None:
    cluster = gpus(1)
    cluster.add(*(part(f"p{i}", "0.125") for i in range(8)), part("less", "0.001"))
    cluster.run()
    assert given(cluster, *(f"p{i}" for i in range(8))) == ["0"] * 8
    cluster.assert_pending("less", "Insufficient shared GPU")


def test_memory_fits_to_the_last_mib_and_counts_beside_fractions() -> None:
    cluster = gpus(1, memory=81_918)
    cluster.add(*(part(f"third-{i}", memory="27306") for i in range(3)))
    cluster.run()
    cluster.assert_all_bound()
    other = gpus(1, memory=8192)
    other.add(part("half", "0.5"), part("more", memory="4097"))
    other.run()
    other.assert_bound("half")
    other.assert_pending("more", "Insufficient shared GPU")
    other.add(part("rest", memory="4Gi"))
    other.run()
    assert given(other, "half", "rest") == ["0", "0"]


def test_a_pod_with_several_gpus_gets_different_ones_with_the_same_share_of_each() -> None:
    cluster = gpus(3)
    cluster.add(part("two", "0.6", count="2"))
    cluster.run()
    cluster.add(part("one", "0.4"), part("again", "0.5", count="2"), part("four", "0.1", count="4"))
    cluster.run()
    assert given(cluster, "two", "one") == ["0,1", "0"]
    cluster.assert_pending("again", "Insufficient shared GPU")
    cluster.assert_pending("four", "node(s) had fewer than 4 GPUs to share")


def test_nodes_that_are_shared_already_are_preferred_so_that_others_keep_whole_gpus() -> None:
    cluster = gpus(4, nodes=5)
    for index in range(8):
        cluster.add(part(f"p{index}", "0.5"))
        cluster.run()
    assert len({cluster.node_of(f"p{index}") for index in range(8)}) == 1
    cluster.add(*(whole(f"w{index}", 4) for index in range(4)))
    cluster.run()
    cluster.assert_all_bound()


def test_a_pod_goes_where_it_fills_a_gpu_rather_than_where_more_is_used() -> None:
    cluster = gpus(2, nodes=2)
    cluster.add(part("a", "0.7", gpu="0", bound_to="n1"), part("b", "0.2", gpu="1", bound_to="n1"))
    cluster.add(part("c", "0.5", gpu="0", bound_to="n2"), part("d", "0.5", gpu="1", bound_to="n2"))
    cluster.add(part("filling", "0.3"))
    cluster.run()
    assert cluster.node_of("filling") == "n1"


@pytest.mark.parametrize(("reserved", "expected"), [(False, [95, 80, 20]), (True, [90, 60, 40])])
def test_half_of_a_score_is_for_filled_gpus_and_half_for_cpu_and_gpus_used_alike(
    reserved: bool, expected: list[int]
) -> None:
    cluster = FakeCluster()
    for name in ("alike", "little-cpu", "untouched"):
        cluster.node(name, cpu="10", offers={NVIDIA: 1})
    cluster.add(
        part("a", "0.5", gpu="0", bound_to="alike", cpu="8"), part("b", "0.6", gpu="0", bound_to="little-cpu", cpu="0")
    )
    cluster.add(part("waiting", "0.1", cpu="99"))
    cluster.run()
    table = cluster.scheduler.cache.table
    rows = np.array([table.row_of[name] for name in ("alike", "little-cpu", "untouched")])
    columns = GpuColumns(NodeView(table, rows), Gpus([NVIDIA]), reserved=reserved)
    assert columns.scores(Share(400, 0), 2000).tolist() == expected


@pytest.mark.parametrize(("percent", "expected"), [(0, [90, 60, 40]), (50, [93, 70, 30]), (100, [95, 80, 20])])
def test_nodes_without_shared_gpus_are_avoided_as_far_as_gpus_are_kept_whole(percent: int, expected: list[int]) -> None:
    cluster = FakeCluster()
    for name in ("alike", "little-cpu", "untouched"):
        cluster.node(name, cpu="10", offers={NVIDIA: 1})
    cluster.add(
        part("a", "0.5", gpu="0", bound_to="alike", cpu="8"), part("b", "0.6", gpu="0", bound_to="little-cpu", cpu="0")
    )
    cluster.add(part("waiting", "0.1", cpu="99"))
    cluster.run()
    table = cluster.scheduler.cache.table
    rows = np.array([table.row_of[name] for name in ("alike", "little-cpu", "untouched")])
    columns = GpuColumns(NodeView(table, rows), Gpus([NVIDIA]), kept_whole=percent)
    assert columns.scores(Share(400, 0), 2000).tolist() == expected


def test_half_of_a_score_for_whole_gpus_is_for_the_gpus_used_on_a_node_and_half_for_cpu_and_gpus_used_alike() -> None:
    cluster = FakeCluster()
    for name in ("half-used", "full-after", "untouched"):
        cluster.node(name, cpu="10", offers={NVIDIA: 4})
    cluster.node("none", cpu="10")
    cluster.add(whole("a", 2, bound_to="half-used", cpu="7"), whole("b", 3, bound_to="full-after", cpu="0"))
    cluster.run()
    table = cluster.scheduler.cache.table
    rows = np.array([table.row_of[name] for name in ("half-used", "full-after", "untouched", "none")])
    columns = GpuColumns(NodeView(table, rows), Gpus([NVIDIA]))
    assert columns.scores_whole(1, 1000).tolist() == [38 + 48, 50 + 5, 43, 5]


@pytest.mark.parametrize(("shared", "whole_gpus", "expected"), [
    (0, 4, None),
    (1, 0, 90),
    (5, 0, 50),
    (10, 0, 0),
    (20, 0, 0),
    (5, 5, 66),
    (15, 2, 21),
])  # fmt: skip
def test_gpus_are_kept_whole_for_requested_ones_and_those_that_twice_the_shares_would_leave(
    shared: int, whole_gpus: int, expected: int | None
) -> None:
    cluster = gpus(5, nodes=2)
    cluster.add(*(part(f"p{index}", "0.5") for index in range(shared)), *(whole(f"w{i}") for i in range(whole_gpus)))
    cluster.run()
    amounts = Gpus([NVIDIA]).of(cluster.scheduler.cache.table.all_rows())
    assert kept_whole(cluster.scheduler.cache.pods_of, [NVIDIA], amounts) == expected


def test_a_share_by_memory_counts_as_the_part_of_an_average_gpu() -> None:
    cluster = gpus(3, memory=1000).node("larger", offers={NVIDIA: 1}, labels={MEMORY: "5000"})
    cluster.add(part("p", memory="500", count="2"))  # of 2000 MiB each on average
    cluster.run()
    amounts = Gpus([NVIDIA]).of(cluster.scheduler.cache.table.all_rows())
    assert kept_whole(cluster.scheduler.cache.pods_of, [NVIDIA], amounts) == 75
    unlabelled = gpus(4)
    unlabelled.add(part("p", memory="500", count="2"))
    unlabelled.run()
    amounts = Gpus([NVIDIA]).of(unlabelled.scheduler.cache.table.all_rows())
    assert kept_whole(unlabelled.scheduler.cache.pods_of, [NVIDIA], amounts) == 100


@pytest.mark.parametrize(("shares", "ends", "restarts", "expected"), [
    (True, False, False, 1),
    (False, False, False, 4),  # kube-scheduler's scores spread them
    (True, True, False, 4),
    (True, True, True, 4),
])  # fmt: skip
def test_pods_with_whole_gpus_fill_nodes_while_any_pod_shares_gpus(
    shares: bool, ends: bool, restarts: bool, expected: int
) -> None:
    cluster = gpus(4, nodes=5)
    cluster.add(*([part("shares", "0.5")] if shares else []))
    cluster.run()
    if ends:
        cluster.delete_pod("shares")
        cluster.run()
    if restarts:
        cluster.restart()
    for index in range(4):
        cluster.add(whole(f"w{index}", cpu="4"))
        cluster.run()
    assert len({cluster.node_of(f"w{index}") for index in range(4)}) == expected


@pytest.mark.parametrize("fractions", [1, 30])
def test_a_nodes_gpus_are_read_after_its_changes_only_whatever_the_number_of_fractions(
    fractions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, read = [], Gpus._read

    def noted(of: Gpus, nodes: NodeView) -> GpuAmounts:
        rows.append(len(nodes) if nodes.extra is None else 0)
        return read(of, nodes)

    monkeypatch.setattr(Gpus, "_read", noted)
    cluster = gpus(8, nodes=50)
    cluster.add(part("first", "0.5"))
    cluster.run()
    rows.clear()
    cluster.add(*(part(f"p{index}", f"0.{100 + index % fractions}") for index in range(30)))
    cluster.run()
    cluster.assert_all_bound()
    assert 30 <= sum(rows) <= 2 * 30 + 1


@pytest.mark.parametrize("seed", range(5))
def test_kept_gpus_equal_those_that_are_computed_from_nothing(seed: int) -> None:
    random, table, kept = Random(seed), NodeTable(), Gpus([NVIDIA])
    used = []
    for _ in range(200):
        if random.random() < 0.1 or not table.size:
            labels = random.choice(({}, {f"{NVIDIA}.memory": "1000"}))
            status = NodeStatus(allocatable={NVIDIA: str(random.randrange(5))})
            table.put(Node(metadata=ObjectMeta(name=f"n{random.randrange(6)}", labels=labels), status=status))
        elif used and random.random() < 0.4:
            row, counts = used.pop(random.randrange(len(used)))
            table.add_counts(row, counts, -1)
        else:
            share = random.choice((Share(300, 0), Share(0, 250), Share(500, 0)))
            one = random.choice((None, (random.randrange(7),)))
            kept.note(one or ())
            row, counts = random.randrange(table.size), counted(share, one)
            used.append((row, counts))
            table.add_counts(row, counts, 1)
        view = NodeView(table, np.array(random.choices(range(table.size), k=2)))
        fresh = Gpus([NVIDIA])
        fresh.note([6])
        for found, expected in zip(kept.of(view), fresh.of(view), strict=True):
            assert found.tolist() == expected.tolist()


def test_the_configuration_can_name_other_gpu_resources() -> None:
    cluster = FakeCluster()
    cluster.use(GpuSharing, {"resources": [NVIDIA, "amd.com/gpu"]})
    cluster.node("amd", offers={"amd.com/gpu": 1}, labels={"amd.com/gpu.memory": "65536"})
    cluster.add(part("p", memory="64Gi"))
    cluster.run()
    assert given(cluster, "p") == ["0"]


# ------------------------------------------------------------------ whole GPUs


def test_a_node_with_shared_gpus_fits_no_whole_gpus_until_the_last_sharer_ends() -> None:
    cluster = gpus(4)
    cluster.add(part("a", "0.1"), part("b", "0.1"))
    cluster.run()
    cluster.add(whole("w"))
    cluster.run()
    cluster.assert_pending("w", "node(s) had GPUs shared by other pods")
    cluster.end("a")
    cluster.run()
    cluster.assert_pending("w", "node(s) had GPUs shared by other pods")
    cluster.end("b")
    cluster.run()
    cluster.assert_bound("w")


def test_a_node_with_whole_gpus_in_use_is_not_shared_until_they_are_free() -> None:
    cluster = gpus(4)
    cluster.add(whole("w"))
    cluster.run()
    cluster.add(part("a", "0.1"))
    cluster.run()
    cluster.assert_pending("a", "node(s) had whole GPUs allocated to other pods")
    cluster.end("w")
    cluster.run()
    assert given(cluster, "a") == ["0"]


def test_both_kinds_in_one_cycle_do_not_meet_on_a_node() -> None:
    cluster = gpus(2, nodes=2)
    cluster.add(*(part(f"p{i}", "0.5") for i in range(3)), *(whole(f"w{i}") for i in range(2)))
    cluster.run(cycles=2)
    cluster.assert_all_bound()
    assert {cluster.node_of(f"p{i}") for i in range(3)}.isdisjoint({cluster.node_of(f"w{i}") for i in range(2)})


# ------------------------------------------------------------------ rejected pods


@pytest.mark.parametrize(("annotations", "why"), [
    ({GPU_FRACTION: "1"}, f"annotation {GPU_FRACTION}: '1' is not a valid fraction of a GPU; write a number "
     "greater than 0 and less than 1, such as 0.5 or 0.125; request whole GPUs as a resource"),
    ({GPU_FRACTION: "0.0"}, "'0.0' is not a valid fraction"),
    ({GPU_FRACTION: "0.1234"}, "'0.1234' is not a valid fraction"),
    ({GPU_FRACTION: ""}, "'' is not a valid fraction"),
    ({GPU_FRACTION: "half" * 20}, "'halfhalfhalfhalfhalfhalfhalfhalf…' is not a valid fraction"),
    ({GPU_MEMORY: "0"}, f"annotation {GPU_MEMORY}: '0' is not a valid amount of GPU memory; write MiB, such as 4096, "
     "or a quantity with a unit, such as 4Gi"),
    ({GPU_MEMORY: "-4Gi"}, "'-4Gi' is not a valid amount of GPU memory"),
    ({GPU_MEMORY: "9999999999"}, "is not a valid amount of GPU memory"),
    ({GPU_FRACTION: "0.5", GPU_MEMORY: "1Gi"}, "are mutually exclusive; remove one of them"),
    ({GPU_FRACTION: "0.5", GPU_COUNT: "0"}, f"annotation {GPU_COUNT}: '0' is not a valid number of GPUs; write an "
     "integer from 1 to 64"),
    ({GPU_FRACTION: "0.5", GPU_COUNT: "65"}, "from 1 to 64"),
    ({GPU_COUNT: "2"}, f"annotation {GPU_COUNT} needs a share of each GPU; add {GPU_FRACTION} or {GPU_MEMORY}"),
])  # fmt: skip
def test_an_invalid_share_is_rejected_with_the_annotation_and_the_remedy(annotations: dict[str, str], why: str) -> None:
    cluster = gpus(1, memory=1024)
    cluster.add(pod("p", annotations=annotations))
    cluster.run()
    cluster.assert_pending("p", why)


def test_a_pod_uses_either_whole_gpus_or_shares() -> None:
    cluster = gpus(2)
    cluster.add(whole("p", annotations={GPU_FRACTION: "0.5"}))
    cluster.run()
    cluster.assert_pending("p", f"annotation {GPU_FRACTION}: the pod also requests {NVIDIA}; remove one of the two")


def test_nodes_without_gpus_or_enough_known_memory_are_rejected_with_the_reason() -> None:
    cluster = FakeCluster()
    cluster.node("none").node("unlabelled", offers={NVIDIA: 1})
    cluster.node("small", offers={NVIDIA: 1}, labels={MEMORY: "2048"})
    cluster.add(part("p", memory="4Gi"))
    cluster.run()
    cluster.assert_refused("p", "none", by="GpuSharing", reason="node(s) had no GPUs to share")
    cluster.assert_refused("p", "unlabelled", by="GpuSharing", reason="node(s) did not report the memory of their GPUs")
    cluster.assert_refused("p", "small", by="GpuSharing", reason="node(s) had GPUs with too little memory")


def test_a_pod_with_a_fixed_annotation_is_retried() -> None:
    cluster = gpus(1)
    cluster.add(part("p", "2"))
    cluster.run()
    cluster.assert_pending("p", "is not a valid fraction")
    cluster.add(part("p", "0.2"))
    cluster.run()
    cluster.advance(60)
    cluster.run()
    assert given(cluster, "p") == ["0"]


# ------------------------------------------------------------------ queueing hints


def test_only_the_deletion_of_a_pod_with_gpus_requeues_a_sharer() -> None:
    cluster = gpus(1)
    cluster.add(part("a", "0.7"), pod("plain"))
    cluster.run()
    cluster.add(part("b", "0.7"))
    cluster.run()
    is_unschedulable = cluster.scheduler.queue.is_unschedulable
    assert is_unschedulable("Pod default/b")
    cluster.delete(Pod, "plain")
    cluster.run()
    assert is_unschedulable("Pod default/b")
    cluster.delete(Pod, "a")
    cluster.run()
    cluster.assert_bound("b")


def test_a_sharer_waits_for_a_node_with_gpus() -> None:
    cluster = gpus(0)
    cluster.add(part("a", "0.7"))
    cluster.run()
    cluster.assert_pending("a", "node(s) had no GPUs to share")
    cluster.node("plain")
    cluster.run()
    assert cluster.scheduler.queue.is_unschedulable("Pod default/a")
    cluster.node("gpu", offers={NVIDIA: 1})
    cluster.run()
    cluster.assert_bound("a", "gpu")


# ------------------------------------------------------------------ reports


@pytest.mark.parametrize(("asked", "would"), [
    ({"fraction": "0.5"}, "0.5 of a GPU were free on n1 (0.3 of GPU 0, 0.2 of GPU 1 now)"),
    ({"memory": "500", "count": "2"},
     "500 MiB of each of 2 GPUs were free on n1 (300 MiB of GPU 0, 200 MiB of GPU 1 now)"),
])  # fmt: skip
def test_explain_reports_the_free_amount_of_each_gpu(asked: dict[str, str], would: str) -> None:
    cluster = gpus(2, memory=1000)
    cluster.add(part("a", "0.7", gpu="0", bound_to="n1"), part("b", memory="800", gpu="1", bound_to="n1"))
    cluster.add(part("waits", asked.get("fraction", ""), memory=asked.get("memory", ""), count=asked.get("count", "")))
    cluster.run()
    assert changes_for(cluster, "waits", "n1") == [would]


def test_explain_reports_other_changes_that_would_help() -> None:
    cluster = gpus(2).node("busy", offers={NVIDIA: 1}, labels={MEMORY: "1000"})
    cluster.add(part("a", "0.1", gpu="0", bound_to="n1"), whole("w", bound_to="busy"))
    cluster.add(part("waits", memory="500"), whole("waits-too"))
    cluster.run()
    assert changes_for(cluster, "waits", "n1") == [f"n1 had the label {MEMORY} (MiB of one GPU)"]
    assert changes_for(cluster, "waits", "busy") == ["no pod used whole GPUs on busy"]
    assert changes_for(cluster, "waits-too", "n1") == ["no pod shared a GPU of n1"]


def test_status_shows_the_shared_gpus_of_pods_and_none_for_others() -> None:
    cluster = gpus(2)
    cluster.add(part("a", "0.7", gpu="0,1", count="2", bound_to="n1"), pod("plain", bound_to="n1"))
    cluster.run()
    answer = status_of(cluster.scheduler)
    assert {one["name"]: one["devices"] for one in answer["held"]} == {"a": ["gpu 0", "gpu 1"], "plain": []}
    assert not answer["summary"]["problems"]


# ------------------------------------------------------------------ order of GPUs


def test_a_gpu_order_chooses_among_the_gpus_that_fit() -> None:
    cluster = gpus(4)
    cluster.add(part("a", "0.9"), part("b", "0.9"), part("c", "0.2", count="2"))
    cluster.run(Prefers(lambda _task, _node, gpu: int(gpu)))
    assert sorted(str(one) for one in given(cluster, "a", "b")) == ["2", "3"]
    assert given(cluster, "c") == ["0,1"]


def test_a_gpu_order_reads_what_is_used_of_each_gpu() -> None:
    cluster = gpus(4, memory=1000)
    cluster.add(*(part(f"p{i}", "0.25") for i in range(3)), part("m", memory="500"))
    cluster.run(Prefers(lambda _task, node, gpu: -node.gpu_used(gpu)))
    assert sorted(str(one) for one in given(cluster, "p0", "p1", "p2", "m")) == ["0", "1", "2", "3"]


def test_a_gpu_order_that_fails_fails_the_pod_with_its_name() -> None:
    cluster = gpus(2)
    cluster.add(part("a", "0.5"), pod("plain"))
    cluster.run(Prefers(lambda *_: "best"))  # type: ignore[arg-type]
    cluster.assert_bound("plain")
    cluster.assert_pending("a", "prefers")


@pytest.mark.parametrize("ordered", [False, True])
def test_all_evaluation_modes_decide_the_same(ordered: bool) -> None:
    def scenario(cluster: FakeCluster) -> None:
        for index, count in enumerate((1, 2, 3, 4, 8)):
            cluster.node(f"n{index}", cpu="64", offers={NVIDIA: count}, labels={MEMORY: str(1000 * count)})
        for index in range(12):
            cluster.add(part(f"a{index}", "0.3"), part(f"m{index}", memory="700"), whole(f"w{index}"))
            cluster.add(part(f"c{index}", "0.4", count="2"))
        cluster.run(*([Prefers(lambda _task, _node, gpu: -int(gpu))] if ordered else []))

    check_evaluations(scenario)


# ------------------------------------------------------------------ gangs and preemption


def test_a_gang_of_sharers_starts_all_or_nothing_and_leaves_nothing_counted() -> None:
    cluster = gpus(2)
    cluster.add(part("a", "0.5"))
    cluster.run()
    before = cluster.scheduler.cache.table.digest()
    cluster.add(gang("g", 4, annotations={GPU_FRACTION: "0.5"}))
    cluster.run()
    assert cluster.scheduler.cache.table.digest() == before
    cluster.add(gang("h", 3, annotations={GPU_FRACTION: "0.5"}))
    cluster.run()
    assert sorted(str(one) for one in given(cluster, "h-0", "h-1", "h-2")) == ["0", "1", "1"]
    assert all(cluster.node_of(f"g-{i}") is None for i in range(4))


def test_a_sharer_preempts_one_of_lower_priority() -> None:
    cluster = gpus(2)
    cluster.add(part("low", "0.6", priority=1), part("high", "0.6", priority=9))
    cluster.run()
    cluster.add(part("mid", "0.5", priority=5))
    cluster.run()
    cluster.finish_deletions()
    cluster.run()
    cluster.assert_bound("mid")
    assert cluster.node_of("high") == "n1"
    assert cluster.scheduler.cache.tasks.keys() == {
        cluster.find(Pod, name).metadata.uid for name in ("high", "mid")}  # fmt: skip


def test_pods_with_whole_gpus_and_sharers_preempt_each_other() -> None:
    cluster = gpus(2)
    cluster.add(part("a", "0.1", priority=1), part("b", "0.1", priority=1))
    cluster.run()
    cluster.add(whole("w", priority=5))
    cluster.run()
    cluster.finish_deletions()
    cluster.run()
    cluster.assert_bound("w")
    cluster.add(part("c", "0.1", priority=9))
    cluster.run()
    cluster.finish_deletions()
    cluster.run()
    assert given(cluster, "c") == ["0"]


def test_a_pod_of_lower_priority_does_not_get_the_gpu_of_a_nominated_sharer() -> None:
    cluster = gpus(2)
    cluster.add(part("victim", "0.9", priority=1), part("high", "0.9", priority=9))
    cluster.run()
    cluster.add(part("mid", "0.8", priority=5))
    cluster.run()
    cluster.assert_nominated("mid", "n1")
    cluster.delete(Pod, "victim")
    cluster.add(part("low", "0.3", priority=1), part("small", "0.1", priority=1))
    cluster.run(cycles=2)
    cluster.assert_bound("mid")
    cluster.assert_pending("low", "Insufficient shared GPU")
    cluster.assert_bound("small")


# ------------------------------------------------------------------ annotations of bound pods


def test_a_restart_reads_the_same_usage_from_the_annotations() -> None:
    cluster = gpus(2, memory=1000)
    cluster.add(part("a", "0.4"), part("b", memory="700"), part("c", "0.1", count="2"))
    cluster.run()
    before = used(cluster, "n1")
    assert before == {(0, False): 500, (1, False): 100, (1, True): 700}
    cluster.restart()
    cluster.add(part("e", "0.6"))
    cluster.run()
    assert used(cluster, "n1") == before
    cluster.add(part("d", "0.5"))
    cluster.run()
    assert given(cluster, "d") == ["0"]
    cluster.assert_pending("e", "Insufficient shared GPU")


@pytest.mark.parametrize("text", ["", "x", "0,1", "00", "1,", "-1", "99", "0" * 500])
def test_a_bound_pod_with_unknown_gpus_counts_on_every_gpu(text: str) -> None:
    cluster = gpus(2)
    cluster.add(part("odd", "0.6", gpu=text, bound_to="n1"))
    cluster.add(part("a", "0.5"), part("b", "0.4"), part("c", "0.4"), whole("w"))
    cluster.run()
    cluster.assert_pending("a", "Insufficient shared GPU")
    assert sorted(str(one) for one in given(cluster, "b", "c")) == ["0", "1"]
    cluster.assert_pending("w", "node(s) had GPUs shared by other pods")


def test_a_standby_keeps_no_pods_that_have_ended_to_read_their_gpus() -> None:
    cluster = gpus(2).add(part("same", "0.5", gpu="0", bound_to="n1"))
    cluster.start()
    gc.collect()
    before = sum(isinstance(one, Task) for one in gc.get_objects())
    for number in range(20):
        for change in ("ADDED", "DELETED"):
            cluster.scheduler.event_handlers.absorb(change, part(f"p{number}", "0.1", gpu="1", bound_to="n1"))
            cluster.scheduler.plugin_sync.sync_nodes()
    gc.collect()
    assert sum(isinstance(one, Task) for one in gc.get_objects()) == before
    cluster.add(part("new", "0.5")).run()
    assert given(cluster, "new") == ["0"]
    assert used(cluster, "n1") == {(0, False): 1000}


def test_bound_pods_with_unknown_gpus_are_reported() -> None:
    cluster = gpus(2)
    cluster.add(part("none", "0.6", bound_to="n1"), part("odd", "0.1", gpu="7,7", bound_to="n1"))
    cluster.add(part("fine", "0.1", gpu="1", bound_to="n1"), pod("plain", bound_to="n1"))
    cluster.run()
    tasks = cluster.scheduler.cache.tasks.values()
    lost = cluster.plugin("GpuSharing").recover([Holding(task, "n1", None, {}) for task in tasks])
    why = {cluster.scheduler.cache.tasks[uid].name: text for uid, text in lost.items()}
    reserves = "the scheduler reserves {} of a GPU for the pod on every GPU of its node"
    assert why == {
        "none": f"the annotation {GPU} is missing; {reserves.format('0.6')}",
        "odd": f"the annotation {GPU} is invalid: '7,7'; {reserves.format('0.1')}",
    }


def test_a_running_pod_with_invalid_annotations_counts_as_a_whole_gpu() -> None:
    cluster = gpus(2)
    cluster.add(part("odd", "much", gpu="1", bound_to="n1"), part("a", "0.9"), part("b", "0.1"))
    cluster.run()
    assert given(cluster, "a", "b") == ["0", "0"]


def test_a_pod_on_a_gpu_that_the_node_lost_counts_on_every_remaining_gpu() -> None:
    cluster = gpus(3)
    cluster.add(part("odd", "0.6", gpu="2", bound_to="n1"))
    cluster.run()
    cluster.node("n1", cpu="64", offers={NVIDIA: 2})
    cluster.add(part("a", "0.5"), part("b", "0.4"))
    cluster.run()
    cluster.assert_pending("a", "Insufficient shared GPU")
    assert given(cluster, "b") == ["0"]


def test_the_binding_overwrites_a_gpu_annotation_that_the_pod_was_created_with() -> None:
    cluster = gpus(2)
    cluster.add(part("a", "0.5", gpu="1"))
    cluster.run()
    assert given(cluster, "a") == ["0"]


def test_a_pod_that_another_replica_bound_counts_on_the_gpus_of_that_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = gpus(2)
    bind = cluster.memory.bind

    async def bound_by_another(*names: str, annotations: Mapping[str, str], **options: str) -> None:
        await bind(*names, annotations={**annotations, GPU: "1"}, **options)

    monkeypatch.setattr(cluster.memory, "bind", bound_by_another)
    cluster.add(part("a", "0.7"))
    cluster.run()
    monkeypatch.undo()
    cluster.add(part("b", "0.7"), part("c", "0.7"))
    cluster.run()
    assert used(cluster, "n1") == {(0, False): 700, (1, False): 700}
    assert given(cluster, "a", "b", "c") in (["1", "0", None], ["1", None, "0"])


@pytest.mark.parametrize("edited", [{GPU: "0"}, {GPU_FRACTION: "0.1"}])
def test_edited_annotations_of_a_running_pod_do_not_change_its_usage(edited: dict[str, str]) -> None:
    cluster = gpus(2)
    cluster.add(part("a", "0.9", gpu="1", bound_to="n1"), part("b", "0.6"))
    cluster.run()
    before = used(cluster, "n1")
    old = cluster.find(Pod, "a")
    annotations = {**old.metadata.annotations, **edited}
    cluster.add(replace(old, metadata=replace(old.metadata, annotations=annotations)))
    cluster.add(part("c", "0.2"))
    cluster.run()
    assert used(cluster, "n1") == {**before, (0, False): 800}


@pytest.mark.parametrize("left", [{}, {GPU_FRACTION: "0.001"}, {GPU_COUNT: "2"}])
def test_a_running_pod_keeps_its_share_if_its_annotations_are_removed_or_invalid(left: dict[str, str]) -> None:
    queue = QueueConfig(name="default", limit={GPU_FRACTION: 1})
    cluster = gpus(2, nodes=2, config=SchedulerConfig(queues=(queue,)))
    cluster.add(part("a", "0.9"))
    cluster.run()
    old = cluster.find(Pod, "a")
    cluster.add(replace(old, metadata=replace(old.metadata, annotations=left)))
    cluster.add(whole("w", 2), whole("x", 2), part("b", "0.2"))
    cluster.run(cycles=2)
    assert [cluster.node_of(name) for name in ("w", "x")].count(None) == 1
    cluster.assert_pending("b", "limit")


def test_a_simulated_move_leaves_a_pod_its_gpu() -> None:
    cluster = gpus(0, nodes=0, config=SchedulerConfig(actions=("allocate", "consolidate")))
    cluster.node("n1", cpu="4", offers={NVIDIA: 2}).node("n2", cpu="4", offers={NVIDIA: 2})
    running = (part("a", "0.5", gpu="1", bound_to="n1", cpu="2"), part("b", "0.9", gpu="1", bound_to="n2", cpu="2"))
    cluster.add(*map(of_controller, running), pod("big", cpu="4"))
    cluster.run()
    ending = [one.metadata.name for one in cluster.memory.objects(Pod) if one.metadata.deletion_timestamp]
    assert len(ending) == 1
    assert used(cluster, "n1") == {(1, False): 500}
    assert used(cluster, "n2") == {(1, False): 900}


def test_a_failed_bind_gives_the_gpu_back() -> None:
    cluster = gpus(1)
    cluster.add(part("a", "0.7"))
    cluster.fail_binds("a")
    cluster.run()
    cluster.add(part("b", "0.7"))
    cluster.run()
    assert given(cluster, "b") == ["0"]


# ------------------------------------------------------------------ without sharers


def test_without_sharers_the_plugin_does_nothing() -> None:
    cluster = gpus(2)
    cluster.add(whole("w"), pod("p"))
    cluster.run()
    plugin = cluster.plugin("GpuSharing")
    (cls,) = {task.cls for task in cluster.scheduler.cache.tasks.values() if task.name == "w"}
    assert plugin.class_key(cluster.find(Pod, "w")) is None
    assert cls.footprint == frozenset()
    assert not plugin._active


# ------------------------------------------------------------------ queues


def in_queues(*queues: QueueConfig) -> FakeCluster:
    cluster = FakeCluster(config=SchedulerConfig(bindings_in_flight=1_000, queues=queues))
    return cluster.nodes(2, cpu="64", offers={NVIDIA: 4}, labels={MEMORY: "16384"})


def test_a_queue_limit_on_gpu_shares_counts_all_gpus_of_a_pod() -> None:
    cluster = in_queues(QueueConfig(name="a", limit={GPU_FRACTION: "1.5", GPU_MEMORY: "8Gi"}))
    cluster.add(part("one", "0.3", count="4", queue="a"))
    cluster.run()
    cluster.add(part("two", "0.4", queue="a"), part("three", "0.3", queue="a"), part("free", "0.9"))
    cluster.add(part("four", memory="4Gi", count="2", queue="a"), part("five", memory="1", queue="a"))
    cluster.run(cycles=2)
    assert all(cluster.node_of(name) for name in ("one", "three", "free", "four"))
    reached = "queue 'a' has reached its limit of"
    cluster.assert_pending("two", f"{reached} {GPU_FRACTION}: limit 1500m, allocated 1200m, requested 400m")
    cluster.assert_pending("five", f"{reached} {GPU_MEMORY}: limit 8Gi, allocated 8Gi, requested 1Mi")
    cluster.delete_pod("one")
    cluster.run()
    cluster.assert_bound("two")


def fair(cluster: FakeCluster, queue: str) -> dict[str, int]:
    """The fair share of parts of GPUs."""
    scheduler = cluster.scheduler
    (calls,) = scheduler.profiles.values()
    scheduler.sessions.refresh_offered(calls)
    found = scheduler.cache.queues.shares(scheduler.cache.table).fair[queue]
    return {name: found[name] for name in (GPU_FRACTION, GPU_MEMORY) if name in found}


def test_queues_share_parts_of_all_gpus() -> None:
    cluster = in_queues(QueueConfig(name="a", deserved={GPU_FRACTION: 2}), QueueConfig(name="b", over_quota_weight=2))
    for queue in "ab":
        cluster.add(*(part(f"{queue}{index}", "0.5", queue=queue) for index in range(20)))
        cluster.add(*(part(f"{queue}m{index}", memory="8Gi", queue=queue) for index in range(20)))
    cluster.run()
    assert [fair(cluster, queue)[GPU_FRACTION] for queue in "ab"] == [4000, 4000]
    assert sum(fair(cluster, queue)[GPU_MEMORY] for queue in "ab") == 8 * 16 * 2**30


def test_a_queue_reclaims_the_parts_of_gpus_that_it_deserves() -> None:
    cluster = in_queues(QueueConfig(name="a"), QueueConfig(name="b", deserved={GPU_FRACTION: "1.5"}))
    cluster.add(*(part(f"a{index}", "0.5", queue="a") for index in range(16)))
    cluster.run()
    cluster.assert_all_bound()
    cluster.add(*(part(f"b{index}", "0.5", queue="b") for index in range(4)))
    cluster.run(cycles=2)
    cluster.finish_deletions()
    cluster.run(cycles=3)
    assert sum(bool(cluster.node_of(f"b{index}")) for index in range(4)) == 4
    assert cluster.scheduler.cache.queues.counts("a").allocated[GPU_FRACTION] == 6000


# ------------------------------------------------------------------ consolidation


def halves(**options: Any) -> FakeCluster:
    """A node whose two GPUs are half used, each by a pod with a controller."""
    cluster = gpus(2, config=SchedulerConfig(bindings_in_flight=1_000, actions=("allocate", "consolidate")))
    for number in range(2):
        cluster.add(of_controller(part(f"half{number}", "0.5", gpu=str(number), bound_to="n1", **options)))
    cluster.run()
    return cluster


def moving(cluster: FakeCluster) -> list[str]:
    return [one.metadata.name for one in cluster.memory.objects(Pod) if one.metadata.deletion_timestamp]


@pytest.mark.parametrize("early", [False, True])
def test_parts_on_two_gpus_of_a_node_move_together_so_that_a_larger_one_fits(early: bool) -> None:
    cluster = halves()
    cluster.add(part("large", "0.7"))
    cluster.run()
    (moved,) = moving(cluster)
    (stays,) = {"half0", "half1"} - {moved}
    again = replacement(cluster.find(Pod, moved))
    again = replace(again, metadata=replace(again.metadata, annotations={GPU_FRACTION: "0.5"}))
    if early:  # the replacement appears while the moved pod terminates
        cluster.add(again)
        cluster.run()
    cluster.finish_deletions()
    cluster.add(() if early else again)
    cluster.run(cycles=3)
    cluster.assert_all_bound()
    kept, new, large = given(cluster, stays, f"{moved}+", "large")
    assert kept == new != large


def test_no_part_moves_within_a_node_if_that_makes_no_larger_one_fit() -> None:
    cluster = halves()
    cluster.add(part("two", "0.7", count="2"))
    cluster.run()
    assert not moving(cluster)
