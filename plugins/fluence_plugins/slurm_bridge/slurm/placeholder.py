"""The placeholder job, which the plugin submits to Slurm for a group of pods."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """A pod in a job's admin_comment. The uid is empty if SchedMD's slurm-bridge wrote the comment."""

    namespace: str
    name: str
    uid: str = ""

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholder:
    """A Slurm job. Slurm's defaults apply to None and empty strings; `JobDefaults` has the fields that all jobs share.

    Equal placeholders make equal jobs: the plugin updates a pending job only if its placeholder has changed.
    """

    name: str
    pods: tuple[PodIdentity, ...]
    """In the order in which they get the job's nodes."""
    minimum_nodes: int
    maximum_nodes: int
    tasks_per_node: int = 1
    cpus_per_task: int | None = None
    memory_mib: int | None = None
    """Per node."""
    gres: str = ""
    """tres_per_node, in Slurm's format: `gres/gpu:v100=2`."""
    account: str = ""
    constraints: str = ""
    exclusive: bool = True
    """Whether the job has its nodes exclusively."""
    user_id: str = ""
    group_id: str = ""
    licenses: str = ""
    partition: str = ""
    """Empty for the configured partition."""
    priority: int | None = None
    qos: str = ""
    reservation: str = ""
    time_limit_minutes: int | None = None
    wckey: str = ""
