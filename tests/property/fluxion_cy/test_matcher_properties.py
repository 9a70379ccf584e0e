"""Properties of every graph and every sequence of operations, on small cases."""

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxion_cy import Busy, InvalidJobspec, Matcher, NoSuchJob, Unsatisfiable

from ...tools.examples import examples
from ...unit.fluxion_cy.graphs import Graph, slot, spec, taken, want

POLICIES = ["first", "low", "high", "lonode", "hinode", "firstnodex", "lonodex", "variation", "locality", "pack"]
PROPERTIES = [None, {}, {"a": ""}, {"a": "", "b": "x"}]


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Any]:
    """Up to four nodes, perhaps in racks, perhaps with sockets; cores, gpus, a chunk or a pool of memory."""
    graph = Graph()
    root = graph.add("cluster", 0)
    racks = draw(st.integers(0, 2))
    above = [graph.add("rack", n, root) for n in range(racks)] or [root]
    socketed = draw(st.booleans())
    for n in range(draw(st.integers(1, 4))):
        properties = draw(st.sampled_from(PROPERTIES))
        more = {} if properties is None else {"properties": properties}
        node = graph.add("node", n, draw(st.sampled_from(above)), rank=n, **more)
        places = [graph.add("socket", s, node, rank=n) for s in range(2)] if socketed else [node]
        core = 0
        for place in places:
            for _ in range(draw(st.integers(1, 3))):
                graph.add("core", core, place, rank=n)
                core += 1
        if draw(st.booleans()):
            graph.add("gpu", 0, places[0], rank=n)
        if n == 0 or draw(st.booleans()):
            graph.add("memory", 0, node, rank=n, size=draw(st.integers(1, 5)), divisible=draw(st.booleans()))
    return graph.jgf()


CONSTRAINTS = st.sampled_from(
    [None, {"properties": ["a"]}, {"properties": ["^b"]}, {"ranks": ["0-1"]}, {"hostlist": ["node[1-2]"]}]
)


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    count = st.one_of(st.integers(1, 3), st.just({"min": 1, "max": 3, "operator": "+", "operand": 1}))
    inside = [want("core", draw(count))]
    if draw(st.booleans()):
        inside.append(want(draw(st.sampled_from(["gpu", "memory"])), draw(st.integers(1, 2))))
    unit = slot(draw(count), *inside)
    if draw(st.booleans()):
        more = {"exclusive": True} if draw(st.booleans()) else {}
        unit = want("node", draw(st.integers(1, 2)), unit, **more)
    return spec(unit, duration=draw(st.integers(1, 20)), constraints=draw(CONSTRAINTS))


def vertices(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {node["metadata"]["paths"]["containment"]: node["metadata"] for node in document["graph"]["nodes"]}


def peaks(held: list[tuple[int, int, dict[str, int]]]) -> dict[str, int]:
    """The most units of each vertex that are allocated at one moment."""
    moments = {start for start, _, _ in held}
    most: dict[str, int] = {}
    for moment in moments:
        now: dict[str, int] = {}
        for start, end, units in held:
            if start <= moment < end:
                for path, amount in units.items():
                    now[path] = now.get(path, 0) + amount
        for path, amount in now.items():
            most[path] = max(most.get(path, 0), amount)
    return most


def meets(constraint: Any, fields: dict[str, Any]) -> bool:
    if not constraint:
        return True
    ((operation, words),) = constraint.items()
    if operation == "properties":
        has = fields.get("properties", {})
        return all((word[1:] not in has) if word[0] == "^" else (word in has) for word in words)
    if operation == "ranks":
        return fields["rank"] in (0, 1)
    return fields["id"] in (1, 2)


@settings(max_examples=examples(150))
@given(graphs(), st.lists(jobs(), min_size=1, max_size=8), st.sampled_from(POLICIES), st.data())
def test_no_allocation_overlaps_another_or_violates_its_constraint(
    document: dict[str, Any], asks: list[dict[str, Any]], policy: str, data: st.DataObject
) -> None:
    matcher = Matcher(document, policy=policy)
    there = vertices(document)
    held: dict[int, tuple[int, int, dict[str, int]]] = {}
    now = 0
    for ask in asks:
        now += data.draw(st.integers(0, 5))
        system = ask["attributes"]["system"]
        try:
            found = matcher.allocate_orelse_reserve(ask, now=now)
        except (Busy, Unsatisfiable):
            continue
        units = taken(found.R)
        held[found.jobid] = (found.at, found.at + system["duration"], units)
        for path in units:
            owner = next(
                (
                    there[p]
                    for p in (path, path.rpartition("/")[0], path.rpartition("/")[0].rpartition("/")[0])
                    if there.get(p, {}).get("type") == "node"
                ),
                None,
            )
            assert owner is None or meets(system.get("constraints"), owner)
        for path, most in peaks(list(held.values())).items():
            assert most <= there[path].get("size", 1), path
        ends: bool = data.draw(st.booleans()) if held else False
        if ends:
            gone = data.draw(st.sampled_from(sorted(held)))
            matcher.cancel(gone)
            del held[gone]


@settings(max_examples=examples(150))
@given(graphs(), st.lists(jobs(), max_size=4), jobs(), st.sampled_from(POLICIES))
def test_cancel_undoes_allocate_and_retract_restores_the_graph(
    document: dict[str, Any], before: list[dict[str, Any]], ask: dict[str, Any], policy: str
) -> None:
    matcher = Matcher(document, policy=policy)
    for earlier in before:
        with contextlib.suppress(Busy, Unsatisfiable):
            matcher.allocate_orelse_reserve(earlier)
    known = list(range(1, matcher.next_jobid + 1))

    def seen() -> list[Any]:
        finds = [matcher.find(criteria) for criteria in ("sched-now=allocated", "sched-future=reserved")]
        return [matcher.graph(), matcher.stat(), *finds, *(info_of(matcher, jobid) for jobid in known)]

    state, free = seen(), matcher.find("sched-now=free and sched-future=free")
    expected = attempts(matcher.clone(), before)
    try:
        job = matcher.allocate_orelse_reserve(ask)
    except (Busy, Unsatisfiable):
        return
    cancelled = matcher.clone()
    cancelled.cancel(job.jobid)
    assert cancelled.find("sched-now=free and sched-future=free") == free
    matcher.retract(job.jobid)
    assert seen() == state
    assert attempts(matcher, before) == expected


def info_of(matcher: Matcher, jobid: int) -> Any:
    try:
        return matcher.info(jobid)
    except NoSuchJob:
        return None


def attempts(matcher: Matcher, asks: list[dict[str, Any]]) -> list[Any]:
    """The matcher's answers to all requests from here on."""
    found: list[Any] = []
    for ask in asks:
        try:
            answer = matcher.allocate_orelse_reserve(ask)
            found.append((answer.jobid, answer.at, answer.R))
        except (Busy, Unsatisfiable) as error:
            found.append(type(error))
    return found


@settings(max_examples=examples(150))
@given(
    graphs(),
    st.dictionaries(
        st.text(max_size=5),
        st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=4),
        max_size=3,
    ),
)
def test_a_graph_round_trips(document: dict[str, Any], more: dict[str, Any]) -> None:
    for part in (document, document["graph"], document["graph"]["nodes"][-1], document["graph"]["edges"][0]):
        part.update({f"x-{key}": value for key, value in more.items()})
    document["graph"]["nodes"][0]["metadata"].update({f"x-{key}": value for key, value in more.items()})
    before = copy.deepcopy(document)
    assert Matcher(document).graph() == before == document


@settings(max_examples=examples(150))
@given(graphs(), st.lists(jobs(), min_size=1, max_size=6), st.sampled_from(["first", "low", "high"]))
def test_a_reservation_is_never_later_than_the_first_possible_second(
    document: dict[str, Any], asks: list[dict[str, Any]], policy: str
) -> None:
    matcher = Matcher(document, policy=policy)
    for ask in asks:
        other = matcher.clone()
        try:
            found = matcher.allocate_orelse_reserve(ask)
        except (Busy, Unsatisfiable):
            assert earliest(other, ask) is None
            continue
        assert earliest(other, ask) == found.at


def earliest(matcher: Matcher, ask: dict[str, Any], first: int = 0) -> int | None:
    """By trying every second."""
    for now in range(first, 170):
        try:
            matcher.without_allocating(ask, now=now)
        except Busy:
            continue
        return now
    return None


@settings(max_examples=examples(150))
@given(graphs(), jobs(), st.sampled_from(POLICIES), st.randoms(use_true_random=False))
def test_the_order_of_the_file_does_not_matter(
    document: dict[str, Any], ask: dict[str, Any], policy: str, source: Any
) -> None:
    for node in document["graph"]["nodes"]:
        node["metadata"]["uniq_id"] = int(node["id"])
    shuffled = copy.deepcopy(document)
    source.shuffle(shuffled["graph"]["nodes"])
    source.shuffle(shuffled["graph"]["edges"])
    answers = []
    for graph in (document, shuffled):
        try:
            answers.append(taken(Matcher(graph, policy=policy).allocate(ask).R))
        except Busy:
            answers.append({})
    assert answers[0] == answers[1]


FLAT_JOBS = st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 2), st.integers(0, 1), st.integers(1, 9))


@settings(max_examples=examples(150))
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=3),
    st.lists(FLAT_JOBS, min_size=1, max_size=7),
    st.sampled_from([*POLICIES[:5], "pack"]),
)
def test_a_reservation_starts_when_a_count_shows_enough_free_resources(
    sizes: list[tuple[int, int]], asks: list[tuple[int, int, int, int, int]], policy: str
) -> None:
    graph = Graph()
    root = graph.add("cluster", 0)
    for n, (cores, gpus) in enumerate(sizes):
        node = graph.add("node", n, root, rank=n)
        for kind, count in (("core", cores), ("gpu", gpus)):
            for i in range(count):
                graph.add(kind, i, node, rank=n)
    matcher = Matcher(graph.jgf(), policy=policy)
    held: list[tuple[int, int, dict[str, int]]] = []
    for nodes, slots, cores, gpus, duration in asks:
        inside = [want("core", cores), *([want("gpu", gpus)] if gpus else [])]
        expected = by_counting(sizes, held, nodes, slots * cores, slots * gpus, duration)
        try:
            found = matcher.allocate_orelse_reserve(spec(want("node", nodes, slot(slots, *inside)), duration=duration))
        except Unsatisfiable:
            assert expected is None
            continue
        assert found.at == expected
        held.append((found.at, found.at + duration, taken(found.R)))


def by_counting(
    sizes: list[tuple[int, int]],
    held: list[tuple[int, int, dict[str, int]]],
    nodes: int,
    cores: int,
    gpus: int,
    duration: int,
) -> int | None:
    """The first second from which on `nodes` nodes have these free amounts for the whole duration."""
    if sum(has[0] >= cores and has[1] >= gpus for has in sizes) < nodes:
        return None
    at = 0
    while True:
        fit = 0
        for n, has in enumerate(sizes):
            busy = {path for start, end, units in held if start < at + duration and end > at for path in units}
            mine = [path for path in busy if path.startswith(f"/cluster0/node{n}/")]
            free_gpus = has[1] - sum("/gpu" in path for path in mine)
            fit += has[0] - sum("/core" in path for path in mine) >= cores and free_gpus >= gpus
        if fit >= nodes:
            return at
        at += 1


#: Rack, cores, allowed slots, preference.
HOSTS = st.tuples(st.integers(0, 1), st.integers(1, 5), st.integers(0, 3), st.integers(-2, 2))


@settings(max_examples=examples(150))
@given(
    st.lists(HOSTS, min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(1, 2),
    st.sampled_from(POLICIES),
)
def test_a_gang_is_placed_on_the_most_preferred_candidates(
    hosts: list[tuple[int, int, int, int]], slots: int, cores: int, policy: str
) -> None:
    graph = Graph()
    root = graph.add("cluster", 0)
    racks = [graph.add("rack", n, root) for n in range(2)]
    for n, (rack, count, _, _) in enumerate(hosts):
        node = graph.add("node", n, racks[rack], rank=n)
        for i in range(count):
            graph.add("core", i, node, rank=n)
    room = [min(count // cores, allowed) for _, count, allowed, _ in hosts]
    liked = [score for *_, score in hosts]
    matcher = Matcher(graph.jgf(), policy=policy)
    ask = spec(slot(slots, want("core", cores)))
    try:
        found = taken(matcher.allocate(ask, candidates=[host[2] for host in hosts], prefer=liked).R)
    except Busy:
        assert sum(room) < slots
        return
    got = [sum(f"/node{n}/core" in path for path in found) for n in range(len(hosts))]
    if policy in ("firstnodex", "lonodex"):  # whole nodes: the match also contains the cores that were not requested
        assert sum(got) >= slots * cores
        return
    best, left = 0, slots
    for n in sorted(range(len(hosts)), key=lambda n: -liked[n]):
        best += min(left, room[n]) * liked[n]
        left -= min(left, room[n])
    assert left == 0
    assert all(number <= room[n] * cores for n, number in enumerate(got))
    assert sum(number // cores * liked[n] for n, number in enumerate(got)) == best


#: Vertex (by its position in the file), start, duration, units.
TAKINGS = st.tuples(st.integers(0, 40), st.integers(0, 6), st.integers(1, 6), st.integers(1, 5))


@settings(max_examples=examples(150))
@given(graphs(), st.lists(TAKINGS, min_size=2, max_size=8))
def test_a_resource_set_is_allocated_exactly_if_no_ancestor_or_descendant_is(
    document: dict[str, Any], wishes: list[tuple[int, int, int, int]]
) -> None:
    matcher = Matcher(document)
    everything = list(vertices(document).items())
    held: list[tuple[int, int, dict[str, int]]] = []
    for jobid, (place, start, duration, wanted) in enumerate(wishes):
        path, fields = everything[place % len(everything)]
        size, pool, end = fields.get("size", 1), fields.get("divisible", False), start + duration
        units = min(wanted, size) if pool else size
        node = {"metadata": {**fields, "exclusive": True, "size": units}}
        times = {"starttime": start, "expiration": end}
        rset = {"version": 1, "execution": times, "scheduling": {"graph": {"nodes": [node]}}}
        at_once = [(s, e, claim) for s, e, claim in held if s < end and e > start]
        related = any(other != path and nested(other, path) for *_, claim in at_once for other in claim)
        # The peak of a pool within the span is at the start of an allocation, so checking the starts suffices.
        within = [(max(s, start), e, claim) for s, e, claim in at_once]
        if related or peaks(within).get(path, 0) + units > size:
            with pytest.raises(Busy):
                matcher.update_allocate(jobid, rset)
            continue
        assert taken(matcher.update_allocate(jobid, rset).R) == {path: units}
        held.append((start, end, {path: units}))


def nested(one: str, other: str) -> bool:
    """Whether one of two vertices contains the other."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


@settings(max_examples=examples(150))
@given(graphs(), st.lists(jobs(), min_size=2, max_size=8), st.sampled_from(POLICIES), st.data())
def test_reservations_move_to_the_earliest_possible_second_and_never_back(
    document: dict[str, Any], asks: list[dict[str, Any]], policy: str, data: st.DataObject
) -> None:
    matcher = Matcher(document, policy=policy, replan=True)
    nodes = sorted(path for path, fields in vertices(document).items() if fields["type"] == "node")
    for path in data.draw(st.lists(st.sampled_from(nodes), max_size=2)):
        matcher.set_status(path, up=False)
    asked: dict[int, dict[str, Any]] = {}
    for ask in asks:
        with contextlib.suppress(Busy, Unsatisfiable):
            asked[matcher.allocate_orelse_reserve(ask).jobid] = ask
    now = 0
    for _ in range(6):
        now += data.draw(st.integers(0, 3))
        before = {jobid: matcher.info(jobid) for jobid in asked}
        makes_room = make_room(matcher, asked, now, data)
        asked = {jobid: ask for jobid, ask in asked.items() if matcher.info(jobid).mode != "CANCELED"}
        after = {jobid: matcher.info(jobid) for jobid in asked}
        assert sorted(matcher.moved()) == [jobid for jobid in sorted(asked) if after[jobid] != before[jobid]]
        assert all(now <= after[jobid].at < before[jobid].at for jobid in asked if after[jobid] != before[jobid])
        lengths = {jobid: ask["attributes"]["system"]["duration"] for jobid, ask in asked.items()}
        spans = [(a.at, a.at + lengths[j], taken(a.R)) for j in asked for a in [matcher.allocation(j)]]
        there = vertices(matcher.graph())
        assert all(most <= there[path].get("size", 1) for path, most in peaks(spans).items())
        for jobid, ask in asked.items() if makes_room else ():
            if after[jobid].reserved and after[jobid].at > now:
                other = matcher.clone()
                other.retract(jobid)
                try:
                    soonest = earliest(other, ask, now)
                except InvalidJobspec:  # a type was removed from the graph
                    continue
                assert soonest is None or soonest >= after[jobid].at


def make_room(matcher: Matcher, asked: dict[int, Any], now: int, data: st.DataObject) -> bool:
    """Run an operation at `now`. Returns whether it causes the matcher to plan reservations again."""
    there = vertices(matcher.graph())
    nodes = sorted(path for path, fields in there.items() if fields["type"] == "node")
    pools = sorted(path for path, fields in there.items() if fields.get("divisible"))
    do = data.draw(st.sampled_from(["cancel", "give back", "up", "properties", "resize", "grow", "shrink", "down"]))
    # the time of a change of the graph is the latest time of any call
    matcher.cancel(0, missing_ok=True, now=now)
    path = data.draw(st.sampled_from(nodes))
    if do == "cancel" and asked:
        matcher.cancel(data.draw(st.sampled_from(sorted(asked))), now=now)
    elif do == "give back" and asked:
        jobid = data.draw(st.sampled_from(sorted(asked)))
        if matcher.info(jobid).reserved:
            return False
        ranks = [{"rank": str(there[path]["rank"]), "children": {"core": "0"}}]
        matcher.partial_cancel(jobid, {"version": 1, "execution": {"R_lite": ranks}}, now=now)
    elif do in ("up", "down"):
        matcher.set_status(path, up=do == "up")
        return do == "up"
    elif do == "properties":
        matcher.set_properties(path, data.draw(st.sampled_from(PROPERTIES[1:])) or {})
    elif do == "resize" and pools:
        with contextlib.suppress(Busy):
            matcher.resize(data.draw(st.sampled_from(pools)), data.draw(st.integers(1, 9)))
    elif do == "grow":
        graph = Graph()
        node = graph.add("node", 9, graph.add("cluster", 0), rank=9)
        graph.add("core", 0, node, rank=9)
        for vertex in graph.nodes:
            vertex["id"] = f"{900 + int(vertex['id'])}"
        for edge in graph.edges:
            edge.update({end: f"{900 + int(edge[end])}" for end in edge})
        matcher.add_subgraph(graph.jgf())
    elif do == "shrink" and len(nodes) > 1:
        matcher.remove_subgraph(path)
    else:
        return False
    return True


#: Per alternative: cores, gpus.
ALTERNATIVES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2)).filter(any), min_size=1, max_size=3, unique=True
)


def slots_of(kind: str, count: int, ways: list[tuple[int, int]]) -> list[dict[str, Any]]:
    parts = [[want(k, n) for k, n in zip(("core", "gpu"), way, strict=True) if n] for way in ways]
    return [want(kind, count, *inside, label="task") for inside in parts]


def two_nodes(cores: int, gpus: int) -> dict[str, Any]:
    graph = Graph()
    root = graph.add("cluster", 0)
    for n in range(2):
        node = graph.add("node", n, root, rank=n)
        for kind, number in (("core", cores), ("gpu", gpus)):
            for i in range(number):
                graph.add(kind, i, node, rank=n)
    return graph.jgf()


@settings(max_examples=examples(150))
@given(st.integers(1, 5), st.integers(1, 4), ALTERNATIVES, st.integers(1, 3), st.sampled_from(POLICIES))
def test_the_first_exclusive_alternative_that_matches_is_used(
    cores: int, gpus: int, ways: list[tuple[int, int]], count: int, policy: str
) -> None:
    flexible = Matcher(two_nodes(cores, gpus), policy=policy, traverser="flexible")
    plain = Matcher(two_nodes(cores, gpus), policy=policy)
    for _ in range(4):
        expected: Any = None
        for one in slots_of("slot", count, ways):
            try:
                expected = plain.allocate(spec(want("node", 1, one)))
                break
            except Busy:
                continue
        try:
            found = flexible.allocate(spec(want("node", 1, *slots_of("xor_slot", count, ways))))
        except Busy:
            assert expected is None
            return
        assert taken(found.R) == taken(expected.R)


def most_slots(cores: int, gpus: int, ways: list[tuple[int, int]]) -> int:
    """By trying all combinations."""
    rest = [(cores - core, gpus - gpu) for core, gpu in ways if core <= cores and gpu <= gpus]
    return max((1 + most_slots(*left, ways) for left in rest), default=0)


@settings(max_examples=examples(150))
@given(st.integers(1, 5), st.integers(1, 4), ALTERNATIVES, st.integers(1, 4), st.sampled_from(POLICIES))
def test_slots_with_alternatives_match_exactly_if_some_combination_does(
    cores: int, gpus: int, ways: list[tuple[int, int]], count: int, policy: str
) -> None:
    ask = spec(want("node", 1, *slots_of("slot", count, ways)))
    matcher = Matcher(two_nodes(cores, gpus), policy=policy, traverser="flexible")
    room = most_slots(cores, gpus, ways) >= count
    assert matcher.satisfy(ask) == room
    held: set[str] = set()
    for _ in range(2 * room):
        got = set(taken(matcher.allocate(ask).R)) - {"/cluster0/node0", "/cluster0/node1"}
        assert got
        assert not got & held
        held |= got
        if policy.endswith("nodex") or policy == "firstnodex":
            continue
        sizes = (sum("/core" in path for path in got), sum("/gpu" in path for path in got))
        assert sizes in sums(ways, count)


def sums(ways: list[tuple[int, int]], count: int) -> set[tuple[int, int]]:
    """The totals of all combinations of `count` alternatives."""
    if count == 0:
        return {(0, 0)}
    return {(core + c, gpu + g) for c, g in ways for core, gpu in sums(ways, count - 1)}
