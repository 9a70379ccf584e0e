"""Reconciles the certificate: stores it in a Secret, renews it before it expires, and sets it in the webhook
configuration.

All replicas do the same at each check, without a leader. The first one creates or replaces the Secret (guarded by its
resourceVersion), and the others use it. When the CA changes, the order matters. First the configuration trusts the new
CA. The replicas serve its certificate only from the next check on, because API servers see a changed configuration with
a delay. For the same reason a replica is ready only when a check has found its CA already trusted.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from fluence_plugins.env_injection.certificate_secret import material_of, new_secret, with_material
from fluence_plugins.env_injection.certificates import DamagedError, Material, expiry, make, renewed, signer
from fluence_plugins.env_injection.logs import log
from fluence_plugins.env_injection.metrics import WebhookMetrics
from fluence_plugins.env_injection.webhook_configuration import Configuration
from session_scheduler.errors import FluenceError
from session_scheduler.sdk.dynamic_client import ClusterError, Conflict, Forbidden, KubeApi, NotFound

CHECK_SECONDS: Final = 60.0
_FIRST_PAUSE: Final = 1.0
"""The pause after a failed check; doubled each time, up to the normal interval."""
_TRIES: Final = 5
"""How many times a write of the Secret is attempted while other replicas change it."""


@dataclass(frozen=True, slots=True)
class SecretPlace:
    """The location of the Secret."""

    namespace: str
    name: str

    @property
    def collection(self) -> str:
        """The API path at which the Secret is created."""
        return f"/api/v1/namespaces/{self.namespace}/secrets"

    @property
    def path(self) -> str:
        """The API path of the Secret."""
        return f"{self.collection}/{self.name}"


@dataclass(eq=False)
class CertificateReconciler:
    """The reconciler of one replica. `run` is its task; `check` reconciles everything once."""

    api: KubeApi
    place: SecretPlace
    configuration: Configuration
    names: Sequence[str]
    serve: Callable[[Material], None]
    """Called when different material must be served from now on."""
    metrics: WebhookMetrics
    now: Callable[[], datetime]

    def __post_init__(self) -> None:
        self._served: Material | None = None
        self._stored: Material | None = None
        self._problem: str | None = "the Secret has not been read yet"
        self._failing = False
        self._trusted = False
        """Whether API servers trust the served certificate: a check found that the configuration already did."""

    async def run(
        self, every: float = CHECK_SECONDS, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Check at this interval, or sooner after a failure; forever."""
        pause = _FIRST_PAUSE
        while True:
            try:
                await self.check()
                pause = _FIRST_PAUSE
                wait = every if self._trusted else min(_FIRST_PAUSE, every)
            except FluenceError as error:
                wait, pause = min(pause, every), pause * 2
                self._failed(error)
            await sleep(wait)

    def _failed(self, error: FluenceError) -> None:
        self.metrics.checked("failed")
        problem = str(error)
        if isinstance(error, Forbidden):
            problem += (
                f"; allow the ServiceAccount to create Secrets, get and update Secret {self.place.name}, "
                f"and get and patch MutatingWebhookConfiguration {self.configuration.name}"
            )
        if problem != self._problem:  # log it only once
            log.error("cannot check the certificate: %s", problem)
        self._problem, self._failing = problem, True

    def problems(self) -> dict[str, str | None]:
        """The problem of each check that makes this replica unusable, or None."""
        if self._served is None:
            return {"certificate": self._problem}
        over = self.now() >= expiry(self._served.certificate)
        return {
            "certificate": f"the certificate has expired: {self._problem or 'it will be renewed soon'}"
            if over
            else None,
            "configuration": None
            if self._trusted
            else f"MutatingWebhookConfiguration {self.configuration.name} does not trust the certificate yet",
        }

    # ------------------------------------------------------------------ one check

    async def check(self) -> None:
        """Read or create the Secret, make the configuration trust it, and serve it. Raises FluenceError."""
        material = self._stored = await self._reconcile_secret()
        try:
            before = await self.configuration.trust(material.authorities)
        except ClusterError:
            # The configuration's CAs are unknown, except the one that has been served until now.
            self._serve_if_trusted(
                material, frozenset({signer(self._served)} if self._served and self._trusted else ())
            )
            raise
        self._serve_if_trusted(material, before)
        self.metrics.checked("ok")
        if self._failing:
            log.info("the certificate check succeeds again")
        self._problem, self._failing = None, False

    def _serve_if_trusted(self, material: Material, trusted_before: frozenset[bytes] | None) -> None:
        """Serve the material unless API servers may not trust it yet."""
        if self._served != material and self._may_serve(material, trusted_before):
            self.serve(material)
            self._served = material
            until = expiry(material.certificate)
            self.metrics.serves(until)
            log.info("serving a certificate that expires %s", until.isoformat())
        by = signer(self._served or material)
        self._trusted = trusted_before is None or by in trusted_before
        self.metrics.trusted(self.configuration.trusts(by))

    def _may_serve(self, material: Material, trusted_before: frozenset[bytes] | None) -> bool:
        """Whether API servers already trust the material, or do not trust the served one anyway."""
        if self._served is None or trusted_before is None or signer(material) in trusted_before:
            return True
        return self.now() >= expiry(self._served.certificate) or signer(self._served) not in trusted_before

    # ------------------------------------------------------------------ the Secret

    async def _reconcile_secret(self) -> Material:
        """The Secret's material after this replica's update."""
        for _ in range(_TRIES - 1):
            try:
                return await self._try_reconcile_secret()
            except (Conflict, NotFound):  # another client changed or deleted it: read it again
                continue
        return await self._try_reconcile_secret()

    async def _try_reconcile_secret(self) -> Material:
        place, now = self.place, self.now()
        why: str | None
        try:
            secret = await self.api.get(place.path)
        except NotFound:
            material, why = self._stored_or_new(now)
            await self.api.create(place.collection, new_secret(place.name, place.namespace, material))
        else:
            material, why = self._wanted(secret, now)
            if why is None:
                return material
            await self.api.replace(place.path, with_material(secret, material))
        self.metrics.written()
        log.info("wrote Secret %s/%s: %s", place.namespace, place.name, why)
        return material

    def _wanted(self, secret: Mapping[str, Any], now: datetime) -> tuple[Material, str | None]:
        """The material that the Secret must contain, and why it must be written; None if it contains just that."""
        try:
            found = material_of(secret)
            if found is None:
                return self._new_keys(now, "created new keys, because it was empty")
            return renewed(found, self.names, now) or (found, None)
        except DamagedError as error:
            log.error("Secret %s/%s is unusable: %s", self.place.namespace, self.place.name, error)
            return self._stored_or_new(now)

    def _stored_or_new(self, now: datetime) -> tuple[Material, str]:
        """The material stored earlier, so that nothing changes for API servers and other replicas; else new keys."""
        if self._stored is None:
            return self._new_keys(now, "created new keys")
        due = renewed(self._stored, self.names, now)
        return due or (self._stored, "restored the keys in use")

    def _new_keys(self, now: datetime, why: str) -> tuple[Material, str]:
        """New keys. The old ones stay trusted, because other replicas serve them a little longer."""
        trusted = b"" if self._stored is None else self._stored.authorities
        return make(self.names, now, trusted=trusted), why
