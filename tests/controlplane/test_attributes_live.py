"""Preferred devices and groups by label on a real control plane, with its controllers and beside kube-scheduler."""

from __future__ import annotations

from dataclasses import replace

from .invariants import Manifest
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
    told = []
    for number in range(2):
        scenario.create_pod(f"p{number}", device=True, annotations={PREFIX + "prefer-region": "there"})
        scenario.wait_bound(f"p{number}")
        told.append(annotations_of(scenario, f"p{number}"))
    assert [(each[PREFIX + "backend"], each[PREFIX + "attr-region"]) for each in told] == [
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
    first = scenario.until("three pods", lambda: len(scenario.pods()) == 3 and min(map(name_of, scenario.pods())))
    scenario.wait_refused(str(first))
    assert not any(scenario.node_of(name_of(pod)) for pod in scenario.pods())
    scenario.add_node(cpu=1, devices=0)
    scenario.wait_bound(*map(name_of, scenario.pods()))
    assert scenario.group("gang") == before
    scenario.check()


def annotations_of(scenario: Scenario, name: str) -> dict[str, str]:
    found: dict[str, str] = next(pod["metadata"]["annotations"] for pod in scenario.pods() if name_of(pod) == name)
    return found


def name_of(pod: Manifest) -> str:
    return str(pod["metadata"]["name"])


def deploy_labelled(scenario: Scenario, name: str, size: int) -> None:
    """A Deployment of pods of one core that name a group by label, which needs all of them to start."""
    labels = {"app": name, PREFIX + "group": name}
    template = {"metadata": {"labels": labels, "annotations": {PREFIX + "group-size": str(size)}}, "spec": pod_spec()}
    spec = {"replicas": size, "selector": {"matchLabels": {"app": name}}, "template": template}
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec,
            "metadata": {"name": name, "namespace": scenario.namespace}}  # fmt: skip
    assert scenario.plane.create(made)["metadata"]["name"] == name
