"""Pod counts: columns stay current, unused columns are dropped, and numbers of kinds are reused."""

from __future__ import annotations

import pytest

from session_scheduler.model.label_selectors import EVERYTHING, NOTHING, Selector
from session_scheduler.model.objects import ObjectMeta, Pod
from session_scheduler.model.pod_counts import PodCounts, PodQuery

IN_A = Selector((("app", "In", ("a",)),))
QUERIES = [
    PodQuery(frozenset(("x",)), IN_A),
    PodQuery(None, IN_A),
    PodQuery(frozenset(("x", "y", "nowhere")), Selector((("app", "In", ("a", "b")),)), ending=False),
    PodQuery(None, Selector((("app", "NotIn", ("a",)),))),
    PodQuery(frozenset(("y",)), Selector((("app", "In", ("b",)), ("index", "Exists", ())))),
    PodQuery(None, Selector((("index", "DoesNotExist", ()),))),
    PodQuery(None, EVERYTHING),
    PodQuery(None, NOTHING),
    PodQuery(frozenset(), EVERYTHING),
]


def pod(namespace: str, labels: dict[str, str], ending: bool = False) -> Pod:
    when = "2030-01-01T00:00:00Z" if ending else None
    return Pod(metadata=ObjectMeta(name="p", namespace=namespace, labels=labels, deletion_timestamp=when))


def test_a_column_stays_current() -> None:
    counts = PodCounts(2)
    column = counts.column(PodQuery(frozenset(("x",)), IN_A))
    kind = counts.acquire(pod("x", {"app": "a", "index": "7"}))
    counts.add(1, kind, 1)
    counts.add(1, kind, 1)
    assert column.counts.tolist() == [0, 2]
    counts.add(1, kind, -1)
    assert column.counts.tolist() == [0, 1]
    assert counts.of_row(1) == [("x", (("app", "a"), ("index", "7")), False, 1)]


def test_the_number_of_an_unused_kind_is_reused() -> None:
    counts = PodCounts(1)
    for index in range(1000):
        kind = counts.acquire(pod("x", {"index": str(index)}))
        counts.add(0, kind, 1)
        counts.add(0, kind, -1)
        counts.release(kind)
        assert kind == 0
    with pytest.raises(LookupError):
        counts.release(0)


def test_the_least_recently_used_columns_are_dropped() -> None:
    counts = PodCounts(1)
    kept = counts.column(QUERIES[0])
    others = [counts.column(query) for query in QUERIES[1:5]]
    counts.column(QUERIES[0])
    counts.trim(4)
    assert counts.column(QUERIES[0]) is kept
    assert counts.column(QUERIES[1]) is not others[0]
