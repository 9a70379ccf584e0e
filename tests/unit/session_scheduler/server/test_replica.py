"""One replica's life: standing by, ingesting the cluster, leading, losing the lease, ending; and what it says of it.

The cluster is in memory. Time stands still unless a test moves it. Tests poll for what no event reports, turn by turn.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client.core import GaugeMetricFamily

from session_scheduler import hookimpl
from session_scheduler.base import http_pool
from session_scheduler.base.clock import StoppedClock
from session_scheduler.binding.binder import LEADER_ANNOTATION
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster import leader_election
from session_scheduler.cluster.errors import NotLeading, Unavailable
from session_scheduler.cluster.partition_claims import ANNOTATION, PartitionClaims, PartitionError
from session_scheduler.config.partition import PartitionConfig
from session_scheduler.config.settings import LeaderElection, Profile, SchedulerConfig, Serving
from session_scheduler.engine import loop as loop_module
from session_scheduler.framework.bindings import HELD_ANNOTATION
from session_scheduler.model.objects import Lease, LeaseSpec, ObjectMeta
from session_scheduler.registry.validation import hook_calls
from session_scheduler.sdk import http_server
from session_scheduler.sdk.http_authorization import DelegatedAuthorization
from session_scheduler.sdk.leader import LOST
from session_scheduler.server import replica
from session_scheduler.server.replica import Replica
from session_scheduler.testing import node, pod

from ..sdk.leading_cluster import Cluster, live

ELECTION = LeaderElection(retry_seconds=0.01)
"""Between tries it really waits; everything else is by the clock that the tests move."""
PATIENCE = 20.0
LEADING = {"leading": None, "synced": None, "recovered": None}


class Slow:
    """Binds wait while `go` is not set."""

    def __init__(self):
        self.go, self.waiting = asyncio.Event(), asyncio.Event()
        self.go.set()
        self.served = []
        self.names: dict[str, set[str]] = {}
        self.recovered_names: dict[str, set[str]] = {}
        """Its exclusive names until it recovers, and then."""
        self.called = []
        """The calls that rebuild its state, in order."""
        self.lost: dict[str, str] = {}
        """By pod: why it cannot recover what the pod holds."""
        self.failures: list[Exception] = []
        """What its next calls of `recover` raise."""
        self.may_free = asyncio.Event()
        self.may_free.set()

    @hookimpl
    def on_nodes_changed(self, changes):
        self.called.append({change.name: [task.name for task in change.tasks] for change in changes})

    @hookimpl
    def recover(self, holdings):
        self.called.append(("recover", [holding.task.name for holding in holdings]))
        if self.failures:
            raise self.failures.pop()
        self.names = self.recovered_names
        return {holding.task.uid: self.lost[holding.task.name] for holding in holdings
                if holding.task.name in self.lost}  # fmt: skip

    @hookimpl
    async def cancel(self, allocation):
        self.called.append(("cancel", allocation.pod.metadata.name))
        await self.may_free.wait()
        self.called.append(("freed", allocation.pod.metadata.name))

    @hookimpl
    def exclusive_names(self):
        return self.names

    @hookimpl
    async def prebind(self, binding):
        self.waiting.set()
        await self.go.wait()

    @hookimpl
    def metrics(self):
        return [GaugeMetricFamily("fluence_slow_served", "How often it served.", value=len(self.served))]

    @hookimpl
    def serve(self, runtime):
        @asynccontextmanager
        async def serving():
            self.runtime = runtime
            self.served.append(runtime.elected)
            yield
            self.served.append("ended")

        return serving()


class World:
    said: dict[str, Any]
    """What the replica lets its endpoints say."""

    def __init__(self, *objects, election=ELECTION, partition=None):
        self.clock, self.cluster, self.slow = StoppedClock(), Cluster(node("n1"), *objects), Slow()
        self.stop = asyncio.Event()
        config = SchedulerConfig(leader_election=election, serving=Serving(host="127.0.0.1", port=0),
                                 partition=partition)  # fmt: skip
        listed = [(name, builtin(None), None) for name, builtin in BUILTIN.items()]
        calls = hook_calls([*listed, ("slow", self.slow, None)])
        self.replica = Replica(config, {"fluence": calls}, self.clock)

    @asynccontextmanager
    async def running(self):
        self.life = asyncio.ensure_future(self.replica.run(live(self.cluster), self.stop))
        await self.until(lambda: "ready" in self.said)
        try:
            yield self
        finally:
            self.slow.go.set()
            await self.ended()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def ended(self):
        """Its exit status, once it was stopped, or ends on its own."""
        self.stop.set()
        return await asyncio.wait_for(self.life, PATIENCE)

    async def until(self, holds):
        async with asyncio.timeout(PATIENCE):
            while not holds():
                assert not self.life.done(), self.life.result()
                await asyncio.sleep(0.001)

    @property
    def loop(self):
        assert self.replica._loop
        return self.replica._loop

    @property
    def ready(self):
        return self.said["ready"]()

    @property
    def health(self):
        return self.said["health"]()


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch):
    """What the replica lets its endpoints say, without serving it."""
    said = {}

    class Endpoints:
        def __init__(self, serving, **asked):
            said.update(asked)

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            return None

    monkeypatch.setattr(replica, "Endpoints", Endpoints)
    monkeypatch.setattr(World, "said", said, raising=False)


def identity(world: World):
    return world.replica._leadership.identity


async def test_by_default_the_api_server_authorizes_the_readers_of_its_endpoints():
    async with World().running() as world:
        assert isinstance(world.said["authorize"], DelegatedAuthorization)


# ------------------------------------------------------------------ standby


async def test_a_replica_that_has_seen_another_leader_is_ready_and_follows_the_cluster():
    world = World(pod("p"))
    world.cluster.give_lease_to("another")
    async with world.running():
        await world.until(lambda: world.ready == {"standing-by": None})
        await world.until(lambda: world.slow.called == [{"n1": []}, ("recover", [])])
        world.cluster.put(node("n2"))
        await world.until(lambda: world.slow.called[2:] == [{"n2": []}])
        assert world.ready == {"standing-by": None}
        assert world.health is None
        assert world.slow.served == []
        with pytest.raises(NotLeading):
            world.cluster.check()
    assert world.cluster.events == []


async def test_a_standby_recovers_what_the_last_leader_bound_only_after_a_list_that_it_requests_as_the_leader(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(loop_module, "_STANDBY_SECONDS", 0.0)
    world = World(pod("early", bound_to="n1"), pod("p"))
    world.cluster.give_lease_to("another")
    async with world.running():
        early = [{"n1": ["early"]}, ("recover", ["early"])]
        await world.until(lambda: world.slow.called == early)
        world.cluster.lists.clear()
        world.cluster.silence_watches()
        world.cluster.put(pod("late", bound_to="n1"))  # no watch reports it
        world.clock.advance(16)
        await world.until(lambda: "synced" in world.ready)
        assert world.slow.called == early
        world.cluster.lists.set()
        await world.until(lambda: world.cluster.pod().spec.node_name)
        assert world.slow.called[2:4] == [{"n1": ["early", "late"]}, ("recover", ["late"])]


def calls(world: World, hook: str) -> list[Any]:
    """The calls of a hook that rebuild the plugin's state."""
    return [call for call in world.slow.called if isinstance(call, tuple) and call[0] == hook]


async def test_a_standby_frees_what_pods_held_that_ended_and_recovers_new_and_changed_ones(monkeypatch):
    monkeypatch.setattr(loop_module, "_STANDBY_SECONDS", 0.0)
    world = World(*(pod(name, bound_to="n1") for name in ("gone", "changed", "same")), pod("p"))
    world.cluster.give_lease_to("another")
    async with world.running():
        first = [{"n1": ["gone", "changed", "same"]}, ("recover", ["changed", "gone", "same"])]
        await world.until(lambda: world.slow.called == first)
        await world.cluster.delete(world.cluster.pod("gone"), grace_seconds=0)
        world.cluster.put(pod("changed", bound_to="n1", annotations={HELD_ANNOTATION: "{}"}))
        await world.until(lambda: {("cancel", "gone"), ("cancel", "changed")} <= {*calls(world, "cancel")})
        world.cluster.put(pod("new", bound_to="n1"))
        await world.until(lambda: world.slow.called[-1] == ("recover", ["new"]))
        assert calls(world, "recover")[1:] == [("recover", ["changed"]), ("recover", ["new"])]
        before = len(world.slow.called)
        world.clock.advance(16)
        await world.until(lambda: world.cluster.pod().spec.node_name)
        assert world.slow.called[before] == ("recover", [])


async def test_a_standby_that_leads_retries_and_reports_what_could_not_be_recovered():
    world = World(pod("lost", bound_to="n1"), pod("same", bound_to="n1"), pod("p"))
    world.slow.lost["lost"] = "another pod has it"
    world.cluster.give_lease_to("another")
    async with world.running():
        await world.until(lambda: ("recover", ["lost", "same"]) in world.slow.called)
        assert world.cluster.events == []
        world.clock.advance(16)
        await world.until(lambda: len(world.cluster.events) > 1)
    assert world.slow.called[2:5] == [("cancel", "lost"), ("freed", "lost"), ("recover", ["lost"])]
    notes = [event.note for event in world.cluster.events if event.regarding.metadata.name == "lost"]
    assert notes == ["pod default/lost: plugin slow cannot recover its allocation: another pod has it"]


async def test_a_failure_to_recover_does_not_end_a_standby_and_is_retried_when_it_leads():
    world = World(pod("held", bound_to="n1"), pod("p"))
    world.slow.failures.append(OSError("the service does not answer"))
    world.cluster.give_lease_to("another")
    async with world.running():
        await world.until(lambda: ("recover", ["held"]) in world.slow.called)
        assert world.ready == {"standing-by": None}
        world.clock.advance(16)
        await world.until(lambda: world.cluster.pod().spec.node_name)
    assert world.slow.called[1:5] == [
        ("recover", ["held"]),
        ("cancel", "held"),
        ("freed", "held"),
        ("recover", ["held"]),
    ]


@pytest.mark.parametrize("scheduler", ["fluence", "another"])
async def test_a_standby_that_leads_while_a_plugin_frees_what_a_pod_held_lets_it_finish(scheduler: str):
    record = {HELD_ANNOTATION: '{"uid": "u", "plugins": {"slow": {}}}'}
    gone = pod("gone", bound_to="n1", scheduler=scheduler, annotations=record)
    world = World(replace(gone, metadata=replace(gone.metadata, uid="u")), pod("p"))
    world.slow.may_free.clear()
    world.cluster.give_lease_to("another")
    async with world.running():
        await world.until(lambda: ("recover", ["gone"]) in world.slow.called)
        await world.cluster.delete(world.cluster.pod("gone"), grace_seconds=0)
        await world.until(lambda: ("cancel", "gone") in world.slow.called)
        world.clock.advance(16)
        await world.until(lambda: world.slow.called.count(("cancel", "gone")) == 2)
        world.slow.may_free.set()
        await world.until(lambda: world.cluster.pod().spec.node_name)
    assert ("freed", "gone") in world.slow.called


async def test_a_standby_reports_invalid_objects_once_it_leads():
    world = World(node("broken", cpu="many"))
    world.cluster.give_lease_to("another")
    async with world.running():
        await world.until(lambda: world.slow.called)
        assert world.cluster.events == []
        world.clock.advance(16)
        await world.until(lambda: world.cluster.events)
    assert [(event.regarding.metadata.name, event.reason) for event in world.cluster.events] == [
        ("broken", "NotReadable")
    ]


async def test_a_replica_that_has_not_seen_the_lease_is_not_ready():
    world = World()
    world.cluster.silent = True
    async with world.running():
        assert world.ready == {"standing-by": "the lease has not been read recently; see the log"}
        world.cluster.give_lease_to("another")
        world.cluster.silent = False
        await world.until(lambda: world.ready == {"standing-by": None})
        world.cluster.silent = True
        for _ in range(4):  # not at once: the lease must not end for a replica that still reads it
            world.clock.advance(4)
        await world.until(lambda: world.ready["standing-by"] is not None)


async def test_a_replica_that_is_stopped_while_it_stands_by_leaves_the_lease_alone():
    world = World()
    world.cluster.give_lease_to("another")
    async with world.running():
        await world.until(lambda: world.ready == {"standing-by": None})
        assert await world.ended() == 0
    assert world.cluster.holder == "another"
    assert world.cluster.leases_written == []


async def test_a_replica_that_stands_by_leads_once_the_lease_has_ended():
    world = World(pod("p"))
    world.cluster.give_lease_to("another")
    async with world.running():
        await world.until(lambda: world.ready == {"standing-by": None})
        world.clock.advance(16)
        await world.until(lambda: world.ready == LEADING)
        await world.until(lambda: world.cluster.pod().spec.node_name)
        assert world.cluster.holder == identity(world)
        assert world.cluster.pod().metadata.annotations[LEADER_ANNOTATION] == f"{identity(world)}/8"


# ------------------------------------------------------------------ leading


async def test_a_leader_is_ready_once_it_has_listed_and_recovered():
    world = World()
    world.cluster.lists.clear()
    async with world.running():
        await world.until(world.cluster.asked_to_list.is_set)
        assert world.ready == {
            "leading": None,
            "synced": "the cluster's objects have not been listed yet",
            "recovered": "plans and bound pods have not been recovered yet",
        }
        assert world.slow.served == []
        world.cluster.lists.set()
        await world.until(lambda: world.ready == LEADING)
        await world.until(lambda: world.slow.served == [True])
        assert await world.ended() == 0
        assert world.slow.served == [True, "ended"]


async def test_a_scrape_in_the_first_session_shows_what_plugins_measure():
    async with World(election=LeaderElection(enabled=False)).running() as world:
        await world.until(lambda: world.replica._loop is not None and world.replica._recovered)
        world.replica._loop._scheduler.in_session = True
        text = world.replica.metrics.exposition()[0].decode()
        world.replica._loop._scheduler.in_session = False
        assert "fluence_slow_served 0.0" in text


async def test_a_first_list_that_takes_minutes_is_no_reason_to_end_the_process():
    world = World()
    world.cluster.lists.clear()
    async with world.running():
        await world.until(world.cluster.asked_to_list.is_set)
        for _ in range(40):  # its lease is renewed meanwhile
            writes = len(world.cluster.leases_written)
            world.clock.advance(2)
            await world.until(lambda writes=writes: len(world.cluster.leases_written) > writes + 1)
            assert world.health is None
        world.cluster.lists.set()
        await world.until(lambda: world.ready == LEADING)
        assert world.health is None


async def test_a_loop_that_stands_still_is_not_healthy():
    world = World(election=LeaderElection(enabled=False))
    async with world.running():
        await world.until(lambda: world.ready == LEADING and world.loop._turned is not None)
        world.clock.advance(61)
        assert world.health == "no cycle has finished for 61 s"


async def test_without_election_there_is_no_lease_and_nothing_to_wait_for():
    world = World(pod("p"), election=LeaderElection(enabled=False))
    async with world.running():
        await world.until(lambda: world.cluster.pod().spec.node_name)
        assert world.ready == LEADING
        assert await world.ended() == 0
    assert world.cluster.lease is None
    assert LEADER_ANNOTATION not in world.cluster.pod().metadata.annotations


# ------------------------------------------------------------------ losing the lease


async def test_a_leader_whose_lease_another_one_has_ends_and_leaves_it_to_him():
    world = World()
    async with world.running():
        await world.until(lambda: world.ready == LEADING)
        world.cluster.give_lease_to("another")
        assert await asyncio.wait_for(world.life, PATIENCE) == LOST
    assert world.cluster.holder == "another"


async def test_a_leader_that_cannot_renew_its_lease_ends_in_time_and_gives_nothing_back():
    world = World()
    async with world.running():
        await world.until(lambda: world.ready == LEADING)
        world.cluster.renewals_fail = True
        world.clock.advance(9)
        await asyncio.sleep(0)
        assert world.ready == LEADING
        world.clock.advance(2)
        assert world.ready == {"standing-by": f"this replica lost the lease; the leader is {identity(world)}"}
        with pytest.raises(NotLeading):
            world.cluster.check()
        assert await asyncio.wait_for(world.life, PATIENCE) == LOST
    assert None not in world.cluster.leases_written
    assert world.cluster.holder == identity(world)


async def test_a_lease_that_is_lost_while_the_cluster_is_listed_ends_the_process_too():
    world = World()
    world.cluster.lists.clear()
    async with world.running():
        await world.until(world.cluster.asked_to_list.is_set)
        world.cluster.give_lease_to("another")
        assert await asyncio.wait_for(world.life, PATIENCE) == LOST


async def test_nothing_is_left_running_of_what_a_leader_had_begun_when_it_lost_its_lease():
    world = World(pod("p"))
    world.slow.go.clear()
    async with world.running():
        await asyncio.wait_for(world.slow.waiting.wait(), PATIENCE)
        world.cluster.give_lease_to("another")
        assert await asyncio.wait_for(world.life, PATIENCE) == LOST
        assert asyncio.all_tasks() == {asyncio.current_task()}
    assert world.cluster.pod().spec.node_name == ""


# ------------------------------------------------------------------ deletion


async def test_a_leader_that_is_stopped_lets_its_binds_end_and_then_gives_the_lease_back():
    world = World(pod("p"))
    world.slow.go.clear()
    async with world.running():
        await asyncio.wait_for(world.slow.waiting.wait(), PATIENCE)
        world.stop.set()
        await world.until(lambda: world.loop._stopping)
        assert world.cluster.holder == identity(world)
        world.slow.go.set()
        assert await world.ended() == 0
    assert world.cluster.pod().spec.node_name == "n1"
    assert world.cluster.lease is not None
    assert world.cluster.holder is None


async def test_a_leader_whose_binds_do_not_end_in_time_keeps_the_lease_until_it_ends_by_itself(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(replica, "DRAIN_SECONDS", 0.05)
    world = World(pod("p"))
    world.slow.go.clear()
    async with world.running():
        await asyncio.wait_for(world.slow.waiting.wait(), PATIENCE)
        assert await world.ended() == 0
    assert None not in world.cluster.leases_written
    assert world.cluster.holder == identity(world)
    assert world.cluster.pod().spec.node_name == ""


async def test_a_leader_that_is_stopped_while_it_lists_gives_the_lease_back():
    world = World(pod("p"))
    world.cluster.lists.clear()
    async with world.running():
        await world.until(world.cluster.asked_to_list.is_set)
        assert await world.ended() == 0
    assert world.cluster.holder is None
    assert world.cluster.pod().spec.node_name == ""


def test_all_that_an_end_may_take_is_less_than_a_kubelet_waits():
    ours = replica.DRAIN_SECONDS + replica.FLUSH_SECONDS + leader_election._RELEASE_SECONDS
    assert ours + http_server.SHUTDOWN_SECONDS + http_pool._CLOSE_SECONDS < 10


# ------------------------------------------------------------------ partitions

PARTITION = PartitionConfig(node_selector={"pool": "a"})


def lease_of(other: SchedulerConfig):
    """The Lease of a running scheduler with this configuration."""
    metadata = ObjectMeta(name="other", namespace="kube-system", annotations=dict(PartitionClaims(other).annotations))
    return Lease(metadata=metadata, spec=LeaseSpec(holder_identity="other"))


OVERLAPPING = lease_of(SchedulerConfig(partition=PartitionConfig(node_selector={"zone": "x"})))
DISJOINT = lease_of(
    SchedulerConfig(partition=PartitionConfig(node_selector={"pool": "b"}), profiles=(Profile(scheduler_name="o"),))
)


async def test_a_partition_binds_its_pods_to_its_nodes_and_claims_them_on_its_lease():
    nodes = node("a1", labels={"pool": "a"}, cpu="1"), node("b1", labels={"pool": "b"}, cpu="16")
    world = World(*nodes, pod("p"), partition=PARTITION)
    world.cluster.put(DISJOINT)
    async with world.running():
        await world.until(lambda: world.cluster.pod().spec.node_name)
        assert world.cluster.pod().spec.node_name == "a1"
        claims = msgspec.json.decode(world.cluster.lease.metadata.annotations[ANNOTATION])
        assert claims == {"nodeSelector": {"pool": "a"}, "schedulerNames": ["fluence"]}


async def test_a_partition_that_another_scheduler_serves_is_an_error_before_the_election():
    world = World(partition=PARTITION)
    world.cluster.put(OVERLAPPING)
    with pytest.raises(PartitionError, match=r"may select the same nodes as \{zone: x} of the scheduler with Lease"):
        await world.replica.run(live(world.cluster), world.stop)
    assert world.cluster.lease is None


async def test_of_two_that_start_at_once_the_later_leader_gives_its_lease_back():
    world = World(pod("p"), partition=PARTITION)
    create = world.cluster.create

    async def after_the_other(obj):
        world.cluster.put(OVERLAPPING)
        return await create(obj)

    world.cluster.create = after_the_other  # type: ignore[method-assign]
    with pytest.raises(PartitionError):
        await world.replica.run(live(world.cluster), world.stop)
    assert world.cluster.lease is not None
    assert world.cluster.holder is None
    assert not world.cluster.asked_to_list.is_set()


async def test_a_leader_waits_until_it_can_read_the_other_partitions():
    world = World(pod("p"), partition=PARTITION)
    world.cluster.leases_fail = True
    async with world.running():
        await world.until(lambda: world.cluster.holder == identity(world))
        assert not world.cluster.asked_to_list.is_set()
        world.cluster.leases_fail = False
        await world.until(lambda: world.ready == LEADING)


async def test_what_plugins_name_when_it_leads_and_when_they_have_recovered_is_on_the_lease():
    world = World(partition=PARTITION)
    world.cluster.give_lease_to("another")
    world.cluster.lists.clear()

    def shown():
        return world.cluster.lease.metadata.annotations.get(ANNOTATION, "")

    async with world.running():
        await world.until(lambda: world.replica._leadership.holder == "another")
        world.slow.names, world.slow.recovered_names = {"resource": {"ibm-1"}}, {"resource": {"ibm-1", "ibm-held"}}
        world.cluster.give_lease_to(None)
        await world.until(lambda: world.cluster.holder == identity(world) and "ibm-1" in shown())
        assert "ibm-held" not in shown()
        world.cluster.lists.set()
        await world.until(lambda: "ibm-held" in shown())


async def test_what_plugins_claim_is_on_the_lease_and_changes_with_them():
    world = World(partition=PARTITION)
    other = PartitionClaims(SchedulerConfig(partition=PartitionConfig(node_selector={"pool": "b"}),
                                            profiles=(Profile(scheduler_name="o"),)))  # fmt: skip
    other.put("slow", {"resource": ["ibm-1"]})
    annotations = dict(other.annotations)
    world.cluster.put(replace(DISJOINT, metadata=replace(DISJOINT.metadata, annotations=annotations)))
    async with world.running():
        await world.until(lambda: world.slow.served)
        with pytest.raises(PartitionError, match="plugin slow: resource 'ibm-1' also belongs to the scheduler"):
            await world.slow.runtime.claim("slow", {"resource": ["ibm-1"]})
        world.cluster.renewals_fail = True  # those in between
        with pytest.raises(Unavailable):
            await world.slow.runtime.claim("slow", {"resource": ["ibm-2"]})
        world.cluster.renewals_fail = False
        await world.slow.runtime.claim("slow", {"resource": ["ibm-3"]})
        assert "ibm-3" in world.cluster.lease.metadata.annotations[ANNOTATION]
        assert "ibm-2" not in world.cluster.lease.metadata.annotations[ANNOTATION]
