"""The InterPodAffinity plugin: evaluates affinity and anti-affinity between pods.

Both the new pod's terms and the terms of running pods count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Final

import msgspec
import numpy as np
from pydantic import Field

from session_scheduler.builtin import inter_pod_affinity_hints
from session_scheduler.builtin.first_reasons import first_reasons
from session_scheduler.builtin.near_texts import can_match, pods_text, where_text
from session_scheduler.builtin.pods_near import PodsNear, Source
from session_scheduler.config.settings import PluginArguments
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import SKIP, Normalise, Prepared, Refusal, Scope, Skip, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.cluster_view import ClusterView
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView
from session_scheduler.model.events import ClusterEventWithHint
from session_scheduler.model.label_selectors import Selector
from session_scheduler.model.pod_counts import PodQuery
from session_scheduler.model.pod_terms import MOST_OF_A_NAMESPACE, HeldTerm, PodTerms, Term, TermKind

AFFINITY: Final = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY: Final = "node(s) didn't match pod anti-affinity rules"
EXISTING: Final = "node(s) didn't satisfy existing pods anti-affinity rules"


class InterPodAffinityArguments(PluginArguments):
    """kube-scheduler's InterPodAffinityArgs."""

    hard_pod_affinity_weight: Annotated[int, Field(ge=0, le=100)] = 1
    """The weight of a running pod's required affinity to the new pod."""
    ignore_preferred_terms_of_existing_pods: bool = False
    """Ignore the preferred terms of running pods when scoring a pod without preferred terms."""


class AffinityState(msgspec.Struct, frozen=True):
    """The counts for a class."""

    affinity: tuple[PodsNear, ...]
    """For each required affinity term, the pods in the node's domain. They must match all of the terms."""
    matches_itself: bool
    """Whether the pod matches its own required affinity: then the first such pod may go to any node with the labels."""
    anti_affinity: tuple[PodsNear, ...]
    existing: tuple[PodsNear, ...]
    """Running pods with anti-affinity to the new one."""
    score: tuple[PodsNear, ...]
    together: PodQuery
    """The pods that match all affinity terms."""
    away: tuple[PodQuery, ...]
    """For each anti-affinity term, the pods that match it."""


class InterPodAffinity:
    """Rejects and scores nodes by the affinity and anti-affinity terms of the new pod and of running pods."""

    Arguments = InterPodAffinityArguments
    name = "InterPodAffinity"
    ignores_requests = True
    weight = 2
    filter_scope = Scope.ANY
    score_scope = Scope.ANY
    normalise = Normalise.NONE  # `score` normalises in floating point, like kube-scheduler

    def __init__(self, arguments: InterPodAffinityArguments | None = None) -> None:
        self._arguments = arguments or InterPodAffinityArguments()

    @hookimpl
    def events_to_register(self) -> Iterable[ClusterEventWithHint]:
        """Requeue when matching pods, or the nodes and namespaces of the terms, change."""
        return inter_pod_affinity_hints.events()

    @hookimpl
    def footprint(self, cls: TaskClass) -> Iterable[HeldTerm]:
        """The terms of the class's running pods that apply to other pods."""
        return cls.terms.held

    @hookimpl
    def prepare(self, session: Session, cls: TaskClass) -> Skip | Refusal | Prepared:
        """The counts for the class. Skips pods without terms that no other pod's terms can match."""
        terms = cls.terms
        if terms.problem is not None:
            return Refusal(f"parsing pod: {terms.problem}")
        if any(held.left_out for held in terms.held):
            return Refusal(
                f"namespace {cls.namespace} has more than {MOST_OF_A_NAMESPACE} different affinity terms for pods in "
                "other namespaces"
            )
        concerning = _terms_matching(session, cls)
        state = self._state(session, cls, concerning)
        filters = (*state.anti_affinity, *state.existing)
        filter_scope: Scope | Skip = SKIP if not filters else Scope.NODE
        if state.affinity or not all(near.domains.alone for near in filters):
            filter_scope = Scope.ANY
        if filter_scope is SKIP and not state.score:
            return SKIP
        return Prepared(state, filter_scope, Scope.ANY if state.score else SKIP)

    def _state(self, session: Session, cls: TaskClass, concerning: Sequence[HeldTerm]) -> AffinityState:
        terms, view, metadata = cls.terms, session.view, cls.pod.metadata
        together = _together(terms.affinity, view)
        away: dict[str, list[tuple[int, Source]]] = defaultdict(list)
        for held in concerning:
            if held.kind is TermKind.ANTI_AFFINITY:
                away[held.term.topology_key].append((1, held))
        avoided = tuple(query_of(term, view) for term in terms.anti_affinity)
        return AffinityState(
            tuple(PodsNear(session, term.topology_key, [(1, together)]) for term in terms.affinity),
            together.picks(metadata.namespace, metadata.labels),
            tuple(PodsNear(session, term.topology_key, [(1, query)])
                  for term, query in zip(terms.anti_affinity, avoided, strict=True)),
            tuple(PodsNear(session, key, sources) for key, sources in away.items()),
            tuple(PodsNear(session, key, found) for key, found in self._scored(terms, concerning, view).items()),
            together,
            avoided,
        )  # fmt: skip

    def _scored(
        self, terms: PodTerms, concerning: Sequence[HeldTerm], view: ClusterView
    ) -> dict[str, list[tuple[int, Source]]]:
        """By topology key, the weight of a pod of each source in the domain."""
        found: dict[str, list[tuple[int, Source]]] = defaultdict(list)
        own = bool(terms.preferred or terms.preferred_anti)
        if self._arguments.ignore_preferred_terms_of_existing_pods and not own:
            return found
        for sign, weighted in ((1, terms.preferred), (-1, terms.preferred_anti)):
            for weight, term in weighted:
                found[term.topology_key].append((sign * weight, query_of(term, view)))
        signs = {
            TermKind.AFFINITY: self._arguments.hard_pod_affinity_weight,
            TermKind.PREFERRED: 1,
            TermKind.PREFERRED_ANTI: -1,
        }
        for held in concerning:
            weight = signs.get(held.kind, 0) * held.weight
            if weight:
                found[held.term.topology_key].append((weight, held))
        return found

    # ------------------------------------------------------------------ filter

    @hookimpl
    def filter(self, nodes: NodeView, mask: BoolColumn, state: AffinityState) -> None:
        """Clear the nodes that violate a required affinity or anti-affinity."""
        for _, refused in _refusals(nodes, state):
            np.greater(mask, refused, out=mask)

    @hookimpl
    def reasons(self, nodes: NodeView, state: AffinityState) -> Mapping[str, BoolColumn]:
        """kube-scheduler's message for the first violated rule."""
        return first_reasons(len(nodes), _refusals(nodes, state), EXISTING)

    @hookimpl
    def unresolvable(self, nodes: NodeView, state: AffinityState) -> BoolColumn:
        """The nodes that violate the pod's own affinity."""
        return ~_near_all(nodes, state) if state.affinity else np.zeros(len(nodes), np.bool_)

    @hookimpl
    def fits_if(self, cls: TaskClass, nodes: NodeView, state: AffinityState) -> Sequence[Sequence[str] | None]:
        """The changes that each node needs; None if no pod can match the affinity."""
        near = [near.domains.present[nodes.row_numbers] for near in state.affinity]
        first = _is_first(state)
        if not first:
            near = [has & (one.counts(nodes) > 0) for has, one in zip(near, state.affinity, strict=True)]
        away = [one.counts(nodes) > 0 for one in state.anti_affinity]
        existing = [one.counts(nodes) > 0 for one in state.existing]
        needs_pods = bool(state.affinity) and not first
        satisfiable = not needs_pods or can_match(state.together)
        matching = f"a {pods_text(state.together, cls.namespace)}{_unless_excluded(state)}" if needs_pods else ""
        found: list[list[str] | None] = []
        for index in range(len(nodes)):
            node, row = nodes.node(index), int(nodes.row_numbers[index])
            missing = [one for one, holds in zip(state.affinity, near, strict=True) if not holds[index]]
            if missing and not satisfiable:
                found.append(None)
                continue
            unlabelled = dict.fromkeys(one.key for one in missing if not one.domains.present[row])
            wanted = [f"{node.metadata.name} had the label {key}" for key in unlabelled]
            if needs_pods:
                wanted += dict.fromkeys(f"{matching} ran {where_text(node, one.key)}" for one in missing)
            gone: list[str] = []
            for one, query, refuses in zip(state.anti_affinity, state.away, away, strict=True):
                if refuses[index]:
                    gone.append(f"no {pods_text(query, cls.namespace)} ran {where_text(node, one.key)}")
            for one, refuses in zip(state.existing, existing, strict=True):
                if refuses[index]:
                    gone.append(f"no pod with anti-affinity to this one ran {where_text(node, one.key)}")
            if gone and needs_pods and len(missing) < len(state.affinity):
                gone.append("the pods that the pod's affinity selects still ran there")
            found.append([*wanted, *dict.fromkeys(gone)])
        return found

    # ------------------------------------------------------------------ score

    @hookimpl
    def score(self, nodes: NodeView, mask: BoolColumn, state: AffinityState) -> IntColumn:
        """The weighted number of matching pods in each node's domains, scaled to 0 to 100."""
        total = state.score[0].counts(nodes)
        for near in state.score[1:]:
            total = total + near.counts(nodes)
        feasible = total[mask]
        low, high = (int(feasible.min()), int(feasible.max())) if len(feasible) else (0, 0)
        if low == high:
            return np.zeros(len(nodes), np.int64)
        above, most = total - low, high - low
        if most <= len(nodes):  # a lookup is cheaper than a division
            return _percent(np.arange(most + 1), most).take(above, mode="clip")
        return _percent(above, most)


def _percent(above: IntColumn, most: int) -> IntColumn:
    percent: IntColumn = (100.0 * (above / float(most))).astype(np.int64)
    return percent


def _refusals(nodes: NodeView, state: AffinityState) -> Iterator[tuple[str, BoolColumn]]:
    """Each rule's message with the nodes of the view that violate it, in kube-scheduler's order."""
    if state.affinity:
        yield AFFINITY, ~_near_all(nodes, state)
    for near in state.anti_affinity:
        yield ANTI_AFFINITY, near.counts(nodes) > 0
    for near in state.existing:
        yield EXISTING, near.counts(nodes) > 0


def _near_all(nodes: NodeView, state: AffinityState) -> BoolColumn:
    rows = nodes.row_numbers
    labelled = np.logical_and.reduce([near.domains.present[rows] for near in state.affinity])
    if _is_first(state):
        return np.asarray(labelled)
    return np.asarray(np.logical_and.reduce([labelled, *(near.counts(nodes) > 0 for near in state.affinity)]))


def _is_first(state: AffinityState) -> bool:
    """Whether the pod matches its own affinity and no other pod does yet."""
    return state.matches_itself and not any(near.by_domain().any() for near in state.affinity)


def _unless_excluded(state: AffinityState) -> str:
    """A condition for the text if a pod can match both the affinity and an anti-affinity term."""
    own = state.together.selector
    if any(own.also(query.selector.requirements or ()).satisfiable for query in state.away):
        return " that this pod's anti-affinity does not exclude"
    return ""


def _terms_matching(session: Session, cls: TaskClass) -> list[HeldTerm]:
    """The terms of all classes that match the class's pods, including classes without running pods yet."""
    metadata = cls.pod.metadata
    namespace_labels = session.view.namespace_labels(metadata.namespace)
    return session.table.terms.concerning(metadata.namespace, metadata.labels, namespace_labels)


def query_of(term: Term, view: ClusterView) -> PodQuery:
    """The pods that match a new pod's term, with the namespaces that its selector matches now."""
    return PodQuery(_namespaces(term, view), term.selector)


def _namespaces(term: Term, view: ClusterView) -> frozenset[str] | None:
    # like kube-scheduler 1.36: a selector that matches the empty label set matches every namespace
    if term.namespace_selector.matches({}):
        return None
    return term.namespaces.union(view.namespaces(term.namespace_selector))


def _together(terms: Sequence[Term], view: ClusterView) -> PodQuery:
    """The pods that match all of the terms; none without terms."""
    if not terms:
        return PodQuery(frozenset(), Selector(None))
    namespaces: frozenset[str] | None = None
    selector = terms[0].selector
    for term in terms:
        own = _namespaces(term, view)
        if own is not None:
            namespaces = own if namespaces is None else namespaces & own
        selector = Selector(None) if term.selector.requirements is None else selector.also(term.selector.requirements)
    return PodQuery(namespaces, selector)
