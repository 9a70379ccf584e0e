"""Preferred devices and groups by label on a real control plane, with its controllers and beside kube-scheduler."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus

from .invariants import Manifest, condition, plan_of
from .scenarios_world import Scenario, pod_spec

PREFIX = "fluence.flux-framework.org/"
TWO = """
resources:
  - {type: qpu, name: first, attributes: {region: here}}
  - {type: qpu, name: second, attributes: {region: there}}
"""


def test_the_preferred_device_is_bound_first_and_the_other_to_who_comes_later(scenario: Scenario) -> None:
    scenario.add_node()
    scenario.run(replace(scenario.settings, resources=TWO))
    reported = []
    for number in range(2):
        scenario.create_pod(f"p{number}", device=True, annotations={PREFIX + "prefer-region": "there"})
        scenario.wait_bound(f"p{number}")
        reported.append(annotations_of(scenario, f"p{number}"))
    assert [(each[PREFIX + "backend"], each[PREFIX + "attr-region"]) for each in reported] == [
        ("second", "there"),
        ("first", "here"),
    ]
    scenario.check()


def test_a_group_by_label_of_a_deployment_starts_whole_and_touches_no_podgroup(scenario: Scenario) -> None:
    scenario.add_node(cpu=2, devices=0)
    scenario.run()
    scenario.create_group("gang", 1)
    before = scenario.group("gang")
    deploy_labelled(scenario, "gang", 3)
    names = scenario.until("three pods", lambda: pod_names(scenario, 3))
    scenario.wait_refused(names[0])
    assert not any(scenario.node_of(name) for name in names)
    scenario.add_node(cpu=1, devices=0)
    scenario.wait_bound(*names)
    assert scenario.group("gang") == before
    scenario.check()


def test_the_podgroup_of_a_group_by_label_is_made_holds_its_plan_and_goes_with_its_pods(scenario: Scenario) -> None:
    scenario.add_node(cpu=2, devices=0)
    scenario.run(replace(scenario.settings, arguments={"makePodGroups": True}))
    deploy_labelled(scenario, "gang", 2)
    names = scenario.until("two pods", lambda: pod_names(scenario, 2))
    refused = scenario.wait_refused(names[0], "forbidden")
    assert f"cannot create PodGroup {scenario.namespace}/fluence-gang (makePodGroups): " in refused
    allow_making_groups(scenario)
    scenario.wait_bound(*names)
    made = scenario.group("fluence-gang")
    assert made["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "fluence"}
    assert [owner["kind"] for owner in made["metadata"]["ownerReferences"]] == ["ReplicaSet"]
    assert plan_of(made) is not None
    scenario.until("the group says that it is scheduled", lambda: is_scheduled(scenario.group("fluence-gang")))
    path = f"/apis/apps/v1/namespaces/{scenario.namespace}/deployments/gang"
    assert scenario.plane.request("DELETE", path)[0] == HTTPStatus.OK
    scenario.until("the end of the group", lambda: scenario.group("fluence-gang").get("code") == HTTPStatus.NOT_FOUND)


def allow_making_groups(scenario: Scenario) -> None:
    """Give the scheduler, in one namespace, a right that deploy/ does not give."""
    rbac = "rbac.authorization.k8s.io/v1"
    metadata = {"name": "makes-pod-groups", "namespace": scenario.namespace}
    rule = {"apiGroups": ["scheduling.k8s.io"], "resources": ["podgroups"], "verbs": ["create"]}
    scenario.plane.create({"apiVersion": rbac, "kind": "Role", "metadata": metadata, "rules": [rule]})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": metadata["name"]}
    account = {"kind": "ServiceAccount", "name": "fluence", "namespace": "kube-system"}
    scenario.plane.create({"apiVersion": rbac, "kind": "RoleBinding", "metadata": metadata, "roleRef": role,
                           "subjects": [account]})  # fmt: skip


def is_scheduled(group: Manifest) -> bool:
    said = condition(group, "PodGroupScheduled")
    return said is not None and said["status"] == "True"


def pod_names(scenario: Scenario, size: int) -> list[str] | None:
    """Wait for so many pods; return their names."""
    found = [name_of(pod) for pod in scenario.pods()]
    return found if len(found) == size else None


def annotations_of(scenario: Scenario, name: str) -> dict[str, str]:
    found: dict[str, str] = next(pod["metadata"]["annotations"] for pod in scenario.pods() if name_of(pod) == name)
    return found


def name_of(pod: Manifest) -> str:
    return str(pod["metadata"]["name"])


def deploy_labelled(scenario: Scenario, name: str, size: int) -> None:
    """Create a Deployment of pods with one core, whose label names a group that needs all of them to start."""
    labels = {"app": name, PREFIX + "group": name}
    template = {"metadata": {"labels": labels, "annotations": {PREFIX + "group-size": str(size)}}, "spec": pod_spec()}
    spec = {"replicas": size, "selector": {"matchLabels": {"app": name}}, "template": template}
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec,
            "metadata": {"name": name, "namespace": scenario.namespace}}  # fmt: skip
    assert scenario.plane.create(made)["metadata"]["name"] == name
