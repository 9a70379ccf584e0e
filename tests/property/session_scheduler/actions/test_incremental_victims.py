"""What a session updates for victims, nominated pods and queues equals an answer from scratch, at each use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pytest

from session_scheduler.actions.eligible import EligibleVictims
from session_scheduler.actions.reprieve import by_filters
from session_scheduler.actions.trial import Trial
from session_scheduler.builtin.proportion import QueueOrder
from session_scheduler.framework.nominated_pods import Key, NominatedPods
from session_scheduler.model.columns import BoolColumn
from session_scheduler.model.groups import Task
from session_scheduler.state.queue_use import NominatedKind

from ....tools.examples import first
from .test_reclaim import Work, World


@pytest.fixture
def uses(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each answer was compared and not empty."""
    found: Counter[str] = Counter()
    kinds, partly, rows = NominatedPods.kinds_yielded_to, NominatedPods.partly_expected, EligibleVictims.rows
    by_itself = Trial.reprieve
    order = QueueOrder.changed

    def kinds_yielded_to(self: NominatedPods, tasks: Sequence[Task]) -> dict[str, Counter[NominatedKind]]:
        answer, wanted = kinds(self, tasks), dict[str, Counter[NominatedKind]]()
        for task in (task for there in self.yielded_to(tasks, None).values() for task in there):
            kind = task.standing, not task.group.preemptible, task.cls, ()
            wanted.setdefault(task.group.queue, Counter())[kind] += 1
        assert answer == wanted
        found["kinds"] += bool(answer)
        return answer

    def partly_expected(self: NominatedPods, task: Task) -> dict[str, Key]:
        answer = partly(self, task)
        keys = {node: self.expected_on(task, node) for node in self.cache.table.row_of}
        assert answer == {node: key for node, key in keys.items() if key is not None}
        found["partly"] += bool(answer)
        return answer

    def rows_of_victims(self: Any) -> BoolColumn | None:
        answer = rows(self)
        if answer is not None:
            for node, row in self._row_of.items():
                tasks = self._cache.tasks_on(node)
                there = [one for one in tasks if one.group.queue in self._queues and self._is_outranked(one)]
                assert answer[row] == bool(there)
                assert answer[row] or not self.on(node)
            found["rows"] += bool(answer.any())
        return answer

    def reprieve(self: Trial, units: Any) -> Any:
        answer = by_itself(self, units)
        assert answer == by_filters(self, units)
        found["reprieve"] += any(answer.values())
        return answer

    monkeypatch.setattr(Trial, "reprieve", reprieve)

    def changed(self: Any, unlike: Collection[str]) -> list[str]:
        before, answer = dict(self._keys), order(self, unlike)
        groups, fresh = self._session.next_groups, QueueOrder(self._session, self._shares.with_more(()))
        order(fresh, groups)
        for queue in groups:
            assert self.key(queue) == fresh.key(queue)
            assert queue in answer or queue not in fresh._keys or before[queue] == fresh.key(queue)
        found["order"] += len(answer) < len(groups)
        return answer

    monkeypatch.setattr(QueueOrder, "changed", changed)
    monkeypatch.setattr(NominatedPods, "kinds_yielded_to", kinds_yielded_to)
    monkeypatch.setattr(NominatedPods, "partly_expected", partly_expected)
    monkeypatch.setattr(EligibleVictims, "rows", rows_of_victims)
    return found


class MixedWorld(World):
    """Also with pods that are not preemptible."""

    def _load(self, names: str) -> Iterator[Work]:
        for queue, size, cpu, priority in super()._load(names):
            yield queue, self.chance.choice([1, size]), cpu, self.chance.choice([priority, 100, 200])


def test_incremental_answers_equal_those_from_scratch(uses: Counter[str]) -> None:
    for seed in first(range(120)):
        world = MixedWorld(seed, odd=bool(seed % 2))
        for work in sorted(world.load, key=lambda work: work[3]):  # so that pods find nominated ones of lower priority
            world.add(work)
            world.turn()
    assert min(uses[one] for one in ("kinds", "partly", "rows", "reprieve", "order")) > 0
