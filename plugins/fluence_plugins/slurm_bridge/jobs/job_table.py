"""The bridge's pods and their Slurm jobs, and the actions that bring both in line. No I/O.

A pod belongs to a job whose admin_comment names it; of several, to the one that its label names. A label alone claims
no job, for users write labels. Slurm decides: if a job has ended, its running pods are deleted, and a job without pods
is cancelled.
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
"""Seconds by which an expected start must move before the text changes."""


@dataclass(frozen=True, slots=True)
class PodJob:
    """The job of a pod, as sessions read it."""

    job_id: int
    nodes: tuple[str, ...] | None
    """The job's nodes as Slurm names them, one for each pod of the job in turn; None while Slurm has given it none."""
    pods: tuple[str, ...]
    """The uids of the job's pods, in their order."""
    text: str
    """Why it waits."""


@dataclass(slots=True)
class Actions:
    """What is to be written, by kind."""

    label: list[tuple[Pod, int]] = field(default_factory=list)
    """Pods whose label does not name their job yet."""
    delete: list[tuple[Pod, str]] = field(default_factory=list)
    """Running pods whose job has ended, and why."""
    cancel: list[tuple[int, str]] = field(default_factory=list)
    """Jobs that stand for no pod any more, and why."""
    release: list[Pod] = field(default_factory=list)
    """Pods that are over, and whose finalizer is not needed any more."""


class JobTable:
    """Pods by uid, jobs by number. `cluster` is the identity that tells this scheduler's jobs from others; empty
    while it is not known.
    """

    def __init__(self, scheduler_name: str, cluster: str = "") -> None:
        self.cluster = cluster
        self.scheduler_name = scheduler_name
        self.pods: dict[str, Pod] = {}
        self.jobs: dict[int, Job] = {}
        """Those that have not ended, and stand for pods of this cluster."""
        self.ended: dict[int, str] = {}
        """How jobs of living pods ended, as far as Slurm still says."""
        self.pod_jobs: dict[str, PodJob] = {}
        """By uid of a living pod with a job; replaced, never changed."""
        self._by_uid: dict[str, set[int]] = {}
        self._by_key: dict[str, set[int]] = {}
        """Of jobs that name no uids."""
        self._uids: dict[str, set[str]] = {}
        """By key, the uids of the pods that there are."""
        self._others: set[int] = set()
        """Jobs that stand for other pods than this cluster's."""
        self._unreadable: set[int] = set()
        self._missing: set[int] = set()
        """Jobs that pods name, and that the last list did not have."""
        self._gone: set[int] = set()
        """Jobs that pods name, and that Slurm was asked for and does not know."""
        self._labelled: dict[int, set[str]] = {}
        """By job, the uids of the pods that name it by label."""
        self._refreshed = False
        self._actions: Actions | None = None
        """Until something changes."""

    # ------------------------------------------------------------------ pods

    def manages(self, pod: Pod) -> bool:
        """Whether a pod is the bridge's."""
        return pod.spec.scheduler_name == self.scheduler_name

    def put_pod(self, pod: Pod) -> None:
        """A pod is there, or has changed."""
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
        """A pod is gone."""
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
        """These are all pods that there are."""
        found = {pod.metadata.uid: pod for pod in pods if self.manages(pod)}
        for uid in self.pods.keys() - found.keys():
            self.drop_pod(uid)
        for pod in found.values():
            self.put_pod(pod)

    def _changed(self) -> None:
        self._refreshed, self._actions = False, None

    # ------------------------------------------------------------------ jobs

    def replace_jobs(self, jobs: Iterable[Job], unreadable: Iterable[int] = ()) -> None:
        """These are all jobs that Slurm has now, except some (their numbers) that could not be read."""
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
        """Whether a pod that names the job still depends on what became of it."""
        pods = (self.pods[uid] for uid in self._labelled[job_id])
        return any(not is_over(pod) or names.FINALIZER in pod.metadata.finalizers for pod in pods)

    def put_job(self, job: Job) -> None:
        """A job that was just created, or read again."""
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
        """The job that stands for a pod: the one that its label names, else one with nodes before a pending one, then
        the oldest.
        """
        found = self._by_uid.get(pod.metadata.uid) or self._by_key.get(pod.key)
        if not found:
            return None
        labelled = label_of(pod)
        if labelled in found:
            return self.jobs[labelled]
        return min((self.jobs[number] for number in found), key=lambda job: (not job.allocated, job.job_id))

    def pods_of(self, job: Job) -> list[Pod]:
        """The job's pods that are not over, in its order."""
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
        """Bring `pod_jobs` up to date. Returns the uids of pods whose job has changed, or that have none any more."""
        if self._refreshed:
            return []
        self._refreshed = True
        found: dict[str, PodJob] = {}
        for job in self.jobs.values():
            pods = tuple(pod.metadata.uid for pod in self.pods_of(job))
            before = next((self.pod_jobs[uid] for uid in pods if uid in self.pod_jobs), None)
            now = PodJob(job.job_id, job.nodes if job.allocated else None, pods, _status_text(job, before))
            found |= dict.fromkeys(pods, before if now == before else now)
        changed = [uid for uid in self.pod_jobs.keys() | found.keys() if self.pod_jobs.get(uid) != found.get(uid)]
        self.pod_jobs = found
        return sorted(changed)

    # ------------------------------------------------------------------ what is to be done

    def missing_jobs(self) -> list[int]:
        """Jobs that pods name, and that the last list did not have: to be looked up one by one."""
        return sorted(self._missing)

    def mark_unknown(self, job_id: int) -> None:
        """Slurm does not know the job."""
        self._drop_job(job_id)
        self._gone.add(job_id)
        self.ended[job_id] = _UNKNOWN

    def mark_cancelled(self, job_id: int) -> None:
        """The job was cancelled."""
        self._drop_job(job_id)
        self.ended[job_id] = "CANCELLED"

    def actions(self) -> Actions:
        """What is to be written now."""
        if self._actions is None:
            self._actions = self._find_actions()
        return self._actions

    def _find_actions(self) -> Actions:
        found = Actions()
        to_cancel = {number for number, job in self.jobs.items() if not self.pods_of(job) and self._may_cancel(job)}
        found.cancel = [(number, "none of its pods is left") for number in sorted(to_cancel)]
        for pod in self.pods.values():
            if is_over(pod):
                if names.FINALIZER in pod.metadata.finalizers and self._job_is_done(pod, to_cancel):
                    found.release.append(pod)
            elif pod.metadata.deletion_timestamp is None:  # what goes takes no finalizer any more
                self._add_actions(pod, found)
        return found

    def _job_is_done(self, pod: Pod, to_cancel: Container[int]) -> bool:
        """Whether the job of a pod that is over needs nothing any more."""
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
        if job is not None and (labelled != job.job_id or names.FINALIZER not in pod.metadata.finalizers):
            found.label.append((pod, job.job_id))

    def _why_delete(self, pod: Pod, labelled: int) -> str | None:
        """Why a bound pod has its nodes no more; None while its job runs, or nobody knows."""
        if labelled in self.ended:
            return f"its Slurm job {labelled} has ended: {self.ended[labelled]}"
        job = self.jobs.get(labelled)
        if job is None:
            return None
        if self.job_of(pod) is not job:
            return f"its Slurm job is no more: number {labelled} stands for other pods"
        return f"its Slurm job {labelled} was requeued, and waits for nodes again" if job.pending else None

    def _may_cancel(self, job: Job) -> bool:
        """Whether the job is one of this cluster's, or one that was made for a pod that names it: others may use this
        Slurm, too.
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
    """Whose a job is: several clusters may use one Slurm, and several schedulers of one cluster."""
    return f"{cluster}/{scheduler_name}"


def label_of(pod: Pod) -> int | None:
    """The number of the job that a pod names by label; None where that is no number."""
    text = pod.metadata.labels.get(names.JOBID_LABEL, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 11 else None


def is_over(pod: Pod) -> bool:
    """Whether a pod uses nothing any more: it has ended, or is deleted without a node or a grace period."""
    metadata = pod.metadata
    if pod.status.phase in _OVER:
        return True
    return metadata.deletion_timestamp is not None and (
        not pod.spec.node_name or metadata.deletion_grace_period_seconds == 0
    )


def _status_text(job: Job, before: PodJob | None) -> str:
    """Why the job waits. The expected start moves all the time: the text follows only where it moves by much."""
    if job.allocated:
        return f"Slurm job {job.job_id} has nodes {', '.join(job.nodes[:8])}{'…' if len(job.nodes) > 8 else ''}"
    if not job.pending or "COMPLETING" in job.states:
        return f"Slurm job {job.job_id} is {' '.join(sorted(job.states)) or 'in no known state'}"
    reason = f"Slurm job {job.job_id} is pending: {job.reason or 'not looked at yet'}"
    if not job.start:
        return reason
    start = datetime.fromtimestamp(job.start, UTC)
    if before is not None and before.text.startswith(f"{reason}, expected to start at "):
        shown = datetime.fromisoformat(before.text.rpartition(" ")[2])
        if abs((start - shown).total_seconds()) < _START_STEP:
            return before.text
    return f"{reason}, expected to start at {start:%Y-%m-%dT%H:%M:%SZ}"
