"""Names of sockets, devices and variables: within their limits, and one type's are never another's."""

import re

import pytest

from fluence_plugins.device_advertisement.naming import (
    device_prefix,
    env_suffix,
    socket_name,
)

LONG = "a" * 63


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


def test_short_types_are_named_as_they_are_and_long_ones_by_a_part_and_a_hash() -> None:
    assert (socket_name("qpu"), device_prefix("qpu")) == ("fluence-qpu.sock", "qpu-")
    assert re.fullmatch(r"fluence-a{19}~[0-9a-f]{12}\.sock", socket_name(LONG))
    assert socket_name(LONG) != socket_name(LONG[:-1])
