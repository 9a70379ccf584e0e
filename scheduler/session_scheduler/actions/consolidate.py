"""The consolidate action: defragments the cluster by moving running pods, so that a rejected group fits.

It runs after the other actions, over the groups that they rejected. It moves pods only if the whole group fits then and
every moved pod fits on another node; `Moving` simulates both in the session. The scheduler evicts the moved pods, their
controllers recreate them, and the new pods go to the nodes found. Moves for one group complete before those for the
next begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from session_scheduler.actions.allocate import attempt_statement, revisited, waits_for_nodes
from session_scheduler.actions.moving import Moving, moves_together
from session_scheduler.actions.node_sets import NotFitting, node_sets
from session_scheduler.actions.placing import required_first
from session_scheduler.framework.answers import Preemption
from session_scheduler.framework.callbacks import Scenario
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import Decision, PlacementResult
from session_scheduler.model.columns import BoolColumn
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.units import Unit, importance
from session_scheduler.model.volumes import has_ephemeral_claims
from session_scheduler.state.budgets import Budgets
from session_scheduler.state.moves import controller_of

ELSEWHERE: Final = "cluster"
_MOST_SETS: Final = 8
"""How many of the node sets that plugins offer a group are tried."""
_MOST_NAMED: Final = 5
"""How many moved pods a message names."""


def consolidate(session: Session) -> Iterator[Decision | None]:
    """Visit the rejected groups in order until one gets moves. Yields that decision, and None for the others."""
    refused = [group for group, result in session.outcomes.items() if waits_for_nodes(session, result)]
    if not refused:
        return
    moves, consolidation = session.snapshot.cache.moves, _Consolidation(session)
    for group in revisited(session, refused):
        if group is not None and moves.in_flight(session.now):
            moves.hold_up(group.key)
        else:
            yield None if group is None else consolidation.decide(group, session.outcomes[group])


class _Consolidation:
    """The consolidation of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._budgets = session.snapshot.cache.budgets.now()
        self._hopeless: set[tuple[Any, ...]] = set()
        """The kinds of single tasks for which no moves help in this session."""

    def decide(self, group: Group, result: PlacementResult) -> Decision | None:
        """The decision to move pods for a group; None if no moves make it fit."""
        session = self._session
        with attempt_statement(session, result) as statement:
            preemption = self._find_moves(group, result)
            if preemption is not None:
                self._apply(result, preemption)
                return statement.commit(preemptions=[preemption], nominated=preemption.nominated)
        return None

    def _apply(self, result: PlacementResult, preemption: Preemption) -> None:
        session = self._session
        for task, node in preemption.nominated.items():
            result.nominated_before.setdefault(task, "")
            session.ledger.nominate(task, node)
            result.nominated[task] = node
            result.reasons[task] = f"{result.reasons[task].removesuffix('.')}. {_moves_as_text(preemption)}"
        for task, node in preemption.moves.items():
            session.snapshot.cache.moves.decided(task, node, session.now)
            session.ledger.touched.append(task.row)  # it changes the ranking of nodes

    def _find_moves(self, group: Group, result: PlacementResult) -> Preemption | None:
        session = self._session
        tasks = [task for task in result.tried if task.phase is Phase.PENDING and task in result.reasons]
        if any(task.pod.spec.preemption_policy == "Never" for task in tasks):
            return None
        if group.topology_key is not None and not session.options.moves_gangs:
            return None
        if group.needed > 1 or group.lacks:
            return self._moves_for(group, required_first(session, group, tasks), group.needed)
        found = (self._moves_for(group, [task], 1) for task in tasks)
        return next((one for one in found if one is not None), None)

    def _moves_for(self, group: Group, tasks: Sequence[Task], needed: int) -> Preemption | None:
        """The moves that make `needed` of these tasks fit; None if there are none. Raises PluginError."""
        session, alone = self._session, len(tasks) == 1
        first, own = tasks[0], session.nominated.left_out(tasks[0])
        key = (first.cls, first.preemptor_priority, own, group.queue, group.preemptible)
        if len(tasks) < needed or (alone and key in self._hopeless):
            return None
        if session.runner.limits_capacity and session.runner.over_capacity(group, tasks[:needed]):
            return None
        for subset in self._subsets(group):
            for aside in (False, True) if needed > 1 else (False,):
                preemption = self._in_subset(group, tasks, needed, subset, aside=aside)
                if preemption is not None:
                    return preemption
        if alone and (session.registered.preempts_alike or not session.runner.limits_preemption):
            self._hopeless.add(key)
        return None

    def _subsets(self, group: Group) -> Sequence[BoolColumn | None]:
        if not self._session.runner.divides_nodes and group.topology_key is None:
            return (None,)
        try:
            sets = node_sets(self._session, group)
        except NotFitting:
            return ()
        return (None,) if sets is None else [one.mask for one in sets[:_MOST_SETS]]

    def _in_subset(
        self, group: Group, tasks: Sequence[Task], needed: int, subset: BoolColumn | None, *, aside: bool
    ) -> Preemption | None:
        session = self._session
        movable = _Movable(session, group, tasks, self._budgets)
        with Moving(session, group, subset, movable.on, aside=aside) as moving:
            if not moving.seat_all(tasks, needed) or not moving.moves:
                return None
            seats = {task: session.ledger.node_at(row) for task, row in moving.seats.items()}
            moves = {task: session.ledger.node_at(row) for task, row in moving.moves.items()}
        if self._budgets.split(_units(moves))[0]:
            return None
        if session.runner.preempt_refusal(Scenario(group, seats, tuple(moves), moves=True)) is not None:
            return None
        self._budgets.use(moves)
        return Preemption(seats, tuple(moves), ELSEWHERE, moves)


def _moves_as_text(preemption: Preemption) -> str:
    """The moves that the tasks wait for."""
    names = sorted(task.key for task in preemption.moves)
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"consolidation: these pods move to other nodes to make room: {', '.join(names[:_MOST_NAMED])}{more}."


def _units(tasks: Iterable[Task]) -> list[Unit]:
    return [Unit((task,), task.standing) for task in tasks]


class _Movable:
    """The running tasks that may move for some tasks of a group."""

    def __init__(self, session: Session, group: Group, tasks: Sequence[Task], budgets: Budgets) -> None:
        self._session = session
        self._group = group
        self._priority = min(task.preemptor_priority for task in tasks)
        self._profile = tasks[0].pod.spec.scheduler_name
        self._budgets = budgets
        self._on: dict[str, Sequence[Task]] = {}
        self._gangs: dict[Group, bool] = {}
        """By group that moves only as a whole: whether all its tasks are movable."""

    def on(self, node: str) -> Sequence[Task]:
        """The movable tasks on a node, the most important first. Raises PluginError."""
        if node not in self._on:
            tasks = [task for task in self._session.snapshot.cache.tasks_on(node) if self._is_movable(task)]
            if self._session.runner.limits_preemption:
                tasks = self._session.runner.preemptable(self._group, tasks)
            self._on[node] = [task for unit in sorted(_units(tasks), key=importance) for task in unit.tasks]
        return [task for task in self._on[node] if task.phase is Phase.BOUND and task.node == node]

    def _is_movable(self, task: Task) -> bool:
        """Whether a controller recreates the pod with the same needs, and the group has at least its priority.

        Groups that run together move only together, if the options allow that.
        """
        group = task.group
        if not moves_together(group):
            return self._is_movable_alone(task)
        if group not in self._gangs:
            tasks = [one for one in group.tasks.values() if one.node is not None]
            movable = self._session.options.moves_gangs and group.whole and all(map(self._is_movable_alone, tasks))
            self._gangs[group] = movable and not self._budgets.split(_units(tasks))[0]
        return self._gangs[group]

    def _is_movable_alone(self, task: Task) -> bool:
        session, group, pod = self._session, task.group, task.pod
        return (
            task.phase is Phase.BOUND
            and controller_of(pod) is not None
            and pod.spec.scheduler_name == self._profile
            and task.standing <= self._priority
            and group is not self._group
            and group.preemptible
            and not session.ledger.is_ending(task)
            and not pod.spec.resource_claims
            and not has_ephemeral_claims(pod)
            and not session.snapshot.cache.moves.rests(task, session.now, session.options.rest_seconds)
            and not self._budgets.split(_units((task,)))[0]
            and session.evaluator.evaluation(task.cls).refusal is None
        )
