"""A certificate that another tool makes."""

import asyncio
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from fluence_plugins.env_injection.certificate_files import CertificateFiles
from fluence_plugins.env_injection.certificates import LIFETIMES, Material, make
from fluence_plugins.env_injection.metrics import WebhookMetrics
from fluence_plugins.env_injection.server import load_chain, tls_context
from session_scheduler.errors import InputError

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class World:
    def __init__(self, folder: Path) -> None:
        self.certificate, self.key = folder / "tls.crt", folder / "tls.key"
        self.served: list[bytes] = []
        self.now = NOW
        self.metrics = WebhookMetrics()

    def write(self, material: Material) -> None:
        self.certificate.write_bytes(material.certificate)
        self.key.write_bytes(material.key)

    def serve(self, chain: bytes) -> None:
        load_chain(tls_context(), chain)  # raises as the server's does
        self.served.append(chain)

    def keeper(self) -> CertificateFiles:
        return CertificateFiles(
            str(self.certificate), str(self.key), serve=self.serve, metrics=self.metrics, now=lambda: self.now
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_files_are_served_until_they_change(world: World) -> None:
    one, two = make(["a"], NOW), make(["a"], NOW + timedelta(days=1))
    world.write(one)
    keeper = world.keeper()
    keeper.check()
    world.write(two)
    keeper.check()
    keeper.check()
    assert [chain.startswith(material.certificate) for chain, material in zip(world.served, (one, two), strict=True)]
    until = world.metrics.registry.get_sample_value("fluence_webhook_certificate_expiry_timestamp_seconds")
    assert until == (NOW + timedelta(days=1) + LIFETIMES.serving).timestamp()


def with_pass_phrase(material: Material, phrase: bytes) -> Material:
    key = serialization.load_pem_private_key(material.key, None)
    encryption = serialization.BestAvailableEncryption(phrase)
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    return replace(material, key=text)


def test_a_key_with_a_pass_phrase_is_rejected_without_a_prompt(world: World) -> None:
    good, locked = make(["a"], NOW), with_pass_phrase(make(["a"], NOW), b"secret")
    world.write(locked)
    with pytest.raises(InputError, match=r"a key without a passphrase$"):
        world.keeper()
    world.write(good)
    keeper = world.keeper()
    world.write(locked)
    with pytest.raises(InputError):
        keeper.check()
    assert [chain.startswith(good.certificate) for chain in world.served] == [True]


def test_the_metric_of_trust_has_no_value(world: World) -> None:
    world.write(make(["a"], NOW))
    world.keeper()
    assert math.isnan(world.metrics.registry.get_sample_value("fluence_webhook_trusted") or 0)


def test_an_expired_certificate_makes_the_replica_not_ready(world: World) -> None:
    world.write(make(["a"], NOW))
    keeper = world.keeper()
    assert keeper.problems() == {"certificate": None}
    world.now += LIFETIMES.serving
    assert keeper.problems() == {"certificate": f"the certificate has expired; renew {world.certificate}"}


def test_invalid_files_at_the_start_are_one_error(world: World) -> None:
    with pytest.raises(InputError, match=r"tls\.crt: cannot be read \(No such file or directory\)"):
        world.keeper()
    one, two = make(["a"], NOW), make(["a"], NOW)
    world.write(one)
    for key in (two.key, b"", b"nothing"):
        world.key.write_bytes(key)
        with pytest.raises(
            InputError, match=r"tls\.crt and .*tls\.key are not a matching certificate and key"
        ) as reported:
            world.keeper()
        assert "PRIVATE" not in str(reported.value)


async def test_invalid_files_are_logged_once_and_the_previous_certificate_stays(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = make(["a"], NOW), make(["a"], NOW)
    world.write(one)
    keeper = world.keeper()
    turns: list[float] = []

    async def sleep(seconds: float) -> None:
        turns.append(seconds)
        if len(turns) == 2:
            world.certificate.write_bytes(two.certificate)  # as while another tool replaces both
        if len(turns) == 5:
            world.write(two)
        if len(turns) == 7:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await keeper.run(60.0, sleep)
    assert [chain.startswith(two.certificate) for chain in world.served] == [False, True]
    assert caplog.text.count("cannot reload the certificate, keeping the old one") == 1
    failed = world.metrics.registry.get_sample_value("fluence_webhook_certificate_checks_total", {"result": "failed"})
    assert failed == 3
