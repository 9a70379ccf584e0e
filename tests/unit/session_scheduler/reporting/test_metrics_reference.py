"""The reference page and a scrape show the same metrics."""

import re
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.plugin import FluencePlugin
from fluence_plugins.master_queue.arguments import MasterQueueArguments
from fluence_plugins.master_queue.metrics import PoolSample
from fluence_plugins.master_queue.plugin import MasterQueuePlugin
from fluence_plugins.slurm_bridge.arguments import SlurmBridgeArguments
from fluence_plugins.slurm_bridge.plugin import SlurmBridgePlugin
from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.model.groups import NodeChange
from session_scheduler.model.objects import Node, NodeStatus, ObjectMeta
from session_scheduler.registry.validation import hook_calls
from session_scheduler.reporting.metrics import Metrics, Pending
from session_scheduler.testing.builders import pod
from session_scheduler.testing.fake_cluster import FakeCluster

PAGE = (Path(__file__).parents[4] / "docs/reference/metrics.md").read_text()
NODE = Node(metadata=ObjectMeta(name="n1"), status=NodeStatus(allocatable={"cpu": "2", "memory": "1Gi"}))
Row = tuple[str, str, frozenset[str]]
"""The name, type and labels of a metric."""


def rows_of_the_page() -> set[Row]:
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if "| `fluence_" in line]
    return {(name.strip("`"), kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in cells}


def rows_of(families: Iterable[Metric]) -> set[Row]:
    rows = set()
    for family in families:
        suffix = "_total" if family.type == "counter" else ""
        assert family.samples, f"{family.name} is shown without a sample: its labels cannot be compared"
        labels = frozenset(label for sample in family.samples for label in sample.labels) - {"le"}
        rows.add((family.name + suffix, family.type, labels))
    return rows


def everything_once(metrics: Metrics) -> None:
    """Record one value for each metric whose labels are not known from the start."""
    metrics.watches.event("Pod")
    metrics.watches.watch_ended("Pod", "Ended")
    metrics.watches.relisted("Pod", "Gone")
    metrics.watches.missed("Pod", 1)
    metrics.reports.dropped("event", "Full")
    metrics.requeued.add("NodeAdd", "NodeResourcesFit")


def with_a_queue() -> object:
    """The plugin, with a queue that has one running and one waiting pod."""
    queue = QueueConfig(name="a", limit={"cpu": 1}, deserved={"cpu": 1})
    cluster = FakeCluster(config=SchedulerConfig(queues=(queue,)))
    cluster.nodes(1)
    cluster.add(*(pod(name, cpu="1", labels={"fluence.flux-framework.org/queue": "a"}) for name in "pq"))
    cluster.run()
    return cluster.scheduler.profiles["fluence"].instances["Proportion"]


def with_pools() -> MasterQueuePlugin:
    """The plugin after every event that it counts."""
    plugin = MasterQueuePlugin(MasterQueueArguments())
    controller: Any = SimpleNamespace(
        connector_states=lambda: {"nats.nats:4222": True}, pool_samples=lambda: [PoolSample("m", "a", "Active", 1.0)]
    )
    plugin._controller = controller
    for result in ("taken", "partial", "refused", "unknown"):
        plugin.counters.message("interlink.resources", result)
    for result in ("created", "changed", "deleted", "conflict", "error"):
        plugin.counters.applied("ClusterQueue", result)
    plugin.counters.dropped("nats.nats:4222")
    plugin.counters.reconnected("nats.nats:4222")
    return plugin


def shown() -> list[Metric]:
    metrics = Metrics("0.1.0")
    plugin = FluencePlugin(FluenceArguments())
    plugin.on_nodes_changed([NodeChange("n1", NODE, ())])
    bridge = SlurmBridgePlugin(SlurmBridgeArguments(url="http://slurm", token_file="token"))
    with bridge._bridge.metrics.request("jobs"):
        pass
    listed = [("fluence", plugin, None), ("slurm-bridge", bridge, None), ("Proportion", with_a_queue(), None),
              ("master-queue", with_pools(), None)]  # fmt: skip
    metrics.follow_profiles({"fluence": hook_calls(listed)})
    metrics.follow_pending(lambda: Pending(groups={}, pods={}, reserved=0))
    apis: Any = SimpleNamespace(versions=["v1alpha2"], gates={"A": True, "B": False})
    metrics.follow_pod_groups(apis)
    everything_once(metrics)
    return list(text_string_to_metric_families(metrics.exposition()[0].decode()))


def test_the_page_lists_exactly_the_metrics_of_a_scrape_with_types_and_labels() -> None:
    page = rows_of_the_page()
    assert len(page) > 30
    assert rows_of(shown()) == page


def test_the_page_lists_every_value_of_the_initial_labels() -> None:
    lines = {line.split("|")[1].strip(" `"): line for line in PAGE.splitlines() if "| `fluence_" in line}
    for family in shown():
        name = family.name + ("_total" if family.type == "counter" else "")
        for sample in family.samples:
            for label, value in sample.labels.items():
                if label in ("result", "stage", "state", "code", "what", "outcome", "held"):
                    assert f"`{value}`" in lines[name], (name, label)
