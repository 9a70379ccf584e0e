"""A gang is placed exactly if an exhaustive search finds a placement, whichever plugin proposes."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from session_scheduler import Scope, hookimpl
from session_scheduler.testing import FakeCluster, node, pod, pod_group

from ....tools.examples import examples

ZONE = "topology.kubernetes.io/zone"


class Apart:
    """Pods with the same label `apart` do not share a node."""

    name = "apart"
    filter_scope = Scope.NODE

    @hookimpl
    def class_key(self, pod):
        return pod.metadata.labels.get("apart")

    @hookimpl
    def footprint(self, cls):
        term = cls.pod.metadata.labels.get("apart")
        return [("apart", term)] if term else None

    @hookimpl
    def filter(self, cls, nodes, mask):
        term = cls.pod.metadata.labels.get("apart")
        if term:
            mask &= nodes.counter(("apart", term)) == 0


class OneZone:
    """A group stays within one zone."""

    name = "one-zone"

    @hookimpl
    def node_subsets(self, session, group):
        column = session.table.all_rows().label(ZONE)
        valid = session.table.valid()
        return [valid & (column == zone) for zone in sorted(set(column[valid].tolist()))]


class Taken:
    """A placement that records its allocations in a book, so that a test detects a leak."""

    def __init__(self, book, nodes):
        self._book, self.nodes = book, nodes
        self._book.update(nodes)

    @property
    def holds(self):
        return {task: {"node": name} for task, name in self.nodes.items()}

    def undo(self):
        for task in self.nodes:
            del self._book[task]

    def redo(self):
        assert not set(self.nodes) & set(self._book)
        self._book.update(self.nodes)

    def release(self, tasks):
        for task in tasks:
            del self.nodes[task]
            del self._book[task]


class FromRoom:
    """Places by `room` alone, each class separately, and badly: on the first, or the emptiest, row that fits."""

    name = "from-room"

    def __init__(self, how, most, whole):
        self._how, self._most, self._whole = how, most, whole
        self.book = {}

    @hookimpl
    def place_group(self, session, tasks, room):
        rows = [row for _, row in sorted(session.table.row_of.items())]
        nodes = {}
        for task in tasks[: self._most]:
            open_rows = [row for row in rows if room[task.cls][row] > 0]
            if not open_rows:
                if self._whole:
                    return None
                continue
            row = open_rows[0] if self._how == "first" else max(open_rows, key=lambda r: room[task.cls][r])
            room[task.cls][row] -= 1
            nodes[task] = session.table.nodes[row].metadata.name
        return Taken(self.book, nodes)


@st.composite
def clusters(draw):
    zones = draw(st.integers(1, 2))
    sizes = draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=4))
    nodes = [(f"n{index}", size, f"z{index % zones}") for index, size in enumerate(sizes)]
    members = draw(
        st.lists(
            st.tuples(st.sampled_from([1, 1, 2]), st.sampled_from([0, 0, 80, 81]), st.sampled_from(["", "", "x", "y"])),
            min_size=2, max_size=4,
        )
    )  # fmt: skip
    if draw(st.booleans()):
        members = [members[0]] * len(members)
    least = draw(st.integers(2, len(members)))
    return nodes, members, least, draw(st.sampled_from(["", "plugin", "constraint"]))


def fits(nodes, members, least, one_zone):
    """Whether at least `least` members can be placed, by trying every assignment; -1 leaves a member out."""
    zones = sorted({zone for _, _, zone in nodes}) if one_zone else [None]
    for zone in zones:
        rows = [index for index, one in enumerate(nodes) if zone in (None, one[2])]
        for rows_of in product([-1, *rows], repeat=len(members)):
            if sum(row >= 0 for row in rows_of) >= least and stands(nodes, members, rows_of):
                return True
    return False


def stands(nodes, members, rows_of):
    for index, (_, size, _) in enumerate(nodes):
        here = [member for member, row in zip(members, rows_of, strict=True) if row == index]
        ports = [port for _, port, _ in here if port]
        terms = [term for _, _, term in here if term]
        if sum(cpu for cpu, _, _ in here) > size or len(set(ports)) < len(ports) or len(set(terms)) < len(terms):
            return False
    return True


def place(nodes, members, least, one_zone, *plugins):
    cluster = FakeCluster()
    cluster.add(node(name, cpu=size, labels={ZONE: zone}) for name, size, zone in nodes)
    cluster.add(pod_group("g", least, topology=ZONE if one_zone == "constraint" else None))
    for index, (cpu, port, term) in enumerate(members):
        cluster.add(pod(f"p{index}", cpu=cpu, host_port=port, labels={"apart": term}, group="g"))
    scheduler = cluster.start(Apart(), *([OneZone()] if one_zone == "plugin" else []), *plugins)
    before = scheduler.cache.table.digest()
    cluster.run()
    placed = {key: name for key, name in cluster.placements().items() if name}
    if not placed:
        assert scheduler.cache.table.digest() == before
    return cluster, placed


@settings(max_examples=examples(120))
@given(clusters())
def test_the_cores_own_placement_places_every_gang_that_fits(case):
    _, placed = place(*case)
    assert bool(placed) == fits(*case)
    assert not placed or len(placed) >= case[2]


@settings(max_examples=examples(150))
@given(clusters(), st.sampled_from(["first", "worst"]), st.sampled_from([1, 2, 9]), st.booleans())
def test_a_plugin_that_places_badly_still_places_every_gang_that_fits(case, how, most, whole):
    plugin = FromRoom(how, most, whole)
    _, placed = place(*case, plugin)
    assert bool(placed) == fits(*case)
    assert not placed or len(placed) >= case[2]
    held = {task.key: name for task, name in plugin.book.items()}
    assert set(held.items()) <= set(placed.items())
    if not whole and how == "first":
        assert held == placed
