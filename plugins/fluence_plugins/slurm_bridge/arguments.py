"""The plugin's arguments in the scheduler's configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fluence_plugins.slurm_bridge.names import SCHEDULER_NAME
from session_scheduler import PluginArguments


class SlurmBridgeArguments(PluginArguments):
    """`args` of the plugin `slurm-bridge`.

    url: slurmrestd's, as http://slurmrestd:6820. tokenFile: the file with the JSON Web Token, read again when it
    changes. apiVersion: of slurmrestd's API. user: X-SLURM-USER-NAME, where the token does not say it. caFile: what
    slurmrestd's certificate is verified with (else the system's). timeoutSeconds: of one request.
    schedulerName: of the pods that Slurm places, which is that of the profile. partition: where workloads name none.
    mcsLabel: of all jobs. cluster: what tells this cluster's jobs from those of others that use the same Slurm (else
    the uid of its namespace kube-system). tickSeconds: how often Slurm is asked for its jobs while some wait.
    nodes: whether cordons, external nodes and taints are kept in step. nodeAddress: NodeAddr of external nodes (else
    their own).
    """

    url: Annotated[str, Field(min_length=1)]
    token_file: Annotated[str, Field(min_length=1)]
    api_version: Literal["v0.0.42", "v0.0.43", "v0.0.44"] = "v0.0.44"
    user: str | None = None
    ca_file: str | None = None
    timeout_seconds: Annotated[float, Field(gt=0, le=300)] = 10.0
    scheduler_name: Annotated[str, Field(min_length=1)] = SCHEDULER_NAME
    partition: Annotated[str, Field(min_length=1)] = "slurm-bridge"
    mcs_label: Annotated[str, Field(min_length=1)] = "kubernetes"
    cluster: Annotated[str, Field(max_length=253)] | None = None
    tick_seconds: Annotated[float, Field(ge=0.05, le=60)] = 0.5
    nodes: bool = True
    node_address: str | None = None
