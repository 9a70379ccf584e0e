"""The report of `fluence pool list`: the pools of all MasterQueues, their used and lent resources, and the queues.

It is read from the API server only. All functions except `read` are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from fluence_plugins.master_queue.amounts import RESOURCES, amount_text, amounts
from fluence_plugins.master_queue.api import kueue
from fluence_plugins.master_queue.api.master_queue import API_VERSION, Condition, Flavor, MasterQueue, PoolStatus
from session_scheduler.errors import InputError
from session_scheduler.model.meta import ObjectMeta, Quantity
from session_scheduler.sdk.dynamic_client import Forbidden, KubeApi, NotFound, Unreadable

MASTER_QUEUES: Final = f"/apis/{API_VERSION}/masterqueues"
CLUSTER_QUEUES: Final = f"/apis/{kueue.API_VERSION}/clusterqueues"
LOCAL: Final = "Local"
"""The state of a local flavor, which no pool publishes."""
_T = TypeVar("_T")


class _Object(msgspec.Struct, frozen=True, rename="camel"):
    """The base of partial objects: it declares only the fields that are read."""


class _Resource(_Object, frozen=True):
    name: str = ""
    nominal_quota: Quantity = "0"
    total: Quantity = "0"


class _Resources(_Object, frozen=True):
    """A flavor's quotas in the spec, or its usage in the status."""

    name: str = ""
    resources: tuple[_Resource, ...] = ()


class _Group(_Object, frozen=True):
    flavors: tuple[_Resources, ...] = ()


class _Spec(_Object, frozen=True):
    cohort_name: str = ""
    stop_policy: str = "None"
    resource_groups: tuple[_Group, ...] = ()


class _Status(_Object, frozen=True):
    flavors_usage: tuple[_Resources, ...] = ()
    pending_workloads: int = 0
    reserving_workloads: int = 0
    admitted_workloads: int = 0


class ClusterQueue(_Object, frozen=True):
    """A ClusterQueue as Kueue reports it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()
    status: _Status = _Status()

    def quotas(self) -> dict[str, dict[str, int]]:
        """The nominal quotas in thousandths, by flavor and resource."""
        flavors = (flavor for group in self.spec.resource_groups for flavor in group.flavors)
        return {one.name: amounts({each.name: each.nominal_quota for each in one.resources}) for one in flavors}

    def used(self, flavor: str) -> dict[str, int]:
        """What its workloads use of a flavor, in thousandths, by resource."""
        found = next((one.resources for one in self.status.flavors_usage if one.name == flavor), ())
        return amounts({one.name: one.total for one in found})


async def read(api: KubeApi, now: float) -> dict[str, Any]:
    """Read the report. Raises InputError if these objects do not exist or are not readable, or ClusterError."""
    masters = await _listed(api, MASTER_QUEUES, MasterQueue, "MasterQueues", "apply deploy/options/master-queue.yaml")
    queues = await _listed(api, CLUSTER_QUEUES, ClusterQueue, "ClusterQueues of Kueue v1beta2", "install Kueue")
    return report(masters, queues, now)


async def _listed(api: KubeApi, path: str, kind: type[_T], what: str, remedy: str) -> tuple[_T, ...]:
    try:
        return await api.list(path, kind)
    except NotFound:
        raise InputError(f"{path}: the API server does not serve {what}; {remedy}") from None
    except Forbidden as error:
        raise InputError(f"{path}: not allowed to list {what}; request this permission ({error})") from None
    except Unreadable as error:
        raise InputError(f"{error}: is Kueue newer than this version of Fluence supports?") from None


# ------------------------------------------------------------------ pure


def report(masters: Iterable[MasterQueue], queues: Sequence[ClusterQueue], now: float) -> dict[str, Any]:
    """The report as plain values: quantities in the API server's form, times in RFC 3339."""
    return {"masterQueues": [_master(one, queues, now) for one in sorted(masters, key=lambda one: one.key)]}


def _master(master: MasterQueue, queues: Sequence[ClusterQueue], now: float) -> dict[str, Any]:
    uid = master.metadata.uid
    own = [one for one in queues if any(owner.uid == uid for owner in one.metadata.owner_references)]
    own.sort(key=lambda one: (one.metadata.name != master.key, one.metadata.name))
    ready, nats = (_condition(master.status.conditions, kind) for kind in ("Ready", "NatsConnected"))
    return {
        "name": master.key,
        "ready": None if ready is None else ready.status == "True",
        "natsConnected": None if nats is None else nats.status == "True",
        "problems": list(master.status.problems),
        "pools": [
            each for flavor in master.spec.flavors for each in _pools(flavor, master, own, now)
        ],
        "queues": [_queue(one) for one in own],
    }  # fmt: skip


def _condition(conditions: Iterable[Condition], kind: str) -> Condition | None:
    return next((one for one in conditions if one.type == kind), None)


def _pools(flavor: Flavor, master: MasterQueue, queues: Sequence[ClusterQueue], now: float) -> Iterable[dict[str, Any]]:
    """Each pool of a natsFlavor, or the local flavor itself."""
    if flavor.nats_flavor is None:
        yield {"flavor": flavor.name, "pool": None, "state": LOCAL, "lastMessage": None, "ageSeconds": None,
               **_amounts(flavor.name, master.key, queues), "published": {}, "problems": []}  # fmt: skip
        return
    for pool in master.status.pools:
        if pool.flavor == flavor.name:
            yield {"flavor": flavor.name, "pool": pool.name, "state": pool.state or None, **_age(pool, now),
                   **_amounts(f"{master.key}-{flavor.name}-{pool.name}", master.key, queues),
                   "published": dict(pool.quota), "problems": list(pool.problems)}  # fmt: skip


def _age(pool: PoolStatus, now: float) -> dict[str, Any]:
    if not pool.last_message:
        return {"lastMessage": None, "ageSeconds": None}
    heard = datetime.fromisoformat(pool.last_message).timestamp()
    return {"lastMessage": pool.last_message, "ageSeconds": max(0, int(now - heard))}


def _amounts(name: str, main: str, queues: Sequence[ClusterQueue]) -> dict[str, Any]:
    """The main queue's quota of a ResourceFlavor, what all queues use of it, and what the branches use."""
    quota: dict[str, int] = {}
    used: dict[str, int] = {}
    lent: dict[str, int] = {}
    for queue in queues:
        is_main = queue.metadata.name == main
        if is_main:
            quota = queue.quotas().get(name, {})
        _add(used, usage := queue.used(name))
        if not is_main:
            _add(lent, usage)
    resources = [one for one in RESOURCES if one in quota or used.get(one)]
    parts = {"quota": quota, "used": used, "lent": lent}
    texts = {
        one: {part: amount_text(one, found.get(one, 0)) for part, found in parts.items()} for one in resources
    }  # fmt: skip
    return {"resourceFlavor": name, "resources": texts}


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for resource, value in more.items():
        total[resource] = total.get(resource, 0) + value


def _queue(queue: ClusterQueue) -> dict[str, Any]:
    return {
        "name": queue.metadata.name,
        "cohort": queue.spec.cohort_name or None,
        "stopPolicy": queue.spec.stop_policy,
        "pendingWorkloads": queue.status.pending_workloads,
        "reservingWorkloads": queue.status.reserving_workloads,
        "admittedWorkloads": queue.status.admitted_workloads,
    }
