"""The cluster that the scheduler reads and writes, as `Binding.cluster` and `Runtime.cluster`."""

from session_scheduler.cluster.port import Cluster, Kube

__all__ = ["Cluster", "Kube"]
