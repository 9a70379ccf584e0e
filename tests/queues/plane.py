"""An API server with the definitions of Kueue's objects and of MasterQueues, that counts what is written to them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar

import yaml

from ..controlplane.harness import DEPLOY, RIGHTS, ControlPlane
from .programs import kueue_definitions

KUEUE = "kueue"
"""The user that Kueue's controller is."""
CONTROLLER = "system:serviceaccount:kube-system:fluence-master-queue"
"""The user that the controller of MasterQueues is: the account of deploy/options/master-queue.yaml, with its rights."""
KUEUE_API = "/apis/kueue.x-k8s.io/v1beta2"
MASTER_QUEUES = "/apis/vk.io/v1/masterqueues"
CLUSTER_QUEUES = f"{KUEUE_API}/clusterqueues"
FLAVORS = f"{KUEUE_API}/resourceflavors"
LOCAL_QUEUES = f"{KUEUE_API}/localqueues"
WORKLOADS = f"{KUEUE_API}/workloads"
JOBS = "/apis/batch/v1/jobs"
PODS = "/api/v1/pods"
NODES = "/api/v1/nodes"
_OPTION = DEPLOY / "options" / "master-queue.yaml"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_TAKEN = ("CustomResourceDefinition", *RIGHTS)
_CONVERTED = ("clusterqueues", "cohorts", "localqueues", "multikueueclusters", "workloads")
"""Kinds of Kueue whose versions differ: its process translates between them."""
_TAKING_IN = 10.0
"""Seconds for which the API server may refuse a kind whose definition was changed."""
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "Metadata",
            "verbs": ["create", "update", "patch", "delete", "deletecollection"],
            "resources": [{"group": "kueue.x-k8s.io"}, {"group": "vk.io"}],
        },
        {"level": "None"},
    ],
}


@dataclass(frozen=True)
class Write:
    """One write that the API server has answered."""

    user: str
    verb: str
    kind: str
    """The resource, as "clusterqueues", with "/status" where only that was written."""
    name: str
    status: int


class QueuesPlane(ControlPlane):
    """A control plane with all of Kueue's definitions; its objects are those of v1beta2 while no Kueue runs."""

    USERS: ClassVar[dict[str, str]] = {
        KUEUE: "system:masters",
        CONTROLLER: "system:serviceaccounts,system:serviceaccounts:kube-system",
    }

    def _reached(self) -> list[str]:
        policy = self._folder / "audit.yaml"
        policy.write_text(yaml.safe_dump(_AUDIT))
        audit = [f"--audit-policy-file={policy}", f"--audit-log-path={self._audit_log}"]
        return [*super()._reached(), *audit]

    def _prepare(self) -> None:
        super()._prepare()
        names = []
        for file in (*kueue_definitions(), _OPTION):
            for manifest in yaml.load_all(file.read_text(), Loader=yaml.CSafeLoader):
                if manifest["kind"] in _TAKEN:  # the tests run the controller themselves
                    self.create(manifest)
                if manifest["kind"] == "CustomResourceDefinition":
                    names.append(manifest["metadata"]["name"])
        for name in names:
            self.wait_for(f"{_CRDS}/{name}", _established)
        for path in (MASTER_QUEUES, CLUSTER_QUEUES, FLAVORS, LOCAL_QUEUES, WORKLOADS):
            self.wait_for(path, lambda answer: isinstance(answer, dict) and "items" in answer)

    def convert_by(self, url: str, certificate: str) -> None:
        """Have Kueue's process translate between its versions. `certificate`: PEM in base64."""
        client = {"url": url, "caBundle": certificate}
        conversion = {"strategy": "Webhook", "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]}}
        for kind in _CONVERTED:
            status, answer = self.request(
                "PATCH", f"{_CRDS}/{kind}.kueue.x-k8s.io", {"spec": {"conversion": conversion}}
            )
            assert status == HTTPStatus.OK, answer

    # ------------------------------------------------------------------ objects

    def add(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Create an object that may have a generateName; returns it. Unlike `create`, it is not checked strictly."""
        group, plural = manifest["apiVersion"], f"{manifest['kind'].lower()}s"
        namespace = manifest["metadata"].get("namespace")
        path = f"/apis/{group}" + (f"/namespaces/{namespace}" if namespace else "") + f"/{plural}"
        status, answer = self.request("POST", path, manifest)
        assert status == HTTPStatus.CREATED, answer
        created: dict[str, Any] = answer
        return created

    def items(self, path: str) -> dict[str, dict[str, Any]]:
        """All objects of a kind, in every namespace, by their names."""
        status, answer = self.request("GET", path)
        deadline = time.monotonic() + _TAKING_IN
        while status == HTTPStatus.TOO_MANY_REQUESTS and time.monotonic() < deadline:
            time.sleep(0.1)
            status, answer = self.request("GET", path)
        assert status == HTTPStatus.OK, answer
        return {item["metadata"]["name"]: item for item in answer["items"]}

    def item(self, path: str, name: str) -> dict[str, Any] | None:
        """One object of a kind without namespaces; None where there is none."""
        status, answer = self.request("GET", f"{path}/{name}")
        assert status in {HTTPStatus.OK, HTTPStatus.NOT_FOUND}, answer
        found: dict[str, Any] | None = answer if status == HTTPStatus.OK else None
        return found

    def until(
        self, path: str, accepted: Callable[[dict[str, dict[str, Any]]], bool], seconds: float = 30.0
    ) -> dict[str, dict[str, Any]]:
        """All objects of a kind by their names, once these are accepted. Raises TimeoutError with the last ones."""
        deadline = time.monotonic() + seconds
        while not accepted(found := self.items(path)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} after {seconds:g} s: {json.dumps(found, indent=1)}")
            time.sleep(0.05)
        return found

    def until_counted(self, queue: str, workloads: str, count: int) -> dict[str, Any]:
        """A ClusterQueue, once its status has so many Workloads, as "pendingWorkloads". Kueue writes the first status
        some time after the queue.
        """
        found = self.until(CLUSTER_QUEUES, lambda found: found[queue].get("status", {}).get(workloads) == count)
        return found[queue]

    def clear(self, seconds: float = 60.0) -> None:
        """Take MasterQueues, queues, jobs and nodes away, for the next test. Whoever keeps them is to have ended."""
        deadline = time.monotonic() + seconds
        for path in (MASTER_QUEUES, JOBS, PODS, WORKLOADS, LOCAL_QUEUES, CLUSTER_QUEUES, FLAVORS, NODES):
            while found := self.items(path):
                for item in found.values():
                    self._delete(path, item)
                assert time.monotonic() < deadline, f"{path}: {sorted(found)} do not go"
                time.sleep(0.02)

    def _delete(self, path: str, item: dict[str, Any]) -> None:
        meta = item["metadata"]
        if "namespace" in meta:
            head, _, kind = path.rpartition("/")
            path = f"{head}/namespaces/{meta['namespace']}/{kind}"
        self.request("DELETE", f"{path}/{meta['name']}?propagationPolicy=Background&gracePeriodSeconds=0")
        if meta.get("finalizers"):
            self.request("PATCH", f"{path}/{meta['name']}", {"metadata": {"finalizers": None}})

    # ------------------------------------------------------------------ what was written

    @property
    def _audit_log(self) -> Path:
        return self._folder / "audit.log"

    def writes(self) -> Writes:
        """What is written to Kueue's objects and MasterQueues from now on."""
        return Writes(self._audit_log)


class Writes:
    """The writes since it was made, as the API server's audit log has them: some milliseconds after their effect."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._from = log.stat().st_size if log.exists() else 0
        self._since = datetime.now(UTC)  # earlier writes may be logged later

    def all(self, user: str | None = None) -> list[Write]:
        """All of them, or one user's, in the order in which the API server received them."""
        if not self._log.exists():
            return []
        with self._log.open("rb") as log:
            log.seek(self._from)
            events = [json.loads(line) for line in log if line.endswith(b"\n")]
        found = [_write(event) for event in sorted(events, key=_received) if _received(event) >= self._since]
        return [one for one in found if user in (None, one.user)]

    def counted(self, user: str | None = None) -> Counter[tuple[str, str]]:
        """How many there were of each (kind, verb)."""
        return Counter((one.kind, one.verb) for one in self.all(user))


def _received(event: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(event["requestReceivedTimestamp"])


def _write(event: dict[str, Any]) -> Write:
    about = event["objectRef"]
    kind = about["resource"] + (f"/{about['subresource']}" if "subresource" in about else "")
    code = event["responseStatus"]["code"]
    return Write(event["user"]["username"], event["verb"], kind, about.get("name", ""), code)


def _established(answer: dict[str, Any]) -> bool:
    conditions = answer.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)
