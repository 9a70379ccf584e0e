"""CEL variable `device`, which the selectors of DRA requests read.

Source: Kubernetes' dynamic-resource-allocation/cel.
"""

from __future__ import annotations

from typing import Any, Final

from session_scheduler.model.cel.errors import EvaluationError
from session_scheduler.model.cel.values import QuantityValue, Record, Semver
from session_scheduler.model.devices import Device, DeviceAttribute
from session_scheduler.model.quantity import QuantityError, billionths

FIELDS: Final = ("driver", "attributes", "capacity", "allowMultipleAllocations")
"""The fields of the variable `device`."""


def device_variable(device: Device, driver: str) -> dict[str, Any]:
    """The value of the CEL variable `device` for one device of a driver. Raises EvaluationError."""
    attributes: Record = Record()
    for name, attribute in device.attributes.items():
        domain, short = _split(name, driver)
        attributes.setdefault(domain, {})[short] = _value(name, attribute)
    capacity: Record = Record()
    for name, one in device.capacity.items():
        domain, short = _split(name, driver)
        try:
            capacity.setdefault(domain, {})[short] = QuantityValue(billionths(one.value))
        except QuantityError as error:
            raise EvaluationError(f"capacity {name}: {error}") from None
    shared = bool(device.allow_multiple_allocations)
    return {"driver": driver, "attributes": attributes, "capacity": capacity, "allowMultipleAllocations": shared}


def _split(name: str, driver: str) -> tuple[str, str]:
    domain, slash, short = name.partition("/")
    return (domain, short) if slash else (driver, name)


def _value(name: str, attribute: DeviceAttribute) -> Any:
    if attribute.int_value is not None:
        return attribute.int_value
    if attribute.bool_value is not None:
        return attribute.bool_value
    if attribute.string_value is not None:
        return attribute.string_value
    if attribute.version_value is None:
        raise EvaluationError(f"attribute {name}: unsupported attribute value")
    try:
        return Semver(attribute.version_value)
    except EvaluationError as error:
        raise EvaluationError(f"attribute {name}: parse semantic version: {error}") from None
