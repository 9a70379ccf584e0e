"""Patches the caBundle of the MutatingWebhookConfiguration where it differs, and nothing else.

It patches only webhooks that call the webhook's own Service, or a URL whose host is in the certificate. A trusted CA
that is no longer wanted stays for a while: a replica may serve a certificate of it until it reads the Secret again.
"""

import base64
import binascii
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlsplit

from fluence_plugins.env_injection.certificates import LIFETIMES, bundle_of, signers
from fluence_plugins.env_injection.logs import log
from session_scheduler.sdk.dynamic_client import STRATEGIC_MERGE_PATCH, Conflict, KubeApi, NotFound

_PATH: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/"
_TRIES: Final = 5


class Configuration:
    """A MutatingWebhookConfiguration, which may not exist, or be created and deleted."""

    def __init__(
        self,
        api: KubeApi,
        name: str,
        *,
        service: str,
        namespace: str,
        hosts: Collection[str],
        now: Callable[[], datetime],
    ) -> None:
        """`hosts`: the names in the certificate."""
        self.name = name
        self._api = api
        self._service = (namespace, service)
        self._hosts = frozenset(hosts)
        self._trusted: frozenset[bytes] | None = None
        self._missing: str | None = None
        self._now = now
        self._unwanted: dict[bytes, datetime] = {}
        """Trusted CAs that are no longer wanted, with the time when this was first noticed."""

    # ------------------------------------------------------------------ state

    def trusts(self, signer: bytes) -> bool:
        """Whether the configuration calls this webhook and trusts this CA."""
        return self._trusted is not None and signer in self._trusted

    # ------------------------------------------------------------------ updates

    async def trust(self, authorities: bytes) -> frozenset[bytes] | None:
        """Make the configuration trust these CAs (PEM). Raises ClusterError.

        Returns the CAs (DER) that all of its webhooks for this Service trusted both now and at the last check; None if
        it has no such webhook. API servers may not know of later changes yet.
        """
        last = self._trusted or frozenset()
        for _ in range(_TRIES - 1):
            try:
                return await self._once(authorities, last)
            except Conflict:  # another client changed it
                continue
        return await self._once(authorities, last)

    async def _once(self, authorities: bytes, last: frozenset[bytes]) -> frozenset[bytes] | None:
        try:
            found = await self._api.get(_PATH + self.name)
        except NotFound:
            self._not_ours("the object does not exist; apply it, or no pod gets its environment variables")
            return None
        ours = {each["name"]: _signers(each["clientConfig"].get("caBundle") or "") for each in self._ours(found)}
        if not ours:
            where = "/".join(self._service)
            self._not_ours(f"none of its webhooks calls Service {where}; correct the webhooks, or --service")
            return None
        self._missing = None
        self._trusted = frozenset[bytes].intersection(*ours.values())
        before = self._trusted & last
        wanted = signers(authorities) | self._still_trusted(frozenset[bytes]().union(*ours.values()), authorities)
        stale = [name for name, trusted in ours.items() if trusted != wanted]
        if stale:
            await self._patch(found["metadata"]["resourceVersion"], stale, wanted)
            log.info("patched the caBundle of MutatingWebhookConfiguration %s", self.name)
        self._trusted = wanted
        return before

    def _still_trusted(self, trusted: frozenset[bytes], authorities: bytes) -> frozenset[bytes]:
        """The trusted CAs that have not been unwanted for long."""
        now = self._now()
        unwanted = trusted - signers(authorities)
        self._unwanted = {ca: since for ca, since in self._unwanted.items() if ca in unwanted}
        for ca in unwanted:
            self._unwanted.setdefault(ca, now)
        return frozenset(ca for ca, since in self._unwanted.items() if now < since + LIFETIMES.overlap)

    async def _patch(self, version: str, names: Collection[str], trusted: Collection[bytes]) -> None:
        bundle = base64.b64encode(bundle_of(trusted)).decode("ascii")
        webhooks = [{"name": name, "clientConfig": {"caBundle": bundle}} for name in names]
        patch = {"metadata": {"resourceVersion": version}, "webhooks": webhooks}
        await self._api.patch(_PATH + self.name, patch, STRATEGIC_MERGE_PATCH)

    def _not_ours(self, why: str) -> None:
        self._trusted = None
        if self._missing != why:  # log it only once
            log.warning("MutatingWebhookConfiguration %s: %s", self.name, why)
        self._missing = why

    def _ours(self, configuration: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [each for each in configuration.get("webhooks") or [] if self._is_ours(each.get("clientConfig") or {})]

    def _is_ours(self, client: Mapping[str, Any]) -> bool:
        service = client.get("service")
        if service:
            return (service.get("namespace"), service.get("name")) == self._service
        try:
            return urlsplit(client.get("url") or "").hostname in self._hosts
        except ValueError:
            return False


def _signers(bundle: str) -> frozenset[bytes]:
    try:
        return signers(base64.b64decode(bundle, validate=True))
    except binascii.Error:
        return frozenset()
