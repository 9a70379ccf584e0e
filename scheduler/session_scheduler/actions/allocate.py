"""The allocate action: places the active groups one after the other, each all-or-nothing.

It visits queues in queue order and, within a queue, groups in job order. Each placement and eviction can change the
fair shares, so afterwards it reads the keys of queues again, but only those that changed if the plugins that order
queues report these. `placing` places a group. The actions that revisit rejected groups, such as preempt and reclaim,
use the same order and statements.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from operator import attrgetter, itemgetter
from typing import Any, Final

from session_scheduler.actions.placing import place_group
from session_scheduler.actions.postfilter import preempt
from session_scheduler.actions.reserving import reserve
from session_scheduler.framework.answers import Preemption
from session_scheduler.framework.hooks import ClassSplitError, PluginError
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import Decision, PlacementResult, Statement
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.refusals import Refusal
from session_scheduler.state.snapshot import RetriedGroups

_CLASSES_IN_A_TURN: Final = 256
"""How many classes of one namespace a session evaluates before the groups of other namespaces."""
_Pending = list[tuple[tuple[Any, ...], Group]]
"""A queue's groups with their keys; the next group is last."""
FindVictims = Callable[[Session, Group, PlacementResult], list[Preemption]]
"""Finds victims for the rejected tasks of a group, nominates the tasks, and updates the result."""


def allocate(session: Session) -> Iterator[Decision | None]:
    """Attempt each group. Yields its decision, or None if nothing was placed: `session.outcomes` has the reasons.

    As with all actions, the engine stops after a group when the action's time is up.
    """
    retried = session.snapshot.retried
    groups = list(session.snapshot.due)
    if retried is not None and session.registered.job_orders:  # only their keys show which groups come first
        groups += _take_all(retried)
    competing = Counter((group.queue, group.priority) for group in groups)
    counted = set(groups)
    following = ordered(session, groups, retried)
    several = retried is not None or len({group.namespace for group in groups}) > 1
    for group in in_turns(following) if several else following:
        if group is None:
            yield None
            continue
        equals = group.queue, group.priority
        competing[equals] += group not in counted
        yield try_group(session, group, least=competing[equals] > 1 or _is_followed_by_equals(session, group))


def _is_followed_by_equals(session: Session, group: Group) -> bool:
    """Whether the next group to retry competes with a gang for the same capacity."""
    retried = session.snapshot.retried
    following = retried.first(group.queue) if retried is not None and group.has_minimum else None
    return following is not None and following[0] == -group.priority


def ordered(session: Session, groups: Iterable[Group], retried: RetriedGroups | None = None) -> Iterator[Group | None]:
    """These groups in the order of their attempts. Among them, it also takes the groups to retry whose turn has come.

    A group fails and is left out if a plugin raises for its key. Yields None, a pause for the engine, if the plugin
    timed out.
    """
    queues = _Queues(session)
    for group in groups:
        try:
            queues.put(group, session.runner.group_key(group))
        except PluginError as error:
            _fail(session, [group], error)
            if error.late:
                yield None
    queues.sort()
    _take_next(retried, queues)
    while (queue := queues.first()) is not None:
        yield queues.pop(queue)
        _take_next(retried, queues)


def in_turns(groups: Iterable[Group | None]) -> Iterator[Group | None]:
    """These groups, reordered so that a namespace with very many classes does not hold up the others.

    The cost of a namespace is its number of classes, because equal pods are evaluated once. After a number of classes,
    its other groups come after all other groups with the same or a higher priority.
    """
    evaluated: dict[str, set[TaskClass]] = defaultdict(set)
    late: dict[int, list[Group]] = defaultdict(list)
    for group in groups:
        if group is None:
            yield None
            continue
        for priority in sorted((each for each in late if each > group.priority), reverse=True):
            yield from late.pop(priority)
        known = evaluated[group.namespace]
        new = {task.cls for task in group.in_phase(Phase.PENDING)} - known
        if new and known and len(known) + len(new) > _CLASSES_IN_A_TURN:
            late[group.priority].append(group)
            continue
        known |= new
        yield group
    for priority in sorted(late, reverse=True):
        yield from late[priority]


def _take_all(retried: RetriedGroups) -> list[Group]:
    """Take all groups to retry."""
    return [group for queue in retried.queues() for group in _taken(retried, queue)]


def _taken(retried: RetriedGroups, queue: str) -> Iterator[Group]:
    while retried.first(queue) is not None:
        group = retried.take(queue)
        if group is not None:
            yield group


def _take_next(retried: RetriedGroups | None, queues: _Queues) -> None:
    """Take each queue's next group to retry if it comes before the queue's pending groups."""
    if retried is None:
        return
    for queue in retried.queues():
        while (order := retried.first(queue)) is not None and queues.is_before_all(order, queue):
            group = retried.take(queue)
            if group is not None:
                queues.put(group, group.order)
                queues.sort_one(group.queue)


class _Queues:
    """The queues with groups left."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._pending: dict[str, _Pending] = {}
        self._keys: dict[str, tuple[Any, ...]] = {}
        self._others = dict.fromkeys(session.next_groups)
        """The queues whose next group may differ from that in `session.next_groups`."""
        self._requests: dict[str, object] = {}
        """What the next group of each queue requested when it became the next one: it may be placed meanwhile."""
        self._unlike: dict[str, None] = {}
        """The queues whose next group requests something else than when the keys were read, or that have none left."""
        self._first: str | None = None
        self._seen = -1
        """How many changes of rows there were when the keys were read."""

    def put(self, group: Group, key: tuple[Any, ...]) -> None:
        """Add a group with its key."""
        self._pending.setdefault(group.queue, []).append((key, group))
        self._others[group.queue] = None

    def sort(self) -> None:
        """Sort the groups of each queue. Fails those of a queue whose keys do not compare."""
        for queue, pending in list(self._pending.items()):
            try:
                pending.sort(key=itemgetter(0), reverse=True)
            except PluginError as error:  # any of the keys may be the wrong one
                self._fail(queue, error)

    def sort_one(self, queue: str) -> None:
        """Sort the groups of a queue after `put`: fast, because only the last one is out of place."""
        self._pending[queue].sort(key=itemgetter(0), reverse=True)

    def is_before_all(self, order: tuple[Any, ...], queue: str) -> bool:
        """Whether a group with this key comes before all groups of the queue."""
        return queue not in self._pending or order < self._pending[queue][-1][0]

    def pop(self, queue: str) -> Group:
        """Remove the next group of a queue."""
        _, group = self._pending[queue].pop()
        if not self._pending[queue]:
            del self._pending[queue]
        self._others[queue] = None
        return group

    def first(self) -> str | None:
        """The first queue in order; None if none is left. Fails the groups of each queue whose key raises."""
        self._note_next_groups()
        if len(self._pending) < 2:
            self._first = None
            return next(iter(self._pending), None)
        if self._first is None or self._unlike or self._seen != len(self._session.ledger.touched):
            self._seen = len(self._session.ledger.touched)
            try:
                if self._read_keys() or self._first not in self._keys:
                    self._first = min(self._keys, key=self._keys.__getitem__, default=None)
            except PluginError as error:
                for queue in list(self._pending):
                    self._fail(queue, error)
                return None
        return self._first

    def _note_next_groups(self) -> None:
        others, self._others, known = self._others, {}, self._session.next_groups
        for queue in others:
            if queue not in self._pending:
                known.pop(queue, None)
                self._keys.pop(queue, None)
                self._requests.pop(queue, None)
                self._unlike[queue] = None
                continue
            known[queue] = group = self._pending[queue][-1][1]
            requests = _requests_of(group)
            if self._requests.get(queue) != requests:
                self._requests[queue] = requests
                self._unlike[queue] = None

    def _read_keys(self) -> bool:
        """Read the keys that are possibly other ones. Returns whether there are any."""
        runner, unlike = self._session.runner, self._unlike
        self._unlike = {}
        changed = runner.changed_queues(unlike)
        read = [queue for queue in self._pending if changed is None or queue in changed or queue not in self._keys]
        for queue in read:
            try:
                self._keys[queue] = runner.queue_key(queue)
            except PluginError as error:
                self._fail(queue, error)
        return bool(read)

    def _fail(self, queue: str, error: PluginError) -> None:
        self._keys.pop(queue, None)
        self._others[queue] = None
        _fail(self._session, [group for _, group in self._pending.pop(queue)], error)


def _requests_of(group: Group) -> object:
    """What decides the requests of the group's next tasks (`reclaiming.required_tasks`), also of devices. Claims that
    the queue has by then are not requested again.
    """
    tasks = group.in_phase(Phase.PENDING)
    if group.single:
        return [task if task.cls.claims else task.cls for task in tasks]
    tasks.sort(key=attrgetter("key"))
    return group.needed, group.lacks, [(task.sub_group, task if task.cls.claims else task.cls) for task in tasks]


def _fail(session: Session, groups: Iterable[Group], error: PluginError) -> None:
    session.held_up += error.late
    for group in groups:
        session.outcomes[group] = PlacementResult(group, refusal=Refusal(str(error), error.plugin, failed=True))


def try_group(session: Session, group: Group, *, least: bool = False) -> Decision | None:
    """Place as much of a group as possible; with `least` a gang's minimum, so that other groups get theirs, too.

    A plugin's error or an unexpected error fails this group only; unexpected ones are also added to `session.errors`.
    """
    result = session.outcomes[group] = PlacementResult(group)
    with attempt_statement(session, result) as statement:
        place_group(session, statement, group, result, least=least)
        preemptions = [] if result.scheduled else _preempt_or_reserve(session, group, result)
        nominated = _new_nominations(result) if result.nominated else {}
        if result.placed or preemptions or nominated:
            return statement.commit(session.runner.bind_annotations(result.placed), preemptions, nominated)
    for task in group.in_phase(Phase.PENDING):
        result.reasons.setdefault(task, result.refusal.reason if result.refusal else "not attempted")
    return None


def _new_nominations(result: PlacementResult) -> dict[Task, str]:
    """The nominations that differ from the pods' status."""
    before = result.nominated_before
    return {
        task: node
        for task, node in result.nominated.items()
        if node != before[task] or node != task.pod.status.nominated_node_name
    }


def _preempt_or_reserve(session: Session, group: Group, result: PlacementResult) -> list[Preemption]:
    """Find victims for a group's rejected tasks, else reserve nodes, if the configuration does that at once."""
    options = session.options
    preemptions = preempt(session, group, result) if options.preempts_at_once or not options.preempts else []
    if options.reservations and not preemptions:
        reserve(session, group, result)
    return preemptions


@contextmanager
def attempt_statement(session: Session, result: PlacementResult) -> Iterator[Statement]:
    """A statement for one group. An error while it is open fails that group only and is the result's refusal."""
    try:
        with session.ledger.statement(result.group) as statement:
            yield statement
    except PluginError as error:
        session.held_up += error.late
        _fail_attempt(session, result, Refusal(str(error), error.plugin, failed=True))
        if isinstance(error, ClassSplitError):  # the engine attempts the group again
            session.outcomes.pop(result.group, None)
    except Exception as error:  # noqa: BLE001 (report a bug that one group triggers, and attempt the others)
        session.errors.append(error)
        _fail_attempt(session, result, Refusal(f"the scheduler failed: {type(error).__name__}: {error}", failed=True))


def _fail_attempt(session: Session, result: PlacementResult, refusal: Refusal) -> None:
    """Reset the state that the undone statement leaves stale, and set the result's refusal."""
    session.evaluator.forget_boards()
    session.ledger.spare_victims()
    for task, node in result.nominated_before.items():  # the nominations decided since are never written
        session.ledger.nominate(task, node)
    result.nominated.clear()
    result.placed.clear()
    result.reasons.clear()
    result.refusal = refusal


# ------------------------------------------------------------------ for the actions that revisit rejected groups


def revisit(
    session: Session, wanted: Callable[[PlacementResult], bool], find_victims: FindVictims
) -> Iterator[Decision | None]:
    """Find victims for each rejected group whose result is `wanted`, in order. Yields the decisions to evict."""
    refused = [group for group, result in session.outcomes.items() if result.refused and wanted(result)]
    for group in revisited(session, refused):
        yield None if group is None else _revisit_group(session, group, session.outcomes[group], find_victims)


def revisited(session: Session, groups: Collection[Group]) -> Iterator[Group | None]:
    """Yield rejected groups in the order of `ordered`. Those that the action does not reach stay in `not_revisited`."""
    session.not_revisited.update(groups)
    for group in ordered(session, groups):
        if group is not None:
            session.not_revisited[group] -= 1
        yield group


def waits_for_nodes(session: Session, result: PlacementResult) -> bool:
    """Whether the group fits on no nodes and waits for no victims. It may have a reservation for a later start."""
    if not result.refused or not result.tried or result.over_capacity:
        return False
    known, starts = session.nominations, session.nominations.starts
    return not any(known.node_of(task) and task not in starts for task in result.tried)


def _revisit_group(
    session: Session, group: Group, result: PlacementResult, find_victims: FindVictims
) -> Decision | None:
    with attempt_statement(session, result) as statement:
        before = dict(result.nominated)
        preemptions = find_victims(session, group, result)
        if preemptions or result.nominated != before:
            new = {task: node for task, node in result.nominated.items() if before.get(task) != node}
            pending = {task: node for task, node in new.items() if task.phase is Phase.PENDING}
            return statement.commit(preemptions=preemptions, nominated=pending)
    return None
