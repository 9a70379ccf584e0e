"""The fake Slurm behaves like the real one, as far as tests depend on it."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from fluence_plugins.slurm_bridge.slurm.client import SlurmClient
from fluence_plugins.slurm_bridge.slurm.errors import (
    InvalidRequestError,
    JobNotPendingError,
    NodeBusyError,
    NodeExistsError,
    SlurmError,
    UnavailableError,
)
from fluence_plugins.slurm_bridge.slurm.model import JobDefaults
from fluence_plugins.slurm_bridge.slurm.placeholder import Placeholder, PodIdentity

from .fake_slurm import FakeSlurm, external_node

FIXED = JobDefaults("here")


def job(*names: str, **more: Any) -> Placeholder:
    pods = tuple(PodIdentity("ns", name, f"uid-{name}") for name in names)
    said: dict[str, Any] = {
        "name": names[0],
        "pods": pods,
        "minimum_nodes": len(pods),
        "maximum_nodes": len(pods),
    } | more
    return Placeholder(**said)


def test_it_has_the_methods_of_the_client() -> None:
    def calls(kind: type) -> dict[str, list[str]]:
        public = inspect.getmembers(kind, inspect.iscoroutinefunction)
        return {name: list(inspect.signature(method).parameters) for name, method in public if name[0] != "_"}

    ours, theirs = calls(FakeSlurm), calls(SlurmClient)
    assert ours == {name: theirs[name] for name in theirs}


def test_jobs_get_nodes_in_order_and_ended_jobs_free_them() -> None:
    async def run() -> None:
        slurm = FakeSlurm([external_node("a"), external_node("b"), external_node("c")])
        held = slurm.hold("a", "b")
        gang = await slurm.submit(job("p", "q"), FIXED, ("a", "b"))
        one = await slurm.submit(job("r"), FIXED, ("a", "b"))
        assert slurm.step() == []
        assert [(found.reason, found.pending) for key in ("ns/p", "ns/r") for found in slurm.of(key)] == [
            ("Resources", True),
            ("Priority", True),
        ]
        slurm.end(held)
        assert slurm.step() == [gang]
        found = await slurm.job(gang)
        assert found is not None
        assert (found.nodes, found.allocated, found.reason) == (("a", "b"), True, "")
        await slurm.cancel(gang)
        assert slurm.step() == [one]
        assert await slurm.resources(gang) == ()

    asyncio.run(run())


def test_a_list_contains_all_jobs_if_any_has_changed() -> None:
    async def run() -> None:
        slurm = FakeSlurm([external_node("a")])
        first = await slurm.submit(job("p"), FIXED, ("a",))
        seen = await slurm.jobs()
        assert not (await slurm.jobs(seen.last_update)).changed
        second = await slurm.submit(job("q"), FIXED, ("a",))
        again = await slurm.jobs(seen.last_update)
        assert [each.job_id for each in again.jobs] == [first, second]
        slurm.forget(first)
        assert (await slurm.jobs(again.last_update)).changed
        assert await slurm.job(first) is None

    asyncio.run(run())


def test_exclusive_jobs_get_whole_nodes_and_others_the_lowest_cores_and_devices() -> None:
    async def run() -> None:
        slurm = FakeSlurm([external_node("a", 8, gres="gpu:v100:2")])
        shared = {"exclusive": False, "cpus_per_task": 3, "gres": "gres/gpu:v100=1", "memory_mib": 100}
        numbers = [await slurm.submit(job(name, **shared), FIXED, ("a",)) for name in ("p", "q", "r")]
        assert slurm.step() == numbers[:2]
        shares = [(await slurm.resources(number))[0] for number in numbers[:2]]
        assert [(share.cores, share.gres[0].indices, share.memory_mib) for share in shares] == [
            ((0, 1, 2), (0,), 100),
            ((3, 4, 5), (1,), 100),
        ]
        assert {"MIXED", "EXTERNAL"} <= (await slurm.nodes())[0].states
        for number in numbers:
            await slurm.cancel(number)
        whole = await slurm.submit(job("s", cpus_per_task=1), FIXED, ("a",))
        assert slurm.step() == [whole]
        (share,) = await slurm.resources(whole)
        assert (len(share.cores), share.gres[0].count) == (8, 2)

    asyncio.run(run())


def test_the_fake_rejects_requests_that_slurm_rejects() -> None:
    async def run() -> None:
        slurm = FakeSlurm([external_node("a")])
        for wrong in (job("p", partition="none"), job("p", "q")):
            with pytest.raises(InvalidRequestError):
                await slurm.submit(wrong, FIXED, ("a",))
        number = await slurm.submit(job("p"), FIXED, ("a",))
        await slurm.update(number, job("p", name="renamed"), FIXED, ("a",))
        slurm.step()
        with pytest.raises(JobNotPendingError):
            await slurm.update(number, job("p"), FIXED, ("a",))
        with pytest.raises(NodeBusyError):
            await slurm.delete_node("a")
        with pytest.raises(NodeExistsError):
            await slurm.create_node("NodeName=a CPUs=1 RealMemory=1 State=External")
        with pytest.raises(SlurmError):
            await slurm.create_node("NodeName=b CPUs=1 RealMemory=1 State=External Gres=gpu:1")
        slurm.loses.append("submit")
        with pytest.raises(UnavailableError) as lost:
            await slurm.submit(job("q"), FIXED, ("a",))
        assert lost.value.sent
        assert len(slurm.of("ns/q")) == 1
        slurm.down = True
        with pytest.raises(UnavailableError) as down:
            await slurm.jobs()
        assert not down.value.sent

    asyncio.run(run())
