"""What the handler `quantum` adds with --go-compatible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from fluence_plugins.env_injection.go_version import quantum_handler
from fluence_plugins.env_injection.handlers import HandlerSettings, Refusal
from fluence_plugins.env_injection.quantum import QuantumHandler
from session_scheduler.cluster.errors import AlreadyExists, Forbidden, NotFound
from session_scheduler.errors import InputError

from ....tools.admitting import IMAGE, Object, admitted, decided, patched, request, settings

PREFIX = "fluence.flux-framework.org/"
QPU = "fluxion.flux-framework.org/qpu"
INDEX = "batch.kubernetes.io/job-completion-index"
GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"


class Api:
    """An API server that keeps objects by path."""

    def __init__(self, forbidden: str = "") -> None:
        self.made: dict[str, Mapping[str, Any]] = {}
        self._forbidden = forbidden
        self.now = datetime.now(UTC).isoformat()

    async def get(self, path: str) -> Mapping[str, Any]:
        if path == "/apis/scheduling.k8s.io":
            return {"versions": [{"version": "v1"}, {"version": "v1alpha2"}]}
        if path not in self.made:
            raise NotFound(f"{path}: there is none")
        return self.made[path]

    async def create(self, path: str, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._forbidden and self._forbidden in path:
            raise Forbidden(f"{manifest['kind']} {manifest['metadata']['name']}: not allowed to create it")
        whole = f"{path}/{manifest['metadata']['name']}"
        if whole in self.made:
            raise AlreadyExists(f"{whole}: exists")
        self.made[whole] = {**manifest, "metadata": {**manifest["metadata"], "creationTimestamp": self.now}}
        return manifest


def handler(api: Api | None = None, **more: Any) -> QuantumHandler:
    there = api or Api()

    async def connected() -> Any:
        return there

    return quantum_handler(replace(settings(), **{"go_compatible": True, "api": connected, **more}))


def member(name: str, index: str | None = None, **spec: Any) -> Object:
    annotations = {f"{PREFIX}group-size": "3", f"{PREFIX}coordination": "shared"}
    container = {"name": "app", "image": "busybox", "resources": {"requests": {QPU: "1"}, "limits": {QPU: "1"}}}
    return {
        "metadata": {"name": name, "labels": {f"{PREFIX}group": "g"},
                     "annotations": annotations | ({} if index is None else {INDEX: index})},
        "spec": {"schedulerName": "fluence", "containers": [container], **spec},
    }  # fmt: skip


def made(pod: Object, by: QuantumHandler) -> Object:
    found = admitted(pod, [by])
    assert not isinstance(found, Refusal), found
    return found


def env(pod: Object, container: str) -> dict[str, Any]:
    (found,) = (each for each in pod["spec"]["containers"] if each["name"] == container)
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in found["env"]}


def test_the_producer_gets_sidecar_and_interceptor_without_a_label() -> None:
    producer = made(member("a", "0"), handler())
    spec = producer["spec"]
    assert producer["metadata"]["labels"][f"{PREFIX}group"] == "g-producer"
    assert "schedulingGates" not in spec
    assert [each["name"] for each in spec["containers"]] == ["app", "fluence-sidecar"]
    assert [(each["name"], each["image"]) for each in spec["initContainers"]] == [("fluence-stage", IMAGE)]
    assert spec["serviceAccountName"] == "fluence-sidecar"
    sidecar = env(producer, "fluence-sidecar")
    assert sidecar["FLUENCE_GANG_GROUP"] == "g"
    assert "FLUENCE_OBSERVE" not in sidecar
    app = env(producer, "app")
    assert app["FLUENCE_COORDINATION_ROLE"] == "producer"
    (mount,) = spec["containers"][0]["volumeMounts"]
    assert (mount["name"], mount["mountPath"]) == (spec["volumes"][0]["name"], app["PYTHONPATH"])
    assert "FLUENCE_QUANTUM_JOB_ID" not in app


def test_the_sidecar_of_a_pod_that_only_observes_opens_no_gates() -> None:
    pod = member("a")
    pod["metadata"] |= {"labels": {f"{PREFIX}observe": "true"}, "annotations": {}}
    sidecar = env(made(pod, handler()), "fluence-sidecar")
    assert sidecar["FLUENCE_OBSERVE"] == "true"
    assert "FLUENCE_GANG_GROUP" not in sidecar


def test_the_sidecar_keeps_an_account_that_the_pod_names() -> None:
    producer = made(member("a", "0", serviceAccountName="mine"), handler(Api(forbidden="serviceaccounts")))
    assert producer["spec"]["serviceAccountName"] == "mine"


def test_consumers_wait_for_the_job_with_the_priority_class_and_without_the_interceptor() -> None:
    consumer = made(member("b", "1"), handler())
    spec = consumer["spec"]
    assert consumer["metadata"]["annotations"][f"{PREFIX}depends-on-kind"] == "quantum-submit"
    assert (spec["priorityClassName"], spec["priority"]) == ("fluence-quantum-classical", None)
    assert spec["schedulingGates"] == [{"name": "quantum.braket/ready"}]
    assert spec["containers"][0]["resources"] == {"requests": {}, "limits": {}}
    assert env(consumer, "app").keys() == {"FLUENCE_COORDINATION_ROLE", "FLUENCE_QUANTUM_JOB_ID"}


def test_consumers_keep_a_priority_class_and_a_kind_of_dependency_of_their_own() -> None:
    pod = member("b", "1", priorityClassName="mine")
    pod["metadata"]["annotations"][f"{PREFIX}depends-on-kind"] = "producer-running"
    consumer = made(pod, handler())
    assert consumer["spec"]["priorityClassName"] == "mine"
    assert "priority" not in consumer["spec"]
    assert consumer["metadata"]["annotations"][f"{PREFIX}depends-on-kind"] == "producer-running"


def test_the_first_pod_without_an_index_is_the_producer() -> None:
    api = Api()
    by = handler(api)
    roles = [made(member(name), by)["metadata"]["annotations"][f"{PREFIX}coordination-role"] for name in "abc"]
    assert roles == ["producer", "consumer", "consumer"]
    claim = api.made[f"{GROUPS}/g-producer"]
    assert claim["spec"] == {"schedulingPolicy": {"gang": {"minCount": 1}}}
    assert claim["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "fluence"}


def test_a_pod_that_is_refused_does_not_become_the_producer() -> None:
    api = Api()
    wrong = member("a")
    wrong["metadata"]["labels"][f"{PREFIX}observe"] = "yes"
    assert isinstance(admitted(wrong, [handler(api)]), Refusal)
    assert not api.made
    assert made(member("a"), handler(api))["metadata"]["annotations"][f"{PREFIX}coordination-role"] == "producer"


def test_a_podgroup_without_its_producer_is_named() -> None:
    api = Api()
    api.now = "2020-01-01T00:00:00Z"
    made(member("a"), handler(api))
    refused = admitted(member("b"), [handler(api)])
    assert isinstance(refused, Refusal)
    assert refused.message == (
        f"{PREFIX}coordination: shared: PodGroup default/g-producer is reserved for a producer, but no pod owns it; "
        "delete the PodGroup if the producer does not exist, and create the pods again"
    )
    claim = api.made[f"{GROUPS}/g-producer"]
    api.made[f"{GROUPS}/g-producer"] = {**claim, "metadata": {**claim["metadata"], "ownerReferences": [{"uid": "a"}]}}
    assert made(member("b"), handler(api))["metadata"]["annotations"][f"{PREFIX}coordination-role"] == "consumer"


def test_a_dry_run_finds_the_producer_and_writes_nothing() -> None:
    api = Api()
    by, trial = handler(api), replace(request(), dry_run=True)

    def role(name: str) -> Any:
        decision = decided(by, member(name), trial)
        assert not isinstance(decision, Refusal)
        return patched(member(name), decision)["metadata"]["annotations"][f"{PREFIX}coordination-role"]

    assert role("a") == "producer"
    decision = decided(by, member("a"), trial)
    assert not isinstance(decision, Refusal)
    assert "serviceAccountName" not in patched(member("a"), decision)["spec"], "the API server would not find it"
    assert not api.made
    made(member("a"), by)
    before = dict(api.made)
    assert role("b") == "consumer"
    assert api.made == before


def test_the_account_of_the_sidecar_is_created_once_with_the_rights_of_the_go_version() -> None:
    api = Api()
    for _ in range(2):
        made(member("a", "0"), handler(api))
    assert list(api.made) == [
        "/api/v1/namespaces/default/serviceaccounts/fluence-sidecar",
        f"{RBAC}/roles/fluence-sidecar",
        f"{RBAC}/rolebindings/fluence-sidecar",
    ]
    rules = api.made[f"{RBAC}/roles/fluence-sidecar"]["rules"]
    assert rules[0] == {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "patch", "update"]}
    binding = api.made[f"{RBAC}/rolebindings/fluence-sidecar"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "fluence-sidecar", "namespace": "default"}]
    assert binding["roleRef"]["name"] == "fluence-sidecar"


@pytest.mark.parametrize(("index", "path"), [("0", "roles"), (None, "podgroups")])
def test_a_pod_is_refused_if_the_webhook_lacks_a_right(index: str | None, path: str) -> None:
    refused = admitted(member("a", index), [handler(Api(forbidden=path))])
    assert isinstance(refused, Refusal)
    assert refused.message.startswith("--go-compatible: ")
    assert refused.message.endswith("not allowed to create it; apply deploy/options/go-compatible.yaml")


def test_a_sidecar_runs_as_root_only_where_the_administrator_allows_it() -> None:
    def runs_as_non_root(**more: Any) -> Any:
        spec = made(member("a", "0"), handler(**more))["spec"]
        (found,) = {
            each["securityContext"]["runAsNonRoot"] for each in (spec["containers"][1], *spec["initContainers"])
        }
        return found

    assert runs_as_non_root() is True
    assert runs_as_non_root(sidecar_as_root=True) is False


def test_the_option_needs_an_image_and_an_api_server() -> None:
    with pytest.raises(InputError, match="--go-compatible: needs --sidecar-image"):
        handler(sidecar_image=None)
    with pytest.raises(InputError, match="with --tls-cert; omit --tls-cert, and the webhook creates its certificate"):
        quantum_handler(replace(settings(), go_compatible=True))


def test_without_the_option_nothing_is_added() -> None:
    plain = quantum_handler(HandlerSettings(frozenset({"fluence"}), None, settings().registry, IMAGE))
    assert type(plain) is QuantumHandler
    producer = made(member("a", "0"), plain)
    assert [each["name"] for each in producer["spec"]["containers"]] == ["app"]
