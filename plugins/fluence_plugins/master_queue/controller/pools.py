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
from fluence_plugins.master_queue.api.master_queue import MasterQueueSpec, NatsFlavor, PoolStatus
from fluence_plugins.master_queue.errors import MessageError
from fluence_plugins.master_queue.messages import Message, decoded
from fluence_plugins.master_queue.names import is_dns_label
from session_scheduler.errors import shown
from session_scheduler.model import times
from session_scheduler.model.times import parsed_time

MOST_POOLS: Final = 256
"""Pools that are known of one MasterQueue; a new one takes the place of the one that is silent for longest."""


_MOST_REFUSALS: Final = 8
_MOST_RIVALS: Final = 2
"""Other flavors of a pool that are told."""
_REFUSAL_SECONDS: Final = 600.0


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
    refusal: str = ""
    """Why what came last from it is not taken; empty where it is."""


class _Known(msgspec.Struct):
    flavor: str
    heard_at: float | None
    mark: float
    """The connection's seconds when it was heard."""
    message: Message
    rivals: dict[str, float] = {}
    """Other flavors under which the same name was published, and when it was last."""
    refusal: str = ""
    """Why what came last from it is not taken; empty where it is."""

    @property
    def visible(self) -> object:
        """All but times."""
        return self.flavor, self.message, sorted(self.rivals), self.refusal


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
        self._refusals: dict[str, tuple[str, float]] = {}
        """By name as it came, which need be none: why its last message is not taken, and when. Of unknown pools."""
        self._clocks: dict[str, _Clock] = {}
        self.revision = 0
        """Another number after each message that changes more than when its pool was heard last."""

    def restore(self, statuses: Iterable[PoolStatus]) -> None:
        """Know again what the status tells, after a restart. Each active pool has its whole time-out once more."""
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
        """Go on with an edited spec: pools that it still takes stay, as old as they are."""
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
        """The pool's flavor after an edit: its own, if that still takes it, or another that hears the same subject."""
        nats = self._flavors.get(flavor)
        if nats is not None and _matches(nats, name):
            return flavor
        return next(iter(self._matching(before.source, name)), None)

    def connected(self, connector: str, now: float) -> None:
        """The connection is up: silence counts."""
        self._clocks.setdefault(connector, _Clock()).start(now)

    def lost(self, connector: str, since: float) -> None:
        """The connection is down: silence does not count, from the time on at which it was last known to be up."""
        self._clocks.setdefault(connector, _Clock()).stop(since)

    @property
    def sources(self) -> frozenset[tuple[str, str]]:
        """Where pools are to be heard: connectors and subjects."""
        return frozenset(one.source for one in self._flavors.values())

    def disconnected(self) -> tuple[tuple[str, str], ...]:
        """The connectors and subjects whose connection is down, by subject."""
        down = {one.source for one in self._flavors.values() if not self._clock(one).runs}
        return tuple(sorted(down, key=lambda source: source[::-1]))

    def receive(self, source: tuple[str, str], name: str, message: Message, now: float) -> str:
        """Take in a message that came from a connector and subject. Returns why it does not apply; empty if it does."""
        takers = self._matching(source, name)
        if not takers:
            return f"{name} is in no flavor of this subject: name it in pools or poolRegExp"
        flavor = takers[0]
        known = self._known.get(name)
        if known is not None and known.flavor != flavor and self._active(known, now):
            rivals = self._rivals(known, now)
            self.revision += flavor not in rivals
            known.rivals = {**rivals, flavor: now}
            return f"{name} is an active pool of flavor {known.flavor}, and comes for {flavor} too: rename one"
        if known is None and not self._fits_another(now):
            return f"{name} is one pool too many: {MOST_POOLS} are known, and none of them is silent"
        mark = self._clock(self._flavors[flavor]).at(now)
        rivals = self._rivals(known, now) if known is not None and known.flavor == flavor else {}
        new = _Known(flavor, now, mark, message, rivals)
        if known is None or known.visible != new.visible or not self._active(known, now):
            self.revision += 1
        self._known[name] = new
        self._refusals.pop(name, None)
        return ""

    def refused(self, name: str, why: str, now: float) -> None:
        """Keep in mind why a message that came for one of the sources is not taken.

        A known pool keeps what it had, and has the line until its next message is taken.
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
        """A line for each of the last who are no known pools, for some minutes."""
        return tuple(
            f"message of {shown(name)}: {why}"
            for name, (why, at) in sorted(self._refusals.items())
            if now - at < _REFUSAL_SECONDS
        )

    def at(self, now: float) -> tuple[Pool, ...]:
        """Every pool, in the order of the spec's flavors and by name."""
        found = [*self._observed(now), *self._waiting()]
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

    def next_forgotten(self, now: float) -> float | None:
        """When the next of `refusals`, or another flavor that a pool came for, is left out; None where none is."""
        times = [at + _REFUSAL_SECONDS for _, at in self._refusals.values()]
        times += [
            at + self._flavors[rival].pool_timeout
            for known in self._known.values()
            for rival, at in known.rivals.items()
        ]
        return min((time for time in times if time > now), default=None)

    # ------------------------------------------------------------------ inside

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
        """Those that were heard within their time-outs."""
        return {one: at for one, at in known.rivals.items() if now - at < self._flavors[one].pool_timeout}

    def _fits_another(self, now: float) -> bool:
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
            rivalry = tuple(f"is in flavor {other} too, and counts for {known.flavor}: change one" for other in others)
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
    return "" if seconds is None else times.time_text(datetime.fromtimestamp(int(seconds), UTC))
