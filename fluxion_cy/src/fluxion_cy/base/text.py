"""Documents given as JSON or YAML text."""

import json
from itertools import chain
from typing import Any

import yaml

_MAX_DEPTH = 1000
#: PyYAML's own, and what its constructors let through for a value that its tag does not allow (`!!int ''`, `!!bool x`).
_YAML_ERRORS = (yaml.YAMLError, RecursionError, LookupError, AttributeError, TypeError, OverflowError)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # the C one where it is compiled
    """PyYAML's safe loader without aliases and deep nesting. Both are refused before any value is made."""

    depth = 0

    def descend_resolver(self, current_node: yaml.Node | None, current_index: Any) -> None:
        """A node begins: the composer calls this for each, except for aliases."""
        if self.depth > _MAX_DEPTH:
            raise ValueError(f"nested more than {_MAX_DEPTH} levels deep")
        self.depth += 1
        super().descend_resolver(current_node, current_index)

    def ascend_resolver(self) -> None:
        """The node is complete."""
        self.depth -= 1
        super().ascend_resolver()

    def get_single_node(self) -> yaml.Node | None:
        """The document's root; a node that lies in two places is an alias."""
        root: yaml.Node | None = super().get_single_node()
        seen: set[int] = set()
        nodes = [root]
        while nodes:
            node = nodes.pop()
            if id(node) in seen:
                raise ValueError("YAML aliases are not supported; write the value out")
            seen.add(id(node))
            if isinstance(node, yaml.SequenceNode):
                nodes += node.value
            elif isinstance(node, yaml.MappingNode):
                nodes += chain.from_iterable(node.value)
        return root


def read_text(text: str | bytes) -> Any:
    """The value of JSON or YAML text; ValueError says in one line what is wrong.

    YAML aliases are refused, because a few lines of them can stand for more than memory holds, and so is nesting
    beyond 1,000 levels.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - one of the safe loaders
    except _YAML_ERRORS as error:
        first = (str(error).splitlines() or ["nested too deeply"])[0]
        raise ValueError(f"neither JSON nor YAML: {first[:200]}") from None
