"""Label selectors and the index of them, compared with a naive evaluation of each requirement."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from session_scheduler.model.label_selectors import NOTHING, Requirement, Selector, SelectorIndex
from session_scheduler.model.pod_terms import HeldTerm, PodTerms, Term, TermKind, TermTable

KEYS, VALUES, SPACES = "abc", "xyz", ["one", "two", "three"]
labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))
values = st.lists(st.sampled_from(VALUES), min_size=1, max_size=3, unique=True).map(lambda some: tuple(sorted(some)))
requirements = st.one_of(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(["In", "NotIn"]), values),
    st.tuples(st.sampled_from(KEYS), st.sampled_from(["Exists", "DoesNotExist"]), st.just(())),
)
selectors = st.one_of(st.just(NOTHING), st.lists(requirements, max_size=4).map(lambda some: Selector(tuple(some))))
terms = st.builds(Term, st.frozensets(st.sampled_from(SPACES)), selectors, selectors, st.sampled_from("kl"))


def holds(requirement: Requirement, carried: Mapping[str, str]) -> bool:
    key, operator, wanted = requirement
    if operator in ("Exists", "DoesNotExist"):
        return (key in carried) == (operator == "Exists")
    return (carried.get(key) in wanted) == (operator == "In")


def matches(selector: Selector, carried: Mapping[str, str]) -> bool:
    return selector.requirements is not None and all(holds(one, carried) for one in selector.requirements)


@given(selectors, labels)
def test_a_selector_matches_if_all_requirements_hold(selector: Selector, carried: dict[str, str]) -> None:
    assert selector.matches(carried) == matches(selector, carried)


@given(st.lists(st.tuples(st.sampled_from([None, *SPACES]), selectors), max_size=8), st.sampled_from(SPACES), labels)
def test_the_index_finds_each_matching_item_once(
    items: list[tuple[str | None, Selector]], space: str, carried: dict[str, str]
) -> None:
    index: SelectorIndex[int] = SelectorIndex()
    for number, (namespace, selector) in enumerate(items):
        index.add(namespace, selector, number)
    found = list(index.likely(space, carried))
    assert len(found) == len(set(found))
    wanted = {number for number, (namespace, selector) in enumerate(items)
              if namespace in (None, space) and matches(selector, carried)}  # fmt: skip
    assert set(found) >= wanted


@given(st.lists(terms, max_size=8), st.sampled_from(SPACES), labels, labels, st.data())
def test_the_table_finds_the_terms_that_select_a_pod(
    some: list[Term], space: str, carried: dict[str, str], of_space: dict[str, str], data: st.DataObject
) -> None:
    table = TermTable()
    held = table.with_held(PodTerms(anti_affinity=tuple(some)), "one").held

    def naive(of: list[HeldTerm]) -> list[HeldTerm]:
        return [one for one in of if matches(one.term.selector, carried)
                and (space in one.term.namespaces or matches(one.term.namespace_selector, of_space))]  # fmt: skip

    def found() -> list[HeldTerm]:
        return sorted(table.concerning(space, carried, of_space), key=held.index)

    assert found() == naive(list(held))
    kept = [one for one in held if data.draw(st.booleans())]
    table.keep(kept)
    assert found() == naive(kept)
    assert all(one.kind is TermKind.ANTI_AFFINITY for one in held)
