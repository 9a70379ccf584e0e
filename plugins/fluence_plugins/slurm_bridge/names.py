"""Names that pods, nodes and workloads carry: those of slurm-bridge, so that either can take over from the other.

Source: slurm-bridge 1.2.1, internal/wellknown.
"""

from __future__ import annotations

from typing import Final

SLINKY: Final = "slinky.slurm.net/"
SCHEDULER: Final = "scheduler.slinky.slurm.net/"
JOB: Final = "slurmjob.slinky.slurm.net/"
"""Before the annotations of a workload that say what its Slurm job is to be."""

JOBID_LABEL: Final = SCHEDULER + "slurm-jobid"
"""Of a pod: the job that stands in for it."""
NODE_ANNOTATION: Final = SLINKY + "slurm-node"
"""Of a pod: the Kubernetes node that it was given."""
CORES_ANNOTATION: Final = SLINKY + "slurm-cores"
"""Of a bound pod: the cores of its node that Slurm gave its job, as `0-3,8`. Not of the original's."""
GRES_ANNOTATION: Final = SLINKY + "slurm-gres"
"""Of a bound pod: the generic resources of its node that Slurm gave its job, as `gpu:v100(IDX:0-1)`. Likewise."""
FINALIZER: Final = SCHEDULER + "finalizer"
"""Of a pod with a job: it is not gone before its job is told."""
NODE_NAME_LABEL: Final = SLINKY + "slurm-nodename"
"""Of a node: its name in Slurm, where that is another."""
EXTERNAL_NODE_LABEL: Final = SCHEDULER + "external-node"
"""Of a node: it is to be one of Slurm's, made and kept by this plugin."""
PARTITIONS_ANNOTATION: Final = SCHEDULER + "external-node-partitions"
"""Of an external node: the partitions that it is to be in, with commas between."""
TOPOLOGY_ANNOTATION: Final = "topology.slinky.slurm.net/spec"
"""Of an external node: its line of Slurm's topology."""
MANAGED_TAINT: Final = SLINKY + "managed-node"
"""The key of the taint (NoExecute) of nodes that Slurm gives away; its value is the scheduler's name."""
SCHEDULER_NAME: Final = "slurm-bridge-scheduler"
"""The schedulerName of pods that Slurm places, unless the configuration says another."""
