from __future__ import annotations

import pytest

from session_scheduler.builtin import BUILTIN
from session_scheduler.builtin.proportion import Proportion
from session_scheduler.config.settings import QueueConfig, parse_config
from session_scheduler.errors import InputError
from session_scheduler.model.objects import ObjectMeta, Pod
from session_scheduler.model.queue_objects import Queue, QueueObjectSpec
from session_scheduler.model.queues import QueueSpec, QueueTree
from session_scheduler.offline.queue_report import queue_report
from session_scheduler.registry.registry import Registry
from session_scheduler.testing.builders import pod
from session_scheduler.testing.fake_cluster import FakeCluster

HEADER = "apiVersion: fluence.flux-framework.org/v1alpha1\nkind: SchedulerConfiguration\nqueues:\n"


@pytest.mark.parametrize(("queues", "line"), [
    ("- {name: a, parent: b}", "f: queues[0].parent: queue 'b' does not exist; create it, or choose another parent"),
    ("- {name: a, parent: b}\n- {name: b, parent: a}",
     "f: queues[0].parent: the queues form a cycle (a -> b -> a); give one of them another parent"),
    ("- {name: a, parent: default}",
     "f: queues[0].parent: queue 'default' is for pods that name no queue, so it cannot have children; choose another "
     "parent"),
    ("- {name: a, limit: {cpu: -1}}", "f: queues[0].limit.cpu: -1 is negative; write 0 or more"),
    ("- {name: a, limit: {gpu: 4}}",
     "f: queues[0].limit.gpu: unknown resource; use cpu, memory, ephemeral-storage, pods, hugepages-SIZE or "
     "DOMAIN/NAME"),
    ("- {name: a, limit: {pod: 4}}", "f: queues[0].limit.pod: unknown resource; did you mean pods?"),
    ("- {name: a, deserved: {requests.nvidia.com/gpu: 4}}",
     "f: queues[0].deserved.requests.nvidia.com/gpu: unknown resource; did you mean nvidia.com/gpu?"),
    ("- {name: a, deserved: {cpu: lots}}", "f: queues[0].deserved.cpu: 'lots' is not a valid quantity; write a number "
     "with an optional suffix, such as 500m, 2 or 4Gi"),
    ("- {name: a, deserved: {cpu: 3}, limit: {cpu: 2}}",
     "f: queues[0].deserved.cpu: 3 is more than the limit of 2; lower it, or raise the limit"),
    ("- {name: a, overQuotaWeight: -1}", "f: queues[0].overQuotaWeight: is -1; use 0 or more"),
    ("- {name: a}\n- {name: a}", "f: queues[1].name: 'a' duplicates queues[0]; remove one of the two"),
    ("- {name: a, deserved: {cpu: .inf}}",
     "f: queues[0].deserved.cpu: expected a quantity such as 500m, 2 or 4Gi, got inf"),
    ("- {name: a, limit: {cpu: -.inf}}",
     "f: queues[0].limit.cpu: expected a quantity such as 500m, 2 or 4Gi, got -inf"),
    ("- {name: a, limit: {cpu: .nan}}",
     "f: queues[0].limit.cpu: expected a quantity such as 500m, 2 or 4Gi, got nan"),
    ("- {name: a, limit: {cpu: 1e400}}",
     "f: queues[0].limit.cpu: expected a quantity such as 500m, 2 or 4Gi, got inf"),
    (f"- {{name: {'a' * 64}}}", "f: queues[0].name: has 64 characters; use at most 63, as in a label value"),
    ("- {name: my team}", "f: queues[0].name: is not a valid label value; use letters and digits, with '-', '_' and "
     "'.' between them"),
    ("- {name: a, wieght: 1}", "f: queues[0].wieght: unknown field; "
     "use one of deserved, limit, name, overQuotaWeight, parent, priority"),
])  # fmt: skip
def test_an_invalid_queue_is_rejected_at_the_start_with_its_path(queues: str, line: str) -> None:
    with pytest.raises(InputError) as raised:
        Registry(BUILTIN).load_profiles(parse_config(HEADER + queues, "f"))
    assert raised.value.messages[0] == line
    assert len(raised.value.messages) <= len(queues.splitlines())


def test_valid_queues_have_quantities_as_numbers_or_text() -> None:
    config = parse_config(HEADER + "- {name: top, limit: {cpu: 10}}\n- {name: a, parent: top, deserved: {cpu: 500m}}",
                          "f")  # fmt: skip
    Registry(BUILTIN).load_profiles(config)
    assert [queue.name for queue in config.queues] == ["top", "a"]


def test_a_queue_has_at_most_31_ancestors() -> None:
    chain = [QueueSpec(f"q{number}", parent=f"q{number - 1}" if number else "") for number in range(1100)]
    tree = QueueTree(chain)
    assert [name for name in tree if tree.usable(name)] == sorted(["default", *(f"q{number}" for number in range(32))])
    problem = tree.problem("q32")
    assert problem is not None
    assert (problem.reason, problem.message) == (
        "TooDeep",
        "parent: more than 31 ancestors; choose a parent nearer to the top",
    )


def test_a_chain_of_a_thousand_queues_is_reported_and_accepts_pods_down_to_the_limit() -> None:
    queues = (QueueConfig(name=f"q{number}", parent=f"q{number - 1}" if number else "") for number in range(1100))
    objects = [Queue(metadata=ObjectMeta(name=one.name), spec=QueueObjectSpec(parent=one.parent)) for one in queues]
    cluster = FakeCluster()
    cluster.add(*objects)
    cluster.nodes(1, cpu="4")
    label = "fluence.flux-framework.org/queue"
    cluster.add(pod("shallow", labels={label: "q31"}), pod("deep", labels={label: "q1099"}), pod("none"))
    cluster.run()
    cluster.assert_bound("none")
    cluster.assert_bound("shallow")
    cluster.assert_pending("deep", "queue 'q1099' is not ready: parent: more than 31 ancestors")
    assert len(queue_report(cluster.scheduler)["queues"]) == 1101


def test_the_usage_of_a_deleted_queue_is_reported_and_measured() -> None:
    cluster = FakeCluster()
    queue = Queue(metadata=ObjectMeta(name="gone"))
    cluster.add(queue, Queue(metadata=ObjectMeta(name="there")))
    cluster.nodes(1, cpu="4")
    cluster.add(pod("p", cpu="2", labels={"fluence.flux-framework.org/queue": "gone"}))
    cluster.run()
    cluster.delete(Queue, "gone")
    cluster.run()
    (row,) = (one for one in queue_report(cluster.scheduler)["queues"] if one["name"] == "gone")
    assert (row["allocated"]["cpu"], row["ready"]) == ("2", False)
    assert row["reason"] == "queue 'gone' does not exist; create it; until then its pending pods wait"
    assert cluster.scheduler.cache.queues.deleted() == ["gone"]
    proportion = cluster.scheduler.profiles["fluence"].instances["Proportion"]
    assert isinstance(proportion, Proportion)
    families = {one.name: one for one in proportion.metrics()}
    samples = {(one.labels["queue"], one.labels["resource"]): one.value
               for one in families["fluence_queue_allocated"].samples}  # fmt: skip
    assert samples["gone", "cpu"] == 2
    cluster.delete(Pod, "p")
    cluster.run()
    assert all(one["name"] != "gone" for one in queue_report(cluster.scheduler)["queues"])
