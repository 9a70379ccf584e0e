"""Graphs, recipes and resource sets of our own for the sessions in `format_cases`."""

from typing import Any

Op = dict[str, Any]


# ---- graphs as JGF ---------------------------------------------------------------------------------------------------


class Machine:
    """JGF built by hand: sockets, unusual names, properties, sizes and units."""

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
    for element, keys in _KEYS.items():
        for key in keys:
            name, kind, *default = key.split()
            inner = f"<default>{default[0]}</default>" if default else ""
            lines.append(f'<key id="{name}" for="{element}" attr.name="{name}" attr.type="{kind}">{inner}</key>')
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
    """Ids that continue within the socket, the node and the rack, with a start and a stride."""
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
    """A vertex without a number, ids from a start, scopes above the root."""
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
    """Storage nodes beside compute nodes; both gather the vertices below them."""
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
    """Association by paths of unequal depth: vertices two levels below a rack, and beside a node."""
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
    """An association between two scales: the ids after it continue within one level less."""
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
