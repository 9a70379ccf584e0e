"""The metrics of the plugin `master-queue`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from prometheus_client import Metric

_STATES: Final = ("Active", "Silent", "Waiting")


class PoolSample(msgspec.Struct, frozen=True):
    """A pool at a scrape. `age`: seconds since its last message; None if it has sent none."""

    masterqueue: str
    pool: str
    state: str
    age: float | None


class MasterQueueMetrics:
    """Counts messages by subject and result, writes by kind and result, reconnects and dropped messages."""

    def __init__(self) -> None:
        self._messages: Counter[tuple[str, str]] = Counter()
        self._applies: Counter[tuple[str, str]] = Counter()
        self._reconnects: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()

    def message(self, subject: str, result: str) -> None:
        """Count a message: `taken`, `partial` (only a part was taken), `refused`, or from an `unknown` pool."""
        self._messages[subject, result] += 1

    def dropped(self, connector_label: str) -> None:
        """Count a message that was dropped unread: it was too large, or too many messages waited."""
        self._dropped[connector_label] += 1

    def applied(self, kind: str, result: str) -> None:
        """Count a write of an object of this kind: `created`, `changed`, `deleted`, `conflict` or `error`."""
        self._applies[kind, result] += 1

    def reconnected(self, connector_label: str) -> None:
        """Count a reconnect."""
        self._reconnects[connector_label] += 1

    def families(self, pools: Iterable[PoolSample] = (), connected: Mapping[str, bool] | None = None) -> list[Metric]:
        """The metric families, with the current pools and the state of each connector, by its label."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # imported only at a scrape

        messages = CounterMetricFamily(
            "fluence_masterqueue_messages", "Messages from pools, by subject and result.",
            labels=["subject", "result"],
        )  # fmt: skip
        applies = CounterMetricFamily(
            "fluence_masterqueue_applies", "Writes to the API server, by kind of object and result.",
            labels=["kind", "result"],
        )  # fmt: skip
        reconnects = CounterMetricFamily("fluence_masterqueue_reconnects", "Reconnects to NATS.", labels=["connector"])
        dropped = CounterMetricFamily(
            "fluence_masterqueue_dropped_messages", "Messages that were dropped unread.", labels=["connector"]
        )
        connections = GaugeMetricFamily(
            "fluence_masterqueue_connected", "1 if the connector is connected to NATS.", labels=["connector"]
        )
        states = GaugeMetricFamily("fluence_masterqueue_pools", "Pools, by state.", labels=["masterqueue", "state"])
        ages = GaugeMetricFamily(
            "fluence_masterqueue_last_message_seconds", "Seconds since a pool's last message.",
            labels=["masterqueue", "pool"],
        )  # fmt: skip
        for family, pairs in ((messages, self._messages), (applies, self._applies)):
            for labels, count in pairs.items():
                family.add_metric(labels, count)
        for family, counts in ((reconnects, self._reconnects), (dropped, self._dropped)):
            for connector, count in counts.items():
                family.add_metric([connector], count)
        for connector, up in (connected or {}).items():
            connections.add_metric([connector], float(up))
        samples = list(pools)
        by_state = Counter((one.masterqueue, one.state) for one in samples)
        for name in sorted({one.masterqueue for one in samples}):
            for state in _STATES:
                states.add_metric([name, state], by_state[name, state])
        for one in samples:
            if one.age is not None:
                ages.add_metric([one.masterqueue, one.pool], one.age)
        return [messages, applies, reconnects, dropped, connections, states, ages]
