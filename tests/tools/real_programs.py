"""Helpers for tests that run real programs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from ..controlplane.binaries import MissingBinaries

_T = TypeVar("_T")


def made(make: Callable[[], _T]) -> _T:
    """The result of `make`. If its programs are missing, the test is skipped; in CI it fails."""
    try:
        return make()
    except MissingBinaries as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@contextmanager
def report_on_failure(request: pytest.FixtureRequest, report: Callable[[], str]) -> Iterator[None]:
    """For a fixture, around its `yield`: print the report if the test fails."""
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        print(report())
