"""Records the real library's answers to `jobspec_cases` in `jobspecs.jsonl`.

    FLUXION_REAPI_LIB=…/libreapi_cli.so python -m tests.conformance.fluxion.record_jobspecs

One line per case: the part, its value, and the answers of allocate and of allocate_orelse_reserve on the same matcher:
an errno, or the time and the vertices.
"""

import ctypes
import json
import os
import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from .jobspec_cases import cases, machine
from .record import Library

HERE = Path(__file__).parent
OPERATIONS = ("allocate", "allocate_orelse_reserve")


def answers(jobspec: Any) -> list[Any]:
    library = Library(os.environ["FLUXION_REAPI_LIB"])
    given = {"graph": machine(), "options": {"matcher_policy": "low", "load_format": "jgf"}}
    ops = [{"op": op, "jobid": i, "jobspec": jobspec} for i, op in enumerate(OPERATIONS, 1)]
    return [summary(op["expect"]) for op in library.record({"ops": ops, **given})["ops"]]


def summary(expect: dict[str, Any]) -> Any:
    if not expect["ok"]:
        return expect["errno"]
    fields = [node["metadata"] for node in json.loads(expect["R"])["graph"]["nodes"]]
    return [expect["at"], sorted(f["paths"]["containment"] for f in fields if f.get("exclusive"))]


def main() -> None:
    if not os.environ.get("FLUXION_REAPI_LIB"):
        sys.exit("FLUXION_REAPI_LIB: set it to the path of libreapi_cli.so")
    ctypes.CDLL(os.environ["FLUXION_REAPI_LIB"])  # a wrong path fails here
    known = list(cases())
    with get_context("spawn").Pool(1, maxtasksperchild=1) as alone:  # a refused jobspec leaves traces in the process
        found = alone.map(answers, [jobspec for _, _, jobspec in known], chunksize=1)
    lines = [json.dumps([part, value, *answer]) for (part, value, _), answer in zip(known, found, strict=True)]
    (HERE / "jobspecs.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
