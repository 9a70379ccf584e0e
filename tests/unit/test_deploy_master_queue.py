"""The option master-queue fits together and the code; its definition says what the controller validation."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fluence_plugins.master_queue import patterns
from fluence_plugins.master_queue.amounts import RESOURCES
from fluence_plugins.master_queue.api.kueue import MOST_FLAVORS, QUEUEING_STRATEGIES, STOP_POLICIES
from fluence_plugins.master_queue.api.master_queue import (
    Flavor,
    LendTo,
    LocalFlavor,
    MasterQueueSpec,
    MasterQueueStatus,
    NatsFlavor,
    PoolStatus,
    Template,
)
from fluence_plugins.master_queue.arguments import MasterQueueConfiguration
from fluence_plugins.master_queue.commands import master_queue
from fluence_plugins.master_queue.controller import validation
from fluence_plugins.master_queue.server import load

from ..tools.deploying import NAMESPACE, Manifest, manifests, the

OPTION = "options/master-queue.yaml"
NAME = "fluence-master-queue"


@pytest.fixture
def container() -> Manifest:
    (found,) = the("Deployment", OPTION)["spec"]["template"]["spec"]["containers"]
    return dict(found)


@pytest.fixture
def config(tmp_path: Path) -> MasterQueueConfiguration:
    file = tmp_path / "config.yaml"
    file.write_text(the("ConfigMap", OPTION)["data"]["config.yaml"])
    return load(file)


# ---------------------------------------------------------------------- the Deployment


def test_all_it_has_is_its_own_so_that_it_is_applied_beside_the_scheduler() -> None:
    assert {each["metadata"]["name"] for each in manifests(OPTION)} == {NAME, "masterqueues.vk.io"}
    assert {each["metadata"].get("namespace", NAMESPACE) for each in manifests(OPTION)} == {NAMESPACE}


def test_what_is_written_into_the_configuration_is_the_default(config: MasterQueueConfiguration) -> None:
    assert config == MasterQueueConfiguration()


def test_the_command_reads_the_configuration_that_is_mounted(container: Manifest) -> None:
    volumes = {each["name"]: each for each in the("Deployment", OPTION)["spec"]["template"]["spec"]["volumes"]}
    mounts = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}
    assert container["command"][:3] == ["fluence", "master-queue", "--config"]
    assert "config" in inspect.signature(master_queue).parameters
    folder, _, file = container["command"][3].rpartition("/")
    assert mounts[folder]["configMap"] == {"name": NAME}
    assert list(the("ConfigMap", OPTION)["data"]) == [file]
    assert mounts["/etc/fluence/nats"]["secret"] == {"secretName": NAME, "optional": True}


def test_probes_ask_where_it_answers(container: Manifest, config: MasterQueueConfiguration) -> None:
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    for probe, path in (("livenessProbe", "/healthz"), ("startupProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "http"}
    assert ports == {"http": config.serving.port}


def test_its_pods_are_protected_as_the_schedulers_are(container: Manifest) -> None:
    own, other = (the("Deployment", *which)["spec"]["template"]["spec"] for which in ((OPTION,), ()))
    assert container["securityContext"] == other["containers"][0]["securityContext"]
    assert own["securityContext"] == other["securityContext"]
    selected = {"matchLabels": {"app.kubernetes.io/name": NAME}}
    assert the("Deployment", OPTION)["spec"]["selector"] == selected
    assert the("PodDisruptionBudget", OPTION)["spec"]["selector"] == selected
    assert the("NetworkPolicy", OPTION)["spec"]["podSelector"] == selected


def test_several_replicas_run_only_with_an_election_by_a_lease_that_they_may_write(
    config: MasterQueueConfiguration,
) -> None:
    assert the("Deployment", OPTION)["spec"]["replicas"] == 2
    assert config.leader_election.enabled
    role = the("Role", OPTION)
    assert role["metadata"]["namespace"] == config.leader_election.namespace
    by_name = [rule for rule in role["rules"] if rule.get("resourceNames") == [config.leader_election.name]]
    assert [(rule["resources"], rule["verbs"]) for rule in by_name] == [(["leases"], ["get", "update"])]


def test_no_rule_is_wider_than_it_must_be() -> None:
    rules = the("ClusterRole", OPTION)["rules"]
    granted = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    assert not any("*" in part for grant in granted for part in grant)
    assert {resource for resource, verb in granted if verb == "delete"} == {"resourceflavors", "localqueues"}
    assert {verb for resource, verb in granted if resource in ("namespaces", "workloads", "masterqueues")} == {
        "list",
        "watch",
    }
    assert ("masterqueues/status", "patch") in granted


# ---------------------------------------------------------------------- the definition


def schema(*path: str) -> Manifest:
    """A part of the definition's schema: below properties by name, below lists by []."""
    (version,) = the("CustomResourceDefinition", OPTION)["spec"]["versions"]
    found: Manifest = version["schema"]["openAPIV3Schema"]
    for name in path:
        found = found["items"] if name == "[]" else found["properties"][name]
    return found


FLAVOR = ("spec", "flavors", "[]")
NATS = (*FLAVOR, "natsFlavor")


@pytest.mark.parametrize(("path", "kind"), [
    (("spec",), MasterQueueSpec), (("spec", "template"), Template), (FLAVOR, Flavor), (NATS, NatsFlavor),
    ((*FLAVOR, "canLendTo", "[]"), LendTo), ((*FLAVOR, "localFlavor"), LocalFlavor),
    (("status", "pools", "[]"), PoolStatus),
])  # fmt: skip
def test_the_definition_has_the_fields_that_the_controller_knows(path: tuple[str, ...], kind: Any) -> None:
    assert set(schema(*path).get("properties", {})) == {each.encode_name for each in msgspec.structs.fields(kind)}


def test_every_field_of_the_status_that_is_written_is_kept() -> None:
    fields = {each.encode_name for each in msgspec.structs.fields(MasterQueueStatus)}
    assert fields <= set(schema("status")["properties"])


def test_defaults_are_those_of_the_code() -> None:
    own = Template()
    for field in msgspec.structs.fields(Template):
        if "default" in (part := schema("spec", "template", field.encode_name)):
            assert part["default"] == getattr(own, field.name), field.name
    assert schema(*NATS, "poolTimeout")["default"] == NatsFlavor().pool_timeout


def test_bounds_and_words_are_those_that_the_controller_checks() -> None:
    assert schema("spec", "template", "stopPolicy")["enum"] == list(STOP_POLICIES)
    assert schema("spec", "template", "queueingStrategy")["enum"] == list(QUEUEING_STRATEGIES)
    assert schema("spec", "flavors")["maxItems"] == MOST_FLAVORS
    assert schema(*NATS, "poolRegExp")["maxLength"] == patterns.LONGEST
    timeout = schema(*NATS, "poolTimeout")
    assert (timeout["minimum"], timeout["maximum"]) == (1, validation.LONGEST_TIMEOUT)
    for field in ("nominalQuota", "canLendTo"):
        quota = schema(*FLAVOR, field)
        quota = quota["items"]["properties"]["lendingLimit"] if field == "canLendTo" else quota
        (rule,) = quota["x-kubernetes-validations"]
        assert rule["rule"] == f"self.all(name, name in [{', '.join(map(repr, RESOURCES))}])"


def test_every_text_list_and_map_of_the_spec_that_a_rule_reads_is_bounded() -> None:
    def unbounded(part: Manifest, path: str) -> list[str]:
        kinds = {"string": ("maxLength", "enum"), "array": ("maxItems",)}
        missing = [path] if not set(kinds.get(part.get("type", ""), part)) & part.keys() else []
        inner = [*part.get("properties", {}).items(), *[("[]", part[k]) for k in ("items",) if k in part]]
        return [*missing, *(each for name, below in inner for each in unbounded(below, f"{path}.{name}"))]

    assert unbounded(schema(*FLAVOR), "flavor") == []
