"""Names of sockets, devices and variables: within their limits, and one type's are never another's."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluence_plugins.device_advertisement.naming import (
    LONGEST_SOCKET_NAME,
    MOST_DEVICES,
    device_prefix,
    env_suffix,
    socket_name,
)
from fluence_plugins.fluence.names import check_type

LONG = "a" * 63
ALIKE = st.text(alphabet="qQxX0_.-2e", min_size=1, max_size=6)
ANY = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", fullmatch=True)


@pytest.mark.parametrize(
    ("resource_type", "suffix"),
    [
        ("qpu", "QPU"),
        ("qpu-2", "QPU_2"),
        ("qpu_2", "QPUx5f2"),
        ("qpu.2", "QPUx2e2"),
        ("QPU", "x51x50x55"),
        ("x5f", "X5F"),
    ],
)
def test_variables_spell_a_type_in_capitals_and_what_could_be_confused_by_its_code(
    resource_type: str, suffix: str
) -> None:
    assert env_suffix(resource_type) == suffix


@given(ALIKE | ANY, ALIKE | ANY)
def test_no_two_types_share_a_name(one: str, other: str) -> None:
    if one != other:
        assert env_suffix(one) != env_suffix(other)
        assert socket_name(one) != socket_name(other)
        assert device_prefix(one) != device_prefix(other)


@given(ANY)
def test_every_type_has_names_that_are_allowed(resource_type: str) -> None:
    check_type(resource_type)
    assert re.fullmatch(r"[A-Z_x][A-Za-z0-9_]*", "FLUENCE_DEVICES_" + env_suffix(resource_type))
    assert len(socket_name(resource_type)) <= LONGEST_SOCKET_NAME
    assert "/" not in socket_name(resource_type)
    assert len(f"{device_prefix(resource_type)}{MOST_DEVICES - 1}") <= 63


def test_short_types_are_named_as_they_are_and_long_ones_by_a_part_and_a_hash() -> None:
    assert (socket_name("qpu"), device_prefix("qpu")) == ("fluence-qpu.sock", "qpu-")
    assert re.fullmatch(r"fluence-a{19}~[0-9a-f]{12}\.sock", socket_name(LONG))
    assert socket_name(LONG) != socket_name(LONG[:-1])
