"""Invariants of the scheduler's state between cycles, recomputed from scratch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from types import MappingProxyType

from session_scheduler.engine.explain import NOT_TRIED, reason_of
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.model.devices import CLASS_PREFIX, DeviceClass
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.objects import Pod
from session_scheduler.model.sub_groups import as_text
from session_scheduler.model.units import units_in_order
from session_scheduler.state.lowest_priorities import ABOVE_ALL

_ENDED = ("Succeeded", "Failed")

Given = Mapping[Hashable, int]
"""Violations that the scheduler did not cause: the use of an overcommitted node by (node, resource), and the number of
running pods of an incomplete gang by its key."""


class InvariantError(AssertionError):
    """The scheduler's state violates an invariant."""


def check_invariants(scheduler: Scheduler, given: Given = MappingProxyType({})) -> None:
    """Raise InvariantError with all violations. Call it between cycles.

    No node is overcommitted; no gang runs below its minCount; no group with a topology constraint runs in several
    domains; the usage of each node is the sum of its tasks; no task is assumed. The violations of `given` (see
    `given_now`) may remain, but not grow.
    """
    problems = [*_usage(scheduler, given), *_gangs(scheduler, given)]
    if problems:
        raise InvariantError("\n".join(problems))


def given_now(scheduler: Scheduler) -> dict[Hashable, int]:
    """The overcommitted nodes and incomplete gangs before a cycle, which it did not cause."""
    groups = scheduler.cache.groups.values()
    found: dict[Hashable, int] = {group.key: _running(group) for group in groups if _is_incomplete(group)}
    view = scheduler.cache.table.all_rows()
    for resource in scheduler.cache.table.resources.names:
        used = view.used(resource)
        over = used > view.allocatable(resource)
        if over.any():
            rows = scheduler.cache.table.row_of.items()
            found.update(((name, resource), int(used[row])) for name, row in rows if over[row])
    return found


def check_at_rest(scheduler: Scheduler, pods: Iterable[Pod], given: Given) -> Iterator[str]:
    """All violations of the invariants of `check_invariants`, and of those that hold once every event is delivered.

    The scheduler has each pod on its node in the cluster (`pods`); every pending pod that was tried has a reason.
    """
    yield from _usage(scheduler, given)
    yield from _gangs(scheduler, given)
    yield from _reasons(scheduler)
    yield from _agreement(scheduler, pods)


def _usage(scheduler: Scheduler, given: Given) -> Iterator[str]:
    cache = scheduler.cache
    classes = cache.objects.of(DeviceClass)
    elsewhere = {one.spec.extended_resource_name for one in classes.values()} | {
        CLASS_PREFIX + name for name in classes
    }
    """Resources that DRA devices provide, so nodes need not offer them."""
    on_row: dict[int, list[Task]] = {}
    for task in cache.tasks.values():
        if task.row >= 0:
            on_row.setdefault(task.row, []).append(task)
            if task.node is None or cache.table.row_of.get(task.node) != task.row:
                yield f"{task!r} is counted on row {task.row}, expected its node's row"
        if task.phase is Phase.ASSUMED:
            yield f"{task!r} is assumed between cycles"
    view, lowest = cache.table.all_rows(), cache.lowest_priorities.column()
    for name, row in sorted(cache.table.row_of.items()):
        tasks = on_row.get(row, [])
        priority = min((task.preemptor_priority for task in tasks), default=ABOVE_ALL)
        if lowest[row] != priority:
            yield f"node {name}: expected the lowest priority {priority}, got {lowest[row]}"
        single = all(task.group.single for task in tasks)
        expected_order = [one.importance for one in units_in_order(tasks)] if single else None
        units = cache.single_pods.on(row)
        order = None if units is None else [unit.importance for unit in units]
        if order != expected_order:
            yield f"node {name}: expected its single pods in the order {expected_order}, got {order}"
        expected = Counter({"pods": len(tasks)})
        counters: Counter[Hashable] = Counter()
        for task in tasks:
            expected.update(task.cls.requests)
            counters.update(task.cls.footprint)
        for resource in cache.table.resources.names:
            used, offered = int(view.used(resource)[row]), int(view.allocatable(resource)[row])
            if used != expected[resource]:
                yield f"node {name}: {resource}: expected {expected[resource]} used by its tasks, got {used}"
            if used > max(offered, given.get((name, resource), 0)) and (offered or resource not in elsewhere):
                yield f"node {name}: {resource}: {used} used, more than the {offered} allocatable"
        for key, count in counters.items():
            if int(view.counter(key)[row]) != count:
                yield f"node {name}: counter {key!r}: expected {count}, got {int(view.counter(key)[row])}"
        kinds = Counter(map(_kind, tasks))
        counted = {(namespace, labels, ending): n for namespace, labels, ending, n in cache.table.pods.of_row(row)}
        if counted != kinds:
            yield f"node {name}: pods by label: expected {dict(kinds)}, got {counted}"
        for index, resource in enumerate(("cpu", "memory")):
            scored = sum((task.cls.nonzero_cpu, task.cls.nonzero_memory)[index] for task in tasks)
            if int(view.nonzero_used(resource)[row]) != scored:
                got = int(view.nonzero_used(resource)[row])
                yield f"node {name}: {resource} for scores: expected {scored}, got {got}"


def _kind(task: Task) -> tuple[str, tuple[tuple[str, str], ...], bool]:
    metadata = task.pod.metadata
    return metadata.namespace, tuple(sorted(metadata.labels.items())), metadata.deletion_timestamp is not None


def _running(group: Group) -> int:
    return sum(task.node is not None for task in group.tasks.values())  # with those that are being preempted


def _is_incomplete(group: Group) -> bool:
    running = [task for task in group.tasks.values() if task.node is not None]
    return bool(running) and not group.suffice(running)


def _gangs(scheduler: Scheduler, given: Given) -> Iterator[str]:
    for group in scheduler.cache.groups.values():
        if _is_incomplete(group) and group.key not in given:
            lacks = as_text(group.short_of(task for task in group.tasks.values() if task.node is not None))
            without = f", without {lacks}" if lacks else ""
            yield f"gang {group.key} runs with {_running(group)} of at least {group.min_count} pods{without}"
        if group.topology_key is not None:
            nodes = [scheduler.cache.table.nodes[task.row] for task in group.tasks.values() if task.row >= 0]
            domains = {node.metadata.labels.get(group.topology_key) for node in nodes if node is not None}
            if len(domains) > 1:
                yield f"group {group.key} runs in several domains of {group.topology_key}: {domains}"


def _reasons(scheduler: Scheduler) -> Iterator[str]:
    now = scheduler.clock.now()
    for task in sorted(scheduler.cache.tasks.values(), key=lambda task: task.key):
        group = task.group.key
        waits = task.phase in (Phase.PENDING, Phase.GATED)
        if not waits or scheduler.queue.is_active(group, now) or scheduler.unknown_binds.is_busy(group):
            continue
        outcome = scheduler.outcomes.get(group)
        reason = reason_of(scheduler, task)
        if not reason.strip() or (reason == NOT_TRIED and (outcome is None or task in outcome.tried)):
            yield f"pod {task.key} is pending without a reason"


def _agreement(scheduler: Scheduler, pods: Iterable[Pod]) -> Iterator[str]:
    for pod in pods:
        task = scheduler.cache.tasks.get(pod.metadata.uid)
        node = pod.spec.node_name or None
        if task is not None:
            if task.node != node and not scheduler.unknown_binds.is_busy(task.group.key):
                ours = task.node or "no node"
                yield f"pod {pod.key} is on {node or 'no node'} in the cluster, and on {ours} in the scheduler"
        elif _is_ours(pod, scheduler) and f"Pod {pod.key}" not in scheduler.cache.problems:
            yield f"pod {pod.key} is in the cluster, but not in the scheduler"


def _is_ours(pod: Pod, scheduler: Scheduler) -> bool:
    return pod.spec.scheduler_name in scheduler.profiles and pod.status.phase not in _ENDED
