"""The cluster that tests of plugins are written against: what is there, what happens to it, what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from msgspec.structs import replace

from session_scheduler.model.objects import KubeObject, Node, Pod
from session_scheduler.testing import builders
from session_scheduler.testing.driving import finished
from session_scheduler.testing.faults import Answer
from session_scheduler.testing.invariants import InvariantError
from session_scheduler.testing.results import Results

_MOST_CYCLES = 100


class FakeCluster(Results):
    """Add objects and plugins, `schedule`, and ask or assert what became of the pods. Most methods can be chained.

    Without plugins of its own it schedules as kube-scheduler does; the matcher is there with `use("fluence")`. After
    each cycle the invariants are checked, unless `checked` is False. `evaluation` is one of naive, board and heap,
    three ways to the same decisions. It has event loops of its own: it is for tests that are no coroutines.
    """

    # ------------------------------------------------------------------ plugins

    def use(self, plugin: object, args: Mapping[str, Any] | None = None, *, weight: int | None = None) -> Self:
        """Add a plugin: its class, an instance, or the name under which it is installed.

        `args` are as in a configuration (camelCase), and checked as such. It is called after kube-scheduler's plugins,
        in the order of the calls; one with the name of one of these takes its place. Raises PluginLoadError.
        """
        self._only_before("use(…)")
        self._chosen.use(plugin, args, weight)
        return self

    def without(self, *names: str) -> Self:
        """Switch some of kube-scheduler's plugins off. Raises ValueError for another name."""
        self._only_before("without(…)")
        for name in names:
            self._chosen.leave_out(name)
        return self

    def plugin(self, name: str) -> Any:
        """The instance of a plugin; before the scheduler runs, of one that was added. Raises LookupError."""
        instances = self._chosen.instances() if self._scheduler is None else self._running_plugins()
        if name not in instances:
            raise LookupError(f"there is no plugin {name!r}: there are {', '.join(instances) or 'none'}")
        return instances[name]

    def _running_plugins(self) -> dict[str, object]:
        return {name: one for calls in self.scheduler.profiles.values() for name, one in calls.instances.items()}

    def _only_before(self, call: str) -> None:
        if self._scheduler is not None:
            raise RuntimeError(f"the scheduler runs already: call {call} before the first schedule() or run()")

    # ------------------------------------------------------------------ what is there

    def add(self, *objects: KubeObject | Iterable[KubeObject]) -> Self:
        """Add objects, or lists of them as `gang` makes them; an object of a known name is changed."""
        for entry in objects:
            for obj in (entry,) if isinstance(entry, KubeObject) else entry:
                self.memory.put(obj)
        return self

    def nodes(self, count: int, *, prefix: str = "n", **options: Any) -> Self:
        """Add the nodes n1, n2 and so on; `options` as for `builders.node`."""
        return self.add(builders.node(f"{prefix}{index}", **options) for index in range(1, count + 1))

    def node(self, name: str, **options: Any) -> Self:
        """Add a node, or change it; `options` as for `builders.node`."""
        return self.add(builders.node(name, **options))

    def pods(self, count: int, *, prefix: str = "p", **options: Any) -> Self:
        """Add the pods p-0, p-1 and so on; `options` as for `builders.pod`."""
        return self.add(builders.pods(prefix, count, **options))

    def pod(self, name: str, **options: Any) -> Self:
        """Add a pod, or change it; `options` as for `builders.pod`."""
        return self.add(builders.pod(name, **options))

    def group(self, name: str, min_count: int | None = None, **options: Any) -> Self:
        """Add a PodGroup; `options` as for `builders.pod_group`."""
        return self.add(builders.pod_group(name, min_count, **options))

    def gang(self, name: str, size: int, **options: Any) -> Self:
        """Add a PodGroup and its pods `<name>-0` and so on; `options` as for `builders.gang`."""
        return self.add(builders.gang(name, size, **options))

    def queue(self, name: str, **options: Any) -> Self:
        """Add a Queue, or change it; `options` as for `builders.queue`."""
        return self.add(builders.queue(name, **options))

    # ------------------------------------------------------------------ what happens to it

    def schedule(self) -> Self:
        """Run cycles until nothing is to be tried any more at this time. Raises InvariantError where that never is.

        Pods that were refused wait: for an event that can help them, and for the end of their backoff (`advance`).
        """
        for _ in range(_MOST_CYCLES):
            before = self.memory.version
            self.run()
            moved = self.memory.version != before
            if not self._due() and not (moved and self.scheduler.queue.any_hurried):
                return self
        raise InvariantError(f"no rest after {_MOST_CYCLES} cycles: {', '.join(self._due())} is to be tried")

    def restart(self) -> Self:
        """The scheduler is gone, and another one starts that knows only what the cluster says, as after a crash.

        Plugins are built again, and `recover` passes them what is held. Raises RuntimeError where one was given ready.
        """
        self._chosen.rebuild()
        self._scheduler = None
        self.start()
        return self

    def advance(self, seconds: float) -> Self:
        """Let the scheduler's time pass: groups that failed become due."""
        self.clock.advance(seconds)
        return self

    def end(self, name: str, namespace: str = "default", *, succeeded: bool = True) -> Self:
        """A bound pod ends, as its kubelet reports: what it held is free. Raises LookupError where it is not bound."""
        pod = self.find(Pod, name, namespace)
        if not pod.spec.node_name:
            raise LookupError(f"pod {pod.key} cannot end: it runs nowhere")
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
        """A node goes, and the pods on it do."""
        for key in self.pods_on(name):
            namespace, pod = key.split("/")
            self.delete_pod(pod, namespace)
        return self.delete(Node, name)

    def finish_deletions(self) -> Self:
        """The pods end that were asked to: those that were evicted or preempted."""
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
        """Let the binds of these pods fail: the next `times` of them, or all until `mend_binds`."""
        for name in names:
            self.memory.fail(f"{namespace}/{name}", answer, text, times)
        return self

    def mend_binds(self) -> Self:
        """From now on binds succeed."""
        self.memory.stop_failing()
        return self
