"""The base class of plugins without arguments."""

from __future__ import annotations

from typing import ClassVar


class WithoutArguments:
    """A plugin without an `Arguments` model: the registry calls it with None."""

    Arguments: ClassVar[None] = None
    weight: ClassVar[int] = 1

    def __init__(self, arguments: None = None) -> None:
        """`arguments` is always None."""
