"""What a command sets up for its process's logs does not outlive its test."""

from __future__ import annotations

import logging

import pytest


@pytest.mark.parametrize("_again", range(2))
def test_each_test_finds_the_logs_as_they_were(_again: int) -> None:
    left = logging.NullHandler()
    left.name = "left by a test"
    assert left.name not in [handler.name for handler in logging.root.handlers]
    assert logging.root.level != logging.CRITICAL
    logging.root.addHandler(left)
    logging.root.setLevel(logging.CRITICAL)
