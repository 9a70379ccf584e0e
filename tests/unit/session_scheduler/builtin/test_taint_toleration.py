from __future__ import annotations

from typing import Any

import pytest

from session_scheduler.builtin import BUILTIN

PLUGIN = BUILTIN["TaintToleration"](None)


def taint(key: str, effect: str, value: str = "") -> dict[str, str]:
    return {"key": key, "value": value, "effect": effect}


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "k", "operator": "Equal", "value": "5", "effect": "NoSchedule"}, True),
        ({"key": "k", "value": "5"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"value": "5"}, True),
        ({"key": "k", "value": "6"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "k", "operator": "Lt", "value": "6"}, False),
        ({"key": "k", "operator": "Gt", "value": "4"}, False),
        ({"key": "k", "operator": "Odd", "value": "5"}, False),
    ],
)
def test_a_toleration_matches_a_taint_by_key_value_and_effect(world: Any, toleration: Any, tolerated: bool) -> None:
    world.node("n", taints=[taint("k", "NoSchedule", "5")])
    assert world.fitting(PLUGIN, world.pod(tolerations=[toleration])) == (["n"] if tolerated else [])


def test_noschedule_and_noexecute_reject_and_prefernoschedule_does_not(world: Any) -> None:
    for effect in ("NoSchedule", "NoExecute", "PreferNoSchedule"):
        world.node(effect, taints=[taint("k", effect)])
    assert world.fitting(PLUGIN, world.pod()) == ["PreferNoSchedule"]
    assert world.reasons(PLUGIN, world.pod(), "NoExecute") == [["node(s) had untolerated taint(s)"]]


def test_every_untolerated_prefernoschedule_taint_counts(world: Any) -> None:
    world.node("none")
    world.node("two", taints=[taint("a", "PreferNoSchedule"), taint("b", "PreferNoSchedule")])
    world.node("hard", taints=[taint("a", "NoSchedule")])
    assert world.scores(PLUGIN, world.pod()) == {"none": 0, "two": 2, "hard": 0}
    assert world.scores(PLUGIN, world.pod(tolerations=[{"key": "a", "operator": "Exists"}]))["two"] == 1
    only_hard = [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}]
    assert world.scores(PLUGIN, world.pod(tolerations=only_hard))["two"] == 2
