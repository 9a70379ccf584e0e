"""Preemption from end to end on a cluster in memory: victims, nominations, waiting, and conditions."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from session_scheduler import Refusal, hookimpl
from session_scheduler.builtin import BUILTIN
from session_scheduler.config.settings import PluginConfig, Profile, SchedulerConfig
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.model.devices import ResourceClaim
from session_scheduler.model.objects import Node, Pod, PodStatus
from session_scheduler.registry.registry import Registry
from session_scheduler.testing import FakeCluster, gang, node, pod, pod_group

from ....tools.preempting import ended


def get(cluster: FakeCluster, name: str) -> Pod:
    return asyncio.run(cluster.memory.get(Pod, "default", name))


def condition(one: Pod, kind: str) -> Any:
    return next((found for found in one.status.conditions if found.type == kind), None)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(checked=False)


def test_a_pod_preempts_one_of_lower_priority(cluster: FakeCluster) -> None:
    cluster.add(node("n1", cpu="1"), pod("low", cpu="1", priority=1, bound_to="n1"))
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.run()
    assert ended(cluster) == ["low"]
    high, low = get(cluster, "high"), get(cluster, "low")
    assert high.status.nominated_node_name == "n1"
    scheduled = condition(high, "PodScheduled")
    assert (scheduled.status, scheduled.reason) == ("False", "Unschedulable")
    assert scheduled.message == "0/1 nodes are available: 1 Insufficient cpu."
    target = condition(low, "DisruptionTarget")
    assert (target.status, target.reason) == ("True", "PreemptionByScheduler")
    assert target.message == "fluence: preempting to accommodate a higher priority pod"
    cluster.finish_deletions()
    cluster.run()
    cluster.assert_bound("high", "n1")
    assert get(cluster, "high").status.nominated_node_name == ""


def test_the_cycle_yields_to_the_event_loop_after_each_preemption(cluster: FakeCluster) -> None:
    turns = [0]

    class Notes:
        name = "notes"

        def __init__(self) -> None:
            self.turns: list[int] = []

        @hookimpl
        def prefilter(self) -> None:
            self.turns.append(turns[0])

    async def decide(scheduler: Scheduler) -> None:
        async def count() -> None:
            while True:
                turns[0] += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await scheduler.cycle()
        counting.cancel()

    for number in range(3):
        cluster.add(node(f"n{number}", cpu="1"), pod(f"low{number}", cpu="1", priority=1, bound_to=f"n{number}"))
        cluster.add(pod(f"high{number}", cpu="1", priority=10))
    notes = Notes()
    asyncio.run(decide(cluster.start(notes)))
    assert len(ended(cluster)) == 3
    assert len(set(notes.turns)) == 3


def test_a_pod_preempts_no_more_pods_while_its_victims_terminate(cluster: FakeCluster) -> None:
    for number in (1, 2):
        cluster.add(node(f"n{number}", cpu="1"), pod(f"low{number}", cpu="1", priority=1, bound_to=f"n{number}"))
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.run()
    victims = ended(cluster)
    assert len(victims) == 1
    for _ in range(3):
        cluster.scheduler.queue.requeue_now("Pod default/high", cluster.clock.now())
        cluster.run()
    assert ended(cluster) == victims
    cluster.assert_pending(
        "high", "0/2 nodes are available: 2 Insufficient cpu. preemption: not eligible due to a terminating pod on the "
        "nominated node."
    )  # fmt: skip


def test_a_pod_with_preemption_policy_never_waits(cluster: FakeCluster) -> None:
    cluster.add(node("n1", cpu="1"), pod("low", cpu="1", priority=1, bound_to="n1"))
    cluster.add(pod("high", cpu="1", priority=10, preemption_policy="Never"))
    cluster.run()
    assert ended(cluster) == []
    cluster.assert_pending(
        "high", "0/1 nodes are available: 1 Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never."
    )


def test_the_condition_counts_nodes_without_victims_and_nodes_where_preemption_cannot_help(
    cluster: FakeCluster,
) -> None:
    cluster.add(node("n1", cpu="1"), pod("same", cpu="1", priority=10, bound_to="n1"))
    cluster.add(node("n2", cpu="1", unschedulable=True), pod("low", cpu="1", priority=1, bound_to="n2"))
    cluster.add(node("n3", cpu="500m"), pod("small", cpu="500m", priority=1, bound_to="n3"))
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.run()
    assert ended(cluster) == []
    cluster.assert_pending(
        "high", "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu. preemption: 0/3 nodes are "
        "available: 1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling."
    )  # fmt: skip


def nominated_pod(name: str, where: str, **options: Any) -> Pod:
    """A gated pod that is nominated for a node."""
    return replace(pod(name, gates=["later"], **options), status=PodStatus(nominated_node_name=where))


@pytest.mark.parametrize(("priority", "bound"), [(9, False), (10, False), (11, True)])
def test_only_pods_of_higher_priority_use_a_nominated_node(cluster: FakeCluster, priority: int, bound: bool) -> None:
    cluster.add(node("n1", cpu="2"), nominated_pod("waits", "n1", cpu="2", priority=10))
    cluster.add(pod("other", cpu="1", priority=priority))
    cluster.run()
    assert (cluster.node_of("other") == "n1") is bound
    if not bound:
        cluster.assert_pending("other", "0/1 nodes are available: 1 Insufficient cpu.")


def test_a_pod_that_fits_beside_a_nominated_pod_is_bound(cluster: FakeCluster) -> None:
    cluster.add(node("n1", cpu="2"), nominated_pod("waits", "n1", cpu="1", priority=10))
    cluster.add(*(pod(f"p{number}", cpu="500m") for number in range(3)))
    cluster.run()
    assert sorted(cluster.node_of(f"p{number}") or "" for number in range(3)) == ["", "n1", "n1"]


def test_a_pod_of_higher_priority_takes_over_the_nominated_node(cluster: FakeCluster) -> None:
    cluster.add(node("n1", cpu="1"), pod("low", cpu="1", priority=1, bound_to="n1"))
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.run()
    cluster.add(pod("higher", cpu="1", priority=20))
    cluster.run()
    assert get(cluster, "higher").status.nominated_node_name == "n1"
    assert get(cluster, "high").status.nominated_node_name == ""


OF_NO_CLASS = msgspec.convert(
    {"kind": "ResourceClaim", "metadata": {"name": "wrong", "namespace": "default"},
     "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "none"}}]}}},
    ResourceClaim,
)  # fmt: skip


def test_a_pod_that_fits_on_no_node_loses_its_nomination(cluster: FakeCluster) -> None:
    claim = {"name": "gpu", "resourceClaimName": "wrong"}
    high = pod("high", cpu="1", priority=10)
    cluster.add(OF_NO_CLASS)
    cluster.add(node("n1", cpu="1"), pod("low", cpu="1", priority=1))
    cluster.add(replace(high, spec=replace(high.spec, resource_claims=(claim,)),
                        status=PodStatus(nominated_node_name="n1")))  # fmt: skip
    cluster.run()
    cluster.assert_bound("low", "n1")
    assert get(cluster, "high").status.nominated_node_name == ""
    why = "0/1 nodes are available: request r: device class none does not exist. preemption: 0/1 nodes are available: "
    cluster.assert_pending("high", f"{why}1 Preemption is not helpful for scheduling.")


def test_members_of_a_gang_that_fit_on_no_node_lose_their_nominations(cluster: FakeCluster) -> None:
    claim = {"name": "gpu", "resourceClaimName": "wrong"}
    cluster.add(OF_NO_CLASS)
    cluster.add(node("n1", cpu="1"), pod("low", cpu="1", priority=1))
    for one in gang("high", 2, cpu="500m", priority=10):
        if isinstance(one, Pod):
            cluster.add(replace(one, spec=replace(one.spec, resource_claims=(claim,)),
                                status=PodStatus(nominated_node_name="n1")))  # fmt: skip
        else:
            cluster.add(one)
    cluster.run()
    cluster.assert_bound("low", "n1")
    assert get(cluster, "high-0").status.nominated_node_name == ""


def test_a_full_stop_separates_the_reasons_of_a_plugin_and_of_preemption(cluster: FakeCluster) -> None:
    class Refuses:
        name = "refuses"

        @hookimpl
        def place_group(self) -> Refusal:
            return Refusal("there is no such thing")

    cluster.add(node("n1", cpu="1"), *gang("one", 2, cpu="1"))
    cluster.run(Refuses())
    cluster.assert_pending("one-0", "there is no such thing. preemption: No preemption victims found")


def test_the_deletion_of_the_node_ends_the_nomination(cluster: FakeCluster) -> None:
    cluster.add(node("n1", cpu="1"), pod("low", cpu="1", priority=1, bound_to="n1"))
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.run()
    cluster.delete(Node, "n1", "")
    cluster.run()
    assert get(cluster, "high").status.nominated_node_name == ""


def test_a_nomination_is_read_back_after_a_restart(cluster: FakeCluster) -> None:
    cluster.add(node("n1", cpu="1"), node("n2", cpu="1"), pod("there", cpu="1", priority=10, bound_to="n2"))
    cluster.add(pod("low", cpu="1", priority=1, bound_to="n1"), pod("high", cpu="1", priority=10))
    cluster.run()
    assert get(cluster, "high").status.nominated_node_name == "n1"
    cluster.start()
    cluster.run()
    cluster.assert_pending("high", "not eligible due to a terminating pod on the nominated node.")
    cluster.finish_deletions()
    cluster.start()
    cluster.add(pod("equal", cpu="1", priority=10))
    cluster.run()
    cluster.assert_bound("high", "n1")
    cluster.assert_pending("equal")


def test_a_gang_preempts_all_or_nothing(cluster: FakeCluster) -> None:
    cluster.add(node("n1", cpu="1"), node("n2", cpu="1"), node("n3", cpu="1"))
    cluster.add(*(pod(f"low{number}", cpu="1", priority=1, bound_to=f"n{number}") for number in (1, 2)))
    cluster.add(pod("same", cpu="1", priority=10, bound_to="n3"))
    cluster.add(gang("three", 3, cpu="1", priority=10))
    cluster.run()
    assert ended(cluster) == []
    cluster.assert_pending("three-0", "preemption: ")
    cluster.add(gang("two", 2, cpu="1", priority=10))
    cluster.run()
    assert ended(cluster) == ["low1", "low2"]
    assert {get(cluster, f"two-{number}").status.nominated_node_name for number in (0, 1)} == {"n1", "n2"}
    target = condition(get(cluster, "low1"), "DisruptionTarget")
    assert target.message == "fluence: preempting to accommodate a higher priority podgroup"
    cluster.finish_deletions()
    cluster.run()
    cluster.assert_bound("two-0")
    cluster.assert_bound("two-1")


@pytest.mark.parametrize("mode", ["Pod", "PodGroup", None])
def test_only_with_disruption_mode_pod_a_gang_is_preempted_pod_by_pod(cluster: FakeCluster, mode: str | None) -> None:
    cluster.add(node("n1", cpu="1"), node("n2", cpu="1"))
    cluster.add(pod_group("old", 2, disruption_mode=mode))
    cluster.add(*(pod(f"old-{n}", group="old", cpu="1", priority=1, bound_to=f"n{n}") for n in (1, 2)))
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.run()
    assert len(ended(cluster)) == (1 if mode == "Pod" else 2)


def test_without_the_plugin_no_pods_are_preempted() -> None:
    off = (PluginConfig(name="DefaultPreemption", enabled=False),)
    config = SchedulerConfig(profiles=(Profile(plugins=off),))
    cluster = FakeCluster(checked=False)
    cluster.add(node("n1", cpu="1"), pod("low", cpu="1", priority=1, bound_to="n1"))
    cluster.add(pod("high", cpu="1", priority=10))
    scheduler = Scheduler(cluster.memory, config, Registry(BUILTIN).load_calls(config), cluster.clock)

    async def once() -> None:
        await scheduler.start()
        await scheduler.cycle()

    asyncio.run(once())
    assert ended(cluster) == []


def test_of_equal_pods_the_one_that_started_last_is_the_victim() -> None:
    cluster = FakeCluster(checked=False)
    cluster.add(node("n1", cpu="2"))
    for name, hour in (("old", "01"), ("new", "02")):
        one = pod(name, cpu="1", priority=1, bound_to="n1")
        status = PodStatus(phase="Running", start_time=f"2026-01-01T{hour}:00:00Z")
        cluster.add(replace(one, status=status))
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.run()
    assert ended(cluster) == ["new"]
