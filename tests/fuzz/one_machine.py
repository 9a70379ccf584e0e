"""The target of whole sessions: a machine, a policy and operations, as one JSON document.

A machine is a tree of vertices with counts (`{"type": "node", "n": 2, "with": [...]}`), so that a mutation gives
another machine rather than a broken one. An operation is a mapping with its name and its arguments.
"""

import json
from typing import Any

from tests.fuzz.watch import Finding, note, nothing_is_held

from fluxion_cy import FluxionError, Matcher

MOST_VERTICES, MOST_OPERATIONS = 120, 24
OPERATIONS = {
    "allocate": ("jobspec", "jobid", "now", "candidates", "prefer"),
    "allocate_orelse_reserve": ("jobspec", "jobid", "now", "candidates", "prefer"),
    "allocate_with_satisfiability": ("jobspec", "jobid", "now", "candidates", "prefer"),
    "without_allocating": ("jobspec", "jobid", "now", "candidates", "prefer"),
    "without_allocating_future": ("jobspec", "jobid", "now", "candidates", "prefer"),
    "satisfy": ("jobspec", "now", "candidates", "prefer"),
    "why": ("jobspec", "now", "candidates", "prefer"),
    "cancel": ("jobid", "missing_ok", "now"),
    "retract": ("jobid",),
    "partial_cancel": ("jobid", "R", "missing_ok", "now"),
    "update_allocate": ("jobid", "R", "now"),
    "info": ("jobid",),
    "allocation": ("jobid",),
    "find": ("criteria", "now"),
    "set_status": ("path", "up"),
    "get_status": ("path",),
    "set_rank_status": ("ranks", "up"),
    "get_rank_status": ("rank",),
    "set_properties": ("path", "properties"),
    "resize": ("path", "size"),
    "remove_subgraph": ("path",),
    "add_subgraph": ("graph",),
}
NEEDED = {"jobspec", "R", "criteria", "path", "up", "ranks", "rank", "properties", "size", "graph"}
OPTIONS = ("policy", "match_format", "prune_filters", "traverser", "compatible", "replan")


def session(data: bytes) -> None:
    """Run all operations on one machine. Afterwards every allocation can be freed, down to the last counter."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(document, dict):
        return
    options = document.get("options")
    given = {key: options[key] for key in OPTIONS if key in options} if isinstance(options, dict) else {}
    try:
        matcher = Matcher(machine_of(document.get("machine")), **given)
    except FluxionError as error:
        note(error)
        return
    asked = document.get("do")
    known: list[Any] = []
    for step in asked[:MOST_OPERATIONS] if isinstance(asked, list) else ():
        if isinstance(step, dict):
            matcher = do(matcher, step, known)
    give_back(matcher)


def machine_of(tree: Any) -> dict[str, Any]:
    """The JGF of a tree, with at most `MOST_VERTICES` vertices."""
    nodes: list[dict[str, Any]] = []
    edges: list[dict[str, str]] = []
    waiting = [(tree, "", -1, -1)]
    numbers: dict[tuple[str, str], int] = {}
    while waiting and len(nodes) < MOST_VERTICES:
        entry, path, parent, rank = waiting.pop(0)
        if not isinstance(entry, dict):
            continue
        kind = str(entry.get("type", "core"))
        many, below = entry.get("n", 1), entry.get("with")
        for _ in range(many if isinstance(many, int) and parent >= 0 and 0 <= many < MOST_VERTICES else 1):
            place = len(nodes)
            number = numbers[path, kind] = numbers.get((path, kind), -1) + 1
            fields = {key: value for key, value in entry.items() if key not in ("type", "n", "with")}
            own = numbers["", ""] = numbers.get(("", ""), -1) + 1 if kind == "node" else numbers.get(("", ""), -1)
            own = own if kind == "node" else rank
            metadata = {"type": kind, "id": number, "rank": own, **fields}
            metadata.setdefault("paths", {"containment": f"{path}/{metadata.get('name', f'{kind}{number}')}"})
            nodes.append({"id": str(place), "metadata": metadata})
            if parent >= 0:
                edges.append({"source": str(parent), "target": str(place)})
            found = metadata["paths"].get("containment", "") if isinstance(metadata["paths"], dict) else ""
            waiting += [(child, found, place, own) for child in (below if isinstance(below, list) else ())]
    return {"graph": {"nodes": nodes, "edges": edges}}


def do(matcher: Matcher, step: dict[str, Any], known: list[Any]) -> Matcher:
    """Run one operation. Returns the matcher for the next one, which after `clone` is the copy."""
    name = step.get("op")
    if name == "clone":
        copy = matcher.clone()
        give_back(matcher)
        return copy
    if not isinstance(name, str) or name not in OPERATIONS:
        return matcher
    given = {key: step[key] for key in OPERATIONS[name] if key in step}
    if "jobspec" in OPERATIONS[name]:
        given["jobspec"] = jobspec_of(step)
    if isinstance(given.get("R"), int) and known:
        given["R"] = known[given["R"] % len(known)]
    if not (set(OPERATIONS[name]) & NEEDED <= set(given)) or ("jobid" in OPERATIONS[name] and needs_id(name, given)):
        return matcher
    try:
        found = getattr(matcher, name)(**given)
    except FluxionError as error:
        note(error)
        return matcher
    if hasattr(found, "R"):
        known.append(found.R)
    return matcher


def needs_id(name: str, given: dict[str, Any]) -> bool:
    """Whether the operation needs a jobid and the step gives none."""
    return "jobspec" not in OPERATIONS[name] and "jobid" not in given


def jobspec_of(step: dict[str, Any]) -> Any:
    """The step's jobspec, or one built from its resources and attributes."""
    system = {key: step[key] for key in ("duration", "constraints") if key in step}
    asked = {"version": 1, "resources": step.get("resources"), "tasks": [], "attributes": {"system": system}}
    return step.get("jobspec", asked)


def give_back(matcher: Matcher) -> None:
    """Free every job, by cancel and retract in turn. Then nothing is allocated at any time."""
    written = matcher.graph()
    if Matcher(written).graph() != written:
        raise Finding("writing and reading changes the graph")
    jobs = matcher._table.jobs
    for number, jobid in enumerate(list(jobs)):
        if jobs[jobid].slot < 0:
            continue
        matcher.allocation(jobid)
        (matcher.cancel if number % 2 else matcher.retract)(jobid)
    nothing_is_held(matcher)
    if matcher.find("sched-now=allocated or sched-future=reserved") is not None:
        raise Finding("vertices are allocated without a job")
    jobs_held = matcher.stat()["jobs"]
    if jobs_held["ALLOCATED"] or jobs_held["RESERVED"]:
        raise Finding(f"expected no jobs, got {jobs_held}")
