"""A brute-force model of the matcher in plain Python: the allocations over time, and whether a request would fit.

It supports machines of nodes with cores, gpus and memories (pools or whole) directly below them, and shares no code
with the engine. It recomputes everything from the list of allocations, so it has no counters that could be wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

FOREVER = 100 * 365 * 86400
LEAVES = ("core", "gpu", "memory")


@dataclass(frozen=True)
class Ask:
    """`shape`: `slots` on any nodes, the same on each of `nodes`, `whole` nodes, or units of one `memory`."""

    shape: str
    nodes: int
    slots: int
    needs: tuple[tuple[str, int], ...]
    duration: int
    exclusive: bool = False
    constraint: Any = None
    candidates: tuple[int, ...] | None = None

    def jobspec(self) -> dict[str, Any]:
        inside = [{"type": kind, "count": need} for kind, need in self.needs]
        slot = {"type": "slot", "count": self.slots, "label": "task", "with": inside}
        resource: dict[str, Any] = slot
        if self.shape == "nodes":
            resource = {"type": "node", "count": self.nodes, "with": [slot]}
            if self.exclusive:
                resource["exclusive"] = True
        elif self.shape == "whole":
            resource = {**slot, "with": [{"type": "node", "count": self.nodes}]}
        elif self.shape == "memory":
            resource = {"type": "memory", "count": self.slots, "exclusive": True}
        system: dict[str, Any] = {"duration": self.duration}
        if self.constraint is not None:
            system["constraints"] = self.constraint
        task = {"command": ["app"], "slot": "task", "count": {"per_slot": 1}}
        return {"version": 1, "resources": [resource], "tasks": [task], "attributes": {"system": system}}


def meets(rule: Any, fields: dict[str, Any]) -> bool:
    """RFC 31, word for word."""
    if not rule:
        return True
    ((operation, operands),) = rule.items()
    if operation == "properties":
        has = fields.get("properties") or {}
        return all((word[1:] not in has) if word[0] == "^" else (word in has) for word in operands)
    if operation == "ranks":
        return any(str(fields.get("rank", -1)) in word.split(",") for word in operands)
    if operation == "hostlist":
        return any(fields["name"] in word.split(",") for word in operands)
    found = [meets(operand, fields) for operand in operands]
    return any(found) if operation == "or" else all(found) == (operation == "and")


def _slots_by_parent(nodes: list[str], ask: Ask) -> int:
    """The number of slots of `ask.nodes` nodes if the nodes of a slot must have the same parent."""
    parents = [node.rpartition("/")[0] for node in nodes]
    return sum(parents.count(parent) // ask.nodes for parent in set(parents))


@dataclass
class Held:
    """Units by path over [start, end)."""

    start: int
    end: int
    units: dict[str, int]


@dataclass
class World:
    """`there`: the fields of every vertex by path; `nodex`: the policy allocates whole nodes."""

    there: dict[str, dict[str, Any]]
    nodex: bool = False
    held: dict[int, Held] = field(default_factory=dict)

    @classmethod
    def of(cls, document: dict[str, Any], nodex: bool) -> "World":
        return cls(
            {n["metadata"]["paths"]["containment"]: dict(n["metadata"]) for n in document["graph"]["nodes"]}, nodex
        )

    def copy(self) -> "World":
        held = {jobid: Held(job.start, job.end, dict(job.units)) for jobid, job in self.held.items()}
        return World({path: dict(fields) for path, fields in self.there.items()}, self.nodex, held)

    def below(self, path: str) -> Iterator[str]:
        return (other for other in self.there if other.startswith(f"{path}/"))

    def nodes(self) -> list[str]:
        return [path for path, fields in self.there.items() if fields["type"] == "node"]

    def size(self, path: str) -> int:
        return int(self.there[path].get("size", 1))

    def used(self, path: str, start: int, end: int, wholly: bool = False) -> int:
        """The most units in use at one moment. Without a pool, all count if any unit or an ancestor is in use."""
        moments = {max(start, job.start) for job in self.held.values() if job.start < end and job.end > start}
        most = 0
        for moment in moments:
            now = [job.units for job in self.held.values() if job.start <= moment < job.end]
            here = sum(units.get(path, 0) for units in now)
            if here and not self.there[path].get("divisible"):
                here = self.size(path)
            above = any(path.startswith(f"{other}/") for units in now for other in units)
            inside = wholly and any(other.startswith(f"{path}/") for units in now for other in units)
            most = max(most, self.size(path) if above or inside else here)
        return most

    def free(self, path: str, start: int, end: int) -> int:
        return self.size(path) - self.used(path, start, end)

    def up(self, path: str) -> bool:
        return not any(f.get("status") for p, f in self.there.items() if f"{path}/".startswith(f"{p}/"))

    def admitted(self, ask: Ask, node: str) -> bool:
        fields = self.there[node]
        rank = fields.get("rank", -1)
        allowed = ask.candidates is None or rank < 0 or (rank < len(ask.candidates) and ask.candidates[rank] > 0)
        return allowed and meets(ask.constraint, fields)

    def room(self, ask: Ask, node: str, start: int, end: int, ever: bool) -> int:
        """The number of slots that would fit on a node."""
        if not self.admitted(ask, node) or not (ever or self.up(node)):
            return 0
        if not ever and self.used(node, start, end, wholly=self.nodex or ask.exclusive):
            return 0
        most = [self._slots(kind, need, node, start, end, ever) for kind, need in ask.needs]
        rank = self.there[node].get("rank", -1)
        if ask.candidates is not None and rank >= 0 and type(ask.candidates[0]) is int:
            most.append(ask.candidates[rank])
        return min(most)

    def _slots(self, kind: str, need: int, node: str, start: int, end: int, ever: bool) -> int:
        leaves = [p for p in self.below(node) if self.there[p]["type"] == kind and (ever or self.up(p))]
        frees = {p: self.size(p) if ever else self.free(p, start, end) for p in leaves}
        pooled = sum(frees[p] // need for p in leaves if self.there[p].get("divisible"))
        return pooled + sum(frees[p] for p in leaves if not self.there[p].get("divisible")) // need

    def fits(self, ask: Ask, start: int, ever: bool = False) -> bool:
        end = start + ask.duration
        if ask.shape == "memory":
            return self._memory(ask, start, end, ever)
        if ask.shape == "whole":
            admitted = [node for node in self.nodes() if self.admitted(ask, node)]
            free = [node for node in admitted if ever or self._idle(node, start, end)]
            if _slots_by_parent(admitted, ask) < ask.slots:  # never, if a slot's nodes had to have one parent
                return len(free) >= ask.nodes * ask.slots
            return _slots_by_parent(free, ask) >= ask.slots
        rooms = [self.room(ask, node, start, end, ever) for node in self.nodes()]
        if ask.shape == "nodes":
            return sum(room >= ask.slots for room in rooms) >= ask.nodes
        return sum(rooms) >= ask.slots

    def _idle(self, node: str, start: int, end: int) -> bool:
        return self.up(node) and not self.used(node, start, end, wholly=True)

    def _memory(self, ask: Ask, start: int, end: int, ever: bool) -> bool:
        whole = 0
        for node in self.nodes():
            if not self.admitted(ask, node) or not (ever or self.up(node)):
                continue
            if self.nodex and not ever and self.used(node, start, end, wholly=True):
                continue
            for path in self.below(node):
                if self.there[path]["type"] == "memory" and (ever or self.up(path)):
                    free = self.size(path) if ever else self.free(path, start, end)
                    if self.there[path].get("divisible"):
                        if free >= ask.slots:
                            return True
                    else:
                        whole += free
        return whole >= ask.slots

    def earliest(self, ask: Ask, now: int) -> int | None:
        changes = {t for job in self.held.values() for t in (job.start, job.end) if now < t < now + FOREVER}
        return next((at for at in [now, *sorted(changes)] if self.fits(ask, at)), None)

    def wrong(self, ask: Ask, start: int, units: dict[str, int]) -> str:
        """The flaw of a placement; empty if it is valid."""
        end = start + ask.duration
        for path, amount in units.items():
            if not min(1, self.size(path)) <= amount <= self.free(path, start, end):
                return f"{path}: {amount} of {self.free(path, start, end)} free"
            if amount != self.size(path) and not self.there[path].get("divisible"):
                return f"{path} is not divisible"
        for node in self.nodes():
            mine = {p: units[p] for p in units if f"{p}/".startswith(f"{node}/")}
            if mine and not (self.admitted(ask, node) and self.up(node)):
                return f"{node} is down or not allowed"
        return self._miscounted(ask, units)

    def _miscounted(self, ask: Ask, units: dict[str, int]) -> str:
        whole = [node for node in self.nodes() if node in units]
        if ask.shape == "whole" or (ask.shape == "nodes" and ask.exclusive) or (self.nodex and whole):
            subtree = self.nodex or ask.shape == "nodes"
            missing = [p for node in whole for p in self.below(node) if subtree and units.get(p) != self.size(p)]
            if missing or (ask.shape == "whole" and len(whole) != ask.nodes * ask.slots):
                return f"not whole: {missing}, {whole}"
            return ""
        if ask.shape == "memory":
            pool = any(self.there[p].get("divisible") for p in units)
            total = sum(units.values())
            return "" if total == ask.slots or (not pool and total > ask.slots) else f"{total} units"
        counts = [{kind: self._amount(units, node, kind) for kind in LEAVES} for node in self.nodes()]
        factor = ask.slots * (ask.nodes if ask.shape == "nodes" else 1)
        for kind, need in ask.needs:
            total = sum(count[kind] for count in counts)
            if total != factor * need and (kind != "memory" or total < factor * need):
                return f"{total} {kind}"
        return ""

    def _amount(self, units: dict[str, int], node: str, kind: str) -> int:
        return sum(n for p, n in units.items() if p.startswith(f"{node}/") and self.there[p]["type"] == kind)

    def profile(self, path: str, kinds: list[str]) -> list[tuple[int, int, list[int]]]:
        """From every start or end on: (second, jobs at or below the vertex, units in use per type below it)."""
        mine = [job for job in self.held.values() if any(f"{p}/".startswith(f"{path}/") for p in job.units)]
        found = []
        for moment in sorted({t for job in mine for t in (job.start, job.end)}):
            now = [job.units for job in mine if job.start <= moment < job.end]
            parts = [(self.there[p]["type"], n) for units in now for p, n in units.items() if p.startswith(f"{path}/")]
            found.append((moment, len(now), [sum(n for kind, n in parts if kind == k) for k in kinds]))
        return found
