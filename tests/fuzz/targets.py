"""The fuzz targets: one function for each kind of text from outside.

Each accepts any bytes. The matcher may raise only FluxionError (hostlists and idsets, read below it, only ValueError).
After a refusal nothing stays allocated, and no input takes a second of processor time. The messages of remote pools
have their own errors.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.fuzz.one_machine import session
from tests.fuzz.pools import nats_wire, pool_message
from tests.fuzz.watch import Finding, note, nothing_is_held, refusals

from fluxion_cy import FluxionError, InvalidJobspec, Matcher
from fluxion_cy.base import ranges as fluxion_ranges
from fluxion_cy.base.ranges import hostlist, idset
from fluxion_cy.formats import jgf, rv1exec
from fluxion_cy.formats.criteria import read_criteria
from fluxion_cy.jobspec import constraint
from fluxion_cy.policy import policy_of, prune_filters_of

FORMATS = ("jgf", "simple", "pretty_simple", "jgf_shorthand", "rlite", "rv1", "rv1_nosched", "rv1_shorthand", "rfc40")
POLICIES = ("first", "low", "lonodex", "pack", "variation", "locality")


def allow_little() -> None:
    """Lower the limits of the process: a few words may request millions of vertices or hosts, which take long."""
    jgf.MAX_VERTICES = rv1exec.MAX_VERTICES = 1000  # type: ignore[attr-defined]  # set where it is read
    fluxion_ranges.MAX_HOSTS = 300


def vertex(number: int, kind: str, local: int, parent: str, **more: Any) -> dict[str, Any]:
    return {
        "id": str(number),
        "metadata": {"type": kind, "id": local, "paths": {"containment": f"{parent}/{kind}{local}"}, **more},
    }


def machine() -> dict[str, Any]:
    """Two nodes with a socket of two cores, a gpu and a pool of memory each, and a licence beside them."""
    nodes = [vertex(0, "cluster", 0, "")]
    edges = []

    def add(above: int, kind: str, local: int, **more: Any) -> int:
        number = len(nodes)
        nodes.append(vertex(number, kind, local, nodes[above]["metadata"]["paths"]["containment"], **more))
        edges.append({"source": str(above), "target": str(number)})
        return number

    for rank in range(2):
        node = add(0, "node", rank, rank=rank, properties={"a": "1", f"n{rank}": ""})
        socket = add(node, "socket", 0, rank=rank)
        for core in range(2):
            add(socket, "core", core, rank=rank)
        add(node, "gpu", 0, rank=rank)
        add(node, "memory", 0, rank=rank, size=16, divisible=True)
    add(0, "licence", 0, size=3)
    return {"graph": {"nodes": nodes, "edges": edges}}


def slot(*inside: tuple[str, int], count: int = 1) -> dict[str, Any]:
    """A jobspec of one kind of slot."""
    below = [{"type": kind, "count": number} for kind, number in inside]
    return {
        "version": 1,
        "resources": [{"type": "slot", "count": count, "label": "a", "with": below}],
        "tasks": [],
        "attributes": {"system": {"duration": 10}},
    }


CORE, NODE = slot(("core", 1)), slot(("node", 1))
_MACHINE = machine()
_MATCHERS = [
    Matcher(_MACHINE, policy=policy, match_format=form, compatible=number % 3 < 2, traverser=traverser)
    for number, (policy, form, traverser) in enumerate(
        (
            ("first", "jgf", "simple"),
            ("low", "rv1", "flexible"),
            ("pack", "jgf", "simple"),
            ("lonodex", "simple", "flexible"),
            ("locality", "rfc40", "simple"),
            ("first", "rlite", "flexible"),
            ("variation", "jgf_shorthand", "simple"),
        )
    )
]


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def either(data: bytes) -> str | bytes:
    """The text if the data are text, else the bytes, which the matcher accepts too."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def graph(data: bytes) -> None:
    """Load a graph, use it, and add it to another one."""
    text = either(data)
    with refusals:
        _MATCHERS[0].clone().add_subgraph(text)
    try:
        matcher = Matcher(text, policy=POLICIES[len(data) % len(POLICIES)])
    except FluxionError as error:
        note(error)
        return
    written = matcher.graph()
    if Matcher(written).graph() != written:
        raise Finding("writing and reading changes the graph")
    _use(matcher)
    nothing_is_held(matcher)


def loading(data: bytes) -> None:
    """Load a recipe (GraphML) or R of version 1, and write a match in each form."""
    text = either(data)
    form = "grug" if data.lstrip()[:1] == b"<" else "rv1exec"
    try:
        matcher = Matcher(text, load_format=form, match_format=FORMATS[len(data) % len(FORMATS)])
    except FluxionError as error:
        note(error)
        return
    _use(matcher)


def _use(matcher: Matcher) -> None:
    matcher.stat()
    matcher.find("status=up or status=down agfilter=true")
    jobs = []
    for ask in (CORE, CORE, NODE):
        matcher.why(ask)
        with refusals:
            jobs.append(matcher.allocate_orelse_reserve(ask).jobid)
    matcher.set_rank_status("all", False)
    root = next((n for n in matcher.graph()["graph"]["nodes"] if _depth(n) == 1), None)
    if root is not None:
        with refusals:
            matcher.resize(_path(root), 7)
    copy = matcher.clone()
    for jobid in jobs:
        copy.cancel(jobid)
        matcher.retract(jobid)
    nothing_is_held(copy)


def _path(node: dict[str, Any]) -> str:
    return str(node["metadata"]["paths"].get("containment", ""))


def _depth(node: dict[str, Any]) -> int:
    return _path(node).count("/")


def jobspec(data: bytes) -> None:
    """Request a jobspec from an idle and a half-full machine with every operation."""
    text = either(data)
    matcher = _MATCHERS[len(data) % len(_MATCHERS)]
    jobs: list[int] = []
    for operation, given in _OPERATIONS:
        try:
            found = getattr(matcher, operation)(text, **given)
        except InvalidJobspec as error:
            note(error)
            break
        except FluxionError as error:
            note(error)
            continue
        if operation.startswith("allocate"):
            jobs.append(found.jobid)
        if operation == "satisfy" and not found and matcher.satisfy(text, candidates=[True, True]):
            raise Finding("satisfiable only with candidates")
    for jobid in reversed(jobs):
        matcher.retract(jobid)
    matcher.next_jobid = matcher.next_jobid
    nothing_is_held(matcher)


_OPERATIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("allocate", {}),
    ("why", {}),
    ("satisfy", {}),
    ("without_allocating_future", {}),
    ("allocate", {"candidates": [1, 2], "prefer": [0.5, 1]}),
    ("allocate_with_satisfiability", {}),
    ("allocate_orelse_reserve", {}),
    ("allocate_orelse_reserve", {"now": 3}),
    ("why", {"candidates": [True, False]}),
    ("shortage", {}),
    ("shortage", {"candidates": [1, 0]}),
)


def r(data: bytes) -> None:
    """Allocate a resource set, and free a part of it."""
    text = either(data)
    matcher = _MATCHERS[len(data) % len(_MATCHERS)]
    held = []
    for jobid in (1, 2):
        with refusals:
            held.append(matcher.update_allocate(jobid, text).jobid)
    if 1 in held and not matcher.partial_cancel(1, text):
        matcher.cancel(1)
    matcher.allocate(NODE, 3)
    with refusals:
        matcher.partial_cancel(3, text)
    for jobid in {*held, 3}:
        matcher.retract(jobid)
    nothing_is_held(matcher)


def policy(data: bytes) -> None:
    """Read a policy, and (after the first line) a list of prune filters, and match with them."""
    first, _, rest = text_of(data).partition("\n")
    with refusals:
        policy_of(first)
        prune_filters_of(rest)
        matcher = Matcher(_MACHINE, policy=first, prune_filters=rest)
        matcher.retract(matcher.allocate(CORE).jobid)
        nothing_is_held(matcher)


_BUSY = Matcher(_MACHINE)
_BUSY.allocate(CORE)
_BUSY.allocate_orelse_reserve(slot(("node", 1), count=2))
_BUSY.set_status("/cluster0/node1/gpu0", False)
_ALL = {node["id"] for node in _MACHINE["graph"]["nodes"]}


def criteria(data: bytes) -> None:
    """Criteria of `find`; the result is a part of the graph, with its ancestors."""
    text = text_of(data)
    with refusals:
        read_criteria(text)
        found = _BUSY.find(text)
        if found is not None and not {node["id"] for node in found["graph"]["nodes"]} <= _ALL:
            raise Finding("find returned a vertex that does not exist")


def ranges(data: bytes) -> None:
    """Hostlists and idsets, alone, as ranks and in constraints."""
    text = text_of(data)
    for read in (idset, hostlist):
        with suppress(ValueError):
            read(text)
    matcher = _MATCHERS[0]
    with refusals:
        matcher.set_rank_status(text, False)
    matcher.set_rank_status("all", True)
    for operation in ("hostlist", "ranks", "properties"):
        asked = slot(("node", 1))
        limits = asked["attributes"]["system"]["constraints"] = {operation: [text]}
        with refusals:
            rule = constraint.parse_constraint(limits)
            constraint.compile_rule(rule, matcher._engine.sym_ids, matcher._engine.props)
            if len(data) % 4 == 0:
                matcher.satisfy(asked)
    with refusals:
        matcher.update_allocate(1, _execution(text))
        matcher.retract(1)


def _execution(text: str) -> dict[str, Any]:
    return {"version": 1, "execution": {"R_lite": [{"rank": text, "children": {"core": text}}], "nodelist": [text]}}


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (graph, loading, jobspec, r, policy, criteria, ranges, session, pool_message, nats_wire)
}
