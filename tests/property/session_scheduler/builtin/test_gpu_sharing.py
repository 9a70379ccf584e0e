"""GpuSharing in random clusters with sharers and whole GPUs: no GPU is overcommitted."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import hookimpl
from session_scheduler.model.gpu_shares import GPU, GPU_COUNT, GPU_FRACTION, GPU_MEMORY
from session_scheduler.model.objects import Pod
from session_scheduler.testing.builders import pod
from session_scheduler.testing.fake_cluster import FakeCluster

from ....tools.fake_kubelet_gpus import NVIDIA, Kubelets, reserved

MEMORIES = {"n0": 0, "n1": 1000, "n2": 4096}
"""The MiB of one GPU, by node; 0: unlabelled."""
COUNTS = {"n0": 2, "n1": 3, "n2": 1}

FRACTIONS = st.sampled_from(["0.5", "0.3", "0.25", "0.125", "0.999", "0.001"])
SHARES = st.one_of(
    FRACTIONS.map(lambda text: {GPU_FRACTION: text}),
    st.sampled_from(["1", "250", "333", "1000", "2Gi"]).map(lambda text: {GPU_MEMORY: text}),
    FRACTIONS.map(lambda text: {GPU_FRACTION: text, GPU_COUNT: "2"}),
    st.just({}),
)
COMING = st.tuples(st.just("add"), SHARES, st.sampled_from([0, 0, 0, 9]))
STEPS = st.lists(
    st.one_of(COMING, COMING, st.tuples(st.just("end"), st.integers(0, 50), st.just(0)),
              st.tuples(st.just("restart"), st.just(0), st.just(0))),
    max_size=14,
)  # fmt: skip


def live(cluster: FakeCluster) -> list[Pod]:
    pods = cluster.memory.objects(Pod)
    return [one for one in pods if one.spec.node_name and not one.metadata.deletion_timestamp]


def check(cluster: FakeCluster) -> None:
    """Check the usage of GPUs by the annotations of bound pods."""
    parts: Counter[tuple[str, str]] = Counter()
    kinds: dict[str, set[bool]] = {}
    for one in live(cluster):
        node, annotations = one.spec.node_name, one.metadata.annotations
        shares = bool(annotations.get(GPU_FRACTION) or annotations.get(GPU_MEMORY))
        kinds.setdefault(node, set()).add(shares)
        gpus = annotations[GPU].split(",") if shares else []
        assert len(set(gpus)) == len(gpus) == (int(annotations.get(GPU_COUNT, "1")) if shares else 0)
        assert all(0 <= int(gpu) < COUNTS[node] for gpu in gpus)
        memory = MEMORIES[node]
        for gpu in gpus:
            if GPU_FRACTION in annotations:
                parts[node, gpu] += int(annotations[GPU_FRACTION][2:].ljust(3, "0")) * max(memory, 1)
            else:
                assert memory, "a share by memory is on a node without the memory of its GPUs"
                text = annotations[GPU_MEMORY]
                parts[node, gpu] += 1000 * (2048 if text == "2Gi" else int(text))
    assert all(len(found) == 1 for found in kinds.values()), "whole and shared GPUs are on one node"
    for (node, _), used in parts.items():
        assert used <= 1000 * max(MEMORIES[node], 1)


@given(STEPS)
def test_no_gpu_is_overcommitted_and_no_node_mixes_whole_and_shared_gpus(steps: list[tuple[str, object, int]]) -> None:
    cluster = FakeCluster()
    for name, count in COUNTS.items():
        labels = {f"{NVIDIA}.memory": str(MEMORIES[name])} if MEMORIES[name] else {}
        cluster.node(name, cpu="64", offers={NVIDIA: count}, labels=labels)
    cluster.run()
    for index, (what, which, priority) in enumerate(steps):
        if what == "add":
            assert isinstance(which, dict)
            requests = {} if which else {NVIDIA: 1}
            cluster.add(pod(f"p{index}", annotations=which, requests=requests, priority=priority))
        elif what == "end":
            there = sorted(live(cluster), key=lambda one: one.key)
            if there:
                assert isinstance(which, int)
                cluster.delete_pod(there[which % len(there)].metadata.name)
        else:
            cluster.restart()
        cluster.run()
        check(cluster)
        cluster.finish_deletions()
        cluster.run()
        check(cluster)


Batch = tuple[dict[str, str], int, int, str]
BATCHES: st.SearchStrategy[list[Batch]] = st.lists(
    st.tuples(SHARES, st.integers(1, 6), st.sampled_from([0, 0, 9]), st.sampled_from(["100m", "7", "24"])),
    min_size=1, max_size=4,
)  # fmt: skip


def decided(evaluation: str, batches: list[Batch], *, ordered: bool) -> dict[str, object]:
    """By pod: its node and GPUs."""
    cluster = FakeCluster(evaluation=evaluation)
    for name, count in COUNTS.items():
        labels = {f"{NVIDIA}.memory": str(MEMORIES[name])} if MEMORIES[name] else {}
        for copy in "ab":
            cluster.node(f"{name}{copy}", cpu="64", offers={NVIDIA: count}, labels=labels)
    if ordered:
        cluster.use(LastFirst)
    for index, (asked, times, priority, cpu) in enumerate(batches):
        requests = {} if asked else {NVIDIA: 1}
        for time in range(times):
            cluster.add(pod(f"p{index}-{time}", annotations=asked, requests=requests, priority=priority, cpu=cpu))
        cluster.run()
        cluster.finish_deletions()
    cluster.run()
    pods = cluster.memory.objects(Pod)
    return {one.metadata.name: (one.spec.node_name, one.metadata.annotations.get(GPU)) for one in pods}


class LastFirst:
    """A GPU order: the last one first."""

    name = "last-first"

    def __init__(self, arguments: None) -> None:
        pass

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        session.add_gpu_order(lambda _task, _node, gpu: int(gpu))


@given(BATCHES, st.booleans())
def test_all_evaluation_modes_choose_the_same_nodes_and_gpus(batches: list[Batch], ordered: bool) -> None:
    found = [decided(evaluation, batches, ordered=ordered) for evaluation in ("naive", "board", "heap")]
    assert found[0] == found[1] == found[2]


RESERVED_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("part"), FRACTIONS, st.sampled_from([1, 1, 2]), st.sampled_from([0, 0, 9])),
        st.tuples(st.just("part"), FRACTIONS, st.just(1), st.just(0)),
        st.tuples(st.just("whole"), st.just(""), st.sampled_from([1, 1, 2]), st.sampled_from([0, 0, 9])),
        st.tuples(st.sampled_from(["end", "end", "restart", "crash", "vanish", "reconcile"]), st.just(""),
                  st.integers(0, 50), st.just(0)),
    ),
    max_size=16,
)  # fmt: skip


@given(RESERVED_STEPS, st.randoms(use_true_random=False))
def test_with_reservation_pods_no_device_is_given_whole_and_in_part(
    steps: list[tuple[str, str, int, int]], random: Random
) -> None:
    """The oracle knows the devices that a kubelet gave; it chooses any free one."""
    cluster = reserved()
    for name, count in COUNTS.items():
        cluster.node(name, cpu="64", offers={NVIDIA: count})
    kubelets = Kubelets(cluster, lambda free: random.choice(sorted(free)))
    cluster.run()
    for index, (what, fraction, number, priority) in enumerate(steps):
        if what == "part":
            asked = {GPU_FRACTION: fraction, **({GPU_COUNT: str(number)} if number > 1 else {})}
            cluster.add(pod(f"p{index}", annotations=asked, priority=priority))
        elif what == "whole":
            cluster.add(pod(f"p{index}", requests={NVIDIA: number}, priority=priority))
        elif what == "end":
            there = sorted(
                (one for one in live(cluster) if one.metadata.namespace == "default"), key=lambda one: one.key
            )
            if there:
                cluster.delete_pod(there[number % len(there)].metadata.name)
        elif what == "vanish":
            held = sorted(kubelets.reservations(), key=lambda one: one.metadata.name)
            if held:
                cluster.delete_pod(held[number % len(held)].metadata.name, held[0].metadata.namespace)
        elif what == "reconcile":
            kubelets.reconcile()
        elif what == "crash":  # between the reservation pods and the bind
            names = [one.metadata.name for one in cluster.memory.objects(Pod) if not one.spec.node_name]
            cluster.fail_binds(*names)
            cluster.advance(301)
            cluster.run()
            cluster.mend_binds()
            cluster.restart()
        else:
            cluster.restart()
        cluster.run()
        kubelets.check()
        cluster.finish_deletions()
        cluster.run()
        kubelets.check()
    for one in live(cluster):
        if one.metadata.namespace == "default":
            cluster.delete_pod(one.metadata.name)
    for one in cluster.memory.objects(Pod):
        if not one.spec.node_name:
            cluster.delete_pod(one.metadata.name)
    cluster.run()
    kubelets.reconcile()
    assert not kubelets.reservations()
