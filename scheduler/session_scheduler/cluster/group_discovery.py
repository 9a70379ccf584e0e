"""What an API server has of pod groups: which APIs in which version, and which fields its feature gates let it take.

Versions are asked for (discovery), newest first. Gates cannot be: a field whose gate is off is dropped without a word.
So a group that is there is given the field in a dry run: where the gate is on it is refused, for specs cannot be
changed; where it is off, nothing happens. What is missing is said once, and the rest is served.
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
"""Seconds between two checks for a group by which gates can be found out."""


class GroupDiscovery:
    """What one API server has, as last asked."""

    def __init__(self, client: ApiClient, apis: tuple[Resource[PodGroup], ...] = POD_GROUPS) -> None:
        self._client = client
        self._apis = apis
        self._served: tuple[Resource[PodGroup], ...] | None = None
        self._asking = asyncio.Lock()
        self._sample: PodGroup | None = None
        self.gates: dict[str, bool] = {}
        """Whether each gate is on, as far as that is known."""

    @property
    def versions(self) -> tuple[str, ...]:
        """The apiVersions that are used, one an API group."""
        return tuple(resource.api_version for resource in self._served or ())

    async def resources(self, *, again: bool = False) -> tuple[Resource[PodGroup], ...]:
        """Where PodGroups are: none, one or two places, as last asked, or `again`. Raises ClusterError."""
        async with self._asking:
            if self._served is None or again:
                known, self._served = self._served, await self._ask()
                if known != self._served:
                    self._log_found()
            return self._served

    async def _ask(self) -> tuple[Resource[PodGroup], ...]:
        found: dict[str, Resource[PodGroup]] = {}
        for resource in self._apis:  # of each group the newest first
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
            _log.info("pod groups are read", api=list(self.versions))
            return
        _log.warning("the API server has no PodGroup API: pods that name no group are scheduled, one by one",
                     looked_for=[resource.api_version for resource in self._apis],
                     needs=[version.needs for version in GROUP_VERSIONS])  # fmt: skip

    def place_of(self, api_version: str) -> Resource[PodGroup]:
        """Where a group of this apiVersion is: in another version than it came, where that is served now. Invalid."""
        group = group_of(api_version or PodGroup().api_version)
        for resource in self._served or ():
            if group_of(resource.api_version) == group:
                return resource
        return resource_of(PodGroup, api_version)

    # ------------------------------------------------------------------ gates

    def seen(self, groups: Iterable[PodGroup]) -> None:
        """Groups that are there: one is kept to find out gates by."""
        self._sample = next((group for group in groups if group.native), None)

    async def find_gates(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Find out, as soon as there is a group, which gates are off, and say so once."""
        while not await self._found():
            await sleep(_CHECK_AGAIN)

    async def _found(self) -> bool:
        """Whether all is known that can be."""
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
            except ClusterError as error:  # an admission rule about groups: then it stays unknown
                _log.info("it cannot be found out whether a feature gate is on", gate=gate.name, why=str(error))
                continue
            if not on:
                _log.warning("a feature gate of the API server is off: it drops a field of PodGroups", gate=gate.name,
                             field=f"spec.{gate.field}", therefore=gate.without)  # fmt: skip
        return True

    async def _is_on(self, group: PodGroup, gate: Gate) -> bool:
        path = f"{self.place_of(group.api_version).path_of(group)}?dryRun=All"
        body = msgspec.json.encode({"spec": {gate.field: gate.sample}})
        try:
            text = await self._client.write("PATCH", path, body, what=described(group), content=MERGE_PATCH)
        except Invalid:  # it took the field, and found that it must not be changed
            return True
        try:
            return gate.field in msgspec.json.decode(text, type=_Patched).spec
        except msgspec.DecodeError as error:
            raise Unavailable(f"podgroups: the API server's answer cannot be read: {error}") from None


class _Patched(msgspec.Struct, frozen=True):
    spec: dict[str, object] = {}
