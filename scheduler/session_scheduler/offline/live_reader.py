"""A live cluster's state at one time, for commands that only read; listed as the scheduler lists it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn

import structlog

from session_scheduler.cluster.errors import ClusterError, Forbidden, Invalid, NotFound
from session_scheduler.cluster.kube_requests import RequestSettings
from session_scheduler.cluster.kubernetes import KubernetesCluster, connect
from session_scheduler.cluster.mirror import remedy
from session_scheduler.engine.scheduler import KINDS, OPTIONAL_KINDS
from session_scheduler.model.gang_plan import config_map_of
from session_scheduler.model.objects import ConfigMap, KubeObject, PodGroup, PortObject

_log = structlog.get_logger(__name__)
_IMPATIENT: Final = RequestSettings(tries=3, read_patience=5.0, connections=4)
"""A user waits for the answer."""
_REFUSALS: Final = (Forbidden, Invalid, NotFound)


async def read_cluster(kubeconfig: str | None, context: str | None) -> tuple[PortObject, ...]:
    """All that the scheduler watches of the cluster that a kubeconfig names. Raises InputError, ClusterError."""
    async with await connect(kubeconfig, context, _IMPATIENT) as cluster:
        return await _listed(cluster)


async def _listed(cluster: KubernetesCluster) -> tuple[PortObject, ...]:
    """All that the scheduler knows of a live cluster; nothing can be written through `cluster` any more."""
    cluster.fence_writes(_refuse_writes)
    found: list[PortObject] = []
    for kind in KINDS:
        found.extend(await _kind(cluster, kind))
    for group in [obj for obj in found if isinstance(obj, PodGroup)]:
        if name := config_map_of(group):  # its plan lies there
            with suppress(*_REFUSALS):  # the scheduler, too, does without
                found.append(await cluster.get(ConfigMap, group.metadata.namespace, name))
    return tuple(found)


def _refuse_writes() -> NoReturn:
    raise RuntimeError("a write to a cluster that is only looked at")


async def _kind(cluster: KubernetesCluster, kind: type[KubeObject]) -> Sequence[KubeObject]:
    try:
        return (await cluster.list(kind)).items
    except _REFUSALS as error:
        advice = remedy(kind.__name__, error).replace("this account", "your account")
        if kind not in OPTIONAL_KINDS:
            raise type(error)(f"{error}: {advice}") from None
        _log.warning(f"taken as if there were none: {error}: {advice}")
        return ()
    except ClusterError as error:
        raise type(error)(f"{error}: check the cluster's address in the kubeconfig, and that it runs") from None
