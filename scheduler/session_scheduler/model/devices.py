"""Typed DRA objects: ResourceSlices, DeviceClasses and ResourceClaims, with the fields that DynamicResources uses.

Source: the Kubernetes API reference (resource.k8s.io/v1).
"""

from __future__ import annotations

from typing import Any

from msgspec import field

from session_scheduler.model.meta import ApiStruct, ClusterScoped, Namespaced, NodeSelector, ObjectMeta, Quantity

__all__ = [
    "CLASS_PREFIX", "EXTENDED_CLAIM", "RESULTS_LIMIT", "AllocatedConfig", "AllocatedDevice", "AllocatedDevices",
    "Allocation", "Consumer", "Device", "DeviceClaim", "DeviceClass", "DeviceRequest", "DeviceTaintRule",
    "ExactRequest", "ResourceClaim", "ResourceClaimSpec", "ResourceClaimStatus", "ResourceSlice",
]  # fmt: skip

API_VERSION = "resource.k8s.io/v1"
FINALIZER = "resource.kubernetes.io/delete-protection"
EXTENDED_CLAIM = "resource.kubernetes.io/extended-resource-claim"
"""Annotation ("true") of a claim that a scheduler created for a pod's extended resources."""
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
"""The extended resource that each DeviceClass has by default is this prefix, followed by the class's name."""
RESULTS_LIMIT = 32
"""The maximum number of devices that one claim may have."""
CONSUMERS_LIMIT = 256
"""The maximum number of pods that may share one claim."""
FIRST_AVAILABLE_LIMIT = 8
EXACT_COUNT, ALL = "ExactCount", "All"


# ------------------------------------------------------------------ slices


class DeviceAttribute(ApiStruct, frozen=True):
    """One attribute of a device. Attributes of other types (lists, behind a feature gate) decode as empty."""

    int_value: int | None = field(default=None, name="int")
    bool_value: bool | None = field(default=None, name="bool")
    string_value: str | None = field(default=None, name="string")
    version_value: str | None = field(default=None, name="version")

    @property
    def value(self) -> tuple[str, int | bool | str] | None:
        """(type, value), for comparison; None if the type is unknown."""
        if self.string_value is not None:
            return "string", self.string_value
        if self.int_value is not None:
            return "int", self.int_value
        if self.bool_value is not None:
            return "bool", self.bool_value
        return ("version", self.version_value) if self.version_value is not None else None


class CapacityRange(ApiStruct, frozen=True):
    """requestPolicy.validRange."""

    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class RequestPolicy(ApiStruct, frozen=True):
    """capacity[].requestPolicy: the amounts of a capacity that a request may have."""

    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    valid_range: CapacityRange | None = None


class DeviceCapacity(ApiStruct, frozen=True):
    """devices[].capacity[]."""

    value: Quantity = 0
    request_policy: RequestPolicy | None = None


class Counter(ApiStruct, frozen=True):
    """An amount of a shared counter: available in a CounterSet, or consumed by a device."""

    value: Quantity = 0


class CounterSet(ApiStruct, frozen=True):
    """spec.sharedCounters[]."""

    name: str = ""
    counters: dict[str, Counter] = field(default_factory=dict)


class CounterConsumption(ApiStruct, frozen=True):
    """devices[].consumesCounters[]."""

    counter_set: str = ""
    counters: dict[str, Counter] = field(default_factory=dict)


class DeviceTaint(ApiStruct, frozen=True):
    """A taint of a device: only claims that tolerate it may have the device."""

    key: str = ""
    value: str = ""
    effect: str = ""


class Device(ApiStruct, frozen=True):
    """One device of a slice.

    Names of attributes and capacities without a domain are in the domain of its driver.
    """

    name: str = ""
    attributes: dict[str, DeviceAttribute] = field(default_factory=dict)
    capacity: dict[str, DeviceCapacity] = field(default_factory=dict)
    consumes_counters: tuple[CounterConsumption, ...] = ()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: tuple[DeviceTaint, ...] = ()
    binds_to_node: bool | None = None
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool | None = None

    def attribute(self, name: str, driver: str) -> DeviceAttribute | None:
        """An attribute by its qualified name."""
        return self.attributes.get(name) or self.attributes.get(short_name(name, driver))

    def capacity_name(self, name: str, driver: str) -> str | None:
        """The name under which the device has a capacity, by its qualified name; None if it does not have it."""
        return next((one for one in (name, short_name(name, driver)) if one in self.capacity), None)


def short_name(name: str, driver: str) -> str:
    """A qualified name without its domain if that is the driver's."""
    return name.removeprefix(f"{driver}/")


class ResourcePool(ApiStruct, frozen=True):
    """The pool of a slice; slices of an older generation are obsolete."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(ApiStruct, frozen=True):
    """spec of a slice: devices, and the nodes that can access them."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(ClusterScoped, frozen=True, tag_field="kind", tag="ResourceSlice"):
    """resource.k8s.io/v1 ResourceSlice."""

    api_version: str = API_VERSION
    spec: ResourceSliceSpec = ResourceSliceSpec()


class DeviceTaintSelector(ApiStruct, frozen=True):
    """deviceSelector of a DeviceTaintRule: the devices for which all set fields are equal."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(ApiStruct, frozen=True):
    """spec of a rule. An empty selector selects all devices. So does a missing one, as in kube-scheduler 1.36."""

    device_selector: DeviceTaintSelector | None = None
    taint: DeviceTaint = DeviceTaint()


class DeviceTaintRule(ClusterScoped, frozen=True, tag_field="kind", tag="DeviceTaintRule"):
    """resource.k8s.io/v1beta2 DeviceTaintRule: a taint that an administrator, not the driver, sets on devices."""

    api_version: str = "resource.k8s.io/v1beta2"
    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()


# ------------------------------------------------------------------ classes and claims


class CELSelector(ApiStruct, frozen=True):
    """selectors[].cel."""

    expression: str = ""


class DeviceSelector(ApiStruct, frozen=True):
    """selectors[]."""

    cel: CELSelector | None = None


class DeviceToleration(ApiStruct, frozen=True):
    """A taint that a request tolerates; operators Equal (default) and Exists."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None

    def tolerates(self, taint: DeviceTaint) -> bool:
        """Whether the toleration covers the taint."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator == "Exists" or (self.operator in ("", "Equal") and self.value == taint.value)


class DeviceConfig(ApiStruct, frozen=True):
    """config[] of a class or a claim: parameters for the driver, for some requests or for all."""

    requests: tuple[str, ...] = ()
    opaque: dict[str, Any] | None = None


class DeviceClassSpec(ApiStruct, frozen=True):
    """spec of a class."""

    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[DeviceConfig, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(ClusterScoped, frozen=True, tag_field="kind", tag="DeviceClass"):
    """resource.k8s.io/v1 DeviceClass."""

    api_version: str = API_VERSION
    spec: DeviceClassSpec = DeviceClassSpec()


class CapacityRequirements(ApiStruct, frozen=True):
    """exactly.capacity: the amounts of a device's capacities that a request needs."""

    requests: dict[str, Quantity] = field(default_factory=dict)


class ExactRequest(ApiStruct, frozen=True):
    """requests[].exactly, or a subrequest in requests[].firstAvailable; the API server defaults mode and count."""

    name: str = ""
    """Only subrequests have a name."""
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = EXACT_COUNT
    count: int = 1
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceRequest(ApiStruct, frozen=True):
    """requests[]: either `exactly`, or alternatives; the first available one is allocated."""

    name: str = ""
    exactly: ExactRequest | None = None
    first_available: tuple[ExactRequest, ...] = ()


class DeviceConstraint(ApiStruct, frozen=True):
    """constraints[]: an attribute whose value must be equal, or distinct, for all devices of some requests."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaim(ApiStruct, frozen=True):
    """spec.devices of a claim."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceConfig, ...] = ()


class ResourceClaimSpec(ApiStruct, frozen=True):
    """spec of a claim."""

    devices: DeviceClaim = DeviceClaim()


class AllocatedDevice(ApiStruct, frozen=True):
    """allocation.devices.results[]: a device and its request (parent/name for a subrequest)."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    share_id: str | None = field(default=None, name="shareID")
    consumed_capacity: dict[str, Quantity] = field(default_factory=dict)


class AllocatedConfig(ApiStruct, frozen=True):
    """allocation.devices.config[]."""

    source: str = ""
    requests: tuple[str, ...] = ()
    opaque: dict[str, Any] | None = None


class AllocatedDevices(ApiStruct, frozen=True):
    """allocation.devices."""

    results: tuple[AllocatedDevice, ...] = ()
    config: tuple[AllocatedConfig, ...] = ()


class Allocation(ApiStruct, frozen=True):
    """status.allocation: the devices, and the nodes that can use them (None: all)."""

    devices: AllocatedDevices = AllocatedDevices()
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None


class Consumer(ApiStruct, frozen=True):
    """status.reservedFor[]: a pod, or another object, that may use the claim."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class DeviceCondition(ApiStruct, frozen=True):
    """status.devices[].conditions[]."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class DeviceStatus(ApiStruct, frozen=True):
    """status.devices[]: the status that a driver reports for an allocated device."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    conditions: tuple[DeviceCondition, ...] | None = None


class ResourceClaimStatus(ApiStruct, frozen=True):
    """status of a claim."""

    allocation: Allocation | None = None
    reserved_for: tuple[Consumer, ...] = ()
    devices: tuple[DeviceStatus, ...] = ()


class ResourceClaim(Namespaced, frozen=True, tag_field="kind", tag="ResourceClaim"):
    """resource.k8s.io/v1 ResourceClaim."""

    api_version: str = API_VERSION
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ResourceClaimTemplateSpec(ApiStruct, frozen=True):
    """spec of a template: metadata and spec of its claims."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(Namespaced, frozen=True, tag_field="kind", tag="ResourceClaimTemplate"):
    """resource.k8s.io/v1 ResourceClaimTemplate, for manifests only: in a cluster a controller creates the claims."""

    api_version: str = API_VERSION
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


DeviceObject = DeviceClass | ResourceSlice | DeviceTaintRule | ResourceClaim
DEVICE_KINDS: tuple[type[DeviceObject], ...] = (DeviceClass, ResourceSlice, DeviceTaintRule, ResourceClaim)
"""In the order in which the scheduler lists them."""
