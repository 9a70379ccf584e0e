"""A test world: the bridge between a cluster and a Slurm in memory, with sessions of a scheduler.

Time passes only in `rest` and `live`, so nothing here depends on the speed of the machine.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from msgspec.structs import replace

from fluence_plugins.slurm_bridge.jobs.bridge import Bridge
from fluence_plugins.slurm_bridge.jobs.job_table import JobTable, is_over, label_of
from fluence_plugins.slurm_bridge.jobs.submitter import JobRequest
from fluence_plugins.slurm_bridge.names import FINALIZER, SCHEDULER_NAME
from fluence_plugins.slurm_bridge.slurm.model import Job, JobDefaults
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.framework.bindings import Runtime
from session_scheduler.model.objects import KubeObject, Pod
from session_scheduler.testing import pod

from .fake_slurm import FakeSlurm, external_node

CLUSTER = "here"
TICK = 0.5
UNSURE = 20.0
_T = TypeVar("_T")


def waiting(name: str, *, uid: str = "", **options: Any) -> Pod:
    """A pod of the bridge's scheduler."""
    made = pod(name, scheduler=SCHEDULER_NAME, **options)
    return replace(made, metadata=replace(made.metadata, uid=uid or f"uid-{name}"))


def slurm_of(*names: str) -> FakeSlurm:
    """A Slurm with idle external nodes of these names."""
    return FakeSlurm(external_node(name) for name in names or ("n1", "n2", "n3", "n4"))


class _Selector(selectors.SelectSelector):
    """Detects that all tasks wait: an event loop without ready callbacks waits for its selector."""

    def __init__(self) -> None:
        super().__init__()
        self._at_rest: asyncio.Future[None] | None = None
        self._rounds = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._at_rest is None:
            return super().select(timeout)
        self._rounds += 1
        assert self._rounds < 20_000, "the bridge does not become idle while no time passes"
        if timeout != 0:
            self._at_rest.set_result(None)
            self._at_rest = None
        return super().select(0)

    async def rest(self) -> None:
        """Return once all tasks wait. Raises AssertionError, from the loop, if they never do."""
        self._at_rest, self._rounds = asyncio.get_running_loop().create_future(), 0
        await self._at_rest


class Bridged:
    """A replica of the bridge that runs inside a `with` block.

    `reported` are the events of pods; `requeued` counts the requeues of each group. A session handles only groups that
    are new or requeued.
    """

    def __init__(
        self,
        *pods: Pod,
        cluster: MemoryCluster | None = None,
        slurm: FakeSlurm | None = None,
        elected: bool = True,
        name: str = CLUSTER,
    ) -> None:
        self.cluster = cluster if cluster is not None else MemoryCluster(pods)
        self.slurm = slurm if slurm is not None else slurm_of()
        self.elected = elected
        self.reported: list[tuple[str, str, str]] = []
        self.requeued: Counter[str] = Counter()
        self.looks = 0
        """How often the bridge read the time."""
        self.needed: dict[str, int] = {}
        """By group: how many pods must start together."""
        self.candidates: tuple[str, ...] | None = None
        """The nodes that pods fit on; None for all of Slurm's."""
        self.time = 1000.0
        table = JobTable(SCHEDULER_NAME, name)
        self.bridge = Bridge(
            table, JobDefaults(name), self._connect, tick=TICK, ambiguous_seconds=UNSURE, now=self._now
        )
        self.table = table
        self._due: dict[str, None] = {}
        self._seen: set[str] = set()
        self._selector = _Selector()
        self._loop = asyncio.SelectorEventLoop(self._selector)

    def __enter__(self) -> Self:
        self._do(self._begin())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def kill(self) -> None:
        """Stop this replica at any point."""
        if not self._loop.is_closed():
            self._do(self._end())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._loop.run_until_complete(work)

    async def _begin(self) -> None:
        runtime = Runtime(self._requeue, lambda: self.elected, self.cluster, tell=self._record_event)
        self._serving = self.bridge.serve(runtime)
        await self._serving.__aenter__()

    async def _end(self) -> None:
        await self._serving.__aexit__(None, None, None)

    def _connect(self) -> Any:
        return self.slurm

    def _now(self) -> float:
        self.looks += 1
        return self.time

    def _requeue(self, group: str, why: str) -> None:
        assert why
        self.requeued[group] += 1
        self._due[group] = None

    def _record_event(self, about: KubeObject, reason: str, note: str) -> None:
        self.reported.append((about.metadata.name, reason, note))

    # ------------------------------------------------------------------ time

    def run_pending(self) -> None:
        """Run the bridge until it waits. Raises AssertionError if it never does."""
        self._do(self._selector.rest())

    def rest(self, seconds: float = 3 * TICK, *, session: bool = True) -> None:
        """Let time pass, in ticks, with sessions but without changes in Slurm."""
        for _ in range(max(1, round(seconds / TICK))):
            self.time += TICK
            self.bridge.resync()
            self.run_pending()
            if session:
                self.session()
                self.run_pending()

    def live(self, seconds: float = 3 * TICK) -> None:
        """Like `rest`, while Slurm gives jobs nodes."""
        for _ in range(max(1, round(seconds / TICK))):
            self.slurm.step()
            self.rest(TICK)

    # ------------------------------------------------------------------ sessions

    def session(self, *, all_groups: bool = False) -> None:
        """Do what a session does: request a job for due groups, or bind their pods."""
        if not self.elected:
            return
        groups: dict[str, list[Pod]] = {}
        for each in self.pods():
            groups.setdefault(group_of(each), []).append(each)
            if each.metadata.uid not in self._seen:
                self._seen.add(each.metadata.uid)
                self._due[group_of(each)] = None
        due, self._due = (groups if all_groups else self._due), {}
        facts = self.bridge.facts()
        for group in due:
            self._look_at(group, groups.get(group, []), facts)

    def _look_at(self, group: str, pods: list[Pod], facts: Any) -> None:
        live = [one for one in pods if not is_over(one)]
        left = [one for one in live if not one.spec.node_name and one.metadata.deletion_timestamp is None]
        ready = {one.key: facts.pod_jobs[one.metadata.uid] for one in left if one.metadata.uid in facts.pod_jobs}
        ready = {key: stand for key, stand in ready.items() if stand.nodes is not None}
        needed = self.needed.get(group, 1)
        rest = [one for one in left if one.key not in ready]
        self.bridge.track(group, (one.metadata.uid for one in live))
        if len(live) - len(rest) >= needed:
            for one in left:
                if one.key in ready:
                    stand = ready[one.key]
                    self.bind(one, stand.nodes[stand.pods.index(one.metadata.uid) % len(stand.nodes)])
        if rest:
            self.want(group, live, rest)

    def want(self, group: str, live: Iterable[Pod], rest: Iterable[Pod]) -> None:
        """Request a job for the rest of a group, as a session does."""
        candidates = self.candidates if self.candidates is not None else tuple(sorted(self.slurm.nodes_by_name))
        uids, all_uids = (tuple(one.metadata.uid for one in some) for some in (rest, live))
        self.bridge.request(JobRequest(group, uids, self.needed.get(group, 1), candidates, all_uids))

    # ------------------------------------------------------------------ the cluster

    def pods(self) -> list[Pod]:
        """The pods of the bridge's scheduler."""
        return [one for one in self.cluster.objects(Pod) if one.spec.scheduler_name == SCHEDULER_NAME]

    def pod(self, name: str) -> Pod:
        """The pod with this name."""
        return next(one for one in self.cluster.objects(Pod) if one.metadata.name == name)

    def is_there(self, name: str) -> bool:
        """Whether a pod with this name exists."""
        return any(one.metadata.name == name for one in self.cluster.objects(Pod))

    def nodes(self) -> dict[str, str]:
        """The node of each bound pod."""
        return {one.metadata.name: one.spec.node_name for one in self.pods() if one.spec.node_name}

    def put(self, *pods: Pod) -> None:
        """Create or change pods."""
        for one in pods:
            self.cluster.put(one)

    def bind(self, one: Pod, node: str) -> None:
        """Bind a pod to a node, where it starts at once."""
        now = self.pod(one.metadata.name)
        self.put(replace(now, spec=replace(now.spec, node_name=node), status=replace(now.status, phase="Running")))

    def end(self, name: str, phase: str = "Succeeded") -> None:
        """Set a pod's final phase."""
        now = self.pod(name)
        self.put(replace(now, status=replace(now.status, phase=phase)))

    def delete(self, name: str) -> None:
        """Delete a pod as a user does. If it runs, its kubelet ends it in `finish`."""
        self._do(self.cluster.delete(self.pod(name)))

    def finish(self) -> None:
        """End the deleted pods as kubelets do."""
        for one in self.pods():
            if one.metadata.deletion_timestamp is not None and one.spec.node_name and not is_over(one):
                self.end(one.metadata.name)
        self.cluster.finish_deletions()

    def change(self, name: str, alter: Callable[[Pod], Pod]) -> None:
        """Change a pod as a user does."""
        self.put(alter(self.pod(name)))

    # ------------------------------------------------------------------ state

    def marks(self, name: str) -> tuple[int | None, bool]:
        """The job in a pod's label, and whether the pod has the finalizer."""
        found = self.pod(name)
        return label_of(found), FINALIZER in found.metadata.finalizers

    def problem(self, group: str) -> str:
        """Why a group has no job."""
        return self.bridge.facts().problems.get(group, "")

    def writes(self, method: str) -> int:
        """How often the bridge called a method that changes Slurm."""
        return sum(one == method for one, _ in self.slurm.calls)

    def live_jobs(self) -> list[Job]:
        """Slurm's live jobs that name pods."""
        return [kept.job for kept in self.slurm.kept.values() if not kept.job.ended and kept.job.comment is not None]


def group_of(one: Pod) -> str:
    """The key of a pod's group."""
    named = one.spec.scheduling_group
    namespace, name = one.metadata.namespace, one.metadata.name
    return f"PodGroup {namespace}/{named.pod_group_name}" if named else f"Pod {namespace}/{name}"
