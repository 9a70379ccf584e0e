"""CA and certificate as TLS clients see them, and when they are renewed."""

import ssl
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from fluence_plugins.env_injection.certificates import (
    LIFETIMES,
    DamagedError,
    Lifetimes,
    Material,
    check,
    expiry,
    make,
    renewed,
    service_names,
    signers,
)
from fluence_plugins.env_injection.server import load_chain, tls_context

NAMES = service_names("fluence-webhook", "kube-system")
NOW = datetime(2030, 1, 1, tzinfo=UTC)
REAL_NOW = datetime.now(UTC)
"""For handshakes, which go by the machine's clock."""
DAY = timedelta(days=1)


def shake_hands(material: Material, bundle: bytes, name: str) -> bytes | None:
    """The certificate that a strict client verifies by the bundle and for the name. Raises ssl.SSLError."""
    serving = tls_context()
    load_chain(serving, material.chain)
    asking = ssl.create_default_context(cadata=bundle.decode())
    asking.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(to_client, to_server, server_hostname=name)
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    done = 0
    while done < 2:
        done = 0
        for side in (client, server):
            try:
                side.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                continue
    return client.getpeercert(binary_form=True)


def names_of(material: Material) -> set[str]:
    certificate = x509.load_pem_x509_certificate(material.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in names}


@pytest.mark.parametrize("name", [*NAMES, "10.0.0.7", "::1", "hooks.example.com"])
def test_a_strict_client_trusts_the_certificate_for_each_of_its_names(name: str) -> None:
    material = make(service_names("fluence-webhook", "kube-system", ["10.0.0.7", "::1", "hooks.example.com"]), REAL_NOW)
    assert shake_hands(material, material.authorities, name)


def test_no_other_name_and_no_other_ca_is_trusted() -> None:
    material = make(NAMES, REAL_NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(material, material.authorities, "fluence-webhook.default.svc")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(material, make(NAMES, REAL_NOW).authorities, NAMES[0])


def test_the_names_are_those_by_which_the_api_server_reaches_the_service() -> None:
    assert service_names("hook", "space", ["0:0:0:0:0:0:0:1", "hook.space.svc"]) == [
        "hook.space.svc", "hook.space.svc.cluster.local", "hook.space", "::1",
    ]  # fmt: skip


def test_no_representation_shows_a_key() -> None:
    material = make(NAMES, NOW)
    assert "PRIVATE" in material.key.decode()
    for shown in (repr(material), str(material)):
        assert "PRIVATE" not in shown
        assert "key=" not in shown


def test_a_new_certificate_is_valid_and_not_due() -> None:
    material = make(NAMES, NOW)
    check(material)
    assert renewed(material, NAMES, NOW) is None
    assert renewed(material, NAMES, NOW - LIFETIMES.backdated) is None
    assert expiry(material.certificate) == NOW + LIFETIMES.serving


@pytest.mark.parametrize(("days", "due"), [(240, False), (244, True), (366, True), (2000, True)])
def test_the_certificate_is_renewed_by_the_same_ca_after_two_thirds_of_its_life(days: int, due: bool) -> None:
    material = make(NAMES, NOW)
    found = renewed(material, NAMES, NOW + days * DAY)
    assert (found is not None) is due
    if found is not None:
        new, why = found
        assert (new.authorities, new.authority_key, why) == (
            material.authorities, material.authority_key, "renewed the certificate")  # fmt: skip
        assert new.key != material.key
        check(new)
        assert renewed(new, NAMES, NOW + days * DAY) is None


def test_the_ca_is_renewed_after_two_thirds_of_its_life_and_the_old_one_stays_trusted_for_a_while() -> None:
    material = make(NAMES, NOW)
    then = NOW + LIFETIMES.authority * 2 / 3
    found = renewed(material, NAMES, then)
    assert found is not None
    new, why = found
    assert why == "renewed the CA"
    assert signers(material.authorities) < signers(new.authorities)
    assert renewed(new, NAMES, then + LIFETIMES.overlap - timedelta(seconds=1)) is None
    alone = renewed(new, NAMES, then + LIFETIMES.overlap + timedelta(seconds=1))
    assert alone is not None
    assert signers(alone[0].authorities) == signers(new.authorities) - signers(material.authorities)
    assert (alone[0].certificate, alone[0].key) == (new.certificate, new.key)


def test_an_expired_ca_is_not_trusted_beside_the_new_one() -> None:
    material = make(NAMES, NOW)
    found = renewed(material, NAMES, NOW + LIFETIMES.authority + DAY)
    assert found is not None
    assert len(signers(found[0].authorities)) == 1


def test_a_certificate_that_is_not_valid_yet_is_replaced() -> None:
    found = renewed(make(NAMES, NOW), NAMES, NOW - DAY)
    assert found is not None
    assert expiry(found[0].certificate) == NOW - DAY + LIFETIMES.serving


def test_a_certificate_always_expires_before_its_ca() -> None:
    material = make(NAMES, NOW)
    for days in range(0, 12 * 365, 20):
        found = renewed(material, NAMES, NOW + days * DAY)
        material = material if found is None else found[0]
        ca = x509.load_pem_x509_certificates(material.authorities)[0]
        assert expiry(material.certificate) <= ca.not_valid_after_utc
        assert NOW + days * DAY < expiry(material.certificate) - LIFETIMES.serving / 4


def test_a_missing_name_is_added_to_the_existing_ones_so_that_two_versions_agree() -> None:
    first = make(NAMES, NOW)
    second = renewed(first, [*NAMES, "b.example.com"], NOW)
    assert second is not None
    assert second[1] == "the certificate lacks b.example.com"
    third = renewed(second[0], [*NAMES, "a.example.com"], NOW)
    assert third is not None
    assert names_of(third[0]) == {*NAMES, "a.example.com", "b.example.com"}
    for wanted in (NAMES, [*NAMES, "b.example.com"], [*NAMES, "a.example.com"]):
        assert renewed(third[0], wanted, NOW) is None


def test_unused_names_do_not_accumulate() -> None:
    material = make(NAMES, NOW)
    for number in range(60):
        found = renewed(material, [*NAMES, f"n{number}.example.com"], NOW)
        assert found is not None
        material = found[0]
    assert len(names_of(material)) <= 40


def _rsa_key() -> bytes:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def damages() -> Sequence[tuple[str, Material, str]]:
    good, other = make(NAMES, NOW), make(NAMES, NOW)
    text = b"nothing"
    encrypted = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    return [
        ("no ca", replace(good, authorities=text), "ca.crt contains no certificate"),
        ("empty certificate", replace(good, certificate=b""), "tls.crt contains no certificate"),
        ("cut off", replace(good, certificate=good.certificate[:300]), "tls.crt contains no certificate"),
        ("no key", replace(good, key=text), "tls.key contains no usable key"),
        ("key cut off", replace(good, key=good.key[:100]), "tls.key contains no usable key"),
        ("key with a password", replace(good, key=encrypted), "tls.key contains no usable key"),
        ("key of another kind", replace(good, key=_rsa_key()), "tls.key contains no elliptic-curve key"),
        ("another's key", replace(good, key=other.key), "tls.key is not the key of tls.crt"),
        ("another's ca key", replace(good, authority_key=other.authority_key), "ca.key is not the key of ca.crt"),
        ("another's certificate", replace(good, certificate=other.certificate, key=other.key),
         "tls.crt is not signed by ca.crt"),
    ]  # fmt: skip


@pytest.mark.parametrize(("material", "problem"), [each[1:] for each in damages()], ids=[each[0] for each in damages()])
def test_a_mismatch_is_an_error_of_one_line_without_the_key(material: Material, problem: str) -> None:
    for look in (check, lambda each: renewed(each, NAMES, NOW)):
        with pytest.raises(DamagedError) as reported:
            look(material)
        assert str(reported.value).startswith(problem)
        assert "\n" not in str(reported.value)
        assert "PRIVATE" not in str(reported.value)


def test_lifetimes_of_seconds_work_like_those_of_years() -> None:
    brief = Lifetimes(authority=timedelta(minutes=1), serving=timedelta(seconds=9), backdated=timedelta())
    material = make(NAMES, NOW, lifetimes=brief)
    assert renewed(material, NAMES, NOW + timedelta(seconds=5), brief) is None
    assert renewed(material, NAMES, NOW + timedelta(seconds=6), brief) is not None
