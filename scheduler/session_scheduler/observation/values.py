"""What an observer sees at one time, as columns. Public.

Amounts are numbers in the units that people read: CPU in cores, everything else in the resource's base unit (bytes,
devices). Times are seconds since 1970. Rows are in natural order of names, so equal states give equal values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["Amounts", "Gpu", "Nodes", "Observed", "Pods", "Times"]

Amounts = NDArray[np.float64]
"""Shape (nodes, resources)."""
Times = NDArray[np.float64]
"""Shape (pods,); NaN where the time is unknown or has not come."""


class Gpu(msgspec.Struct, frozen=True):
    """One GPU of a node, and who holds it."""

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
    """For each topology level, the outermost first (zone, rack), the value of each node; None where it has none."""
    resources: tuple[str, ...]
    """The columns of `allocatable` and `allocated`: cpu, memory, then every other one, in natural order."""
    allocatable: Amounts
    allocated: Amounts
    """What all pods on the node request."""
    pods: NDArray[np.int64]
    """The number of pods on each node, whoever bound them."""
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
    """For each resource that a pod requests: its amount for each pod; shape (pods,)."""
    created: Times
    bound: Times
    started: Times
    until: Times
    """When it ends, as far as its duration is known."""


class Gang(msgspec.Struct, frozen=True):
    """A PodGroup."""

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
    """A cluster at one time. Arrays are never changed: the next one has its own, or shares them."""

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
    """What a reader may not see, as sums: {"pending": 3, "running": 20, "gangs": 2}."""
    version: int = 0
    """Grows with each change."""

    def seen_by(self, namespaces: frozenset[str] | None) -> Observed:
        """As a user sees it who may read only these namespaces (None: all).

        Pods and gangs of others are removed and counted in `hidden`. Amounts of nodes and queues stay: they are sums.
        Holders of GPUs and problems that name a pod of another namespace are replaced by "(hidden)" or removed.
        """
        raise NotImplementedError
