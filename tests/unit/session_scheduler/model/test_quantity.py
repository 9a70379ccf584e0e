from __future__ import annotations

from fractions import Fraction

import pytest

from session_scheduler.errors import InputError
from session_scheduler.model.quantity import LARGEST, QuantityError, parse_quantity, quantity_text

SUFFIXES = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1), "k": Fraction(10**3),
    "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15), "E": Fraction(10**18),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40), "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "amount", "thousandths"),
    [
        ("0", 0, 0),
        ("2", 2, 2000),
        ("500m", 1, 500),
        ("1001m", 2, 1001),
        ("0.25", 1, 250),
        (".5", 1, 500),
        ("5.", 5, 5000),
        ("+3", 3, 3000),
        ("007", 7, 7000),
        ("1u", 1, 1),
        ("999999999n", 1, 1000),
        ("1e3", 1000, 1_000_000),
        ("1E3", 1000, 1_000_000),
        ("1e+3", 1000, 1_000_000),
        ("2E0", 2, 2000),
        ("1e-1", 1, 100),
        ("1e-999", 1, 1),
        ("1E", LARGEST, 1000 * LARGEST),
        ("1.5Gi", 3 * 2**29, 3000 * 2**29),
        ("100Mi", 100 * 2**20, 100_000 * 2**20),
        ("0.1Ki", 103, 102_400),
        ("1.0000000000000000000000000000000000001", 2, 1001),
        ("-1500m", -2, -1500),
        (4, 4, 4000),
        (0.5, 1, 500),
        (1e22, LARGEST, 1000 * LARGEST),
    ],
)
def test_quantities_are_rounded_away_from_zero(text: str | float, amount: int, thousandths: int) -> None:
    assert (parse_quantity(text), parse_quantity(text, milli=True)) == (amount, thousandths)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_suffix_has_its_factor(suffix: str) -> None:
    exact = 1000 * SUFFIXES[suffix]
    assert parse_quantity(f"1{suffix}", milli=True) == min(-(-exact.numerator // exact.denominator), 1000 * LARGEST)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 ",
        "1K",
        "1ki",
        "1mi",
        "Gi",
        "-",
        ".",
        "1e",
        "1e1234",
        "0x10",
        "1_000",
        "1,5",
        "inf",
        "nan",
        "٣",
        "1GiB",
        "1" * 65,
    ],
)
def test_other_texts_are_rejected_and_quoted(text: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_quantity(text)
    assert repr(text)[:20] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 160


def test_a_quantity_error_is_an_input_error_and_a_value_error() -> None:
    assert issubclass(QuantityError, InputError)
    assert issubclass(QuantityError, ValueError)


@pytest.mark.parametrize(
    ("amount", "text"), [(2**31, "2Gi"), (-(2**30), "-1Gi"), (0, "0"), (1000, "1000"), (-1024, "-1Ki")]
)
def test_bytes_get_a_suffix_that_is_exact_below_zero_too(amount: int, text: str) -> None:
    assert quantity_text(amount) == text
