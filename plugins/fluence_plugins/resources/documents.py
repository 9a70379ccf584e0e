"""YAML and JSON as plain values, read within limits."""

from typing import Any

from fluence_plugins.resources.errors import DocumentError
from session_scheduler.config.yaml_text import Limits, Scalars, YamlError, read_value

_LIMITS = Limits(bytes=1 << 20, depth=64, aliased=200_000)


def load(text: str, source: str, scalars: Scalars = "json") -> Any:
    """Return the value of a YAML or JSON text; None for an empty one.

    `scalars="text"` keeps every scalar but null as it was written (`80` is "80", `1.10` is "1.10"). Raises
    DocumentError with `source` and the line.
    """
    try:
        return read_value(text, scalars, _LIMITS)
    except YamlError as error:
        where = source if error.line is None else f"{source}:{error.line}"
        raise DocumentError(f"{where}: {error.problem}") from None
