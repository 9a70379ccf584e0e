"""The levels of `--validate`. A module of its own, because every `--help` imports it."""

from __future__ import annotations

from enum import Enum


class FieldValidation(Enum):
    """What unknown fields, wrong types and misspelt kinds in a manifest are. Named as for kubectl."""

    STRICT = "strict"
    """Errors."""
    WARN = "warn"
    """Warnings in the log."""
    IGNORE = "ignore"
    """Not reported. A field that the scheduler reads must have the right type in any case."""
