"""The job table: the bridge's pods, their Slurm jobs, and the actions that reconcile them. No I/O.

A job's admin_comment names its pods. If several jobs name a pod, the pod's label selects one of them. A label alone
assigns no job, because users can write labels. Slurm decides: if a job has ended, the bridge deletes its running pods;
if a job has no pods left, the bridge cancels it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from fluence_plugins.slurm_bridge import names

if TYPE_CHECKING:
    from fluence_plugins.slurm_bridge.slurm.model import Job
    from session_scheduler.model.objects import Pod

_OVER: Final = frozenset({"Succeeded", "Failed"})
_UNKNOWN: Final = "no longer known to Slurm"
_START_STEP: Final = 60
"""Seconds by which the expected start must move before the text shows the new one."""


@dataclass(frozen=True, slots=True)
class PodJob:
    """The job of a pod, as sessions read it."""

    job_id: int
    nodes: tuple[str, ...] | None
    """The job's nodes by their Slurm names, in the order of its pods; None while the job has no nodes, or while the
    label of a waiting pod names another job: the bridge deletes a bound pod if the job that its label names has ended.
    """
    pods: tuple[str, ...]
    """The uids of the job's pods, in order."""
    text: str
    """The job's state, for conditions and events."""


@dataclass(slots=True)
class Actions:
    """The writes that are needed, by kind."""

    label: list[tuple[Pod, int]] = field(default_factory=list)
    """Pods whose label or finalizer does not match their job yet."""
    delete: list[tuple[Pod, str]] = field(default_factory=list)
    """Running pods whose job has ended, with the reason."""
    cancel: list[tuple[int, str]] = field(default_factory=list)
    """Jobs without pods, with the reason."""
    release: list[Pod] = field(default_factory=list)
    """Finished pods that no longer need their finalizer."""


class JobTable:
    """The pods by uid and the jobs by number. `cluster` is the identity in the comments of this scheduler's jobs; empty
    while it is unknown.
    """

    def __init__(self, scheduler_name: str, cluster: str = "") -> None:
        self.cluster = cluster
        self.scheduler_name = scheduler_name
        self.pods: dict[str, Pod] = {}
        self.jobs: dict[int, Job] = {}
        """The active jobs of this cluster's pods."""
        self.ended: dict[int, str] = {}
        """The final states of ended jobs whose pods still exist, as far as Slurm reports them."""
        self.pod_jobs: dict[str, PodJob] = {}
        """The job of each unfinished pod, by uid; replaced, never changed in place."""
        self._by_uid: dict[str, set[int]] = {}
        self._by_key: dict[str, set[int]] = {}
        """By pod key: the jobs whose comment contains no uids."""
        self._uids: dict[str, set[str]] = {}
        """By pod key: the uids of the existing pods."""
        self._others: set[int] = set()
        """Jobs that do not belong to pods of this cluster."""
        self._unreadable: set[int] = set()
        self._missing: set[int] = set()
        """Jobs that the label of a pod names, but the last list lacks."""
        self._gone: set[int] = set()
        """Jobs that the label of a pod names, but Slurm does not know."""
        self._labelled: dict[int, set[str]] = {}
        """By job: the uids of the pods whose label names it."""
        self._refreshed = False
        self._actions: Actions | None = None
        """The actions since the last change; None if they must be computed."""

    # ------------------------------------------------------------------ pods

    def manages(self, pod: Pod) -> bool:
        """Whether the bridge manages the pod."""
        return pod.spec.scheduler_name == self.scheduler_name

    def put_pod(self, pod: Pod) -> None:
        """Add or update a pod."""
        uid = pod.metadata.uid
        if not self.manages(pod):
            return
        before = self.pods.get(uid)
        if before is not None and (old := label_of(before)) is not None and old != label_of(pod):
            self._labelled.get(old, set()).discard(uid)
        self.pods[uid] = pod
        self._uids.setdefault(pod.key, set()).add(uid)
        self._changed()
        if (job_id := label_of(pod)) is not None:
            self._labelled.setdefault(job_id, set()).add(uid)

    def drop_pod(self, uid: str) -> None:
        """Remove a pod that no longer exists."""
        pod = self.pods.pop(uid, None)
        if pod is None:
            return
        self._changed()
        self._uids[pod.key].discard(uid)
        if not self._uids[pod.key]:
            del self._uids[pod.key]
        if (job_id := label_of(pod)) is not None:
            self._labelled.get(job_id, set()).discard(uid)

    def replace_pods(self, pods: Iterable[Pod]) -> None:
        """Replace all pods."""
        found = {pod.metadata.uid: pod for pod in pods if self.manages(pod)}
        for uid in self.pods.keys() - found.keys():
            self.drop_pod(uid)
        for pod in found.values():
            self.put_pod(pod)

    def _changed(self) -> None:
        self._refreshed, self._actions = False, None

    # ------------------------------------------------------------------ jobs

    def replace_jobs(self, jobs: Iterable[Job], unreadable: Iterable[int] = ()) -> None:
        """Replace all jobs. `unreadable`: the numbers of the jobs in the list that could not be decoded."""
        before = self.jobs, self.ended, self._others, self._unreadable
        self.jobs, self.ended, self._others, self._unreadable = {}, {}, set(), set(unreadable)
        self._by_uid, self._by_key = {}, {}
        for job in jobs:
            self._index(job)
        self._labelled = {job_id: uids for job_id, uids in self._labelled.items() if uids}
        known = self.jobs.keys() | self.ended.keys() | self._others | self._unreadable
        self._gone = (self._gone & self._labelled.keys()) - known
        self.ended |= dict.fromkeys(self._gone, _UNKNOWN)
        self._missing = {job_id for job_id in self._labelled.keys() - known - self._gone if self._is_needed(job_id)}
        if before != (self.jobs, self.ended, self._others, self._unreadable) or self._missing:
            self._changed()

    def _is_needed(self, job_id: int) -> bool:
        """Whether a pod whose label names the job still depends on the job's outcome."""
        pods = (self.pods[uid] for uid in self._labelled[job_id])
        return any(not is_over(pod) or names.FINALIZER in pod.metadata.finalizers for pod in pods)

    def put_job(self, job: Job) -> None:
        """Add or update a job that was just created or read."""
        self._drop_job(job.job_id)
        self._index(job)

    def _index(self, job: Job) -> None:
        if job.ended:
            if job.job_id in self._labelled or self._is_ours(job):
                self.ended[job.job_id] = " ".join(sorted(job.states))
            return
        if not self._is_ours(job):
            self._others.add(job.job_id)
            return
        self.jobs[job.job_id] = job
        for numbers in self._numbers(job):
            numbers.add(job.job_id)

    def _is_ours(self, job: Job) -> bool:
        return job.comment is not None and job.comment.cluster in ("", self.cluster)

    def _drop_job(self, job_id: int) -> None:
        self._changed()
        self.ended.pop(job_id, None)
        self._missing.discard(job_id)
        self._others.discard(job_id)
        job = self.jobs.pop(job_id, None)
        for numbers in self._numbers(job) if job is not None else ():
            numbers.discard(job_id)

    def _numbers(self, job: Job) -> Iterator[set[int]]:
        """The index entries of the pods that the job names."""
        for pod in job.comment.pods if job.comment is not None else ():
            index, key = (self._by_uid, pod.uid) if pod.uid else (self._by_key, pod.key)
            yield index.setdefault(key, set())

    def job_of(self, pod: Pod) -> Job | None:
        """The pod's job: the one that its label names, else one with nodes before a pending one, then the oldest."""
        found = self._by_uid.get(pod.metadata.uid) or self._by_key.get(pod.key)
        if not found:
            return None
        labelled = label_of(pod)
        if labelled in found:
            return self.jobs[labelled]
        return min((self.jobs[number] for number in found), key=lambda job: (not job.allocated, job.job_id))

    def pods_of(self, job: Job) -> list[Pod]:
        """The job's unfinished pods, in the order of its comment."""
        uids: dict[str, None] = {}
        for named in job.comment.pods if job.comment is not None else ():
            if named.uid:
                uids[named.uid] = None
            else:
                uids |= dict.fromkeys(sorted(self._uids.get(named.key, ())))
        pods = (self.pods[uid] for uid in uids if uid in self.pods)
        return [pod for pod in pods if not is_over(pod) and self.job_of(pod) is job]

    # ------------------------------------------------------------------ what sessions read

    def refresh(self) -> list[str]:
        """Update `pod_jobs`. Returns the uids of the pods whose job changed or is gone."""
        if self._refreshed:
            return []
        self._refreshed = True
        found: dict[str, PodJob] = {}
        for job in self.jobs.values():
            pods = self.pods_of(job)
            uids = tuple(pod.metadata.uid for pod in pods)
            before = next((self.pod_jobs[uid] for uid in uids if uid in self.pod_jobs), None)
            text = _status_text(job, before)
            mislabelled = [
                pod.key for pod in pods if not pod.spec.node_name and label_of(pod) not in (None, job.job_id)
            ]
            if job.allocated and mislabelled:
                text += f", but the label of pod {mislabelled[0]} names another job"
            now = PodJob(job.job_id, job.nodes if job.allocated and not mislabelled else None, uids, text)
            found |= dict.fromkeys(uids, before if now == before else now)
        changed = [uid for uid in self.pod_jobs.keys() | found.keys() if self.pod_jobs.get(uid) != found.get(uid)]
        self.pod_jobs = found
        return sorted(changed)

    # ------------------------------------------------------------------ actions

    def missing_jobs(self) -> list[int]:
        """The jobs that the label of a pod names, but the last list lacks: the lister reads each of them."""
        return sorted(self._missing)

    def mark_unknown(self, job_id: int) -> None:
        """Record that Slurm does not know the job."""
        self._drop_job(job_id)
        self._gone.add(job_id)
        self.ended[job_id] = _UNKNOWN

    def mark_cancelled(self, job_id: int) -> None:
        """Record that the job was cancelled."""
        self._drop_job(job_id)
        self.ended[job_id] = "CANCELLED"

    def actions(self) -> Actions:
        """The writes that are needed now."""
        if self._actions is None:
            self._actions = self._find_actions()
        return self._actions

    def _find_actions(self) -> Actions:
        found = Actions()
        to_cancel = {number for number, job in self.jobs.items() if not self.pods_of(job) and self._may_cancel(job)}
        found.cancel = [(number, "all of its pods are gone") for number in sorted(to_cancel)]
        for pod in self.pods.values():
            if is_over(pod):
                if names.FINALIZER in pod.metadata.finalizers and self._job_is_done(pod, to_cancel):
                    found.release.append(pod)
            elif pod.metadata.deletion_timestamp is None:  # a pod that is being deleted accepts no finalizer
                self._add_actions(pod, found)
        return found

    def _job_is_done(self, pod: Pod, to_cancel: Container[int]) -> bool:
        """Whether the job of a finished pod needs nothing more."""
        job, labelled = self.job_of(pod), label_of(pod)
        if job is not None:
            return job.job_id not in to_cancel
        return labelled not in self._missing and labelled not in self._unreadable

    def _add_actions(self, pod: Pod, found: Actions) -> None:
        job, labelled = self.job_of(pod), label_of(pod)
        if pod.spec.node_name and labelled is not None:
            if (why := self._why_delete(pod, labelled)) is not None:
                found.delete.append((pod, why))
                return
            if job is None or job.job_id != labelled:
                return
        if job is not None and self.lacks_marks(pod):
            found.label.append((pod, job.job_id))

    def lacks_marks(self, pod: Pod) -> bool:
        """Whether the pod has a job, but not its label or not the finalizer."""
        job = self.job_of(pod)
        return job is not None and (label_of(pod) != job.job_id or names.FINALIZER not in pod.metadata.finalizers)

    def _why_delete(self, pod: Pod, labelled: int) -> str | None:
        """Why a bound pod must be deleted; None while its job runs or is not known."""
        if labelled in self.ended:
            return f"its Slurm job {labelled} has ended: {self.ended[labelled]}"
        job = self.jobs.get(labelled)
        if job is None:
            return None
        if self.job_of(pod) is not job:
            return f"its Slurm job is gone: job ID {labelled} now belongs to other pods"
        return f"Slurm requeued its job {labelled}, which waits for nodes again" if job.pending else None

    def _may_cancel(self, job: Job) -> bool:
        """Whether this cluster owns the job: its comment names the cluster, or the label of one of its pods names the
        job. Other clusters may share this Slurm.
        """
        if job.comment is None:
            return False
        if job.comment.cluster:
            return job.comment.cluster == self.cluster
        keys = {self.pods[uid].key for uid in self._labelled.get(job.job_id, ())}
        return any(pod.key in keys for pod in job.comment.pods)

    def has_pending_jobs(self) -> bool:
        """Whether a job waits for nodes."""
        return any(not job.allocated for job in self.jobs.values())


def identity(cluster: str, scheduler_name: str) -> str:
    """The identity in a job's comment: several clusters, and several schedulers of a cluster, may share one Slurm."""
    return f"{cluster}/{scheduler_name}"


def label_of(pod: Pod) -> int | None:
    """The job number in the pod's label; None if there is no valid one."""
    text = pod.metadata.labels.get(names.JOBID_LABEL, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 11 else None


def is_over(pod: Pod) -> bool:
    """Whether a pod is finished: it succeeded or failed, or it is deleted and has no node or no grace period left."""
    metadata = pod.metadata
    if pod.status.phase in _OVER:
        return True
    return metadata.deletion_timestamp is not None and (
        not pod.spec.node_name or metadata.deletion_grace_period_seconds == 0
    )


def _status_text(job: Job, before: PodJob | None) -> str:
    """The job's state as text. Slurm's estimate of the start varies; the text changes only if it moves by a minute."""
    if job.allocated:
        return f"Slurm job {job.job_id} has nodes {', '.join(job.nodes[:8])}{'…' if len(job.nodes) > 8 else ''}"
    if not job.pending or "COMPLETING" in job.states:
        return f"Slurm job {job.job_id} is {' '.join(sorted(job.states)) or 'in an unknown state'}"
    reason = f"Slurm job {job.job_id} is pending: {job.reason or 'not considered yet'}"
    if not job.start:
        return reason
    start = datetime.fromtimestamp(job.start, UTC)
    if before is not None and before.text.startswith(f"{reason}, expected to start at "):
        shown = datetime.fromisoformat(before.text.rpartition(" ")[2])
        if abs((start - shown).total_seconds()) < _START_STEP:
            return before.text
    return f"{reason}, expected to start at {start:%Y-%m-%dT%H:%M:%SZ}"
