"""Routes pools' messages and connection events to the reconcilers of the MasterQueues that follow their subjects."""

from __future__ import annotations

from collections.abc import Iterable

from fluence_plugins.master_queue.controller.reconciler import Reconciler
from fluence_plugins.master_queue.errors import MessageError
from fluence_plugins.master_queue.messages import decoded, pool_of
from fluence_plugins.master_queue.metrics import MasterQueueMetrics


class MessageRouter:
    """The `Listener` of all connections."""

    def __init__(self, metrics: MasterQueueMetrics) -> None:
        self._metrics = metrics
        self._listening: dict[tuple[str, str], list[Reconciler]] = {}
        """By connector and subject."""
        self._connected: set[str] = set()

    @property
    def connectors(self) -> set[str]:
        """The connectors that some MasterQueue uses."""
        return {connector for connector, _ in self._listening}

    def listen(self, reconcilers: Iterable[Reconciler]) -> dict[str, list[str]]:
        """Route to these reconcilers from now on, and notify new ones of existing connections.

        Returns the subjects to subscribe to, by connector.
        """
        before, self._listening = self._listening, {}
        for reconciler in reconcilers:
            for source in reconciler.sources:
                self._listening.setdefault(source, []).append(reconciler)
                if source[0] in self._connected and reconciler not in before.get(source, ()):
                    reconciler.connected(source[0])
        wanted: dict[str, list[str]] = {}
        for connector, subject in sorted(self._listening):
            wanted.setdefault(connector, []).append(subject)
        self._connected &= wanted.keys()
        return wanted

    def _of(self, connector: str) -> list[Reconciler]:
        return [one for (name, _), listening in self._listening.items() if name == connector for one in listening]

    def connected(self, connector: str) -> None:
        """See `Listener`."""
        self._connected.add(connector)
        for reconciler in self._of(connector):
            reconciler.connected(connector)

    def lost(self, connector: str, why: str, unheard: float) -> None:  # noqa: ARG002 (connections give the reason)
        """See `Listener`."""
        self._connected.discard(connector)
        for reconciler in self._of(connector):
            reconciler.lost(connector, unheard)

    def message(self, connector: str, subject: str, message_subject: str, data: bytes) -> None:
        """See `Listener`."""
        reconcilers = self._listening.get((connector, subject), ())
        name = message_subject.removeprefix(f"{subject}.")
        try:
            name = pool_of(subject, message_subject)
            message = decoded(data)
        except MessageError as error:
            self._metrics.message(subject, "refused")
            for reconciler in reconcilers:
                reconciler.refused(name, str(error))
            return
        accepted = [not reconciler.receive((connector, subject), name, message) for reconciler in reconcilers]
        result = ("partial" if message.problems else "taken") if any(accepted) else "unknown"
        self._metrics.message(subject, result)
