"""Lists a live cluster's objects like the scheduler, for commands that only read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final, NoReturn, Protocol

import structlog

from session_scheduler.cluster.errors import ClusterError
from session_scheduler.cluster.kube_requests import RequestSettings
from session_scheduler.cluster.kubernetes import connect
from session_scheduler.cluster.port import Cluster
from session_scheduler.cluster.refused_kinds import REFUSALS, is_rare, remedy
from session_scheduler.engine.scheduler import KINDS, OPTIONAL_KINDS, READ_BY
from session_scheduler.model.gang_plan import config_map_of
from session_scheduler.model.objects import ConfigMap, KubeObject, PodGroup, PortObject

_log = structlog.get_logger(__name__)
_REQUESTS: Final = RequestSettings(tries=3, read_patience=5.0, connections=4)
"""Few retries: a user waits for the command."""


class _FencedCluster(Cluster, Protocol):
    def fence_writes(self, check: Callable[[], None]) -> None:
        """Call `check` before each write."""


async def read_cluster(
    kubeconfig: str | None, context: str | None, namespace: str, plugins: Collection[str] = ()
) -> tuple[PortObject, ...]:
    """All objects that the scheduler watches, from a kubeconfig's cluster. Raises InputError or ClusterError.

    `namespace` is the scheduler's: it contains the plans that are too large for annotations. `plugins` are those that
    the configuration names: a kind that only one plugin reads may be refused without a warning if that plugin is not
    enabled.
    """
    async with await connect(kubeconfig, context, _REQUESTS) as cluster:
        return await _listed(cluster, namespace, plugins)


async def _listed(cluster: _FencedCluster, namespace: str, plugins: Collection[str] = ()) -> tuple[PortObject, ...]:
    """All objects that the scheduler watches; disables writes through `cluster`."""
    cluster.fence_writes(reject_writes)
    found: list[PortObject] = []
    for kind in KINDS:
        found.extend(await _kind(cluster, kind, plugins))
    for group in [obj for obj in found if isinstance(obj, PodGroup)]:
        if name := config_map_of(group):  # the group's plan is in it
            with suppress(*REFUSALS):  # the scheduler ignores these errors, too
                found.append(await cluster.get(ConfigMap, namespace, name))
    return tuple(found)


def reject_writes() -> NoReturn:
    """Called for every write of a command that only reads. Raises RuntimeError."""
    raise RuntimeError("unexpected write: this command only reads the cluster")


async def _kind(cluster: _FencedCluster, kind: type[KubeObject], plugins: Collection[str]) -> Sequence[KubeObject]:
    try:
        return (await cluster.list(kind)).items
    except REFUSALS as error:
        if is_rare(kind.__name__, error) or READ_BY.get(kind) not in (None, *plugins):
            return ()
        advice = remedy(kind.__name__, error).replace("this account", "your account")
        if kind not in OPTIONAL_KINDS:
            raise type(error)(f"{error}; {advice}") from None
        _log.warning(f"continuing without {kind.__name__} objects: {error}; {advice}")
        return ()
    except ClusterError as error:
        raise type(error)(
            f"{error}; check the cluster's address in the kubeconfig, and whether the API server is running"
        ) from None
