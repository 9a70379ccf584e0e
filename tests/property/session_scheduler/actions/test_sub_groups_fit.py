"""A gang starts with the minima of its sub-groups if and only if a search through all assignments finds one."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from session_scheduler.testing import FakeCluster, node, pod, pod_group

from ....tools.examples import examples
from .test_gangs_fit import FromRoom, stands

ZONE = "topology.kubernetes.io/zone"
NAMES = ("a", "b", "")


@st.composite
def clusters(draw):
    """Nodes (name, cpu, zone); members (cpu, port, "", sub-group); minCount; minima; whether one zone must hold all."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3))
    nodes = [(f"n{index}", size, f"z{index % 2}") for index, size in enumerate(sizes)]
    member = st.tuples(st.sampled_from([1, 1, 2]), st.sampled_from([0, 0, 80]), st.just(""), st.sampled_from(NAMES))
    members = draw(st.lists(member, min_size=2, max_size=5))
    if draw(st.booleans()):
        members = [(*members[0][:3], name) for *_, name in members]
    there = Counter(name for *_, name in members)
    minima = {name: draw(st.integers(0, there[name])) for name in NAMES[:2]}
    return nodes, members, draw(st.integers(1, len(members))), minima, draw(st.booleans())


def suffice(members, least, minima, taken):
    there = Counter(member[3] for member, is_taken in zip(members, taken, strict=True) if is_taken)
    return there.total() >= least and all(there[name] >= minimum for name, minimum in minima.items())


def fits(nodes, members, least, minima, one_zone):
    """Whether any assignment places enough members; -1 leaves a member out."""
    for zone in sorted({zone for *_, zone in nodes}) if one_zone else [None]:
        rows = [index for index, one in enumerate(nodes) if zone in (None, one[2])]
        for rows_of in product([-1, *rows], repeat=len(members)):
            if suffice(members, max(1, least), minima, [row >= 0 for row in rows_of]) and stands(
                nodes, [member[:3] for member in members], rows_of
            ):
                return True
    return False


def a_cluster(nodes, members, least, minima, one_zone, evaluation="heap"):
    cluster = FakeCluster(evaluation=evaluation).add(
        node(name, cpu=size, labels={ZONE: zone}) for name, size, zone in nodes
    )
    text = ",".join(f"{name}={minimum}" for name, minimum in minima.items())
    cluster.add(pod_group("g", least, sub_groups=text, topology=ZONE if one_zone else None))
    for index, (cpu, port, _, name) in enumerate(members):
        cluster.add(pod(f"p{index}", cpu=cpu, host_port=port, sub_group=name, group="g"))
    return cluster


def tried_once(cluster, members):
    cluster.run()
    return placed(cluster, members)


def placed(cluster, members):
    return [bool(cluster.node_of(f"p{index}")) for index in range(len(members))]


@settings(max_examples=examples(150))
@given(clusters())
def test_a_gang_with_sub_groups_starts_if_and_only_if_their_minima_fit(case):
    _, members, least, minima, _ = case
    taken = tried_once(a_cluster(*case), members)
    assert any(taken) == fits(*case)
    assert not any(taken) or suffice(members, least, minima, taken)


@settings(max_examples=examples(100))
@given(clusters(), st.sampled_from(["first", "worst"]), st.sampled_from([1, 2, 9]), st.booleans())
def test_the_same_holds_with_a_plugin_that_places_badly(case, how, most, whole):
    _, members, least, minima, _ = case
    cluster = a_cluster(*case)
    cluster.start(FromRoom(how, most, whole))
    taken = tried_once(cluster, members)
    assert any(taken) == fits(*case)
    assert not any(taken) or suffice(members, least, minima, taken)


@settings(max_examples=examples(60))
@given(clusters())
def test_the_matcher_starts_no_gang_below_a_sub_groups_minimum(case):
    _, members, least, minima, _ = case
    taken = tried_once(a_cluster(*case).use("fluence"), members)
    assert not any(taken) or (suffice(members, least, minima, taken) and fits(*case))


@settings(max_examples=examples(60))
@given(clusters(), st.data())
def test_a_gang_starts_with_its_minima_or_not_at_all_when_nodes_are_added(case, data):
    """FakeCluster checks the invariants, including the minima, after each cycle."""
    _, members, least, minima, _ = case
    cluster = a_cluster(*case).schedule()
    for number in range(data.draw(st.integers(1, 3))):
        cluster.add(node(f"m{number}", cpu=data.draw(st.integers(1, 3)), labels={ZONE: f"z{number % 2}"}))
        cluster.advance(30).schedule()
        taken = placed(cluster, members)
        assert not any(taken) or suffice(members, least, minima, taken)


@pytest.mark.parametrize("evaluation", ["naive", "board", "heap"])
def test_all_evaluation_modes_decide_the_same(evaluation):
    members = [(1, 0, "", name) for name in ("a", "a", "b", "b", "")]
    cluster = a_cluster([("n0", 2, "z0"), ("n1", 2, "z1")], members, 1, {"a": 1, "b": 2}, False, evaluation)
    assert tried_once(cluster, members) == [True, True, True, True, False]
