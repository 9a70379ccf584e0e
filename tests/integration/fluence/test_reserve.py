"""Single pods: the core picks the node that the graph would have picked, and the plugin allocates there."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.tools.real_engine import embedded_only

from fluence_plugins.fluence.plugin import FluencePlugin

from .conftest import World, device, node, pod

POLICIES = ("firstnodex", "low", "high", "lonode", "hinode", "lonodex", "hinodex", "locality", "pack")


def cluster(seed: int) -> list[dict[str, Any]]:
    """Nodes of one or several sizes, and pods that fill most of them."""
    chance = random.Random(seed)
    sizes = chance.choice((("4",), ("2", "4", "8")))
    nodes = [node(f"n{index}", cpu=chance.choice(sizes)) for index in range(6)]
    return nodes + [pod(f"p{index}", {"cpu": chance.choice(("10m", "1", "2"))}) for index in range(16)]


@embedded_only  # only the embedded engine uses scores
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_pod_is_placed_where_the_graph_alone_would_place_it(
    policy: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.arguments["matchPolicy"] = policy
    for seed in range(6):
        quick = await world.place(*cluster(seed))
        with monkeypatch.context() as without:
            without.delattr(FluencePlugin, "reserve")
            slow = await world.place(*cluster(seed))
        assert [entry["node"] for entry in quick["pods"]] == [entry["node"] for entry in slow["pods"]]


async def test_with_the_policy_first_a_pod_is_placed_on_one_of_the_best_nodes(world: World) -> None:
    nodes = [node(f"n{index}", cpu="4") for index in range(3)]
    result = await world.place(*nodes, *(pod(f"p{index}", {"cpu": "1"}) for index in range(12)))
    assert [entry["node"] for entry in result["pods"]] == ["n2", "n1", "n0"] * 4


async def test_if_the_best_node_has_no_whole_core_left_the_graph_chooses(world: World) -> None:
    """Filters count millicores, the graph whole cores: by the filters alone, all pods would fit on the larger node."""
    world.arguments["cpuAccounting"] = "cores"
    many = [pod(f"p{index}", {"cpu": "10m"}) for index in range(9)]
    result = await world.place(node("large", cpu="8"), node("small", cpu="1"), *many)
    assert result["summary"]["scheduled"] == 9
    assert {entry["node"] for entry in result["pods"]} == {"large", "small"}


async def test_a_device_pod_is_matched_in_the_graph(world: World) -> None:
    await world.place(node("n1"), pod("q", device("qubit", 3)))
    assert world.pod("q")["backend"] == "aurora"
