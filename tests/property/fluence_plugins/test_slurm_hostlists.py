"""Hostlists in Slurm's form: a compressed list expands to the same names, and reading any text ends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from fluence_plugins.slurm_bridge.slurm.hostlist import HostlistError, expand

TEXTS = st.text("abz.-_", max_size=4)
WIDTHS = st.integers(1, 5)


@st.composite
def numbers(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A bracket expression, and the numbers that it means."""
    parts, names = [], []
    for _ in range(draw(st.integers(1, 3))):
        width = draw(WIDTHS)
        first = draw(st.integers(0, 120))
        last = first + draw(st.integers(0, 12))
        parts.append(f"{first:0{width}}" if last == first else f"{first:0{width}}-{last:0{width}}")
        names += [f"{number:0{max(width, len(str(first)))}}" for number in range(first, last + 1)]
    return f"[{','.join(parts)}]", names


@st.composite
def hostlists(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A list of up to three names with up to two brackets each, and the names that it means."""
    words, names = [], []
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.text("abz", min_size=1, max_size=4))
        brackets = draw(st.lists(st.tuples(numbers(), TEXTS), max_size=2))
        words.append(begin + "".join(bracket + text for (bracket, _), text in brackets))
        choices: list[Sequence[str]] = [[begin]]
        for (_, found), text in brackets:
            choices += [found, [text]]
        names += ["".join(parts) for parts in product(*choices)]
    return ",".join(words), names


@given(hostlists())
def test_a_list_expands_to_its_original_names(made: tuple[str, list[str]]) -> None:
    text, names = made
    assert list(expand(text)) == names


def compressed(prefix: str, found: Sequence[int], width: int) -> str:
    """Numbers with one prefix, compressed as Slurm does."""
    parts: list[list[int]] = []
    for number in found:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    texts = [f"{a:0{width}}" if a == b else f"{a:0{width}}-{b:0{width}}" for a, b in parts]
    return f"{prefix}[{','.join(texts)}]"


@given(st.sets(st.integers(0, 999), min_size=1), WIDTHS)
def test_a_compressed_list_expands_in_order(found: set[int], width: int) -> None:
    names = [f"n{number:0{width}}" for number in sorted(found)]
    assert list(expand(compressed("n", sorted(found), width))) == names


@given(st.text("ab01[]-, ", max_size=30))
def test_any_text_expands_to_names_or_is_refused(text: str) -> None:
    try:
        names = expand(text, limit=1000)
    except HostlistError:
        return
    assert len(names) <= 1000
    assert all(name and not set(name) & set("[], ") for name in names)
