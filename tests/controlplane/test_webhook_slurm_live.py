"""The handler `slurm-bridge` on a real API server, under the configuration of deploy/options/slurm-bridge.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from fluence_plugins.slurm_bridge.names import FINALIZER, GRES_ANNOTATION, JOBID_LABEL, NODE_ANNOTATION, SCHEDULER_NAME

from .conftest import new_control_plane
from .harness import ADMIN, SCHEDULER, ControlPlane
from .webhook_process import WebhookProcess, until
from .webhook_world import Manifest, World, new_world

HANDLERS = ("slurm-bridge", "slurm-bridge-namespaces")
"""The prefix of its entries' names in the configuration."""
ACCOUNT = "system:serviceaccount:kube-system:fluence"
TOLERATION = {
    "key": "slinky.slurm.net/managed-node",
    "operator": "Equal",
    "value": SCHEDULER_NAME,
    "effect": "NoExecute",
}
MARKS: dict[str, Manifest] = {
    "label": {"labels": {JOBID_LABEL: "7"}},
    "node": {"annotations": {NODE_ANNOTATION: "n1"}},
    "gres": {"annotations": {GRES_ANNOTATION: "gpu(IDX:0)"}},
    "finalizer": {"finalizers": [FINALIZER]},
}
ALL: Manifest = {
    "labels": {JOBID_LABEL: "7"},
    "annotations": {NODE_ANNOTATION: "n1", GRES_ANNOTATION: "gpu(IDX:0)"},
    "finalizers": [FINALIZER],
}


@dataclass
class Place:
    """A namespace, and requests in it."""

    plane: ControlPlane
    name: str

    def path(self, end: str = "") -> str:
        return f"/api/v1/namespaces/{self.name}/pods{end}"

    def ask(self, scheduler: str | None, metadata: Manifest | None = None, **spec: Any) -> tuple[int, Any]:
        """Create a pod."""
        named = {} if scheduler is None else {"schedulerName": scheduler}
        containers = [{"name": "main", "image": "example.com/none"}]
        whole = {"automountServiceAccountToken": False, "containers": containers} | named | spec
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-"} | (metadata or {}), "spec": whole}
        return self.plane.request("POST", self.path(), body)

    def create(self, scheduler: str | None = SCHEDULER_NAME, **spec: Any) -> Manifest:
        status, answer = self.ask(scheduler, **spec)
        assert status == HTTPStatus.CREATED, answer
        return dict(answer)

    def change(self, pod: Manifest, metadata: Manifest, user: str = ADMIN, through: str = "") -> tuple[int, str]:
        """Patch a pod's metadata; return the response's status and message."""
        path = self.path(f"/{pod['metadata']['name']}{through}")
        status, answer = self.plane.request("PATCH", path, {"metadata": metadata}, user=user)
        return status, "" if status == HTTPStatus.OK else answer["message"]

    def marked(self) -> Manifest:
        """Create a pod that Slurm has placed, according to the scheduler."""
        pod = self.create()
        assert self.change(pod, ALL, SCHEDULER, "/status") == (HTTPStatus.OK, "")
        return pod

    def read(self, pod: Manifest) -> Manifest | None:
        status, answer = self.plane.request("GET", self.path(f"/{pod['metadata']['name']}"))
        return dict(answer) if status == HTTPStatus.OK else None


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A separate control plane, because the configuration applies to all of its pods."""
    with new_control_plane(tmp_path_factory.mktemp("slurm-webhook")) as plane:
        yield plane


@pytest.fixture
def world(plane: ControlPlane, tmp_path: Path) -> World:
    return new_world(plane, tmp_path)


@pytest.fixture
def anywhere(plane: ControlPlane) -> Place:
    """A namespace that is not managed."""
    return Place(plane, plane.new_namespace())


@pytest.fixture
def managed(world: World) -> Place:
    labels = {"fluence.flux-framework.org/slurm-bridge": "managed"}
    path = f"/api/v1/namespaces/{world.namespace}"
    assert world.plane.request("PATCH", path, {"metadata": {"labels": labels}})[0] == HTTPStatus.OK
    return Place(world.plane, world.namespace)


@pytest.fixture
def webhook(world: World, managed: Place) -> Iterator[WebhookProcess]:
    """A replica that is ready, and that the API server calls."""
    with world.replica() as replica:
        world.shared.configure(replica.tls_port, HANDLERS, "options/slurm-bridge.yaml")
        replica.start("--handlers", "slurm-bridge", "--scheduler-user", ACCOUNT)
        replica.wait_ready()
        until(lambda: is_bridged(managed.ask(None)))
        until(lambda: managed.ask(SCHEDULER_NAME, MARKS["label"])[0] == HTTPStatus.FORBIDDEN)
        yield replica


def is_bridged(answered: tuple[int, Any]) -> bool:
    status, pod = answered
    return status == HTTPStatus.CREATED and pod["spec"]["schedulerName"] == SCHEDULER_NAME


def asked(webhook: WebhookProcess) -> float:
    metrics = webhook.metrics()
    return sum(value for name, value in metrics.items() if name.startswith("fluence_webhook_requests_total"))


# ---------------------------------------------------------------------- new pods


@pytest.mark.parametrize("scheduler", [None, "default-scheduler"])
def test_in_a_managed_namespace_a_pod_for_the_default_scheduler_becomes_slurms(
    managed: Place, webhook: WebhookProcess, scheduler: str | None
) -> None:
    own = {"key": "mine", "operator": "Exists"}
    spec = managed.create(scheduler, tolerations=[own], nodeName="n1")["spec"]
    assert spec["schedulerName"] == SCHEDULER_NAME
    assert "nodeName" not in spec
    assert [each for each in spec["tolerations"] if not each["key"].startswith("node.kubernetes.io/")] == [
        own,
        TOLERATION,
    ]


def test_elsewhere_only_pods_that_name_the_scheduler_are_slurms_and_others_are_not_sent(
    anywhere: Place, webhook: WebhookProcess
) -> None:
    before = asked(webhook)
    for scheduler in (None, "default-scheduler", "fluence"):
        spec = anywhere.create(scheduler)["spec"]
        assert spec["schedulerName"] == (scheduler or "default-scheduler")
        assert TOLERATION not in spec.get("tolerations", [])
    assert asked(webhook) == before
    assert TOLERATION in anywhere.create()["spec"]["tolerations"]


def test_in_a_managed_namespace_a_pod_that_names_another_scheduler_stays_its(
    managed: Place, webhook: WebhookProcess
) -> None:
    assert managed.create("fluence")["spec"]["schedulerName"] == "fluence"


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("scheduler", [None, SCHEDULER_NAME])
def test_nobody_makes_a_pod_with_a_mark(
    managed: Place, webhook: WebhookProcess, scheduler: str | None, mark: str
) -> None:
    status, answer = managed.ask(scheduler, MARKS[mark])
    assert status == HTTPStatus.FORBIDDEN
    assert "only slurm-bridge-scheduler sets these fields; create the pod without them" in answer["message"]


# ---------------------------------------------------------------------- marks


@pytest.mark.parametrize("through", ["", "/status"])
@pytest.mark.parametrize("mark", MARKS)
def test_nobody_but_the_scheduler_makes_changes_or_removes_a_mark(
    anywhere: Place, webhook: WebhookProcess, mark: str, through: str
) -> None:
    removed: Manifest = {
        field: None if isinstance(said, list) else dict.fromkeys(said) for field, said in MARKS[mark].items()
    }
    for pod, change in ((anywhere.create(), MARKS[mark]), (anywhere.marked(), removed)):
        status, why = anywhere.change(pod, change, through=through)
        assert status == HTTPStatus.FORBIDDEN
        assert f"metadata.{next(iter(change))}[" in why
        assert "only slurm-bridge-scheduler may change these fields of its pods" in why
        assert anywhere.change(pod, change, SCHEDULER, "/status") == (HTTPStatus.OK, "")


def test_what_else_changes_of_a_marked_pod_is_not_sent(anywhere: Place, webhook: WebhookProcess) -> None:
    pod = anywhere.marked()
    before = asked(webhook)
    assert anywhere.change(pod, {"labels": {"a": "b"}, "finalizers": [FINALIZER, "c.example.com/d"]})[1] == ""
    assert anywhere.change(pod, {"annotations": {"e": "f"}}, through="/status")[1] == ""
    assert anywhere.change(anywhere.create("fluence"), ALL)[1] == ""
    assert asked(webhook) == before


def test_a_pod_that_is_deleted_stays_until_its_finalizer_is_taken_away(
    anywhere: Place, webhook: WebhookProcess
) -> None:
    for user, through in ((SCHEDULER, "/status"), (ADMIN, "")):
        pod = anywhere.marked()
        anywhere.plane.request("DELETE", anywhere.path(f"/{pod['metadata']['name']}?gracePeriodSeconds=0"))
        found = anywhere.read(pod)
        assert found is not None
        assert found["metadata"]["deletionTimestamp"]
        assert anywhere.change(pod, {"finalizers": None}, user, through) == (HTTPStatus.OK, "")
        assert anywhere.read(pod) is None


# ---------------------------------------------------------------------- without the webhook


def test_while_no_webhook_answers_nothing_goes_past_slurm_and_the_scheduler_and_others_go_on(
    managed: Place, anywhere: Place, webhook: WebhookProcess
) -> None:
    pod = anywhere.marked()
    webhook.kill()
    for place, scheduler in ((managed, None), (managed, SCHEDULER_NAME), (anywhere, SCHEDULER_NAME)):
        status, answer = place.ask(scheduler)
        assert status == HTTPStatus.INTERNAL_SERVER_ERROR
        assert 'failed calling webhook "slurm-bridge' in answer["message"]
    assert anywhere.change(pod, {"labels": {JOBID_LABEL: "8"}})[0] == HTTPStatus.INTERNAL_SERVER_ERROR
    assert anywhere.change(pod, {"labels": {JOBID_LABEL: "8"}}, SCHEDULER, "/status")[1] == ""
    assert anywhere.change(pod, {"labels": {"a": "b"}})[1] == ""
    anywhere.create(None)
    managed.create("fluence")
