"""The traverser `flexible`: expands a jobspec with alternatives to plain forms, which the search tries in order.

A form has one of several `xor_slot` siblings, for the whole request. Plain slots that are siblings share one count,
that of the last: each slot may be any of them, and the match has as many as possible.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

from fluxion_cy.errors import InvalidJobspec
from fluxion_cy.jobspec.reader import Resource

_MAX_VARIANTS = 1000
_MAX_ENTRIES = 50_000
_XOR = "xor_slot"


def variants(resources: list[Resource]) -> list[list[Resource]]:
    """All forms of a request, in the order of the alternatives.

    Raises InvalidJobspec beyond 1,000 forms or 50,000 entries.
    """
    made = _Forms()
    return made.checked(made.weighed(form) for split in made.split(resources) for form in made.merged(split))


class _Forms:
    """Expands requests to forms, and limits the number of forms and of their entries."""

    def __init__(self) -> None:
        self._room = _MAX_ENTRIES

    def checked(self, forms: Iterable[list[Resource]]) -> list[list[Resource]]:
        """These forms. Raises InvalidJobspec as soon as there are too many, or too many entries in all."""
        found = []
        for form in forms:
            found.append(form)
            if len(found) > _MAX_VARIANTS:
                raise InvalidJobspec(
                    f"resources: the alternatives expand to more than {_MAX_VARIANTS} forms of the request; "
                    "use fewer alternatives"
                )
            self._spend(len(form))
        return found

    def _spend(self, entries: int) -> None:
        self._room -= entries
        if self._room < 0:
            raise InvalidJobspec(
                f"resources: with all alternatives expanded, the request has more than {_MAX_ENTRIES:,} entries; "
                "use fewer alternatives, or a smaller request"
            )

    def weighed(self, form: list[Resource]) -> list[Resource]:
        """The form, once the entries of all its levels are counted."""
        level = form
        while level:
            self._spend(len(level))
            level = [child for resource in level for child in resource.children]
        return form

    def split(self, resources: list[Resource]) -> list[list[Resource]]:
        """One form for each choice among `xor_slot` entries, which is the last entry of the form, as a slot."""
        forms: list[list[Resource]] = [[]]
        options: list[Resource] = []
        for resource in resources:
            below = self.split(resource.children)
            if resource.type == _XOR:
                options += [replace(resource, type="slot", children=children) for children in below]
            elif len(below) == 1 and len(forms) == 1:
                forms[0].append(replace(resource, children=below[0]))
            else:
                pairs = product(forms, below)
                forms = self.checked([*form, replace(resource, children=children)] for form, children in pairs)
        if options:
            forms = self.checked([*form, option] for form, option in product(forms, options))
        return forms

    def merged(self, resources: list[Resource]) -> list[list[Resource]]:
        """At every level, slots that are siblings as one slot with alternatives."""
        below = [self.merged(resource.children) for resource in resources]
        ways = product(*below)
        levels = ([replace(r, children=c) for r, c in zip(resources, chosen, strict=True)] for chosen in ways)
        return self.checked(form for level in levels for form in _merge_level(level))


def _merge_level(resources: list[Resource]) -> Iterator[list[Resource]]:
    slots = [resource for resource in resources if resource.slot]
    others = [resource for resource in resources if not resource.slot]
    if len(slots) < 2:
        yield resources
    elif _comparable(slots):
        yield [*others, replace(slots[-1], children=_union(slots), alternatives=[slot.children for slot in slots])]
    else:
        for form in _shares(slots):
            yield [*others, *form]


def _comparable(slots: list[Resource]) -> bool:
    """Whether their common types differ in counts only, so that one search serves all of them."""
    known: dict[str, Resource] = {}
    for slot in slots:
        if len({child.type for child in slot.children}) < len(slot.children) or not slot.children:
            return False
        for child in slot.children:
            first = known.setdefault(child.type, child)
            if child.slot or (first.children, first.exclusive) != (child.children, child.exclusive):
                return False
    return True


def _union(slots: list[Resource]) -> list[Resource]:
    """For each type, by name, the request for the largest amount."""
    found: dict[str, Resource] = {}
    for slot in slots:
        for child in slot.children:
            if child.type not in found or found[child.type].low < child.low:
                found[child.type] = child
    return [found[kind] for kind in sorted(found)]


def _shares(slots: list[Resource]) -> Iterator[list[Resource]]:
    """Every way to divide the count among the slots, those with the most of the first slot first."""
    number = slots[-1].low
    if any(slot.low != slot.high for slot in slots):
        raise InvalidJobspec(
            "resources: if sibling slots differ in more than their counts, each of them needs a fixed count"
        )
    for parts in _parts(number, len(slots)):
        yield [replace(slot, low=part, high=part) for slot, part in zip(slots, parts, strict=True) if part]


def _parts(number: int, places: int) -> Iterator[tuple[int, ...]]:
    if places == 1:
        yield (number,)
        return
    for first in range(number, -1, -1):
        for rest in _parts(number - first, places - 1):
            yield (first, *rest)
