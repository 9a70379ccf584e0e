"""The objects of the controller of MasterQueues, as the chart renders them from its values."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fluence_plugins.master_queue.server import load

from ...tools.deploying import CHART, KUBERNETES, Manifest, chart, run

pytestmark = pytest.mark.programs

FIXED = ("--kube-version", KUBERNETES)
ON = ("--set", "masterQueue.enabled=true")
NAME = "fluence-master-queue"


def made(*arguments: str | Path, namespace: str = "kube-system") -> dict[str, Manifest]:
    """The chart's objects of this name, by kind."""
    found = chart(*ON, *arguments, namespace=namespace)
    return {each["kind"]: each for each in found if each["metadata"]["name"] == NAME}


def test_image_resources_placement_and_configuration_are_values(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    connectors = {"interlink": {"servers": ["tls://nats.example.com:4333"]}}
    values.write_text(yaml.safe_dump({
        "image": {"repository": "example.com/f", "tag": "1", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "key"}],
        "host": "::",
        "masterQueue": {"replicas": 3, "natsPorts": [4333], "tolerations": [], "podAnnotations": {"a": "b"},
                        "resources": {"limits": {"memory": "1Gi"}}, "config": {"connectors": connectors}},
    }))  # fmt: skip
    found = made("--values", values)
    spec = found["Deployment"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert (spec["replicas"], spec["template"]["metadata"]["annotations"]) == (3, {"a": "b"})
    assert (container["image"], container["imagePullPolicy"]) == ("example.com/f:1", "Always")
    assert container["resources"]["limits"] == {"memory": "1Gi"}
    assert pod["imagePullSecrets"] == [{"name": "key"}]
    assert "tolerations" not in pod
    (rule,) = found["NetworkPolicy"]["spec"]["egress"]
    assert 4333 in [each["port"] for each in rule["ports"]]
    file = tmp_path / "config.yaml"
    file.write_text(found["ConfigMap"]["data"]["config.yaml"])
    config = load(file)
    assert config.connectors["interlink"].servers == ("tls://nats.example.com:4333",)
    assert config.serving.host == "::"


def test_another_namespace_applies_to_the_lease_and_the_account_too(tmp_path: Path) -> None:
    found = made(namespace="elsewhere")
    file = tmp_path / "config.yaml"
    file.write_text(found["ConfigMap"]["data"]["config.yaml"])
    assert load(file).leader_election.namespace == "elsewhere"
    assert {each["metadata"].get("namespace", "elsewhere") for each in found.values()} == {"elsewhere"}
    assert found["ClusterRoleBinding"]["subjects"][0]["namespace"] == "elsewhere"


def test_master_queues_outlive_the_option_and_the_release() -> None:
    """Deleting their CRD would delete them and their queues."""
    (kind,) = [each for each in chart(*ON) if each["metadata"]["name"] == "masterqueues.vk.io"]
    assert kind["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


@pytest.mark.parametrize("part", [("networkPolicy", "NetworkPolicy"), ("podDisruptionBudget", "PodDisruptionBudget")])
def test_its_protection_is_disabled_together_with_that_of_the_others(part: tuple[str, str]) -> None:
    value, kind = part
    assert made().keys() - made("--set", f"{value}.enabled=false").keys() == {kind}


@pytest.mark.parametrize("field", ["serving.port=1", "leaderElection.name=other"])
def test_its_configuration_cannot_change_fields_that_its_other_objects_use(field: str) -> None:
    ended = run("helm", "template", "fluence", CHART, *FIXED, *ON, "--set", f"masterQueue.config.{field}")
    assert ended.returncode != 0
    assert f"masterQueue.config.{field.partition('.')[0]} is not allowed" in ended.stdout
