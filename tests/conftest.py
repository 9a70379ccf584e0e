"""What holds for every test: no test's logs are for another one, and its garbage is soon found."""

import gc
import logging
from collections.abc import Iterator

import pytest
import structlog

CONSOLE = structlog.get_config()["processors"][-1]
CONSOLE.exception_formatter = structlog.dev.plain_traceback  # with colours and every local name it takes a second


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> None:
    """What is there before a module's tests stays: no look for garbage is to go through it, and some tests look."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def unconfigured_logs() -> Iterator[None]:
    """A command sets the logs of its process up, which in a test is everybody's."""
    root = logging.root
    level, handlers = root.level, list(root.handlers)
    yield
    structlog.reset_defaults()
    root.setLevel(level)
    for added in set(root.handlers).difference(handlers):
        root.removeHandler(added)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests recorded as their `summary` stands at the end, from every worker."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, text in report.user_properties:
                    if name == "summary":
                        terminalreporter.write_line(f"\n{text}")
