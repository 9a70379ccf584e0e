"""Documents given as a mapping, or as JSON or YAML text."""

import json
from collections.abc import Mapping
from typing import Any

import yaml

from fluxion_cy.errors import InvalidGraph

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_text(text: str | bytes) -> Any:
    """The value of JSON or YAML text; ValueError says in one line what is wrong.

    YAML aliases are refused: a few lines of them can stand for more than memory holds.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=_LOADER)):
            raise ValueError("YAML aliases are not supported; write the value out")
        return yaml.load(text, Loader=_LOADER)  # noqa: S506 - one of the safe loaders
    except (yaml.YAMLError, RecursionError) as error:
        first = (str(error).splitlines() or ["nested too deeply"])[0]
        raise ValueError(f"neither JSON nor YAML: {first[:200]}") from None


def read_graph(value: Any) -> dict[str, Any]:
    """The JGF document; InvalidGraph (EPROTO) where the text is neither JSON nor YAML."""
    if isinstance(value, (str, bytes)):
        try:
            value = read_text(value)
        except ValueError as error:
            raise InvalidGraph(f"graph: {error}") from None
    if not isinstance(value, Mapping):
        raise InvalidGraph(f"graph: a JGF document is a mapping, not {type(value).__name__}")
    return value if isinstance(value, dict) else dict(value)
