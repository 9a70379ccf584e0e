"""What the handler `quantum` makes of a Job and its pods, and what it refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from fluence_plugins.env_injection.handlers import Refusal
from fluence_plugins.env_injection.quantum import QuantumHandler
from session_scheduler.errors import InputError

from ....tools.admitting import IMAGE, Object, admitted, handlers, pods_of, request, settings

PREFIX = "fluence.flux-framework.org/"
QPU = "fluxion.flux-framework.org/qpu"
INDEX = "batch.kubernetes.io/job-completion-index"


def job(
    pods: int = 3, *, annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None, **spec: Any
) -> Object:
    container = {"name": "app", "image": "example.com/app", "resources": {
        "requests": {"cpu": "1", QPU: "1"}, "limits": {QPU: "1"}}}  # fmt: skip
    template = {
        "metadata": {"annotations": annotations if annotations is not None else {f"{PREFIX}coordination": "shared"}}
        | ({"labels": labels} if labels else {}),
        "spec": {"schedulerName": "fluence", "restartPolicy": "Never", "containers": [container]},
    }
    whole = {"completionMode": "Indexed", "parallelism": pods, "completions": pods, "template": template} | spec
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "vqe", "namespace": "default"}, "spec": whole}


def members(made: Object, image: str | None = IMAGE) -> list[Object]:
    """The pods of a Job as they are admitted."""
    through = handlers(image)
    whole = admitted(made, through)
    assert not isinstance(whole, Refusal), whole
    pods = [admitted(pod, through) for pod in pods_of(whole)]
    assert not any(isinstance(pod, Refusal) for pod in pods), pods
    return pods  # type: ignore[return-value]


def env(pod: Object, name: str, container: int = 0) -> Any:
    return next((e.get("value", e.get("valueFrom")) for e in pod["spec"]["containers"][container]["env"]
                 if e["name"] == name), None)  # fmt: skip


def refusal(pod: Object, image: str | None = IMAGE) -> str:
    answer = admitted(pod, handlers(image))
    assert isinstance(answer, Refusal), answer
    return answer.message


def test_index_0_becomes_the_producer_in_a_group_of_one_and_keeps_the_device() -> None:
    producer, *_ = members(job())
    metadata, spec = producer["metadata"], producer["spec"]
    assert metadata["labels"][f"{PREFIX}group"] == "vqe-producer"
    assert metadata["annotations"][f"{PREFIX}group-size"] == "1"
    assert metadata["annotations"][f"{PREFIX}coordination-role"] == "producer"
    assert "schedulingGates" not in spec
    assert spec["containers"][0]["resources"]["limits"] == {QPU: "1"}
    assert env(producer, "FLUENCE_COORDINATION_ROLE") == "producer"
    assert env(producer, "FLUENCE_QUANTUM_JOB_ID") is None


def test_the_other_pods_become_gated_consumers_without_a_device() -> None:
    _, *consumers = members(job(4))
    assert len(consumers) == 3
    for pod in consumers:
        annotations, spec = pod["metadata"]["annotations"], pod["spec"]
        assert pod["metadata"]["labels"][f"{PREFIX}group"] == "vqe"
        assert annotations[f"{PREFIX}group-size"] == "3"
        assert annotations[f"{PREFIX}depends-on-producer"] == "vqe-producer"
        assert annotations[f"{PREFIX}depends-on-kind"] == "producer-running"
        assert annotations[f"{PREFIX}depends-on-gate"] == "quantum.braket/ready"
        assert spec["schedulingGates"] == [{"name": "quantum.braket/ready"}]
        assert spec["containers"][0]["resources"] == {"requests": {"cpu": "1"}, "limits": {}}
        assert env(pod, "FLUENCE_COORDINATION_ROLE") == "consumer"
        path = env(pod, "FLUENCE_QUANTUM_JOB_ID")["fieldRef"]["fieldPath"]
        assert path == f"metadata.annotations['{PREFIX}quantum-job-id']"
        assert env(pod, "FLUXION_BACKEND") is not None


@pytest.mark.parametrize("annotations", [{}, {f"{PREFIX}coordination": "independent"}])
def test_independent_pods_keep_their_devices_and_have_no_gate(annotations: dict[str, str]) -> None:
    for pod in members(job(annotations=annotations)):
        assert f"{PREFIX}coordination-role" not in pod["metadata"]["annotations"]
        assert "schedulingGates" not in pod["spec"]
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {QPU: "1"}


def test_a_label_names_the_group_in_place_of_the_job() -> None:
    producer, consumer = members(job(2, labels={f"{PREFIX}group": "mine"}))
    assert producer["metadata"]["labels"][f"{PREFIX}group"] == "mine-producer"
    assert consumer["metadata"]["labels"][f"{PREFIX}group"] == "mine"


def test_the_users_kind_and_gates_are_kept() -> None:
    made = job(2, annotations={f"{PREFIX}coordination": "shared", f"{PREFIX}depends-on-kind": "quantum-submit"})
    made["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "mine/own"}]
    producer, consumer = members(made)
    assert consumer["metadata"]["annotations"][f"{PREFIX}depends-on-kind"] == "quantum-submit"
    assert consumer["spec"]["schedulingGates"] == [{"name": "mine/own"}, {"name": "quantum.braket/ready"}]
    assert producer["spec"]["schedulingGates"] == [{"name": "mine/own"}]


def test_the_pod_of_a_job_of_one_gets_no_role() -> None:
    (pod,) = members(job(1))
    assert f"{PREFIX}coordination-role" not in pod["metadata"]["annotations"]


def test_the_group_of_the_job_controller_is_kept() -> None:
    through = handlers()
    whole = admitted(job(2), through)
    assert not isinstance(whole, Refusal)
    for pod in pods_of(whole):
        pod["spec"]["schedulingGroup"] = {"podGroupName": "vqe-x1"}
        answer = admitted(pod, through)
        assert not isinstance(answer, Refusal)
        assert "schedulingGroup" not in answer["spec"]


def test_pods_without_a_job_are_split_by_their_annotations() -> None:
    """As the original's users write them."""
    pods = pods_of(job(2, annotations={f"{PREFIX}coordination": "shared", f"{PREFIX}group-size": "2"},
                       labels={f"{PREFIX}group": "qgang"}))  # fmt: skip
    for pod in pods:
        del pod["metadata"]["ownerReferences"]
    producer, consumer = (admitted(pod, handlers()) for pod in pods)
    assert not isinstance(producer, Refusal)
    assert not isinstance(consumer, Refusal)
    assert producer["metadata"]["labels"][f"{PREFIX}group"] == "qgang-producer"
    assert consumer["metadata"]["annotations"][f"{PREFIX}group-size"] == "1"


def test_a_pod_of_a_podgroup_is_rejected_without_a_job() -> None:
    pod, *_ = pods_of(job(2, annotations={f"{PREFIX}coordination": "shared", f"{PREFIX}group-size": "2"},
                          labels={f"{PREFIX}group": "qgang"}))  # fmt: skip
    del pod["metadata"]["ownerReferences"]
    pod["spec"]["schedulingGroup"] = {"podGroupName": "mine"}
    why = "pods of one PodGroup start together, but consumers start after their producer; remove this field"
    assert f"spec.schedulingGroup: {why}" in refusal(pod)


# ---------------------------------------------------------------------- the sidecar


def observed(**options: Any) -> Object:
    return job(labels={f"{PREFIX}observe": "true"}, **options)


def test_a_producer_gets_the_requested_sidecar_and_consumers_get_none() -> None:
    made = observed()
    secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}}
    made["spec"]["template"]["spec"]["containers"][0]["env"] = [secret, {"name": "PLAIN", "value": "1"}]
    producer, *consumers = members(made)
    (sidecar,) = producer["spec"]["initContainers"]
    assert sidecar["name"] == "fluence-sidecar"
    assert sidecar["image"] == IMAGE
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert sidecar["securityContext"]["runAsNonRoot"] is True
    said = {each["name"]: each.get("value") for each in sidecar["env"]}
    assert said["FLUENCE_GANG_GROUP"] == "vqe"
    assert said["FLUENCE_OBSERVE"] == "true"
    assert {"FLUENCE_POD_UID", "FLUENCE_NAMESPACE", "FLUXION_BACKEND", "TOKEN"} <= said.keys()
    assert "PLAIN" not in said
    assert all("initContainers" not in pod["spec"] for pod in consumers)
    assert "serviceAccountName" not in producer["spec"]


def test_each_independent_pod_gets_an_observer() -> None:
    for pod in members(observed(annotations={})):
        assert [each["name"] for each in pod["spec"]["initContainers"]] == ["fluence-sidecar"]


def test_without_an_image_a_pod_that_requests_the_sidecar_is_rejected() -> None:
    whole = admitted(observed(), handlers(None))
    assert not isinstance(whole, Refusal)
    answer = refusal(pods_of(whole)[0], None)
    assert "--sidecar-image" in answer
    assert f"metadata.labels[{PREFIX}observe]" in answer


@pytest.mark.parametrize(
    ("image", "why"),
    [
        ("fluence-sidecar", "other than latest"),
        ("registry:5000/fluence-sidecar", "other than latest"),
        ("registry/fluence-sidecar:latest", "other than latest"),
        ("registry/a b:1", "is not a valid image"),
        ("registry/a:1\n", "is not a valid image"),
        ("registry/a@sha256:12", "is not a valid image"),
    ],
)
def test_an_image_without_a_fixed_version_is_rejected(image: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        QuantumHandler(settings(image))


def test_the_image_may_have_a_digest() -> None:
    assert QuantumHandler(settings("registry:5000/a/b@sha256:" + "0" * 64)).contract().endswith("0" * 64)


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("value", ["", "Shared", "scatter", "shared ", "x" * 1000])
def test_an_unknown_coordination_is_rejected(value: str) -> None:
    made = job(annotations={f"{PREFIX}coordination": value})
    assert f"spec.template.metadata.annotations[{PREFIX}coordination]" in refusal(made)
    pod = pods_of(made)[0]
    answer = refusal(pod)
    assert f"metadata.annotations[{PREFIX}coordination]" in answer
    assert "shared, independent" in answer
    assert len(answer) < 400


@pytest.mark.parametrize(
    ("field", "key", "value"),
    [
        ("labels", "observe", "yes"),
        ("annotations", "depends-on-kind", "soon"),
        ("annotations", "coordination-role", "boss"),
    ],
)
def test_an_unknown_value_of_a_related_annotation_is_rejected(field: str, key: str, value: str) -> None:
    made = job()
    made["spec"]["template"]["metadata"].setdefault(field, {})[PREFIX + key] = value
    assert f"spec.template.metadata.{field}[{PREFIX}{key}]" in refusal(made)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"completionMode": "NonIndexed"}, "spec.completionMode"),
        ({"completionMode": None}, "spec.completionMode"),
        ({"completions": 5}, "spec.completions"),
        ({"completions": None}, "spec.completions"),
        ({"parallelism": 0, "completions": 0}, "spec.completions"),
        ({"parallelism": "3", "completions": "3"}, "spec.completions"),
        ({"backoffLimitPerIndex": 1}, "spec.backoffLimitPerIndex"),
    ],
)
def test_a_job_that_cannot_be_split_is_rejected(changes: dict[str, Any], why: str) -> None:
    assert why in refusal(job(**changes))


def test_a_job_with_a_podgroup_or_without_a_device_is_rejected() -> None:
    grouped, plain, long = job(), job(), job()
    grouped["spec"]["template"]["spec"]["schedulingGroup"] = {"podGroupName": "mine"}
    why = "pods of one PodGroup start together, but consumers start after their producer; remove this field"
    assert f"spec.template.spec.schedulingGroup: {why}" in refusal(grouped)
    del plain["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert "none requests a fluxion.flux-framework.org/" in refusal(plain)
    long["metadata"]["name"] = "x" * 55
    assert "more than 54 characters" in refusal(long)


@pytest.mark.parametrize(
    ("size", "why"),
    [("0", "expected a number of pods"), ("x", "expected a number of pods"), ("4", "spec.parallelism is 3")],
)
def test_a_size_that_could_not_start_is_rejected(size: str, why: str) -> None:
    made = job(annotations={f"{PREFIX}coordination": "shared", f"{PREFIX}group-size": size})
    assert why in refusal(made)


def test_pods_of_a_deployment_cannot_share() -> None:
    made = job() | {"apiVersion": "apps/v1", "kind": "Deployment"}
    assert "use a Job" in refusal(made)


@pytest.mark.parametrize(
    ("field", "key", "value", "why"),
    [
        ("annotations", INDEX, None, INDEX),
        ("annotations", INDEX, "-1", INDEX),
        ("annotations", f"{PREFIX}group-size", None, f"{PREFIX}group-size"),
        ("annotations", f"{PREFIX}group-size", "many", f"{PREFIX}group-size"),
        ("labels", f"{PREFIX}group", "x" * 60, "more than 54 characters"),
    ],
)
def test_a_pod_that_cannot_have_a_role_is_rejected(field: str, key: str, value: str | None, why: str) -> None:
    whole = admitted(job(), handlers())
    assert not isinstance(whole, Refusal)
    pod = pods_of(whole)[1]
    pod["metadata"].setdefault(field, {})
    if value is None:
        del pod["metadata"][field][key]
    else:
        pod["metadata"][field][key] = value
    assert why in refusal(pod)


@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_a_pod_that_claims_a_role_is_rejected(role: str) -> None:
    producer, consumer = members(job(2))
    other = consumer if role == "producer" else producer
    forged = copy.deepcopy(other)
    forged["metadata"]["annotations"][f"{PREFIX}coordination-role"] = role
    assert "only the webhook sets this annotation" in refusal(forged)


def test_pods_of_other_schedulers_and_malformed_pods_are_not_changed() -> None:
    quantum = QuantumHandler(settings())
    (pod, *_) = pods_of(job())
    pod["spec"]["schedulerName"] = "default-scheduler"
    pod["metadata"]["annotations"][f"{PREFIX}coordination"] = "nonsense"
    assert not quantum.mutate(pod, request())
    for broken in ({}, {"spec": 1}, {"spec": {"schedulerName": "fluence", "containers": [1]}},
                   {"spec": {"schedulerName": "fluence"}, "metadata": 3},
                   {"spec": {"schedulerName": "fluence"}, "metadata": {"annotations": [1]}}):  # fmt: skip
        assert not quantum.mutate(broken, request())
        assert not quantum.mutate({"spec": {"template": broken}}, request("Job"))
        assert not quantum.mutate(broken, request("Job"))


def test_the_patch_can_be_applied_where_maps_and_lists_are_null() -> None:
    pod = pods_of(job(2, annotations={f"{PREFIX}coordination": "shared", f"{PREFIX}group-size": "2"}))[1]
    pod["metadata"]["labels"] = None
    pod["spec"] |= {"schedulingGates": None, "initContainers": None}
    made = admitted(pod, [QuantumHandler(settings())])
    assert not isinstance(made, Refusal)
    assert made["metadata"]["labels"] == {f"{PREFIX}group": "vqe"}
    assert made["spec"]["schedulingGates"] == [{"name": "quantum.braket/ready"}]
