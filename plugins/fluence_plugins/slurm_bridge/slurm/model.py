"""Jobs, nodes and what jobs have of them, as the plugin sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fluence_plugins.slurm_bridge.slurm.placeholder import PodIdentity

EXTERNAL: Final = "EXTERNAL_JOB"
_ENDED: Final = frozenset(
    {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"}
    | {"LAUNCH_FAILED", "REVOKED", "RECONFIG_FAIL"}
)
"""The states of a job that has ended; flags as COMPLETING may stand beside them."""


@dataclass(frozen=True, slots=True)
class JobDefaults:
    """What is the same in all jobs of a scheduler."""

    cluster: str = ""
    """This cluster's identity in admin_comment: jobs of other clusters may be in the same Slurm."""
    mcs_label: str = "kubernetes"
    partition: str = "slurm-bridge"
    """Of a job that names none."""


@dataclass(frozen=True, slots=True)
class JobComment:
    """The admin_comment of a placeholder job: `{"pods":["ns/name"],"uids":["…"],"cluster":"…"}`.

    slurm-bridge writes the pods alone: then uids and cluster are empty.
    """

    pods: tuple[PodIdentity, ...]
    cluster: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as Slurm has it. Times are seconds since 1970."""

    job_id: int
    name: str = ""
    states: frozenset[str] = frozenset()
    reason: str = ""
    """Why it waits: Resources, Priority, …; empty for none."""
    description: str = ""
    """More about that, where Slurm says more."""
    nodes: tuple[str, ...] = ()
    """In Slurm's order."""
    comment: JobComment | None = None
    """None where another than a slurm-bridge wrote it."""
    start: int | None = None
    """Expected while it waits, real once it runs; None where Slurm does not say."""
    end: int | None = None
    submitted: int = 0
    partition: str = ""
    flags: frozenset[str] = frozenset()
    gres_detail: tuple[str, ...] = ()
    exclusive: bool = False
    required_nodes: str = ""
    """The candidates as Slurm writes them, a host list."""
    priority: int | None = None
    time_limit_minutes: int | None = None

    @property
    def ended(self) -> bool:
        """Whether it will not run any more."""
        return bool(self.states & _ENDED)

    @property
    def pending(self) -> bool:
        """Whether it waits for nodes."""
        return "PENDING" in self.states and not self.ended

    @property
    def allocated(self) -> bool:
        """Whether it has its nodes and runs. A job that is being ended is not: its nodes are on their way back."""
        return "RUNNING" in self.states and bool(self.nodes) and not self.ended and "COMPLETING" not in self.states

    @property
    def external(self) -> bool:
        """Whether it is of the kind that the plugin submits: no process of Slurm's belongs to it."""
        return EXTERNAL in self.flags


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An item of a list that is not as the schema has it. A job of that number is there all the same."""

    key: int | str | None
    """The job's number or the node's name, where that much can be read."""
    why: str


@dataclass(frozen=True, slots=True)
class JobList:
    """All jobs that Slurm knows, at `last_update`."""

    jobs: tuple[Job, ...]
    last_update: int
    """What to ask with next time, as `since`."""
    changed: bool = True
    """False where nothing has changed since: then there are no jobs in it."""
    unreadable: tuple[Unreadable, ...] = ()


@dataclass(frozen=True, slots=True)
class Gres:
    """Devices of a node, or of a job's share of it."""

    name: str
    type: str
    count: int
    indices: tuple[int, ...]
    """Empty where Slurm counts them only."""


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
    """A node as Slurm has it."""

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
        """Whether it is given no new jobs, by somebody's word."""
        return "DRAIN" in self.states

    @property
    def external(self) -> bool:
        """Whether no slurmd is expected there."""
        return "EXTERNAL" in self.states
