"""Sample Slurm jobs as the client returns them."""

from __future__ import annotations

from typing import Any

from fluence_plugins.slurm_bridge.slurm.model import Job, JobComment
from fluence_plugins.slurm_bridge.slurm.placeholder import PodIdentity
from session_scheduler.model.objects import Pod

_UNSET: Any = object()


def job(
    number: int,
    *pods: Pod,
    nodes: tuple[str, ...] = (),
    states: tuple[str, ...] = (),
    uids: bool = True,
    cluster: str = "here",
    comment: JobComment | None = _UNSET,
    **more: Any,
) -> Job:
    """A job, pending or with nodes. With `uids` it names pods as this bridge does, otherwise as the original does."""
    named = tuple(
        PodIdentity(one.metadata.namespace, one.metadata.name, one.metadata.uid if uids else "") for one in pods
    )
    said = JobComment(pods=named, cluster=cluster) if comment is _UNSET else comment
    known = frozenset(states or (("RUNNING",) if nodes else ("PENDING",)))
    fields: dict[str, Any] = {"name": "job", "reason": "", "start": None, "end": None, "submitted": 0, **more}
    return Job(job_id=number, states=known, nodes=nodes, comment=said, **fields)
