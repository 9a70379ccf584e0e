"""What would have to change for PodTopologySpread to let a pod in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from session_scheduler.builtin.near_texts import pods_text, where_text
from session_scheduler.builtin.pods_near import PodsNear
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView
from session_scheduler.model.pod_counts import PodQuery


@dataclass(frozen=True, slots=True)
class Limit:
    """One hard constraint: how many of the pods a node's domain may have, by domain what it has."""

    near: PodsNear
    query: PodQuery
    most: int
    allowed: BoolColumn
    """By domain."""


def changes(nodes: NodeView, limits: Sequence[Limit], namespace: str) -> list[list[str] | None]:
    """For each row what must be so; None where a missing label would bring pods of its own into its domain."""
    own = [nodes.pods(limit.query) for limit in limits]
    return [_changes(nodes, index, limits, own, namespace) for index in range(len(nodes))]


def _changes(
    nodes: NodeView, index: int, limits: Sequence[Limit], own: Sequence[IntColumn], namespace: str
) -> list[str] | None:
    node, row = nodes.node(index), int(nodes.row_numbers[index])
    labels, fewer = [], []
    for limit in limits:
        near, domain = limit.near, int(limit.near.domains.numbers[row])
        if limit.allowed[domain]:
            continue
        if near.domains.present[row]:
            pods = pods_text(limit.query, namespace, "pod" if limit.most == 1 else "pods")
            now = int(near.by_domain()[domain])
            fewer.append(f"at most {limit.most} {pods} ran {where_text(node, near.key)} ({now} now)")
        elif any(column[index] for column in own):
            return None
        else:
            labels.append(_labelled(limit, node.metadata.name))
    if fewer and len(limits) > 1:  # pods that end are missing in other domains, too, which may be the emptiest then
        fewer.append("its other spread constraints held then")
    return [*dict.fromkeys(labels), *dict.fromkeys(fewer)]


def _labelled(limit: Limit, name: str) -> str:
    """A value that takes one more of the pods, of the emptiest domain; else a value that no node has."""
    counts, values = limit.near.by_domain().tolist(), limit.near.domain_values()
    free = [(counts[domain], value) for domain, value in enumerate(values) if limit.allowed[domain]]
    return f"{name} had the label {limit.near.key}" + (f"={min(free)[1]}" if free else ", with a value of its own")
