"""Reads YAML and JSON within limits as plain values, and writes YAML."""

import re
import sys
from typing import Any

import yaml

from fluence_plugins.resources.errors import DocumentError
from session_scheduler.config.yaml_text import Limits, Scalars, YamlError, read_value

_LIMITS = Limits(bytes=1 << 20, depth=64, aliased=200_000)
_OURS = Limits(bytes=sys.maxsize, depth=64, aliased=200_000)


def load(text: str, source: str, scalars: Scalars = "json", limited: bool = True) -> Any:
    """Return the value of a YAML or JSON document; None for an empty one.

    `scalars="text"` keeps every scalar except null as written (`80` is "80", `1.10` is "1.10"). `limited=False` is for
    text that this project writes, of any size. Raises DocumentError with `source` and the line.
    """
    try:
        return read_value(text, scalars, _LIMITS if limited else _OURS)
    except YamlError as error:
        where = source if error.line is None else f"{source}:{error.line}"
        raise DocumentError(f"{where}: {error.problem}") from None


def dump_yaml(value: Any) -> str:
    """Write a plain value as block-style YAML that `load` reads back as an equal value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=100)


class _Dumper(yaml.SafeDumper):
    """Repeats a value instead of an alias, because some readers lack aliases. Keeps strings strings in YAML 1.1 and
    1.2.
    """

    def ignore_aliases(self, _data: Any) -> bool:
        return True


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|0o[0-7]+$"),
    list("-+.0123456789"),
)
