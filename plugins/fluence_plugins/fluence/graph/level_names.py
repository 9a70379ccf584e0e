"""The levels between cluster and hosts by name: those that a host lies in, and their vertices."""

from __future__ import annotations

from urllib.parse import quote

HostLevels = tuple[tuple[str, str], ...]
"""(type, value of the label) of each level that a host lies in, outermost first."""


def vertex_name(kind: str, value: str) -> str:
    """The name of a level's vertex: `rack=r1`.

    Neither a host nor a backend can have it, since no name of theirs holds `=`, and no two levels share one. So it
    depends on the label alone, not on what else there is. What a label cannot hold, as slashes, is written as %2F.
    """
    return f"{kind}={quote(value, safe='')}"


def told(levels: HostLevels) -> str:
    """A vertex as people are told of it: `rack 1`, `rack-1` where the value says the type, `rack 1 of zone a`."""
    return " of ".join(value if value.startswith(kind) else f"{kind} {value}" for kind, value in reversed(levels))
