"""What is measured of MasterQueues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from prometheus_client import Metric

_STATES: Final = ("Active", "Silent", "Waiting")


class PoolFigure(msgspec.Struct, frozen=True):
    """A pool as it is measured. `age`: seconds since its last message; None for one that never sent any."""

    masterqueue: str
    pool: str
    state: str
    age: float | None


class Measured:
    """Messages by subject and what became of them, writes by kind, connections made again, and pools."""

    def __init__(self) -> None:
        self.pools: Callable[[], Iterable[PoolFigure]] = tuple
        """The pools of now; asked at each scrape."""
        self.links: Callable[[], Mapping[str, bool]] = dict
        """Whether each connector is connected now, by its label; likewise."""
        self._messages: Counter[tuple[str, str]] = Counter()
        self._applies: Counter[tuple[str, str]] = Counter()
        self._reconnects: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()

    def message(self, subject: str, result: str) -> None:
        """One came: it was `taken`, taken in part (`partial`), `refused`, or of a pool that is `unknown`."""
        self._messages[subject, result] += 1

    def dropped(self, connector_label: str) -> None:
        """A message was thrown away unread: it was too large, or too many waited."""
        self._dropped[connector_label] += 1

    def applied(self, kind: str, result: str) -> None:
        """An object of this kind was `created`, `changed`, `deleted`, or not (`conflict`, `error`)."""
        self._applies[kind, result] += 1

    def reconnected(self, connector_label: str) -> None:
        """A connection was made that was lost before."""
        self._reconnects[connector_label] += 1

    def families(self) -> list[Metric]:
        """As Prometheus takes them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # only where it is asked for

        messages = CounterMetricFamily(
            "fluence_masterqueue_messages", "Messages of pools, by subject and what became of them.",
            labels=["subject", "result"],
        )  # fmt: skip
        for (subject, result), count in self._messages.items():
            messages.add_metric([subject, result], count)
        applies = CounterMetricFamily(
            "fluence_masterqueue_applies", "Writes to the API server, by kind of object and how they ended.",
            labels=["kind", "result"],
        )  # fmt: skip
        for (kind, result), count in self._applies.items():
            applies.add_metric([kind, result], count)
        reconnects = CounterMetricFamily(
            "fluence_masterqueue_reconnects", "Connections to NATS that were made again.", labels=["connector"]
        )
        for connector, count in self._reconnects.items():
            reconnects.add_metric([connector], count)
        dropped = CounterMetricFamily(
            "fluence_masterqueue_dropped_messages", "Messages that were thrown away unread.", labels=["connector"]
        )
        for connector, count in self._dropped.items():
            dropped.add_metric([connector], count)
        connected = GaugeMetricFamily(
            "fluence_masterqueue_connected", "1 where a connector is connected to NATS.", labels=["connector"]
        )
        for connector, up in self.links().items():
            connected.add_metric([connector], float(up))
        pools = GaugeMetricFamily("fluence_masterqueue_pools", "Pools, by state.", labels=["masterqueue", "state"])
        ages = GaugeMetricFamily(
            "fluence_masterqueue_last_message_seconds",
            "Seconds since a pool's last message.",
            labels=["masterqueue", "pool"],
        )
        figures = list(self.pools())
        counts = Counter((one.masterqueue, one.state) for one in figures)
        for name in sorted({one.masterqueue for one in figures}):
            for state in _STATES:
                pools.add_metric([name, state], counts[name, state])
        for one in figures:
            if one.age is not None:
                ages.add_metric([one.masterqueue, one.pool], one.age)
        return [messages, applies, reconnects, dropped, connected, pools, ages]
