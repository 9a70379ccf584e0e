"""The NodeAffinity plugin: evaluates a pod's nodeSelector and node affinity, and the affinity of the configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from pydantic import Field, field_validator

from session_scheduler.builtin.first_reasons import first_reasons
from session_scheduler.config.parsing import wrong_value
from session_scheduler.config.settings import PluginArguments
from session_scheduler.hookspecs import SKIP, Normalise, Refusal, Scope, Skip, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView
from session_scheduler.model.events import ActionType, ClusterEvent, ClusterEventWithHint
from session_scheduler.model.expressions import is_int32, term_problem
from session_scheduler.model.meta import PREFERRED_TERMS, REQUIRED_TERMS
from session_scheduler.model.objects import Node, PodSpec
from session_scheduler.model.objects import NodeAffinity as Affinity
from session_scheduler.model.selectors import (
    preferred_weights,
    required_nodes,
    selected_nodes,
    terms_text,
    wanted_names,
)


class NodeAffinityArguments(PluginArguments):
    """kube-scheduler's NodeAffinityArgs."""

    added_affinity: dict[str, Any] | None = Field(default=None)
    """A nodeAffinity that applies to every pod in addition to its own."""

    @field_validator("added_affinity")
    @classmethod
    def _well_formed(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        for problem in _problems(_decoded(value)):
            raise wrong_value(f"{problem}; fix the term")
        return value

    def affinity(self) -> Affinity:
        """The added affinity as an object; empty if there is none."""
        return _decoded(self.added_affinity)


def _decoded(value: dict[str, Any] | None) -> Affinity:
    unknown = sorted(set(value or {}) - {REQUIRED_TERMS, PREFERRED_TERMS})
    if unknown:
        raise wrong_value(f"unknown field {unknown[0]!r}; use {REQUIRED_TERMS} and {PREFERRED_TERMS}")
    try:
        return msgspec.convert(value or {}, Affinity)
    except msgspec.ValidationError as error:
        raise wrong_value(f"{error}; use the format of a pod's nodeAffinity") from error


def _problems(affinity: Affinity) -> Iterator[str]:
    """The problems of the terms, each with its path."""
    required = affinity.required.node_selector_terms if affinity.required is not None else ()
    for index, term in enumerate(required):
        if (problem := term_problem(term)) is not None:
            yield f"{REQUIRED_TERMS}.nodeSelectorTerms[{index}].{problem}"
    for index, preferred in enumerate(affinity.preferred):
        if (problem := term_problem(preferred.preference)) is not None:
            yield f"{PREFERRED_TERMS}[{index}].preference.{problem}"


class NodeAffinity:
    """Rejects nodes that the pod does not select; scores nodes by the weights of the preferred terms they match.

    It ignores a malformed preference so that the pod can still run; kube-scheduler fails the pod.
    """

    Arguments = NodeAffinityArguments
    name = "NodeAffinity"
    ignores_requests = True
    weight = 2
    filter_scope = Scope.STATIC
    score_scope = Scope.STATIC
    normalise = Normalise.MAX

    def __init__(self, arguments: NodeAffinityArguments | None = None) -> None:
        self._added = (arguments or NodeAffinityArguments()).affinity()

    @hookimpl
    def events_to_register(self) -> Iterable[ClusterEventWithHint]:
        """Requeue when the pod selects a node now, because the node was added or its labels changed."""
        actions = ActionType.ADD | ActionType.UPDATE_NODE_LABEL
        return [ClusterEventWithHint(Node, actions, self._selected_now)]

    def _selected_now(self, cls: TaskClass, event: ClusterEvent) -> bool:
        return self._selects(cls, event.after) and (event.old is None or not self._selects(cls, event.before))

    def _selects(self, cls: TaskClass, node: NodeView) -> bool:
        added = self._added.required
        return bool((added is None or selected_nodes(node, added).any()) and required_nodes(node, cls.pod.spec).any())

    @hookimpl
    def prepare(self, cls: TaskClass) -> Skip | Refusal | frozenset[str] | None:
        """The node names that the terms require, or None; a refusal if the terms contradict each other."""
        spec = cls.pod.spec
        own = _own(spec)
        if not (spec.node_selector or own.required or own.preferred or self._added.required or self._added.preferred):
            return SKIP
        names = wanted_names(own.required) if own.required is not None else None
        return Refusal("pod affinity terms conflict") if names is not None and not names else names

    @hookimpl
    def filter(self, cls: TaskClass, nodes: NodeView, mask: BoolColumn) -> None:
        """Clear the nodes that the pod or the added affinity does not select."""
        if self._added.required is not None:
            np.logical_and(mask, selected_nodes(nodes, self._added.required), out=mask)
        if cls.pod.spec.node_selector or _own(cls.pod.spec).required is not None:
            np.logical_and(mask, required_nodes(nodes, cls.pod.spec), out=mask)

    @hookimpl
    def score(self, cls: TaskClass, nodes: NodeView) -> IntColumn | None:
        """The sum of the weights of the preferred terms that each node matches."""
        own = (one for one in _own(cls.pod.spec).preferred if is_int32(one.weight))
        terms = (*self._added.preferred, *own)
        return preferred_weights(nodes, terms) if terms else None

    @hookimpl
    def filter_key(self, cls: TaskClass) -> bytes:
        """The node selector and the required terms."""
        return _encoder.encode((cls.pod.spec.node_selector, _own(cls.pod.spec).required))

    @hookimpl
    def reasons(self, nodes: NodeView, state: frozenset[str] | None) -> Mapping[str, BoolColumn]:
        """kube-scheduler's messages: for a node with another name, for the added affinity, for the pod's own."""
        found = []
        if state is not None:
            named = np.logical_or.reduce([nodes.named(name) for name in sorted(state)])
            found.append(("node(s) didn't satisfy plugin(s) [NodeAffinity]", ~named))
        if self._added.required is not None:
            added = selected_nodes(nodes, self._added.required)
            found.append(("node(s) didn't match scheduler-enforced node affinity", ~added))
        return first_reasons(len(nodes), found, "node(s) didn't match Pod's node affinity/selector")

    @hookimpl
    def fits_if(self, cls: TaskClass, nodes: NodeView) -> Sequence[Sequence[str]]:
        """The labels and terms that each node does not match."""
        spec, own = cls.pod.spec, _own(cls.pod.spec)
        added = self._added.required
        selected = selected_nodes(nodes, own.required) if own.required is not None else None
        enforced = selected_nodes(nodes, added) if added is not None else None
        found = []
        for index, node in enumerate(map(nodes.node, range(len(nodes)))):
            name, labels = node.metadata.name, node.metadata.labels
            wanted = [
                f"{name} had the label {key}={value}" for key, value in spec.node_selector.items()
                if labels.get(key) != value
            ]  # fmt: skip
            if own.required is not None and selected is not None and not selected[index]:
                wanted.append(f"{name} matched {terms_text(own.required)}")
            if added is not None and enforced is not None and not enforced[index]:
                wanted.append(f"{name} matched {terms_text(added)}, which the configuration adds")
            found.append(wanted)
        return found


_NONE: Final = Affinity()
_encoder: Final = msgspec.json.Encoder(order="sorted")


def _own(spec: PodSpec) -> Affinity:
    """The pod's node affinity; empty if it has none."""
    return (spec.affinity.node_affinity if spec.affinity is not None else None) or _NONE
