"""Jobspecs (RFC 14, as the matcher reads it) as typed values.

A jobspec is submitted as JSON: the matcher's constraint parser wants quoted strings, and JSON always quotes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fluence_plugins.fluence.errors import JobspecError

VERSION = 9999
"""The version that allows any resource shape; version 1 only allows node, slot and core."""
SLOT = "slot"
_LARGEST_COUNT = (1 << 32) - 1


class Resource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One resource request and what it must hold (`with_`, written `with`).

    Everything below a slot is exclusive. A slot needs a label.
    """

    type: str
    count: int
    with_: tuple["Resource", ...] = msgspec.field(default=(), name="with")
    label: str | None = None

    def __post_init__(self) -> None:
        if not self.type:
            raise JobspecError("a resource's type is empty; name it, for example core")
        if not 0 <= self.count <= _LARGEST_COUNT:
            raise JobspecError(f"{self.type}: count {self.count} is not within 0 and {_LARGEST_COUNT}")
        if self.type == SLOT and not self.label:
            raise JobspecError("a slot has no label; add one, tasks refer to it")


def slot(count: int, *resources: Resource, label: str = "default") -> Resource:
    """Return a request for `count` slots, each holding `resources` exclusively."""
    return Resource(SLOT, count, resources, label=label)


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What runs in a slot. The matcher demands the section and ignores it."""

    command: tuple[str, ...]
    slot: str
    count: Mapping[str, int]

    @classmethod
    def per_slot(cls, command: str, label: str = "default") -> "Task":
        """Return one task for each slot of a label."""
        return cls((command,), label, {"per_slot": 1})


class Jobspec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole jobspec."""

    version: int = VERSION
    resources: tuple[Resource, ...]
    tasks: tuple[Task, ...]
    attributes: dict[str, Any]

    def __post_init__(self) -> None:
        if not self.resources:
            raise JobspecError("resources is empty; request something")

    @classmethod
    def of(
        cls,
        *resources: Resource,
        constraints: Mapping[str, Any] | None = None,
        tasks: Sequence[Task] = (),
    ) -> "Jobspec":
        """Return a jobspec with the system attributes that placing needs.

        Its duration, 0, holds the allocation until it is cancelled. constraints is an RFC 31 expression.
        """
        system: dict[str, Any] = {"duration": 0}
        if constraints is not None:
            system["constraints"] = dict(constraints)
        return cls(resources=resources, tasks=tuple(tasks), attributes={"system": system})

    @property
    def constraints(self) -> Mapping[str, Any] | None:
        """The RFC 31 constraint expression, or None."""
        found: Mapping[str, Any] | None = self.attributes["system"].get("constraints")
        return found

    def to_json(self) -> str:
        """Return the canonical text."""
        return msgspec.json.encode(self).decode()
