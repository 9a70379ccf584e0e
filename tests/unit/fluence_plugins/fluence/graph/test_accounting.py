"""What hosts offer and pods take, in the units in which a graph counts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.errors import AllocationError, JobspecError
from fluence_plugins.fluence.graph.accounting import MOST_PARTS, MOST_UNITS, Accounting, PodShape
from fluence_plugins.fluence.graph.cluster_graph import HostResources, build_graph
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.placement import HostHolding, Placement
from fluence_plugins.fluence.graph.resource_set import (
    allocation_from_placement,
    placement_from_allocation,
    placement_on_host,
)
from fluence_plugins.fluence.matching.group_placement import divide_hosts
from fluence_plugins.fluence.matching.jobspecs import compute_jobspec
from fluence_plugins.resources.config import load_resources
from fluxion_cy import Busy, Matcher, Unsatisfiable

NVIDIA, AMD = "nvidia.com/gpu", "amd.com/gpu"
OF_AMD = "gpu:amd.com/gpu"
MIB = 1 << 20
WHOLE, MILLI, AUTO = Accounting("cores"), Accounting("millicores"), Accounting("auto")
CONFIG = load_resources("", "none")
HOST = HostResources("n1", 2500, 1000, 2, ((OF_AMD, 3),), pods=5, core_pool=True)

# ------------------------------------------------------------------ from Kubernetes' units


def test_whole_cores_are_rounded_up_for_pods_and_down_for_nodes() -> None:
    assert WHOLE.shape_of({"cpu": 1001}) == PodShape(cores=2)
    assert WHOLE.shape_of({}) == PodShape(cores=1)
    assert WHOLE.host_of("n", {"cpu": 3900, "pods": 7}) == HostResources("n", 3, 0)


def test_millicores_are_exact_and_every_pod_is_one_of_the_nodes_pods() -> None:
    assert MILLI.shape_of({"cpu": 1001}) == PodShape(cores=1001, pods=1)
    assert MILLI.shape_of({}) == PodShape(cores=0, pods=1)
    assert MILLI.host_of("n", {"cpu": 3900, "pods": 7}) == HostResources("n", 3900, 0, pods=7, core_pool=True)


@pytest.mark.parametrize(
    ("requests", "in_group", "millicores"),
    [
        ({"cpu": 1001}, False, 1001), ({}, False, 0), ({"fluxion.flux-framework.org/qpu": 0}, False, 0),
        ({"cpu": 1001}, True, 2000), ({}, True, 1000), ({"cpu": 3000}, True, 3000),
        ({"cpu": 100, AMD: 1}, False, 1000), ({NVIDIA: 1}, False, 1000), ({"example.com/gpu": 1}, False, 0),
        ({"cpu": 2001, "fluxion.flux-framework.org/qpu": 1}, False, 3000),
    ],
)  # fmt: skip
def test_with_auto_pods_of_groups_and_with_devices_take_whole_cores(
    requests: dict[str, int], in_group: bool, millicores: int
) -> None:
    shape = AUTO.shape_of(requests, in_group=in_group)
    assert (shape.cores, shape.pods) == (millicores, 1)
    assert MILLI.shape_of(requests, in_group=in_group).cores == requests.get("cpu", 0)
    assert WHOLE.shape_of(requests, in_group=in_group).cores == max(1, -(-requests.get("cpu", 0) // 1000))
    assert AUTO.host_of("n", {"cpu": 3900, "pods": 7}) == MILLI.host_of("n", {"cpu": 3900, "pods": 7})


@pytest.mark.parametrize("accounting", [WHOLE, MILLI])
def test_memory_is_exact_to_the_mib_rounded_up_for_pods_and_down_for_nodes(accounting: Accounting) -> None:
    for amount, asked, offered in ((1, 1, 0), (MIB, 1, 1), (MIB + 1, 2, 1), (3 * MIB - 1, 3, 2)):
        assert accounting.shape_of({"memory": amount}).memory_mib == asked
        assert accounting.host_of("n", {"memory": amount}).memory_mib == offered


def test_each_kind_of_gpu_has_its_own_type_and_the_first_is_gpu() -> None:
    assert WHOLE.shape_of({NVIDIA: 1, AMD: 2}) == PodShape(gpus=1, others=((OF_AMD, 2),))
    assert WHOLE.host_of("n", {AMD: 2}) == HostResources("n", 0, 0, 0, ((OF_AMD, 2),))
    alone = Accounting(gpu_resources=(AMD,))
    assert alone.shape_of({NVIDIA: 1, AMD: 2}) == PodShape(gpus=2)
    assert Accounting(gpu_resources=()).shape_of({NVIDIA: 1}) == PodShape()


def test_of_absurd_nodes_only_so_much_is_modelled() -> None:
    absurd = dict.fromkeys(("cpu", "memory", "pods", NVIDIA, AMD), 1 << 62)
    assert WHOLE.host_of("n", absurd) == HostResources("n", MOST_PARTS, MOST_UNITS, MOST_PARTS, ((OF_AMD, MOST_PARTS),))
    found = MILLI.host_of("n", absurd)
    assert (found.cores, found.memory_mib, found.pods) == (MOST_UNITS, MOST_UNITS, MOST_UNITS)
    assert MILLI.host_of("n", dict.fromkeys(absurd, -5)) == HostResources("n", 0, 0, core_pool=True)


@pytest.mark.parametrize("accounting", [WHOLE, MILLI])
def test_what_no_host_can_have_is_said(accounting: Accounting) -> None:
    for requests in ({NVIDIA: MOST_PARTS + 1}, {AMD: MOST_PARTS + 1}, {"memory": 1 << 60}, {"cpu": 1 << 60}):
        assert accounting.excess(accounting.shape_of(requests), ()) is not None
    assert accounting.excess(PodShape(), [MOST_PARTS + 1]) is not None
    fits = {"cpu": 8_000_000, "memory": MIB * MOST_UNITS, NVIDIA: MOST_PARTS, AMD: MOST_PARTS}
    assert accounting.excess(accounting.shape_of(fits), [MOST_PARTS]) is None


def test_load_is_summed_before_it_is_rounded() -> None:
    foreign = [{"cpu": 600, "memory": MIB // 2, AMD: 1}, {"cpu": 600, "memory": MIB // 2}, {}]
    assert WHOLE.load_of(foreign) == (2, 1, 0, 1)
    assert MILLI.load_of(foreign) == (1200, 1, 0, 1, 3)
    assert WHOLE.load_of([], [(1, -1, 0, 2)]) == (1, 0, 0, 2)
    assert (WHOLE.load_of([{}]), MILLI.load_of([{}]), MILLI.load_of([])) == (None, (0, 0, 0, 0, 1), None)
    assert Accounting(gpu_resources=()).load_of([{NVIDIA: 4}]) is None


def test_amounts_of_hosts_shapes_and_holdings_stand_in_one_order() -> None:
    assert MILLI.types == ("core", "memory", "gpu", OF_AMD, "pod")
    assert MILLI.offered(HOST) == (2500, 1000, 2, 3, 5)
    assert MILLI.requested(PodShape(100, 10, 0, ((OF_AMD, 1),), pods=1)) == (100, 10, 0, 1, 1)
    assert MILLI.held(HostHolding("n", "/c/n", (), (1,), 5, millicores=7, pods=1)) == (7, 5, 1, 0, 1)
    assert WHOLE.held(HostHolding("n", "/c/n", (3, 5), (1,), 5, others=((OF_AMD, (0, 2)),))) == (2, 5, 1, 2)
    assert len(WHOLE.nothing) == len(WHOLE.types) == 4


def test_memory_in_chunks_is_counted_so_in_what_was_recorded_otherwise_too() -> None:
    chunks = Accounting(chunk_mib=1024)
    assert chunks.held(HostHolding("n", "/c/n", (3,), (), 5)) == (1, 1024, 0, 0)
    assert chunks.held(HostHolding("n", "/c/n", (3,), (), 1025, others=((OF_AMD, (0,)),))) == (1, 2048, 0, 1)


@pytest.mark.parametrize("bad", [{"cores": 0}, {"pods": -1}, {"others": ((OF_AMD, -1),)}])
def test_a_shape_that_takes_no_place_or_less_than_nothing_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(JobspecError, match="at least one core or pod slot of the host"):
        PodShape(**bad)


# ------------------------------------------------------------------ in the graph

SHAPES = [
    PodShape(0, pods=1),
    PodShape(500, 100, pods=1),
    PodShape(1, 0, 1, pods=1),
    PodShape(100, 0, 1, ((OF_AMD, 1),), pods=1),
]


@pytest.mark.parametrize("policy", ["first", "lonode", "low", "hinodex", "locality"])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_the_matcher_gives_is_read_replayed_and_divided(policy: str, shape: PodShape) -> None:
    graph = build_graph([HOST], CONFIG)
    matcher = Matcher(graph.jgf(), policy=policy)
    found = matcher.allocate(compute_jobspec(shape, 2).to_json(), jobid=1)
    placement = placement_from_allocation(found.R)
    assert placement_on_host(found.R) == placement
    amounts = MILLI.held(placement.hosts[0])
    whole = policy.endswith("x")
    assert amounts == (MILLI.offered(HOST) if whole else tuple(2 * amount for amount in MILLI.requested(shape)))
    cut = list(divide_hosts(placement, shape, 2))
    assert MILLI.held(cut[1]) == MILLI.requested(shape)
    assert tuple(map(sum, zip(*map(MILLI.held, cut), strict=True))) == amounts
    assert [host.exclusive for host in cut] == [whole, False]
    again = Matcher(graph.jgf(), policy=policy)
    for jobid, host in enumerate(cut, 1):
        if not whole:
            again.update_allocate(jobid, allocation_from_placement(graph, Placement((host,))))
    if whole:
        again.update_allocate(1, allocation_from_placement(graph, placement))
    assert again.find("sched-now=allocated") == matcher.find("sched-now=allocated")
    assert not matcher.partial_cancel(1, allocation_from_placement(graph, Placement((cut[1],))))
    assert matcher.partial_cancel(1, allocation_from_placement(graph, Placement((cut[0],))))
    assert matcher.find("sched-now=allocated") is None or whole


def test_a_pool_of_cores_is_no_core_and_a_core_no_pool() -> None:
    pooled, whole = build_graph([HOST], CONFIG), build_graph([HostResources("n1", 2, 0)], CONFIG)
    with pytest.raises(AllocationError, match="no longer has core0"):
        allocation_from_placement(pooled, Placement((HostHolding("n1", "/cluster/n1", (0,)),)))
    with pytest.raises(AllocationError, match="has 0 millicores, but a pod holds 1; delete the pod"):
        allocation_from_placement(whole, Placement((HostHolding("n1", "/cluster/n1", millicores=1),)))
    with pytest.raises(AllocationError, match="has 5 pods, but a pod holds 6; delete the pod"):
        allocation_from_placement(pooled, Placement((HostHolding("n1", "/cluster/n1", pods=6),)))
    with pytest.raises(AllocationError, match=r"no longer has gpu:amd\.com/gpu3"):
        allocation_from_placement(pooled, Placement((HostHolding("n1", "/cluster/n1", others=((OF_AMD, (3,)),)),)))


def test_names_of_kinds_that_end_in_numbers_do_not_meet() -> None:
    kinds = tuple((f"gpu:example.com/{name}", 12) for name in ("a", "a1", "a-1", "A.1"))
    graph = build_graph([HostResources("n1", 1, 0, 12, kinds)], CONFIG)
    assert len(graph.builder) == 2 + 1 + 12 * 5


def live_of(accounting: Accounting, **allocatable: int) -> LiveGraph:
    live = LiveGraph(CONFIG, "first", accounting)
    live.set_hosts({"n1": accounting.host_of("n1", allocatable)})
    return live


def test_a_pod_is_never_given_gpus_of_another_kind() -> None:
    live = live_of(WHOLE, **{"cpu": 8000, NVIDIA: 1, AMD: 1})
    for resource in (NVIDIA, AMD):
        jobspec = compute_jobspec(WHOLE.shape_of({resource: 1}), 1).to_json()
        job = live.allocations.match(jobspec)
        live.allocations.hold(resource, {job.jobid: job.placement})
        with pytest.raises((Busy, Unsatisfiable)):
            live.allocations.match(jobspec)
    assert live.holdings.used_on("n1") == (2, 0, 1, 1)
    only = live_of(WHOLE, **{"cpu": 8000, AMD: 1})
    with pytest.raises((Busy, Unsatisfiable)):
        only.allocations.match(compute_jobspec(WHOLE.shape_of({NVIDIA: 1}), 1).to_json())


def test_load_of_others_takes_of_each_pool_and_kind_what_it_is_and_what_is_free() -> None:
    live = live_of(MILLI, **{"cpu": 2500, "memory": 1000 * MIB, NVIDIA: 1, AMD: 2, "pods": 4})
    live.foreign.set("n1", (700, 200, 0, 2, 3))
    assert live.foreign.held == {"n1": True}
    for requests, fits in (({"cpu": 1801}, False), ({"memory": 801 * MIB}, False), ({AMD: 1}, False),
                           ({"cpu": 1800, "memory": 800 * MIB, NVIDIA: 1}, True)):  # fmt: skip
        jobspec = compute_jobspec(MILLI.shape_of(requests), 1).to_json()
        assert live.matcher.satisfy(jobspec)
        if fits:
            job = live.allocations.match(jobspec)
            live.allocations.hold("a", {job.jobid: job.placement})
            continue
        with pytest.raises(Busy):
            live.allocations.match(jobspec)
    assert live.free_on("n1", (), None) == (700, 200, 0, 2, 3)
    assert live.free_on("n1", [live.holdings.of_pod("a", "n1") or ()], (5000, 0, 0, 0, 3)) == (0, 1000, 1, 2, 1)
    live.foreign.set("n1", (701, 200, 0, 2, 9))
    assert live.foreign.held == {"n1": False}
    with pytest.raises(Busy):
        live.allocations.match(compute_jobspec(MILLI.shape_of({}), 1).to_json())


def test_a_whole_host_is_all_of_its_pools_and_kinds() -> None:
    live = live_of(MILLI, **{"cpu": 2500, "memory": 1000 * MIB, NVIDIA: 1, AMD: 2, "pods": 4})
    whole = live.loaded.whole_host("n1")
    assert whole is not None
    assert MILLI.held(whole.hosts[0]) == (2500, 1000, 1, 2, 4)
    jobid = live.foreign.reserve(whole)
    assert jobid is not None
    with pytest.raises(Busy):
        live.allocations.match(compute_jobspec(MILLI.shape_of({}), 1).to_json())
    live.foreign.release(jobid, whole)
    live.allocations.match(compute_jobspec(MILLI.shape_of({}), 4).to_json())


def test_holdings_are_told_in_words() -> None:
    hosts = (
        HostHolding("a", "/c/a", (), (), 512, millicores=250, pods=1),
        HostHolding("b", "/c/b", (0,), (0,), 0, others=((OF_AMD, (1, 2)),)),
        HostHolding("c", "/c/c", pods=1),
    )
    assert Placement(hosts).summary == "250 millicores, 512 MiB of a; 1 cores, 1 gpus, 2 amd.com/gpu of b; a place of c"


# ------------------------------------------------------------------ arguments


def arguments(**given: Any) -> FluenceArguments:
    return FluenceArguments.model_validate_json(json.dumps(given))


def test_arguments_say_how_it_is_counted() -> None:
    assert arguments().accounting == AUTO
    assert arguments(engine="reapi").accounting == Accounting("cores", chunk_mib=1024)
    assert [arguments(engine=engine).auto_is_cores for engine in ("embedded", "reapi")] == [False, True]
    assert not arguments(engine="reapi", cpuAccounting="cores").auto_is_cores
    chosen: dict[str, Any] = {"cpuAccounting": "millicores", "gpuResources": ["example.com/Chip.v2", NVIDIA]}
    assert arguments(**chosen).accounting == Accounting("millicores", ("example.com/Chip.v2", NVIDIA))
    assert arguments(gpuResources=[]).accounting.gpu_resources == ()


@pytest.mark.parametrize(
    "name",
    ["cpu", "memory", "pods", "gpu", "", "/gpu", "nvidia.com/", "NVIDIA.com/gpu", "nvidia.com/gpu/x", "a b/c",
     "x" * 400, "kubernetes.io/gpu", "batch.kubernetes.io/gpu", "requests.nvidia.com/gpu", "nvidia.com/-gpu",
     "hugepages-2Mi", "fluxion.flux-framework.org/qpu", f"nvidia.com/{'x' * 64}", f"{'x.' * 130}com/gpu"],
)  # fmt: skip
def test_what_is_no_extended_resource_is_no_gpu(name: str) -> None:
    problem = (
        "is not a valid GPU resource: expected the full name of an extended resource outside "
        "fluxion.flux-framework.org, such as nvidia.com/gpu"
    )
    with pytest.raises(ValidationError, match=problem):
        arguments(gpuResources=[name])


def test_gpus_are_at_most_sixteen_kinds_each_once() -> None:
    arguments(gpuResources=[f"example.com/gpu{n}" for n in range(16)])
    with pytest.raises(ValidationError, match="16"):
        arguments(gpuResources=[f"example.com/gpu{n}" for n in range(17)])
    with pytest.raises(ValidationError, match="named twice; keep one"):
        arguments(gpuResources=[NVIDIA, AMD, NVIDIA])
    with pytest.raises(ValidationError, match="cpuAccounting"):
        arguments(cpuAccounting="nanocores")


@pytest.mark.parametrize("kind", ["pod", "core", "gpu", OF_AMD])
def test_a_level_of_the_graph_has_no_type_of_what_is_counted(kind: str) -> None:
    arguments(topology=[{"type": "rack", "label": "example.com/rack"}])
    with pytest.raises(ValidationError, match=r"is a built-in type of the graph|is not a valid type"):
        arguments(topology=[{"type": kind, "label": "example.com/rack"}])
