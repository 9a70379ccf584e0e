"""Creates, validates and renews the webhook's own CA and serving certificate. Pure functions of their input and a time.

The serving certificate and the CA are each renewed after two thirds of their lifetime. A new CA is trusted alongside
the old one for a while (`Lifetimes.overlap`), until every replica serves a certificate of the new CA. ca.crt always
contains the CAs that a client must trust.
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
"""The maximum number of names that a renewed certificate keeps from the old one, besides the wanted names."""


class DamagedError(FluenceError):
    """Keys and certificates are invalid or do not match. The text contains no part of them."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """The lifetimes of certificates."""

    authority: timedelta = timedelta(days=3650)
    serving: timedelta = timedelta(days=365)
    backdated: timedelta = timedelta(hours=1)
    """How long before now a certificate becomes valid, because clocks differ."""
    overlap: timedelta = timedelta(hours=1)
    """How long an old CA is trusted alongside a new one."""


LIFETIMES: Final = Lifetimes()


@dataclass(frozen=True, slots=True)
class Material:
    """The material that replicas share, in PEM. `authorities` contains the CA, then older CAs that
    are still trusted.
    """

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
    """The names by which API servers and others reach the Service, and further host names and IP addresses."""
    local = f"{service}.{namespace}"
    return list(dict.fromkeys([f"{local}.svc", f"{local}.svc.cluster.local", local, *map(_plain, further)]))


def _plain(name: str) -> str:
    """The name in the form that a certificate returns."""
    general = _general(name)
    return str(general.value)


# ------------------------------------------------------------------ creation


def make(names: Sequence[str], now: datetime, *, trusted: bytes = b"", lifetimes: Lifetimes = LIFETIMES) -> Material:
    """A new CA and its certificate for `names`. `trusted`: older CAs (PEM) that stay trusted for a while."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"fluence-webhook CA {serial % 16**8:08x}")])
    public = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    authority = (
        _builder(name, name, serial, now, lifetimes.authority, lifetimes)
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
        _builder(subject, authority.subject, serial, now, lifetimes.serving, lifetimes)
        .public_key(key.public_key())
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return Material(authorities, _key_pem(authority_key), _pem(certificate), _key_pem(key))


def _builder(
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


# ------------------------------------------------------------------ validation


def check(material: Material) -> None:
    """Raise DamagedError unless keys and certificates match."""
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
        raise DamagedError(f"{what} contains no certificate") from None


def _public(certificate: x509.Certificate, what: str) -> object:
    try:
        return certificate.public_key()
    except (ValueError, UnsupportedAlgorithm):
        raise DamagedError(f"{what} contains no usable certificate") from None


def _private(pem: bytes, what: str) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: the key has a password
        raise DamagedError(f"{what} contains no usable key") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DamagedError(f"{what} contains no elliptic-curve key")
    return key


def signers(pem: bytes) -> frozenset[bytes]:
    """The certificates in a bundle, in DER; empty if it is not a valid bundle."""
    try:
        return frozenset(each.public_bytes(serialization.Encoding.DER) for each in x509.load_pem_x509_certificates(pem))
    except ValueError:
        return frozenset()


def bundle_of(authorities: Iterable[bytes]) -> bytes:
    """A bundle (PEM) of certificates in DER, always in the same order."""
    return b"".join(_pem(x509.load_der_x509_certificate(each)) for each in sorted(authorities))


def signer(material: Material) -> bytes:
    """The CA of the serving certificate, in DER."""
    return _certificates(material.authorities, "ca.crt")[0].public_bytes(serialization.Encoding.DER)


def expiry(certificate: bytes) -> datetime:
    """When the first certificate of a PEM expires. Raises DamagedError."""
    return _certificates(certificate, "tls.crt")[0].not_valid_after_utc


# ------------------------------------------------------------------ renewal


def renewed(
    material: Material, names: Sequence[str], now: datetime, lifetimes: Lifetimes = LIFETIMES
) -> tuple[Material, str] | None:
    """The replacement for the material, and the reason; None if nothing is due. Raises DamagedError."""
    opened = _opened(material)
    authority, *older = opened.authorities
    if _due(authority, now):
        trusted = b"".join(_pem(each) for each in opened.authorities if now < each.not_valid_after_utc)
        return make(names, now, trusted=trusted, lifetimes=lifetimes), "renewed the CA"
    over = now >= authority.not_valid_before_utc + lifetimes.backdated + lifetimes.overlap
    bundle = _pem(authority) if over else material.authorities
    theirs = _names(opened.certificate)
    missing = [name for name in names if name not in theirs]
    if missing or _due(opened.certificate, now):
        why = f"the certificate lacks {missing[0]}" if missing else "renewed the certificate"
        kept = [name for name in theirs if name not in names][:_MOST_NAMES]
        covered = list(names) + kept
        return _with_certificate(bundle, opened.authority_key, authority, covered, now, lifetimes), why
    if older and over:
        return replace(material, authorities=bundle), "removed the older CA"
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
