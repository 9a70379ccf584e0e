"""The types of Slurm's jobs and nodes, and of a job's share of a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fluence_plugins.slurm_bridge.slurm.placeholder import PodIdentity

EXTERNAL: Final = "EXTERNAL_JOB"
_ENDED: Final = frozenset(
    {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"}
    | {"LAUNCH_FAILED", "REVOKED", "RECONFIG_FAIL"}
)
"""The states of a job that has ended; flags such as COMPLETING may accompany them."""


@dataclass(frozen=True, slots=True)
class JobDefaults:
    """The values that all jobs of a scheduler share."""

    cluster: str = ""
    """This cluster's identity in admin_comment: several clusters may share one Slurm."""
    mcs_label: str = "kubernetes"
    partition: str = "slurm-bridge"
    """For jobs that name none."""


@dataclass(frozen=True, slots=True)
class JobComment:
    """The admin_comment of a placeholder job: `{"pods":["ns/name"],"uids":["…"],"cluster":"…"}`.

    SchedMD's slurm-bridge writes only the pods: then uids and cluster are empty.
    """

    pods: tuple[PodIdentity, ...]
    cluster: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as Slurm reports it. Times are seconds since 1970."""

    job_id: int
    name: str = ""
    states: frozenset[str] = frozenset()
    reason: str = ""
    """Why it waits: Resources, Priority, …; empty if Slurm gives no reason."""
    description: str = ""
    """Details of the reason, if any."""
    nodes: tuple[str, ...] = ()
    """In Slurm's order."""
    comment: JobComment | None = None
    """None if no slurm-bridge wrote it."""
    start: int | None = None
    """The expected start of a pending job, the actual one of a running job; None if Slurm reports none."""
    end: int | None = None
    submitted: int = 0
    partition: str = ""
    flags: frozenset[str] = frozenset()
    gres_detail: tuple[str, ...] = ()
    exclusive: bool = False
    required_nodes: str = ""
    """The candidate nodes, as a host list."""
    priority: int | None = None
    time_limit_minutes: int | None = None

    @property
    def ended(self) -> bool:
        """Whether the job has ended for good."""
        return bool(self.states & _ENDED)

    @property
    def pending(self) -> bool:
        """Whether the job waits for nodes."""
        return "PENDING" in self.states and not self.ended

    @property
    def allocated(self) -> bool:
        """Whether the job runs on its nodes. A completing job does not count: Slurm takes its nodes back."""
        return "RUNNING" in self.states and bool(self.nodes) and not self.ended and "COMPLETING" not in self.states

    @property
    def external(self) -> bool:
        """Whether the job is external, like the jobs that the plugin submits: Slurm runs no process for it."""
        return EXTERNAL in self.flags


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An item of a list that does not match the schema. The job or node exists nevertheless."""

    key: int | str | None
    """The job's number or the node's name, if they can be decoded."""
    why: str


@dataclass(frozen=True, slots=True)
class JobList:
    """The jobs that Slurm knows, at the time `last_update`."""

    jobs: tuple[Job, ...]
    last_update: int
    """The argument `since` for the next list."""
    changed: bool = True
    """False if nothing has changed: then the list is empty."""
    unreadable: tuple[Unreadable, ...] = ()


@dataclass(frozen=True, slots=True)
class Gres:
    """Devices of a node, or of a job's share of it."""

    name: str
    type: str
    count: int
    indices: tuple[int, ...]
    """Empty if Slurm only counts the devices."""


@dataclass(frozen=True, slots=True)
class NodeShare:
    """What a job has on one of its nodes."""

    node: str
    cores: tuple[int, ...]
    """Indices over all sockets."""
    gres: tuple[Gres, ...]
    memory_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """A node as Slurm reports it."""

    name: str
    states: frozenset[str] = frozenset()
    reason: str = ""
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    gres: str = ""
    gres_used: str = ""
    cpus: int = 0
    allocated_cpus: int = 0
    memory_mib: int = 0
    allocated_memory_mib: int = 0
    topology: str = ""
    address: str = ""
    comment: str = ""
    extra: str = ""

    @property
    def drained(self) -> bool:
        """Whether the node is drained, so that it gets no new jobs."""
        return "DRAIN" in self.states

    @property
    def external(self) -> bool:
        """Whether Slurm expects no slurmd on the node."""
        return "EXTERNAL" in self.states
