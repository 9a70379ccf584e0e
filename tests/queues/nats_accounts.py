"""An operator of NATS with one account and one user, as JWTs: what `nsc` makes, without it.

Source: https://docs.nats.io/running-a-nats-service/nats_admin/security/jwt, and nats-io/jwt (version 2).
"""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass
from typing import Any, Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fluence_plugins.master_queue.nats.nkeys import SEED, USER, text_of

_OPERATOR: Final = 14 << 3
_ACCOUNT: Final = 0
_NO_LIMITS: Final = {"subs": -1, "data": -1, "payload": -1}


@dataclass(frozen=True)
class _Key:
    kind: int
    private: Ed25519PrivateKey

    @classmethod
    def new(cls, kind: int) -> Self:
        return cls(kind, Ed25519PrivateKey.generate())

    @property
    def public(self) -> str:
        return text_of(bytes([self.kind]) + self.private.public_key().public_bytes_raw())

    @property
    def seed(self) -> str:
        return text_of(bytes([SEED | self.kind >> 5, (self.kind & 31) << 3]) + self.private.private_bytes_raw())

    def signed(self, subject: str, kind: str, **claims: Any) -> str:
        """A JWT of this issuer."""
        named = {"iss": self.public, "sub": subject, "name": kind, "iat": int(time.time()), "jti": subject}
        body = named | {"nats": {"type": kind, "version": 2, **claims}}
        text = f"{_encoded({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_encoded(body)}"
        return f"{text}.{_base64(self.private.sign(text.encode()))}"


class Accounts:
    """They are new each time."""

    def __init__(self) -> None:
        self._operator, self._account, self._user = _Key.new(_OPERATOR), _Key.new(_ACCOUNT), _Key.new(USER)

    @property
    def configuration(self) -> dict[str, Any]:
        """The configuration of a nats-server."""
        limits = _NO_LIMITS | {"imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
        account = self._operator.signed(self._account.public, "account", limits=limits)
        return {
            "operator": self._operator.signed(self._operator.public, "operator"),
            "resolver": "MEMORY",
            "resolver_preload": {self._account.public: account},
        }

    @property
    def credentials(self) -> str:
        """The user's .creds file."""
        jwt = self._account.signed(self._user.public, "user", **_NO_LIMITS)
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{self._user.seed}\n------END USER NKEY SEED------\n"
        )


def _encoded(value: object) -> str:
    return _base64(json.dumps(value).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
