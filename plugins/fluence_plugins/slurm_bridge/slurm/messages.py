"""What is said to slurmrestd and what it answers, as types; and what of an answer the rest of the plugin sees.

Of an answer only the fields that are used are named, all others are skipped unread. Lists are read item by item: one
that is not as the schema has it hides no other. Optional numbers are `{"set":true,"infinite":false,"number":N}`.

Source: the schema that slurmrestd publishes at /openapi/v3, of Slurm 26.05, for v0.0.44. For v0.0.43 it has the same
fields and neither /new/node nor /resources; for v0.0.42 it lacks the flag EXTERNAL_JOB, and a node's topology, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from fluence_plugins.slurm_bridge.slurm import hostlist
from fluence_plugins.slurm_bridge.slurm.errors import InvalidRequestError, one_line
from fluence_plugins.slurm_bridge.slurm.placeholder import Placeholder, PodIdentity

COMMENT_CHARACTERS: Final = 1 << 20
"""The longest admin_comment that is written or read."""
BROKEN: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What decoding raises: the last where somebody nests brackets by the thousand."""
_EXTERNAL: Final = "EXTERNAL_JOB"
_ENDED: Final = frozenset(
    {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"}
    | {"LAUNCH_FAILED", "REVOKED", "RECONFIG_FAIL"}
)
"""The states of a job that has ended; flags as COMPLETING may stand beside them."""

# ------------------------------------------------------------------ what the plugin sees


@dataclass(frozen=True, slots=True)
class Fixed:
    """What is the same in all jobs of a scheduler."""

    cluster: str
    """Who we are, in admin_comment: other clusters' jobs may be in the same Slurm."""
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
        return _EXTERNAL in self.flags


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


# ------------------------------------------------------------------ numbers


class Number(msgspec.Struct, frozen=True, omit_defaults=False):
    """An optional number."""

    set: bool = False
    infinite: bool = False
    number: int | float = 0

    def value(self) -> int | None:
        """The number, or None where it is none, or infinite."""
        return int(self.number) if self.set and not self.infinite else None


_Numeric = Number | int | None


def _value(number: _Numeric) -> int | None:
    return number.value() if isinstance(number, Number) else number


def _time(number: _Numeric) -> int | None:
    """Slurm says 0 for a time that it does not know."""
    return _value(number) or None


# ------------------------------------------------------------------ requests


class JobMessage(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """job_desc_msg, as far as it is used. What is None or empty is not sent."""

    name: str
    admin_comment: str
    nodes: str
    minimum_nodes: int
    maximum_nodes: int
    tasks_per_node: int
    current_working_directory: str
    required_nodes: tuple[str, ...] = ()
    partition: str = ""
    mcs_label: str = ""
    cpus_per_task: int | None = None
    memory_per_node: Number | None = None
    tres_per_node: str = ""
    account: str = ""
    constraints: str = ""
    shared: tuple[str, ...] = ()
    user_id: str = ""
    group_id: str = ""
    licenses: str = ""
    priority: Number | None = None
    qos: str = ""
    reservation: str = ""
    time_limit: Number | None = None
    wckey: str = ""
    flags: tuple[str, ...] = ()


class SubmitMessage(msgspec.Struct, frozen=True):
    """job_submit_req."""

    job: JobMessage


class NodeMessage(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """update_node_msg, as far as it is used. None is not sent. Slurm takes no features for no change of them."""

    state: tuple[str, ...] | None = None
    reason: str | None = None
    features: tuple[str, ...] | None = None
    features_act: tuple[str, ...] | None = None
    topology_str: str | None = None
    comment: str | None = None
    gres: str | None = None


def job_message(job: Placeholder, fixed: Fixed, candidates: Sequence[str]) -> JobMessage:
    """The job as Slurm is asked for it. Raises: InvalidRequestError, where a comment cannot name all its pods."""
    return JobMessage(
        name=job.name,
        admin_comment=written_comment(JobComment(job.pods, fixed.cluster)),
        nodes=str(len(job.pods)),
        minimum_nodes=job.minimum_nodes,
        maximum_nodes=job.maximum_nodes,
        tasks_per_node=job.tasks_per_node,
        current_working_directory="/tmp",  # noqa: S108  # Slurm wants one; nothing runs there
        required_nodes=tuple(candidates),
        partition=job.partition or fixed.partition,
        mcs_label=fixed.mcs_label,
        cpus_per_task=job.cpus_per_task,
        memory_per_node=_number(job.memory_mib),
        tres_per_node=job.gres,
        account=job.account,
        constraints=job.constraints,
        shared=("none",) if job.exclusive else (),
        user_id=job.user_id,
        group_id=job.group_id,
        licenses=job.licenses,
        priority=_number(job.priority),
        qos=job.qos,
        reservation=job.reservation,
        time_limit=_number(job.time_limit_minutes),
        wckey=job.wckey,
        flags=(_EXTERNAL,),
    )


def _number(value: int | None) -> Number | None:
    return None if value is None else Number(set=True, number=value)


# ------------------------------------------------------------------ admin_comment


class _Comment(msgspec.Struct, frozen=True, omit_defaults=True):
    pods: tuple[str, ...]
    uids: tuple[str, ...] = ()
    cluster: str = ""


_read_comment = msgspec.json.Decoder(_Comment).decode


def written_comment(comment: JobComment) -> str:
    """The text of an admin_comment. Raises: InvalidRequestError, where it would be too long to be read again."""
    uids = tuple(pod.uid for pod in comment.pods)
    wire = _Comment(tuple(pod.key for pod in comment.pods), uids if any(uids) else (), comment.cluster)
    text = msgspec.json.encode(wire).decode()
    if len(text) > COMMENT_CHARACTERS:
        what = (
            f"the names of its {len(uids)} pods have {len(text)} characters, a job's comment has {COMMENT_CHARACTERS}"
        )
        raise InvalidRequestError("job", 0, what)
    return text


def read_comment(text: str) -> JobComment | None:
    """What an admin_comment says, or None where no slurm-bridge can have written it: anybody may write one."""
    if not text.startswith("{") or len(text) > COMMENT_CHARACTERS:
        return None
    try:
        wire = _read_comment(text)
    except BROKEN:
        return None
    uids = wire.uids or ("",) * len(wire.pods)
    keys = [pod.split("/") for pod in wire.pods]
    if not keys or len(uids) != len(keys) or any(len(key) != 2 or not all(key) for key in keys):
        return None
    return JobComment(
        tuple(PodIdentity(key[0], key[1], uid) for key, uid in zip(keys, uids, strict=True)), wire.cluster
    )


# ------------------------------------------------------------------ answers


class ErrorItem(msgspec.Struct, frozen=True):
    """openapi_error. Slurm leaves the number away, or says -1, where it has none."""

    description: str | None = None
    error_number: int | None = None
    error: str | None = None
    source: str | None = None

    @property
    def text(self) -> str:
        """What it says, for people."""
        return ": ".join(dict.fromkeys(part for part in (self.description, self.error) if part))


class Warning_(msgspec.Struct, frozen=True):  # noqa: N801  # Warning is Python's
    """openapi_warning."""

    description: str | None = None
    source: str | None = None


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """What is in every answer."""

    errors: list[ErrorItem] | None = None
    warnings: list[Warning_] | None = None


class SubmitAnswer(Envelope, frozen=True, kw_only=True):
    """openapi_job_submit_response."""

    job_id: int | None = None


class UpdateResult(msgspec.Struct, frozen=True):
    """job_array_response_msg_entry."""

    error_code: int | None = None
    error: str | None = None
    why: str | None = None


class UpdateAnswer(Envelope, frozen=True, kw_only=True):
    """openapi_job_post_response. `results` is null where all went well."""

    results: list[UpdateResult] | None = None


class SignalError(msgspec.Struct, frozen=True):
    """Why one job got no signal."""

    code: int | None = None
    string: str | None = None
    message: str | None = None


class SignalResult(msgspec.Struct, frozen=True):
    """kill_jobs_resp_job."""

    error: SignalError | None = None


class CancelAnswer(Envelope, frozen=True, kw_only=True):
    """openapi_kill_job_resp."""

    status: list[SignalResult] | None = None


class JobsAnswer(Envelope, frozen=True, kw_only=True):
    """openapi_job_info_resp."""

    jobs: list[msgspec.Raw] | None = None
    last_update: _Numeric = None

    @property
    def updated(self) -> int:
        """When the list was made; 0 where it has not changed."""
        return _value(self.last_update) or 0


class NodesAnswer(Envelope, frozen=True, kw_only=True):
    """openapi_nodes_resp, and of /resources: both call their list so."""

    nodes: list[msgspec.Raw] | None = None


class Named(msgspec.Struct, frozen=True):
    """Anything with a name."""

    name: str


class PartitionsAnswer(Envelope, frozen=True, kw_only=True):
    """openapi_partition_resp."""

    partitions: list[Named] | None = None


class Ping(msgspec.Struct, frozen=True):
    """controller_ping."""

    responding: bool | None = None
    pinged: str | None = None


class PingAnswer(Envelope, frozen=True, kw_only=True):
    """openapi_ping_array_resp."""

    pings: list[Ping] | None = None


class _JobWire(msgspec.Struct, frozen=True, kw_only=True):
    job_id: int
    job_state: list[str]
    name: str | None = None
    state_reason: str | None = None
    state_description: str | None = None
    nodes: str | None = None
    admin_comment: str | None = None
    start_time: _Numeric = None
    end_time: _Numeric = None
    submit_time: _Numeric = None
    partition: str | None = None
    flags: list[str] | None = None
    gres_detail: list[str] | None = None
    shared: list[str] | None = None
    required_nodes: str | None = None
    priority: _Numeric = None
    time_limit: _Numeric = None


class _JobKey(msgspec.Struct, frozen=True):
    job_id: int


class _NodeWire(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: list[str]
    reason: str | None = None
    features: list[str] | None = None
    partitions: list[str] | None = None
    gres: str | None = None
    gres_used: str | None = None
    cpus: int | None = None
    alloc_cpus: int | None = None
    real_memory: int | None = None
    alloc_memory: int | None = None
    topology: str | None = None
    address: str | None = None
    comment: str | None = None
    extra: str | None = None


_job_wire = msgspec.json.Decoder(_JobWire).decode
_job_key = msgspec.json.Decoder(_JobKey).decode
_node_wire = msgspec.json.Decoder(_NodeWire).decode
_node_key = msgspec.json.Decoder(Named).decode


class UnreadableError(ValueError):
    """An answer, or an item of one, is not as the schema has it."""


_Item = TypeVar("_Item")


def _each(
    items: Sequence[msgspec.Raw] | None, read: Callable[[bytes], _Item], key: Callable[[bytes], int | str]
) -> tuple[tuple[_Item, ...], tuple[Unreadable, ...]]:
    """Each item that can be read, and those that cannot."""
    good: list[_Item] = []
    bad: list[Unreadable] = []
    for item in items or ():
        try:
            good.append(read(bytes(item)))
        except (*BROKEN, ValueError, OverflowError, hostlist.HostlistError) as why:
            try:
                name = key(bytes(item))
            except BROKEN:
                name = None
            bad.append(Unreadable(name, one_line(str(why))))
    return tuple(good), tuple(bad)


def jobs_of(items: Sequence[msgspec.Raw] | None) -> tuple[tuple[Job, ...], tuple[Unreadable, ...]]:
    """The jobs of a list, and what in it is none."""
    return _each(items, _job, lambda item: _job_key(item).job_id)


def nodes_of(items: Sequence[msgspec.Raw] | None) -> tuple[tuple[SlurmNode, ...], tuple[Unreadable, ...]]:
    """The nodes of a list, and what in it is none."""
    return _each(items, _node, lambda item: _node_key(item).name)


def _job(item: bytes) -> Job:
    wire = _job_wire(item)
    return Job(
        job_id=wire.job_id,
        name=wire.name or "",
        states=frozenset(wire.job_state),
        reason="" if wire.state_reason in (None, "None") else wire.state_reason,
        description=wire.state_description or "",
        nodes=hostlist.expand(wire.nodes or ""),
        comment=read_comment(wire.admin_comment or ""),
        start=_time(wire.start_time),
        end=_time(wire.end_time),
        submitted=_value(wire.submit_time) or 0,
        partition=wire.partition or "",
        flags=frozenset(wire.flags or ()),
        gres_detail=tuple(wire.gres_detail or ()),
        exclusive="none" in (wire.shared or ()),
        required_nodes=wire.required_nodes or "",
        priority=_value(wire.priority),
        time_limit_minutes=_value(wire.time_limit),
    )


def _node(item: bytes) -> SlurmNode:
    wire = _node_wire(item)
    return SlurmNode(
        name=wire.name,
        states=frozenset(wire.state),
        reason=wire.reason or "",
        features=tuple(wire.features or ()),
        partitions=tuple(wire.partitions or ()),
        gres=wire.gres or "",
        gres_used=wire.gres_used or "",
        cpus=wire.cpus or 0,
        allocated_cpus=wire.alloc_cpus or 0,
        memory_mib=wire.real_memory or 0,
        allocated_memory_mib=wire.alloc_memory or 0,
        topology=wire.topology or "",
        address=wire.address or "",
        comment=wire.comment or "",
        extra=wire.extra or "",
    )
