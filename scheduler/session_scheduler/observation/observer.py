"""The observer: reads a scheduler's state as plain values, repeatedly, at a cost that depends on the changes. Public.

Notebooks, the dashboard and reports read an `Observed`; none of them touches the scheduler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING, Any, Final

from session_scheduler.engine.explain import explain_one, head_of
from session_scheduler.errors import InputError
from session_scheduler.framework.hooks import PluginError
from session_scheduler.model.columns import natural
from session_scheduler.model.disruption import is_disrupted
from session_scheduler.model.group_api import SCHEDULED
from session_scheduler.model.groups import Group, Task
from session_scheduler.model.objects import Pod
from session_scheduler.model.times import parsed_time
from session_scheduler.observation.node_columns import NodeColumns
from session_scheduler.observation.pod_rows import PodRows, seconds_of
from session_scheduler.observation.values import Gang, Observed
from session_scheduler.offline.queue_report import queue_report
from session_scheduler.offline.reasons import Reasons

if TYPE_CHECKING:
    from session_scheduler.engine.scheduler import Scheduler

__all__ = ["MOST_NODES", "Observer"]

MOST_NODES: Final = 500
"""The maximum number of nodes in the verdicts of a pod, by default."""
_EVICTION_SECONDS: Final = 60.0
"""How long the observation keeps that a pod was evicted."""
_GangState = tuple[object, ...]
_Order = tuple[tuple[str, int], ...]


class Observer:
    """Observes one scheduler, which has been started and makes no decisions while it is observed.

    It belongs to one event loop. `verdicts` and `observe` never see a half-applied change: while the cache follows a
    live cluster, `observe` returns the last values, and `verdicts` waits.
    """

    def __init__(
        self, scheduler: Scheduler, source: str, *, levels: Sequence[str] = (), evaluates: bool = True,
        busy: asyncio.Lock | None = None,
    ) -> None:  # fmt: skip
        """`source` is for people. `levels` are the node labels of topology levels, the outermost first.

        With `evaluates`, pods whose reason is unknown are evaluated. `busy` is locked while the cache changes.
        """
        self._scheduler = scheduler
        self._source = source
        self._busy = busy or asyncio.Lock()
        self._reasons = Reasons(scheduler, evaluates=evaluates)
        self._pods = PodRows(scheduler, self._reasons.of)
        self._nodes = NodeColumns(scheduler, levels)
        self._gangs: dict[Group, tuple[_GangState, _Order, Gang]] = {}
        self._last: Observed | None = None
        self._failure: Exception | None = None
        self._stale = True
        self._evictions: dict[str, tuple[float, float]] = {}
        """When each pod that was evicted was created and has ended, the oldest end first."""
        self._objects: tuple[int, Mapping[str, Pod]] = (0, {})
        """The pods of a version of the observation."""
        self.changed = asyncio.Event()
        """Set when the state has changed; its one reader clears it."""
        self.changed.set()

    @property
    def rows_rebuilt(self) -> int:
        """How many rows of pods were built since the start: what the observations cost."""
        return self._pods.rebuilt

    def notify(self) -> None:
        """The cache has changed: the next `observe` reads it."""
        self._stale = True
        self.changed.set()

    def ended(self, pod: Pod) -> None:
        """A pod was deleted, or is terminal: note whether it was evicted, as it may have been gone at once."""
        if is_disrupted(pod):
            self._evictions.pop(pod.key, None)
            self._evictions[pod.key] = seconds_of(pod.metadata.creation_timestamp), self._scheduler.clock.wall()

    def fail(self, error: Exception) -> None:
        """The cache is not followed any more: `observe` and `verdicts` raise this error from now on."""
        self._failure = error
        self.changed.set()

    # ------------------------------------------------------------------ observe

    def observe(self) -> Observed:
        """The cluster now; the same value until the cache changes. Raises the error that ended the updates."""
        if self._failure is not None:
            raise self._failure
        if self._last is not None and (not self._stale or self._busy.locked()):
            return self._last
        self._stale = False
        scheduler = self._scheduler
        queues, failures = self._queues()  # first: it looks up the queue of each group
        self._pods.update()
        groups = [group for group in scheduler.cache.groups.values() if not group.single]
        nodes = self._nodes.update(self._pods.nodes, {key for group in groups if (key := group.topology_key)})
        problems = {**self._pods.problems(), **scheduler.cache.problems, **failures}
        self._last = Observed(
            time=scheduler.clock.wall(),
            source=self._source,
            nodes=nodes,
            pods=self._pods.columns(self._nodes.row_of),
            gangs=tuple(self._gangs_of(groups)),
            queues=queues,
            problems=dict(sorted(problems.items())),
            version=self._last.version + 1 if self._last is not None else 1,
            evictions=self._recent_evictions(),
        )
        return self._last

    def _recent_evictions(self) -> dict[str, float]:
        oldest = self._scheduler.clock.wall() - _EVICTION_SECONDS
        self._evictions = {key: times for key, times in self._evictions.items() if times[1] >= oldest}
        return {key: created for key, (created, _) in self._evictions.items()}

    def _queues(self) -> tuple[tuple[Mapping[str, Any], ...], dict[str, str]]:
        """The queues; if a plugin fails, the last known ones, and its error by "Plugin NAME"."""
        try:
            return tuple(queue_report(self._scheduler)["queues"]), {}
        except PluginError as error:
            return self._last.queues if self._last is not None else (), {f"Plugin {error.plugin}": str(error)}

    def _gangs_of(self, groups: Iterable[Group]) -> list[Gang]:
        """The gangs in natural order; only those that have changed are built again."""
        changed, known, found = self._pods.groups, self._gangs, dict[Group, tuple[_GangState, _Order, Gang]]()
        for group in groups:
            state: _GangState = (group.pod_group, group.queue, group.own_priority)
            entry = known.get(group)
            if entry is None or entry[0] != state or group in changed:
                if not self._scheduler.cache.places(group):
                    continue
                order = natural(f"{group.namespace}/{group.name}") if entry is None else entry[1]
                entry = state, order, self._gang(group)
            found[group] = entry
        if found.keys() != known.keys():
            known = dict(sorted(found.items(), key=lambda item: item[1][1]))
        self._gangs = {group: found[group] for group in known}
        return [gang for _, _, gang in self._gangs.values()]

    def _gang(self, group: Group) -> Gang:
        pending = [task for task in group.tasks.values() if task.node is None]
        created = parsed_time(group.creation)
        return Gang(
            namespace=group.namespace,
            name=group.name,
            queue=group.queue,
            priority=group.priority,
            min_count=group.min_count,
            pending=len(pending),
            placed=len(group.tasks) - len(pending),
            created=nan if created is None else created.timestamp(),
            reason=self._gang_reason(group, pending),
        )

    def _gang_reason(self, group: Group, pending: Sequence[Task]) -> str | None:
        """Why it waits: the message of its condition PodGroupScheduled, else the reason of its first pending pod."""
        if not pending:
            return None
        conditions = group.pod_group.status.conditions if group.pod_group is not None else ()
        for condition in conditions:
            if condition.type == SCHEDULED and condition.status == "False" and condition.message:
                return condition.message
        return self._pods.reason(min(pending, key=lambda task: natural(task.key)).uid)

    # ------------------------------------------------------------------ pods and plugins

    async def verdicts(self, key: str, most: int = MOST_NODES) -> dict[str, Any]:
        """Why a pod (NAMESPACE/NAME) waits, node by node, as `fluence explain` shows it; its gang under "gang".

        "nodes" has the best `most` nodes, in natural order; "refusals" counts the rejected nodes by plugin, "leftOut"
        the nodes that are not shown. "nodes" is empty for a pod that is on a node. Raises InputError for an unknown
        pod.
        """
        async with self._busy:
            if self._failure is not None:
                raise self._failure
            task = next((task for task in self._scheduler.cache.tasks.values() if task.key == key), None)
            if task is None or task.pod.spec.scheduler_name not in self._scheduler.profiles:
                raise InputError(f"pod {key}: not found among the pods of this scheduler; it may have finished")
            head = {**head_of(task), "phase": task.phase.value, "node": task.node}
            if task.node is not None:
                return {**head, "reason": None, "summary": None, "nodes": {}, "refusals": {}, "leftOut": 0,
                        "gang": None}  # fmt: skip
            return {**head, **explain_one(self._scheduler, task, most)}

    def pods(self) -> Mapping[str, Pod]:
        """The objects of the pods that `observe` shows, by NAMESPACE/NAME, with their labels and annotations."""
        version = self.observe().version
        if self._objects[0] != version:
            self._objects = version, {task.key: task.pod for task in self._pods.tasks()}
        return self._objects[1]

    def plugin(self, name: str) -> object | None:
        """The instance of an enabled plugin; None if no profile enables it."""
        found = (calls.instances[name] for calls in self._scheduler.profiles.values() if name in calls.instances)
        return next(found, None)
