"""Replicas of the scheduler on one cluster, with a network that loses, delays and reorders requests.

Everything runs in one event loop in an order from one random source. A replica's write succeeds, is lost before or
after it is done, is delayed in the network (its sender may be dead by then), or is the replica's last action.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial

from session_scheduler.base.clock import StoppedClock
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.errors import ClusterError, Unavailable
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.engine.scheduler import KINDS, Scheduler
from session_scheduler.framework.bindings import HELD_ANNOTATION
from session_scheduler.framework.observer import Observer
from session_scheduler.model.gang_plan import ATTEMPT_ANNOTATION, plan_here
from session_scheduler.model.groups import Phase
from session_scheduler.model.objects import Node, Pod, PodGroup
from session_scheduler.model.sub_groups import SUB_GROUP_LABEL, minima_of_group
from session_scheduler.registry.validation import hook_calls
from session_scheduler.testing import node, pod, pod_group

from ..slots import Slots

WRITES = ("bind", "patch_metadata", "create", "delete", "evict", "replace", "patch_status")
READS = ("get",)
FIRST = datetime(2026, 1, 1, tzinfo=UTC)


class Watched(MemoryCluster):
    """Records every change in order, and checks each for violations.

    `alone`: whether pods may join a started gang on their own, without a plan.
    """

    def __init__(self, *, alone=False):
        self._alone = alone
        self.ticks = 0
        self.log = []
        self.wrong = []
        self.veterans = set()
        """Pods (uids) whose gang has been complete since they were bound."""
        super().__init__(now=self._tick)

    def _tick(self):
        self.ticks += 1
        return FIRST + timedelta(seconds=self.ticks)

    def all(self, kind):
        return list(self._store(kind).objects.values())

    def bound(self, group=None):
        return [
            one
            for one in self.all(Pod)
            if one.spec.node_name and group in (None, one.spec.scheduling_group.pod_group_name)
        ]

    def _publish(self, change, obj):
        if isinstance(obj, Pod):
            self._look_at(obj)
        super()._publish(change, obj)
        self.log.append((change.value, obj))
        if isinstance(obj, Pod) and obj.spec.node_name:
            assert obj.spec.scheduling_group
            self._look_at_gang(obj.spec.scheduling_group.pod_group_name)

    def _remove(self, obj):
        super()._remove(obj)
        self.log.append(("DELETED", obj))

    def _look_at(self, new):
        old = self._store(Pod).objects.get(("", new.metadata.namespace, new.metadata.name))
        if old is not None and old.spec.node_name and old.metadata.uid == new.metadata.uid:
            before, now = (one.metadata.annotations.get(ATTEMPT_ANNOTATION) for one in (old, new))
            if before != now:
                self.wrong.append(f"the attempt of {new.key}, which is bound, was changed")

    def _look_at_gang(self, name):
        group = self._store(PodGroup).objects.get(("scheduling.k8s.io", "default", name))
        bound = self.bound(name)
        if group is None or not enough(group, bound):
            return
        new = [one for one in bound if one.metadata.uid not in self.veterans]
        started = len(new) < len(bound)
        self.veterans.update(one.metadata.uid for one in new)
        if not (started and self._alone):
            self.wrong += mixed(group, new)

    def held_twice(self):
        places = Counter(place for place in map(held_by, self.bound()) if place is not None)
        return [f"{place} is held {count} times" for place, count in places.items() if count > 1]


def enough(group, bound):
    """Whether these pods reach the gang's minCount and the minima of its sub-groups."""
    there = Counter(one.metadata.labels.get(SUB_GROUP_LABEL, "") for one in bound)
    return len(bound) >= group.min_count and all(there[name] >= least for name, least in minima_of_group(group).items())


def held_by(one):
    record = json.loads(one.metadata.annotations.get(HELD_ANNOTATION, "{}"))
    part = record.get("plugins", {}).get("slots")
    return (part["node"], part["slot"]) if part else None


def mixed(group, bound):
    """The pods of a gang that its plan did not bind and does not list as bound before."""
    plan = plan_here(group)
    if plan is None:
        return [f"{one.key} is bound without a plan" for one in bound]
    found = []
    for one in bound:
        planned = plan.pods.get(one.metadata.uid)
        attempt = one.metadata.annotations.get(ATTEMPT_ANNOTATION)
        if planned is None or planned.node != one.spec.node_name:
            found.append(f"{one.key} is bound, but the plan {plan.attempt} of its gang does not list it")
        elif attempt != plan.attempt and not planned.bound:
            found.append(f"{one.key} is bound by {attempt}, the plan of its gang is {plan.attempt}")
    return found


class Reporting(Observer):
    """Checks what a replica reports: a gang that it reports as scheduled has enough bound members in its cache.

    The members need not have been bound at the same moment, because a replica sees deletions later.
    """

    def __init__(self, replica, cluster):
        self._replica, self._cluster = replica, cluster

    def group_scheduled(self, pod_group, message):
        group = self._replica.scheduler.cache.groups[f"PodGroup {pod_group.key}"]
        bound = group.in_phase(Phase.BOUND)
        if not enough(pod_group, [task.pod for task in bound]):
            self._cluster.wrong.append(f"{group.key} is reported as scheduled with {bound}")
        self._cluster.veterans.update(task.uid for task in bound)


class Replica:
    """One scheduler with its position in the change log and its connection to the cluster."""

    def __init__(self, world: World):
        self._world = world
        self.plugin = Slots()
        self.dying = False
        self.seen = 0
        listed = [(name, builtin(None), None) for name, builtin in BUILTIN.items()]
        calls = hook_calls([*listed, ("slots", self.plugin, None)])
        self.scheduler = Scheduler(self, world.config, {"fluence": calls}, world.clock, holder=f"r{world.started}",
                                   observer=Reporting(self, world.cluster))  # fmt: skip

    def __getattr__(self, name):
        method = getattr(self._world.cluster, name)
        if name in WRITES:
            return partial(self._write, method)
        return partial(self._read, method) if name in READS else method

    async def _read(self, method, *arguments, **options):
        if self._world.chance(0.04):
            raise Unavailable("the read got no answer")
        return await method(*arguments, **options)

    async def _write(self, method, *arguments, **options):
        world = self._world
        request = partial(method, *arguments, **options)
        fate = world.fate()
        if fate == "slow":
            answered = asyncio.get_running_loop().create_future()
            world.network.append((request, answered))
            return await answered
        if fate in ("done", "lost after", "killed after"):
            answer = await request()
        if fate in ("late", "killed late"):
            world.network.append((request, None))
        if fate.startswith("killed"):
            self.dying = True
            await asyncio.Event().wait()
        if fate == "done":
            return answer
        raise Unavailable(fate)

    async def start(self):
        self.seen = len(self._world.cluster.log)
        await self.scheduler.start()

    async def see(self, count):
        """Apply the next changes, at most `count`."""
        news = self._world.cluster.log[self.seen :][:count]
        self.seen += len(news)
        for change, obj in news:
            if isinstance(obj, KINDS):
                await self.scheduler.event_handlers.apply(change, obj)

    async def turn(self):
        """Run one turn like the live loop."""
        await self.scheduler.complete_finished()
        self.scheduler.unknown_binds.start_checks(self.scheduler.completion.resolve)
        await self.scheduler.decide()
        for _ in range(self._world.random.randint(1, 12)):
            await asyncio.sleep(0)


def is_alone(request):
    """Whether a request binds a pod without a plan. Such requests of a dead leader arrive only within its lease."""
    return ATTEMPT_ANNOTATION not in request.keywords.get("annotations", {ATTEMPT_ANNOTATION: ""})


class World:
    """A cluster with gangs, their controller, and the running replicas."""

    def __init__(self, random, *, gangs=2, nodes=4, faults=1.0, extra=0, topology=None, led=False):
        """`extra`: the pods of a gang above its minCount. `topology`: None, or "zone" with two zones.

        `led`: the first pod of each gang is a required leader.
        """
        self.random = random
        self.config = SchedulerConfig(gang_bind_timeout_seconds=20.0)
        self.clock = StoppedClock()
        self.cluster = Watched(alone=extra > 0)
        self.faults = faults
        self.started = 0
        self.network = []
        """Requests in flight, each with the future of its sender if that still waits."""
        self.replicas = []
        self._sizes = {f"g{number}": random.randint(2, 4) for number in range(gangs)}
        self._nodes, self._extra, self._topology, self._led = nodes, extra, topology, led
        for number in range(nodes):
            self._put_node(number)
        self.control()

    def _put_node(self, number, **options):
        self.cluster.put(node(f"n{number}", cpu="4", labels={"zone": "ab"[number % 2]}, **options))

    # ------------------------------------------------------------------ the network

    def chance(self, probability):
        return self.random.random() < probability * self.faults

    def fate(self):
        if not self.chance(0.35):
            return "slow" if self.chance(0.3) else "done"
        fates = ["late"] * 3 + ["lost before", "lost after"] * 2 + ["killed before", "killed after", "killed late"]
        return self.random.choice(fates)

    async def pass_on(self, *, lose=False):
        """Deliver or lose one request in flight."""
        if not self.network:
            return
        request, answered = self.network.pop(self.random.randrange(len(self.network)))
        if lose:
            if answered is not None and not answered.done():
                answered.set_exception(Unavailable("timeout"))
            return
        try:
            answer = await request()
        except ClusterError as error:
            if answered is not None and not answered.done():
                answered.set_exception(error)
            return
        if answered is not None and not answered.done():
            answered.set_result(answer)

    # ------------------------------------------------------------------ controllers and users

    def control(self):
        """Act as the controllers: create missing groups and pods, delete pods on missing nodes."""
        names = {one.metadata.name for one in self.cluster.all(Node)}
        for one in self.cluster.bound():
            if one.spec.node_name not in names:
                self.cluster._remove(one)
        groups = {one.metadata.name for one in self.cluster.all(PodGroup)}
        pods = {one.metadata.name for one in self.cluster.all(Pod)}
        for name, size in self._sizes.items():
            if name not in groups:
                least = max(2, size - self._extra)
                minima = f"leader=1,worker={least - 1}" if self._led else None
                self.cluster.put(pod_group(name, least, topology=self._topology, sub_groups=minima))
            for index in range(size):
                if f"{name}-{index}" not in pods:
                    part = ("worker" if index else "leader") if self._led else ""
                    self.cluster.put(pod(f"{name}-{index}", group=name, sub_group=part, cpu="1"))

    async def disturb(self):
        """Delete a pod or a node, add a node again, cordon one, or change a pod."""
        what = self.random.choice(["pod", "pod", "node", "back", "label", "cordon"])
        if what == "pod":
            self.cluster._remove(self.random.choice(self.cluster.all(Pod)))
        elif what == "node" and len(self.cluster.all(Node)) > 1:
            self.cluster._remove(self.random.choice(self.cluster.all(Node)))
        elif what == "back":
            self._put_node(self.random.randrange(self._nodes))
        elif what == "cordon":
            number, closed = self.random.randrange(self._nodes), self.random.random() < 0.5
            self._put_node(number, unschedulable=closed)
        elif what == "label":
            one = self.random.choice(self.cluster.all(Pod))
            await self.cluster.patch_metadata(one, annotations={"touched": str(self.cluster.ticks)})
        if self.random.random() < 0.7:
            self.control()

    # ------------------------------------------------------------------ replicas

    async def start_one(self):
        self.started += 1
        if not self.replicas:
            self.network = [one for one in self.network if not is_alone(one[0])]
        replica = Replica(self)
        await replica.start()
        self.replicas.append(replica)
        return replica

    async def kill(self, replica):
        self.replicas.remove(replica)
        await replica.scheduler.in_flight.abandon()

    async def step(self, most=1):
        for replica in [one for one in self.replicas if one.dying]:
            await self.kill(replica)
        if len(self.replicas) < most and (not self.replicas or self.random.random() < 0.2):
            await self.start_one()
        what = self.random.random()
        replica = self.random.choice(self.replicas)
        if what < 0.55:
            await replica.see(self.random.choice([0, 1, 3, 100]))
            await replica.turn()
        elif what < 0.75:
            await self.pass_on()
        elif what < 0.80:
            await self.pass_on(lose=self.random.random() < 0.5)
        elif what < 0.90:
            self.clock.advance(self.random.choice([0.5, 2.0, 6.0]))
        elif what < 0.96:
            await self.disturb()
        elif what < 0.98:
            self.cluster.finish_deletions()
        else:
            await self.kill(replica)

    async def become_quiet(self):
        """Stop the faults, deliver all requests, and run one replica until nothing changes."""
        self.faults = 0.0
        for replica in [one for one in self.replicas if one.dying]:
            await self.kill(replica)
        for replica in self.replicas[1:]:
            await self.kill(replica)
        replica = self.replicas[0] if self.replicas else await self.start_one()
        last = (0, 0)
        for number in range(120):
            while self.network:
                await self.pass_on()
            await replica.see(1000)
            await replica.turn()
            self.cluster.finish_deletions()
            self.control()
            if number % 2:
                self.clock.advance(3.0)
            if len(self.cluster.log) != last[1]:
                last = (number, len(self.cluster.log))
            if number - last[0] > 24:
                break
        return replica
