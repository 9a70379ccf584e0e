"""The pools of a MasterQueue: their last messages, and which of them have fallen silent.

A pool's silence counts only while its connection is up. The caller passes times in Unix seconds; if time stands still
or goes back, nothing happens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import msgspec

from fluence_plugins.master_queue import patterns
from fluence_plugins.master_queue.api.master_queue import MasterQueueSpec, NatsFlavor, PoolStatus
from fluence_plugins.master_queue.errors import MessageError
from fluence_plugins.master_queue.messages import Message, decoded
from fluence_plugins.master_queue.names import is_dns_label
from session_scheduler.errors import shown
from session_scheduler.model import times
from session_scheduler.model.times import parsed_time

MOST_POOLS: Final = 256
"""The maximum number of pools of a MasterQueue; a new one replaces the one that has been silent the longest."""


_MOST_REFUSALS: Final = 8
_MOST_RIVALS: Final = 2
"""The maximum number of other flavors of a pool that are reported."""
_REFUSAL_SECONDS: Final = 600.0


class PoolState(StrEnum):
    """Active pools have quota, silent ones have lost it. Waiting ones are in the spec and have sent nothing yet."""

    ACTIVE = "Active"
    SILENT = "Silent"
    WAITING = "Waiting"


class Pool(msgspec.Struct, frozen=True):
    """A pool at some time."""

    name: str
    flavor: str
    state: PoolState = PoolState.WAITING
    heard_at: float | None = None
    message: Message = Message()
    conflicts: tuple[str, ...] = ()
    """A line for each other flavor that the pool matches."""
    refusal: str = ""
    """Why its last message was refused; empty if it was not."""


class _Known(msgspec.Struct):
    flavor: str
    heard_at: float | None
    mark: float
    """When the last message arrived, in seconds of the connection's clock."""
    message: Message
    rivals: dict[str, float] = {}
    """Other flavors under which a pool of this name published, and when it last did."""
    refusal: str = ""
    """Why its last message was refused; empty if it was not."""

    @property
    def visible(self) -> object:
        """All but times."""
        return self.flavor, self.message, sorted(self.rivals), self.refusal


class _Clock:
    """Counts the seconds for which a connection has been up."""

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
    """The pools of a MasterQueue. Its spec must be valid (see `validation`)."""

    def __init__(self, spec: MasterQueueSpec) -> None:
        self._flavors = _nats_flavors(spec)
        self._known: dict[str, _Known] = {}
        self._refusals: dict[str, tuple[str, float]] = {}
        """By name (possibly invalid): why the last message of an unknown pool was refused, and when."""
        self._clocks: dict[str, _Clock] = {}
        self.revision = 0
        """Changes with each message that changes more than the time of its pool's last message."""

    def restore(self, statuses: Iterable[PoolStatus]) -> None:
        """Restore pools from the status after a restart. Each active pool starts its whole timeout again."""
        for status in statuses:
            nats = self._flavors.get(status.flavor)
            if nats is None or not _matches(nats, status.name) or status.state not in ("Active", "Silent"):
                continue
            active = status.state == PoolState.ACTIVE
            if status.name in self._known or len(self._known) >= MOST_POOLS:
                continue
            mark = self._clock(nats).at(-math.inf) if active else -math.inf
            heard = parsed_time(status.last_message)
            heard_at = heard.timestamp() if heard is not None else None
            self._known[status.name] = _Known(status.flavor, heard_at, mark, _restored(status))

    def follow(self, spec: MasterQueueSpec, now: float) -> None:
        """Switch to an edited spec: pools that it still contains stay, with their age."""
        before, self._flavors = self._flavors, _nats_flavors(spec)
        for name, known in list(self._known.items()):
            age = self._clock(before[known.flavor]).at(now) - known.mark
            flavor = self._still(before[known.flavor], known.flavor, name)
            if flavor is None:
                del self._known[name]
                continue
            known.flavor = flavor
            known.mark = self._clock(self._flavors[flavor]).at(now) - age
            known.rivals = {}
        used = {connector for connector, _ in self.sources}
        self._clocks = {connector: clock for connector, clock in self._clocks.items() if connector in used}

    def _still(self, before: NatsFlavor, flavor: str, name: str) -> str | None:
        """The pool's flavor after an edit: its own if that still matches, else another one with the same subject."""
        nats = self._flavors.get(flavor)
        if nats is not None and _matches(nats, name):
            return flavor
        return next(iter(self._matching(before.source, name)), None)

    def connected(self, connector: str, now: float) -> None:
        """The connection is up: count silence."""
        self._clocks.setdefault(connector, _Clock()).start(now)

    def lost(self, connector: str, since: float) -> None:
        """The connection is down: stop counting silence, from the time at which it was last known to be up."""
        self._clocks.setdefault(connector, _Clock()).stop(since)

    @property
    def sources(self) -> frozenset[tuple[str, str]]:
        """The connectors and subjects of all pools."""
        return frozenset(one.source for one in self._flavors.values())

    def disconnected(self) -> tuple[tuple[str, str], ...]:
        """The connectors and subjects without a connection, ordered by subject."""
        down = {one.source for one in self._flavors.values() if not self._clock(one).runs}
        return tuple(sorted(down, key=lambda source: source[::-1]))

    def receive(self, source: tuple[str, str], name: str, message: Message, now: float) -> str:
        """Process a message that arrived from a connector and subject. Returns why it does not
        apply; empty if it does.
        """
        candidates = self._matching(source, name)
        if not candidates:
            return f"{name} matches no flavor of this subject; add it to pools or poolRegExp"
        flavor = candidates[0]
        known = self._known.get(name)
        if known is not None and known.flavor != flavor and self._active(known, now):
            rivals = self._rivals(known, now)
            self.revision += flavor not in rivals
            known.rivals = {**rivals, flavor: now}
            also = f"a pool of that name also publishes for {flavor}"
            active = f"an active pool of flavor {known.flavor} is already named {name}"
            return f"{active}, and {also}; rename one of the two pools"
        if known is None and not self._has_room(now):
            return f"{name} exceeds the limit of {MOST_POOLS} pools, none of which is silent"  # codespell:ignore
        mark = self._clock(self._flavors[flavor]).at(now)
        rivals = self._rivals(known, now) if known is not None and known.flavor == flavor else {}
        new = _Known(flavor, now, mark, message, rivals)
        if known is None or known.visible != new.visible or not self._active(known, now):
            self.revision += 1
        self._known[name] = new
        self._refusals.pop(name, None)
        return ""

    def refused(self, name: str, why: str, now: float) -> None:
        """Record why a message for one of the sources was refused.

        A known pool keeps its state, and shows the line until its next message is accepted.
        """
        known = self._known.get(name)
        if known is not None:
            self.revision += known.refusal != why
            known.refusal = why
            return
        before, _ = self._refusals.pop(name, ("", 0.0))
        self._refusals[name] = why, now
        if len(self._refusals) > _MOST_REFUSALS:
            del self._refusals[next(iter(self._refusals))]
        self.revision += before != why

    def refusals(self, now: float) -> tuple[str, ...]:
        """A line for each recent refusal of an unknown pool, for a few minutes."""
        return tuple(
            f"message from {shown(name)}: {why}"
            for name, (why, at) in sorted(self._refusals.items())
            if now - at < _REFUSAL_SECONDS
        )

    def at(self, now: float) -> tuple[Pool, ...]:
        """All pools, in the order of the spec's flavors and by name."""
        found = [*self._observed(now), *self._waiting()]
        order = {name: index for index, name in enumerate(self._flavors)}
        return tuple(sorted(found, key=lambda pool: (order[pool.flavor], pool.name)))

    def next_silent(self, now: float) -> float | None:
        """When the next active pool falls silent unless it sends a message; None if none will."""
        left = [
            self._left(known, now)
            for known in self._known.values()
            if self._active(known, now) and self._clock(self._flavors[known.flavor]).runs
        ]
        return now + min(left) if left else None

    def next_forgotten(self, now: float) -> float | None:
        """When the next of `refusals`, or of a pool's other flavors, expires; None if none will."""
        times = [at + _REFUSAL_SECONDS for _, at in self._refusals.values()]
        times += [
            at + self._flavors[rival].pool_timeout
            for known in self._known.values()
            for rival, at in known.rivals.items()
        ]
        return min((time for time in times if time > now), default=None)

    # ------------------------------------------------------------------ internals

    def _clock(self, nats: NatsFlavor) -> _Clock:
        return self._clocks.setdefault(nats.nats_connector, _Clock())

    def _left(self, known: _Known, now: float) -> float:
        nats = self._flavors[known.flavor]
        return nats.pool_timeout - (self._clock(nats).at(now) - known.mark)

    def _active(self, known: _Known, now: float) -> bool:
        return self._left(known, now) > 0

    def _matching(self, source: tuple[str, str], name: str) -> list[str]:
        return [flavor for flavor, nats in self._flavors.items() if nats.source == source and _matches(nats, name)]

    def _rivals(self, known: _Known, now: float) -> dict[str, float]:
        """The other flavors that were published within their timeouts."""
        return {one: at for one, at in known.rivals.items() if now - at < self._flavors[one].pool_timeout}

    def _has_room(self, now: float) -> bool:
        if len(self._known) < MOST_POOLS:
            return True
        silent = [(self._left(known, now), name) for name, known in self._known.items() if not self._active(known, now)]
        if silent:
            del self._known[min(silent)[1]]
        return bool(silent)

    def _observed(self, now: float) -> Iterator[Pool]:
        for name, known in self._known.items():
            state = PoolState.ACTIVE if self._active(known, now) else PoolState.SILENT
            source = self._flavors[known.flavor].source
            others = sorted({*self._matching(source, name), *self._rivals(known, now)} - {known.flavor})[:_MOST_RIVALS]
            rivalry = tuple(
                f"also matches flavor {other}, but belongs to {known.flavor}; change one of the two flavors"
                for other in others
            )
            yield Pool(name, known.flavor, state, known.heard_at, known.message, rivalry, known.refusal)

    def _waiting(self) -> Iterator[Pool]:
        listed: set[str] = set(self._known)
        for flavor, nats in self._flavors.items():
            for name in nats.pools or ():
                if name not in listed:
                    listed.add(name)
                    yield Pool(name, flavor)


def _nats_flavors(spec: MasterQueueSpec) -> dict[str, NatsFlavor]:
    return {one.name: one.nats_flavor for one in spec.flavors if one.nats_flavor is not None}


def _matches(nats: NatsFlavor, name: str) -> bool:
    if not is_dns_label(name):
        return False
    return name in nats.pools if nats.pools is not None else patterns.matches(nats.pool_reg_exp or "", name)


def _restored(status: PoolStatus) -> Message:
    """The pool's last message, validated again: users may have changed the status."""
    taints = [f"{taint.key}={taint.value}:{taint.effect}" for taint in status.taints]
    labels = [f"{key}={value}" for key, value in status.labels.items()]
    try:
        found = decoded(msgspec.json.encode({"quotas": status.quota, "labels": labels, "taints": taints}))
    except MessageError:
        return Message()
    return found


def time_text(seconds: float | None) -> str:
    """A time in RFC 3339 form, for a status; empty for None."""
    return "" if seconds is None else times.time_text(datetime.fromtimestamp(int(seconds), UTC))
