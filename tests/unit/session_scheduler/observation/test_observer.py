"""What an observer reads: pods, nodes, GPUs, gangs and queues; and that it reads again only what has changed."""

from __future__ import annotations

import asyncio
from math import isnan
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from session_scheduler import Session, hookimpl
from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.errors import InputError
from session_scheduler.model.objects import Node, Pod, PodCondition, PodGroup
from session_scheduler.observation.node_columns import NodeColumns
from session_scheduler.observation.observer import Observer
from session_scheduler.observation.values import Observed
from session_scheduler.offline.reasons import NOT_REPORTED
from session_scheduler.offline.status import status_of
from session_scheduler.testing import FakeCluster, pod

ZONE, RACK = "topology.kubernetes.io/zone", "example.com/rack"
FRACTION, GPU = "fluence.flux-framework.org/gpu-fraction", "nvidia.com/gpu"


def observe(cluster: FakeCluster, **options: Any) -> Observed:
    return Observer(cluster.scheduler, "a test", **options).observe()


# ------------------------------------------------------------------ pods


def test_each_pod_has_its_state_and_a_reason_if_it_waits() -> None:
    cluster = FakeCluster().node("n1", cpu=2)
    cluster.pod("p2", cpu=1, priority=7).pod("p10", cpu=99).pod("gated", gates=["example.com/later"])
    cluster.add(pod("theirs", scheduler="another", bound_to="n1")).schedule()
    seen = observe(cluster)
    pods = seen.pods
    assert pods.keys == ("default/gated", "default/p2", "default/p10")
    assert pods.phases == ("Gated", "Bound", "Pending")
    assert pods.nodes.tolist() == [-1, 0, -1]
    assert pods.priorities.tolist() == [0, 7, 0]
    assert pods.requests["cpu"].tolist() == [0.1, 1.0, 99.0]
    assert pods.reasons[0] == "Scheduling is blocked due to non-empty scheduling gates: example.com/later"
    assert pods.reasons[1] is None
    assert (pods.reasons[2] or "").startswith("0/1 nodes are available: 1 Insufficient cpu.")
    assert seen.nodes.pods.tolist() == [2]  # including those that other schedulers bound


def test_reasons_are_those_of_status() -> None:
    cluster = FakeCluster().node("n1", cpu=2).pod("large", cpu=99).pod("new").gang("g", 3, cpu=1)
    cluster.start()
    waiting = {f"{one['namespace']}/{one['name']}": one["reason"] for one in status_of(cluster.scheduler)["waiting"]}
    pods = observe(cluster).pods
    assert dict(zip(pods.keys, pods.reasons, strict=True)) == waiting


def test_without_evaluation_a_pod_without_a_report_is_not_tried_yet() -> None:
    condition = PodCondition(type="PodScheduled", status="False", message="as the scheduler said")
    reported = pod("reported", cpu=99)
    cluster = FakeCluster().node("n1").pod("new", cpu=99)
    cluster.add(replace(reported, status=replace(reported.status, conditions=(condition,))))
    cluster.start()
    assert observe(cluster, evaluates=False).pods.reasons == (NOT_REPORTED, "as the scheduler said")


def test_times_are_seconds_and_nan_if_unknown() -> None:
    cluster = FakeCluster().node("n1").pod("waits", cpu=99)
    runs = pod("runs", bound_to="n1", active_deadline_seconds=60)
    scheduled = PodCondition(type="PodScheduled", status="True", last_transition_time="2026-01-02T03:04:05Z")
    status = replace(runs.status, phase="Running", start_time="2026-01-02T03:04:07Z", conditions=(scheduled,))
    cluster.add(replace(runs, status=status)).start()
    pods = observe(cluster).pods
    assert pods.phases == ("Running", "Pending")
    assert (pods.bound[0], pods.started[0], pods.until[0]) == (1767323045.0, 1767323047.0, 1767323107.0)
    assert all(isnan(times[1]) for times in (pods.bound, pods.started, pods.until))
    assert pods.created[0] > 946684800


def test_a_deleted_pod_terminates() -> None:
    cluster = FakeCluster().node("n1").pod("p").schedule()
    found = cluster.find(Pod, "p")
    cluster.add(replace(found, metadata=replace(found.metadata, deletion_timestamp="2026-01-02T03:04:05Z")))
    cluster.schedule()
    assert observe(cluster).pods.phases == ("Terminating",)


def test_pods_that_are_being_evicted_have_the_condition() -> None:
    cluster = FakeCluster().node("n1").pod("a").pod("b").pod("c").schedule()
    for name, status in (("a", "True"), ("b", "False")):
        found = cluster.find(Pod, name)
        conditions = (*found.status.conditions, PodCondition(type="DisruptionTarget", status=status, reason="any"))
        cluster.add(replace(found, status=replace(found.status, conditions=conditions)))
    cluster.schedule()
    seen = observe(cluster)
    assert seen.pods.evicted == {"default/a"}
    assert seen.seen_by(frozenset({"default"})).pods.evicted == {"default/a"}
    assert seen.seen_by(frozenset({"other"})).pods.evicted == frozenset()


def test_a_pod_that_was_evicted_is_known_for_a_minute_after_its_end() -> None:
    cluster = FakeCluster().node("n1").pod("a").pod("b").schedule()
    observer = Observer(cluster.scheduler, "a test")
    created = dict(zip((first := observer.observe()).pods.keys, first.pods.created.tolist(), strict=True))
    for name, condition in (("a", "DisruptionTarget"), ("b", "Ready")):
        found = cluster.find(Pod, name)
        conditions = (PodCondition(type=condition, status="True", reason="any"),)
        observer.ended(replace(found, status=replace(found.status, conditions=conditions)))
    observer.notify()
    assert observer.observe().evictions == {"default/a": created["default/a"]}
    assert observer.observe().seen_by(frozenset({"other"})).evictions == {}
    cluster.advance(59)
    observer.notify()
    assert observer.observe().evictions
    cluster.advance(2)
    observer.notify()
    assert observer.observe().evictions == {}


# ------------------------------------------------------------------ nodes and GPUs


def test_nodes_have_amounts_levels_and_states() -> None:
    cluster = FakeCluster().node("n10", cpu="1500m", labels={ZONE: "a", RACK: "r1"})
    cluster.node("n2", unschedulable=True, labels={ZONE: "a", RACK: "r2"})
    cluster.node("n3").pod("p", cpu="250m", memory="1Gi")
    cluster.gang("g", 2, topology=RACK).schedule()
    failing = cluster.find(Node, "n3")
    conditions = (PodCondition(type="Ready", status="Unknown"),)
    cluster.add(replace(failing, status=replace(failing.status, conditions=conditions))).schedule()
    nodes = observe(cluster).nodes
    assert nodes.names == ("n2", "n3", "n10")
    assert nodes.states == ("SchedulingDisabled", "NotReady", "Ready")
    assert nodes.resources == ("cpu", "memory", "pods")
    assert nodes.allocatable[:, 0].tolist() == [4.0, 4.0, 1.5]
    assert nodes.allocated[:, 0].sum() == pytest.approx(0.45)
    assert list(nodes.levels.items()) == [(ZONE, ("a", None, "a")), (RACK, ("r2", None, "r1"))]
    assert list(observe(cluster, levels=[RACK]).nodes.levels) == [RACK]


def test_gpus_have_their_holders_by_index() -> None:
    cluster = FakeCluster().node("n1", offers={GPU: 3}, labels={f"{GPU}.product": "H100"})
    cluster.node("n2", offers={GPU: 3}).node("n3")
    half = {FRACTION: "0.5"}
    cluster.pod("a", annotations=half, node_selector={"kubernetes.io/hostname": "n2"})
    cluster.pod("b", annotations=half, node_selector={"kubernetes.io/hostname": "n2"})
    cluster.pod("c", annotations=half, node_selector={"kubernetes.io/hostname": "n2"})
    cluster.pod("whole", requests={GPU: 2}, node_selector={"kubernetes.io/hostname": "n1"}).schedule()
    gpus = observe(cluster).nodes.gpus
    assert [(gpu.node, gpu.index, gpu.model, dict(gpu.holders)) for gpu in gpus] == [
        (0, 0, "H100", {"default/whole": 1.0}),
        (0, 1, "H100", {"default/whole": 1.0}),
        (0, 2, "H100", {}),
        (1, 0, None, {"default/a": 0.5, "default/b": 0.5}),
        (1, 1, None, {"default/c": 0.5}),
        (1, 2, None, {}),
    ]


def test_a_share_of_memory_is_a_part_of_the_gpus_memory() -> None:
    cluster = FakeCluster().node("n1", offers={GPU: 1}, labels={f"{GPU}.memory": "8192"})
    cluster.pod("a", annotations={"fluence.flux-framework.org/gpu-memory": "2Gi"}).schedule()
    assert observe(cluster).nodes.gpus[0].holders == {"default/a": 0.25}


# ------------------------------------------------------------------ gangs and queues


def test_a_gang_has_its_counts_and_why_it_waits() -> None:
    cluster = FakeCluster().node("n1", cpu=2).gang("g", 3, cpu=1).gang("f", 1).pod("single").schedule()
    gangs = observe(cluster).gangs
    assert [(gang.name, gang.min_count, gang.pending, gang.placed) for gang in gangs] == [
        ("f", 1, 0, 1),
        ("g", 3, 3, 0),
    ]
    assert gangs[0].reason is None
    assert "Insufficient cpu" in (gangs[1].reason or "")


def test_queues_are_those_of_the_command() -> None:
    config = SchedulerConfig(queues=(QueueConfig(name="team", deserved={"cpu": "2"}),))
    cluster = FakeCluster(config=config).node("n1").pod("p", queue="team", cpu=1).schedule()
    seen = observe(cluster)
    assert [(one["name"], one["allocated"].get("cpu")) for one in seen.queues] == [("default", None), ("team", "1")]
    assert seen.pods.queues == ("team",)


def test_a_plugin_that_fails_is_a_problem_and_the_last_queues_are_shown() -> None:
    class Offers:
        name = "Offers"
        fails = False

        @hookimpl
        def offered(self) -> dict[str, int]:
            if self.fails:
                raise RuntimeError("no answer")
            return {}

    plugin = Offers()
    cluster = FakeCluster().use(plugin).node("n1").pod("p").schedule()
    observer = Observer(cluster.scheduler, "a test")
    first = observer.observe()
    plugin.fails = True
    observer.notify()
    seen = observer.observe()
    assert seen.queues == first.queues
    assert "no answer" in seen.problems["Plugin Offers"]


# ------------------------------------------------------------------ repeated observations


def test_an_observation_is_the_same_until_the_cache_changes() -> None:
    cluster = FakeCluster().node("n1").pod("p").schedule()
    observer = Observer(cluster.scheduler, "a test")
    first = observer.observe()
    assert observer.observe() is first
    observer.notify()
    second = observer.observe()
    assert (first.version, second.version) == (1, 2)


def test_only_changed_pods_and_their_nodes_are_read_again() -> None:
    cluster = FakeCluster().nodes(20, offers={GPU: 2}).pods(50, cpu="100m").schedule()
    observer = Observer(cluster.scheduler, "a test")
    observer.observe()
    assert observer.rows_rebuilt == 50
    cluster.end("p-7")
    cluster.pod("q", requests={GPU: 1}).schedule()
    observer.notify()
    seen = observer.observe()
    assert observer.rows_rebuilt == 51
    assert "default/p-7" not in seen.pods.keys
    assert seen.pods.keys[-1] == "default/q"
    fresh = Observer(cluster.scheduler, "a test").observe()
    assert_equal(seen, fresh)


def test_only_the_gpus_of_changed_nodes_are_computed_again() -> None:
    cluster = FakeCluster().nodes(20, offers={GPU: 2}).pod("p", requests={GPU: 1}).schedule()
    columns = NodeColumns(cluster.scheduler)
    before = columns.update([], [])
    columns.update(["n3"], [])
    assert columns.gpus_rebuilt == 21
    cluster.node("n0", offers={GPU: 1}).node("n7", offers={GPU: 4}).schedule()
    after = columns.update([], [])
    assert columns.gpus_rebuilt == 23
    assert len(after.gpus) == len(before.gpus) + 3
    fresh = NodeColumns(cluster.scheduler).update([], [])
    assert after.gpus == fresh.gpus


def test_a_new_pod_of_the_same_name_has_a_row_of_its_own() -> None:
    cluster = FakeCluster().node("n1").pod("p").pod("q").schedule()
    observer = Observer(cluster.scheduler, "a test")
    observer.observe()
    cluster.delete_pod("p").pod("p", cpu=99).schedule()
    observer.notify()
    seen = observer.observe()
    assert seen.pods.keys == ("default/p", "default/q")
    assert seen.pods.phases == ("Pending", "Bound")
    assert_equal(seen, Observer(cluster.scheduler, "a test").observe())


def test_nodes_that_come_and_go_are_seen() -> None:
    cluster = FakeCluster().nodes(3, offers={GPU: 1}).pod("p", requests={GPU: 1}).schedule()
    observer = Observer(cluster.scheduler, "a test")
    observer.observe()
    cluster.node("n0", offers={GPU: 1}).remove_node("n2").schedule()
    observer.notify()
    seen = observer.observe()
    assert seen.nodes.names == ("n0", "n1", "n3")
    assert_equal(seen, Observer(cluster.scheduler, "a test").observe())


def test_a_queue_that_is_moved_is_seen_in_all_its_pods() -> None:
    cluster = FakeCluster().node("n1").queue("team").gang("g", 2, cpu=99).schedule()
    observer = Observer(cluster.scheduler, "a test")
    assert observer.observe().pods.queues == ("default", "default")
    group = cluster.find(PodGroup, "g")
    labels = {"fluence.flux-framework.org/queue": "team"}
    cluster.add(replace(group, metadata=replace(group.metadata, labels=labels))).schedule()
    observer.notify()
    seen = observer.observe()
    assert seen.pods.queues == ("team", "team")
    assert seen.gangs[0].queue == "team"


def test_columns_without_changes_are_those_of_the_last_observation_which_stays_as_it_was() -> None:
    cluster = FakeCluster().nodes(2, cpu=8).pod("a").pod("b", cpu=99).gang("g", 2, cpu=99).schedule()
    observer = Observer(cluster.scheduler, "a test")
    first = observer.observe()
    assert_equal(first, before := Observer(cluster.scheduler, "a test").observe())
    found = cluster.find(Pod, "b")
    conditions = (PodCondition(type="DisruptionTarget", status="True", reason="any"),)
    spec = replace(found.spec, node_name="n1", priority=7)
    cluster.add(replace(found, spec=spec, status=replace(found.status, conditions=conditions, phase="Running")))
    cluster.schedule()
    observer.notify()
    second = observer.observe()
    assert (second.pods.nodes[1], second.pods.phases[1]) == (0, "Running")
    assert second.pods.evicted == {"default/b"}
    assert second.pods.keys is first.pods.keys
    assert second.pods.groups is first.pods.groups
    assert_equal(first, before)
    assert_equal(second, Observer(cluster.scheduler, "a test").observe())
    cluster.add(found)
    cluster.pod("c").end("a").schedule()
    observer.notify()
    assert_equal(observer.observe(), Observer(cluster.scheduler, "a test").observe())


def test_gangs_are_in_natural_order_after_some_come_and_go() -> None:
    cluster = FakeCluster().node("n1", cpu=8).gang("g-2", 2).gang("g-10", 2).schedule()
    observer = Observer(cluster.scheduler, "a test")
    assert [gang.name for gang in observer.observe().gangs] == ["g-2", "g-10"]
    cluster.gang("g-1", 2).end("g-2-0").end("g-2-1").schedule()
    observer.notify()
    assert [gang.name for gang in observer.observe().gangs] == ["g-1", "g-10"]
    cluster.gang("g-3", 1).schedule()
    observer.notify()
    seen = observer.observe()
    assert [gang.name for gang in seen.gangs] == ["g-1", "g-3", "g-10"]
    assert_equal(seen, Observer(cluster.scheduler, "a test").observe())


def assert_equal(one: Observed, other: Observed) -> None:
    """Equal, apart from the version; arrays are compared by value."""
    with np.printoptions(threshold=10**6):
        assert repr(replace(one, version=0)) == repr(replace(other, version=0))


# ------------------------------------------------------------------ verdicts and plugins


def test_verdicts_explain_one_pod_and_its_gang() -> None:
    cluster = FakeCluster().nodes(3, cpu=2).gang("g", 9, cpu=1).pod("p", cpu=99).schedule()
    observer = Observer(cluster.scheduler, "a test")

    async def ask() -> list[dict[str, Any]]:
        return [await observer.verdicts(key) for key in ("default/p", "default/g-0")]

    single, member = asyncio.run(ask())
    assert single["summary"] == "0/3 nodes are available: 3 Insufficient cpu."
    assert {verdict["plugin"] for verdict in single["nodes"].values()} == {"NodeResourcesFit"}
    assert (single["gang"], single["refusals"], single["leftOut"]) == (None, {"NodeResourcesFit": 3}, 0)
    assert (member["group"], member["gang"]["placeable"], member["gang"]["minCount"]) == ("g", 6, 9)


def test_verdicts_show_the_best_nodes_only() -> None:
    cluster = FakeCluster().nodes(5).pod("p").start()
    answer = asyncio.run(Observer(cluster, "a test").verdicts("default/p", most=2))
    assert (len(answer["nodes"]), answer["leftOut"]) == (2, 3)


def test_a_pod_on_a_node_has_no_verdicts_and_an_unknown_one_is_an_error() -> None:
    cluster = FakeCluster().nodes(1).pod("p").schedule()
    observer = Observer(cluster.scheduler, "a test")
    assert asyncio.run(observer.verdicts("default/p"))["node"] == "n1"
    with pytest.raises(InputError, match=r"^pod default/x: not found among the pods of this scheduler; it may have"):
        asyncio.run(observer.verdicts("default/x"))


def test_while_the_cache_changes_the_last_values_are_shown_and_verdicts_wait() -> None:
    cluster = FakeCluster().nodes(1).pod("p", cpu=99).schedule()

    async def check() -> None:
        busy = asyncio.Lock()
        observer = Observer(cluster.scheduler, "a test", busy=busy)
        first = observer.observe()
        async with busy:
            observer.notify()
            assert observer.observe() is first
            asked = asyncio.create_task(observer.verdicts("default/p"))
            await asyncio.sleep(0)
            assert not asked.done()
        assert (await asked)["summary"]
        assert observer.observe().version == 2

    asyncio.run(check())


def test_a_plugin_is_found_by_name() -> None:
    cluster = FakeCluster().nodes(1).schedule()
    observer = Observer(cluster.scheduler, "a test")
    assert observer.plugin("GpuSharing") is cluster.scheduler.profiles["fluence"].instances["GpuSharing"]
    assert observer.plugin("unknown") is None


def test_an_observer_that_can_no_longer_follow_raises_the_error() -> None:
    cluster = FakeCluster().nodes(1).pod("p", cpu=99).schedule()
    observer = Observer(cluster.scheduler, "a test")
    observer.observe()
    observer.changed.clear()
    observer.fail(InputError("the reason"))
    assert observer.changed.is_set()
    with pytest.raises(InputError, match=r"^the reason$"):
        observer.observe()
    with pytest.raises(InputError, match=r"^the reason$"):
        asyncio.run(observer.verdicts("default/p"))


def test_levels_of_a_plugin_come_before_those_of_the_nodes() -> None:
    class Levels:
        name = "Levels"
        topology_labels = (RACK,)

        @hookimpl
        def on_session_open(self, session: Session) -> None:
            """A plugin has at least one hook."""

    cluster = FakeCluster().use(Levels()).node("n1", labels={ZONE: "a", RACK: "r1"}).schedule()
    assert list(observe(cluster).nodes.levels) == [RACK]
    assert list(observe(cluster, levels=[ZONE]).nodes.levels) == [ZONE]
