from __future__ import annotations

from collections.abc import Mapping

import pytest

from session_scheduler.model.queue_shares import Change, Counts, QueueShares
from session_scheduler.model.queues import QueueSpec, QueueTree


def cpu(amount: int) -> dict[str, int]:
    return {"cpu": amount} if amount else {}


def shares(total: int, *queues: QueueSpec, has: Mapping[str, tuple[int, int]], kept: int = 0) -> QueueShares:
    """`has`: (allocated, pending) of the queues without children."""
    tree = QueueTree(queues)
    counts = {name: Counts() for name in tree}
    for name, (allocated, pending) in has.items():
        for above in tree.path(name):
            one = counts[above]
            one.allocated = cpu(one.allocated.get("cpu", 0) + allocated)
            one.pending = cpu(one.pending.get("cpu", 0) + pending)
            one.kept = cpu(kept)
    return QueueShares(tree, cpu(total), counts)


def test_deserved_amounts_come_first_and_only_up_to_the_request() -> None:
    found = shares(10, QueueSpec("a", deserved=cpu(6)), QueueSpec("b", deserved=cpu(4)),
                   has={"a": (2, 0), "b": (2, 10)}).fair  # fmt: skip
    assert (found["a"], found["b"]) == (cpu(2), cpu(8))


def test_the_rest_goes_to_the_higher_priority_then_by_weight_and_a_weight_of_0_gets_none() -> None:
    found = shares(10, QueueSpec("vip", priority=1, limit=cpu(3)), QueueSpec("a", weight=2), QueueSpec("b"),
                   QueueSpec("z", weight=0), has=dict.fromkeys(("vip", "a", "b", "z"), (0, 20))).fair  # fmt: skip
    assert (found["vip"], found["a"], found["b"], found["z"]) == (cpu(3), cpu(5), cpu(2), {})


@pytest.mark.parametrize(("first", "has"), [
    ("b", {"a": (8, 2), "b": (1, 9)}), ("a", {"a": (0, 1), "b": (1, 1)}), ("a", {"a": (4, 6), "b": (4, 6)}),
])  # fmt: skip
def test_the_queue_with_the_smaller_dominant_share_goes_first(first: str, has: dict[str, tuple[int, int]]) -> None:
    assert first_of(shares(10, QueueSpec("a"), QueueSpec("b"), has=has), a=cpu(1), b=cpu(1)) == first


def first_of(found: QueueShares, **needs: dict[str, int]) -> str:
    keys = found.order(needs)
    return min(keys, key=keys.__getitem__)


def test_the_queue_that_stays_within_its_deserved_amounts_with_its_next_group_goes_first() -> None:
    """Both are within their deserved amounts; the dominant share of b is smaller."""
    queues = QueueSpec("a", deserved=cpu(4)), QueueSpec("b", deserved=cpu(5), priority=1)
    found = shares(20, *queues, has={"a": (3, 10), "b": (3, 20)})
    assert first_of(found, a=cpu(1), b=cpu(3)) == "a"
    assert first_of(found, a=cpu(2), b=cpu(3)) == "b", "both exceed theirs: the priority decides"
    assert first_of(found, a=cpu(1), b=cpu(2)) == "b", "both stay within theirs"


def test_the_dominant_share_includes_the_next_group() -> None:
    found = shares(20, QueueSpec("a"), QueueSpec("b"), has={"a": (3, 10), "b": (2, 10)})
    assert first_of(found, a=cpu(1), b=cpu(1)) == "b"
    assert first_of(found, a=cpu(1), b=cpu(4)) == "a"
    assert first_of(found, a=cpu(1), b=cpu(2)) == "b", "equal with the group: without it b has less"


def test_the_queue_that_deserves_the_resource_goes_first() -> None:
    """Each next group needs both resources. Only a deserves the GPU, only b the CPUs."""
    queues = QueueSpec("a", deserved={"gpu": 1}), QueueSpec("b", deserved={"cpu": 8}, priority=1), QueueSpec("c")
    counts = {name: Counts(pending={"cpu": 4, "gpu": 1, "memory": 1}) for name in ("default", "a", "b", "c")}
    found = QueueShares(QueueTree(queues), {"cpu": 100, "gpu": 1, "memory": 10}, counts)
    assert not found.deserves("b", {"cpu": 1, "gpu": 1}), "b deserves no GPU"
    assert found.deserves("a", {"memory": 1, "gpu": 1}), "no other queue deserves memory"
    assert not found.deserves("a", {"memory": 1}), "no needed resource is deserved"
    assert first_of(found, a={"gpu": 1}, b={"gpu": 1}, c={"gpu": 1}) == "a"
    assert first_of(found, b={"gpu": 1}, c={"cpu": 1}) == "b", "the priority decides between the others"


def test_a_parent_is_ordered_by_the_next_group_of_its_first_child() -> None:
    """The group of x2 alone would put x after y; its group of x1 goes first."""
    queues = (QueueSpec("x", deserved=cpu(4)), QueueSpec("y", deserved=cpu(4)), QueueSpec("x1", "x", deserved=cpu(4)),
              QueueSpec("x2", "x"), QueueSpec("y1", "y"))  # fmt: skip
    found = shares(20, *queues, has={"x1": (1, 9), "x2": (0, 9), "y1": (2, 9)})
    keys = found.order({"x1": cpu(1), "x2": cpu(9), "y1": cpu(1)})
    assert sorted(keys, key=keys.__getitem__) == ["x1", "x2", "y1"]
    keys = found.order({"x2": cpu(9), "y1": cpu(1)})
    assert sorted(keys, key=keys.__getitem__) == ["y1", "x2"]


def test_a_queue_without_weight_has_a_share_of_what_no_sibling_deserves_if_it_deserves_anything() -> None:
    queues = QueueSpec("a", deserved={"gpu": 1}, weight=0), QueueSpec("b"), QueueSpec("c", weight=0)
    counts = {name: Counts(pending={"cpu": 10, "gpu": 4}) for name in ("default", "a", "b", "c")}
    found = QueueShares(QueueTree(queues), {"cpu": 9, "gpu": 4}, counts).fair
    assert [found[name].get("cpu", 0) for name in "abc"] == [3, 3, 0]
    assert [found[name].get("gpu", 0) for name in "abc"] == [1, 2, 0]


def test_shares_are_copied_only_for_changes() -> None:
    found = shares(10, QueueSpec("a"), QueueSpec("b"), has={"a": (2, 0), "b": (2, 0)})
    assert found.with_more(()) is found
    more = found.with_more([Change("a", cpu(3), 1, kept=False)])
    assert (more.has["a"].allocated, more.has["b"].allocated) == (cpu(5), cpu(2))
    assert (found.has["a"].allocated, more.fair) == (cpu(2), found.fair)
