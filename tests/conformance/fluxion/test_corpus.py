"""The real matcher's recorded answers, replayed.

`deviations.txt` lists the operations that this engine answers differently on purpose: case, operation, row of section 7
("what to do instead") of the semantics, reason. A test fails for a difference that is not listed, a listed one that is
gone, one whose row does not apply by `excuses`, and a list that is too long. Every test run prints the list at its end.
"""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .excuses import RULES
from .replay import Outcome, cases, replay
from .validity import Ledger, never

HERE = Path(__file__).parent
LIMIT = 50
OPERATIONS, PEER_OPERATIONS = 1629, 3590
NAMED = os.environ.get("FLUXION_PEER_SUITE")
PEER = Path(NAMED) if NAMED else HERE.parents[2].parent / "shared" / "fluxion"
PEER = PEER / "peer-suite.jsonl.xz" if PEER.is_dir() or not PEER.suffix else PEER
CASES = [case for name in ("handwritten", "random") for case in cases(HERE / f"{name}.jsonl.xz")]
LINES = [line for line in (HERE / "deviations.txt").read_text().splitlines() if not line.startswith("#")]


def listed() -> dict[str, dict[int, str]]:
    """Per case: the operations that may differ, and the row for each."""
    found: dict[str, dict[int, str]] = {}
    for line in LINES:
        case, number, rule, reason = line.split("\t")
        assert rule in RULES, f"{case} {number}: no predicate exists for row {rule!r}"
        assert reason
        assert int(number) not in found.setdefault(case, {}), f"{case} {number} is listed twice"
        found[case][int(number)] = rule
    return found


LISTED = listed()


def agreed(case: dict[str, Any], outcome: Outcome) -> None:
    """Checks that every difference is listed with a row that applies, and that every listed one exists."""
    allowed = LISTED.get(case["name"], {})
    assert not outcome.invalid
    assert outcome.recorded_invalid.keys() <= allowed.keys(), (
        "a recorded placement without a listed deviation fails the checker"
    )
    unlisted = {number: text for number, text in outcome.differ.items() if number not in allowed}
    assert not unlisted
    gone = allowed.keys() - outcome.differ.keys()
    assert not gone, f"operations {sorted(gone)} agree now: remove them from the list"
    for number, rule in allowed.items():
        applying = sorted(outcome.excuses[number])
        assert rule in applying, f"operation {number}: row {rule} does not apply (but {applying})"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_answer_is_the_real_matchers_or_a_listed_deviation(case: dict[str, Any]) -> None:
    outcome = replay(case)
    assert not outcome.unsupported
    agreed(case, outcome)


def test_the_list_of_deviations_is_short(record_property: Callable[[str, object], None]) -> None:
    of = OPERATIONS + PEER_OPERATIONS
    head = f"{len(LINES)} of {of} operations differ from the recorded answers, at most {LIMIT} may"
    record_property("summary", "\n".join([head, *(line.expandtabs(4) for line in LINES)]))
    assert len(LINES) <= LIMIT


def test_every_listed_case_exists() -> None:
    known = {case["name"] for case in CASES}
    peer = {case["name"] for case in cases(PEER)} if PEER.exists() else {name for name in LISTED if name[:3] == "sh_"}
    assert LISTED.keys() <= known | peer


def test_the_corpora_have_the_expected_number_of_operations() -> None:
    by_policy = Counter[str]()
    for case in CASES:
        by_policy[case["policy"]] += len(case["ops"])
    assert sum(by_policy.values()) == OPERATIONS
    assert sum(by_policy[policy] for policy in ("first", "low", "high")) == 742


def test_the_checker_never_calls_a_placed_jobspec_impossible() -> None:
    """The proof of row 7 is sound for every jobspec that the recorded sessions placed or called satisfiable."""
    proven = 0
    for case in CASES:
        ledger = Ledger(case["graph"])
        for op in case["ops"]:
            if "jobspec" in op and op["expect"]["ok"]:
                assert not never(ledger, op["jobspec"]), (case["name"], op)
            elif op["op"] == "satisfy" and op["expect"]["errno"] == "ENODEV":
                proven += never(ledger, op["jobspec"])
            elif op["op"] == "add_subgraph":
                ledger.grow(op["graph"])
    assert proven > 50


@pytest.mark.parametrize(
    ("name", "number", "rule"),
    [
        ("own_time_low", 13, "7, 8"),
        ("own_status_low", 5, "7, 8"),
        ("own_excl_low", 6, "5"),
        ("own_errors_low", 24, "4, 6"),
        ("own_errors_low", 29, "13"),
        ("own_subgraph_low", 3, "1, 2"),
    ],
)
def test_a_row_excuses_only_its_own_differences(name: str, number: int, rule: str) -> None:
    outcome = replay(next(case for case in CASES if case["name"] == name))
    assert outcome.excuses[number] == {rule}


@pytest.mark.skipif(
    not NAMED and not PEER.exists(),
    reason=f"the reference's own sessions are not at {PEER}; set FLUXION_PEER_SUITE",
)
def test_the_references_own_sessions_agree(record_property: Callable[[str, object], None]) -> None:
    counts: dict[str, Counter[str]] = {}
    for case in cases(PEER):
        outcome = replay(case)
        found = counts.setdefault(case["policy"], Counter())
        found.update(agree=outcome.agree, differ=len(outcome.differ))
        assert not outcome.unsupported, case["name"]
        agreed(case, outcome)
    record_property(
        "summary", "\n".join(f"peer-suite, {name}: {dict(found)}" for name, found in sorted(counts.items()))
    )
    assert sum(found.total() for found in counts.values()) == PEER_OPERATIONS
