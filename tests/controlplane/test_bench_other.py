"""`make bench-live` with a second checkout of this project: both schedulers run, and are compared."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ..tools.real_programs import made
from . import binaries
from .bench_live import main
from .bench_report import COMPARED, Result, compared, table
from .contenders import FLUENCE, OTHER


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout after `make setup`, with this environment's command."""
    made(lambda: binaries.find("etcd", "kube-apiserver"))
    program = tmp_path / "checkout" / ".venv" / "bin" / "fluence"
    program.parent.mkdir(parents=True)
    program.symlink_to(Path(sys.executable).with_name("fluence"))
    return tmp_path / "checkout"


def test_two_checkouts_take_turns_and_are_compared_round_by_round(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    arguments = f"--workload basic,gangs --only fluence --nodes 10 --pods 12 --rounds 2 --json {report}".split()
    assert main([*arguments, "--other", str(checkout)]) == 0
    written = json.loads(report.read_text())
    assert [(run["round"], run["workload"], run["contender"], run["failure"]) for run in written["runs"]] == [
        (1, "basic", FLUENCE, ""), (1, "basic", OTHER, ""), (1, "gangs", FLUENCE, ""), (1, "gangs", OTHER, ""),
        (2, "gangs", OTHER, ""), (2, "gangs", FLUENCE, ""), (2, "basic", OTHER, ""), (2, "basic", FLUENCE, ""),
    ]  # fmt: skip
    assert [(row["workload"], row["round"]) for row in written["compared"]] == [
        (workload, which) for workload in ("basic", "gangs") for which in ("1", "2", "median")
    ]
    assert all(row["ratio_cpu_binding"] > 0 and row["ratio_cpu"] > 0 for row in written["compared"])
    assert table(written["compared"], COMPARED) in capsys.readouterr().out


def test_a_checkout_that_was_not_set_up_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--other", str(tmp_path)])
    assert ended.value.code == 2
    program = tmp_path / ".venv" / "bin" / "fluence"
    assert capsys.readouterr().err == f"--other: {program} does not exist: run `make setup` in {tmp_path}\n"


def test_another_checkout_is_refused_where_fluence_does_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--other", str(tmp_path), "--only", "kube-scheduler"])
    assert "--other: is compared with fluence, which --only leaves out" in capsys.readouterr().err


def _result(contender: str, round_: int, binding: float, whole: float, failure: str = "") -> Result:
    return Result("basic", contender, round_, 100, failure=failure, cpu_binding=binding, cpu=whole)


def test_ratios_are_taken_within_a_round_and_their_median_is_reported() -> None:
    ours = [_result(FLUENCE, 1, 1.0, 2.0), _result(FLUENCE, 2, 3.0, 8.0), _result(FLUENCE, 3, 1.2, 2.0)]
    others = [_result(OTHER, 1, 1.0, 1.0), _result(OTHER, 2, 2.0, 2.0), _result(OTHER, 3, 1.0, 1.0)]
    rows = compared([*ours, *others])
    assert [row["ratio_cpu_binding"] for row in rows] == [1.0, 1.5, 1.2, 1.2]
    assert [row["ratio_cpu"] for row in rows] == [2.0, 4.0, 2.0, 2.0]
    assert (rows[1]["cpu_binding"], rows[1]["other_cpu_binding"]) == (30.0, 20.0)
    assert rows[1]["cpu"] == 80.0


def test_a_round_in_which_one_of_them_failed_is_left_out() -> None:
    others = [_result(OTHER, 1, 1.0, 1.0), _result(OTHER, 2, 1.0, 1.0, failure="3 of 100 pods are bound")]
    rows = compared([_result(FLUENCE, 1, 2.0, 2.0), _result(FLUENCE, 2, 9.0, 9.0), *others])
    assert [(row["round"], row["ratio_cpu_binding"]) for row in rows] == [("1", 2.0), ("median", 2.0)]


def test_nothing_is_compared_where_there_is_no_other_checkout() -> None:
    assert compared([_result(FLUENCE, 1, 1.0, 1.0)]) == []
