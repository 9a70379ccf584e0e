"""Groups in one topology domain: the scheduler chooses the best domain by kube-scheduler's arithmetic."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from session_scheduler.actions import placing
from session_scheduler.model.devices import DeviceClass, ResourceClaim, ResourceSlice
from session_scheduler.model.preferred_levels import PREFER_WITHIN
from session_scheduler.testing import FakeCluster, node, pod, pod_group

from ....tools.examples import examples
from ..worlds import nodes, plugins, pods

_MIB, _GIB = 1024**2, 1024**3


@st.composite
def domains(draw):
    """Zones of nodes (cpus, used cpus), and a group of equal pods: their number, their cpus, minCount."""
    zones = {}
    for zone in "abcd"[: draw(st.integers(1, 4))]:
        cpus = draw(st.lists(st.integers(1, 8), min_size=1, max_size=3))
        zones[zone] = [(cpu, draw(st.integers(0, cpu))) for cpu in cpus]
    size = draw(st.integers(1, 6))
    return zones, size, draw(st.integers(1, 3)), draw(st.one_of(st.none(), st.integers(1, size)))


def expected(zones, size, cpu, least):
    """The best domains by kube-scheduler's PodGroupPodsCount and NodeResourcesFit, and the pods that fit in each."""
    takes = {zone: min(size, sum((all_ - used) // cpu for all_, used in nodes)) for zone, nodes in zones.items()}
    takes = {zone: count for zone, count in takes.items() if count >= (least or 1)}
    totals = {}
    for zone, count in takes.items():
        offered, used = (sum(one[part] for one in zones[zone]) for part in (0, 1))
        loads = sum(1 for one in zones[zone] if one[1])
        memory = (count + loads) * 100 * _MIB * 100 // (16 * _GIB * len(zones[zone]))
        shares = [(used + count * cpu) * 100 // offered, memory]
        totals[zone] = count * 100 // max(takes.values()) + sum(shares) // 2
    best = max(totals.values(), default=0)
    return {zone: takes[zone] for zone, total in totals.items() if total == best}


@settings(max_examples=examples(150), deadline=None)
@given(domains(), st.integers(0, 3))
def test_the_domain_is_the_best_by_kube_schedulers_arithmetic(case, seed):
    zones, size, cpu, least = case
    cluster = FakeCluster()
    for zone, members in zones.items():
        for number, (all_, used) in enumerate(members):
            name = f"{zone}{number}"
            cluster.add(node(name, cpu=str(all_), labels={"zone": zone}))
            if used:
                cluster.add(pod(f"load-{name}", cpu=str(used), bound_to=name))
    cluster.add(pod_group("g", least, topology="zone"))
    cluster.add(pod(f"g-{index}", cpu=str(cpu), group="g") for index in range(size))
    cluster.run()
    placed = Counter(where[0] for index in range(size) if (where := cluster.node_of(f"g-{index}")))
    best = expected(*case)
    assert len(placed) == bool(best)
    assert placed.items() <= best.items()


def decided(objects, chosen):
    cluster = FakeCluster()
    cluster.add(objects)
    cluster.start(*chosen.build())
    cluster.run(cycles=2)
    return cluster.placements()


@settings(max_examples=examples(40), deadline=None)
@given(nodes(), pods(), plugins())
def test_skipping_unpromising_domains_changes_no_placement(some_nodes, some_pods, chosen):
    short = decided([*some_nodes, *some_pods], chosen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placing, "promising", lambda request, sets: (list(sets), False))
        assert decided([*some_nodes, *some_pods], chosen) == short


@st.composite
def gangs_with_claims(draw):
    """Racks of nodes (cpus, devices), and gangs that prefer a rack: number of pods, cpus, claims and spreading."""
    racks = draw(st.lists(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=3),
                          min_size=2, max_size=5))  # fmt: skip
    gang = st.tuples(st.integers(1, 5), st.integers(1, 3), st.sampled_from(["none", "some", "all"]), st.booleans())
    return racks, draw(st.lists(gang, min_size=1, max_size=3))


def made(kind, name, **fields):
    metadata = {"name": name, "namespace": "default" if kind is ResourceClaim else ""}
    return msgspec.convert({"kind": kind.__name__, "metadata": metadata, **fields}, kind)


def objects_of(racks, gangs):
    yield made(DeviceClass, "gpu")
    for number, rack in enumerate(racks):
        for place, (cpu, devices) in enumerate(rack):
            name = f"n{number}-{place}"
            yield node(name, cpu=str(cpu), labels={"rack": str(number), "kubernetes.io/hostname": name})
            pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
            yield made(ResourceSlice, name, spec={"driver": "d", "nodeName": name, "pool": pool,
                                                  "devices": [{"name": f"d{n}"} for n in range(devices)]})  # fmt: skip
    for index, (size, cpu, claims, spreads) in enumerate(gangs):
        group = pod_group(f"g{index}", size)
        yield replace(group, metadata=replace(group.metadata, annotations={PREFER_WITHIN: "rack"}))
        for number in range(size):
            name = f"g{index}-{number}"
            spec: dict[str, Any] = {}
            if claims == "all" or (claims == "some" and number % 2):
                request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
                yield made(ResourceClaim, name, spec={"devices": {"requests": [request]}})
                spec["resource_claims"] = ({"name": "own", "resourceClaimName": name},)
            if spreads:
                spec["topology_spread_constraints"] = (
                    {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
                     "labelSelector": {"matchLabels": {"app": f"g{index}"}}},
                )  # fmt: skip
            yield pod(name, cpu=str(cpu), group=f"g{index}", labels={"app": f"g{index}"}, **spec)


@settings(max_examples=examples(60), deadline=None)
@given(gangs_with_claims())
def test_skipping_racks_without_room_changes_no_placement_of_pods_with_claims_or_spreading(case):
    def placed(evaluation):
        cluster = FakeCluster(evaluation=evaluation).add(objects_of(*case))
        cluster.run(cycles=2)
        return cluster.placements()

    short = placed("board")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placing, "promising", lambda request, sets: (list(sets), False))
        assert placed("naive") == placed("board") == short
