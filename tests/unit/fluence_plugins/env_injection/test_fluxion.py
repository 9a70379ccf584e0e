"""What the handler `fluxion` adds to a pod, and what it leaves alone."""

import asyncio
import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fluence_plugins.env_injection.fluxion import FluxionHandler
from fluence_plugins.env_injection.handlers import AdmissionRequest, HandlerSettings, Refusal
from session_scheduler.errors import InputError

RESOURCES = "resources: [{type: qpu, attributes: {region: here, num-qubits: 5}}]\n"
OURS = ["FLUXION_BACKEND", "FLUXION_NUM_QUBITS", "FLUXION_REGION"]
REQUEST = AdmissionRequest(uid="1", operation="CREATE", namespace="default", name="", dry_run=False)
Pod = dict[str, Any]


def handler(file: Path | None, *names: str, registry: CollectorRegistry | None = None) -> FluxionHandler:
    settings = HandlerSettings(frozenset(names or ("fluence",)), str(file) if file else None,
                               registry or CollectorRegistry())  # fmt: skip
    return FluxionHandler(settings)


def mutated(handler: FluxionHandler, pod: Pod) -> Sequence[dict[str, Any]]:
    operations = handler.mutate(pod, REQUEST)
    assert not isinstance(operations, Refusal)
    return operations


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "resources.yaml"
    file.write_text(RESOURCES)
    return file


@pytest.fixture
def fluxion(file: Path) -> FluxionHandler:
    return handler(file)


def pod(**spec: Any) -> Pod:
    return {"metadata": {"generateName": "p-"}, "spec": {"schedulerName": "fluence", "containers": [{}]} | spec}


def patched(pod: Pod, operations: Any) -> Pod:
    """The pod with "add" operations applied, as RFC 6902 says."""
    pod = copy.deepcopy(pod)
    for operation in operations:
        assert operation["op"] == "add"
        *way, last = operation["path"].lstrip("/").split("/")
        target: Any = pod
        for step in way:
            target = target[int(step)] if isinstance(target, list) else target[step]
        if isinstance(target, list):
            assert int(last) <= len(target)
            target.insert(int(last), operation["value"])
        else:
            target[last] = operation["value"]
    return pod


def names_of(container: Any) -> list[str]:
    return [each["name"] for each in container["env"]]


@pytest.mark.parametrize("annotation", ["gpu-fraction", "gpu-memory"])
def test_the_containers_of_a_pod_that_shares_gpus_see_its_gpus(fluxion: FluxionHandler, annotation: str) -> None:
    given = pod(initContainers=[{}], containers=[{}, {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}])
    given["metadata"]["annotations"] = {f"fluence.flux-framework.org/{annotation}": "0.5"}
    found = patched(given, fluxion.mutate(given, REQUEST))
    added = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {
        "apiVersion": "v1", "fieldPath": "metadata.annotations['fluence.flux-framework.org/gpu-device']"}}}  # fmt: skip
    first, second = found["spec"]["containers"]
    assert names_of(found["spec"]["initContainers"][0]) == names_of(first) == [*OURS, "NVIDIA_VISIBLE_DEVICES"]
    assert first["env"][-1] == added
    assert second["env"][-1]["value"] == "all"
    assert fluxion.mutate(found, REQUEST) == []


def test_a_pod_with_whole_gpus_gets_no_variable_for_them(fluxion: FluxionHandler) -> None:
    given = pod(containers=[{"resources": {"limits": {"nvidia.com/gpu": "1"}}}])
    given["metadata"]["annotations"] = {"fluence.flux-framework.org/gpu": "0"}
    assert names_of(patched(given, fluxion.mutate(given, REQUEST))["spec"]["containers"][0]) == OURS


def test_every_container_and_init_container_gets_all_variables_in_one_order(fluxion: FluxionHandler) -> None:
    given = pod(initContainers=[{"name": "a"}], containers=[{"name": "b"}, {"name": "c", "env": []}])
    spec = patched(given, fluxion.mutate(given, REQUEST))["spec"]
    for container in spec["initContainers"] + spec["containers"]:
        assert names_of(container) == OURS


def test_a_variable_reads_the_annotation_that_the_scheduler_writes(fluxion: FluxionHandler) -> None:
    (operation,) = mutated(fluxion, pod())
    assert operation["path"] == "/spec/containers/0/env"
    assert operation["value"][:2] == [
        {"name": "FLUXION_BACKEND", "valueFrom": {"fieldRef": {
            "apiVersion": "v1", "fieldPath": "metadata.annotations['fluence.flux-framework.org/backend']"}}},
        {"name": "FLUXION_NUM_QUBITS", "valueFrom": {"fieldRef": {
            "apiVersion": "v1", "fieldPath": "metadata.annotations['fluence.flux-framework.org/attr-num-qubits']"}}},
    ]  # fmt: skip


def test_the_users_variables_follow_the_added_ones_and_may_refer_to_them(fluxion: FluxionHandler) -> None:
    own = [{"name": "X", "value": "$(FLUXION_BACKEND)"}, {"name": "FLUXION_REGION", "value": "mine"}]
    given = pod(containers=[{"env": own}])
    env = patched(given, fluxion.mutate(given, REQUEST))["spec"]["containers"][0]["env"]
    assert env[2:] == own
    assert [each["name"] for each in env[:2]] == ["FLUXION_BACKEND", "FLUXION_NUM_QUBITS"]


def test_a_second_review_of_the_patched_pod_adds_nothing(fluxion: FluxionHandler) -> None:
    given = pod(initContainers=[{}], containers=[{"env": [{"name": "X"}]}, {"env": None}, {}], ephemeralContainers=[{}])
    once = patched(given, fluxion.mutate(given, REQUEST))
    assert fluxion.mutate(once, REQUEST) == []
    once["spec"]["containers"].append({"name": "added by another webhook"})
    twice = patched(once, fluxion.mutate(once, REQUEST))
    assert twice["spec"]["containers"][:-1] == once["spec"]["containers"][:-1]
    assert names_of(twice["spec"]["containers"][-1]) == OURS


def test_ephemeral_containers_are_not_changed(fluxion: FluxionHandler) -> None:
    given = pod(ephemeralContainers=[{"name": "debug"}])
    assert patched(given, fluxion.mutate(given, REQUEST))["spec"]["ephemeralContainers"] == [{"name": "debug"}]


def test_only_pods_of_the_given_schedulers_are_changed(file: Path) -> None:
    both = handler(file, "fluence", "fluence-two")
    assert [bool(both.mutate(pod(schedulerName=name), REQUEST)) for name in (
        "fluence", "fluence-two", "default-scheduler", "", None)] == [True, True, False, False, False]  # fmt: skip


MALFORMED: list[Any] = [
    {},
    {"spec": None},
    {"spec": []},
    {"spec": {"schedulerName": ["fluence"]}},
    pod(containers="x"),
    pod(containers=[None]),
    pod(containers=[{}, 5]),
    pod(containers=[{"env": {}}]),
    pod(containers=[{"env": [None]}]),
    pod(containers=[{"env": "X=1"}]),
    pod(initContainers={"a": 1}),
    pod(initContainers=[[]]),
]


@pytest.mark.parametrize("given", MALFORMED, ids=json.dumps)
def test_a_pod_that_the_api_server_would_reject_is_not_changed(fluxion: FluxionHandler, given: Any) -> None:
    assert fluxion.mutate(given, REQUEST) == []


def test_a_pod_with_too_many_containers_for_the_variables_gets_none(
    fluxion: FluxionHandler,
) -> None:
    assert len(mutated(fluxion, pod(containers=[{}] * 3000, initContainers=[{}] * 333))) == 3333
    assert fluxion.mutate(pod(containers=[{}] * 3000, initContainers=[{}] * 334), REQUEST) == []
    assert fluxion.mutate(pod(containers=[{}] * 1_000_000), REQUEST) == []


@pytest.mark.parametrize("field", ["requests", "limits"])
def test_a_pod_with_a_device_and_too_many_containers_for_the_variables_is_rejected_with_a_remedy(
    fluxion: FluxionHandler, field: str
) -> None:
    asking = {"resources": {field: {"cpu": "1", "fluxion.flux-framework.org/qpu": "1"}}}
    given = pod(containers=[{}] * 3000 + [asking], initContainers=[{}] * 333)
    refused = fluxion.mutate(given, REQUEST)
    assert isinstance(refused, Refusal)
    assert refused.message == (
        "the pod's 3334 containers would get 3 environment variables each (FLUXION_BACKEND and one for each attribute "
        "key of the resources file), but a pod can have at most 10000; use fewer containers, or fewer attribute keys"
    )


def test_without_a_resources_file_only_the_backend_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLUENCE_RESOURCES", raising=False)
    (operation,) = mutated(handler(None), pod())
    assert names_of({"env": operation["value"]}) == ["FLUXION_BACKEND"]


def test_the_contract_is_logged_in_one_line(fluxion: FluxionHandler) -> None:
    assert fluxion.contract() == (
        "environment contract: FLUXION_BACKEND <- annotation fluence.flux-framework.org/backend, "
        "FLUXION_NUM_QUBITS <- annotation fluence.flux-framework.org/attr-num-qubits, "
        "FLUXION_REGION <- annotation fluence.flux-framework.org/attr-region"
    )


def test_an_invalid_file_at_the_start_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such\.yaml"):
        handler(tmp_path / "no such.yaml")


class Looks:
    """Lets a follower look at its file once for each `look`."""

    def __init__(self) -> None:
        self._sleeping = asyncio.Event()
        self._going = asyncio.Event()

    async def sleep(self, _seconds: float) -> None:
        self._sleeping.set()
        await self._going.wait()
        self._going.clear()

    async def look(self, file: Path, text: str) -> None:
        """Write the file, let it be looked at, and wait until the follower waits again."""
        await self._sleeping.wait()
        file.write_text(text)  # noqa: ASYNC240 (a few bytes)
        self._sleeping.clear()
        self._going.set()
        await self._sleeping.wait()


async def test_the_contract_follows_the_file_and_stays_while_the_file_is_invalid(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry, looks = CollectorRegistry(), Looks()
    follower = handler(file, registry=registry)
    task = asyncio.ensure_future(follower.run(looks.sleep))

    def loaded() -> float | None:
        return registry.get_sample_value("fluence_webhook_config_last_load_successful")

    caplog.set_level("INFO")
    await looks.look(file, "resources: [{type: qpu, attributes: {speed: 1}}]\n")
    assert "FLUXION_SPEED" in follower.contract()
    assert "[fluence-webhook] environment contract: FLUXION_BACKEND <- annotation" in caplog.text
    await looks.look(file, "nonsense: 1\n")
    assert ("FLUXION_SPEED" in follower.contract(), loaded()) == (True, 0)
    await looks.look(file, RESOURCES)
    assert ("FLUXION_REGION" in follower.contract(), loaded()) == (True, 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_change_without_effect_on_the_variables_is_not_logged(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    looks = Looks()
    task = asyncio.ensure_future(handler(file).run(looks.sleep))
    caplog.set_level("INFO")
    await looks.look(file, RESOURCES.replace("here", "elsewhere"))
    assert "contract" not in caplog.text
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
