"""The messages of slurmrestd: encodes requests from placeholders, decodes responses into the model.

Only the fields that the plugin uses are declared; the decoder skips the others. Lists are decoded item by item, so that
one invalid item does not hide the others. Optional numbers are `{"set":true,"infinite":false,"number":N}`.

Source: the schema that slurmrestd of Slurm 26.05 publishes at /openapi/v3, for v0.0.44. v0.0.43 has the same fields,
but neither /new/node nor /resources; v0.0.42 also lacks the flag EXTERNAL_JOB and a node's topology.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from fluence_plugins.slurm_bridge.slurm import hostlist
from fluence_plugins.slurm_bridge.slurm.admin_comment import decode_comment, encode_comment
from fluence_plugins.slurm_bridge.slurm.errors import DECODE_ERRORS, one_line
from fluence_plugins.slurm_bridge.slurm.model import EXTERNAL, Job, JobComment, JobDefaults, SlurmNode, Unreadable
from fluence_plugins.slurm_bridge.slurm.placeholder import Placeholder

# ------------------------------------------------------------------ numbers


class Number(msgspec.Struct, frozen=True, omit_defaults=False):
    """An optional number."""

    set: bool = False
    infinite: bool = False
    number: int | float = 0

    def value(self) -> int | None:
        """The number; None if it is not set or infinite."""
        return int(self.number) if self.set and not self.infinite else None


_Numeric = Number | int | None


def _value(number: _Numeric) -> int | None:
    return number.value() if isinstance(number, Number) else number


def _time(number: _Numeric) -> int | None:
    """A time. Slurm writes 0 for an unknown one."""
    return _value(number) or None


# ------------------------------------------------------------------ requests


class JobMessage(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """job_desc_msg with the fields that the plugin uses. None and empty fields are not sent."""

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
    """update_node_msg with the fields that the plugin uses. None is not sent. Slurm ignores an
    empty list of features.
    """

    state: tuple[str, ...] | None = None
    reason: str | None = None
    features: tuple[str, ...] | None = None
    features_act: tuple[str, ...] | None = None
    topology_str: str | None = None
    comment: str | None = None
    gres: str | None = None


def job_message(job: Placeholder, defaults: JobDefaults, candidates: Sequence[str]) -> JobMessage:
    """The message that submits a job. Raises InvalidRequestError if a comment cannot name all of its pods."""
    return JobMessage(
        name=job.name,
        admin_comment=encode_comment(JobComment(job.pods, defaults.cluster)),
        nodes=str(len(job.pods)),
        minimum_nodes=job.minimum_nodes,
        maximum_nodes=job.maximum_nodes,
        tasks_per_node=job.tasks_per_node,
        current_working_directory="/tmp",  # noqa: S108  # Slurm requires one; nothing runs there
        required_nodes=tuple(candidates),
        partition=job.partition or defaults.partition,
        mcs_label=defaults.mcs_label,
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
        flags=(EXTERNAL,),
    )


def _number(value: int | None) -> Number | None:
    return None if value is None else Number(set=True, number=value)


# ------------------------------------------------------------------ answers


class ErrorItem(msgspec.Struct, frozen=True):
    """openapi_error. If Slurm has no number, it omits it or writes -1."""

    description: str | None = None
    error_number: int | None = None
    error: str | None = None
    source: str | None = None

    @property
    def text(self) -> str:
        """The error's messages."""
        return ": ".join(dict.fromkeys(part for part in (self.description, self.error) if part))


class Warning_(msgspec.Struct, frozen=True):  # noqa: N801  # Warning is Python's
    """openapi_warning."""

    description: str | None = None
    source: str | None = None


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that every response has."""

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
    """openapi_job_post_response. `results` is null on success."""

    results: list[UpdateResult] | None = None


class SignalError(msgspec.Struct, frozen=True):
    """Why Slurm did not signal a job."""

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
        """The time of the list; 0 if it has not changed."""
        return _value(self.last_update) or 0


class NodesAnswer(Envelope, frozen=True, kw_only=True):
    """openapi_nodes_resp, and the response of /resources: both have a list of this name."""

    nodes: list[msgspec.Raw] | None = None


class Named(msgspec.Struct, frozen=True):
    """An object with a name."""

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


_NODE_FIELDS = {
    "states": "state",
    "allocated_cpus": "alloc_cpus",
    "memory_mib": "real_memory",
    "allocated_memory_mib": "alloc_memory",
}


class _NodeWire(msgspec.Struct, frozen=True, kw_only=True, rename=_NODE_FIELDS.get):
    """The fields of SlurmNode, by their names in Slurm."""

    name: str
    states: frozenset[str]
    reason: str | None = None
    features: tuple[str, ...] | None = None
    partitions: tuple[str, ...] | None = None
    gres: str | None = None
    gres_used: str | None = None
    cpus: int | None = None
    allocated_cpus: int | None = None
    memory_mib: int | None = None
    allocated_memory_mib: int | None = None
    topology: str | None = None
    address: str | None = None
    comment: str | None = None
    extra: str | None = None


_job_wire = msgspec.json.Decoder(_JobWire).decode
_job_key = msgspec.json.Decoder(_JobKey).decode
_node_wire = msgspec.json.Decoder(_NodeWire).decode
_node_key = msgspec.json.Decoder(Named).decode


class UnreadableError(ValueError):
    """A response, or an item of one, does not match the schema."""


_Item = TypeVar("_Item")


def _each(
    items: Sequence[msgspec.Raw] | None, read: Callable[[bytes], _Item], key: Callable[[bytes], int | str]
) -> tuple[tuple[_Item, ...], tuple[Unreadable, ...]]:
    """The items that can be decoded, and those that cannot."""
    good: list[_Item] = []
    bad: list[Unreadable] = []
    for item in items or ():
        try:
            good.append(read(bytes(item)))
        except (*DECODE_ERRORS, ValueError, OverflowError, hostlist.HostlistError) as why:
            try:
                name = key(bytes(item))
            except DECODE_ERRORS:
                name = None
            bad.append(Unreadable(name, one_line(str(why))))
    return tuple(good), tuple(bad)


def jobs_of(items: Sequence[msgspec.Raw] | None) -> tuple[tuple[Job, ...], tuple[Unreadable, ...]]:
    """The jobs of a list, and the items that are not valid jobs."""
    return _each(items, _job, lambda item: _job_key(item).job_id)


def nodes_of(items: Sequence[msgspec.Raw] | None) -> tuple[tuple[SlurmNode, ...], tuple[Unreadable, ...]]:
    """The nodes of a list, and the items that are not valid nodes."""
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
        comment=decode_comment(wire.admin_comment or ""),
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
    fields = msgspec.structs.asdict(_node_wire(item))
    return SlurmNode(**{name: value for name, value in fields.items() if value is not None})
