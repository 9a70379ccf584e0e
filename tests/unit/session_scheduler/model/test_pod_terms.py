"""What the affinity terms of one namespace cost the pods of another, counted in operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from session_scheduler.model.objects import Pod
from session_scheduler.model.pod_counts import PodCounts, PodQuery
from session_scheduler.model.pod_terms import MOST_OF_A_NAMESPACE, MOST_OF_A_POD, Term, TermTable

MANY = 500
Expressions = list[dict[str, Any]]


class Labels(dict[str, str]):
    """A victim's labels, which count each look at them."""

    looks = 0

    def __getitem__(self, key: str) -> str:
        self.looks += 1
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.looks += 1
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.looks += 1
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        for key in super().__iter__():
            self.looks += 1
            yield key

    def items(self) -> Any:
        """Each pair is a look."""
        self.looks += len(self)
        return super().items()


def one(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": values}


def tenant(expressions: Expressions, **scope: Any) -> Pod:
    """A pod of the tenant `other` with anti-affinity by these expressions."""
    term = {"topologyKey": "zone", "labelSelector": {"matchExpressions": expressions}, **scope}
    spec = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    return msgspec.convert({"metadata": {"name": "p", "namespace": "other"}, "spec": spec}, Pod)


def looks(monkeypatch: pytest.MonkeyPatch, pods: list[Pod], **labels: str) -> int:
    """How often the table looks at a victim's labels, or at a term, for the terms of these pods."""
    table, victim, tried = TermTable(), Labels(**labels), []
    for pod in pods:
        assert table.terms_of(pod).problem is None
    picks = Term.picks
    monkeypatch.setattr(Term, "picks", lambda *of: tried.append(of) or picks(*of))
    table.concerning("victims", victim, {})
    return victim.looks + len(tried)


EVERYWHERE: dict[str, Any] = {"namespaceSelector": {}}
CASES: dict[str, list[Pod]] = {
    "values": [tenant([one("app", "In", *(f"v{n}-{i}" for i in range(MANY)))], **EVERYWHERE) for n in range(20)],
    "pairs": [tenant([one("app", "In", f"v{n}", f"w{n}")], **EVERYWHERE) for n in range(MANY)],
    "keys": [tenant([one(f"key-{n}", "Exists")], **EVERYWHERE) for n in range(MANY)],
    "absence": [tenant([one("app", "DoesNotExist"), one("x", "NotIn", str(n))], **EVERYWHERE) for n in range(MANY)],
    "own namespace": [tenant([one("x", "NotIn", str(n))]) for n in range(MANY)],
    "other namespace": [tenant([one("x", "NotIn", str(n))], namespaces=["third"]) for n in range(MANY)],
    "a large match": [tenant([one(f"key-{n}", "NotIn", "v") for n in range(MANY)], **EVERYWHERE)],
}


@pytest.mark.parametrize("case", CASES)
def test_a_tenants_terms_that_do_not_select_a_pod_cost_it_nothing(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    assert looks(monkeypatch, CASES[case], app="web", tier="front") <= 12


@pytest.mark.parametrize("values", ["w{}", "v{} w{}", "web w{}"])
def test_twenty_pods_with_5000_in_terms_each_cost_a_pod_of_another_namespace_nothing(
    monkeypatch: pytest.MonkeyPatch, values: str
) -> None:
    table, victim, tried = TermTable(), Labels(app="web", tier="front"), list[object]()
    selectors = ([one("app", "In", *values.replace("{}", str(n)).split())] for n in range(5000))
    terms = [{"topologyKey": "zone", "labelSelector": {"matchExpressions": each}, **EVERYWHERE} for each in selectors]
    spec = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
    pod = msgspec.convert({"metadata": {"name": "p", "namespace": "other"}, "spec": spec}, Pod)
    for _ in range(20):
        assert table.terms_of(pod).problem == "spec.affinity: expected at most 256 pod affinity terms, got 5000"
    monkeypatch.setattr(Term, "picks", lambda *of: tried.append(of))
    assert table.concerning("victims", victim, {}) == []
    assert victim.looks + len(tried) <= 12


def test_a_new_kind_of_pod_costs_nothing_for_the_queries_of_others() -> None:
    counts = PodCounts(1)
    table = TermTable()
    for pods in CASES.values():
        for pod in pods:
            for term in table.terms_of(pod).anti_affinity:
                counts.column(PodQuery(term.namespaces or None, term.selector))
    victim = msgspec.convert({"metadata": {"name": "v", "namespace": "victims"}}, Pod)
    labels = Labels(app="web", tier="front")
    counts.acquire(msgspec.structs.replace(victim, metadata=msgspec.structs.replace(victim.metadata, labels=labels)))
    assert labels.looks <= 30


# ---------------------------------------------------------------------- limits


def abroad(number: int, namespace: str = "other") -> Pod:
    """A pod with anti-affinity to all pods of all namespaces, except one that does not exist."""
    found = tenant([one("x", "NotIn", str(number))], **EVERYWHERE)
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, namespace=namespace))


def test_the_terms_of_a_pod_are_limited() -> None:
    term = {"topologyKey": "zone", "labelSelector": {}}
    too_many = "expected at most 256 pod affinity terms, got 257"
    for count, problem in ((MOST_OF_A_POD, None), (MOST_OF_A_POD + 1, too_many)):
        affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term] * (count - 1)},
                    "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 1, "podAffinityTerm": term}]}}  # fmt: skip
        pod = msgspec.convert({"metadata": {"name": "p", "namespace": "a"}, "spec": {"affinity": affinity}}, Pod)
        terms = TermTable().terms_of(pod)
        assert terms.problem == (problem and f"spec.affinity: {problem}")
        assert bool(terms.held) == (problem is None)


def test_the_terms_of_a_namespace_that_select_pods_of_others_are_limited() -> None:
    table = TermTable()
    held = [table.terms_of(abroad(number)).held[0] for number in range(MOST_OF_A_NAMESPACE + 2)]
    assert [each.left_out for each in held] == [False] * MOST_OF_A_NAMESPACE + [True, True]
    assert len(table.concerning("victims", {"app": "web"}, {})) == MOST_OF_A_NAMESPACE
    own = table.terms_of(tenant([one("x", "NotIn", "own")])).held[0]
    assert not own.left_out, "it selects only pods of its namespace"
    shared = table.terms_of(abroad(MOST_OF_A_NAMESPACE, "third")).held[0]
    assert (shared is held[-2], shared.left_out) == (True, False), "another namespace has the same term"
    table.keep([*held[:10], held[-1], own])
    assert not held[-1].left_out
    assert len(table.concerning("victims", {"app": "web"}, {})) == 11
