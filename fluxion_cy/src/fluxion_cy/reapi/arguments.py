"""Arguments of which the library knows one value only."""

import operator
from typing import Any

from fluxion_cy.errors import InvalidJobspec, NotSupported, shown


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """NotSupported for an option with another value than these."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise NotSupported(f"{name}={shown(value)}: the real engine only has {', '.join(map(repr, choices))}")


def check_extras(now: Any, prefer: Any) -> None:
    """Its clock stands still, and it has no preferences."""
    try:
        second = operator.index(now)
    except TypeError:
        raise InvalidJobspec(f"now: {shown(now)} is not a whole number of seconds") from None
    if second != 0:
        raise NotSupported(f"now={shown(now)}: the real engine's clock is always at 0; ask an embedded one")
    if prefer is not None:
        raise NotSupported("prefer: the real engine has no preferences; ask an embedded one, or give candidates")
