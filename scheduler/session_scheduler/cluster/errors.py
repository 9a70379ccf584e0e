"""Errors of a cluster and of manifests, as types.

`ManifestError` is a mistake in a file: the command prints its one line and exits with status 2. `ClusterError` and its
subclasses are errors of an API server; each documents whether the same request can be sent again.
"""

from __future__ import annotations

from session_scheduler.errors import ChangedMeanwhileError, FluenceError, InputError


def one_line(text: str) -> str:
    """Return the text without line breaks and control characters, for a terminal."""
    return "".join(c if c.isprintable() else " " for c in text).strip()


class ManifestError(InputError):
    """An invalid manifest. Its text is one line: file, object, field, problem and remedy."""

    def __init__(self, problem: str, *, file: str = "", object: str = "", field: str = "") -> None:  # noqa: A002
        self.file = file
        """The file's name as given; "<stdin>" for standard input."""
        self.object = object
        """"Kind namespace/name", as far as known."""
        self.field = field
        """The field's path, for example spec.containers[0].resources.requests.cpu."""
        self.problem = problem
        super().__init__(one_line(": ".join(part for part in (file, object, field, problem) if part)))


class ClusterError(FluenceError):
    """A cluster did not execute a request."""


class NotFound(ClusterError):  # noqa: N818 (named like the API's reasons)
    """404: the object does not exist."""


class Conflict(ClusterError, ChangedMeanwhileError):  # noqa: N818
    """409: the object is not as the request expects; it has another uid or resourceVersion, or is already bound."""


class AlreadyExists(Conflict):
    """409: an object of this name exists."""


class Gone(ClusterError):  # noqa: N818
    """410: the resourceVersion is too old to watch from. List again."""


class Invalid(ClusterError):  # noqa: N818
    """400 or 422: the request is invalid; sending it again does not help."""


class Forbidden(ClusterError):  # noqa: N818
    """401 or 403: the account has no permission for the request."""


class NotLeading(ClusterError):  # noqa: N818
    """This replica does not lead, so the write was not sent. It may write again once it leads."""


class TooManyRequests(ClusterError):  # noqa: N818
    """429: flow control or a disruption budget rejects the request for now. Retry after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class Unavailable(ClusterError):  # noqa: N818
    """5xx, a timeout or a broken connection: the outcome is unknown. Read the object before sending a write again."""


class Unreadable(Unavailable):
    """The response cannot be decoded: it comes from another API version, or from another server."""
