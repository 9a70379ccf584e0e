"""Candidates as numbers are caps per rank, with any vertices between the ranks and the slots.

The greedy search finds a match within the caps whenever one exists, under these conditions: one slot request, fixed
counts or ranges, levels above it spelled out, and each rank on one subtree or on siblings without another rank below.
There the tests compare its answer with an exhaustive search. Elsewhere (several slots side by side, nested slots, ranks
within ranks or spread over the graph) they check only what must never happen.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxion_cy import Busy, FluxionError, Matcher, Unsatisfiable

from ...tools.examples import examples
from ...unit.fluxion_cy.graphs import Graph, slot, spec, taken, want

POLICIES = ["first", "low", "high", "lonode", "hinode", "variation", "locality", "pack"]
TIDY = ["rack", "node", "node alone", "socket", "pairs", "none"]
Span = tuple[int, int]
Used = frozenset[tuple[int, int]]


@dataclass
class Vertex:
    """One of the model's vertices; `counts`: its rank or that of its nearest ancestor with one, -1: none."""

    type: str
    path: str
    rank: int
    counts: int
    up: bool
    children: list["Vertex"]


@dataclass
class Machine:
    document: dict[str, Any]
    root: Vertex
    ranks: int


def rank_of(how: str, kind: str, rack: int, node: int, socket: int) -> int:
    """A vertex's own rank, -1: none."""
    below_node = kind in ("node", "socket", "core")
    found = {
        "rack": rack if below_node or kind == "rack" else -1,
        "node": node if below_node else -1,
        "node alone": node if kind == "node" else -1,
        "socket": socket if kind in ("socket", "core") else -1,
        "pairs": node // 2 if below_node else -1,
    }
    return found.get(how, -1)


@st.composite
def machines(draw: st.DrawFn, untidy: bool = False) -> Machine:
    """Up to four nodes, perhaps in racks, perhaps with sockets; a core may be down.

    Untidy: any vertex may have any rank, or none.
    """
    graph, ranks = Graph(), 8
    how = "any" if untidy else draw(st.sampled_from(TIDY))
    any_rank = st.sampled_from([-1, -1, 0, 1, 2])
    racked = how == "rack" or (how != "pairs" and draw(st.booleans()))
    socketed = how == "socket" or draw(st.booleans())
    numbers = Counter[str]()

    def add(kind: str, up: Vertex, above: int, leaf: bool = False) -> tuple[Vertex, int]:
        number = numbers[kind]
        numbers[kind] += 1
        own = (
            draw(any_rank)
            if how == "any"
            else rank_of(how, kind, numbers["rack"] - 1, numbers["node"] - 1, numbers["socket"] - 1)
        )
        down = leaf and draw(st.integers(0, 5)) == 0
        vertex = graph.add(
            kind, number, above, **({"rank": own} if own >= 0 else {}), **({"status": 1} if down else {})
        )
        made = Vertex(kind, graph.paths[vertex], own, own if own >= 0 else up.counts, not down, [])
        up.children.append(made)
        return made, vertex

    root = Vertex("cluster", "/cluster0", -1, -1, True, [])
    top = graph.add("cluster", 0)
    for _ in range(draw(st.integers(1, 2)) if racked else 1):
        rack, number = add("rack", root, top) if racked else (root, top)
        for _ in range(draw(st.integers(1, 2 if racked else 4))):
            node, at = add("node", rack, number)
            for _ in range(draw(st.integers(1, 2)) if socketed else 1):
                holder, below = add("socket", node, at) if socketed else (node, at)
                for _ in range(draw(st.integers(1, 3))):
                    add("core", holder, below, leaf=True)
    return Machine(graph.jgf(), root, ranks)


@dataclass
class Chain:
    """Levels from the outermost to the slot, each with its count, and the cores of a slot."""

    levels: list[tuple[str, Span]]
    cores: int

    def jobspec(self) -> dict[str, Any]:
        inside = want("core", self.cores)
        for kind, (low, high) in reversed(self.levels):
            count: Any = low if low == high else {"min": low, "max": high, "operator": "+", "operand": 1}
            inside = slot(count, inside) if kind == "slot" else want(kind, count, inside)
        return spec(inside)


@st.composite
def chains(draw: st.DrawFn, machine: Machine, cores: int = 2) -> Chain:
    """A request with its levels spelled out, for the types of the machine."""
    there, at = [], machine.root
    while at.children[0].type != "core":
        at = at.children[0]
        there.append(at.type)
    start = draw(st.integers(0, len(there)))

    def span() -> Span:
        low = draw(st.integers(1, 2))
        return low, low + draw(st.sampled_from([0, 0, 1, 2]))

    return Chain([(kind, span()) for kind in [*there[start:], "slot"]], draw(st.integers(1, cores)))


def feasible(machine: Machine, chain: Chain, caps: list[int], ever: bool) -> bool:
    """Whether any choice stays within the caps."""

    def joined(one: Used, other: Used) -> Used | None:
        found = Counter(dict(one))
        found.update(dict(other))
        return None if any(slots > caps[rank] for rank, slots in found.items()) else frozenset(found.items())

    def holders(vertex: Vertex, kind: str) -> list[Vertex]:
        """The outermost vertices of a type, or those that contain cores."""
        if vertex.type == kind or (kind == "slot" and any(child.type == "core" for child in vertex.children)):
            return [vertex]
        return [found for child in vertex.children for found in holders(child, kind)]

    def open_to(vertex: Vertex) -> bool:
        return vertex.counts < 0 or caps[vertex.counts] > 0

    def choices(within: Vertex, level: int) -> set[Used]:
        """The vertices that a request of a level may use below a vertex."""
        kind, (low, high) = chain.levels[level]
        ways: set[tuple[int, Used]] = {(0, frozenset())}
        for holder in filter(open_to, holders(within, kind)):
            if kind == "slot":
                room = sum(core.type == "core" and (ever or core.up) for core in holder.children) // chain.cores
                options = [
                    (n, frozenset({(holder.counts, n)}) if n and holder.counts >= 0 else frozenset())
                    for n in range(min(room, high) + 1)
                ]
            else:
                options = [(0, frozenset()), *((1, used) for used in choices(holder, level + 1))]
            ways = {
                (count + more, both)
                for count, used in ways
                for more, extra in options
                if count + more <= high and (both := joined(used, extra)) is not None
            }
        return {used for count, used in ways if count >= low}

    return bool(choices(machine.root, 0))


def counted(machine: Machine, found: Any, cores: int) -> Counter[int]:
    """Slots per rank, from R: vertices with cores directly below them."""
    counts: dict[str, int] = {}
    left = [machine.root]
    while left:
        vertex = left.pop()
        for child in vertex.children:
            counts[child.path] = vertex.rank if vertex.rank >= 0 else child.counts
        left += vertex.children
    held = [path for path in taken(found) if path.rpartition("/")[2].startswith("core")]
    by_place = Counter((path.rpartition("/")[0], counts[path]) for path in held)
    slots = Counter[int]()
    for (_, rank), number in by_place.items():
        slots[rank] += number // cores
    del slots[-1]
    return slots


def tried(machine: Machine, ask: dict[str, Any], policy: str, caps: Any, **options: Any) -> Any:
    """R, or None."""
    try:
        return Matcher(machine.document, policy=policy, **options).allocate(ask, candidates=caps).R
    except (Busy, Unsatisfiable):
        return None


def within(slots: Counter[int], caps: list[int]) -> bool:
    return all(number <= caps[rank] for rank, number in slots.items())


CAPS = st.lists(st.integers(0, 4), min_size=8, max_size=8)


@settings(max_examples=examples(300))
@given(machines(), st.sampled_from(POLICIES), CAPS, st.data())
def test_a_match_within_caps_is_found_exactly_if_one_exists(
    machine: Machine, policy: str, caps: list[int], data: st.DataObject
) -> None:
    chain = data.draw(chains(machine))
    ask = chain.jobspec()
    found = tried(machine, ask, policy, caps)
    assert (found is not None) == feasible(machine, chain, caps, ever=False)
    assert found is None or within(counted(machine, found, chain.cores), caps)
    matcher = Matcher(machine.document, policy=policy)
    assert matcher.satisfy(ask, candidates=caps) == feasible(machine, chain, caps, ever=True)
    assert (matcher.why(ask, candidates=caps) == "fits now") == (found is not None)


@settings(max_examples=examples(150))
@given(machines(), st.sampled_from(POLICIES), CAPS, CAPS, st.data())
def test_larger_caps_never_lose_a_match(
    machine: Machine, policy: str, caps: list[int], more: list[int], data: st.DataObject
) -> None:
    ask = data.draw(chains(machine)).jobspec()
    if tried(machine, ask, policy, caps) is not None:
        assert tried(machine, ask, policy, [one + other for one, other in zip(caps, more, strict=True)]) is not None


@st.composite
def requests(draw: st.DrawFn, machine: Machine) -> dict[str, Any]:
    """Slots of one core each: one chain, two side by side, or slots in slots."""
    chain = draw(chains(machine, cores=1))
    ask = chain.jobspec()
    shape = draw(st.sampled_from(["chain", "beside", "within"]))
    if shape == "within" and chain.levels[-2:-1] and chain.levels[-2][0] != "rack":
        inner = ask["resources"][0]
        return spec(slot(draw(st.integers(1, 2)), inner))
    if shape == "beside":
        at, key = ask, "resources"
        while at[key][0]["type"] != "slot":
            at, key = at[key][0], "with"
        at[key].append(slot(draw(st.integers(1, 2)), want("core", 1), label="other"))
    return ask


@settings(max_examples=examples(300))
@given(
    st.booleans(), st.sampled_from(POLICIES), CAPS, st.booleans(), st.sampled_from(["simple", "flexible"]), st.data()
)
def test_no_rank_ever_holds_more_slots_than_its_cap(
    untidy: bool, policy: str, caps: list[int], compatible: bool, traverser: str, data: st.DataObject
) -> None:
    machine = data.draw(machines(untidy=untidy))
    ask = data.draw(requests(machine))
    matcher = Matcher(machine.document, policy=policy, compatible=compatible, traverser=traverser)
    text = matcher.why(ask, candidates=caps)
    assert text
    try:
        found = matcher.allocate(ask, candidates=caps)
    except FluxionError:
        assert text != "fits now"
        return
    assert text == "fits now"
    if untidy and (not compatible or ask["resources"][0]["type"] == "slot"):
        return  # a slot may gather vertices of several ranks, and R does not show the rank that it used
    assert within(counted(machine, found.R, 1), caps)


@settings(max_examples=examples(150))
@given(st.booleans(), st.sampled_from(POLICIES), st.booleans(), st.data())
def test_large_caps_change_nothing(untidy: bool, policy: str, compatible: bool, data: st.DataObject) -> None:
    machine = data.draw(machines(untidy=untidy))
    ask = data.draw(requests(machine))

    def answer(candidates: Any) -> Any:
        matcher = Matcher(machine.document, policy=policy, compatible=compatible)
        try:
            return matcher.allocate_orelse_reserve(ask, candidates=candidates).R, matcher.satisfy(ask)
        except FluxionError as error:
            return type(error)

    assert answer([99] * machine.ranks) == answer(None)


@given(machines(untidy=True) | machines(), st.sampled_from(POLICIES), st.data())
@settings(max_examples=examples(200))
def test_a_rank_as_true_has_no_cap(machine: Machine, policy: str, data: st.DataObject) -> None:
    chain, rank = data.draw(chains(machine)), data.draw(st.integers(0, 3))
    found: list[Any] = []
    for many in (True, 10**6):
        matcher = Matcher(machine.document, policy=policy)
        try:
            candidates = [many if other == rank else type(many)(0) for other in range(machine.ranks)]
            found.append(matcher.allocate(chain.jobspec(), candidates=candidates).R)
        except FluxionError as error:
            found.append(type(error))
    assert found[0] == found[1]
