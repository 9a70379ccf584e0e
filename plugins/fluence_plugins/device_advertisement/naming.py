"""The names of a type's socket, devices and environment variables. Each mapping is one-to-one.

A type may be what an extended resource's name may contain after the slash: at most 63 letters, digits, `-`, `_` and
`.`.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

SOCKET_PREFIX: Final = "fluence-"
SOCKET_SUFFIX: Final = ".sock"
LONGEST_SOCKET_NAME: Final = len(SOCKET_PREFIX) + 32 + len(SOCKET_SUFFIX)
LONGEST_SOCKET_PATH: Final = 107
"""The maximum size in bytes of a unix socket's path: `sockaddr_un.sun_path` minus its final zero."""
MOST_DEVICES: Final = 50_000
"""A list of this many devices with the longest names is just below the kubelet's message limit of 4 MiB."""
_LONGEST_DEVICE_ID: Final = 63
_DIGITS: Final = len(str(MOST_DEVICES - 1))
_HASH: Final = 12

DEVICES_ENV: Final = "FLUENCE_DEVICES_"
TYPE_ENV: Final = "FLUENCE_DEVICE_TYPE_"


def socket_name(resource_type: str) -> str:
    """The name of a type's socket in the kubelet's directory."""
    return SOCKET_PREFIX + _shortened(resource_type, 32) + SOCKET_SUFFIX


def device_prefix(resource_type: str) -> str:
    """The prefix of a type's device ids: `<type>-`, before a number."""
    return _shortened(resource_type, _LONGEST_DEVICE_ID - 1 - _DIGITS) + "-"


def env_suffix(resource_type: str) -> str:
    """A type in the name of an environment variable: upper case, with `_` for `-`.

    Other characters (capitals, `.`, `_`) become an `x` and two hexadecimal digits, so that two types never share a
    variable: a container that requests both gets the variables of both.
    """
    return "".join(map(_spelled, resource_type))


def _spelled(character: str) -> str:
    if character == "-":
        return "_"
    return character.upper() if re.fullmatch("[a-z0-9]", character) else f"x{ord(character):02x}"


def _shortened(resource_type: str, most: int) -> str:
    """The type itself, or its start, a `~` (which no type contains), and a part of its hash."""
    if len(resource_type) <= most:
        return resource_type
    return f"{resource_type[: most - _HASH - 1]}~{sha256(resource_type.encode()).hexdigest()[:_HASH]}"
