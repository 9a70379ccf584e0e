"""What runs on each node and is not held in the graph: it counts as foreign load there."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from fluence_plugins.fluence.graph.accounting import Accounting, Amounts, PodShape, minus
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.matching.shortages import PodWords
from fluence_plugins.resources import names
from session_scheduler.model.groups import NodeChange, Task


class NodeLoads:
    """Counts pods of others, what our own request beyond what they hold, and nominated pods."""

    def __init__(self, live: LiveGraph) -> None:
        self._live = live
        self.tasks_on: dict[str, tuple[Task, ...]] = {}
        self.removed: set[Task] = set()
        """Tasks whose removal is being simulated."""
        self.nominated: dict[str, tuple[tuple[Task, ...], Amounts]] = {}
        """By host: the nominated pods that count there, and what pods of ours held when they were last counted."""
        self._changed: set[str] = set()
        """Pods of which the graph lost something, or got it back, at its last change."""

    def update(self, changes: Sequence[NodeChange]) -> None:
        """Take over which tasks are on nodes that changed."""
        for change in changes:
            self.tasks_on[change.name] = change.tasks
            if change.node is None:
                del self.tasks_on[change.name]

    def graph_changed(self, missing_before: Iterable[str]) -> None:
        """Note of which pods the graph lost something, or got it back: from those that missed something before."""
        self._changed = {*missing_before, *self._live.holdings.missing}

    def recount(self, hosts: set[str]) -> None:
        """Count again on these hosts, and on those of pods whose holdings in the graph have changed."""
        if self._changed:
            hosts |= {name for name, tasks in self.tasks_on.items() if any(t.uid in self._changed for t in tasks)}
        for name in sorted(hosts):
            self.count(name)

    def count(self, name: str) -> None:
        """Let the graph hold the load of a host as it is now."""
        nominated = self.nominated.get(name, ((),))[0]
        self._live.foreign.set(name, self.load_on(name, self.removed, nominated))

    def count_nominated(self, host: str, tasks: Sequence[Task]) -> bool:
        """Count these nominated pods, and no others, on a host; whether anything has changed since the last time."""
        now = tuple(tasks), self._live.holdings.used_on(host)
        if self.nominated.get(host, ((), now[1])) == now:
            return False
        self.nominated[host] = now
        self.count(host)
        if not tasks:
            del self.nominated[host]
        return True

    def load_on(self, name: str, gone: Container[Task], nominated: Iterable[Task]) -> Amounts | None:
        """What runs on a host and is not held, if some tasks were gone and nominated ones there."""
        accounting = self._live.accounting
        foreign, short = [], [*_amounts_of(nominated, accounting)]
        for task in self.tasks_on.get(name, ()):
            if task in gone:
                continue
            held = self._live.holdings.of_pod(task.uid, name)
            if held is None:
                foreign.append(task.cls.requests)
            else:
                short.append(minus(accounting.requested(accounting.shape_of(task.cls.requests)), held))
        return accounting.load_of(foreign, short)

    def shortage(
        self, shape: PodShape, node: str, gone: Container[Task], nominated: Iterable[Task], words: PodWords
    ) -> str | None:
        """Why a pod of this shape would not fit on a node with these tasks gone; None where it would."""
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
        """How many pods graph and cluster disagree about, but for those on whose way something is just now.

        `unheld`: it runs, has a jobid in its annotations, neither holds nor misses anything, and is not among those
        reported as `lost`. `ended`: something of a node is held for it, and it is not there. (What runs on a node that
        is gone is not known.)
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
    """What each of these is to take of its host, but for those that have a place by now."""
    for task in tasks:
        if task.node is None:
            yield accounting.requested(accounting.shape_of(task.cls.requests))
