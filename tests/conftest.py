"""What holds for every test: the same cases in every run, on a slow machine too; no test's logs for another one."""

from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

settings.register_profile(
    "project",
    derandomize=True,  # a failure is there again in the next run, and nothing fails that passed before
    deadline=None,  # time is no property: a busy machine must not fail a test
    suppress_health_check=[HealthCheck.too_slow],  # the same for how fast inputs are made
)
settings.load_profile("project")


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
