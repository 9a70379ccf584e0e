"""The plugin's arguments, and the configuration of its own server."""

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
    """`args` of the plugin `master-queue`.

    connectors: how NATS servers are reached, by the name that a natsConnector gives; for one that is no URL.
    statusSeconds: how old the time of a pool's last message may be in the status.
    """

    connectors: Mapping[Annotated[str, Field(min_length=1, max_length=253)], ConnectorSettings] = {}
    status_seconds: Annotated[float, Field(ge=1, le=3600)] = 30.0


class Election(LeaderElection):
    """By a Lease of its own, also where only other fields are given: the scheduler holds its own while it runs."""

    name: Annotated[str, Field(min_length=1)] = "fluence-master-queue"


class MasterQueueConfiguration(MasterQueueArguments):
    """The whole configuration of `fluence master-queue`: the plugin's arguments, and what `fluence run` has, too."""

    api_version: Literal["fluence.flux-framework.org/v1alpha1"] = API_VERSION
    kind: Literal["MasterQueueConfiguration"] = KIND
    leader_election: Election = Election()
    serving: Serving = Serving()
