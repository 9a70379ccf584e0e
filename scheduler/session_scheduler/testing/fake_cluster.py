"""The cluster for tests of plugins: add objects, run the scheduler, assert the results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from msgspec.structs import replace

from session_scheduler.config.settings import DEFAULT_SCHEDULER_NAME
from session_scheduler.model.objects import KubeObject, Node, Pod
from session_scheduler.testing import builders
from session_scheduler.testing.driving import finished
from session_scheduler.testing.faults import Answer
from session_scheduler.testing.invariants import InvariantError
from session_scheduler.testing.results import Results

_MOST_CYCLES = 100


class FakeCluster(Results):
    """Add objects and plugins, `schedule`, then query or assert the results. Most methods can be chained.

    By default it schedules as kube-scheduler does; `use("fluence")` adds the matcher. Invariants are checked after
    each cycle unless `checked` is False. `evaluation` is naive, board or heap, which make the same decisions. It runs
    its own event loops, so the test must be synchronous.
    """

    # ------------------------------------------------------------------ plugins

    def use(self, plugin: object, args: Mapping[str, Any] | None = None, *, weight: int | None = None) -> Self:
        """Add a plugin: its class, an instance, or the name of an installed one.

        `args` are those of a configuration (camelCase), and validated. Added plugins are called after the built-in
        ones, in the order of the calls; one with a built-in's name replaces it. Raises PluginLoadError.
        """
        self._only_before("use(…)")
        self._chosen.use(plugin, args, weight)
        return self

    def without(self, *names: str) -> Self:
        """Disable built-in plugins. Raises ValueError for another name."""
        self._only_before("without(…)")
        for name in names:
            self._chosen.disable(name)
        return self

    def plugin(self, name: str) -> Any:
        """The instance of a plugin; of an added one before the scheduler runs. Raises LookupError."""
        instances = self._chosen.instances() if self._scheduler is None else self._running_plugins()
        if name not in instances:
            raise LookupError(f"plugin {name!r} is not enabled; available: {', '.join(instances) or 'none'}")
        return instances[name]

    def _running_plugins(self) -> dict[str, object]:
        return {name: one for calls in self.scheduler.profiles.values() for name, one in calls.instances.items()}

    def _only_before(self, call: str) -> None:
        if self._scheduler is not None:
            raise RuntimeError(f"the scheduler is already running; call {call} before the first schedule() or run()")

    # ------------------------------------------------------------------ objects

    def add(self, *objects: KubeObject | Iterable[KubeObject]) -> Self:
        """Add objects, or lists of them such as `gang` returns; update an object with a known name."""
        for entry in objects:
            for obj in (entry,) if isinstance(entry, KubeObject) else entry:
                self.memory.put(obj)
        return self

    def nodes(self, count: int, *, prefix: str = "n", **options: Any) -> Self:
        """Add the nodes n1, n2 and so on. `options` are those of `builders.node`."""
        return self.add(builders.node(f"{prefix}{index}", **options) for index in range(1, count + 1))

    def node(self, name: str, **options: Any) -> Self:
        """Add or update a node. `options` are those of `builders.node`."""
        return self.add(builders.node(name, **options))

    def pods(self, count: int, *, prefix: str = "p", **options: Any) -> Self:
        """Add the pods p-0, p-1 and so on. `options` are those of `builders.pod`."""
        return self.add(builders.pods(prefix, count, **options))

    def pod(self, name: str, **options: Any) -> Self:
        """Add or update a pod. `options` are those of `builders.pod`."""
        return self.add(builders.pod(name, **options))

    def group(self, name: str, min_count: int | None = None, **options: Any) -> Self:
        """Add a PodGroup. `options` are those of `builders.pod_group`."""
        return self.add(builders.pod_group(name, min_count, **options))

    def gang(self, name: str, size: int, **options: Any) -> Self:
        """Add a PodGroup and its pods `<name>-0` and so on. `options` are those of `builders.gang`."""
        return self.add(builders.gang(name, size, **options))

    def queue(self, name: str, **options: Any) -> Self:
        """Add or update a Queue. `options` are those of `builders.queue`."""
        return self.add(builders.queue(name, **options))

    # ------------------------------------------------------------------ time and changes

    def schedule(self) -> Self:
        """Run cycles until no group is active. Raises InvariantError if that does not happen.

        Unschedulable pods wait for an event that requeues them, and for the end of their backoff (`advance`).
        """
        for _ in range(_MOST_CYCLES):
            before = self.memory.version
            self.run()
            moved = self.memory.version != before
            queue = self.scheduler.queue
            if not self._due() and not (moved and (queue.any_hurried or queue.has_freed(DEFAULT_SCHEDULER_NAME))):
                return self
        raise InvariantError(f"expected no active group after {_MOST_CYCLES} cycles, got {', '.join(self._due())}")

    def restart(self) -> Self:
        """Replace the scheduler by a new one that knows only the cluster, as after a crash.

        Builds the plugins again; `recover` restores their state. Raises RuntimeError if one is an instance.
        """
        self._chosen.rebuild()
        self._scheduler = None
        self.start()
        return self

    def advance(self, seconds: float) -> Self:
        """Move the scheduler's clock forward: backoffs end."""
        self.clock.advance(seconds)
        return self

    def end(self, name: str, namespace: str = "default", *, succeeded: bool = True) -> Self:
        """Terminate a bound pod, like its kubelet, and free its resources. Raises LookupError if it is not bound."""
        pod = self.find(Pod, name, namespace)
        if not pod.spec.node_name:
            raise LookupError(f"pod {pod.key} is not bound: only a bound pod can finish")
        phase = "Succeeded" if succeeded else "Failed"
        return self.add(replace(pod, status=replace(pod.status, phase=phase)))

    def delete(self, kind: type[KubeObject], name: str, namespace: str = "default") -> Self:
        """Delete an object at once."""
        finished(self.memory.delete(self.find(kind, name, namespace), grace_seconds=0))
        return self

    def delete_pod(self, name: str, namespace: str = "default") -> Self:
        """Delete a pod at once."""
        return self.delete(Pod, name, namespace)

    def remove_node(self, name: str) -> Self:
        """Delete a node and the pods on it."""
        for key in self.pods_on(name):
            namespace, pod = key.split("/")
            self.delete_pod(pod, namespace)
        return self.delete(Node, name)

    def finish_deletions(self) -> Self:
        """Complete the deletion of evicted and preempted pods."""
        self.memory.finish_deletions()
        return self

    def fail_binds(
        self,
        *names: str,
        namespace: str = "default",
        answer: Answer = Answer.REFUSED,
        text: str = "not this one",
        times: int | None = None,
    ) -> Self:
        """Make the next `times` binds of these pods fail, or all until `mend_binds`."""
        for name in names:
            self.memory.fail(f"{namespace}/{name}", answer, text, times)
        return self

    def mend_binds(self) -> Self:
        """Let all further binds succeed."""
        self.memory.stop_failing()
        return self
