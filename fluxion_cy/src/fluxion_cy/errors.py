"""Errors of the matcher: one type per cause, each with the errno that the C API sets for it."""

import errno as _errno


def shown(value: object, width: int = 40) -> str:
    """A short form of any value for a message. It never raises."""
    try:
        return repr(value[:width] if isinstance(value, (str, bytes)) else value)[:width]
    except Exception:  # noqa: BLE001 - an integer of thousands of digits, endless nesting, or anything that __repr__ raises
        return f"a {type(value).__name__}"


_LONGEST = 1000


def _line(message: str) -> str:
    """The message as one printable line of bounded length, whatever names it quotes."""
    if len(message) > _LONGEST:
        message = f"{message[: _LONGEST // 2]} … {message[-_LONGEST // 4 :]}"
    if message.isprintable():
        return message
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)


class FluxionError(Exception):
    """Base of every error that the matcher raises on purpose. Its message is one line.

    `errno` is the value of the module `errno` that the C binding would set.
    """

    errno: int = _errno.EINVAL

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(_line(message))
        if errno is not None:
            self.errno = errno


class Busy(FluxionError):  # noqa: N818 - the name is part of the API
    """No match now; a later one is possible (EBUSY)."""

    errno = _errno.EBUSY


class Unsatisfiable(FluxionError):  # noqa: N818 - the name is part of the API
    """No match even if the graph were empty and everything up (ENODEV)."""

    errno = _errno.ENODEV


class InvalidJobspec(FluxionError):  # noqa: N818 - the name is part of the API
    """The jobspec or another argument is malformed (EINVAL)."""


class InvalidGraph(FluxionError):  # noqa: N818 - the name is part of the API
    """A graph, a resource set or a path in it is malformed (EPROTO at load, EINVAL later)."""

    errno = _errno.EPROTO


class NoSuchJob(FluxionError):  # noqa: N818 - the name is part of the API
    """No job with this id holds anything (ENOENT)."""

    errno = _errno.ENOENT


class JobExists(FluxionError):  # noqa: N818 - the name is part of the API
    """A job with this id already exists (EEXIST)."""

    errno = _errno.EEXIST


class NotSupported(FluxionError):  # noqa: N818 - the name is part of the API
    """An option or form that this engine does not have (ENOTSUP); the message names it."""

    errno = _errno.ENOTSUP
