"""Node selection of the DaemonSet controller. Source: pkg/controller/daemon, NodeShouldRunDaemonPod."""

from __future__ import annotations

import msgspec

from session_scheduler.model.field_checks import requirement_holds
from session_scheduler.model.objects import (
    Affinity,
    LabelSelectorRequirement,
    Node,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    PodSpec,
    Toleration,
)
from session_scheduler.model.selectors import tolerated

_TOLERATED = {
    "node.kubernetes.io/not-ready": "NoExecute",
    "node.kubernetes.io/unreachable": "NoExecute",
    "node.kubernetes.io/disk-pressure": "NoSchedule",
    "node.kubernetes.io/memory-pressure": "NoSchedule",
    "node.kubernetes.io/pid-pressure": "NoSchedule",
    "node.kubernetes.io/unschedulable": "NoSchedule",
}
_NETWORK = "node.kubernetes.io/network-unavailable"


def with_daemon_tolerations(spec: PodSpec) -> PodSpec:
    """Return the spec with the tolerations that the DaemonSet controller adds to every daemon pod."""
    wanted = {**_TOLERATED, _NETWORK: "NoSchedule"} if spec.host_network else _TOLERATED
    own = [t for t in spec.tolerations if not (t.operator == "Exists" and wanted.get(t.key) == t.effect)]
    added = [Toleration(key=key, operator="Exists", effect=effect) for key, effect in wanted.items()]
    return msgspec.structs.replace(spec, tolerations=(*own, *added))


def for_node(spec: PodSpec, node: str) -> PodSpec:
    """Return the spec with a required node affinity to this node. Like the controller, replace other required terms."""
    wanted = LabelSelectorRequirement(key="metadata.name", operator="In", values=(node,))
    only = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(wanted,)),))
    affinity = spec.affinity or Affinity()
    nodes = msgspec.structs.replace(affinity.node_affinity or NodeAffinity(), required=only)
    return msgspec.structs.replace(spec, affinity=msgspec.structs.replace(affinity, node_affinity=nodes))


def node_of(spec: PodSpec) -> str:
    """Return the node that a daemon pod is on or has a node affinity to; empty if it names none."""
    if spec.node_name:
        return spec.node_name
    required = spec.affinity.node_affinity.required if spec.affinity and spec.affinity.node_affinity else None
    for term in required.node_selector_terms if required else ():
        for field in term.match_fields:
            if field.operator == "In":
                return field.values[0]
    return ""


def should_run(spec: PodSpec, node: Node) -> bool:
    """Whether the controller would create a pod with this spec (tolerations included) for the node."""
    if spec.node_name and spec.node_name != node.metadata.name:
        return False
    return _selected(spec, node) and all(
        tolerated(spec.tolerations, (taint.key, taint.value, taint.effect))
        for taint in node.spec.taints
        if taint.effect != "PreferNoSchedule"
    )


def _selected(spec: PodSpec, node: Node) -> bool:
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in spec.node_selector.items()):
        return False
    required = spec.affinity.node_affinity.required if spec.affinity and spec.affinity.node_affinity else None
    return required is None or any(_term_holds(term, node) for term in required.node_selector_terms)


def _term_holds(term: NodeSelectorTerm, node: Node) -> bool:
    fields = {"metadata.name": node.metadata.name}
    return bool(term.match_expressions or term.match_fields) and (
        all(requirement_holds(wanted, node.metadata.labels) for wanted in term.match_expressions)
        and all(requirement_holds(wanted, fields) for wanted in term.match_fields)
    )
