"""The constraints of a claim: attributes that its devices must share, or must differ in. `search` keeps their state."""

from __future__ import annotations

from abc import ABC, abstractmethod

from session_scheduler.model.devices import Device, DeviceConstraint

_Value = tuple[str, int | bool | str]


class Constraint(ABC):
    """The constraint in one attempt. Each `add` that returned True is undone by a `remove` with the same request."""

    def __init__(self, attribute: str, requests: tuple[str, ...]) -> None:
        self.attribute = attribute
        self._requests = frozenset(requests)
        self._devices = 0

    def add(self, request: str, full: str, device: Device, driver: str) -> bool:
        """Add a device; False if it violates the constraint. `full` is the subrequest's name after its parent's."""
        if not self._concerns(request, full):
            return True
        attribute = device.attribute(self.attribute, driver)
        if attribute is None or not self._allows(request, attribute.value):
            return False
        self._devices += 1
        return True

    def remove(self, request: str, full: str) -> None:
        """Remove a device."""
        self._devices -= self._concerns(request, full)

    def _concerns(self, request: str, full: str) -> bool:
        return not self._requests or request in self._requests or full in self._requests

    @abstractmethod
    def _allows(self, request: str, value: _Value | None) -> bool:
        """Whether a device with this value satisfies the constraint; if so, remembers the value."""


class Shared(Constraint):
    """matchAttribute: all devices have the same value."""

    _value: _Value | None = None

    def _allows(self, _request: str, value: _Value | None) -> bool:
        if not self._devices:
            self._value = value
            return True
        return value is not None and value == self._value


class Distinct(Constraint):
    """distinctAttribute: no two devices have the same value. Like kube-scheduler it remembers one value per request."""

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
    """The constraint at the start of an attempt; None for an unknown kind."""
    if constraint.match_attribute is not None:
        return Shared(constraint.match_attribute, constraint.requests)
    if constraint.distinct_attribute is not None:
        return Distinct(constraint.distinct_attribute, constraint.requests)
    return None
