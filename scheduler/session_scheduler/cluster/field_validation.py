"""The levels of `--validate`. A module of its own, because every `--help` imports it."""

from __future__ import annotations

from enum import Enum


class FieldValidation(Enum):
    """How to report unknown fields, wrong types, and misspelt kinds and values. The names are kubectl's."""

    STRICT = "strict"
    """As errors."""
    WARN = "warn"
    """As warnings in the log."""
    IGNORE = "ignore"
    """Not at all. A field that the scheduler reads must have the right type in any case."""
