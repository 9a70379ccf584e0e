"""The webhook's Secret, certificate and configuration on a real API server, while pods are created."""

from __future__ import annotations

import base64
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path

import pytest

from fluence_plugins.env_injection.certificates import Lifetimes, Material, make, signers

from .conftest import new_control_plane
from .harness import ControlPlane
from .webhook_process import SECRET, SECRETS, WebhookProcess, configuration, until
from .webhook_world import NAMES, World, new_world

NOW = datetime.now(UTC)
DUE_SOON = {"serving": timedelta(seconds=60), "authority": timedelta(seconds=60), "backdated": timedelta(seconds=111)}
"""Two thirds of this lifetime are over 3 s after its start; its end is late enough for a slow machine."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A separate control plane, because the configuration applies to all of its pods."""
    with new_control_plane(tmp_path_factory.mktemp("webhook")) as plane:
        yield plane


@pytest.fixture
def world(plane: ControlPlane, tmp_path: Path) -> World:
    return new_world(plane, tmp_path)


@pytest.fixture
def webhook(world: World) -> Iterator[WebhookProcess]:
    """A replica that is ready, and that the API server calls."""
    with world.replica() as replica:
        world.shared.configure(replica.tls_port)
        replica.start()
        replica.wait_ready()
        until(world.is_patched)
        yield replica


def made(now: datetime = NOW, **lifetimes: timedelta) -> Material:
    return make(NAMES, now, lifetimes=replace(Lifetimes(), **lifetimes))


def test_two_replicas_that_start_at_once_share_one_ca_and_are_both_trusted(world: World) -> None:
    for _ in range(3):
        world.shared.clear()
        with world.replica("one") as one, world.replica("two") as two:
            world.shared.configure(one.tls_port)
            for replica in (one, two):
                replica.start("--dns-name", f"{replica.name}.example.com")
            for replica in (one, two):
                replica.wait_ready()
            until(lambda: world.shared.bundles() == [world.shared.material().authorities])
            (bundle,) = world.shared.bundles()
            assert len(signers(bundle)) == 1
            until(lambda: one.certificate(bundle) == two.certificate(bundle))  # noqa: B023 (called in this turn)
            until(world.is_patched)


def test_an_expired_certificate_is_replaced_at_start(world: World) -> None:
    expired = make(NAMES, NOW - timedelta(days=400))
    world.shared.put(expired)
    with world.replica() as replica:
        world.shared.configure(replica.tls_port)
        replica.start()
        replica.wait_ready()
        assert world.shared.material().authorities == expired.authorities  # its CA expires later
        replica.certificate(expired.authorities)
        until(world.is_patched)


def test_an_expired_ca_is_replaced_at_start(world: World) -> None:
    world.shared.put(make(NAMES, NOW - timedelta(days=4000)))
    with world.replica() as replica:
        world.shared.configure(replica.tls_port)
        replica.start()
        replica.wait_ready()
        (bundle,) = world.shared.bundles()
        assert len(signers(bundle)) == 1
        replica.certificate(bundle)
        until(world.is_patched)


class _Pods:
    """Create pods one after the other during this context; count those without variables."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.patched: list[bool] = []

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self.patched.append(self._world.is_patched())

    def __enter__(self) -> _Pods:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_a_certificate_that_is_about_to_end_is_replaced_while_pods_are_created(
    world: World, webhook: WebhookProcess
) -> None:
    old = world.shared.material()
    soon = made(datetime.now(UTC), **DUE_SOON | {"authority": timedelta(days=1)})
    soon = replace(soon, authorities=soon.authorities + old.authorities)  # as a renewal of the CA writes it
    with _Pods(world) as pods:
        world.shared.put(soon)
        until(lambda: world.shared.material().certificate not in (soon.certificate, old.certificate))
        until(lambda: webhook.certificate(soon.authorities) == der(world.shared.material()))
    assert len(pods.patched) > 10
    assert all(pods.patched)


def der(material: Material) -> bytes:
    return ssl.PEM_cert_to_DER_cert(material.certificate.decode())


def test_a_ca_that_is_about_to_end_is_replaced_under_both_replicas_while_pods_are_created(
    world: World, webhook: WebhookProcess
) -> None:
    old = world.shared.material()
    due = made(datetime.now(UTC), **DUE_SOON)
    with world.replica("two") as two:
        two.start()
        two.wait_ready()
        with _Pods(world) as pods:
            world.shared.put(replace(due, authorities=due.authorities + old.authorities))
            until(
                lambda: not signers(world.shared.material().authorities) <= signers(due.authorities + old.authorities)
            )
            now = world.shared.material()
            for replica in (webhook, two):
                until(lambda: replica.certificate(now.authorities) == der(now))  # noqa: B023 (called in this turn)
        assert signers(due.authorities) < signers(now.authorities)
        assert all(pods.patched)


def test_a_secret_that_is_deleted_is_stored_again_with_the_keys_in_use(world: World, webhook: WebhookProcess) -> None:
    before = world.shared.material()
    with _Pods(world) as pods:
        assert world.plane.request("DELETE", SECRET)[0] == HTTPStatus.OK
        world.plane.wait_for(SECRET, lambda found: found["kind"] == "Secret")
    assert world.shared.material() == before
    assert all(pods.patched)


def test_a_secret_that_is_emptied_gets_new_keys_without_a_pod_missing_its_variables(
    world: World, webhook: WebhookProcess
) -> None:
    before = world.shared.material()
    empty = dict.fromkeys(("ca.crt", "ca.key", "tls.crt", "tls.key"), "")
    with _Pods(world) as pods:
        assert world.plane.request("PATCH", SECRET, {"data": empty})[0] == HTTPStatus.OK
        until(lambda: any(world.shared.secret()["data"].values()))
        now = world.shared.material()
        until(lambda: webhook.certificate(now.authorities) == der(now))
    assert now.authority_key != before.authority_key
    assert signers(before.authorities) < signers(now.authorities)
    assert all(pods.patched)


def test_a_secret_of_somebody_else_is_left_alone(world: World) -> None:
    metadata = {"name": "fluence-webhook-tls", "namespace": "kube-system"}
    foreign = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"password": "secret"}}
    status, made = world.plane.request("POST", SECRETS, foreign)
    assert status == HTTPStatus.CREATED, made
    with world.replica() as replica:
        replica.start()
        until(lambda: replica.log.exists() and "does not belong to the webhook" in replica.log.read_text())
        status, text = replica.get("/readyz")
        assert (status, "lacks the label app.kubernetes.io/name: fluence-webhook" in text) == (503, True), text
        assert world.shared.secret() == made
        assert world.plane.request("DELETE", SECRET)[0] == HTTPStatus.OK
        replica.wait_ready()


def test_a_damaged_secret_is_replaced_by_the_keys_in_use(world: World, webhook: WebhookProcess) -> None:
    before = world.shared.material()
    assert world.plane.request("PATCH", SECRET, {"data": {"tls.key": "eA=="}})[0] == HTTPStatus.OK
    until(lambda: world.shared.secret()["data"]["tls.key"] != "eA==")
    assert world.shared.material() == before
    assert world.is_patched()


def test_a_configuration_that_comes_later_is_trusted_and_one_that_lost_its_bundle_again(world: World) -> None:
    with world.replica() as replica:
        replica.start()
        replica.wait_ready()
        assert "does not exist; apply it" in replica.log.read_text()
        assert replica.metrics()["fluence_webhook_trusted"] == 0
        world.shared.configure(replica.tls_port)
        until(world.is_patched)
        assert replica.metrics()["fluence_webhook_trusted"] == 1
        world.shared.patch_configuration(configuration(replica.tls_port)["webhooks"])
        until(lambda: world.shared.bundles() == [world.shared.material().authorities])
        until(world.is_patched)


def test_only_webhooks_that_lead_here_are_patched(world: World, webhook: WebhookProcess) -> None:
    (ours,) = configuration(webhook.tls_port)["webhooks"]
    service = {"name": "fluence-webhook", "namespace": "kube-system", "path": "/mutate/fluxion"}
    clients = [{"url": "https://example.com/"}, {"service": service | {"namespace": "default"}}, {"service": service}]
    others = [
        ours | {"name": f"n{number}.example.com", "clientConfig": client, "matchConditions": [
            {"name": "never", "expression": "false"}]} for number, client in enumerate(clients)
    ]  # fmt: skip
    world.shared.patch_configuration([ours, *others])
    until(lambda: len(signers(world.shared.bundles()[0])) > 0)
    assert [len(signers(bundle)) for bundle in world.shared.bundles()] == [1, 0, 0, 1]


def test_a_certificate_of_somebody_else_is_served_from_files_and_nothing_is_made_or_patched(world: World) -> None:
    certificate, key = world.folder / "tls.crt", world.folder / "tls.key"

    def write(material: Material) -> None:
        certificate.write_bytes(material.certificate)
        key.write_bytes(material.key)

    one, two = made(), made()
    write(one)
    with world.replica() as replica:
        manifest = configuration(replica.tls_port)
        bundle = base64.b64encode(one.authorities + two.authorities).decode()
        manifest["webhooks"][0]["clientConfig"]["caBundle"] = bundle
        world.plane.create(manifest)
        replica.start("--tls-cert", str(certificate), "--tls-key", str(key))
        replica.wait_ready()
        until(world.is_patched)
        with _Pods(world) as pods:
            write(two)
            until(lambda: replica.certificate(one.authorities + two.authorities) == der(two))
        assert all(pods.patched)
        assert world.shared.bundles() == [one.authorities + two.authorities]
        assert world.plane.request("GET", SECRET)[0] == HTTPStatus.NOT_FOUND
