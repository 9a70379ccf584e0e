"""The graph's allocations that no pod of ours holds: the load of foreign pods, and reservations."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache

from fluence_plugins.fluence.errors import AllocationError
from fluence_plugins.fluence.graph.accounting import Accounting, Amounts, minus
from fluence_plugins.fluence.graph.holdings import Holdings
from fluence_plugins.fluence.graph.jobspec import Jobspec, Resource, slot
from fluence_plugins.fluence.graph.loaded_graph import LoadedGraph
from fluence_plugins.fluence.graph.placement import Placement
from fluence_plugins.resources import names
from fluxion_cy import Busy, FluxionError, Unsatisfiable

log = logging.getLogger("fluence")

_FIRST_JOBID = 1 << 62
"""Far above the jobids of pods, which start at 1."""
_REMEMBERED = 1024
"""The number of cached jobspecs of foreign loads."""


class ForeignLoad:
    """One allocation for each host with foreign load, and one for each reservation."""

    def __init__(self, loaded: LoadedGraph, holdings: Holdings, accounting: Accounting) -> None:
        self._loaded = loaded
        self._holdings = holdings
        self._accounting = accounting
        self._next_jobid = _FIRST_JOBID
        self._on: dict[str, tuple[int, Amounts, bool]] = {}
        """By host with foreign load: its jobid, the load, and whether the graph holds all of it."""

    @property
    def held(self) -> Mapping[str, bool]:
        """By host whose foreign load the graph holds: whether it holds all of it."""
        return {name: whole for name, (_, _, whole) in self._on.items()}

    @property
    def jobs(self) -> Mapping[str, int]:
        """By host whose foreign load the graph holds: the jobid."""
        return {name: jobid for name, (jobid, _, _) in self._on.items()}

    def set(self, name: str, load: Amounts | None) -> None:
        """Hold the load of a host's foreign pods, or as much of it as is free: the host may be overcommitted."""
        if self._loaded.whole_nodes:
            return  # no node with pods of the cluster itself would be usable
        held = self._on.get(name)
        if held is not None and held[1] == load and held[2]:
            return
        self.drop(name)
        host = self._loaded.hosts.get(name)
        if load is None or host is None:
            return
        free = minus(self._accounting.offered(host), self._holdings.used_on(name))
        wanted = tuple(max(0, min(pair)) for pair in zip(load, free, strict=True))
        if not any(wanted):
            return
        only = self._loaded.candidate(self._loaded.graph.host_ranks[name])
        try:
            jobspec = _jobspec_text(wanted, self._accounting.types)
            self._loaded.matcher.allocate(jobspec, jobid=self._next_jobid, candidates=only)
        except (Busy, Unsatisfiable) as error:
            log.warning("[fluence] node %s: foreign load %s cannot be allocated: %s", name, load, error)
            return
        self._on[name] = (self._next_jobid, load, wanted == load)
        self._next_jobid += 1

    def drop(self, name: str) -> None:
        """Hold nothing for foreign pods on a host."""
        held = self._on.pop(name, None)
        if held is not None:
            self._loaded.matcher.retract(held[0])

    def drop_all(self) -> None:
        """Record that the matcher is a new one, with other hosts."""
        self._on.clear()

    def hold_again(self) -> None:
        """Hold the same loads in a new matcher."""
        loads = {name: load for name, (_, load, _) in self._on.items()}
        self._on.clear()
        for name, load in sorted(loads.items()):
            self.set(name, load)

    def reserve(self, part: Placement) -> int | None:
        """Hold a placement for no pod until `release`. Returns the jobid, or None if it is not free."""
        try:
            self._loaded.allocate_exactly(self._next_jobid, part)
        except (FluxionError, AllocationError):
            return None
        self._next_jobid += 1
        self._holdings.count([Placement((), part.devices)], 1)  # hosts are counted by the holdings of our pods
        return self._next_jobid - 1

    def release(self, jobid: int, part: Placement) -> None:
        """Undo `reserve`."""
        self._holdings.count([Placement((), part.devices)], -1)
        self._loaded.matcher.retract(jobid)


@lru_cache(_REMEMBERED)
def _jobspec_text(amounts: Amounts, types: tuple[str, ...]) -> str:
    """The jobspec of one slot with these amounts, on a host, as JSON."""
    parts = [Resource(kind, amount) for kind, amount in zip(types, amounts, strict=True) if amount]
    return Jobspec.of(slot(1, *parts), constraints={"properties": [names.VIRTUAL_FALSE]}).to_json()
