"""Each right that deploy/ gives the webhook, removed in turn: its report then, and the effect on pods.

The configuration's failurePolicy is Ignore: pods are created without their environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from .conftest import new_control_plane
from .harness import ControlPlane
from .rbac_world import Right, Roles, refusals, rights_of
from .webhook_process import SECRET, SECRETS, WebhookProcess, until
from .webhook_world import World, new_world

EMPTY: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "fluence-webhook-tls"}}
"""The Secret as an administrator leaves it to get new keys."""
KNOWN = {
    "create secrets": "no Secret",
    "get secrets": "no Secret",
    "update secrets": "an empty Secret",
    "get admissionregistration.k8s.io/mutatingwebhookconfigurations": "no Secret",
    "patch admissionregistration.k8s.io/mutatingwebhookconfigurations": "no Secret",
}
"""The state that the webhook finds at its start, for each right that it then needs."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A separate control plane, because its rights change all the time."""
    with new_control_plane(tmp_path_factory.mktemp("rbac-webhook")) as plane:
        yield plane


@pytest.fixture
def world(plane: ControlPlane, tmp_path: Path) -> World:
    return new_world(plane, tmp_path)


@pytest.fixture
def webhook(world: World) -> Iterator[WebhookProcess]:
    """A replica that is not started yet, and to which the API server sends pods."""
    with world.replica() as replica:
        world.shared.configure(replica.tls_port)
        yield replica


def find(world: World, what: str) -> None:
    """Create the state that the webhook finds at its start."""
    if what == "an empty Secret":
        assert world.plane.request("POST", SECRETS, EMPTY)[0] == HTTPStatus.CREATED


def says(webhook: WebhookProcess, text: str) -> bool:
    """Whether a line of its log contains the quoted text."""
    return webhook.log.exists() and text.replace('"', '\\"') in webhook.log.read_text()


def test_each_right_that_a_test_knows_is_given() -> None:
    assert KNOWN.keys() <= {str(given) for given in rights_of("fluence-webhook")}


@pytest.mark.parametrize("given", rights_of("fluence-webhook"), ids=str)
def test_without_it_no_pod_is_changed_the_replica_is_not_ready_and_says_why(
    world: World, webhook: WebhookProcess, given: Right
) -> None:
    assert str(given) in KNOWN, f"no test knows what needs the right to {given}"
    find(world, KNOWN[str(given)])
    roles = Roles(world.plane, "fluence-webhook")
    with roles.without(given):
        webhook.start()
        until(lambda: says(webhook, given.refusal))
        status, text = webhook.get("/readyz?verbose")
        assert status == HTTPStatus.SERVICE_UNAVAILABLE, text
        assert not world.is_patched()
        if given.resource == "secrets":
            assert given.refusal in text
            assert not world.plane.request("GET", SECRET)[1].get("data")
        else:
            assert set(world.shared.bundles()) == {b""}
        roles.give_back()
        webhook.wait_ready()
        until(world.is_patched)


@pytest.mark.parametrize("found", sorted(set(KNOWN.values())))
def test_with_all_of_its_rights_nothing_that_it_does_is_refused(
    world: World, webhook: WebhookProcess, found: str
) -> None:
    find(world, found)
    before = refusals(world.plane)
    webhook.start()
    webhook.wait_ready()
    until(world.is_patched)
    assert refusals(world.plane) == before
    assert "forbidden" not in webhook.log.read_text()
