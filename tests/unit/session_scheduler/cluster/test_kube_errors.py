"""Conversion of an API server's error responses to the port's errors."""

from __future__ import annotations

import msgspec
import pytest

from session_scheduler.cluster.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    TooManyRequests,
    Unavailable,
)
from session_scheduler.cluster.kube_errors import Resend, refusal


def body(**fields: object) -> bytes:
    return msgspec.json.encode({"kind": "Status", "apiVersion": "v1", **fields})


@pytest.mark.parametrize(
    ("code", "reason", "error", "resend"),
    [
        (400, "BadRequest", Invalid, Resend.NEVER),
        (401, "Unauthorized", Forbidden, Resend.RENEWED),
        (403, "Forbidden", Forbidden, Resend.NEVER),
        (404, "NotFound", NotFound, Resend.NEVER),
        (405, "MethodNotAllowed", Invalid, Resend.NEVER),
        (408, "Timeout", Unavailable, Resend.READS),
        (409, "AlreadyExists", AlreadyExists, Resend.NEVER),
        (409, "Conflict", Conflict, Resend.NEVER),
        (410, "Expired", Gone, Resend.NEVER),
        (422, "Invalid", Invalid, Resend.NEVER),
        (429, "TooManyRequests", TooManyRequests, Resend.BUSY),
        (500, "InternalError", Unavailable, Resend.READS),
        (502, "", Unavailable, Resend.READS),
        (504, "Timeout", Unavailable, Resend.READS),
        (302, "", Unavailable, Resend.READS),
    ],
)
def test_each_code_is_an_error_of_its_kind(code: int, reason: str, error: type[ClusterError], resend: Resend) -> None:
    got = refusal(code, body(code=code, reason=reason, message="said"), {}, "Pod ns/p")
    assert type(got.error) is error
    assert got.resend is resend
    assert str(got.error) == f"Pod ns/p: {code}: said"


def test_a_response_without_a_status_is_quoted_in_one_short_line() -> None:
    got = refusal(502, b"<html>\n" + b"x" * 5000, {}, "list of pods")
    assert str(got.error).startswith("list of pods: 502: <html> xxx")
    assert len(str(got.error)) < 1100


def test_the_error_for_an_unserved_path_differs_from_that_for_a_missing_object() -> None:
    unserved = refusal(404, b"404 page not found\n", {}, "JobSet ns/j")
    assert isinstance(unserved.error, NotFound)
    assert str(unserved.error) == (
        "JobSet ns/j: 404: 404 page not found: the API server does not serve this API; "
        "is its CustomResourceDefinition installed?"
    )
    missing = refusal(404, body(message='jobsets "j" not found'), {}, "JobSet ns/j")
    assert str(missing.error) == 'JobSet ns/j: 404: jobsets "j" not found'


@pytest.mark.parametrize(
    ("headers", "details", "wait"),
    [
        ({"Retry-After": "7"}, None, 7.0),
        ({"Retry-After": "7"}, {"retryAfterSeconds": 3}, 7.0),
        ({}, {"retryAfterSeconds": 3}, 3.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, None, None),
        ({}, None, None),
    ],
)
def test_the_wait_comes_from_the_header_or_the_status(
    headers: dict[str, str], details: object, wait: float | None
) -> None:
    text = body(message="later", **({"details": details} if details else {}))
    got = refusal(429, text, headers, "Pod ns/p")
    assert got.retry_after == wait
    assert isinstance(got.error, TooManyRequests)
    assert got.error.retry_after == (1.0 if wait is None else wait)
