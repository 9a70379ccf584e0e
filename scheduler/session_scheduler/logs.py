"""Where logs go: to standard error, so that what a command writes to standard output stays its result."""

from __future__ import annotations

import logging
import sys

import structlog

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
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
    )
