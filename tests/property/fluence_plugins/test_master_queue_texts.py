"""Anything that a pool publishes is a message, or gives an error of one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fluence_plugins.master_queue.amounts import RESOURCES, amount, amount_text
from fluence_plugins.master_queue.errors import MessageError, PatternError
from fluence_plugins.master_queue.messages import MOST_PROBLEMS, decoded, pool_of
from fluence_plugins.master_queue.names import is_dns_label, is_label_key, is_label_value
from fluence_plugins.master_queue.patterns import matches

_WORDS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["k=v", "k", "=", "a.b/c=d", "k=v:NoSchedule", "k:NoExecute", ":", "=:", "k=v:Bad", "\n=\n"]),
)
_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_WORDS, inner, max_size=4),
    max_leaves=8,
)
_QUANTITIES = st.one_of(_ANY, st.from_regex(r"\A[+-]?[0-9]{1,20}(\.[0-9]{1,4})?(m|k|Mi|Gi|E|e[0-9]{1,3})?\Z"))
_CONTENT = st.fixed_dictionaries(
    {"quotas": st.dictionaries(st.sampled_from(RESOURCES) | _WORDS, _QUANTITIES, max_size=6)},
    optional={
        "labels": st.lists(_WORDS | _ANY, max_size=8) | _ANY,
        "taints": st.lists(_WORDS | _ANY, max_size=8) | _ANY,
    },
)


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except MessageError as error:
        return str(error)
    return ""


def check(data: bytes) -> None:
    why = refusal(lambda: decoded(data))
    if why:
        assert "\n" not in why
        return
    found = decoded(data)
    assert all("\n" not in line for line in found.problems)
    assert len(found.problems) <= MOST_PROBLEMS
    assert set(found.quotas) <= set(RESOURCES)
    for resource, text in found.quotas.items():
        assert amount_text(resource, amount(resource, text)) == text, "expected the message to round-trip"
    assert all(is_label_key(key) and is_label_value(value) for key, value in found.labels.items())
    assert all(is_label_key(taint.key) and is_label_value(taint.value) for taint in found.taints)
    assert len(found.taints) <= 7


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_refusal(data: bytes) -> None:
    check(data)


@given(_ANY | _CONTENT)
def test_any_json_is_a_message_or_a_refusal(content: Any) -> None:
    check(json.dumps(content).encode())


@given(_CONTENT, st.data())
def test_a_message_with_bytes_changed_is_a_message_or_a_refusal(content: Any, data: st.DataObject) -> None:
    text = bytearray(json.dumps(content).encode())
    for place in data.draw(st.lists(st.integers(0, len(text) - 1), max_size=3)):
        text[place] = data.draw(st.integers(0, 255))
    check(bytes(text))


@given(st.text(), st.text())
def test_any_subject_gives_a_label_or_a_refusal(subject: str, rest: str) -> None:
    for published in (rest, f"{subject}.{rest}"):
        why = refusal(lambda: pool_of(subject, published))  # noqa: B023
        assert "\n" not in why
        assert why or is_dns_label(pool_of(subject, published))


@given(st.text(max_size=40), st.text(max_size=63))
def test_any_text_is_an_expression_or_an_error(pattern: str, name: str) -> None:
    try:
        matches(pattern, name)
    except PatternError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
