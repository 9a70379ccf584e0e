"""`peer_suite.py REPORT`: fails if the reference's own sessions lie where they are expected and no test replayed them.

A skip is no failure to pytest, and neither is a test that was not collected; the JUnit report tells both.
"""

import os
import sys
from pathlib import Path
from xml.etree import ElementTree

TEST = "test_the_references_own_sessions_agree"


def replayed(report: Path) -> bool:
    """Whether the report has the test, run and not skipped."""
    try:
        cases = ElementTree.parse(report).getroot().iter("testcase")  # noqa: S314  # our own pytest wrote it
        return any(case.get("name") == TEST and case.find("skipped") is None for case in cases)
    except (OSError, ElementTree.ParseError):
        return False


def main() -> int:
    """Exit status 1 and one line if the sessions are there, or named, and were not replayed."""
    named = os.environ.get("FLUXION_PEER_SUITE")
    expected = Path(__file__).parents[2] / "shared" / "fluxion" / "peer-suite.jsonl.xz"
    if not (named or expected.exists()) or replayed(Path(sys.argv[1])):
        return 0
    print(f"{named or expected} was not replayed: {TEST} is missing or skipped in {sys.argv[1]}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
