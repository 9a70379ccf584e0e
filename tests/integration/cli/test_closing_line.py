"""`.ci/run` prints the correct closing line, also after a crash of pytest."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

COUNT = Path(__file__).parents[3] / ".ci/count.py"
SUITE = '<testsuites><testsuite tests="10" failures="{f}" errors="{e}" skipped="{s}"/></testsuites>'


def _closing(tmp_path: Path, reports: list[str | None], steps_failed: int, status: int) -> tuple[str, int]:
    paths = [tmp_path / f"report-{index}.xml" for index in range(len(reports))]
    for path, report in zip(paths, reports, strict=True):
        if report is not None:
            path.write_text(report)
    text, exit_status = _counted(steps_failed, status, tmp_path / "seconds", paths)
    return text.splitlines(keepends=True)[-1], exit_status


def _counted(steps_failed: int, status: int, seconds: Path, reports: list[Path]) -> tuple[str, int]:
    words = ["4", str(steps_failed), str(status), str(seconds), *map(str, reports)]
    done = subprocess.run([sys.executable, str(COUNT), *words], text=True, capture_output=True, check=False)
    assert done.stderr == ""
    return done.stdout, done.returncode


@pytest.mark.parametrize(
    ("report", "steps_failed", "status", "line", "exit_status"),
    [
        (SUITE.format(f=0, e=0, s=0), 0, 0, "14 passed, 0 failed\n", 0),
        (SUITE.format(f=0, e=0, s=2), 0, 0, "12 passed, 0 failed, 2 skipped\n", 0),
        (SUITE.format(f=1, e=2, s=0), 0, 1, "11 passed, 3 failed\n", 1),
        (SUITE.format(f=0, e=0, s=0), 1, 0, "14 passed, 1 failed\n", 1),
        (SUITE.format(f=0, e=0, s=0), 0, 3, "14 passed, 1 failed\n", 1),
        (SUITE.format(f=0, e=0, s=0)[:30], 0, 3, "4 passed, 1 failed\n", 1),
        ('<testsuites><testsuite tests="0"/></testsuites>', 0, 5, "4 passed, 1 failed\n", 1),
        (None, 0, 139, "4 passed, 1 failed\n", 1),
    ],
    ids=["passed", "skipped", "failed", "linter", "internal error", "half a report", "no tests", "crash"],
)
def test_the_closing_line_counts_tests_and_steps(tmp_path: Path, report, steps_failed, status, line, exit_status):
    assert _closing(tmp_path, [report], steps_failed, status) == (line, exit_status)


def test_the_counts_of_several_reports_are_added(tmp_path: Path):
    report = SUITE.format(f=1, e=0, s=1)
    assert _closing(tmp_path, [report, report], 0, 1) == ("20 passed, 2 failed, 2 skipped\n", 1)


def test_a_missing_report_beside_another_is_a_failure(tmp_path: Path):
    assert _closing(tmp_path, [SUITE.format(f=0, e=0, s=0), None], 0, 2) == ("14 passed, 1 failed\n", 1)


def test_the_seconds_of_steps_and_of_the_slowest_tests_precede_it(tmp_path):
    seconds, report = tmp_path / "seconds", tmp_path / "report.xml"
    seconds.write_text("12 11 mypy\n600 1100 make test-all\n")
    cases = "".join(f'<testcase classname="tests.a" name="t{n}" time="{n}.25"/>' for n in range(30))
    report.write_text(f'<testsuites><testsuite tests="30">{cases}</testsuite></testsuites>')
    lines = _counted(0, 0, seconds, [report, tmp_path / "missing.xml"])[0].splitlines()
    assert {"     12     11  mypy", "    600   1100  make test-all"} < set(lines)
    slowest = [line.split() for line in lines if "tests.a::" in line]
    assert slowest == [[f"{n}.2", f"tests.a::t{n}"] for n in range(29, 9, -1)]


def test_a_step_is_timed_with_its_status(tmp_path):
    seconds, began = tmp_path / "seconds", time.monotonic()
    for _ in range(2):
        command = [sys.executable, str(COUNT.with_name("timed.py")), str(seconds), "sh", "-c", "exit 3"]
        done = subprocess.run(command, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (3, "== sh -c exit 3\n", "")
    passed = round(time.monotonic() - began)
    steps = [line.split(" ", 2) for line in seconds.read_text().splitlines()]
    assert [command for _, _, command in steps] == ["sh -c exit 3"] * 2
    assert all(0 <= int(number) <= passed for wall, used, _ in steps for number in (wall, used))
