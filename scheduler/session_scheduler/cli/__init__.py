"""The command `fluence`: its arguments, its output, and how its errors look. The work is done elsewhere.

Exit status: 0 everything placed, 1 something unschedulable, 2 bad input or no place for output, 3 a fault of Fluence
itself. Nothing heavy is imported before `main` runs: until then Ctrl-C would show a traceback.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from session_scheduler.errors import FluenceError

UNSCHEDULABLE: Final = 1
BAD_INPUT: Final = 2
INTERNAL_ERROR: Final = 3
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
TERMINATED: Final = 143
_UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
"""What writing fails with where nothing is wrong with Fluence; files that are read name themselves in their errors."""


def kubectl() -> int:
    """The command `kubectl-fluence`, which kubectl runs as `kubectl fluence`."""
    return main(plugin=True)


def main(arguments: Sequence[str] | None = None, *, plugin: bool = False) -> int:
    """Run the command and return its exit status. `arguments` are those of the process unless given.

    As a plugin of kubectl a command that is given no state reads the cluster.
    """
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if sys.stdout is None:  # it was closed before the process began
        _complain("standard output is closed: let it go to a file, a pipe or a terminal")
        return BAD_INPUT
    if sys.stderr is None:  # it was closed: what is logged goes nowhere
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if arguments is None:  # as the first process of a container it would not be ended by the signal itself
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        status = _run(words, plugin=plugin)
        sys.stdout.flush()
    except FluenceError as error:
        for message in error.messages:
            _complain(message)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _give_up_output(BROKEN_PIPE)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer and rich make it an exit with status 1
            return _give_up_output(BROKEN_PIPE)
        raise
    except Exception as error:  # the last resort: one line instead of a traceback
        if isinstance(error, OSError) and error.filename is None and error.errno in _UNWRITABLE:
            _complain(f"the output cannot be written: {error.strerror}: make room, or let it go elsewhere")
            return _give_up_output(BAD_INPUT)
        if "--debug" in words:
            raise
        text = " ".join(str(error).split())
        _complain(f"internal error: {type(error).__name__}: {text}: please report it, with what --debug prints")
        return INTERNAL_ERROR
    return status


def _give_up_output(status: int) -> int:
    """Drop what waits for standard output; without this Python would complain when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return status


def _run(words: list[str], *, plugin: bool) -> int:
    import typer  # here, so that Ctrl-C while it is imported is clean too
    from typer.exceptions import TyperException

    from session_scheduler.cli.app import build, plugin_options
    from session_scheduler.cli.host import CommandHost

    try:
        app = build(_completed() or words, reads_cluster=plugin)
        name = "kubectl fluence" if plugin else "fluence"
        result = app(words, prog_name=name, obj=CommandHost(plugin_options), standalone_mode=False)
    except typer.Abort:
        return INTERRUPTED
    except TyperException as error:
        message = getattr(error, "format_message", error.__str__)()
        _complain(" ".join(message.split()) + " See fluence --help.")
        return BAD_INPUT
    return result if isinstance(result, int) else 0


def _completed() -> list[str]:
    """The command line that a shell asks to complete: as bash gives it, else as zsh and fish do; else none."""
    if "_FLUENCE_COMPLETE" not in os.environ:
        return []
    return (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()[1:]


def _complain(message: str) -> None:
    printable = "".join(char if char.isprintable() else " " for char in message)
    if sys.stderr is not None:  # else print would take standard output
        with suppress(OSError):  # there is nowhere left to complain
            print(f"fluence: {printable}", file=sys.stderr, flush=True)
