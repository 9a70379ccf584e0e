"""Reads and validates jobspecs (RFC 14 as Fluxion implements it)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fluxion_cy.base.text import read_text
from fluxion_cy.errors import InvalidJobspec, shown
from fluxion_cy.jobspec.constraint import Rule, parse_constraint

#: The longest duration, and that of duration 0: 100 years of 365 days, in seconds.
FOREVER = 100 * 365 * 86400
_UNSIGNED = 2**32 - 1
_MAX_DEPTH = 64
_MAX_SIBLINGS = 64
_MAX_ENTRIES = 10_000
_KEYS = frozenset(("type", "count", "unit", "exclusive", "with", "label", "id"))
_TOP = ("version", "resources", "tasks", "attributes")


@dataclass(slots=True)
class Resource:
    """One request: `low` to `high` of a type, in steps of `oper` and `operand`; `exclusive` is None where not given.

    `alternatives`: every slot may have the children of any of these; `children` is their union then.
    """

    type: str
    low: int
    high: int
    oper: str = "+"
    operand: int = 1
    exclusive: bool | None = None
    children: list["Resource"] = field(default_factory=list)
    alternatives: list[list["Resource"]] = field(default_factory=list)

    @property
    def slot(self) -> bool:
        """Whether this is a task slot, which has no vertex of its own."""
        return self.type == "slot"


@dataclass(slots=True)
class Jobspec:
    """A validated jobspec; `duration` in whole seconds, rounded up."""

    resources: list[Resource]
    duration: int
    constraint: Rule | None
    queue: str | None = None


def read(value: Any) -> Jobspec:
    """The jobspec of a mapping, or of JSON or YAML text. Raises InvalidJobspec."""
    top = _document(value)
    for key in _TOP:
        if key not in top:
            raise InvalidJobspec(f"jobspec: the key {key!r} is missing")
    if len(top) != len(_TOP):
        extra = next(key for key in top if key not in _TOP)
        raise InvalidJobspec(f"jobspec: the key {shown(extra)} is unknown; the top level has exactly {', '.join(_TOP)}")
    version = _unsigned(top["version"], "version")
    if not 1 <= version <= 9999:
        raise InvalidJobspec(f"version: expected 1 to 9999, got {version}")
    duration, rule, queue = _attributes(top["attributes"])
    resources = _resources(top["resources"], "resources", 0, [_MAX_ENTRIES])
    _tasks(top["tasks"])
    if not resources:
        raise InvalidJobspec("resources: the list is empty; add a resource")
    return Jobspec(resources, duration, rule, queue)


def _document(value: Any) -> Mapping[str, Any]:
    advice = ""
    if isinstance(value, (str, bytes)):
        value, advice = _text(value), "; give the text of a file, not its name"
    if not isinstance(value, Mapping):
        raise InvalidJobspec(f"jobspec: the top level must be a mapping, not {type(value).__name__}{advice}")
    return value


def _text(value: str | bytes) -> Any:
    try:
        return read_text(value)
    except ValueError as error:
        raise InvalidJobspec(f"jobspec: {error}") from None


def _unsigned(value: Any, what: str) -> int:
    """An unsigned 32-bit number, or a string of one."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _UNSIGNED:
        raise InvalidJobspec(f"{what}: expected a whole number from 0 to {_UNSIGNED}, got {shown(value)}")
    return int(value)


def _resources(value: Any, what: str, depth: int, room: list[int]) -> list[Resource]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidJobspec(f"{what}: must be a list")
    if depth > _MAX_DEPTH:
        raise InvalidJobspec(f"{what}: nested more than {_MAX_DEPTH} levels deep")
    if len(value) > _MAX_SIBLINGS:
        raise InvalidJobspec(f"{what}: more than {_MAX_SIBLINGS} sibling entries")
    room[0] -= len(value)
    if room[0] < 0:
        raise InvalidJobspec(f"{what}: more than {_MAX_ENTRIES} entries in all")
    return [_resource(item, f"{what}[{i}]", depth, room) for i, item in enumerate(value)]


def _resource(value: Any, what: str, depth: int, room: list[int]) -> Resource:
    if not isinstance(value, Mapping):
        raise InvalidJobspec(f"{what}: must be a mapping")
    for key in ("type", "count"):
        if key not in value:
            raise InvalidJobspec(f"{what}: the key {key!r} is missing")
    for key in value:
        if key not in _KEYS:
            raise InvalidJobspec(f"{what}: the key {shown(key)} is unknown")
        if key not in ("count", "with") and isinstance(value[key], (Mapping, list, tuple)):
            raise InvalidJobspec(f"{what}.{key}: must be a single value")
    kind = value["type"]
    if not isinstance(kind, str):
        raise InvalidJobspec(f"{what}.type: must be a string, not {shown(kind)}")
    if kind == "slot" and value.get("label") is None:
        raise InvalidJobspec(f"{what}: a slot needs a label")
    low, high, oper, operand = _count(value["count"], f"{what}.count")
    children = _resources(value["with"], f"{what}.with", depth + 1, room) if "with" in value else []
    exclusive = _exclusive(value["exclusive"], what) if "exclusive" in value else None
    return Resource(kind, low, high, oper, operand, exclusive, children)


def _exclusive(value: Any, what: str) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise InvalidJobspec(f"{what}.exclusive: must be true or false, not {shown(value)}")


def _count(value: Any, what: str) -> tuple[int, int, str, int]:
    if not isinstance(value, Mapping):
        number = _unsigned(value, what)
        return number, number, "+", 1
    if "min" not in value:
        raise InvalidJobspec(f"{what}: the key 'min' is missing")
    low = _unsigned(value["min"], f"{what}.min")
    if low < 1:
        raise InvalidJobspec(f"{what}.min: must be at least 1")
    given = [key for key in ("max", "operator", "operand") if key in value]
    if not given:
        return low, _UNSIGNED, "+", 1
    if len(given) != 3:
        raise InvalidJobspec(f"{what}: give all of max, operator and operand, or none")
    high, oper = _unsigned(value["max"], f"{what}.max"), value["operator"]
    operand = _unsigned(value["operand"], f"{what}.operand")
    if high < low:
        raise InvalidJobspec(f"{what}.max: {high} is below min {low}")
    _check_steps(what, low, oper, operand)
    return low, high, oper, operand


def _check_steps(what: str, low: int, oper: Any, operand: int) -> None:
    if oper not in ("+", "*", "^"):
        raise InvalidJobspec(f"{what}.operator: expected +, * or ^, got {shown(oper)}")
    if operand < (1 if oper == "+" else 2):
        raise InvalidJobspec(f"{what}.operand: {operand} is too small for operator {oper}")
    if oper == "^" and low < 2:
        raise InvalidJobspec(f"{what}.min: must be at least 2 for operator ^")


def _tasks(value: Any) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidJobspec("tasks: must be a list")
    for i, task in enumerate(value):
        what = f"tasks[{i}]"
        if not isinstance(task, Mapping):
            raise InvalidJobspec(f"{what}: must be a mapping")
        if isinstance(task.get("command"), str) or not isinstance(task.get("command"), Sequence):
            raise InvalidJobspec(f"{what}.command: must be a list")
        if "slot" not in task or isinstance(task["slot"], (Mapping, list, tuple)):
            raise InvalidJobspec(f"{what}.slot: must be the label of a slot")
        if "count" in task and (not isinstance(task["count"], Mapping) or len(task["count"]) != 1):
            raise InvalidJobspec(f"{what}.count: must be a mapping with one entry")
        if not 3 <= len(task) <= 5:
            raise InvalidJobspec(f"{what}: expected 3 to 5 entries, including command, slot and count, got {len(task)}")


def _attributes(value: Any) -> tuple[int, Rule | None, str | None]:
    """(duration in whole seconds, constraint, queue)."""
    if value is None:
        return FOREVER, None, None
    if not isinstance(value, Mapping):
        raise InvalidJobspec("attributes: must be a mapping")
    for key in value:
        if key not in ("user", "system"):
            raise InvalidJobspec(f"attributes: the key {shown(key)} is unknown")
    system = value.get("system")
    if system is None:
        return FOREVER, None, None
    if not isinstance(system, Mapping):
        raise InvalidJobspec("attributes.system: must be a mapping")
    rule = parse_constraint(system["constraints"]) if "constraints" in system else None
    queue = system.get("queue")
    if isinstance(queue, (Mapping, list, tuple)):
        raise InvalidJobspec(f"attributes.system.queue: must be a single value, not {shown(queue)}")
    return (
        _duration(system.get("duration", 0)),
        rule,
        queue if queue is None or isinstance(queue, str) else shown(queue),
    )


def _duration(value: Any) -> int:
    written = not isinstance(value, str) or not any(char.isspace() or char == "_" for char in value)
    number = not isinstance(value, bool) and isinstance(value, (int, float, str)) and written
    try:
        seconds = float(value) if number else math.nan
    except (ValueError, OverflowError):
        seconds = math.nan
    if not 0 <= seconds <= FOREVER:
        raise InvalidJobspec(
            f"attributes.system.duration: expected a number of seconds from 0 to {FOREVER}, got {shown(value)}"
        )
    return math.ceil(seconds) or FOREVER
