"""Leader election among replicas with a Lease: only the replica that holds and renews it schedules.

    elector = Elector(cluster, settings, identity=new_identity(), clock=clock)
    cluster.fence_writes(elector.fence.check)
    await elector.acquire()
    try:
        ...  # schedule, and alongside run `elector.keep()`, which returns only by raising an error
    finally:
        await elector.release()  # when no write is in flight

Each replica measures durations with its own monotonic clock; the times in the Lease are for people. The leader counts
from before it sent its last renewal, and stops after `renew_seconds`. Another replica counts from when it saw the Lease
change, and starts after `lease_seconds`. So the election is correct even if clocks differ or a replica is slow.
Source: k8s.io/client-go/tools/leaderelection, which writes the same Lease; docs/adr/0006-own-election.md.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec
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
"""Maximum in seconds of a configured lease. A longer duration in a Lease does not come from Fluence."""
_TRANSITIONS = 2**31
"""leaseTransitions is an int32; after its maximum it starts again at 0."""
_RELEASE_SECONDS = 2.0
_HOST_LIMIT = 63


def new_identity() -> str:
    """Return a unique name for this process: the host's name and a random part."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:_HOST_LIMIT]
    return f"{host}_{secrets.token_hex(8)}"


class Fence:
    """Decides with the monotonic clock whether this replica may write."""

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
        """Seconds for which this replica may still write; 0 if it does not lead."""
        if self._renewed is None:
            return 0.0
        return max(0.0, self._renewed + self._renew_seconds - self._clock.now())

    def check(self) -> None:
        """Raise NotLeading unless this replica may write now."""
        if not self.leading:
            if self._renewed is None:
                raise NotLeading("this replica is not the leader")
            raise NotLeading(f"this replica has not renewed its lease for {self._renew_seconds:g} s: "
                             "it has lost the leadership")  # fmt: skip

    def renewed(self, sent: float) -> None:
        """Note that a request renewed the lease; `sent` is the clock's time before the request."""
        self._renewed = sent

    def close(self) -> None:
        """Forbid writes until the lease is renewed."""
        self._renewed = None


class _Seen(msgspec.Struct, frozen=True):
    """The Lease as last observed, and the time of its last change."""

    uid: str
    spec: LeaseSpec
    since: float


class Elector:
    """A candidate in the election. `now` returns the times that it writes into the Lease."""

    def __init__(
        self, cluster: Cluster, settings: LeaderElection, *, identity: str, clock: Clock,
        now: Callable[[], datetime] = utc_now, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        failed: Callable[[], None] = lambda: None, annotations: Callable[[], Mapping[str, str]] = dict,
    ) -> None:  # fmt: skip
        """`failed` is called for each failed renewal. Each write sets the `annotations` of that time."""
        self.fence = Fence(clock, settings.renew_seconds)
        self.identity = identity
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._failed = failed
        self._annotations = annotations
        self._lease: Lease | None = None
        """The Lease as this replica last wrote it; None if it may have changed."""
        self._seen: _Seen | None = None
        self._renewing = asyncio.Lock()
        self._claimed = False
        """Whether this replica holds the Lease, or sent a request that may have acquired it."""
        self._token = ""
        self._heard = float("-inf")
        self._logged = ""

    # -------------------------------------------------------------- state for others

    @property
    def silent(self) -> float:
        """Seconds since the last response about the Lease; infinite before the first."""
        return self._clock.now() - self._heard

    @property
    def holder(self) -> str:
        """The holder's identity in the last observed Lease; empty for none."""
        return (self._seen.spec.holder_identity or "") if self._seen else ""

    @property
    def transitions(self) -> int:
        """leaseTransitions in the last observed Lease."""
        return (self._seen.spec.lease_transitions or 0) if self._seen else 0

    @property
    def token(self) -> str:
        """This replica's identity and the number of its last term, for its Bindings. Empty before the first term."""
        return self._token

    # -------------------------------------------------------------- acquire, renew, release

    async def acquire(self, standing_by: Callable[[], None] = lambda: None) -> None:
        """Wait until this replica leads. It retries after every error, and calls `standing_by` if another one leads."""
        while not await self._tried():
            if self._may_be_held():
                standing_by()
            await self._sleep(self._pause())
        _log.info("this replica leads", identity=self.identity, transitions=self.transitions)

    async def keep(self) -> None:
        """Renew the lease every `retry_seconds` until cancelled. Raises NotLeading if it is lost or expired."""
        while True:
            await self._sleep(min(self._settings.retry_seconds, self.fence.remaining))
            try:
                await self.renew()
            except NotLeading:
                raise
            except ClusterError as error:
                self._failed()
                _log.warning("failed to renew the lease", why=str(error), seconds_left=round(self.fence.remaining, 1))

    async def renew(self) -> None:
        """Renew the lease now, with the current annotations. Raises NotLeading if it is lost, or ClusterError."""
        async with self._renewing:
            self.fence.check()
            try:
                await self._renew()
            except NotLeading:
                self.fence.close()
                raise

    async def release(self) -> None:
        """Release the lease if this replica holds it, so that another one can lead at once. Never raises.

        The fence rejects all writes from the start of this call: call it when no write is in flight.
        """
        self.fence.close()
        if not self._claimed:
            return
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                try:
                    await self._empty()
                except Conflict:  # an earlier renewal succeeded, but its response was lost
                    await self._empty()
        except (ClusterError, TimeoutError) as error:
            _log.warning(
                "failed to release the lease: it will expire on its own", why=str(error) or "no response in time"
            )

    # -------------------------------------------------------------- acquiring

    async def _tried(self) -> bool:
        """Try once to acquire the lease. Return whether this replica holds it."""
        try:
            lease = await self._read()
            if lease is None:
                return not self._may_be_held() and await self._create()
            self._log_holder()
            return not self._may_be_held() and await self._write(lease, self._term(lease))
        except Conflict:
            return False  # another replica was faster
        except ClusterError as error:
            self._log_once(_log.warning, "cannot read or write the lease", why=str(error))
            return False

    def _may_be_held(self) -> bool:
        """Whether another replica may still lead. A leader does not notice at once that its Lease was deleted."""
        return self._seen is not None and self.holder not in ("", self.identity) and self._left(self._seen) > 0

    def _left(self, seen: _Seen) -> float:
        """Return the seconds until the Lease expires, by the longer of its own and the configured duration."""
        seconds = seen.spec.lease_duration_seconds or 0
        if not 0 < seconds <= _LONGEST_LEASE:
            seconds = 0
        return seen.since + max(seconds, self._settings.lease_seconds) - self._clock.now()

    def _pause(self) -> float:
        """Return the seconds until the next try; the Lease's expiry if that comes earlier."""
        retry = self._settings.retry_seconds
        return min(retry, self._left(self._seen)) if self._seen is not None and self._may_be_held() else retry

    async def _create(self) -> bool:
        settings = self._settings
        transitions = self._seen.spec.lease_transitions if self._seen else None
        spec = self._spec(None, transitions=0 if transitions is None else (transitions + 1) % _TRANSITIONS)
        metadata = ObjectMeta(namespace=settings.namespace, name=settings.name, annotations=dict(self._annotations()))
        lease = Lease(metadata=metadata, spec=spec)
        self._claimed = True
        sent = self._clock.now()
        return self._led(await self._ask(self._cluster.create(lease)), sent)

    def _term(self, lease: Lease) -> LeaseSpec:
        """Return a spec with this replica as holder: of the Lease's term if a response was lost, else of a new one."""
        if lease.spec.holder_identity == self.identity:
            return self._spec(lease.spec, transitions=lease.spec.lease_transitions)
        return self._spec(None, transitions=((lease.spec.lease_transitions or 0) + 1) % _TRANSITIONS)

    # -------------------------------------------------------------- renewing

    async def _renew(self) -> None:
        """Renew; if the Lease was changed or deleted without a new holder, read and write it again, once."""
        try:
            await self._renewed()
        except (Conflict, NotFound):
            await self._renewed()

    async def _renewed(self) -> None:
        lease = self._lease or await self._read()
        if lease is None:
            await self._create()
        elif lease.spec.holder_identity != self.identity:
            raise NotLeading(f"the lease's holder is now {lease.spec.holder_identity or '(none)'}")
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
        """Return the spec to write, for the current term (`old`) or a new one."""
        now = micro_time_text(self._now())
        if old is not None and old.renew_time == now:  # other replicas see only changes
            now = micro_time_text(self._now() + timedelta(microseconds=1))
        return LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=self._settings.lease_seconds,
            acquire_time=old.acquire_time if old is not None else now,
            renew_time=now,
            lease_transitions=transitions,
        )

    async def _read(self) -> Lease | None:
        """Return the current Lease, or None."""
        settings = self._settings
        try:
            lease = await self._ask(self._cluster.get(Lease, settings.namespace, settings.name))
        except NotFound:
            return None
        self._observe(lease)
        return lease

    async def _write(self, lease: Lease, spec: LeaseSpec) -> bool:
        """Replace the Lease that was read. Return True."""
        self._lease, self._claimed = None, True  # unknown until the response arrives
        sent = self._clock.now()
        metadata = replace(lease.metadata, annotations={**lease.metadata.annotations, **self._annotations()})
        return self._led(await self._ask(self._cluster.replace(replace(lease, metadata=metadata, spec=spec))), sent)

    def _led(self, lease: Lease, sent: float) -> bool:
        self._lease = lease
        self._observe(lease)
        self._token = f"{self.identity}/{self.transitions}"
        self._logged = ""
        self.fence.renewed(sent)
        return True

    async def _ask(self, request: Awaitable[_Got]) -> _Got:
        """Await the response. Raises Unavailable if it does not arrive early enough for another try."""
        seconds = self._settings.renew_seconds / 2
        if self.fence.leading:
            seconds = min(seconds, self.fence.remaining)
        try:
            async with asyncio.timeout(seconds):
                return await request
        except TimeoutError:
            raise Unavailable(f"no response about the lease within {seconds:.3g} s") from None

    def _observe(self, lease: Lease) -> None:
        """Keep the observed Lease, and since when it has not changed."""
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
        """Log an event, but not again while it stays the same."""
        entry = f"{event} {sorted(fields.items())}"
        if entry != self._logged:
            self._logged = entry
            log(event, **fields)
