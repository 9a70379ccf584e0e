"""A run of the bridge: a real API server with the real controllers, a real Slurm, and `fluence run` between them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml

from fluence_plugins.slurm_bridge.names import (
    FINALIZER,
    JOB,
    JOBID_LABEL,
    NODE_ANNOTATION,
    NODE_NAME_LABEL,
    SCHEDULER_NAME,
)

from ..controlplane.harness import ControlPlane
from ..controlplane.invariants import Manifest
from ..controlplane.scenarios_world import NEVER, Scenario
from ..controlplane.scheduler_process import UNTIL_HELPED, Settings
from .peer import CPUS, SlurmPeer
from .programs import NODES

DEPLOY = Path(__file__).parents[2] / "deploy"
TICK = 0.25


def give_rights(plane: ControlPlane) -> None:
    """What deploy/options/slurm-bridge.yaml lets the scheduler do beyond the rest."""
    for manifest in yaml.safe_load_all((DEPLOY / "options" / "slurm-bridge.yaml").read_text()):
        if manifest["kind"] in ("ClusterRole", "ClusterRoleBinding"):
            path = f"/apis/{manifest['apiVersion']}/{manifest['kind'].lower()}s"
            if plane.request("GET", f"{path}/{manifest['metadata']['name']}")[0] == HTTPStatus.NOT_FOUND:
                plane.create(manifest)


@dataclass
class BridgeWorld(Scenario):
    """One run; its nodes are `hosts` of Slurm, each with a name of its own in Kubernetes."""

    peer: SlurmPeer = field(kw_only=True)
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __enter__(self) -> BridgeWorld:
        args = {
            "url": self.peer.url, "tokenFile": str(self.peer.token_file), "tickSeconds": TICK, "nodes": False,
            "cluster": "tests", "timeoutSeconds": 5, **self.arguments,
        }  # fmt: skip
        plugins = [{"name": "fluence", "enabled": False}, {"name": "slurm-bridge", "args": args}]
        profile = {"schedulerName": SCHEDULER_NAME, "plugins": plugins}
        more = {**UNTIL_HELPED, "profiles": [profile]}
        self.settings = Settings(reconcile_seconds=NEVER, more=more)
        self._before = {job["job_id"] for job in self.peer.jobs()}
        super().__enter__()
        return self

    # ------------------------------------------------------------------ Slurm

    def add_hosts(self, count: int, cpu: int = CPUS, **more: Any) -> list[str]:
        """Nodes of Kubernetes that are nodes of Slurm, too; `more` as of `SlurmPeer.add_nodes`."""
        self.peer.add_nodes(*NODES[:count], **more)
        return [self.add_node(cpu=cpu, devices=0, labels={NODE_NAME_LABEL: name}) for name in NODES[:count]]

    def jobs(self, *states: str) -> list[dict[str, Any]]:
        """Slurm's jobs that have not ended, or are in one of these states."""
        wanted = set(states or ("PENDING", "RUNNING"))
        return [job for job in self.peer.jobs() if wanted & set(job["job_state"])]

    def jobs_of(self, pod: str) -> list[dict[str, Any]]:
        """The jobs that name a pod."""
        name = f"{self.namespace}/{pod}"
        return [job for job in self.jobs() if name in _pods(job)]

    def jobs_ever(self, pod: str) -> list[dict[str, Any]]:
        """The jobs that name a pod, also those that have ended a while ago."""
        states = ("PENDING", "RUNNING", "CANCELLED", "COMPLETED", "COMPLETING")
        named = f"{self.namespace}/{pod}"  # as a namespace of another cluster's may be, too
        return [job for job in self.jobs(*states) if named in _pods(job) and job["job_id"] not in self._before]

    def occupy_hosts(self, count: int) -> int:
        """Another user's job on so many hosts: its number, once it runs."""
        number = self.peer.submit(nodes=str(count), minimum_nodes=count, maximum_nodes=count, shared=["none"],
                                  required_nodes=list(NODES[:count]))  # fmt: skip
        self.until("another user's job", lambda: any(job["job_id"] == number for job in self.jobs("RUNNING")))
        return number

    # ------------------------------------------------------------------ Kubernetes

    def bridged(self, name: str, group: str | None = None, **spec: Any) -> Manifest:
        """A pod for Slurm to place."""
        return self.create_pod(name, group, schedulerName=SCHEDULER_NAME, **spec)

    def create_job(self, name: str, annotations: Mapping[str, str] | None = None, **spec: Any) -> None:
        """A Job for Slurm to place, of one pod unless `spec` says otherwise."""
        requests = {"cpu": "1", "memory": "100Mi"}
        container = {"name": "sleep", "image": "example.com/none", "resources": {"requests": requests}}
        template = {"spec": {"schedulerName": SCHEDULER_NAME, "restartPolicy": "Never", "containers": [container]}}
        said = {f"{JOB}{key}": value for key, value in (annotations or {}).items()}
        metadata = {"name": name, "namespace": self.namespace, "annotations": said}
        spec = {"completions": 1, "parallelism": 1, "template": template, **spec}
        self.plane.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})

    def create_bridged_gang(self, name: str, size: int) -> None:
        """A PodGroup and its pods, for Slurm to place."""
        self.create_gang(name, size, schedulerName=SCHEDULER_NAME)

    def begun_by_the_go_bridge(self, name: str, host: int) -> int:
        """A pod with the marks that slurm-bridge writes, and its job, which may have this host; the job's number."""
        number = self.peer.submit(
            name, nodes="1", minimum_nodes=1, maximum_nodes=1, shared=["none"], required_nodes=[NODES[host]],
            mcs_label="kubernetes", admin_comment=json.dumps({"pods": [f"{self.namespace}/{name}"]}),
        )  # fmt: skip
        self.bridged(name, device=False)
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
        marks = {"labels": {JOBID_LABEL: str(number)}, "finalizers": [FINALIZER]}
        assert self.plane.request("PATCH", path, {"metadata": marks})[0] == HTTPStatus.OK
        return number

    def annotate_job(self, name: str, key: str, value: str) -> None:
        """Write an annotation of a Job for Slurm."""
        path = f"/apis/batch/v1/namespaces/{self.namespace}/jobs/{name}"
        body = {"metadata": {"annotations": {f"{JOB}{key}": value}}}
        assert self.plane.request("PATCH", path, body)[0] == HTTPStatus.OK

    @staticmethod
    def label_of(pod: Manifest) -> str:
        """The number of the job that a pod names."""
        return str(pod["metadata"]["labels"][JOBID_LABEL])

    def pod_of(self, job: str) -> str:
        """The name of a Job's pod."""

        def made() -> str | None:
            found = [pod["metadata"]["name"] for pod in self.pods()
                     if any(owner["name"] == job for owner in pod["metadata"].get("ownerReferences", []))]  # fmt: skip
            return found[0] if found else None

        return self.until(f"a pod of Job {job}", made)

    def marks(self, pod: str) -> tuple[str | None, str | None, bool]:
        """The number of its job, the node in its annotation, and whether it has the finalizer."""
        metadata = self.pod(pod)["metadata"]
        return (
            metadata.get("labels", {}).get(JOBID_LABEL),
            metadata.get("annotations", {}).get(NODE_ANNOTATION),
            FINALIZER in metadata.get("finalizers", ()),
        )

    def wait_marks(self, pod: str, job: int) -> None:
        """Return once a pod names its job and its node and has the finalizer. The bridge repeats the label, maybe after
        the bind, if another write of the pod came first.
        """
        wanted = (str(job), self.node_of(pod), True)
        self.until(f"the marks {wanted} of {pod}", lambda: self.marks(pod) == wanted)

    def host_of(self, pod: str) -> str | None:
        """The name in Slurm of the node that a pod is on."""
        node = self.node_of(pod)
        if node is None:
            return None
        labels = self.plane.request("GET", f"/api/v1/nodes/{node}")[1]["metadata"]["labels"]
        return str(labels[NODE_NAME_LABEL])

    def wait_no_jobs(self, seconds: float = 30.0) -> None:
        """Return once Slurm has no job of ours any more."""
        self.until("the end of all jobs", lambda: not [job for job in self.jobs() if _pods(job)], seconds)

    def wait_gone(self, *pods: str, seconds: float = 30.0) -> None:
        """Return once these pods are not there any more."""
        gone = lambda: not set(pods) & {pod["metadata"]["name"] for pod in self.pods()}  # noqa: E731
        self.until(f"the end of {', '.join(pods)}", gone, seconds)

    def check_agrees(self) -> None:
        """Raise AssertionError unless each live pod has exactly one job, each job has pods, and, once its pods have
        their marks, places agree.
        """
        jobs = [job for job in self.jobs() if _pods(job)]
        named = [name for job in jobs for name in _pods(job)]
        assert len(named) == len(set(named)), f"a pod has two jobs: {named}"
        live = {f"{self.namespace}/{pod['metadata']['name']}": pod for pod in self.pods()
                if pod["status"].get("phase") not in ("Succeeded", "Failed")}  # fmt: skip
        assert set(named) == set(live), "jobs stand for the live pods, and for no others"
        for job in jobs:
            for name in _pods(job):
                self.wait_marks(live[name]["metadata"]["name"], job["job_id"])


def _pods(job: Mapping[str, Any]) -> list[str]:
    try:
        return list(json.loads(job["admin_comment"])["pods"])
    except (ValueError, KeyError, TypeError):
        return []


def with_arguments(settings: Settings, **arguments: Any) -> Settings:
    """These settings with other arguments of the plugin."""
    profile = dict(settings.more["profiles"][0])
    *others, plugin = profile["plugins"]
    plugins = [*others, {**plugin, "args": {**plugin["args"], **arguments}}]
    return replace(settings, more={**settings.more, "profiles": [{**profile, "plugins": plugins}]})
