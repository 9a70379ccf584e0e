"""Records the real library's answers to `format_cases` in `formats.jsonl.xz`.

    FLUXION_REAPI_LIB=…/libreapi_cli.so python -m tests.conformance.fluxion.record

The file holds one session a line: our operations and the library's answers.
"""

import ctypes
import errno
import json
import lzma
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from .format_cases import cases

HERE = Path(__file__).parent
OPERATIONS = {
    "allocate": 1,
    "allocate_with_satisfiability": 2,
    "allocate_orelse_reserve": 3,
    "without_allocating": 5,
    "without_allocating_future": 6,
}
POINTER, TEXT, INT, U64 = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint64
SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "new": (POINTER, ()),
    "clone": (POINTER, (POINTER,)),
    "destroy": (None, (POINTER,)),
    "initialize": (INT, (POINTER, TEXT, TEXT)),
    "match_with_jobid": (INT, (POINTER, INT, TEXT, U64, POINTER, POINTER, POINTER, POINTER)),
    "match_satisfy": (INT, (POINTER, TEXT, POINTER, POINTER)),
    "update_allocate": (INT, (POINTER, U64, TEXT, POINTER, POINTER, POINTER)),
    "cancel": (INT, (POINTER, U64, ctypes.c_bool)),
    "partial_cancel": (INT, (POINTER, U64, TEXT, ctypes.c_bool, POINTER)),
    "info": (INT, (POINTER, U64, POINTER, POINTER, POINTER, POINTER)),
    "find": (INT, (POINTER, TEXT, TEXT, POINTER)),
    "set_status": (INT, (POINTER, TEXT, INT)),
    "get_status": (INT, (POINTER, TEXT, POINTER)),
    "set_rank_status": (INT, (POINTER, TEXT, INT)),
    "get_rank_status": (INT, (POINTER, TEXT, POINTER)),
}


def as_text(value: Any) -> bytes:
    return (value if isinstance(value, str) else json.dumps(value)).encode()


class Library:
    """The C API, and the contexts of one session by name."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path, use_errno=True)
        for name, (result, arguments) in SIGNATURES.items():
            function = self._function(name)
            function.restype, function.argtypes = result, arguments
        self._free = ctypes.CDLL(None).free
        self._free.argtypes = [POINTER]
        self._contexts: dict[str, int] = {}
        self._given: dict[int, str] = {}

    def _function(self, name: str) -> Any:
        return getattr(self._library, f"reapi_cli_{name}")

    def call(self, name: str, *arguments: Any) -> dict[str, Any]:
        ctypes.set_errno(0)
        if self._function(name)(*arguments) == 0:
            return {"ok": True}
        number = ctypes.get_errno()
        return {"ok": False, "errno": errno.errorcode.get(number, str(number))}

    def take(self, pointer: ctypes.c_void_p) -> str | None:
        if not pointer.value:
            return None
        text = ctypes.string_at(pointer.value).decode()
        self._free(pointer.value)
        return text

    def record(self, case: dict[str, Any]) -> dict[str, Any]:
        self._contexts = {"main": self._function("new")()}
        init = self.call("initialize", self._contexts["main"], as_text(case["graph"]), as_text(case["options"]))
        ops = [self.perform(dict(op)) for op in case["ops"]] if init["ok"] else []
        return {**case, "init": init, "ops": ops}

    def perform(self, op: dict[str, Any]) -> dict[str, Any]:
        if "R_of" in op:
            op["R"] = self._given.get(op.pop("R_of"), "")
        do: Callable[[Any, dict[str, Any]], dict[str, Any]] = getattr(self, f"do_{op['op']}", self.do_match)
        op["expect"] = do(self._contexts[op.get("on", "main")], op)
        return op

    def do_match(self, context: Any, op: dict[str, Any]) -> dict[str, Any]:
        reserved, found = ctypes.c_bool(), ctypes.c_void_p()
        at, overhead = ctypes.c_int64(), ctypes.c_double()
        outs = [ctypes.byref(value) for value in (reserved, found, at, overhead)]
        number = OPERATIONS[op["op"]]
        answer = self.call("match_with_jobid", context, number, as_text(op["jobspec"]), op["jobid"], *outs)
        text = self.take(found)
        if answer["ok"]:
            answer |= {"R": text, "at": at.value, "reserved": reserved.value}
            self._given.setdefault(op["jobid"], text or "")
        return answer

    def do_satisfy(self, context: Any, op: dict[str, Any]) -> dict[str, Any]:
        sat, overhead = ctypes.c_bool(), ctypes.c_double()
        return self.call("match_satisfy", context, as_text(op["jobspec"]), ctypes.byref(sat), ctypes.byref(overhead))

    def do_update_allocate(self, context: Any, op: dict[str, Any]) -> dict[str, Any]:
        at, overhead, out = ctypes.c_int64(), ctypes.c_double(), ctypes.c_void_p()
        outs = [ctypes.byref(value) for value in (at, overhead, out)]
        answer = self.call("update_allocate", context, op["jobid"], as_text(op["R"]), *outs)
        text = self.take(out)
        return {**answer, "R": text, "at": at.value} if answer["ok"] else answer

    def do_cancel(self, context: Any, op: dict[str, Any]) -> dict[str, Any]:
        return self.call("cancel", context, op["jobid"], op.get("noent_ok", False))

    def do_partial_cancel(self, context: Any, op: dict[str, Any]) -> dict[str, Any]:
        full = ctypes.c_bool()
        missing_ok = op.get("noent_ok", False)
        answer = self.call("partial_cancel", context, op["jobid"], as_text(op["R"]), missing_ok, ctypes.byref(full))
        return {**answer, "full_removal": full.value} if answer["ok"] else answer

    def do_info(self, context: Any, op: dict[str, Any]) -> dict[str, Any]:
        mode, reserved = ctypes.c_void_p(), ctypes.c_bool()
        at, overhead = ctypes.c_int64(), ctypes.c_double()
        outs = [ctypes.byref(value) for value in (mode, reserved, at, overhead)]
        answer = self.call("info", context, op["jobid"], *outs)
        word = self.take(mode)
        return {**answer, "mode": word, "reserved": reserved.value, "at": at.value} if answer["ok"] else answer

    def do_find(self, context: Any, op: dict[str, Any]) -> dict[str, Any]:
        found = ctypes.c_void_p()
        answer = self.call("find", context, as_text(op["criteria"]), b"jgf", ctypes.byref(found))
        text = self.take(found)
        return {**answer, "R": text} if answer["ok"] else answer

    def do_clone(self, context: Any, op: dict[str, Any]) -> dict[str, Any]:
        self._contexts["clone"] = self._function("clone")(context)
        return {"ok": bool(self._contexts["clone"])}

    def do_set_status(self, context: Any, op: dict[str, Any]) -> dict[str, Any]:
        return self.call("set_status", context, as_text(op["path"]), int(op["status"] == "down"))

    def do_get_status(self, context: Any, op: dict[str, Any]) -> dict[str, Any]:
        status = ctypes.c_int()
        answer = self.call("get_status", context, as_text(op["path"]), ctypes.byref(status))
        return {**answer, "up": status.value == 0} if answer["ok"] else answer

    def do_set_rank_status(self, context: Any, op: dict[str, Any]) -> dict[str, Any]:
        return self.call("set_rank_status", context, as_text(op["ranks"]), int(op["status"] == "down"))

    def do_get_rank_status(self, context: Any, op: dict[str, Any]) -> dict[str, Any]:
        status = ctypes.c_int()
        answer = self.call("get_rank_status", context, as_text(str(op["rank"])), ctypes.byref(status))
        return {**answer, "up": status.value == 0} if answer["ok"] else answer


def recorded(case: dict[str, Any]) -> dict[str, Any]:
    return Library(os.environ["FLUXION_REAPI_LIB"]).record(case)


def main() -> None:
    if not os.environ.get("FLUXION_REAPI_LIB"):
        sys.exit("FLUXION_REAPI_LIB: set it to the path of libreapi_cli.so")
    # one process each: the library keeps its types, and some marks, for the whole process
    with (
        ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as alone,
        lzma.open(HERE / "formats.jsonl.xz", "wt", preset=9) as out,
    ):
        for case in alone.map(recorded, cases()):
            out.write(json.dumps(case) + "\n")


if __name__ == "__main__":
    main()
