"""Hosts that change levels, appear and vanish while pods hold their resources and devices: nothing is lost."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from fluence_plugins.fluence.graph.accounting import PodShape
from fluence_plugins.fluence.graph.cluster_graph import HostResources
from fluence_plugins.fluence.graph.holdings import Share
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.placement import Placement
from fluence_plugins.fluence.matching.jobspecs import compute_jobspec_text, device_jobspecs
from fluence_plugins.resources.config import load_resources
from fluxion_cy import Busy, Unsatisfiable

from ...tools.examples import first

TREES = [
    "",
    "resources: [{type: fpga, name: f, count: 2, parent: h1}, {type: qpu, name: q}]",
    "resources: [{type: qpu, name: q, sharing: 2, parent: h0}, {type: fpga, name: f, count: 3, parent: h1}]",
]
STEPS = 60


def host(draw: random.Random, name: str) -> HostResources:
    levels = tuple((kind, draw.choice("12")) for kind in ("zone", "rack") if draw.random() < 0.8)
    return HostResources(name, cores=4, memory_mib=64, levels=levels)


def matched(live: LiveGraph, draw: random.Random) -> Share | None:
    """The allocation of a new pod: a core or two, and perhaps a device."""
    try:
        job = live.allocations.match(compute_jobspec_text(PodShape(draw.randint(1, 2), 8), 1))
    except (Busy, Unsatisfiable):
        return None
    share = {job.jobid: job.placement}
    kinds = sorted({node.type for node in live.graph.virtual.values()})
    if kinds and draw.random() < 0.5:
        for jobspec in device_jobspecs(live.graph, draw.choice(kinds), 1):
            try:
                device = live.allocations.match(jobspec.to_json())
            except (Busy, Unsatisfiable):
                continue
            share[device.jobid] = device.placement
            break
    return share


def size_of(part: Placement) -> int:
    """The cores and devices of a part."""
    return sum(len(host.cores) for host in part.hosts) + len(part.devices)


def check(live: LiveGraph, got: dict[str, int]) -> None:
    """Each pod has all its resources, allocated or missing, and misses only those of absent hosts."""
    for uid, number in got.items():
        held = list(live.holdings.shares.get(uid, {}).values())
        missing = [part for _, part in live.holdings.missing.get(uid, [])]
        assert sum(size_of(part) for part in (*held, *missing)) == number
        assert all(one.name in live.graph.host_ranks for part in held for one in part.hosts)
        assert all(one.name not in live.graph.host_ranks for part in missing for one in part.hosts)
    paths = {vertex.path for vertex in live.graph.builder}
    assert paths == {node["metadata"]["paths"]["containment"] for node in live.matcher.graph()["graph"]["nodes"]}
    for vertex in live.graph.builder:
        if vertex.type in ("zone", "rack"):
            assert live.graph.builder.children(vertex.path), f"{vertex.path} is empty"


@pytest.mark.parametrize("seed", first(range(25)))
def test_moving_hosts_loses_no_allocation(seed: int) -> None:
    draw = random.Random(seed)
    live = LiveGraph(load_resources(TREES[1], "r"), draw.choice(("first", "lonode", "high")))
    live.set_hosts({f"h{number}": host(draw, f"h{number}") for number in range(4)})
    got: dict[str, int] = {}
    for step in range(STEPS):
        what = draw.random()
        name = f"h{draw.randrange(5)}"
        if what < 0.4:
            share = matched(live, draw)
            if share is not None:
                live.allocations.hold(f"p{step}", share)
                got[f"p{step}"] = sum(size_of(part) for part in share.values())
        elif what < 0.55 and got:
            uid = draw.choice(sorted(got))
            del got[uid]
            live.allocations.free(uid)
        elif what < 0.65:
            live.set_hosts({name: None})
        elif what < 0.9:
            live.set_hosts({name: host(draw, name)})
        elif draw.random() < 0.5 and name in live.graph.host_ranks:
            live.set_hosts({name: replace(host(draw, name), memory_mib=draw.choice((64, 128)))})
        else:
            live.set_config(load_resources(draw.choice(TREES), "r"))
        check(live, got)
    for uid in list(got):
        live.allocations.free(uid)
    assert live.matcher.find("sched-now=allocated") is None
