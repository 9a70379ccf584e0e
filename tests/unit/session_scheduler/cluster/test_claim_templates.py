"""The claims that loaded pods get from templates, as the resourceclaim controller creates them."""

from __future__ import annotations

from typing import Any

import pytest

from .loading import container, load

ENTRY = {"name": "e", "resourceClaimTemplateName": "t"}
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "t"},
    "spec": {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}},
}


def group(api_version: str = "scheduling.k8s.io/v1alpha2", **entry: str) -> dict[str, Any]:
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "resourceClaims": [entry or ENTRY]}
    return {"apiVersion": api_version, "kind": "PodGroup", "metadata": {"name": "g"}, "spec": spec}


def member(name: str) -> dict[str, Any]:
    spec = {**container(), "resourceClaims": [ENTRY], "schedulingGroup": {"podGroupName": "g"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def claims(loaded: Any) -> dict[str, tuple[str, str]]:
    """The kind and name of each claim's owner."""
    owners = {one.metadata.name: one.metadata.owner_references[0] for one in loaded.devices}
    return {name: (owner.kind, owner.name) for name, owner in owners.items()}


def named(loaded: Any) -> list[str]:
    return [pod.status.resource_claim_statuses[0].resource_claim_name for pod in loaded.pods]


def test_each_pod_gets_a_claim_of_its_own() -> None:
    loaded = load(TEMPLATE, member("a"), member("b"))
    assert claims(loaded) == {"a-e": ("Pod", "a"), "b-e": ("Pod", "b")}
    assert named(loaded) == ["a-e", "b-e"]


@pytest.mark.parametrize("api_version", ["scheduling.k8s.io/v1alpha2", "scheduling.k8s.io/v1beta1"])
def test_the_pods_of_a_group_with_the_same_entry_share_one_claim(api_version: str) -> None:
    loaded = load(TEMPLATE, group(api_version), member("a"), member("b"))
    assert claims(loaded) == {"g-e": ("PodGroup", "g")}
    (claim,) = loaded.devices
    assert claim.metadata.owner_references[0].uid == loaded.pod_groups[0].metadata.uid != ""
    assert named(loaded) == ["g-e", "g-e"]


def test_an_entry_that_the_group_has_for_another_template_is_the_pods_own() -> None:
    loaded = load(TEMPLATE, group(name="e", resourceClaimTemplateName="other"), member("a"))
    assert claims(loaded) == {"a-e": ("Pod", "a")}
