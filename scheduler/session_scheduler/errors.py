"""Error types with messages for users. A leaf: every layer may raise these.

A message is one line that names file, object and field and says what to do. The command prints it as it is, without a
traceback; an error with several findings has one line each in `messages`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence

_CUT = reprlib.Repr()
_CUT.maxstring = _CUT.maxother = _CUT.maxlong = 80
_CUT.maxlevel, _CUT.maxlist, _CUT.maxdict = 2, 4, 4


class FluenceError(Exception):
    """Base of every error that Fluence expects. Its text is the message, one finding per line."""

    def __init__(self, *messages: str) -> None:
        super().__init__("\n".join(messages))
        self.messages: Sequence[str] = messages


class ChangedMeanwhileError(FluenceError):
    """The object to write has changed since it was read: read it again."""


class AttemptError(FluenceError):
    """Ends the attempt to place a pod, because no other node would help. The scheduler retries the pod later.

    A plugin raises this for a cause outside its own code. The pod's condition and event show the text.
    """


class InputError(FluenceError):
    """A file, an option or a plugin that the user named is invalid or missing: the command exits with status 2."""


def shown(value: object) -> str:
    """A value from outside, for a message: quoted, printable, and truncated if it is long."""
    return _CUT.repr(value)


def plain(word: str) -> str:
    """Like `shown`, for a name or a path: without quotes if it is short and printable."""
    return word if len(word) <= _CUT.maxstring and word.isprintable() else shown(word)
