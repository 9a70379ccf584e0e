"""Jobspecs in every ambiguous form, for `record_jobspecs` and `test_jobspecs`.

Each is matched on three nodes with four cores and a gpu; node1 has the property `big`.
"""

from collections.abc import Iterator
from typing import Any

Tree = dict[str, Any]


def want(kind: str, count: Any, *inside: Tree, **more: Any) -> Tree:
    return {"type": kind, "count": count, **({"with": list(inside)} if inside else {}), **more}


def slot(count: Any, *inside: Tree) -> Tree:
    return want("slot", count, *inside, label="task")


def cores(count: Any) -> Tree:
    """A jobspec for a slot with this number of cores on a node."""
    task = {"command": ["app"], "slot": "task", "count": {"per_slot": 1}}
    resources = [want("node", 1, slot(1, want("core", count)))]
    return {"version": 1, "resources": resources, "tasks": [task], "attributes": {"system": {"duration": 3600}}}


def machine() -> Tree:
    nodes = [{"id": "0", "metadata": {"type": "cluster", "id": 0, "paths": {"containment": "/cluster0"}}}]
    edges = []
    for n in range(3):
        for kind, number in (("node", n), *(("core", i) for i in range(4)), ("gpu", 0)):
            path = f"/cluster0/node{n}" + f"/{kind}{number}" * (kind != "node")
            fields: Tree = {"type": kind, "id": number, "rank": n, "paths": {"containment": path}}
            if kind == "node" and n == 1:
                fields["properties"] = {"big": ""}
            edges.append({"source": "0" if kind == "node" else str(6 * n + 1), "target": str(len(nodes))})
            nodes.append({"id": str(len(nodes)), "metadata": fields})
    return {"graph": {"nodes": nodes, "edges": edges}}


CORE = want("core", 1)

COUNTS: list[Any] = [
    0,
    "0",
    "3",
    3.0,
    "3.0",
    "0x3",
    " 3",
    "3 ",
    "-1",
    None,
    True,
    "",
    [],
    {},
    {"min": 1},
    {"min": "2"},
    {"min": 2, "max": 3},
    {"min": 2, "operator": "+"},
    {"min": 1, "max": 4, "operator": "+", "operand": 0},
    {"min": 1, "max": 4, "operator": "+", "operand": 2},
    {"min": 2, "max": 4, "operator": "+", "operand": 5},
    {"min": 1, "max": 4, "operator": "*", "operand": 2},
    {"min": 1, "max": 4, "operator": "*", "operand": 1},
    {"min": 2, "max": 4, "operator": "^", "operand": 2},
    {"min": 2, "max": 4, "operator": "^", "operand": 1},
    {"min": 1, "max": 4, "operator": "^", "operand": 2},
    {"min": 3, "max": 2, "operator": "+", "operand": 1},
    {"min": 0, "max": 2, "operator": "+", "operand": 1},
    {"min": 1, "max": 4, "operator": "-", "operand": 1},
    {"min": 1, "max": 4, "operator": "++", "operand": 1},
    {"min": 1, "max": 4, "operator": "", "operand": 1},
    {"max": 4},
    {"min": 1, "max": 4, "operator": "+", "operand": 1, "more": 1},
    {"min": 1, "max": 4294967295, "operator": "+", "operand": 1},
    {"min": 1, "max": 4294967296, "operator": "+", "operand": 1},
    "1-4",
    "1-4:2:+",
    "2+",
    "0,2",
    {"min": 1, "max": 4, "operator": "+", "operand": "1"},
    {"min": 1.0},
    {"min": 1.5},
    4294967295,
    4294967296,
    5,
    {"min": 1, "max": 3, "operator": "*", "operand": 3},
]
DURATIONS: list[Any] = [
    0,
    None,
    0.0,
    0.5,
    "0.5",
    "10",
    "abc",
    "",
    True,
    False,
    -1,
    -0.0,
    -0.1,
    1e300,
    3153600000,
    3153600000.5,
    3153600001,
    3153599999.5,
    "inf",
    "nan",
    [],
    {},
    1e-9,
    "1e3",
    "0x10",
    " 5",
    ".5",
    "5.",
]
ATTRIBUTES: list[Any] = [
    None,
    {},
    {"system": None},
    {"system": {}},
    {"user": {}},
    {"user": {"a": 1}, "system": {"duration": 1}},
    {"other": 1},
    [],
    "x",
    {"system": []},
    {"system": {"more": 1}},
    {"system": {"queue": "q"}},
    {"system": {"queue": ["q"]}},
    {"system": {"constraints": None}},
    {"system": {"constraints": []}},
    {"system": {"constraints": "x"}},
    {"system": {"environment": {}, "cwd": "/", "job": {}}},
]
VERSIONS: list[Any] = [1, 2, 9999, 10000, 0, -1, "1", "x", None, 1.0, True, [1]]
TASKS: list[Any] = [
    [],
    None,
    {},
    "x",
    [1],
    [{}],
    [{"command": ["a"], "slot": "task"}],
    [{"command": "a", "slot": "task", "count": {"per_slot": 1}}],
    [{"command": ["a"], "slot": "task", "count": {"total": 1}}],
    [{"command": ["a"], "slot": "nosuch", "count": {"per_slot": 1}}],
    [{"command": ["a"], "slot": "task", "count": {"x": 1}}],
    [{"command": ["a"], "slot": "task", "count": {"per_slot": 1, "total": 1}}],
    [{"command": ["a"], "slot": "task", "count": 1}],
    [{"command": ["a"], "slot": "task", "count": {"per_slot": "x"}}],
    [{"command": ["a"], "slot": "task", "count": {"per_slot": 1}, "distribution": "x", "attributes": {}}],
    [{"command": ["a"], "slot": "task", "count": {"per_slot": 1}, "other": 1}],
    [{"command": [], "slot": "task", "count": {"per_slot": 1}}],
]
CONSTRAINTS: list[Any] = [
    {},
    {"properties": ["big"]},
    {"properties": ["^big"]},
    {"properties": []},
    {"properties": ["^"]},
    {"properties": ["^^big"]},
    {"properties": [""]},
    {"properties": ["b|g"]},
    {"properties": [1]},
    {"properties": [None]},
    {"properties": ["a", "big"]},
    {"properties": "big"},
    {"properties": ["big", "^big"]},
    {"properties": ["big=x"]},
    {"hostlist": ["node0"]},
    {"hostlist": ["node[0-1]"]},
    {"hostlist": []},
    {"hostlist": ["node0,node2"]},
    {"hostlist": ["nosuch"]},
    {"hostlist": [""]},
    {"hostlist": ["node[0"]},
    {"hostlist": ["node0", "node1"]},
    {"hostlist": "node0"},
    {"hostlist": [1]},
    {"hostlist": ["node[00-01]"]},
    {"hostlist": ["node]"]},
    {"ranks": ["0"]},
    {"ranks": ["0-1"]},
    {"ranks": ["0,2"]},
    {"ranks": [0]},
    {"ranks": []},
    {"ranks": [""]},
    {"ranks": ["x"]},
    {"ranks": ["2-1"]},
    {"ranks": ["-1"]},
    {"ranks": ["0", "2"]},
    {"ranks": ["[0-1]"]},
    {"ranks": "0"},
    {"ranks": ["0-"]},
    {"ranks": ["0-1:2"]},
    {"ranks": ["9"]},
    {"and": []},
    {"or": []},
    {"not": []},
    {"and": [{}]},
    {"or": [{}]},
    {"not": [{}]},
    {"not": [{"ranks": ["0"]}, {"ranks": ["1"]}]},
    {"not": [{"ranks": ["0-1"]}, {"ranks": ["1-2"]}]},
    {"and": [{"or": [{"ranks": ["0"]}, {"properties": ["big"]}]}, {"not": [{"ranks": ["0"]}]}]},
    {"and": {"ranks": ["0"]}},
    {"and": ["x"]},
    {"and": None},
    {"foo": []},
    {"ranks": ["0"], "properties": ["big"]},
    {"and": [{"foo": []}]},
    {"or": [{"properties": ["a b"]}]},
    {"properties": ["a b"]},
    {"properties": ["big!"]},
    {"properties": ["'big'"]},
]
RESOURCES: list[Any] = [
    [slot(1, CORE)],
    [slot(2, CORE, want("gpu", 1))],
    [slot(1)],
    [slot(1, slot(1, CORE))],
    [want("node", 1)],
    [want("node", 1, CORE)],
    [want("node", 1, CORE, exclusive=True)],
    [want("node", 1, want("core", 2, exclusive=True))],
    [want("node", 1, slot(1, want("core", 1, exclusive=False)))],
    [want("node", 1, slot(1, want("core", 1, exclusive=True)))],
    [want("node", 1, slot(1, CORE), exclusive=False)],
    [want("node", 1, slot(1, CORE), exclusive="true")],
    [want("node", 1, slot(1, CORE), exclusive="yes")],
    [want("node", 1, slot(1, CORE), exclusive=1)],
    [want("node", 1, slot(1, CORE), exclusive=None)],
    [want("node", 1, slot(1, CORE), unit="x")],
    [want("node", 1, slot(1, CORE), unit=["x"])],
    [want("node", 1, slot(1, CORE), id="x")],
    [want("node", 1, slot(1, CORE), label="x")],
    [want("node", 1, slot(1, CORE), requires={})],
    [want("node", 1, slot(1, CORE), foo=1)],
    [want("slot", 1, CORE)],
    [want("slot", 1, CORE, label=None)],
    [want("slot", 1, CORE, label="")],
    [want("slot", 1, CORE, label=5)],
    [want("slot", 1, CORE, label=[])],
    [want("slot", 1, CORE, label="task", exclusive=True)],
    [want("slot", 1, CORE, label="task", exclusive=False)],
    [want("core", 1, exclusive=True)],
    [want("core", 13, exclusive=True)],
    [want("core", 12, exclusive=True)],
    [want("cluster", 1, slot(1, CORE))],
    [want("cluster", 2, slot(1, CORE))],
    [want("cluster", 1, want("node", 2, slot(1, CORE)))],
    [want("cluster", 1, slot(1, want("node", 1)), exclusive=True)],
    [slot(1, want("node", 1))],
    [slot(1, want("node", 1, CORE))],
    [slot(1, want("node", 1, want("core", 5)))],
    [slot(1, want("node", 2, want("core", 2), want("gpu", 1)))],
    [want("node", 1, slot(1, CORE)), slot(1, want("gpu", 1))],
    [slot(1, CORE), want("gpu", 1, exclusive=True)],
    [want("gpu", 1, exclusive=True), want("core", 1, exclusive=True)],
    [want("core", 1, exclusive=True), want("core", 1, exclusive=True)],
    [want("node", 1, slot(1, CORE), want("gpu", 1))],
    [want("node", 1, want("gpu", 1), slot(1, CORE))],
    [want("node", 1, slot(1, CORE), want("gpu", 2))],
    [want("node", 4, slot(1, CORE))],
    [want("node", {"min": 1, "max": 9, "operator": "+", "operand": 1}, slot(1, CORE))],
    [slot({"min": 1, "max": 9, "operator": "+", "operand": 1}, want("core", 2))],
    [want("nosuch", 1, exclusive=True)],
    [want("node", 1, slot(1, want("nosuch", 1)))],
    [want("socket", 1, slot(1, CORE))],
    [want("node", 1, want("socket", 1, slot(1, CORE)))],
    [],
    None,
    {},
    "x",
    [1],
    [{}],
    [{"type": "core"}],
    [{"count": 1}],
    [{"type": 1, "count": 1}],
    [{"type": "core", "count": 1, "with": None, "exclusive": True}],
    [{"type": "core", "count": 1, "with": [], "exclusive": True}],
    [{"type": "node", "count": 1, "with": {}}],
    [{"type": "node", "count": 1, "with": "x"}],
    [{"type": ["core"], "count": 1}],
    [{"type": "", "count": 1, "exclusive": True}],
]


def cases() -> Iterator[tuple[str, Any, Tree]]:
    """(part, value, whole jobspec)."""
    for count in COUNTS:
        yield "count", count, cores(count)
    for duration in DURATIONS:
        yield "duration", duration, {**cores(1), "attributes": {"system": {"duration": duration}}}
    for constraint in CONSTRAINTS:
        yield "constraints", constraint, {**cores(4), "attributes": {"system": {"constraints": constraint}}}
    for part, values in (
        ("attributes", ATTRIBUTES),
        ("version", VERSIONS),
        ("tasks", TASKS),
        ("resources", RESOURCES),
    ):
        for value in values:
            yield part, value, {**cores(1), part: value}
    for part in cores(1):
        yield "without", part, {key: value for key, value in cores(1).items() if key != part}
    yield "with", "more", {**cores(1), "more": 1}
