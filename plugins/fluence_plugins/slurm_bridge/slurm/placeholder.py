"""What is asked of Slurm for some pods: the placeholder job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """A pod as a job's admin_comment names it. The uid is empty where another slurm-bridge wrote it."""

    namespace: str
    name: str
    uid: str = ""

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholder:
    """One Slurm job. None and empty texts are left to Slurm's defaults; what is missing here is the same for all jobs.

    Equal placeholders make equal jobs: a pending job is updated only where its own differs.
    """

    name: str
    pods: tuple[PodIdentity, ...]
    """In the order in which they are given the job's nodes."""
    minimum_nodes: int
    maximum_nodes: int
    tasks_per_node: int = 1
    cpus_per_task: int | None = None
    memory_mib: int | None = None
    """A node."""
    gres: str = ""
    """tres_per_node, as Slurm takes it: `gres/gpu:v100=2`."""
    account: str = ""
    constraints: str = ""
    exclusive: bool = True
    """Whether it has its nodes for itself."""
    user_id: str = ""
    group_id: str = ""
    licenses: str = ""
    partition: str = ""
    """Empty for the configured one."""
    priority: int | None = None
    qos: str = ""
    reservation: str = ""
    time_limit_minutes: int | None = None
    wckey: str = ""
