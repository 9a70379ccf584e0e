"""Where logs go: to standard error, so that what a command writes to standard output stays its result."""

from __future__ import annotations

import logging
import sys

import structlog


def log_to_stderr(level: int = logging.WARNING) -> None:
    """Write this process's logs of `level` and above to standard error, one line each."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    logging.basicConfig(level=level, stream=sys.stderr, format="%(levelname)s %(message)s", force=True)
