"""The client while slurmctld or slurmrestd is away, and after."""

from __future__ import annotations

import asyncio

import pytest

from fluence_plugins.slurm_bridge.slurm.client import SlurmClient
from fluence_plugins.slurm_bridge.slurm.errors import UnavailableError

from .peer import SlurmPeer
from .record import GANG, ONE, until
from .test_client import FIXED, FOUR, allocated, connection, node


async def test_jobs_and_nodes_are_the_same_after_slurmctld_was_restarted(peer: SlurmPeer) -> None:
    peer.add_nodes(*FOUR[:3])
    async with SlurmClient(connection(peer)) as slurm:
        running = await allocated(slurm, GANG, FOUR[:2])
        before = await slurm.job(running)
        share = await slurm.resources(running)
        waiting = await slurm.submit(ONE, FIXED, FOUR[:2])
        await slurm.update_node(FOUR[2], state="DRAIN", reason="ours")
        await asyncio.to_thread(peer.restart_controller)
        after = await slurm.job(running)
        assert before is not None
        assert after is not None
        assert (after.nodes, after.comment, after.allocated) == (before.nodes, before.comment, True)
        assert await slurm.resources(running) == share
        drained = await node(slurm, FOUR[2])
        assert drained is not None
        assert (drained.external, drained.drained, drained.reason) == (True, True, "ours")
        await slurm.cancel(running)
        await until(lambda: slurm.job(waiting), lambda seen: seen.allocated)


async def test_without_slurmctld_a_submission_was_certainly_not_executed(peer: SlurmPeer) -> None:
    peer.add_nodes(FOUR[0])
    async with SlurmClient(connection(peer, retries=0)) as slurm:
        with peer.without_controller():
            with pytest.raises(UnavailableError) as failed:
                await slurm.submit(ONE, FIXED, FOUR[:1])
            assert not failed.value.sent
            calls = (slurm.ping(), slurm.jobs(), slurm.job(1), slurm.resources(1), slurm.cancel(1), slurm.nodes())
            writes = (
                slurm.update(1, ONE, FIXED, ()),
                slurm.update_node(FOUR[0], comment="x"),
                slurm.delete_node(FOUR[0]),
            )
            reported = await asyncio.gather(*calls, *writes, return_exceptions=True)
            assert [type(error) for error in reported] == [UnavailableError] * len(reported)
        assert not [job for job in (await slurm.jobs()).jobs if job.pending]


async def test_a_call_outlasts_a_restart_of_slurmctld(peer: SlurmPeer) -> None:
    peer.add_nodes(FOUR[0])
    async with SlurmClient(connection(peer, retries=20)) as slurm:
        number = await allocated(slurm, ONE, FOUR[:1])
        await asyncio.to_thread(peer.stop_controller)
        async with asyncio.TaskGroup() as together:
            job = together.create_task(slurm.job(number))
            second = together.create_task(slurm.submit(ONE, FIXED, FOUR[:1]))
            together.create_task(asyncio.to_thread(peer.start_controller))
        seen = job.result()
        assert seen is not None
        assert seen.allocated
        names = [found["job_id"] for found in peer.jobs() if found["job_state"] == ["PENDING"]]
        assert names == [second.result()]


async def test_without_slurmrestd_nothing_is_sent_and_later_all_is_as_before(peer: SlurmPeer) -> None:
    async with SlurmClient(connection(peer, retries=1)) as slurm:
        with peer.without_rest():
            with pytest.raises(UnavailableError, match="cannot connect to slurmrestd") as failed:
                await slurm.submit(ONE, FIXED, ())
            assert not failed.value.sent
        await slurm.ping()


async def test_two_slurms_stand_beside_each_other(peer: SlurmPeer) -> None:
    with SlurmPeer(peer.logs / "other") as other:
        other.add_nodes("k8s-9")
        peer.add_nodes("k8s-8")
        async with SlurmClient(connection(peer)) as ours, SlurmClient(connection(other)) as theirs:
            assert [found.name for found in await ours.nodes()] == ["k8s-8"]
            assert [found.name for found in await theirs.nodes()] == ["k8s-9"]
            await asyncio.to_thread(other.restart_controller)
            await ours.ping()
            await theirs.ping()
