"""Reconciles the certificate: shared through the Secret, renewed before it expires, trusted by the configuration.

Every replica does the same at every check, and none leads: the first creates or replaces the Secret (guarded by its
resourceVersion), and the others use what they find there. The order matters when the CA changes: first the
configuration trusts the new CA, and from the next check on its certificate is served, as API servers see a changed
configuration a moment later. For the same reason a replica is ready when a check found it trusted already.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from fluence_plugins.env_injection.certificate_secret import material_of, new_secret, with_material
from fluence_plugins.env_injection.certificates import (
    DamagedError,
    Material,
    expiry,
    make,
    renewed,
    signer,
)
from fluence_plugins.env_injection.logs import log
from fluence_plugins.env_injection.metrics import WebhookMetrics
from fluence_plugins.env_injection.webhook_configuration import Configuration
from session_scheduler.errors import FluenceError
from session_scheduler.sdk.dynamic_client import ClusterError, Conflict, Forbidden, KubeApi, NotFound

CHECK_SECONDS: Final = 60.0
_FIRST_PAUSE: Final = 1.0
"""After a check that failed; doubled each time, up to the ordinary time between checks."""
_TRIES: Final = 5
"""Attempts at a Secret that others change at the same time."""


@dataclass(frozen=True, slots=True)
class SecretPlace:
    """Where the Secret is."""

    namespace: str
    name: str

    @property
    def collection(self) -> str:
        """The path at which it is created."""
        return f"/api/v1/namespaces/{self.namespace}/secrets"

    @property
    def path(self) -> str:
        """Its own path."""
        return f"{self.collection}/{self.name}"


@dataclass(eq=False)
class CertificateReconciler:
    """One replica's part. `run` is its task; `check` reconciles everything once."""

    api: KubeApi
    place: SecretPlace
    configuration: Configuration
    names: Sequence[str]
    serve: Callable[[Material], None]
    """Called whenever other material is to be served from now on."""
    metrics: WebhookMetrics
    now: Callable[[], datetime]

    def __post_init__(self) -> None:
        self._served: Material | None = None
        self._stored: Material | None = None
        self._problem: str | None = "the Secret was not read yet"
        self._failing = False
        self._trusted = False
        """Whether API servers trust what is served: a check found that the configuration did already."""

    async def run(
        self, every: float = CHECK_SECONDS, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Check every so many seconds, sooner where it failed; without end."""
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
                f": let the ServiceAccount create Secrets, get and update Secret {self.place.name}, and get and patch "
                f"MutatingWebhookConfiguration {self.configuration.name}"
            )
        if problem != self._problem:  # else it would be said every minute
            log.error("the certificate could not be checked: %s", problem)
        self._problem, self._failing = problem, True

    def problems(self) -> dict[str, str | None]:
        """By check, what keeps this replica from being of use; None where nothing does."""
        if self._served is None:
            return {"certificate": self._problem}
        over = self.now() >= expiry(self._served.certificate)
        return {
            "certificate": f"it has expired; {self._problem or 'it will be renewed soon'}" if over else None,
            "configuration": None if self._trusted else f"{self.configuration.name} was not seen to trust it yet",
        }

    # ------------------------------------------------------------------ one check

    async def check(self) -> None:
        """Read or make the Secret, let the configuration trust it, serve it. Raises FluenceError."""
        material = self._stored = await self._reconcile_secret()
        try:
            before = await self.configuration.trust(material.authorities)
        except ClusterError:
            # Nobody knows what it trusts, other than what was served until now.
            self._serve_if_trusted(
                material, frozenset({signer(self._served)} if self._served and self._trusted else ())
            )
            raise
        self._serve_if_trusted(material, before)
        self.metrics.checked("ok")
        if self._failing:
            log.info("the certificate could be checked again")
        self._problem, self._failing = None, False

    def _serve_if_trusted(self, material: Material, trusted_before: frozenset[bytes] | None) -> None:
        """Serve the material unless API servers may not trust it yet."""
        if self._served != material and self._may_serve(material, trusted_before):
            self.serve(material)
            self._served = material
            until = expiry(material.certificate)
            self.metrics.serves(until)
            log.info("a certificate is served that ends %s", until.isoformat())
        by = signer(self._served or material)
        self._trusted = trusted_before is None or by in trusted_before
        self.metrics.trusted(self.configuration.trusts(by))

    def _may_serve(self, material: Material, trusted_before: frozenset[bytes] | None) -> bool:
        """Whether API servers trust the material by now, or what is served is of no use to them in any case."""
        if self._served is None or trusted_before is None or signer(material) in trusted_before:
            return True
        return self.now() >= expiry(self._served.certificate) or signer(self._served) not in trusted_before

    # ------------------------------------------------------------------ the Secret

    async def _reconcile_secret(self) -> Material:
        """What the Secret holds after this replica did its part."""
        for _ in range(_TRIES - 1):
            try:
                return await self._try_reconcile_secret()
            except (Conflict, NotFound):  # another replica, or whoever deleted it, was first: look again
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
        log.info("Secret %s/%s is written: %s", place.namespace, place.name, why)
        return material

    def _wanted(self, secret: Mapping[str, Any], now: datetime) -> tuple[Material, str | None]:
        """What the Secret is to hold, and why it is to be written; None where it holds just that."""
        try:
            found = material_of(secret)
            if found is None:
                return self._new_keys(now, "it was empty; there are new keys")
            return renewed(found, self.names, now) or (found, None)
        except DamagedError as error:
            log.error("Secret %s/%s cannot be used: %s", self.place.namespace, self.place.name, error)
            return self._stored_or_new(now)

    def _stored_or_new(self, now: datetime) -> tuple[Material, str]:
        """What was stored before, so that nothing changes for API servers and other replicas; else new keys."""
        if self._stored is None:
            return self._new_keys(now, "there are new keys")
        due = renewed(self._stored, self.names, now)
        return due or (self._stored, "the keys in use are stored again")

    def _new_keys(self, now: datetime, why: str) -> tuple[Material, str]:
        """New keys; other replicas serve the old ones for a little while, so these stay trusted."""
        trusted = b"" if self._stored is None else self._stored.authorities
        return make(self.names, now, trusted=trusted), why
