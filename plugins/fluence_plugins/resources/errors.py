"""Errors in the resources file and in the names that it defines.

Each message is one line that names the object, the field and what to do about it.
"""

from collections.abc import Iterable

from session_scheduler.errors import FluenceError, InputError, plain

_LISTED = 8


class DocumentError(InputError):
    """A text is not the YAML or JSON that it should be: syntax, a duplicate key, too large."""


class ResourcesError(InputError):
    """A field of a resources file is wrong. The message starts with the file and the field's path."""


class NamingError(FluenceError):
    """A type, attribute key or environment name is not usable where it has to appear."""


def listed(words: Iterable[str]) -> str:
    """Some names for a message, sorted: the first few, and how many more there are."""
    found = sorted(words)
    more = [f"{len(found) - _LISTED} more"] if len(found) > _LISTED else []
    return ", ".join([*map(plain, found[:_LISTED]), *more]) or "none"
