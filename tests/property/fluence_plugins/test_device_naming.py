"""Names of sockets, devices and variables: within their limits, and unique for types and devices."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from fluence_plugins.device_advertisement.devices import BadRequestError, Devices
from fluence_plugins.device_advertisement.naming import (
    LONGEST_SOCKET_NAME,
    MOST_DEVICES,
    device_prefix,
    env_suffix,
    socket_name,
)
from fluence_plugins.resources.names import check_type

ALIKE = st.text(alphabet="qQxX0_.-2e", min_size=1, max_size=6)
ANY = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", fullmatch=True)


@given(ALIKE | ANY, ALIKE | ANY)
def test_no_two_types_share_a_name(one: str, other: str) -> None:
    if one != other:
        assert env_suffix(one) != env_suffix(other)
        assert socket_name(one) != socket_name(other)
        assert device_prefix(one) != device_prefix(other)


@given(ANY)
def test_every_type_has_valid_names(resource_type: str) -> None:
    check_type(resource_type)
    assert re.fullmatch(r"[A-Z_x][A-Za-z0-9_]*", "FLUENCE_DEVICES_" + env_suffix(resource_type))
    assert len(socket_name(resource_type)) <= LONGEST_SOCKET_NAME
    assert "/" not in socket_name(resource_type)
    assert len(f"{device_prefix(resource_type)}{MOST_DEVICES - 1}") <= 63


@given(st.text())
def test_only_a_device_name_is_parsed_as_a_device(device: str) -> None:
    try:
        number = Devices("qpu", 12).number(device)
    except BadRequestError:
        return
    assert device == f"qpu-{number}"
