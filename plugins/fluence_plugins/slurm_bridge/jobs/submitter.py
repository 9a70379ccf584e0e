"""The submitter: submits or updates one pending Slurm job for each group whose session requests one.

All durable state is in Slurm. If a submission gets no response, the submitter waits until Slurm shows the job, which it
finds by admin_comment, and submits no second job until then.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Final

from fluence_plugins.slurm_bridge import names
from fluence_plugins.slurm_bridge.batches import in_batches
from fluence_plugins.slurm_bridge.jobs.job_table import JobTable, is_over
from fluence_plugins.slurm_bridge.jobs.lister import MAX_DOWN_SECONDS, JobLister
from fluence_plugins.slurm_bridge.jobs.node_cache import NodeCache
from fluence_plugins.slurm_bridge.jobs.reconciler import MAX_BACKOFF_SECONDS, Reconciler
from fluence_plugins.slurm_bridge.metrics import BridgeMetrics
from fluence_plugins.slurm_bridge.slurm.client import SlurmClient
from fluence_plugins.slurm_bridge.slurm.errors import JobNotPendingError, SlurmError, TokenError, UnavailableError
from fluence_plugins.slurm_bridge.slurm.model import JobComment, JobDefaults
from fluence_plugins.slurm_bridge.slurm.placeholder import Placeholder
from fluence_plugins.slurm_bridge.workloads.cluster_reader import ClusterWorkloads
from fluence_plugins.slurm_bridge.workloads.translation import expected, translate
from fluence_plugins.slurm_bridge.workloads.workload import TranslationError, Workload, root_of
from session_scheduler.errors import FluenceError
from session_scheduler.model.objects import Pod
from session_scheduler.sdk.backoff import backoff
from session_scheduler.sdk.bindings import Runtime

if TYPE_CHECKING:
    from session_scheduler.sdk.cluster import Cluster

log = logging.getLogger("slurm-bridge")

_RETRY_SECONDS: Final = 5.0
"""The first backoff of a refused request that has not changed."""
_REREAD_SECONDS: Final = 60.0
"""Seconds until the submitter reads the workload of a refused request again: its owner may have fixed it."""
_OBSERVE_SECONDS: Final = 2.0
"""Seconds that the informer may lag behind the sessions."""
_REQUESTS_A_TURN: Final = 64
"""A limit, so that many requests do not delay pods that already have a job."""
_DOWN: Final = "Slurm is unavailable"


def in_turns(groups: Iterable[str]) -> Iterator[str]:
    """The keys of these groups, one of each namespace at a time: each requires reading its owners."""
    of_namespace: dict[str, list[str]] = {}
    for group in groups:
        of_namespace.setdefault(group.rpartition(" ")[2].partition("/")[0], []).append(group)
    return (group for turn in zip_longest(*of_namespace.values()) for group in turn if group is not None)


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A session's request for a job: the pods (uids) of a group, and the candidate nodes (by Slurm name)."""

    group: str
    uids: tuple[str, ...]
    needed: int
    """How many pods must start together."""
    candidates: tuple[str, ...]
    members: tuple[str, ...]
    """All active pods of the group; they count towards `needed`."""


_JobSpec = tuple[Placeholder, tuple[str, ...]]
"""A job and its candidate nodes."""


@dataclass(frozen=True, slots=True)
class _Problem:
    """Why a request has no job, and when it is retried. If Slurm refused `spec`, the same spec is not submitted again
    before `not_before`.
    """

    text: str
    request: JobRequest
    spec: _JobSpec | None
    due: float
    not_before: float
    times: int


@dataclass(frozen=True, slots=True)
class _Ambiguous:
    """A submission with an unknown outcome: before `until`, Slurm may still show a job for these pods (uids)."""

    until: float
    uids: tuple[str, ...]


@dataclass(eq=False)
class Submitter:
    """Submits the requested jobs while the bridge is connected to Slurm."""

    runtime: Runtime
    cluster: Cluster
    client: SlurmClient
    table: JobTable
    defaults: JobDefaults
    nodes: NodeCache
    lister: JobLister
    reconciler: Reconciler
    metrics: BridgeMetrics
    changed: asyncio.Event
    """Set when the loop has work."""
    ambiguous_seconds: float
    """How long Slurm may still execute a request whose response was lost."""
    now: Callable[[], float]

    def __post_init__(self) -> None:
        self._requests: dict[str, JobRequest] = {}
        """By group, like the next attributes unless they say otherwise."""
        self._unobserved: dict[str, tuple[JobRequest, float]] = {}
        """Requests with pods that the informer has not seen yet, and how long to wait for them."""
        self._problems: dict[str, _Problem] = {}
        self._ambiguous: dict[str, _Ambiguous] = {}
        self._specs: dict[int, _JobSpec] = {}
        """By job: the spec that Slurm has."""
        self._fulfilled: dict[str, tuple[JobRequest, float, int]] = {}
        """The last request that got its job, when, and the generation of the node list at that time."""
        self._groups: dict[str, str] = {}
        """By pod uid: the key of the pod's group, as the last session saw it."""
        self._tracked: dict[str, float] = {}
        """By pod uid: when a session last saw the pod; the informer may not have seen it yet."""

    # ------------------------------------------------------------------ sessions

    @property
    def pending(self) -> bool:
        """Whether requests are waiting."""
        return bool(self._requests)

    @property
    def ambiguous(self) -> bool:
        """Whether a submission has an unknown outcome."""
        return bool(self._ambiguous)

    def problems(self) -> dict[str, str]:
        """Why a group has no job, by the group's key."""
        return {group: problem.text for group, problem in self._problems.items()}

    def track(self, group: str, uids: Iterable[str]) -> None:
        """Requeue the group when the job of one of these pods changes."""
        found = dict.fromkeys(uids, group)
        self._groups |= found
        self._tracked |= dict.fromkeys(found, self.now())

    def untrack(self, uid: str) -> None:
        """Forget a pod that no longer exists."""
        self._groups.pop(uid, None)
        self._tracked.pop(uid, None)

    def request(self, request: JobRequest) -> None:
        """Replace the group's request."""
        self.track(request.group, request.members)
        self._requests[request.group] = request
        self.changed.set()

    # ------------------------------------------------------------------ the loop

    def next_due(self) -> float:
        """When the next retry is due. Refused requests are not retried while Slurm is down."""
        dues = [problem.due for problem in self._problems.values()] if not self.lister.down else []
        return min([*dues, *(until for _, until in self._unobserved.values())], default=math.inf)

    def reset(self) -> None:
        """Forget the state of jobs: another replica may create and change them."""
        self._specs, self._fulfilled = {}, {}

    def prune_groups(self) -> None:
        """Forget pods that no longer exist, and groups without pods."""
        expired = self.now() - _OBSERVE_SECONDS
        self._tracked = {uid: at for uid, at in self._tracked.items() if at > expired}
        known = self.table.pods.keys() | self._tracked.keys()
        self._groups = {uid: group for uid, group in self._groups.items() if uid in known}
        groups = set(self._groups.values())
        self._fulfilled = {group: done for group, done in self._fulfilled.items() if group in groups}

    def jobs_listed(self, begun: float) -> None:
        """Forget the specs of jobs that are gone, and ambiguous submissions that expired before the list began."""
        self._specs = {number: spec for number, spec in self._specs.items() if number in self.table.jobs}
        self._ambiguous = {group: one for group, one in self._ambiguous.items() if begun < one.until}

    def jobs_changed(self, uids: Iterable[str]) -> None:
        """Requeue the groups of these pods, whose jobs changed."""
        for group, one in list(self._ambiguous.items()):
            if any(uid in self.table.pod_jobs for uid in one.uids):
                del self._ambiguous[group]
        for group in dict.fromkeys(self._groups[uid] for uid in uids if uid in self._groups):
            self._problems.pop(group, None)
            self.runtime.wake(group, "its Slurm job has changed")  # codespell:ignore wake

    def pod_changed(self, uid: str, *, added: bool) -> None:
        """Retry the group's request: a changed annotation may have fixed it."""
        group = self._groups.get(uid, "")
        if added and group in self._unobserved:
            self._requests.setdefault(group, self._unobserved.pop(group)[0])
        self._fulfilled.pop(group, None)
        if (problem := self._problems.get(group)) is not None:
            self._problems[group] = replace(problem, due=self.now())
            self.changed.set()

    def slurm_down(self) -> None:
        """Refuse all requests because a list failed, including those that an earlier failure refused."""
        self._requests = {**self._refused_as_down(), **self._requests}
        self.refuse_as_down()

    def refuse_as_down(self) -> None:
        """Refuse all requests because Slurm is down."""
        self.refuse_all(f"{_DOWN}: {self.lister.down}")

    def slurm_up(self) -> None:
        """Submit the requests that were refused while Slurm was down."""
        for group, request in self._refused_as_down().items():
            self._requests.setdefault(group, request)
            del self._problems[group]
            self.runtime.wake(group, "Slurm is available again")  # codespell:ignore wake

    def _refused_as_down(self) -> dict[str, JobRequest]:
        return {group: one.request for group, one in self._problems.items() if one.text.startswith(_DOWN)}

    def refuse_all(self, text: str) -> None:
        """Refuse all requests."""
        requests, self._requests = self._requests, {}
        for request in requests.values():
            self._refuse(request, text)

    def retry_due(self) -> None:
        """Repeat the requests that are due."""
        now, pods = self.now(), self.table.pods
        for group, (request, until) in list(self._unobserved.items()):
            if until <= now:  # a pod that the informer has not seen by now is gone
                del self._unobserved[group]
                uids = tuple(uid for uid in request.uids if uid in pods)
                members = tuple(uid for uid in request.members if uid in pods)
                self._requests.setdefault(group, replace(request, uids=uids, members=members))
        for group, problem in list(self._problems.items()):
            if problem.due > now or group in self._requests:
                continue
            if any(uid in pods for uid in problem.request.uids):
                self._requests[group] = problem.request
            else:
                del self._problems[group]

    async def submit_requests(self) -> None:
        """Submit requests, up to the limit of one turn: the oldest of each namespace first."""
        batch = [self._requests.pop(group) for group in list(islice(in_turns(self._requests), _REQUESTS_A_TURN))]
        await in_batches(batch, self._serve)

    # ------------------------------------------------------------------ one request

    async def _serve(self, request: JobRequest) -> None:
        if not self.runtime.elected:
            return
        try:
            await self._fulfil(request)
        except (UnavailableError, TokenError) as error:
            self._refuse(request, f"{_DOWN}: {error}", longest=MAX_DOWN_SECONDS)
        except _RefusedError as error:
            self._refuse(request, str(error), error.spec)
        except FluenceError as error:
            self._refuse(request, str(error))
        except Exception as error:  # a bug with one group must not stop the others
            log.exception("[slurm-bridge] %s", request.group)
            self._refuse(request, f"a bug in the plugin slurm-bridge ({type(error).__name__}); see its logs")

    async def _fulfil(self, request: JobRequest) -> None:
        """Submit the group's job, or update its pending job. Raises FluenceError."""
        group, table = request.group, self.table
        known = self._problems.get(group)
        if known is not None and known.request == request and known.due > self.now():
            return
        if not table.pods.keys() >= {*request.uids, *request.members}:
            self._unobserved[group] = (request, self.now() + _OBSERVE_SECONDS)
            return
        # Read at the same moment as the waiting pods, so that the job covers all pods that count.
        members = self._live(request.members)
        jobs = [(pod, table.job_of(pod)) for pod in self._live(request.uids) if not pod.spec.node_name]
        waiting = [pod for pod, job in jobs if job is None or job.pending]
        if not waiting:
            self._problems.pop(group, None)
            return
        pending = {job.job_id for _, job in jobs if job is not None and job.pending}
        if pending and self._is_fulfilled(request):
            return
        ambiguous = self._ambiguous.get(group)
        if not pending and ambiguous is not None and ambiguous.until > self.now():
            text = known.text if known is not None else "Slurm has not yet shown whether it created the job"
            self._problems[group] = _Problem(text, request, None, ambiguous.until, ambiguous.until, 0)
            return
        root = await root_of(waiting[0], ClusterWorkloads(self.cluster))
        needed = max(request.needed, expected(root) or 0)
        if len(members) < needed and not any(pod.spec.node_name for pod in members):
            raise TranslationError(f"{root} has {len(members)} of the {needed} pods that start together")
        await self.nodes.refresh(request.candidates)
        placeholder = translate(root, waiting, self.nodes.terms)
        spec = (placeholder, self._candidates(request, placeholder, root))
        if known is not None and known.spec == spec and known.not_before > self.now():
            due = min(known.not_before, self.now() + _REREAD_SECONDS)
            self._problems[group] = replace(known, request=request, due=due)
            return
        try:
            await (self._update(group, spec, pending) if pending else self._submit(group, spec))
        except (UnavailableError, TokenError):
            raise
        except SlurmError as error:
            raise _RefusedError(f"Slurm rejects the job: {error}", spec) from error
        self._problems.pop(group, None)
        self._fulfilled[group] = (request, self.now(), self.nodes.generation)

    def _is_fulfilled(self, request: JobRequest) -> bool:
        """Whether an equal request was fulfilled recently: sessions repeat their requests whenever any pod ends."""
        last, since, generation = self._fulfilled.get(request.group, (None, 0.0, 0))
        if last is None or generation != self.nodes.generation or self.now() >= since + _REREAD_SECONDS:
            return False
        offered = last.candidates is request.candidates or set(last.candidates).issuperset(request.candidates)
        return offered and (last.uids, last.needed, last.members) == (request.uids, request.needed, request.members)

    def _live(self, uids: Iterable[str]) -> list[Pod]:
        pods = (self.table.pods[uid] for uid in uids if uid in self.table.pods)
        return [pod for pod in pods if not is_over(pod) and pod.metadata.deletion_timestamp is None]

    def _candidates(self, request: JobRequest, placeholder: Placeholder, root: Workload) -> tuple[str, ...]:
        found = tuple(node for node in request.candidates if node in self.nodes.gres)
        if len(found) < placeholder.minimum_nodes:
            raise TranslationError(
                f"{root} needs {placeholder.minimum_nodes} nodes in Slurm, but fits on {len(found)} there "
                f"({len(request.candidates)} in the cluster); add nodes to Slurm, or give them the label "
                f"{names.EXTERNAL_NODE_LABEL}"
            )
        return found

    async def _submit(self, group: str, spec: _JobSpec) -> None:
        """Submit a job. The outcome is unknown until Slurm shows or refuses the job."""
        placeholder, candidates = spec
        uids = tuple(pod.uid for pod in placeholder.pods)
        self._ambiguous[group] = _Ambiguous(self.now() + self.ambiguous_seconds, uids)
        try:
            with self.metrics.request("submit"):
                number = await self.client.submit(placeholder, self._job_defaults, candidates)
        except FluenceError as error:
            if isinstance(error, UnavailableError) and error.sent:
                self.lister.due = 0.0
            else:
                del self._ambiguous[group]
            raise
        log.info("[slurm-bridge] %s: submitted as Slurm job %d", group, number)
        self._specs[number] = spec
        await self.lister.read(number)

    async def _update(self, group: str, spec: _JobSpec, pending: set[int]) -> None:
        """Update the oldest pending job, unless it has this spec already, and cancel the others."""
        placeholder, candidates = spec
        number = min(pending)
        sent = self._specs.get(number)
        if sent is None and _stands_for(self.table.jobs[number].comment, placeholder):
            sent = self._specs[number] = spec  # another replica submitted it for the same pods
        if sent is not None and sent[0] == placeholder and set(sent[1]).issuperset(candidates):
            return  # nodes that are full now may be free when Slurm allocates them
        try:
            with self.metrics.request("update"):
                await self.client.update(number, placeholder, self._job_defaults, candidates)
        except JobNotPendingError:
            log.info("[slurm-bridge] %s: Slurm job %d has already started", group, number)
            await self.lister.read(number)
            return
        log.info("[slurm-bridge] %s: updated Slurm job %d", group, number)
        self._specs[number] = spec
        await self.lister.read(number)
        for other in pending - {number}:
            await self.reconciler.cancel(other, f"job {number} now stands in for its pods")

    @property
    def _job_defaults(self) -> JobDefaults:
        return replace(self.defaults, cluster=self.table.cluster)

    def _refuse(
        self, request: JobRequest, text: str, spec: _JobSpec | None = None, *, longest: float = MAX_BACKOFF_SECONDS
    ) -> None:
        group, now = request.group, self.now()
        known = self._problems.get(group)
        times = known.times + 1 if known is not None and known.text == text else 0
        not_before = now + backoff(_RETRY_SECONDS, times, longest)
        ambiguous = self._ambiguous.get(group)
        due = ambiguous.until if ambiguous is not None else min(not_before, now + _REREAD_SECONDS)
        self._problems[group] = _Problem(text, request, spec, due, not_before, times)
        if known is None or known.text != text:
            log.warning("[slurm-bridge] %s: %s", group, text)
            self.runtime.wake(group, "its reason for waiting has changed")  # codespell:ignore wake


class _RefusedError(FluenceError):
    """Slurm refused this spec."""

    def __init__(self, text: str, spec: _JobSpec) -> None:
        super().__init__(text)
        self.spec = spec


def _stands_for(comment: JobComment | None, placeholder: Placeholder) -> bool:
    return comment is not None and [pod.key for pod in comment.pods] == [pod.key for pod in placeholder.pods]
