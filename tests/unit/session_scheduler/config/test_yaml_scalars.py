from __future__ import annotations

import math

import pytest

from session_scheduler.config.yaml_text import read_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2026-01-31", "2026-01-31"),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        ("10:30", "10:30"),
        ("100m", "100m"),
        ("1e3", 1000.0),
        ("0x1f", 31),
        ("010", 8),
        ("0b11", 3),
        ("0x_", "0x_"),
        ("1_000", 1000),
        (".5", 0.5),
        ("-", None),
        ("yes", True),
        ("off", False),
        ("~", None),
        ("'5'", "5"),
        ("!!str 5", "5"),
        ("! 5", "5"),
        ("9" * 5000, "9" * 5000),
        ("1\u0663", "1\u0663"),
    ],
)
def test_for_kubernetes_scalars_are_those_of_yaml_1_1_but_times_stay_text(text: str, value: object) -> None:
    assert read_value(f"- {text}" if text != "-" else "-", "kubernetes") == [value]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("yes", "yes"),
        ("On", "On"),
        ("true", True),
        ("FALSE", False),
        ("tRUE", "tRUE"),
        ("~", None),
        ("Null", None),
        ("12", 12),
        ("+12", 12),
        ("010", 10),
        ("-007", -7),
        ("08", 8),
        ("0o17", 15),
        ("0x1F", 31),
        ("-0x1f", "-0x1f"),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("1.5", 1.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e3", 1000.0),
        ("-.inf", -math.inf),
        ("+.INF", math.inf),
        (".", "."),
        ("inf", "inf"),
        ("NaN", "NaN"),
        ("1:30", "1:30"),
        ("2020-01-02", "2020-01-02"),
        ("1.2.3", "1.2.3"),
        ("'12'", "12"),
        ("!!str 12", "12"),
        ("9" * 5000, "9" * 5000),
        ("1\u0663", "1\u0663"),
    ],
)
def test_for_json_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    (read,) = read_value(f"- {text}", "json")
    assert read == value
    assert type(read) is type(value)


def test_for_json_there_is_a_number_that_is_none() -> None:
    assert math.isnan(read_value(".nan", "json"))


@pytest.mark.parametrize("text", ["1.10", "true", "007", "2020-01-02", "no", "0x1f", ".inf", "''", "!!int 5"])
def test_as_text_a_scalar_stays_as_it_was_written(text: str) -> None:
    assert read_value(f"- {text}", "text") == [text.removeprefix("!!int ").strip("'")]


@pytest.mark.parametrize("text", ["", "~", "null", "Null", "NULL"])
def test_as_text_null_is_still_nothing(text: str) -> None:
    assert read_value(f"- {text}", "text") == [None]


def test_as_text_the_scalars_of_json_stay_as_they_were_written_too() -> None:
    text = '{"a": 1.10, "b": [true, false], "c": "007", "d": "", "e": null, "f": 1E5}'
    expected = {"a": "1.10", "b": ["true", "false"], "c": "007", "d": "", "e": None, "f": "1E5"}
    assert read_value(text, "text") == expected
