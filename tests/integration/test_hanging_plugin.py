"""A plugin that never answers, through the command: the reason of its pod names it, and the other pods are placed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
import time

from session_scheduler import hookimpl


class Hanging:
    api_version = "2"
    name = "hanging"

    def __init__(self, arguments):
        pass

    @hookimpl
    def on_session_open(self, session):
        session.add_predicate(self.check)

    def check(self, task, group, node):
        if task.name == "loops":
            while True:
                pass
        if task.name == "pauses":
            time.sleep(3600)
"""
CONFIG = """
apiVersion: fluence.flux-framework.org/v1alpha1
kind: SchedulerConfiguration
hookSeconds: 0.5
profiles: [{plugins: [{name: hanging}]}]
"""
POD = {"resources": {"requests": {"cpu": "1"}}, "name": "c"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A distribution with the plugin, as installed, a configuration that names it, and a cluster."""
    (tmp_path / "hanging.py").write_text(MODULE)
    info = tmp_path / "hanging-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[session_scheduler.plugins]\nhanging = hanging:Hanging\n")
    (tmp_path / "config.yaml").write_text(CONFIG)
    size = {"cpu": "8", "memory": "8Gi", "pods": "110"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {"allocatable": size}}
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
         "spec": {"schedulerName": "fluence", "containers": [POD]}}
        for name in ("first", "loops", "pauses", "z-last")
    ]  # fmt: skip
    (tmp_path / "cluster.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node, *pods]}))
    return tmp_path


def test_simulate_names_the_hanging_plugin_and_places_the_other_pods(folder: Path) -> None:
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    words = ["simulate", str(folder / "cluster.json"), "--config", str(folder / "config.yaml"), "-o", "json"]
    answer = subprocess.run(
        [sys.executable, "-m", "session_scheduler.cli", *words],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert answer.returncode == 1, answer.stderr
    pods = {pod["name"]: pod for pod in json.loads(answer.stdout)["pods"]}
    assert {name for name, pod in pods.items() if pod["node"]} == {"first", "z-last"}
    for name in ("loops", "pauses"):
        assert pods[name]["reason"] == "plugin hanging failed in predicate: no answer within 0.5 s"
    assert "Traceback" not in answer.stderr
