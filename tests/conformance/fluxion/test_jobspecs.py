"""How the real library read jobspecs in every form, held against the embedded engine."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from fluxion_cy import FluxionError, Matcher

from .jobspec_cases import cases, machine

RECORDED = [json.loads(line) for line in (Path(__file__).parent / "jobspecs.jsonl").read_text().splitlines()]
CASES = list(cases())

#: Answers that differ on purpose, with the reason: (part, value as JSON).
OTHERWISE = {
    ("count", '"0x3"'): "a number is written in decimal digits",
    ("count", '"3 "'): "a number is written in decimal digits",
    ("attributes", '{"system": []}'): "a list is not a mapping",
    ("resources", '[{"type": "", "count": 1, "exclusive": true}]'): "the library knows a type without a name",
}


def answered(jobspec: Any) -> tuple[list[Any], list[str]]:
    """(answers as recorded ones, messages)."""
    matcher, found, messages = Matcher(machine(), policy="low"), list[Any](), list[str]()
    for operation in (matcher.allocate, matcher.allocate_orelse_reserve):
        try:
            given = operation(jobspec)
        except FluxionError as error:
            found.append(errno.errorcode[error.errno])
            messages.append(str(error))
            continue
        fields = [node["metadata"] for node in given.R["graph"]["nodes"]]
        found.append([given.at, sorted(f["paths"]["containment"] for f in fields if f.get("exclusive"))])
    return found, messages


def test_every_case_is_recorded() -> None:
    assert [(part, value) for part, value, *_ in RECORDED] == [(part, value) for part, value, _ in CASES]


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{n}-{CASES[n][0]}")
def test_a_jobspec_is_read_as_the_library_reads_it(number: int) -> None:
    part, value, jobspec = CASES[number]
    _, _, *recorded = RECORDED[number]
    found, messages = answered(jobspec)
    if found == recorded:
        assert (part, json.dumps(value)) not in OTHERWISE
        field = value if part in ("without", "with") else part
        assert all(field in message or "EINVAL" not in found for message in messages), "the field is named"
    elif (recorded, found) == (["EBUSY", "EBUSY"], ["EBUSY", "ENODEV"]):  # row 7: it says never where it is never
        assert not Matcher(machine(), policy="low").satisfy(jobspec)
    elif (recorded, found) == (["EBUSY", "EBUSY"], ["EINVAL", "EINVAL"]):  # row 5: nothing exclusive
        assert all("the match has no exclusive resource" in message for message in messages)
    else:
        assert OTHERWISE[part, json.dumps(value)]
