"""The commands of the prompt by name, and their dispatch."""

from difflib import get_close_matches

from fluxion_cy.query import graph_commands as graph
from fluxion_cy.query import job_commands as jobs
from fluxion_cy.query.answers import Answer, Command, Malformed, Session, informed, read


def cat(session: Session, words: list[str]) -> Answer:  # noqa: ARG001
    """Prints a file."""
    text = read(words[0])
    ended = text if text.endswith("\n") or not text else f"{text}\n"
    return Answer({"text": text}, ended + informed(f"Jobspec in {words[0]}"), aside=True)


def help_(session: Session, words: list[str]) -> Answer:  # noqa: ARG001
    """Lists the commands."""
    chosen = {name: given for name, given in COMMANDS.items() if not words or words[0] in (name, given.short)}
    if not chosen:
        raise _unknown(words[0])
    lines = [
        f"{name} ({given.short}) -- {given.about}: {name} {given.usage}".rstrip() for name, given in chosen.items()
    ]
    usage = {name: given.usage for name, given in chosen.items()}
    return Answer({"commands": usage}, informed(*lines), aside=True)


def quit_(session: Session, words: list[str]) -> Answer:  # noqa: ARG001
    """Does nothing: the shell has already ended the session."""
    return Answer()


_OPERATION = "|".join((*jobs.OPERATIONS, "satisfiability"))
_READERS = "jgf|jgf_shorthand|rv1exec"
_CRITERIA = (
    "status=up|down, sched-now=allocated|free, sched-future=reserved|free, jobid-alloc|span|tag|reserved=JOBID, "
    "names=HOSTS, property=NAME, agfilter=true|false; with and, or, not and parentheses"
)

COMMANDS: dict[str, Command] = {
    "match": Command(jobs.match, "m", f"{_OPERATION} JOBSPEC", "Match a jobspec", 2, 2),
    "multi-match": Command(
        jobs.multi_match,
        "M",
        f"{_OPERATION} JOBSPEC...",
        "Match jobspecs until one has no match",
        2,
        None,
    ),
    "update": Command(
        jobs.update,
        "u",
        f"allocate|reserve {_READERS} R_FILE JOBID START DURATION",
        "Allocate or reserve the resources in an R",
        6,
        6,
    ),
    "attach": Command(graph.attach, "j", "JGF_FILE", "Add the new vertices of a JGF", 1, 1),
    "remove": Command(graph.remove, "r", "PATH [true] | IDSET false", "Remove vertices and their subtrees", 1, 2),
    "find": Command(graph.find, "f", _CRITERIA, "Find vertices", 1, None),
    "cancel": Command(jobs.cancel, "c", "JOBID [stats]", "Free an allocation or reservation", 1, 2),
    "partial-cancel": Command(
        jobs.partial_cancel, "pc", "JOBID jgf|rv1exec R_FILE [stats]", "Free the resources in an R", 3, 4
    ),
    "set-property": Command(graph.set_property, "p", "PATH PROPERTY=VALUE", "Add a property", 2, 2),
    "get-property": Command(graph.get_property, "g", "PATH", "Print all properties of a vertex", 1, 1),
    "set-status": Command(graph.set_status, "t", "PATH up|down", "Mark a vertex", 2, 2),
    "get-status": Command(graph.get_status, "e", "PATH", "Print whether a vertex is up", 1, 1),
    "list": Command(jobs.list_jobs, "l", "", "List all jobs", 0, 0),
    "info": Command(jobs.info, "i", "JOBID", "Print a job's mode, start time and file", 1, 1),
    "stat": Command(jobs.stat, "s", "", "Print the number of matches and their times", 0, 0),
    "why": Command(jobs.why, "w", "JOBSPEC", "Report why a jobspec does not match now", 1, 1),
    "cat": Command(cat, "a", "FILE", "Print a file", 1, 1),
    "help": Command(help_, "h", "[COMMAND]", "List commands", 0, 1),
    "quit": Command(quit_, "q", "", "End the session", 0, 0),
}

#: Commands of programs around resource-query, and their counterparts here.
_ELSEWHERE = {
    "exit": "use quit",
    "satisfiability": "use match satisfiability JOBSPEC",
    "allocate": "use match allocate JOBSPEC",
    "status": "use find status=down, or get-status PATH",
    "namespace-info": "leave it out: ranks are always the graph's ranks",
    "ns-info": "leave it out: ranks are always the graph's ranks",
    "params": "pass options on the command line; see --help",
    "stats": "use stat",
    "stats-cancel": "use stat",
    "stats-clear": "restart the program",
}


def _unknown(word: str) -> Malformed:
    near = get_close_matches(word, COMMANDS, 1)
    advice = _ELSEWHERE.get(word) or (f"did you mean {near[0]}?" if near else "try help")
    return Malformed(f"unknown command {word[:40]!r}; {advice}")


def run(session: Session, words: list[str]) -> Answer:
    """Runs one command. Raises FluxionError."""
    name, given = next(
        ((name, given) for name, given in COMMANDS.items() if words[0] in (name, given.short)), ("", None)
    )
    if given is None:
        raise _unknown(words[0])
    rest = words[1:]
    if len(rest) < given.least or (given.most is not None and len(rest) > given.most):
        raise Malformed(f"malformed command; use {name} {given.usage}".rstrip())
    return given.handler(session, rest)


__all__ = ["COMMANDS", "run"]
