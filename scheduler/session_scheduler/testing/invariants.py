"""What holds between cycles, whatever the plugins and the cluster did: checked from scratch."""

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

_ENDED = ("Succeeded", "Failed")

Given = Mapping[Hashable, int]
"""What others brought about: what is used beyond what a node offers, by (node, resource), and how many pods run of a
gang of which too few do, by its key."""


class InvariantError(AssertionError):
    """The scheduler's state is not what it must be."""


def check_invariants(scheduler: Scheduler, given: Given = MappingProxyType({})) -> None:
    """Raise InvariantError, naming each violation; to be called between cycles.

    No node is used beyond what it offers; no gang runs with fewer than its minCount, and none with a topology
    constraint in several domains; the usage of each node is the sum over the tasks on it; nothing is left assumed.
    What was `given` before (see `given_now`) may stay, and may not grow.
    """
    problems = [*_usage(scheduler, given), *_gangs(scheduler, given)]
    if problems:
        raise InvariantError("\n".join(problems))


def given_now(scheduler: Scheduler) -> dict[Hashable, int]:
    """What there is of overcommitted nodes and of gangs in part, before a cycle: nothing of it is the cycle's work."""
    groups = scheduler.cache.groups.values()
    found: dict[Hashable, int] = {group.key: _running(group) for group in groups if _in_part(group)}
    view = scheduler.cache.table.all_rows()
    for resource in scheduler.cache.table.resources.names:
        used = view.used(resource)
        over = used > view.allocatable(resource)
        if over.any():
            rows = scheduler.cache.table.row_of.items()
            found.update(((name, resource), int(used[row])) for name, row in rows if over[row])
    return found


def check_at_rest(scheduler: Scheduler, pods: Iterable[Pod], given: Given) -> Iterator[str]:
    """Each violation of what `check_invariants` says, and of what holds where every event was delivered.

    The scheduler has each pod where the cluster (`pods`) has it; every pod that waits, and was tried, has a reason.
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
    """What nodes need not offer: it is had as devices."""
    on_row: dict[int, list[Task]] = {}
    for task in cache.tasks.values():
        if task.row >= 0:
            on_row.setdefault(task.row, []).append(task)
            if task.node is None or cache.table.row_of.get(task.node) != task.row:
                yield f"{task!r} counts on row {task.row}, which is not its node's"
        if task.phase is Phase.ASSUMED:
            yield f"{task!r} is assumed between cycles"
    view = cache.table.all_rows()
    for name, row in sorted(cache.table.row_of.items()):
        tasks = on_row.get(row, [])
        expected = Counter({"pods": len(tasks)})
        counters: Counter[Hashable] = Counter()
        for task in tasks:
            expected.update(task.cls.requests)
            counters.update(task.cls.footprint)
        for resource in cache.table.resources.names:
            used, offered = int(view.used(resource)[row]), int(view.allocatable(resource)[row])
            if used != expected[resource]:
                yield f"node {name}: {resource}: {used} are counted, its tasks request {expected[resource]}"
            if used > max(offered, given.get((name, resource), 0)) and (offered or resource not in elsewhere):
                yield f"node {name}: {resource}: {used} are used of {offered}"
        for key, count in counters.items():
            if int(view.counter(key)[row]) != count:
                yield f"node {name}: counter {key!r} is {int(view.counter(key)[row])}, its tasks make {count}"
        kinds = Counter(map(_kind, tasks))
        counted = {(namespace, labels, ending): n for namespace, labels, ending, n in cache.table.pods.of_row(row)}
        if counted != kinds:
            yield f"node {name}: pods by label are {counted}, its tasks are {dict(kinds)}"
        for index, resource in enumerate(("cpu", "memory")):
            scored = sum((task.cls.nonzero_cpu, task.cls.nonzero_memory)[index] for task in tasks)
            if int(view.nonzero_used(resource)[row]) != scored:
                yield f"node {name}: {resource} for scores is {int(view.nonzero_used(resource)[row])}, not {scored}"


def _kind(task: Task) -> tuple[str, tuple[tuple[str, str], ...], bool]:
    metadata = task.pod.metadata
    return metadata.namespace, tuple(sorted(metadata.labels.items())), metadata.deletion_timestamp is not None


def _running(group: Group) -> int:
    return sum(task.node is not None for task in group.tasks.values())  # those too that end for others


def _in_part(group: Group) -> bool:
    running = [task for task in group.tasks.values() if task.node is not None]
    return bool(running) and not group.suffice(running)


def _gangs(scheduler: Scheduler, given: Given) -> Iterator[str]:
    for group in scheduler.cache.groups.values():
        if _in_part(group) and group.key not in given:
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
            yield f"pod {task.key} waits, and nobody says why"


def _agreement(scheduler: Scheduler, pods: Iterable[Pod]) -> Iterator[str]:
    for pod in pods:
        task = scheduler.cache.tasks.get(pod.metadata.uid)
        node = pod.spec.node_name or None
        if task is not None:
            if task.node != node and not scheduler.unknown_binds.is_busy(task.group.key):
                yield f"pod {pod.key} is on {node or 'no node'}, and the scheduler has it on {task.node or 'none'}"
        elif _is_ours(pod, scheduler) and f"Pod {pod.key}" not in scheduler.cache.problems:
            yield f"pod {pod.key} is there, and the scheduler does not know it"


def _is_ours(pod: Pod, scheduler: Scheduler) -> bool:
    return pod.spec.scheduler_name in scheduler.profiles and pod.status.phase not in _ENDED
