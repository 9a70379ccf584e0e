"""The errors of requests to Slurm, by what the caller can do about them.

The numbers and names are those of Slurm's slurm_errno.h (26.05). A response contains the number and a message.
"""

from __future__ import annotations

from typing import Final

import msgspec

from session_scheduler.errors import FluenceError, plain

DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What decoding raises; RecursionError results from brackets nested thousands deep."""
_CUT: Final = 300
"""How many characters of a server's text a message shows."""

NAMES: Final = {
    1: "EPERM", 1007: "SLURM_PROTOCOL_AUTHENTICATION_ERROR", 2000: "ESLURM_INVALID_PARTITION_NAME",
    2001: "ESLURM_DEFAULT_PARTITION_NOT_SET", 2002: "ESLURM_ACCESS_DENIED",
    2003: "ESLURM_JOB_MISSING_REQUIRED_PARTITION_GROUP", 2004: "ESLURM_REQUESTED_NODES_NOT_IN_PARTITION",
    2005: "ESLURM_TOO_MANY_REQUESTED_CPUS", 2006: "ESLURM_INVALID_NODE_COUNT", 2007: "ESLURM_MAX_JOB_COUNT",
    2010: "ESLURM_USER_ID_MISSING", 2014: "ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE",
    2015: "ESLURM_REQUESTED_PART_CONFIG_UNAVAILABLE", 2016: "ESLURM_NODES_BUSY", 2017: "ESLURM_INVALID_JOB_ID",
    2018: "ESLURM_INVALID_NODE_NAME", 2020: "ESLURM_TRANSITION_STATE_NO_UPDATE", 2021: "ESLURM_ALREADY_DONE",
    2025: "ESLURM_BAD_TASK_COUNT", 2028: "ESLURM_INVALID_NODE_STATE", 2029: "ESLURM_INVALID_FEATURE",
    2031: "ESLURM_ACTIVE_FEATURE_NOT_SUBSET", 2040: "ESLURM_LICENSES_UNAVAILABLE", 2044: "ESLURM_INVALID_TASK_MEMORY",
    2045: "ESLURM_INVALID_ACCOUNT", 2048: "ESLURM_INVALID_LICENSES", 2050: "ESLURM_ACCOUNTING_POLICY",
    2051: "ESLURM_INVALID_TIME_LIMIT", 2052: "ESLURM_RESERVATION_ACCESS", 2053: "ESLURM_RESERVATION_INVALID",
    2057: "ESLURM_INVALID_WCKEY", 2066: "ESLURM_INVALID_QOS", 2068: "ESLURM_NODE_NOT_AVAIL",
    2069: "ESLURM_INVALID_CPU_COUNT", 2070: "ESLURM_PARTITION_NOT_AVAIL", 2072: "ESLURM_INVALID_GRES",
    2073: "ESLURM_JOB_NOT_PENDING", 2084: "ESLURM_JOB_FINISHED", 2085: "ESLURM_JOB_NOT_RUNNING",
    2086: "ESLURM_JOB_NOT_PENDING_NOR_RUNNING", 2099: "ESLURM_INVALID_MCS_LABEL", 2101: "ESLURM_PARTITION_DOWN",
    2102: "ESLURM_DUPLICATE_GRES", 2105: "ESLURM_SUBMISSIONS_DISABLED", 2114: "ESLURM_BATCH_CONSTRAINT",
    2115: "ESLURM_INVALID_TRES", 2119: "ESLURM_INVALID_GRES_TYPE", 2122: "ESLURM_UNSUPPORTED_GRES",
    2134: "ESLURM_INSUFFICIENT_GRES", 2163: "ESLURM_GROUP_ID_INVALID", 2164: "ESLURM_GROUP_ID_UNKNOWN",
    2165: "ESLURM_USER_ID_INVALID", 2166: "ESLURM_USER_ID_UNKNOWN", 2167: "ESLURM_INVALID_ASSOC",
    2168: "ESLURM_NODE_ALREADY_EXISTS", 2169: "ESLURM_NODE_TABLE_FULL", 2179: "ESLURM_PREEMPTION_REQUIRED",
    2180: "ESLURM_INVALID_NODE_STATE_TRANSITION", 2189: "ESLURM_INVALID_EXTERNAL_JOB",
    9000: "ESLURM_REST_INVALID_QUERY", 9202: "ESLURM_DATA_CONV_FAILED", 9207: "ESLURM_DATA_FLAGS_INVALID",
}  # fmt: skip
"""The names of the errors that the plugin's requests can meet."""

UNKNOWN_JOB: Final = 2017
UNKNOWN_NODE: Final = 2018
NODE_BUSY: Final = 2016
NODE_EXISTS: Final = 2168
NOT_RUNNING: Final = 2085
_TOKEN: Final = frozenset({1, 1007, 2002, 2010, 9008, *range(6000, 6100)})
"""Authentication fails, or the token's user lacks a permission; 2010 reports that the user is invalid."""
_NOT_PENDING: Final = frozenset({2021, 2073, 2083, 2084, 2086})
_CONTROLLER: Final = frozenset({*range(1000, 1900), 2027, 5003, 5004, 5005}) - _TOKEN
"""Errors of slurmrestd if it has no working connection to slurmctld."""
_NOT_SENT: Final = frozenset({1001, 1800, 2027})
"""The errors among them which show that slurmctld was not reached or does not serve: it executed nothing."""
_INVALID: Final = frozenset(
    {2000, 2001, 2003, 2004, 2005, 2006, 2014, 2025, 2029, 2044, 2045, 2048, 2051, 2052, 2053, 2057, 2066, 2069, 2072}
    | {2099, 2102, 2114, 2115, 2119, 2122, 2134, 2163, 2164, 2165, 2166, 2167, 2189, *range(9000, 9400)}
)


class SlurmError(FluenceError):
    """Slurm refused a request. `number` and `name` identify Slurm's error; `text` is its text.

    The number is 0 if Slurm's error has none, or if the request was not sent because Slurm could not execute it.
    """

    def __init__(self, request: str, number: int, text: str) -> None:
        self.number = number
        self.name = NAMES.get(number, "")
        self.text = one_line(text)
        known = f"{self.name} ({number})" if self.name else f"error {number}"
        answer = f"Slurm reports: {self.text or 'no details'} [{known}]" if number else self.text
        super().__init__(f"{request}: {answer}")


class JobNotPendingError(SlurmError):
    """The job has started, has ended or is gone, and cannot be updated: read it again."""


class InvalidRequestError(SlurmError):
    """The request names something that Slurm does not know or could never provide: it fails until it is changed."""


class UnknownNodeError(InvalidRequestError):
    """Slurm has no node with a name in the request."""


class NodeBusyError(SlurmError):
    """The node has jobs and cannot be deleted."""


class NodeExistsError(SlurmError):
    """Slurm already has a node with this name."""


class UnavailableError(FluenceError):
    """Slurm was not reached, did not respond in time, or sent an unexpected response: retry later.

    `sent`: whether Slurm may have executed the request.
    """

    def __init__(self, request: str, what: str, *, sent: bool) -> None:
        self.sent = sent
        super().__init__(f"{request}: {one_line(what)}" + (": Slurm may have executed the request" if sent else ""))


class TokenError(FluenceError):
    """There is no token, or Slurm rejects it."""

    def __init__(self, file: str, what: str) -> None:
        super().__init__(f"token file {plain(file)}: {what}; write a valid token to the file (scontrol token)")


def of_number(request: str, number: int, text: str, *, token_file: str) -> FluenceError:
    """The exception for an error number."""
    if number in _TOKEN:
        name = NAMES.get(number, f"error {number}")
        return TokenError(token_file, f"{request}: Slurm rejects it: {one_line(text)} [{name}]")
    if number in _CONTROLLER:
        return UnavailableError(
            request, f"slurmctld does not respond: {one_line(text)} [{number}]", sent=number not in _NOT_SENT
        )
    if number == UNKNOWN_NODE:
        return UnknownNodeError(request, number, text)
    if number == NODE_BUSY:
        return NodeBusyError(request, number, text)
    if number == NODE_EXISTS:
        return NodeExistsError(request, number, text)
    if number in _NOT_PENDING:
        return JobNotPendingError(request, number, text)
    return (InvalidRequestError if number in _INVALID else SlurmError)(request, number, text)


def one_line(text: str) -> str:
    """A server's text as one printable line of limited length."""
    words = " ".join("".join(c if c.isprintable() else " " for c in text[: 2 * _CUT]).split())
    return words if len(words) <= _CUT else words[: _CUT - 1] + "…"
