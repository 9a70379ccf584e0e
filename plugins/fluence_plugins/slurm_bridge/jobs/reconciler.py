"""What the book says is to be done: jobs are cancelled, and pods labelled, deleted and let go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fluence_plugins.slurm_bridge import names
from fluence_plugins.slurm_bridge.jobs.job_table import Book
from fluence_plugins.slurm_bridge.metrics import Measured
from fluence_plugins.slurm_bridge.slurm.client import SlurmClient
from session_scheduler.errors import ChangedMeanwhileError, FluenceError
from session_scheduler.model.objects import Pod
from session_scheduler.sdk.bindings import Runtime
from session_scheduler.sdk.dynamic_client import NotFound

if TYPE_CHECKING:
    from session_scheduler.sdk.cluster import Cluster

log = logging.getLogger("slurm-bridge")

DOWN_SECONDS: Final = 1.0
"""After which what failed is tried again; each time after twice as long."""
MOST_SECONDS: Final = 300.0
_AT_ONCE: Final = 16
"""Requests."""
Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Later:
    """A write that failed: not to be tried before it is due."""

    text: str
    due: float
    times: int


class CarryingOut:
    """Does each duty, some at once; one that fails keeps none of the others waiting."""

    def __init__(self, book: Book, measured: Measured, now: Callable[[], float]) -> None:
        self._book = book
        self._measured = measured
        self._now = now
        self.later: dict[str, Later] = {}
        """By what was to be written."""

    async def carry_out(self, runtime: Runtime, cluster: Cluster, client: SlurmClient) -> None:
        """Do what the book says is to be done; finalizers go once the jobs are cancelled."""
        duties = self._book.duties()
        if duties.cancel:
            cancel = partial(self.cancel, client)
            await self._all((f"job {number}", partial(cancel, number, why)) for number, why in duties.cancel)
            duties = self._book.duties()
        label, release = partial(self._label, cluster), partial(self._release, cluster)
        delete = partial(self._delete, runtime, cluster)
        await self._all(
            (
                *((f"label {_named(pod)}", partial(label, pod, number)) for pod, number in duties.label),
                *((f"delete {_named(pod)}", partial(delete, pod, why)) for pod, why in duties.delete),
                *((f"release {_named(pod)}", partial(release, pod)) for pod in duties.release),
            )
        )

    async def _all(self, works: Iterable[tuple[str, Work]]) -> None:
        """Do each, some at once; what failed a while ago is left for later."""
        now, later = self._now(), self.later
        due = [(what, work) for what, work in works if what not in later or later[what].due <= now]
        await some_at_once([partial(self._one, what, work) for what, work in due])
        self.later = {what: later for what, later in self.later.items() if later.due > now - MOST_SECONDS}

    async def _one(self, what: str, work: Work) -> None:
        try:
            await work()
        except (ChangedMeanwhileError, NotFound) as error:
            log.debug("[slurm-bridge] %s: has changed meanwhile: %s", what, error)
        except FluenceError as error:
            known = self.later.get(what)
            times = known.times + 1 if known is not None else 0
            due = self._now() + backoff(DOWN_SECONDS, times, MOST_SECONDS)
            self.later[what] = Later(str(error), due, times)
            if known is None or known.text != str(error):
                log.warning("[slurm-bridge] %s: %s", what, error)
        except Exception:  # a bug that one pod or job meets is told, and the others are served
            log.exception("[slurm-bridge] %s", what)
            self.later[what] = Later("", self._now() + MOST_SECONDS, 0)
        else:
            self.later.pop(what, None)

    async def cancel(self, client: SlurmClient, number: int, why: str) -> None:
        """End a job. Raises FluenceError."""
        with self._measured.request("cancel"):
            await client.cancel(number)
        log.info("[slurm-bridge] Slurm job %d is cancelled: %s", number, why)
        self._book.cancelled(number)

    async def _label(self, cluster: Cluster, pod: Pod, number: int) -> None:
        finalizers = tuple(dict.fromkeys((*pod.metadata.finalizers, names.FINALIZER)))
        self._book.put(
            await cluster.patch_metadata(
                pod,
                labels={names.JOBID_LABEL: str(number)},
                finalizers=finalizers,
                resource_version=pod.metadata.resource_version,
            )
        )

    async def _delete(self, runtime: Runtime, cluster: Cluster, pod: Pod, why: str) -> None:
        runtime.tell(pod, "SlurmJobEnded", f"{why}: it is deleted")
        log.info("[slurm-bridge] pod %s: %s: it is deleted", pod.key, why)
        await cluster.delete(pod)

    async def _release(self, cluster: Cluster, pod: Pod) -> None:
        finalizers = tuple(one for one in pod.metadata.finalizers if one != names.FINALIZER)
        written = await cluster.patch_metadata(
            pod, finalizers=finalizers, resource_version=pod.metadata.resource_version
        )
        if pod.metadata.uid in self._book.pods:
            self._book.put(written)


def _named(pod: Pod) -> str:
    return f"{pod.key} ({pod.metadata.uid})"


def backoff(first: float, times: int, most: float) -> float:
    """Seconds: twice as many each time."""
    return min(first * 2.0 ** min(times, 16), most)


async def some_at_once(works: Sequence[Work]) -> None:
    """Do all, a bounded number beside each other."""
    for start in range(0, len(works), _AT_ONCE):
        await asyncio.gather(*(work() for work in works[start : start + _AT_ONCE]))
