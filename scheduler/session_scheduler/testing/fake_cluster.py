"""A cluster in memory with the real scheduler over it, in a stopped clock's time: for tests of plugins."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from session_scheduler.builtin import BUILTIN
from session_scheduler.clock import StoppedClock
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.config import DEFAULT_SCHEDULER_NAME, SchedulerConfig
from session_scheduler.hook_calls import HookCalls
from session_scheduler.model.objects import KubeObject, Pod
from session_scheduler.service import KINDS, Bound, Scheduler
from session_scheduler.simulate import reason_of
from session_scheduler.testing.builders import node
from session_scheduler.testing.invariants import check_invariants
from session_scheduler.under_way import raise_first

_ALL_AT_ONCE = 1_000_000
_FIRST = datetime(2000, 1, 1, tzinfo=UTC)


class FakeCluster:
    """Add objects, `run` cycles with some plugins after kube-scheduler's, and ask what became of the pods.

    What is added after a run reaches the scheduler as watch events do. After each cycle the invariants are checked,
    unless `checked` is False.
    """

    def __init__(
        self, *, config: SchedulerConfig | None = None, evaluation: str = "heap", checked: bool = True
    ) -> None:
        # No bind waits for another: each run has an event loop of its own, and what waits in one belongs to it.
        self.config = config or SchedulerConfig(bindings_in_flight=_ALL_AT_ONCE)
        self.clock = StoppedClock()
        self.memory = MemoryCluster(now=self._time, binds_volumes=True)
        self._evaluation = evaluation
        self._checked = checked
        self._ticks = 0
        self._scheduler: Scheduler | None = None
        self._known: dict[str, KubeObject] = {}

    def _time(self) -> datetime:
        """Each object is one second younger than the one before it."""
        self._ticks += 1
        return _FIRST + timedelta(seconds=self._ticks)

    # ------------------------------------------------------------------ the cluster

    def nodes(self, count: int, **options: Any) -> None:
        """Add the nodes n1, n2 and so on; `options` as for `node`."""
        self.add(*(node(f"n{index}", **options) for index in range(1, count + 1)))

    def add(self, *objects: KubeObject | Iterable[KubeObject]) -> None:
        """Add objects, or lists of them as `gang` makes them; an object of a known name is changed."""
        for entry in objects:
            for obj in (entry,) if isinstance(entry, KubeObject) else entry:
                self.memory.put(obj)

    def delete(self, kind: type[KubeObject], name: str, namespace: str = "default") -> None:
        """Delete an object at once."""
        obj = self._find(kind, name, namespace)
        asyncio.run(self.memory.delete(obj, grace_seconds=0))

    def advance(self, seconds: float) -> None:
        """Let the scheduler's time pass: groups that failed become due."""
        self.clock.advance(seconds)

    # ------------------------------------------------------------------ the scheduler

    def start(self, *plugins: object) -> Scheduler:
        """Start the scheduler over what is there, with kube-scheduler's plugins and then these (each has a `name`).

        One with the name of one of kube-scheduler's takes its place.
        """
        own = [(str(getattr(plugin, "name", type(plugin).__name__)), plugin, None) for plugin in plugins]
        instead = {name: plugin for name, plugin, _ in own if name in BUILTIN}
        listed = [
            (name, instead[name] if name in instead else builtin(None), None) for name, builtin in BUILTIN.items()
        ]
        added = [entry for entry in own if entry[0] not in BUILTIN]
        profiles = {DEFAULT_SCHEDULER_NAME: HookCalls([*listed, *added])}
        scheduler = Scheduler(self.memory, self.config, profiles, self.clock, evaluation=self._evaluation)
        asyncio.run(_started(scheduler))
        self._known = self._objects()
        self._scheduler = scheduler
        return scheduler

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler under test; it exists from the first `run` or `start` on."""
        if self._scheduler is None:
            raise RuntimeError("the scheduler was not started: call run(…) or start(…) first")
        return self._scheduler

    def run(self, *plugins: object, cycles: int = 1) -> list[Bound]:
        """Run cycles; the first call starts the scheduler, so only it may name plugins. Returns what was decided."""
        if self._scheduler is None:
            self.start(*plugins)
        elif plugins:
            raise RuntimeError("the scheduler runs already: name the plugins in the first run(…)")
        done: list[Bound] = []
        for _ in range(cycles):
            done.extend(asyncio.run(self._cycle()))
            if self._checked:
                check_invariants(self.scheduler)
        return done

    async def _cycle(self) -> list[Bound]:
        await self._deliver()
        done = await self.scheduler.cycle()
        await self._deliver()
        await _settled(self.scheduler)
        return done

    async def _deliver(self) -> None:
        """Bring the scheduler what changed since it was last told."""
        current, known = self._objects(), self._known
        self._known = current
        for name, obj in known.items():
            if name not in current or current[name].metadata.uid != obj.metadata.uid:
                await self.scheduler.apply("DELETED", obj)
        for name, obj in current.items():
            before = known.get(name)
            if before is None or before.metadata.uid != obj.metadata.uid:
                await self.scheduler.apply("ADDED", obj)
            elif before is not obj:
                await self.scheduler.apply("MODIFIED", obj)

    def _objects(self) -> dict[str, KubeObject]:
        """Every object, by a name of its own, in the order in which the scheduler must know them."""
        found: dict[str, KubeObject] = {}
        for kind in KINDS:
            found.update((f"{obj.api_version} {kind.__name__} {obj.key}", obj) for obj in self.memory.objects(kind))
        return found

    # ------------------------------------------------------------------ what became of it

    def node_of(self, name: str, namespace: str = "default") -> str | None:
        """The node that the pod is bound to, in the cluster."""
        return self._find(Pod, name, namespace).spec.node_name or None

    def placements(self) -> dict[str, str | None]:
        """namespace/name of every pod and its node."""
        return {obj.key: obj.spec.node_name or None for obj in self._objects().values() if isinstance(obj, Pod)}

    def reasons(self, name: str, namespace: str = "default") -> str:
        """Why the pod was not placed when it was last tried; empty where it is bound."""
        pod = self._find(Pod, name, namespace)
        if pod.spec.node_name:
            return ""
        task = self.scheduler.cache.tasks.get(pod.metadata.uid)
        return "the scheduler does not serve it" if task is None else reason_of(self.scheduler, task)

    def assert_bound(self, name: str, node: str | None = None, *, namespace: str = "default") -> None:
        """The pod is bound, to this node if one is named; AssertionError says why it is not."""
        bound = self.node_of(name, namespace)
        if bound is None:
            raise AssertionError(f"pod {namespace}/{name} is not bound: {self.reasons(name, namespace)}")
        if node is not None and bound != node:
            raise AssertionError(f"pod {namespace}/{name} is bound to {bound}, not to {node}")

    def assert_pending(self, name: str, reason: str = "", *, namespace: str = "default") -> None:
        """The pod is not bound, and `reason` is a part of why."""
        bound = self.node_of(name, namespace)
        if bound is not None:
            raise AssertionError(f"pod {namespace}/{name} is bound to {bound}")
        given = self.reasons(name, namespace)
        if reason not in given:
            raise AssertionError(f"pod {namespace}/{name} waits because {given!r}, which does not say {reason!r}")

    def _find(self, kind: type[Any], name: str, namespace: str) -> Any:
        for obj in self._objects().values():
            if isinstance(obj, kind) and obj.key in (name, f"{namespace}/{name}"):
                return obj
        raise LookupError(f"there is no {kind.__name__} {namespace}/{name}: add it first")


async def _started(scheduler: Scheduler) -> None:
    await scheduler.start()
    await _settled(scheduler)


async def _settled(scheduler: Scheduler) -> None:
    """Let work end that an event began: the event loop that it runs in ends with this."""
    errors: list[BaseException] = []
    await scheduler.under_way.wait(errors)
    await scheduler.under_way.settle_ended(errors)
    raise_first(errors)
