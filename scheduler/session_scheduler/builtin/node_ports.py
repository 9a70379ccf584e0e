"""The NodePorts plugin: rejects nodes where another pod uses one of the pod's host ports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from session_scheduler.builtin.without_arguments import WithoutArguments
from session_scheduler.hookspecs import SKIP, Scope, Skip, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, NodeView
from session_scheduler.model.events import ActionType, ClusterEvent, ClusterEventWithHint
from session_scheduler.model.objects import Node, Pod

PortKey = tuple[str, str, str, int]
EVERY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 (the hostIP of a pod; this process binds no port)
ANY_ADDRESS: Final = "*"
"""The key that counts a port on any address."""


class NodePorts(WithoutArguments):
    """Rejects nodes where a host port of the pod is in use, on the same address or on all of them."""

    name = "NodePorts"
    ignores_requests = True
    filter_scope = Scope.NODE

    @hookimpl
    def events_to_register(self) -> Iterable[ClusterEventWithHint]:
        """Requeue when a pod that uses one of the ports is deleted, or a node is added."""
        return [ClusterEventWithHint(Pod, ActionType.DELETE, self._frees), ClusterEventWithHint(Node, ActionType.ADD)]

    def _frees(self, cls: TaskClass, event: ClusterEvent) -> bool:
        taken = self.footprint(event.old_class) if event.old_class is not None else ()
        return not {key for port in cls.ports for key in _conflicts(*port)}.isdisjoint(taken)

    @hookimpl
    def footprint(self, cls: TaskClass) -> Iterable[PortKey]:
        """Each host port under its own address and under any address."""
        return [_key(a, protocol, port) for ip, protocol, port in cls.ports for a in (ip, ANY_ADDRESS)]

    @hookimpl
    def prepare(self, cls: TaskClass) -> Skip | tuple[PortKey, ...]:
        """The counters that must be zero. Skips pods without host ports."""
        return tuple(dict.fromkeys(key for port in cls.ports for key in _conflicts(*port))) or SKIP

    @hookimpl
    def filter(self, nodes: NodeView, mask: BoolColumn, state: Sequence[PortKey]) -> None:
        """Clear the nodes where one of the counters is not zero."""
        for key in state:
            np.logical_and(mask, nodes.counter(key) == 0, out=mask)

    @hookimpl
    def filter_key(self, state: Sequence[PortKey]) -> Sequence[PortKey]:
        """The counters that must be zero."""
        return state

    @hookimpl
    def reasons(self) -> str:
        """kube-scheduler's message."""
        return "node(s) didn't have free ports for the requested pod ports"

    @hookimpl
    def fits_if(self, cls: TaskClass, nodes: NodeView) -> Sequence[Sequence[str]]:
        """Each port in use, freed."""
        taken = [
            (f"host port {port}/{protocol}", [nodes.counter(key) != 0 for key in _conflicts(address, protocol, port)])
            for address, protocol, port in cls.ports
        ]
        return [
            [f"{what} were free on {nodes.node(index).metadata.name}"
             for what, columns in taken if any(column[index] for column in columns)]
            for index in range(len(nodes))
        ]  # fmt: skip


def _key(address: str, protocol: str, port: int) -> PortKey:
    return ("host-port", address, protocol, port)


def _conflicts(address: str, protocol: str, port: int) -> list[PortKey]:
    """The counters a port conflicts with: on every address, that of any address; else its own and that of every."""
    taken = (ANY_ADDRESS,) if address == EVERY_ADDRESS else (EVERY_ADDRESS, address)
    return [_key(a, protocol, port) for a in taken]
