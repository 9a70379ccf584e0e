"""Where Fluxion's answer is a defect or its rule an option: what is done instead, by the rows of the README's table."""

import errno
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fluxion_cy import Busy, FluxionError, InvalidJobspec, JobExists, Matcher, Unsatisfiable

from .graphs import Graph, machine, slot, sockets, spec, taken, want

CORE = want("core", 1)
WHOLE = want("node", 1, slot(1, want("core", 4)))
PEER_SUITE = Path(__file__).parents[3] / ".ci" / "peer_suite.py"


def hosts(document: dict[str, Any]) -> set[str]:
    return {path.split("/")[2] for path in taken(document)}


def loaded_down(nodes: int, down: int) -> dict[str, Any]:
    document = machine(nodes=nodes)
    found = [node["metadata"] for node in document["graph"]["nodes"] if node["metadata"]["type"] == "node"]
    for fields in found[:down]:
        fields["status"] = 1
    return document


def test_1_nodes_loaded_down_leave_the_others_usable_one_by_one() -> None:
    matcher = Matcher(loaded_down(4, 2))
    assert (matcher.stat()["nodes_up"], matcher.stat()["nodes_down"]) == (2, 2)
    found = [hosts(matcher.allocate(spec(WHOLE)).R) for _ in range(2)]
    assert sorted(map(sorted, found)) == [["node2"], ["node3"]]
    with pytest.raises(Busy):
        matcher.allocate(spec(WHOLE))
    matcher.set_rank_status("0", up=True)
    assert hosts(matcher.allocate(spec(WHOLE)).R) == {"node0"}


def test_2_a_grown_graph_gives_all_its_nodes() -> None:
    matcher = Matcher(machine(nodes=4))
    matcher.add_subgraph(machine(nodes=5))
    five = spec(want("node", 5, slot(1, CORE)))
    assert matcher.satisfy(five)
    assert len(hosts(matcher.allocate(five).R)) == 5
    matcher.remove_subgraph("/cluster0/node4")
    assert matcher.stat()["nodes_up"] == 4
    with pytest.raises(Unsatisfiable):
        matcher.allocate_with_satisfiability(five)


@pytest.mark.parametrize(
    "rejected",
    [
        spec(want("node", 1, slot(1, CORE), exclusive=True), duration=-1),
        spec(want("node", 9, slot(1, CORE), exclusive=True)),
        spec(want("node", 1, slot(1, want("core", 1, exclusive=False)), exclusive=True)),
    ],
)
def test_3_a_rejected_job_leaves_no_type_exclusive(rejected: dict[str, Any]) -> None:
    matcher = Matcher(machine(nodes=1))
    for operation in (matcher.allocate, matcher.allocate_orelse_reserve, matcher.without_allocating):
        with pytest.raises(FluxionError):
            operation(rejected)
    assert len(taken(matcher.allocate(spec(want("node", 1, slot(1, CORE)))).R)) == 1


def test_4_of_two_slots_both_are_held_or_none() -> None:
    matcher = Matcher(machine(nodes=1), policy="low")
    two = [slot(2, CORE, label="a"), slot(1, want("gpu", 1), label="b")]
    for resources in (two, [want("node", 1, *two)]):
        job = matcher.allocate(spec(*resources))
        assert sorted(path.split("/")[3] for path in taken(job.R)) == ["core0", "core1", "gpu0"]
        matcher.cancel(job.jobid)
    matcher.allocate(spec(slot(1, want("gpu", 1))))
    for resources in (two, [want("node", 1, *two)]):
        with pytest.raises(Busy):
            matcher.allocate(spec(*resources))
    assert len(taken(matcher.find("sched-now=allocated"))) == 3, "the gpu and what is above it"


def test_5_nothing_exclusive_is_einval_in_every_operation() -> None:
    matcher = Matcher(machine())
    for resources in ([want("node", 1)], [want("node", 1, CORE)], [want("cluster", 1, want("node", 2, CORE))]):
        for operation in matching(matcher):
            with pytest.raises(InvalidJobspec, match="exclusive") as caught:
                operation(spec(*resources))
            assert caught.value.errno == errno.EINVAL


def matching(matcher: Matcher) -> list[Callable[..., Any]]:
    return [
        matcher.allocate,
        matcher.without_allocating,
        matcher.allocate_with_satisfiability,
        matcher.allocate_orelse_reserve,
        matcher.without_allocating_future,
    ]


def test_6_nodes_of_one_slot_may_lie_in_several_racks() -> None:
    graph = Graph()
    root = graph.add("cluster", 0)
    for n in range(4):
        node = graph.add("node", n, graph.add("rack", n // 2, root, name=f"rack{n}"), rank=n)
        graph.add("core", 0, node, rank=n)
    matcher = Matcher(graph.jgf())
    assert len(hosts(matcher.allocate(spec(slot(1, want("node", 4)))).R)) == 4
    with pytest.raises(Unsatisfiable):
        matcher.allocate_orelse_reserve(spec(slot(1, want("node", 5))))


@pytest.mark.parametrize(
    "never",
    [
        spec(want("node", 4, slot(1, CORE))),
        spec(slot(13, CORE)),
        spec(slot(1, want("core", 5))),
        spec(slot(1, CORE), constraints={"properties": ["nosuch"]}),
        spec(want("node", 1, slot(1, CORE)), constraints={"hostlist": ["nosuch"]}),
        spec(want("node", 2, slot(1, CORE)), constraints={"ranks": ["1"]}),
    ],
)
def test_7_what_can_never_be_is_enodev_wherever_that_is_promised(never: dict[str, Any]) -> None:
    for state in ("idle", "down", "full"):
        matcher = Matcher(machine())
        if state == "down":
            matcher.set_status("/cluster0", up=False)
        elif state == "full":
            matcher.allocate(spec(slot(3, want("core", 4))))
        assert not matcher.satisfy(never)
        for number, operation in enumerate(matching(matcher)):
            with pytest.raises(Busy if number < 2 else Unsatisfiable) as caught:
                operation(never)
            assert caught.value.errno == (errno.EBUSY if number < 2 else errno.ENODEV)


def test_8_what_is_merely_down_is_ebusy_in_every_operation() -> None:
    for path in ("/cluster0", "/cluster0/node1"):
        matcher = Matcher(machine())
        matcher.set_status(path, up=False)
        for ask in (
            spec(want("node", 3, slot(1, CORE))),
            spec(slot(12, CORE)),
            spec(slot(1, CORE), constraints={"ranks": ["1"]}),
        ):
            assert matcher.satisfy(ask)
            for operation in matching(matcher):
                with pytest.raises(Busy) as caught:
                    operation(ask)
                assert caught.value.errno == errno.EBUSY


def marked() -> Graph:
    """Two nodes, one marked as large, each with a marked and a plain gpu; a marked qpu and a plain one beside them."""
    graph = Graph()
    root = graph.add("cluster", 0)
    for n in range(2):
        node = graph.add("node", n, root, rank=n, **({"properties": {"large": ""}} if n else {}))
        graph.add("gpu", 0, node, rank=n, properties={"fast": ""})
        graph.add("gpu", 1, node, rank=n)
        graph.add("gpu", 2, node, rank=n, properties={"slow": ""})
    for n, word in enumerate(("fast", "slow")):
        graph.add("qpu", n, root, properties={word: ""})
    graph.add("qpu", 2, root)
    return graph


def test_9_constraints_hold_for_whatever_carries_properties_unless_compatible() -> None:
    def found(compatible: bool, kind: str, rule: Any) -> list[str]:
        matcher = Matcher(marked().jgf(), policy="low", compatible=compatible)
        count = {"min": 1, "max": 9, "operator": "+", "operand": 1}
        ask = spec(want(kind, count, exclusive=True), constraints=rule)
        return sorted(path.removeprefix("/cluster0/") for path in taken(matcher.allocate(ask).R))

    fast, not_slow = {"properties": ["fast"]}, {"properties": ["^slow"]}
    # a vertex that carries no properties at all is not held to a constraint, but a node always is
    assert found(False, "qpu", fast) == ["qpu0", "qpu2"]
    assert found(True, "qpu", fast) == ["qpu0", "qpu1", "qpu2"]
    assert found(False, "gpu", not_slow) == [f"node{n}/gpu{g}" for n in range(2) for g in (0, 1)]
    assert found(True, "gpu", not_slow) == [f"node{n}/gpu{g}" for n in range(2) for g in range(3)]
    assert found(True, "gpu", {"properties": ["large"]}) == [f"node1/gpu{g}" for g in range(3)]
    for compatible in (True, False):
        matcher = Matcher(marked().jgf(), compatible=compatible)
        with pytest.raises(Busy):  # nodes are held to it in both
            matcher.allocate(spec(want("gpu", 1, exclusive=True), constraints=fast))


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "policy"},
        {"policy": 5},
        {"policy": ""},
        {"traverser": "nosuch"},
        {"match_format": "nosuch"},
        {"load_format": 5},
        {"prune_filters": "ALL"},
        {"prune_filters": None},
        {"engine": 5},
    ],
)
def test_12_a_bad_option_is_an_error_that_names_it(options: dict[str, Any]) -> None:
    with pytest.raises(FluxionError, match=next(iter(options))):
        Matcher(machine(), **options)


def test_13_a_held_id_is_refused_by_every_operation_and_frees_nothing() -> None:
    matcher = Matcher(machine())
    held = matcher.allocate(spec(slot(1, CORE)), 2**63)
    for operation in matching(matcher)[::2]:
        with pytest.raises(JobExists) as caught:
            operation(spec(slot(1, CORE)), 2**63)
        assert caught.value.errno == errno.EEXIST
    with pytest.raises(JobExists):
        matcher.update_allocate(2**63, held.R)
    assert len(taken(matcher.find("sched-now=allocated"))) == 3
    matcher.cancel(2**63)
    assert matcher.find("sched-now=allocated") is None


def test_what_is_not_divisible_is_taken_whole() -> None:
    graph = Graph()
    node = graph.add("node", 0, graph.add("cluster", 0), rank=0)
    graph.add("memory", 0, node, rank=0, size=256)
    matcher = Matcher(graph.jgf())
    assert taken(matcher.allocate(spec(slot(1, want("memory", 1)))).R) == {"/cluster0/node0/memory0": 256}
    with pytest.raises(Busy):
        matcher.allocate(spec(slot(1, want("memory", 1))))


def test_compatible_wants_levels_below_the_first_match_written_out() -> None:
    skipped = spec(want("node", 1, slot(1, want("core", 2))))
    written = spec(want("node", 1, want("socket", 1, slot(1, want("core", 2)))))
    compatible, other = Matcher(sockets(), policy="low"), Matcher(sockets(), policy="low", compatible=False)
    with pytest.raises(Busy, match="write them out, or use compatible=False"):
        compatible.allocate(skipped)
    assert len(taken(compatible.allocate(written).R)) == 2
    assert len(taken(other.allocate(skipped).R)) == 2
    assert len(taken(Matcher(sockets()).allocate(spec(slot(1, want("core", 2)))).R)) == 2, "above it they may be"


@pytest.mark.parametrize("compatible", [True, False])
def test_a_preview_sets_the_order_of_siblings_only_where_compatible(compatible: bool) -> None:
    """Of nodes that nothing was put on, each preview names one; as Fluxion does, it then counts among those used."""
    matcher = Matcher(machine(nodes=3), policy="first", compatible=compatible)
    one = spec(want("node", 1, slot(1, CORE)))
    names = [hosts(matcher.without_allocating(one).R) for _ in range(2)]
    assert (names[0] == names[1]) is not compatible
    assert matcher.find("sched-now=allocated") is None


def peer_suite(monkeypatch: pytest.MonkeyPatch, report: Path, named: Path) -> int:
    monkeypatch.setenv("FLUXION_PEER_SUITE", str(named))
    monkeypatch.setattr(sys, "argv", [str(PEER_SUITE), str(report)])
    status: int = runpy.run_path(str(PEER_SUITE))["main"]()
    return status


def test_the_checks_fail_where_the_references_sessions_were_not_replayed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case, report = '<testcase name="test_the_references_own_sessions_agree">{}</testcase>', tmp_path / "report.xml"
    assert peer_suite(monkeypatch, report, tmp_path) == 1, "no report"
    for inside, status in (("", 0), ("<skipped/>", 1)):
        report.write_text(f"<testsuites><testsuite>{case.format(inside)}</testsuite></testsuites>")
        assert peer_suite(monkeypatch, report, tmp_path) == status
    report.write_text("<testsuites/>")
    assert peer_suite(monkeypatch, report, tmp_path) == 1
    assert "peer_suite.py" in (PEER_SUITE.parent / "run").read_text()
