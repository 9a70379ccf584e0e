"""The reconciler executes the job table's actions: cancels jobs, labels and deletes pods, and removes finalizers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fluence_plugins.slurm_bridge import names
from fluence_plugins.slurm_bridge.batches import in_batches
from fluence_plugins.slurm_bridge.jobs.job_table import JobTable
from fluence_plugins.slurm_bridge.metrics import BridgeMetrics
from fluence_plugins.slurm_bridge.slurm.client import SlurmClient
from session_scheduler.errors import ChangedMeanwhileError, FluenceError
from session_scheduler.model.objects import Pod
from session_scheduler.sdk.backoff import backoff
from session_scheduler.sdk.bindings import Runtime
from session_scheduler.sdk.dynamic_client import NotFound

if TYPE_CHECKING:
    from session_scheduler.sdk.cluster import Cluster

log = logging.getLogger("slurm-bridge")

FIRST_BACKOFF_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 300.0
_Write = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class _Failed:
    """A failed write, and when it is retried."""

    text: str
    due: float
    times: int


@dataclass(eq=False)
class Reconciler:
    """Executes actions concurrently; a failed action does not delay the others."""

    runtime: Runtime
    cluster: Cluster
    client: SlurmClient
    table: JobTable
    metrics: BridgeMetrics
    now: Callable[[], float]

    def __post_init__(self) -> None:
        self._failed: dict[str, _Failed] = {}
        """By description of the write."""

    async def reconcile(self) -> None:
        """Execute the table's actions: first cancel jobs, then remove the finalizers of their pods."""
        actions = self.table.actions()
        if actions.cancel:
            await self._write((f"job {number}", partial(self.cancel, number, why)) for number, why in actions.cancel)
            actions = self.table.actions()
        await self._write(
            (
                *((f"label {_named(pod)}", partial(self._label, pod, number)) for pod, number in actions.label),
                *((f"delete {_named(pod)}", partial(self._delete, pod, why)) for pod, why in actions.delete),
                *((f"release {_named(pod)}", partial(self._release, pod)) for pod in actions.release),
            )
        )

    async def _write(self, writes: Iterable[tuple[str, _Write]]) -> None:
        """Execute the writes that are not in backoff."""
        now, failed = self.now(), self._failed
        await in_batches([one for one in writes if one[0] not in failed or failed[one[0]].due <= now], self._one)
        self._failed = {what: one for what, one in failed.items() if one.due > now - MAX_BACKOFF_SECONDS}

    async def _one(self, named: tuple[str, _Write]) -> None:
        what, write = named
        try:
            await write()
        except (ChangedMeanwhileError, NotFound) as error:
            log.debug("[slurm-bridge] %s: changed concurrently: %s", what, error)
        except FluenceError as error:
            known = self._failed.get(what)
            times = known.times + 1 if known is not None else 0
            due = self.now() + backoff(FIRST_BACKOFF_SECONDS, times, MAX_BACKOFF_SECONDS)
            self._failed[what] = _Failed(str(error), due, times)
            if known is None or known.text != str(error):
                log.warning("[slurm-bridge] %s: %s", what, error)
        except Exception:  # a bug with one pod or job must not stop the others
            log.exception("[slurm-bridge] %s", what)
            self._failed[what] = _Failed("", self.now() + MAX_BACKOFF_SECONDS, 0)
        else:
            self._failed.pop(what, None)

    async def cancel(self, number: int, why: str) -> None:
        """Cancel a job. Raises FluenceError."""
        with self.metrics.request("cancel"):
            await self.client.cancel(number)
        log.info("[slurm-bridge] cancelled Slurm job %d: %s", number, why)
        self.table.mark_cancelled(number)

    async def _label(self, pod: Pod, number: int) -> None:
        finalizers = tuple(dict.fromkeys((*pod.metadata.finalizers, names.FINALIZER)))
        self.table.put_pod(
            await self.cluster.patch_metadata(
                pod,
                labels={names.JOBID_LABEL: str(number)},
                finalizers=finalizers,
                resource_version=pod.metadata.resource_version,
            )
        )

    async def _delete(self, pod: Pod, why: str) -> None:
        self.runtime.tell(pod, "SlurmJobEnded", f"{why}: the scheduler deletes the pod")  # codespell:ignore tell
        log.info("[slurm-bridge] deleting pod %s: %s", pod.key, why)
        await self.cluster.delete(pod)

    async def _release(self, pod: Pod) -> None:
        finalizers = tuple(one for one in pod.metadata.finalizers if one != names.FINALIZER)
        written = await self.cluster.patch_metadata(
            pod, finalizers=finalizers, resource_version=pod.metadata.resource_version
        )
        if pod.metadata.uid in self.table.pods:
            self.table.put_pod(written)


def _named(pod: Pod) -> str:
    return f"{pod.key} ({pod.metadata.uid})"
