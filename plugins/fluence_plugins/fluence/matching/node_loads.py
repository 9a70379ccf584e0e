"""The foreign load of each node: the requests of running pods that the graph holds no allocation for."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from operator import gt

from fluence_plugins.fluence.graph.accounting import Accounting, Amounts, PodShape, minus
from fluence_plugins.fluence.graph.holdings import within
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.matching.pod_requests import shape_of
from fluence_plugins.fluence.matching.shortages import PodWords
from fluence_plugins.resources import names
from session_scheduler.model.groups import NodeChange, Task


class NodeLoads:
    """Counts foreign pods, the requests of our pods beyond their allocations, and nominated pods."""

    def __init__(self, live: LiveGraph) -> None:
        self._live = live
        self.tasks_on: dict[str, tuple[Task, ...]] = {}
        self.removed: set[Task] = set()
        """Tasks whose removal is simulated."""
        self.nominated: dict[str, tuple[tuple[Task, ...], Amounts]] = {}
        """By host: its nominated pods, and the amounts that our pods held when they were last counted."""
        self._changed: set[str] = set()
        """Pods (uids) whose missing parts changed with the last change of the graph."""

    def update(self, changes: Sequence[NodeChange]) -> None:
        """Set the tasks on changed nodes."""
        for change in changes:
            self.tasks_on[change.name] = change.tasks
            if change.node is None:
                del self.tasks_on[change.name]

    def graph_changed(self, missing_before: Iterable[str]) -> None:
        """Record a change of the graph; `missing_before`: the pods (uids) with missing parts before it."""
        self._changed = {*missing_before, *self._live.holdings.missing}

    def recount(self, hosts: set[str]) -> None:
        """Recount the load of these hosts, and of those with pods whose missing parts changed."""
        if self._changed:
            hosts |= {name for name, tasks in self.tasks_on.items() if any(t.uid in self._changed for t in tasks)}
        for name in sorted(hosts):
            self._free_excess(name)
            self.count(name)

    def _free_excess(self, name: str) -> None:
        """Free what our pods hold of a host beyond their requests: they were resized in place."""
        accounting, holdings = self._live.accounting, self._live.holdings
        for task in self.tasks_on.get(name, ()):
            held = holdings.of_pod(task.uid, name)
            if held is None:
                continue
            shape = shape_of(task.cls, accounting)
            if any(map(gt, held, accounting.requested(shape))):
                share = holdings.shares[task.uid]
                kept = within(share, shape, accounting)
                if kept != share:
                    self._live.allocations.shrink(task.uid, kept)

    def count(self, name: str) -> None:
        """Set the load of a host in the graph to the present one."""
        nominated = self.nominated.get(name, ((),))[0]
        self._live.foreign.set(name, self.load_on(name, self.removed, nominated))

    def count_nominated(self, host: str, tasks: Sequence[Task]) -> bool:
        """Set the nominated pods of a host. Returns whether its load changed."""
        now = tuple(tasks), self._live.holdings.used_on(host)
        if self.nominated.get(host, ((), now[1])) == now:
            return False
        self.nominated[host] = now
        self.count(host)
        if not tasks:
            del self.nominated[host]
        return True

    def load_on(self, name: str, gone: Container[Task], nominated: Collection[Task]) -> Amounts | None:
        """The load of a host without the tasks in `gone`, and with nominated pods."""
        accounting, tasks = self._live.accounting, self.tasks_on.get(name, ())
        if not tasks and not nominated:
            return None
        foreign, short = [], [*_amounts_of(nominated, accounting)]
        for task in tasks:
            if task in gone:
                continue
            held = self._live.holdings.of_pod(task.uid, name)
            if held is None:
                foreign.append(task.cls.requests)
            else:
                short.append(minus(accounting.requested(shape_of(task.cls, accounting)), held))
        return accounting.load_of(foreign, short)

    def shortage(
        self, shape: PodShape, node: str, gone: Container[Task], nominated: Collection[Task], words: PodWords
    ) -> str | None:
        """Why a pod of this shape would not fit on a node without the tasks in `gone`; None if it would."""
        accounting = self._live.accounting
        held = (self._live.holdings.of_pod(task.uid, node) for task in self.tasks_on.get(node, ()) if task in gone)
        free = self._live.free_on(node, filter(None, held), self.load_on(node, gone, nominated))
        if free is None:
            return "the resource graph does not have the node"
        for kind, wanted, left in zip(accounting.types, accounting.requested(shape), free, strict=True):
            if wanted > left:
                return (
                    f"insufficient {words.name(kind)} in the resource graph: {words.number(kind, wanted, wanted)} "
                    f"requested{words.note(kind)}, {words.number(kind, left, wanted)} free"
                )
        return None

    def drift(self, lost: set[str]) -> Mapping[str, int]:
        """The number of pods on which graph and cluster disagree, except those that changed since the last event.

        `unheld`: running pods with a jobid annotation that have neither holdings nor missing parts, and were not
        reported as `lost`. `ended`: pods with holdings on a known node that do not run there.
        """
        holdings = self._live.holdings
        running = {task.uid: task.pod for tasks in self.tasks_on.values() for task in tasks}
        known = holdings.shares.keys() | holdings.missing.keys()
        bound = {uid for uid, pod in running.items() if names.JOBID_ANNOTATION in pod.metadata.annotations}
        return {
            "unheld": len(bound - known - holdings.moved - lost),
            "ended": sum(
                not holdings.hosts_of(uid).isdisjoint(self.tasks_on) for uid in known - running.keys() - holdings.moved
            ),
        }


def _amounts_of(tasks: Iterable[Task], accounting: Accounting) -> Iterator[Amounts]:
    """The amounts of each of these tasks that has no node yet."""
    for task in tasks:
        if task.node is None:
            yield accounting.requested(shape_of(task.cls, accounting))
