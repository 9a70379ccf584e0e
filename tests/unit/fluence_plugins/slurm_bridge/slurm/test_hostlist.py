"""Slurm's host lists."""

from __future__ import annotations

import pytest

from fluence_plugins.slurm_bridge.slurm.hostlist import HostlistError, expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("k8s-0", ("k8s-0",)),
        ("b,a", ("b", "a")),
        ("k8s-[0-3,7],a[01-03]b", ("k8s-0", "k8s-1", "k8s-2", "k8s-3", "k8s-7", "a01b", "a02b", "a03b")),
        ("r[1-2]n[0-1]", ("r1n0", "r1n1", "r2n0", "r2n1")),
        ("[1-2][08-10]x", ("108x", "109x", "110x", "208x", "209x", "210x")),
        ("n[8-11]", ("n8", "n9", "n10", "n11")),
        ("n[098-101]", ("n098", "n099", "n100", "n101")),
        ("n[5,3,5]", ("n5", "n3", "n5")),
        ("a.b.example,c_d", ("a.b.example", "c_d")),
    ],
)
def test_a_list_stands_for_its_names_in_slurms_order(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (",", "a name is missing at character 1"),
        ("a,", "a name is missing at character 2"),
        ("a,,b", "a name is missing at character 3"),
        ("a[", "expected a name or a bracket"),
        ("a[1", "expected a name or a bracket"),
        ("a]1", "expected a name or a bracket"),
        ("a[0-[1-2]]", "expected a name or a bracket"),
        ("a b", "expected a name or a bracket"),
        ("a[]", "expected a number or a range"),
        ("a[x]", "expected a number or a range"),
        ("a[1-]", "expected a number or a range"),
        ("a[-1]", "expected a number or a range"),
        ("a[1-2-3]", "expected a number or a range"),
        ("a[1,,2]", "expected a number or a range"),
        ("a[2-1]", "ends before it begins"),
        ("a[٣]", "expected a number or a range"),
        ("a[1-9999999999999999999]", "more than 18 digits"),
        ("[1]" * 17, "more than 16 parts"),
    ],
)
def test_an_invalid_list_is_rejected_with_the_position(text: str, what: str) -> None:
    with pytest.raises(HostlistError, match="list of nodes") as refused:
        expand(text)
    assert what in str(refused.value)


@pytest.mark.parametrize(
    "text", ["n[0-999999999999999999]", "a[1-99999],b[1-2]", "[0-99]" * 8, ",".join(["x"] * 100_001)]
)
def test_a_list_with_too_many_names_is_rejected_before_its_expansion(text: str) -> None:
    with pytest.raises(HostlistError, match="more than 100000 names"):
        expand(text)


def test_the_maximum_number_of_names_is_accepted() -> None:
    assert len(expand("n[0-99999]")) == 100_000


def test_a_message_is_short_whatever_the_list() -> None:
    with pytest.raises(HostlistError) as refused:
        expand("x" * 5_000_000)
    assert len(str(refused.value)) < 300
