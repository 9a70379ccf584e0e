"""The webhook's own CA and serving certificate: made, checked and renewed. Pure functions of what is given and a time.

The serving certificate is renewed after two thirds of its life, and so is the CA. A new CA is trusted beside the old
one for a while (`Lifetimes.overlap`), in which every replica comes to serve a certificate of the new one: ca.crt is at
any time what a client has to trust.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from session_scheduler.errors import FluenceError

_DUE: Final = 2 / 3
_MOST_NAMES: Final = 32
"""Names that a certificate takes over from the one before it, besides the wanted ones, are as many at most."""


class DamagedError(FluenceError):
    """Keys and certificates that do not go together, or are none. Its text holds nothing of them."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long what is made here lasts."""

    authority: timedelta = timedelta(days=3650)
    serving: timedelta = timedelta(days=365)
    backdated: timedelta = timedelta(hours=1)
    """Before now, when it begins: clocks differ."""
    overlap: timedelta = timedelta(hours=1)
    """How long an old CA is trusted beside a new one."""


LIFETIMES: Final = Lifetimes()


@dataclass(frozen=True, slots=True)
class Material:
    """What replicas share, each in PEM. `authorities` are the CA and, after it, older ones that are still trusted."""

    authorities: bytes
    authority_key: bytes = field(repr=False)
    certificate: bytes
    key: bytes = field(repr=False)

    @property
    def chain(self) -> bytes:
        """The serving certificate and its key, as a TLS context loads them."""
        return self.certificate + self.key


@dataclass(frozen=True, slots=True)
class _Opened:
    authorities: list[x509.Certificate]
    authority_key: ec.EllipticCurvePrivateKey = field(repr=False)
    certificate: x509.Certificate


def service_names(service: str, namespace: str, further: Iterable[str] = ()) -> list[str]:
    """The names by which an API server, and others, reach the Service, then further host names and IP addresses."""
    local = f"{service}.{namespace}"
    return list(dict.fromkeys([f"{local}.svc", f"{local}.svc.cluster.local", local, *map(_plain, further)]))


def _plain(name: str) -> str:
    """The name as a certificate gives it back."""
    general = _general(name)
    return str(general.value)


# ------------------------------------------------------------------ making


def make(names: Sequence[str], now: datetime, *, trusted: bytes = b"", lifetimes: Lifetimes = LIFETIMES) -> Material:
    """A new CA and its certificate for `names`; `trusted` are older CAs (PEM) that stay trusted for a while."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"fluence-webhook CA {serial % 16**8:08x}")])
    public = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    authority = (
        _begun(name, name, serial, now, lifetimes.authority, lifetimes)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(public, critical=False)
        .sign(key, hashes.SHA256())
    )
    return _with_certificate(_pem(authority) + trusted, key, authority, names, now, lifetimes)


def _with_certificate(
    authorities: bytes,
    authority_key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    names: Sequence[str],
    now: datetime,
    lifetimes: Lifetimes,
) -> Material:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fluence-webhook")])
    serial = x509.random_serial_number()
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        _begun(subject, authority.subject, serial, now, lifetimes.serving, lifetimes)
        .public_key(key.public_key())
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return Material(authorities, _key_pem(authority_key), _pem(certificate), _key_pem(key))


def _begun(
    subject: x509.Name, issuer: x509.Name, serial: int, now: datetime, life: timedelta, lifetimes: Lifetimes
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).serial_number(serial)
    return builder.not_valid_before(now - lifetimes.backdated).not_valid_after(now + life)


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


# ------------------------------------------------------------------ checking


def check(material: Material) -> None:
    """Raises DamagedError unless keys and certificates go together."""
    _opened(material)


def _opened(material: Material) -> _Opened:
    authorities = _certificates(material.authorities, "ca.crt")
    certificate = _certificates(material.certificate, "tls.crt")[0]
    authority_key, key = _private(material.authority_key, "ca.key"), _private(material.key, "tls.key")
    if authority_key.public_key() != _public(authorities[0], "ca.crt"):
        raise DamagedError("ca.key is not the key of ca.crt")
    if key.public_key() != _public(certificate, "tls.crt"):
        raise DamagedError("tls.key is not the key of tls.crt")
    try:
        certificate.verify_directly_issued_by(authorities[0])
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):
        raise DamagedError("tls.crt is not signed by ca.crt") from None
    return _Opened(authorities, authority_key, certificate)


def _certificates(pem: bytes, what: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise DamagedError(f"{what} holds no certificate") from None


def _public(certificate: x509.Certificate, what: str) -> object:
    try:
        return certificate.public_key()
    except (ValueError, UnsupportedAlgorithm):
        raise DamagedError(f"{what} holds no usable certificate") from None


def _private(pem: bytes, what: str) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # a TypeError where it wants a password
        raise DamagedError(f"{what} holds no usable key") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DamagedError(f"{what} holds no key of an elliptic curve")
    return key


def signers(pem: bytes) -> frozenset[bytes]:
    """The certificates in a bundle, each in its binary form; none where it is no bundle."""
    try:
        return frozenset(each.public_bytes(serialization.Encoding.DER) for each in x509.load_pem_x509_certificates(pem))
    except ValueError:
        return frozenset()


def bundle_of(authorities: Iterable[bytes]) -> bytes:
    """A bundle (PEM) of certificates in their binary form, always in the same order."""
    return b"".join(_pem(x509.load_der_x509_certificate(each)) for each in sorted(authorities))


def signer(material: Material) -> bytes:
    """The CA of the serving certificate, in its binary form."""
    return _certificates(material.authorities, "ca.crt")[0].public_bytes(serialization.Encoding.DER)


def expiry(certificate: bytes) -> datetime:
    """When the first certificate of a PEM ends. Raises DamagedError."""
    return _certificates(certificate, "tls.crt")[0].not_valid_after_utc


# ------------------------------------------------------------------ renewing


def renewed(
    material: Material, names: Sequence[str], now: datetime, lifetimes: Lifetimes = LIFETIMES
) -> tuple[Material, str] | None:
    """What is to replace the material now, and why; None where nothing is due. Raises DamagedError."""
    opened = _opened(material)
    authority, *older = opened.authorities
    if _due(authority, now):
        trusted = b"".join(_pem(each) for each in opened.authorities if now < each.not_valid_after_utc)
        return make(names, now, trusted=trusted, lifetimes=lifetimes), "the CA is renewed"
    over = now >= authority.not_valid_before_utc + lifetimes.backdated + lifetimes.overlap
    bundle = _pem(authority) if over else material.authorities
    theirs = _names(opened.certificate)
    missing = [name for name in names if name not in theirs]
    if missing or _due(opened.certificate, now):
        why = f"the certificate lacks {missing[0]}" if missing else "the certificate is renewed"
        kept = [name for name in theirs if name not in names][:_MOST_NAMES]
        covered = list(names) + kept
        return _with_certificate(bundle, opened.authority_key, authority, covered, now, lifetimes), why
    if older and over:
        return replace(material, authorities=bundle), "the older CA is trusted no more"
    return None


def _due(certificate: x509.Certificate, now: datetime) -> bool:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return not begin <= now < begin + (end - begin) * _DUE


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return found.get_values_for_type(x509.DNSName) + [str(ip) for ip in found.get_values_for_type(x509.IPAddress)]
