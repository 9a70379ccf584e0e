"""The form of label keys and values, which names of extended resources have, too.

Source: apimachinery's IsQualifiedName and IsValidLabelValue.
"""

from __future__ import annotations

import re
from typing import Final

_PREFIX: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def is_label_key(text: str) -> bool:
    """Whether the text is a name of up to 63 characters, after an optional DNS prefix and `/`."""
    prefix, slash, name = text.rpartition("/")
    valid_prefix = not slash or (len(prefix) <= 253 and _PREFIX.fullmatch(prefix) is not None)
    return valid_prefix and _NAME.fullmatch(name) is not None


def is_label_value(text: str) -> bool:
    """Whether the text is empty, or has up to 63 characters that a label's value may have."""
    return not text or _NAME.fullmatch(text) is not None
