"""What can be wrong with what a pool sends and with what a user writes."""

from __future__ import annotations

from session_scheduler.errors import FluenceError, InputError


class MessageError(FluenceError):
    """A message that cannot be read at all, in one line; nothing of it applies."""


class PatternError(InputError):
    """A text that is no regular expression. The message goes on from the field's name."""


class ConnectionFailedError(FluenceError):
    """A NATS server could not be reached, or does not take what it is told. One line, without secrets."""


class RefusedSubjectError(FluenceError):
    """A server does not let this user subscribe or publish to a subject. `subject` is in lower case."""

    def __init__(self, subject: str, what: str) -> None:
        self.subject = subject
        super().__init__(what)


class DroppedMessagesError(FluenceError):
    """A message that had come was thrown away, since too many wait or it is too large."""


class LeavingError(FluenceError):
    """A server is about to shut down, and lets its clients go to another one."""
