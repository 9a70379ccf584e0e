"""Edits the status of a resource in the text of a resources file, and keeps the rest of the text.

The edit changes one place, so comments, order and quotes stay. The result is parsed again and must differ only in that
status; otherwise the edit is refused, and the user must edit the file.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from fluence_plugins.resources import documents
from fluence_plugins.resources.config import DOWN, UP, load_resources
from fluence_plugins.resources.errors import DocumentError, ResourcesError, listed
from session_scheduler.errors import plain, shown


def with_status(text: str, name: str, *, down: bool, source: str) -> tuple[str, tuple[str, ...]]:
    """Return the text with the status of the named resource (at any depth) set, unchanged if it has that status; and
    the names of the resources above it that are down, the nearest first (or types, if they have no name).

    Raises ResourcesError or DocumentError, which name `source`, if the text is not a valid resources file, has no such
    resource, or cannot be edited at one place.
    """
    load_resources(text, source)
    data = documents.load(text, source, scalars="text")
    entry = next((entry for entry in _entries(data) if entry.get("name") == name), None)
    if entry is None:
        raise ResourcesError(f"{source}: no resource has the name {shown(name)}; {_named(data)}")
    within = _down_above(data, entry)
    if ((entry.get("status") or UP) == DOWN) is down:
        return text, within
    changed = _changed(text, name, down=down)
    if changed is None or not _same_but_for(name, data, changed, down=down):
        word = f"`status: {DOWN if down else UP}`"
        raise ResourcesError(f"{source}: cannot edit {name} as it is written; set {word} by hand")
    return changed, within


def _down_above(data: Any, entry: Mapping[str, Any]) -> tuple[str, ...]:
    above: dict[int, dict[str, Any]] = {}
    entries = list(_entries(data))
    named = {entry["name"]: entry for entry in entries if entry.get("name")}
    for one in entries:
        above |= {id(child): one for child in one.get("with") or []}
        if one.get("parent") in named:
            above[id(one)] = named[one["parent"]]
    found = list[str]()
    at: Mapping[str, Any] | None = entry
    while (at := above.get(id(at))) is not None:
        if at.get("status") == DOWN:
            found.append(plain(at.get("name") or at["type"]))
    return tuple(found)


def _entries(data: Any) -> Iterator[dict[str, Any]]:
    """All resources of a valid file, parents first."""
    listed = list(reversed((data or {}).get("resources") or []))
    while listed:
        entry = listed.pop()
        yield entry
        listed += reversed(entry.get("with") or [])


def _named(data: Any) -> str:
    found = listed({entry["name"] for entry in _entries(data) if entry.get("name")})
    return f"the names are {found} (to change one of several equal resources, give it its own entry)"


def _same_but_for(name: str, before: Any, text: str, *, down: bool) -> bool:
    """Whether the text equals `before`, except for the resource's status."""
    try:
        now = documents.load(text, "", scalars="text")
        load_resources(text, "")
    except (DocumentError, ResourcesError):
        return False
    wanted = copy.deepcopy(before)
    for entry in _entries(wanted):
        if entry.get("name") == name:
            entry["status"] = DOWN if down else UP
    same: bool = _plainly(now) == _plainly(wanted)
    return same


def _plainly(data: Any) -> Any:
    """The data without `status: up`, which is the default."""
    if isinstance(data, list):
        return [_plainly(item) for item in data]
    if not isinstance(data, Mapping):
        return data
    return {key: _plainly(value) for key, value in data.items() if not (key == "status" and value in (None, UP))}


# ---------------------------------------------------------------------- text edits


def _changed(text: str, name: str, *, down: bool) -> str | None:
    """The edited text; None if the name is not found."""
    for entry in _nodes(yaml.compose(text, Loader=yaml.SafeLoader)):
        fields = {key.value: (key, value) for key, value in entry.value if isinstance(key, yaml.ScalarNode)}
        if "name" not in fields or fields["name"][1].value != name:
            continue
        if "status" in fields:
            return _rewritten(text, *fields["status"], down=down)
        key, value = fields["name"]
        return _added_in_line(text, key, value) if entry.flow_style else _added_below(text, key, value)
    return None


def _nodes(root: yaml.Node | None) -> Iterator[yaml.MappingNode]:
    """The YAML mappings of the file's resources, each once, although aliases may repeat them."""
    waiting = [_field(root, "resources")]
    seen: set[int] = set()
    while waiting:
        listed = waiting.pop()
        for entry in listed.value if isinstance(listed, yaml.SequenceNode) else ():
            if isinstance(entry, yaml.MappingNode) and id(entry) not in seen:
                seen.add(id(entry))
                yield entry
                waiting.append(_field(entry, "with"))


def _field(node: yaml.Node | None, name: str) -> yaml.Node | None:
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for key, value in pairs if key.value == name), None)


def _rewritten(text: str, key: yaml.Node, value: yaml.Node, *, down: bool) -> str:
    """Replace an existing status. If its line contains nothing else, setting `up` removes the line."""
    start, end = value.start_mark.index, value.end_mark.index
    first = text.rfind("\n", 0, key.start_mark.index) + 1
    last = text.find("\n", end)
    alone = not text[first : key.start_mark.index].strip() and last >= 0 and not text[end:last].strip()
    if not down and alone:
        return text[:first] + text[last + 1 :]
    space = " " if start == end else ""  # an empty value starts right after the colon
    quote = text[start] if text[start : start + 1] in ("'", '"') and start < end else ""
    return f"{text[:start]}{space}{quote}{DOWN if down else UP}{quote}{text[end:]}"


def _added_in_line(text: str, key: yaml.Node, value: yaml.Node) -> str:
    """Add a status after the name, within brackets."""
    quote = '"' if text[key.start_mark.index] == '"' else ""
    end = value.end_mark.index
    return f"{text[:end]}, {quote}status{quote}: {quote}{DOWN}{quote}{text[end:]}"


def _added_below(text: str, key: yaml.Node, value: yaml.Node) -> str:
    """Add a status on a new line below the name."""
    end = text.find("\n", value.end_mark.index)
    line = f"{' ' * key.start_mark.column}status: {DOWN}"
    if end < 0:
        return f"{text}\n{line}\n"
    ending = "\r\n" if text[end - 1] == "\r" else "\n"
    return f"{text[: end + 1]}{line}{ending}{text[end + 1 :]}"
