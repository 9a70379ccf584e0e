"""Jobspecs (RFC 14, as the matcher reads it) as typed values.

The matcher gets a jobspec as JSON, because its constraint parser needs quoted strings, and JSON always quotes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fluence_plugins.fluence.errors import JobspecError
from fluence_plugins.resources import documents

VERSION = 9999
"""The version that allows any resource shape; version 1 only allows node, slot and core."""
SLOT = "slot"
_LARGEST_COUNT = (1 << 32) - 1


class Count(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A range of counts, with all of max, operator and operand, or none. The matcher allocates the highest possible."""

    min: int
    max: int | None = None
    operator: str | None = None
    operand: int | None = None

    def __post_init__(self) -> None:
        rest = (self.max, self.operator, self.operand)
        if any(value is None for value in rest) and any(value is not None for value in rest):
            raise JobspecError("count needs all of max, operator and operand in addition to min, or none of them")
        if self.operator not in (None, "+", "*", "^"):
            raise JobspecError(f"count's operator {self.operator!r} is unknown; use +, * or ^")


class Resource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One resource request, and the requests below it (`with_`, written `with`).

    `exclusive` is only set above a slot: all requests below a slot are exclusive. A slot needs a label.
    """

    type: str
    count: int | Count
    with_: tuple["Resource", ...] = msgspec.field(default=(), name="with")
    label: str | None = None
    exclusive: bool | None = None
    unit: str | None = None
    id: str | None = None

    def __post_init__(self) -> None:
        if not self.type:
            raise JobspecError("a resource has an empty type; name its type, for example core")
        if isinstance(self.count, int) and not 0 <= self.count <= _LARGEST_COUNT:
            raise JobspecError(f"{self.type}: expected a count of 0 to {_LARGEST_COUNT}, got {self.count}")
        if self.type == SLOT and not self.label:
            raise JobspecError("a slot has no label; add one for tasks to refer to")


def slot(count: int, *resources: Resource, label: str = "default") -> Resource:
    """Return a request for `count` slots with exclusive `resources` each."""
    return Resource(SLOT, count, resources, label=label)


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program that runs in a slot. The matcher requires tasks, and ignores their content."""

    command: tuple[str, ...]
    slot: str
    count: Mapping[str, int]

    @classmethod
    def per_slot(cls, command: str, label: str = "default") -> "Task":
        """Return one task for each slot of a label."""
        return cls((command,), label, {"per_slot": 1})


class Jobspec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole jobspec. `attributes` are plain values, so that writing returns everything that was read."""

    version: int = VERSION
    resources: tuple[Resource, ...]
    tasks: tuple[Task, ...]
    attributes: dict[str, Any]

    def __post_init__(self) -> None:
        if not 1 <= self.version <= VERSION:
            raise JobspecError(f"expected version 1 to {VERSION}, got {self.version}")
        if not self.resources:
            raise JobspecError("resources is empty; request at least one")

    @classmethod
    def of(
        cls,
        *resources: Resource,
        constraints: Mapping[str, Any] | None = None,
        duration: float = 0,
        tasks: Sequence[Task] = (),
    ) -> "Jobspec":
        """Return a jobspec with the system attributes that a match needs.

        duration is in seconds; 0 means until the allocation is cancelled. constraints is an RFC 31 expression.
        """
        system: dict[str, Any] = {"duration": duration}
        if constraints is not None:
            system["constraints"] = dict(constraints)
        return cls(resources=resources, tasks=tuple(tasks), attributes={"system": system})

    @property
    def duration(self) -> float:
        """The system duration in seconds; 0, the default, means until the allocation is cancelled."""
        return float(self._system().get("duration", 0))

    @property
    def constraints(self) -> Mapping[str, Any] | None:
        """The RFC 31 constraint expression, or None."""
        found = self._system().get("constraints")
        return found if isinstance(found, dict) else None

    def _system(self) -> dict[str, Any]:
        system = self.attributes.get("system")
        return system if isinstance(system, dict) else {}

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values, as the matcher reads them."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    def to_json(self) -> str:
        """Return the canonical text."""
        return msgspec.json.encode(self).decode()

    def to_yaml(self) -> str:
        """Return the jobspec as YAML text."""
        return documents.dump_yaml(self.to_mapping())

    @classmethod
    def from_yaml(cls, text: str, source: str = "jobspec") -> "Jobspec":
        """Read YAML (or JSON) text. Raises JobspecError or DocumentError, naming `source` and the field."""
        return cls.from_mapping(documents.load(text, source), source)

    from_json = from_yaml

    @classmethod
    def from_mapping(cls, data: Any, source: str = "jobspec") -> "Jobspec":
        """Read plain values. Raises JobspecError, naming `source` and the field."""
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise JobspecError(f"{source}: {error}") from None
