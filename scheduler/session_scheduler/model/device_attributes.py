"""The attributes of devices that a request fixes, as in `device.attributes["gpu.example.com"].model == "A100"`. Pure.

A selector is CEL and can accept devices in any way. Only the comparisons that it joins with `&&` fix an attribute; all
other selectors fix none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from session_scheduler.model.cel.errors import CompileError
from session_scheduler.model.cel.parser import Tree, parse
from session_scheduler.model.devices import DeviceSelector

AttributeValue = bool | int | str


def equal_values(one: AttributeValue, other: AttributeValue) -> bool:
    """Whether two values are equal and of one type: true is not 1."""
    return type(one) is type(other) and one == other


def fixed_attributes(selectors: Iterable[DeviceSelector]) -> dict[str, AttributeValue]:
    """By qualified name: the values that all devices have which these selectors accept together."""
    found: dict[str, AttributeValue] = {}
    for selector in selectors:
        found.update(_fixed_by(selector.cel.expression) if selector.cel is not None else {})
    return found


@lru_cache(maxsize=1000)
def _fixed_by(expression: str) -> Mapping[str, AttributeValue]:
    try:
        tree, _ = parse(expression)
    except (CompileError, RecursionError):
        return {}
    found: dict[str, AttributeValue] = {}
    parts = [tree]
    while parts:
        part = parts.pop()
        if part[0] == "and":
            parts += part[1:]
        elif part[0] == "call" and part[1] == "_==_":
            one, other = part[3]
            for name, value in ((_attribute(one), other), (_attribute(other), one)):
                if name is not None and value[0] == "const" and type(value[1]) in (bool, int, str):
                    found[name] = value[1]
    return found


def _attribute(tree: Tree) -> str | None:
    """The qualified name of the attribute that a tree reads; None for other trees."""
    field, of = _step(tree)
    domain, of = _step(of)
    return f"{domain}/{field}" if field and domain and of == _ATTRIBUTES else None


_ATTRIBUTES = ("select", ("ident", "device"), "attributes", False)


def _step(tree: Tree) -> tuple[str | None, Tree]:
    """The name that a selection or an index with a text reads, and the tree that it reads it of."""
    if tree[0] == "select" and not tree[3]:
        return tree[2], tree[1]
    if tree[0] == "index" and not tree[3] and tree[2][0] == "const" and isinstance(tree[2][1], str):
        return tree[2][1], tree[1]
    return None, tree
