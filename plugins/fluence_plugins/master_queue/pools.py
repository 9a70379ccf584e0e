"""What is known of a MasterQueue's pools, and which of them have fallen silent.

A pool's silence counts only while the connection over which it would be heard is up. Times are Unix seconds that the
caller passes; they may stand still, and where they go back nothing happens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import msgspec

from fluence_plugins.master_queue import patterns
from fluence_plugins.master_queue.errors import MessageError
from fluence_plugins.master_queue.messages import Message, decoded
from fluence_plugins.master_queue.names import is_dns_label
from fluence_plugins.master_queue.objects import MasterQueueSpec, NatsFlavor, PoolStatus
from session_scheduler.model.times import parsed_time

MOST_POOLS: Final = 256
"""Pools that are known of one MasterQueue; a new one takes the place of the one that is silent for longest."""


class PoolState(StrEnum):
    """Active pools have quota; silent ones had; of waiting ones, which the spec lists, nothing has been heard."""

    ACTIVE = "Active"
    SILENT = "Silent"
    WAITING = "Waiting"


class Pool(msgspec.Struct, frozen=True):
    """A pool as it is at some time."""

    name: str
    flavor: str
    state: PoolState = PoolState.WAITING
    heard_at: float | None = None
    message: Message = Message()
    conflicts: tuple[str, ...] = ()
    """A line for each other flavor that it is in."""


class _Known(msgspec.Struct):
    flavor: str
    heard_at: float | None
    mark: float
    """The connection's seconds when it was heard."""
    message: Message
    rivals: frozenset[str] = frozenset()
    """Other flavors under which the same name was published."""


class _Clock:
    """Seconds for which a connection has been up."""

    def __init__(self) -> None:
        self._total = 0.0
        self._since: float | None = None

    @property
    def runs(self) -> bool:
        return self._since is not None

    def at(self, now: float) -> float:
        return self._total + (max(0.0, now - self._since) if self._since is not None else 0.0)

    def start(self, now: float) -> None:
        if self._since is None:
            self._since = now

    def stop(self, now: float) -> None:
        self._total, self._since = self.at(now), None


class Pools:
    """The pools of one MasterQueue. The spec has no problems (see `checks`): one that has any is not followed."""

    def __init__(self, spec: MasterQueueSpec) -> None:
        self._flavors = _nats_flavors(spec)
        self._known: dict[str, _Known] = {}
        self._clocks: dict[str, _Clock] = {}

    def restore(self, statuses: Iterable[PoolStatus]) -> None:
        """Know again what the status tells, after a restart. Each active pool has its whole time-out once more."""
        for status in statuses:
            nats = self._flavors.get(status.flavor)
            if nats is None or not _takes(nats, status.name) or status.state not in ("Active", "Silent"):
                continue
            active = status.state == PoolState.ACTIVE
            if status.name in self._known or len(self._known) >= MOST_POOLS:
                continue
            mark = self._clock(nats).at(-math.inf) if active else -math.inf
            heard = parsed_time(status.last_message)
            heard_at = heard.timestamp() if heard is not None else None
            self._known[status.name] = _Known(status.flavor, heard_at, mark, _restored(status))

    def follow(self, spec: MasterQueueSpec, now: float) -> None:
        """Go on with an edited spec: pools that it still takes stay, as old as they are."""
        before, self._flavors = self._flavors, _nats_flavors(spec)
        for name, known in list(self._known.items()):
            nats = self._flavors.get(known.flavor)
            if nats is None or not _takes(nats, name):
                del self._known[name]
                continue
            age = self._clock(before[known.flavor]).at(now) - known.mark
            known.mark = self._clock(nats).at(now) - age
            known.rivals = frozenset()

    def connected(self, connector: str, now: float) -> None:
        """The connection is up: silence counts."""
        self._clocks.setdefault(connector, _Clock()).start(now)

    def lost(self, connector: str, now: float) -> None:
        """The connection is down: silence does not count."""
        self._clocks.setdefault(connector, _Clock()).stop(now)

    def disconnected(self) -> tuple[str, ...]:
        """The subjects whose connection is down."""
        return tuple(sorted({one.nats_subject for one in self._flavors.values() if not self._clock(one).runs}))

    def heard(self, source: tuple[str, str], name: str, message: Message, now: float) -> str:
        """Take in a message that came from a connector and subject. Returns why it does not apply; empty if it does."""
        takers = self._takers(source, name)
        if not takers:
            return f"{name} is in no flavor of this subject: name it in pools or poolRegExp"
        flavor = takers[0]
        known = self._known.get(name)
        if known is not None and known.flavor != flavor and self._active(known, now):
            known.rivals |= {flavor}
            return f"{name} is an active pool of flavor {known.flavor}, and comes for {flavor} too: rename one"
        if known is None and not self._room(now):
            return f"{name} is one pool too many: {MOST_POOLS} are known, and none of them is silent"
        mark = self._clock(self._flavors[flavor]).at(now)
        rivals = known.rivals - {flavor} if known is not None and known.flavor == flavor else frozenset()
        self._known[name] = _Known(flavor, now, mark, message, rivals)
        return ""

    def at(self, now: float) -> tuple[Pool, ...]:
        """Every pool, in the order of the spec's flavors and by name."""
        found = [*self._seen(now), *self._waiting()]
        order = {name: index for index, name in enumerate(self._flavors)}
        return tuple(sorted(found, key=lambda pool: (order[pool.flavor], pool.name)))

    def next_silent(self, now: float) -> float | None:
        """When the next active pool falls silent if nothing is heard; None where none does."""
        left = [
            self._left(known, now)
            for known in self._known.values()
            if self._active(known, now) and self._clock(self._flavors[known.flavor]).runs
        ]
        return now + min(left) if left else None

    # ------------------------------------------------------------------ inside

    def _clock(self, nats: NatsFlavor) -> _Clock:
        return self._clocks.setdefault(nats.nats_connector, _Clock())

    def _left(self, known: _Known, now: float) -> float:
        nats = self._flavors[known.flavor]
        return nats.pool_timeout - (self._clock(nats).at(now) - known.mark)

    def _active(self, known: _Known, now: float) -> bool:
        return self._left(known, now) > 0

    def _takers(self, source: tuple[str, str], name: str) -> list[str]:
        return [flavor for flavor, nats in self._flavors.items() if nats.source == source and _takes(nats, name)]

    def _room(self, now: float) -> bool:
        if len(self._known) < MOST_POOLS:
            return True
        silent = [(self._left(known, now), name) for name, known in self._known.items() if not self._active(known, now)]
        if silent:
            del self._known[min(silent)[1]]
        return bool(silent)

    def _seen(self, now: float) -> Iterator[Pool]:
        for name, known in self._known.items():
            state = PoolState.ACTIVE if self._active(known, now) else PoolState.SILENT
            source = self._flavors[known.flavor].source
            others = sorted({*self._takers(source, name), *known.rivals} - {known.flavor})
            rivalry = tuple(f"is in flavor {other} too, and counts for {known.flavor}: change one" for other in others)
            yield Pool(name, known.flavor, state, known.heard_at, known.message, rivalry)

    def _waiting(self) -> Iterator[Pool]:
        listed: set[str] = set(self._known)
        for flavor, nats in self._flavors.items():
            for name in nats.pools or ():
                if name not in listed:
                    listed.add(name)
                    yield Pool(name, flavor)


def _nats_flavors(spec: MasterQueueSpec) -> dict[str, NatsFlavor]:
    return {one.name: one.nats_flavor for one in spec.flavors if one.nats_flavor is not None}


def _takes(nats: NatsFlavor, name: str) -> bool:
    if not is_dns_label(name):
        return False
    return name in nats.pools if nats.pools is not None else patterns.matches(nats.pool_reg_exp or "", name)


def _restored(status: PoolStatus) -> Message:
    """The pool's last message, read with the same care: anybody with the right may have changed the status."""
    taints = [f"{taint.key}={taint.value}:{taint.effect}" for taint in status.taints]
    labels = [f"{key}={value}" for key, value in status.labels.items()]
    try:
        found = decoded(msgspec.json.encode({"quotas": status.quota, "labels": labels, "taints": taints}))
    except MessageError:
        return Message()
    return found


def time_text(seconds: float | None) -> str:
    """RFC 3339 text of a time, as objects' status has it; empty for None."""
    return "" if seconds is None else datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
