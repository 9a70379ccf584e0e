"""Checks answers independently of the engine: no double booking, and counts and constraints hold."""

import math
import re
from typing import Any

FOREVER = 100 * 365 * 86400


class Ledger:
    """The allocations of a recorded session; `check` reports the flaw of a new answer."""

    def __init__(self, document: dict[str, Any], flexible: bool = False) -> None:
        self.flexible = flexible
        """Whether slots side by side are alternatives."""
        self.held: dict[int, tuple[int, int, dict[str, int]]] = {}
        self.vertices: dict[str, dict[str, Any]] = {}
        self.down: set[str] = set()
        self.grow(document)
        #: Nodes up as recorded sessions count them: nodes loaded down count twice as down, later nodes do not count.
        self.counted_up = self.up("node") - sum(self.vertices[path]["type"] == "node" for path in self.down)

    def grow(self, document: dict[str, Any]) -> None:
        for node in document["graph"]["nodes"]:
            path = node["metadata"]["paths"]["containment"]
            self.vertices[path] = node["metadata"]
            if node["metadata"].get("status"):
                self.down.add(path)

    def shrink(self, top: str) -> None:
        """Remove a vertex and all below it."""
        self.vertices = {path: v for path, v in self.vertices.items() if top not in _upwards(path)}
        self.down &= self.vertices.keys()

    def up(self, kind: str) -> int:
        """The number of vertices of a type that are up."""
        return sum(v["type"] == kind and path not in self.down for path, v in self.vertices.items())

    def kind_and_id(self, path: str) -> tuple[str, int]:
        """The properties that scores by id use."""
        vertex = self.vertices[path]
        return vertex["type"], int(vertex.get("id", -1))

    def set_status(self, path: str, up: bool) -> None:
        (self.down.discard if up else self.down.add)(path)

    def hold(self, jobid: int, start: int, end: int, taken: dict[str, int]) -> None:
        self.held[jobid] = (start, end, taken)

    def free(self, jobid: int, paths: set[str] | None = None) -> None:
        """Free a job, or its allocation on some paths."""
        start, end, taken = self.held.pop(jobid, (0, 0, {}))
        rest = {path: units for path, units in taken.items() if paths is not None and path not in paths}
        if rest:
            self.held[jobid] = (start, end, rest)

    def check(self, jobspec: dict[str, Any], at: int, taken: dict[str, int]) -> str:
        start, end = at, at + span(jobspec)
        for path, units in taken.items():
            size = self.vertices[path].get("size", 1)
            used = sum(
                job[path] for begin, stop, job in self.held.values() if path in job and begin < end and stop > start
            )
            if used + units > size:
                return f"{path} is double-booked"
            for above in _upwards(path):
                if above in self.down:
                    return f"{above} is down"
                if above != path and any(above in job and b < end and s > start for b, s, job in self.held.values()):
                    return f"{above}, which holds {path}, is allocated to another job"
        return self._counts(jobspec, taken) or self._constraint(jobspec, taken)

    def _counts(self, jobspec: dict[str, Any], taken: dict[str, int]) -> str:
        for kind, wanted in least(jobspec["resources"], 1, False, self.flexible).items():
            have = sum(units for path, units in taken.items() if self.vertices[path]["type"] == kind)
            if have < wanted:
                return f"{wanted} {kind} were requested, the answer has {have}"
        return ""

    def _constraint(self, jobspec: dict[str, Any], taken: dict[str, int]) -> str:
        rule = (jobspec.get("attributes") or {}).get("system", {}).get("constraints")
        for path in taken if rule else ():
            while path:
                vertex = self.vertices.get(path)
                if vertex is not None and vertex["type"] == "node" and not meets(rule, vertex, path):
                    return f"{path} is outside the constraint"
                path = path.rpartition("/")[0]
        return ""


def span(jobspec: dict[str, Any]) -> int:
    return math.ceil(float((jobspec.get("attributes") or {}).get("system", {}).get("duration", 0))) or FOREVER


def least(resources: list[dict[str, Any]], times: int, exclusive: bool, flexible: bool) -> dict[str, int]:
    """The smallest number of units of each type that must be allocated; for alternatives, the minimum over them."""
    totals: dict[str, int] = {}
    either: list[dict[str, int]] = []
    shared = [fewest(resource) for resource in resources if resource["type"] == "slot"]
    for resource in resources:
        slot = resource["type"] in ("slot", "xor_slot")
        inside = exclusive or slot or resource.get("exclusive") in (True, "true")
        number = times * (shared[-1] if flexible and resource["type"] == "slot" else fewest(resource))
        below = least(resource.get("with", []), number, inside, flexible)
        if inside and not slot:
            below[resource["type"]] = below.get(resource["type"], 0) + number
        if slot and flexible:
            either.append(below)
        else:
            totals = {kind: totals.get(kind, 0) + below.get(kind, 0) for kind in {*totals, *below}}
    for kind in either[0] if either else ():
        totals[kind] = totals.get(kind, 0) + min(choice.get(kind, 0) for choice in either)
    return totals


def fewest(resource: dict[str, Any]) -> int:
    return resource["count"]["min"] if isinstance(resource["count"], dict) else int(resource["count"])


def never(ledger: Ledger, jobspec: dict[str, Any]) -> bool:
    """Whether the idle graph with all vertices up can never hold a jobspec.

    The bound is generous: the needs of a request may lie anywhere below, and one vertex may serve several requests. No
    match can hold a jobspec that exceeds it. Does not handle alternatives.
    """
    if ledger.flexible:
        return False
    below: dict[str, list[str]] = {}
    for path in ledger.vertices:
        below.setdefault(path.rpartition("/")[0], []).append(path)
    rule = (jobspec.get("attributes") or {}).get("system", {}).get("constraints") or {}

    def within(path: str, resource: dict[str, Any]) -> int:
        """An upper bound for the units of a request at a vertex and below it."""
        vertex = ledger.vertices.get(path)
        if vertex is not None and vertex["type"] == "node" and not meets(rule, vertex, path):
            return 0
        if resource["type"] == "slot":
            return min(within(path, child) // max(1, fewest(child)) for child in resource["with"])
        found = sum(within(child, resource) for child in below.get(path, ()))
        if vertex is not None and vertex["type"] == resource["type"]:
            fits = all(within(path, child) >= fewest(child) for child in resource.get("with", []))
            found += int(vertex.get("size", 1)) if fits else 0
        return found

    return any(within("", resource) < fewest(resource) for resource in jobspec["resources"])


def _upwards(path: str) -> list[str]:
    """A path and all its ancestors."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(len(parts), 1, -1)]


def meets(rule: dict[str, Any], vertex: dict[str, Any], path: str) -> bool:
    for operation, operands in rule.items():
        if operation == "properties":
            return all(
                (w[1:] not in vertex.get("properties", {})) if w[0] == "^" else w in vertex.get("properties", {})
                for w in operands
            )
        if operation == "ranks":
            return any(vertex.get("rank", -1) in numbers(word) for word in operands)
        if operation == "hostlist":
            return any(path.rpartition("/")[2] in hosts(word) for word in operands)
        below = [meets(operand, vertex, path) for operand in operands]
        return any(below) if operation == "or" else all(below) == (operation == "and")
    return True


def numbers(word: str) -> set[int]:
    parts = [part.partition("-") for part in str(word).split(",")]
    return {number for low, _, high in parts for number in range(int(low), int(high or low) + 1)}


def hosts(words: str) -> set[str]:
    found: set[str] = set()
    for prefix, inside in re.findall(r"([^,\[]+)(?:\[([^\]]*)\])?", words):
        found |= {f"{prefix}{number}" for number in numbers(inside)} if inside else {prefix}
    return found
