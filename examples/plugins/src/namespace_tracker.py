"""Counts the pods of each namespace that a session has placed, simulated moves and their undo included."""

import logging
from collections import Counter

from session_scheduler import Event, Session, hookimpl


class NamespaceAllocationTracker:
    """The plugin: event handlers, registered when a session opens."""

    name = "namespace-allocation-tracker"
    api_version = "2"

    def __init__(self, arguments: None) -> None:
        self.pods_per_namespace: Counter[str] = Counter()

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        self.pods_per_namespace.clear()
        session.add_event_handler(allocate=self.placed, deallocate=self.taken)

    def placed(self, event: Event) -> None:
        self.pods_per_namespace[event.task.namespace] += 1

    def taken(self, event: Event) -> None:
        self.pods_per_namespace[event.task.namespace] -= 1

    @hookimpl
    def on_session_close(self, session: Session) -> None:
        for namespace, pods in sorted(self.pods_per_namespace.items()):
            logging.getLogger(self.name).warning("%s: %d pods placed", namespace, pods)
