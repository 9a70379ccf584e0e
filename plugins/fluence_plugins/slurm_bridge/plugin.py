"""The plugin `slurm-bridge`: Slurm selects the nodes for the pods of the plugin's profile.

In a session, `place_group` reads the state of Slurm's jobs from the bridge. It places a group on the nodes of its job;
if there is no such job, it requests one and reports what the group waits for. The candidate nodes of a job are those
that passed the profile's filters.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fluence_plugins.resources.ranges import ranges
from fluence_plugins.slurm_bridge import names
from fluence_plugins.slurm_bridge.arguments import SlurmBridgeArguments
from fluence_plugins.slurm_bridge.devices import resource_claims
from fluence_plugins.slurm_bridge.jobs.assignment import Assignment, JobNode, assign
from fluence_plugins.slurm_bridge.jobs.bridge import Bridge, Facts
from fluence_plugins.slurm_bridge.jobs.job_table import JobTable, PodJob, identity
from fluence_plugins.slurm_bridge.jobs.submitter import JobRequest
from fluence_plugins.slurm_bridge.nodes.controller import NodeController, NodeSettings
from fluence_plugins.slurm_bridge.nodes.external_nodes import NodeRules
from fluence_plugins.slurm_bridge.slurm.client import SlurmClient
from fluence_plugins.slurm_bridge.slurm.model import JobDefaults, NodeShare
from fluence_plugins.slurm_bridge.workloads.translation import group_of
from session_scheduler import API_VERSION, ActionType, ClusterEventWithHint, Refusal, Session, hookimpl
from session_scheduler.errors import AttemptError
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import IntColumn
from session_scheduler.model.groups import Group, GroupRef, NodeChange, Phase, Task
from session_scheduler.model.meta import OwnerReference
from session_scheduler.model.objects import Node, Pod
from session_scheduler.sdk.bindings import Binding, Runtime
from session_scheduler.sdk.interruption import begin_update
from session_scheduler.sdk.tasks import alongside

if TYPE_CHECKING:
    from prometheus_client import Metric

log = logging.getLogger("slurm-bridge")

_NO_SLURM = "Slurm selects the nodes for the pod, and a simulation has no connection to Slurm"
_SUBMITTING = "a Slurm job is being submitted"


class SlurmBridgePlugin:
    """Lets Slurm place the pods of a profile."""

    name = "slurm-bridge"
    api_version = API_VERSION
    Arguments = SlurmBridgeArguments
    single = True
    prebind_waits = False

    def __init__(self, arguments: SlurmBridgeArguments) -> None:
        self._arguments = arguments
        self._names: dict[str, str] = {}
        """The Slurm name of each node."""
        self._nodes: dict[str, str] = {}
        """The node of each Slurm name."""
        cluster = identity(arguments.cluster, arguments.scheduler_name) if arguments.cluster else ""
        self._bridge = Bridge(
            JobTable(arguments.scheduler_name, cluster),
            JobDefaults(cluster, arguments.mcs_label, arguments.partition),
            self._connect,
            tick=arguments.tick_seconds,
            ambiguous_seconds=2 * arguments.timeout_seconds,
        )
        self._requested: dict[str, JobRequest] = {}
        """The requests of this session, by group."""
        self._removed: set[str] = set()
        """The uids of the pods whose removal the current trial simulates."""
        self._candidates: dict[bytes, tuple[str, ...]] = {}
        """The Slurm names of candidate nodes, cached for this session by the set of rows."""

    def _connect(self) -> SlurmClient:
        return SlurmClient(self._arguments)

    @property
    def scheduler_name(self) -> str:
        """The schedulerName of the plugin's pods."""
        return self._arguments.scheduler_name

    # ------------------------------------------------------------------ between sessions

    @hookimpl
    def group_of(self, pod: Pod, owners: Sequence[OwnerReference]) -> GroupRef | None:
        """Group the pods that share a Slurm job."""
        return group_of(pod, owners) if pod.spec.scheduler_name == self._arguments.scheduler_name else None

    @hookimpl
    def serve(self, runtime: Runtime) -> AbstractAsyncContextManager[None]:
        """Run the bridge and the node controller."""
        return self._tasks(runtime)

    @asynccontextmanager
    async def _tasks(self, runtime: Runtime) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._bridge.serve(runtime))
            if self._arguments.nodes and runtime.cluster is not None:
                client = await stack.enter_async_context(self._connect())
                nodes = NodeController(runtime.cluster, client, runtime, _node_settings(self._arguments))
                await stack.enter_async_context(alongside(nodes.run()))
            yield

    @hookimpl
    def events_to_register(self) -> list[ClusterEventWithHint]:
        """New or renamed nodes may be candidates. The bridge itself requeues groups whose job changes."""
        return [ClusterEventWithHint(Node, ActionType.ADD | ActionType.UPDATE_NODE_LABEL)]

    @hookimpl
    def on_nodes_changed(self, changes: Sequence[NodeChange]) -> None:
        """Update the mapping between nodes and their Slurm names."""
        begin_update()
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
        """The bridge's facts."""
        return self._bridge.facts()

    # ------------------------------------------------------------------ a session

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        """Reset the last session's state. A trial requests no job, because it only simulates the removal of pods."""
        begin_update()
        self._removed.clear()
        session.add_trial_handler(
            lambda event: self._removed.add(event.task.uid), lambda event: self._removed.discard(event.task.uid)
        )
        self._requested.clear()
        self._candidates.clear()

    @hookimpl
    def prepare(self, cls: TaskClass) -> Refusal | None:
        """Reject pods whose devices Slurm cannot select."""
        why = resource_claims.refusal(cls.pod)
        return Refusal(why) if why is not None else None

    @hookimpl
    def place_group(
        self, session: Session, group: Group, tasks: Sequence[Task], room: Mapping[TaskClass, IntColumn]
    ) -> Assignment | Refusal:
        """Place the tasks whose job has nodes; request a job for the others."""
        facts: Facts = session.facts(self.name)
        jobs = {task: job for task in tasks if (job := facts.pod_jobs.get(task.uid)) is not None}
        ready = {task: job for task, job in jobs.items() if job.nodes is not None}
        placed = self._place(session, group, ready, room) if ready else None
        begin_update()
        self._bridge.track(group.key, group.tasks)
        if isinstance(placed, Assignment):
            return placed
        rest = tuple(task.uid for task in tasks if task not in ready)
        if rest and session.reasons_wanted and not self._removed:
            self._request(session, group, rest, room)
        if placed is not None:
            return placed
        if not self._bridge.served:
            return Refusal(_NO_SLURM)
        text = facts.problems.get(group.key) or next((job.text for job in jobs.values()), _SUBMITTING)
        return Refusal(text)

    def _request(
        self, session: Session, group: Group, uids: Sequence[str], room: Mapping[TaskClass, IntColumn]
    ) -> None:
        """Request one job for these pods and those that the group has already requested in this session: a group that
        can start with one pod is placed pod by pod.
        """
        known = self._requested.get(group.key)
        before = known.uids if known is not None else ()
        more = tuple(uid for uid in uids if uid not in before)
        if not more:
            return
        candidates = self._candidates_of(session, room)
        if known is not None and candidates != known.candidates:
            both, any_ = {*known.candidates} & {*candidates}, {*known.candidates} | {*candidates}
            candidates = tuple(sorted(both or any_))
        request = JobRequest(group.key, (*before, *more), group.min_count, candidates, tuple(group.tasks))
        self._requested[group.key] = request
        self._bridge.request(request)

    def _candidates_of(self, session: Session, room: Mapping[TaskClass, IntColumn]) -> tuple[str, ...]:
        """The Slurm names of the nodes with room for pods of every class; if there is no such node, of the nodes with
        room for any class.
        """
        columns = [column > 0 for column in room.values()]
        fit = np.logical_and.reduce(columns)
        if len(columns) > 1 and not fit.any():
            fit = np.logical_or.reduce(columns)
        known = self._candidates.get(rows := fit.tobytes())
        if known is None:
            found = (session.node_at(int(row)) for row in np.flatnonzero(fit))
            known = self._candidates[rows] = tuple(sorted(self._names[name] for name in found if name in self._names))
        return known

    def _place(
        self, session: Session, group: Group, ready: Mapping[Task, PodJob], room: Mapping[TaskClass, IntColumn]
    ) -> Assignment | Refusal:
        """Assign each task to a node of its job that it fits, in the order of the job's pods. The job's other pods keep
        their nodes.
        """
        found: dict[Task, JobNode] = {}
        elsewhere = {task.uid: task.node for task in group.tasks.values() if task.node is not None}
        for job in {job.job_id: job for job in ready.values()}.values():
            nodes = [self._nodes[name] for name in job.nodes or () if name in self._nodes]
            place = {uid: number for number, uid in enumerate(job.pods)}
            waiting = [task for task in group.tasks.values() if task in ready or task.phase is Phase.PENDING]
            tasks = sorted((task for task in waiting if task.uid in place), key=lambda task: place[task.uid])
            rows = {node: session.table.row_of[node] for node in nodes if node in session.table.row_of}
            occupied = [elsewhere[uid] for uid in job.pods if uid in elsewhere]
            assigned = assign(tasks, job, list(rows), occupied, partial(_fits, room, rows))
            found |= {task: JobNode(node, job.job_id) for task, node in assigned.items() if task in ready}
        if found:
            return Assignment(found)
        job = next(iter(ready.values()))
        missing = [name for name in job.nodes or () if name not in self._nodes]
        if missing:
            return Refusal(f"{job.text}, but this cluster has no node {missing[0]}")
        return Refusal(f"{job.text}, but the pod fits on none of them now")

    # ------------------------------------------------------------------ after the commit

    @hookimpl
    async def prebind(self, binding: Binding) -> None:
        """Annotate the pod with its node, and with the cores and devices that Slurm allocated to it there."""
        job_id = binding.holds.get("job")
        if not isinstance(job_id, int):
            return
        if self._bridge.served and not self._bridge.has_nodes(job_id):
            raise AttemptError(f"Slurm job {job_id} no longer has its nodes")
        binding.annotations[names.NODE_ANNOTATION] = binding.node
        called = self._names.get(binding.node, binding.node)
        found = await self._bridge.share_of(job_id, called)
        if found is not None:
            share, gres = found
            binding.annotations |= share_annotations(share)
            await resource_claims.claim(binding, share, gres)
        elif resource_claims.needs(binding.pod):
            raise AttemptError(f"Slurm does not report the devices of job {job_id} on node {called}")

    @hookimpl
    async def cancel(self) -> None:
        """Run the bridge's loop now: a pod may have been deleted."""
        self._bridge.resync()

    @hookimpl
    def metrics(self) -> list[Metric]:
        """The bridge's metrics."""
        return self._bridge.metrics.families()

    @hookimpl
    def report(self, pod: Pod) -> Mapping[str, Any]:
        """The number of the pod's Slurm job."""
        return {"slurmJob": pod.metadata.labels.get(names.JOBID_LABEL)}

    @hookimpl
    def shown_holding(self, pod: Pod) -> Mapping[str, Any]:
        """The number of the pod's Slurm job."""
        return {"jobid": pod.metadata.labels.get(names.JOBID_LABEL), "devices": []}


def _node_settings(arguments: SlurmBridgeArguments) -> NodeSettings:
    rules = NodeRules(partition=arguments.partition, address=arguments.node_address or "")
    return NodeSettings(rules=rules, cluster=arguments.cluster or "", scheduler_name=arguments.scheduler_name)


def _fits(room: Mapping[TaskClass, IntColumn], rows: Mapping[str, int], task: Task, node: str) -> bool:
    column = room.get(task.cls)
    return column is None or bool(column[rows[node]] > 0)


def share_annotations(share: NodeShare) -> dict[str, str]:
    """Annotations with a pod's share of a node in Slurm's format: `0-3`, and `gpu:v100(IDX:0-1)`."""
    gres = ",".join(f"{one.name}{f':{one.type}' if one.type else ''}(IDX:{ranges(one.indices)})" for one in share.gres)
    return {names.CORES_ANNOTATION: ranges(share.cores)} | ({names.GRES_ANNOTATION: gres} if gres else {})
