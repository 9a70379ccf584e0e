"""Which of several replicas schedules: the one that holds a Lease, and only while it has lately renewed it.

    elector = Elector(cluster, settings, identity=new_identity(), clock=clock)
    cluster.fence_writes(elector.fence.check)
    await elector.acquire()
    try:
        ...  # schedule, beside `await elector.keep()`, which only ends with an error
    finally:
        await elector.release()  # when nothing is written any more

Every duration is measured by the monotonic clock of the replica that waits; the times in the Lease are for people. The
leader counts from before it sent its last renewal and stops at `renew_seconds`; another replica counts from when it saw
the Lease change and begins after `lease_seconds`. So both may be wrong about the time of day, and either may be slow.
Source: k8s.io/client-go/tools/leaderelection, which writes the same Lease; docs/adr/0006-own-election.md.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import structlog
from msgspec.structs import replace

from session_scheduler.base.clock import Clock, utc_now
from session_scheduler.cluster.errors import ClusterError, Conflict, NotFound, NotLeading, Unavailable
from session_scheduler.cluster.port import Cluster
from session_scheduler.config.settings import LeaderElection
from session_scheduler.model.objects import Lease, LeaseSpec, ObjectMeta
from session_scheduler.model.times import micro_time_text

_log = structlog.get_logger(__name__)
_Got = TypeVar("_Got")
_LONGEST_LEASE = 3600
"""Seconds; no configuration allows more, so a Lease that says more was not written by one."""
_TRANSITIONS = 2**31
"""leaseTransitions is an int32; after the last one it starts again at 0."""
_RELEASE_SECONDS = 2.0
_HOST_LIMIT = 63


def new_identity() -> str:
    """A name for this process that no other has: the host's name and a random part."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:_HOST_LIMIT]
    return f"{host}_{secrets.token_hex(8)}"


class Fence:
    """Whether this replica may write now, by the monotonic clock."""

    def __init__(self, clock: Clock, renew_seconds: float) -> None:
        self._clock = clock
        self._renew_seconds = renew_seconds
        self._renewed: float | None = None

    @property
    def leading(self) -> bool:
        """Whether the last renewal is younger than `renew_seconds`."""
        return self.remaining > 0

    @property
    def remaining(self) -> float:
        """Seconds for which this replica may still write; 0 where it does not lead."""
        if self._renewed is None:
            return 0.0
        return max(0.0, self._renewed + self._renew_seconds - self._clock.now())

    def check(self) -> None:
        """Raises NotLeading unless this replica may write now."""
        if not self.leading:
            if self._renewed is None:
                raise NotLeading("this replica does not lead")
            raise NotLeading(f"this replica has not renewed its lease for {self._renew_seconds:g} s: it leads no more")

    def renewed(self, sent: float) -> None:
        """The lease was renewed by a request that was sent after this time of the clock."""
        self._renewed = sent

    def close(self) -> None:
        """Nothing may be written until the lease is renewed again."""
        self._renewed = None


@dataclass(frozen=True, slots=True)
class _Seen:
    """The Lease as it was when it was last seen to change, and when that was."""

    uid: str
    spec: LeaseSpec
    since: float


class Elector:
    """Takes part in the election. `now` gives the times that are written into the Lease, and nothing else."""

    def __init__(
        self, cluster: Cluster, settings: LeaderElection, *, identity: str, clock: Clock,
        now: Callable[[], datetime] = utc_now, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        failed: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`failed` is called for each renewal that fails."""
        self.fence = Fence(clock, settings.renew_seconds)
        self.identity = identity
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._failed = failed
        self._lease: Lease | None = None
        """The Lease as we last wrote it; None where it may be another by now."""
        self._seen: _Seen | None = None
        self._claimed = False
        """Whether we hold the Lease, or sent a request that may have made us its holder."""
        self._token = ""
        self._heard = float("-inf")
        self._logged = ""

    # -------------------------------------------------------------- what others may know

    @property
    def silent(self) -> float:
        """Seconds since the cluster last said who leads; infinite where it never did."""
        return self._clock.now() - self._heard

    @property
    def holder(self) -> str:
        """The identity that the Lease named when it was last seen; empty for none."""
        return (self._seen.spec.holder_identity or "") if self._seen else ""

    @property
    def transitions(self) -> int:
        """How often the Lease had gone to another holder when it was last seen."""
        return (self._seen.spec.lease_transitions or 0) if self._seen else 0

    @property
    def token(self) -> str:
        """Our identity and the number of our last term: what our Bindings say. Empty before the first term."""
        return self._token

    # -------------------------------------------------------------- the life of a candidate

    async def acquire(self) -> None:
        """Wait until this replica leads. Whatever the cluster answers, it is asked again."""
        while not await self._tried():
            await self._sleep(self._pause())
        _log.info("this replica leads", identity=self.identity, transitions=self.transitions)

    async def keep(self) -> None:
        """Renew the lease every `retry_seconds` until cancelled. Raises NotLeading once it is lost or too old."""
        while True:
            await self._sleep(min(self._settings.retry_seconds, self.fence.remaining))
            self.fence.check()
            try:
                await self._renew()
            except NotLeading:
                self.fence.close()
                raise
            except ClusterError as error:
                self._failed()
                _log.warning("the lease is not renewed", why=str(error), seconds_left=round(self.fence.remaining, 1))

    async def release(self) -> None:
        """Give the lease back, if it is ours, so that another replica need not wait for its end. Never raises.

        From its call on nothing passes the fence: call it when no write is in flight.
        """
        self.fence.close()
        if not self._claimed:
            return
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                try:
                    await self._empty()
                except Conflict:  # a renewal whose answer was lost
                    await self._empty()
        except (ClusterError, TimeoutError) as error:
            _log.warning("the lease is not released: it ends by itself", why=str(error) or "no answer in time")

    # -------------------------------------------------------------- becoming the leader

    async def _tried(self) -> bool:
        """Try once to get the lease; whether we have it now."""
        try:
            lease = await self._read()
            if lease is None:
                return not self._may_be_held() and await self._create()
            self._log_holder()
            return not self._may_be_held() and await self._write(lease, self._term(lease))
        except Conflict:
            return False  # another was quicker: read again
        except ClusterError as error:
            self._log_once(_log.warning, "the lease cannot be read or written", why=str(error))
            return False

    def _may_be_held(self) -> bool:
        """Whether another replica may still lead. One whose Lease was deleted does not know that yet."""
        return self._seen is not None and self.holder not in ("", self.identity) and self._left(self._seen) > 0

    def _left(self, seen: _Seen) -> float:
        """Seconds until the Lease ends for us, if it does not change: its own duration, or ours if that is longer."""
        seconds = seen.spec.lease_duration_seconds or 0
        if not 0 < seconds <= _LONGEST_LEASE:
            seconds = 0
        return seen.since + max(seconds, self._settings.lease_seconds) - self._clock.now()

    def _pause(self) -> float:
        """Seconds until the next try: at the Lease's end, if that comes earlier."""
        retry = self._settings.retry_seconds
        return min(retry, self._left(self._seen)) if self._seen is not None and self._may_be_held() else retry

    async def _create(self) -> bool:
        settings = self._settings
        transitions = self._seen.spec.lease_transitions if self._seen else None
        spec = self._spec(None, transitions=0 if transitions is None else (transitions + 1) % _TRANSITIONS)
        lease = Lease(metadata=ObjectMeta(namespace=settings.namespace, name=settings.name), spec=spec)
        self._claimed = True
        sent = self._clock.now()
        return self._led(await self._ask(self._cluster.create(lease)), sent)

    def _term(self, lease: Lease) -> LeaseSpec:
        """The Lease's spec with us as its holder: our own term again (its answer was lost), or a new one."""
        if lease.spec.holder_identity == self.identity:
            return self._spec(lease.spec, transitions=lease.spec.lease_transitions)
        return self._spec(None, transitions=((lease.spec.lease_transitions or 0) + 1) % _TRANSITIONS)

    # -------------------------------------------------------------- staying the leader

    async def _renew(self) -> None:
        """Renew once; where the Lease was changed or deleted without a new holder, read and write it again, once."""
        try:
            await self._renewed()
        except (Conflict, NotFound):
            await self._renewed()

    async def _renewed(self) -> None:
        lease = self._lease or await self._read()
        if lease is None:
            await self._create()
        elif lease.spec.holder_identity != self.identity:
            raise NotLeading(f"the lease is {lease.spec.holder_identity or 'nobody'}'s now")
        else:
            await self._write(lease, self._term(lease))

    async def _empty(self) -> None:
        lease = self._lease or await self._read()
        self._lease = None
        if lease is None or lease.spec.holder_identity != self.identity:
            return
        spec = replace(self._term(lease), holder_identity=None)
        self._observe(await self._cluster.replace(replace(lease, spec=spec)))

    # -------------------------------------------------------------- requests

    def _spec(self, old: LeaseSpec | None, *, transitions: int | None) -> LeaseSpec:
        """The spec as we write it: in a term that goes on (`old`), or in a new one."""
        now = micro_time_text(self._now())
        if old is not None and old.renew_time == now:  # what changes nothing is no renewal: others would not see it
            now = micro_time_text(self._now() + timedelta(microseconds=1))
        return LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=self._settings.lease_seconds,
            acquire_time=old.acquire_time if old is not None else now,
            renew_time=now,
            lease_transitions=transitions,
        )

    async def _read(self) -> Lease | None:
        """The Lease as it is now, or None."""
        settings = self._settings
        try:
            lease = await self._ask(self._cluster.get(Lease, settings.namespace, settings.name))
        except NotFound:
            return None
        self._observe(lease)
        return lease

    async def _write(self, lease: Lease, spec: LeaseSpec) -> bool:
        """Write the Lease in place of the one that was read; True."""
        self._lease, self._claimed = None, True  # until the answer is there it may be either
        sent = self._clock.now()
        return self._led(await self._ask(self._cluster.replace(replace(lease, spec=spec))), sent)

    def _led(self, lease: Lease, sent: float) -> bool:
        self._lease = lease
        self._observe(lease)
        self._token = f"{self.identity}/{self.transitions}"
        self._logged = ""
        self.fence.renewed(sent)
        return True

    async def _ask(self, request: Awaitable[_Got]) -> _Got:
        """The request's answer. Raises Unavailable where none comes soon enough to ask once more."""
        seconds = self._settings.renew_seconds / 2
        if self.fence.leading:
            seconds = min(seconds, self.fence.remaining)
        try:
            async with asyncio.timeout(seconds):
                return await request
        except TimeoutError:
            raise Unavailable(f"no answer about the lease within {seconds:.3g} s") from None

    def _observe(self, lease: Lease) -> None:
        """Remember what was seen, and since when it has not changed."""
        self._heard = self._clock.now()
        uid = lease.metadata.uid
        if self._seen is None or (self._seen.uid, self._seen.spec) != (uid, lease.spec):
            self._seen = _Seen(uid, lease.spec, self._clock.now())
        self._claimed = self.holder == self.identity

    # -------------------------------------------------------------- logs

    def _log_holder(self) -> None:
        if self._may_be_held():
            self._log_once(_log.info, "another replica leads", holder=self.holder)

    def _log_once(self, log: Callable[..., object], event: str, **fields: str) -> None:
        """Log what holds us up, once as long as it is the same."""
        entry = f"{event} {sorted(fields.items())}"
        if entry != self._logged:
            self._logged = entry
            log(event, **fields)
