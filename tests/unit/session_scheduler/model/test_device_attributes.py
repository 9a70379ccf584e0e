"""The attributes that CEL selectors of devices fix."""

from __future__ import annotations

import pytest

from session_scheduler.model.device_attributes import equal_values, fixed_attributes
from session_scheduler.model.devices import CELSelector, DeviceSelector

MODEL = 'device.attributes["d.example.com"].model'


def fixed(*expressions: str) -> dict[str, object]:
    return dict(fixed_attributes(DeviceSelector(cel=CELSelector(one)) for one in expressions))


@pytest.mark.parametrize(("expression", "found"), [
    (f'{MODEL} == "A100"', {"d.example.com/model": "A100"}),
    (f'"A100" == {MODEL}', {"d.example.com/model": "A100"}),
    ('device.attributes["d.example.com"]["model"] == "A100"', {"d.example.com/model": "A100"}),
    ('device["attributes"]["d.example.com"]["model"] == "A100"', {}),
    (f'{MODEL} == "A100" && device.driver == "d.example.com" && device.attributes["x"].n == 8',
     {"d.example.com/model": "A100", "x/n": 8}),
    ('device.attributes["x"].ready == true', {"x/ready": True}),
    (f'{MODEL} == "A100" || {MODEL} == "T4"', {}),
    (f'{MODEL} in ["A100"]', {}),
    (f'{MODEL} != "A100"', {}),
    (f'!({MODEL} == "A100")', {}),
    (f'{MODEL}.startsWith("A")', {}),
    (f'{MODEL} == {MODEL}', {}),
    ('device.attributes["x"].n == 8u', {}),
    ('device.attributes[?"d.example.com"].model == "A100"', {}),
    ('other.attributes["x"].n == 8', {}),
    ('device.capacity["x"].n == 8', {}),
    ('device.attributes["x"].version == semver("1.0.0")', {}),
    ("not CEL (", {}),
    ("", {}),
])  # fmt: skip
def test_only_comparisons_that_hold_for_all_devices_fix_an_attribute(expression: str, found: dict[str, object]) -> None:
    assert fixed(expression) == found


def test_all_selectors_of_a_request_fix_attributes() -> None:
    assert fixed(f'{MODEL} == "A100"', 'device.attributes["x"].n == 8') == {"d.example.com/model": "A100", "x/n": 8}
    assert dict(fixed_attributes([DeviceSelector()])) == {}


def test_values_of_different_types_are_not_equal() -> None:
    assert equal_values(1, 1)
    assert not equal_values(1, True)
    assert not equal_values("1", 1)
