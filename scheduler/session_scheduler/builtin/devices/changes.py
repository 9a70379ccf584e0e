"""The `fits_if` strings of DynamicResources: the changes that would let a node satisfy a pod's claims."""

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

Change = tuple[BoolColumn, list[str] | None]
"""The rows that need changes, and the strings with {} for the node's name. None: the changes are unknown."""


def changes(nodes: NodeView, fits: BoolColumn, needed: Sequence[Change]) -> list[list[str] | None]:
    """For each row the strings of all changes that it needs; none if it fits."""
    found: list[list[str] | None] = []
    for index in range(len(nodes)):
        name = nodes.node(index).metadata.name
        wanted = [texts for rows, texts in needed if rows[index] and not fits[index]]
        known = [text.replace("{}", name) for texts in wanted for text in texts or ()]
        found.append(None if None in wanted else known)
    return found


def free_devices(
    claims: Sequence[ResourceClaim], special: ResourceClaimSpec, extended: Mapping[str, DeviceClass]
) -> list[str] | None:
    """The free devices that the claims need, `special` being the one for extended resources; {} stands for the node.

    None if the strings would be too complex: a claim has constraints, requests all devices, or has alternatives.
    """
    specs = [*((claim.metadata.name, claim.spec) for claim in claims), ("", special)]
    if any(spec.devices.constraints for _, spec in specs):
        return None
    requests = [(name, request) for name, spec in specs for request in spec.devices.requests]
    resources = {one.metadata.name: resource for resource, one in extended.items()}
    more = ", in addition to the other requests' devices" if len(requests) > 1 else ""
    found = []
    for name, request in requests:
        exact = request.exactly
        if exact is None or (exact.allocation_mode or EXACT_COUNT) != EXACT_COUNT:
            return None
        count, of_class = max(1, exact.count or 1), exact.device_class_name
        wanted = f"{count} device{'' if count == 1 else 's'} of class {of_class}"
        purpose = f"request {request.name} of claim {name}" if name else f"the resource {resources[of_class]}"
        found.append(f"{wanted} for {purpose} were free on {{}}{more}")
    return found


def matching_labels(claim: ResourceClaim, allocation: Allocation) -> list[str] | None:
    """The node selector of a claim's devices as a string; None if it selects by more than labels."""
    selector = allocation.node_selector
    if selector is None or any(term.match_fields for term in selector.node_selector_terms):
        return None
    return [f"{{}} matched {terms_text(selector)}, as the devices of claim {claim.metadata.name} require"]
