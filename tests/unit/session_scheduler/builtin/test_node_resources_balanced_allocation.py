from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest

from session_scheduler.builtin.node_resources_balanced_allocation import NodeResourcesBalancedAllocation as Balanced
from session_scheduler.config.parsing import validated
from session_scheduler.errors import InputError
from session_scheduler.hookspecs import SKIP

PLUGIN = Balanced(None)


def balanced(*names: str) -> Any:
    return Balanced(validated(Balanced.Arguments, {"resources": [{"name": name} for name in names]}, "f"))


def evenness(*used: Fraction) -> int:
    """100 minus the standard deviation in percent, cut to an integer."""
    shares = [min(share, Fraction(1)) for share in used]
    mean = sum(shares) / len(shares)
    return int(100 * (1 - math.sqrt(sum((share - mean) ** 2 for share in shares) / len(shares))))


def test_a_pod_that_uses_a_node_evenly_changes_nothing(world: Any) -> None:
    world.node("n", cpu="4", memory="8Gi")
    assert world.scores(PLUGIN, world.pod({"cpu": "1", "memory": "2Gi"})) == {"n": 75}


def test_a_worse_balance_lowers_the_score_and_a_better_one_raises_it(world: Any) -> None:
    world.node("even", cpu="4", memory="8Gi")
    world.node("uneven", cpu="4", memory="8Gi")
    world.run(PLUGIN, "uneven", world.pod({"memory": "8Gi"}))
    pod = world.pod({"cpu": "4"})
    down = 50 + (50 + evenness(Fraction(1), Fraction(0)) - 100) // 2
    up = 50 + (50 + 100 - evenness(Fraction(0), Fraction(1))) // 2
    assert world.scores(PLUGIN, pod) == {"even": down, "uneven": up} == {"even": 50, "uneven": 100}


def test_usage_above_the_capacity_counts_as_full(world: Any) -> None:
    world.node("n", cpu="1", memory="8Gi")
    world.run(PLUGIN, "n", world.pod({"cpu": "5", "memory": "8Gi"}))
    assert world.scores(PLUGIN, world.pod({"cpu": "1"})) == {"n": 75}


def test_a_node_with_one_of_the_resources_is_always_balanced(world: Any) -> None:
    world.node("n", cpu="4", memory="0")
    world.node("m", cpu="4", memory="8Gi")
    assert world.scores(PLUGIN, world.pod({"cpu": "2"})) == {"n": 75, "m": 50 + (50 + 75 - 100) // 2}


def test_the_deviation_of_three_resources_is_from_their_mean(world: Any) -> None:
    world.node("three", cpu="4", memory="8Gi", example__gpu="4")
    world.node("two", cpu="4", memory="8Gi")
    plugin = balanced("cpu", "memory", "example/gpu")
    shares = (Fraction(1, 4), Fraction(1, 2), Fraction(1))
    expected = {
        "three": 50 + (50 + evenness(*shares) - 100) // 2,
        "two": 50 + (50 + evenness(*shares[:2]) - 100) // 2,
    }
    assert world.scores(plugin, world.pod({"cpu": "1", "memory": "4Gi", "example/gpu": "4"})) == expected


def test_extended_resources_that_the_pod_does_not_request_do_not_count(world: Any) -> None:
    world.node("n", cpu="4", memory="8Gi", example__gpu="4")
    pod = world.pod({"cpu": "3", "memory": "1Gi"})
    assert world.scores(balanced("cpu", "memory", "example/gpu"), pod) == world.scores(PLUGIN, pod)


@pytest.mark.parametrize("requests", [{}, {"cpu": "0"}, {"example/gpu": "1"}])
def test_pods_that_request_none_of_the_resources_are_skipped(world: Any, requests: Any) -> None:
    assert world.prepared(PLUGIN, world.pod(requests)) is SKIP


@pytest.mark.parametrize(
    ("resources", "line"),
    [
        ([{"name": "cpu", "weight": 2}], "resources[0].weight"),
        ([{"name": "cpu"}, {"name": "cpu"}], "resources[1].name"),
    ],
)
def test_invalid_arguments_are_rejected_with_their_path(resources: Any, line: str) -> None:
    with pytest.raises(InputError) as caught:
        validated(Balanced.Arguments, {"resources": resources}, "conf.yaml", "args")
    assert f"conf.yaml: args.{line}" in str(caught.value)


def test_two_of_three_resources_are_rounded_like_two(world: Any) -> None:
    world.node("n", cpu="25", memory="25", example__gpu="0")
    pod = world.pod({"cpu": "1", "memory": "18", "example/gpu": "1"})
    assert world.scores(balanced("cpu", "memory", "example/gpu"), pod) == {"n": 50 + (50 + 66 - 100) // 2}
