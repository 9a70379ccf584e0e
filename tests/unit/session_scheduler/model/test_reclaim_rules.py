from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from session_scheduler.model import reclaim_rules
from session_scheduler.model.queue_shares import Counts, QueueShares
from session_scheduler.model.queues import QueueSpec, QueueTree
from session_scheduler.model.reclaim_rules import BELOW_SHARE, ELSEWHERE, NO_DAMAGE, Reclaim


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


def may_reclaim(found: QueueShares, queue: str, needs: Mapping[str, int], *, preemptible: bool) -> str | None:
    return Reclaim(found, queue, needs, preemptible=preemptible).refusal


def reclaimable(
    found: QueueShares,
    queue: str,
    needs: Mapping[str, int],
    victims: Mapping[str, Sequence[Mapping[str, int]]],
    *,
    preemptible: bool,
    damage: int = ELSEWHERE,
) -> str | None:
    units = [(name, amounts) for name, pods in victims.items() for amounts in pods]
    return Reclaim(found, queue, needs, preemptible=preemptible, damage=damage).objection(units)


def test_a_queue_below_its_share_reclaims_from_one_above_its_share() -> None:
    found = shares(10, QueueSpec("a"), QueueSpec("b"), has={"a": (10, 0), "b": (0, 10)})
    assert may_reclaim(found, "b", cpu(5), preemptible=True) is None
    assert reclaimable(found, "b", cpu(5), {"a": [cpu(2), cpu(3)]}, preemptible=True) is None
    assert (
        reclaimable(found, "b", cpu(5), {"a": [cpu(6)]}, preemptible=True) == "queue 'a' would have less than its share"
    )
    assert "would exceed its fair share of cpu" in str(may_reclaim(found, "b", cpu(6), preemptible=True))


def test_reclaimed_resources_cannot_be_reclaimed_back() -> None:
    found = shares(10, QueueSpec("a"), QueueSpec("b"), has={"a": (5, 5), "b": (5, 5)})
    for reclaimer, victim in (("a", "b"), ("b", "a")):
        assert may_reclaim(found, reclaimer, cpu(1), preemptible=True) is not None
        assert reclaimable(found, reclaimer, cpu(1), {victim: [cpu(1)]}, preemptible=True) is not None


def test_within_its_deserved_amount_a_queue_reclaims_all_but_the_others_deserved_amount() -> None:
    queues = QueueSpec("a", deserved=cpu(2), priority=1), QueueSpec("b", deserved=cpu(8))
    found = shares(10, *queues, has={"a": (10, 0), "b": (0, 8)})
    assert reclaimable(found, "b", cpu(8), {"a": [cpu(8)]}, preemptible=False) is None
    assert reclaimable(found, "b", cpu(8), {"a": [cpu(9)]}, preemptible=False) is not None


def test_non_preemptible_pods_stay_within_the_deserved_amount() -> None:
    found = shares(10, QueueSpec("a"), QueueSpec("b", deserved=cpu(2)), has={"a": (10, 0), "b": (0, 10)}, kept=1)
    assert may_reclaim(found, "b", cpu(2), preemptible=True) is None
    why = may_reclaim(found, "b", cpu(2), preemptible=False)
    assert why == "queue 'b' would exceed its deserved cpu with non-preemptible pods"


def test_queues_are_compared_where_their_ancestors_differ() -> None:
    queues = QueueSpec("x"), QueueSpec("y"), QueueSpec("x1", "x"), QueueSpec("x2", "x"), QueueSpec("y1", "y")
    found = shares(12, *queues, has={"x1": (8, 0), "x2": (4, 4), "y1": (0, 6)})
    assert reclaimable(found, "y1", cpu(4), {"x2": [cpu(4)]}, preemptible=True) is None, "x has more than its half"
    assert reclaimable(found, "x2", cpu(1), {"x1": [cpu(1)]}, preemptible=True) is not None, "x has too much already"
    assert "cannot reclaim from itself" in str(reclaimable(found, "x1", cpu(1), {"x1": [cpu(1)]}, preemptible=True))


def test_a_victim_must_exceed_the_share_of_only_one_needed_resource() -> None:
    tree = QueueTree([QueueSpec("a"), QueueSpec("b")])
    has = {"default": Counts(), "a": Counts(allocated={"cpu": 10, "memory": 10}),
           "b": Counts(pending={"cpu": 5, "memory": 5})}  # fmt: skip
    found = QueueShares(tree, {"cpu": 10, "memory": 1000}, has)
    one = {"cpu": 1, "memory": 1}
    assert reclaimable(found, "b", one, {"a": [one]}, preemptible=True) is None
    assert reclaimable(found, "b", {"memory": 1}, {"a": [one]}, preemptible=True) is not None


def test_a_victim_may_be_larger_than_the_surplus_for_a_queue_that_deserves_its_needs() -> None:
    queues = QueueSpec("a", deserved=cpu(2)), QueueSpec("b", deserved=cpu(3))
    found = shares(5, *queues, has={"a": (5, 0), "b": (0, 9)})
    larger = [cpu(1), cpu(4)]
    assert "less than its share" in str(reclaimable(found, "b", cpu(3), {"a": larger}, preemptible=True))
    assert reclaimable(found, "b", cpu(3), {"a": larger}, preemptible=True, damage=BELOW_SHARE) is None
    why = reclaimable(found, "b", cpu(3), {"a": [cpu(3), cpu(1)]}, preemptible=True, damage=BELOW_SHARE)
    assert why is None, "in any order"
    why = reclaimable(found, "b", cpu(3), {"a": [cpu(3), cpu(2)]}, preemptible=True, damage=BELOW_SHARE)
    assert why is None, "after the smaller one the queue still has one more than its share"
    why = reclaimable(found, "b", cpu(3), {"a": [cpu(3), cpu(3)]}, preemptible=True, damage=BELOW_SHARE)
    assert "does not exceed" in str(why) or "less than its share" in str(why)
    assert "fair share" in str(reclaimable(found, "b", cpu(4), {"a": [cpu(5)]}, preemptible=True, damage=BELOW_SHARE))


def test_units_are_chosen_by_the_shares_of_their_queues_the_least_damage_first() -> None:
    queues = (QueueSpec("a", deserved=cpu(2)), QueueSpec("a1", "a", deserved=cpu(2)), QueueSpec("a2", "a"),
              QueueSpec("b", deserved=cpu(5)))  # fmt: skip
    found = shares(7, *queues, has={"a1": (3, 0), "a2": (4, 0), "b": (0, 5)})
    units = [("a1", cpu(2)), ("a1", cpu(1)), ("a2", cpu(3)), ("a2", cpu(1)), ("b", cpu(1))]
    assert Reclaim(found, "b", cpu(5), preemptible=True, damage=NO_DAMAGE).choose(units) == [None, 0, 0, 0, None]
    assert Reclaim(found, "b", cpu(5), preemptible=True).choose(units[:1]) == [1]
    assert Reclaim(found, "b", cpu(5), preemptible=True, damage=BELOW_SHARE).choose([("a1", cpu(6))]) == [3]
    assert Reclaim(found, "b", cpu(5), preemptible=True).choose([("a1", cpu(6)), ("a2", {})]) == [None, 0]


def test_a_queue_that_deserves_a_resource_reclaims_it_whatever_its_weight() -> None:
    queues = QueueSpec("a", deserved={"gpu": 1}), QueueSpec("b", deserved={"gpu": 1}, weight=0)
    counts = {
        "default": Counts(),
        "a": Counts(allocated={"cpu": 2, "gpu": 2}),
        "b": Counts(pending={"cpu": 1, "gpu": 1}),
    }
    found = QueueShares(QueueTree(queues), {"cpu": 2, "gpu": 2}, counts)
    one = {"cpu": 1, "gpu": 1}
    assert found.fair["b"] == one
    assert reclaimable(found, "b", one, {"a": [one]}, preemptible=True) is None


def test_a_parent_deserves_the_needs_after_evictions_below_it() -> None:
    queues = (QueueSpec("d1"), QueueSpec("d2", deserved=cpu(4)), QueueSpec("q1", "d2", deserved=cpu(0)),
              QueueSpec("q2", "d2", deserved=cpu(4)))  # fmt: skip
    found = shares(4, *queues, has={"d1": (2, 0), "q1": (2, 0), "q2": (0, 4)})
    both = {"d1": [cpu(1)] * 2, "q1": [cpu(1)] * 2}
    assert may_reclaim(found, "q2", cpu(4), preemptible=True) is None
    assert reclaimable(found, "q2", cpu(4), both, preemptible=True) is None
    units = [("d1", cpu(1)), ("q1", cpu(1))]
    assert Reclaim(found, "q2", cpu(4), preemptible=True, damage=NO_DAMAGE).choose(units) == [None, 0]
    assert Reclaim(found, "q2", cpu(4), preemptible=True).choose(units) == [2, 0]
    why = reclaimable(found, "q2", cpu(4), {"d1": [cpu(1)] * 2}, preemptible=True)
    assert why == "queue 'd2' would exceed its fair share of cpu"


def test_victims_on_one_node_cannot_suffice_if_an_ancestor_exceeds_its_share_by_more() -> None:
    queues = (QueueSpec("d1", deserved=cpu(4)), QueueSpec("q1", "d1"), QueueSpec("q2", "d1", deserved=cpu(2)),
              QueueSpec("d2", deserved=cpu(4)))  # fmt: skip
    found = shares(8, *queues, has={"q1": (8, 0), "q2": (0, 1), "d2": (0, 9)})
    rules = Reclaim(found, "q2", cpu(1), preemptible=True)
    assert rules.refusal is None, "eight CPUs of its sibling could be evicted"
    assert rules.exceeds_by_more(cpu(5)) is None
    assert (
        rules.exceeds_by_more(cpu(4)) == "queue 'd1' exceeds its share by more than the victims on one node would free"
    )


def test_two_queues_are_compared_once_for_all_victims(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[object, ...]] = []
    compare = reclaim_rules._Giver.__init__

    def counted(self: Any, *arguments: Any) -> None:
        compared.append(arguments)
        compare(self, *arguments)

    monkeypatch.setattr(reclaim_rules._Giver, "__init__", counted)
    found = shares(10, QueueSpec("a"), QueueSpec("b"), has={"a": (10, 0), "b": (0, 10)})
    rules = Reclaim(found, "b", cpu(3), preemptible=True)
    assert rules.may_evict("a", cpu(1))
    assert [rules.objection([("a", cpu(1))] * count) for count in (1, 2, 3)] == [None] * 3
    assert len(compared) == 1
