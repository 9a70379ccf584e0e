"""The arguments of the plugin `master-queue`, and the configuration of its own server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field

from fluence_plugins.master_queue.nats.settings import ConnectorSettings
from session_scheduler import PluginArguments
from session_scheduler.config.settings import LeaderElection, Serving

API_VERSION: Final = "fluence.flux-framework.org/v1alpha1"
KIND: Final = "MasterQueueConfiguration"


class MasterQueueArguments(PluginArguments):
    """The `args` of the plugin `master-queue`.

    connectors: the settings of NATS servers, by the name in natsConnector. statusSeconds: how old the time of a pool's
    last message in the status may be.
    """

    connectors: Mapping[Annotated[str, Field(min_length=1, max_length=253)], ConnectorSettings] = {}
    status_seconds: Annotated[float, Field(ge=1, le=3600)] = 30.0


class Election(LeaderElection):
    """The Lease of this server. Its default name differs from the scheduler's, which holds a Lease of its own."""

    name: Annotated[str, Field(min_length=1)] = "fluence-master-queue"


class MasterQueueConfiguration(MasterQueueArguments):
    """The configuration of `fluence master-queue`: the plugin's arguments, and settings that `fluence run` also has."""

    api_version: Literal["fluence.flux-framework.org/v1alpha1"] = API_VERSION
    kind: Literal["MasterQueueConfiguration"] = KIND
    leader_election: Election = Election()
    serving: Serving = Serving()
