from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from session_scheduler.cluster.yaml_reader import MAX_DEPTH, YamlError, read_yaml

_SEEDED = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=12)
_NO_DIGITS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Nd")), max_size=12)


def values(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    plain = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    return st.recursive(
        plain | texts,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
        max_leaves=20,
    )


def one(text: str) -> Any:
    (document,) = read_yaml(text.encode())
    return document


@_SEEDED
@given(values(_TEXT))
def test_what_json_says_is_read_as_json_reads_it(value: Any) -> None:
    assert one(json.dumps(value, ensure_ascii=False)) == value


@_SEEDED
@given(values(_NO_DIGITS))  # PyYAML leaves 08 and 1e3 without quotes, which Kubernetes reads as numbers
def test_what_pyyaml_writes_is_read_back(value: Any) -> None:
    assert one(yaml.dump(value, Dumper=yaml.CSafeDumper, allow_unicode=True)) == value


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
    ],
)
def test_scalars_are_resolved_as_yaml_1_1_but_times_stay_text(text: str, value: object) -> None:
    assert one(f"- {text}" if text != "-" else "-") == [value]


def test_keys_are_text_whatever_they_look_like() -> None:
    assert one("on: 1\n1: 2\nnull: 3\n2026-01-31: 4\n") == {"on": 1, "1": 2, "null": 3, "2026-01-31": 4}


def test_documents_come_one_by_one_and_an_empty_one_is_none() -> None:
    assert list(read_yaml(b"a: 1\n---\n---\n[2]\n")) == [{"a": 1}, None, [2]]
    assert list(read_yaml(b"# nothing\n")) == []


def test_aliases_and_merge_keys_take_what_is_anchored_and_own_keys_win() -> None:
    text = "base: &b {x: 1, y: 2}\none: {<<: *b, y: 3}\ntwo: {<<: [*b, {z: 4}]}\nthree: *b\n"
    expected = {"base": {"x": 1, "y": 2}, "one": {"x": 1, "y": 3}, "two": {"x": 1, "y": 2, "z": 4}}
    assert one(text) == {**expected, "three": {"x": 1, "y": 2}}


def test_a_quoted_merge_key_is_a_key_like_any_other() -> None:
    assert one('"<<": [1]') == {"<<": [1]}
    assert one("a: &a {x: 1}\nb: {'<<': *a}") == {"a": {"x": 1}, "b": {"<<": {"x": 1}}}


def test_a_duplicate_key_is_refused_with_its_place() -> None:
    with pytest.raises(YamlError, match="line 3, column 3: the key 'b' is there twice"):
        one("a:\n  b: 1\n  b: 2\n")


def test_aliases_that_multiply_are_refused_before_they_are_expanded() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(YamlError, match="aliases expand to more than"):
        one("\n".join(lines))


def test_an_alias_of_what_is_not_complete_is_refused() -> None:
    for text in ("a: &a [*a]", "a: *nothing"):
        with pytest.raises(YamlError, match="names nothing that is complete"):
            one(text)


def test_depth_is_bounded_without_exhausting_the_stack() -> None:
    assert one("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None
    with pytest.raises(YamlError, match="nested deeper than"):
        one("[" * 100_000)


def problem(text: bytes) -> str | None:
    """Why the bytes cannot be read, or None."""
    try:
        list(read_yaml(text))
    except YamlError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    "text", [b"a: [", b"a: b: c", b"\ta: 1", b"a: \x00", b"a: \xff", b"\xff\xfe\xff", b"{[a]: 1}", b"- !!python/none x",
             b"<<: 3", b"%YAML 9.9\n---\n"]
)  # fmt: skip
def test_what_is_no_yaml_is_a_yaml_error(text: bytes) -> None:
    assert problem(text)


@_SEEDED
@given(st.binary(max_size=80))
def test_any_bytes_are_documents_or_a_yaml_error(text: bytes) -> None:
    assert problem(text) != ""
