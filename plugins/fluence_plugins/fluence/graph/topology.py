"""The levels between cluster and hosts (racks, zones, blocks): as configured, and those that a host lies in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final
from urllib.parse import quote

from pydantic import AfterValidator, Field, field_validator

from session_scheduler import PluginArguments
from session_scheduler.config.parsing import validated, wrong_value

HostLevels = tuple[tuple[str, str], ...]
"""(type, value of the label) of each level that a host lies in, outermost first."""

MOST_LEVELS: Final = 8
_TAKEN: Final = ("cluster", "node", "core", "gpu", "memory", "pod", "slot")
_WORD: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
_PREFIX: Final = r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?"
_LABEL: Final = re.compile(_PREFIX + r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class TopologyLevel(PluginArguments):
    """One entry of `topology`: a type of vertices, and the node label that tells them apart."""

    type: str
    label: Annotated[str, Field(min_length=1)]

    @field_validator("type")
    @classmethod
    def _a_free_word(cls, word: str) -> str:
        if not _WORD.fullmatch(word):
            raise wrong_value(f"{word!r} is no type: use a letter, then letters, digits, - and _, at most 63")
        if word in _TAKEN:
            raise wrong_value(f"{word!r} is a type of the graph's own: use another word")
        return word

    @field_validator("label")
    @classmethod
    def _a_label(cls, key: str) -> str:
        if not _LABEL.fullmatch(key):
            raise wrong_value(f"{key!r} is no name of a label: write it as on the nodes, as example.com/rack")
        return key


def checked(levels: tuple[TopologyLevel, ...]) -> tuple[TopologyLevel, ...]:
    """The levels, where no type and no label occurs twice. Raises what a validator may."""
    if len(levels) > MOST_LEVELS:
        raise wrong_value(f"there are {len(levels)} levels: use at most {MOST_LEVELS}")
    for field in ("type", "label"):
        seen: dict[str, int] = {}
        for index, level in enumerate(levels):
            name = getattr(level, field)
            if name in seen:
                raise wrong_value(f"{name!r} is also the {field} of [{seen[name]}]: keep one of the two",
                                  at=(index, field))  # fmt: skip
            seen[name] = index
    return levels


class _CommandLine(PluginArguments):
    levels: Annotated[tuple[TopologyLevel, ...], AfterValidator(checked)]


def levels_from(texts: Sequence[str]) -> tuple[TopologyLevel, ...]:
    """The levels of a command line, each as `type=label`. Raises InputError, naming the option."""
    values = [dict(zip(("type", "label"), text.split("=", 1), strict=False)) for text in texts]
    return validated(_CommandLine, {"levels": values}, "--topology").levels


def levels_of(labels: Mapping[str, str], topology: Sequence[TopologyLevel]) -> HostLevels:
    """The levels that a node with these labels lies in. An empty value is none: the host hangs below what it has."""
    return tuple((level.type, value) for level in topology if (value := labels.get(level.label)))


def vertex_name(kind: str, value: str) -> str:
    """The name of a level's vertex: `rack=r1`.

    Neither a host nor a backend can have it, since no name of theirs holds `=`, and no two levels share one. So it
    depends on the label alone, not on what else there is. What a label cannot hold, as slashes, is written as %2F.
    """
    return f"{kind}={quote(value, safe='')}"


def told(levels: HostLevels) -> str:
    """A vertex as people are told of it: `rack 1`, `rack-1` where the value says the type, `rack 1 of zone a`."""
    return " of ".join(value if value.startswith(kind) else f"{kind} {value}" for kind, value in reversed(levels))
