"""Counted in millicores, the graph has room for a pod where Kubernetes' own sums say so, whoever runs there."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fluence_plugins.fluence.matching.jobspecs import compute_jobspec_text
from fluence_plugins.fluence.plugin import FluencePlugin
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
worlds = st.tuples(
    st.lists(hosts, min_size=1, max_size=3),
    st.lists(st.tuples(shapes, st.integers(1, 3)), max_size=6),
    st.lists(st.tuples(shapes, st.integers(0, 2)), max_size=6),
    st.sets(st.integers(0, 10), max_size=4),
    st.lists(shapes, min_size=1, max_size=4),
)
"""Nodes; groups that are placed; what others bind, and where, more than there is room for, too; which of the pods end;
shapes that are tried out on each node.
"""


def asked(shape: Any) -> dict[str, Any]:
    cpu, mib, kinds = shape
    return {"cpu": cpu, "memory": f"{mib}Mi", "requests": {name: str(amount) for name, amount in kinds.items()}}


def amounts_of(found: Pod) -> Counter[str]:
    """What a pod counts for on its node; cpu in millicores, and the pod itself."""
    (container,) = found.spec.containers
    requests = {name: parse_quantity(q, milli=name == "cpu") for name, q in container.resources.requests.items()}
    return Counter({"pods": 1, **requests})


def live_pods(cluster: FakeCluster) -> list[Pod]:
    return [one for one in cluster.memory.objects(Pod) if one.status.phase != "Succeeded"]


def free_of(cluster: FakeCluster, name: str) -> dict[str, int]:
    """What a node has left: its allocatable amounts less the requests of all pods there."""
    found = cluster.find(Node, name).status.allocatable
    used: Counter[str] = sum((amounts_of(one) for one in live_pods(cluster) if one.spec.node_name == name), Counter())
    return {kind: parse_quantity(amount, milli=kind == "cpu") - used[kind] for kind, amount in found.items()}


def fits(wanted: Counter[str], free: dict[str, int]) -> bool:
    return all(amount <= free.get(kind, 0) for kind, amount in wanted.items() if amount)


def cluster_of(world: Any, policy: str, cpu_accounting: str = "millicores") -> FakeCluster:
    """What is left of the world when all is placed that can be, some pods have ended, and what fits then is placed."""
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


def fits_in_graph(plugin: FluencePlugin, shape: Any, host: str) -> bool:
    """Tried out, and undone."""
    live, first = plugin.live, plugin.live.allocations.next_jobid
    jobspec = compute_jobspec_text(live.accounting.shape_of(amounts_of(pod("new", **asked(shape)))), 1)
    try:
        job = live.allocations.match_on(live.graph.host_ranks[host], jobspec)
    except (Busy, Unsatisfiable):
        return False
    live.allocations.retract([job.jobid], (), first)
    return True


@settings(max_examples=examples(150), deadline=None)
@given(worlds, st.sampled_from(["first", "lonode", "locality"]))
def test_a_pod_fits_the_graph_where_cpu_memory_gpus_and_pods_fit_the_node(world: Any, policy: str) -> None:
    cluster = cluster_of(world, policy)
    for index in range(len(world[0])):
        free = free_of(cluster, f"n{index}")
        assert min(free.values()) >= 0 or world[2]
        for shape in world[-1]:
            wanted = amounts_of(pod("new", **asked(shape)))
            assert fits_in_graph(cluster.plugin("fluence"), shape, f"n{index}") == fits(wanted, free), (shape, free)


@settings(max_examples=examples(100), deadline=None)
@given(worlds)
def test_a_lone_pod_waits_only_where_it_fits_no_node(world: Any) -> None:
    nodes, groups, *rest = world
    cluster = cluster_of((nodes, [(shape, 1) for shape, _ in groups], *rest), "first")
    for waiting in (one for one in live_pods(cluster) if not one.spec.node_name):
        assert not any(fits(amounts_of(waiting), free_of(cluster, f"n{index}")) for index in range(len(nodes)))


@settings(max_examples=examples(100), deadline=None)
@given(worlds, st.sampled_from(["cores", "millicores"]), st.permutations(KINDS))
def test_what_pods_have_is_theirs_however_it_is_counted_after_a_restart(world: Any, now: str, kinds: Any) -> None:
    """In millicores as Kubernetes counts; in cores nothing is given twice, and every gpu stays whose it was."""
    cluster = cluster_of(world, "first", "cores" if now == "millicores" else "millicores")
    again = FakeCluster().use(FluencePlugin, {"cpuAccounting": now, "gpuResources": kinds})
    again.add(*cluster.memory.objects(Node), *cluster.memory.objects(Pod)).start()
    for index in range(len(world[0])):
        free = free_of(cluster, f"n{index}")
        for shape in world[-1]:
            wanted = amounts_of(pod("new", **asked(shape)))
            found = fits_in_graph(again.plugin("fluence"), shape, f"n{index}")
            assert found == fits(wanted, free) if now == "millicores" else found <= fits(wanted, {**free, "pods": 1})
