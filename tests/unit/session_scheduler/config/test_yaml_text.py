from __future__ import annotations

from typing import Any

import pytest

from session_scheduler.config.yaml_text import Limits, NotJsonError, YamlError, read_documents, read_json, read_value


def one(text: str) -> Any:
    (document,) = read_documents(text.encode())
    return document


def test_keys_are_text_whatever_they_look_like() -> None:
    assert one("on: 1\n1: 2\nnull: 3\n2026-01-31: 4\n") == {"on": 1, "1": 2, "null": 3, "2026-01-31": 4}


def test_documents_come_one_by_one_and_an_empty_one_is_none() -> None:
    assert list(read_documents(b"a: 1\n---\n---\n[2]\n")) == [{"a": 1}, None, [2]]
    assert list(read_documents(b"# nothing\n")) == []


def test_aliases_and_merge_keys_take_what_is_anchored_and_own_keys_win() -> None:
    text = "base: &b {x: 1, y: 2}\none: {<<: *b, y: 3}\ntwo: {<<: [*b, {z: 4}]}\nthree: *b\n"
    expected = {"base": {"x": 1, "y": 2}, "one": {"x": 1, "y": 3}, "two": {"x": 1, "y": 2, "z": 4}}
    assert one(text) == {**expected, "three": {"x": 1, "y": 2}}


def test_a_quoted_merge_key_is_a_key_like_any_other() -> None:
    assert one('"<<": [1]') == {"<<": [1]}
    assert one("a: &a {x: 1}\nb: {'<<': *a}") == {"a": {"x": 1}, "b": {"<<": {"x": 1}}}


def test_a_duplicate_key_is_refused_with_its_place() -> None:
    with pytest.raises(YamlError, match="line 3, column 3: key 'b' appears twice in one mapping; remove one"):
        one("a:\n  b: 1\n  b: 2\n")


def test_a_duplicate_key_of_json_is_refused_with_its_place() -> None:
    for read in (read_documents, read_json):
        with pytest.raises(YamlError, match="line 2, column 12: key 'b' appears twice in one mapping; remove one"):
            list(read('{"a":\n  {"b": 1, "b": 2}}'))


def test_a_duplicate_key_of_json_that_is_no_yaml_is_refused_by_name() -> None:
    with pytest.raises(YamlError, match=r"^key 'b' appears twice") as caught:
        read_value('{"a": "\\ud83d\\ude00", "b": 1, "b": 2}')
    assert caught.value.line is None


def bomb(rounds: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    return "\n".join(lines + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, rounds)])


def test_aliases_that_multiply_are_refused_before_they_are_expanded() -> None:
    with pytest.raises(YamlError, match="aliases expand to more than 100000 values"):
        one(bomb(12))


def test_how_much_aliases_expand_to_is_the_callers_choice() -> None:
    assert read_value(bomb(2), limits=Limits(aliased=110))["a1"] == [["x"] * 10] * 10
    with pytest.raises(YamlError, match="line 2, column 55: aliases expand to more than 100 values"):
        read_value(bomb(2), limits=Limits(aliased=100))


def test_aliases_of_a_long_text_count_by_its_length() -> None:
    text = f"a: &a {'x' * 25_600}\nb: [{', '.join(['*a'] * 10)}]"
    assert read_value(text, limits=Limits(aliased=1010))["b"] == ["x" * 25_600] * 10
    with pytest.raises(YamlError, match="aliases expand to more than 1009 values"):
        read_value(text, limits=Limits(aliased=1009))


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: {c: *a}}", "[&a 1, &a [*a]]"])
def test_an_alias_of_what_contains_it_is_refused(text: str) -> None:
    with pytest.raises(YamlError, match=r"the alias \*a refers to a value that contains it; write the value out"):
        one(text)


def test_an_alias_of_nothing_is_refused() -> None:
    with pytest.raises(YamlError, match=r"line 1, column 4: the alias \*nothing is not defined above it"):
        one("a: *nothing")


def test_an_anchor_may_be_given_again_and_its_last_value_counts() -> None:
    assert one("[&a 1, *a, &a 2, *a]") == [1, 1, 2, 2]


def test_depth_is_bounded_without_exhausting_the_stack() -> None:
    assert one("[" * 100 + "]" * 100) is not None
    assert one("- " * 100) is not None
    for opening in ("[", '{"a":', "- "):
        with pytest.raises(YamlError, match=r"line 1, column \d+: is nested deeper than 100 levels; flatten it"):
            one(opening * 100_000)


def test_depth_is_the_callers_choice_in_both_formats() -> None:
    for text in ('{"a": {"b": [1]}}', "a: {b: [1]}"):
        assert read_value(text, limits=Limits(depth=3)) == {"a": {"b": [1]}}
        with pytest.raises(YamlError, match="nested deeper than 2 levels"):
            read_value(text, limits=Limits(depth=2))


def test_a_text_may_be_as_large_as_the_caller_says_in_bytes() -> None:
    assert read_value("é" * 10, limits=Limits(bytes=20)) == "é" * 10
    with pytest.raises(YamlError, match="is larger than 1 MiB; split or shorten it"):
        read_value("é" * (1 << 20))


def test_where_one_document_is_wanted_a_second_is_refused_with_its_place() -> None:
    assert read_value("---\na: 1\n...\n") == {"a": 1}
    assert read_value("{a: 1}") == {"a": 1}
    with pytest.raises(YamlError, match="line 2, column 1: contains a second document; keep only one"):
        read_value("a: 1\n---\nb: 2\n")
    with pytest.raises(YamlError, match="line 1, column 10: is not valid YAML"):
        read_value('{"a": 1} {"b": 2}')


@pytest.mark.parametrize("text", ["", "# only a comment\n", "   \n\n", "---\n"])
def test_an_empty_text_is_none_where_one_document_is_wanted(text: str) -> None:
    assert read_value(text) is None


def test_json_values_may_follow_each_other() -> None:
    assert list(read_documents('{"a": 1}\n{"b": 2}\n [3]')) == [{"a": 1}, {"b": 2}, [3]]
    assert read_json(" ") == []


def test_json_may_hold_what_yaml_has_no_way_to_write() -> None:
    assert read_value('{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}
    assert read_value('{"' + "k" * 2000 + '":\t1}') == {"k" * 2000: 1}


@pytest.mark.parametrize("text", ["a: \ud800", '{"a": "\\ud800"}', '{"\\uDC00": 1}'])
def test_half_a_character_is_refused(text: str) -> None:
    with pytest.raises(YamlError, match="contains half a character"):
        read_value(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b'{"a": ', "line 1, column 7: is not valid JSON: Expecting value"),
        (b'{"a": NaN}', "is not valid JSON: expected a JSON number, got NaN"),
        (b'{"a": "\xff"}', "is not valid JSON: 'utf-8' codec"),
        (b"{a: 1}", "line 1, column 2: is not valid JSON: "),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not valid JSON: Exceeds the limit"),
    ],
)
def test_what_breaks_the_syntax_of_json_says_so(text: bytes, problem: str) -> None:
    with pytest.raises(NotJsonError, match=problem):
        read_json(text)


def test_yaml_may_start_with_a_bracket() -> None:
    assert list(read_documents("{a: 1}\n---\n[b, 2]\n")) == [{"a": 1}, ["b", 2]]


@pytest.mark.parametrize(
    "text", ["a: !thing x", "a: !thing [x]", "a: !thing {x: y}", "!!set {a}", "!thing a: 1", "!!seq {}"]
)
def test_tags_are_refused_with_their_place(text: str) -> None:
    with pytest.raises(YamlError, match=r"line 1, column \d: tag \S+ is not supported; remove it"):
        one(text)


def test_the_tags_of_plain_kinds_are_taken() -> None:
    assert one("!!map {!!str 1: !!seq [!!int '5', !!str 6, ! 7]}") == {"1": [5, "6", "7"]}


def test_a_mapping_as_a_key_is_refused_where_it_starts() -> None:
    with pytest.raises(YamlError, match="line 2, column 3: expected a string as the key; quote it"):
        one("a: 1\n? {b: c}\n: 2")


@pytest.mark.parametrize(
    "text", [b"a: [", b"a: b: c", b"\ta: 1", b"a: \x00", b"a: \xff", b"\xff\xfe\xff", b"{[a]: 1}", b"- !!python/none x",
             b"<<: 3", b"%YAML 9.9\n---\n", b'{"a": 1} x']
)  # fmt: skip
def test_what_is_no_yaml_is_a_yaml_error(text: bytes) -> None:
    with pytest.raises(YamlError, match=r"\w"):
        list(read_documents(text))
