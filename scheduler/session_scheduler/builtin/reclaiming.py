"""Reclaiming: Proportion's callbacks for the reclaim action. They decide which pods of other queues a group may evict.

It compares queues as if all earlier decisions were complete: evicted pods no longer count, and nominated pods already
do. So all decisions together, including earlier ones whose victims are still terminating, evict no more than needed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from session_scheduler.framework.callbacks import Scenario
from session_scheduler.framework.session import Session
from session_scheduler.framework.victims import keeps_minimum, units_among
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.queue_shares import Change, QueueShares
from session_scheduler.model.queues import PODS, Amounts, add_each
from session_scheduler.model.reclaim_rules import BELOW_FAIR_SHARE, BELOW_SHARE, ELSEWHERE, Reclaim, UnitAmounts
from session_scheduler.state.queue_use import QueueUse

_Kind = tuple[str, Hashable]
"""The queue and the amounts of a running task."""
_ANY: Final = 2**62
"""The most that victims on a node can free of a resource that no node advertises."""


class _Case:
    """What a group, or all groups that ask the same, may reclaim in one state of the session."""

    __slots__ = ("anywhere", "bounds", "limiting", "needs", "objections", "reclaimable", "refusal", "rules")

    def __init__(self, needs: Amounts) -> None:
        self.needs = needs
        self.rules: Reclaim
        self.refusal: str | None = None
        """Why the group may reclaim nothing."""
        self.limiting = ""
        """The lowest queue on the group's path whose limit the group exceeds: only victims in that queue help."""
        self.anywhere = False
        """Whether victims may be on all nodes, including those that are already evicted."""
        self.reclaimable: dict[_Kind, bool] = {}
        """By kind: whether the group may evict such pods."""
        self.objections: dict[object, str | None] = {}
        """By the amounts of victims and of needs: the answers of the rules."""
        self.bounds: dict[object, str | None] = {}
        """By the kinds of victims and of nominated tasks: which bound they exceed."""


class Reclaiming:
    """The reclaim callbacks of one session."""

    def __init__(self, session: Session, shares: QueueShares, *, larger_victims: bool = True) -> None:
        """`shares`: as of the session's opening. Placements change what queues have, not their fair shares.

        `larger_victims`: whether a queue that deserves its needs may evict more than others have beyond their shares.
        """
        self._session = session
        self._shares = self._as_decided = shares
        self._larger_victims = larger_victims
        self._state: tuple[object, ...] = ()
        """The state for which `_as_decided` and the cases were computed."""
        self._cases: dict[tuple[object, ...], _Case] = {}
        """By what is asked."""
        self._last: tuple[object, _Case] | None = None
        """The last answer of `_case`, with what it was asked for."""
        self._gangs: bool | None = None
        """Whether groups of pods run; None until that is needed."""
        self._largest: Amounts = {}
        self._kinds: dict[_Kind, Amounts] = {}
        """The amounts of the running pods when the session began; only these pods are reclaimable."""

    def refusal(self, group: Group) -> str | None:
        """Why a group may reclaim nothing, whatever the victims; None if it may."""
        return self._case(group).refusal

    def alike(self, group: Group) -> Hashable:
        """What the answers of `is_reclaimable` and `together` depend on besides the group's queue, whether it is
        preemptible, its class, and the victims' queues and classes.
        """
        case = self._case(group)
        if case.anywhere or len(case.reclaimable) > len(self._kinds):
            return self._asked(group), self._state
        return frozenset(kind for kind, answer in case.reclaimable.items() if answer)

    def is_reclaimable(self, group: Group, victim: Group) -> bool:
        """Whether the group may evict tasks of the victim."""
        case = self._case(group)
        if case.refusal is not None or group.queue == victim.queue or not victim.preemptible:
            return False
        running = _running(victim)
        if not all(map(self._session.queues.concerns, running)):
            return False
        if case.anywhere and all(map(self._session.leaves, running)):
            return True
        may_evict = partial(self._may_evict, case)
        return (any if keeps_minimum(victim) else all)(map(may_evict, running))

    def queues(self, group: Group) -> set[str] | None:
        """The only queues from which the group may reclaim; None if victims may be in any queue."""
        case = self._case(group)
        return None if case.anywhere else {queue for (queue, _), answer in case.reclaimable.items() if answer}

    def together(self, group: Group, units: Sequence[Sequence[Task]]) -> list[int | None]:
        """For each unit of victims its damage in addition to the others, or None if it must not be one of them."""
        return self._case(group).rules.choose([self._unit_amounts(unit) for unit in units])

    def objection(self, scenario: Scenario) -> str | None:
        """Why the scenario would give queues the wrong shares; None if it would not.

        It evaluates the scenario from a state with the victims running and the tasks pending, whatever the trial does.
        """
        group, session = scenario.group, self._session
        case, shares = self._case(group), self._as_decided
        staying = [task for task in scenario.victims if not session.leaves(task)]
        units = [self._unit_amounts(unit) for unit in units_among(staying)]
        why = shares.tree.why_not(group.queue)
        if why is None and not all(shares.tree.usable(queue) for queue, _ in units):
            why = "pods outside the queues are not reclaimed"
        if why is not None:
            return why
        needs = needs_of(session.queues, scenario.nominated)
        key = (tuple((queue, tuple(amounts.items())) for queue, amounts in units), tuple(needs.items()))
        if key not in case.objections:
            rules = case.rules if needs == case.needs else self._rules(group, needs)
            case.objections[key] = rules.objection(units)
        return case.objections[key]

    def exceeded_bound(self, scenario: Scenario) -> str | None:
        """Why the tasks would exceed a bound of their queue after all evictions and nominations are complete.

        Without this check several preemptors of one session would each stay within the bound on their own. Preemptible
        tasks that add to what their queue has must leave it within its share: otherwise reclaim could evict them again.
        """
        group, session = scenario.group, self._session
        if not self._shares.tree.usable(group.queue):
            return None
        case = self._case(group)
        gone = () if scenario.moves else scenario.victims
        victims = [task for task in gone if not session.leaves(task) and session.queues.concerns(task)]
        counted = list(filter(session.nominations.comes_next, scenario.nominated))
        kinds = tuple((task.group.queue, task.cls, session.queues.by_model(task), task.group.preemptible)
                      for task in victims)  # fmt: skip
        key = kinds, tuple(task.cls for task in counted), tuple(task.cls for task in scenario.nominated)
        if key not in case.bounds:
            needs = needs_of(session.queues, scenario.nominated)
            case.bounds[key] = self._exceeded_bound(group, victims, counted, needs)
        return case.bounds[key]

    # ------------------------------------------------------------------ inside

    def _exceeded_bound(
        self, group: Group, victims: Sequence[Task], counted: Sequence[Task], needs: Amounts
    ) -> str | None:
        """As `exceeded_bound`; `counted` are the nominated tasks that their queue already has."""
        changes = [*self._changes(victims, -1), *self._changes(counted, -1)]
        shares = self._after(changes, self._as_decided)
        for name in shares.tree.path(group.queue):
            if _over_limit(shares, name, needs) or (not group.preemptible and _over_deserved(shares, name, needs)):
                return f"queue {name!r} reserves the rest of its quota for nominated pods"
        freed = freed_by(self._session.queues, victims)
        if not group.preemptible or all(freed.get(resource, 0) >= amount for resource, amount in needs.items()):
            return None
        return Reclaim(shares, group.queue, needs, preemptible=True).excess

    def _may_evict(self, case: _Case, task: Task) -> bool:
        """Whether the group may evict a task."""
        queues = self._session.queues
        devices = queues.devices_of(task)
        kind = task.group.queue, _usage(queues, task.cls, devices)
        if kind not in case.reclaimable:
            amounts = _freed(queues, task.cls, devices)
            case.reclaimable[kind] = self._may_evict_one(case, task.group.queue, amounts)
        return case.reclaimable[kind]

    def _may_evict_one(self, case: _Case, queue: str, amounts: Amounts) -> bool:
        """Whether the group may evict a pod with these amounts."""
        if case.refusal is not None or (case.limiting and case.limiting not in self._as_decided.tree.path(queue)):
            return False
        return case.rules.may_evict(queue, amounts)

    def _unit_amounts(self, unit: Iterable[Task]) -> UnitAmounts:
        """The queue and the amounts of a unit, without tasks that are already evicted."""
        tasks = list(unit)
        staying = [task for task in tasks if not self._session.leaves(task)]
        return tasks[0].group.queue, freed_by(self._session.queues, staying)

    def _rules(self, group: Group, needs: Amounts) -> Reclaim:
        return Reclaim(self._as_decided, group.queue, needs, preemptible=group.preemptible,
                       damage=self._session.reclaim_damage)  # fmt: skip

    def _asked(self, group: Group) -> tuple[object, ...]:
        """What is asked: single tasks of one class, queue and preemptibility ask the same."""
        asked, damage = self._session.asked_for, self._session.reclaim_damage
        return (group, damage) if asked is None else (asked.cls, group.queue, group.preemptible, damage)

    def _case(self, group: Group) -> _Case:
        """What a group may reclaim in the current state. The trial's own changes do not affect it."""
        session = self._session
        ledger = session.ledger
        state = ledger.committed, ledger.choices, bool(ledger.to_end), session.nominations.version
        if self._state != state or session.evaluator.naive:
            self._state = state
            self._cases, self._last = {}, None
        asked = group, session.asked_for, session.reclaim_damage
        if self._last is not None and self._last[0] == asked:
            return self._last[1]
        key = self._asked(group)
        case = self._cases.get(key)
        if case is None:
            if not self._cases:
                self._as_decided = self._after(self._simulated(), self._shares.as_decided())
            case = self._cases[key] = self._new_case(group)
        self._last = asked, case
        return case

    def _new_case(self, group: Group) -> _Case:
        session, asked = self._session, self._session.asked_for
        tasks = required_tasks(group, session.runner.task_key) if asked is None else [asked]
        case = _Case(needs_of(session.queues, tasks))
        if not self._kinds:
            for queue, cls, by_name in session.queues.kinds:
                devices = dict(by_name)
                self._kinds[queue, _usage(session.queues, cls, devices)] = _freed(session.queues, cls, devices)
        case.refusal = self._check(group, case)
        if case.refusal is None:
            case.reclaimable = {kind: kind[0] != group.queue and self._may_evict_one(case, kind[0], amounts)
                                for kind, amounts in self._kinds.items()}  # fmt: skip
        return case

    def _check(self, group: Group, case: _Case) -> str | None:
        """Why the group may reclaim nothing; else sets which queues it may reclaim from."""
        shares, needs = self._as_decided, case.needs
        why = shares.tree.why_not(group.queue)
        if why is not None:
            return why
        damage = self._session.reclaim_damage
        rules = case.rules = self._rules(group, needs)
        why = rules.refusal
        if why is None and damage == BELOW_FAIR_SHARE and len(shares.tree.children) == 1:
            why = "the queues have no child queues"
        larger = self._larger_victims and rules.deserves
        if why is None and damage == ELSEWHERE and (larger or rules.excess is None):
            why = "either no ancestor exceeds its share, or the search with larger victims covers this case"
        if why is None and damage == BELOW_SHARE and not larger:
            why = f"the deserved resources of queue {group.queue!r} do not cover the group's request"
        if why is None:
            path = shares.tree.path(group.queue)
            case.limiting = next((name for name in path if _over_limit(shares, name, needs)), "")
            case.anywhere = bool(case.limiting) or needs[PODS] > 1
            if rules.excess is not None and not case.anywhere and not self._runs_gangs():
                why = rules.exceeds_by_more(self._largest_node())
        return why

    def _runs_gangs(self) -> bool:
        """Whether victims may be on several nodes, as members of groups."""
        if self._gangs is None:
            groups = self._session.snapshot.cache.groups.values()
            self._gangs = any(not group.single and group.started for group in groups)
        return self._gangs

    def _largest_node(self) -> Amounts:
        """By resource: the most that a node offers."""
        if not self._largest:
            nodes = self._session.table.all_rows()
            for resource in {name for _, amounts in self._kinds.items() for name in amounts}:
                self._largest[resource] = int(nodes.allocatable(resource).max(initial=0)) or _ANY
        return self._largest

    def _simulated(self) -> list[Change]:
        """The changes from the decided state: tasks with a simulated removal, and victims chosen in this attempt."""
        session = self._session
        preempted = session.snapshot.cache.preempted
        victims = [task for uid, task in session.ledger.to_end.items() if uid not in preempted]
        removed = [task for task in session.ledger.away if not session.leaves(task)]
        gone = [task for task in victims if task not in session.ledger.away]
        return [*self._changes(filter(session.queues.concerns, gone), -1),
                *self._changes(filter(session.queues.concerns, removed), 1)]  # fmt: skip

    def _changes(self, tasks: Iterable[Task], sign: int) -> list[Change]:
        """The change of each task's queue if these tasks are removed (`sign` -1) or put back."""
        units: dict[tuple[str, bool], list[Task]] = {}
        for task in tasks:
            units.setdefault((task.group.queue, task.group.preemptible), []).append(task)
        return [Change(queue, freed_by(self._session.queues, unit), sign, not preemptible)
                for (queue, preemptible), unit in units.items()]  # fmt: skip

    def _after(self, changes: Iterable[Change], shares: QueueShares) -> QueueShares:
        return shares.with_more(one for one in changes if shares.tree.usable(one.queue))


def required_tasks(group: Group, order: Callable[[Task], Any]) -> list[Task]:
    """The group's next tasks that must be placed together, the first in this order. Raises what `order` raises."""
    pending = group.in_phase(Phase.PENDING)
    if len(pending) == 1:
        return pending
    lacks = group.lacks
    pending.sort(key=order)
    pending.sort(key=lambda task: task.sub_group not in lacks)
    return pending[: group.needed]


def _over_limit(shares: QueueShares, queue: str, needs: Mapping[str, int]) -> bool:
    return _is_beyond(shares.tree.specs[queue].limit, shares.has[queue].allocated, needs)


def _over_deserved(shares: QueueShares, queue: str, needs: Mapping[str, int]) -> str | None:
    over = _is_beyond(shares.tree.specs[queue].deserved, shares.has[queue].kept, needs)
    return f"queue {queue!r} has reached its deserved amount for non-preemptible pods" if over else None


def _is_beyond(most: Mapping[str, int], allocated: Mapping[str, int], needs: Mapping[str, int]) -> bool:
    return any(allocated.get(one, 0) + needs.get(one, 0) > most[one] for one in most if needs.get(one))


def _running(group: Group) -> list[Task]:
    return group.in_phase(Phase.BOUND, Phase.RELEASING)


def _usage(queues: QueueUse, cls: TaskClass, devices: Mapping[str, int]) -> Hashable:
    """Equal for tasks that count with equal amounts."""
    if not cls.claims and not devices and len(cls.queue_amounts) == len(cls.usage):
        return cls.usage
    return tuple(sorted(_freed(queues, cls, devices).items()))


def needs_of(queues: QueueUse, tasks: Iterable[Task]) -> Amounts:
    """What tasks of one group need together on any node, each claim once. Claims that its queue already has are not
    needed.
    """
    total: Amounts = {}
    claims: dict[str, None] = {}
    for task in tasks:
        add_each(total, task.cls.queue_amounts)
        add_each(total, queues.devices.certain(task.cls))
        for claim in task.cls.claims:
            if not queues.claims.counts_in(claim, task.group.queue, "allocated"):
                claims[claim] = None
    for claim in claims:
        add_each(total, queues.claims.amounts(claim))
    return total


def freed_by(queues: QueueUse, tasks: Iterable[Task]) -> Amounts:
    """What tasks free together if they end. A claim that other pods on nodes use stays allocated."""
    total: Amounts = {}
    users: dict[str, int] = {}
    for task in tasks:
        add_each(total, task.cls.queue_amounts)
        add_each(total, queues.devices_of(task))
        for claim in task.cls.claims:
            users[claim] = users.get(claim, 0) + (task.node is not None)
    for claim, count in users.items():
        if count == queues.claims.holders(claim):
            add_each(total, queues.claims.amounts(claim))
    return total


def _freed(queues: QueueUse, cls: TaskClass, devices: Mapping[str, int]) -> Amounts:
    """What one task of a class with these device resources frees if it ends."""
    total = {**cls.queue_amounts, **devices}
    for claim in cls.claims:
        if queues.claims.holders(claim) <= 1:
            add_each(total, queues.claims.amounts(claim))
    return total
