"""Pod counts by node: after any changes, every column equals a count from scratch."""

from __future__ import annotations

import random

import pytest

from session_scheduler.model.objects import Pod
from session_scheduler.model.pod_counts import PodCounts, PodQuery

from ....tools.examples import first
from ....unit.session_scheduler.model.test_pod_counts import QUERIES, pod


def a_pod(chance: random.Random) -> Pod:
    labels = {"app": chance.choice("abc")} if chance.random() < 0.9 else {}
    if chance.random() < 0.5:
        labels["index"] = str(chance.randrange(100))
    return pod(chance.choice("xy"), labels, chance.random() < 0.2)


@pytest.mark.parametrize("seed", first(range(6)))
def test_columns_equal_a_count_from_scratch(seed: int) -> None:
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
