"""Pods counted by node: every column is what a count from scratch finds, whatever came and went."""

from __future__ import annotations

import random

import pytest

from session_scheduler.model.label_selectors import EVERYTHING, NOTHING, Selector
from session_scheduler.model.objects import ObjectMeta, Pod
from session_scheduler.model.pod_counts import PodCounts, PodQuery

IN_A = Selector((("app", "In", ("a",)),))
QUERIES = [
    PodQuery(("x",), IN_A),
    PodQuery(None, IN_A),
    PodQuery(("x", "y", "nowhere"), Selector((("app", "In", ("a", "b")),)), ending=False),
    PodQuery(None, Selector((("app", "NotIn", ("a",)),))),
    PodQuery(("y",), Selector((("app", "In", ("b",)), ("index", "Exists", ())))),
    PodQuery(None, Selector((("index", "DoesNotExist", ()),))),
    PodQuery(None, EVERYTHING),
    PodQuery(None, NOTHING),
    PodQuery((), EVERYTHING),
]


def pod(namespace: str, labels: dict[str, str], ending: bool = False) -> Pod:
    when = "2030-01-01T00:00:00Z" if ending else None
    return Pod(metadata=ObjectMeta(name="p", namespace=namespace, labels=labels, deletion_timestamp=when))


def a_pod(chance: random.Random) -> Pod:
    labels = {"app": chance.choice("abc")} if chance.random() < 0.9 else {}
    if chance.random() < 0.5:
        labels["index"] = str(chance.randrange(100))
    return pod(chance.choice("xy"), labels, chance.random() < 0.2)


@pytest.mark.parametrize("seed", range(6))
def test_columns_are_what_a_count_from_scratch_finds(seed: int) -> None:
    chance = random.Random(seed)
    rows, counts = 4, PodCounts(4)
    running: list[tuple[int, int, Pod]] = []
    asked: list[PodQuery] = []
    for step in range(400):
        move = chance.random()
        if move < 0.5 or not running:
            one = a_pod(chance)
            row, kind = chance.randrange(rows), counts.acquire(one)
            counts.add(row, kind, 1)
            running.append((row, kind, one))
        elif move < 0.9:
            row, kind, _ = running.pop(chance.randrange(len(running)))
            counts.add(row, kind, -1)
            counts.release(kind)
        elif move < 0.93:
            row = chance.randrange(rows)
            counts.clear_row(row)
            for _, kind, _ in [one for one in running if one[0] == row]:
                counts.release(kind)
            running = [one for one in running if one[0] != row]
        elif move < 0.95 and rows < 16:
            rows *= 2
            counts.grow_rows(rows)
        else:
            counts.trim(chance.choice([0, 4, 100]))
            asked = []
        asked.append(chance.choice(QUERIES))
        for query in asked if step % 7 else QUERIES:
            wanted = [0] * rows
            for row, _, one in running:
                metadata = one.metadata
                wanted[row] += query.picks(metadata.namespace, metadata.labels, metadata.deletion_timestamp is not None)
            assert counts.column(query).counts.tolist() == wanted


def test_a_column_is_kept_up_to_date_without_being_asked_for_again() -> None:
    counts = PodCounts(2)
    column = counts.column(PodQuery(("x",), IN_A))
    kind = counts.acquire(pod("x", {"app": "a", "index": "7"}))
    counts.add(1, kind, 1)
    counts.add(1, kind, 1)
    assert column.counts.tolist() == [0, 2]
    counts.add(1, kind, -1)
    assert column.counts.tolist() == [0, 1]
    assert counts.of_row(1) == [("x", (("app", "a"), ("index", "7")), False, 1)]


def test_kinds_that_no_pod_is_of_any_more_are_forgotten() -> None:
    counts = PodCounts(1)
    for index in range(1000):
        kind = counts.acquire(pod("x", {"index": str(index)}))
        counts.add(0, kind, 1)
        counts.add(0, kind, -1)
        counts.release(kind)
        assert kind == 0
    with pytest.raises(LookupError):
        counts.release(0)


def test_columns_that_were_not_asked_for_lately_are_dropped() -> None:
    counts = PodCounts(1)
    kept = counts.column(QUERIES[0])
    others = [counts.column(query) for query in QUERIES[1:5]]
    counts.column(QUERIES[0])
    counts.trim(4)
    assert counts.column(QUERIES[0]) is kept
    assert counts.column(QUERIES[1]) is not others[0]
