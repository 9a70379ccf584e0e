"""Cluster events, which the queueing hints of plugins evaluate: can this change make a rejected pod schedulable?

The event handlers create them; the scheduling queue passes them to the hints. Names and meanings: kube-scheduler's
framework.ClusterEvent and ClusterEventWithHint, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import IntFlag
from typing import TYPE_CHECKING, Any

import msgspec

from session_scheduler.model.columns import NodeTable, NodeView, node_amounts
from session_scheduler.model.objects import KubeObject, Node, Pod
from session_scheduler.model.quantity import QuantityError

if TYPE_CHECKING:
    from session_scheduler.model.classes import TaskClass
    from session_scheduler.model.cluster_view import ClusterView
    from session_scheduler.model.pod_terms import TermTable


class ActionType(IntFlag):
    """What happened to an object. `UPDATE` stands for all the `UPDATE_…` actions together."""

    ADD = 1 << 0
    """The object was created, or a pod was bound: it counts on its node from then on."""
    DELETE = 1 << 1
    """The object was deleted; or a pod finished, or its bind failed."""
    UPDATE_NODE_ALLOCATABLE = 1 << 2
    UPDATE_NODE_LABEL = 1 << 3
    UPDATE_NODE_TAINT = 1 << 4
    """Its taints changed, or it was uncordoned (`spec.unschedulable`)."""
    UPDATE_NODE_CONDITION = 1 << 5
    UPDATE_NODE_ANNOTATION = 1 << 6
    UPDATE_NODE_DECLARED_FEATURE = 1 << 7
    UPDATE_POD_LABEL = 1 << 8
    UPDATE_POD_SCALE_DOWN = 1 << 9
    """The pod requests less of some resource."""
    UPDATE_POD_TOLERATION = 1 << 10
    UPDATE_POD_SCHEDULING_GATES_ELIMINATED = 1 << 11
    UPDATE_POD_GENERATED_RESOURCE_CLAIM = 1 << 12
    UPDATE_POD_ENDING = 1 << 13
    """The pod's deletion has begun: topology spread no longer counts it. kube-scheduler has no such action."""
    UPDATE_OTHER = 1 << 14
    """An object of another kind changed, or another field of a pod or node that a plugin may read."""
    UPDATE = ((1 << 15) - 1) & ~0b11
    ALL = (1 << 15) - 1


Objects = Callable[[type[Any]], Mapping[str, Any]]


def _no_objects(_: type[Any]) -> Mapping[str, Any]:
    return {}


class ClusterEvent:
    """One change of an object. `old` is None if the object is new, `new` is None if it is gone."""

    __slots__ = (
        "_after", "_amounts", "_before", "action", "new", "new_class", "node", "objects", "old", "old_class", "own",
        "resource", "terms", "view",
    )  # fmt: skip

    def __init__(
        self,
        resource: type[KubeObject],
        action: int,
        old: Any,
        new: Any,
        *,
        node: str = "",
        own: bool = False,
        old_class: TaskClass | None = None,
        new_class: TaskClass | None = None,
        view: ClusterView | None = None,
        terms: TermTable | None = None,
        objects: Objects = _no_objects,
    ) -> None:
        self.resource = resource
        self.action = int(action)
        """One or more bits of `ActionType`."""
        self.old = old
        self.new = new
        self.node = node or _node_of(old if new is None else new)
        """The node whose free capacity the event may change: the object itself, or the pod's node; empty for none."""
        self.own = own
        """Whether the object is the rejected pod itself. All other pod events are about assigned pods."""
        self.old_class = old_class
        """For a pod: its class before the change, with requests, ports, volumes and terms."""
        self.new_class = new_class
        self.view = view
        """Namespaces, services and controllers after the change."""
        self.terms = terms
        """The inter-pod affinity and anti-affinity terms of all classes."""
        self.objects = objects
        """Like `Session.objects`, after the change."""
        self._before: NodeView | None = None
        self._after: NodeView | None = None
        self._amounts: tuple[dict[str, int], dict[str, int]] | None = None

    def amounts(self) -> tuple[dict[str, int], dict[str, int]]:
        """For a node: its allocatable amounts before and after, cpu in millicores; empty if it did not exist."""
        if self._amounts is None:
            self._amounts = _amounts(self.old), _amounts(self.new)
        return self._amounts

    @property
    def before(self) -> NodeView:
        """For a node: a view with one row, the node before the change; without rows if it did not exist."""
        if self._before is None:
            self._before = _view(self.old)
        return self._before

    @property
    def after(self) -> NodeView:
        """For a node: a view with one row, the node after the change; without rows if it is gone."""
        if self._after is None:
            self._after = _view(self.new)
        return self._after

    def label(self, actions: int) -> str:
        """The event's name in metrics, from the first of these actions that it has: NodeAdd, AssignedPodDelete."""
        matched = self.action & actions
        action = ActionType(matched & -matched)
        words = "".join(word.capitalize() for word in (action.name or "").split("_"))
        pod = ("Unschedulable" if self.own else "Assigned") if self.resource is Pod else ""
        return f"{pod}{self.resource.__name__}{words}"


def _node_of(obj: Any) -> str:
    if isinstance(obj, Pod):
        return obj.spec.node_name
    return obj.metadata.name if isinstance(obj, Node) else ""


def _amounts(node: Node | None) -> dict[str, int]:
    try:
        return node_amounts(node) if node is not None else {}
    except QuantityError:
        return {}


def _view(node: Node | None) -> NodeView:
    table = NodeTable(capacity=1)
    if node is not None:
        with suppress(QuantityError):  # an invalid node offers nothing
            table.put(node)
    return table.all_rows()


QueueingHint = Callable[["TaskClass", ClusterEvent], bool]
"""Whether a class that the plugin rejected may fit after the event. The queue calls it between sessions, per class."""


RequiredFree = Callable[["TaskClass"], Mapping[str, int]]
"""By resource, the amount that a node must have free for a pod of the class: cpu in millicores, the rest in base units.
"""


class ClusterEventWithHint(msgspec.Struct, frozen=True):
    """Events that can help pods that a plugin rejected.

    `resource` is the kind: Node, Pod or any other watched kind; None stands for all. Without a `hint` every such event
    requeues the pods. A hint that fails counts as True.

    With `required_free` the event helps only the classes for which its node then has these amounts free. The queue
    compares them before it asks the hint, for all classes at once, and requeues the best groups first: as many as the
    node has capacity for. It needs an event of a node, or of a pod on one.
    """

    resource: type[KubeObject] | None
    action: int = ActionType.ALL
    hint: QueueingHint | None = None
    required_free: RequiredFree | None = None


EVERY_EVENT = (ClusterEventWithHint(None),)
"""The events of a plugin that registers none."""
