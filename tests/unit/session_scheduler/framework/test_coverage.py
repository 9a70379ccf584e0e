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
def test_what_no_plugin_judges_is_said_with_its_field_and_count(plugin: str) -> None:
    pods = [pod(ASKING[plugin]), pod(ASKING[plugin]), pod({})]
    (line,) = unevaluated(pods, ())
    assert line.startswith("2 pods have spec.")
    assert line.endswith(f"no plugin {plugin}")
    assert unevaluated(pods, (plugin,)) == []
