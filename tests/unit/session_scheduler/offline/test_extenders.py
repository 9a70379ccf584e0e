"""Extenders in offline commands: they are not called, and the resources that the scheduler ignores are not counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from session_scheduler.cli import main

MANIFESTS = """
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {allocatable: {cpu: "2", memory: 8Gi, pods: "10"}}
---
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: default}
spec:
  schedulerName: fluence
  containers: [{name: c, image: i, resources: {limits: {example.com/licence: 1}}}]
"""
CONFIG = """
apiVersion: fluence.flux-framework.org/v1alpha1
kind: SchedulerConfiguration
profiles: [{plugins: [{name: fluence, enabled: false}]}]
extenders:
  - urlPrefix: http://127.0.0.1:1
    filterVerb: filter
    managedResources: [{name: example.com/licence, ignoredByScheduler: IGNORED}]
"""


@pytest.mark.parametrize(("ignored", "node"), [("true", "n1"), ("false", None)])
def test_simulate_calls_no_extender_reports_that_and_ignores_its_resources(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ignored: str, node: str | None
) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG.replace("IGNORED", ignored))
    (tmp_path / "cluster.yaml").write_text(MANIFESTS)
    status = main(["simulate", str(tmp_path / "cluster.yaml"), "--config", str(tmp_path / "config.yaml"), "-o", "json"])
    out, err = capsys.readouterr()
    assert json.loads(out)["pods"][0]["node"] == node
    assert status == (0 if node else 1)
    assert "the extenders in the configuration are not called: they may reject nodes that fit in this simulation" in err
