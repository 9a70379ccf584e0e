"""Who may end for a queue that has less than its share: what `Proportion` says of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from session_scheduler.model.queue_shares import QueueShares, may_reclaim, reclaimable
from session_scheduler.model.queues import PODS, Amounts

if TYPE_CHECKING:
    from session_scheduler.callbacks import Scenario
    from session_scheduler.model.groups import Group, Task
    from session_scheduler.state.queue_use import QueueUse


class Reclaiming:
    """The answers of one session."""

    def __init__(self, use: QueueUse, shares: QueueShares) -> None:
        self._use = use
        self._shares = shares

    def may_end(self, group: Group, victim: Group) -> bool:
        """Whether a group's pods could end for another queue's at all: `why_not` judges how many."""
        tree = self._use.tree
        usable = tree.usable(group.queue) and tree.usable(victim.queue)
        return usable and group.queue != victim.queue and victim.preemptible

    def why_not(self, scenario: Scenario) -> str | None:
        """Why all of this must not be done; None where it may.

        It is judged as if the victims ran and the tasks waited, whatever is tried out just now.
        """
        queue, tree = scenario.group.queue, self._use.tree
        if tree.why_not(queue) is not None:
            return tree.why_not(queue)
        needs = _amounts(scenario.nominated)
        victims: dict[str, list[Amounts]] = {}
        for task in scenario.victims:
            if not tree.usable(task.group.queue):
                return f"{task.key} is in no queue"
            victims.setdefault(task.group.queue, []).append(_amounts((task,)))
        shares, preemptible = self._as_it_was(scenario), scenario.group.preemptible
        return may_reclaim(shares, queue, needs, preemptible=preemptible) or reclaimable(
            shares, queue, needs, victims, preemptible=preemptible
        )

    def _as_it_was(self, scenario: Scenario) -> QueueShares:
        gone = [task for task in scenario.victims if task.node is None]
        there = [task for task in scenario.nominated if task.node is not None]
        if not gone and not there:
            return self._shares
        return self._shares.with_more([(task.group.queue, _amounts((task,)), 1) for task in gone]
                                      + [(task.group.queue, _amounts((task,)), -1) for task in there])  # fmt: skip


def _amounts(tasks: Iterable[Task]) -> Amounts:
    """What tasks request together, and their number."""
    found: Amounts = {}
    for task in tasks:
        for name, amount in {**task.cls.requests, PODS: 1}.items():
            found[name] = found.get(name, 0) + amount
    return found
