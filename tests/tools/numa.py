"""NodeResourceTopologies, and pods with the QoS class Guaranteed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from session_scheduler.model.meta import ObjectMeta, Quantity
from session_scheduler.model.node_topology import Attribute, NodeResourceTopology, Zone, ZoneCost, ZoneResource
from session_scheduler.model.objects import Container, Pod, ResourceRequirements
from session_scheduler.testing.builders import pod

GPU = "nvidia.com/gpu"
SINGLE = "single-numa-node"
Offers = Mapping[str, Quantity]


def topology(
    name: str, *zones: Offers, used: Mapping[int, Offers] | None = None, policy: str = SINGLE, scope: str = "container",
    costs: Mapping[tuple[int, int], int] | None = None, **attributes: str,
) -> NodeResourceTopology:  # fmt: skip
    """The object of a node: what each zone has, and (by zone) how much of it the agent reports as used."""
    used, costs = used or {}, costs or {}
    options = {"topologyManagerPolicy": policy, "topologyManagerScope": scope} | attributes
    return NodeResourceTopology(
        metadata=ObjectMeta(name=name),
        attributes=tuple(Attribute(name=key, value=value) for key, value in options.items()),
        zones=tuple(
            Zone(
                name=f"node-{number}", type="Node",
                costs=tuple(ZoneCost(name=f"node-{other}", value=value)
                            for (one, other), value in costs.items() if one == number),
                resources=tuple(
                    ZoneResource(name=key, capacity=amount, allocatable=amount,
                                 available=int(amount) - int(used.get(number, {}).get(key, 0)))
                    for key, amount in zone.items()
                ),
            )
            for number, zone in enumerate(zones)
        ),
    )  # fmt: skip


def container(name: str = "c", restart_policy: str = "", **amounts: Quantity) -> Container:
    """A container with equal requests and limits: `cpu`, `gpu`, and 1Gi of memory unless `memory` says otherwise."""
    limits = {GPU if key == "gpu" else key: amount for key, amount in ({"memory": "1Gi"} | amounts).items()}
    return Container(
        name=name, restart_policy=restart_policy, resources=ResourceRequirements(requests=dict(limits), limits=limits)
    )


def guaranteed(name: str, *containers: Container, init: tuple[Container, ...] = (), **options: Any) -> Pod:
    """A pod with these containers, or with one of the amounts in `options`."""
    amounts = {key: options.pop(key) for key in ("cpu", "memory", "gpu") if key in options}
    made = pod(name, **options)
    spec = replace(made.spec, containers=containers or (container(**amounts),), init_containers=init)
    return replace(made, spec=spec)
