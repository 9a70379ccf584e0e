"""Documents given as JSON or YAML text."""

import json
from itertools import chain
from typing import Any

import yaml

_MAX_DEPTH = 1000
#: PyYAML's errors, and those that its constructors pass on for a value that the tag forbids (`!!int ''`, `!!bool x`).
_YAML_ERRORS = (yaml.YAMLError, RecursionError, LookupError, AttributeError, TypeError, OverflowError)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # the C one where it is compiled
    """PyYAML's safe loader. It rejects aliases and deep nesting before it creates any value."""

    depth = 0

    def descend_resolver(self, current_node: yaml.Node | None, current_index: Any) -> None:
        """Called by the composer at the start of each node, except for aliases."""
        if self.depth > _MAX_DEPTH:
            raise ValueError(f"nested more than {_MAX_DEPTH} levels deep")
        self.depth += 1
        super().descend_resolver(current_node, current_index)

    def ascend_resolver(self) -> None:
        """Called at the end of each node."""
        self.depth -= 1
        super().ascend_resolver()

    def get_single_node(self) -> yaml.Node | None:
        """The document's root. A node that occurs twice is an alias."""
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
    """The value of JSON or YAML text. Raises ValueError with a message of one line.

    It rejects nesting beyond 1,000 levels, and YAML aliases: a few lines of them can expand to more than memory holds.
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
