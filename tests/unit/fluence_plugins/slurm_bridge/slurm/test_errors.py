"""The error classes for Slurm's error numbers."""

from __future__ import annotations

import pytest

from fluence_plugins.slurm_bridge.slurm.errors import (
    InvalidRequestError,
    JobNotPendingError,
    NodeBusyError,
    NodeExistsError,
    SlurmError,
    TokenError,
    UnavailableError,
    UnknownNodeError,
    of_number,
    one_line,
)
from session_scheduler.errors import FluenceError


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        ((1, 1007, 2002, 2010, 6000, 6001, 9008), TokenError),
        ((1000, 1001, 1003, 1800, 1805, 2027, 5004), UnavailableError),
        ((2000, 2014, 2029, 2048, 2053, 2115, 2164, 2166, 9207), InvalidRequestError),
        ((2021, 2073, 2083, 2084), JobNotPendingError),
        ((2016,), NodeBusyError),
        ((2018,), UnknownNodeError),
        ((2168,), NodeExistsError),
        ((-1, 0, 1900, 2007, 2017, 2040, 2085, 2180, 12345), SlurmError),
    ],
)
def test_a_number_maps_to_an_error_class(numbers: tuple[int, ...], kind: type[FluenceError]) -> None:
    for number in numbers:
        error = of_number("POST job/submit", number, "what Slurm says", token_file="/token")
        assert type(error) is kind
        assert isinstance(error, FluenceError)
        assert "POST job/submit" in str(error)
        assert "what Slurm says" in str(error)


@pytest.mark.parametrize(("number", "sent"), [(1001, False), (1800, False), (2027, False), (1802, True), (5004, True)])
def test_only_an_unreachable_slurmctld_certainly_executed_nothing(number: int, sent: bool) -> None:
    error = of_number("POST job/submit", number, "", token_file="/token")
    assert isinstance(error, UnavailableError)
    assert error.sent is sent
    assert ("may have executed the request" in str(error)) is sent


def test_an_error_has_slurms_own_name_and_number() -> None:
    error = of_number("GET job/1", 2000, "Invalid partition name specified", token_file="/token")
    assert str(error) == (
        "GET job/1: Slurm reports: Invalid partition name specified [ESLURM_INVALID_PARTITION_NAME (2000)]"
    )
    assert str(SlurmError("GET job/1", 4242, "")) == "GET job/1: Slurm reports: no details [error 4242]"


def test_a_servers_text_is_one_printable_short_line() -> None:
    assert one_line("a\r\n\tb\x1b[31m  c") == "a b [31m c"
    assert len(one_line("x" * 10**6)) == 300
    assert one_line("") == ""
