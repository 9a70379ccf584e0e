"""The MutatingWebhookConfiguration that leads here: its caBundle is patched, wherever it differs, and nothing else.

Only webhooks that lead to the webhook's own Service, or to a URL whose host the certificate names, are its own. A CA
that they trust and that is not wanted any more stays for a while: some replica may serve a certificate of it until it
has looked into the Secret again.
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
    """One configuration, which may be missing, or come and go."""

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
        """`hosts` are the names in the certificate."""
        self.name = name
        self._api = api
        self._service = (namespace, service)
        self._hosts = frozenset(hosts)
        self._trusted: frozenset[bytes] | None = None
        self._missing: str | None = None
        self._now = now
        self._unwanted: dict[bytes, datetime] = {}
        """CAs that are trusted and not wanted, and when that was seen first."""

    # ------------------------------------------------------------------ what is known of it

    def trusts(self, signer: bytes) -> bool:
        """Whether it leads here and trusts this CA."""
        return self._trusted is not None and signer in self._trusted

    # ------------------------------------------------------------------ what is done with it

    async def trust(self, authorities: bytes) -> frozenset[bytes] | None:
        """Let it trust these CAs (PEM). Raises ClusterError.

        Returns the CAs, in binary form, that all its webhooks which lead here trusted already, and when they were
        looked at before this; None where none leads here. Of what changed since, API servers may not have heard.
        """
        last = self._trusted or frozenset()
        for _ in range(_TRIES - 1):
            try:
                return await self._once(authorities, last)
            except Conflict:  # somebody else changed it meanwhile
                continue
        return await self._once(authorities, last)

    async def _once(self, authorities: bytes, last: frozenset[bytes]) -> frozenset[bytes] | None:
        try:
            found = await self._api.get(_PATH + self.name)
        except NotFound:
            self._leads_nowhere("it is not there; apply it, or no pod is given its environment")
            return None
        ours = {each["name"]: _signers(each["clientConfig"].get("caBundle") or "") for each in self._ours(found)}
        if not ours:
            where = "/".join(self._service)
            self._leads_nowhere(f"none of its webhooks leads to Service {where}: correct it, or --service")
            return None
        self._missing = None
        self._trusted = frozenset[bytes].intersection(*ours.values())
        before = self._trusted & last
        wanted = signers(authorities) | self._still_trusted(frozenset[bytes]().union(*ours.values()), authorities)
        stale = [name for name, trusted in ours.items() if trusted != wanted]
        if stale:
            await self._patch(found["metadata"]["resourceVersion"], stale, wanted)
            log.info("the caBundle of MutatingWebhookConfiguration %s is patched", self.name)
        self._trusted = wanted
        return before

    def _still_trusted(self, trusted: frozenset[bytes], authorities: bytes) -> frozenset[bytes]:
        """Those of the trusted CAs that are not wanted, and not yet for long."""
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

    def _leads_nowhere(self, why: str) -> None:
        self._trusted = None
        if self._missing != why:  # else it would be said every minute
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
