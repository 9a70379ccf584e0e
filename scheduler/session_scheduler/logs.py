"""Where logs go: to standard error, so that what a command writes to standard output stays its result."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import EventDict

from session_scheduler.commands import LogLevel


def log_to_stderr(level: LogLevel = LogLevel.WARNING) -> None:
    """Send this process's logs of `level` and above to standard error, one line each."""
    number = logging.getLevelNamesMapping()[level.name]
    logging.basicConfig(level=number, stream=sys.stderr, format="%(levelname)s %(message)s", force=True)
    logging.getLogger("asyncio").setLevel(max(number, logging.WARNING))
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        processors=[
            structlog.processors.format_exc_info,
            _as_line,
        ],
    )


def _as_line(_logger: object, _method: str, entry: EventDict) -> str:
    """The event as it is, then its fields as key=value; a value that could be misread is quoted."""
    words = [_shown(entry.pop("event", ""), quoted=False)]
    words += [f"{key}={_shown(value, quoted=True)}" for key, value in entry.items()]
    return " ".join(word for word in words if word)


def _shown(value: object, *, quoted: bool) -> str:
    text = str(value)
    if quoted and (not text or not text.isprintable() or any(mark in text for mark in " '\"=")):
        return repr(value) if isinstance(value, str) else repr(text)
    return "".join(char if char.isprintable() else " " for char in text)
