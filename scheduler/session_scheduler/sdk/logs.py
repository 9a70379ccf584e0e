"""Logging to standard error, so that standard output has only a command's result.

The core logs with structlog, plugins and libraries with `logging`; both produce the same lines, as text or JSON.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

import structlog
from structlog.processors import JSONRenderer, format_exc_info
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, Processor

from session_scheduler.sdk.commands import LogLevel

_LogFormat = Literal["console", "json"]
"""console: `LEVEL event field=value`. json: one object per line with time, level, logger, event and the fields."""
_LIBRARIES: Final = ("asyncio", "aiohttp", "kubernetes", "urllib3")
"""Below warning they log requests and responses, which may contain secrets."""


def log_to_stderr(level: LogLevel = LogLevel.WARNING, format: _LogFormat = "console") -> None:  # noqa: A002
    """Log `level` and above to standard error, one line for each event. On a console, a traceback follows its line."""
    number = logging.getLevelNamesMapping()[level.name]
    as_json = format == "json"
    handler = logging.StreamHandler(sys.stderr)
    if as_json:
        handler.setFormatter(ProcessorFormatter(processors=[_as_json_line, format_exc_info, JSONRenderer()]))
    else:
        handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logging.basicConfig(level=number, handlers=[handler], force=True)
    logging.captureWarnings(as_json)
    # No line has these, and looking them up costs as much as the rest. Source: Python's logging how-to.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    for library in _LIBRARIES:
        logging.getLogger(library).setLevel(max(number, logging.WARNING))
    processors: list[Processor] = [ProcessorFormatter.wrap_for_formatter] if as_json else [format_exc_info, _as_line]
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        processors=processors,
    )


# ------------------------------------------------------------------ JSON


def _as_json_line(_logger: object, _method: str, entry: EventDict) -> EventDict:
    """The common fields, then the event's own; a field with the name of a common one gets an underscore."""
    record = entry.pop("_record")
    del entry["_from_structlog"]
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    line = {
        "time": time.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": str(entry.pop("event", "")),
    }
    exception = entry.pop("exc_info", None)
    for key, value in entry.items():
        line[f"{key}_" if key in line or key == "exception" else key] = _plain(value)
    return {**line, "exc_info": exception}


def _plain(value: object) -> Any:
    """A field's value as JSON, or as text if JSON has no such type."""
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value)


# ------------------------------------------------------------------ console


def _as_line(_logger: object, _method: str, entry: EventDict) -> str:
    """The event, then its fields as key=value; an ambiguous value is quoted. The lines of a traceback follow."""
    traceback = str(entry.pop("exception", "")).splitlines()
    words = [_shown(entry.pop("event", ""), quoted=False)]
    words += [f"{key}={_shown(value, quoted=True)}" for key, value in entry.items()]
    return "\n".join([" ".join(word for word in words if word), *(_shown(line, quoted=False) for line in traceback)])


def _shown(value: object, *, quoted: bool) -> str:
    text = str(value)
    if quoted and (not text or not text.isprintable() or any(mark in text for mark in " '\"=")):
        return repr(value) if isinstance(value, str) else repr(text)
    return "".join(char if char.isprintable() else " " for char in text)
