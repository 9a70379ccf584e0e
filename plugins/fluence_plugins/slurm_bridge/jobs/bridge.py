"""What is said to Slurm, and to the API server of what Slurm says: a task of the plugin's own.

Sessions leave wants: groups without a job, and the nodes that they may have. All that is remembered is in Slurm and in
the API server, so that another replica goes on where one ended; a job whose submission was not answered is found again
by its admin_comment.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from fluence_plugins.slurm_bridge import names
from fluence_plugins.slurm_bridge.jobs.job_table import Book, Stand, identity, is_over
from fluence_plugins.slurm_bridge.jobs.reconciler import (
    DOWN_SECONDS,
    MOST_SECONDS,
    CarryingOut,
    Work,
    backoff,
    some_at_once,
)
from fluence_plugins.slurm_bridge.metrics import Measured
from fluence_plugins.slurm_bridge.slurm.client import SlurmClient
from fluence_plugins.slurm_bridge.slurm.errors import (
    JobNotPendingError,
    SlurmError,
    TokenError,
    UnavailableError,
)
from fluence_plugins.slurm_bridge.slurm.gres import known_of
from fluence_plugins.slurm_bridge.slurm.messages import Fixed, JobComment, NodeShare
from fluence_plugins.slurm_bridge.slurm.placeholder import Placeholder
from fluence_plugins.slurm_bridge.workloads.cluster_reader import ClusterWorkloads
from fluence_plugins.slurm_bridge.workloads.translation import Terms, expected, translate
from fluence_plugins.slurm_bridge.workloads.workload import TranslationError, root_of
from session_scheduler.errors import FluenceError
from session_scheduler.model.objects import Pod
from session_scheduler.model.related import Namespace
from session_scheduler.sdk.bindings import Runtime
from session_scheduler.sdk.tasks import alongside, follow

if TYPE_CHECKING:
    from session_scheduler.sdk.cluster import Cluster

log = logging.getLogger("slurm-bridge")

_QUIET_TICKS: Final = 10
"""How many ticks there are between two lists of jobs while none of them waits."""
_WHOLE_SECONDS: Final = 30.0
"""Between two lists for which Slurm is not asked whether anything has changed."""
_NODES_SECONDS: Final = 30.0
"""How old the names of Slurm's nodes may be."""
_AGAIN_SECONDS: Final = 5.0
"""After which what was refused is tried again though nothing of it has changed; each time after twice as long."""
_READ_SECONDS: Final = 60.0
"""How long, at the most, a workload is not read again of which Slurm takes no job: it may be mended."""
_HEARD_SECONDS: Final = 2.0
"""Within which what sessions have heard of is heard of here, too."""
_WANTS_A_TURN: Final = 64
"""So that many that want a job do not keep those waiting that have one."""
_DOWN: Final = "Slurm cannot be asked"
_MOST_DOWN_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class Want:
    """What a session asks for: a job for these pods (uids) of a group, on some of these nodes (as Slurm calls them)."""

    group: str
    uids: tuple[str, ...]
    needed: int
    """How many of them must start together."""
    candidates: tuple[str, ...]
    members: tuple[str, ...]
    """All live pods of the group, those that run with them."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What sessions read."""

    stands: Mapping[str, Stand] = field(default_factory=dict)
    """By uid of a pod."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """By group's key: why no job was made for it."""


_Asked = tuple[Placeholder, tuple[str, ...]]
"""A job, and the nodes that it may have."""


@dataclass(frozen=True, slots=True)
class _Problem:
    """Why no job was made; looked at again when due. `asked` is what Slurm refused, as far as it came to that, and is
    not asked for again before its time.
    """

    text: str
    want: Want
    asked: _Asked | None
    due: float
    not_before: float
    times: int


@dataclass(frozen=True, slots=True)
class _Unsure:
    """Until when there may yet be a job for these pods (uids)."""

    until: float
    uids: tuple[str, ...]


class Bridge:
    """Serves one profile's pods. `connect` makes the client for as long as it is served."""

    def __init__(
        self,
        book: Book,
        fixed: Fixed,
        connect: Callable[[], AbstractAsyncContextManager[SlurmClient]],
        *,
        tick: float,
        unsure: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tick`: seconds between two lists of jobs while some wait. `unsure`: for how many a request may still be
        carried out whose answer was lost.
        """
        self.book = book
        self.measured = Measured()
        self._fixed = fixed
        self._connect = connect
        self._tick = tick
        self._unsure_seconds = unsure
        self._now = now
        self._wants: dict[str, Want] = {}
        self._early: dict[str, tuple[Want, float]] = {}
        """By group: wants with pods that were not heard of here yet, and until when these are waited for."""
        self._problems: dict[str, _Problem] = {}
        self._unsure: dict[str, _Unsure] = {}
        """By group: a submission of which nobody knows whether it has made a job."""
        self._sent: dict[int, _Asked] = {}
        """What was said last of each job."""
        self._served: dict[str, tuple[Want, float]] = {}
        """By group: what was asked for and done last, and when."""
        self._groups: dict[str, str] = {}
        """The group's key of each pod (uid) that a session has looked at."""
        self._woken = asyncio.Event()
        self._listed = False
        self._listed_at = -math.inf
        self._next_list = 0.0
        self._idle_until: float | None = None
        """While it may not do anything: when it looks again whether it may."""
        self._last_update = 0
        self._whole_until = 0.0
        """When all jobs are listed next, and not only if Slurm says that something has changed."""
        self._failures = 0
        self._down = ""
        self._slurm_nodes: dict[str, str] = {}
        """The gres of each of Slurm's nodes."""
        self._terms = Terms()
        self._nodes_since = -math.inf
        """When Slurm was asked for its nodes."""
        self._client: SlurmClient | None = None
        self._shares: dict[int, tuple[NodeShare, ...]] = {}
        """By job: what it has on its nodes."""
        self._reading: dict[object, asyncio.Task[None]] = {}
        """What is being asked for, once for all that wait for it."""
        self._duties = CarryingOut(book, self.measured, now)
        self._nameless = ""
        """Why the cluster has no name yet."""

    # ------------------------------------------------------------------ sessions

    @property
    def served(self) -> bool:
        """Whether there is a Slurm to ask: simulations have none."""
        return self._client is not None

    def facts(self) -> Facts:
        """What is known now."""
        return Facts(self.book.stands, {key: problem.text for key, problem in self._problems.items()})

    def note(self, group: str, uids: Iterable[str]) -> None:
        """A session has looked at these pods of a group: it is to know what becomes of their jobs."""
        self._groups.update(dict.fromkeys(uids, group))

    def want(self, want: Want) -> None:
        """A session asks; the last word of a group counts."""
        self.note(want.group, want.members)
        if self._client is not None:
            self._wants[want.group] = want
            self._woken.set()

    def look_again(self) -> None:
        """Something has changed that no list of jobs shows."""
        self._woken.set()

    # ------------------------------------------------------------------ the task

    @asynccontextmanager
    async def serve(self, runtime: Runtime) -> AsyncGenerator[None]:
        """Keep pods and jobs in step for as long as this is entered."""
        if runtime.cluster is None:
            yield
            return
        self._woken, self._listed = asyncio.Event(), False
        async with self._connect() as client:
            self._client = client
            try:
                async with (
                    alongside(self._follow(runtime.cluster)),
                    alongside(self._run(runtime, runtime.cluster, client)),
                ):
                    yield
            finally:
                self._client = None
                for reading in self._reading.values():
                    reading.cancel()

    async def _follow(self, cluster: Cluster) -> None:
        failed = partial(log.warning, "[slurm-bridge] pods cannot be followed: %s")
        await follow(cluster, Pod, self._begin, failed=failed, pause=DOWN_SECONDS)

    def _begin(self, there: tuple[Pod, ...]) -> Callable[[Pod, bool], None]:
        self.book.put_all(pod for pod in there if self.book.concerns(pod))
        self._groups = {uid: key for uid, key in self._groups.items() if uid in self.book.pods}
        self._listed = True
        self._woken.set()
        return self._heard

    def _heard(self, pod: Pod, gone: bool) -> None:
        if not self.book.concerns(pod):
            return
        uid = pod.metadata.uid
        before = self.book.pods.get(uid)
        if gone:
            self.book.drop(uid)
            self._groups.pop(uid, None)
        else:
            self.book.put(pod)
        if gone or before is None or is_over(pod) or _marks(before) != _marks(pod):
            self._woken.set()
        group = self._groups.get(uid, "")
        if not gone and before is None and group in self._early:
            self._wants.setdefault(group, self._early.pop(group)[0])
        if not gone and (before is None or before.metadata.annotations != pod.metadata.annotations):
            self._look_now(self._groups.get(uid, ""))

    def _look_now(self, group: str) -> None:
        """A group that has a problem may be mended."""
        self._served.pop(group, None)
        if (problem := self._problems.get(group)) is not None:
            self._problems[group] = replace(problem, due=self._now())
            self._woken.set()

    async def _run(self, runtime: Runtime, cluster: Cluster, client: SlurmClient) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._next_turn() - self._now())):
                    await self._woken.wait()
            self._woken.clear()
            if runtime.elected and self._listed and (self._fixed.cluster or await self._name_cluster(runtime, cluster)):
                self._idle_until = None
                await self._turn(runtime, cluster, client)
            else:
                # Another replica may make jobs and change them: nothing that is known of them counts afterwards.
                self._idle_until = self._now() + self._tick
                self._next_list = self._whole_until = 0.0
                self._sent, self._served = {}, {}

    async def _name_cluster(self, runtime: Runtime, cluster: Cluster) -> bool:
        try:
            found = await cluster.get(Namespace, "", "kube-system")
        except FluenceError as error:
            if self._nameless != str(error):
                log.warning("[slurm-bridge] the cluster has no name yet (argument `cluster`): %s", error)
            self._nameless = str(error)
            wants, self._wants = self._wants, {}
            for want in wants.values():
                self._refuse(runtime, want, f"the cluster has no name in Slurm yet (argument `cluster`): {error}")
            return False
        self.book.cluster = identity(found.metadata.uid, self.book.scheduler_name)
        self._fixed = Fixed(self.book.cluster, self._fixed.mcs_label, self._fixed.partition)
        return True

    def _next_turn(self) -> float:
        if self._idle_until is not None:
            return self._idle_until
        dues = [problem.due for problem in self._problems.values()] if not self._down else []
        return min([self._next_list, *dues, *(until for _, until in self._early.values())])

    async def _turn(self, runtime: Runtime, cluster: Cluster, client: SlurmClient) -> None:
        """One look at Slurm, and all that follows of it."""
        now = self._now()
        if self._down and now < self._next_list:
            self._refuse_as_down(runtime)
            return
        if now >= self._next_list or (self._wants and now >= self._listed_at + self._tick):
            try:
                await self._list(client)
            except FluenceError as error:
                self._is_down(runtime, str(error))
                return
            self._is_up(runtime)
        self._tell_changes(runtime)
        self._retry()
        wants = [self._wants.pop(group) for group in list(self._wants)[:_WANTS_A_TURN]]
        await some_at_once([partial(self._serve, runtime, cluster, client, want) for want in wants])
        await self._duties.carry_out(runtime, cluster, client)
        self._tell_changes(runtime)
        if self._wants:
            self._woken.set()

    async def _list(self, client: SlurmClient) -> None:
        begun = self._now()
        with self.measured.request("jobs"):
            listing = await client.jobs(self._last_update if begun < self._whole_until else 0)
        self._listed_at = begun
        if listing.changed:
            self._last_update = listing.last_update
            self.book.take(listing.jobs, (one.key for one in listing.unreadable if isinstance(one.key, int)))
            if begun >= self._whole_until:
                self._whole_until = begun + _WHOLE_SECONDS
                self._groups = {uid: key for uid, key in self._groups.items() if uid in self.book.pods}
                groups = set(self._groups.values())
                self._served = {group: served for group, served in self._served.items() if group in groups}
        await some_at_once([partial(self._look_for, client, number) for number in self.book.lost()])
        self._sent = {number: sent for number, sent in self._sent.items() if number in self.book.jobs}
        self._shares = {number: shares for number, shares in self._shares.items() if number in self.book.jobs}
        self._unsure = {group: unsure for group, unsure in self._unsure.items() if begun < unsure.until}
        waiting = any(self.book.pending()) or bool(self._unsure)
        self._next_list = self._now() + self._tick * (1 if waiting else _QUIET_TICKS)

    async def _look_for(self, client: SlurmClient, number: int) -> None:
        """Ask for a job that pods name and the list does not have. Raises FluenceError."""
        with self.measured.request("job"):
            job = await client.job(number)
        if job is None:
            self.book.gone(number)
        else:
            self.book.take_one(job)

    def _is_down(self, runtime: Runtime, text: str) -> None:
        self._next_list = self._now() + backoff(DOWN_SECONDS, self._failures, _MOST_DOWN_SECONDS)
        self._failures += 1
        if self._down != text:
            log.warning("[slurm-bridge] Slurm cannot be asked: %s", text)
            self._down = text
            for problem in list(self._problems.values()):
                if problem.text.startswith(_DOWN):
                    self._wants.setdefault(problem.want.group, problem.want)
        self._refuse_as_down(runtime)

    def _refuse_as_down(self, runtime: Runtime) -> None:
        wants, self._wants = self._wants, {}
        for want in wants.values():
            self._refuse(runtime, want, f"{_DOWN}: {self._down}")

    def _is_up(self, runtime: Runtime) -> None:
        self._failures = 0
        if self._down:
            log.info("[slurm-bridge] Slurm answers again")
            self._down = ""
            for key, problem in list(self._problems.items()):
                if problem.text.startswith(_DOWN):
                    self._wants.setdefault(key, problem.want)
                    del self._problems[key]
                    runtime.wake(key, "Slurm answers again")

    def _tell_changes(self, runtime: Runtime) -> None:
        """Have those tried again of whose job something else is known now."""
        changed = self.book.judge()
        self.measured.jobs = {"pending": 0, "allocated": 0}
        for job in self.book.jobs.values():
            self.measured.jobs["allocated" if job.allocated else "pending"] += 1
        for uid in changed:
            if uid not in self.book.stands and uid in self.book.pods:
                log.info("[slurm-bridge] pod %s has no Slurm job any more", self.book.pods[uid].key)
        for key, unsure in list(self._unsure.items()):
            if any(uid in self.book.stands for uid in unsure.uids):
                del self._unsure[key]
        for key in dict.fromkeys(self._groups[uid] for uid in changed if uid in self._groups):
            self._problems.pop(key, None)
            runtime.wake(key, "its Slurm job has changed")

    def _retry(self) -> None:
        """Let those be tried again whose time has come, as they were asked for last."""
        now = self._now()
        for key, (want, until) in list(self._early.items()):
            if until <= now:  # who was not heard of by now has gone again
                del self._early[key]
                there = tuple(uid for uid in want.uids if uid in self.book.pods)
                members = tuple(uid for uid in want.members if uid in self.book.pods)
                self._wants.setdefault(key, replace(want, uids=there, members=members))
        for key, problem in list(self._problems.items()):
            if problem.due > now or key in self._wants:
                continue
            if any(uid in self.book.pods for uid in problem.want.uids):
                self._wants[key] = problem.want
            else:
                del self._problems[key]

    # ------------------------------------------------------------------ wants

    async def _serve(self, runtime: Runtime, cluster: Cluster, client: SlurmClient, want: Want) -> None:
        if not runtime.elected:
            return
        try:
            await self._ask(cluster, client, want)
        except (UnavailableError, TokenError) as error:
            self._refuse(runtime, want, f"{_DOWN}: {error}", most=_MOST_DOWN_SECONDS)
        except _RefusedError as error:
            self._refuse(runtime, want, str(error), error.asked)
        except FluenceError as error:
            self._refuse(runtime, want, str(error))
        except Exception as error:  # a bug that one group meets is told, and the others are served
            log.exception("[slurm-bridge] %s", want.group)
            self._refuse(runtime, want, f"a fault of the plugin slurm-bridge: {type(error).__name__}: see its logs")

    async def _ask(self, cluster: Cluster, client: SlurmClient, want: Want) -> None:
        """Make the group's job, or make it what it is to be. Raises FluenceError."""
        known = self._problems.get(want.group)
        if known is not None and known.want == want and known.due > self._now():
            return
        if not self.book.pods.keys() >= {*want.uids, *want.members}:  # sessions may hear of a pod first
            self._early[want.group] = (want, self._now() + _HEARD_SECONDS)
            return
        # At the same moment as who waits: a job is never for some of those that count.
        members = self._live(want.members)
        jobs = [(pod, self.book.job_of(pod)) for pod in self._live(want.uids) if not pod.spec.node_name]
        waiting = [pod for pod, job in jobs if job is None or job.pending]
        if not waiting:
            self._problems.pop(want.group, None)
            return
        pending = {job.job_id for _, job in jobs if job is not None and job.pending}
        if pending and self._is_served(want):
            return
        unsure = self._unsure.get(want.group)
        if not pending and unsure is not None and unsure.until > self._now():
            text = known.text if known is not None else "Slurm has not said yet whether there is a job for it"
            self._problems[want.group] = _Problem(text, want, None, unsure.until, unsure.until, 0)
            return
        root = await root_of(waiting[0], ClusterWorkloads(cluster))
        needed = max(want.needed, expected(root) or 0)
        if len(members) < needed and not any(pod.spec.node_name for pod in members):
            raise TranslationError(f"{len(members)} of the {needed} pods of {root} are there")
        await self._learn_nodes(client, want.candidates)
        placeholder = translate(root, waiting, self._terms)
        asked = (placeholder, self._candidates(want, placeholder))
        if known is not None and known.asked == asked and known.not_before > self._now():
            due = min(known.not_before, self._now() + _READ_SECONDS)
            self._problems[want.group] = replace(known, want=want, due=due)
            return
        try:
            await self._settle(client, want, asked, pending)
        except (UnavailableError, TokenError):
            raise
        except SlurmError as error:
            raise _RefusedError(f"Slurm refuses its job: {error}", asked) from error
        self._problems.pop(want.group, None)
        self._served[want.group] = (want, self._now())

    def _is_served(self, want: Want) -> bool:
        """Whether the same was just asked for: a session asks again whenever a pod ends somewhere."""
        last, since = self._served.get(want.group, (None, 0.0))
        if last is None or self._now() >= since + _READ_SECONDS:
            return False
        offered = last.candidates is want.candidates or set(last.candidates).issuperset(want.candidates)
        return offered and (last.uids, last.needed, last.members) == (want.uids, want.needed, want.members)

    def _live(self, uids: Iterable[str]) -> list[Pod]:
        pods = (self.book.pods[uid] for uid in uids if uid in self.book.pods)
        return [pod for pod in pods if not is_over(pod) and pod.metadata.deletion_timestamp is None]

    async def _settle(self, client: SlurmClient, want: Want, asked: _Asked, pending: set[int]) -> None:
        """Submit, or update where the job that waits is not yet so."""
        placeholder, candidates = asked
        if not pending:
            await self._submit(client, want, asked)
            return
        number = min(pending)
        sent = self._sent.get(number)
        if sent is None and _stands_for(self.book.jobs[number].comment, placeholder):
            sent = self._sent[number] = asked  # made by another replica, of the same
        if sent is not None and sent[0] == placeholder and set(sent[1]).issuperset(candidates):
            return  # nodes that are full now may be free by the time that Slurm gives them away
        try:
            with self.measured.request("update"):
                await client.update(number, placeholder, self._fixed, candidates)
        except JobNotPendingError:
            log.info("[slurm-bridge] %s: Slurm job %d has started meanwhile", want.group, number)
            await self._read(client, number)
            return
        log.info("[slurm-bridge] %s: Slurm job %d is updated", want.group, number)
        self._sent[number] = asked
        await self._read(client, number)
        for other in pending - {number}:
            await self._duties.cancel(client, other, f"its pods are those of job {number} now")

    async def _submit(self, client: SlurmClient, want: Want, asked: _Asked) -> None:
        """Whatever happens on the way: until the job is seen, no other is asked for."""
        placeholder, candidates = asked
        uids = tuple(pod.uid for pod in placeholder.pods)
        self._unsure[want.group] = _Unsure(self._now() + self._unsure_seconds, uids)
        try:
            with self.measured.request("submit"):
                number = await client.submit(placeholder, self._fixed, candidates)
        except FluenceError as error:
            if isinstance(error, UnavailableError) and error.sent:
                self._next_list = 0.0
            else:
                del self._unsure[want.group]
            raise
        log.info("[slurm-bridge] %s: submitted as Slurm job %d", want.group, number)
        self._sent[number] = asked
        await self._read(client, number)

    async def _read(self, client: SlurmClient, number: int) -> None:
        """See what became of a job at once; where that cannot be told, the next list does."""
        self._next_list = min(self._next_list, self._now() + self._tick)
        with self.measured.request("job"):
            job = await client.job(number)
        if job is not None:
            self.book.take_one(job)

    async def _learn_nodes(self, client: SlurmClient, wanted: Iterable[str]) -> None:
        """Ask for Slurm's nodes where it is long ago, or some of the wanted are none of those known."""
        age = self._now() - self._nodes_since
        if age >= _NODES_SECONDS or (age >= self._tick and not self._slurm_nodes.keys() >= set(wanted)):
            await self._once("nodes", lambda: self._read_nodes(client))

    async def _read_nodes(self, client: SlurmClient) -> None:
        with self.measured.request("nodes"):
            nodes = await client.nodes()
        if not self._slurm_nodes.keys() >= {node.name for node in nodes}:
            self._served = {}  # there are nodes that no job was offered
        self._slurm_nodes = {node.name: node.gres for node in nodes}
        self._terms = Terms(known_gres=known_of(self._slurm_nodes.values()))
        self._nodes_since = self._now()

    def _candidates(self, want: Want, placeholder: Placeholder) -> tuple[str, ...]:
        found = tuple(node for node in want.candidates if node in self._slurm_nodes)
        if len(found) < placeholder.minimum_nodes:
            raise TranslationError(
                f"{len(found)} of the {len(want.candidates)} nodes that it fits on are nodes of Slurm, and it needs "
                f"{placeholder.minimum_nodes}: add nodes to Slurm, or label them {names.EXTERNAL_NODE_LABEL}"
            )
        return found

    def _refuse(
        self,
        runtime: Runtime,
        want: Want,
        text: str,
        asked: _Asked | None = None,
        *,
        most: float = MOST_SECONDS,
    ) -> None:
        known, now = self._problems.get(want.group), self._now()
        times = known.times + 1 if known is not None and known.text == text else 0
        not_before = now + backoff(_AGAIN_SECONDS, times, most)
        unsure = self._unsure.get(want.group)
        due = unsure.until if unsure is not None else min(not_before, now + _READ_SECONDS)
        self._problems[want.group] = _Problem(text, want, asked, due, not_before, times)
        if known is None or known.text != text:
            log.warning("[slurm-bridge] %s: %s", want.group, text)
            runtime.wake(want.group, "there is another reason why it waits")

    def has_nodes(self, job_id: int) -> bool:
        """Whether a job has its nodes still, as far as is known."""
        job = self.book.jobs.get(job_id)
        return job is not None and job.allocated

    async def share_of(self, job_id: int, node: str) -> tuple[NodeShare, str] | None:
        """What Slurm gave a job on one of its nodes, and all the gres of that; None where it does not say.

        Raises FluenceError.
        """
        client = self._client
        if client is None:
            return None
        if job_id not in self._shares:
            await self._once(job_id, lambda: self._read_shares(client, job_id))
        await self._learn_nodes(client, (node,))
        known = self._shares.get(job_id, ())
        return next(((share, self._slurm_nodes.get(node, "")) for share in known if share.node == node), None)

    async def _read_shares(self, client: SlurmClient, job_id: int) -> None:
        with self.measured.request("resources"):
            found = await client.resources(job_id)
        if found:
            self._shares[job_id] = found

    async def _once(self, what: object, work: Work) -> None:
        """Have it asked for, or wait with those who have. Raises what it raises, to all."""
        reading = self._reading.get(what)
        if reading is None:
            reading = self._reading[what] = asyncio.ensure_future(work())
            reading.add_done_callback(lambda done: self._is_read(what, done))
        await asyncio.shield(reading)

    def _is_read(self, what: object, done: asyncio.Task[None]) -> None:
        del self._reading[what]
        if not done.cancelled():
            done.exception()  # raised to who waits, if anybody does still


class _RefusedError(FluenceError):
    """Slurm refuses what was asked."""

    def __init__(self, text: str, asked: _Asked) -> None:
        super().__init__(text)
        self.asked = asked


def _marks(pod: Pod) -> tuple[object, ...]:
    metadata = pod.metadata
    return metadata.labels.get(names.JOBID_LABEL), metadata.finalizers, metadata.deletion_timestamp, pod.spec.node_name


def _stands_for(comment: JobComment | None, placeholder: Placeholder) -> bool:
    return comment is not None and [pod.key for pod in comment.pods] == [pod.key for pod in placeholder.pods]
