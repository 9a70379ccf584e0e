"""Leader election in virtual time: acquiring, losing, renewing and releasing the lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta

import pytest
import structlog
from msgspec.structs import replace

from session_scheduler.cluster.errors import NotLeading
from session_scheduler.cluster.leader_election import Elector, Fence, new_identity
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.config.settings import LeaderElection
from session_scheduler.model.objects import Lease, LeaseSpec, ObjectMeta

from .election_time import SETTINGS, Replica, Time, check_one_leads, lease_in


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


Start = Callable[..., Replica]


@pytest.fixture
async def start(cluster: MemoryCluster, time: Time) -> AsyncIterator[Start]:
    """Starts replicas, and stops them at the end of the test."""
    started: list[Replica] = []

    def begin(name: str, settings: LeaderElection = SETTINGS, wall: Callable[[], datetime] | None = None) -> Replica:
        started.append(Replica(name, cluster, time, settings, wall).start())
        return started[-1]

    yield begin
    for replica in started:
        await replica.kill()


async def put_lease(cluster: MemoryCluster, **spec: object) -> Lease:
    metadata = ObjectMeta(namespace=SETTINGS.namespace, name=SETTINGS.name)
    return await cluster.create(Lease(metadata=metadata, spec=LeaseSpec(**spec)))  # type: ignore[arg-type]


# ---------------------------------------------------------------------- acquiring


async def test_the_first_replica_creates_the_lease_and_leads(cluster: MemoryCluster, time: Time, start: Start) -> None:
    first = start("first")
    await time.run_pending()
    assert first.leading
    assert (await lease_in(cluster)).spec == LeaseSpec(
        holder_identity="first",
        lease_duration_seconds=15,
        acquire_time="2026-01-01T12:16:40.000000Z",
        renew_time="2026-01-01T12:16:40.000000Z",
        lease_transitions=0,
    )


async def test_the_leader_keeps_the_lease_and_the_others_wait(cluster: MemoryCluster, time: Time, start: Start) -> None:
    first, second = start("first"), start("second")
    time.each.append(lambda: check_one_leads(first, second))
    await time.pass_by(300)
    assert (first.terms, second.terms) == ([1000.0], [])
    assert first.leading
    spec = (await lease_in(cluster)).spec
    assert spec.acquire_time == "2026-01-01T12:16:40.000000Z"
    assert spec.renew_time == "2026-01-01T12:21:40.000000Z"
    assert (second.elector.holder, second.elector.transitions) == ("first", 0)


async def test_a_replica_notices_that_it_stands_by_and_the_first_leader_does_not(
    time: Time, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    noticed: list[str] = []
    acquire = Elector.acquire
    monkeypatch.setattr(Elector, "acquire", lambda elector: acquire(elector, lambda: noticed.append(elector.identity)))
    start("first"), start("second")
    await time.pass_by(3)
    assert set(noticed) == {"second"}


async def test_of_many_that_start_at_once_one_leads(time: Time, start: Start) -> None:
    replicas = [start(f"replica-{number}") for number in range(6)]
    time.each.append(lambda: check_one_leads(*replicas))
    await time.pass_by(60)
    assert sum(len(replica.terms) for replica in replicas) == 1


async def test_a_dead_leaders_successor_waits_the_whole_lease_and_no_longer(time: Time, start: Start) -> None:
    first, second = start("first"), start("second")
    await time.pass_by(21)  # the second saw the last renewal at 20 s, at the latest
    await first.kill()
    await time.pass_by(30)
    (began,) = second.terms
    assert 1020.0 + 15.0 <= began <= 1020.0 + 2.0 + 15.0
    assert second.elector.token == "second/1"


async def test_a_released_lease_is_acquired_at_the_next_try(cluster: MemoryCluster, time: Time, start: Start) -> None:
    first, second = start("first"), start("second")
    await time.pass_by(21)
    await first.stop()
    released = await lease_in(cluster)
    assert (released.spec.holder_identity, released.spec.lease_transitions) == (None, 0)
    assert not first.leading
    await time.pass_by(2)
    assert second.leading
    assert (await lease_in(cluster)).spec.lease_transitions == 1


async def test_each_term_has_a_token_of_its_own_that_later_ones_do_not_change(time: Time, start: Start) -> None:
    first = start("first")
    assert first.elector.token == ""
    await time.run_pending()
    second = start("second")
    assert first.elector.token == "first/0"
    first.link.down = True
    await time.pass_by(40)
    first.link.down = False
    await time.pass_by(5)
    assert first.elector.holder == "second"
    assert first.elector.token == "first/0"  # a write of its old term must not have the new leader's token
    await second.stop()
    await time.pass_by(5)
    assert first.elector.token == "first/2"


async def test_each_holder_is_logged_once(time: Time, start: Start) -> None:
    with structlog.testing.capture_logs() as logs:
        first, second = start("first"), start("second")
        await time.pass_by(60)
        await first.stop()
        await time.pass_by(10)
        start("third")
        await time.pass_by(60)
    reported = [log["holder"] for log in logs if log["event"] == "another replica leads"]
    assert reported == ["first", "second"]
    assert [log["identity"] for log in logs if log["event"] == "this replica leads"] == ["first", "second"]
    assert second.leading


def test_no_two_processes_have_the_same_identity() -> None:
    identities = {new_identity() for _ in range(100)}
    assert len(identities) == 100
    assert all("/" not in identity for identity in identities)  # the token has one, before the term


# ---------------------------------------------------------------------- clocks


@pytest.mark.parametrize("jump", [timedelta(days=3650), timedelta(days=-3650)])
async def test_a_wall_clock_that_jumps_changes_nothing(time: Time, start: Start, jump: timedelta) -> None:
    def jumping() -> datetime:
        return time.wall() + (jump if int(time.now()) % 4 < 2 else timedelta())

    first, second = start("first", wall=jumping), start("second", wall=lambda: time.wall() - jump)
    time.each.append(lambda: check_one_leads(first, second))
    await time.pass_by(100)
    assert (len(first.terms), second.terms) == (1, [])
    await first.kill()
    gone = time.now()
    await time.pass_by(30)
    assert gone + 13 <= second.terms[0] <= gone + 17


async def test_a_wall_clock_that_stands_still_hides_no_renewal(time: Time, start: Start) -> None:
    noon = time.wall()
    first, second = start("first", wall=lambda: noon), start("second")
    await time.pass_by(100)
    assert (len(first.terms), second.terms) == (1, [])


async def test_leadership_is_counted_from_before_the_request_was_sent(time: Time, start: Start) -> None:
    first = start("first")
    first.link.seconds = 4.0
    await time.pass_by(4)  # the create request was sent at once; its response arrives now
    assert first.leading
    assert first.elector.fence.remaining == 6.0


def test_a_fence_closes_at_the_renew_deadline_and_opens_with_a_renewal() -> None:
    time = Time()
    fence = Fence(time, 10.0)  # type: ignore[arg-type]
    with pytest.raises(NotLeading, match="is not the leader"):
        fence.check()
    fence.renewed(time.now())
    time._now += 9.999
    fence.check()
    time._now += 0.001
    with pytest.raises(NotLeading, match="10 s"):
        fence.check()
    fence.renewed(time.now() - 1.0)
    assert fence.remaining == 9.0
    fence.close()
    assert not fence.leading


# ---------------------------------------------------------------------- failures


async def test_a_leader_that_is_cut_off_stops_before_another_begins(time: Time, start: Start) -> None:
    first, second = start("first"), start("second")
    time.each.append(lambda: check_one_leads(first, second))
    await time.pass_by(21)
    first.link.down = True
    await time.pass_by(8.9)
    assert first.leading
    await time.pass_by(0.1)  # its last renewal was sent at 1020
    assert not first.leading
    assert first.losses == ["this replica has not renewed its lease for 10 s: it has lost the leadership"]
    await time.pass_by(4.9)
    assert second.terms == []
    await time.pass_by(3)
    assert second.leading
    first.link.down = False
    await time.pass_by(10)
    assert not first.leading
    assert first.elector.holder == "second"


async def test_a_leader_that_fails_to_renew_for_a_while_keeps_leading(time: Time, start: Start) -> None:
    first, second = start("first"), start("second")
    await time.pass_by(21)
    first.link.down = True
    await time.pass_by(6.9)
    first.link.down = False
    await time.pass_by(60)
    assert (first.losses, second.terms) == ([], [])


async def test_renewals_with_lost_responses_do_not_prolong_the_term(time: Time, start: Start) -> None:
    first, second = start("first"), start("second")
    time.each.append(lambda: check_one_leads(first, second))
    await time.pass_by(21)
    first.link.deaf = True
    await time.pass_by(9)
    assert not first.leading
    first.link.deaf = False
    await time.pass_by(5)
    assert first.leading  # no other replica led meanwhile
    assert first.elector.token == "first/0"


async def test_a_replica_that_acquired_the_lease_without_a_response_leads_once_it_reads_it(
    cluster: MemoryCluster, time: Time, start: Start
) -> None:
    await put_lease(cluster, lease_transitions=6)
    first = start("first")
    first.link.deaf = True
    await time.run_pending()
    first.link.deaf = False
    await time.pass_by(2)
    assert first.leading
    assert first.elector.token == "first/7"


async def test_a_lease_that_another_replica_took_is_lost_at_the_next_renewal(
    cluster: MemoryCluster, time: Time, start: Start
) -> None:
    first = start("first")
    await time.pass_by(1)
    lease = await lease_in(cluster)
    await cluster.replace(replace(lease, spec=replace(lease.spec, holder_identity="usurper")))
    await time.pass_by(1)
    assert not first.leading
    assert first.losses == ["the lease's holder is now usurper"]


async def test_a_change_of_the_metadata_does_not_affect_the_election(
    cluster: MemoryCluster, time: Time, start: Start
) -> None:
    first, second = start("first"), start("second")
    for number in range(20):
        await time.pass_by(1.5)
        await cluster.patch_metadata(await lease_in(cluster), annotations={"note": str(number)})
    assert (first.losses, second.terms) == ([], [])
    await first.kill()
    gone = time.now()
    for number in range(15):
        await time.pass_by(1)
        await cluster.patch_metadata(await lease_in(cluster), annotations={"late": str(number)})
    await time.pass_by(2)
    assert second.terms[0] <= gone + 17
    assert (await lease_in(cluster)).metadata.annotations == {"note": "19", "late": "14"}


async def test_only_its_holder_creates_a_deleted_lease_again(cluster: MemoryCluster, time: Time, start: Start) -> None:
    first, second = start("first"), start("second")
    time.each.append(lambda: check_one_leads(first, second))
    for _ in range(10):
        await time.pass_by(3.7)
        await cluster.delete(await lease_in(cluster))
    await time.pass_by(3)
    assert (first.losses, second.terms) == ([], [])
    assert (await lease_in(cluster)).spec.lease_transitions == 10  # each is a new term, with a new token


async def test_a_deleted_lease_of_a_dead_leader_is_created_when_it_would_have_expired(
    cluster: MemoryCluster, time: Time, start: Start
) -> None:
    first, second = start("first"), start("second")
    await time.pass_by(21)
    await first.kill()
    await cluster.delete(await lease_in(cluster))
    await time.pass_by(10)
    assert second.terms == []
    await time.pass_by(7)
    assert second.leading
    assert second.elector.token == "second/1"


async def test_a_replica_without_a_cluster_waits_for_one(time: Time, start: Start) -> None:
    first = start("first")
    first.link.down = True
    with structlog.testing.capture_logs() as logs:
        await time.pass_by(60)
    assert len(logs) == 1
    first.link.down = False
    await time.pass_by(2)
    assert first.leading


# ---------------------------------------------------------------------- Leases of other writers


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        ({}, 0),
        ({"holder_identity": ""}, 0),
        ({"lease_duration_seconds": 2**31 - 1}, 0),
        ({"holder_identity": "other"}, 15),
        ({"holder_identity": "other", "lease_duration_seconds": 0}, 15),
        ({"holder_identity": "other", "lease_duration_seconds": -7}, 15),
        ({"holder_identity": "other", "lease_duration_seconds": 1}, 15),
        ({"holder_identity": "other", "lease_duration_seconds": 60}, 60),
        ({"holder_identity": "other", "lease_duration_seconds": 3601}, 15),
        ({"holder_identity": "other", "lease_duration_seconds": 2**31 - 1}, 15),
        ({"holder_identity": "other", "renew_time": "9999-12-31T23:59:59.000000Z"}, 15),
        ({"holder_identity": "other", "renew_time": "nonsense"}, 15),
    ],
)
async def test_a_lease_without_a_holder_is_acquired_at_once_and_any_other_after_its_expiry(
    cluster: MemoryCluster, time: Time, start: Start, spec: dict[str, object], seconds: float
) -> None:
    await put_lease(cluster, **spec)
    first = start("first")
    await time.pass_by(100)
    assert first.terms == [1000.0 + seconds]
    assert first.elector.token == "first/1"


async def test_the_number_of_terms_stays_a_valid_int32(cluster: MemoryCluster, time: Time, start: Start) -> None:
    await put_lease(cluster, lease_transitions=2**31 - 1)
    first = start("first")
    await time.run_pending()
    assert first.elector.token == "first/0"


# ---------------------------------------------------------------------- requests without a response


QUICK = LeaderElection(lease_seconds=1, renew_seconds=0.04, retry_seconds=0.01)


async def test_a_request_without_a_response_times_out_before_the_deadline(cluster: MemoryCluster, time: Time) -> None:
    first = Replica("first", cluster, time, QUICK).start()
    first.link.hangs = True
    async with asyncio.timeout(10):
        while first.link.asked < 3:
            await asyncio.sleep(0.01)
            await time.pass_by(0.01)
    await first.kill()


async def test_a_release_without_a_response_times_out(
    cluster: MemoryCluster, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("session_scheduler.cluster.leader_election._RELEASE_SECONDS", 0.02)
    first = Replica("first", cluster, time).start()
    await time.run_pending()
    first.link.hangs = True
    async with asyncio.timeout(10):
        await first.stop()
    assert not first.leading


# ---------------------------------------------------------------------- releasing


async def test_a_replica_releases_only_its_own_lease(cluster: MemoryCluster, time: Time, start: Start) -> None:
    first, second = start("first"), start("second")
    await time.pass_by(5)
    await second.stop()
    assert (await lease_in(cluster)).spec.holder_identity == "first"
    lease = await lease_in(cluster)
    await cluster.replace(replace(lease, spec=replace(lease.spec, holder_identity="usurper")))
    await first.stop()
    assert (await lease_in(cluster)).spec.holder_identity == "usurper"


async def test_a_lease_is_released_although_its_metadata_changed(
    cluster: MemoryCluster, time: Time, start: Start
) -> None:
    first = start("first")
    await time.pass_by(5)
    await cluster.patch_metadata(await lease_in(cluster), annotations={"note": "x"})
    await first.stop()
    assert (await lease_in(cluster)).spec.holder_identity is None


async def test_a_lease_is_released_although_the_response_to_its_acquisition_was_lost(
    cluster: MemoryCluster, time: Time, start: Start
) -> None:
    first = start("first")
    first.link.deaf = True
    await put_lease(cluster)
    first.link.seconds = 1.0
    first.link.deaf = False
    await time.pass_by(1.5)  # the Lease is written, and the response is in flight
    assert (await lease_in(cluster)).spec.holder_identity == "first"
    first.link.seconds = 0.0
    await first.stop()
    assert (await lease_in(cluster)).spec.holder_identity is None


async def test_release_never_raises(cluster: MemoryCluster, time: Time, start: Start) -> None:
    first = start("first")
    await time.run_pending()
    first.link.down = True
    await first.stop()
    first.link.down = False
    await cluster.delete(await lease_in(cluster))
    await first.elector.release()
    await Elector(cluster, SETTINGS, identity="none", clock=time).release()  # type: ignore[arg-type]
