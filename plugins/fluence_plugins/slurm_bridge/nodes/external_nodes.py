"""What a Kubernetes node is to be in Slurm: pure functions over the two, and over texts that people wrote.

Labels and annotations end up in a line of Slurm's configuration, in which a space begins the next option: every part
is held to the characters that it may have.
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
"""Before the reason of every drain that is ours to end; slurm-bridge's own begin so, too."""
_REMOVING: Final = f"{REASON} slurm-bridge: removing external node"
"""The reason of a removal that slurm-bridge has begun."""
_MARK: Final = "fluence: external node of "
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_RESERVED: Final = frozenset({"default", "all", "none", "localhost"})
"""What slurm.conf has a meaning of its own for, in place of a node's name."""
_WORD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_TOPOLOGY: Final = re.compile(r"[A-Za-z0-9_.-]+(?::[A-Za-z0-9_.-]+)+(?:,[A-Za-z0-9_.-]+(?::[A-Za-z0-9_.-]+)+)*")
_VALUE: Final = re.compile(r"[A-Za-z0-9_.,:=-]+")
_MOST_TOPOLOGY: Final = 1024
_MOST_DEVICES: Final = 4096
_NEAR: Final = 100
"""Memory that Slurm has too little of, by less than this part of it, is near enough to keep the node."""
_BUSY: Final = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})


@dataclass(frozen=True, slots=True)
class NodeRules:
    """What is the same for all nodes. `partition` is one that every external node is in."""

    partition: str = "slurm-bridge"
    address: str = ""
    """NodeAddr of all nodes; empty for each node's own."""
    resources: tuple[tuple[str, str], ...] = tuple(DEFAULT_RESOURCES.items())
    """Extended resources, each with the GRES that it is: `name`, or `name:type`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class External:
    """A node as Slurm is to have it."""

    name: str
    cpus: int
    memory_mib: int
    partitions: tuple[str, ...]
    features: tuple[str, ...] = ()
    """Beside its partitions: what others gave it."""
    gres: str = ""
    gres_conf: str = ""
    topology: str = ""
    address: str = ""

    @property
    def conf(self) -> str:
        """Its line of configuration. Raises ValueError for a value that could be more than one."""
        said = {
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
        for option, value in said.items():
            if value and not _VALUE.fullmatch(value):
                raise ValueError(f"{option}={shown(value)}: no node can have that in Slurm")
        return " ".join(f"{option}={value}" for option, value in said.items() if value)

    def kept(self, found: SlurmNode, partitions: Collection[str]) -> External:
        """The same with what others gave the node that there is, which is to be made anew."""
        own = (*self.partitions, *partitions)
        return replace(self, features=tuple(one for one in found.features if one not in own and _WORD.fullmatch(one)))

    def differs(self, found: SlurmNode, partitions: Collection[str]) -> str:
        """In what the node that there is cannot be changed to be this one; empty where it can."""
        short = self.memory_mib - found.memory_mib
        near = 0 <= short * _NEAR <= self.memory_mib
        names = sorted(one for one in found.features if one in partitions or one in self.partitions)
        told = [
            ("CPUs", found.cpus, self.cpus),
            ("memory in MiB", found.memory_mib, found.memory_mib if near else self.memory_mib),
            ("GRES", re.sub(r"\([^)]*\)", "", found.gres) or "none", self.gres or "none"),
            ("partitions", ",".join(names) or "none", ",".join(sorted(self.partitions))),
        ]
        return ", ".join(f"{what} {there} → {wanted}" for what, there, wanted in told if there != wanted)


# ------------------------------------------------------------------ what Kubernetes says


def is_external(node: Node) -> bool:
    """Whether Slurm is to have the node, made and kept by the plugin; the label's value does not count."""
    return EXTERNAL_NODE_LABEL in node.metadata.labels


def slurm_name(node: Node) -> str:
    """What the node is called in Slurm. Raises ValueError for what no node can be called."""
    name = node.metadata.labels.get(NODE_NAME_LABEL) or node.metadata.name
    if not _NAME.fullmatch(name) or name.lower() in _RESERVED:
        raise ValueError(f"label {NODE_NAME_LABEL}: {shown(name)} is no name of a node in Slurm: write another")
    return name


def external(node: Node, rules: NodeRules, partitions: Collection[str]) -> External:
    """What the node is to be in Slurm, which has these partitions. Raises ValueError with what is wrong."""
    cpus = _amount(node, "cpu")
    memory = _amount(node, "memory") >> 20
    if cpus < 1 or memory < 1:
        raise ValueError(f"it has {cpus} whole CPUs and {memory} MiB of memory allocatable: Slurm needs one of each")
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
    """What pods may have of it, in whole units."""
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
            raise ValueError(f"annotation {PARTITIONS_ANNOTATION}: {shown(name)} is no name of a partition: write "
                             "names with commas between")  # fmt: skip
        if name not in there:
            where = "the configuration" if name == rules.partition else f"annotation {PARTITIONS_ANNOTATION}"
            raise ValueError(f"{where}: Slurm has no partition {name}: name one that it has, or add it to slurm.conf")
    return tuple(wanted)


def _topology(node: Node) -> str:
    text = node.metadata.annotations.get(TOPOLOGY_ANNOTATION, "").strip()
    if text and (len(text) > _MOST_TOPOLOGY or not _TOPOLOGY.fullmatch(text)):
        raise ValueError(f"annotation {TOPOLOGY_ANNOTATION}: {shown(text)} is no place in Slurm's topology: write "
                         "topology:unit, with commas between, as topo-switch:s2,topo-block:b2")  # fmt: skip
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
        raise ValueError(f"status.allocatable: {', '.join(sorted(counts))}: an external node of Slurm has devices of "
                         "one kind only: leave one in the plugin's resources")  # fmt: skip
    ((kind, count),) = counts.items()
    if count > _MOST_DEVICES:
        raise ValueError(f"status.allocatable: {count} of {kind}: more than {_MOST_DEVICES} cannot be told to Slurm")
    name, _, type_ = kind.partition(":")
    said = [f"count={count}", f"name={name}", *([f"type={type_}"] if type_ else [])]
    # Slurm leaves out GPUs without files, and wants a name for each; it opens none of a node without slurmd.
    return f"{kind}:{count}", ",".join(said + [f"file={name}-{number}" for number in range(count)])


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


# ------------------------------------------------------------------ what Slurm says


def mark_of(cluster: str) -> str:
    """The comment of nodes that the plugin of this cluster keeps in Slurm: it deletes no others."""
    return f"{_MARK}{cluster}"


def is_foreign(found: SlurmNode, mark: str) -> bool:
    """Whether another cluster's plugin keeps it."""
    return found.comment.startswith(_MARK) and found.comment != mark


def is_ours(found: SlurmNode, mark: str) -> bool:
    """Whether it is ours to delete."""
    return found.external and (found.comment == mark or found.reason.startswith(_REMOVING))


def is_busy(found: SlurmNode) -> bool:
    """Whether jobs are on it."""
    return bool(found.states & _BUSY) or found.allocated_cpus > 0


def drained_by_us(found: SlurmNode) -> bool:
    """Whether it is drained, with a reason that is ours: then it may be undrained."""
    return found.drained and found.reason.startswith(REASON)


# ------------------------------------------------------------------ what is to be done


@dataclass(frozen=True, slots=True)
class Create:
    """Make the node."""

    spec: External


@dataclass(frozen=True, slots=True)
class Drain:
    """Let it have no new jobs."""

    reason: str


@dataclass(frozen=True, slots=True)
class Undrain:
    """End our drain."""


@dataclass(frozen=True, slots=True)
class Change:
    """Change what can be changed; None is left as it is."""

    topology: str | None = None
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Take it out of Slurm. Where it has jobs by now, nothing after this is done."""


Step = Create | Drain | Undrain | Change | Delete


def steps(
    node: Node | None, found: SlurmNode | None, spec: External | None, *, mark: str, partitions: Collection[str]
) -> Sequence[Step]:
    """What is to be done, in order, for one name in Slurm.

    `node` is the Kubernetes node of that name, if any; `spec` what it is to be where it is an external one.
    Raises ValueError where a node of the name is in Slurm that must be left alone.
    """
    if found is None:
        return _made(node, spec, mark) if node is not None and spec is not None else ()
    if is_foreign(found, mark):
        if spec is not None:
            raise ValueError(f"Slurm has a node {found.name} that another cluster keeps ({shown(found.comment)}): give "
                             f"this one another name (label {NODE_NAME_LABEL})")  # fmt: skip
        return ()
    if spec is None:
        wanted = node is not None and is_external(node)  # as what, is not known
        return _removed(found) if is_ours(found, mark) and not wanted else _cordon(node, found)
    if not found.external:
        raise ValueError(f"Slurm has a node {found.name} that is not external, but has a slurmd: it is left as it is: "
                         f"take away the label {EXTERNAL_NODE_LABEL}, or the node from slurm.conf")  # fmt: skip
    why = spec.differs(found, partitions)
    if why and found.drained and not found.reason.startswith(REASON):
        return ()  # somebody is at work on it, and a node made anew would not be drained
    if why:
        drain = () if found.drained else (Drain(f"{REASON} to be made anew: {why}"),)
        anew = () if is_busy(found) else (Delete(), *_made(node, spec.kept(found, partitions), mark))
        return (*drain, *anew)
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
    """Drain what is cordoned, undrain what is so no more; only where the drain is ours."""
    if node is None:
        return ()
    if node.spec.unschedulable:
        return () if found.drained else (Drain(_unschedulable(node)),)
    return (Undrain(),) if drained_by_us(found) else ()


def _unschedulable(node: Node) -> str:
    return f"{REASON} Kubernetes node {node.metadata.name} is unschedulable"


def missing_partitions(spec: External, found: SlurmNode) -> str:
    """What to say where Slurm has the node with the right features, but not in its partitions; empty where it has."""
    missing = [name for name in spec.partitions if name not in found.partitions]
    if not missing:
        return ""
    return (f"Slurm has it in no partition {', '.join(missing)}: let slurm.conf have NodeSet={missing[0]} "
            f"Feature={missing[0]} and PartitionName={missing[0]} Nodes={missing[0]}, and call scontrol "
            "reconfigure")  # fmt: skip
