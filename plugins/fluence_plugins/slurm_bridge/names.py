"""The labels, annotations and taints of pods, nodes and workloads. They equal those of SchedMD's slurm-bridge, so that
either can replace the other.

Source: slurm-bridge 1.2.1, internal/wellknown.
"""

from __future__ import annotations

from typing import Final

SLINKY: Final = "slinky.slurm.net/"
SCHEDULER: Final = "scheduler.slinky.slurm.net/"
JOB: Final = "slurmjob.slinky.slurm.net/"
"""The prefix of the annotations that configure a workload's Slurm job."""

JOBID_LABEL: Final = SCHEDULER + "slurm-jobid"
"""Label of a pod: the number of its Slurm job."""
NODE_ANNOTATION: Final = SLINKY + "slurm-node"
"""Annotation of a pod: the Kubernetes node that it is assigned to."""
CORES_ANNOTATION: Final = SLINKY + "slurm-cores"
"""Annotation of a bound pod: the cores that Slurm allocated on its node, as `0-3,8`. SchedMD's bridge does not set it.
"""
GRES_ANNOTATION: Final = SLINKY + "slurm-gres"
"""Annotation of a bound pod: the generic resources that Slurm allocated on its node, as `gpu:v100(IDX:0-1)`. SchedMD's
bridge does not set it.
"""
FINALIZER: Final = SCHEDULER + "finalizer"
"""Finalizer of a pod with a job: a deleted pod stays until its job is cancelled or has ended."""
NODE_NAME_LABEL: Final = SLINKY + "slurm-nodename"
"""Label of a node: its name in Slurm, if it differs."""
EXTERNAL_NODE_LABEL: Final = SCHEDULER + "external-node"
"""Label of a node: the plugin creates and maintains the node in Slurm as an external node."""
PARTITIONS_ANNOTATION: Final = SCHEDULER + "external-node-partitions"
"""Annotation of an external node: its partitions, separated by commas."""
TOPOLOGY_ANNOTATION: Final = "topology.slinky.slurm.net/spec"
"""Annotation of an external node: its `Topology` in Slurm."""
MANAGED_TAINT: Final = SLINKY + "managed-node"
"""The key of the NoExecute taint on nodes that Slurm allocates; its value is the scheduler's name."""
SCHEDULER_NAME: Final = "slurm-bridge-scheduler"
"""The default `schedulerName` of the pods that Slurm places."""
