"""Replays recorded sessions of the real matcher, and reports the different answers and the rows that excuse them."""

import errno
import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fluxion_cy import FluxionError, Matcher, NotSupported

from .excuses import Difference, excuses
from .validity import FOREVER, Ledger, span

HOLDING = ("allocate", "allocate_orelse_reserve", "allocate_with_satisfiability")
MATCHING = (*HOLDING, "without_allocating", "without_allocating_future")
FIELDS = ("ok", "errno", "at", "reserved", "vertices", "exclusive", "units", "R", "mode", "full_removal")
OPTIONS = {"traverser_policy": "traverser", "matcher_policy": "policy"}


@dataclass
class Outcome:
    """The result of replaying one case: the number of equal answers, and each difference."""

    agree: int = 0
    unsupported: str = ""
    differ: dict[int, str] = field(default_factory=dict)
    excuses: dict[int, set[str]] = field(default_factory=dict)
    invalid: dict[int, str] = field(default_factory=dict)
    recorded_invalid: dict[int, str] = field(default_factory=dict)


def cases(path: Path) -> Iterator[dict[str, Any]]:
    with lzma.open(path) as lines:
        for line in lines:
            yield json.loads(line)


def facts_of(document: dict[str, Any] | None) -> dict[str, Any]:
    """The vertices, exclusive vertices and units of a JGF, in the form of the corpus."""
    nodes = document["graph"]["nodes"] if document else []
    by_path = {node["metadata"]["paths"]["containment"]: node["metadata"] for node in nodes}
    return {
        "vertices": sorted(by_path),
        "exclusive": sorted(path for path, metadata in by_path.items() if metadata.get("exclusive")),
        "units": {path: metadata["size"] for path, metadata in by_path.items() if metadata.get("size", 1) != 1},
    }


class Session:
    """One case on one matcher."""

    def __init__(self, case: dict[str, Any]) -> None:
        options = {OPTIONS.get(key, key): value for key, value in (case.get("options") or {}).items()}
        self.case = case
        self.matcher = Matcher(case["graph"], policy=case["policy"], **options)
        self.ledger = Ledger(case["graph"], options.get("traverser") == "flexible")
        self.outcome = Outcome()

    def run(self) -> Outcome:
        for number, op in enumerate(self.case["ops"]):
            answer = self.perform(op)
            if answer.get("unsupported"):
                self.outcome.unsupported = answer["message"]
                break
            self.compare(number, op, answer)
        return self.outcome

    def compare(self, number: int, op: dict[str, Any], answer: dict[str, Any]) -> None:
        wrong = ""
        if op["op"] in MATCHING and answer["ok"]:
            wrong = self.ledger.check(op["jobspec"], answer["at"], units_of(answer))
            if wrong:
                self.outcome.invalid[number] = wrong
        if op["op"] in MATCHING and op["expect"]["ok"]:
            flaw = self.ledger.check(op["jobspec"], op["expect"]["at"], units_of(op["expect"]))
            if flaw:
                self.outcome.recorded_invalid[number] = flaw
        reason = difference(op, answer, FIELDS)
        # The order of edges in its file decides a tie of the reference: only success and time are comparable, and not
        # even these where that order decides them.
        if op.get("tie"):
            sensitive = self.case.get("order_sensitive_status_ops", 0) > 0
            shown = "" if sensitive else difference(op, answer, ("ok", "at"))
        else:
            shown = reason
        if shown:
            self.outcome.differ[number] = shown
            self.outcome.excuses[number] = excuses(
                Difference(op, answer, self.ledger, wrong, lambda: self.exhibit(op["jobspec"]))
            )
        else:
            self.outcome.agree += 1
        self.enter(op, answer)
        if reason and op["op"] in HOLDING:
            self.follow(op, answer)

    def exhibit(self, jobspec: dict[str, Any]) -> bool:
        """Whether the current graph, idle and all up, has a placement that passes every check."""
        document = self.matcher.graph()
        for node in document["graph"]["nodes"]:
            node["metadata"].pop("status", None)
        try:
            found = Matcher(document, policy=self.case["policy"]).allocate(jobspec)
        except FluxionError:
            return False
        return not Ledger(document).check(jobspec, found.at, units_of(facts_of(found.R)))

    def enter(self, op: dict[str, Any], answer: dict[str, Any]) -> None:
        """Update the ledger."""
        if not answer["ok"]:
            return
        if op["op"] in HOLDING:
            self.ledger.hold(op["jobid"], answer["at"], answer["at"] + span(op["jobspec"]), units_of(answer))
        elif op["op"] == "update_allocate":
            self.ledger.hold(op["jobid"], answer["at"], FOREVER, units_of(answer))
        elif op["op"] == "cancel" or answer.get("full_removal"):
            self.ledger.free(op["jobid"])
        elif op["op"] == "partial_cancel":
            ranks = {int(row["rank"]) for row in op["R"]["execution"]["R_lite"]}
            self.ledger.free(op["jobid"], {p for p, v in self.ledger.vertices.items() if v.get("rank", -1) in ranks})
        elif op["op"] == "add_subgraph":
            self.ledger.grow(op["graph"])
        elif op["op"] == "remove_subgraph":
            self.ledger.shrink(op["path"])
        elif op["op"] == "set_status":
            self.ledger.set_status(op["path"], op["status"] == "up")

    def follow(self, op: dict[str, Any], answer: dict[str, Any]) -> None:
        """Bring the matcher to the state of the recorded session, so that later answers are comparable."""
        expect, jobid = op["expect"], op["jobid"]
        if answer["ok"]:
            self.matcher.retract(jobid)
            self.ledger.free(jobid)
        if not expect["ok"]:
            return
        if answer.get("errno") == "EEXIST":
            jobid += 2**40
        units = {path: expect.get("units", {}).get(path, 1) for path in expect["exclusive"]}
        nodes = [
            {"metadata": {**self.ledger.vertices[path], "exclusive": True, "size": size}}
            for path, size in units.items()
        ]
        end = expect["at"] + span(op["jobspec"])
        envelope = {"version": 1, "execution": {"starttime": expect["at"], "expiration": end}}
        self.matcher.update_allocate(jobid, {**envelope, "scheduling": {"graph": {"nodes": nodes}}})
        self.ledger.hold(jobid, expect["at"], end, units)

    def perform(self, op: dict[str, Any]) -> dict[str, Any]:
        """Run one operation. Returns the answer in the form of the corpus."""
        try:
            return {"ok": True, **getattr(self, f"do_{op['op']}", self.do_match)(op)}
        except FluxionError as error:
            name = errno.errorcode[error.errno]
            return {"ok": False, "errno": name, "message": str(error), "unsupported": isinstance(error, NotSupported)}

    def do_match(self, op: dict[str, Any]) -> dict[str, Any]:
        found = getattr(self.matcher, op["op"])(op["jobspec"], op["jobid"])
        return {"at": found.at, "reserved": found.reserved, "R": found.R, **facts_of(found.R)}

    def do_satisfy(self, op: dict[str, Any]) -> dict[str, Any]:
        return {} if self.matcher.satisfy(op["jobspec"]) else {"ok": False, "errno": "ENODEV"}

    def do_cancel(self, op: dict[str, Any]) -> dict[str, Any]:
        self.matcher.cancel(op["jobid"], op.get("noent_ok", False))
        return {}

    def do_partial_cancel(self, op: dict[str, Any]) -> dict[str, Any]:
        return {"full_removal": self.matcher.partial_cancel(op["jobid"], op["R"], op.get("noent_ok", False))}

    def do_update_allocate(self, op: dict[str, Any]) -> dict[str, Any]:
        found = self.matcher.update_allocate(op["jobid"], op["R"])
        return {"at": found.at, "R": found.R, **facts_of(found.R)}

    def do_info(self, op: dict[str, Any]) -> dict[str, Any]:
        info = self.matcher.info(op["jobid"])
        return {"mode": info.mode, "reserved": info.reserved, "at": info.at}

    def do_find(self, op: dict[str, Any]) -> dict[str, Any]:
        return {"vertices": facts_of(self.matcher.find(op["criteria"]))["vertices"]}

    def do_set_status(self, op: dict[str, Any]) -> dict[str, Any]:
        self.matcher.set_status(op["path"], op["status"] == "up")
        return {}

    def do_add_subgraph(self, op: dict[str, Any]) -> dict[str, Any]:
        self.matcher.add_subgraph(op["graph"])
        return {}

    def do_remove_subgraph(self, op: dict[str, Any]) -> dict[str, Any]:
        self.matcher.remove_subgraph(op["path"])
        return {}


def units_of(answer: dict[str, Any]) -> dict[str, int]:
    return {path: answer.get("units", {}).get(path, 1) for path in answer["exclusive"]}


def difference(op: dict[str, Any], answer: dict[str, Any], fields: tuple[str, ...]) -> str:
    """The first field in which the answer differs from the expected one; empty if all agree."""
    expect = op["expect"]
    for key in fields:
        # An errno of 0 (null) beside a failure is not comparable.
        if key not in expect or (key == "errno" and (expect["ok"] or expect["errno"] is None)):
            continue
        wanted, found = expect[key], answer.get(key)
        if key == "R":
            wanted, found = canonical(wanted), canonical(found)
        if wanted != found:
            return f"{key}: expected {str(wanted)[:200]}, got {str(found)[:200]} {answer.get('message', '')}"
    return ""


def canonical(document: Any) -> Any:
    """R with sorted lists: their order follows the order of the loaded file."""
    if document is None:
        return None
    graph = document["graph"]
    return [sorted(json.dumps(item, sort_keys=True) for item in graph[key]) for key in ("nodes", "edges")]


def replay(case: dict[str, Any]) -> Outcome:
    try:
        session = Session(case)
    except NotSupported as error:
        return Outcome(unsupported=str(error))
    except FluxionError as error:
        return Outcome(differ={-1: str(error)} if case["init"]["ok"] else {})
    return session.run()
