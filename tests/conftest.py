"""Fixtures for every test: restore the logging configuration, and keep garbage collections short."""

import gc
import logging
from collections.abc import Iterator

import pytest
import structlog

CONSOLE = structlog.get_config()["processors"][-1]
CONSOLE.exception_formatter = structlog.dev.plain_traceback  # colours and the values of local variables take a second


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> None:
    """Exempt the objects that exist before a module's tests from garbage collection, which some tests trigger."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def unconfigured_logs() -> Iterator[None]:
    """A command configures logging for its process; in a test, other tests share that process."""
    root = logging.root
    level, handlers = root.level, list(root.handlers)
    yield
    structlog.reset_defaults()
    root.setLevel(level)
    for added in set(root.handlers).difference(handlers):
        root.removeHandler(added)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print at the end what the tests recorded as their `summary`, from every worker."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, text in report.user_properties:
                    if name == "summary":
                        terminalreporter.write_line(f"\n{text}")
