"""Which nodes fit a pod in their NUMA zones, compared with a search through all allocations of the kubelet."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from session_scheduler.builtin.numa_requests import Amounts, Need
from session_scheduler.builtin.numa_zones import (
    DEFAULT_MOST_NODES,
    SINGLE,
    Items,
    Manager,
    RowZones,
    ZoneTable,
    manager_of,
)
from session_scheduler.model.node_topology import Attribute, NodeResourceTopology, Zone, ZoneResource

from ....tools.numa import topology

ONE = np.ones(1, np.int64)


def row(*zones: dict[str, int]) -> RowZones:
    """One node with these free amounts."""
    names = {name for zone in zones for name in zone}
    free = {name: np.array([[zone.get(name, -1)] for zone in zones], np.int64) for name in names}
    return RowZones(np.ones((len(zones), 1), np.bool_), free)


def need(what: str = "container", *, stays: bool = True, **amounts: int) -> Need:
    return Need(what, tuple(sorted(amounts.items())), stays)


def aligned(zones: RowZones, *needs: Need) -> list[bool]:
    return [bool(fits[0]) for fits in zones.aligned(needs)]


# ------------------------------------------------------------------ one pod


def test_all_amounts_must_be_free_in_one_zone() -> None:
    zones = row({"cpu": 8, "gpu": 0}, {"cpu": 2, "gpu": 1})
    assert aligned(zones, need(cpu=8)) == aligned(zones, need(cpu=2, gpu=1)) == [True]
    assert aligned(zones, need(cpu=3, gpu=1)) == aligned(zones, need(cpu=9)) == [False]


def test_a_zone_without_the_resource_does_not_fit_and_a_resource_that_no_zone_has_does_not_count() -> None:
    zones = row({"cpu": 8}, {"cpu": 8, "gpu": 1})
    assert zones.fit((("gpu", 1),)).tolist() == [[False], [True]]
    assert zones.fit((("memory", 10), ("cpu", 8))).tolist() == [[True], [True]]


def test_each_container_uses_the_first_zone_that_fits_and_an_init_container_gives_its_zone_back() -> None:
    assert aligned(row({"cpu": 4}, {"cpu": 8}), need(cpu=4), need(cpu=8)) == [True, True]
    assert aligned(row({"cpu": 8}, {"cpu": 4}), need(cpu=4), need(cpu=8)) == [True, False]
    assert aligned(row({"cpu": 8}, {"cpu": 4}), need(cpu=4, stays=False), need(cpu=8)) == [True, True]


# ------------------------------------------------------------------ pods that are not reported yet


def search(zones: Sequence[dict[str, int]], wanted: Amounts, items: Sequence[Amounts]) -> bool | None:
    """Whether the amounts fit in a zone wherever the items are, each in one zone; None if they are in none."""
    found = None
    for places in product(range(len(zones)), repeat=len(items)):
        left = [dict(zone) for zone in zones]
        for place, item in zip(places, items, strict=True):
            for name, amount in item:
                left[place][name] = left[place].get(name, 0) - amount
        if any(amount < 0 for zone in left for amount in zone.values()):
            continue
        if not any(all(zone.get(name, -1) >= amount for name, amount in wanted) for zone in left):
            return False
        found = True
    return found


def sure(zones: Sequence[dict[str, int]], wanted: Amounts, items: Sequence[Amounts]) -> bool:
    """What the filter says: with the items in every zone, or wherever each of them is."""
    counted = [Items(one, ONE * items.count(one)) for one in dict.fromkeys(items)]
    found, needs = row(*zones), [Need("container", wanted)]
    return aligned(found.without(counted), *needs) == [True] or bool(found.sure(needs, counted)[0])


def test_of_random_nodes_none_is_said_to_fit_where_the_kubelet_may_not_align_the_pod() -> None:
    chosen = random.Random(28)
    certain = missed = 0
    for _ in range(1500):
        zones = [{"cpu": chosen.randrange(9), "gpu": chosen.randrange(4)} for _ in range(chosen.choice((2, 3)))]
        sizes = [(("cpu", chosen.randrange(1, 5)), ("gpu", chosen.randrange(3))) for _ in range(2)]
        items = [chosen.choice(sizes) for _ in range(chosen.randrange(1, 5))]
        wanted = chosen.choice([sizes[0], (("cpu", chosen.randrange(1, 6)),)])
        if sure(zones, wanted, items):
            certain += 1
            assert search(zones, wanted, items) is not False, (zones, wanted, items)
        elif search(zones, wanted, items):
            missed += 1
    assert missed < 0.25 * certain


@pytest.mark.parametrize(
    ("zones", "size", "fitting"),
    [((8, 8), 2, 8), ((8, 8), 8, 2), ((9, 5), 2, 6), ((12, 4, 2), 2, 9), ((6, 6, 6), 4, 3)],
)
def test_equal_pods_fill_every_zone_without_a_report(zones: tuple[int, ...], size: int, fitting: int) -> None:
    free, one = [{"cpu": zone} for zone in zones], (("cpu", size),)
    assert [sure(free, one, [one] * number) for number in range(fitting + 1)] == [True] * fitting + [False]


def test_equal_pods_with_gpus_fill_every_zone_too() -> None:
    free, one = [{"cpu": 8, "gpu": 4}] * 2, (("cpu", 2), ("gpu", 1))
    assert [sure(free, one, [one] * number) for number in range(9)] == [True] * 8 + [False]


def test_a_pod_fits_beside_a_larger_one_if_it_leaves_a_zone() -> None:
    assert sure([{"cpu": 8}, {"cpu": 8}], (("cpu", 3),), [(("cpu", 6),)])
    assert not sure([{"cpu": 8}, {"cpu": 8}], (("cpu", 3),), [(("cpu", 6),)] * 2)
    assert sure([{"cpu": 8}, {"cpu": 2}], (("cpu", 2),), [(("cpu", 1),)] * 6)


def test_containers_before_may_be_in_any_zone_while_pods_are_not_reported() -> None:
    zones = row({"cpu": 4}, {"cpu": 8})
    items = [Items((("cpu", 1),), ONE)]
    assert not zones.sure([need(cpu=4), need(cpu=8)], items)[0]
    assert zones.sure([need(cpu=4, stays=False), need(cpu=4)], items)[0]


# ------------------------------------------------------------------ objects


def single(**options: Any) -> Manager:
    return manager_of(topology("n", **options))


def test_the_attributes_describe_the_topology_manager() -> None:
    assert single() == Manager(SINGLE, False, DEFAULT_MOST_NODES)
    assert single(scope="pod", topologyManagerMaxNUMANodes="16") == Manager(SINGLE, True, 16)
    assert single(policy="restricted", scope="odd", topologyManagerMaxNUMANodes="0") == Manager("restricted")
    assert manager_of(NodeResourceTopology()) == Manager("none", False, DEFAULT_MOST_NODES)


def test_the_deprecated_policies_count_where_no_attribute_says_otherwise() -> None:
    old = NodeResourceTopology(topology_policies=("SingleNUMANodePodLevel", "None"))
    assert manager_of(old) == Manager(SINGLE, True)
    assert manager_of(NodeResourceTopology(topology_policies=("None",))) == Manager()
    newer = replace(old, attributes=(Attribute(name="topologyManagerPolicy", value="best-effort"),))
    assert manager_of(newer) == Manager("best-effort", True)


def table(*objects: NodeResourceTopology) -> ZoneTable:
    found = ZoneTable()
    found.refresh({one.metadata.name: one for one in objects}, {one.metadata.name: i for i, one in enumerate(objects)},
                  len(objects))  # fmt: skip
    return found


def test_zones_are_the_numa_nodes_in_the_order_of_their_numbers() -> None:
    def zone(name: str, cpu: str, kind: str = "Node") -> Zone:
        return Zone(name=name, type=kind, resources=(ZoneResource(name="cpu", allocatable=cpu, available=cpu),))

    zones = (zone("node-10", "1"), zone("node-2", "2"), zone("socket-0", "9"), zone("node-3", "9", "Socket"))
    found = table(replace(topology("n"), zones=zones))
    assert found.available["cpu"][:, 0].tolist() == [2000, 1000]


def test_an_object_without_zones_is_like_none() -> None:
    assert not table(topology("n")).any
    assert not table(topology("n")).single.any()


def test_the_reported_amounts_are_those_of_all_zones() -> None:
    found = table(
        topology("n", {"cpu": 8}, {"cpu": 8, "memory": 4}, used={0: {"cpu": 3}, 1: {"cpu": 1}}),
        topology("m", {"cpu": 1}),
    )
    assert found.reported["cpu"].tolist() == [4000, 0]
    assert found.reported["memory"].tolist() == [0, -1]


def test_an_invalid_amount_fits_no_pod_and_is_logged() -> None:
    odd = replace(
        topology("n", {"cpu": 8}),
        zones=(Zone(name="node-0", type="Node", resources=(ZoneResource(name="cpu", available="x"),)),),
    )
    with capture_logs() as logs:
        found = table(odd)
    assert found.available["cpu"][:, 0].tolist() == [0, -1]
    assert [(line["event"], line["zone"]) for line in logs] == [
        ("ignoring an invalid amount in a NodeResourceTopology", "node-0")
    ]


def test_a_table_follows_objects_that_change_and_go_and_rows_that_others_reuse() -> None:
    first, other = topology("a", {"cpu": 8}), topology("b", {"cpu": 2}, {"cpu": 2}, {"cpu": 2}, policy="none")
    found = table(first)
    assert found.refresh({"a": first}, {"a": 0}, 1) == []
    newer = topology("a", {"cpu": 8}, used={0: {"cpu": 1}})
    assert found.refresh({"a": newer, "b": other}, {"a": 0, "b": 3}, 4) == ["a", "b"]
    assert found.available["cpu"][:, [0, 3]].tolist() == [[7000, 2000], [-1, 2000], [-1, 2000]]
    assert found.single.tolist()[:4] == [True, False, False, False]
    assert found.refresh({"b": other}, {"b": 0}, 4) == ["b"]
    assert found.available["cpu"][:, [0, 3]].tolist() == [[2000, -1]] * 3
    assert found.object_of("a") is None
    assert found.refresh({}, {"b": 0}, 4) == []
    assert not found.any
