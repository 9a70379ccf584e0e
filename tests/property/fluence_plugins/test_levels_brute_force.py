"""Groups with constraints on levels, on small random clusters, against every possible placement."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.tools.real_engine import engine as engine

from session_scheduler.config.settings import PluginConfig, Profile, SchedulerConfig
from session_scheduler.offline.simulate import place_all
from session_scheduler.offline.state import open_state, read_state

from ...tools.examples import first

LABELS = {"zone": "example.com/zone", "rack": "example.com/rack"}
PREFIX = "fluence.flux-framework.org/"
CLUSTERS = 60


def cluster(draw: random.Random, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Nodes of two zones with racks of the same names; some nodes have no labels."""
    nodes = []
    for number in range(draw.randint(2, 7)):
        labels = {label: draw.choice("ab") for label in LABELS.values() if draw.random() < 0.9}
        allocatable = {"cpu": str(draw.choice(sizes)), "memory": "8Gi", "pods": "110"}
        nodes.append({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{number}", "labels": labels},
                      "status": {"allocatable": allocatable}})  # fmt: skip
    return nodes


def group(cpus: Sequence[int], **annotations: str) -> list[dict[str, Any]]:
    marks = {PREFIX + key.replace("_", "-"): value for key, value in annotations.items()}
    found: list[dict[str, Any]] = [{
        "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": "g", "annotations": marks},
        "spec": {"schedulingPolicy": {"gang": {"minCount": len(cpus)}}},
    }]  # fmt: skip
    for number, cpu in enumerate(cpus):
        container = {"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}
        spec = {"schedulerName": "fluence", "schedulingGroup": {"podGroupName": "g"}, "containers": [container]}
        found.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{number}"}, "spec": spec})
    return found


def placed(folder: Path, objects: list[dict[str, Any]], policy: str) -> list[str | None]:
    """The node of each pod."""
    arguments = {
        "topology": [{"type": kind, "label": label} for kind, label in LABELS.items()],
        "resourcesText": "", "matchPolicy": policy,
    }  # fmt: skip
    config = SchedulerConfig(profiles=(Profile(plugins=(PluginConfig(name="fluence", args=arguments),)),))
    file = folder / "objects.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    async def run() -> dict[str, Any]:
        return await place_all(await open_state(await read_state([str(file)]), config))

    return [pod["node"] for pod in asyncio.run(run())["pods"]]


def vertices(nodes: list[dict[str, Any]], kind: str) -> dict[str, tuple[str | None, ...]]:
    """The vertex of a level for each node, by all its levels; nodes outside the level are left out."""
    found = {}
    for node in nodes:
        labels = node["metadata"]["labels"]
        if LABELS[kind] in labels:
            above = (labels.get(LABELS["zone"]),) if kind == "rack" else ()
            found[node["metadata"]["name"]] = (*above, labels[LABELS[kind]])
    return found


def cores(nodes: list[dict[str, Any]]) -> dict[str, int]:
    return {node["metadata"]["name"]: int(node["status"]["allocatable"]["cpu"]) for node in nodes}


def fits(cpus: Sequence[int], free: Sequence[int]) -> bool:
    """Whether all pods can be packed."""

    @cache
    def rest(left: tuple[int, ...], free: tuple[int, ...]) -> bool:
        if not left:
            return True
        others = (
            tuple(sorted((*free[:at], size - left[0], *free[at + 1 :])))
            for at, size in enumerate(free)
            if size >= left[0] and size not in free[:at]
        )
        return any(rest(left[1:], after) for after in others)

    return rest(tuple(sorted(cpus, reverse=True)), tuple(sorted(free)))


@pytest.mark.parametrize("seed", first(range(CLUSTERS)))
def test_a_gang_is_placed_in_one_vertex_exactly_if_it_fits_one(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    nodes = cluster(draw, (1, 2, 3, 4))
    cpus = [draw.choice((1, 2, 3)[: draw.randint(1, 3)]) for _ in range(draw.randint(2, 6))]
    kind = draw.choice(("rack", "zone"))
    policy = draw.choice(("first", "lonode", "low", "pack"))
    on = placed(tmp_path, [*nodes, *group(cpus, within=kind)], policy)
    of, free = vertices(nodes, kind), cores(nodes)
    having_room = [
        vertex for vertex in set(of.values()) if fits(cpus, [free[name] for name, at in of.items() if at == vertex])
    ]
    if not having_room:
        assert on == [None] * len(cpus)
        return
    assert None not in on
    assert len({of[name] for name in on if name}) == 1
    used: Counter[str] = Counter()
    for name, cpu in zip(on, cpus, strict=True):
        used[name or ""] += cpu
    assert all(used[name] <= free[name] for name in used)


@pytest.mark.parametrize("seed", first(range(CLUSTERS)))
def test_a_gang_is_spread_as_evenly_as_the_vertices_allow_or_refused(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    nodes = cluster(draw, (1, 2, 3, 6))
    count, over = draw.randint(2, 7), draw.randint(1, 4)
    tiny = draw.random() < 0.3
    """The graph counts whole cores, so it has less capacity than the columns."""
    objects = [*nodes, *group([1] * count, spread_over=f"rack={over}")]
    if tiny:
        for one in objects:
            if one["kind"] == "Pod":
                one["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "10m"
    on = placed(tmp_path, objects, draw.choice(("first", "lonode", "pack")))
    of, free = vertices(nodes, "rack"), cores(nodes)
    room: Counter[tuple[str | None, ...]] = Counter()
    for name, vertex in of.items():
        room[vertex] += free[name]
    wanted = min(over, count)
    if len(room) < wanted or sum(room.values()) < count:
        assert on == [None] * count
        return
    assert None not in on
    counts = Counter(of[name] for name in on if name)
    assert len(counts) >= wanted
    assert all(counts[vertex] <= room[vertex] for vertex in counts)
    fewest = min(counts.values())
    for number in counts.values():
        less = [other for other in counts if counts[other] < number - 1]
        assert all(counts[other] == room[other] for other in less), "uneven only if the others are full"
    assert fewest >= 1
