"""The real library's answers to `format_cases`, recorded by `record.py`, replayed on the embedded engine.

Text is compared letter by letter, JSON with the order of its lists. `deviations_formats.txt` lists the operations that
this engine answers differently on purpose: case, operation, row of section 7 of the semantics, reason. Two frequent
differences have rules here: `stale_writer` and `refused_for_no_match`.
"""

import errno
import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fluxion_cy import FluxionError, Matcher

from .format_cases import cases as asked
from .replay import cases

HERE = Path(__file__).parent
OPTIONS = {"matcher_policy": "policy"}
FIELDS = ("ok", "errno", "at", "reserved", "R", "mode", "up", "full_removal")
RECORDED = list(cases(HERE / "formats.jsonl.xz"))


@cache
def listed() -> dict[tuple[str, int], str]:
    lines = (HERE / "deviations_formats.txt").read_text().splitlines()
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    assert all(rule and reason for _, _, rule, reason in rows)
    return {(case, int(number)): rule for case, number, rule, _ in rows}


class Session:
    """One case on one matcher, and its clone."""

    def __init__(self, case: dict[str, Any]) -> None:
        options = {OPTIONS.get(key, key): value for key, value in case["options"].items()}
        self.form = options["match_format"]
        self.shortened = False
        self.matchers = {"main": Matcher(case["graph"], **options)}

    def perform(self, op: dict[str, Any]) -> dict[str, Any]:
        do = getattr(self, f"do_{op['op']}", self.do_match)
        try:
            return {"ok": True, **do(self.matchers[op.get("on", "main")], op)}
        except FluxionError as error:
            return {"ok": False, "errno": errno.errorcode[error.errno], "message": str(error)}

    def do_match(self, matcher: Matcher, op: dict[str, Any]) -> dict[str, Any]:
        found = getattr(matcher, op["op"])(op["jobspec"], op["jobid"])
        return {"R": found.R, "at": found.at, "reserved": found.reserved}

    def do_satisfy(self, matcher: Matcher, op: dict[str, Any]) -> dict[str, Any]:
        return {} if matcher.satisfy(op["jobspec"]) else {"ok": False, "errno": "ENODEV"}

    def do_update_allocate(self, matcher: Matcher, op: dict[str, Any]) -> dict[str, Any]:
        found = matcher.update_allocate(op["jobid"], op["R"])
        return {"R": found.R, "at": found.at}

    def do_cancel(self, matcher: Matcher, op: dict[str, Any]) -> dict[str, Any]:
        matcher.cancel(op["jobid"], op.get("noent_ok", False))
        return {}

    def do_partial_cancel(self, matcher: Matcher, op: dict[str, Any]) -> dict[str, Any]:
        return {"full_removal": matcher.partial_cancel(op["jobid"], op["R"], op.get("noent_ok", False))}

    def do_info(self, matcher: Matcher, op: dict[str, Any]) -> dict[str, Any]:
        info = matcher.info(op["jobid"])
        return {"mode": info.mode, "reserved": info.reserved, "at": info.at}

    def do_find(self, matcher: Matcher, op: dict[str, Any]) -> dict[str, Any]:
        return {"R": matcher.find(op["criteria"])}

    def do_clone(self, matcher: Matcher, op: dict[str, Any]) -> dict[str, Any]:
        self.matchers["clone"] = matcher.clone()
        return {}

    def do_get_status(self, matcher: Matcher, op: dict[str, Any]) -> dict[str, Any]:
        return {"up": matcher.get_status(op["path"])}

    def do_set_rank_status(self, matcher: Matcher, op: dict[str, Any]) -> dict[str, Any]:
        matcher.set_rank_status(op["ranks"], op["status"] == "up")
        return {}

    def do_get_rank_status(self, matcher: Matcher, op: dict[str, Any]) -> dict[str, Any]:
        return {"up": matcher.get_rank_status(op["rank"])}


def difference(expect: dict[str, Any], answer: dict[str, Any]) -> str:
    for key in FIELDS:
        if key not in expect or (key == "errno" and (expect["ok"] or expect["errno"] == "0")):
            continue
        wanted, found = expect[key], answer.get(key)
        if key == "R" and isinstance(found, dict):
            wanted = json.loads(wanted) if wanted else None
        if wanted != found:
            return f"{key}: expected\n{wanted}\ngot\n{found}\n{answer.get('message', '')}"
    return ""


def stale_writer(session: Session, expect: dict[str, Any], answer: dict[str, Any]) -> bool:
    """After it has once left something out, the library calls every later R shorthand, even a complete one."""
    found = answer.get("R")
    if session.form not in ("jgf_shorthand", "rv1_shorthand") or not isinstance(found, dict) or not expect.get("R"):
        return False
    wanted = json.loads(expect["R"])
    writer = wanted.get("scheduling", wanted).pop("writer", None)
    if not session.shortened or writer is None:
        session.shortened = session.shortened or writer is not None
        return False
    complete = "writer" not in found.get("scheduling", found)
    return complete and not difference({**expect, "R": json.dumps(wanted)}, answer)


def refused_for_no_match(session: Session, expect: dict[str, Any], answer: dict[str, Any]) -> bool:
    """In rlite the library answers EINVAL if nothing matches, because it also tries to write that result."""
    return session.form == "rlite" and expect.get("errno") == "EINVAL" and answer.get("errno") == "EBUSY"


def replay(case: dict[str, Any]) -> dict[int, str]:
    assert case["init"]["ok"]
    session, differ = Session(case), {}
    for number, op in enumerate(case["ops"]):
        answer = session.perform(op)
        ruled = stale_writer(session, op["expect"], answer) or refused_for_no_match(session, op["expect"], answer)
        reason = difference(op["expect"], answer)
        if reason and not ruled:
            differ[number] = reason
    return differ


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["name"])
def test_every_form_equals_the_real_librarys_or_is_a_listed_deviation(case: dict[str, Any]) -> None:
    known = {number for name, number in listed() if name == case["name"]}
    differ = replay(case)
    unlisted = {number: text for number, text in differ.items() if number not in known}
    assert not unlisted, "\n".join(f"{number}: {text}" for number, text in unlisted.items())
    assert not known - differ.keys(), "these agree now: remove them from the list"


def test_the_recording_matches_the_current_cases() -> None:
    given = [{**case, "ops": [op["op"] for op in case["ops"]]} for case in asked()]
    kept = [{key: case[key] for key in ("name", "graph", "options")} for case in RECORDED]
    assert kept == [{key: case[key] for key in ("name", "graph", "options")} for case in given]
    assert [[op["op"] for op in case["ops"]] for case in RECORDED] == [case["ops"] for case in given]


def test_the_recording_holds_each_form_and_each_listed_case() -> None:
    counts = Counter((case["options"]["load_format"], case["options"]["match_format"]) for case in RECORDED)
    assert len(counts) == 3 * 8
    assert {name for name, _ in listed()} <= {case["name"] for case in RECORDED}
