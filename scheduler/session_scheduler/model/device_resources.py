"""Device resources: amounts by which queues count devices of one kind, such as a GPU model, however pods request them.

The configuration lists the amounts that each one sums up, and the labels of nodes on which requests count. The node
decides which model a pod gets, so what the pod counts with may be known only when it is placed. Devices of claims can
count by their attributes, with their capacities. The allocation decides which devices a claim gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec
import numpy as np

from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, NodeTable, NodeView
from session_scheduler.model.device_amounts import claim_alternatives, claim_amounts, device_class_of
from session_scheduler.model.device_attributes import AttributeValue, equal_values, fixed_attributes
from session_scheduler.model.devices import (
    ALL,
    AllocatedDevice,
    Device,
    DeviceClass,
    ExactRequest,
    ResourceClaim,
    short_name,
)
from session_scheduler.model.gpu_shares import GPU_MEMORY, WHOLE
from session_scheduler.model.groups import PREEMPTIBILITY_LABEL, GroupRef
from session_scheduler.model.meta import Quantity
from session_scheduler.model.objects import Pod
from session_scheduler.model.quantity import QuantityError, thousandths, whole
from session_scheduler.model.queues import (
    CAPACITY_SUFFIX,
    DEVICES_SUFFIX,
    QUEUE_LABEL,
    Amounts,
    add_each,
    is_in_thousandths,
)
from session_scheduler.model.selectors import nodes_with

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


def counts_devices(amount: str) -> bool:
    """Whether a device resource can sum up the amounts of this name: not cpu, not bytes, and no other sums."""
    return "/" in amount and amount != GPU_MEMORY and not amount.endswith((DEVICES_SUFFIX, CAPACITY_SUFFIX))


class DeviceResource(msgspec.Struct, frozen=True):
    """The sum of some amounts: `NAME.fluence.flux-framework.org/devices` in queues, in thousandths of a device, or
    `NAME.fluence.flux-framework.org/capacity`.
    """

    short_name: str
    resources: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = msgspec.field(default_factory=dict)
    """What pods request counts on nodes with these labels only. Devices of claims count on all nodes."""
    device_attributes: Mapping[str, AttributeValue] = msgspec.field(default_factory=dict)
    """The devices of claims with all of these values count, by qualified name."""
    capacity: str = ""
    """If set, devices of claims count with their capacity of this qualified name. Others do not count."""

    @property
    def name(self) -> str:
        """The name in queues."""
        return f"{self.short_name}{CAPACITY_SUFFIX if self.capacity else DEVICES_SUFFIX}"

    @property
    def selects_devices(self) -> bool:
        """Whether devices of claims count by what they are, and not by their DeviceClass."""
        return bool(self.device_attributes or self.capacity)

    def of(self, amounts: Mapping[str, int]) -> int:
        """The sum of these amounts, in thousandths."""
        return sum(amounts.get(one, 0) * (1 if is_in_thousandths(one) else WHOLE) for one in self.resources)

    def of_device(self, device: Device, driver: str, consumed: Mapping[str, Quantity] | None = None) -> int:
        """What a device counts with; `consumed`: the capacities that a claim consumes of a shared device."""
        if not self.selects_devices:
            return 0
        for name, wanted in self.device_attributes.items():
            attribute = device.attribute(name, driver)
            if attribute is None or attribute.value is None or not equal_values(attribute.value[1], wanted):
                return 0
        if not self.capacity:
            return WHOLE
        name_there = device.capacity_name(self.capacity, driver)
        if name_there is None:
            return 0
        return _amount(device.capacity[name_there].value if consumed is None else consumed.get(name_there, 0))

    def of_request(self, one: ExactRequest | None, device_class: DeviceClass | None) -> tuple[int, int]:
        """What a request counts with before its allocation: at least, and at most as far as its selectors show.

        The capacity of the devices is not known: it counts with the one that it requests.
        """
        if one is None or one.admin_access or not self.selects_devices:
            return 0, 0
        selectors = (*(device_class.spec.selectors if device_class is not None else ()), *one.selectors)
        fixed, sure = fixed_attributes(selectors), True
        for name, wanted in self.device_attributes.items():
            if name not in fixed:
                sure = False
            elif not equal_values(fixed[name], wanted):
                return 0, 0
        most = (1 if one.allocation_mode == ALL else one.count) * (self._requested(one) if self.capacity else WHOLE)
        return most if sure else 0, most

    def _requested(self, one: ExactRequest) -> int:
        requests = one.capacity.requests if one.capacity is not None else {}
        domain = self.capacity.partition("/")[0]
        return _amount(requests.get(self.capacity, requests.get(short_name(self.capacity, domain), 0)))

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether requests count on a node with these labels."""
        return all(labels.get(key) == value for key, value in self.node_selector.items())

    def mask(self, nodes: NodeView) -> BoolColumn:
        """The nodes on which requests count."""
        mask = np.ones(len(nodes), np.bool_)
        for key, value in self.node_selector.items():
            mask &= nodes_with(nodes, key, (value,))
        return mask

    def total(self, table: NodeTable, total: Mapping[str, int]) -> int:
        """The devices of the nodes on which requests count, and of DeviceClasses.

        `total` is the cluster's capacity of each resource. Parts of GPUs add nothing to whole GPUs.
        """
        nodes = table.all_rows()
        mask, found, known = self.mask(nodes), 0, False
        for one in self.resources:
            if not is_in_thousandths(one):
                known = True
                in_class = device_class_of(one) is not None
                found += total.get(one, 0) if in_class else int(nodes.allocatable(one)[mask].sum())
        return found * WHOLE if known else sum(total.get(one, 0) for one in self.resources)


def _amount(quantity: Quantity) -> int:
    try:
        return whole(thousandths(quantity))
    except QuantityError:
        return 0  # the API server admits only valid quantities


class DeviceLimit(msgspec.Struct, frozen=True):
    """How much more of a device resource the claims of a pod may get by their allocation."""

    resource: DeviceResource
    left: int
    reason: str
    """Why the claims get no more."""


class DeviceResources:
    """The configured device resources. `labels_of` returns the labels of a node by its name; None if it is unknown."""

    def __init__(
        self,
        listed: Iterable[DeviceResource] = (),
        labels_of: Callable[[str], Mapping[str, str] | None] = lambda _: None,
    ) -> None:
        self.listed = tuple(listed)
        self.names = frozenset(one.name for one in self.listed)
        self.by_node = tuple(one for one in self.listed if one.node_selector)
        """The device resources for which the node decides what a pod counts with."""
        self.by_device = tuple(one for one in self.listed if one.selects_devices)
        """The device resources for which the allocation decides what a claim counts with."""
        self._labels_of = labels_of

    def on_node(self, cls: TaskClass, node: str) -> Mapping[str, int]:
        """What a task counts with on a node, without its claims."""
        labels = self._labels_of(node) if self.by_node else None
        return self._sums(cls, lambda one: not one.node_selector or (labels is not None and one.selects(labels)))

    def possible(self, cls: TaskClass) -> Mapping[str, int]:
        """What a pending task may count with when it is placed: one that may run on several models counts as each."""
        wanted = cls.pod.spec.node_selector
        return self._sums(cls, lambda one: all(wanted.get(key, value) == value
                                               for key, value in one.node_selector.items()))  # fmt: skip

    def certain(self, cls: TaskClass) -> Mapping[str, int]:
        """What a task counts with on any node that its `nodeSelector` allows."""
        return self._sums(cls, lambda one: not one.node_selector or one.selects(cls.pod.spec.node_selector))

    def _sums(self, cls: TaskClass, counts: Callable[[DeviceResource], bool]) -> Mapping[str, int]:
        if not self.listed:
            return _NOTHING
        return {one.name: total for one in self.listed if (total := one.of(cls.queue_amounts)) and counts(one)}

    def of_claim(
        self,
        claim: ResourceClaim,
        class_of: Callable[[str], DeviceClass | None] = lambda _: None,
        of_device: Callable[[AllocatedDevice], Mapping[str, int]] = lambda _: _NOTHING,
    ) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """What a claim counts with: its amounts, and their sums. Of the alternatives of a request the largest sum.

        The second mapping is what it may count with after its allocation, which decides about devices by attribute. A
        queue's demand contains that, and its limits the first one. `class_of` returns a DeviceClass by its name.
        """
        amounts = claim_amounts(claim)
        if self.listed and amounts:
            parts = claim_alternatives(claim)
            sums = {one.name: sum(max(map(one.of, alternatives), default=0) for alternatives in parts)
                    for one in self.listed}  # fmt: skip
            amounts |= {name: total for name, total in sums.items() if total}
        if not self.by_device:
            return amounts, amounts
        allocation = claim.status.allocation
        if allocation is not None:
            for result in allocation.devices.results:
                add_each(amounts, {} if result.admin_access else of_device(result))
            return amounts, amounts
        possible = dict(amounts)
        for request in claim.spec.devices.requests:
            alternatives = request.first_available or (request.exactly,)
            for one in self.by_device:
                found = [one.of_request(each, class_of(each.device_class_name) if each is not None else None)
                         for each in alternatives]  # fmt: skip
                add_each(amounts, {one.name: min(least for least, _ in found)})
                add_each(possible, {one.name: max(most for _, most in found)})
        return amounts, possible

    def of_device(
        self, device: Device, driver: str, consumed: Mapping[str, Quantity] | None = None
    ) -> Mapping[str, int]:
        """What a device counts with; `consumed`: the capacities that a claim consumes of a shared device."""
        found = {one.name: one.of_device(device, driver, consumed) for one in self.by_device}
        return {name: amount for name, amount in found.items() if amount}

    def add_capacity(self, table: NodeTable, total: Amounts, of_devices: Mapping[str, int] = _NOTHING) -> None:
        """Add the capacity of each device resource to those of the resources. `of_devices`: the part of devices that
        count by attribute.
        """
        add_each(total, {one.name: one.total(table, total) + of_devices.get(one.name, 0) for one in self.listed})

    def decided_by_node(self, cls: TaskClass, names: Iterable[str]) -> list[tuple[DeviceResource, int]]:
        """Those of the named ones that tasks of the class have on some nodes only, with the amount there."""
        wanted = self.names.intersection(names) if self.by_node else ()
        if not wanted:
            return []
        possible, certain = self.possible(cls), self.certain(cls)
        return [(one, possible[one.name]) for one in self.by_node
                if one.name in wanted and one.name in possible and one.name not in certain]  # fmt: skip

    def class_key(self, pod: Pod, group_ref: Callable[[Pod], GroupRef]) -> list[str | None] | None:
        """What decides the pod's queue and whether it is preemptible, if the nodes on which it fits may depend on that;
        else None. `group_ref` returns the group of a pod.
        """
        if not self.by_node:
            return None
        requests = {name for container in (*pod.spec.containers, *pod.spec.init_containers)
                    for name in (*container.resources.requests, *container.resources.limits)}  # fmt: skip
        asked = requests | pod.metadata.annotations.keys()
        if not any(asked.intersection(one.resources) for one in self.by_node):
            return None
        labels, spec, group = pod.metadata.labels, pod.spec, group_ref(pod)
        return [None if group.single else group.key, labels.get(QUEUE_LABEL), labels.get(PREEMPTIBILITY_LABEL),
                spec.priority_class_name, None if spec.priority is None else str(spec.priority)]  # fmt: skip
