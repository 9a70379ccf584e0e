"""With a pool of millicores, a pod fits the graph exactly if it fits the sums of amounts, whatever runs on the node."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fluence_plugins.fluence.matching.jobspecs import compute_jobspec_text
from fluence_plugins.fluence.plugin import FluencePlugin
from fluence_plugins.resources.label_groups import in_group
from fluxion_cy import Busy, Unsatisfiable
from session_scheduler.model.objects import Node, Pod
from session_scheduler.model.quantity import parse_quantity
from session_scheduler.testing import FakeCluster, gang, node, pod

from ...tools.examples import examples

KINDS = ("nvidia.com/gpu", "amd.com/gpu", "example.com/chip")
MIB = 1 << 20
cpus = st.sampled_from(["0", "1m", "100m", "333m", "500m", "1", "1500m"])
mibs = st.sampled_from([0, 1, 64, 500])
gpus = st.dictionaries(st.sampled_from(KINDS), st.integers(1, 2), max_size=2)
hosts = st.tuples(
    st.sampled_from(["0", "900m", "1", "2500m"]), st.sampled_from([0, 64, 1000]), gpus, st.sampled_from([0, 1, 3, 9])
)
shapes = st.tuples(cpus, mibs, gpus)
pooled = st.sampled_from(["auto", "millicores"])
worlds = st.tuples(
    st.lists(hosts, min_size=1, max_size=3),
    st.lists(st.tuples(shapes, st.integers(1, 3)), max_size=6),
    st.lists(st.tuples(shapes, st.integers(0, 2)), max_size=6),
    st.sets(st.integers(0, 10), max_size=4),
    st.lists(shapes, min_size=1, max_size=4),
)
"""Nodes; groups to place; pods that other schedulers bind, even beyond a node's capacity; which of the pods end;
shapes to match on each node.
"""


def asked(shape: Any) -> dict[str, Any]:
    cpu, mib, kinds = shape
    return {"cpu": cpu, "memory": f"{mib}Mi", "requests": {name: str(amount) for name, amount in kinds.items()}}


def amounts_of(found: Pod, cpu_accounting: str = "millicores") -> Counter[str]:
    """The amounts of a pod on its node: cpu in millicores, and the pod itself.

    With `auto`, our pods that have a group or a gpu take whole cores; all others exactly what they request.
    """
    (container,) = found.spec.containers
    requests = {name: parse_quantity(q, milli=name == "cpu") for name, q in container.resources.requests.items()}
    ours = found.spec.scheduler_name == "fluence"
    if cpu_accounting == "auto" and ours and (found.spec.scheduling_group or set(KINDS) & set(requests)):
        requests["cpu"] = max(1000, -(-requests.get("cpu", 0) // 1000) * 1000)
    return Counter({"pods": 1, **requests})


def new_pods(world: Any) -> list[Pod]:
    """The shapes to match, each as a single pod and as one of a gang."""
    return [pod("new", group=group, **asked(shape)) for shape in world[-1] for group in ("", "g")]


def live_pods(cluster: FakeCluster) -> list[Pod]:
    return [one for one in cluster.memory.objects(Pod) if one.status.phase != "Succeeded"]


def free_of(cluster: FakeCluster, name: str, cpu_accounting: str = "millicores") -> dict[str, int]:
    """The free amounts of a node, by the sum of the amounts of all its pods."""
    found = cluster.find(Node, name).status.allocatable
    there = [one for one in live_pods(cluster) if one.spec.node_name == name]
    used: Counter[str] = sum((amounts_of(one, cpu_accounting) for one in there), Counter())
    return {kind: parse_quantity(amount, milli=kind == "cpu") - used[kind] for kind, amount in found.items()}


def fits(wanted: Counter[str], free: dict[str, int]) -> bool:
    return all(amount <= free.get(kind, 0) for kind, amount in wanted.items() if amount)


def cluster_of(world: Any, policy: str, cpu_accounting: str = "millicores") -> FakeCluster:
    """The cluster of the world after all possible placements, the end of some pods, and another cycle."""
    nodes, groups, others, ending, _ = world
    arguments = {"cpuAccounting": cpu_accounting, "gpuResources": KINDS, "matchPolicy": policy}
    cluster = FakeCluster().use(FluencePlugin, arguments)
    for index, (cpu, mib, kinds, most) in enumerate(nodes):
        offers = {name: str(amount) for name, amount in kinds.items()}
        cluster.add(node(f"n{index}", cpu=cpu, memory=f"{mib}Mi", pods=most, offers=offers))
    for index, (shape, where) in enumerate(others):
        cluster.add(pod(f"other{index}", scheduler="x", bound_to=f"n{where % len(nodes)}", **asked(shape)))
    for index, (shape, size) in enumerate(groups):
        cluster.add(gang(f"g{index}", size, **asked(shape)))
    cluster.schedule()
    running = sorted(one.metadata.name for one in live_pods(cluster) if one.spec.node_name)
    for name in [name for index, name in enumerate(running) if index in ending]:
        cluster.end(name)
    cluster.advance(600)
    return cluster.schedule()


def fits_in_graph(plugin: FluencePlugin, new: Pod, host: str) -> bool:
    """Match the pod and undo the match."""
    live, first = plugin.live, plugin.live.allocations.next_jobid
    jobspec = compute_jobspec_text(live.accounting.shape_of(amounts_of(new), in_group=in_group(new)), 1)
    try:
        job = live.allocations.match_on(live.graph.host_ranks[host], jobspec)
    except (Busy, Unsatisfiable):
        return False
    live.allocations.retract([job.jobid], (), first)
    return True


@settings(max_examples=examples(150), deadline=None)
@given(worlds, st.sampled_from(["first", "lonode", "locality"]), pooled)
def test_a_pod_fits_the_graph_if_cpu_memory_gpus_and_pods_fit_the_node(world: Any, policy: str, counted: str) -> None:
    cluster = cluster_of(world, policy, counted)
    for index in range(len(world[0])):
        free = free_of(cluster, f"n{index}", counted)
        assert min(free.values()) >= 0 or world[2]
        for new in new_pods(world):
            found = fits_in_graph(cluster.plugin("fluence"), new, f"n{index}")
            assert found == fits(amounts_of(new, counted), free), (new, free)


@settings(max_examples=examples(100), deadline=None)
@given(worlds, pooled)
def test_a_single_pod_waits_only_if_it_fits_no_node(world: Any, counted: str) -> None:
    nodes, groups, *rest = world
    cluster = cluster_of((nodes, [(shape, 1) for shape, _ in groups], *rest), "first", counted)
    for waiting in (one for one in live_pods(cluster) if not one.spec.node_name):
        wanted = amounts_of(waiting, counted)
        assert not any(fits(wanted, free_of(cluster, f"n{index}", counted)) for index in range(len(nodes)))


@settings(max_examples=examples(100), deadline=None)
@given(worlds, st.permutations(["auto", "cores", "millicores"]), st.permutations(KINDS))
def test_pods_keep_their_resources_under_another_accounting_after_a_restart(
    world: Any, counted: list[str], kinds: Any
) -> None:
    """In a pool the graph has the sums of amounts; with cores it allocates nothing twice. Pods keep their gpus."""
    before, now, _ = counted
    cluster = cluster_of(world, "first", before)
    again = FakeCluster().use(FluencePlugin, {"cpuAccounting": now, "gpuResources": kinds})
    again.add(*cluster.memory.objects(Node), *cluster.memory.objects(Pod)).start()
    for index in range(len(world[0])):
        free = free_of(cluster, f"n{index}", now)
        for new in new_pods(world):
            wanted = amounts_of(new, now)
            found = fits_in_graph(again.plugin("fluence"), new, f"n{index}")
            assert found <= fits(wanted, {**free, "pods": 1}) if now == "cores" else found == fits(wanted, free)
