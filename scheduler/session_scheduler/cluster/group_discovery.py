"""Discovery of PodGroup APIs: which of their versions an API server serves, and which feature gates are enabled.

API discovery lists the versions; the newest is used. It does not list feature gates: with a disabled gate the API
server silently drops a field. So a dry run patches that field of an existing group. With the gate enabled the API
server rejects the patch, because specs are immutable; with the gate disabled it drops the field. A warning reports once
what is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec
import structlog

from session_scheduler.cluster.errors import ClusterError, Invalid, NotFound, NotLeading, TooManyRequests, Unavailable
from session_scheduler.cluster.kube_bodies import MERGE_PATCH
from session_scheduler.cluster.kube_kinds import POD_GROUPS, Resource, resource_of, served
from session_scheduler.cluster.kube_requests import ApiClient
from session_scheduler.cluster.write_rules import described, group_of
from session_scheduler.model.group_api import GROUP_VERSIONS, Gate, version_of
from session_scheduler.model.objects import PodGroup

_log = structlog.get_logger(__name__)
_CHECK_AGAIN: Final = 10.0
"""Seconds between two looks for a group that can be patched."""


class GroupDiscovery:
    """The PodGroup APIs of one API server, as of the last discovery."""

    def __init__(self, client: ApiClient, apis: tuple[Resource[PodGroup], ...] = POD_GROUPS) -> None:
        self._client = client
        self._apis = apis
        self._served: tuple[Resource[PodGroup], ...] | None = None
        self._asking = asyncio.Lock()
        self._sample: PodGroup | None = None
        self.gates: dict[str, bool] = {}
        """Whether each gate is enabled, as far as known."""

    @property
    def versions(self) -> tuple[str, ...]:
        """The apiVersions in use, one for each API group."""
        return tuple(resource.api_version for resource in self._served or ())

    async def resources(self, *, again: bool = False) -> tuple[Resource[PodGroup], ...]:
        """Return the served PodGroup resources (none, one or two); `again` discovers again. Raises ClusterError."""
        async with self._asking:
            if self._served is None or again:
                known, self._served = self._served, await self._ask()
                if known != self._served:
                    self._log_found()
            return self._served

    async def _ask(self) -> tuple[Resource[PodGroup], ...]:
        found: dict[str, Resource[PodGroup]] = {}
        for resource in self._apis:  # the newest version of a group comes first
            group = group_of(resource.api_version)
            if group not in found and await self._serves(resource):
                found[group] = resource
        return tuple(found.values())

    async def _serves(self, resource: Resource[PodGroup]) -> bool:
        path = f"apis/{resource.api_version}"
        try:
            return resource.plural in served(await self._client.read(path, what=f"discovery of {path}"))
        except NotFound:
            return False

    def _log_found(self) -> None:
        if self._served:
            _log.info("the scheduler uses PodGroups", api=list(self.versions))
            return
        _log.warning("the API server serves no PodGroup API: the scheduler schedules only pods without a group",
                     looked_for=[resource.api_version for resource in self._apis],
                     needs=[version.needs for version in GROUP_VERSIONS])  # fmt: skip

    def place_of(self, api_version: str) -> Resource[PodGroup]:
        """Return the served resource for a group, in another version if need be. Raises Invalid for an unknown API."""
        group = group_of(api_version or PodGroup().api_version)
        for resource in self._served or ():
            if group_of(resource.api_version) == group:
                return resource
        return resource_of(PodGroup, api_version)

    # ------------------------------------------------------------------ gates

    def seen(self, groups: Iterable[PodGroup]) -> None:
        """Keep one of the listed groups for the dry run that finds disabled gates."""
        self._sample = next((group for group in groups if group.native), None)

    async def find_gates(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Find the disabled gates as soon as a group exists, and log each once."""
        while not await self._found():
            await sleep(_CHECK_AGAIN)

    async def _found(self) -> bool:
        """Find the disabled gates now. Return whether nothing is left to find."""
        group = self._sample
        version = version_of(group.api_version) if group is not None else None
        if group is None or version is None:
            return False
        for gate in version.gates:
            if gate.name in self.gates:
                continue
            try:
                self.gates[gate.name] = on = await self._is_on(group, gate)
            except (NotFound, NotLeading, TooManyRequests, Unavailable):
                return False
            except ClusterError as error:  # for example a rule of an admission webhook
                _log.info("cannot find out whether a feature gate is enabled", gate=gate.name, why=str(error))
                continue
            if not on:
                _log.warning("a disabled feature gate makes the API server drop a field of PodGroups", gate=gate.name,
                             field=f"spec.{gate.field}", therefore=gate.without)  # fmt: skip
        return True

    async def _is_on(self, group: PodGroup, gate: Gate) -> bool:
        path = f"{self.place_of(group.api_version).path_of(group)}?dryRun=All"
        body = msgspec.json.encode({"spec": {gate.field: gate.sample}})
        try:
            text = await self._client.write("PATCH", path, body, what=described(group), content=MERGE_PATCH)
        except Invalid:  # the API server knows the field, and rejects the change as specs are immutable
            return True
        try:
            return gate.field in msgspec.json.decode(text, type=_Patched).spec
        except msgspec.DecodeError as error:
            raise Unavailable(f"podgroups: the API server's response cannot be decoded: {error}") from None


class _Patched(msgspec.Struct, frozen=True):
    spec: dict[str, object] = {}
