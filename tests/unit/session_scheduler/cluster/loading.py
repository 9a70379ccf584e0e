"""Loads manifests that tests write inline."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from session_scheduler.cluster.errors import ManifestError
from session_scheduler.cluster.manifests import LoadedManifests, load_manifests


def load(*documents: str | dict[str, Any]) -> LoadedManifests:
    """What these documents hold, read from standard input as one YAML text (JSON is YAML)."""
    texts = [d if isinstance(d, str) else json.dumps(d) for d in documents]
    return load_manifests(["-"], io.BytesIO("\n---\n".join(texts).encode()))


def refusal(*documents: str | dict[str, Any]) -> str:
    """Why these documents are refused: one line."""
    with pytest.raises(ManifestError) as raised:
        load(*documents)
    text = str(raised.value)
    assert text.isprintable()
    return text


def pod(name: str = "p", *, spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """A pod's manifest: `spec`, and a container where it has none."""
    spec = {"containers": [{"name": "c"}], **(spec or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


def container(**fields: Any) -> dict[str, Any]:
    """A pod's spec with one container."""
    return {"containers": [{"name": "c", "image": "i", **fields}]}


def node(name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A node's manifest."""
    metadata = {"name": name, "labels": labels or {}}
    capacity = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": {"capacity": capacity}}


def workload(kind: str, spec: dict[str, Any], name: str = "w", **fields: Any) -> dict[str, Any]:
    """A workload object's manifest."""
    groups = {"Job": "batch/v1", "CronJob": "batch/v1", "JobSet": "jobset.x-k8s.io/v1alpha2",
              "ReplicationController": "v1", "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1"}  # fmt: skip
    metadata = {"name": name, **fields.pop("metadata", {})}
    return {"apiVersion": groups.get(kind, "apps/v1"), "kind": kind, "metadata": metadata, "spec": spec, **fields}


def template(labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod template."""
    return {"metadata": {"labels": labels or {"app": "w"}}, "spec": {"containers": [{"name": "c"}], **spec}}


def selecting(**fields: Any) -> dict[str, Any]:
    """A spec with a template and the selector of its labels."""
    return {"selector": {"matchLabels": {"app": "w"}}, "template": template(), **fields}
