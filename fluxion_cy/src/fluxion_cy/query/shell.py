"""The loop over lines, and the output."""

import argparse
import errno
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from fluxion_cy.errors import FluxionError, InvalidGraph
from fluxion_cy.matcher import Matcher
from fluxion_cy.query.answers import Answer, Malformed, Session, informed, read
from fluxion_cy.query.commands import run
from fluxion_cy.query.drawing import drawn
from fluxion_cy.query.options import options

PROMPT = "resource-query> "
INTERRUPTED = 130
_LONGEST = 1 << 16
_PIECE = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|\s+|.""", re.DOTALL)
Line = tuple[str, str]
"""A line, and its place in a file, which is empty for interactive input."""


def load(given: argparse.Namespace) -> Matcher:
    """The matcher for the options. Raises Malformed, InvalidGraph and others."""
    text = read(given.load_file)
    form = given.load_format or ("grug" if text.lstrip().startswith("<") else "jgf")
    wishes: dict[str, Any] = {
        "policy": given.match_policy,
        "match_format": given.match_format,
        "prune_filters": ",".join(given.prune_filters or ["ALL:core"]),
        "traverser": given.traverser_policy,
        "compatible": not given.not_compatible,
        "replan": given.replan,
        "engine": given.engine,
        "library": given.library,
    }
    try:
        if given.engine == "reapi" and form != "jgf":  # the library reads JGF; the embedded engine reads all forms
            return Matcher(Matcher(text, load_format=form).graph(), **wishes)
        return Matcher(text, load_format=form, **wishes)
    except InvalidGraph as error:
        raise InvalidGraph(f"{given.load_file}: {error}", error.errno) from None


def _lines(given: argparse.Namespace) -> Iterator[Line]:
    """The lines of the file, of standard input, or of a prompt with a history."""
    if not given.command_file and sys.stdin is None:
        raise Malformed("standard input is closed; pass the commands in a file with -c")
    if given.command_file or not sys.stdin.isatty():
        name = given.command_file or "stdin"
        lines = read(name).split("\n") if given.command_file else _bounded(sys.stdin)
        yield from ((line, f"{name}:{number}: ") for number, line in enumerate(lines, start=1))
        return
    with suppress(ImportError):
        import readline  # noqa: F401 - its import is what gives input() a history
    while True:
        try:
            yield input("" if given.disable_prompt else PROMPT), ""
        except KeyboardInterrupt:
            print()
        except EOFError:
            print()
            return


def _bounded(stream: TextIO) -> Iterator[str]:
    """The lines of a stream. It stops reading a line that is too long."""
    while line := stream.readline(_LONGEST + 1):
        yield line
        while len(line) > _LONGEST and not line.endswith("\n"):
            line = stream.readline(_LONGEST + 1)


def _without_remark(line: str) -> str:
    """The line up to a # that begins a word outside of quotes."""
    fresh = True
    for piece in _PIECE.finditer(line):
        if fresh and piece[0] == "#":
            return line[: piece.start()]
        fresh = piece[0].isspace()
    return line


def _words(line: str) -> list[str]:
    if len(line) > _LONGEST:
        raise Malformed(f"malformed command: the line is longer than {_LONGEST:,} characters")
    try:
        return shlex.split(_without_remark(line))
    except ValueError as error:
        raise Malformed(f"malformed command: {error}") from None


def _printable(text: str) -> str:
    """One printable line."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


class Unwritable(FluxionError):  # noqa: N818 - it names a state like its neighbours
    """The file for answers cannot be written."""


class Shell:
    """Runs lines. It prints answers to `out`, asides to `aside`, errors to standard error, and JSON to `out` always.

    `failed` is set after an error.
    """

    def __init__(self, session: Session, out: TextIO, aside: TextIO, as_json: bool) -> None:
        self.session, self.out, self.aside, self.as_json = session, out, aside, as_json
        self.failed = False

    def line(self, line: str, where: str = "") -> bool:
        """Runs one line. Returns False at the end of the session."""
        line = line.strip()
        try:
            words = _words(line)
            if words and words[0] in ("quit", "q"):
                return False
            answer = run(self.session, words) if words else None
        except FluxionError as error:
            answer = Answer(error=error)
        except (MemoryError, RecursionError) as error:
            answer = Answer(error=Malformed(f"out of memory: {type(error).__name__}", errno.ENOMEM))
        if answer is not None:
            self._print_answer(line, where, answer)
        return True

    def loaded(self, seconds: float) -> None:
        """Prints the load time and the size of the graph."""
        graph = self.session.matcher.graph()["graph"]
        values = {"elapse": seconds, "vertices": len(graph["nodes"]), "edges": len(graph.get("edges", []))}
        names = ("Graph Load Time", "Vertex Count", "Edge Count")
        lines = [f"{name}: {value:g}" for name, value in zip(names, values.values(), strict=True)]
        self._print_answer("", "", Answer(values, informed(*lines), aside=True))

    def _print_answer(self, line: str, where: str, answer: Answer) -> None:
        self.failed = self.failed or answer.error is not None
        if self.as_json:
            self._object(
                {"command": line, "ok": answer.error is None, **answer.values, **_failure(where, answer.error)}
            )
            return
        self._put(self.aside if answer.aside else self.out, answer.text)
        if answer.error is not None:
            print(f"ERROR: {where}{_printable(str(answer.error))}", file=sys.stderr)

    def _object(self, value: dict[str, Any]) -> None:
        self._put(self.out, json.dumps(value) + "\n")

    def _put(self, out: TextIO, text: str) -> None:
        if out is self.aside:
            out.write(text)
            out.flush()
            return
        with _writing(out.name):
            out.write(text)
            out.flush()


def _failure(where: str, error: FluxionError | None) -> dict[str, Any]:
    if error is None:
        return {}
    code = errno.errorcode.get(error.errno, str(error.errno))
    return {"errno": code, "error": where + _printable(str(error))}


@contextmanager
def _writing(name: str) -> Iterator[None]:
    """Raises Unwritable, which names the file and ends the session."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise Unwritable(f"can't write {name}: {getattr(error, 'strerror', None) or error}") from None


@contextmanager
def _opened(name: str) -> Iterator[TextIO]:
    with _writing(name):
        file = open(name, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - its closing is named too
    try:
        yield file
    finally:
        with _writing(name):
            file.close()


def _check_folder(name: str | None) -> None:
    """Raises Unwritable for a missing folder, before the session does any work."""
    if name and not Path(name).parent.is_dir():
        raise Unwritable(f"can't write {name}: {os.strerror(errno.ENOENT)}")


def _session(given: argparse.Namespace) -> int:
    _check_folder(given.test_output)
    drawing = given.graph_output and f"{given.graph_output}.{given.graph_format}"
    _check_folder(drawing)
    with ExitStack() as stack:
        lines = _lines(given)
        if given.command_file:
            lines = iter(list(lines))  # a missing file raises before the graph is loaded
        began = time.perf_counter()
        session = Session(load(given), given.match_format, given.elapse_time)
        seconds = time.perf_counter() - began
        out = stack.enter_context(_opened(given.test_output)) if given.test_output else sys.stdout
        shell = Shell(session, out, sys.stdout, given.json)
        if given.elapse_time:
            shell.loaded(seconds)
        for line, where in lines:
            if not shell.line(line, where):
                break
        if drawing:
            with _opened(drawing) as file, _writing(drawing):
                file.write(drawn(session.matcher.graph(), given.graph_format))
    return 1 if shell.failed else 0


def main(arguments: list[str] | None = None) -> int:
    """Runs the program and returns the exit status. No input leads to a traceback."""
    given = options().parse_args(arguments)
    if sys.stdout is None:
        if sys.stderr is not None:
            print("ERROR: standard output is closed", file=sys.stderr)
        return 2
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace")):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=errors)
    try:
        return _session(given)
    except KeyboardInterrupt:
        print("ERROR: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader is gone; the interpreter would report that at exit
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (FluxionError, OSError, MemoryError) as error:
        print(f"ERROR: {_printable(str(error)) or type(error).__name__}", file=sys.stderr)
        return 2
