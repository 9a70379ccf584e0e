"""Options, the loop over lines, and what is printed."""

import argparse
import errno
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any, TextIO

from fluxion_cy.errors import FluxionError
from fluxion_cy.matcher import Matcher
from fluxion_cy.query.commands import Answer, Malformed, Session, read, run

PROMPT = "resource-query> "


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fluxion_cy",
        description="Match jobspecs against a resource graph, with the commands of resource-query; try help.",
        epilog="Exit status: 0, 1 after a command that failed, 2 for options or a graph that cannot be used. "
        "A match that finds no place is an answer and no failure.",
    )
    add = parser.add_argument
    add("-L", "--load-file", required=True, metavar="FILE", help="the resource graph")
    add("-f", "--load-format", help="jgf, jgf_shorthand, rv1exec or grug (default: grug for XML, otherwise jgf)")
    add("-P", "--match-policy", default="first", help="a policy (default: %(default)s)")
    add("-F", "--match-format", default="simple", help="the form of R (default: %(default)s)")
    add("-S", "--match-subsystems", default="CA", choices=["CA", "ca"], help="only CA, containment")
    add("-T", "--traverser-policy", default="simple", help="simple or flexible (default: %(default)s)")
    add("-p", "--prune-filters", default="ALL:core", metavar="FILTERS", help="(default: %(default)s)")
    add("-t", "--test-output", metavar="FILE", help="write answers there")
    add("-r", "--reserve-vtx-vec", type=int, metavar="N", help="taken for the sake of old scripts; changes nothing")
    add("-e", "--elapse-time", action="store_true", help="print how long each match took")
    add("-d", "--disable-prompt", action="store_true", help="print no prompt")
    add("-c", "--command-file", metavar="FILE", help="read commands there, not from standard input")
    add("--json", action="store_true", help="one JSON object a line for each command")
    return parser


def _matcher(given: argparse.Namespace) -> Matcher:
    text = read(given.load_file)
    form = given.load_format or ("grug" if text.lstrip().startswith("<") else "jgf")
    return Matcher(
        text,
        policy=given.match_policy,
        match_format=given.match_format,
        load_format=form,
        prune_filters=given.prune_filters,
        traverser=given.traverser_policy,
    )


def _lines(given: argparse.Namespace) -> Iterator[str]:
    """Lines of the file, of standard input, or of a person, who has a prompt with a history."""
    if given.command_file:
        yield from read(given.command_file).splitlines()
        return
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    with suppress(ImportError):
        import readline  # noqa: F401 - its import is what gives input() a history
    while True:
        try:
            yield input("" if given.disable_prompt else PROMPT)
        except KeyboardInterrupt:
            print()
        except EOFError:
            return


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=line.lstrip().startswith("#"))
    except ValueError as error:
        raise Malformed(f"malformed command: {error}") from None


class Shell:
    """Prints answers to `out`, errors to standard error (to `out`, as JSON) and remembers whether there were any."""

    def __init__(self, session: Session, out: TextIO, as_json: bool) -> None:
        self.session, self.out, self.as_json = session, out, as_json
        self.failed = False

    def line(self, line: str) -> bool:
        """Carries out one line; False when the session is to end."""
        try:
            words = _words(line)
            if words and words[0] in ("quit", "q"):
                return False
            if words:
                self._tell(line.strip(), run(self.session, words))
        except FluxionError as error:
            self.failed = True
            self._refuse(line.strip(), error)
        return True

    def _tell(self, line: str, answer: Answer) -> None:
        if self.as_json:
            self._object({"command": line, "ok": True, **answer.values})
            return
        self.out.write(answer.text + "".join(f"INFO: {told}\n" for told in answer.lines))
        self.out.flush()

    def _refuse(self, line: str, error: FluxionError) -> None:
        if self.as_json:
            code = errno.errorcode.get(error.errno, str(error.errno))
            self._object({"command": line, "ok": False, "errno": code, "error": str(error)})
        else:
            print(f"ERROR: {error}", file=sys.stderr)

    def _object(self, value: dict[str, Any]) -> None:
        self.out.write(json.dumps(value) + "\n")
        self.out.flush()


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    given = _options().parse_args(arguments)
    with ExitStack() as stack:
        try:
            session = Session(_matcher(given), given.elapse_time)
            out = stack.enter_context(open(given.test_output, "w")) if given.test_output else sys.stdout
            shell = Shell(session, out, given.json)
            for line in _lines(given):
                if not shell.line(line):
                    break
        except (FluxionError, OSError) as error:
            print(f"ERROR: {error}", file=sys.stderr)
            return 2
    return 1 if shell.failed else 0
