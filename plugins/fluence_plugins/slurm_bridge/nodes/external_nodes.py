"""External nodes: what a Kubernetes node must be in Slurm, and the steps that make it so. No I/O.

Labels and annotations become part of a line of Slurm's configuration, in which a space starts the next option. So each
part is validated for the characters that it may have.
Source: slurm.conf(5) and slurmctld 26.05 itself; slurm-bridge 1.2.1, internal/controller/node, for names and reasons.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fluence_plugins.slurm_bridge.names import (
    EXTERNAL_NODE_LABEL,
    NODE_NAME_LABEL,
    PARTITIONS_ANNOTATION,
    TOPOLOGY_ANNOTATION,
)
from fluence_plugins.slurm_bridge.slurm.gres import DEFAULT_RESOURCES
from fluence_plugins.slurm_bridge.slurm.model import SlurmNode
from session_scheduler.errors import shown
from session_scheduler.model.meta import Quantity
from session_scheduler.model.objects import Node
from session_scheduler.model.quantity import QuantityError, billionths

REASON: Final = "slurm-bridge:"
"""The prefix of the reasons of drains that the plugin may end; those of SchedMD's slurm-bridge have it, too."""
_REMOVING: Final = f"{REASON} slurm-bridge: removing external node"
"""The reason of a removal that SchedMD's slurm-bridge has started."""
_MARK: Final = "fluence: external node of "
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_RESERVED: Final = frozenset({"default", "all", "none", "localhost"})
"""Words with a meaning of their own in slurm.conf, which are not valid node names."""
_WORD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_TOPOLOGY: Final = re.compile(r"[A-Za-z0-9_.-]+(?::[A-Za-z0-9_.-]+)+(?:,[A-Za-z0-9_.-]+(?::[A-Za-z0-9_.-]+)+)*")
_VALUE: Final = re.compile(r"[A-Za-z0-9_.,:=-]+")
_MOST_TOPOLOGY: Final = 1024
_MOST_DEVICES: Final = 4096
_NEAR: Final = 100
"""A node in Slurm is kept if it lacks at most this fraction (1/100) of the wanted memory."""
_BUSY: Final = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})


@dataclass(frozen=True, slots=True)
class NodeRules:
    """The settings that all external nodes share. All of them are in `partition`."""

    partition: str = "slurm-bridge"
    address: str = ""
    """The NodeAddr of all nodes; empty for each node's own address."""
    resources: tuple[tuple[str, str], ...] = tuple(DEFAULT_RESOURCES.items())
    """Extended resources, with the GRES of each: `name` or `name:type`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class External:
    """A node that Slurm must have."""

    name: str
    cpus: int
    memory_mib: int
    partitions: tuple[str, ...]
    features: tuple[str, ...] = ()
    """Features in addition to its partitions, which others have added."""
    gres: str = ""
    gres_conf: str = ""
    topology: str = ""
    address: str = ""

    @property
    def conf(self) -> str:
        """The node's line of configuration. Raises ValueError for a value that would start another option."""
        options = {
            "NodeName": self.name,
            "Sockets": "1",
            "CoresPerSocket": str(self.cpus),
            "ThreadsPerCore": "1",
            "CPUs": str(self.cpus),
            "RealMemory": str(self.memory_mib),
            "State": "External",
            "Feature": ",".join((*self.partitions, *self.features)),
            "Gres": self.gres,
            "GresConf": self.gres_conf,
            "Topology": self.topology,
            "NodeAddr": self.address,
        }
        for option, value in options.items():
            if value and not _VALUE.fullmatch(value):
                raise ValueError(f"{option}={shown(value)}: not a valid value in Slurm's configuration")
        return " ".join(f"{option}={value}" for option, value in options.items() if value)

    def keeping_features(self, found: SlurmNode, partitions: Collection[str]) -> External:
        """The same, with the features that other clients added to the node that the plugin replaces."""
        own = (*self.partitions, *partitions)
        return replace(self, features=tuple(one for one in found.features if one not in own and _WORD.fullmatch(one)))

    def differs(self, found: SlurmNode, partitions: Collection[str]) -> str:
        """Which differences from the existing node require a new node; empty if none do."""
        short = self.memory_mib - found.memory_mib
        near = 0 <= short * _NEAR <= self.memory_mib
        names = sorted(one for one in found.features if one in partitions or one in self.partitions)
        values = [
            ("CPUs", found.cpus, self.cpus),
            ("memory in MiB", found.memory_mib, found.memory_mib if near else self.memory_mib),
            ("GRES", re.sub(r"\([^)]*\)", "", found.gres) or "none", self.gres or "none"),
            ("partitions", ",".join(names) or "none", ",".join(sorted(self.partitions))),
        ]
        return ", ".join(f"{what} {there} → {wanted}" for what, there, wanted in values if there != wanted)


# ------------------------------------------------------------------ Kubernetes nodes


def is_external(node: Node) -> bool:
    """Whether the plugin creates and maintains the node in Slurm. The label's value does not matter."""
    return EXTERNAL_NODE_LABEL in node.metadata.labels


def slurm_name(node: Node) -> str:
    """The node's name in Slurm. Raises ValueError for an invalid name."""
    name = node.metadata.labels.get(NODE_NAME_LABEL) or node.metadata.name
    if not _NAME.fullmatch(name) or name.lower() in _RESERVED:
        raise ValueError(
            f"label {NODE_NAME_LABEL}: {shown(name)} is not a valid node name in Slurm; choose another one"
        )
    return name


def external(node: Node, rules: NodeRules, partitions: Collection[str]) -> External:
    """What the node must be in Slurm, which has these partitions. Raises ValueError with the problem."""
    cpus = _amount(node, "cpu")
    memory = _amount(node, "memory") >> 20
    if cpus < 1 or memory < 1:
        raise ValueError(
            f"the node has {cpus} whole allocatable CPUs and {memory} MiB of allocatable memory: Slurm needs at least "
            "1 of each"
        )
    gres, conf = _gres(node, dict(rules.resources))
    return External(
        name=slurm_name(node),
        cpus=cpus,
        memory_mib=memory,
        partitions=_partitions(node, rules, partitions),
        gres=gres,
        gres_conf=conf,
        topology=_topology(node),
        address=_address(node, rules),
    )


def _amount(node: Node, resource: str) -> int:
    """The allocatable amount, in whole units."""
    quantity: Quantity = node.status.allocatable.get(resource, 0)
    try:
        return max(0, billionths(quantity) // 10**9)
    except QuantityError as error:
        raise ValueError(f"status.allocatable[{resource}]: {error}") from None


def _partitions(node: Node, rules: NodeRules, there: Collection[str]) -> tuple[str, ...]:
    text = node.metadata.annotations.get(PARTITIONS_ANNOTATION, "")
    wanted = dict.fromkeys([rules.partition, *filter(None, (part.strip() for part in text.split(",")))])
    for name in wanted:
        if not _WORD.fullmatch(name):
            raise ValueError(f"annotation {PARTITIONS_ANNOTATION}: {shown(name)} is not a valid partition name; write "
                             "names separated by commas")  # fmt: skip
        if name not in there:
            where = "the configuration" if name == rules.partition else f"annotation {PARTITIONS_ANNOTATION}"
            raise ValueError(f"{where}: Slurm has no partition {name}; use one that it has, or add it to slurm.conf")
    return tuple(wanted)


def _topology(node: Node) -> str:
    text = node.metadata.annotations.get(TOPOLOGY_ANNOTATION, "").strip()
    if text and (len(text) > _MOST_TOPOLOGY or not _TOPOLOGY.fullmatch(text)):
        raise ValueError(f"annotation {TOPOLOGY_ANNOTATION}: {shown(text)} is not a valid topology of Slurm; write "
                         "topology:unit, separated by commas, such as topo-switch:s2,topo-block:b2")  # fmt: skip
    return text


def _gres(node: Node, resources: Mapping[str, str]) -> tuple[str, str]:
    counts: dict[str, int] = {}
    for resource, gres in resources.items():
        count = _amount(node, resource) if resource in node.status.allocatable else 0
        if count:
            counts[gres] = counts.get(gres, 0) + count
    if not counts:
        return "", ""
    if len(counts) > 1:
        raise ValueError(
            f"status.allocatable: an external node of Slurm can have only one kind of device, but this one has "
            f"{' and '.join(sorted(counts))}; keep only one of them in the plugin's resources"
        )
    ((kind, count),) = counts.items()
    if count > _MOST_DEVICES:
        raise ValueError(f"status.allocatable: {count} devices of kind {kind} exceed the limit of {_MOST_DEVICES}")
    name, _, type_ = kind.partition(":")
    fields = [f"count={count}", f"name={name}", *([f"type={type_}"] if type_ else [])]
    # Slurm ignores GPUs without files, and needs a file name for each. It does not open those of a node without slurmd.
    return f"{kind}:{count}", ",".join(fields + [f"file={name}-{number}" for number in range(count)])


def _address(node: Node, rules: NodeRules) -> str:
    if rules.address:
        return rules.address
    for one in node.status.addresses:
        if one.type == "InternalIP":
            try:
                return str(ipaddress.ip_address(one.address))
            except ValueError:
                continue
    return ""


# ------------------------------------------------------------------ Slurm's nodes


def mark_of(cluster: str) -> str:
    """The comment of the nodes that this cluster's plugin maintains in Slurm; it deletes no others."""
    return f"{_MARK}{cluster}"


def is_foreign(found: SlurmNode, mark: str) -> bool:
    """Whether another cluster's plugin maintains the node."""
    return found.comment.startswith(_MARK) and found.comment != mark


def is_ours(found: SlurmNode, mark: str) -> bool:
    """Whether this plugin may delete the node."""
    return found.external and (found.comment == mark or found.reason.startswith(_REMOVING))


def is_busy(found: SlurmNode) -> bool:
    """Whether the node has jobs."""
    return bool(found.states & _BUSY) or found.allocated_cpus > 0


def drained_by_us(found: SlurmNode) -> bool:
    """Whether the node is drained with a reason of the plugin, so that the plugin may undrain it."""
    return found.drained and found.reason.startswith(REASON)


# ------------------------------------------------------------------ steps


@dataclass(frozen=True, slots=True)
class Create:
    """Create the node."""

    spec: External


@dataclass(frozen=True, slots=True)
class Drain:
    """Drain the node, so that it gets no new jobs."""

    reason: str


@dataclass(frozen=True, slots=True)
class Undrain:
    """End the plugin's drain."""


@dataclass(frozen=True, slots=True)
class Change:
    """Change the given fields; None leaves a field unchanged."""

    topology: str | None = None
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the node from Slurm. If it has jobs by then, the remaining steps are skipped."""


Step = Create | Drain | Undrain | Change | Delete


def steps(
    node: Node | None, found: SlurmNode | None, spec: External | None, *, mark: str, partitions: Collection[str]
) -> Sequence[Step]:
    """The steps for one name in Slurm, in order.

    `node` is the Kubernetes node with that name, if any; `spec` is what an external node must be. Raises ValueError if
    Slurm has a node with that name that the plugin must not change.
    """
    if found is None:
        return _made(node, spec, mark) if node is not None and spec is not None else ()
    if is_foreign(found, mark):
        if spec is not None:
            raise ValueError(
                f"Slurm has a node {found.name} that another cluster maintains ({shown(found.comment)}); "
                f"give the Kubernetes node another name (label {NODE_NAME_LABEL})"
            )
        return ()
    if spec is None:
        wanted = node is not None and is_external(node)  # but its spec is invalid
        return _removed(found) if is_ours(found, mark) and not wanted else _cordon(node, found)
    if not found.external:
        raise ValueError(f"Slurm's node {found.name} is not an external node, because it has a slurmd; "
                         f"remove the label {EXTERNAL_NODE_LABEL}, or remove the node from slurm.conf")  # fmt: skip
    why = spec.differs(found, partitions)
    if why and found.drained and not found.reason.startswith(REASON):
        return ()  # an administrator drained it, and a new node would not be drained
    if why:
        drain = () if found.drained else (Drain(f"{REASON} to be replaced: {why}"),)
        new = () if is_busy(found) else (Delete(), *_made(node, spec.keeping_features(found, partitions), mark))
        return (*drain, *new)
    topology = spec.topology if spec.topology != found.topology else None
    comment = mark if not found.comment else None
    change = (Change(topology, comment),) if topology is not None or comment is not None else ()
    return (*_cordon(node, found), *change)


def _made(node: Node | None, spec: External, mark: str) -> Sequence[Step]:
    drain = (Drain(_unschedulable(node)),) if node is not None and node.spec.unschedulable else ()
    return (Create(spec), *drain, Change(comment=mark))


def _removed(found: SlurmNode) -> Sequence[Step]:
    drain = () if found.drained else (Drain(f"{REASON} removing external node {found.name}"),)
    return drain if is_busy(found) else (*drain, Delete())


def _cordon(node: Node | None, found: SlurmNode) -> Sequence[Step]:
    """Drain a cordoned node; undrain a node that is no longer cordoned if the plugin drained it."""
    if node is None:
        return ()
    if node.spec.unschedulable:
        return () if found.drained else (Drain(_unschedulable(node)),)
    return (Undrain(),) if drained_by_us(found) else ()


def _unschedulable(node: Node) -> str:
    return f"{REASON} Kubernetes node {node.metadata.name} is unschedulable"


def missing_partitions(spec: External, found: SlurmNode) -> str:
    """Why Slurm does not have the node in all of its partitions, although its features match; empty if it has."""
    missing = [name for name in spec.partitions if name not in found.partitions]
    if not missing:
        return ""
    return (f"the node is not in Slurm's partition {', '.join(missing)}; add NodeSet={missing[0]} "
            f"Feature={missing[0]} and PartitionName={missing[0]} Nodes={missing[0]} to slurm.conf, and run "
            "scontrol reconfigure")  # fmt: skip
