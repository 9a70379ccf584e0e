# ruff: noqa: ARG001 - every command takes the session and its words
"""The commands of the prompt: each takes its words and answers lines for people and values for `--json`."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fluxion_cy.errors import Busy, FluxionError, Unsatisfiable
from fluxion_cy.matcher import Matcher

RULE = "============================="


@dataclass(slots=True)
class Answer:
    """`values` for JSON, `lines` for people, `text` before them as it stands (R, a graph, a file)."""

    values: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    text: str = ""


@dataclass(slots=True)
class Session:
    """A matcher, and what the prompt knows of its jobs: the file that each came from, and how long its match took."""

    matcher: Matcher
    elapse: bool = False
    jobs: dict[int, tuple[str, float]] = field(default_factory=dict)


Handler = Callable[[Session, list[str]], Answer]


@dataclass(frozen=True, slots=True)
class Command:
    """How many words may follow (None: any number), and what it says of itself."""

    handler: Handler
    short: str
    usage: str
    least: int
    most: int | None


class Malformed(FluxionError):  # noqa: N818 - it names a state like its neighbours
    """A line that is no command."""


def read(name: str) -> str:
    """A file's text; Malformed names the file."""
    try:
        return Path(name).read_text()
    except (OSError, ValueError) as error:
        raise Malformed(f"can't open {name}: {getattr(error, 'strerror', None) or 'is not text'}") from None


def number(word: str, what: str) -> int:
    """A whole number; Malformed names what it was to be."""
    if not (word.isascii() and word.isdigit() and len(word) < 21):
        raise Malformed(f"{what}: {word[:40]!r} is not a number")
    return int(word)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value) + "\n"


def match(session: Session, words: list[str]) -> Answer:
    """Holds, reserves or only asks, as its first word says."""
    operation, name = words
    jobspec, matcher = read(name), session.matcher
    if operation in ("satisfiability", "satisfy"):
        found = matcher.satisfy(jobspec)
        said = "Satisfiable" if found else "Unsatisfiable"
        return Answer({"satisfiable": found}, [RULE, f"{said} request", RULE])
    if operation not in _OPERATIONS:
        raise Malformed(f"unknown subcmd {operation[:40]}: say one of {', '.join(_OPERATIONS)}, satisfiability")
    before = matcher.next_jobid
    try:
        got = getattr(matcher, operation)(jobspec)
    except (Busy, Unsatisfiable) as error:
        never = isinstance(error, Unsatisfiable)
        lines = [RULE, "No matching resources found", *["Unsatisfiable request"] * never, f"JOBID={before}", RULE]
        values = {"matched": False, "unsatisfiable": never, "jobid": before, "reason": str(error)}
        return Answer(values, lines)
    held = operation.startswith("allocate")
    jobid = got.jobid if held else before
    mode = "MATCHED" if not held else "RESERVED" if got.reserved else "ALLOCATED"
    if held:
        session.jobs[jobid] = (name, got.overhead)
    lines = [RULE, f"JOBID={jobid}", f"RESOURCES={mode}", f"SCHEDULED AT={got.at or 'Now'}"]
    lines += [f"ELAPSE={got.overhead:.6f}"] * session.elapse + [RULE]
    values = {"matched": True, "jobid": jobid, "mode": mode, "at": got.at, "overhead": got.overhead, "R": got.R}
    return Answer(values, lines, _written(got.R))


_OPERATIONS = (
    "allocate",
    "allocate_with_satisfiability",
    "allocate_orelse_reserve",
    "without_allocating",
    "without_allocating_future",
)


def cancel(session: Session, words: list[str]) -> Answer:
    """Frees a job."""
    jobid = number(words[0], "jobid")
    session.matcher.cancel(jobid)
    return Answer({"jobid": jobid})


def partial_cancel(session: Session, words: list[str]) -> Answer:
    """Frees what a file of R names: jobid (jgf|rv1exec) FILE."""
    if words[1] not in ("jgf", "rv1exec"):
        raise Malformed(f"unsupported reader {words[1][:40]}: say jgf or rv1exec")
    jobid = number(words[0], "jobid")
    return Answer({"jobid": jobid, "full_removal": session.matcher.partial_cancel(jobid, read(words[2]))})


def find(session: Session, words: list[str]) -> Answer:
    """Finds vertices by an expression."""
    expression = " ".join(words)
    found = session.matcher.find(expression)
    lines = [RULE, f'EXPRESSION="{expression}"', RULE]
    return Answer({"expression": expression, "graph": found}, lines, _written(found) if found else "")


def _job(session: Session, jobid: int) -> tuple[dict[str, Any], str]:
    told = session.matcher.info(jobid)
    name, overhead = session.jobs.get(jobid, ("", 0.0))
    values = {"jobid": jobid, "mode": str(told.mode), "at": told.at, "jobspec": name, "overhead": overhead}
    return values, f"{jobid}, {told.mode}, {told.at}, {name}, {overhead:g}"


def info(session: Session, words: list[str]) -> Answer:
    """Mode, start and origin of one job."""
    values, line = _job(session, number(words[0], "jobid"))
    return Answer(values, [line])


def list_jobs(session: Session, words: list[str]) -> Answer:
    """The same of every job."""
    told = [_job(session, jobid) for jobid in session.jobs]
    return Answer({"jobs": [values for values, _ in told]}, [line for _, line in told])


def stat(session: Session, words: list[str]) -> Answer:
    """Matches and the time they took, and the graph in numbers."""
    times = [overhead for _, overhead in session.jobs.values()] or [0.0]
    told = session.matcher.stat()
    few = {"matched": len(session.jobs), "min": min(times), "max": max(times), "avg": sum(times) / len(times)}
    lines = [f"Num. of Jobs Matched: {few['matched']}"]
    lines += [f"{name}. Match Time: {few[name.lower()]:g}" for name in ("Min", "Max", "Avg")]
    return Answer({**few, **told}, [*lines, f"Vertices: {told['vertices']}", f"Nodes Down: {told['nodes_down']}"])


def set_status(session: Session, words: list[str]) -> Answer:
    """Marks a vertex up or down."""
    if words[1] not in ("up", "down"):
        raise Malformed(f"unrecognized status {words[1][:40]}: say up or down")
    session.matcher.set_status(words[0], words[1] == "up")
    return Answer({"path": words[0], "status": words[1]})


def get_status(session: Session, words: list[str]) -> Answer:
    """Whether a vertex is up or down."""
    status = "up" if session.matcher.get_status(words[0]) else "down"
    return Answer({"path": words[0], "status": status}, text=f"{words[0]} is {status}\n")


def _properties(session: Session, path: str) -> dict[str, str]:
    session.matcher.get_status(path)  # says so if there is no such vertex
    nodes = session.matcher.graph()["graph"]["nodes"]
    at: Iterator[dict[str, Any]] = (
        node["metadata"] for node in nodes if node["metadata"]["paths"].get("containment") == path
    )
    found: dict[str, Any] = next(at, {})
    return dict(found.get("properties") or {})


def set_property(session: Session, words: list[str]) -> Answer:
    """Adds PROPERTY=VALUE to a vertex."""
    key, _, value = words[1].partition("=")
    if not key or not value:
        raise Malformed("set-property: use set-property PATH PROPERTY=VALUE")
    session.matcher.set_properties(words[0], {**_properties(session, words[0]), key: value})
    return Answer({"path": words[0], "property": key, "value": value})


def get_property(session: Session, words: list[str]) -> Answer:
    """All properties of a vertex."""
    found = _properties(session, words[0])
    text = "".join(f"{key}={value}\n" for key, value in sorted(found.items()))
    return Answer({"path": words[0], "properties": found}, text=text or f"No properties were found for {words[0]}.\n")


def attach(session: Session, words: list[str]) -> Answer:
    """Adds what a JGF file has beyond the graph."""
    session.matcher.add_subgraph(read(words[0]))
    return Answer({"file": words[0]})


def remove(session: Session, words: list[str]) -> Answer:
    """Removes a vertex and all below it."""
    session.matcher.remove_subgraph(words[0])
    return Answer({"path": words[0]})


def why(session: Session, words: list[str]) -> Answer:
    """Says why a jobspec finds no place."""
    said = session.matcher.why(read(words[0]))
    return Answer({"why": said}, [said])


def cat(session: Session, words: list[str]) -> Answer:
    """Prints a file."""
    text = read(words[0])
    return Answer({"text": text}, [f"Jobspec in {words[0]}"], text)


def help_(session: Session, words: list[str]) -> Answer:
    """Lists the commands."""
    chosen = {name: told for name, told in COMMANDS.items() if not words or words[0] in (name, told.short)}
    if not chosen:
        raise Malformed(f"unknown command: {words[0][:40]}")
    lines = [f"{name} ({told.short}) -- {name} {told.usage}".rstrip() for name, told in chosen.items()]
    return Answer({"commands": {name: told.usage for name, told in chosen.items()}}, lines)


COMMANDS: dict[str, Command] = {
    "match": Command(match, "m", "OPERATION JOBSPEC", 2, 2),
    "attach": Command(attach, "j", "JGF_FILE", 1, 1),
    "remove": Command(remove, "r", "PATH", 1, 1),
    "find": Command(find, "f", "EXPRESSION", 1, None),
    "cancel": Command(cancel, "c", "JOBID", 1, 1),
    "partial-cancel": Command(partial_cancel, "pc", "JOBID jgf|rv1exec R_FILE", 3, 3),
    "set-property": Command(set_property, "p", "PATH PROPERTY=VALUE", 2, 2),
    "get-property": Command(get_property, "g", "PATH", 1, 1),
    "set-status": Command(set_status, "t", "PATH up|down", 2, 2),
    "get-status": Command(get_status, "e", "PATH", 1, 1),
    "list": Command(list_jobs, "l", "", 0, 0),
    "info": Command(info, "i", "JOBID", 1, 1),
    "stat": Command(stat, "s", "", 0, 0),
    "why": Command(why, "w", "JOBSPEC", 1, 1),
    "cat": Command(cat, "a", "JOBSPEC", 1, 1),
    "help": Command(help_, "h", "[COMMAND]", 0, 1),
}


def run(session: Session, words: list[str]) -> Answer:
    """Carries out one command; FluxionError says what is wrong with it."""
    told = next((told for name, told in COMMANDS.items() if words[0] in (name, told.short)), None)
    if told is None:
        raise Malformed(f"unknown command {words[0][:40]!r}: try help")
    rest = words[1:]
    if len(rest) < told.least or (told.most is not None and len(rest) > told.most):
        raise Malformed(f"malformed command: use {words[0]} {told.usage}".rstrip())
    return told.handler(session, rest)


__all__ = ["COMMANDS", "Answer", "Malformed", "Session", "run"]
