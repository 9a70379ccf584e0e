"""Finds and opens Fluxion's library `libreapi_cli`, and declares the functions of its C API.

The library keeps its error text in one static variable of the process, and its readers share tables. So `LOCK` guards
every call with the reading of its error. Calls release the GIL.
"""

import ctypes
import os
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable
from ctypes import CDLL, POINTER, c_bool, c_char_p, c_double, c_int, c_int64, c_uint64, c_void_p
from ctypes.util import find_library
from functools import partial
from typing import Any

from fluxion_cy.errors import NotSupported, shown

#: The path of the library, unless an argument gives it.
VARIABLE = "FLUXION_REAPI_LIB"

LOCK = threading.Lock()

_FILE = "libreapi_cli.so"
_out_bool, _out_int64, _out_double, _out_text = POINTER(c_bool), POINTER(c_int64), POINTER(c_double), POINTER(c_void_p)

#: Result and arguments of each function (resource/reapi/bindings/c/reapi_cli.h of flux-sched 0.54); the first argument
#: is the context. Strings that the caller must free are void pointers: ctypes would copy a char pointer.
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "new": (c_void_p, []),
    "clone": (c_void_p, [c_void_p]),
    "destroy": (None, [c_void_p]),
    "initialize": (c_int, [c_void_p, c_char_p, c_char_p]),
    "match_with_jobid": (
        c_int,
        [c_void_p, c_int, c_char_p, c_uint64, _out_bool, _out_text, _out_int64, _out_double],
    ),
    "match_satisfy": (c_int, [c_void_p, c_char_p, _out_bool, _out_double]),
    "update_allocate": (c_int, [c_void_p, c_uint64, c_char_p, _out_int64, _out_double, _out_text]),
    "cancel": (c_int, [c_void_p, c_uint64, c_bool]),
    "partial_cancel": (c_int, [c_void_p, c_uint64, c_char_p, c_bool, _out_bool]),
    "find": (c_int, [c_void_p, c_char_p, c_char_p, _out_text]),
    "add_subgraph": (c_int, [c_void_p, c_char_p]),
    "remove_subgraph": (c_int, [c_void_p, c_char_p]),
    "set_status": (c_int, [c_void_p, c_char_p, c_int]),
    "get_status": (c_int, [c_void_p, c_char_p, POINTER(c_int)]),
    "set_rank_status": (c_int, [c_void_p, c_char_p, c_int]),
    "get_rank_status": (c_int, [c_void_p, c_char_p, POINTER(c_int)]),
    "get_err_msg": (c_void_p, [c_void_p]),
    "clear_err_msg": (None, [c_void_p]),
}


class Library:
    """The opened library; `functions` by name without the prefix `reapi_cli_`."""

    def __init__(self, name: str, handle: CDLL) -> None:
        self.name = name
        self.functions: dict[str, Callable[..., Any]] = {}
        for function, (result, arguments) in SIGNATURES.items():
            try:
                found = getattr(handle, f"reapi_cli_{function}")
            except AttributeError:
                raise NotSupported(
                    f"library {name}: the function reapi_cli_{function} is missing; flux-sched 0.54 or later has it"
                ) from None
            found.restype, found.argtypes = result, arguments
            self.functions[function] = found
        free = CDLL(None).free
        free.restype, free.argtypes = None, [c_void_p]
        self.free: Callable[[int], None] = free
        #: Types of vertices that are certainly in the library's table.
        self.types: set[str] = set()
        self._doomed: deque[int] = deque()

    def call(self, function: str, *arguments: Any) -> tuple[Any, int]:
        """The result and errno of one function. The caller holds LOCK."""
        ctypes.set_errno(0)
        result = self.functions[function](*arguments)
        return result, ctypes.get_errno()

    def take(self, pointer: int | None) -> str | None:
        """A string that the library allocated, which this frees; None for a null pointer."""
        if not pointer:
            return None
        try:
            return ctypes.string_at(pointer).decode("utf-8", "replace")
        finally:
            self.free(pointer)

    def doom(self, context: int) -> None:
        """Destroys a context, at once or after the call of another thread.

        It never waits: the garbage collector may call it anywhere.
        """
        self._doomed.append(context)
        if LOCK.acquire(blocking=False):
            try:
                self.bury()
            finally:
                LOCK.release()

    def bury(self) -> None:
        """Destroys the contexts that `doom` left. The caller holds LOCK."""
        while self._doomed:
            self.functions["destroy"](self._doomed.popleft())


_opened: dict[str, Library] = {}


def open_library(path: Any = None) -> Library:
    """The library at `path`, in FLUXION_REAPI_LIB, or found by the loader. Raises NotSupported if there is none."""
    name = _name(path)
    with LOCK:
        if name not in _opened:
            _opened[name] = Library(name, _open(name))
        return _opened[name]


def _name(path: Any) -> str:
    if path is None:
        return os.environ.get(VARIABLE) or find_library("reapi_cli") or _FILE
    if not isinstance(path, (str, os.PathLike)):
        raise NotSupported(f"library: {shown(path)} is not a valid path")
    name = os.fspath(path)
    if not isinstance(name, str) or not name:
        raise NotSupported(f"library: {shown(path)} is not a valid path")
    return name


def _open(name: str) -> CDLL:
    try:
        _check_file(name)
        return partial(CDLL, use_errno=True)(name)
    except (OSError, ValueError) as error:  # ValueError: a null character
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise NotSupported(
            f"library {shown(name, 200)}: cannot be opened ({reason[:200]}); install flux-sched, or set library= or "
            f"{VARIABLE} to the path of {_FILE}"
        ) from None


def _check_file(name: str) -> None:
    """Rejects files on which the loader hangs (a pipe) or crashes (a truncated one), or whose error it misnames."""
    if "/" not in name or not os.path.exists(name):
        return
    if not os.path.isfile(name):
        raise ValueError("a folder, not a file" if os.path.isdir(name) else "not a regular file")
    with open(name, "rb") as file, open(sys.executable, "rb") as own:
        header, ours = file.read(64), own.read(64)
    if not header[:4] == ours[:4] == b"\x7fELF":
        return
    if header[4:6] + header[18:20] != ours[4:6] + ours[18:20]:
        raise ValueError("built for a different architecture than this Python")
    if len(header) < 64 or _sections_end(header) > os.path.getsize(name):
        raise ValueError("cut off")


def _sections_end(header: bytes) -> int:
    """Where the last table of a 64-bit ELF file ends, in bytes; 0 for any other file."""
    if header[4] != 2:
        return 0
    start, size, number = struct.unpack_from("Q", header, 40)[0], *struct.unpack_from("HH", header, 58)
    return int(start + size * number)
