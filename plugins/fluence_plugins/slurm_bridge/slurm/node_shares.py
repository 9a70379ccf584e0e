"""Decodes a job's share of each of its nodes: from /resources, or before v0.0.44 from the job itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from fluence_plugins.slurm_bridge.slurm import hostlist
from fluence_plugins.slurm_bridge.slurm.errors import DECODE_ERRORS
from fluence_plugins.slurm_bridge.slurm.messages import UnreadableError
from fluence_plugins.slurm_bridge.slurm.model import Gres, NodeShare
from session_scheduler.errors import shown

_CORES: Final = 1 << 16
"""The maximum number of cores of a node."""
_INDICES: Final = 1 << 16
"""The maximum number of indices of a GRES on a node."""
_ALLOCATED: Final = frozenset({"ALLOCATED", "IN_USE"})
_DETAIL: Final = re.compile(r"(?P<name>[^:(,]+)(?::(?P<type>[^:(,]+))?:(?P<count>\d{1,9})(?:\(IDX:(?P<index>[^)]*)\))?")
"""An entry of gres_detail: `gpu:a100:2(IDX:0-1)`."""


class _GresWire(msgspec.Struct, frozen=True):
    name: str
    type: str | None = None
    count: int | None = None
    index: str | None = None


class _ShareWire(msgspec.Struct, frozen=True):
    node: str
    core_bitmap: str | None = None
    gres: list[_GresWire] | None = None
    mem_alloc: int | None = None


class _Core(msgspec.Struct, frozen=True):
    index: int
    status: list[str] = []


class _Socket(msgspec.Struct, frozen=True):
    index: int
    cores: list[_Core] = []


class _Memory(msgspec.Struct, frozen=True):
    allocated: int = 0


class _Allocation(msgspec.Struct, frozen=True):
    name: str
    sockets: list[_Socket] = []
    memory: _Memory = _Memory()


class _Nodes(msgspec.Struct, frozen=True):
    allocation: list[_Allocation] = []


class _Resources(msgspec.Struct, frozen=True):
    nodes: _Nodes = _Nodes()


class _JobWire(msgspec.Struct, frozen=True):
    job_state: list[str] = []
    job_resources: _Resources | None = None
    gres_detail: list[str] = []


_share_wire = msgspec.json.Decoder(_ShareWire).decode
_job_wire = msgspec.json.Decoder(_JobWire).decode


def shares_of(items: Sequence[msgspec.Raw] | None) -> tuple[NodeShare, ...]:
    """The shares that /resources lists. Raises UnreadableError if one of them is invalid."""
    try:
        return tuple(_share(_share_wire(bytes(item))) for item in items or ())
    except (*DECODE_ERRORS, hostlist.HostlistError) as why:
        raise UnreadableError(str(why)) from None


def shares_of_job(job: msgspec.Raw) -> tuple[NodeShare, ...]:
    """The shares in a running job; an ended job has none, although it still names its nodes. Raises UnreadableError."""
    try:
        wire = _job_wire(bytes(job))
    except DECODE_ERRORS as why:
        raise UnreadableError(str(why)) from None
    if "RUNNING" not in wire.job_state:
        return ()
    nodes = wire.job_resources.nodes.allocation if wire.job_resources is not None else []
    details = wire.gres_detail if len(wire.gres_detail) == len(nodes) else [""] * len(nodes)
    return tuple(
        NodeShare(node.name, _allocated(node.sockets), _detailed(detail), node.memory.allocated)
        for node, detail in zip(nodes, details, strict=True)
    )


def _share(wire: _ShareWire) -> NodeShare:
    gres = tuple(Gres(of.name, of.type or "", of.count or 0, _indices(of.index or "")) for of in wire.gres or ())
    return NodeShare(wire.node, _set_bits(wire.core_bitmap or ""), gres, wire.mem_alloc or 0)


def _allocated(sockets: Sequence[_Socket]) -> tuple[int, ...]:
    """The allocated cores, numbered over all sockets."""
    found: list[int] = []
    before = 0
    for socket in sorted(sockets, key=lambda socket: socket.index):
        found.extend(before + core.index for core in socket.cores if not _ALLOCATED.isdisjoint(core.status))
        before += len(socket.cores)
    return tuple(found)


def _detailed(detail: str) -> tuple[Gres, ...]:
    try:
        return tuple(
            Gres(found["name"], found["type"] or "", int(found["count"]), _indices(found["index"] or ""))
            for found in _DETAIL.finditer(detail)
        )
    except hostlist.HostlistError as why:
        raise UnreadableError(str(why)) from None


def _indices(text: str) -> tuple[int, ...]:
    """The indices in a string such as `0-1,3`; none in other strings (`N/A`)."""
    if not text or not text[0].isdigit():
        return ()
    return tuple(int(index) for index in hostlist.expand(f"[{text}]", limit=_INDICES))


def _set_bits(bitmap: str) -> tuple[int, ...]:
    """The positions of the 1 bits in a string such as `0x0F`, lowest first."""
    if not bitmap:
        return ()
    digits = bitmap.removeprefix("0x")
    if len(digits) * 4 > _CORES:
        raise UnreadableError(f"a bitmap has {len(digits) * 4} cores; the limit is {_CORES}")
    try:
        bits = int(digits, 16)
    except ValueError:
        raise UnreadableError(f"expected a bitmap, got {shown(bitmap)}") from None
    return tuple(index for index in range(bits.bit_length()) if bits >> index & 1)
