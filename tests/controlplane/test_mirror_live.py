"""The mirror on a real API server: cut watches, compacted history and a killed API server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from session_scheduler.base.clock import StoppedClock, SystemClock
from session_scheduler.cluster.errors import Forbidden
from session_scheduler.cluster.kube_access import load_access
from session_scheduler.cluster.kube_requests import ApiClient
from session_scheduler.cluster.kubernetes import KubernetesCluster, connect
from session_scheduler.cluster.mirror import Mirror, MirrorMeter
from session_scheduler.cluster.port import Change, Kube, Listing
from session_scheduler.model.objects import (
    Container,
    GangPolicy,
    KubeObject,
    Node,
    ObjectMeta,
    Pod,
    PodGroup,
    PodGroupSpec,
    PodSpec,
    PriorityClass,
    SchedulingPolicy,
)

from .conftest import new_control_plane
from .harness import ADMIN, SCHEDULER, ControlPlane
from .relay import Relay

KINDS: tuple[type[KubeObject], ...] = (PriorityClass, Node, PodGroup, Pod)
PATIENCE = 60.0


class Mirrored(MirrorMeter):
    """The objects that a mirror has delivered, and its counts."""

    def __init__(self, cluster: KubernetesCluster, reconcile_seconds: float = 60.0) -> None:
        self.objects: dict[tuple[type, str, str], KubeObject] = {}
        self.ended = 0
        self.lists: list[str] = []
        self.lost = 0
        self.mirror = Mirror(cluster, KINDS, self.take, clock=SystemClock(), chance=random.Random(1),
                             reconcile_seconds=reconcile_seconds, meter=self)  # fmt: skip

    def take(self, change: Change, obj: KubeObject) -> None:
        name = type(obj), obj.api_version, obj.key
        assert (name in self.objects) is (change is not Change.ADDED)
        if change is not Change.ADDED:
            assert self.objects[name].metadata.uid == obj.metadata.uid
        if change is Change.DELETED:
            del self.objects[name]
        else:
            self.objects[name] = obj

    def event(self, kind: str) -> None:
        pass

    def watch_ended(self, kind: str, why: str) -> None:
        self.ended += 1

    def relisted(self, kind: str, why: str) -> None:
        self.lists.append(why)

    def missed(self, kind: str, count: int) -> None:
        self.lost += count

    async def start(self) -> None:
        for obj in await self.mirror.start():
            self.take(Change.ADDED, obj)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the mirror, and cancel it at the end; it must not have failed."""
        running = asyncio.create_task(self.mirror.run())
        try:
            yield
        finally:
            ended = running.done()
            running.cancel()
            (failure,) = await asyncio.gather(running, return_exceptions=True)
        assert not ended, failure

    async def becomes_what_there_is(self, cluster: KubernetesCluster) -> None:
        """Wait until it has the same objects as a new list. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE):
            while True:
                listings = [await cluster.list(kind) for kind in KINDS]
                listed = [obj for listing in listings for obj in listing.items]
                if self.objects == {(type(obj), obj.api_version, obj.key): obj for obj in listed}:
                    return
                await asyncio.sleep(0.05)


def a_pod(namespace: str, name: str) -> Pod:
    spec = PodSpec(scheduler_name="fluence", containers=(Container(name="main", image="example.com/none"),))
    return Pod(metadata=ObjectMeta(name=name, namespace=namespace), spec=spec)


def gang(namespace: str, name: str) -> PodGroup:
    spec = PodGroupSpec(scheduling_policy=SchedulingPolicy(gang=GangPolicy(min_count=2)))
    return PodGroup(metadata=ObjectMeta(name=name, namespace=namespace), spec=spec)


async def live(plane: ControlPlane, admin: KubernetesCluster, chance: random.Random, steps: int,
               between: Callable[[], object] = lambda: None) -> None:  # fmt: skip
    """Create, change and delete pods and groups with few names in a new namespace."""
    namespace = plane.new_namespace()
    there: dict[tuple[type, str], Pod | PodGroup] = {}
    for step in range(steps):
        between()
        kind, name = chance.choice([Pod, Pod, PodGroup]), f"o{chance.randrange(4)}"
        known = there.get((kind, name))
        if known is None:
            new = a_pod(namespace, name) if kind is Pod else gang(namespace, name)
            there[kind, name] = await admin.create(new)
        elif chance.random() < 0.5:
            there[kind, name] = await admin.patch_metadata(known, annotations={"step": str(step)})
        else:
            await admin.delete(there.pop((kind, name)))
            if kind is PodGroup:  # no controller removes the finalizer of protected groups here
                path = f"/apis/{known.api_version}/namespaces/{namespace}/podgroups/{name}"
                await asyncio.to_thread(plane.request, "PATCH", path, {"metadata": {"finalizers": None}})


@pytest.fixture
async def admin(control_plane: ControlPlane) -> AsyncIterator[KubernetesCluster]:
    async with await connect(str(control_plane.kubeconfig(ADMIN))) as cluster:
        yield cluster


async def test_what_comes_and_goes_is_mirrored_while_watches_are_cut_at_random(
    control_plane: ControlPlane, admin: KubernetesCluster, tmp_path: Path
) -> None:
    chance = random.Random(7)
    async with Relay(control_plane.port) as relay:
        direct = control_plane.kubeconfig(SCHEDULER).read_text()
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(direct.replace(f":{control_plane.port}", f":{relay.port}"))

        def cut_at_random() -> None:
            if chance.random() < 0.1:
                relay.cut()

        async with await connect(str(kubeconfig)) as cluster:
            mirrored = Mirrored(cluster)
            await mirrored.start()
            async with mirrored.running():
                await live(control_plane, admin, chance, 200, cut_at_random)
                await mirrored.becomes_what_there_is(admin)
    assert mirrored.ended >= len(KINDS)
    assert mirrored.lost == 0


class Counted(KubernetesCluster):
    """Counts its lists."""

    lists = 0

    async def list(self, kind: type[Kube], **options: Any) -> Listing[Kube]:
        self.lists += 1
        return await super().list(kind, **options)


async def test_a_fresh_list_and_the_watch_agree_while_everything_changes(
    control_plane: ControlPlane, admin: KubernetesCluster
) -> None:
    client = ApiClient(await load_access(str(control_plane.kubeconfig(SCHEDULER)), None))
    async with (cluster := Counted(client)):
        mirrored = Mirrored(cluster, reconcile_seconds=0.2)  # events may be late by 0.05 s; some are later
        await mirrored.start()
        chance = random.Random(8)
        async with mirrored.running():
            async with asyncio.timeout(PATIENCE):
                while cluster.lists < 3 * len(KINDS):  # a fast machine needs more changes
                    await live(control_plane, admin, chance, 100)
            await mirrored.becomes_what_there_is(admin)


async def test_a_kind_that_the_role_does_not_allow_is_named(control_plane: ControlPlane) -> None:
    async with await connect(str(control_plane.kubeconfig("outsider"))) as cluster:
        mirror = Mirror(cluster, KINDS, lambda change, obj: None, clock=Hasty(), sleep=asyncio.sleep)
        with pytest.raises(Forbidden, match=r"failed to list (\w+) objects .*list and watch on \1 objects \(in its"):
            await mirror.start()


class Hasty(StoppedClock):
    """A clock that advances by ten seconds with each query."""

    def now(self) -> float:
        self.advance(10.0)
        return super().now()


async def test_a_killed_api_server_and_a_compacted_history_lose_nothing(tmp_path: Path) -> None:
    chance = random.Random(9)
    with new_control_plane(tmp_path) as plane:
        namespace = plane.new_namespace()
        async with (
            await connect(str(plane.kubeconfig(ADMIN))) as admin,
            await connect(str(plane.kubeconfig(SCHEDULER))) as cluster,
        ):
            mirrored = Mirrored(cluster)
            await mirrored.start()
            async with mirrored.running():
                kept = await admin.create(a_pod(namespace, "kept"))
                again = await admin.create(a_pod(namespace, "again"))
                await live(plane, admin, chance, 30)
                plane.kill("kube-apiserver")
                await asyncio.to_thread(plane.start_api_server)
                await live(plane, admin, chance, 30)
                await mirrored.becomes_what_there_is(admin)
            assert mirrored.ended >= len(KINDS)
            await admin.delete(again)  # without a watch
            second = await admin.create(a_pod(namespace, "again"))
            await admin.patch_metadata(kept, annotations={"while": "no replica watches"})
            await live(plane, admin, chance, 10)
            plane.compact()
            plane.kill("kube-apiserver")
            await asyncio.to_thread(plane.start_api_server)
            async with mirrored.running():
                await mirrored.becomes_what_there_is(admin)
    assert mirrored.objects[Pod, "v1", again.key] == second
    assert "Gone" in mirrored.lists
    assert mirrored.lost == 0
