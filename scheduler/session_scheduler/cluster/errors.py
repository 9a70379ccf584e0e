"""What can go wrong between the scheduler and a cluster or its manifests, as types.

`ManifestError` is a person's mistake in a file: the command ends with status 2 and its one line. `ClusterError` and
its kinds are a cluster's answers; each says whether the same request can be sent again.
"""

from __future__ import annotations

from session_scheduler.errors import ChangedMeanwhileError, FluenceError, InputError


def one_line(text: str) -> str:
    """The text without line breaks and control characters, as a terminal can show it."""
    return "".join(c if c.isprintable() else " " for c in text).strip()


class ManifestError(InputError):
    """A manifest that cannot be used. Its text is one line: file, object, field, what is wrong and what to do."""

    def __init__(self, problem: str, *, file: str = "", object: str = "", field: str = "") -> None:  # noqa: A002
        self.file = file
        """The file's name as given; "<stdin>" for standard input."""
        self.object = object
        """"Kind namespace/name", or what is known of it."""
        self.field = field
        """The field's path, as spec.containers[0].resources.requests.cpu."""
        self.problem = problem
        super().__init__(one_line(": ".join(part for part in (file, object, field, problem) if part)))


class ClusterError(FluenceError):
    """A cluster did not do what it was asked."""


class NotFound(ClusterError):  # noqa: N818 (these are named as the API's reasons are)
    """404: there is no such object."""


class Conflict(ClusterError, ChangedMeanwhileError):  # noqa: N818
    """409: the object is not (any more) as the request says: another uid or resourceVersion, or already bound."""


class AlreadyExists(Conflict):
    """409: an object of that name exists."""


class Gone(ClusterError):  # noqa: N818
    """410: the resourceVersion is too old to watch from. List again."""


class Invalid(ClusterError):  # noqa: N818
    """400 or 422: the request is wrong and will stay wrong."""


class Forbidden(ClusterError):  # noqa: N818
    """401 or 403: not allowed to do this."""


class NotLeading(ClusterError):  # noqa: N818
    """Another replica may lead: this write was not sent, and none may be until this replica leads again."""


class TooManyRequests(ClusterError):  # noqa: N818
    """429: refused for now, by flow control or a disruption budget. Send it again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class Unavailable(ClusterError):  # noqa: N818
    """5xx, a time-out or a broken connection: the outcome is unknown. Read before sending it again."""


class Unreadable(Unavailable):
    """An answer that is not as it should be: another version's, say, or not an API server's."""
