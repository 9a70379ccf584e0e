"""Loads inline manifests."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from session_scheduler.cluster.errors import ManifestError
from session_scheduler.cluster.manifests import LoadedManifests, load_manifests


def load(*documents: str | dict[str, Any]) -> LoadedManifests:
    """Load these documents from standard input, as one YAML text (JSON is YAML)."""
    texts = [d if isinstance(d, str) else json.dumps(d) for d in documents]
    return load_manifests(["-"], io.BytesIO("\n---\n".join(texts).encode()))


def refusal(*documents: str | dict[str, Any]) -> str:
    """Return the error for these documents: one line."""
    with pytest.raises(ManifestError) as raised:
        load(*documents)
    text = str(raised.value)
    assert text.isprintable()
    return text


def pod(name: str = "p", *, spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """Return a pod's manifest with this spec; by default with one container."""
    spec = {"containers": [{"name": "c"}], **(spec or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


def container(**fields: Any) -> dict[str, Any]:
    """Return a pod's spec with one container."""
    return {"containers": [{"name": "c", "image": "i", **fields}]}


def node(name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a node's manifest."""
    metadata = {"name": name, "labels": labels or {}}
    capacity = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": {"capacity": capacity}}


def workload(kind: str, spec: dict[str, Any], name: str = "w", **fields: Any) -> dict[str, Any]:
    """Return a workload's manifest."""
    groups = {"Job": "batch/v1", "CronJob": "batch/v1", "JobSet": "jobset.x-k8s.io/v1alpha2",
              "ReplicationController": "v1", "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1"}  # fmt: skip
    metadata = {"name": name, **fields.pop("metadata", {})}
    return {"apiVersion": groups.get(kind, "apps/v1"), "kind": kind, "metadata": metadata, "spec": spec, **fields}


def template(labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a pod template."""
    return {"metadata": {"labels": labels or {"app": "w"}}, "spec": {"containers": [{"name": "c"}], **spec}}


def selecting(**fields: Any) -> dict[str, Any]:
    """Return a spec with a template, and a selector of the template's labels."""
    return {"selector": {"matchLabels": {"app": "w"}}, "template": template(), **fields}
