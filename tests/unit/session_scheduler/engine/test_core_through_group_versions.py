"""The core over an API server that has pod groups in one version or another: it schedules, plans and reports alike.

A server speaks HTTP and the version's own words; behind it is a cluster in memory.
"""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from session_scheduler.base.clock import StoppedClock
from session_scheduler.base.signals import background
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.kubernetes import KubernetesCluster
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.model.gang_plan import PLAN_ANNOTATION
from session_scheduler.model.group_api import SCHEDULED, V1ALPHA2, V1BETA1
from session_scheduler.model.objects import Node, Pod, PodCondition, PodGroup
from session_scheduler.registry.validation import hook_calls
from session_scheduler.reporting.live_observer import LiveObserver
from session_scheduler.reporting.metrics import Metrics
from session_scheduler.reporting.recorder import Recorder
from session_scheduler.testing import gang, node, pod

from ..cluster.fake_api import FakeApi, refuses, says

KINDS: dict[str, type[Pod | Node | PodGroup]] = {"pods": Pod, "nodes": Node, "podgroups": PodGroup}
VERSIONS = pytest.mark.parametrize("version", [V1ALPHA2, V1BETA1], ids=lambda version: version.api_version)


class Server:
    """What an API server answers to a scheduler, of groups in one version."""

    def __init__(self, version):
        self.version, self.memory, self.conditions = version, MemoryCluster(), []

    async def __call__(self, request):
        parts = request.path.strip("/").split("/")
        if parts[:2] == ["apis", "scheduling.k8s.io"] and len(parts) == 3:
            served = "/".join(parts[1:]) == self.version.api_version
            answer = says({"resources": [{"name": "podgroups"}]}) if served else refuses(404, "NotFound")
        elif parts[0] == "apis" and len(parts) == 3:
            answer = refuses(404, "NotFound")
        elif request.method == "GET":
            answer = await self.read(parts)
        else:
            answer = await self.write(parts, msgspec.json.decode(await request.read()))
        return await answer(request)

    async def read(self, parts):
        plural = next((part for part in parts if part in KINDS), None)
        if plural is None:
            return says({"metadata": {"resourceVersion": "1"}, "items": []})
        if parts[-1] == plural:
            listing = await self.memory.list(KINDS[plural])
            items = [self.said(obj) for obj in listing.items]
            return says({"metadata": {"resourceVersion": listing.resource_version}, "items": items})
        return says(self.said(await self.found(KINDS[plural], parts[-1])))

    async def found(self, kind, name):
        return await self.memory.get(kind, "default", name)

    async def write(self, parts, body):
        if parts[-1] == "binding":
            metadata = body["metadata"]
            await self.memory.bind(
                "default", parts[-2], node=body["target"]["name"], uid=metadata["uid"],
                resource_version=metadata["resourceVersion"], annotations=metadata.get("annotations", {}),
            )  # fmt: skip
            return says({"kind": "Status", "status": "Success"})
        if "podgroups" not in parts:
            return says({}, 201)  # an event
        name = parts[parts.index("podgroups") + 1]
        group = await self.found(PodGroup, name)
        version = body["metadata"].get("resourceVersion")
        if parts[-1] == "status":
            written = body["status"]["conditions"]
            self.conditions += [(one["type"], one["status"], one["reason"]) for one in written]
            conditions = [msgspec.convert({**one, "type": SCHEDULED}, PodCondition) for one in written]
            changed = await self.memory.patch_status(group, conditions=conditions, resource_version=version)
        else:
            annotations = body["metadata"]["annotations"]
            changed = await self.memory.patch_metadata(group, annotations=annotations, resource_version=version)
        return says(self.said(changed))

    def said(self, obj):
        if not isinstance(obj, PodGroup):
            return {**msgspec.to_builtins(obj), "kind": type(obj).__name__}
        status = msgspec.to_builtins(obj.status)
        for condition in status.get("conditions", ()):
            condition["type"] = self.version.condition_type(condition["type"])
        return {**self.version.written(obj), "kind": "PodGroup", "status": status}


class World:
    """A scheduler with everything that reports its work, over the server."""

    def __init__(self, api: FakeApi, server):
        self.server, self.clock = server, StoppedClock()
        api.replies = [server]
        self.cluster = KubernetesCluster(api.client(), instance="test")
        profiles = {"fluence": hook_calls([(name, plugin(None), None) for name, plugin in BUILTIN.items()])}
        self.recorder = Recorder(self.cluster, clock=self.clock)
        observer = LiveObserver(self.recorder, Metrics("0"), self.clock, profiles)
        self.scheduler = Scheduler(self.cluster, SchedulerConfig(), profiles, self.clock, observer=observer,
                                   holder="me", token=lambda: "token")  # fmt: skip

    async def run(self):
        await self.scheduler.start()
        async with background(self.recorder.run()):
            await self.scheduler.cycle()
            await self.recorder.flush()

    async def group(self, name="g"):
        return await self.server.found(PodGroup, name)


@pytest.fixture
async def api():
    async with FakeApi() as api:
        yield api


def add(server, *objects):
    for obj in objects:
        server.memory.put(obj)


@VERSIONS
async def test_a_gang_is_planned_bound_in_one_domain_and_told_of(api: FakeApi, version):
    server = Server(version)
    add(server, *(node(f"{zone}{index}", cpu="2", labels={"zone": zone}) for zone in "ab" for index in range(2)))
    add(server, node("a2", cpu="4", labels={"zone": "a"}), *gang("g", 3, cpu="2", topology="zone"), pod("alone"))
    world = World(api, server)
    await world.run()
    nodes = [(await server.found(Pod, f"g-{index}")).spec.node_name for index in range(3)]
    assert {name[:1] for name in nodes} == {"a"}
    assert (await server.found(Pod, "alone")).spec.node_name
    assert server.conditions == [(version.condition, "True", "Scheduled")]
    group = await world.group()
    assert PLAN_ANNOTATION in group.metadata.annotations
    assert {group.api_version for group in world.scheduler.cache.pod_groups()} == {version.api_version}


@VERSIONS
async def test_a_gang_that_does_not_fit_is_told_why(api: FakeApi, version):
    server = Server(version)
    add(server, node("n", cpu="2"), *gang("g", 3, cpu="1"))
    world = World(api, server)
    await world.run()
    assert server.conditions == [(version.condition, "False", "Unschedulable")]
    (condition,) = (await world.group()).status.conditions
    assert "Insufficient cpu" in condition.message


@VERSIONS
async def test_a_gang_that_a_predecessor_bound_in_part_is_carried_on(api: FakeApi, version):
    """What the group's condition says is understood, too: one that has started is not started again."""
    server = Server(version)
    add(server, node("n1", cpu="2"), node("n2", cpu="2"), *gang("g", 2, cpu="2"))
    await World(api, server).run()
    bound = await server.found(Pod, "g-0")
    add(server, replace(bound, spec=replace(bound.spec, node_name="")))
    add(server, replace(await World(api, server).group(), status=type(PodGroup().status)()))
    successor = World(api, server)
    await successor.run()
    assert (await server.found(Pod, "g-0")).spec.node_name == bound.spec.node_name
    assert server.conditions == 2 * [(version.condition, "True", "Scheduled")]
