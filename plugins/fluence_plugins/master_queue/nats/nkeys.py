"""NATS keys (nkeys): decodes a user's seed, and provides its public key and signatures.

A key as text is base32 without padding: prefix, 32 bytes, and CRC-16/XMODEM of both, low byte first. The two-byte
prefix of a seed combines the prefix of seeds with that of the key's kind.
Source: https://docs.nats.io/running-a-nats-service/configuration/securing_nats/auth_intro/nkey_auth, and nats-io/nkeys.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

SEED: Final = 18 << 3
USER: Final = 20 << 3
_SEED_BYTES: Final = 36
_SEED_CHARACTERS: Final = 58


class SeedError(ValueError):
    """Not a valid seed of a user. The message shows no part of it."""


class UserKey:
    """The key pair of a user."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private

    @property
    def public(self) -> str:
        """The public key, by which servers identify the user: U…"""
        raw = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return text_of(bytes([USER]) + raw)

    def signature(self, nonce: str) -> str:
        """The signature of the server's nonce, which authenticates the user: base64url without padding."""
        return base64.urlsafe_b64encode(self._private.sign(nonce.encode())).rstrip(b"=").decode()


def user_key(seed: str) -> UserKey:
    """Decode a user's seed, SU…. Raises SeedError."""
    if len(seed) != _SEED_CHARACTERS:
        raise SeedError(f"a seed has {_SEED_CHARACTERS} characters")
    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    except (binascii.Error, ValueError):
        raise SeedError("a seed has only A-Z and 2-7") from None
    if len(raw) != _SEED_BYTES or crc16(raw[:-2]) != int.from_bytes(raw[-2:], "little"):
        raise SeedError("the seed's checksum is wrong")
    kind = (raw[0] & 7) << 5 | raw[1] >> 3
    if raw[0] & 0xF8 != SEED or kind != USER:
        raise SeedError("a user's seed starts with SU")
    return UserKey(Ed25519PrivateKey.from_private_bytes(raw[2:-2]))


def text_of(data: bytes) -> str:
    """A key (prefix and bytes) as text."""
    return base64.b32encode(data + crc16(data).to_bytes(2, "little")).rstrip(b"=").decode()


def crc16(data: bytes) -> int:
    """CRC-16/XMODEM."""
    return binascii.crc_hqx(data, 0)
