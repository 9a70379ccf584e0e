"""The output of JSON and PyYAML round-trips, and any bytes are read or refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from session_scheduler.config.yaml_text import Scalars, YamlError, read_documents, read_value

_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=12)
_NO_DIGITS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Nd")), max_size=12)


def values(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    plain = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    return st.recursive(
        plain | texts,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
        max_leaves=20,
    )


@given(values(_TEXT))
def test_json_text_is_read_as_json_reads_it(value: Any) -> None:
    assert list(read_documents(json.dumps(value, ensure_ascii=False).encode())) == [value]


@given(values(_NO_DIGITS))  # PyYAML writes 08 and 1e3 without quotes, which Kubernetes reads as numbers
def test_the_output_of_pyyaml_round_trips(value: Any) -> None:
    assert list(read_documents(yaml.dump(value, Dumper=yaml.CSafeDumper, allow_unicode=True).encode())) == [value]


@given(values(_TEXT), st.sampled_from(["kubernetes", "json"]))
def test_json_means_the_same_with_and_without_the_json_module(value: Any, scalars: Scalars) -> None:
    text = json.dumps(value, ensure_ascii=False)
    (as_yaml,) = read_documents("---\n" + text, scalars)
    assert as_yaml == read_value(text, scalars)


@given(values(_TEXT))
def test_raw_scalars_are_equal_in_json_and_yaml(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert read_value("---\n" + text, "text") == read_value(text, "text")


@given(st.binary(max_size=80))
def test_any_bytes_are_documents_or_a_yaml_error(text: bytes) -> None:
    reason = "none is needed"
    try:
        list(read_documents(text))
    except YamlError as error:
        reason = str(error)
    assert reason
