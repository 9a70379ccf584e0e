"""The task that removes consumers' gates when their producer runs, and deletes those whose producer never will run.

All its state is in the API server, so another replica can continue. It watches pods only while a consumer waits;
sessions detect these with one check of an annotation.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from fluence_plugins.fluence.tasks.coordinated_pods import CoordinatedPods, decide, waiting_consumers
from fluence_plugins.resources.coordination import GATE, Group, waits
from fluence_plugins.resources.names import BACKEND_ANNOTATION
from session_scheduler.errors import ChangedMeanwhileError, FluenceError
from session_scheduler.model.objects import Pod
from session_scheduler.sdk.bindings import Runtime
from session_scheduler.sdk.tasks import alongside, follow

if TYPE_CHECKING:
    from prometheus_client import Metric

    from session_scheduler.sdk.cluster import Cluster

log = logging.getLogger("fluence")

GRACE_SECONDS: Final = 60.0
"""How long a consumer without a controller may wait without a producer that can still run."""
AGAIN_SECONDS: Final = 5.0
"""The delay of the first retry; it doubles with each further one."""
_MOST_DOUBLINGS: Final = 4
_CHECK_SECONDS: Final = 1.0
"""The interval of checks while a time limit or an election matters, which cause no event."""
_GUIDE: Final = "docs/how-to/quantum-gangs.md"
_AT_ONCE: Final = 16
"""The number of requests in parallel."""
_MOST_AT_A_TIME: Final = 256
"""The number of pods that it writes before it decides again."""


class _Problem(msgspec.Struct, frozen=True):
    """A failure, the time of the retry, and the number of failures; the text is empty for a conflict."""

    text: str
    due: float
    times: int


class ConsumerGates:
    """Watches producers and consumers. `counts`: the numbers of consumers by result."""

    def __init__(
        self,
        *,
        grace: float = GRACE_SECONDS,
        again: float = AGAIN_SECONDS,
        now: Callable[[], float] = time.monotonic,
        complete: Callable[[Sequence[Pod]], None] | None = None,
    ) -> None:
        """`complete` gets the waiting consumers of each changed group."""
        self._complete = complete
        self._grace = grace
        self._again = again
        self._recheck_seconds = min(_CHECK_SECONDS, again)
        self._now = now
        self._seen = False
        """Whether a session saw a waiting consumer, and the task does not watch pods yet."""
        self._wanted: asyncio.Event | None = None
        """The same as an event, while the task runs."""
        self._changed = asyncio.Event()
        self._names: set[str] = set()
        """The schedulerNames of our consumers: the task ignores those of other schedulers."""
        self._pods: CoordinatedPods | None = None
        """None before the first list of pods."""
        self._orphaned: dict[Group, float] = {}
        """By group of consumers without a controller: since when they have no producer."""
        self._problems: dict[str, _Problem] = {}
        """By uid of an existing consumer."""
        self.counts = {"ungated": 0, "deleted": 0, "failed": 0}

    def observe(self, pod: Pod) -> None:
        """If a pod is a waiting consumer, let the task watch pods."""
        if not waits(pod):
            return
        self._seen = True
        if self._wanted is not None:
            self._wanted.set()
        if pod.spec.scheduler_name not in self._names:
            self._names.add(pod.spec.scheduler_name)
            if self._pods is not None:
                self._pods.all_changed()
                self._changed.set()

    def metric(self) -> Metric:
        """The counts as a metric."""
        from prometheus_client.core import CounterMetricFamily  # slow to import, and only metrics need it

        text = 'Consumers that waited for their producer, by result; "failed" counts failed attempts, not consumers.'
        family = CounterMetricFamily("fluence_consumers", text, labels=["result"])
        for result, count in self.counts.items():
            family.add_metric([result], count)
        return family

    @asynccontextmanager
    async def serve(self, runtime: Runtime) -> AsyncGenerator[None]:
        """Run the task while the context is entered."""
        if runtime.cluster is None:
            yield
            return
        self._changed, self._wanted = asyncio.Event(), asyncio.Event()
        if self._seen:
            self._wanted.set()
        try:
            async with alongside(self._run(runtime, runtime.cluster, self._wanted)):
                yield
        finally:
            self._wanted = None

    async def _run(self, runtime: Runtime, cluster: Cluster, wanted: asyncio.Event) -> None:
        while True:
            await wanted.wait()
            wanted.clear()
            self._seen, self._pods = False, None
            async with alongside(self._follow(cluster)):
                await self._serve_all(runtime, cluster)

    # ------------------------------------------------------------------ pods

    async def _follow(self, cluster: Cluster) -> None:
        failed = partial(log.warning, "[fluence] cannot watch producers and consumers: %s")
        await follow(cluster, Pod, self._begin, failed=failed, pause=self._recheck_seconds)

    def _begin(self, there: tuple[Pod, ...]) -> Callable[[Pod, bool], None]:
        pods = self._pods = CoordinatedPods(there)
        self._problems = {uid: problem for uid, problem in self._problems.items() if uid in pods}
        self._changed.set()
        return partial(self._take, pods)

    def _take(self, pods: CoordinatedPods, pod: Pod, gone: bool) -> None:
        if gone:
            pods.drop(pod.metadata.uid)
        else:
            pods.put(pod)
        if pod.metadata.uid not in pods:
            self._problems.pop(pod.metadata.uid, None)
        if pods.changed:
            self._changed.set()

    # ------------------------------------------------------------------ actions

    async def _serve_all(self, runtime: Runtime, cluster: Cluster) -> None:
        """Act on events until no consumer waits."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(
                    self._recheck_seconds if self._orphaned or self._problems or not runtime.elected else None
                ):
                    await self._changed.wait()
            self._changed.clear()
            if self._pods is not None and runtime.elected:
                await self._act(runtime, cluster, self._pods)
                if not self._pods.any_waits(self._names):
                    return

    async def _act(self, runtime: Runtime, cluster: Cluster, pods: CoordinatedPods) -> None:
        """Decide on groups with events, retries that are due, and consumers that waited for too long."""
        now = self._now()
        late = [group for group, since in self._orphaned.items() if now - since >= self._grace]
        pods.recheck(uid for uid, problem in self._problems.items() if problem.due <= now)
        groups = pods.changed | dict.fromkeys(late)
        pods.changed = {}
        there = [pod for pod in pods.of(groups).values() if not waits(pod) or pod.spec.scheduler_name in self._names]
        if self._complete is not None:
            for pods_of_one in waiting_consumers(there):
                self._complete(pods_of_one)
        actions = decide(there, late)
        for group in groups:
            if group in actions.waiting:
                self._orphaned.setdefault(group, now)
            else:
                self._orphaned.pop(group, None)
        works: list[tuple[Pod, Callable[[], Awaitable[None]]]] = [
            *(
                (pod, partial(self._open, runtime, cluster, pod, annotations))
                for pod, annotations in actions.open.values()
            ),
            *((pod, partial(self._delete, runtime, cluster, pod)) for pod in actions.delete.values()),
        ]
        due = [
            work for work in works if (known := self._problems.get(work[0].metadata.uid)) is None or known.due <= now
        ]
        for start in range(0, len(due[:_MOST_AT_A_TIME]), _AT_ONCE):
            if runtime.elected:
                await asyncio.gather(*(work() for _, work in due[start : start + _AT_ONCE]))
        left = due[_MOST_AT_A_TIME:]
        if left:  # the next turn decides on them again
            pods.recheck(pod.metadata.uid for pod, _ in left)
            self._changed.set()

    async def _open(self, runtime: Runtime, cluster: Cluster, pod: Pod, annotations: Mapping[str, str | None]) -> None:
        async def opened() -> None:
            written = await cluster.open_gate(pod, GATE, annotations)
            if self._pods is not None and self._pods.is_now(pod):
                self._pods.put(written)

        if await self._done(runtime, pod, opened()):
            backend = annotations.get(BACKEND_ANNOTATION)
            on = f" on {backend}" if backend else ""
            self._report(
                runtime, pod, "ungated", "ProducerRuns", f"the producer runs{on}: removed the scheduling gate {GATE}"
            )

    async def _delete(self, runtime: Runtime, cluster: Cluster, pod: Pod) -> None:
        async def deleted() -> None:
            await cluster.delete(pod, resource_version=pod.metadata.resource_version)
            if self._pods is not None and self._pods.is_now(pod):
                self._pods.drop(pod.metadata.uid)

        if await self._done(runtime, pod, deleted()):
            text = f"the producer failed or is gone, and no other appeared within {self._grace:g} s: deleted the pod"
            self._report(runtime, pod, "deleted", "ProducerGone", text)

    def _report(self, runtime: Runtime, pod: Pod, result: str, reason: str, text: str) -> None:
        self.counts[result] += 1
        log.info("[fluence] consumer %s: %s", pod.key, text)
        runtime.tell(pod, reason, text)

    async def _done(self, runtime: Runtime, pod: Pod, work: Awaitable[None]) -> bool:
        """Do it, and return whether it succeeded. If not, it is retried later, or at the pod's next event."""
        uid = pod.metadata.uid
        try:
            await work
        except ChangedMeanwhileError as error:
            log.debug("[fluence] consumer %s: changed meanwhile: %s", pod.key, error)
            self._retry_later(uid, "")
            return False
        except FluenceError as error:
            self.counts["failed"] += 1
            text = f"cannot remove the scheduling gate {GATE} or delete the pod: {error}; see {_GUIDE}"
            known = self._problems.get(uid)
            if known is None or known.text != text:
                log.warning("[fluence] consumer %s: %s", pod.key, text)
                runtime.tell(pod, "ProducerNotFollowed", text)
            self._retry_later(uid, text)
            return False
        self._problems.pop(uid, None)
        return True

    def _retry_later(self, uid: str, text: str) -> None:
        if self._pods is None or uid not in self._pods:
            return
        known = self._problems.get(uid)
        times = known.times + 1 if known is not None and text else 0
        wait = self._again * 2 ** min(times, _MOST_DOUBLINGS) if text else self._recheck_seconds
        self._problems[uid] = _Problem(text, self._now() + wait, times)
