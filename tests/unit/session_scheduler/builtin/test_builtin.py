from __future__ import annotations

import pytest

from session_scheduler.builtin import BUILTIN, DEFAULT_PLUGINS
from session_scheduler.hookspecs import Normalise, Scope
from session_scheduler.registry.validation import hook_calls

DECLARED = {
    "SchedulingGates": (None, None, None),
    "NodeUnschedulable": (Scope.STATIC, None, None),
    "NodeName": (Scope.STATIC, None, None),
    "TaintToleration": (Scope.STATIC, Scope.STATIC, Normalise.MAX_REVERSED),
    "NodeAffinity": (Scope.STATIC, Scope.STATIC, Normalise.MAX),
    "NodePorts": (Scope.NODE, None, None),
    "NodeResourcesFit": (Scope.NODE, Scope.NODE, Normalise.NONE),
    "DynamicResources": (Scope.ANY, Scope.ANY, Normalise.MAX),
    "NodeResourcesBalancedAllocation": (None, Scope.NODE, Normalise.NONE),
    "NodeDeclaredFeatures": (Scope.STATIC, None, None),
}


def test_weights_and_order_are_kube_schedulers() -> None:
    weights = dict(DEFAULT_PLUGINS)
    assert list(BUILTIN) == [*(name for name, _ in DEFAULT_PLUGINS), "GpuFragmentation", "NodeResourceTopologyMatch"]
    assert [name for name in BUILTIN if name in DECLARED] == list(DECLARED)
    assert {name: weights[name] for name in DECLARED if weights[name] != 1} == {
        "TaintToleration": 3, "NodeAffinity": 2, "DynamicResources": 2,
    }  # fmt: skip


@pytest.mark.parametrize("name", DECLARED)
def test_hooks_match_their_specification_and_declare_their_scopes(name: str) -> None:
    calls = hook_calls([(name, BUILTIN[name](None), None)]).plugins[0]
    filtering, scoring = calls.filter, calls.score
    assert (
        filtering.scope if filtering else None,
        scoring.scope if scoring else None,
        scoring.normalise if scoring else None,
    ) == DECLARED[name]
    assert (calls.reasons or calls.why) is not None or filtering is None
