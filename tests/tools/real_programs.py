"""What tests beside real programs have in common."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from ..controlplane.binaries import MissingBinaries

_T = TypeVar("_T")


def made(make: Callable[[], _T]) -> _T:
    """What is made. Where its programs are not there, the test is skipped; under CI it fails."""
    try:
        return make()
    except MissingBinaries as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@contextmanager
def told_where_it_fails(request: pytest.FixtureRequest, report: Callable[[], str]) -> Iterator[None]:
    """For a fixture, around its `yield`: show the report where the test fails."""
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        print(report())
