"""A jobspec as the flat tables that the engine walks."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fluxion_cy.errors import InvalidJobspec
from fluxion_cy.jobspec.reader import Resource

_CLAMP = 2**61
Row = tuple[int, int, int, int, int, int, int, int, int, int, int, int]


@dataclass(slots=True)
class Layout:
    """Rows in the order of the engine's `Request`; the needs by pruned column, of each row and of the whole."""

    rows: list[Row] = field(default_factory=list)
    needs: list[list[int]] = field(default_factory=list)
    top_need: list[int] = field(default_factory=list)
    tops: int = 0
    top_slots: int = 0
    choices: list[tuple[int, list[list[tuple[int, int]]]]] = field(default_factory=list)
    """For each slot with alternatives: its row, and for each alternative pairs (row of the child, row of its count)."""


def lay_out(resources: list[Resource], type_ids: Mapping[str, int], columns: Mapping[str, int]) -> Layout:
    """The tables for one graph. Raises InvalidJobspec for a type that is neither in the graph nor well known."""
    tops = resources
    layout = Layout(tops=len(tops), top_slots=sum(resource.slot for resource in tops))
    if layout.top_slots > 1:
        tops = sorted(tops, key=lambda resource: resource.slot)
    width = max(1, len(columns))
    needs = _Needs(columns, width)
    level: list[Resource] = list(tops)
    place = len(level)
    flexible: list[tuple[int, int, Resource]] = []
    while level:
        below: list[Resource] = []
        for resource in level:
            if resource.alternatives:
                flexible.append((len(layout.rows), place, resource))
            layout.rows.append(_row(resource, place, type_ids))
            layout.needs.append(needs.below(resource))
            below.extend(resource.children)
            place += len(resource.children)
        level = below
    for row, first, resource in flexible:
        layout.choices.append((row, [_choice(layout, first, resource, chosen, type_ids, width)
                                     for chosen in resource.alternatives]))  # fmt: skip
    layout.top_need = [0] * width
    for resource in tops:
        needs.add(layout.top_need, resource)
    return layout


def _choice(
    layout: Layout, first: int, slot: Resource, chosen: list[Resource], type_ids: Mapping[str, int], width: int
) -> list[tuple[int, int]]:
    """Rows at the end, outside the tree, for the counts of one alternative."""
    found = []
    for resource in chosen:
        at = next(i for i, child in enumerate(slot.children) if child.type == resource.type)
        found.append((first + at, len(layout.rows)))
        layout.rows.append(_row(replace(resource, children=[]), 0, type_ids))
        layout.needs.append([0] * width)
    return found


def _row(resource: Resource, first: int, type_ids: Mapping[str, int]) -> Row:
    kind = -1 if resource.slot else type_ids.get(resource.type)
    if kind is None:
        raise InvalidJobspec(f"resources: the graph does not know the type {resource.type[:40]!r}")
    slots = [first + i for i, child in enumerate(resource.children) if child.slot]
    return (
        kind, first, len(resource.children), len(slots), slots[-1] if slots else -1, ord(resource.oper), resource.low,
        resource.high, resource.operand, resource.slot, resource.exclusive is True, resource.exclusive is False,
    )  # fmt: skip


class _Needs:
    """The least that requests need, by pruned column. Each request is counted once, at any depth."""

    def __init__(self, columns: Mapping[str, int], width: int) -> None:
        self._columns, self._width = columns, width
        self._known: dict[int, list[int]] = {}  # by identity: the resources of the layout live longer

    def below(self, resource: Resource) -> list[int]:
        """What one unit of the resource needs below it."""
        known = self._known.get(id(resource))
        if known is None:
            ways = map(self._sum, resource.alternatives or [resource.children])
            known = self._known[id(resource)] = [min(amounts) for amounts in zip(*ways, strict=True)]
        return known

    def _sum(self, resources: list[Resource]) -> list[int]:
        need = [0] * self._width
        for resource in resources:
            self.add(need, resource)
        return need

    def add(self, need: list[int], resource: Resource) -> None:
        """Adds the request itself and everything below it."""
        column = self._columns.get(resource.type)
        if column is not None:
            need[column] = min(_CLAMP, need[column] + resource.low)
        for i, amount in enumerate(self.below(resource)):
            need[i] = min(_CLAMP, need[i] + resource.low * amount)
