"""JSON and YAML text is read as plain values, or refused in one line."""

import pytest

from fluxion_cy.base.text import read_text


def test_json_and_yaml_are_the_same_values() -> None:
    values = {"a": [1, 2.5, True, None, {"b": "c"}]}
    assert read_text('{"a": [1, 2.5, true, null, {"b": "c"}]}') == values
    assert read_text("a: [1, 2.5, true, null, {b: c}]") == values
    assert read_text(b"a:\n- 1\n- 2.5\n- true\n-\n- b: c\n") == values
    assert read_text("# nothing\n") is None


@pytest.mark.parametrize(
    "text",
    [
        "a: &x [1]\nb: *x",
        "a: &x 1\nb: *x",
        "&x a: *x",
        "a: &x [*x]",
        "a: &x {k: v}\nb: {<<: *x}",
        "r: {p: &p {k: v}, q: &q {<<: [" + "*p, " * 99 + "*p]}}\n<<: {<<: [" + "*q, " * 99 + "*q]}",
    ],
)
def test_an_alias_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^YAML aliases are not supported; write the value out$"):
        read_text(text)


@pytest.mark.parametrize(("open_", "close"), [("[", "]"), ("{a: ", "}")])
def test_a_thousand_levels_are_read_and_more_are_refused(open_: str, close: str) -> None:
    value = read_text(open_ * 1000 + "x" + close * 1000)
    for _ in range(1000):
        (value,) = value if isinstance(value, list) else value.values()
    assert value == "x"
    for levels in (1001, 100_000):
        with pytest.raises(ValueError, match=r"^nested more than 1000 levels deep$"):
            read_text(open_ * levels + "x" + close * levels)


@pytest.mark.parametrize("text", ["a: [", "a: 1\n---\nb: 2", "!!int ''", "!thing x", "a: *x", "\x00"])
def test_what_is_neither_json_nor_yaml_is_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z"):
        read_text(text)
