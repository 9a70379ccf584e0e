"""Constraints that no enabled plugin evaluates: one line for each."""

from __future__ import annotations

import msgspec
import pytest

from session_scheduler.framework.coverage import ASKS_FOR, unevaluated
from session_scheduler.model.objects import Pod

ASKING: dict[str, dict[str, object]] = {
    "InterPodAffinity": {"affinity": {"podAntiAffinity": {}}},
    "PodTopologySpread": {"topologySpreadConstraints": [{"maxSkew": 1}]},
    "VolumeBinding": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
    "DynamicResources": {"resourceClaims": [{"name": "c"}]},
}


def pod(spec: dict[str, object]) -> Pod:
    return msgspec.convert({"kind": "Pod", "metadata": {"name": "p"}, "spec": spec}, Pod)


@pytest.mark.parametrize("plugin", sorted(ASKS_FOR))
def test_constraints_that_no_plugin_evaluates_are_reported_with_field_and_count(plugin: str) -> None:
    pods = [pod(ASKING[plugin]), pod(ASKING[plugin]), pod({})]
    (line,) = unevaluated(pods, ())
    field = ASKS_FOR[plugin][0]
    assert line == f"2 pods have {field}, which no enabled plugin evaluates: the profile has no plugin {plugin}"
    assert unevaluated(pods, (plugin,)) == []
