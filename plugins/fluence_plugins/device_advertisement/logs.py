"""Logs to standard error in the format of the other commands, with only `logging`.

The core's setup imports structlog, and rich if it is installed: a tenth of this process's memory.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from session_scheduler.sdk.commands import LogFormat, LogLevel


def log_to_stderr(level: LogLevel, form: LogFormat) -> None:
    """Write this process's logs of `level` and above to standard error, one line each."""
    number = logging.getLevelNamesMapping()[level.name]
    handler = logging.StreamHandler(sys.stderr)
    as_json = form is LogFormat.JSON
    handler.setFormatter(_JsonFormatter() if as_json else logging.Formatter("%(levelname)s %(message)s"))
    logging.basicConfig(level=number, handlers=[handler], force=True)
    logging.captureWarnings(as_json)
    for library in ("asyncio", "grpc"):
        logging.getLogger(library).setLevel(max(number, logging.WARNING))


class _JsonFormatter(logging.Formatter):
    """A record as one line of ASCII, with the fields of the other commands' lines."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
