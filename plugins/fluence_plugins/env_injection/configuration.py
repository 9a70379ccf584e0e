"""The MutatingWebhookConfiguration that leads here: its caBundle is patched, wherever it differs, and nothing else.

Only webhooks that lead to the webhook's own Service, or to a URL whose host the certificate names, are its own.
"""

import base64
import binascii
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from fluence_plugins.env_injection.certificates import signers
from fluence_plugins.env_injection.logs import log
from session_scheduler.kube_api import STRATEGIC_MERGE_PATCH, Conflict, KubeApi, NotFound

_PATH: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/"
_TRIES: Final = 5


class Configuration:
    """One configuration, which may be missing, or come and go."""

    def __init__(self, api: KubeApi, name: str, *, service: str, namespace: str, hosts: Collection[str]) -> None:
        """`hosts` are the names in the certificate."""
        self.name = name
        self._api = api
        self._service = (namespace, service)
        self._hosts = frozenset(hosts)
        self._trusted: frozenset[bytes] | None = None
        self._missing: str | None = None

    # ------------------------------------------------------------------ what is known of it

    def problem(self, signer: bytes) -> str | None:
        """Why API servers do not trust this CA; None where they do, or where no configuration leads here."""
        if self._trusted is None or signer in self._trusted:
            return None
        return f"MutatingWebhookConfiguration {self.name} does not trust the certificate that is served"

    def trusts(self, signer: bytes) -> bool:
        """Whether it leads here and trusts this CA."""
        return self._trusted is not None and signer in self._trusted

    # ------------------------------------------------------------------ what is done with it

    async def trust(self, authorities: bytes) -> frozenset[bytes] | None:
        """Let it trust these CAs (PEM). Raises ClusterError.

        Returns the CAs, in binary form, that all its webhooks which lead here trusted before; None where none does.
        """
        for _ in range(_TRIES - 1):
            try:
                return await self._once(authorities)
            except Conflict:  # somebody else changed it meanwhile
                continue
        return await self._once(authorities)

    async def _once(self, authorities: bytes) -> frozenset[bytes] | None:
        try:
            found = await self._api.get(_PATH + self.name)
        except NotFound:
            self._leads_nowhere("it is not there; apply it, or no pod is given its environment")
            return None
        ours = {each["name"]: each["clientConfig"].get("caBundle") or "" for each in self._ours(found)}
        if not ours:
            where = "/".join(self._service)
            self._leads_nowhere(f"none of its webhooks leads to Service {where}: correct it, or --service")
            return None
        self._missing = None
        before = self._trusted = frozenset[bytes].intersection(*(_signers(bundle) for bundle in ours.values()))
        wanted = base64.b64encode(authorities).decode("ascii")
        stale = [name for name, bundle in ours.items() if bundle != wanted]
        if stale:
            await self._patch(found["metadata"]["resourceVersion"], stale, wanted)
            log.info("the caBundle of MutatingWebhookConfiguration %s is patched", self.name)
        self._trusted = signers(authorities)
        return before

    async def _patch(self, version: str, names: Collection[str], bundle: str) -> None:
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
        return urlsplit(client.get("url") or "").hostname in self._hosts


def _signers(bundle: str) -> frozenset[bytes]:
    try:
        return signers(base64.b64decode(bundle, validate=True))
    except binascii.Error:
        return frozenset()
