"""Errors of the matcher: one type per cause, each with the errno that the C API gives for it."""

import errno as _errno


class FluxionError(Exception):
    """Base of every error that the matcher raises on purpose.

    `errno` is the integer of the module `errno` that the C binding would have set.
    """

    errno: int = _errno.EINVAL

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        if errno is not None:
            self.errno = errno


class Busy(FluxionError):
    """No match now; a later one is possible (EBUSY)."""

    errno = _errno.EBUSY


class Unsatisfiable(FluxionError):
    """The graph can never hold the request, even when it is empty and everything is up (ENODEV)."""

    errno = _errno.ENODEV


class InvalidJobspec(FluxionError):
    """The jobspec, or an argument beside it, is malformed (EINVAL)."""


class InvalidGraph(FluxionError):
    """A graph, a resource set or a path in it is malformed (EPROTO at load, EINVAL later)."""

    errno = _errno.EPROTO


class NoSuchJob(FluxionError):
    """No job with that id is held (ENOENT)."""

    errno = _errno.ENOENT


class JobExists(FluxionError):
    """A job with that id is known already (EEXIST)."""

    errno = _errno.EEXIST


class NotSupported(FluxionError):
    """An option or form that this engine does not have (ENOTSUP); the message names it."""

    errno = _errno.ENOTSUP
