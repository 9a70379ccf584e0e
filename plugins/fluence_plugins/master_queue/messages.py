"""Decodes the messages of pools, within limits. An invalid message is refused; an invalid part is dropped and reported.

    {"quotas": {"cpu": "8", "memory": "32Gi", "pods": 10, "nvidia.com/gpu": 0},
     "labels": ["k=v"], "taints": ["k=v:Effect"]}

The last token of the subject is the pool's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from itertools import islice
from typing import Any, Final

import msgspec

from fluence_plugins.master_queue.amounts import RESOURCES, amount, amount_text
from fluence_plugins.master_queue.errors import MessageError
from fluence_plugins.master_queue.names import is_dns_label, is_label_key, is_label_value
from session_scheduler.errors import plain, shown
from session_scheduler.model.objects import Taint
from session_scheduler.model.quantity import QuantityError

MOST_BYTES: Final = 64 << 10
MOST_LABELS: Final = 64
MOST_TAINTS: Final = 7
"""A ResourceFlavor may have eight; one of them is the taint of the virtual node."""
MOST_PARTS: Final = 256
"""The maximum number of resources, labels and taints, each, that are validated: reporting problems takes time."""
MOST_PROBLEMS: Final = 8
"""The maximum number of lines that are reported for one message."""
LONGEST_PROBLEMS: Final = 1024
"""The maximum size in bytes of these lines in the API server."""
LONGEST_LABELS: Final = 1536
LONGEST_TAINTS: Final = 1024
"""The maximum total length of a message's labels, and of its taints, so that the status has room for the largest number
of pools.
"""
EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
VIRTUAL_NODE_TAINT: Final = Taint(key="virtual-node.interlink/no-schedule", value="true", effect="NoSchedule")
_LONGEST_PAIR: Final = 512
_DEEPEST: Final = 16
_TOO_DEEP: Final = f"the message is nested more than {_DEEPEST} levels deep; send only quotas, labels and taints"


class Message(msgspec.Struct, frozen=True):
    """The valid parts of a message; `problems` has a line for each invalid part."""

    quotas: dict[str, str] = {}
    """By resource, in the API server's form."""
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    problems: tuple[str, ...] = ()


class _Problems:
    def __init__(self) -> None:
        self._lines: list[str] = []
        self._more = 0
        self._left = LONGEST_PROBLEMS

    def add(self, field: str, problem: str) -> None:
        line = f"{field}: {problem}"
        self._left -= _stored_bytes(line)
        if len(self._lines) < MOST_PROBLEMS - 1 and self._left >= 0:
            self._lines.append(line)
        else:
            self._more += 1

    def lines(self) -> tuple[str, ...]:
        return (*self._lines, f"and {self._more} more problems in this message") if self._more else tuple(self._lines)


def _stored_bytes(line: str) -> int:
    """The bytes of a printable text in Go's JSON, which writes <, > and & as six characters."""
    return len(line.encode()) + sum(map(line.count, '"\\')) + 5 * sum(map(line.count, "<>&"))


def pool_of(subject: str, message_subject: str) -> str:
    """The name of the pool that published to `message_subject`. Raises MessageError if it is not a valid pool name."""
    prefix = f"{subject}."
    if not message_subject.startswith(prefix):
        raise MessageError(f"{shown(message_subject)} is not below the subject; publish to {plain(subject)}.<pool>")
    name = message_subject[len(prefix) :]
    if not is_dns_label(name):
        raise MessageError(
            f"{shown(name)} is not a valid pool name; use at most 63 characters (a-z, 0-9 and -), with no - at the "
            "start or end"
        )
    return name


def decoded(data: bytes) -> Message:
    """Decode a message. Raises MessageError if it is invalid as a whole."""
    content = _content(data)
    if not isinstance(content, dict):
        raise MessageError("the message is not a JSON object; write quotas, labels and taints")
    if not isinstance(content.get("quotas"), dict):
        raise MessageError(
            "quotas is not a JSON object; write an amount for each resource, such as cpu, memory and pods"
        )
    problems = _Problems()
    return Message(
        quotas=_quotas(content["quotas"], problems),
        labels=_labels(content.get("labels"), problems),
        taints=_taints(content.get("taints"), problems),
        problems=problems.lines(),
    )


def _content(data: bytes) -> Any:
    if len(data) > MOST_BYTES:
        raise MessageError(f"the message has {len(data)} bytes; send at most {MOST_BYTES}")
    try:
        content = msgspec.json.decode(data)
    except RecursionError:
        raise MessageError(_TOO_DEEP) from None
    except (msgspec.DecodeError, ValueError) as error:
        why = str(error).partition("\n")[0][:200]
        raise MessageError(f"the message is not valid JSON: {why}") from None
    if _deeper(content, _DEEPEST):
        raise MessageError(_TOO_DEEP)
    return content


def _deeper(content: object, depth: int) -> bool:
    level: list[object] = [content]
    for _ in range(depth + 1):
        level = [inner for one in level for inner in _inside(one)]
        if not level:
            return False
    return True


def _inside(value: object) -> list[object]:
    if isinstance(value, dict):
        return [one for one in value.values() if isinstance(one, dict | list)]
    return [one for one in value if isinstance(one, dict | list)] if isinstance(value, list) else []


# ------------------------------------------------------------------ parts


def _quotas(values: dict[str, Any], problems: _Problems) -> dict[str, str]:
    _report_more("quotas", values, problems)
    for resource in islice(values, MOST_PARTS):
        if resource not in RESOURCES:
            problems.add(f"quotas[{shown(resource)}]", f"unknown resource; use one of {', '.join(RESOURCES)}")
    found: dict[str, str] = {}
    for resource in RESOURCES:
        if resource in values:
            try:
                found[resource] = amount_text(resource, amount(resource, values[resource]))
            except QuantityError as error:
                problems.add(f"quotas[{resource!r}]", str(error))
    return found


def _report_more(field: str, parts: Sized, problems: _Problems) -> None:
    if len(parts) > MOST_PARTS:
        problems.add(field, f"has {len(parts)} entries, and only the first {MOST_PARTS} are used; send fewer")


def _texts(field: str, value: object, longest: int, problems: _Problems) -> Iterator[tuple[str, str]]:
    """The valid strings of a list, with their fields. Reports items that are not strings or are too long, and too many
    strings.
    """
    if value is None:
        return
    if not isinstance(value, list):
        problems.add(field, "expected a list of strings")
        return
    _report_more(field, value, problems)
    left = longest
    for index, one in enumerate(value[:MOST_PARTS]):
        place = f"{field}[{index}]"
        if not isinstance(one, str):
            problems.add(place, f"expected a string, got {shown(one)}")
        elif len(one) > _LONGEST_PAIR:
            problems.add(place, f"has {len(one)} characters; use at most {_LONGEST_PAIR}")
        elif len(one) > left:
            problems.add(place, f"is dropped: {field} have more than {longest} characters in total; use fewer")
        else:
            left -= len(one)
            yield place, one


def _wrong_pair(key: str, value: str) -> str | None:
    if not is_label_key(key):
        remedy = "write name or domain/name, with a name of at most 63 characters"
        return f"{shown(key)} is not a valid key in Kubernetes; {remedy}"
    if not is_label_value(value):
        remedy = "use at most 63 characters (letters, digits, -, _ and .)"
        return f"{shown(value)} is not a valid value in Kubernetes; {remedy}"
    return None


def _labels(values: object, problems: _Problems) -> dict[str, str]:
    found: dict[str, str] = {}
    for place, text in _texts("labels", values, LONGEST_LABELS, problems):
        key, equals, value = text.partition("=")
        wrong = _wrong_pair(key, value) if equals else f"{shown(text)} has no '='; write key=value"
        if wrong is None and found.get(key, value) != value:
            wrong = f"{shown(key)} already has another value; write each key once"
        if wrong is None and key not in found and len(found) == MOST_LABELS:
            wrong = f"exceeds the limit of {MOST_LABELS} labels"
        if wrong is None:
            found[key] = value
        else:
            problems.add(place, wrong)
    return dict(sorted(found.items()))


def _taints(values: object, problems: _Problems) -> tuple[Taint, ...]:
    found = {(VIRTUAL_NODE_TAINT.key, VIRTUAL_NODE_TAINT.effect): VIRTUAL_NODE_TAINT}
    for place, text in _texts("taints", values, LONGEST_TAINTS, problems):
        pair, colon, effect = text.rpartition(":")
        key, _, value = pair.partition("=")
        wrong = _wrong_pair(key, value) if colon else f"{shown(text)} lacks the effect; write key=value:Effect"
        if wrong is None and effect not in EFFECTS:
            wrong = f"{shown(effect)} is not a valid effect; use one of {', '.join(EFFECTS)}"
        taint = Taint(key=key, value=value, effect=effect)
        if wrong is None and found.get((key, effect), taint) != taint:
            wrong = f"{shown(key)} already has another value with this effect; write each key and effect once"
        if wrong is None and (key, effect) not in found and len(found) > MOST_TAINTS:
            wrong = f"exceeds the limit of {MOST_TAINTS} taints"
        if wrong is None:
            found[key, effect] = taint
        else:
            problems.add(place, wrong)
    return tuple(sorted((taint for taint in found.values() if taint != VIRTUAL_NODE_TAINT), key=_order))


def _order(taint: Taint) -> tuple[str, str]:
    return taint.key, taint.effect
