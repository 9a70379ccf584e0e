"""The example of remote pools as queues, as its page has it: its manifests, its pool's command, and what is shown."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from .nats_peer import NatsServer
from .plane import CONTROLLER, LOCAL_QUEUES, QueuesPlane
from .test_document import SUBJECT, running, virtual_node

FOLDER = Path(__file__).parents[2] / "examples" / "13-master-queue"
POOL = "podman-florence"


def manifest(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "apply" / name).read_text())
    return found


def fluence(*words: str, **environment: str) -> str:
    """What a command prints."""
    command = [sys.executable, "-m", "session_scheduler.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, **environment})  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def publish(server: NatsServer) -> None:
    """The page's command, for one message."""
    text = (FOLDER / "README.md").read_text().replace("\\\n", "")
    (command,) = re.findall(r"^\$ fluence (pool publish .*)$", text, re.MULTILINE)
    fluence(*shlex.split(command), "--once", FLUENCE_NATS_SERVERS=server.url)


def bound(pods: dict[str, Any]) -> bool:
    return [pod["spec"].get("nodeName") for pod in pods["items"]] == ["interlink"]


def test_the_job_of_the_example_runs_where_its_pool_has_room(
    kueue_plane: QueuesPlane, nats: NatsServer, tmp_path: Path
) -> None:
    virtual_node(kueue_plane)
    master = manifest("masterqueue.yaml")
    master["spec"]["flavors"][0]["natsFlavor"]["natsConnector"] = nats.url
    kueue_plane.create(master)
    annotated = manifest("namespace.yaml")["metadata"]
    kueue_plane.request("PATCH", "/api/v1/namespaces/default", {"metadata": annotated})
    with running(kueue_plane, tmp_path):
        nats.wait_subscribed(f"{SUBJECT}.*")
        kueue_plane.until(LOCAL_QUEUES, lambda found: "gr1" in found)
        kueue_plane.add(manifest("job.yaml"))
        kueue_plane.until_counted("group1", "pendingWorkloads", 1)
        publish(nats)
        kueue_plane.wait_for("/api/v1/namespaces/default/pods", bound)
        kueue_plane.until_counted("group1", "admittedWorkloads", 1)
        access = str(kueue_plane.kubeconfig(CONTROLLER))
        (shown,) = json.loads(fluence("pool", "list", "--kubeconfig", access, "-o", "json"))["masterQueues"]
    kueue_plane.request("PATCH", "/api/v1/namespaces/default", {"metadata": {"annotations": None}})
    (pool,) = shown["pools"]
    assert (shown["ready"], pool["pool"], pool["state"]) == (True, POOL, "Active")
    assert pool["resources"]["pods"] == {"quota": "10", "used": "1", "lent": "1"}
