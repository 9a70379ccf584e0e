"""Arguments of which the library knows one value only."""

from typing import Any

from fluxion_cy.arguments import second_of
from fluxion_cy.errors import InvalidJobspec, NotSupported, shown
from fluxion_cy.search import scores_of


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """NotSupported for an option with another value than these."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise NotSupported(f"{name}={shown(value)}: the real engine only has {', '.join(map(repr, choices))}")


def check_extras(now: Any, prefer: Any) -> None:
    """Its clock stands still, and it has no preferences."""
    if second_of(now) != 0:
        raise NotSupported(f"now={shown(now)}: the real engine's clock is always at 0; ask an embedded one")
    scores = [] if prefer is None else list(scores_of(prefer))
    if any(score != score for score in scores):
        raise InvalidJobspec("prefer: an entry is not a number (NaN)")
    if scores:
        raise NotSupported("prefer: the real engine has no preferences; ask an embedded one, or give candidates")
