"""The allocate action: places every group that is due, in order, all or nothing.

Queues in queue order, in each its groups in job order; queues' keys are read again whenever something was placed or
taken off since, because that may move them (fair shares). The engine runs it in each cycle; `placing` does the rest.
The actions that go over what it refused share its order and its statements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from session_scheduler.actions.placing import place_group
from session_scheduler.actions.postfilter import preempt
from session_scheduler.actions.reserving import reserve
from session_scheduler.framework.answers import Preemption
from session_scheduler.framework.hooks import PluginError
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import Decision, PlacementResult, Statement
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.refusals import Refusal

_Waiting = list[tuple[tuple[Any, ...], Group]]
"""A queue's groups with their keys, the first in order last."""
Ask = Callable[[Session, Group, PlacementResult], list[Preemption]]
"""Finds which pods may end for what of a group was refused, and nominates; the result says what came of it."""


def allocate(session: Session) -> Iterator[Decision | None]:
    """Try group after group. Yields a decision where something was placed, else None; `session.outcomes` has why not.

    Here as in all actions the engine goes on after each group, unless the cycle's time is over.
    """
    for group in ordered(session):
        yield None if group is None else try_group(session, group)


def ordered(session: Session, groups: Iterable[Group] | None = None) -> Iterator[Group | None]:
    """These groups, or all that are due, in the order in which they are to be tried.

    A group whose key cannot be had is failed and left out.

    None, for a pause, where a plugin was waited for in vain.
    """
    queues: dict[str, _Waiting] = {}
    for group in session.snapshot.due if groups is None else groups:
        try:
            key = session.runner.group_key(group)
        except PluginError as error:
            _fail(session, [group], error)
            if error.late:
                yield None
            continue
        queues.setdefault(group.queue, []).append((key, group))
    for queue, waiting in list(queues.items()):
        try:
            waiting.sort(key=lambda entry: entry[0], reverse=True)
        except PluginError as error:  # keys that do not compare: nothing says which of them is wrong
            _fail(session, [group for _, group in queues.pop(queue)], error)
    first, seen = None, -1
    while queues:
        if first not in queues or seen != len(session.ledger.touched):
            first, seen = _first_queue(session, queues), len(session.ledger.touched)
        if first is not None:
            yield queues[first].pop()[1]
            if not queues[first]:
                del queues[first]


def _first_queue(session: Session, queues: dict[str, _Waiting]) -> str | None:
    """The queue whose turn it is. Those whose key cannot be had are failed and taken out; None where that is all."""
    if len(queues) == 1:
        return next(iter(queues))
    keys: dict[str, tuple[Any, ...]] = {}
    for queue in list(queues):
        try:
            keys[queue] = session.runner.queue_key(queue)
        except PluginError as error:
            _fail(session, [group for _, group in queues.pop(queue)], error)
    try:
        return min(keys, key=keys.__getitem__, default=None)
    except PluginError as error:
        _fail(session, [group for waiting in queues.values() for _, group in waiting], error)
        queues.clear()
        return None


def _fail(session: Session, groups: Iterable[Group], error: PluginError) -> None:
    session.held_up += error.late
    for group in groups:
        session.outcomes[group] = PlacementResult(group, refusal=Refusal(str(error), error.plugin, failed=True))


def try_group(session: Session, group: Group) -> Decision | None:
    """Place what can be placed of a group; a plugin that fails fails this group only, and so does an unexpected error.

    Such an error is added to `session.errors`.
    """
    result = session.outcomes[group] = PlacementResult(group)
    with trying(session, result) as statement:
        place_group(session, statement, group, result)
        preemptions = [] if result.scheduled else _helped(session, group, result)
        nominated = _new_nominations(result) if result.nominated else {}
        if result.placed or preemptions or nominated:
            return statement.commit(session.runner.bind_annotations(result.placed), preemptions, nominated)
    for task in group.in_phase(Phase.PENDING):
        result.reasons.setdefault(task, result.refusal.reason if result.refusal else "not tried")
    return None


def _new_nominations(result: PlacementResult) -> dict[Task, str]:
    """Those that the pods' status does not name already."""
    before = result.nominated_before
    return {
        task: node
        for task, node in result.nominated.items()
        if node != before[task] or node != task.pod.status.nominated_node_name
    }


def _helped(session: Session, group: Group, result: PlacementResult) -> list[Preemption]:
    """What is done at once for a group of which something was refused."""
    options = session.options
    preemptions = preempt(session, group, result) if options.preempts_at_once or not options.preempts else []
    if options.reservations and not preemptions:
        reserve(session, group, result)
    return preemptions


@contextmanager
def trying(session: Session, result: PlacementResult) -> Iterator[Statement]:
    """A statement for a group. What fails while it is open fails that group only, and its result says so."""
    try:
        with session.ledger.statement(result.group) as statement:
            yield statement
    except PluginError as error:
        session.held_up += error.late
        _give_up(session, result, Refusal(str(error), error.plugin, failed=True))
    except Exception as error:  # noqa: BLE001 (a bug that one group meets is reported, and the others are tried)
        session.errors.append(error)
        _give_up(session, result, Refusal(f"the scheduler failed: {type(error).__name__}: {error}", failed=True))


def _give_up(session: Session, result: PlacementResult, refusal: Refusal) -> None:
    """The statement was undone: what was found out on the way holds no more."""
    session.evaluator.forget_boards()
    session.ledger.to_end.clear()
    for task, node in result.nominated_before.items():  # nothing is written of what was decided since
        session.ledger.nominate(task, node)
    result.nominated.clear()
    result.placed.clear()
    result.reasons.clear()
    result.refusal = refusal


# ------------------------------------------------------------------ for the actions that go over what was refused


def ask_in_order(session: Session, wanted: Callable[[PlacementResult], bool], ask: Ask) -> Iterator[Decision | None]:
    """Ask for each refused group whose result is `wanted`, in order. Yields a decision where pods are to end."""
    refused = [group for group, result in session.outcomes.items() if result.refused and wanted(result)]
    for group in ordered(session, refused):
        yield None if group is None else _asked(session, group, session.outcomes[group], ask)


def waits_for_nodes(session: Session, result: PlacementResult) -> bool:
    """Whether nodes were looked for in vain, and no pod ends for it already; nodes may be kept for it for later."""
    if not result.refused or not result.tried or result.over_capacity:
        return False
    known, starts = session.nominations, session.nominations.starts
    return not any(known.node_of(task) and task not in starts for task in result.tried)


def _asked(session: Session, group: Group, result: PlacementResult, ask: Ask) -> Decision | None:
    with trying(session, result) as statement:
        before = dict(result.nominated)
        preemptions = ask(session, group, result)
        if preemptions or result.nominated != before:
            new = {task: node for task, node in result.nominated.items() if before.get(task) != node}
            pending = {task: node for task, node in new.items() if task.phase is Phase.PENDING}
            return statement.commit(preemptions=preemptions, nominated=pending)
    return None
