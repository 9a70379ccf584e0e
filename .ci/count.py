"""Adds up steps and tests: `count.py STEPS_PASSED STEPS_FAILED STATUS_OF_TESTS SECONDS REPORT…` prints a closing line.

Before it stand the seconds of each step, from the file SECONDS that timed.py wrote, and the slowest tests of all
reports.

A test run that crashed leaves no report, half a report, or one without a failure: each counts as one failure more.
"""

import sys
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

SLOWEST = 20


def counted(report: Path) -> tuple[int, int, int]:
    """How many tests passed, failed and were skipped, by a JUnit report."""
    try:
        suites = list(ElementTree.parse(report).getroot().iter("testsuite"))  # noqa: S314  # our own pytest wrote it
    except (OSError, ElementTree.ParseError):
        return 0, 1, 0
    tests, failures, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    passed = max(0, tests - failed - skipped)
    if not tests:
        failed = 1
    return passed, failed, skipped


def timed(reports: list[Path]) -> list[tuple[float, str]]:
    """How many seconds each test took, with its name, by JUnit reports; those that cannot be read are left out."""
    found: list[tuple[float, str]] = []
    for report in reports:
        with suppress(OSError, ElementTree.ParseError):
            cases = ElementTree.parse(report).getroot().iter("testcase")  # noqa: S314  # our own pytest wrote it
            found += [(float(case.get("time", 0)), f"{case.get('classname')}::{case.get('name')}") for case in cases]
    return sorted(found, reverse=True)


def print_times(seconds: Path, reports: list[Path]) -> None:
    """Print how long each step took, and the slowest tests."""
    print("\nseconds  CPU s  step")
    with suppress(OSError):
        for line in seconds.read_text().splitlines():
            elapsed, cpu, step = line.split(" ", 2)
            print(f"{elapsed:>7}  {cpu:>5}  {step}")
    print(f"\nseconds  the {SLOWEST} slowest tests")
    for took, name in timed(reports)[:SLOWEST]:
        print(f"{took:7.1f}  {name}")
    print()


def main() -> int:
    """Print the times and the closing line; the exit status says whether anything failed."""
    steps_passed, steps_failed, status = map(int, sys.argv[1:4])
    reports = [Path(report) for report in sys.argv[5:]]
    print_times(Path(sys.argv[4]), reports)
    counts = [counted(report) for report in reports]
    passed, failed, skipped = (sum(numbers) for numbers in zip(*counts, strict=True))
    if status and not failed:
        failed = 1
    passed, failed = passed + steps_passed, failed + steps_failed
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
