"""The real matcher's recorded answers, replayed.

`deviations.txt` lists where this engine means to answer otherwise: case, operation, row of section 7 ("what to do
instead") of the semantics, reason. A difference that is not listed fails, and so does a listed one that is gone.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from replay import cases, replay

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[2]
PEER = Path(os.environ.get("FLUXION_PEER_SUITE", CHECKOUT.parent / "shared" / "fluxion")) / "peer-suite.jsonl.xz"
CASES = [case for name in ("handwritten", "random") for case in cases(HERE / f"{name}.jsonl.xz")]


def listed() -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for line in (HERE / "deviations.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            case, number, rule, reason = line.split("\t")
            assert rule
            assert reason
            found.setdefault(case, set()).add(int(number))
    return found


LISTED = listed()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_answer_is_the_real_matchers_or_a_listed_deviation(case: dict[str, Any]) -> None:
    outcome = replay(case)
    assert not outcome.unsupported
    assert not outcome.invalid
    unlisted = {number: text for number, text in outcome.differ.items() if number not in LISTED.get(case["name"], ())}
    assert not unlisted
    gone = LISTED.get(case["name"], set()) - outcome.differ.keys()
    assert not gone, f"operations {sorted(gone)} agree now: take them off the list"


def test_every_listed_case_exists() -> None:
    assert LISTED.keys() <= {case["name"] for case in CASES}


def test_the_corpora_have_as_many_operations_as_they_should() -> None:
    by_policy = Counter[str]()
    for case in CASES:
        by_policy[case["policy"]] += len(case["ops"])
    assert sum(by_policy.values()) == 1629
    assert sum(by_policy[policy] for policy in ("first", "low", "high")) == 742


@pytest.mark.skipif(not PEER.exists(), reason=f"the reference's own sessions are not at {PEER}; set FLUXION_PEER_SUITE")
def test_the_references_own_sessions_agree(capsys: pytest.CaptureFixture[str]) -> None:
    counts: dict[str, Counter[str]] = {}
    differ: list[str] = []
    for case in cases(PEER):
        outcome = replay(case)
        found = counts.setdefault(case["policy"], Counter())
        found.update(agree=outcome.agree, differ=len(outcome.differ))
        found["not supported"] += len(case["ops"]) - outcome.agree - len(outcome.differ) if outcome.unsupported else 0
        differ.extend(f"{case['name']} {number}" for number in outcome.differ)
        assert not outcome.invalid, case["name"]
    with capsys.disabled():
        for policy, found in sorted(counts.items()):
            print(f"\npeer-suite, {policy}: {dict(found)}", end="")
    peer = [line for line in (HERE / "deviations_peer.txt").read_text().splitlines() if not line.startswith("#")]
    assert sorted(differ) == sorted(" ".join(line.split("\t")[:2]) for line in peer)
