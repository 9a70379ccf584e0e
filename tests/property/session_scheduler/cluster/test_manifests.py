"""Random manifests are loaded or rejected with an error."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from session_scheduler.cluster.errors import ManifestError

from ....unit.session_scheduler.cluster.loading import load

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["In", "a", "1Gi", "x y"])
_KEYS = st.sampled_from(
    ["containers", "resources", "requests", "cpu", "affinity", "nodeAffinity", "podAffinity", "tolerations", "key",
     "operator", "values", "metadata", "name", "labels", "nodeSelector", REQUIRED, PREFERRED, "nodeSelectorTerms",
     "topologySpreadConstraints", "labelSelector", "matchLabels", "matchExpressions", "template", "selector", "spec",
     "replicas", "schedulingPolicy", "gang", "minCount", "status", "allocatable", "taints", "ports", "hostPort"]
)  # fmt: skip
_TREES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_KEYS, inner, max_size=3), max_leaves=12
)


@given(
    st.sampled_from(["Pod", "Node", "PodGroup", "Deployment", "Job", "DaemonSet"]),
    st.dictionaries(_KEYS, _TREES, max_size=4),
)
def test_any_manifest_is_loaded_or_rejected_with_a_one_line_error(kind: str, fields: dict[str, Any]) -> None:
    versions = {"Deployment": "apps/v1", "DaemonSet": "apps/v1", "Job": "batch/v1",
                "PodGroup": "scheduling.k8s.io/v1alpha2"}  # fmt: skip
    manifest = {"metadata": {"name": "x"}, **fields, "kind": kind, "apiVersion": versions.get(kind, "v1")}
    problem = None
    try:
        load(manifest)
    except ManifestError as error:
        problem = str(error)
    assert problem is None or (problem.startswith("<stdin>: ") and problem.isprintable())
