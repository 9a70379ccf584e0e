"""Queue limits hold at every moment of a session, and incremental counts are correct."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.framework.callbacks import Event
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import hookimpl
from session_scheduler.model.objects import ObjectMeta, Pod
from session_scheduler.model.queue_objects import Queue, QueueObjectSpec
from session_scheduler.model.queues import QueueTree
from session_scheduler.state.configured_queues import of_config
from session_scheduler.testing.builders import gang, pod
from session_scheduler.testing.fake_cluster import FakeCluster

from ....tools.examples import examples

LABEL = "fluence.flux-framework.org/queue"
LEAVES = ("a", "b", "c")
LIMITS = st.dictionaries(st.sampled_from(["cpu", "pods"]), st.integers(1, 6), max_size=2)
WORK = st.tuples(
    st.sampled_from(["pod", "gang", "elastic", "basic", "end", "limit"]), st.sampled_from(LEAVES), st.integers(1, 4),
    st.integers(0, 3),
)  # fmt: skip


class Watcher:
    """Counts every placement itself, simulated ones included, and checks the limits."""

    name = "watcher"

    def __init__(self, tree: QueueTree) -> None:
        self.tree = tree
        self.seen = 0

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        cache = session.snapshot.cache

        def look(_: Event) -> None:
            self.seen += 1
            for name, spec in self.tree.specs.items():
                below = [task for task in cache.tasks.values()
                         if task.node is not None and name in self.tree.path(task.group.queue)]  # fmt: skip
                has = {"cpu": sum(task.cls.requests.get("cpu", 0) for task in below), "pods": len(below)}
                for resource, most in spec.limit.items():
                    assert has[resource] <= most, (name, resource, has, most)

        session.add_event_handler(allocate=look)


def _queue(name: str, limit: dict[str, int], **more: Any) -> QueueConfig:
    return QueueConfig(name=name, limit=dict(limit), **more)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(LIMITS, min_size=4, max_size=4), st.lists(WORK, min_size=1, max_size=14))
def test_queues_stay_within_their_limits_after_every_placement(
    limits: list[dict[str, int]], work: list[tuple[str, str, int, int]]
) -> None:
    queues = (_queue("top", limits[3]), _queue("a", limits[0], parent="top"), _queue("b", limits[1], parent="top"),
              _queue("c", limits[2]))  # fmt: skip
    cluster = FakeCluster(config=SchedulerConfig(bindings_in_flight=1_000, queues=queues))
    cluster.nodes(3, cpu="3")
    watcher = Watcher(QueueTree(map(of_config, queues)))
    cluster.run(watcher)
    for index, (kind, queue, size, priority) in enumerate(work):
        options: dict[str, Any] = {"cpu": str(1 + priority % 2), "labels": {LABEL: queue}, "priority": priority}
        if kind == "pod":
            cluster.add(*(pod(f"p{index}-{number}", **options) for number in range(size)))
        elif kind == "end":
            bound = [one for one in cluster.memory.objects(Pod) if one.spec.node_name]
            for one in bound[:size]:
                cluster.delete(Pod, one.metadata.name)
        elif kind == "limit":  # it does not count: the configuration has a queue of this name
            cluster.add(Queue(metadata=ObjectMeta(name=queue), spec=QueueObjectSpec(limit={"pods": 100})))
        else:
            least = {"gang": size, "elastic": max(1, size // 2), "basic": 1}[kind]
            cluster.add(gang(f"g{index}", size, min_count=least, **options))
        cluster.advance(30)
        cluster.run()
        errors = [str(outcome.refusal.reason) for outcome in cluster.scheduler.outcomes.values()
                  if outcome.refusal is not None and outcome.refusal.failed]  # fmt: skip
        assert errors == []


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(WORK, min_size=1, max_size=12))
def test_incremental_counts_equal_a_count_from_scratch(work: list[tuple[str, str, int, int]]) -> None:
    queues = (_queue("top", {}), _queue("a", {"pods": 5}, parent="top"), _queue("b", {}, parent="top"),
              _queue("c", {"cpu": 4}))  # fmt: skip
    cluster = FakeCluster(config=SchedulerConfig(bindings_in_flight=1_000, queues=queues))
    cluster.nodes(2, cpu="4")
    cluster.run()
    for index, (kind, queue, size, priority) in enumerate(work):
        options: dict[str, Any] = {"labels": {LABEL: queue}, "priority": 60 * priority}
        if kind == "pod":
            cluster.add(*(pod(f"p{index}-{number}", cpu="1", **options) for number in range(size)))
        elif kind in ("end", "limit"):
            for one in cluster.memory.objects(Pod)[:size]:
                if kind == "end":
                    cluster.delete(Pod, one.metadata.name)
                else:  # its label changes
                    cluster.add(_in(one, queue))
        else:
            cluster.add(gang(f"g{index}", size, cpu="1", **options))
        cluster.run()
        use, tasks = cluster.scheduler.cache.queues, cluster.scheduler.cache.tasks.values()
        use.reconcile()
        for name in use.tree:
            mine = [task for task in tasks if name in use.tree.path(task.group.queue)]
            placed = [task for task in mine if task.node is not None]
            counts = use.counts(name)
            assert counts.allocated.get("pods", 0) == len(placed)
            assert counts.pending.get("pods", 0) == len(mine) - len(placed)
            assert counts.kept.get("pods", 0) == sum(not task.group.preemptible for task in placed)
            assert counts.allocated.get("cpu", 0) == sum(task.cls.requests["cpu"] for task in placed)
            for least in (1, 61, 121):
                below = {task.node for task in placed if task.group.queue == name and task.preemptor_priority < least}
                assert set(use.running.nodes_below(name, least)) == below


def _in(one: Pod, queue: str) -> Pod:
    import msgspec

    metadata = msgspec.structs.replace(one.metadata, labels={**one.metadata.labels, LABEL: queue})
    return msgspec.structs.replace(one, metadata=metadata)
