"""Attributes that the devices of a claim must share, or in which they must differ; kept as devices come and go."""

from __future__ import annotations

from abc import ABC, abstractmethod

from session_scheduler.model.devices import Device, DeviceAttribute, DeviceConstraint

_Value = tuple[str, int | bool | str]


def attribute_of(device: Device, driver: str, name: str) -> DeviceAttribute | None:
    """An attribute by its whole name; the driver's own may be without the domain."""
    found = device.attributes.get(name)
    if found is None:
        domain, slash, short = name.partition("/")
        found = device.attributes.get(short) if slash and domain == driver else None
    return found


class Constraint(ABC):
    """Of one attempt. For every `add` that said yes there is one `remove` with the same arguments."""

    def __init__(self, attribute: str, requests: tuple[str, ...]) -> None:
        self._attribute = attribute
        self._requests = frozenset(requests)
        self._devices = 0

    def add(self, request: str, full: str, device: Device, driver: str) -> bool:
        """Whether the device may be allocated too; `full` is the subrequest's name after its parent's."""
        if not self._concerns(request, full):
            return True
        attribute = attribute_of(device, driver, self._attribute)
        if attribute is None or not self._allows(request, attribute.value):
            return False
        self._devices += 1
        return True

    def remove(self, request: str, full: str) -> None:
        """The device is allocated no more."""
        self._devices -= self._concerns(request, full)

    def _concerns(self, request: str, full: str) -> bool:
        return not self._requests or request in self._requests or full in self._requests

    @abstractmethod
    def _allows(self, request: str, value: _Value | None) -> bool:
        """Whether a device with this value may be allocated too; if so, the value is remembered."""


class Shared(Constraint):
    """matchAttribute: all devices have one value."""

    _value: _Value | None = None

    def _allows(self, _request: str, value: _Value | None) -> bool:
        if not self._devices:
            self._value = value
            return True
        return value is not None and value == self._value


class Distinct(Constraint):
    """distinctAttribute: no two have the same value. As kube-scheduler it remembers one value for each request."""

    def __init__(self, attribute: str, requests: tuple[str, ...]) -> None:
        super().__init__(attribute, requests)
        self._values: dict[str, _Value | None] = {}

    def remove(self, request: str, full: str) -> None:
        """See `Constraint`."""
        super().remove(request, full)
        if self._concerns(request, full):
            self._values.pop(request, None)

    def _allows(self, request: str, value: _Value | None) -> bool:
        if self._devices and self._values and (value is None or value in self._values.values()):
            return False
        self._values[request] = value
        return True


def started(constraint: DeviceConstraint) -> Constraint | None:
    """The constraint at the start of an attempt; None for a kind that is not known."""
    if constraint.match_attribute is not None:
        return Shared(constraint.match_attribute, constraint.requests)
    if constraint.distinct_attribute is not None:
        return Distinct(constraint.distinct_attribute, constraint.requests)
    return None
