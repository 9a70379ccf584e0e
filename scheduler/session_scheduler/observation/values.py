"""What an observer sees at one point in time, as columns. Public.

Amounts are numbers in the units that people read: CPU in cores, everything else in the resource's base unit (bytes,
devices). Times are seconds since 1970. Rows are in natural order of names, so equal states give equal values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["HIDDEN", "Amounts", "Gang", "Gpu", "Nodes", "Observed", "Pods", "Times"]

Amounts = NDArray[np.float64]
"""Shape (nodes, resources)."""
Times = NDArray[np.float64]
"""Shape (pods,); NaN where the time is unknown, or the event has not happened yet."""
HIDDEN: Final = "(hidden)"
"""Shown as the holder of a GPU instead of pods that the reader has no permission to see."""


class Gpu(msgspec.Struct, frozen=True):
    """One GPU of a node, and the pods that hold it."""

    node: int
    """The node's row in `Nodes`."""
    resource: str
    """For example nvidia.com/gpu."""
    index: int
    """The number that the scheduler gives it on its node, from 0."""
    model: str | None
    holders: Mapping[str, float]
    """The share of each pod (NAMESPACE/NAME), 0 to 1; one holder with 1.0 has the whole GPU."""


class Nodes(msgspec.Struct, frozen=True):
    """All nodes of the scheduler's partition."""

    names: tuple[str, ...]
    levels: Mapping[str, tuple[str | None, ...]]
    """For each topology level (a node label), the outermost first, such as zone and rack: the value of each node; None
    where it has none."""
    resources: tuple[str, ...]
    """The columns of `allocatable` and `allocated`: cpu, memory, then every other one, in natural order."""
    allocatable: Amounts
    allocated: Amounts
    """What all pods on the node request."""
    pods: NDArray[np.int64]
    """The number of pods on each node, including those that other schedulers bound."""
    states: tuple[str, ...]
    """Ready, NotReady or SchedulingDisabled."""
    gpus: tuple[Gpu, ...] = ()


class Pods(msgspec.Struct, frozen=True):
    """The live pods that the scheduler's profiles serve."""

    keys: tuple[str, ...]
    """NAMESPACE/NAME."""
    groups: tuple[str | None, ...]
    """The name of the PodGroup, in the pod's namespace; None for a pod without one."""
    queues: tuple[str, ...]
    priorities: NDArray[np.int64]
    nodes: NDArray[np.int64]
    """The row of the pod's node in `Nodes`; -1 for a pending pod."""
    phases: tuple[str, ...]
    """Gated, Pending, Bound (on a node, not started), Running or Terminating."""
    reasons: tuple[str | None, ...]
    """Why a pending pod waits, in one sentence; None for others."""
    requests: Mapping[str, Amounts]
    """For each resource that a pod requests: its amount for each pod; shape (pods,). GPU shares have the names of their
    annotations, in GPUs or bytes."""
    created: Times
    bound: Times
    started: Times
    until: Times
    """When it ends, as far as its duration is known."""
    evicted: frozenset[str] = frozenset()
    """The pods (NAMESPACE/NAME) that are being evicted: with the condition DisruptionTarget."""

    def some(self, rows: NDArray[np.int64]) -> Pods:
        """These rows only, in this order."""
        chosen = rows.tolist()
        keys = tuple(map(self.keys.__getitem__, chosen))
        return Pods(
            keys=keys,
            groups=tuple(map(self.groups.__getitem__, chosen)),
            queues=tuple(map(self.queues.__getitem__, chosen)),
            priorities=self.priorities[rows],
            nodes=self.nodes[rows],
            phases=tuple(map(self.phases.__getitem__, chosen)),
            reasons=tuple(map(self.reasons.__getitem__, chosen)),
            requests={name: amounts[rows] for name, amounts in self.requests.items()},
            created=self.created[rows],
            bound=self.bound[rows],
            started=self.started[rows],
            until=self.until[rows],
            evicted=self.evicted.intersection(keys),
        )


class Gang(msgspec.Struct, frozen=True):
    """A PodGroup with at least one live pod."""

    namespace: str
    name: str
    queue: str
    priority: int
    min_count: int
    pending: int
    placed: int
    created: float
    reason: str | None


class Observed(msgspec.Struct, frozen=True):
    """A cluster at one point in time. Its arrays never change.

    The next `Observed` has arrays of its own, or shares these.
    """

    time: float
    source: str
    """Where it comes from, for people: a cluster's address, or the files."""
    nodes: Nodes
    pods: Pods
    gangs: tuple[Gang, ...]
    queues: tuple[Mapping[str, Any], ...]
    """As in the JSON of `fluence queues`."""
    problems: Mapping[str, str]
    """The error of each invalid object, by "Node n1" or "Pod NS/NAME"."""
    hidden: Mapping[str, int] = {}
    """What a reader has no permission to see, as sums: {"pending": 3, "running": 20, "gangs": 2}."""
    version: int = 0
    """Grows with each change."""
    evictions: Mapping[str, float] = {}
    """The pods (NAMESPACE/NAME) that were evicted and ended within the last minute, with the time of their creation."""

    def seen_by(self, namespaces: frozenset[str] | None) -> Observed:
        """The cluster for a user with permission to read only these namespaces (None: all).

        Pods and gangs of other namespaces are removed and counted in `hidden`, and problems of their objects are
        removed. The holder "(hidden)" of a GPU stands for all of their pods. Amounts of nodes and queues stay: they are
        sums. The texts of plugins' errors are replaced.
        """
        if namespaces is None:
            return self
        pods = self.pods
        seen = np.array([key.partition("/")[0] in namespaces for key in pods.keys], np.bool_)
        gangs = tuple(gang for gang in self.gangs if gang.namespace in namespaces)
        others = pods.nodes[~seen]
        pending = int((others < 0).sum())
        counts = {"pending": pending, "running": len(others) - pending, "gangs": len(self.gangs) - len(gangs)}
        nodes = msgspec.structs.replace(self.nodes, gpus=tuple(_seen_gpu(gpu, namespaces) for gpu in self.nodes.gpus))
        return msgspec.structs.replace(
            self,
            nodes=nodes,
            pods=pods.some(np.flatnonzero(seen)),
            gangs=gangs,
            problems={
                name: _seen_text(name, text)
                for name, text in self.problems.items()
                if _namespace_in(name) in {"", *namespaces}
            },
            hidden={name: count + self.hidden.get(name, 0) for name, count in counts.items()},
            evictions={key: created for key, created in self.evictions.items() if key.partition("/")[0] in namespaces},
        )


def _namespace_in(problem: str) -> str:
    """The namespace in "Pod NS/NAME"; empty for "Node n1"."""
    namespace, found, _ = problem.partition(" ")[2].partition("/")
    return namespace if found else ""


def _seen_text(problem: str, text: str) -> str:
    """The text, but not that of a plugin's error, which may name any pod."""
    return "the plugin failed" if problem.startswith("Plugin ") else text


def _seen_gpu(gpu: Gpu, namespaces: frozenset[str]) -> Gpu:
    holders: dict[str, float] = {}
    for key, share in gpu.holders.items():
        shown = key if key.partition("/")[0] in namespaces else HIDDEN
        holders[shown] = holders.get(shown, 0.0) + share
    if HIDDEN not in holders:
        return gpu
    return Gpu(gpu.node, gpu.resource, gpu.index, gpu.model, holders)  # a third of the time of `replace`
