"""Quantities of any size are read exactly."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from session_scheduler.model.quantity import LARGEST, parse_quantity

from ....unit.session_scheduler.model.test_quantity import SUFFIXES


@given(
    st.integers(-(10**15), 10**15),
    st.integers(0, 10**9),
    st.integers(1, 9),
    st.sampled_from(sorted(SUFFIXES)),
    st.booleans(),
)
def test_parsing_is_exact_arithmetic(whole: int, part: int, places: int, suffix: str, milli: bool) -> None:
    fraction = part % 10**places
    sign = "-" if whole < 0 else ""
    text = f"{sign}{abs(whole)}.{fraction:0{places}d}{suffix}"
    exact = (abs(whole) + Fraction(fraction, 10**places)) * SUFFIXES[suffix]
    thousandths = min(-(-(exact * 1000).numerator // (exact * 1000).denominator), 1000 * LARGEST)
    expected = thousandths if milli else -(-thousandths // 1000)
    assert parse_quantity(text, milli=milli) == (-expected if sign else expected)
