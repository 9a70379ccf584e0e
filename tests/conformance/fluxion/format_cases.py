"""Sessions of our own over every form in which a graph is read and R is written: graphs, recipes, operations.

`record.py` asks the real library what it answers to them; `test_formats.py` replays them on the embedded engine.
"""

from collections.abc import Iterator
from typing import Any

FORMATS = ("simple", "pretty_simple", "jgf", "jgf_shorthand", "rlite", "rv1", "rv1_nosched", "rv1_shorthand")
POLICIES = ("first", "firstnodex", "low", "lonodex")
Op = dict[str, Any]


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


# ---- graphs as JGF ---------------------------------------------------------------------------------------------------


class Machine:
    """JGF put together by hand: sockets, odd names, properties, sizes and units."""

    def __init__(self) -> None:
        self.nodes: list[Op] = []
        self.edges: list[Op] = []
        self.paths: list[str] = []

    def add(self, kind: str, number: int, above: int | None = None, **metadata: Any) -> int:
        vertex = len(self.nodes)
        name = metadata.setdefault("name", f"{metadata.get('basename', kind)}{number}")
        self.paths.append(("" if above is None else self.paths[above]) + f"/{name}")
        fields = {"type": kind, "id": number, "uniq_id": vertex, **metadata, "paths": {"containment": self.paths[-1]}}
        self.nodes.append({"id": str(vertex), "metadata": fields})
        if above is not None:
            self.edges.append({"source": str(above), "target": str(vertex)})
        return vertex

    def document(self) -> Op:
        return {"graph": {"nodes": self.nodes, "edges": self.edges}}


def sockets() -> Op:
    """Padded host names with a gap, properties with and without a value, gpus before cores, chunks of memory."""
    graph = Machine()
    root = graph.add("cluster", 0, name="hill")
    marks: list[Op] = [{}, {"big": ""}, {"big": "", "perf_class": "2"}]
    for rank, number in enumerate((8, 9, 11)):
        more = {"properties": marks[rank]} if marks[rank] else {}
        node = graph.add("node", number, root, name=f"host{number:03}", basename="host", rank=rank, **more)
        for s in range(2):
            socket = graph.add("socket", s, node, rank=rank)
            graph.add("gpu", s, socket, rank=rank)
            for c in range(2):
                graph.add("core", 2 * s + c, socket, rank=rank)
            graph.add("memory", s, socket, rank=rank, size=16, unit="GB")
    return graph.document()


def flat() -> Op:
    """Nodes with cores and a gpu directly below, and a device beside the nodes."""
    graph = Machine()
    root = graph.add("cluster", 0)
    for rank in range(3):
        node = graph.add("node", rank, root, rank=rank)
        for c in range(4):
            graph.add("core", c, node, rank=rank)
        graph.add("gpu", 0, node, rank=rank)
    graph.add("qpu", 0, root, size=5, properties={"vendor": "x"})
    return graph.document()


# ---- recipes ---------------------------------------------------------------------------------------------------------

_KEYS = {
    "node": (
        "root int 0",
        "type string",
        "basename string",
        "size long 1",
        "unit string",
        "subsystem string containment",
    ),
    "edge": (
        "e_subsystem string containment",
        "relation string contains",
        "rrelation string in",
        "gen_method string MULTIPLY",
        "id_scope int 0",
        "id_start int 0",
        "id_stride int 1",
        "multi_scale int 1",
        "as_tgt_subsystem string containment",
        "as_tgt_uplvl int 1",
        "as_src_uplvl int 1",
    ),
}


def recipe(nodes: dict[str, str], edges: dict[str, str]) -> str:
    """GraphML of nodes and edges (`a>b`), each with its data as `key=value` words."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">']
    for whom, keys in _KEYS.items():
        for key in keys:
            name, kind, *default = key.split()
            inner = f"<default>{default[0]}</default>" if default else ""
            lines.append(f'<key id="{name}" for="{whom}" attr.name="{name}" attr.type="{kind}">{inner}</key>')
    lines.append('<graph id="g" edgedefault="directed">')
    for name, words in nodes.items():
        lines.append(f'<node id="{name}">{_data(words)}</node>')
    for ends, words in edges.items():
        source, target = ends.split(">")
        lines.append(f'<edge id="{source}2{target}" source="{source}" target="{target}">{_data(words)}</edge>')
    return "\n".join([*lines, "</graph>", "</graphml>", ""])


def _data(words: str) -> str:
    pairs = (word.split("=") for word in words.split())
    return "".join(f'<data key="{key}">{value}</data>' for key, value in pairs)


def _pools(*kinds: str) -> dict[str, str]:
    return {kind: f"type={kind} basename={kind}" for kind in kinds}


def scopes() -> str:
    """Ids counted on within the socket, the node and the rack, with a start and a stride."""
    nodes = {"cluster": "root=1 type=cluster basename=vale", **_pools("rack", "node", "socket", "gpu", "core")}
    nodes["memory"] = "type=memory basename=memory size=4 unit=GB"
    edges = {
        "cluster>rack": "multi_scale=2",
        "rack>node": "multi_scale=2 id_scope=1",
        "node>socket": "multi_scale=2",
        "socket>gpu": "id_scope=1",
        "socket>core": "multi_scale=2 id_scope=1",
        "socket>memory": "multi_scale=2 id_scope=2 id_start=3 id_stride=2",
    }
    return recipe(nodes, edges)


def unnumbered() -> str:
    """A vertex without a number, ids from a start, scopes beyond the top."""
    nodes = {"cluster": "root=1 type=cluster basename=cluster", **_pools("node", "core", "gpu")}
    nodes["bb"] = "type=bb basename=burst size=7 unit=GB"
    edges = {
        "cluster>node": "multi_scale=3 id_start=5",
        "node>core": "multi_scale=3 id_scope=9",
        "node>gpu": "multi_scale=1 id_start=2",
        "node>bb": "id_scope=-1",
    }
    return recipe(nodes, edges)


def powered() -> str:
    """A second subsystem over the same pdus and nodes."""
    nodes = {"cluster": "root=1 type=cluster basename=cluster", **_pools("rack", "pdu", "node", "core")}
    nodes |= {
        "panel": "root=1 type=panel basename=panel subsystem=power",
        "pdu_p": "type=pdu basename=pdu subsystem=power",
        "node_p": "type=node basename=node subsystem=power",
        "watts": "type=power basename=power subsystem=power size=10 unit=KW",
    }
    supplies = "e_subsystem=power relation=supplies_to rrelation=draws_from"
    edges = {
        "cluster>rack": "multi_scale=2",
        "rack>pdu": "id_scope=1",
        "rack>node": "multi_scale=2 id_scope=1",
        "node>core": "multi_scale=2",
        "panel>pdu_p": f"{supplies} gen_method=ASSOCIATE_IN",
        "pdu_p>node_p": f"{supplies} gen_method=ASSOCIATE_BY_PATH_IN as_tgt_uplvl=1 as_src_uplvl=1",
        "node_p>watts": f"{supplies} multi_scale=2",
    }
    return recipe(nodes, edges)


def stores() -> str:
    """Storage nodes beside compute nodes; both gather what lies below them."""
    nodes = {"cluster": "root=1 type=cluster basename=cluster", **_pools("node", "core", "ssd")}
    nodes["cell"] = "type=cell basename=cell"
    edges = {
        "cluster>cell": "multi_scale=2",
        "cell>node": "multi_scale=2 id_scope=1",
        "node>core": "multi_scale=2",
        "node>ssd": "multi_scale=1 id_scope=1",
    }
    return recipe(nodes, edges)


def levels() -> str:
    """Association by paths of unlike depth: what lies two levels below a rack, and beside a node."""
    nodes = {"cluster": "root=1 type=cluster basename=cluster", **_pools("rack", "node", "core", "gpu")}
    nodes |= {
        "panel": "root=1 type=panel basename=panel subsystem=power",
        "rack_p": "type=rack basename=rack subsystem=power",
        "core_p": "type=core basename=core subsystem=power",
        "node_p": "type=node basename=node subsystem=power",
        "gpu_p": "type=gpu basename=gpu subsystem=power",
    }
    by_path = "e_subsystem=power relation=feeds gen_method=ASSOCIATE_BY_PATH_IN"
    edges = {
        "cluster>rack": "multi_scale=2",
        "rack>node": "multi_scale=2 id_scope=1",
        "node>core": "multi_scale=2 id_start=1 id_stride=3",
        "rack>gpu": "multi_scale=1 id_scope=1 id_start=4",
        "panel>rack_p": "e_subsystem=power relation=feeds gen_method=ASSOCIATE_IN",
        "rack_p>core_p": f"{by_path} as_tgt_uplvl=2 as_src_uplvl=0",
        "panel>node_p": "e_subsystem=power relation=feeds gen_method=ASSOCIATE_IN",
        "node_p>gpu_p": f"{by_path} as_tgt_uplvl=1 as_src_uplvl=1",
    }
    return recipe(nodes, edges)


def popped() -> str:
    """An association between two scales: ids after it are counted on within one level less."""
    nodes = {"cluster": "root=1 type=cluster basename=cluster", **_pools("rack", "node", "core", "bb")}
    nodes["spare"] = "type=core basename=core subsystem=power"
    edges = {
        "cluster>rack": "multi_scale=2",
        "rack>node": "multi_scale=3 id_scope=1",
        "node>core": "multi_scale=2 id_scope=2",
        "rack>spare": "e_subsystem=power gen_method=ASSOCIATE_BY_PATH_IN as_tgt_uplvl=2 as_src_uplvl=0",
        "rack>bb": "multi_scale=2 id_scope=2",
    }
    return recipe(nodes, edges)


def parallel() -> str:
    """An association along an edge of containment."""
    nodes = {"cluster": "root=1 type=cluster basename=cluster", **_pools("node", "core")}
    nodes["panel"] = "root=1 type=panel basename=panel subsystem=power"
    nodes["node_p"] = "type=node basename=node subsystem=power"
    nodes["core_p"] = "type=core basename=core subsystem=power"
    edges = {
        "cluster>node": "multi_scale=2",
        "node>core": "multi_scale=2",
        "panel>node_p": "e_subsystem=power gen_method=ASSOCIATE_IN",
        "node_p>core_p": "e_subsystem=power gen_method=ASSOCIATE_BY_PATH_IN as_tgt_uplvl=1 as_src_uplvl=0",
    }
    return recipe(nodes, edges)


# ---- R version 1 -----------------------------------------------------------------------------------------------------


def ranked() -> Op:
    """Two kinds of nodes, padded names, properties; ranks with a gap and out of order."""
    rows = [
        {"rank": "3,5", "children": {"gpu": "0-1", "core": "0-3"}},
        {"rank": "0-1", "children": {"core": "0,2-3"}},
    ]
    execution = {
        "R_lite": rows,
        "nodelist": ["big[007-008],small9", "login"],
        "properties": {"fat": "3,5", "old": "0,5"},
        "starttime": 0,
        "expiration": 0,
    }
    return {"version": 1, "execution": execution}


def plain() -> Op:
    execution = {"R_lite": [{"rank": "0-3", "children": {"core": "0-3"}}], "nodelist": ["n[0-3]"]}
    return {"version": 1, "execution": {**execution, "starttime": 0, "expiration": 3600}}


# ---- sessions --------------------------------------------------------------------------------------------------------

CORE, NODE = want("core", 1), "node"


READ_BACK = {
    "jgf": ("jgf", "jgf_shorthand", "rv1", "rv1_shorthand"),
    "rv1exec": ("rv1", "rv1_nosched", "rv1_shorthand"),
}


def and_back(jobs: list[Op]) -> list[Op]:
    """The jobs, then the R of each read back after its job is gone."""
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
    """Cores, a whole node, several slots, a reservation, a preview and a question, over `core_path` below a node."""

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
    """Partial cancel by rank and by vertex, rank status, clone, find: what the other corpora hold little of."""
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
    ranks = [
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
    """Partial cancel by the vertices of a graph, by ranks below which nothing has one, and of what is none."""

    def part(rank: int, cores: range, whole: bool, with_graph: bool = True, root: bool = False) -> Op:
        """Cores of a rank of `flat`, or of `plain` where there is no graph; maybe with the root above them."""
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
    """R without a graph: a part of a rank, a whole rank, what is held, what is not there, and below sockets."""

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
    """What no node gathers, and nodes that no rank names."""
    qpu = [ask("allocate", 1, slot(1, want("qpu", 1))), ask("allocate", 2, slot(1, want("qpu", 1)))]
    bare = flat()
    for node in bare["graph"]["nodes"]:
        node["metadata"].pop("rank", None)
    cores = [ask("allocate", n, want(NODE, 3, slot(1, want("core", 4)))) for n in (1, 2)]
    for form in FORMATS:
        yield session("qpu", "jgf", flat(), qpu, "first", form)
        yield session("rankless", "jgf", bare, cores, "first", form)


def listing() -> Iterator[Op]:
    """What was read, whole: `find` gives every vertex that is up."""
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
