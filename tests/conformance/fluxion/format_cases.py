"""Sessions of our own that cover every form of reading a graph and writing R: graphs, recipes, operations.

`record.py` records the real library's answers to them; `test_formats.py` replays them on the embedded engine.
"""

from collections.abc import Iterator
from typing import Any

from .format_graphs import (
    Op,
    flat,
    levels,
    parallel,
    plain,
    popped,
    powered,
    ranked,
    scopes,
    sockets,
    stores,
    unnumbered,
)

FORMATS = ("simple", "pretty_simple", "jgf", "jgf_shorthand", "rlite", "rv1", "rv1_nosched", "rv1_shorthand")
POLICIES = ("first", "firstnodex", "low", "lonodex")


# ---- jobspecs --------------------------------------------------------------------------------------------------------


def want(kind: str, count: int, *inside: Op, **more: Any) -> Op:
    return {"type": kind, "count": count, **({"with": list(inside)} if inside else {}), **more}


def slot(count: int, *inside: Op) -> Op:
    return want("slot", count, *inside, label="task")


def job(*resources: Op, duration: float = 100, constraints: Any = None) -> Op:
    system: dict[str, Any] = {"duration": duration}
    if constraints is not None:
        system["constraints"] = constraints
    task = {"command": ["app"], "slot": "task", "count": {"per_slot": 1}}
    return {"version": 1, "resources": list(resources), "tasks": [task], "attributes": {"system": system}}


def ask(op: str, jobid: int, *resources: Op, **more: Any) -> Op:
    return {"op": op, "jobid": jobid, "jobspec": job(*resources, **more)}


# ---- sessions --------------------------------------------------------------------------------------------------------

CORE, NODE = want("core", 1), "node"


READ_BACK = {
    "jgf": ("jgf", "jgf_shorthand", "rv1", "rv1_shorthand"),
    "rv1exec": ("rv1", "rv1_nosched", "rv1_shorthand"),
}


def and_back(jobs: list[Op]) -> list[Op]:
    """The jobs, then the R of each read back after its job is cancelled."""
    back: list[Op] = []
    for op in jobs:
        if op["op"] == "allocate":
            number = op["jobid"]
            back += [
                {"op": "cancel", "jobid": number},
                {"op": "update_allocate", "jobid": number + 50, "R_of": number},
                {"op": "cancel", "jobid": number + 50, "noent_ok": True},
            ]
    return jobs + back


def usual(core_path: tuple[str, ...] = ()) -> list[Op]:
    """Cores, a whole node, several slots, a reservation, a preview and a query, over `core_path` below a node."""

    def inside(*leaves: Op) -> Op:
        out = slot(1, *leaves)
        for kind in reversed(core_path):
            out = want(kind, 1, out)
        return out

    return [
        ask("allocate", 1, want(NODE, 1, inside(want("core", 2)))),
        ask("allocate", 2, want(NODE, 1, slot(1, want("core", 1)), exclusive=True))
        if not core_path
        else ask("allocate", 2, slot(1, want(NODE, 1, want(core_path[0], 1, want("core", 1))))),
        ask("allocate", 3, want(NODE, 2, inside(want("core", 1))), duration=30),
        ask("without_allocating", 9, want(NODE, 1, inside(want("core", 1)))),
        ask("allocate_orelse_reserve", 4, slot(2, want(NODE, 1, exclusive=True)), duration=50),
        {"op": "info", "jobid": 4},
    ]


Graphs = dict[str, tuple[str, Any, list[Op]]]


def graphs() -> Graphs:
    """By name: load_format, graph and a session."""
    gpus = ask("allocate", 5, want(NODE, 1, want("socket", 1, slot(1, want("core", 1), want("gpu", 1)))))
    bb = ask("allocate", 5, want(NODE, 1, slot(1, want("core", 1), want("bb", 1))))
    fat = ask("allocate", 5, want(NODE, 1, slot(1, want("core", 1))), constraints={"properties": ["fat"]})
    return {
        "sockets": ("jgf", sockets(), [*usual(("socket",)), gpus]),
        "flat": ("jgf", flat(), usual()),
        "scopes": ("grug", scopes(), [*usual(("socket",)), gpus]),
        "unnumbered": ("grug", unnumbered(), [*usual(), bb]),
        "powered": ("grug", powered(), usual()),
        "stores": ("grug", stores(), usual()),
        "ranked": ("rv1exec", ranked(), [*usual(), fat]),
        "plain": ("rv1exec", plain(), usual()),
    }


def session(name: str, load_format: str, graph: Any, ops: list[Op], policy: str = "first", form: str = "jgf") -> Op:
    return {
        "name": f"{name}-{policy}-{form}",
        "graph": graph,
        "options": {"load_format": load_format, "matcher_policy": policy, "match_format": form},
        "ops": ops,
    }


def partly() -> Iterator[Op]:
    """Partial cancel by rank and by vertex, rank status, clone, find: operations that are rare in the other corpora."""
    two = ask("allocate", 1, slot(2, want(NODE, 1, want("core", 4))))
    cores = ask("allocate", 2, want(NODE, 1, slot(1, want("core", 2))))
    more = ask("allocate", 3, want(NODE, 1, slot(1, want("core", 4))))
    by_rank = {"version": 1, "execution": {"R_lite": [{"rank": "2", "children": {"core": "0-3"}}], "nodelist": ["n2"]}}
    other = {"version": 1, "execution": {"R_lite": [{"rank": "3", "children": {"core": "0-3"}}], "nodelist": ["n3"]}}
    for form in ("jgf", "rv1_nosched", "rv1"):
        give = [
            two,
            {"op": "partial_cancel", "jobid": 1, "R": by_rank},
            {"op": "info", "jobid": 1},
            cores,
            more,
            {"op": "partial_cancel", "jobid": 1, "R": other},
            {"op": "info", "jobid": 1},
            {"op": "partial_cancel", "jobid": 1, "R": other, "noent_ok": True},
            {"op": "partial_cancel", "jobid": 1, "R": other},
        ]
        yield session("partial", "rv1exec", plain(), give, "first", form)
    ranks: list[dict[str, Any]] = [
        {"op": "set_rank_status", "ranks": "1-2", "status": "down"},
        {"op": "get_rank_status", "rank": 1},
        {"op": "get_rank_status", "rank": 3},
        {"op": "get_rank_status", "rank": 9},
        {"op": "get_status", "path": "/cluster0/n2"},
        ask("allocate", 1, want(NODE, 3, slot(1, CORE))),
        ask("allocate", 2, want(NODE, 2, slot(1, CORE))),
        ask("satisfy", 0, want(NODE, 4, slot(1, CORE))),
        {"op": "find", "criteria": "status=down"},
        {"op": "set_rank_status", "ranks": "all", "status": "up"},
        {"op": "set_rank_status", "ranks": "77", "status": "down"},
        {"op": "get_rank_status", "rank": 2},
        ask("allocate", 3, want(NODE, 4, slot(1, CORE))),
    ]
    yield session("rank_status", "rv1exec", plain(), ranks, "lonode")
    clones = [
        ask("allocate", 1, want(NODE, 1, slot(1, want("core", 4)))),
        {"op": "clone"},
        ask("allocate", 2, want(NODE, 1, slot(1, want("core", 4)))),
        {**ask("allocate", 2, want(NODE, 1, slot(1, want("core", 4)))), "on": "clone"},
        {"op": "info", "jobid": 1, "on": "clone"},
        {"op": "cancel", "jobid": 1, "on": "clone"},
        {"op": "info", "jobid": 1},
        {**ask("allocate", 3, want(NODE, 3, slot(1, want("core", 4)))), "on": "clone"},
        ask("allocate", 3, want(NODE, 3, slot(1, want("core", 4)))),
        ask("allocate", 3, want(NODE, 2, slot(1, want("core", 4)))),
    ]
    for form in ("jgf", "rlite", "simple"):
        yield session("clone", "rv1exec", plain(), clones, "lonode", form)


def given_back() -> Iterator[Op]:
    """Partial cancel by the vertices of a graph, by ranks without ranked vertices below, and of a reservation."""

    def part(rank: int, cores: range, whole: bool, with_graph: bool = True, root: bool = False) -> Op:
        """Cores of a rank of `flat`, or of `plain` without a graph; optionally with the root above them."""
        node, host = 1 + 6 * rank, f"/cluster0/node{rank}"
        fields: list[Op] = [
            {"id": str(node + 1 + c), "metadata": {"type": "core", "id": c, "rank": rank, "exclusive": True,
             "paths": {"containment": f"{host}/core{c}"}}}
            for c in cores
        ]  # fmt: skip
        metadata = {"type": "node", "id": rank, "rank": rank, "paths": {"containment": host}}
        fields.append({"id": str(node), "metadata": {**metadata, **({"exclusive": True} if whole else {})}})
        edges = [{"source": str(node), "target": str(node + 1 + c)} for c in cores]
        if root:
            above = {"type": "cluster", "id": 0, "rank": -1, "paths": {"containment": "/cluster0"}}
            fields.append({"id": "0", "metadata": above})
            edges.append({"source": "0", "target": str(node)})
        row = {"rank": str(rank), "children": {"core": f"{cores[0]}-{cores[-1]}"}}
        document: Op = {"version": 1, "execution": {"R_lite": [row], "nodelist": [f"n{rank}"]}}
        return {**document, "scheduling": {"graph": {"nodes": fields, "edges": edges}}} if with_graph else document

    nodes = ask("allocate", 1, slot(2, want(NODE, 1, want("core", 4))))
    ops = [
        nodes,
        {"op": "partial_cancel", "jobid": 1, "R": part(2, range(4), whole=True)},
        {"op": "info", "jobid": 1},
        {"op": "find", "criteria": "jobid-alloc=1"},
        ask("allocate", 2, want(NODE, 2, slot(1, want("core", 4)))),
        {"op": "partial_cancel", "jobid": 1, "R": part(1, range(4), whole=True)},
        {"op": "info", "jobid": 1},
        {"op": "find", "criteria": "sched-now=allocated"},
    ]
    yield session("by_vertices", "jgf", flat(), ops, "first", "rv1")
    own = [nodes, {"op": "partial_cancel", "jobid": 1, "R": part(2, range(4), whole=True, root=True)}]
    yield session("with_ancestors", "jgf", flat(), own, "first", "rv1")
    later = [
        ask("allocate", 1, want(NODE, 4, slot(1, want("core", 4)))),
        ask("allocate_orelse_reserve", 2, slot(2, want(NODE, 1, want("core", 4)))),
        {"op": "info", "jobid": 2},
        {"op": "partial_cancel", "jobid": 2, "R": part(3, range(4), whole=True, with_graph=False)},
        {"op": "info", "jobid": 2},
    ]
    yield session("reserved_part", "rv1exec", plain(), later, "first", "rv1")
    rankless_cores = [
        ask("allocate", 1, want(NODE, 2, slot(1, want("socket", 1, want("core", 2))))),
        {"op": "partial_cancel", "jobid": 1, "R": part(3, range(2), whole=False, with_graph=False)},
        {"op": "info", "jobid": 1},
        {"op": "find", "criteria": "sched-now=allocated"},
    ]
    yield session("rank_of_recipe", "grug", scopes(), rankless_cores, "first", "rv1")


def by_ranks() -> Iterator[Op]:
    """R without a graph: a part of a rank, a whole rank, allocated and absent vertices, and cores below sockets."""

    def ranks(rank: str, cores: str, host: str) -> Op:
        row = {"rank": rank, "children": {"core": cores}}
        return {"version": 1, "execution": {"R_lite": [row], "nodelist": [host], "starttime": 5, "expiration": 65}}

    ops: list[Op] = [
        {"op": "update_allocate", "jobid": 1, "R": ranks("1", "0-1", "n1")},
        {"op": "update_allocate", "jobid": 2, "R": ranks("2-3", "0-3", "n[2-3]")},
        {"op": "update_allocate", "jobid": 2, "R": ranks("0", "0", "n0")},
        {"op": "update_allocate", "jobid": 3, "R": ranks("1", "1-2", "n1")},
        {"op": "update_allocate", "jobid": 4, "R": ranks("0", "7", "n0")},
        {"op": "update_allocate", "jobid": 5, "R": ranks("9", "0", "n9")},
        {"op": "info", "jobid": 1},
        ask("satisfy", 0, want(NODE, 4, slot(1, want("core", 4)))),
        {"op": "cancel", "jobid": 2},
        ask("allocate_orelse_reserve", 6, want(NODE, 4, slot(1, want("core", 1)))),
        ask("allocate_orelse_reserve", 7, want(NODE, 4, slot(1, want("core", 4)))),
    ]
    for form in ("jgf", "rv1", "rv1_nosched"):
        yield session("by_ranks", "rv1exec", plain(), ops, "first", form)
    deep = {"op": "update_allocate", "jobid": 1, "R": ranks("1", "0-1", "host009")}
    yield session("by_ranks_sockets", "jgf", sockets(), [deep], "first", "rv1_nosched")


def hostless() -> Iterator[Op]:
    """Vertices outside any node, and nodes without a rank."""
    qpu = [ask("allocate", 1, slot(1, want("qpu", 1))), ask("allocate", 2, slot(1, want("qpu", 1)))]
    bare = flat()
    for node in bare["graph"]["nodes"]:
        node["metadata"].pop("rank", None)
    cores = [ask("allocate", n, want(NODE, 3, slot(1, want("core", 4)))) for n in (1, 2)]
    for form in FORMATS:
        yield session("qpu", "jgf", flat(), qpu, "first", form)
        yield session("rankless", "jgf", bare, cores, "first", form)


def listing() -> Iterator[Op]:
    """The whole graph as it was read: `find` returns every vertex that is up."""
    for name, (load_format, graph, _) in graphs().items():
        yield session(f"load_{name}", load_format, graph, [{"op": "find", "criteria": "status=up"}])
    for name, text in {"levels": levels(), "popped": popped(), "parallel": parallel()}.items():
        yield session(f"load_{name}", "grug", text, [{"op": "find", "criteria": "status=up"}])


def cases() -> Iterator[Op]:
    yield from listing()
    yield from partly()
    yield from given_back()
    yield from by_ranks()
    yield from hostless()
    for name, (load_format, graph, ops) in graphs().items():
        for form in FORMATS:
            back = form in READ_BACK.get(load_format, ())
            for policy in POLICIES:
                yield session(name, load_format, graph, and_back(ops) if back else ops, policy, form)
