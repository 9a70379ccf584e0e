"""The names that a type has as a socket, as devices and in a container's environment. Each is one to one.

A type is what an extended resource's name may hold after the slash: at most 63 letters, digits, `-`, `_` and `.`.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

SOCKET_PREFIX: Final = "fluence-"
SOCKET_SUFFIX: Final = ".sock"
LONGEST_SOCKET_NAME: Final = len(SOCKET_PREFIX) + 32 + len(SOCKET_SUFFIX)
LONGEST_SOCKET_PATH: Final = 107
"""Bytes of a unix socket's path that the kernel takes, in `sockaddr_un.sun_path` with a zero at its end."""
MOST_DEVICES: Final = 50_000
"""A list of so many, of the longest names, is just below the 4 MiB that the kubelet takes in one message."""
_LONGEST_DEVICE_ID: Final = 63
_DIGITS: Final = len(str(MOST_DEVICES - 1))
_HASH: Final = 12

DEVICES_ENV: Final = "FLUENCE_DEVICES_"
TYPE_ENV: Final = "FLUENCE_DEVICE_TYPE_"


def socket_name(resource_type: str) -> str:
    """The name of a type's socket in the kubelet's folder."""
    return SOCKET_PREFIX + _shortened(resource_type, 32) + SOCKET_SUFFIX


def device_prefix(resource_type: str) -> str:
    """What a type's device ids begin with: `<type>-`, before a number from 0 on."""
    return _shortened(resource_type, _LONGEST_DEVICE_ID - 1 - _DIGITS) + "-"


def env_suffix(resource_type: str) -> str:
    """How environment variables spell a type: capitals, `_` for `-`.

    Whatever else a type may hold (capitals, `.`, `_`) is an `x` and two hexadecimal digits, so that no two types share
    a variable: the kubelet gives a container that asks for both what each of them has.
    """
    return "".join(map(_spelled, resource_type))


def _spelled(character: str) -> str:
    if character == "-":
        return "_"
    return character.upper() if re.fullmatch("[a-z0-9]", character) else f"x{ord(character):02x}"


def _shortened(resource_type: str, most: int) -> str:
    """The type itself, or its beginning, `~`, which is in no type, and a part of its hash."""
    if len(resource_type) <= most:
        return resource_type
    return f"{resource_type[: most - _HASH - 1]}~{sha256(resource_type.encode()).hexdigest()[:_HASH]}"
