"""The cases of kube-scheduler's own tests of the plugin, without its feature gate and its registry of test features."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from session_scheduler.builtin import BUILTIN
from session_scheduler.hookspecs import SKIP
from session_scheduler.model.objects import Node

PLUGIN = BUILTIN["NodeDeclaredFeatures"](None)
RESTARTS, USERS = "RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport"


def container(*actions: str) -> dict[str, Any]:
    rules = [{"action": action, "exitCodes": {"operator": "In", "values": [1]}} for action in actions]
    return {"name": "c", "restartPolicyRules": rules}


NEEDS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "nothing": ({}, set()),
    "another rule": ({"containers": [container("Restart")]}, set()),
    "a container that restarts all": ({"containers": [container("Restart", "RestartAllContainers")]}, {RESTARTS}),
    "an init container that does": (
        {"containers": [container()], "initContainers": [container("RestartAllContainers")]}, {RESTARTS},
    ),
    "the host's network": ({"hostNetwork": True}, set()),
    "the host's network and users": ({"hostNetwork": True, "hostUsers": True}, set()),
    "users of its own": ({"hostUsers": False}, set()),
    "users of its own on the host's network": ({"hostNetwork": True, "hostUsers": False}, {USERS}),
    "both": (
        {"hostNetwork": True, "hostUsers": False, "containers": [container("RestartAllContainers")]}, {USERS, RESTARTS},
    ),
}  # fmt: skip


def declares(world: Any, name: str, *features: str) -> None:
    world.table.put(msgspec.convert({"metadata": {"name": name}, "status": {"declaredFeatures": features}}, Node))


@pytest.mark.parametrize("case", NEEDS)
def test_a_node_fits_if_it_declares_the_features_that_the_pod_needs(world: Any, case: str) -> None:
    spec, needed = NEEDS[case]
    declares(world, "none")
    declares(world, "users", USERS, "Another")
    declares(world, "restarts", RESTARTS)
    declares(world, "all", "Another", RESTARTS, USERS)
    has = {"none": set(), "users": {USERS}, "restarts": {RESTARTS}, "all": {USERS, RESTARTS}}
    pod = world.pod(**spec)
    assert world.fitting(PLUGIN, pod) == sorted(name for name, features in has.items() if needed <= features)
    assert (world.prepared(PLUGIN, pod) is SKIP) == (not needed)


def test_the_message_is_kube_schedulers(world: Any) -> None:
    declares(world, "none")
    pod = world.pod(hostNetwork=True, hostUsers=False)
    assert world.reasons(PLUGIN, pod, "none") == [["node(s) didn't match Pod's required features"]]
