from __future__ import annotations

import pytest

from session_scheduler.errors import plain, shown


@pytest.mark.parametrize(
    "value", ["x" * 1_000_000, ["x" * 500] * 10_000, {"k" * 900: [[[1]]] * 99}, 10**4000, b"\0" * 999]
)
def test_what_is_quoted_in_a_message_is_short_and_printable(value: object) -> None:
    assert len(shown(value)) < 700
    assert shown(value).isprintable()


@pytest.mark.parametrize("value", ["a b", "", ["1"], None, {"a": 1}, "é"])
def test_what_is_short_is_quoted_whole(value: object) -> None:
    assert shown(value) == repr(value)


def test_a_word_has_quotes_only_where_it_could_mislead() -> None:
    assert plain("region") == "region"
    assert plain("a\nb") == "'a\\nb'"
    assert len(plain("x" * 1000)) <= 80
