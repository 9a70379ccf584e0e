"""Commands that match jobspecs, and allocate, free and list jobs."""

import json
import time
from typing import Any

from fluxion_cy.errors import Busy, FluxionError, Unsatisfiable
from fluxion_cy.query.answers import RULE, Answer, Malformed, Origin, Session, informed, named, number, read, written

OPERATIONS = (
    "allocate",
    "allocate_with_satisfiability",
    "allocate_orelse_reserve",
    "without_allocating",
    "without_allocating_future",
)
_SATISFY = ("satisfiability", "satisfy")


def _operation(word: str) -> str:
    if word not in (*OPERATIONS, *_SATISFY):
        raise Malformed(f"unknown subcmd {word[:40]!r}; use one of {', '.join(OPERATIONS)}, satisfiability")
    return word


def match(session: Session, words: list[str]) -> Answer:
    """Matches a jobspec by the operation that the first word names."""
    return _match(session, _operation(words[0]), words[1])


def multi_match(session: Session, words: list[str]) -> Answer:
    """Matches one file after another until one has no match."""
    operation, given, text = _operation(words[0]), list[dict[str, Any]](), ""
    for name in words[1:]:
        try:
            answer = _match(session, operation, name)
        except FluxionError as error:
            return Answer({"matches": given}, text, error=error)
        given.append({"jobspec": name, **answer.values})
        text += answer.text
        if not answer.values.get("matched", answer.values.get("satisfiable")):
            break
    return Answer({"matches": given}, text)


def _match(session: Session, operation: str, name: str) -> Answer:
    jobspec = read(name)
    began = time.perf_counter()
    with named(name):
        if operation in _SATISFY:
            return _satisfy(session, jobspec, began)
        before = session.matcher.next_jobid
        try:
            got = getattr(session.matcher, operation)(jobspec)
        except (Busy, Unsatisfiable) as error:
            return _nothing(session, error, before, began)
    if not operation.startswith("allocate"):
        return _placed(session, before, "MATCHED", got)
    session.jobs[got.jobid] = Origin(name, got.overhead)
    return _placed(session, got.jobid, "RESERVED" if got.reserved else "ALLOCATED", got)


def _elapse(session: Session, seconds: float) -> list[str]:
    return [f"ELAPSE={seconds:.6f}"] * session.elapse


def _satisfy(session: Session, jobspec: str, began: float) -> Answer:
    found = session.matcher.satisfy(jobspec)
    said = "Satisfiable" if found else "Unsatisfiable"
    lines = [RULE, f"{said} request", RULE, *_elapse(session, time.perf_counter() - began)]
    return Answer({"satisfiable": found}, informed(*lines))


def _nothing(session: Session, error: FluxionError, jobid: int, began: float) -> Answer:
    never = isinstance(error, Unsatisfiable)
    lines = ["No matching resources found", *["Unsatisfiable request"] * never, f"JOBID={jobid}"]
    lines += _elapse(session, time.perf_counter() - began)
    values = {"matched": False, "unsatisfiable": never, "jobid": jobid, "reason": str(error)}
    return Answer(values, informed(RULE, *lines, RULE))


def _placed(session: Session, jobid: int, mode: str, got: Any) -> Answer:
    lines = [f"JOBID={jobid}", f"RESOURCES={mode}", f"SCHEDULED AT={got.at or 'Now'}", *_elapse(session, got.overhead)]
    values = {"matched": True, "jobid": jobid, "mode": mode, "at": got.at, "overhead": got.overhead, "R": got.R}
    return Answer(values, written(got.R) + informed(RULE, *lines, RULE))


# ---- resource sets -------------------------------------------------------------------------------------------------


def _resources(name: str, reader: str) -> dict[str, Any]:
    """The R of a file for a reader: ranks for rv1exec, otherwise a graph."""
    text = read(name)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed(f"{name}: expected JSON") from None
    if not isinstance(document, dict):
        raise Malformed(f"{name}: expected a resource set")
    if reader == "rv1exec":
        return {key: value for key, value in document.items() if key != "scheduling"}
    graph = document if "graph" in document else document.get("scheduling")
    if not isinstance(graph, dict):
        raise Malformed(f"{name}: has no graph; use rv1exec instead of {reader}")
    return graph


def _reader(word: str, known: tuple[str, ...]) -> str:
    if word not in known:
        raise Malformed(f"unsupported reader {word[:40]!r}; use {' or '.join(known)}")
    return word


def update(session: Session, words: list[str]) -> Answer:
    """Allocates or reserves what an R in a file names: allocate|reserve READER FILE JOBID START DURATION."""
    if words[0] not in ("allocate", "reserve"):
        raise Malformed(f"unknown subcmd {words[0][:40]!r}; use allocate or reserve")
    reader, name = _reader(words[1], ("jgf", "jgf_shorthand", "rv1exec")), words[2]
    jobid, start, duration = (number(*pair) for pair in zip(words[3:], ("jobid", "starttime", "duration"), strict=True))
    if duration == 0:
        raise Malformed("duration: must be at least 1 second")
    resources = _timed(_resources(name, reader), reader, start, start + duration)
    matcher = session.matcher
    with named(name):
        got = matcher.update_allocate(jobid, resources)
    matcher.next_jobid = max(matcher.next_jobid, min(jobid + 1, 2**64 - 1))
    session.jobs[jobid] = Origin(name, got.overhead, reserved=got.at > 0)
    return _placed(session, jobid, "RESERVED" if got.at else "ALLOCATED", got)


def _timed(document: dict[str, Any], reader: str, start: int, end: int) -> dict[str, Any]:
    """A resource set in an RFC 20 envelope with start and expiration."""
    times = {"starttime": start, "expiration": end}
    if reader == "rv1exec":
        execution = document.get("execution")
        return {**document, "execution": {**(execution if isinstance(execution, dict) else {}), **times}}
    if reader == "jgf_shorthand":
        document = {"writer": "fluxion:jgf_shorthand", **document}
    return {"version": 1, "execution": {"R_lite": [], **times}, "scheduling": document}


def cancel(session: Session, words: list[str]) -> Answer:
    """Frees a job."""
    jobid, text = number(words[0], "jobid"), _visits(words[1:])
    session.matcher.cancel(jobid)
    return Answer({"jobid": jobid}, text)


def partial_cancel(session: Session, words: list[str]) -> Answer:
    """Frees what an R in a file names: jobid (jgf|rv1exec) FILE."""
    text, reader, jobid = _visits(words[3:]), _reader(words[1], ("jgf", "rv1exec")), number(words[0], "jobid")
    origin = session.jobs.get(jobid)
    if origin is not None and origin.reserved and session.matcher.info(jobid).mode == "ALLOCATED":
        raise Malformed(f"jobid {jobid}: only allocations, not reservations, can be cancelled in part")
    resources = _resources(words[2], reader)
    with named(words[2]):
        everything = session.matcher.partial_cancel(jobid, resources)
    return Answer({"jobid": jobid, "full_removal": everything}, text)


def _visits(words: list[str]) -> str:
    """A remark, where resource-query would print how many vertices the search for a job visited."""
    if words and words[0] != "stats":
        raise Malformed(f"{words[0][:40]!r}: expected stats or no argument")
    return informed("visits are not counted; -e prints times") if words else ""


# ---- what there is -------------------------------------------------------------------------------------------------


def _job(session: Session, jobid: int) -> tuple[dict[str, Any], str]:
    given, origin = session.matcher.info(jobid), session.jobs.get(jobid, Origin("", 0.0))
    mode = "RESERVED" if origin.reserved and given.mode == "ALLOCATED" else str(given.mode)
    values = {"jobid": jobid, "mode": mode, "at": given.at, "jobspec": origin.file, "overhead": origin.overhead}
    return values, f"{jobid}, {mode}, {given.at}, {origin.file}, {origin.overhead:g}"


def info(session: Session, words: list[str]) -> Answer:
    """Mode, start and origin of one job."""
    values, line = _job(session, number(words[0], "jobid"))
    return Answer(values, informed(line), aside=True)


def list_jobs(session: Session, words: list[str]) -> Answer:  # noqa: ARG001
    """Mode, start and origin of every job."""
    given = [_job(session, jobid) for jobid in sorted(session.jobs)]
    return Answer({"jobs": [values for values, _ in given]}, informed(*(line for _, line in given)), aside=True)


def stat(session: Session, words: list[str]) -> Answer:  # noqa: ARG001
    """The number of matches, their times, and the size of the graph."""
    times = [origin.overhead for origin in session.jobs.values()] or [0.0]
    given = session.matcher.stat()
    few = {"matched": len(session.jobs), "min": min(times), "max": max(times), "avg": sum(times) / len(times)}
    lines = [f"Num. of Jobs Matched: {few['matched']}"]
    lines += [f"{name}. Match Time: {few[name.lower()]:g}" for name in ("Min", "Max", "Avg")]
    lines += [f"Vertices: {given['vertices']}", f"Nodes Down: {given['nodes_down']}"]
    return Answer({**few, **given}, informed(*lines), aside=True)


def why(session: Session, words: list[str]) -> Answer:
    """Says what a jobspec lacks."""
    jobspec = read(words[0])
    with named(words[0]):
        said = session.matcher.why(jobspec)
    return Answer({"why": said}, informed(said), aside=True)
