"""`fluence queues`: reports the allocated, pending and deserved resources of queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.model.queues import QueueSpec, QueueTree, shown_amounts


def queue_report(scheduler: Scheduler) -> dict[str, Any]:
    """The JSON of `fluence queues`, {"queues": […]}: parents before children, then queues that only pods name.

    The scheduler is started; no session is open.
    """
    use = scheduler.cache.queues
    use.start()
    use.reconcile()
    for calls in scheduler.profiles.values():
        scheduler.sessions.refresh_offered(calls)
    shares = use.shares(scheduler.cache.table)
    shown = [_shown(scheduler, name, depth, shares.fair.get(name, {})) for name, depth in _ordered(use.tree)]
    return {"queues": [*shown, *(_shown(scheduler, name, 0, {}) for name in use.deleted())]}


def _ordered(tree: QueueTree, parent: str = "", depth: int = 0) -> Iterator[tuple[str, int]]:
    for name in tree.children.get(parent, ()):
        yield name, depth
        yield from _ordered(tree, name, depth + 1)
    if not parent:
        yield from ((name, 0) for name in tree if not tree.usable(name))


def _shown(scheduler: Scheduler, name: str, depth: int, fair: dict[str, int]) -> dict[str, Any]:
    use = scheduler.cache.queues
    spec, counts = use.tree.specs.get(name, QueueSpec(name)), use.counts(name)
    problem = use.tree.problem(name) if name in use.tree.specs else QueueTree.missing(name)
    return {
        "name": name,
        "parent": spec.parent or None,
        "depth": depth,
        "priority": spec.priority,
        "overQuotaWeight": spec.weight,
        "deserved": shown_amounts(spec.deserved),
        "limit": shown_amounts(spec.limit),
        "fairShare": shown_amounts(fair),
        "allocated": shown_amounts(counts.allocated),
        "pending": shown_amounts(counts.pending),
        "ready": problem is None,
        "reason": problem.message if problem is not None else None,
    }
