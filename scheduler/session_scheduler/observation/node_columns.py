"""The nodes of an observation, with their GPUs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from operator import is_
from typing import Final

import numpy as np
from msgspec.structs import replace

from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.model.columns import ABSENT, NodeView, natural
from session_scheduler.model.objects import Node
from session_scheduler.observation.gpu_holders import gpus_on
from session_scheduler.observation.pod_rows import in_order, unit_of
from session_scheduler.observation.values import Gpu, Nodes

_TOPOLOGY: Final = "topology.kubernetes.io/"
_HOSTNAME: Final = "kubernetes.io/hostname"
_GPU_SUFFIX: Final = "/gpu"


class NodeColumns:
    """The nodes of a scheduler's cache."""

    def __init__(self, scheduler: Scheduler, levels: Sequence[str] = ()) -> None:
        """`levels`: the labels of topology levels, the outermost first; by default a plugin's, or the nodes'."""
        self._scheduler = scheduler
        self._given = tuple(levels)
        self._version = -1
        self._names: tuple[str, ...] = ()
        self._rows = np.zeros(0, np.int64)
        self._levels: dict[str, tuple[str | None, ...]] = {}
        self._keys: frozenset[str] = frozenset()
        self.row_of: dict[str, int] = {}
        """The row of each node in the observation."""
        self._nodes: list[Node] = []
        self._states: tuple[str, ...] = ()
        """Those of `_nodes`."""
        self._gpus: dict[str, tuple[Node, int, tuple[Gpu, ...]]] = {}
        """By node: the object and the row for which its GPUs were computed, and these."""
        self.gpus_rebuilt = 0
        """For how many nodes the GPUs were computed since the start."""

    def update(self, changed: Iterable[str], topology_keys: Collection[str]) -> Nodes:
        """The nodes now. `changed`: those whose pods have changed since the last call. `topology_keys` of PodGroups."""
        table = self._scheduler.cache.table
        keys = frozenset(topology_keys)
        if self._version != table.static_version or self._keys != keys:
            self._version, self._keys = table.static_version, keys
            self._names = tuple(sorted(table.row_of, key=natural))
            self._rows = np.array([table.row_of[name] for name in self._names], np.int64)
            self.row_of = {name: row for row, name in enumerate(self._names)}
            self._levels = dict(self._found_levels())
        view = table.all_rows().some(self._rows)
        resources = [name for name in in_order(table.resources.names)
                     if view.allocatable(name).any() or view.used(name).any()]  # fmt: skip
        units = np.array([unit_of(name) for name in resources], np.float64)
        shape = (len(self._names), len(resources))

        def amounts(columns: list[np.ndarray]) -> np.ndarray:
            return np.array(columns, np.float64).reshape(shape[::-1]).T / units

        nodes = [node for row in self._rows.tolist() if (node := table.nodes[row]) is not None]
        if len(nodes) != len(self._nodes) or not all(map(is_, nodes, self._nodes)):
            self._nodes, self._states = nodes, tuple(map(_state, nodes))
        return Nodes(
            names=self._names,
            levels=self._levels,
            resources=tuple(resources),
            allocatable=amounts([view.allocatable(name) for name in resources]),
            allocated=amounts([view.used(name) for name in resources]),
            pods=view.used("pods").copy(),
            states=self._states,
            gpus=tuple(chain.from_iterable(self._all_gpus(frozenset(changed), view, resources))),
        )

    # ------------------------------------------------------------------ levels

    def _found_levels(self) -> Iterator[tuple[str, tuple[str | None, ...]]]:
        view = self._scheduler.cache.table.all_rows().some(self._rows)
        given = self._given or self._declared()
        if given:
            for key in given:
                yield key, _values(view, key)
            return
        nodes = [node for row in self._rows.tolist() if (node := self._scheduler.cache.table.nodes[row]) is not None]
        keys = {key for node in nodes for key in node.metadata.labels if key.startswith(_TOPOLOGY)} | self._keys
        found = {key: _values(view, key) for key in keys - {_HOSTNAME}}
        for key in sorted(found, key=lambda key: (len({*found[key]}), natural(key))):
            if any(found[key]):
                yield key, found[key]

    def _declared(self) -> tuple[str, ...]:
        """The levels of the first plugin that has some: its attribute `topology_labels`."""
        for calls in self._scheduler.profiles.values():
            for instance in calls.instances.values():
                if labels := getattr(instance, "topology_labels", ()):
                    return tuple(labels)
        return ()

    # ------------------------------------------------------------------ GPUs

    def _all_gpus(
        self, changed: Collection[str], view: NodeView, resources: Iterable[str]
    ) -> Iterator[tuple[Gpu, ...]]:
        named = gpu_resources(self._scheduler, resources)
        counts = {name: view.allocatable(name).tolist() for name in named}
        known, self._gpus = self._gpus, {}
        for row, name in enumerate(self._names) if named else ():
            node = view.node(row)
            found = known.get(name)
            if found is None or found[0] is not node or name in changed:
                self.gpus_rebuilt += 1
                on_node = {resource: counts[resource][row] for resource in named if counts[resource][row]}
                tasks = self._scheduler.cache.tasks_on(name) if on_node else ()
                found = (node, row, tuple(gpus_on(row, node, on_node, tasks)))
            elif found[1] != row:
                found = (node, row, tuple(replace(gpu, node=row) for gpu in found[2]))
            self._gpus[name] = found
            yield found[2]


def gpu_resources(scheduler: Scheduler, resources: Iterable[str]) -> list[str]:
    """The resources that are GPUs: those of the plugin GpuSharing first, then all whose name ends with /gpu."""
    shared = [
        name
        for calls in scheduler.profiles.values()
        for name in getattr(calls.instances.get("GpuSharing"), "resources", ())
    ]
    known = list(resources)
    named = [name for name in shared if name in known]
    return list(dict.fromkeys([*named, *(name for name in known if name.endswith(_GPU_SUFFIX))]))


def _values(view: NodeView, key: str) -> tuple[str | None, ...]:
    return tuple(None if number == ABSENT else view.label_value(number) for number in view.label(key).tolist())


def _state(node: Node) -> str:
    if node.spec.unschedulable:
        return "SchedulingDisabled"
    ready = next((one.status for one in node.status.conditions if one.type == "Ready"), "True")
    return "Ready" if ready == "True" else "NotReady"
