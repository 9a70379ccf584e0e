"""The base of plugins that take no arguments."""

from __future__ import annotations

from typing import ClassVar


class WithoutArguments:
    """Built with None, like every plugin without an `Arguments` model."""

    Arguments: ClassVar[None] = None
    weight: ClassVar[int] = 1

    def __init__(self, arguments: None = None) -> None:
        """Takes `arguments` as every plugin does; there are none."""
