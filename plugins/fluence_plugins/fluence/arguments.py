"""The plugin's arguments in the scheduler's configuration; what is not given there comes from the environment."""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import Field

from fluence_plugins.fluence.resources import ResourcesConfig, load_resources
from fluence_plugins.fluence.resources_file import ResourcesFile
from session_scheduler import PluginArguments

MATCH_POLICY_ENV = "FLUENCE_MATCH_POLICY"
DEFAULT_POLICY = "first"


class FluenceArguments(PluginArguments):
    """`args` of the plugin `fluence`.

    resources: path of resources.yaml, which must be there (else that of FLUENCE_RESOURCES, where there may be none yet;
    neither: classical work only). resourcesText: what such a file holds, in place of one. matchPolicy: a match
    policy of Fluxion (else FLUENCE_MATCH_POLICY, else first). matchBudget: the most matches that are tried for a
    group beyond the first order of its classes, which is always tried to its end; and the attribute values that are
    tried for a pod whose devices disagree. requireInjectedEnv: whether a live cluster's pod that asks for devices and
    came without the webhook's environment is refused. makePodGroups: whether a live cluster's groups by label get
    PodGroups.
    """

    resources: str | None = None
    resources_text: str | None = None
    match_policy: str | None = None
    match_budget: Annotated[int, Field(ge=1)] = 64
    require_injected_env: bool = False
    make_pod_groups: bool = False

    def load(self) -> ResourcesConfig:
        """The resource trees. Raises ResourcesError or DocumentError, naming the file."""
        text, source = self._text()
        return load_resources(text, source)

    def _text(self) -> tuple[str, str]:
        """What describes the trees, and where that is from. Raises ResourcesError."""
        if self.resources_text is not None and not self.resources:
            return self.resources_text, "resourcesText"
        file = self.file()
        return (file.read(), file.path) if file is not None else ("", "")

    def file(self) -> ResourcesFile | None:
        """The file that describes the trees; None where none does."""
        if self.resources_text is not None and not self.resources:
            return None
        return ResourcesFile.configured(self.resources)

    def saved(self) -> dict[str, Any]:
        """The same as arguments that need no file and no environment. Raises ResourcesError."""
        return {"resources": None, "resourcesText": self._text()[0], "matchPolicy": self.policy}

    @property
    def policy(self) -> str:
        """The match policy that holds."""
        return self.match_policy or os.environ.get(MATCH_POLICY_ENV) or DEFAULT_POLICY
