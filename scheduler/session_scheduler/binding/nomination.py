"""Before a bind that has something to wait for, its pod says where it is to be bound: `status.nominatedNodeName`.

Who makes room for pods (an autoscaler) then knows that this one has a place, and a successor tries that node first. A
pod that has nothing to wait for is bound before anybody would have looked. A write that fails is logged, and stops no
bind. Source: kube-scheduler 1.36, the feature NominatedNodeNameForExpectation (pkg/scheduler/schedule_one.go).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from session_scheduler.binding.pod_binder import as_free
from session_scheduler.cluster.errors import ClusterError, Conflict
from session_scheduler.cluster.port import Cluster
from session_scheduler.model.groups import Task
from session_scheduler.model.objects import Pod

_log = structlog.get_logger(__name__)
_TRIES = 3
"""Of a write against others who write to the pod."""


class Announcer:
    """Writes through a cluster port, at most `slots` at once; `nominated` hears of each node before it is written."""

    def __init__(self, cluster: Cluster, slots: asyncio.Semaphore, nominated: Callable[[Task, str], None]) -> None:
        self._cluster = cluster
        self._slots = slots
        self._nominated = nominated

    async def announce(self, pods: Mapping[Task, Pod]) -> dict[Task, Pod]:
        """Let the pods of a group name their tasks' nodes, whichever has to wait: none is bound before all can be.

        Returns them as they are then: that is what guards their binds. One that was not written is as it was.
        """
        tasks = [task for task in pods if task.node is not None]
        written = await asyncio.gather(*(self._announce(task, task.node or "", pods[task]) for task in tasks))
        return {**pods, **dict(zip(tasks, written, strict=True))}

    async def _announce(self, task: Task, node: str, pod: Pod) -> Pod:
        if task.node != node:  # it went, or somebody else bound it, since this was started
            return pod
        self._nominated(task, node)
        try:
            return pod if pod.status.nominated_node_name == node else await self._write(task, node, pod)
        except ClusterError as error:
            _log.warning("the node that a pod is to be bound to is not written", pod=task.key, error=str(error))
            return pod

    async def _write(self, task: Task, node: str, pod: Pod) -> Pod:
        """Raises ClusterError. What changed beside its status is for the bind to find out: then nothing is written."""
        for _ in range(_TRIES):
            version = pod.metadata.resource_version
            try:
                async with self._slots:
                    return await self._cluster.patch_status(pod, nominated_node_name=node, resource_version=version)
            except Conflict:
                async with self._slots:
                    fresh = await self._cluster.get(Pod, pod.metadata.namespace, pod.metadata.name)
            if not as_free(fresh, pod):
                break
            pod = fresh
        raise Conflict(f"pod {task.key} is written by others")
