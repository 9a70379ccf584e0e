"""Inter-pod affinity terms: the decoded terms of each class, and a table of the terms of all classes.

The class table decodes them; InterPodAffinity reads them. Source: kube-scheduler's framework.AffinityTerm and PodInfo,
Kubernetes 1.36.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec

from session_scheduler.model.expressions import is_int32
from session_scheduler.model.label_selectors import NOTHING, Selector, SelectorError, SelectorIndex, selector_of
from session_scheduler.model.meta import PREFERRED_TERMS, REQUIRED_TERMS
from session_scheduler.model.objects import LabelSelector, Pod

MOST_OF_A_POD: Final = 256
"""The maximum number of terms of one pod."""
MOST_OF_A_NAMESPACE: Final = 1000
"""The maximum number of terms by which the pods of one namespace select pods of others: each term must be evaluated."""


class _Part(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A part of spec.affinity, which `objects.Affinity` leaves undecoded."""


class _Term(_Part, frozen=True):
    """PodAffinityTerm. The API server has merged matchLabelKeys and mismatchLabelKeys into labelSelector."""

    topology_key: str
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None


class _Weighted(_Part, frozen=True):
    """WeightedPodAffinityTerm."""

    weight: int
    pod_affinity_term: _Term


class Term(msgspec.Struct, frozen=True):
    """The pods that a term selects, and the node label whose values are the domains."""

    namespaces: frozenset[str]
    namespace_selector: Selector
    selector: Selector
    topology_key: str

    @property
    def only_namespace(self) -> str | None:
        """The namespace of all pods that the term can select; None if there may be others."""
        if len(self.namespaces) == 1 and self.namespace_selector == NOTHING:
            return next(iter(self.namespaces))
        return None

    def picks(self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]) -> bool:
        """Whether the term selects a pod with these labels, in a namespace with those labels."""
        if namespace not in self.namespaces and not self.namespace_selector.matches(namespace_labels):
            return False
        return self.selector.matches(labels)


class TermKind(StrEnum):
    """The list of spec.affinity that contains a term."""

    AFFINITY = "podAffinity"
    ANTI_AFFINITY = "podAntiAffinity"
    PREFERRED = "preferred podAffinity"
    PREFERRED_ANTI = "preferred podAntiAffinity"


class HeldTerm:
    """A term of running pods: the key of the counter of these pods. Equal terms share one object."""

    __slots__ = ("kind", "left_out", "owner", "term", "weight")

    def __init__(self, kind: TermKind, term: Term, weight: int, owner: str) -> None:
        self.kind = kind
        self.term = term
        self.weight = weight
        """The weight of the term, 1 for a required one. Equal terms of one pod add up."""
        self.owner = owner
        """A namespace of these pods."""
        self.left_out = False
        """Whether it has no effect, because its namespace has too many of them."""

    def __repr__(self) -> str:
        return f"HeldTerm({self.kind}, {self.weight}, {self.term})"


@dataclass(frozen=True, slots=True)
class PodTerms:
    """All terms of a pod; required ones have weight 1."""

    affinity: tuple[Term, ...] = ()
    anti_affinity: tuple[Term, ...] = ()
    preferred: tuple[tuple[int, Term], ...] = ()
    preferred_anti: tuple[tuple[int, Term], ...] = ()
    problem: str | None = None
    """The errors in the terms, None if there are none. An invalid list counts as empty."""
    held: tuple[HeldTerm, ...] = field(default=(), compare=False)


NO_TERMS = PodTerms()
_T = TypeVar("_T")


class TermTable:
    """The distinct terms of all classes."""

    def __init__(self) -> None:
        self._held: dict[tuple[TermKind, Term, int], HeldTerm] = {}
        self._index: SelectorIndex[HeldTerm] = SelectorIndex()
        self._abroad: Counter[str] = Counter()
        """By namespace: the number of its indexed terms that can select pods of others."""
        self.crowded = False
        """Whether terms were left out."""

    def __len__(self) -> int:
        return len(self._held)

    def concerning(
        self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]
    ) -> list[HeldTerm]:
        """The terms that select a pod with these labels, in a namespace with those labels."""
        likely = self._index.likely(namespace, labels)
        return [held for held in likely if held.term.picks(namespace, labels, namespace_labels)]

    def terms_of(self, pod: Pod) -> PodTerms:
        """Decode the pod's terms, and add them to the table."""
        affinity = pod.spec.affinity
        if affinity is None or (affinity.pod_affinity is None and affinity.pod_anti_affinity is None):
            return NO_TERMS
        count = sum(len((part or {}).get(field) or ()) for part in (affinity.pod_affinity, affinity.pod_anti_affinity)
                    for field in (REQUIRED_TERMS, PREFERRED_TERMS))  # fmt: skip
        if count > MOST_OF_A_POD:
            return PodTerms(problem=f"spec.affinity: expected at most {MOST_OF_A_POD} pod affinity terms, got {count}")
        problems: list[str] = []

        def read(raw: dict[str, Any] | None, field: str, where: str, of: Callable[[Any], _T]) -> tuple[_T, ...]:
            try:
                return tuple(of(item) for item in (raw or {}).get(field) or ())
            except (SelectorError, msgspec.ValidationError) as error:
                problems.append(f"{where}.{field}: {error}")
                return ()

        def one(item: Any) -> Term:
            return _term(msgspec.convert(item, _Term), pod)

        def weighted(item: Any) -> tuple[int, Term]:
            found = msgspec.convert(item, _Weighted)
            if not is_int32(found.weight):  # a larger one could overflow the scores of other pods
                raise SelectorError(f"weight: {found.weight} is out of range; write 1 to 100")
            return found.weight, _term(found.pod_affinity_term, pod)

        terms = PodTerms(
            read(affinity.pod_affinity, REQUIRED_TERMS, TermKind.AFFINITY, one),
            read(affinity.pod_anti_affinity, REQUIRED_TERMS, TermKind.ANTI_AFFINITY, one),
            read(affinity.pod_affinity, PREFERRED_TERMS, TermKind.AFFINITY, weighted),
            read(affinity.pod_anti_affinity, PREFERRED_TERMS, TermKind.ANTI_AFFINITY, weighted),
            "; ".join(problems) or None,
        )
        return self.with_held(terms, pod.metadata.namespace)

    def with_held(self, terms: PodTerms, namespace: str) -> PodTerms:
        """Add the terms of a namespace's pods to the table. Returns them with their counters' keys."""
        worth: Counter[tuple[TermKind, Term]] = Counter()
        for kind, weight, term in _listed(terms):
            worth[kind, term] += weight
        held = []
        for (kind, term), weight in worth.items():
            key = (kind, term, weight)
            found = self._held.get(key)
            if found is None or found.left_out:
                found = self._held[key] = found or HeldTerm(kind, term, weight, namespace)
                found.owner = namespace
                self._add(found)
            held.append(found)
        return replace(terms, held=tuple(held))

    def keep(self, held: Iterable[HeldTerm]) -> None:
        """Drop all terms except these. Terms that were left out take the place of dropped ones."""
        kept = set(held)
        self._held = {key: one for key, one in self._held.items() if one in kept}
        self._index, self._abroad, self.crowded = SelectorIndex(), Counter(), False
        for one in self._held.values():
            self._add(one)

    def _add(self, held: HeldTerm) -> None:
        """Index a term, unless its namespace has too many that select pods of others."""
        only = held.term.only_namespace
        abroad = only != held.owner
        held.left_out = abroad and self._abroad[held.owner] >= MOST_OF_A_NAMESPACE
        if held.left_out:
            self.crowded = True
            return
        self._abroad[held.owner] += abroad
        self._index.add(only, held.term.selector, held)


def _listed(terms: PodTerms) -> Iterator[tuple[TermKind, int, Term]]:
    yield from ((TermKind.AFFINITY, 1, term) for term in terms.affinity)
    yield from ((TermKind.ANTI_AFFINITY, 1, term) for term in terms.anti_affinity)
    yield from ((TermKind.PREFERRED, weight, term) for weight, term in terms.preferred)
    yield from ((TermKind.PREFERRED_ANTI, weight, term) for weight, term in terms.preferred_anti)


def _term(written: _Term, pod: Pod) -> Term:
    own = not written.namespaces and written.namespace_selector is None
    namespaces = frozenset((pod.metadata.namespace,) if own else written.namespaces)
    return Term(
        namespaces, selector_of(written.namespace_selector), selector_of(written.label_selector), written.topology_key
    )
