"""The recorded answers on Fluxion's own library, through this package: `make conformance-reapi`.

Runs only if FLUXION_REAPI_LIB names the library. Its answers must equal the recorded ones, ties included, except where
the checks in front of it change them. Those are counted by kind here and in docs/reference/matcher.md.
"""

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fluxion_cy import FluxionError
from fluxion_cy.reapi.library import VARIABLE

from . import test_formats
from .replay import Outcome, Session, cases
from .test_corpus import HERE, PEER

pytestmark = pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"{VARIABLE} names no library of Fluxion's own")

PAGE = HERE.parents[2] / "docs" / "reference" / "matcher.md"
#: The answer of a check in front of the library, and the library's recorded answers.
CHANGED: dict[str, tuple[str, set[str | None]]] = {
    "nothing exclusive": (r"put one under a slot, or set exclusive", {"EBUSY", "EINVAL", "ENODEV", None}),
    "slots side by side": (r"two sibling slots", {"EBUSY", "ENODEV", "ok", None}),
    "the id is held": (r"with this id already exists", {"ok"}),
}


class RealSession(Session):
    """A session that continues after a check in front of the library refuses an operation."""

    def perform(self, op: dict[str, Any]) -> dict[str, Any]:
        return {**super().perform(op), "unsupported": False}

    def compare(self, number: int, op: dict[str, Any], answer: dict[str, Any]) -> None:
        # `find` lacks the vertices that a refused operation would have allocated.
        super().compare(number, op if op["op"] == "find" else {**op, "tie": False}, answer)


def replayed(case: dict[str, Any]) -> Outcome:
    options = {**(case.get("options") or {}), "engine": "reapi"}
    try:
        session = RealSession({**case, "options": options})
    except FluxionError as error:
        return Outcome(differ={-1: str(error)} if case["init"]["ok"] else {})
    return session.run()


def kind_of(text: str, expect: dict[str, Any]) -> str:
    recorded = "ok" if expect["ok"] else expect.get("errno")
    for kind, (pattern, allowed) in CHANGED.items():
        if re.search(pattern, text) and recorded in allowed:
            return kind
    return f"unexplained: {text}"


def counted(path: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for case in cases(path):
        outcome = replayed(case)
        found["agree"] += outcome.agree
        for number, text in outcome.differ.items():
            found[kind_of(text, case["ops"][number]["expect"]) if number >= 0 else f"{case['name']}: {text}"] += 1
    return found


@pytest.mark.parametrize(
    "name",
    [
        "handwritten",
        "random",
        pytest.param("peer-suite", marks=pytest.mark.skipif(not PEER.exists(), reason=f"{PEER} is not there")),
    ],
)
def test_the_library_gives_the_recorded_answers_through_this_package(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = counted(PEER if name == "peer-suite" else HERE / f"{name}.jsonl.xz")
    with capsys.disabled():
        print(f"\nreapi, {name}: {dict(found)}", end="")
    assert not [kind for kind in found if kind != "agree" and kind not in CHANGED]
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {name} |"))
    listed = [int(cell) for cell in re.findall(r"\| *(\d+) *(?=\|)", row)]
    assert listed == [sum(found.values()), found["agree"], *(found[kind] for kind in CHANGED)]


def test_every_form_equals_the_librarys_or_is_a_listed_deviation(capsys: pytest.CaptureFixture[str]) -> None:
    """This package writes the forms from the library's JGF, so it deviates where the embedded engine does."""
    operations, listed, other = 0, 0, []
    for case in test_formats.RECORDED:
        differ = test_formats.replay({**case, "options": {**case["options"], "engine": "reapi"}})
        known = {number for name, number in test_formats.listed() if name == case["name"]}
        operations += len(case["ops"])
        listed += len(known & differ.keys())
        other += [f"{case['name']} {number}: {text}" for number, text in differ.items() if number not in known]
    with capsys.disabled():
        print(f"\nreapi, forms: {operations} operations, {listed} listed deviations", end="")
    assert not other, "\n".join(other)
    assert f"Of {operations:,} operations over all forms, {listed} " in PAGE.read_text()


def test_a_check_explains_only_its_own_differences() -> None:
    assert (
        kind_of("put one under a slot, or set exclusive: true", {"ok": False, "errno": "EBUSY"}) == "nothing exclusive"
    )
    assert kind_of("put one under a slot, or set exclusive: true", {"ok": True}).startswith("unexplained")
