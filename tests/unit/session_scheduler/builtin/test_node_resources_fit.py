from __future__ import annotations

from typing import Any

import pytest

from session_scheduler.builtin.node_resources_fit import NodeResourcesFit as Fit
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
