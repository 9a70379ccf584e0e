"""Preemption of gangs that are starting, by members of started gangs, and with plugins that fail in a trial."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from session_scheduler.hookspecs import hookimpl
from session_scheduler.model.objects import Pod, PodCondition, PodGroup, PodGroupStatus, PodStatus
from session_scheduler.testing import FakeCluster, node, pod, pod_group

from ....tools.preempting import ended


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(checked=False)


def bound_in_part(cluster: FakeCluster) -> None:
    """Two of three members are bound and fill their nodes."""
    cluster.add(node("n1", cpu="1"), node("n2", cpu="1"), pod_group("g", 3))
    cluster.add(pod(f"g-{n}", group="g", cpu="1", priority=1, bound_to=f"n{n}") for n in (1, 2))
    cluster.add(pod("g-3", group="g", cpu="1", priority=1, gates=["later"]))


def test_a_gang_that_never_ran_is_preempted_as_a_whole_whatever_its_mode(cluster: FakeCluster) -> None:
    bound_in_part(cluster)
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.run()
    assert ended(cluster) == ["g-1", "g-2"]


@pytest.mark.parametrize(("mode", "count"), [("Pod", 1), (None, 2)])
def test_a_gang_that_ran_and_lost_a_member_is_preempted_pod_by_pod_only_with_that_mode(
    cluster: FakeCluster, mode: str | None, count: int
) -> None:
    bound_in_part(cluster)
    group = cluster.find(PodGroup, "g")
    ran = PodGroupStatus(conditions=(PodCondition("PodGroupScheduled", "True", "Scheduled", ""),))
    spec = replace(group.spec, disruption_mode=mode)
    cluster.add(replace(group, spec=spec, status=ran), pod("high", cpu="1", priority=10))
    cluster.run()
    assert len(ended(cluster)) == count


class Forgetful:
    """Follows trials, and fails when the first task is put back."""

    name = "forgetful"

    def __init__(self) -> None:
        self.back: list[str] = []

    @hookimpl
    def on_session_open(self, session):
        session.add_trial_handler(lambda event: None, self._put_back)

    def _put_back(self, event):
        self.back.append(event.task.name)
        if len(self.back) == 1:
            raise RuntimeError("it is not there any more")


def test_a_plugin_that_fails_in_a_trial_does_not_keep_running_pods_off_their_nodes() -> None:
    cluster, plugin = FakeCluster(), Forgetful()  # checks the counted usage of each node after each cycle
    cluster.add(node("n1", cpu="3"))
    cluster.add(pod(f"low{n}", cpu="1", priority=n, bound_to="n1") for n in (1, 2, 3))
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.run(plugin)
    cluster.assert_pending("high", "it is not there any more")
    assert sorted(plugin.back) == ["low1", "low2", "low3"]
    assert all(task.node == "n1" for task in cluster.scheduler.cache.bound_tasks())
    assert len(list(cluster.scheduler.cache.bound_tasks())) == 3


class FailsFor:
    """Follows trials, and fails when the task with this name is removed."""

    name = "fails-for"

    def __init__(self, victim: str) -> None:
        self.victim = victim

    @hookimpl
    def on_session_open(self, session):
        session.add_trial_handler(self._remove, lambda event: None)

    def _remove(self, event):
        if event.task.name == self.victim:
            raise RuntimeError("it cannot be removed")


@pytest.mark.parametrize(("there", "before"), [(20, "n1"), (1, "")])
def test_nominations_stay_as_written_if_a_plugin_fails(cluster: FakeCluster, there: int, before: str) -> None:
    """The first of two members loses or gets a nomination; then a plugin fails for the second."""
    for number in (1, 2, 3):
        cluster.add(node(f"n{number}", cpu="1", labels={"of": f"n{number}"}))
    cluster.add(pod("there", cpu="1", priority=there, bound_to="n1"), pod("low", cpu="1", priority=1, bound_to="n2"))
    cluster.add(pod_group("g"), pod("g-0", group="g", cpu="1", bound_to="n3"))
    first = pod("g-1", group="g", cpu="1", priority=10, node_selector={"of": "n1"})
    cluster.add(replace(first, status=PodStatus(nominated_node_name=before)))
    cluster.add(pod("g-2", group="g", cpu="1", priority=10, node_selector={"of": "n2"}))
    cluster.run(FailsFor("low"))
    cluster.assert_pending("g-1", "it cannot be removed")
    assert ended(cluster) == []
    written = cluster.find(Pod, "g-1").status.nominated_node_name
    task = cluster.scheduler.cache.tasks[cluster.find(Pod, "g-1").metadata.uid]
    assert (cluster.scheduler.cache.nominations.node_of(task) or "") == written == before


def started_gang(cluster: FakeCluster, group: int, own: int) -> None:
    """A running gang of two, and an additional third member."""
    cluster.add(node("n1", cpu="1"), node("n2", cpu="1"), node("n3", cpu="1"), pod_group("g", 2, priority=group))
    cluster.add(pod(f"g-{n}", group="g", cpu="1", priority=own, bound_to=f"n{n}") for n in (1, 2))
    cluster.add(pod("g-3", group="g", cpu="1", priority=own))


@pytest.mark.parametrize(("group", "own", "ends"), [(10, 1, True), (1, 10, False)])
def test_an_additional_member_preempts_with_its_groups_priority(
    cluster: FakeCluster, group: int, own: int, ends: bool
) -> None:
    started_gang(cluster, group, own)
    cluster.add(pod("mid", cpu="1", priority=5, bound_to="n3"))
    cluster.run()
    assert ended(cluster) == (["mid"] if ends else [])


@pytest.mark.parametrize(("group", "own", "bound"), [(10, 1, True), (1, 10, False)])
def test_an_additional_member_yields_to_nominated_pods_of_its_groups_priority_or_higher(
    cluster: FakeCluster, group: int, own: int, bound: bool
) -> None:
    started_gang(cluster, group, own)
    waits = pod("waits", cpu="1", priority=5, gates=["later"])
    cluster.add(replace(waits, status=PodStatus(nominated_node_name="n3")))
    cluster.run()
    assert bool(cluster.node_of("g-3")) is bound


def test_members_of_a_nominated_gang_do_not_reuse_the_refusal_of_other_pods_of_their_class(
    cluster: FakeCluster,
) -> None:
    """Two pods of one class; the first is of another gang, is refused, and its result is cached."""
    cluster.add(node("n1", cpu="1"), node("n2", cpu="1"), node("n3", cpu="1"), node("n4", cpu="1"), node("n5", cpu="1"))
    for number, name in enumerate(("b", "a")):
        cluster.add(pod_group(name, 2))
        cluster.add(pod(f"{name}-{n}", group=name, cpu="1", priority=10, bound_to=f"n{2 * number + n}") for n in (1, 2))
    cluster.add(pod("low", cpu="1", priority=1, bound_to="n5"))
    waits = pod("a-3", group="a", cpu="1", priority=10, gates=["later"])
    cluster.add(replace(waits, status=PodStatus(nominated_node_name="n5")))
    cluster.add(pod("b-4", group="b", cpu="1", priority=10), pod("a-4", group="a", cpu="1", priority=10))
    cluster.run()
    assert {task.name for task in cluster.scheduler.cache.nominations.on_node("n5")} == {"a-3", "a-4"}
