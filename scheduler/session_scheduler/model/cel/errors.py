"""What goes wrong with an expression."""

from __future__ import annotations

from session_scheduler.errors import FluenceError


class CelError(FluenceError):
    """The base."""


class CompileError(CelError):
    """The expression is none that could be evaluated."""


class EvaluationError(CelError):
    """The evaluation of an expression has no result."""


class CostError(EvaluationError):
    """The evaluation is too much work; no other result absorbs it."""
