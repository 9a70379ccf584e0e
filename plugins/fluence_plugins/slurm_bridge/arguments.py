"""The plugin's arguments in the scheduler's configuration."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fluence_plugins.slurm_bridge.names import SCHEDULER_NAME
from fluence_plugins.slurm_bridge.slurm.transport import Connection
from session_scheduler import PluginArguments


class SlurmBridgeArguments(Connection, PluginArguments):
    """`args` of the plugin `slurm-bridge`, beside those of `Connection`.

    schedulerName: of the pods that Slurm places, which is that of the profile. partition: where workloads name none.
    mcsLabel: of all jobs. cluster: what tells this cluster's jobs from those of others that use the same Slurm (else
    the uid of its namespace kube-system). tickSeconds: how often Slurm is asked for its jobs while some wait.
    nodes: whether cordons, external nodes and taints are kept in step. nodeAddress: NodeAddr of external nodes (else
    their own).
    """

    timeout_seconds: Annotated[float, Field(gt=0, le=300)] = 10.0
    scheduler_name: Annotated[str, Field(min_length=1)] = SCHEDULER_NAME
    partition: Annotated[str, Field(min_length=1)] = "slurm-bridge"
    mcs_label: Annotated[str, Field(min_length=1)] = "kubernetes"
    cluster: Annotated[str, Field(max_length=253)] | None = None
    tick_seconds: Annotated[float, Field(ge=0.05, le=60)] = 0.5
    nodes: bool = True
    node_address: str | None = None
