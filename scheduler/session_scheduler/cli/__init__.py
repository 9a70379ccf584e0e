"""The command `fluence`: arguments, output and errors. `offline`, `server` and plugins do the work.

Exit status: 0 success, 1 unschedulable pods, 2 bad input or unwritable output, 3 an internal error. Heavy imports wait
until `main` runs: before that Ctrl-C would show a traceback.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import Final

from session_scheduler.errors import FluenceError

UNSCHEDULABLE: Final = 1
BAD_INPUT: Final = 2
INTERNAL_ERROR: Final = 3
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
TERMINATED: Final = 143
_UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
"""Errors in writing the output, which are not bugs. Unlike these, an error in reading a file has a file name."""


def kubectl() -> int:
    """The command `kubectl-fluence`, a plugin that kubectl runs as `kubectl fluence`."""
    return main(plugin=True)


def main(arguments: Sequence[str] | None = None, *, plugin: bool = False) -> int:
    """Run the command and return its exit status. `arguments` defaults to those of the process.

    As a plugin of kubectl a command without files reads the cluster.
    """
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if sys.stdout is None:  # closed before the process started
        _print_error("standard output is closed; redirect it to a file, a pipe or a terminal")
        return BAD_INPUT
    if sys.stderr is None:  # closed: discard the log
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if arguments is None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # PID 1 of a container ignores it by default
        if isinstance(sys.stdout, TextIOWrapper):  # tables and JSON are UTF-8 in every locale, as kubectl's
            sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        status = _run(words, plugin=plugin)
        sys.stdout.flush()
    except FluenceError as error:
        for message in error.messages:
            _print_error(message)
        if "--debug" in words and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _give_up_output(BROKEN_PIPE)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer and rich convert it to exit status 1
            return _give_up_output(BROKEN_PIPE)
        raise
    except Exception as error:  # the last resort: one line instead of a traceback
        if isinstance(error, OSError) and error.filename is None and error.errno in _UNWRITABLE:
            _print_error(f"cannot write the output: {error.strerror}; free space, or redirect the output")
            return _give_up_output(BAD_INPUT)
        if "--debug" in words:
            raise
        text = " ".join(str(error).split())
        _print_error(f"internal error: {type(error).__name__}: {text}; please report it with the output of --debug")
        return INTERNAL_ERROR
    return status


def _give_up_output(status: int) -> int:
    """Discard buffered output: else Python prints an error when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return status


def _run(words: list[str], *, plugin: bool) -> int:
    from session_scheduler.base.garbage_collection import no_collections

    with no_collections():
        import typer  # here, so that Ctrl-C during the import is clean, too
        from typer.exceptions import TyperException

        from session_scheduler.cli.app import build, plugin_options
        from session_scheduler.cli.host import CommandHost

    try:
        with no_collections():
            app = build(_completed() or words, reads_cluster=plugin)
        name = "kubectl fluence" if plugin else "fluence"
        result = app(words, prog_name=name, obj=CommandHost(plugin_options), standalone_mode=False)
    except typer.Abort:
        return INTERRUPTED
    except TyperException as error:
        message = getattr(error, "format_message", error.__str__)()
        text = " ".join(message.split()).replace("Value error, ", "", 1)  # typer's prefix
        text += "" if text.endswith((".", "?")) else "."
        before = getattr(error, "option_name", "") == "--debug"
        _print_error(f"{text} {'Write --debug before the command.' if before else 'See fluence --help.'}")
        return BAD_INPUT
    return result if isinstance(result, int) else 0


def _completed() -> list[str]:
    """The command line to complete, from bash, zsh or fish; empty if this is not a completion."""
    if "_FLUENCE_COMPLETE" not in os.environ:
        return []
    return (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()[1:]


def _print_error(message: str) -> None:
    printable = "".join(char if char.isprintable() else " " for char in message)
    if sys.stderr is not None:  # print(file=None) would write to standard output
        with suppress(OSError):  # no other place for errors
            print(f"fluence: {printable}", file=sys.stderr, flush=True)
