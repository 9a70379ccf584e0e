"""The plugin's arguments in the scheduler's configuration; what is not given there comes from the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fluence_plugins.fluence.errors import ResourcesError
from fluence_plugins.fluence.resources import ResourcesConfig, load_resources
from session_scheduler import PluginArguments

RESOURCES_ENV = "FLUENCE_RESOURCES"
MATCH_POLICY_ENV = "FLUENCE_MATCH_POLICY"
CAPACITY_ENV = "FLUENCE_RESOURCE_CAPACITY"
DEFAULT_POLICY = "first"
DEFAULT_CAPACITY = 1000


class FluenceArguments(PluginArguments):
    """`args` of the plugin `fluence`.

    resources: path of resources.yaml (else FLUENCE_RESOURCES; neither: classical work only). matchPolicy: a match
    policy of Fluxion (else FLUENCE_MATCH_POLICY, else first). matchBudget: the most matches that are tried for a
    group beyond the first order of its classes, which is always tried to its end; and the attribute values that are
    tried for a pod whose devices disagree.
    """

    resources: str | None = None
    match_policy: str | None = None
    match_budget: Annotated[int, Field(ge=1)] = 64

    def load(self) -> ResourcesConfig:
        """The resource trees. Raises ResourcesError, naming the file."""
        path = self.resources or os.environ.get(RESOURCES_ENV)
        if not path:
            return ResourcesConfig()
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ResourcesError(f"{path}: cannot be read ({reason}): name a readable resources file") from error
        return load_resources(text, path)

    @property
    def policy(self) -> str:
        """The match policy that holds."""
        return self.match_policy or os.environ.get(MATCH_POLICY_ENV) or DEFAULT_POLICY


def capacity() -> int:
    """How many of each type a node advertises (FLUENCE_RESOURCE_CAPACITY). Raises ResourcesError."""
    text = os.environ.get(CAPACITY_ENV, str(DEFAULT_CAPACITY))
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise ResourcesError(f"{CAPACITY_ENV}: {text!r} is no capacity: use a whole number from 1 on, as 1000")
    return int(text)
