"""What can be wrong with the fluence plugin's inputs, as types.

Each message is one line that names the object, the field and what to do about it.
"""

from session_scheduler.errors import FluenceError, InputError


class DocumentError(InputError):
    """A text is not the YAML or JSON that it should be: syntax, a duplicate key, too large."""


class ResourcesError(InputError):
    """A field of a resources file is wrong. The message starts with the file and the field's path."""


class NamingError(FluenceError):
    """A type, attribute key or environment name is not usable where it has to appear."""


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
