"""Priorities of pods in the cache: a pod's own, its PriorityClass's, or the default."""

from __future__ import annotations

from session_scheduler.model.objects import Pod, PodGroup, PriorityClass

_BUILT_IN = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class Priorities:
    """What PriorityClasses give the pods that have no `spec.priority`."""

    def __init__(self) -> None:
        self._values = dict(_BUILT_IN)
        self.defaults: dict[str, int] = {}
        """The values of the classes that are the global default, by name."""

    def put(self, cls: PriorityClass) -> None:
        """A class was added or changed."""
        name = cls.metadata.name
        self._values[name] = cls.value
        self.defaults.pop(name, None)
        if cls.global_default:
            self.defaults[name] = cls.value

    def remove(self, name: str) -> None:
        """A class was deleted. The API server makes the built-in ones again."""
        self.defaults.pop(name, None)
        self._values.pop(name, None)
        if name in _BUILT_IN:
            self._values[name] = _BUILT_IN[name]

    def of(self, pod: Pod) -> int:
        """spec.priority, else its class's value, else the default: of several the lowest, as the API server does."""
        if pod.spec.priority is not None:
            return pod.spec.priority
        default = min(self.defaults.values(), default=0)
        return self._values.get(pod.spec.priority_class_name or "", default)

    def of_group(self, group: PodGroup | None) -> int | None:
        """spec.priority, which the API server's admission resolves, else its class's value; None without either."""
        if group is None or group.spec.priority is not None:
            return group.spec.priority if group is not None else None
        return self._values.get(group.spec.priority_class_name)
