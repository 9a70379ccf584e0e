"""Graphs given as a mapping, or as JSON or YAML text."""

import json
from collections.abc import Mapping
from typing import Any

import yaml

from fluxion_cy.errors import InvalidGraph


def read_graph(value: Any) -> dict[str, Any]:
    """The JGF document; InvalidGraph (EPROTO) where the text is neither JSON nor YAML."""
    if isinstance(value, (str, bytes)):
        value = _text(value)
    if not isinstance(value, Mapping):
        raise InvalidGraph(f"graph: a JGF document is a mapping, not {type(value).__name__}")
    return value if isinstance(value, dict) else dict(value)


def _text(value: str | bytes) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        pass
    try:
        return yaml.load(value, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidGraph(f"graph: neither JSON nor YAML: {str(error).splitlines()[0][:200]}") from None
