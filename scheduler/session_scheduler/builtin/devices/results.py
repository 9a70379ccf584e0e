"""The allocation to write for a claim: the results, the drivers' configuration and the node selector."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from session_scheduler.builtin.devices.errors import AllocationError
from session_scheduler.builtin.devices.search import Chosen
from session_scheduler.model.devices import (
    AllocatedConfig,
    AllocatedDevice,
    AllocatedDevices,
    Allocation,
    DeviceClass,
    ResourceClaim,
)
from session_scheduler.model.meta import LabelSelectorRequirement, NodeSelector, NodeSelectorTerm
from session_scheduler.model.selectors import NAME_FIELD

_SHARES: Final = uuid.UUID("5d0f9b1e-3c0a-4f7e-9a53-6f1a2f0f7f11")


def allocation(
    claim: ResourceClaim, chosen: Sequence[Chosen], node: str, classes: Mapping[str, DeviceClass]
) -> Allocation:
    """The allocation of a claim on a node. Raises AllocationError."""
    results = tuple(_result(claim, number, one) for number, one in enumerate(chosen))
    devices = AllocatedDevices(results=results, config=(*_of_classes(claim, chosen, classes), *_own(claim, chosen)))
    return Allocation(devices=devices, node_selector=_nodes(chosen, node))


def _result(claim: ResourceClaim, number: int, one: Chosen) -> AllocatedDevice:
    driver, pool, device = one.of.id
    seed = f"{claim.metadata.uid}/{number}/{driver}/{pool}/{device}"  # deterministic: equal sessions write equal bytes
    return AllocatedDevice(
        request=one.ask.full,
        driver=driver,
        pool=pool,
        device=device,
        admin_access=True if one.ask.admin else None,
        tolerations=one.ask.exact.tolerations,
        binding_conditions=one.of.device.binding_conditions,
        binding_failure_conditions=one.of.device.binding_failure_conditions,
        share_id=str(uuid.uuid5(_SHARES, seed)) if one.shared else None,
        consumed_capacity=dict(one.consumed),
    )


def _of_classes(
    claim: ResourceClaim, chosen: Sequence[Chosen], classes: Mapping[str, DeviceClass]
) -> list[AllocatedConfig]:
    """The configuration of each class, once for all requests with devices of the class."""
    names: dict[str, list[str]] = {}
    for request in claim.spec.devices.requests:
        asks = [one.ask for one in chosen if request.name in (one.ask.parent or one.ask.name,)]
        if asks:
            names.setdefault(asks[0].of_class.metadata.name, []).append(asks[0].full)
    return [
        AllocatedConfig(source="FromClass", requests=tuple(requests), opaque=config.opaque)
        for name, requests in names.items()
        if name in classes
        for config in classes[name].spec.config
    ]


def _own(claim: ResourceClaim, chosen: Sequence[Chosen]) -> list[AllocatedConfig]:
    """The claim's own configuration for the chosen alternatives."""
    selected = {one.ask.parent: one.ask.full for one in chosen if one.ask.parent}
    found = []
    for config in claim.spec.devices.config:
        entry = AllocatedConfig(source="FromClaim", requests=config.requests, opaque=config.opaque)
        if not config.requests:
            found.append(entry)
            continue
        named = {name for name in config.requests if name}
        found += [entry for request in claim.spec.devices.requests
                  if request.name in named or selected.get(request.name) in named]  # fmt: skip
    return found


def _nodes(chosen: Sequence[Chosen], node: str) -> NodeSelector | None:
    """The node's name if a device is local to it, else the combined selectors of all devices."""
    expressions: list[LabelSelectorRequirement] = []
    fields: list[LabelSelectorRequirement] = []
    for one in chosen:
        device, spec = one.of.device, one.of.part.spec
        of_device = bool(spec.per_device_node_selection)
        name, selector = (device.node_name, device.node_selector) if of_device else (spec.node_name, spec.node_selector)
        if name is not None or device.binds_to_node:
            only = LabelSelectorRequirement(key=NAME_FIELD, operator="In", values=(node,))
            return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(only,)),))
        terms = selector.node_selector_terms if selector is not None else ()
        if len(terms) > 1:
            raise AllocationError(f"unsupported ResourceSlice.NodeSelector with {len(terms)} terms")
        for term in terms:
            _add(expressions, term.match_expressions)
            _add(fields, term.match_fields)
    if not expressions and not fields:
        return None
    whole = NodeSelectorTerm(match_expressions=tuple(expressions), match_fields=tuple(fields))
    return NodeSelector(node_selector_terms=(whole,))


def _add(to: list[LabelSelectorRequirement], more: Sequence[LabelSelectorRequirement]) -> None:
    for one in more:
        known = ((k.key, k.operator, frozenset(k.values)) for k in to)
        if (one.key, one.operator, frozenset(one.values)) not in known:
            to.append(one)
