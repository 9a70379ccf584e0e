"""Checks for every target: its refusals, its leftover allocations, and its processor time."""

import re
import time
from collections.abc import Callable
from types import TracebackType

from fluxion_cy import FluxionError, Matcher

LIMIT = 1.0
"""Seconds of processor time for one input."""

_PARTICULARS = re.compile(r"['\"].*|[^a-z :]")
_answers: list[str] = []


class Finding(AssertionError):  # noqa: N818 - a finding is not an error
    """A result that no input may cause."""


class Refusals:
    """Suppresses FluxionErrors of one line, and records their messages, without particulars, as an answer."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        if error is None:
            _answers.append("")
        elif isinstance(error, FluxionError):
            note(error)
        return isinstance(error, FluxionError)


def note(error: Exception) -> None:
    """Record a refusal. Its message must be a single printable line of limited length."""
    text = str(error)
    if len(text.splitlines()) != 1 or len(text) > 2000:
        raise Finding(f"not one line: {text[:2000]!r}") from error
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Finding(f"cannot be printed: {text!r}") from error
    _answers.append(" ".join(_PARTICULARS.sub("", text).split()[:5]))


refusals = Refusals()


def nothing_is_held(matcher: Matcher) -> None:
    """Check that no job is allocated, and that nothing begins or ends at any time below the root."""
    held = [number for number, job in matcher._table.jobs.items() if job.slot >= 0]
    at = matcher._engine.next_change(-1)
    if held or at is not None:
        raise Finding(f"expected no jobs, got {held}; next change at {at}")


def bounded(target: Callable[[bytes], None], limit: float = LIMIT) -> Callable[[bytes], tuple[str, ...]]:
    """The target with a limit of processor time, which a busy machine does not spend. Returns its answers.

    An input that exceeds the limit runs a second time, because a garbage collection may have spent the time.
    """

    def seconds(data: bytes) -> float:
        _answers.clear()
        began = time.thread_time()
        target(data)
        return time.thread_time() - began

    def run(data: bytes) -> tuple[str, ...]:
        if seconds(data) > limit:
            spent = seconds(data)
            if spent > limit:
                raise Finding(f"took {spent:.2f} s of processor time")
        return tuple(_answers)

    return run
