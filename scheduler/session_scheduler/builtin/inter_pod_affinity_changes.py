"""What would have to change for InterPodAffinity to let a pod in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from session_scheduler.builtin.near_texts import can_be, is_satisfiable, pods_text, where_text
from session_scheduler.builtin.pods_near import PodsNear
from session_scheduler.model.columns import BoolColumn, NodeView
from session_scheduler.model.pod_counts import PodQuery


@dataclass(frozen=True, slots=True)
class Rules:
    """What a class requires, each with what is counted for it, and where the pods that it must be near are."""

    namespace: str
    together: PodQuery
    """The pods that it must be near: those that all its affinity terms pick."""
    affinity: Sequence[PodsNear]
    anti_affinity: Sequence[tuple[PodsNear, PodQuery]]
    existing: Sequence[PodsNear]
    first: bool
    """Whether no such pod runs anywhere and the pod is one: then the labels are enough."""


def changes(nodes: NodeView, rules: Rules) -> list[list[str] | None]:
    """For each row what must be so; None where no pod can be such that it helps."""
    away = [near.counts(nodes) > 0 for near, _ in rules.anti_affinity]
    existing = [near.counts(nodes) > 0 for near in rules.existing]
    holds = _near(nodes, rules), away, existing
    return [_changes(nodes, index, rules, holds) for index in range(len(nodes))]


def _near(nodes: NodeView, rules: Rules) -> list[BoolColumn]:
    """By affinity term, where it holds."""
    labelled = [near.domains.present[nodes.row_numbers] for near in rules.affinity]
    if rules.first:
        return labelled
    return [has & (near.counts(nodes) > 0) for has, near in zip(labelled, rules.affinity, strict=True)]


def _changes(
    nodes: NodeView, index: int, rules: Rules, holds: tuple[list[BoolColumn], list[BoolColumn], list[BoolColumn]]
) -> list[str] | None:
    near, away, existing = holds
    node, row = nodes.node(index), int(nodes.row_numbers[index])
    missing = [one for one, holds in zip(rules.affinity, near, strict=True) if not holds[index]]
    unlabelled = dict.fromkeys(one.key for one in missing if not one.domains.present[row])
    found = [f"{node.metadata.name} had the label {key}" for key in unlabelled]
    if missing and not rules.first:
        if not can_be(rules.together):
            return None
        such = f"a {pods_text(rules.together, rules.namespace)}{_kept_away_from(rules)}"
        found += dict.fromkeys(f"{such} ran {where_text(node, one.key)}" for one in missing)
    gone: list[str] = []
    for (one, query), refuses in zip(rules.anti_affinity, away, strict=True):
        if refuses[index]:
            gone.append(f"no {pods_text(query, rules.namespace)} ran {where_text(node, one.key)}")
    for one, refuses in zip(rules.existing, existing, strict=True):
        if refuses[index]:
            gone.append(f"no pod with anti-affinity to this one ran {where_text(node, one.key)}")
    if gone and rules.affinity and not rules.first and len(missing) < len(rules.affinity):
        gone.append("the pods that it must be near still ran there")
    return [*found, *dict.fromkeys(gone)]


def _kept_away_from(rules: Rules) -> str:
    """Where the pods that it must be near may be such that it must be away from."""
    own = rules.together.selector
    if any(is_satisfiable(own.also(query.selector.requirements or ())) for _, query in rules.anti_affinity):
        return ", of those that this one need not be away from,"
    return ""
