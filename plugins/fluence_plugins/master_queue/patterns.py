"""Matches users' regular expressions against whole names, in time linear in the name.

RE2 has no look-around and no back-references. Whatever it accepts means the same as in Python's `re`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import re2

from fluence_plugins.master_queue.errors import PatternError

LONGEST: Final = 256
_MOST_MEMORY: Final = 1 << 20


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    if len(pattern) > LONGEST:
        raise PatternError(f"has {len(pattern)} characters; use at most {LONGEST}")
    options = re2.Options()
    options.max_mem = _MOST_MEMORY
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeError) as error:
        why = error.args[0] if error.args else error
        text = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
        raise PatternError(f"is not a valid RE2 expression: {text.splitlines()[0] if text else 'unreadable'}") from None


def check(pattern: str) -> None:
    """Raise PatternError if the text is not a valid regular expression."""
    _compiled(pattern)


def matches(pattern: str, name: str) -> bool:
    """Whether the expression matches the whole name. Raises PatternError if it is invalid."""
    return _compiled(pattern).fullmatch(name) is not None
