"""PodGroups that are made for groups by label."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from fluence_plugins.fluence.plugin import FluencePlugin
from fluence_plugins.fluence.tasks import pod_group_maker
from fluence_plugins.fluence.tasks.pod_group_maker import PodGroupMaker
from fluence_plugins.resources.label_groups import GROUP_LABEL, GROUP_SIZE_ANNOTATION, MADE_BY, MADE_LABEL, members
from session_scheduler.cluster.errors import Forbidden, NotFound
from session_scheduler.framework.bindings import Runtime
from session_scheduler.model.groups import Group
from session_scheduler.model.meta import OwnerReference
from session_scheduler.model.objects import Pod, PodGroup
from session_scheduler.testing import FakeCluster, pod, pod_group

KEY = "PodGroup default/fluence-g"


def labelled(name: str, size: str = "2", *, owner: OwnerReference | None = None, **options: Any) -> Pod:
    made = pod(name, labels={GROUP_LABEL: "g"}, annotations={GROUP_SIZE_ANNOTATION: size}, **options)
    owners = () if owner is None else (owner,)
    return replace(made, metadata=replace(made.metadata, owner_references=owners))


class World:
    """A cluster in memory with a group by label, and the maker; `requeued` are the groups that it requeued."""

    def __init__(self, *objects: Any, compatible: bool = False) -> None:
        self.cluster = FakeCluster(checked=False)
        self.cluster.add(*objects)
        self.plugin = FluencePlugin(FluencePlugin.Arguments(make_pod_groups=True, go_compatible=compatible))
        self.cluster.run(self.plugin)
        self.maker = PodGroupMaker(compatible=compatible)
        self.name = self.maker.prefix + "g"
        self.requeued: list[str] = []

    def asked(self, times: int = 1, *, cluster: Any = None, elected: bool = True) -> list[str | None]:
        """The reasons why the group waits when it is tried so often, each time after the maker's task had its turn."""

        async def asks() -> list[str | None]:
            runtime = Runtime(lambda key, _: self.requeued.append(key), lambda: elected, cluster or self.cluster.memory)
            reasons = []
            async with self.maker.serve(runtime):
                for _ in range(times):
                    reasons.append(self.maker.why_waiting(self.group()))
                    for _ in range(20):
                        await asyncio.sleep(0)
            return reasons

        return asyncio.run(asks())

    def group(self) -> Group:
        return self.cluster.scheduler.cache.groups[f"PodGroup default/{self.name}"]

    def made(self) -> PodGroup:
        return asyncio.run(self.cluster.memory.get(PodGroup, "default", self.name))


class Refusing:
    """A cluster that lets no client create anything."""

    async def create(self, obj: PodGroup) -> PodGroup:
        raise Forbidden(f"PodGroup {obj.key}: not allowed to create it")


def test_a_group_waits_for_its_podgroup_which_is_marked_and_says_how_many_pods_start_together() -> None:
    world = World(labelled("b"), labelled("a"))
    assert world.asked() == ["waiting for PodGroup default/fluence-g to be created"]
    made = world.made()
    assert made.metadata.labels == {MADE_LABEL: MADE_BY}
    assert made.min_count == 2
    assert [(owner.kind, owner.name) for owner in made.metadata.owner_references] == [("Pod", "a"), ("Pod", "b")]
    world.cluster.nodes(2).run()
    assert world.group().pod_group == world.made()
    assert world.asked() == [None]
    world.cluster.assert_bound("a")
    world.cluster.assert_bound("b")


def test_who_made_the_pods_owns_their_podgroup_and_without_leave_to_delay_its_end() -> None:
    job = OwnerReference(api_version="batch/v1", kind="Job", name="job", uid="job-uid", controller=True)
    world = World(labelled("a", owner=job), labelled("b", owner=job))
    world.asked()
    (owner,) = world.made().metadata.owner_references
    assert (owner.api_version, owner.kind, owner.name, owner.uid, owner.controller) == (
        "batch/v1", "Job", "job", "job-uid", False,
    )  # fmt: skip


def test_a_podgroup_of_another_controller_is_neither_used_nor_changed() -> None:
    own = pod_group("fluence-g", 2)
    world = World(own, labelled("a"), labelled("b"))
    before = world.made()
    assert (
        world.asked(2)
        == ["PodGroup default/fluence-g was not created by fluence; rename it, or the group in the pods' label"] * 2
    )
    world.cluster.nodes(2).run()
    world.cluster.assert_pending("a", "was not created by fluence")
    assert world.made().metadata.labels == before.metadata.labels
    assert world.made().spec == before.spec


def test_a_podgroup_made_for_another_size_is_to_be_deleted() -> None:
    made = pod_group("fluence-g", 3, labels={MADE_LABEL: MADE_BY})
    assert World(made, labelled("a"), labelled("b")).asked() == [
        "PodGroup default/fluence-g was created for 3 pods, but the size of its group is now 2; delete the PodGroup; "
        "the scheduler creates it again"
    ]


def test_a_podgroup_that_came_meanwhile_is_made_once() -> None:
    world = World(labelled("a"), labelled("b"))
    assert world.asked(3) == ["waiting for PodGroup default/fluence-g to be created"] * 3  # no event has shown it yet
    assert world.requeued == []


def test_why_no_podgroup_can_be_made_is_reported_once_and_retried_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_group_maker, "AGAIN_SECONDS", 0)
    world = World(labelled("a"), labelled("b"))
    reasons = world.asked(2, cluster=Refusing())
    assert reasons[0] == "waiting for PodGroup default/fluence-g to be created"
    monkeypatch.setattr(pod_group_maker, "AGAIN_SECONDS", 3600)
    reasons = world.asked(2, cluster=Refusing())
    assert reasons[1] == (
        "cannot create PodGroup default/fluence-g (makePodGroups): PodGroup default/fluence-g: not allowed to create it"
    )
    assert set(world.requeued) == {KEY}
    assert world.asked(1) == [reasons[1]]
    assert world.made().min_count == 2


def test_a_replica_that_does_not_lead_makes_nothing() -> None:
    world = World(labelled("a"), labelled("b"))
    world.asked(elected=False)
    with pytest.raises(NotFound):
        world.made()


def test_pods_that_start_one_by_one_need_no_podgroup() -> None:
    world = World(labelled("a", "1"), labelled("b", "1"))
    assert world.asked() == [None]
    with pytest.raises(NotFound):
        world.made()


def test_without_a_live_cluster_the_group_starts_whole_without_a_podgroup() -> None:
    world = World(labelled("a", "3", cpu="1"), labelled("b", "3", cpu="1"))
    world.cluster.nodes(1, cpu="3").run()
    world.cluster.assert_pending("a", "needs 3 pods to start and has 2")
    world.cluster.add(labelled("c", "3", cpu="1")).run()
    world.cluster.assert_bound("c")


def test_the_pods_of_another_group_are_no_members() -> None:
    world = World(labelled("a"), labelled("b"), pod("native", group="g"), pod("alone"))
    assert [one.metadata.name for one in members(world.group())] == ["a", "b"]
    assert [list(members(group)) for key, group in world.cluster.scheduler.cache.groups.items() if key != KEY] == [
        []
    ] * 2


def test_a_producer_has_a_podgroup_though_it_is_one_pod() -> None:
    annotations = {GROUP_SIZE_ANNOTATION: "1", "fluence.flux-framework.org/coordination-role": "producer"}
    world = World(pod("p", labels={GROUP_LABEL: "g"}, annotations=annotations))
    assert world.asked() == ["waiting for PodGroup default/fluence-g to be created"]
    assert world.made().min_count == 1
    assert World(labelled("a", "1")).asked() == [None], "others need none"


def test_with_the_go_versions_names_the_podgroup_is_called_as_the_group() -> None:
    world = World(labelled("a"), labelled("b"), compatible=True)
    assert world.asked() == ["waiting for PodGroup default/g to be created"]
    assert world.made().min_count == 2


def go_group() -> PodGroup:
    made = pod_group("g", 2)
    annotations = {"fluence.flux-framework.org/created-by": "fluence-webhook"}
    return replace(made, metadata=replace(made.metadata, annotations=annotations))


@pytest.mark.parametrize("label_first", [True, False])
def test_pods_of_the_go_versions_podgroup_and_a_replacement_with_the_label_alone_start_together(
    label_first: bool,
) -> None:
    named = pod("a", group="g", labels={GROUP_LABEL: "g"})
    replacement = pod("b", labels={GROUP_LABEL: "g"})  # a Job's template has no annotation with the size
    world = World(go_group(), *((replacement, named) if label_first else (named, replacement)), compatible=True)
    world.cluster.nodes(2).run()
    world.cluster.assert_bound("a")
    world.cluster.assert_bound("b")


def test_a_replacement_joins_the_running_pods_of_the_go_versions_podgroup() -> None:
    world = World(
        go_group(), pod("a", group="g", bound_to="node-0"), pod("b", labels={GROUP_LABEL: "g"}), compatible=True
    )
    world.cluster.nodes(2).run()
    world.cluster.assert_bound("b")


def test_without_the_option_a_replacement_does_not_join() -> None:
    world = World(go_group(), pod("a", group="g"), pod("b", labels={GROUP_LABEL: "g"}))
    world.cluster.nodes(2).run()
    world.cluster.assert_pending("a", "needs 2 pods to start and has 1")


def test_a_podgroup_that_the_webhook_created_before_its_pod_gets_an_owner() -> None:
    annotations = {GROUP_SIZE_ANNOTATION: "1", "fluence.flux-framework.org/coordination-role": "producer"}
    claim = pod_group("g", 1, labels={MADE_LABEL: MADE_BY})
    world = World(claim, pod("p", labels={GROUP_LABEL: "g"}, annotations=annotations), compatible=True)
    assert world.asked() == [None]
    assert [owner.name for owner in world.made().metadata.owner_references] == ["p"]


def test_a_podgroup_of_another_creator_gets_no_owner() -> None:
    world = World(pod_group("g", 2), labelled("a"), labelled("b"), compatible=True)
    assert world.asked() == [
        "PodGroup default/g was not created by fluence; rename it, or the group in the pods' label"
    ]
    world.maker.request_consumers([labelled("a"), labelled("b")])
    world.asked()
    assert world.made().metadata.owner_references == ()


def test_consumers_have_a_podgroup_once_all_are_there() -> None:
    world = World(labelled("x", "1"), compatible=True)  # any group of the name

    async def requests(*consumers: Pod) -> None:
        runtime = Runtime(lambda *_: None, lambda: True, world.cluster.memory)
        async with world.maker.serve(runtime):
            world.maker.request_consumers(consumers)
            for _ in range(20):
                await asyncio.sleep(0)

    asyncio.run(requests(labelled("a", "2")))
    with pytest.raises(NotFound):
        world.made()
    asyncio.run(requests(labelled("a", "2"), labelled("b", "2")))
    assert world.made().min_count == 2
