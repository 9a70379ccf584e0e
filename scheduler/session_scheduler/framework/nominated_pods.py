"""The filter for nominated pods: a task must fit next to the node's nominated pods of at least its priority.

As in kube-scheduler (RunFilterPluginsWithNominatedPods, Kubernetes 1.36), a node with nominated pods is evaluated with
them and without them. The evaluator adds this filter to the evaluation of a class.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from session_scheduler.framework.answers import Scope
from session_scheduler.framework.evaluation import Evaluation, Spare, evaluate, refusals_by
from session_scheduler.framework.node_refusals import NodeRefusals, Verdict
from session_scheduler.framework.statement import Ledger
from session_scheduler.model.columns import BoolColumn, NodeView, RowIndex
from session_scheduler.model.durations import known_seconds
from session_scheduler.model.groups import SYSTEM_CRITICAL, Task
from session_scheduler.state.cache import Cache
from session_scheduler.state.queue_use import NominatedKind

NAME = "NominatedPods"
_FEW = 64
"""Up to this many rows, single look-ups are faster than one for all."""
Key = tuple[int, frozenset[str], str, float, frozenset[str]]
"""What decides for which nominated pods a task must leave room:

* the priority that the task preempts with;
* the pods (uids) for which it need not leave room: itself and its gang;
* its queue, if it must leave room for the pods of other queues whatever their priority; else empty;
* when it ends (seconds since 1970): it need not leave room for pods that start only later;
* queues for whose later starting pods it need not leave room.
"""
_ALL: Key = (-(2**31), frozenset(), "", math.inf, frozenset())
"""The key of a task that must leave room for all nominated pods."""
Expected = Mapping[int, Sequence[Task]]
"""The nominated tasks of each row."""


class NominatedPods:
    """Decides for which nominated pods the tasks of a session must leave room."""

    def __init__(self, cache: Cache, ledger: Ledger, wall: float, *, naive: bool = False) -> None:
        """`wall` is the time of day when the session opened. `naive` keeps no answers."""
        self.cache = cache
        self.ledger = ledger
        self.nominations = cache.nominations
        self.backfills = False
        """Whether tasks may use nodes reserved for gangs that start only after these tasks end."""
        self.counted: Expected = {}
        """The nominated tasks that are counted on their rows while filters run."""
        self._ahead: Key | None = None
        """The key of `kinds_ahead`."""
        self._runner = ledger.runner
        self._wall = wall
        self._naive = naive
        self._behind: dict[str, tuple[tuple[int, int], frozenset[str]]] = {}
        """By queue: the state and the answer of `_queues_behind`."""
        self._state = (0, 0)
        """The state of the session for which `_kinds` was computed."""
        self._kinds: dict[tuple[int, str], dict[str, Counter[NominatedKind]]] = {}
        """By priority and queue of a key: the answer of `_kinds_first`."""

    @contextmanager
    def backfilling(self) -> Iterator[None]:
        """In this context tasks need not leave room for pods that start only after these tasks end."""
        self.backfills = True
        try:
            yield
        finally:
            self.backfills = False

    def key(self, task: Task, *, beside_itself: bool = False) -> Key | None:
        """Return what a task's answers depend on in addition to its class; None if it need not leave room for any pod.

        With `beside_itself` it must leave room even for itself, where it is nominated.
        """
        key, nominations = self._key((task,), task.preemptor_priority), self.nominations
        if beside_itself:
            key = (key[0], frozenset(), *key[2:])
        if key[1] or nominations.starts:
            others = (other for _, tasks in nominations.waiting() for other in tasks)
            return key if any(_counts(other, key, nominations.starts) for other in others) else None
        behind = sum(map(len, nominations.below(key[0], key[2])))
        return None if behind == len(nominations.node_by_uid) else key if behind else _ALL

    def yielded_to(self, tasks: Sequence[Task], nodes: Iterable[str] | None) -> dict[str, list[Task]]:
        """Return by node, for all or for these nodes, the nominated tasks for which a group's tasks must leave room."""
        key = self._key(tasks, min(task.preemptor_priority for task in tasks))
        waiting, starts = self.nominations.waiting(nodes), self.nominations.starts
        found = {node: [task for task in there if _counts(task, key, starts)] for node, there in waiting}
        return {node: there for node, there in found.items() if there}

    def kinds_yielded_to(self, tasks: Sequence[Task]) -> dict[str, Counter[NominatedKind]]:
        """Return by queue the number of nominated tasks of each kind for which a group's tasks must leave room, without
        pods of other schedulers. The cost depends on the number of kinds, unless some tasks start only later.
        """
        return self._kinds_of(self._key(tasks, min(task.preemptor_priority for task in tasks)))

    def kinds_ahead(self) -> dict[str, Counter[NominatedKind]]:
        """Like `kinds_yielded_to`, for the task whose filters run with all of these pods counted; else nothing."""
        return self._kinds_of(self._ahead) if self._ahead is not None else {}

    @contextmanager
    def counting_ahead(self, key: Key) -> Iterator[None]:
        """In this context `kinds_ahead` returns the nominated tasks for which a task with this key must leave room."""
        self._ahead = key
        try:
            yield
        finally:
            self._ahead = None

    def _kinds_of(self, key: Key) -> dict[str, Counter[NominatedKind]]:
        queues, starts, found = self.cache.queues, self.nominations.starts, dict[str, Counter[NominatedKind]]()
        if starts:
            there = (task for _, tasks in self.nominations.waiting() for task in tasks if _counts(task, key, starts))
            for queue, kind in filter(None, map(queues.nominated_kind, there)):
                found.setdefault(queue, Counter())[kind] += 1
            return found
        found = self._kinds_first(key)
        own = (self.cache.tasks[uid] for uid in key[1])
        for queue, kind in filter(None, map(queues.nominated_kind, own)):
            if kind in found.get(queue, ()):
                found = {**found, queue: found[queue] - Counter((kind,))}
                if not found[queue]:
                    del found[queue]
        return found

    def _kinds_first(self, key: Key) -> dict[str, Counter[NominatedKind]]:
        """Return by queue the nominated tasks of each kind that come before a task with this key, its own ones
        included. Computed once for a priority and queue until a change. Read only.
        """
        self._forget_outdated()
        found = self._kinds.get((key[0], key[2]))
        if found is None:
            found = self._kinds[key[0], key[2]] = {}
            for queue, kinds in self.cache.queues.nominated.items():
                first = {kind: count for kind, count in kinds.items() if _is_first(kind[0], queue, key)}
                if first:
                    found[queue] = Counter(first)
        return found

    def _forget_outdated(self) -> None:
        """Forget what was computed before the last change of nominations or placements."""
        state = len(self.ledger.touched), self.nominations.version
        if self._state != state or self._naive:
            self._state, self._kinds = state, {}

    def expected_on(self, task: Task, node: str) -> Key | None:
        """Return a key of the node's nominated tasks that a task must leave room for; None if these are all, or none.

        With None, results for the node are the same for all tasks that leave room, whatever their queues.
        """
        if not self.nominations.is_awaited(node):
            return None
        key, starts = self._key((task,), task.preemptor_priority), self.nominations.starts
        waiting = (other for _, tasks in self.nominations.waiting((node,)) for other in tasks)
        return None if all(_counts(other, key, starts) for other in waiting) else key

    def partly_expected(self, task: Task) -> dict[str, Key]:
        """Return the nodes for which `expected_on` has a key, with that key. The cost depends on the number of these
        nodes, unless some nominated tasks start only later.
        """
        nominations = self.nominations
        if nominations.starts:
            keys = ((node, self.expected_on(task, node)) for node, _ in nominations.waiting())
            return {node: key for node, key in keys if key is not None}
        key = self._key((task,), task.preemptor_priority)
        nodes = {nominations.node_by_uid[uid] for uid in key[1]}
        for tasks in nominations.below(key[0], key[2]):
            nodes.update(nominations.node_by_uid[uid] for uid, one in tasks.items() if one.node is None)
        return dict.fromkeys(nodes, key)

    def left_out(self, task: Task) -> frozenset[str]:
        """Return the nominated pods (uids) for which a task need not leave room: itself and its gang, except pods
        that are on a node.
        """
        own = (task,) if not task.group.is_gang else tuple(task.group.tasks.values())
        return frozenset(one.uid for one in own if one.node is None and self.nominations.node_of(one) is not None)

    def beside(self, evaluation: Evaluation, key: Key) -> Evaluation:
        """Return the evaluation with this filter added, and another one if filters count nominated pods elsewhere."""
        ahead = [_Ahead(self, evaluation, key)] if evaluation.counts_nominated else []
        return replace(evaluation, filters=[*evaluation.filters, _Counting(self, evaluation, key), *ahead])

    def _key(self, tasks: Sequence[Task], priority: int) -> Key:
        """Between queues shares decide, not priorities, so a task must not use room nominated for another queue.

        But a queue that goes first now may use what is reserved for later: otherwise it would wait next to idle nodes.
        """
        queue = tasks[0].group.queue if self.cache.queues.active and priority < SYSTEM_CRITICAL else ""
        behind = self._queues_behind(queue) if queue and self.nominations.starts else frozenset()
        return priority, self.left_out(tasks[0]), queue, self._end(tasks), behind

    def _queues_behind(self, queue: str) -> frozenset[str]:
        """Return the queues with reservations for later that come after this queue in the order of queues.

        The answer stays the same for all of a group, whatever the group has been given so far. Raises PluginError.
        """
        state = self.ledger.committed, self.nominations.version
        known = self._behind.get(queue)
        if known is None or known[0] != state or self._naive:
            others = {task.group.queue for task in self.nominations.starts} - {queue}
            own = self._runner.queue_key(queue)[:-1]  # without the name, which only breaks ties
            found = frozenset(other for other in others if own < self._runner.queue_key(other)[:-1])
            known = self._behind[queue] = state, found
        return known[1]

    def _end(self, tasks: Sequence[Task]) -> float:
        """Return when the last of the tasks ends if they are placed now; infinite if unknown or irrelevant."""
        known = [known_seconds(task) for task in tasks] if self.backfills else [None]
        return self._wall + max((math.inf if one is None else one for one in known), default=math.inf)


def _counts(nominated: Task, key: Key, starts: Mapping[Task, float]) -> bool:
    """Whether a task with this key must leave room for a nominated task."""
    _, own, _, end, behind = key
    if nominated.uid in own or not _is_first(nominated.standing, nominated.group.queue, key):
        return False
    start = starts.get(nominated)
    return start is None or (start < end and nominated.group.queue not in behind)


def _is_first(standing: int, queue: str, key: Key) -> bool:
    return standing >= key[0] or (bool(key[2]) and queue != key[2])


class _Counting:
    """The filter: runs the filters of one evaluation while nominated tasks are counted on their nodes."""

    plugin = NAME
    scope = Scope.NODE
    counts_nominated = False
    key = None

    def __init__(self, nominated: NominatedPods, evaluation: Evaluation, key: Key) -> None:
        self._nominated = nominated
        self._nominations = nominated.nominations
        self._ledger = nominated.ledger
        self._cache = nominated.cache
        self._table = nominated.cache.table
        self._evaluation = evaluation
        self._key = key

    def _expected(self, view: NodeView) -> Expected:
        """Return the view's rows with nominated tasks that count for this key."""
        nominations, found = self._nominations, {}
        few = view.rows is not None and len(view) < nominations.nodes
        nodes = [view.node(place).metadata.name for place in range(len(view))] if few else None
        for node, tasks in nominations.waiting(nodes):
            row = self._table.row_of.get(node, -1)
            count = [task for task in tasks if _counts(task, self._key, nominations.starts)]
            if row >= 0 and count:
                found[row] = count
        return found

    def run(self, view: NodeView, mask: BoolColumn, task: Task | None) -> None:
        """Clear the rows where the class does not fit next to the nominated tasks."""
        expected = self._expected(view)
        if self._evaluation.any_filters:  # evaluate each node as if the others had no nominated pods
            for row, tasks in expected.items():
                self._evaluate_beside({row: tasks}, view, mask, task)
        elif expected:
            self._evaluate_beside(expected, view, mask, task)

    def _evaluate_beside(self, expected: Expected, view: NodeView, mask: BoolColumn, task: Task | None) -> None:
        rows = view.row_numbers
        few = len(rows) <= _FEW
        concerned = [row in expected for row in rows.tolist()] if few else np.isin(rows, list(expected))
        where = np.flatnonzero(mask & concerned)
        if not len(where):
            return
        extra = view.extra[where] if view.extra is not None else None
        part = NodeView(self._table, rows[where], view.cls, extra)
        fits = np.ones(len(where), np.bool_)
        there = {row: expected[row] for row in part.row_numbers.tolist()}  # other rows are already cleared
        with self._counted(there):
            for filtering in self._evaluation.filters:
                if filtering.scope is not Scope.STATIC:  # the rows of the mask have passed these
                    filtering.run(part, fits, task)
        mask[where] = fits

    def refusals(self, view: NodeView, task: Task | None) -> NodeRefusals:
        """Return the refusals of the filters, with the nominated tasks counted."""
        rows, expected = view.row_numbers, self._expected(view)
        step = 1 if self._evaluation.any_filters else max(1, len(rows))
        parts = (rows[start : start + step] for start in range(0, len(rows), step))
        return NodeRefusals.of_rows(one for part in parts for one in self._verdicts(part, expected, task))

    def fits_if(self, view: NodeView) -> Sequence[Sequence[str] | None]:
        """Unknown: `explain` asks the filters themselves."""
        return [None] * len(view)

    def reduce(self, spare: Spare, view: NodeView) -> bool:
        """Subtract what the nominated tasks request. False if other tasks end before these start."""
        if self._nominations.starts:
            return False
        columns = {self._table.resource(name): column for name, column in spare.items()}
        expected = self._expected(view)
        for place, row in enumerate(view.row_numbers.tolist()):
            for number, amount in (each for task in expected.get(row, ()) for each in task.cls.usage):
                if number in columns:
                    columns[number][place] -= amount
        return True

    def _verdicts(self, rows: RowIndex, expected: Expected, task: Task | None) -> list[Verdict]:
        """Return why these rows reject the class while their nominated tasks are counted together."""
        with self._counted({row: expected[row] for row in rows.tolist() if row in expected}):
            found = evaluate(self._evaluation, NodeView(self._table, rows), np.ones(len(rows), np.bool_), task)
        return [found.get(place) or Verdict(NAME, ()) for place in range(len(rows))]

    @contextmanager
    def _counted(self, expected: Expected) -> Iterator[None]:
        """In this context these tasks are counted on their rows, and tasks that end before they start are not."""
        ended = self._ended(expected) if self._nominations.starts else {}
        self._count(expected, 1)
        self._count(ended, -1)
        self._nominated.counted = expected
        try:
            yield
        finally:
            self._nominated.counted = {}
            self._count(ended, 1)
            self._count(expected, -1)

    def _ended(self, expected: Expected) -> Expected:
        """Return, by row, the tasks that end before the first of the nominated tasks starts."""
        starts, ledger, found = self._nominations.starts, self._ledger, {}
        for row, tasks in expected.items():
            first = min(starts.get(task, -math.inf) for task in tasks)
            if first > -math.inf:
                ends = ((task, ledger.ends_at(task)) for task in self._cache.tasks_on(ledger.node_at(row)))
                found[row] = [task for task, end in ends if end is not None and end <= first]
        return found

    def _count(self, expected: Expected, sign: int) -> None:
        for row, tasks in expected.items():
            for task in tasks:
                self._cache.count_on(row, task, sign)
        if self._evaluation.any_filters:  # filters that look beyond a row follow `touched`
            self._ledger.touched.extend(expected)


class _Ahead:
    """The filter: runs those filters of one evaluation that count nominated tasks wherever these are nominated."""

    plugin = NAME
    scope = Scope.ANY
    counts_nominated = False
    key = None

    def __init__(self, nominated: NominatedPods, evaluation: Evaluation, key: Key) -> None:
        self._nominated = nominated
        self._filters = [filtering for filtering in evaluation.filters if filtering.counts_nominated]
        self._key = key

    def run(self, view: NodeView, mask: BoolColumn, task: Task | None) -> None:
        """Clear the rows that these filters reject."""
        with self._nominated.counting_ahead(self._key):
            for filtering in self._filters:
                filtering.run(view, mask, task)

    def refusals(self, view: NodeView, task: Task | None) -> NodeRefusals:
        """Return the refusals of these filters."""
        with self._nominated.counting_ahead(self._key):
            return refusals_by(self._filters, view, np.ones(len(view), np.bool_), task)

    def fits_if(self, view: NodeView) -> Sequence[Sequence[str] | None]:
        """Unknown: `explain` asks the filters themselves."""
        return [None] * len(view)

    def reduce(self, _: Spare, __: NodeView) -> bool:
        """These filters compare other amounts than those of the node."""
        return False
