"""Adds up steps and tests: `count.py STEPS_PASSED STEPS_FAILED STATUS_OF_TESTS REPORT…` prints the closing line.

A test run that crashed leaves no report, half a report, or one without a failure: each counts as one failure more.
"""

import sys
from pathlib import Path
from xml.etree import ElementTree


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


def main() -> int:
    """Print the closing line; the exit status says whether anything failed."""
    steps_passed, steps_failed, status = map(int, sys.argv[1:4])
    counts = [counted(Path(report)) for report in sys.argv[4:]]
    passed, failed, skipped = (sum(numbers) for numbers in zip(*counts, strict=True))
    if status and not failed:
        failed = 1
    passed, failed = passed + steps_passed, failed + steps_failed
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
