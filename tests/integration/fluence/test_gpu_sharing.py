"""Pods that share GPUs with the resource graph: the plugin matches node by node, and preemption frees single GPUs."""

from __future__ import annotations

import pytest

from session_scheduler.framework.statement import Ledger
from session_scheduler.model.gpu_shares import GPU, GPU_FRACTION
from session_scheduler.model.objects import Pod
from session_scheduler.testing import FakeCluster, gang, pod

NVIDIA = "nvidia.com/gpu"


def part(name: str, fraction: str, **options: int) -> Pod:
    return pod(name, annotations={GPU_FRACTION: fraction}, priority=options.get("priority", 0))


def test_a_preemptor_gets_the_gpu_of_the_one_victim_that_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []
    remove = Ledger.remove
    monkeypatch.setattr(Ledger, "remove", lambda *args: (removed.append(args[1].name), remove(*args)))
    cluster = FakeCluster().use("fluence").nodes(2, cpu="8", offers={NVIDIA: 2})
    cluster.add(*(part(f"low-{index}", "0.7", priority=index) for index in range(4)))
    cluster.run()
    cluster.assert_all_bound()
    cluster.add(part("high", "0.5", priority=9))
    cluster.run()
    cluster.finish_deletions()
    cluster.run()
    cluster.assert_bound("high")
    left = {one.metadata.name for one in cluster.memory.objects(Pod)}
    assert left == {"high", "low-1", "low-2", "low-3"}
    assert removed == [], "expected no simulated removal: each node is evaluated alone"


def test_the_graph_places_a_gang_of_sharers_on_the_existing_gpus() -> None:
    cluster = FakeCluster().use("fluence").nodes(2, cpu="8", offers={NVIDIA: 2})
    cluster.add(gang("g", 8, cpu="1", annotations={GPU_FRACTION: "0.5"}))
    cluster.run()
    cluster.assert_all_bound()
    found = sorted((one.spec.node_name, one.metadata.annotations[GPU]) for one in cluster.memory.objects(Pod))
    assert found == [(node, gpu) for node in ("n1", "n2") for gpu in ("0", "0", "1", "1")]
