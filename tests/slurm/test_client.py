"""The client and a real Slurm, in each version of the API that it speaks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from fluence_plugins.slurm_bridge.slurm.admin_comment import COMMENT_CHARACTERS
from fluence_plugins.slurm_bridge.slurm.client import Connection, SlurmClient
from fluence_plugins.slurm_bridge.slurm.errors import (
    InvalidRequestError,
    JobNotPendingError,
    NodeBusyError,
    NodeExistsError,
    SlurmError,
    TokenError,
    UnavailableError,
    UnknownNodeError,
)
from fluence_plugins.slurm_bridge.slurm.model import Gres, JobComment, JobDefaults, NodeShare, SlurmNode
from fluence_plugins.slurm_bridge.slurm.placeholder import Placeholder, PodIdentity

from .peer import API, SlurmPeer
from .record import GANG, ONE, WRONG, until

FIXED = JobDefaults(cluster="tests")
VERSIONS = ("v0.0.43", API)
"""That have external jobs."""
FOUR = ("k8s-0", "k8s-1", "k8s-2", "k8s-3")


def connection(peer: SlurmPeer, version: str = API, **settings: object) -> Connection:
    values = {"url": peer.url, "token_file": str(peer.token_file), "api_version": version, **settings}
    return Connection.model_validate(values)


@pytest.fixture
async def slurm(peer: SlurmPeer) -> AsyncIterator[SlurmClient]:
    async with SlurmClient(connection(peer)) as client:
        yield client


async def allocated(slurm: SlurmClient, job: Placeholder, candidates: tuple[str, ...]) -> int:
    number = await slurm.submit(job, FIXED, candidates)
    await until(lambda: slurm.job(number), lambda seen: seen.allocated)
    return number


async def node(slurm: SlurmClient, name: str) -> SlurmNode | None:
    return next((found for found in await slurm.nodes() if found.name == name), None)


async def soon(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while True:
            if await true():
                return
            await asyncio.sleep(0.1)


# ------------------------------------------------------------------ jobs


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_job_is_submitted_allocated_and_cancelled(peer: SlurmPeer, version: str) -> None:
    peer.add_nodes(*FOUR)
    async with SlurmClient(connection(peer, version)) as slurm:
        await slurm.ping()
        assert sorted(await slurm.partitions()) == ["debug", "slurm-bridge"]
        number = await slurm.submit(GANG, FIXED, FOUR)
        job = await until(lambda: slurm.job(number), lambda seen: seen.allocated)
        assert (job.name, job.partition, job.external, job.exclusive) == ("gang", "slurm-bridge", True, False)
        assert job.comment == JobComment(GANG.pods, "tests")
        assert set(job.nodes) <= set(FOUR)
        assert len(job.nodes) == 2
        assert job.start is not None
        assert abs(job.start - time.time()) < 60
        assert [found for found in (await slurm.jobs()).jobs if found.job_id == number] == [job]
        await slurm.cancel(number)
        ended = await until(lambda: slurm.job(number), lambda seen: seen.ended)
        assert not ended.allocated
        assert "CANCELLED" in ended.states
        await slurm.cancel(number)


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_share_of_each_node_is_told(peer: SlurmPeer, version: str) -> None:
    peer.add_nodes(*FOUR[:2])
    async with SlurmClient(connection(peer, version)) as slurm:
        first = await allocated(slurm, GANG, FOUR[:2])
        second = await allocated(slurm, replace(GANG, cpus_per_task=3, memory_mib=500), FOUR[:2])
        gpus = [(Gres("gpu", "", 1, (index,)),) for index in (0, 1)]
        assert await slurm.resources(first) == tuple(NodeShare(name, (0, 1), gpus[0], 1000) for name in FOUR[:2])
        assert await slurm.resources(second) == tuple(NodeShare(name, (2, 3, 4), gpus[1], 500) for name in FOUR[:2])
        await slurm.cancel(first)
        await until(lambda: slurm.job(first), lambda seen: seen.ended)
        assert await slurm.resources(first) == ()


async def test_an_exclusive_job_has_the_whole_of_its_node(peer: SlurmPeer, slurm: SlurmClient) -> None:
    peer.add_nodes(*FOUR[:1])
    number = await allocated(slurm, ONE, FOUR[:1])
    (share,) = await slurm.resources(number)
    assert (share.node, share.cores) == (FOUR[0], tuple(range(8)))
    assert [gpu.indices for gpu in share.gres] == [(0, 1)]
    job = await slurm.job(number)
    assert job is not None
    assert job.exclusive


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_job_that_waits_has_a_reason_and_an_expected_start(peer: SlurmPeer, version: str) -> None:
    peer.add_nodes(*FOUR[:1])
    async with SlurmClient(connection(peer, version)) as slurm:
        first = await allocated(slurm, ONE, FOUR[:1])
        second = await slurm.submit(ONE, FIXED, FOUR[:1])
        job = await until(lambda: slurm.job(second), lambda seen: seen.start is not None)
        assert (job.pending, job.allocated, job.reason, job.nodes) == (True, False, "Resources", ())
        running = await slurm.job(first)
        assert running is not None
        assert running.reason == ""
        assert job.start == running.end  # it has a limit of five minutes
        assert await slurm.resources(second) == ()
        await slurm.cancel(first)
        await until(lambda: slurm.job(second), lambda seen: seen.allocated)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_pending_job_is_updated(peer: SlurmPeer, version: str) -> None:
    peer.add_nodes(*FOUR[:2])
    holder = peer.submit(shared=["none"], minimum_nodes=2)
    async with SlurmClient(connection(peer, version)) as slurm:
        await until(lambda: slurm.job(holder), lambda seen: seen.allocated)
        number = await slurm.submit(ONE, FIXED, FOUR[:2])
        pods = (*ONE.pods, PodIdentity("default", "two", "uid-3"))
        grown = replace(ONE, name="grown", pods=pods, minimum_nodes=2, maximum_nodes=2, time_limit_minutes=7)
        await slurm.update(number, grown, FIXED, FOUR[:2])
        job = await slurm.job(number)
        assert job is not None
        assert (job.name, job.comment, job.time_limit_minutes) == ("grown", JobComment(pods, "tests"), 7)
        peer.cancel(holder)
        job = await until(lambda: slurm.job(number), lambda seen: seen.allocated)
        assert sorted(job.nodes) == list(FOUR[:2])


async def test_candidates_are_changed_while_a_job_waits(peer: SlurmPeer, slurm: SlurmClient) -> None:
    peer.add_nodes(*FOUR[:2])
    holder = peer.submit(shared=["none"], required_nodes=[FOUR[0]])
    await until(lambda: slurm.job(holder), lambda seen: seen.allocated)
    number = await slurm.submit(ONE, FIXED, FOUR[:1])
    await until(lambda: slurm.job(number), lambda seen: seen.reason == "Resources")
    await slurm.update(number, ONE, FIXED, FOUR[:2])
    job = await until(lambda: slurm.job(number), lambda seen: seen.allocated)
    assert job.nodes == (FOUR[1],)


async def test_a_job_that_has_started_ended_or_gone_is_not_updated(peer: SlurmPeer, slurm: SlurmClient) -> None:
    peer.add_nodes(*FOUR[:2])
    number = await allocated(slurm, GANG, FOUR[:2])
    smaller = replace(GANG, pods=GANG.pods[:1], minimum_nodes=1, maximum_nodes=1)
    with pytest.raises(JobNotPendingError, match="2073"):
        await slurm.update(number, smaller, FIXED, FOUR[:1])
    await slurm.cancel(number)
    await until(lambda: slurm.job(number), lambda seen: seen.ended)
    with pytest.raises(JobNotPendingError):
        await slurm.update(number, smaller, FIXED, FOUR[:1])
    with pytest.raises(JobNotPendingError, match="2017"):
        await slurm.update(999_999, smaller, FIXED, FOUR[:1])


async def test_an_unknown_job_is_none(peer: SlurmPeer, slurm: SlurmClient) -> None:
    assert await slurm.job(999_999) is None
    assert await slurm.resources(999_999) == ()
    await slurm.cancel(999_999)


@pytest.mark.parametrize(
    ("what", "number"),
    [
        ("partition", 2000),
        ("node_configuration", 2014),
        ("feature", 2029),
        ("reservation", 2053),
        ("licence", 2048),
        ("tres", 2115),
        ("user", 2166),
        ("group", 2164),
    ],
)
async def test_an_impossible_request_raises_the_error_of_its_number(
    peer: SlurmPeer, slurm: SlurmClient, what: str, number: int
) -> None:
    peer.add_nodes(*FOUR[:1])
    with pytest.raises(InvalidRequestError) as refused:
        await slurm.submit(WRONG[what], FIXED, FOUR[:1])
    assert refused.value.number == number
    assert refused.value.name.startswith("ESLURM_")
    assert not [job for job in peer.jobs() if job["job_state"] == ["PENDING"]]


async def test_in_a_version_without_external_jobs_all_can_be_read_and_none_submitted(peer: SlurmPeer) -> None:
    peer.add_nodes(*FOUR[:1])
    number = peer.submit(shared=["none"])
    async with SlurmClient(connection(peer, "v0.0.42")) as slurm:
        await slurm.ping()
        job = await until(lambda: slurm.job(number), lambda seen: seen.allocated)
        assert job.nodes == FOUR[:1]
        assert [share.cores for share in await slurm.resources(number)] == [tuple(range(8))]
        assert [found.name for found in await slurm.nodes()] == [FOUR[0]]
        before = len(peer.jobs())
        with pytest.raises(InvalidRequestError, match="no external jobs"):
            await slurm.submit(ONE, FIXED, FOUR[:1])
        assert len(peer.jobs()) == before
        await slurm.cancel(number)
        await until(lambda: slurm.job(number), lambda seen: seen.ended)


async def test_an_unknown_candidate_is_rejected(peer: SlurmPeer, slurm: SlurmClient) -> None:
    peer.add_nodes(*FOUR[:1])
    with pytest.raises(UnknownNodeError):
        await slurm.submit(ONE, FIXED, FOUR[:2])


async def test_a_job_with_a_warning_is_submitted(peer: SlurmPeer, slurm: SlurmClient) -> None:
    peer.add_nodes(*FOUR[:1])
    number = await slurm.submit(replace(ONE, cpus_per_task=100), FIXED, FOUR[:1])
    job = await until(lambda: slurm.job(number), lambda seen: seen.reason != "")
    assert job.reason == "PartitionConfig"
    assert job.pending


async def test_the_names_of_many_pods_come_back(peer: SlurmPeer, slurm: SlurmClient) -> None:
    pods = tuple(
        PodIdentity("namespace", f"{'long-name-of-a-pod-' * 9}{index:04}", f"{index:036}") for index in range(4000)
    )
    peer.add_nodes(*FOUR[:1])
    number = await slurm.submit(replace(ONE, pods=pods), FIXED, FOUR[:1])
    job = await slurm.job(number)
    assert job is not None
    assert job.comment == JobComment(pods, "tests")
    with pytest.raises(InvalidRequestError, match=f"the limit is {COMMENT_CHARACTERS}"):
        await slurm.submit(replace(ONE, pods=pods * 2), FIXED, FOUR[:1])


# ------------------------------------------------------------------ lists


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_list_is_empty_until_something_changes(peer: SlurmPeer, version: str) -> None:
    peer.add_nodes(*FOUR[:1])
    async with SlurmClient(connection(peer, version)) as slurm:
        number = await allocated(slurm, ONE, FOUR[:1])
        first = await slurm.jobs()
        assert first.changed
        assert not first.unreadable

        async def quiet() -> bool:
            nonlocal first
            seen = await slurm.jobs(first.last_update)
            first = seen if seen.changed else first
            return not seen.changed

        await soon(quiet)
        await slurm.cancel(number)
        changed = await slurm.jobs(first.last_update)
        assert changed.changed
        assert [job.ended for job in changed.jobs if job.job_id == number] == [True]


async def test_no_change_is_missed_by_asking_since_the_list_before(peer: SlurmPeer, slurm: SlurmClient) -> None:
    """Slurm's times are whole seconds: of many changes within one, each is in a list."""
    peer.add_nodes(*FOUR[:1])
    known = await slurm.jobs()
    for _ in range(30):
        number = await slurm.submit(ONE, FIXED, FOUR[:1])
        known = await slurm.jobs(known.last_update)
        assert number in {job.job_id for job in known.jobs}


# ------------------------------------------------------------------ nodes


def line(name: str) -> str:
    return (
        f"NodeName={name} CPUs=8 Sockets=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=32000 State=External "
        "Feature=slurm-bridge,rack-1 Gres=gpu:2 GresConf=count=2,name=gpu,file=gpu-0,file=gpu-1"
    )


async def test_a_node_is_made_drained_undrained_changed_and_deleted(peer: SlurmPeer, slurm: SlurmClient) -> None:
    await slurm.create_node(line("k8s-5"))
    made = await node(slurm, "k8s-5")
    assert made is not None
    assert (made.external, made.drained, made.reason) == (True, False, "")
    assert (made.cpus, made.memory_mib, made.gres) == (8, 32_000, "gpu:2")
    assert (made.features, made.partitions) == (("slurm-bridge", "rack-1"), ("slurm-bridge",))
    await slurm.update_node("k8s-5", state="DRAIN", reason="ours")
    drained = await node(slurm, "k8s-5")
    assert drained is not None
    assert (drained.drained, drained.reason) == (True, "ours")
    await slurm.update_node("k8s-5", state="UNDRAIN")
    undrained = await node(slurm, "k8s-5")
    assert undrained is not None
    assert (undrained.drained, undrained.reason) == (False, "")
    await slurm.update_node("k8s-5", features=["slurm-bridge", "rack-2"], comment="moved")
    changed = await node(slurm, "k8s-5")
    assert changed is not None
    assert (changed.features, changed.comment) == (("slurm-bridge", "rack-2"), "moved")
    with pytest.raises(NodeExistsError):
        await slurm.create_node(line("k8s-5"))
    await slurm.delete_node("k8s-5")
    assert await node(slurm, "k8s-5") is None
    await slurm.delete_node("k8s-5")


async def test_a_node_with_a_job_is_not_deleted(peer: SlurmPeer, slurm: SlurmClient) -> None:
    peer.add_nodes("k8s-6")
    number = await allocated(slurm, ONE, ("k8s-6",))
    with pytest.raises(NodeBusyError):
        await slurm.delete_node("k8s-6")
    busy = await node(slurm, "k8s-6")
    assert busy is not None
    assert busy.allocated_cpus == 8
    await slurm.cancel(number)

    async def deleted() -> bool:
        try:
            await slurm.delete_node("k8s-6")
        except NodeBusyError:
            return False
        return True

    await soon(deleted)


async def test_wrong_nodes_are_refused(peer: SlurmPeer, slurm: SlurmClient) -> None:
    with pytest.raises(UnknownNodeError):
        await slurm.update_node("k8s-63", state="DRAIN", reason="ours")
    with pytest.raises(SlurmError):
        await slurm.create_node("Nonsense")
    peer.add_nodes("k8s-7")
    with pytest.raises(SlurmError, match="9207"):
        await slurm.update_node("k8s-7", state="SIDEWAYS")


# ------------------------------------------------------------------ tokens


async def test_a_token_that_has_expired_is_told_and_the_next_one_is_read(peer: SlurmPeer, slurm: SlurmClient) -> None:
    await slurm.ping()
    peer.write_token(lifespan=-10)
    for call in (slurm.ping, slurm.jobs, slurm.nodes, lambda: slurm.submit(ONE, FIXED, ()), lambda: slurm.cancel(1)):
        with pytest.raises(TokenError) as refused:
            await call()
        assert str(peer.token_file) in str(refused.value)
        assert peer.token_file.read_text().strip() not in str(refused.value)
    peer.write_token()
    await slurm.ping()
    assert (await slurm.jobs()).changed


async def test_a_token_of_somebody_with_no_rights_is_told_of_nodes(peer: SlurmPeer, slurm: SlurmClient) -> None:
    peer.write_token(user="nobody")  # codespell:ignore nobody
    with pytest.raises(TokenError, match="new/node"):
        await slurm.create_node(line("k8s-5"))


async def test_a_version_that_slurmrestd_does_not_serve_is_told(peer: SlurmPeer) -> None:
    peer.stop_rest()
    served = peer._versions
    peer._versions = (API,)
    try:
        peer.start_rest()
        async with SlurmClient(connection(peer, "v0.0.42")) as slurm:
            with pytest.raises(UnavailableError, match=r"does not serve this path in v0\.0\.42"):
                await slurm.jobs()
    finally:
        peer.stop_rest()
        peer._versions = served
        peer.start_rest()
