"""Changes of the cluster as plugins are asked about them: can this help a pod that I refused?

Names and meaning: kube-scheduler's framework.ClusterEvent and ClusterEventWithHint, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntFlag
from typing import TYPE_CHECKING, Any

from session_scheduler.model.columns import NodeTable, NodeView, node_amounts
from session_scheduler.model.objects import KubeObject, Node, Pod
from session_scheduler.model.quantity import QuantityError

if TYPE_CHECKING:
    from session_scheduler.model.classes import TaskClass
    from session_scheduler.model.cluster_view import ClusterView
    from session_scheduler.model.pod_terms import TermTable


class ActionType(IntFlag):
    """What happened to an object. `UPDATE` is any change of one that stays; the others narrow it down."""

    ADD = 1 << 0
    """It was created; a pod also when it is bound, for it counts on its node from then on."""
    DELETE = 1 << 1
    """It was deleted; a pod also when it has ended, or when a bind of it came to nothing."""
    UPDATE_NODE_ALLOCATABLE = 1 << 2
    UPDATE_NODE_LABEL = 1 << 3
    UPDATE_NODE_TAINT = 1 << 4
    """Its taints, or that it takes pods again (`spec.unschedulable`)."""
    UPDATE_NODE_CONDITION = 1 << 5
    UPDATE_NODE_ANNOTATION = 1 << 6
    UPDATE_NODE_DECLARED_FEATURE = 1 << 7
    UPDATE_POD_LABEL = 1 << 8
    UPDATE_POD_SCALE_DOWN = 1 << 9
    """It requests less of something."""
    UPDATE_POD_TOLERATION = 1 << 10
    UPDATE_POD_SCHEDULING_GATES_ELIMINATED = 1 << 11
    UPDATE_POD_GENERATED_RESOURCE_CLAIM = 1 << 12
    UPDATE_POD_ENDING = 1 << 13
    """Its deletion has begun: it counts no more where pods are spread. kube-scheduler has no such."""
    UPDATE_OTHER = 1 << 14
    """Of another kind, or anything else that a plugin may read of a pod or node."""
    UPDATE = ((1 << 15) - 1) & ~0b11
    ALL = (1 << 15) - 1


Objects = Callable[[type[Any]], Mapping[str, Any]]


def _none(_: type[Any]) -> Mapping[str, Any]:
    return {}


class ClusterEvent:
    """One change. `old` is None where the object is new, `new` where it is gone; both are as the cluster had them."""

    __slots__ = (
        "_after", "_amounts", "_before", "action", "new", "new_class", "objects", "old", "old_class", "own", "resource",
        "terms", "view",
    )  # fmt: skip

    def __init__(
        self,
        resource: type[KubeObject],
        action: int,
        old: Any,
        new: Any,
        *,
        own: bool = False,
        old_class: TaskClass | None = None,
        new_class: TaskClass | None = None,
        view: ClusterView | None = None,
        terms: TermTable | None = None,
        objects: Objects = _none,
    ) -> None:
        self.resource = resource
        self.action = int(action)
        """One or more bits of `ActionType`."""
        self.old = old
        self.new = new
        self.own = own
        """Whether the object is the refused pod itself. Other events of pods are of those that have a node."""
        self.old_class = old_class
        """Of a pod: its class before, with requests, ports, volumes and terms."""
        self.new_class = new_class
        self.view = view
        """Namespaces, services and controllers as they are after the change."""
        self.terms = terms
        """The affinity and anti-affinity between pods that any class holds."""
        self.objects = objects
        """As `Session.objects`, as they are after the change."""
        self._before: NodeView | None = None
        self._after: NodeView | None = None
        self._amounts: tuple[dict[str, int], dict[str, int]] | None = None

    def amounts(self) -> tuple[dict[str, int], dict[str, int]]:
        """Of a node: what it offered before, and after, cpu in millicores; nothing where it was not there."""
        if self._amounts is None:
            self._amounts = _amounts(self.old), _amounts(self.new)
        return self._amounts

    @property
    def before(self) -> NodeView:
        """Of a node: a view of one row, the node as it was; without a row where it was not there."""
        if self._before is None:
            self._before = _view(self.old)
        return self._before

    @property
    def after(self) -> NodeView:
        """Of a node: a view of one row, the node as it is; without a row where it is gone."""
        if self._after is None:
            self._after = _view(self.new)
        return self._after

    def label(self, actions: int) -> str:
        """The event's name in metrics, by the first of these actions that it is: NodeAdd, AssignedPodDelete."""
        matched = self.action & actions
        action = ActionType(matched & -matched)
        words = "".join(word.capitalize() for word in (action.name or "").split("_"))
        pod = ("Unschedulable" if self.own else "Assigned") if self.resource is Pod else ""
        return f"{pod}{self.resource.__name__}{words}"


def _amounts(node: Node | None) -> dict[str, int]:
    try:
        return node_amounts(node) if node is not None else {}
    except QuantityError:
        return {}


def _view(node: Node | None) -> NodeView:
    table = NodeTable(capacity=1)
    if node is not None:
        with suppress(QuantityError):  # such a node counts for nothing
            table.put(node)
    return table.all_rows()


QueueingHint = Callable[["TaskClass", ClusterEvent], bool]
"""Whether a class of pods that the plugin refused may fit after the event. Called between sessions, for each class."""


@dataclass(frozen=True, slots=True)
class ClusterEventWithHint:
    """Events that can help pods which a plugin refused.

    `resource` is the kind: Node, Pod, or another one that is watched; None stands for all. Without a `hint` every such
    event requeues them. A hint that fails is taken to say yes.
    """

    resource: type[KubeObject] | None
    action: int = ActionType.ALL
    hint: QueueingHint | None = None


EVERY_EVENT = (ClusterEventWithHint(None),)
"""What a plugin waits for that does not say."""
