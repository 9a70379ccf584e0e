"""Where logs go: to standard error, so that what a command writes to standard output stays its result."""

from __future__ import annotations

import logging

import structlog


def log_to_stderr(level: int = logging.WARNING) -> None:
    """Send this process's logs of `level` and above to standard error, one line each.

    They go through the standard library's logging, whose handler of last resort writes to standard error.
    """
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["level", "event"]),
        ],
    )
