"""An edit that changes very many trees at once, all of them held."""

from __future__ import annotations

import json
from unittest.mock import patch

import pytest

from fluence_plugins.fluence.graph.cluster_graph import HostResources
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.matching.jobspecs import device_jobspecs
from fluence_plugins.resources.config import ResourcesConfig, load_resources


def config(region: str, number: int) -> ResourcesConfig:
    trees = [
        {"type": "qdevice", "name": f"d{i}", "attributes": {"region": region}, "with": [{"type": "qpu", "count": 2}]}
        for i in range(number)
    ]
    return load_resources(json.dumps({"resources": trees}), "resources.yaml")


def held(number: int) -> LiveGraph:
    """One qpu of each of so many trees is held, and something of each host is others'."""
    live = LiveGraph(config("east", number), "first")
    live.set_hosts({f"n{i}": HostResources(f"n{i}", 16, 8000) for i in range(10)})
    for i in range(10):
        live.foreign.set(f"n{i}", (2, 500, 0, 0))
    for i in range(number):
        job = live.allocations.match(device_jobspecs(live.graph, "qpu", 1, {}, f"d{i}")[0].to_json())
        live.allocations.hold(f"u{i}", {job.jobid: job.placement})
    return live


def test_many_held_trees_do_not_change_one_by_one() -> None:
    """The matcher computes its orders again after each."""
    live = held(150)
    before = dict(live.holdings.shares)
    with patch.object(type(live.matcher), "remove_subgraph") as one:
        live.set_config(config("west", 150))
    assert not one.called
    assert live.holdings.shares == before
    assert live.holdings.missing == {}
    assert live.matcher.stat()["jobs"]["ALLOCATED"] == 160


@pytest.mark.parametrize("many", [1, 10_000])
def test_both_ways_hold_the_same_under_the_same_jobids(many: int) -> None:
    live = held(40)
    live.loaded.many_trees = many
    before = dict(live.holdings.shares)
    live.set_config(config("west", 39))
    assert list(live.holdings.missing) == ["u39"]
    live.set_config(config("south", 40))
    assert (live.holdings.shares, live.holdings.missing) == (before, {})
    assert live.matcher.stat()["jobs"]["ALLOCATED"] == 50
    assert live.foreign.held == {f"n{i}": True for i in range(10)}


def test_a_matcher_keeps_no_room_for_ever_for_what_is_gone() -> None:
    live = held(40)
    first, before = live.matcher, dict(live.holdings.shares)
    for number in range(400):
        live.set_hosts({"n0": HostResources("n0", 100 + number % 2, 8000)})
        if live.matcher is not first:
            break
    assert live.matcher is not first
    assert live.holdings.shares == before
    assert live.matcher.stat()["jobs"]["ALLOCATED"] == 40 + len(live.foreign.held)
