"""Errors of the resource graph: building it, asking it for devices, reading its allocations.

Each message is one line that names the object, the field and what to do about it.
"""

from session_scheduler.errors import FluenceError, InputError


class GraphError(InputError):
    """A resource graph cannot be built or read: a duplicate path, an unknown parent, a missing field."""


class JobspecError(FluenceError, ValueError):
    """A jobspec is malformed. The message names the field. (A ValueError, so that decoders add the field's path.)"""


class DeviceError(FluenceError):
    """Base of the reasons why no jobspec can get the devices that a pod asks for."""


class UnknownDeviceTypeError(DeviceError):
    """The graph models no resource of the requested type."""


class NoMatchingDeviceError(DeviceError):
    """The type is modelled, but no tree holds enough devices with the required attributes."""


class AllocationError(FluenceError):
    """An allocation (R) cannot be read or formed anew, or its devices disagree."""


class AttributeConflictError(AllocationError):
    """Devices of one pod disagree on an attribute, so the pod's environment has no single value for it."""

    def __init__(self, problem: str, key: str) -> None:
        super().__init__(problem)
        self.key = key
