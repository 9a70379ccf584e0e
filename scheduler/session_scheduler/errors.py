"""What can go wrong in ways that a user can mend, as types. A leaf: every layer may raise these.

A message is one line that names file, object and field and says what to do. The command prints it as it is, without a
traceback; an error with several findings has one line each in `messages`.
"""

from __future__ import annotations

from collections.abc import Sequence


class FluenceError(Exception):
    """Base of every error that Fluence expects. Its text is the message, one finding a line."""

    def __init__(self, *messages: str) -> None:
        super().__init__("\n".join(messages))
        self.messages: Sequence[str] = messages


class InputError(FluenceError):
    """A file, an option or a plugin that the user named is wrong or missing: the command ends with status 2."""
