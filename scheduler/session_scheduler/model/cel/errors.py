"""What goes wrong with an expression."""

from __future__ import annotations

from session_scheduler.errors import FluenceError

__all__ = ["CompileError", "EvaluationError"]


class CelError(FluenceError):
    """The base."""


class CompileError(CelError):
    """The expression is none that could be evaluated."""


def located(text: str, place: int, message: str) -> CompileError:
    """The error at a place of an expression's text, shown as cel-go shows it."""
    start = text.rfind("\n", 0, place) + 1
    line = text[start:].partition("\n")[0].replace("\t", " ")
    dots = "".join("." if char.isascii() else "\N{FULLWIDTH FULL STOP}" for char in text[start:place])
    where = f"<input>:{text.count(chr(10), 0, place) + 1}:{place - start + 1}"
    return CompileError(f"compilation failed: ERROR: {where}: {message}\n | {line}\n | {dots}^")


class EvaluationError(CelError):
    """The evaluation of an expression has no result."""


class FinalError(EvaluationError):
    """The evaluation ends at once: no other result absorbs it."""


class CostError(FinalError):
    """The evaluation is too much work."""
