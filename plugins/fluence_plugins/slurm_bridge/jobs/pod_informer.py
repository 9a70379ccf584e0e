"""The informer of the bridge's pods: updates the job table, and notifies the submitter of changed pods."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from fluence_plugins.slurm_bridge import names
from fluence_plugins.slurm_bridge.jobs.job_table import JobTable, is_over
from fluence_plugins.slurm_bridge.jobs.reconciler import FIRST_BACKOFF_SECONDS
from fluence_plugins.slurm_bridge.jobs.submitter import Submitter
from session_scheduler.model.objects import Pod
from session_scheduler.sdk.tasks import follow

if TYPE_CHECKING:
    from session_scheduler.sdk.cluster import Cluster

log = logging.getLogger("slurm-bridge")


class PodInformer:
    """Sets `changed` when a pod changes in a way that the loop acts on."""

    def __init__(self, table: JobTable, submitter: Submitter, changed: asyncio.Event) -> None:
        self.synced = False
        """Whether the first list of pods is complete."""
        self._table = table
        self._submitter = submitter
        self._changed = changed

    async def run(self, cluster: Cluster) -> None:
        """Watch pods forever."""
        failed = partial(log.warning, "[slurm-bridge] cannot watch pods: %s")
        await follow(cluster, Pod, self._replace, failed=failed, pause=FIRST_BACKOFF_SECONDS)

    def _replace(self, pods: tuple[Pod, ...]) -> Callable[[Pod, bool], None]:
        self._table.replace_pods(pods)
        self._submitter.prune_groups()
        self.synced = True
        self._changed.set()
        return self._observe

    def _observe(self, pod: Pod, gone: bool) -> None:
        if not self._table.manages(pod):
            return
        uid = pod.metadata.uid
        before = self._table.pods.get(uid)
        if gone:
            self._table.drop_pod(uid)
            self._submitter.untrack(uid)
        else:
            self._table.put_pod(pod)
        if gone or before is None or is_over(pod) or _marks(before) != _marks(pod) or self._table.lacks_marks(pod):
            self._changed.set()  # also if the API server rejected a label because of this update
        if not gone and (before is None or before.metadata.annotations != pod.metadata.annotations):
            self._submitter.pod_changed(uid, added=before is None)


def _marks(pod: Pod) -> tuple[object, ...]:
    metadata = pod.metadata
    return metadata.labels.get(names.JOBID_LABEL), metadata.finalizers, metadata.deletion_timestamp, pod.spec.node_name
