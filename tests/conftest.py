"""What holds for every test: no test's logs are for another one, and its garbage is soon found."""

import gc
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
    yield
    structlog.reset_defaults()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests recorded as their `summary` stands at the end, from every worker."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, text in report.user_properties:
                    if name == "summary":
                        terminalreporter.write_line(f"\n{text}")
