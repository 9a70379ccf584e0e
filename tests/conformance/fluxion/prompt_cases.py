"""Sessions of our own at the prompt: files, options, and commands one by one.

`record_prompt.py` records the output of resource-query; `test_prompt.py` compares it.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .format_cases import FORMATS, POLICIES, job, slot, want
from .format_graphs import Op, flat, ranked, scopes, sockets

CORE = want("core", 1)
_TIMES = re.compile(r"(Match Time: |^INFO: \d+, [A-Z]+, \d+, .*, |ELAPSE=|Load Time: )\S+$")


@dataclass(frozen=True)
class Case:
    """One session; both programs run it in a folder with all files."""

    name: str
    options: tuple[str, ...]
    commands: tuple[str, ...]


def _part(paths: dict[str, bool]) -> Op:
    """Vertices of the flat graph by path, each with whether it is exclusive, as an R in JGF."""
    graph = flat()["graph"]
    picked = [n for n in graph["nodes"] if n["metadata"]["paths"]["containment"] in paths]
    names = {n["id"] for n in picked}
    for node in picked:
        if paths[node["metadata"]["paths"]["containment"]]:
            node["metadata"]["exclusive"] = True
    return {"graph": {"nodes": picked, "edges": [e for e in graph["edges"] if {e["source"], e["target"]} <= names]}}


def _ranks(**children: str) -> Op:
    """Rank 1 of the flat graph as R version 1."""
    execution = {
        "R_lite": [{"rank": "1", "children": children}],
        "nodelist": ["node1"],
        "starttime": 0,
        "expiration": 0,
    }
    return {"version": 1, "execution": execution}


def files() -> dict[str, str]:
    """The text of each file by name."""
    above = {"/cluster0": False, "/cluster0/node1": False}
    documents: dict[str, Any] = {
        "flat.json": flat(),
        "sockets.json": sockets(),
        "ranked.json": ranked(),
        "cores": job(slot(2, CORE)),
        "node": job(want("node", 1, slot(1, CORE))),
        "wide": job(slot(1, want("node", 2, want("core", 4)))),
        "many": job(slot(13, CORE)),
        "gpus": job(want("node", 1, slot(1, want("gpu", 1), want("core", 2))), duration=25.5),
        "never": job(want("node", 1, slot(1, want("core", 5)))),
        "big": job(want("node", 1, slot(1, CORE)), constraints={"properties": ["big"]}),
        "malformed": {"version": 1},
        "either": job(want("xor_slot", 1, want("gpu", 9), label="a"), want("xor_slot", 1, CORE, label="b")),
        "part.jgf": _part({**above, "/cluster0/node1/core0": True, "/cluster0/node1/core1": True}),
        "one.jgf": _part({**above, "/cluster0/node1/core1": True}),
        "cores.R": _ranks(core="0-1"),
        "one.R": _ranks(core="1"),
        "none.R": {},
    }
    texts = {name: json.dumps(document) for name, document in documents.items()}
    return {**texts, "recipe.graphml": scopes(), "empty": "", "text": "no\njobspec"}


def lay_out(folder: Path) -> None:
    """Write the files."""
    for name, text in files().items():
        (folder / name).write_text(text)


_FLAT = ("-L", "flat.json", "-f", "jgf")
_ASK = (
    "match allocate node",
    "match allocate_orelse_reserve wide",
    "match without_allocating cores",
    "find sched-now=allocated",
    "find names=node2",
    "match allocate_with_satisfiability never",
)


def cases() -> Iterator[Case]:
    """All sessions."""
    yield Case("matching", _FLAT, _matching())
    yield Case("holding", _FLAT, _holding())
    yield Case("updating", _FLAT, _updating())
    yield Case("the graph", _FLAT, _graph())
    yield Case("wrong", _FLAT, _wrong())
    for form in FORMATS:
        yield Case(f"form {form}", (*_FLAT, "-F", form), _ASK)
    for policy in (*POLICIES, "high", "hinode", "locality", "policy=low node_centric=true"):
        commands = ("match allocate gpus", "multi-match allocate cores big node gpus never cores", "list")
        yield Case(f"policy {policy}", ("-L", "sockets.json", "--load-format=jgf", "--match-policy", policy), commands)
    yield Case("recipe", ("-L", "recipe.graphml", "-p", "ALL:core,ALL:node"), (*_ASK, "find status=up"))
    yield Case("ranks", ("-L", "ranked.json", "-f", "rv1exec", "-S", "CA"), (*_ASK, "get-status /cluster0"))
    yield Case("ranks by force", ("-L", "ranked.json", "-f", "rv1exec_force"), _ASK[:1])
    yield Case("flexible", (*_FLAT, "-T", "flexible"), ("match allocate either", "match allocate cores"))


def _matching() -> tuple[str, ...]:
    return (
        "match allocate node",
        "m allocate cores",
        "match satisfiability wide",
        "match satisfiability never",
        "match allocate_orelse_reserve wide",
        "match allocate wide",
        "match allocate_with_satisfiability wide",
        "match allocate_with_satisfiability never",
        "match allocate_orelse_reserve many",
        "match without_allocating cores",
        "match without_allocating_future wide",
        "multi-match allocate cores cores cores cores cores cores cores",
        "M satisfiability cores never cores",
        "list",
    )


def _holding() -> tuple[str, ...]:
    return (
        "match allocate wide",
        "match allocate_orelse_reserve gpus",
        "match allocate_orelse_reserve wide",
        "info 1",
        "i 2",
        "cancel 1",
        "info 1",
        "match allocate cores",
        "c 2",
        "l",
        "find sched-future=reserved",
        "find jobid-alloc=4",
        "f jobid-tag=3 or jobid-span=4",
        "cancel 3",
        "cancel 4",
        "find sched-now=free and names=node[0-1]",
        "match allocate many",
        "stat",
    )


def _updating() -> tuple[str, ...]:
    return (
        "update allocate jgf part.jgf 7 0 10",
        "match allocate_orelse_reserve many",
        "match allocate_orelse_reserve wide",
        "u reserve jgf one.jgf 20 500 10",
        "update allocate rv1exec cores.R 30 700 10",
        "info 7",
        "info 20",
        "list",
        "partial-cancel 7 jgf one.jgf",
        "find jobid-alloc=7",
        "partial-cancel 7 rv1exec cores.R",
        "info 7",
        "partial-cancel 20 rv1exec one.R",
        "update allocate jgf part.jgf 30 0 10",
        "update allocate jgf part.jgf 31 0 0",
        "update allocate jgf cores.R 31 0 5",
        "update allocate hwloc part.jgf 31 0 5",
        "update allocate jgf nothing 31 0 5",
        "update later jgf part.jgf 31 0 5",
        "cancel 20",
        "match allocate node",
        "list",
    )


def _graph() -> tuple[str, ...]:
    return (
        "get-property /cluster0/node1",
        "set-property /cluster0/node1 big=1",
        "p /cluster0/node1 small=a=b",
        "get-property /cluster0/node1",
        "g /cluster0/qpu0",
        "match allocate big",
        "find property=big",
        "set-status /cluster0/node1 down",
        "get-status /cluster0/node1",
        "e /cluster0/node0",
        "find status=down",
        "match allocate big",
        "t /cluster0/node1 up",
        "match allocate big",
        "remove /cluster0/node2 true",
        "match allocate_with_satisfiability many",
        "find status=up",
        "get-status /cluster0/node2",
    )


def _wrong() -> tuple[str, ...]:
    return (
        "fly away",
        "match",
        "match allocate",
        "match allocate nothing",
        "match allocate node node",
        "match fly node",
        "match allocate malformed",
        "match allocate empty",
        "match allocate text",
        "multi-match allocate",
        "multi-match allocate node nothing node",
        "cancel",
        "cancel 77",
        "info 77",
        "info",
        "partial-cancel 77 jgf one.jgf",
        "partial-cancel 1 grug one.jgf",
        "find",
        "find status=sideways",
        "find (",
        "set-status /cluster0/node0 sideways",
        "set-status /nowhere up",
        "get-status /nowhere",
        "set-property /nowhere a=b",
        "set-property /cluster0 a",
        "get-property /nowhere",
        "attach nothing",
        "attach empty",
        "remove /nowhere true",
        "remove 0 perhaps",
        "update",
        "cat nothing",
        "cat text",
        "match allocate node",
    )


def plain(text: str) -> list[str]:
    """Lines without durations."""
    return [_TIMES.sub(r"\1T", line) for line in text.splitlines()]


def block(command: str, lines: list[str], failed: bool) -> str:
    """One command and its answer in the recorded form."""
    return "".join(f"{line}\n" for line in (f"> {command}", *lines, *["! error"] * failed))
