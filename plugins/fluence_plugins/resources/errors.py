"""Errors in the resources file, and in the names that it defines.

Each message is one line that names the object, the field and a remedy.
"""

from collections.abc import Iterable

from session_scheduler.errors import FluenceError, InputError, plain

_LISTED = 8


class DocumentError(InputError):
    """The input is not valid YAML or JSON: a syntax error, a duplicate key, or too large."""


class ResourcesError(InputError):
    """A field of a resources file is wrong. The message starts with the file and the field's path."""


class NamingError(FluenceError):
    """A type, attribute key or environment variable name is invalid where it must appear."""


def listed(words: Iterable[str]) -> str:
    """Names for a message, sorted: the first few, and the number of further ones."""
    found = sorted(words)
    more = [f"{len(found) - _LISTED} more"] if len(found) > _LISTED else []
    return ", ".join([*map(plain, found[:_LISTED]), *more]) or "none"
