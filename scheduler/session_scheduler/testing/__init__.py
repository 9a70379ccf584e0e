"""For plugin authors: objects in one line, a cluster in memory to place them in, and what must hold afterwards.

cluster = FakeCluster()
cluster.nodes(3)
cluster.add(pod("p"))
cluster.run(MyPlugin(None))
cluster.assert_bound("p", "n1")
"""

from session_scheduler.testing.builders import gang, node, pod, pod_group
from session_scheduler.testing.fake_cluster import FakeCluster
from session_scheduler.testing.invariants import InvariantError, check_invariants

__all__ = ["FakeCluster", "InvariantError", "check_invariants", "gang", "node", "pod", "pod_group"]
