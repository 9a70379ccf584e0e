"""What is known of the bridge's pods and of their jobs, and what must be done that they agree. No I/O.

A pod belongs to the job that its label names, or else to one whose admin_comment names it. Slurm's word counts: where a
job has ended its running pods end, too, and a job of which no pod is left is cancelled.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from fluence_plugins.slurm_bridge import names

if TYPE_CHECKING:
    from fluence_plugins.slurm_bridge.messages import Job
    from session_scheduler.model.objects import Pod

_OVER: Final = frozenset({"Succeeded", "Failed"})
_START_STEP: Final = 60
"""Seconds by which an expected start must move before that is told."""


@dataclass(frozen=True, slots=True)
class Stand:
    """What a session reads of a pod that has a job."""

    job_id: int
    nodes: tuple[str, ...] | None
    """The names in Slurm of the nodes that it may have, one for each pod of the job in turn; None while Slurm has given
    it none.
    """
    pods: tuple[str, ...]
    """The uids of the job's pods, in their order."""
    text: str
    """Why it waits."""


@dataclass(slots=True)
class Duties:
    """What is to be done, by kind."""

    label: list[tuple[Pod, int]] = field(default_factory=list)
    """Pods that do not say yet which job is theirs."""
    delete: list[tuple[Pod, str]] = field(default_factory=list)
    """Running pods whose job has ended, and why that is said."""
    cancel: list[tuple[int, str]] = field(default_factory=list)
    """Jobs that stand for nobody any more."""
    release: list[Pod] = field(default_factory=list)
    """Pods that are over, and need not be kept for their job."""


class Book:
    """Pods by uid, jobs by number. `cluster` is the name by which jobs of this cluster's pods are told from others."""

    def __init__(self, scheduler_name: str, cluster: str = "") -> None:
        self.cluster = cluster
        self._scheduler_name = scheduler_name
        self.pods: dict[str, Pod] = {}
        self.jobs: dict[int, Job] = {}
        """Those that have not ended, and stand for pods of this cluster."""
        self.ended: dict[int, str] = {}
        """How jobs of living pods ended, as far as Slurm still says."""
        self.stands: dict[str, Stand] = {}
        """By uid of a living pod with a job; replaced, never changed."""
        self._by_uid: dict[str, set[int]] = {}
        self._by_key: dict[str, set[int]] = {}
        """Of jobs that name no uids."""
        self._missing: set[int] = set()
        """Jobs that pods name, and that the last list did not have."""
        self._labelled: dict[int, set[str]] = {}
        """By job, the uids of the pods that name it by label."""

    # ------------------------------------------------------------------ pods

    def concerns(self, pod: Pod) -> bool:
        """Whether a pod is the bridge's."""
        return pod.spec.scheduler_name == self._scheduler_name

    def put(self, pod: Pod) -> None:
        """A pod is there, or has changed."""
        uid = pod.metadata.uid
        if not self.concerns(pod):
            return
        before = self.pods.get(uid)
        if before is not None and (old := label_of(before)) is not None and old != label_of(pod):
            self._labelled.get(old, set()).discard(uid)
        self.pods[uid] = pod
        if (job_id := label_of(pod)) is not None:
            self._labelled.setdefault(job_id, set()).add(uid)

    def drop(self, uid: str) -> None:
        """A pod is gone."""
        pod = self.pods.pop(uid, None)
        self.stands.pop(uid, None)
        if pod is not None and (job_id := label_of(pod)) is not None:
            self._labelled.get(job_id, set()).discard(uid)

    def put_all(self, pods: Iterable[Pod]) -> None:
        """These are all pods that there are."""
        found = {pod.metadata.uid: pod for pod in pods}
        for uid in self.pods.keys() - found.keys():
            self.drop(uid)
        for pod in found.values():
            self.put(pod)

    # ------------------------------------------------------------------ jobs

    def take(self, jobs: Iterable[Job], unreadable: Iterable[int] = ()) -> None:
        """These are all jobs that Slurm has now, but for some (their numbers) that could not be read."""
        self.jobs, self.ended = {}, {}
        self._by_uid, self._by_key = {}, {}
        for job in jobs:
            self._note(job)
        for job_id in list(self._labelled):
            if not self._labelled[job_id]:
                del self._labelled[job_id]
        known = self.jobs.keys() | self.ended.keys() | set(unreadable)
        self._missing = self._labelled.keys() - known

    def take_one(self, job: Job) -> None:
        """A job that was just made, or read anew."""
        self._forget(job.job_id)
        self._note(job)

    def _note(self, job: Job) -> None:
        if job.ended:
            if job.job_id in self._labelled or self._is_ours(job):
                self.ended[job.job_id] = " ".join(sorted(job.states))
            return
        if job.job_id not in self._labelled and not self._is_ours(job):
            return
        self.jobs[job.job_id] = job
        for pod in job.comment.pods if job.comment is not None else ():
            index, key = (self._by_uid, pod.uid) if pod.uid else (self._by_key, pod.key)
            index.setdefault(key, set()).add(job.job_id)

    def _is_ours(self, job: Job) -> bool:
        return job.comment is not None and job.comment.cluster in ("", self.cluster)

    def _forget(self, job_id: int) -> None:
        self.ended.pop(job_id, None)
        if self.jobs.pop(job_id, None) is not None:
            for index in (self._by_uid, self._by_key):
                for numbers in index.values():
                    numbers.discard(job_id)

    def job_of(self, pod: Pod) -> Job | None:
        """The job that stands for a pod: one that has nodes before one that waits, and the first that was made."""
        labelled = self.jobs.get(label_of(pod) or 0)
        if labelled is not None and (labelled.comment is None or _names(labelled, pod)):
            return labelled
        found = self._by_uid.get(pod.metadata.uid) or self._by_key.get(pod.key) or ()
        jobs = [self.jobs[number] for number in found if number in self.jobs]
        return min(jobs, key=lambda job: (not job.allocated, job.job_id), default=None)

    def standing_for(self, job: Job) -> list[Pod]:
        """The job's pods that are not over, in its order."""
        uids = dict.fromkeys(pod.uid for pod in job.comment.pods if pod.uid) if job.comment is not None else {}
        uids |= dict.fromkeys(sorted(self._labelled.get(job.job_id, ())))
        named = [self.pods[uid] for uid in uids if uid in self.pods]
        if job.comment is not None and any(not pod.uid for pod in job.comment.pods):
            keys = {pod.key for pod in job.comment.pods if not pod.uid}
            named += [pod for uid, pod in self.pods.items() if pod.key in keys and uid not in uids]
        return [pod for pod in named if not is_over(pod) and self.job_of(pod) is job]

    # ------------------------------------------------------------------ what sessions read

    def judge(self) -> list[str]:
        """Bring `stands` in line; returns the uids of pods that have another stand now, or none any more."""
        found: dict[str, Stand] = {}
        for job in self.jobs.values():
            pods = tuple(pod.metadata.uid for pod in self.standing_for(job))
            before = next((self.stands[uid] for uid in pods if uid in self.stands), None)
            now = Stand(job.job_id, job.nodes if job.allocated else None, pods, _told(job, before))
            found |= dict.fromkeys(pods, now)
        changed = [uid for uid in self.stands.keys() | found.keys() if self.stands.get(uid) != found.get(uid)]
        self.stands = found
        return sorted(changed)

    # ------------------------------------------------------------------ what is to be done

    def lost(self) -> list[int]:
        """Jobs that pods name, and that the last list did not have: to be asked for one by one."""
        return sorted(self._missing)

    def gone(self, job_id: int) -> None:
        """Slurm has no such job."""
        self._forget(job_id)
        self._missing.discard(job_id)
        self.ended[job_id] = "no longer known to Slurm"

    def cancelled(self, job_id: int) -> None:
        """A job of which no pod was left was cancelled."""
        self._forget(job_id)

    def duties(self) -> Duties:
        """What is to be done now."""
        found = Duties()
        stand_for_none = {number for number, job in self.jobs.items() if not self.standing_for(job)}
        for pod in self.pods.values():
            self._look_at(pod, found, stand_for_none)
        for number in stand_for_none:
            if self._may_cancel(self.jobs[number]):
                found.cancel.append((number, "none of its pods is left"))
        return found

    def _look_at(self, pod: Pod, found: Duties, stand_for_none: Container[int]) -> None:
        job, labelled = self.job_of(pod), label_of(pod)
        if is_over(pod):
            told = job is None or job.job_id not in stand_for_none or not self._may_cancel(job)
            if names.FINALIZER in pod.metadata.finalizers and told:
                found.release.append(pod)
        elif pod.metadata.deletion_timestamp is not None:
            return  # it goes already, and takes no finalizer any more
        elif job is not None:
            marked = labelled == job.job_id and names.FINALIZER in pod.metadata.finalizers
            if not marked and not pod.spec.node_name:
                found.label.append((pod, job.job_id))
        elif pod.spec.node_name and labelled in self.ended:
            found.delete.append((pod, f"its Slurm job {labelled} has ended: {self.ended[labelled]}"))

    def _may_cancel(self, job: Job) -> bool:
        """Whether the job is one of this cluster's, or one of which a pod was seen: others may use this Slurm, too."""
        if job.comment is not None and job.comment.cluster:
            return job.comment.cluster == self.cluster
        return bool(self._labelled.get(job.job_id))

    def pending(self) -> Iterator[Job]:
        """The jobs that wait."""
        return (job for job in self.jobs.values() if not job.allocated)


def label_of(pod: Pod) -> int | None:
    """The number of the job that a pod names by label; None where that is no number."""
    text = pod.metadata.labels.get(names.JOBID_LABEL, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 11 else None


def is_over(pod: Pod) -> bool:
    """Whether a pod uses nothing any more: it has ended, or goes and never had a node, or nobody ends it any more."""
    metadata = pod.metadata
    if pod.status.phase in _OVER:
        return True
    return metadata.deletion_timestamp is not None and (
        not pod.spec.node_name or metadata.deletion_grace_period_seconds == 0
    )


def _names(job: Job, pod: Pod) -> bool:
    named = job.comment.pods if job.comment is not None else ()
    return any(one.uid == pod.metadata.uid if one.uid else one.key == pod.key for one in named)


def _told(job: Job, before: Stand | None) -> str:
    """Why the job waits. The expected start moves all the time: it is told anew where it moves by much."""
    if job.allocated:
        return f"Slurm job {job.job_id} has nodes {', '.join(job.nodes[:8])}{'…' if len(job.nodes) > 8 else ''}"
    reason = f"Slurm job {job.job_id} is pending: {job.reason or 'not looked at yet'}"
    if not job.start:
        return reason
    start = datetime.fromtimestamp(job.start, UTC)
    if before is not None and before.text.startswith(f"{reason}, expected to start at "):
        told = datetime.fromisoformat(before.text.rpartition(" ")[2])
        if abs((start - told).total_seconds()) < _START_STEP:
            return before.text
    return f"{reason}, expected to start at {start:%Y-%m-%dT%H:%M:%SZ}"
