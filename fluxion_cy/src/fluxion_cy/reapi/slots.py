"""Which slots of a jobspec the library cannot serve, or would not come back from.

Facts are from the source of flux-sched 0.54, resource/traversers/dfu_impl.cpp and dfu_flexible.cpp.
"""

from collections.abc import Iterable
from math import prod

from fluxion_cy._select import Select
from fluxion_cy.errors import NotSupported
from fluxion_cy.jobspec import Resource

_SLOTS = ("slot", "xor_slot")
_DEEPEST = 4000
_MOST_STATES = 100_000


def every(resources: Iterable[Resource]) -> Iterable[Resource]:
    """All entries of a request, at every level."""
    for resource in resources:
        yield resource
        yield from every(resource.children)


def check_slots(resources: list[Resource], engine: Select, flexible: bool) -> None:
    """NotSupported for two slots side by side, of which the simple traverser serves one, and for what the flexible one
    cannot end with.
    """
    for beside in (resources, *(resource.children for resource in every(resources))):
        slots = [resource for resource in beside if resource.type in _SLOTS]
        if flexible:
            _check_alternatives(beside, slots, engine)
        elif len(slots) > 1:
            raise NotSupported("resources: the real engine cannot serve two slots side by side; nest or join them")


def _check_alternatives(beside: list[Resource], slots: list[Resource], engine: Select) -> None:
    """It takes all entries beside a slot for slots, and those without resources for slots that always fit."""
    if not slots:
        return
    for entry in beside:
        if not entry.children or any(child.type in _SLOTS for child in entry.children):
            what = "each slot" if entry.slot else f"{entry.type[:40]}, which stands beside a slot,"
            raise NotSupported(f"resources: the real engine's flexible traverser needs resources in {what} and no slot")
    plain = sum(entry.type != "xor_slot" for entry in beside)
    if plain + (plain < len(beside)) > 1:
        for entry in beside:
            if len({child.type for child in entry.children}) < len(entry.children):
                raise NotSupported(f"resources: {entry.type[:40]} beside a slot names one type twice; join them")
        _check_ways(beside, engine)


def _check_ways(slots: list[Resource], engine: Select) -> None:
    """It tries every way to fill slots side by side, one below the other on the stack."""
    least: dict[str, int] = {}
    for child in (child for slot in slots for child in slot.children):
        least[child.type] = min(least.get(child.type, child.low), child.low) or 1
    amounts = dict.fromkeys(least, 0)
    for vertex in engine.vertices():
        kind = engine.type_of(vertex)
        if kind in amounts:
            amounts[kind] += engine.size_of(vertex)
    steps = [amounts[kind] // low + 1 for kind, low in least.items()]
    if sum(steps) > _DEEPEST or prod(steps) > _MOST_STATES:
        raise NotSupported(
            f"resources: slots side by side over {sum(amounts.values())} units of {', '.join(sorted(amounts))[:80]} "
            "have too many ways to be filled for the real engine; use xor_slot, or ask for each slot by itself"
        )
