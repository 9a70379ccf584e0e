"""Groups in one topology domain: it is the best one by simple arithmetic, for every search order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from session_scheduler.actions import placing
from session_scheduler.testing import FakeCluster, node, pod, pod_group

from ....tools.examples import examples
from ..worlds import nodes, plugins, pods

_MIB, _GIB = 1024**2, 1024**3


@st.composite
def domains(draw):
    """Zones of nodes (cpus, used cpus), and a group of equal pods: their number, their cpus, their minimum."""
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
def test_precomputed_domains_change_no_placement(some_nodes, some_pods, chosen):
    short = decided([*some_nodes, *some_pods], chosen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placing, "promising", lambda request, sets: (list(sets), False))
        assert decided([*some_nodes, *some_pods], chosen) == short
