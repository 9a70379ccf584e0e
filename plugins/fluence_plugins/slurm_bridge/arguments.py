"""The arguments of the plugin `slurm-bridge` in the scheduler's configuration."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fluence_plugins.slurm_bridge.names import SCHEDULER_NAME
from fluence_plugins.slurm_bridge.slurm.transport import Connection
from session_scheduler import PluginArguments


class SlurmBridgeArguments(Connection, PluginArguments):
    """The `args` of the plugin `slurm-bridge`, in addition to those of `Connection`.

    schedulerName: of the pods that Slurm places; the same as the profile's. partition: for workloads that name none.
    mcsLabel: of all jobs. cluster: identifies this cluster's jobs in a Slurm that several clusters share (default: the
    uid of the namespace kube-system). tickSeconds: how often the plugin lists Slurm's jobs while some are pending.
    nodes: whether the plugin synchronises cordons, external nodes and taints. nodeAddress: the NodeAddr of external
    nodes (default: each node's own address).
    """

    timeout_seconds: Annotated[float, Field(gt=0, le=300)] = 10.0
    scheduler_name: Annotated[str, Field(min_length=1)] = SCHEDULER_NAME
    partition: Annotated[str, Field(min_length=1)] = "slurm-bridge"
    mcs_label: Annotated[str, Field(min_length=1)] = "kubernetes"
    cluster: Annotated[str, Field(max_length=253)] | None = None
    tick_seconds: Annotated[float, Field(ge=0.05, le=60)] = 0.5
    nodes: bool = True
    node_address: str | None = None
