"""Errors of the resource graph: its configuration, its devices and its allocations.

A message is one line that names the object, the field and the remedy.
"""

from session_scheduler.errors import FluenceError, InputError


class GraphError(InputError):
    """A resource graph cannot be built or read: a duplicate path, an unknown parent, a missing field."""


class JobspecError(FluenceError, ValueError):
    """A jobspec is malformed. The message names the field. (A ValueError, so that decoders add the field's path.)"""


class DeviceError(FluenceError):
    """Base of the errors for devices that no jobspec can match."""


class UnknownDeviceTypeError(DeviceError):
    """The graph has no resource of the requested type."""


class NoMatchingDeviceError(DeviceError):
    """The graph has the type, but no resource tree has enough devices with the required attributes."""


class AllocationError(FluenceError):
    """An allocation (R) is invalid, cannot be rebuilt, or has devices that disagree."""


class AttributeConflictError(AllocationError):
    """Devices of one pod disagree on an attribute, which must have one value in the pod's environment."""

    def __init__(self, problem: str, key: str) -> None:
        super().__init__(problem)
        self.key = key
