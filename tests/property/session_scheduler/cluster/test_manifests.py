"""Random manifests are loaded or rejected with an error."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from session_scheduler.cluster.field_validation import FieldValidation
from session_scheduler.cluster.manifests import load_manifests
from session_scheduler.errors import InputError

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
    st.sampled_from([FieldValidation.STRICT, FieldValidation.IGNORE]),
)
def test_any_manifest_is_loaded_or_rejected_with_errors_of_one_line(
    kind: str, fields: dict[str, Any], validate: FieldValidation
) -> None:
    versions = {"Deployment": "apps/v1", "DaemonSet": "apps/v1", "Job": "batch/v1",
                "PodGroup": "scheduling.k8s.io/v1alpha2"}  # fmt: skip
    manifest = {"metadata": {"name": "x"}, **fields, "kind": kind, "apiVersion": versions.get(kind, "v1")}
    problems: Sequence[str] = ()
    try:
        load_manifests(["-"], io.BytesIO(json.dumps(manifest).encode()), validate=validate)
    except InputError as error:
        problems = error.messages
    assert all(problem.startswith("<stdin>: ") and problem.isprintable() for problem in problems)
    assert validate is FieldValidation.STRICT or len(problems) <= 1
