"""Takes the cluster's objects into the cache, and tells where one is not what it should be: no other suffers for it."""

from __future__ import annotations

import structlog

from session_scheduler.framework.observer import Observer
from session_scheduler.model.objects import KubeObject, Node, Pod
from session_scheduler.state.cache import Cache

_log = structlog.get_logger(__name__)


class Intake:
    """Remembers what it told of whom, so that it is told once."""

    def __init__(self, cache: Cache, observer: Observer) -> None:
        self._cache = cache
        self._observer = observer
        self._told: dict[str, str] = {}
        """By uid: what is wrong with nodes and running pods."""

    def put(self, obj: KubeObject) -> None:
        """An object was added or changed. What waits is told of its own faults when it is tried."""
        self._cache.put(obj)
        if not isinstance(obj, Node | Pod) or (isinstance(obj, Pod) and not obj.spec.node_name):
            return
        problem = self._cache.problems.get(f"{type(obj).__name__} {obj.key}")
        if problem is None:
            self._told.pop(obj.metadata.uid, None)
        elif self._told.get(obj.metadata.uid) != problem:
            self._told[obj.metadata.uid] = problem
            self._observer.wrong(obj, f"{problem}: {_therefore(obj)}")

    def remove(self, obj: KubeObject) -> None:
        """An object was deleted."""
        self._told.pop(obj.metadata.uid, None)
        self._cache.remove(obj)

    def failed(self, obj: KubeObject, error: Exception) -> None:
        """Taking an object in ended in an error that nobody expected."""
        _log.error("an object cannot be taken in", kind=type(obj).__name__, name=obj.key, exc_info=error)
        self._observer.wrong(obj, f"it is left out, for it cannot be taken in: {type(error).__name__}: {error}")


def _therefore(obj: Node | Pod) -> str:
    if isinstance(obj, Node):
        return "no pod is placed on this node"
    return "no further pod is placed on its node" if obj.unreadable else "the pod counts without it"
