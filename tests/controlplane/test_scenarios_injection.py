"""`fluence run` with `requireInjectedEnv`: pods that bypassed the webhook are rejected, all others are bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from .faults.world import DEVICE
from .invariants import Manifest
from .scenarios_world import Scenario

BACKEND = {
    "name": "FLUXION_BACKEND",
    "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['fluence.flux-framework.org/backend']"}},
}
"""A variable as the webhook writes it."""
REFUSED = "container 'main' lacks the environment variable FLUXION_BACKEND (requireInjectedEnv); create the pod again"


def container(name: str = "main", *env: Manifest) -> Manifest:
    return {"name": name, "image": "example.com/none", "env": list(env),
            "resources": {"requests": {"cpu": "1", DEVICE: "1"}, "limits": {DEVICE: "1"}}}  # fmt: skip


@pytest.fixture
def demanding(scenario: Scenario) -> Scenario:
    scenario.add_node(cpu=8, devices=8)
    scenario.run(replace(scenario.settings, arguments={"requireInjectedEnv": True}))
    return scenario


def test_a_device_pod_that_came_without_the_environment_waits_and_is_told_why(demanding: Scenario) -> None:
    demanding.create_pod("bare", containers=[container()])
    assert REFUSED in demanding.wait_refused("bare")
    assert REFUSED in demanding.wait_event("bare", "FailedScheduling")["note"]
    demanding.wait_tries(2)
    assert demanding.node_of("bare") is None
    demanding.delete_pod("bare")
    demanding.create_pod("bare", containers=[container("main", BACKEND)])
    demanding.wait_bound("bare")
    demanding.check()


def test_device_pods_with_the_environment_and_pods_without_devices_are_bound(demanding: Scenario) -> None:
    demanding.create_pod("injected", containers=[container("main", BACKEND)])
    demanding.create_pod("own-value", containers=[container("main", {"name": "FLUXION_BACKEND", "value": "mine"})])
    demanding.create_pod("classical")
    demanding.wait_bound("injected", "own-value", "classical")
    demanding.check()


def test_one_bare_member_keeps_its_whole_gang_waiting(demanding: Scenario) -> None:
    demanding.create_group("gang", 2)
    demanding.create_pod("gang-0", group="gang", containers=[container("main", BACKEND)])
    demanding.create_pod("gang-1", group="gang", containers=[container()])
    assert REFUSED in demanding.wait_refused("gang-1")
    assert demanding.node_of("gang-0") is None
    demanding.delete_pod("gang-1")
    demanding.create_pod("gang-1", group="gang", containers=[container("main", BACKEND)])
    demanding.wait_whole("gang", 2)
    demanding.check("gang")
