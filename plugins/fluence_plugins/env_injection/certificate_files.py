"""Serves a certificate that another controller, such as cert-manager, writes to files. Reloads the files when they
change.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

from fluence_plugins.env_injection.certificates import DamagedError, expiry
from fluence_plugins.env_injection.logs import log
from fluence_plugins.env_injection.metrics import WebhookMetrics
from session_scheduler.errors import InputError


class CertificateFiles:
    """Loads the certificate from files. `run` is its task."""

    def __init__(
        self,
        certificate: str,
        key: str,
        *,
        serve: Callable[[bytes], None],
        metrics: WebhookMetrics,
        now: Callable[[], datetime],
    ) -> None:
        """`serve` is called with certificate and key (PEM). Raises InputError if they are unusable."""
        self._certificate = Path(certificate)
        self._key = Path(key)
        self._serve = serve
        self._metrics = metrics
        self._now = now
        self._chain = b""
        self._expiry = now()
        self._problem: str | None = None
        metrics.trusted(None)
        self.check()

    async def run(self, every: float, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Check the files at this interval, forever. If they become unusable, the last certificate stays in use."""
        while True:
            await sleep(every)
            try:
                self.check()
            except InputError as error:
                self._metrics.checked("failed")
                if str(error) != self._problem:  # log it only once
                    log.error("cannot reload the certificate, keeping the old one: %s", error)
                self._problem = str(error)

    def check(self) -> None:
        """Load the files if they have changed. Raises InputError."""
        try:
            certificate, key = self._certificate.read_bytes(), self._key.read_bytes()
        except OSError as error:
            raise InputError(f"{error.filename}: cannot be read ({error.strerror}); name a readable file") from None
        chain = certificate + b"\n" + key
        if chain != self._chain:
            try:
                until = expiry(certificate)
                self._serve(chain)
            except (DamagedError, OSError):
                raise InputError(
                    f"{self._certificate} and {self._key} are not a matching certificate and key; use PEM files, "
                    "and a key without a passphrase"
                ) from None
            self._chain, self._expiry = chain, until
            self._metrics.serves(until)
            log.info("serving a certificate that expires %s", until.isoformat())
        self._metrics.checked("ok")
        self._problem = None

    def problems(self) -> dict[str, str | None]:
        """The problem of each check, or None."""
        over = self._now() >= self._expiry
        return {"certificate": f"the certificate has expired; renew {self._certificate}" if over else None}
