"""Priorities of pods and PodGroups in the cache: their own, that of their PriorityClass, or the default."""

from __future__ import annotations

from session_scheduler.model.objects import Pod, PodGroup, PriorityClass

_BUILT_IN = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class Priorities:
    """The values of PriorityClasses, for pods and PodGroups without `spec.priority`."""

    def __init__(self) -> None:
        self._values = dict(_BUILT_IN)
        self.defaults: dict[str, int] = {}
        """By name: the values of the classes with `globalDefault`."""

    def put(self, cls: PriorityClass) -> None:
        """Add or update a class."""
        name = cls.metadata.name
        self._values[name] = cls.value
        self.defaults.pop(name, None)
        if cls.global_default:
            self.defaults[name] = cls.value

    def remove(self, name: str) -> None:
        """Remove a class. The built-in ones keep their value: the API server creates them again."""
        self.defaults.pop(name, None)
        self._values.pop(name, None)
        if name in _BUILT_IN:
            self._values[name] = _BUILT_IN[name]

    def of(self, pod: Pod) -> int:
        """spec.priority, else the value of its class, else the lowest global default, as in the API server."""
        if pod.spec.priority is not None:
            return pod.spec.priority
        default = min(self.defaults.values(), default=0)
        return self._values.get(pod.spec.priority_class_name or "", default)

    def of_group(self, group: PodGroup | None) -> int | None:
        """spec.priority, which the API server's admission resolves, else the value of its class; None without both."""
        if group is None or group.spec.priority is not None:
            return group.spec.priority if group is not None else None
        return self._values.get(group.spec.priority_class_name)
