"""Finds the flavors that Workloads use; the controller does not delete these."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from fluence_plugins.master_queue.api import kueue
from session_scheduler.sdk.dynamic_client import KubeApi, NotFound

CHECK_SECONDS: Final = 60.0


class _Object(msgspec.Struct, frozen=True, rename="camel"):
    """The base of partial objects: it declares only the fields that are read."""


class _PodSet(_Object, frozen=True):
    flavors: dict[str, str] = {}


class _Admission(_Object, frozen=True):
    pod_set_assignments: tuple[_PodSet, ...] = ()


class _Condition(_Object, frozen=True):
    type: str = ""
    status: str = ""


class _Status(_Object, frozen=True):
    admission: _Admission | None = None
    conditions: tuple[_Condition, ...] = ()


class _Workload(_Object, frozen=True):
    status: _Status = _Status()


class FlavorsInUse:
    """Reads Workloads only when a flavor may be deleted: there is one for each job, so a watch would cost too much."""

    def __init__(self, api: KubeApi, seconds: float = CHECK_SECONDS) -> None:
        self._api = api
        self.seconds = seconds
        """How long a result is reused."""
        self._found: tuple[float, frozenset[str]] | None = None

    async def of(self, names: Collection[str], now: float) -> frozenset[str]:
        """Which of these flavors a Workload uses. Raises ClusterError."""
        if self._found is None or now - self._found[0] >= self.seconds or not self._found[1].issuperset(names):
            self._found = now, await self._listed()
        return self._found[1].intersection(names)

    async def _listed(self) -> frozenset[str]:
        try:
            workloads = await self._api.list(f"/apis/{kueue.API_VERSION}/workloads", _Workload)
        except NotFound:  # Kueue is not installed
            return frozenset()
        return frozenset().union(*(_flavors_of(workload.status) for workload in workloads))


def _flavors_of(status: _Status) -> set[str]:
    over = any((one.type, one.status) == ("Finished", "True") for one in status.conditions)
    if over or status.admission is None:
        return set()
    return {flavor for podset in status.admission.pod_set_assignments for flavor in podset.flavors.values()}
