"""What would have to change for a pod's claims for devices to be had on a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from session_scheduler.model.columns import BoolColumn, NodeView
from session_scheduler.model.devices import (
    EXACT_COUNT,
    Allocation,
    DeviceClass,
    ResourceClaim,
    ResourceClaimSpec,
)
from session_scheduler.model.selectors import terms_text

Said = tuple[BoolColumn, list[str] | None]
"""Over some rows where something is wanting; and what, with {} for the node's name. None where it cannot be said."""


def changes(nodes: NodeView, fits: BoolColumn, said: Sequence[Said]) -> list[list[str] | None]:
    """For each row all that is wanting there, nothing where it fits."""
    found: list[list[str] | None] = []
    for index in range(len(nodes)):
        name = nodes.node(index).metadata.name
        wanting = [texts for rows, texts in said if rows[index] and not fits[index]]
        known = [text.replace("{}", name) for texts in wanting for text in texts or ()]
        found.append(None if None in wanting else known)
    return found


def free_devices(
    claims: Sequence[ResourceClaim], special: ResourceClaimSpec, extended: Mapping[str, DeviceClass]
) -> list[str] | None:
    """The devices that would do, {} standing for the node: those of claims, and of the one for extended resources.

    None where it is not said: where a claim restricts them by each other, asks for all that there are or has
    alternatives.
    """
    specs = [*((claim.metadata.name, claim.spec) for claim in claims), ("", special)]
    if any(spec.devices.constraints for _, spec in specs):
        return None
    requests = [(name, request) for name, spec in specs for request in spec.devices.requests]
    resources = {one.metadata.name: resource for resource, one in extended.items()}
    alone = " for it alone" if len(requests) > 1 else ""
    found = []
    for name, request in requests:
        exact = request.exactly
        if exact is None or (exact.allocation_mode or EXACT_COUNT) != EXACT_COUNT:
            return None
        count, of_class = max(1, exact.count or 1), exact.device_class_name
        wanted = f"{count} device{'' if count == 1 else 's'} of class {of_class}"
        asking = f"request {request.name} of claim {name}" if name else f"the resource {resources[of_class]}"
        found.append(f"{wanted} such as {asking} asks for were free on {{}}{alone}")
    return found


def elsewhere(claim: ResourceClaim, allocation: Allocation) -> list[str] | None:
    """Where the devices of a claim can be used; None where that is not said by labels."""
    selector = allocation.node_selector
    if selector is None or any(term.match_fields for term in selector.node_selector_terms):
        return None
    return [f"{{}} matched {terms_text(selector)}, as the devices of claim {claim.metadata.name} require"]
