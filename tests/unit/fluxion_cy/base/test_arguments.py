"""Arguments: NumPy's numbers as Python's everywhere, limits by their name, and no luck by what was asked before."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fluxion_cy import FluxionError, InvalidGraph, InvalidJobspec, Matcher

from ..graphs import Graph, machine, slot, spec, want

CORE = spec(slot(1, want("core", 1)))


class Hostile:
    def __index__(self) -> int:
        raise RuntimeError


def test_numbers_of_numpy_are_numbers_everywhere() -> None:
    matcher = Matcher(machine(nodes=2), replan=np.False_)  # type: ignore[arg-type]
    matcher.set_rank_status(np.int64(1), np.False_)  # type: ignore[arg-type]
    assert not matcher.get_rank_status(np.int32(1))  # type: ignore[arg-type]
    matcher.set_rank_status([np.uint8(1)], True)
    assert matcher.get_rank_status(1)
    matcher.next_jobid = np.int64(7)  # type: ignore[assignment]
    assert type(matcher.next_jobid) is int
    assert type(matcher.allocate(CORE, now=np.int64(0)).jobid) is int  # type: ignore[arg-type]
    matcher.resize("/cluster0/node0/core0", np.int64(1))  # type: ignore[arg-type]
    for candidates in ([np.False_, np.True_], [np.int64(0), np.int16(4)]):
        assert matcher.without_allocating(CORE, candidates=candidates).R["graph"]["nodes"][0]["metadata"]["rank"] == 1
    assert "candidate" not in matcher.why(CORE, candidates=[np.True_, np.True_])


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (InvalidGraph, lambda m, x: m.get_rank_status(x)),
        (InvalidGraph, lambda m, x: m.set_rank_status(x, True)),
        (InvalidGraph, lambda m, x: m.set_rank_status([x], True)),
        (InvalidGraph, lambda m, x: m.resize("/cluster0", x)),
        (InvalidJobspec, lambda m, x: m.allocate(CORE, x)),
        (InvalidJobspec, lambda m, x: m.allocate(CORE, now=x)),
        (InvalidJobspec, lambda m, x: setattr(m, "next_jobid", x)),
    ],
)
@pytest.mark.parametrize("value", [True, np.True_, 1.0, Hostile(), int, np.array([0, 1])[:0].astype(float)])
def test_what_is_no_number_is_none_anywhere(
    error: type[FluxionError], call: Callable[[Matcher, Any], object], value: Any
) -> None:
    if isinstance(value, np.ndarray):
        value = {"1": 1}
    with pytest.raises(error) as refused:
        call(Matcher(machine()), value)
    assert refused.value.errno == 22


class Boundless(int):
    """Within any limits, and of a hash of its own."""

    def __ge__(self, other: object) -> bool:
        return True

    __le__ = __gt__ = __lt__ = __eq__ = __ge__

    def __hash__(self) -> int:
        return 5

    def __repr__(self) -> str:
        raise RuntimeError


def test_a_number_of_a_class_of_its_own_has_the_limits_of_others() -> None:
    matcher = Matcher(machine())
    for call in (matcher.allocate, lambda spec, x: matcher.allocate(spec, now=x)):
        with pytest.raises(InvalidJobspec, match="expected a whole number from 0"):
            call(CORE, Boundless(2**70))
    assert matcher.allocate(CORE, Boundless(7)).jobid == 7
    assert matcher.info(7).mode == "ALLOCATED"


class Counting:
    """Another number each time."""

    def __init__(self) -> None:
        self.number = 0

    def __index__(self) -> int:
        self.number += 1
        return self.number

    __int__ = __index__


def test_a_jobid_is_read_once() -> None:
    matcher = Matcher(machine())
    for jobid in (1, 2, 3):
        matcher.allocate(CORE, jobid)
    assert matcher.allocation(Counting()).jobid == 1  # type: ignore[arg-type]
    matcher.retract(Counting())  # type: ignore[arg-type]
    assert [matcher.info(jobid).mode for jobid in (2, 3)] == ["ALLOCATED"] * 2


@pytest.mark.parametrize("matched", ["candidates", "prefer"])
def test_entries_above_the_highest_rank_are_not_read(matched: str) -> None:
    matcher = Matcher(machine(nodes=2))
    size = 2**35  # of one number: to copy it would take 256 GB
    long: Any = np.broadcast_to(np.bool_(True) if matched == "candidates" else np.float64(1), (size,))
    assert len(long) == size
    with pytest.raises(InvalidJobspec, match="has more than 16,777,216 entries; pass one per rank"):
        matcher.allocate(CORE, **{matched: long})  # no plain memory, so it would have to be spelled out
    plain: Any = np.ones(2**16, dtype=np.int64 if matched == "candidates" else np.float64)
    plain[2:] = -1 if matched == "candidates" else np.nan
    assert matcher.allocate(CORE, **{matched: plain}).jobid == 1


@pytest.mark.parametrize("prefer", [["1"], [b"1"], np.array(["1"])])
def test_a_score_in_quotes_is_none(prefer: Any) -> None:
    with pytest.raises(InvalidJobspec, match=r"^prefer: "):
        Matcher(machine()).allocate(CORE, prefer=prefer)


def test_the_limits_are_the_same_on_loading_and_later_and_are_named() -> None:
    graph = Graph()
    graph.add("memory", 0, graph.add("cluster", 0), size=2**62)
    matcher = Matcher(graph.jgf())
    for size in (2**61 + 1, 2**62):
        matcher.resize("/cluster0/memory0", size)
        assert matcher.graph()["graph"]["nodes"][1]["metadata"]["size"] == size
    with pytest.raises(InvalidGraph, match=r"memory0: size: .* from 0 to 2\*\*62, got 4611686018427387905$"):
        matcher.resize("/cluster0/memory0", 2**62 + 1)
    assert matcher.satisfy(spec(slot(1, want("memory", 1))), now=2**61 - 1)
    with pytest.raises(InvalidJobspec, match=r"^now: .* from 0 to 2\*\*61 - 1, got 2305843009213693952$"):
        matcher.satisfy(CORE, now=2**61)


@pytest.mark.parametrize("buffer", [bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_what_is_accepted_does_not_depend_on_what_was_asked_before(buffer: Callable[[bytes], Any]) -> None:
    def asked(command: Any) -> dict[str, Any]:
        return CORE | {"tasks": [{"command": command, "slot": "task", "count": {"per_slot": 1}}]}

    def answer(matcher: Matcher, jobspec: Any) -> str:
        try:
            return str(matcher.satisfy(jobspec))
        except InvalidJobspec as error:
            return str(error)

    text = str(CORE).encode()
    for first, second in ((text, buffer(text)), (asked(b"app"), asked(buffer(b"app")))):
        matcher = Matcher(machine())
        assert answer(matcher, first) == "True"
        assert answer(matcher, second) == answer(Matcher(machine()), second)


def test_a_subclass_stays_one_in_its_clones() -> None:
    class Counting(Matcher):
        calls = 0

        def __init__(self, graph: Any) -> None:
            super().__init__(graph)
            self.note = "mine"

    matcher = Counting(machine(nodes=1, cores=1))
    other = matcher.clone()
    assert isinstance(other, Counting)
    assert other.note == "mine"
    other.allocate(CORE)
    matcher.allocate(CORE)


def test_closing_an_embedded_matcher_changes_nothing() -> None:
    matcher = Matcher(machine())
    matcher.close()
    matcher.allocate(CORE)
