"""What can be wrong with what a pool sends and with what a user writes."""

from __future__ import annotations

from session_scheduler.errors import FluenceError, InputError


class MessageError(FluenceError):
    """A message that cannot be read at all, in one line; nothing of it applies."""


class PatternError(InputError):
    """A text that is no regular expression. The message goes on from the field's name."""
