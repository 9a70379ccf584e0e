"""Gangs on nodes with one exclusive slot each, over a cluster in memory whose schedulers come and go."""

from __future__ import annotations

import asyncio

from tests.tools.observing import observe

from session_scheduler import Refusal, hookimpl
from session_scheduler.binding.plan_store import PlanStore
from session_scheduler.framework.bindings import HELD_ANNOTATION
from session_scheduler.framework.observer import Observer
from session_scheduler.model.gang_plan import (
    ATTEMPT_ANNOTATION,
    PLAN_ANNOTATION,
    GangPlan,
    PlannedPod,
    attempt_of,
    plan_here,
)
from session_scheduler.model.groups import Phase
from session_scheduler.model.objects import Pod, PodGroup
from session_scheduler.testing import FakeCluster, gang


class Share:
    def __init__(self, plugin, nodes):
        self.nodes, self._plugin = nodes, plugin
        self.redo()

    @property
    def holds(self):
        return {task: {"slot": node} for task, node in self.nodes.items()}

    def undo(self):
        self.release(list(self.nodes))

    def redo(self):
        self._plugin.held.update({task.uid: node for task, node in self.nodes.items()})

    def release(self, tasks):
        for task in tasks:
            self._plugin.held.pop(task.uid)


class Slots:
    """Every node has one slot, every pod holds one."""

    name = "slots"

    def __init__(self):
        self.held, self.fails = {}, 0

    @hookimpl
    def place_group(self, session, tasks, room):
        names = session.table.names()
        free = [names[row] for row in room[tasks[0].cls].nonzero()[0] if names[row] not in self.held.values()]
        return Share(self, dict(zip(tasks, free, strict=False))) if free else Refusal("no slot is free")

    @hookimpl
    async def cancel(self, allocation):
        self.held.pop(allocation.uid, None)

    @hookimpl
    def recover(self, holdings):
        if self.fails and holdings:
            self.fails -= 1
            raise OSError("no graph")
        lost = {}
        for one in holdings:
            if one.held and one.held["slot"] in self.held.values():
                lost[one.task.uid] = "its slot is taken"
            elif one.held:
                self.held[one.task.uid] = one.held["slot"]
        return lost


class Heard(Observer):
    def __init__(self):
        self.scheduled, self.timed_out, self.problems, self.recoveries, self.told_bound = [], [], [], [], []

    def group_scheduled(self, pod_group, message):
        self.scheduled.append(message)

    def gang_timed_out(self, group, members, seconds):
        self.timed_out.append((group.name, members, seconds))

    def recovered(self, what, pods):
        self.recoveries.append((what, pods))

    def problem(self, obj, text):
        self.problems.append(text)

    def bound(self, task, node):
        self.told_bound.append((task.name, node))


class World:
    """A gang `g` of `size` pods on the nodes n1, n2 and so on; `start` starts a scheduler, again after a crash."""

    def __init__(self, size=2, nodes=4, **options):
        self.cluster = FakeCluster(checked=False)
        self.cluster.nodes(nodes)
        self.cluster.add(gang("g", size, **options))
        self.memory = self.cluster.memory

    def start(self):
        """A scheduler that knows nothing but what the cluster says; the one before is gone."""
        clock, memory = self.cluster.clock, self.memory
        self.cluster = FakeCluster(checked=False)
        self.cluster.clock, self.cluster.memory = clock, memory
        self.slots, self.heard = Slots(), Heard()
        self.scheduler = self.cluster.start(self.slots)
        observe(self.scheduler, self.heard)
        return self

    def run(self, cycles=4, seconds=1.0):
        for _ in range(cycles):
            self.cluster.run()
            self.cluster.advance(seconds)
        return self

    # ------------------------------------------------------------------ what is there

    def pod(self, name="g-0"):
        return self.memory._get(Pod, ("", "default", name))

    def group(self):
        return self.memory._get(PodGroup, ("scheduling.k8s.io", "default", "g"))

    def written_plan(self) -> GangPlan:
        """The plan that the group has now."""
        found = plan_here(self.group())
        assert found
        return found

    def places(self):
        pods = sorted(self.memory._store(Pod).objects.values(), key=lambda one: one.key)
        return {one.metadata.name: one.spec.node_name for one in pods}

    def attempts(self):
        """By which attempts its bound pods were bound."""
        pods = self.memory._store(Pod).objects.values()
        return {one.metadata.annotations.get(ATTEMPT_ANNOTATION) for one in pods if one.spec.node_name}

    def attempt(self):
        return attempt_of(self.group())

    def phases(self):
        return {task.name: task.phase for task in self.scheduler.cache.tasks.values()}

    def assert_whole(self):
        places = self.places()
        assert all(places.values()), places
        assert len(set(places.values())) == len(places)
        assert set(self.phases().values()) == {Phase.BOUND}
        assert sorted(self.slots.held.values()) == sorted(places.values())

    # ------------------------------------------------------------------ what others did

    def plan(self, state="active", attempt="theirs", pods=None, **nodes):
        """A plan of another replica, by the pods' names (g_0 for g-0)."""
        places = {name.replace("_", "-"): node for name, node in nodes.items()}
        planned = {
            self.pod(name).metadata.uid: PlannedPod.of(name, node, {"slots": {"slot": node}})
            for name, node in places.items()
        }
        plan = GangPlan(attempt, "another", planned | (pods or {}), state)
        asyncio.run(PlanStore(self.memory).swap(self.group(), plan))
        return plan

    def bind(self, name, node, attempt="theirs"):
        """Another replica binds a pod."""
        asyncio.run(self.request(name, node, attempt)())

    def request(self, name, node, attempt="theirs"):
        """Another replica's request to bind a pod as it is now; it can come later."""
        metadata = self.pod(name).metadata
        record = f'{{"uid":"{metadata.uid}","plugins":{{"slots":{{"slot":"{node}"}}}}}}'
        annotations = {HELD_ANNOTATION: record, ATTEMPT_ANNOTATION: attempt}

        async def bind():
            await type(self.memory).bind(
                self.memory,
                "default",
                name,
                node=node,
                uid=metadata.uid,
                resource_version=metadata.resource_version,
                annotations=annotations,
            )

        return bind

    def annotate(self, text):
        """Another client writes an invalid plan, or a plan of its own."""
        asyncio.run(self.memory.patch_metadata(self.group(), annotations={PLAN_ANNOTATION: text}))

    def delete(self, kind, name):
        self.memory._remove(self.memory._get(kind, ("" if kind is Pod else "scheduling.k8s.io", "default", name)))


def refusing(world: World, *names):
    """These pods cannot be bound, until the returned function is called."""
    world.cluster.fail_binds(*names)
    return world.memory.stop_failing
