"""Typed NodeResourceTopology: the NUMA zones of a node, and what an agent reports as free in each.

Source: k8stopologyawareschedwg/noderesourcetopology-api, v1alpha2. Agents that write it are the topology updater of
Node Feature Discovery and the Resource Topology Exporter.
"""

from __future__ import annotations

from session_scheduler.model.meta import ApiStruct, ClusterScoped, Quantity


class Attribute(ApiStruct, frozen=True):
    """attributes[]: for the node, the options of its kubelet's topology manager."""

    name: str = ""
    value: str = ""


class ZoneCost(ApiStruct, frozen=True):
    """zones[].costs[]: the distance to another zone."""

    name: str = ""
    value: int = 0


class ZoneResource(ApiStruct, frozen=True):
    """zones[].resources[]: `available` is `allocatable` minus what running pods use."""

    name: str = ""
    capacity: Quantity = 0
    allocatable: Quantity = 0
    available: Quantity = 0


class Zone(ApiStruct, frozen=True):
    """zones[]: a NUMA node has the type Node and the name node-0."""

    name: str = ""
    type: str = ""
    costs: tuple[ZoneCost, ...] = ()
    resources: tuple[ZoneResource, ...] = ()


class NodeResourceTopology(ClusterScoped, frozen=True, tag_field="kind", tag="NodeResourceTopology"):
    """topology.node.k8s.io/v1alpha2 NodeResourceTopology of the node with the same name."""

    api_version: str = "topology.node.k8s.io/v1alpha2"
    topology_policies: tuple[str, ...] = ()
    """Deprecated in favour of `attributes`, which take precedence."""
    attributes: tuple[Attribute, ...] = ()
    zones: tuple[Zone, ...] = ()
