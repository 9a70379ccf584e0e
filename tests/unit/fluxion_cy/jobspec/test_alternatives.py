"""Traverser `flexible`: `xor_slot`, and slots side by side as alternatives. The first answers are the reference's."""

from typing import Any

import pytest

from fluxion_cy import Busy, InvalidJobspec, Matcher, NotSupported, Unsatisfiable
from fluxion_cy.jobspec.layout import lay_out
from fluxion_cy.jobspec.reader import read

from ..graphs import machine, slot, sockets, spec, taken, want


def core(count: int) -> dict[str, Any]:
    return want("core", count)


def gpu(count: int) -> dict[str, Any]:
    return want("gpu", count)


def xor(count: Any, *inside: dict[str, Any]) -> dict[str, Any]:
    return want("xor_slot", count, *inside, label="task")


UP_TO_3 = {"min": 1, "max": 3, "operator": "+", "operand": 1}
ASKS: dict[str, list[dict[str, Any]]] = {
    "1,3": [want("node", 1, slot(1, core(1)), slot(3, core(2)))],
    "2,2": [want("node", 1, slot(2, core(1)), slot(2, core(2)))],
    "2,2 rev": [want("node", 1, slot(2, core(2)), slot(2, core(1)))],
    "mix": [want("node", 1, slot(2, core(3)), slot(2, gpu(1)))],
    "mix top": [slot(2, core(3)), slot(2, gpu(1))],
    "last bad": [want("node", 1, slot(1, core(1)), slot(1, core(9)))],
    "first bad": [want("node", 1, slot(1, core(9)), slot(1, core(1)))],
    "xor": [want("node", 1, xor(1, core(9)), xor(2, core(2)), xor(1, core(1)))],
    "xor top": [xor(1, core(9)), xor(3, core(2)), xor(1, core(1))],
    "xor+slot": [want("node", 1, slot(1, gpu(1)), xor(2, core(2)), xor(1, core(1)))],
    "xor in slot": [slot(1, want("node", 1, xor(1, core(2)), xor(1, core(1))))],
    "xor in xor": [xor(1, want("node", 1, xor(1, core(9)), xor(1, core(1))))],
    "xor nodes": [want("node", 2, xor(1, core(4)), xor(1, core(1)))],
    "range": [want("node", 1, slot(UP_TO_3, core(1)), slot(UP_TO_3, core(1), gpu(1)))],
    "or 3 kinds": [slot(3, core(1)), slot(3, gpu(1)), slot(3, core(2), gpu(1))],
}

#: Policy, request, what the first job got and what a second, equal one then got or was reserved; below /cluster0.
ANSWERS = [
    ("high", "1,3", "node1:c1,c2,c3", 0, "node0:c1,c2,c3"),
    ("high", "2,2", "node1:c2,c3", 0, "node1:c0,c1"),
    ("high", "2,2 rev", "node1:c2,c3", 0, "node1:c0,c1"),
    ("high", "mix", "node1:c1,c2,c3,g0", 0, "node0:c1,c2,c3,g0"),
    ("high", "mix top", "node0:c1,c2,c3 node1:c1,c2,c3", 0, "node0:g0 node1:g0"),
    ("high", "last bad", "node1:c3", 0, "node1:c2"),
    ("high", "first bad", "node1:c3", 0, "node1:c2"),
    ("high", "xor", "node1:c0,c1,c2,c3", 0, "node0:c0,c1,c2,c3"),
    ("high", "xor top", "node0:c0,c1,c2,c3 node1:c2,c3", 0, "node1:c1"),
    ("high", "xor+slot", "node1:c0,c1,c2,c3", 0, "node0:c0,c1,c2,c3"),
    ("high", "xor in slot", "node1:c2,c3", 0, "node0:c2,c3"),
    ("high", "xor in xor", "node1:c3", 0, "node0:c3"),
    ("high", "xor nodes", "node0:c0,c1,c2,c3 node1:c0,c1,c2,c3", 3600, "node0:c0,c1,c2,c3 node1:c0,c1,c2,c3"),
    ("high", "range", "node1:c1,c2,c3", 0, "node1:c0"),
    ("high", "or 3 kinds", "node0:c2,c3 node1:c3", 0, "node0:c1 node1:c1,c2"),
    ("low", "1,3", "node0:c0,c1,c2", 0, "node1:c0,c1,c2"),
    ("low", "2,2", "node0:c0,c1", 0, "node0:c2,c3"),
    ("low", "2,2 rev", "node0:c0,c1", 0, "node0:c2,c3"),
    ("low", "mix", "node0:c0,c1,c2,g0", 0, "node1:c0,c1,c2,g0"),
    ("low", "last bad", "node0:c0", 0, "node0:c1"),
    ("low", "first bad", "node0:c0", 0, "node0:c1"),
    ("low", "xor", "node0:c0,c1,c2,c3", 0, "node1:c0,c1,c2,c3"),
    ("low", "xor top", "node0:c0,c1,c2,c3 node1:c0,c1", 0, "node1:c2"),
    ("low", "xor+slot", "node0:c0,c1,g0", 0, "node1:c0,c1,g0"),
    ("low", "xor in slot", "node0:c0,c1", 0, "node1:c0,c1"),
    ("low", "xor in xor", "node0:c0", 0, "node1:c0"),
    ("low", "xor nodes", "node0:c0,c1,c2,c3 node1:c0,c1,c2,c3", 3600, "node0:c0,c1,c2,c3 node1:c0,c1,c2,c3"),
    ("low", "range", "node0:c0,c1,c2", 0, "node0:c3"),
    ("low", "or 3 kinds", "node0:c0,g0 node1:c0", 0, "node0:c1 node1:c1,g0"),
    ("first", "1,3", "node1:c1,c2,c3", 0, "node0:c1,c2,c3"),
    ("first", "2,2", "node1:c2,c3", 0, "node0:c2,c3"),
    ("first", "2,2 rev", "node1:c2,c3", 0, "node0:c2,c3"),
    ("first", "mix", "node1:c1,c2,c3,g0", 0, "node0:c1,c2,c3,g0"),
    ("first", "mix top", "node1:c1,c2,c3,g0", 0, "node0:c1,c2,c3,g0"),
    ("first", "last bad", "node1:c3", 0, "node0:c3"),
    ("first", "first bad", "node1:c3", 0, "node0:c3"),
    ("first", "xor", "node1:c0,c1,c2,c3", 0, "node0:c0,c1,c2,c3"),
    ("first", "xor top", "node0:c2,c3 node1:c0,c1,c2,c3", 0, "node0:c1"),
    ("first", "xor+slot", "node1:c0,c1,c2,c3", 0, "node0:c0,c1,c2,c3"),
    ("first", "xor in slot", "node1:c2,c3", 0, "node0:c2,c3"),
    ("first", "xor in xor", "node1:c3", 0, "node0:c3"),
    ("first", "xor nodes", "node0:c0,c1,c2,c3 node1:c0,c1,c2,c3", 3600, "node0:c0,c1,c2,c3 node1:c0,c1,c2,c3"),
    ("first", "range", "node1:c1,c2,c3", 0, "node0:c1,c2,c3"),
    ("first", "or 3 kinds", "node1:c1,c2,c3", 0, "node0:c1,c2,c3"),
    ("lonode", "1,3", "node0:c0,c1,c2", 0, "node1:c0,c1,c2"),
    ("lonode", "2,2", "node0:c0,c1", 0, "node0:c2,c3"),
    ("lonode", "2,2 rev", "node0:c0,c1", 0, "node0:c2,c3"),
    ("lonode", "mix", "node0:c0,c1,c2,g0", 0, "node1:c0,c1,c2,g0"),
    ("lonode", "last bad", "node0:c0", 0, "node0:c1"),
    ("lonode", "first bad", "node0:c0", 0, "node0:c1"),
    ("lonode", "xor", "node0:c0,c1,c2,c3", 0, "node1:c0,c1,c2,c3"),
    ("lonode", "xor top", "node0:c0,c1,c2,c3 node1:c0,c1", 0, "node1:c2"),
    ("lonode", "xor+slot", "node0:c0,c1,g0", 0, "node1:c0,c1,g0"),
    ("lonode", "xor in slot", "node0:c0,c1", 0, "node1:c0,c1"),
    ("lonode", "xor in xor", "node0:c0", 0, "node1:c0"),
    ("lonode", "xor nodes", "node0:c0,c1,c2,c3 node1:c0,c1,c2,c3", 3600, "node0:c0,c1,c2,c3 node1:c0,c1,c2,c3"),
    ("lonode", "range", "node0:c0,c1,c2", 0, "node0:c3"),
    ("lonode", "or 3 kinds", "node0:c0,c1,g0", 0, "node0:c2,c3 node1:c0"),
]


def brief(found: dict[str, Any]) -> str:
    """Such as `node0:c0,c1 node1:g0`; of a node that is taken itself only what is below it."""
    nodes: dict[str, list[str]] = {}
    for path in sorted(taken(found)):
        _, _, node, *leaf = path.split("/")
        nodes.setdefault(node, []).extend(leaf)
    short = {node: ",".join(leaves).replace("core", "c").replace("gpu", "g") for node, leaves in nodes.items()}
    return " ".join(f"{node}:{leaves}" for node, leaves in short.items())


@pytest.mark.parametrize(("policy", "name", "first", "at", "second"), ANSWERS)
def test_alternatives_are_chosen_as_the_reference_chooses(
    policy: str, name: str, first: str, at: int, second: str
) -> None:
    matcher = Matcher(machine(nodes=2), policy=policy, traverser="flexible")
    ask = spec(*ASKS[name])
    assert brief(matcher.allocate(ask).R) == first
    later = matcher.allocate_orelse_reserve(ask)
    assert (later.at, brief(later.R)) == (at, second)


def test_the_next_alternative_is_taken_when_the_first_is_gone() -> None:
    matcher = Matcher(machine(nodes=1), policy="low", traverser="flexible")
    ask = spec(xor(1, core(3)), xor(1, gpu(1)), duration=50)
    assert [brief(matcher.allocate(ask).R) for _ in range(2)] == ["node0:c0,c1,c2", "node0:g0"]
    with pytest.raises(Busy):
        matcher.allocate(ask)
    later = matcher.allocate_orelse_reserve(ask)
    assert (later.at, brief(later.R)) == (50, "node0:c0,c1,c2")
    assert matcher.satisfy(ask)


def test_an_alternative_of_a_type_that_the_graph_has_not_is_left_out() -> None:
    matcher = Matcher(machine(nodes=1), policy="low", traverser="flexible")
    assert brief(matcher.allocate(spec(xor(1, want("qpu", 1)), xor(1, core(1)))).R) == "node0:c0"
    with pytest.raises(InvalidJobspec, match="qpu"):
        matcher.allocate(spec(xor(1, want("qpu", 1)), xor(1, want("fpga", 1))))


def test_what_no_alternative_can_ever_have_is_unsatisfiable() -> None:
    matcher = Matcher(machine(nodes=1), traverser="flexible")
    ask = spec(want("node", 1, xor(1, core(5)), xor(1, gpu(2))))
    with pytest.raises(Unsatisfiable):
        matcher.allocate_orelse_reserve(ask)
    assert not matcher.satisfy(ask)
    assert matcher.why(ask) == (
        "alternative 1 of 2: the request needs 5 cores, and the graph has 4; "
        "alternative 2 of 2: the request needs 2 gpus, and the graph has 1"
    )


def test_as_many_slots_as_possible_are_made_of_the_alternatives() -> None:
    """Of four cores and a gpu: one slot of three cores, and one of a core and the gpu."""
    matcher = Matcher(machine(nodes=1), policy="low", traverser="flexible")
    ask = spec(want("node", 1, slot(2, core(3)), slot(2, core(1), gpu(1))))
    assert brief(matcher.allocate(ask).R) == "node0:c0,c1,c2,c3,g0"
    with pytest.raises(Unsatisfiable):
        matcher.allocate_orelse_reserve(spec(want("node", 1, slot(3, core(3)), slot(3, core(1), gpu(1)))))


def test_slots_that_differ_below_a_shared_type_are_shared_out() -> None:
    matcher = Matcher(sockets(), policy="low", traverser="flexible")
    ask = spec(slot(2, want("socket", 1, core(4))), slot(2, want("socket", 1, core(1))))
    first, second = (matcher.allocate(ask) for _ in range(2))
    assert [sum("/core" in path for path in taken(job.R)) for job in (first, second)] == [8, 8]
    ranged = spec(slot(UP_TO_3, want("socket", 1, core(4))), slot(UP_TO_3, want("socket", 1, core(1))))
    with pytest.raises(InvalidJobspec, match="fixed count"):
        matcher.allocate(ranged)


def test_a_thousand_alternatives_are_the_most() -> None:
    matcher = Matcher(machine(nodes=1, cores=1), traverser="flexible")
    ten = [xor(1, core(n + 1)) for n in range(10)]
    assert taken(matcher.allocate(spec(*[xor(1, want("node", 1, *ten)) for _ in range(10)])).R)
    many = [xor(1, core(n)) for n in range(1, 41)]
    with pytest.raises(InvalidJobspec, match="1000"):
        matcher.satisfy(spec(*[xor(1, want("node", 1, *many)) for _ in range(40)]))


def test_more_mixes_than_can_be_tried_are_refused_or_bounded() -> None:
    matcher = Matcher(machine(nodes=1, cores=600, gpus=600), policy="low", traverser="flexible")
    few = spec(want("node", 1, slot(2, core(1)), slot(2, gpu(1)), slot(2, core(1), gpu(1))))
    assert brief(matcher.allocate(few).R) in ("node0:c0,c1", "node0:c0,g0", "node0:g0,g1")


def test_the_option_is_one_of_two_and_survives_a_clone() -> None:
    with pytest.raises(NotSupported, match="traverser"):
        Matcher(machine(), traverser="other")
    ask = spec(xor(1, core(1)))
    with pytest.raises(InvalidJobspec, match="xor_slot"):
        Matcher(machine()).allocate(ask)
    assert taken(Matcher(machine(), traverser="flexible").clone().allocate(ask).R)


def nested(levels: int, width: int) -> list[dict[str, Any]]:
    """Two alternatives at each level: a request of a few kilobytes has 2 ** levels forms, each as large as itself."""
    inner = [core(1)]
    for _ in range(levels):
        ways = [want("xor_slot", 1, *[gpu(1)] * width, label=name) for name in ("a", "b")]
        inner = [want("node", 1, *ways, *inner)]
    return inner


def test_forms_are_bounded_by_what_they_hold_in_all() -> None:
    matcher = Matcher(machine(), traverser="flexible")
    with pytest.raises(InvalidJobspec, match="the request has more than 50,000 entries; use fewer alternatives"):
        matcher.satisfy(spec(*nested(9, 20)))


def test_a_large_request_without_alternatives_is_within_the_bounds() -> None:
    group = [want("node", 1, *[want("core", 1)] * 60) for _ in range(60)]
    with pytest.raises((Busy, Unsatisfiable)):
        Matcher(machine(), traverser="flexible").allocate_with_satisfiability(spec(slot(1, *group)))


def test_what_lies_deep_is_counted_once() -> None:
    inner = [core(1)] * 64
    for _ in range(60):
        inner = [*[core(1)] * 40, want("node", 1, *inner)]
    counted: list[str] = []

    class Columns(dict[str, int]):
        def get(self, key: str, default: Any = None) -> Any:
            counted.append(key)
            return super().get(key, default)

    resources = read(spec(*inner)).resources
    layout = lay_out(resources, {"core": 0, "node": 1}, Columns(core=0))
    assert layout.top_need == [60 * 40 + 64]
    assert len(counted) == len(layout.rows)
