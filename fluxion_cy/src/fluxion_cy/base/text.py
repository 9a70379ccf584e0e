"""Documents given as JSON or YAML text."""

import json
from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_DEPTH = 1000
#: PyYAML's own, and what its constructors let through for a value that its tag does not allow (`!!int ''`, `!!bool x`).
_YAML_ERRORS = (yaml.YAMLError, RecursionError, LookupError, AttributeError, TypeError, OverflowError)


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
        _check_nesting(text)
        return yaml.load(text, Loader=_LOADER)  # noqa: S506 - one of the safe loaders
    except _YAML_ERRORS as error:
        first = (str(error).splitlines() or ["nested too deeply"])[0]
        raise ValueError(f"neither JSON nor YAML: {first[:200]}") from None


def _check_nesting(text: str | bytes) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("YAML aliases are not supported; write the value out")  # noqa: TRY004 - the text is wrong
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested more than {_MAX_DEPTH} levels deep")
