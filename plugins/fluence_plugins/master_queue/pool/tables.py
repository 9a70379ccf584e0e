"""Formats the report of `fluence pool list` as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from session_scheduler.model.times import age_text
from session_scheduler.sdk.commands import TableRows

_POOLS: Final = ("MASTERQUEUE", "FLAVOR", "POOL", "STATE", "HEARD", "RESOURCE", "QUOTA", "USED", "LENT")
_QUEUES: Final = ("MASTERQUEUE", "QUEUE", "COHORT", "STOP", "PENDING", "ADMITTED")


def parts(report: Mapping[str, Any]) -> Sequence[str | TableRows]:
    """A row for each resource of each pool, a row for each queue, and the problems."""
    masters = report["masterQueues"]
    if not masters:
        return ["no MasterQueues"]
    pools = [row for master in masters for pool in master["pools"] for row in _pool(master["name"], pool)]
    keys = ("name", "cohort", "stopPolicy", "pendingWorkloads", "admittedWorkloads")
    queues = [(master["name"], *(one[key] for key in keys)) for master in masters for one in master["queues"]]
    numbers = ("HEARD", "QUOTA", "USED", "LENT")
    found: list[str | TableRows] = [TableRows(_POOLS, pools, numbers) if pools else "no pools"]
    found += ["", TableRows(_QUEUES, queues, ("PENDING", "ADMITTED")) if queues else "no queues"]
    wrong = [line for master in masters for line in _wrong(master)]
    return [*found, "", *wrong] if wrong else found


def _pool(master: str, pool: Mapping[str, Any]) -> Iterable[Sequence[object]]:
    first = (master, pool["flavor"], pool["pool"], pool["state"], _age(pool["ageSeconds"]))
    if not pool["resources"]:
        yield (*first, None, None, None, None)
    for resource, one in pool["resources"].items():
        yield (*first, resource, one["quota"], one["used"], one["lent"])


def _age(seconds: int | None) -> str | None:
    return None if seconds is None else age_text(seconds)


def _wrong(master: Mapping[str, Any]) -> Iterable[str]:
    name = master["name"]
    if master["ready"] is None:
        yield f"{name}: no controller reconciles it; start `fluence master-queue`"
    if master["natsConnected"] is False:
        yield f"{name}: not connected to NATS; pools keep their state"
    yield from (f"{name}: {line}" for line in master["problems"])
    for pool in master["pools"]:
        yield from (f"{name}: pool {pool['pool']}: {line}" for line in pool["problems"] if line not in _shown(master))


def _shown(master: Mapping[str, Any]) -> set[str]:
    """The pools' problems that the MasterQueue's own problems already contain."""
    return {line.partition(": ")[2] for line in master["problems"]}
