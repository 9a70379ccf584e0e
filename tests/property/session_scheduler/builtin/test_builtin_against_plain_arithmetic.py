"""Resource and port filters and scores on columns and virtual rows, compared with plain Python node by node."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from session_scheduler.builtin import BUILTIN
from session_scheduler.builtin.node_resources_balanced_allocation import NodeResourcesBalancedAllocation as Balanced
from session_scheduler.builtin.node_resources_fit import NodeResourcesFit as Fit
from session_scheduler.config.parsing import validated
from session_scheduler.hookspecs import SKIP, Prepared
from session_scheduler.model.class_table import ClassTable
from session_scheduler.model.columns import NodeTable, NodeView
from session_scheduler.model.objects import Node, Pod

PORTS = BUILTIN["NodePorts"](None)
NAMES = ("cpu", "memory", "example/gpu")
DEFAULTS = {"cpu": 100, "memory": 200 * 2**20}

capacities = st.fixed_dictionaries(
    {
        "cpu": st.sampled_from([0, 1000, 3500, 64000]),
        "memory": st.sampled_from([0, 2**30, 123456789, 2**56]),
        "example/gpu": st.sampled_from([0, 1, 8]),
        "pods": st.integers(0, 4),
    }
)
requests = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from([0, 1, 250, 999, 4000]),
        "memory": st.sampled_from([0, 1, 2**28, 987654321]),
        "example/gpu": st.integers(0, 3),
    },
)
ports = st.lists(
    st.builds(
        lambda port, ip, protocol: {"hostPort": port, "hostIP": ip, "protocol": protocol},
        st.sampled_from([80, 81]),
        st.sampled_from(["", "0.0.0.0", "10.0.0.1", "10.0.0.2"]),
        st.sampled_from(["TCP", "UDP"]),
    ),
    max_size=2,
)
pods = st.tuples(requests, ports)
clusters = st.lists(st.tuples(capacities, st.lists(pods, max_size=3)), min_size=1, max_size=4)


def pod(value: Any) -> Pod:
    amounts, host_ports = value
    written = {name: f"{amount}m" if name == "cpu" else amount for name, amount in amounts.items()}
    containers = [{"resources": {"requests": written}, "ports": host_ports}]
    return msgspec.convert({"metadata": {"name": "p"}, "spec": {"containers": containers}}, Pod)


class Views:
    """Every node with 0, 1 and 2 more pods of the class, as virtual rows and as numbers."""

    def __init__(self, cluster: Any, wanted: Any) -> None:
        self.table = NodeTable(capacity=1)
        classes = ClassTable(self.table, footprints=[PORTS.footprint])
        self.cls = classes.of(pod(wanted))
        self.plain: list[tuple[dict[str, int], list[Any]]] = []
        for number, (capacity, running) in enumerate(cluster):
            amounts = {name: f"{amount}m" if name == "cpu" else amount for name, amount in capacity.items()}
            value = {"metadata": {"name": f"n{number}"}, "status": {"allocatable": amounts}}
            row = self.table.put(msgspec.convert(value, Node))
            for one in running:
                self.table.add_usage(row, classes.of(pod(one)), 1)
            self.plain.extend((capacity, [*running, *[wanted] * more]) for more in range(3))
        rows = np.repeat(np.arange(len(cluster)), 3)
        self.view = NodeView(self.table, rows, self.cls, np.tile(np.arange(3), len(cluster)))

    def fitting(self, plugin: Any) -> list[bool]:
        mask = np.ones(len(self.view), np.bool_)
        state = plugin.prepare(self.cls)
        if state is not SKIP:
            plugin.filter(self.view, mask, state.state if isinstance(state, Prepared) else state)
        return mask.tolist()


def requested(running: list[Any], name: str) -> int:
    return sum(amounts.get(name, 0) for amounts, _ in running)


def scored(running: list[Any], name: str) -> int:
    return sum(amounts.get(name, DEFAULTS.get(name, 0)) for amounts, _ in running)


@given(clusters, pods)
def test_fitting_nodes_equal_a_check_node_by_node(cluster: Any, wanted: Any) -> None:
    views = Views(cluster, wanted)
    plainly = [
        len(running) < capacity["pods"]
        and all(not n or requested(running, name) + n <= capacity[name] for name, n in wanted[0].items())
        for capacity, running in views.plain
    ]
    assert views.fitting(Fit(None)) == plainly


@given(clusters, pods)
def test_the_required_amounts_are_free_exactly_on_the_fitting_nodes(cluster: Any, wanted: Any) -> None:
    views = Views(cluster, wanted)
    required = Fit(None).prepare(views.cls).required_free
    assert required is not None
    free = [views.view.allocatable(name) - views.view.used(name) >= amount for name, amount in required.items()]
    assert views.fitting(Fit(None)) == np.logical_and.reduce(free).tolist()


@given(clusters, pods, st.booleans(), st.lists(st.integers(1, 5), min_size=3, max_size=3))
def test_allocation_scores_equal_a_computation_node_by_node(
    cluster: Any, wanted: Any, most: bool, weights: list[int]
) -> None:
    views = Views(cluster, wanted)
    resources = [{"name": name, "weight": weight} for name, weight in zip(NAMES, weights, strict=True)]
    strategy = {"type": "MostAllocated" if most else "LeastAllocated", "resources": resources}
    plugin = Fit(validated(Fit.Arguments, {"scoringStrategy": strategy}, "f"))
    plainly = []
    for capacity, running in views.plain:
        points = weight = 0
        for name, its in zip(NAMES, weights, strict=True):
            has = capacity[name]
            if not has or (name == "example/gpu" and not wanted[0].get(name)):
                continue
            used = scored([*running, wanted], name)
            points += its * ((min(used, has) if most else max(has - used, 0)) * 100 // has)
            weight += its
        plainly.append(points // weight if weight else 0)
    scores = plugin.score(views.view, plugin.prepare(views.cls).state)
    assert scores is not None
    assert scores.tolist() == plainly


shapes = st.dictionaries(st.integers(0, 100), st.integers(0, 10), min_size=1, max_size=4)


@given(clusters, pods, shapes, st.lists(st.integers(1, 5), min_size=3, max_size=3))
def test_scores_by_a_shape_equal_a_computation_node_by_node(
    cluster: Any, wanted: Any, shape: dict[int, int], weights: list[int]
) -> None:
    views = Views(cluster, wanted)
    points = sorted(shape.items())
    strategy = {
        "type": "RequestedToCapacityRatio",
        "resources": [{"name": name, "weight": weight} for name, weight in zip(NAMES, weights, strict=True)],
        "requestedToCapacityRatio": {"shape": [{"utilization": at, "score": score} for at, score in points]},
    }
    plugin = Fit(validated(Fit.Arguments, {"scoringStrategy": strategy}, "f"))

    def at(utilization: int) -> int:
        if utilization <= points[0][0]:
            return 10 * points[0][1]
        for (start, first), (end, last) in pairwise(points):
            if utilization <= end:
                return 10 * first + math.trunc(Fraction(10 * (last - first) * (utilization - start), end - start))
        return 10 * points[-1][1]

    plainly = []
    for capacity, running in views.plain:
        total = weight = 0
        for name, its in zip(NAMES, weights, strict=True):
            has = capacity[name]
            if has and (name != "example/gpu" or wanted[0].get(name)):
                used = scored([*running, wanted], name)
                score = at(100 if used > has else used * 100 // has)
                total += its * score
                weight += its * (score > 0)
        plainly.append(math.floor(Fraction(total, weight) + Fraction(1, 2)) if weight else 0)
    scores = plugin.score(views.view, plugin.prepare(views.cls).state)
    assert scores is not None
    assert scores.tolist() == plainly


def evenness(shares: list[float]) -> int:
    deviation = 0.0
    if len(shares) == 2:
        deviation = abs((shares[0] - shares[1]) / 2)
    elif len(shares) > 2:
        mean = sum(shares) / len(shares)
        deviation = math.sqrt(sum((share - mean) * (share - mean) for share in shares) / len(shares))
    return int((1 - deviation) * 100)


@given(clusters, pods, st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
def test_balance_scores_equal_a_computation_node_by_node(cluster: Any, wanted: Any, names: list[str]) -> None:
    views = Views(cluster, wanted)
    plugin = Balanced(validated(Balanced.Arguments, {"resources": [{"name": name} for name in names]}, "f"))
    state = plugin.prepare(views.cls)
    counted = [name for name in names if name != "example/gpu" or wanted[0].get(name)]
    if not any(wanted[0].get(name) for name in names):
        assert state is SKIP
        return
    assert state is not SKIP
    plainly = []
    for capacity, running in views.plain:
        present = [name for name in counted if capacity[name]]
        before = [min(requested(running, name) / capacity[name], 1.0) for name in present]
        after = [min(requested([*running, wanted], name) / capacity[name], 1.0) for name in present]
        plainly.append(50 + (50 + evenness(after) - evenness(before)) // 2)
    assert plugin.score(views.view, state).tolist() == plainly


def clash(one: Any, other: Any) -> bool:
    addresses = {one["hostIP"] or "0.0.0.0", other["hostIP"] or "0.0.0.0"}
    same = (one["hostPort"], one["protocol"]) == (other["hostPort"], other["protocol"])
    return same and ("0.0.0.0" in addresses or len(addresses) == 1)


@given(clusters, pods)
def test_free_ports_equal_a_check_node_by_node(cluster: Any, wanted: Any) -> None:
    views = Views(cluster, wanted)
    plainly = [
        not any(clash(port, used) for port in wanted[1] for _, theirs in running for used in theirs)
        for _, running in views.plain
    ]
    assert views.fitting(PORTS) == plainly
