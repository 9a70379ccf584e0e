"""Where logs go: to standard error, so that what a command writes to standard output stays its result.

The core logs by structlog, plugins and libraries by `logging`; both end in the same lines, for people or as JSON.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

import structlog
from structlog.typing import EventDict, Processor

from session_scheduler.sdk.commands import LogLevel

_LogFormat = Literal["console", "json"]
"""console: `LEVEL event field=value`. json: an object a line, with time, level, logger, event and the fields."""
_LIBRARIES: Final = ("asyncio", "aiohttp", "kubernetes", "urllib3")
"""Below a warning they log requests and answers, which may hold secrets."""
_FIELDS: Final = "fluence_fields"
"""The attribute of a `LogRecord` that has an event's fields; their own names may be those of other attributes."""


def log_to_stderr(level: LogLevel = LogLevel.WARNING, format: _LogFormat = "console") -> None:  # noqa: A002
    """Send this process's logs of `level` and above to standard error, one line each."""
    number = logging.getLevelNamesMapping()[level.name]
    as_json = format == "json"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if as_json else logging.Formatter("%(levelname)s %(message)s"))
    logging.basicConfig(level=number, handlers=[handler], force=True)
    logging.captureWarnings(as_json)
    # No line has these, and looking them up costs as much as the rest of it. Source: Python's logging how-to.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    for library in _LIBRARIES:
        logging.getLogger(library).setLevel(max(number, logging.WARNING))
    processors: list[Processor] = [_as_record] if as_json else [structlog.processors.format_exc_info, _as_line]
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        processors=processors,
    )


# ------------------------------------------------------------------ JSON


def _as_record(_logger: object, _method: str, entry: EventDict) -> tuple[tuple[str], dict[str, Any]]:
    """The event as the arguments of `logging`'s methods."""
    kept = {key: entry.pop(key) for key in ("exc_info", "stack_info") if key in entry}
    return (str(entry.pop("event", "")),), {**kept, "extra": {_FIELDS: dict(entry)}}


class _JsonFormatter(logging.Formatter):
    """A record as one line of ASCII: what reads it need not know this process's encoding."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        trace = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        if record.stack_info:
            trace = "\n".join(filter(None, (trace, self.formatStack(record.stack_info))))
        for key, value in getattr(record, _FIELDS, {}).items():
            line[f"{key}_" if key in line or key == "exception" else key] = _plain(value)
        if trace:
            line["exception"] = trace
        return json.dumps(line)


def _plain(value: object) -> Any:
    """A field's value as JSON has it; what JSON does not have is text."""
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value)


# ------------------------------------------------------------------ console


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
