"""The plugin `slurm-bridge`: pods of its profile go where Slurm says.

In a session it reads what its task knows, and answers that a group waits, and for what, or where its pods go. Filters
come first: only nodes that let a pod in are offered to Slurm.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fluence_plugins.slurm_bridge import claims, names, nodes
from fluence_plugins.slurm_bridge.arguments import SlurmBridgeArguments
from fluence_plugins.slurm_bridge.book import Book, Stand, identity
from fluence_plugins.slurm_bridge.bridge import Bridge, Facts, Want
from fluence_plugins.slurm_bridge.client import SlurmClient
from fluence_plugins.slurm_bridge.external_nodes import NodeRules
from fluence_plugins.slurm_bridge.measured import Measured
from fluence_plugins.slurm_bridge.messages import Fixed, NodeShare
from fluence_plugins.slurm_bridge.nodes import NodeSettings
from fluence_plugins.slurm_bridge.seating import Seat, Seats, seated
from fluence_plugins.slurm_bridge.translation import group_of
from session_scheduler import API_VERSION, ActionType, ClusterEventWithHint, Refusal, Session, hookimpl
from session_scheduler.errors import AttemptError
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import IntColumn
from session_scheduler.model.groups import Group, GroupRef, NodeChange, Phase, Task
from session_scheduler.model.meta import OwnerReference
from session_scheduler.model.objects import Node, Pod
from session_scheduler.sdk.bindings import Binding, Runtime
from session_scheduler.sdk.tasks import alongside

if TYPE_CHECKING:
    from prometheus_client import Metric

log = logging.getLogger("slurm-bridge")

_NO_SLURM = "Slurm is to say where it goes, and is not asked in a simulation"
_BEING_MADE = "a Slurm job is being made for it"


class SlurmBridgePlugin:
    """One Slurm for one profile."""

    name = "slurm-bridge"
    api_version = API_VERSION
    Arguments = SlurmBridgeArguments
    single = True
    prebind_waits = False

    def __init__(self, arguments: SlurmBridgeArguments) -> None:
        self._arguments = arguments
        self._names: dict[str, str] = {}
        """By node: its name in Slurm."""
        self._nodes: dict[str, str] = {}
        """By name in Slurm: the node."""
        cluster = identity(arguments.cluster, arguments.scheduler_name) if arguments.cluster else ""
        fixed = Fixed(cluster, arguments.mcs_label, arguments.partition)
        book = Book(arguments.scheduler_name, cluster)
        unsure = 2 * arguments.timeout_seconds
        self._bridge = Bridge(book, fixed, self._connect, tick=arguments.tick_seconds, unsure=unsure)
        self._asked: dict[str, Want] = {}
        """What was asked for in this session, by group: the first time is before anything was tried."""
        self._thought_away: set[str] = set()
        """The pods (uids) without which a trial looks for room now."""
        self._offered: dict[bytes, tuple[str, ...]] = {}
        """In this session, by which rows: the nodes as Slurm calls them."""

    def _connect(self) -> SlurmClient:
        return SlurmClient(self._arguments)

    @property
    def measured(self) -> Measured:
        """What is measured of the bridge."""
        return self._bridge.measured

    # ------------------------------------------------------------------ between sessions

    @hookimpl
    def group_of(self, pod: Pod, owners: Sequence[OwnerReference]) -> GroupRef | None:
        """Pods of one Slurm job are a group."""
        return group_of(pod, owners) if pod.spec.scheduler_name == self._arguments.scheduler_name else None

    @hookimpl
    def serve(self, runtime: Runtime) -> AbstractAsyncContextManager[None]:
        """Talk with Slurm, of jobs and of nodes."""
        return self._tasks(runtime)

    @asynccontextmanager
    async def _tasks(self, runtime: Runtime) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._bridge.serve(runtime))
            if self._arguments.nodes and runtime.cluster is not None:
                client = await stack.enter_async_context(self._connect())
                keeping = nodes.run(runtime.cluster, client, runtime, _node_settings(self._arguments))
                await stack.enter_async_context(alongside(keeping))
            yield

    @hookimpl
    def events_to_register(self) -> list[ClusterEventWithHint]:
        """Slurm's jobs are told of by the task; a node that comes, or is named otherwise, may be offered to Slurm."""
        return [ClusterEventWithHint(Node, ActionType.ADD | ActionType.UPDATE_NODE_LABEL)]

    @hookimpl
    def on_nodes_changed(self, changes: Sequence[NodeChange]) -> None:
        """Follow how nodes are named in Slurm."""
        for change in changes:
            before = self._names.pop(change.name, None)
            if before is not None and self._nodes.get(before) == change.name:
                del self._nodes[before]
            if change.node is not None:
                called = change.node.metadata.labels.get(names.NODE_NAME_LABEL) or change.name
                self._names[change.name] = called
                self._nodes[called] = change.name

    @hookimpl
    def facts(self) -> Facts:
        """What is known of jobs."""
        return self._bridge.facts()

    # ------------------------------------------------------------------ a session

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        """Another session. What is found in its trials is no room that there is."""
        self._thought_away.clear()
        session.add_trial_handler(
            lambda event: self._thought_away.add(event.task.uid),
            lambda event: self._thought_away.discard(event.task.uid),
        )
        self._asked.clear()
        self._offered.clear()

    @hookimpl
    def prepare(self, cls: TaskClass) -> Refusal | None:
        """Refuse pods whose devices Slurm cannot choose."""
        why = claims.refusal(cls.pod)
        return Refusal(why) if why is not None else None

    @hookimpl
    def place_group(
        self,
        session: Session,
        group: Group,
        tasks: Sequence[Task],
        room: Mapping[TaskClass, IntColumn],
    ) -> Seats | Refusal:
        """Where Slurm says; those first whose job has nodes."""
        facts: Facts = session.facts(self.name)
        stands = {task: stand for task in tasks if (stand := facts.stands.get(task.uid)) is not None}
        ready = {task: stand for task, stand in stands.items() if stand.nodes is not None}
        self._bridge.note(group.key, group.tasks)
        seats = self._seat(session, group, ready, room) if ready else None
        if isinstance(seats, Seats):
            return seats
        rest = tuple(task.uid for task in tasks if task not in ready)
        if rest and session.reasons_wanted and not self._thought_away:
            self._ask(session, group, rest, room)
        if seats is not None:
            return seats
        if not self._bridge.served:
            return Refusal(_NO_SLURM)
        text = facts.problems.get(group.key) or next((stand.text for stand in stands.values()), _BEING_MADE)
        return Refusal(text)

    def _ask(self, session: Session, group: Group, uids: Sequence[str], room: Mapping[TaskClass, IntColumn]) -> None:
        """Want a job for these, and for those of the group before them: where one is enough to start, each is tried by
        itself, and a job is for all.
        """
        known = self._asked.get(group.key)
        before = known.uids if known is not None else ()
        more = tuple(uid for uid in uids if uid not in before)
        if not more:
            return
        candidates = self._candidates(session, room)
        if known is not None and candidates != known.candidates:
            both, any_ = {*known.candidates} & {*candidates}, {*known.candidates} | {*candidates}
            candidates = tuple(sorted(both or any_))
        want = Want(group.key, (*before, *more), group.min_count, candidates, tuple(group.tasks))
        self._asked[group.key] = want
        self._bridge.want(want)

    def _candidates(self, session: Session, room: Mapping[TaskClass, IntColumn]) -> tuple[str, ...]:
        """The nodes, as Slurm calls them, that have room for pods of each class; where there are too few of those, of
        any class.
        """
        columns = [column > 0 for column in room.values()]
        fit = np.logical_and.reduce(columns)
        if len(columns) > 1 and not fit.any():
            fit = np.logical_or.reduce(columns)
        known = self._offered.get(rows := fit.tobytes())
        if known is None:
            found = (session.node_at(int(row)) for row in np.flatnonzero(fit))
            known = self._offered[rows] = tuple(sorted(self._names[name] for name in found if name in self._names))
        return known

    def _seat(
        self, session: Session, group: Group, ready: Mapping[Task, Stand], room: Mapping[TaskClass, IntColumn]
    ) -> Seats | Refusal:
        """Each on a node of its job that takes it, in the order of the job's pods: also of those that are not asked
        about now, whose nodes are kept for them.
        """
        found: dict[Task, Seat] = {}
        elsewhere = {task.uid: task.node for task in group.tasks.values() if task.node is not None}
        for stand in {stand.job_id: stand for stand in ready.values()}.values():
            nodes = [self._nodes[name] for name in stand.nodes or () if name in self._nodes]
            place = {uid: number for number, uid in enumerate(stand.pods)}
            waiting = [task for task in group.tasks.values() if task in ready or task.phase is Phase.PENDING]
            tasks = sorted((task for task in waiting if task.uid in place), key=lambda task: place[task.uid])
            rows = {node: session.table.row_of[node] for node in nodes if node in session.table.row_of}
            held = [elsewhere[uid] for uid in stand.pods if uid in elsewhere]
            taken = seated(tasks, stand, list(rows), held, partial(_takes, room, rows))
            found |= {task: Seat(node, stand.job_id) for task, node in taken.items() if task in ready}
        if found:
            return Seats(found)
        stand = next(iter(ready.values()))
        missing = [name for name in stand.nodes or () if name not in self._nodes]
        if missing:
            return Refusal(f"{stand.text}: {missing[0]} is no node of this cluster")
        return Refusal(f"{stand.text}, none of which takes it now")

    # ------------------------------------------------------------------ after the commit

    @hookimpl
    async def prebind(self, binding: Binding) -> None:
        """Tell the pod its node, and the cores and devices that Slurm gave it there."""
        job_id = binding.holds.get("job")
        if not isinstance(job_id, int):
            return
        if self._bridge.served and not self._bridge.has_nodes(job_id):
            raise AttemptError(f"Slurm job {job_id} has its nodes no more")
        binding.annotations[names.NODE_ANNOTATION] = binding.node
        called = self._names.get(binding.node, binding.node)
        found = await self._bridge.share_of(job_id, called)
        if found is not None:
            share, gres = found
            binding.annotations |= told(share)
            await claims.claim(binding, share, gres)
        elif claims.needs(binding.pod):
            raise AttemptError(f"Slurm does not say which devices job {job_id} has on node {called}")

    @hookimpl
    async def cancel(self) -> None:
        """The task sees pods that end; it looks at once."""
        self._bridge.look_again()

    @hookimpl
    def metrics(self) -> list[Metric]:
        """Jobs and requests."""
        return self.measured.families()

    @hookimpl
    def report(self, pod: Pod) -> Mapping[str, Any]:
        """The job that stands for the pod."""
        return {"slurmJob": pod.metadata.labels.get(names.JOBID_LABEL)}

    @hookimpl
    def shown_holding(self, pod: Pod) -> Mapping[str, Any]:
        """The same."""
        return {"jobid": pod.metadata.labels.get(names.JOBID_LABEL), "devices": []}


def _node_settings(arguments: SlurmBridgeArguments) -> NodeSettings:
    rules = NodeRules(partition=arguments.partition, address=arguments.node_address or "")
    return NodeSettings(rules=rules, cluster=arguments.cluster or "", scheduler_name=arguments.scheduler_name)


def _takes(room: Mapping[TaskClass, IntColumn], rows: Mapping[str, int], task: Task, node: str) -> bool:
    column = room.get(task.cls)
    return column is None or bool(column[rows[node]] > 0)


def told(share: NodeShare) -> dict[str, str]:
    """What a pod is told of its part of a node: `0-3`, and `gpu:v100(IDX:0-1)`, as Slurm writes it."""
    gres = ",".join(f"{one.name}{f':{one.type}' if one.type else ''}(IDX:{ranges(one.indices)})" for one in share.gres)
    return {names.CORES_ANNOTATION: ranges(share.cores)} | ({names.GRES_ANNOTATION: gres} if gres else {})


def ranges(indices: Iterable[int]) -> str:
    """Indices as Slurm writes them: `0-3,8`."""
    found: list[list[int]] = []
    for index in sorted(set(indices)):
        if found and found[-1][1] == index - 1:
            found[-1][1] = index
        else:
            found.append([index, index])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in found)
