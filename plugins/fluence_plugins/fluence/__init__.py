"""Placement of pods and devices by matching them against a Fluxion resource graph."""

from fluence_plugins.fluence.amounts import Accounting
from fluence_plugins.fluence.cluster_graph import ClusterGraph, HostResources, VirtualNode, build_graph
from fluence_plugins.fluence.errors import (
    AllocationError,
    AttributeConflictError,
    DeviceError,
    DocumentError,
    GraphError,
    JobspecError,
    NamingError,
    NoMatchingDeviceError,
    ResourcesError,
    UnknownDeviceTypeError,
)
from fluence_plugins.fluence.jgf import JGFBuilder, Options, Vertex
from fluence_plugins.fluence.jobspec import Count, Jobspec, Resource, Task, slot
from fluence_plugins.fluence.placement import DeviceHolding, HostHolding, Placement, placement_from_allocation
from fluence_plugins.fluence.replay import allocation_from_placement
from fluence_plugins.fluence.requests import PodShape, compute_jobspec, device_jobspecs
from fluence_plugins.fluence.resources import (
    ResourcesConfig,
    VirtualResource,
    attribute_keys,
    env_contract,
    fluxion_resource_names,
    load_resources,
    resource_types,
)

__all__ = [
    "Accounting",
    "AllocationError",
    "AttributeConflictError",
    "ClusterGraph",
    "Count",
    "DeviceError",
    "DeviceHolding",
    "DocumentError",
    "GraphError",
    "HostHolding",
    "HostResources",
    "JGFBuilder",
    "Jobspec",
    "JobspecError",
    "NamingError",
    "NoMatchingDeviceError",
    "Options",
    "Placement",
    "PodShape",
    "Resource",
    "ResourcesConfig",
    "ResourcesError",
    "Task",
    "UnknownDeviceTypeError",
    "Vertex",
    "VirtualNode",
    "VirtualResource",
    "allocation_from_placement",
    "attribute_keys",
    "build_graph",
    "compute_jobspec",
    "device_jobspecs",
    "env_contract",
    "fluxion_resource_names",
    "load_resources",
    "placement_from_allocation",
    "resource_types",
    "slot",
]
