"""Arguments that are true or false."""

from typing import Any

from fluxion_cy.errors import InvalidJobspec, shown


def flag(value: Any, name: str) -> bool:
    """True or false (also 0, 1 and NumPy's); anything else, above all the word "down", is an InvalidJobspec."""
    try:
        known = value in (0, 1)
    except (TypeError, ValueError):  # an array is neither
        known = False
    if not known:
        raise InvalidJobspec(f"{name}: {shown(value)} is neither true nor false")
    return bool(value)
