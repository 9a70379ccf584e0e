"""Errors of CEL expressions."""

from __future__ import annotations

from session_scheduler.errors import FluenceError

__all__ = ["CompileError", "EvaluationError"]


class CelError(FluenceError):
    """Base of all CEL errors."""


class CompileError(CelError):
    """The expression does not compile."""


def located(text: str, place: int, message: str) -> CompileError:
    """A compile error at a position of the expression's text, in cel-go's format."""
    start = text.rfind("\n", 0, place) + 1
    line = text[start:].partition("\n")[0].replace("\t", " ")
    dots = "".join("." if char.isascii() else "\N{FULLWIDTH FULL STOP}" for char in text[start:place])
    where = f"<input>:{text.count(chr(10), 0, place) + 1}:{place - start + 1}"
    return CompileError(f"compilation failed: ERROR: {where}: {message}\n | {line}\n | {dots}^")


class EvaluationError(CelError):
    """The evaluation of an expression failed."""


class FinalError(EvaluationError):
    """An error that ends the evaluation at once: `&&` and `||` do not absorb it."""


class CostError(FinalError):
    """The evaluation exceeded its cost limit."""
