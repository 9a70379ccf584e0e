from __future__ import annotations

from typing import Any

import pytest

from session_scheduler.builtin.node_resources_fit import NodeResourcesFit as Fit
from session_scheduler.builtin.utilization_shape import UtilizationShapePoint, scores_of
from session_scheduler.config.parsing import validated
from session_scheduler.errors import InputError

PLUGIN = Fit(None)


def fit(**args: Any) -> Any:
    return Fit(validated(Fit.Arguments, args, "conf.yaml", "args"))


def test_nodes_without_enough_free_resources_are_rejected(world: Any) -> None:
    world.node("small", cpu="1")
    world.node("large", cpu="2")
    assert world.fitting(PLUGIN, world.pod({"cpu": "1001m"})) == ["large"]
    world.run(PLUGIN, "large", world.pod({"cpu": "1"}))
    assert world.fitting(PLUGIN, world.pod({"cpu": "1"})) == ["large", "small"]
    assert world.fitting(PLUGIN, world.pod({"cpu": "1001m"})) == []


def test_every_insufficient_resource_is_reported_in_kube_schedulers_words(world: Any) -> None:
    world.node("full", cpu="1", memory="1Gi", pods="0", example__gpu="1")
    world.node("busy", cpu="1", memory="9Gi")
    requests = {"example/gpu": "2", "memory": "2Gi", "ephemeral-storage": "1Gi", "cpu": "2"}
    assert world.reasons(PLUGIN, world.pod(requests), "full", "busy") == [
        [
            "Too many pods", "Insufficient cpu", "Insufficient memory", "Insufficient ephemeral-storage",
            "Insufficient example/gpu",
        ],
        ["Insufficient cpu", "Insufficient ephemeral-storage", "Insufficient example/gpu"],
    ]  # fmt: skip


def test_pods_without_requests_fit_on_an_overcommitted_node(world: Any) -> None:
    world.node("n", cpu="1")
    world.run(PLUGIN, "n", world.pod({"cpu": "1"}), 3)
    assert world.fitting(PLUGIN, world.pod()) == ["n"]
    assert world.fitting(PLUGIN, world.pod({"cpu": "0"})) == ["n"]
    assert world.fitting(PLUGIN, world.pod({"cpu": "1m"})) == []


def test_virtual_rows_count_how_many_more_pods_fit(world: Any) -> None:
    world.node("n", cpu="4", pods="7")
    world.run(PLUGIN, "n", world.pod({"cpu": "1"}))
    assert world.how_many_more(PLUGIN, world.pod({"cpu": "1"}), "n") == 3
    assert world.how_many_more(PLUGIN, world.pod({"cpu": "10m"}), "n") == 6


def test_ignored_extended_resources_are_not_compared(world: Any) -> None:
    world.node("n")
    pod = world.pod({"example.com/a": "1"})
    assert world.fitting(PLUGIN, pod) == []
    assert world.fitting(fit(ignoredResources=["example.com/a"]), pod) == ["n"]
    assert world.fitting(fit(ignoredResources=["example.com/b"]), pod) == []
    assert world.fitting(fit(ignoredResourceGroups=["example.com"]), pod) == ["n"]
    assert world.fitting(fit(ignoredResources=["cpu"]), world.pod({"cpu": "9"})) == []


def test_the_emptier_node_scores_higher_and_least_allocated_is_the_default(world: Any) -> None:
    world.node("half", cpu="4", memory="8Gi")
    world.node("empty", cpu="4", memory="8Gi")
    world.run(PLUGIN, "half", world.pod({"cpu": "2", "memory": "4Gi"}))
    pod = world.pod({"cpu": "1", "memory": "1Gi"})
    assert world.scores(PLUGIN, pod) == {"half": (25 + 37) // 2, "empty": (75 + 87) // 2}
    most = fit(scoringStrategy={"type": "MostAllocated"})
    assert world.scores(most, pod) == {"half": (75 + 62) // 2, "empty": (25 + 12) // 2}


def test_containers_without_requests_count_with_a_default_in_scores(world: Any) -> None:
    world.node("n", cpu="1", memory="1000Mi")
    assert world.scores(PLUGIN, world.pod()) == {"n": (90 + 80) // 2}
    world.run(PLUGIN, "n", world.pod(), 2)
    assert world.scores(PLUGIN, world.pod()) == {"n": (70 + 40) // 2}


def test_pod_level_requests_count_for_running_pods_only(world: Any) -> None:
    world.node("n", cpu="4", memory="1000Mi")
    pod = world.pod(resources={"requests": {"cpu": "2", "memory": "500Mi"}})
    assert world.scores(PLUGIN, pod) == {"n": (97 + 80) // 2}
    world.run(PLUGIN, "n", pod)
    assert world.scores(PLUGIN, pod) == {"n": (47 + 30) // 2}


def test_a_resource_that_a_node_lacks_does_not_count_there(world: Any) -> None:
    world.node("both", cpu="4", memory="8Gi")
    world.node("no-memory", cpu="4", memory="0")
    world.node("neither", cpu="0", memory="0")
    scores = world.scores(PLUGIN, world.pod({"cpu": "1", "memory": "4Gi"}))
    assert scores == {"both": (75 + 50) // 2, "no-memory": 75, "neither": 0}


def test_extended_resources_count_by_weight_if_the_pod_requests_them(world: Any) -> None:
    world.node("n", cpu="4", example__gpu="4")
    resources = [{"name": "cpu"}, {"name": "example/gpu", "weight": 3}]
    plugin = fit(scoringStrategy={"type": "MostAllocated", "resources": resources})
    assert world.scores(plugin, world.pod({"cpu": "1", "example/gpu": "2"})) == {"n": (25 + 3 * 50) // 4}
    assert world.scores(plugin, world.pod({"cpu": "1"})) == {"n": 25}


def ratio(*points: tuple[int, int], **more: Any) -> Any:
    shape = [{"utilization": utilization, "score": score} for utilization, score in points]
    strategy = {"type": "RequestedToCapacityRatio", "requestedToCapacityRatio": {"shape": shape}, **more}
    return fit(scoringStrategy=strategy)


EMPTIEST = ((0, 10), (100, 0))
BOTH = {"cpu": "3", "memory": "5000"}


# the tables of TestRequestedToCapacityRatioScoringStrategy and TestResourceBinPackingMultipleExtended, Kubernetes 1.36
@pytest.mark.parametrize(
    ("running", "requests", "scores"),
    [
        ((), {"cpu": "0", "memory": "0"}, {"small": 100, "large": 100}),
        ((), BOTH, {"small": 38, "large": 50}),
        (("small", "large"), {"cpu": "0", "memory": "0"}, {"small": 38, "large": 50}),
    ],
)
def test_a_shape_scores_nodes_as_in_kube_schedulers_table(
    world: Any, running: tuple[str, ...], requests: dict[str, str], scores: dict[str, int]
) -> None:
    world.node("small", cpu="4", memory="10000")
    world.node("large", cpu="6", memory="10000")
    for node in running:
        world.run(PLUGIN, node, world.pod(BOTH))
    assert world.scores(ratio(*EMPTIEST), world.pod(requests)) == scores


@pytest.mark.parametrize(
    ("running", "requests", "scores"),
    [
        ({}, {"intel.com/foo": "2", "intel.com/bar": "2"}, {"n1": 4, "n2": 3}),
        (
            {"intel.com/foo": "4", "intel.com/bar": "2"},
            {"intel.com/foo": "2", "intel.com/bar": "2"},
            {"n1": 4, "n2": 7},
        ),
        ({}, {"intel.com/foo": "4", "intel.com/bar": "2"}, {"n1": 5, "n2": 5}),
    ],
)
def test_weights_of_extended_resources_count_as_in_kube_schedulers_table(
    world: Any, running: dict[str, str], requests: dict[str, str], scores: dict[str, int]
) -> None:
    world.node("n1", **{"intel.com/foo": "8", "intel.com/bar": "4"})
    world.node("n2", **{"intel.com/foo": "4", "intel.com/bar": "8"})
    world.run(PLUGIN, "n2", world.pod(running))
    resources = [{"name": "intel.com/foo", "weight": 3}, {"name": "intel.com/bar", "weight": 5}]
    plugin = ratio((0, 0), (100, 1), resources=resources)
    assert world.scores(plugin, world.pod(requests)) == scores


# the tables of TestBrokenLinearFunction
@pytest.mark.parametrize(
    ("points", "scores"),
    [
        (((10, 1), (90, 9)), {0: 10, 9: 10, 10: 10, 15: 15, 20: 20, 89: 89, 90: 90, 100: 90}),
        (((0, 2), (40, 10), (100, 0)), {0: 20, 20: 60, 30: 80, 40: 100, 70: 50, 100: 0}),
        (((0, 2), (40, 2), (100, 2)), {0: 20, 20: 20, 100: 20}),
        (((50, 7),), {0: 70, 50: 70, 100: 70}),
        (((0, 10), (3, 0)), {0: 100, 1: 67, 2: 34, 3: 0}),
    ],
)
def test_a_shape_is_linear_between_its_points_and_constant_outside(
    points: tuple[tuple[int, int], ...], scores: dict[int, int]
) -> None:
    shape = [UtilizationShapePoint(utilization=utilization, score=score) for utilization, score in points]
    assert {utilization: int(scores_of(shape)[utilization]) for utilization in scores} == scores


def test_a_resource_with_score_0_does_not_count(world: Any) -> None:
    world.node("n", cpu="4", memory="10000")
    assert world.scores(ratio((0, 0), (50, 0), (100, 10)), world.pod({"cpu": "1", "memory": "7500"})) == {"n": 50}


SHAPE = "args.scoringStrategy.requestedToCapacityRatio"


@pytest.mark.parametrize(
    ("strategy", "line"),
    [
        ({"type": "RequestedToCapacityRatio"},
         f"conf.yaml: {SHAPE}: is missing; add it with its shape, or choose another type"),
        ({"requestedToCapacityRatio": {"shape": [{"utilization": 0, "score": 1}]}},
         f"conf.yaml: {SHAPE}: the type LeastAllocated does not use it; remove it, or choose the type "
         "RequestedToCapacityRatio"),
        ([], f"conf.yaml: {SHAPE}.shape: is []; list 1 or more entries"),
        ([(0, 11)], f"conf.yaml: {SHAPE}.shape[0].score: is 11; use 10 or less"),
        ([(-1, 0)], f"conf.yaml: {SHAPE}.shape[0].utilization: is -1; use 0 or more"),
        ([(0, 0), (101, 0)], f"conf.yaml: {SHAPE}.shape[1].utilization: is 101; use 100 or less"),
        ([(0, 0), (50, 5), (50, 9)],
         f"conf.yaml: {SHAPE}.shape[2].utilization: is 50; list the points by increasing utilization, without "
         "duplicates"),
    ],
)  # fmt: skip
def test_an_invalid_shape_is_rejected_with_its_field_and_the_remedy(strategy: Any, line: str) -> None:
    with pytest.raises(InputError) as caught:
        ratio(*strategy) if isinstance(strategy, list) else fit(scoringStrategy=strategy)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ({"scoringStrategy": {"type": "Spread"}}, "conf.yaml: args.scoringStrategy.type"),
        (
            {"scoringStrategy": {"resources": [{"name": "cpu", "weight": 0}]}},
            "args.scoringStrategy.resources[0].weight",
        ),
        ({"scoringStrategy": {"resources": []}}, "args.scoringStrategy.resources"),
        ({"ignoredResourceGroups": ["example.com/a"]}, "args.ignoredResourceGroups[0]"),
        ({"ignored": 1}, "args.ignored"),
    ],
)
def test_invalid_arguments_are_rejected_with_their_path(args: Any, line: str) -> None:
    with pytest.raises(InputError) as caught:
        fit(**args)
    assert line in str(caught.value)
