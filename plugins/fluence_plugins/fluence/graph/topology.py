"""The levels between cluster and hosts (racks, zones, blocks): the configured ones, and those that contain a host."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final
from urllib.parse import quote

from pydantic import AfterValidator, Field, field_validator

from session_scheduler import PluginArguments
from session_scheduler.config.parsing import validated, wrong_value

HostLevels = tuple[tuple[str, str], ...]
"""(type, value of the label) of each level that contains a host, outermost first."""

MOST_LEVELS: Final = 8
_TAKEN: Final = ("cluster", "node", "core", "gpu", "memory", "pod", "slot")
_WORD: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
_PREFIX: Final = r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?"
_LABEL: Final = re.compile(_PREFIX + r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class TopologyLevel(PluginArguments):
    """One entry of `topology`: a type of vertices, and the node label whose values distinguish them."""

    type: str
    label: Annotated[str, Field(min_length=1)]

    @field_validator("type")
    @classmethod
    def _check_type(cls, word: str) -> str:
        if not _WORD.fullmatch(word):
            raise wrong_value(
                f"{word!r} is not a valid type; use at most 63 letters, digits, - and _, with a letter first"
            )
        if word in _TAKEN:
            raise wrong_value(f"{word!r} is a built-in type of the graph; use another word")
        return word

    @field_validator("label")
    @classmethod
    def _check_label(cls, key: str) -> str:
        if not _LABEL.fullmatch(key):
            raise wrong_value(f"{key!r} is not a valid label key; use that of a node label, such as example.com/rack")
        return key


def distinct(levels: tuple[TopologyLevel, ...]) -> tuple[TopologyLevel, ...]:
    """Validate that no type and no label occurs twice, and return the levels."""
    if len(levels) > MOST_LEVELS:
        raise wrong_value(f"expected at most {MOST_LEVELS} levels, got {len(levels)}")
    for field in ("type", "label"):
        seen: dict[str, int] = {}
        for index, level in enumerate(levels):
            name = getattr(level, field)
            if name in seen:
                raise wrong_value(f"{name!r} is also the {field} of [{seen[name]}]; keep one of the two",
                                  at=(index, field))  # fmt: skip
            seen[name] = index
    return levels


class _CommandLine(PluginArguments):
    levels: Annotated[tuple[TopologyLevel, ...], AfterValidator(distinct)]


def levels_from(texts: Sequence[str]) -> tuple[TopologyLevel, ...]:
    """The levels of a command line, each as `type=label`. Raises InputError, which names the option."""
    values = [dict(zip(("type", "label"), text.split("=", 1), strict=False)) for text in texts]
    return validated(_CommandLine, {"levels": values}, "--topology").levels


def levels_of(labels: Mapping[str, str], topology: Sequence[TopologyLevel]) -> HostLevels:
    """The levels that contain a node with these labels. A level whose label is missing or empty is left out."""
    return tuple((level.type, value) for level in topology if (value := labels.get(level.label)))


def vertex_name(kind: str, value: str) -> str:
    """The name of a level's vertex: `rack=r1`.

    It depends on the label only. No other vertex has it: names of hosts and backends have no `=`, and no two levels
    have one type. Special characters are percent-encoded.
    """
    return f"{kind}={quote(value, safe='')}"


def in_words(levels: HostLevels) -> str:
    """The words for a vertex: `rack 1`, or `rack-1` if the value begins with the type; `rack 1 of zone a`."""
    return " of ".join(value if value.startswith(kind) else f"{kind} {value}" for kind, value in reversed(levels))
