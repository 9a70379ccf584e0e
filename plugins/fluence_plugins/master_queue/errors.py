"""The errors of pools' messages, of users' input, and of connections."""

from __future__ import annotations

from session_scheduler.errors import FluenceError, InputError


class MessageError(FluenceError):
    """A message is invalid as a whole and is ignored. The text is one line."""


class PatternError(InputError):
    """A regular expression is not valid. The message continues a sentence that starts with the field's name."""


class ConnectionFailedError(FluenceError):
    """A NATS server could not be reached, or rejects a request. The text is one line, without secrets."""


class RefusedSubjectError(FluenceError):
    """A server does not permit this user to subscribe or publish to a subject. `subject` is in lower case."""

    def __init__(self, subject: str, what: str) -> None:
        self.subject = subject
        super().__init__(what)


class DroppedMessagesError(FluenceError):
    """A received message was dropped, because it is too large or too many are waiting."""


class LeavingError(FluenceError):
    """A server is about to shut down, and asks its clients to connect to another one."""
