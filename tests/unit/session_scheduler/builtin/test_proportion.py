from __future__ import annotations

from typing import Any

import pytest

from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import hookimpl
from session_scheduler.model.groups import Group, Phase
from session_scheduler.model.objects import ObjectMeta, Pod, PodGroup
from session_scheduler.model.queue_objects import Queue, QueueObjectSpec
from session_scheduler.testing.builders import gang, pod
from session_scheduler.testing.fake_cluster import FakeCluster

LABEL = "fluence.flux-framework.org/queue"
KEPT = {"fluence.flux-framework.org/preemptibility": "non-preemptible"}


def configured(*queues: dict[str, Any], nodes: int = 4, cpu: str = "4") -> FakeCluster:
    config = SchedulerConfig(bindings_in_flight=1_000, queues=tuple(QueueConfig(**queue) for queue in queues))
    cluster = FakeCluster(config=config)
    cluster.nodes(nodes, cpu=cpu)
    return cluster


def queue(name: str, **spec: Any) -> Queue:
    return Queue(metadata=ObjectMeta(name=name), spec=QueueObjectSpec(**spec))


def of(name: str, queue: str, **options: Any) -> Pod:
    labels = {LABEL: queue, **options.pop("labels", {})}
    return pod(name, cpu=options.pop("cpu", "1"), labels=labels, **options)


def bound(cluster: FakeCluster) -> set[str]:
    return {task.name for task in cluster.scheduler.cache.tasks.values() if task.node is not None}


def test_the_message_of_a_limit_names_queue_resource_and_amounts() -> None:
    cluster = configured({"name": "a", "limit": {"cpu": "2500m"}})
    cluster.add(of("p1", "a"), of("p2", "a"), of("p3", "a"), pod("free", cpu="1"))
    cluster.run(cycles=2)
    assert bound(cluster) == {"p1", "p2", "free"}
    cluster.assert_pending("p3", "queue 'a' has reached its limit of cpu: limit 2500m, allocated 2, requested 1")


def test_a_parents_limit_applies_to_all_of_its_children_together() -> None:
    cluster = configured({"name": "top", "limit": {"pods": 3}}, {"name": "a", "parent": "top"},
                         {"name": "b", "parent": "top"})  # fmt: skip
    cluster.add(*(of(f"a{i}", "a") for i in range(3)), *(of(f"b{i}", "b") for i in range(3)))
    cluster.run(cycles=2)
    assert len(bound(cluster)) == 3
    assert {name[0] for name in bound(cluster)} == {"a", "b"}, "the queue with the smaller share is first"


def test_only_the_deletion_of_a_pod_in_the_queue_requeues_its_pods() -> None:
    cluster = configured({"name": "a", "limit": {"cpu": 1}}, {"name": "b"})
    cluster.add(of("p1", "a"), of("other", "b"))
    cluster.run()
    cluster.add(of("p2", "a"))
    cluster.run()
    key = "Pod default/p2"
    assert cluster.scheduler.queue.is_unschedulable(key)
    cluster.delete(Pod, "other")
    cluster.run()
    assert cluster.scheduler.queue.is_unschedulable(key)
    cluster.delete(Pod, "p1")
    cluster.run()
    cluster.assert_bound("p2")


def test_pods_of_a_missing_queue_wait_until_it_is_created() -> None:
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(of("p", "late"), pod("plain"))
    cluster.run()
    cluster.assert_bound("plain")
    cluster.assert_pending("p", "queue 'late' does not exist")
    cluster.add(queue("late"))
    cluster.run()
    cluster.assert_bound("p")


@pytest.mark.parametrize(("objects", "name", "why"), [
    ([queue("q", parent="nowhere")], "q", "parent: queue 'nowhere' does not exist"),
    ([queue("q", parent="r"), queue("r", parent="q")], "q", "the queues form a cycle (q -> r -> q)"),
    ([queue("q", parent="r"), queue("r", parent="r")], "q", "ancestor 'r' is not ready"),
    ([queue("q"), queue("below", parent="q")], "q", "it has child queues; use one of them, such as below"),
    ([queue("q", parent="default")], "q", "queue 'default' is for pods that name no queue, so it cannot have children"),
    ([queue("q", limit={"cpu": "much"})], "q", "limit.cpu: 'much' is not a valid quantity"),
    ([queue("q", limit={"cpu": 1}, deserved={"cpu": 2})], "q", "deserved.cpu: 2 is more than the limit of 1"),
])  # fmt: skip
def test_an_invalid_queue_rejects_its_own_pods_only(objects: list[Queue], name: str, why: str) -> None:
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(*objects, of("p", name), pod("plain"))
    cluster.run()
    cluster.assert_bound("plain")
    cluster.assert_pending("p", why)


def test_a_gang_above_its_limit_does_not_start_unless_min_count_fits() -> None:
    cluster = configured({"name": "a", "limit": {"cpu": 3}}, {"name": "b", "limit": {"cpu": 3}})
    cluster.add(gang("whole", 4, cpu="1", labels={LABEL: "a"}), gang("part", 4, min_count=2, cpu="1",
                                                                     labels={LABEL: "b"}))  # fmt: skip
    cluster.run(cycles=2)
    names = bound(cluster)
    assert len(names) == 3
    assert all(name.startswith("part") for name in names)
    cluster.assert_pending("whole-0", "queue 'a' has reached its limit of cpu: limit 3, allocated 3, requested 1")


def test_the_pod_groups_label_overrides_its_pods_labels() -> None:
    cluster = configured({"name": "a"}, {"name": "b"})
    group, *pods = gang("g", 2, labels={LABEL: "b"})
    assert isinstance(group, PodGroup)
    cluster.add(_labelled(group, "a"), pods)
    cluster.run()
    assert {found.queue for found in cluster.scheduler.cache.groups.values()} == {"a"}
    use = cluster.scheduler.cache.queues
    assert (use.counts("a").allocated["pods"], use.counts("b").allocated) == (2, {})


def _labelled(group: PodGroup, queue: str) -> PodGroup:
    import msgspec

    metadata = msgspec.structs.replace(group.metadata, labels={LABEL: queue})
    return msgspec.structs.replace(group, metadata=metadata)


def test_non_preemptible_pods_stay_within_the_deserved_amount_and_others_may_exceed_it() -> None:
    cluster = configured({"name": "a", "deserved": {"cpu": 1}})
    cluster.add(of("k1", "a", labels=KEPT), of("k2", "a", labels=KEPT), of("p1", "a"), of("p2", "a"))
    cluster.run(cycles=2)
    assert len(bound(cluster) & {"k1", "k2"}) == 1
    assert bound(cluster) >= {"p1", "p2"}
    (waits,) = {"k1", "k2"} - bound(cluster)
    cluster.assert_pending(waits, "its deserved cpu for non-preemptible pods: deserved 1, allocated 1, requested 1")


def test_a_pod_above_its_queues_limit_preempts_no_pods_of_other_queues() -> None:
    cluster = configured({"name": "a", "limit": {"cpu": 1}}, nodes=1, cpu="2")
    cluster.add(of("p1", "a", priority=50), pod("low", cpu="1", priority=-5))
    cluster.run()
    cluster.add(of("p2", "a", priority=50))
    cluster.run(cycles=2)
    assert bound(cluster) == {"p1", "low"}
    assert not cluster.scheduler.cache.preempted


def test_each_pod_of_a_basic_group_that_fits_the_limit_is_placed() -> None:
    cluster = configured({"name": "a", "limit": {"cpu": 4}}, nodes=1, cpu="2")
    group, *_ = gang("g", 2, min_count=1, labels={LABEL: "a"})
    cluster.add(group, of("big", "a", cpu="4", group="g"), of("small", "a", cpu="1", group="g"))
    cluster.run(cycles=2)
    assert bound(cluster) == {"small"}


def test_queues_take_turns_by_share_after_the_one_with_the_highest_priority() -> None:
    cluster = configured({"name": "a"}, {"name": "b"}, {"name": "vip", "priority": 5}, nodes=1, cpu="3")
    cluster.add(*(of(f"a{i}", "a") for i in range(3)), *(of(f"b{i}", "b") for i in range(3)), of("v", "vip"))
    cluster.run(cycles=2)
    assert bound(cluster) == {"v", "a0", "b0"}


def test_counts_follow_pods_that_are_added_deleted_or_change_their_queue() -> None:
    cluster = configured({"name": "a"}, {"name": "b"}, nodes=1, cpu="2")
    cluster.add(*(of(f"p{i}", "a") for i in range(3)))
    cluster.run()
    use = cluster.scheduler.cache.queues
    assert (use.counts("a").allocated["cpu"], use.counts("a").pending["cpu"]) == (2000, 1000)
    waits = next(task for task in cluster.scheduler.cache.tasks.values() if task.phase is Phase.PENDING)
    cluster.add(of(waits.name, "b"))
    cluster.delete(Pod, next(iter(bound(cluster))))
    cluster.run()
    assert (use.counts("a").allocated["cpu"], use.counts("b").allocated["cpu"]) == (1000, 1000)
    assert not use.counts("a").pending
    for name in bound(cluster):
        cluster.delete(Pod, name)
    cluster.run()
    assert not use.counts("a").allocated
    assert not use.counts("b").allocated


def test_without_queues_nothing_is_registered_and_nothing_is_counted() -> None:
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("p"))
    cluster.run()
    use = cluster.scheduler.cache.queues
    assert not use.active
    assert use.counts("default").allocated == {}


def test_the_metrics_report_queues_and_are_empty_without_queues() -> None:
    cluster = configured({"name": "a", "limit": {"cpu": 2}, "deserved": {"cpu": "500m"}})
    cluster.add(of("p", "a", cpu="1500m"))
    cluster.run()
    assert _measured(cluster)["fluence_queue_allocated", "a", "cpu"] == 1.5
    assert _measured(cluster)["fluence_queue_limit", "a", "cpu"] == 2
    assert _measured(cluster)["fluence_queue_deserved", "a", "cpu"] == 0.5
    assert _measured(cluster)["fluence_queue_fair_share", "a", "cpu"] == 1.5
    plain = FakeCluster()
    plain.nodes(1)
    plain.run()
    assert not _measured(plain)


def _measured(cluster: FakeCluster) -> dict[tuple[str, ...], float]:
    (call,) = [call for call in cluster.scheduler.profiles["fluence"].functions("metrics")
               if call.plugin == "Proportion"]  # fmt: skip
    return {(sample.name, *sample.labels.values()): sample.value for family in call() for sample in family.samples}


def test_plugins_can_read_the_shares_of_queues() -> None:
    cluster = configured({"name": "a", "deserved": {"cpu": 2}}, {"name": "b"}, nodes=1)
    cluster.add(*(of(f"a{i}", "a") for i in range(3)), *(of(f"b{i}", "b") for i in range(3)))
    asked = Asked()
    cluster.run(asked)
    allocated, deserved, fair = asked.shares
    assert (allocated, deserved["cpu"], fair["cpu"]) == ({}, 2000, 3000)


class Asked:
    name = "asked"

    def __init__(self) -> None:
        self.shares: tuple[Any, ...] = ()

    @hookimpl
    def prefilter(self, session: Session, group: Group) -> None:
        if not self.shares:
            self.shares = (session.queue_allocated("a"), session.queue_deserved("a"), session.queue_fair_share("a"))


def test_counts_of_missing_queues_are_dropped_with_their_last_pod() -> None:
    cluster = configured({"name": "a"})
    cluster.add(*(of(f"p{number}", f"unknown-{number}") for number in range(3)), of("p", "a"))
    cluster.run()
    use = cluster.scheduler.cache.queues
    assert use.counts("unknown-1").pending["pods"] == 1
    for number in range(3):
        cluster.delete(Pod, f"p{number}")
    cluster.run()
    assert set(use._counts) <= {"a", "default"}


def test_the_total_to_share_excludes_pods_of_other_schedulers_and_survives_new_queues() -> None:
    cluster = configured({"name": "a"}, nodes=1)
    cluster.add(of("p", "a"), of("waits", "a", cpu="9"), pod("other", cpu="1", bound_to="n1", scheduler="other"))
    cluster.run()
    use, table = cluster.scheduler.cache.queues, cluster.scheduler.cache.table
    assert use.shares(table).total["cpu"] == 3000
    cluster.add(queue("b"))
    cluster.run()
    use.reconcile()
    assert use.tree.usable("b")
    assert use.shares(table).total["cpu"] == 3000
    assert use.shares(table).fair["a"]["cpu"] == 3000


@pytest.mark.parametrize(("size", "first"), [(1, "a"), (2, "b")])
def test_a_queues_turn_counts_what_its_next_job_requests(size: int, first: str) -> None:
    """Only one of the next jobs fits. That of `a` is next if `a` deserves it, although `b` uses less."""
    cluster = configured({"name": "a", "deserved": {"cpu": 3}}, {"name": "b", "deserved": {"cpu": 3}}, nodes=1, cpu="6")
    cluster.add(of("a0", "a", cpu="2"), of("b0", "b", cpu="1"))
    cluster.run()
    cluster.add(of("a1", "a", cpu=str(size)), of("b1", "b", cpu="3"))
    cluster.run()
    assert f"{first}1" in bound(cluster)


def test_the_order_of_queues_is_read_again_when_the_next_job_requests_something_else() -> None:
    """The first job of `a` fits no node; its second exceeds what `a` deserves, so the one of `b` comes first."""
    queues = {"name": "a", "deserved": {"cpu": 4}}, {"name": "b", "deserved": {"cpu": 4}, "priority": 1}
    cluster = configured(*queues, nodes=2, cpu="4")
    cluster.add(of("a0", "a", cpu="1"), of("b0", "b", cpu="1"))
    cluster.run()
    tried: list[str] = []

    class Notes:
        name = "notes"

        @hookimpl
        def on_session_open(self, session: Any) -> None:
            session.add_pre_allocation(lambda group: tried.append(group.name))

    cluster.start(Notes())
    cluster.add(pod("a1", cpu="3", queue="a", priority=9, node_selector={"no": "where"}), of("a2", "a", cpu="4"),
                of("b1", "b", cpu="4"))  # fmt: skip
    cluster.run()
    assert tried[:3] == ["a1", "b1", "a2"]


def test_the_rest_of_a_gang_and_the_next_gang_are_not_taken_for_equal() -> None:
    """With its minimum placed, `g1` requests as much as `g2` does: the order still counts what `g2` requests."""
    cluster = configured({"name": "a"}, {"name": "b"}, nodes=5, cpu="1")
    cluster.add(*gang("g1", 3, cpu="1", labels={LABEL: "a"}, min_count=2))
    cluster.add(*gang("g2", 1, cpu="1", labels={LABEL: "a"}), *(of(f"b{number}", "b", cpu="1") for number in range(4)))
    cluster.run()
    assert bound(cluster) == {"g1-0", "g1-1", "g2-0", "b0", "b1"}


def _reads_of_the_order(*jobs: list[Any]) -> int:
    """How often the queue's keys are read for these jobs of queue a, which fit no node, beside one of queue b."""
    cluster = configured({"name": "a", "priority": 1}, {"name": "b"}, nodes=1)
    read: list[str] = []

    class Notes:
        name = "notes"

        @hookimpl
        def on_session_open(self, session: Any) -> None:
            session.add_queue_order(lambda queue: read.append(queue) or queue)

    cluster.start(Notes())
    for job in (*jobs, [of("z", "b", cpu="9")]):
        cluster.add(*job)
    cluster.run()
    assert not bound(cluster)
    return len(read)


def _too_large(name: str, size: int = 2, **options: Any) -> list[Any]:
    return gang(name, size, cpu="9", labels={LABEL: "a"}, **options)


def test_the_order_of_queues_is_not_read_again_between_gangs_that_request_the_same() -> None:
    equal = _reads_of_the_order(*(_too_large(f"g{number}") for number in range(4)))
    assert equal == _reads_of_the_order(*([of(f"p{number}", "a", cpu="9")] for number in range(4)))
    smaller = _too_large("g1", min_count=1)
    assert equal < _reads_of_the_order(_too_large("g0"), smaller, _too_large("g2"), _too_large("g3"))
    larger = _too_large("g1", 3)
    assert equal < _reads_of_the_order(_too_large("g0"), larger, _too_large("g2"), _too_large("g3"))
