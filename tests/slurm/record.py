"""Records what a real Slurm answers, for the unit tests: `python -m tests.slurm.record`, as root.

Requests are those of the client itself. Of an answer only `meta` is left away, and of a list all but three.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from fluence_plugins.slurm_bridge.slurm.client import Connection, SlurmClient
from fluence_plugins.slurm_bridge.slurm.messages import PingAnswer
from fluence_plugins.slurm_bridge.slurm.model import Job, JobDefaults
from fluence_plugins.slurm_bridge.slurm.placeholder import Placeholder, PodIdentity
from fluence_plugins.slurm_bridge.slurm.transport import Answer
from session_scheduler.errors import FluenceError

from .peer import SlurmPeer
from .programs import ROOT

FOLDER = ROOT / "tests" / "unit" / "fluence_plugins" / "slurm_bridge" / "exchanges"
NODES = ("k8s-0", "k8s-1")
FIXED = JobDefaults(cluster="recorded")
Version = Literal["v0.0.42", "v0.0.43", "v0.0.44"]
GANG = Placeholder(
    name="gang",
    pods=(PodIdentity("default", "gang-0", "uid-0"), PodIdentity("default", "gang-1", "uid-1")),
    minimum_nodes=2,
    maximum_nodes=2,
    cpus_per_task=2,
    memory_mib=1000,
    gres="gres/gpu=1",
    exclusive=False,
)
ONE = Placeholder(
    name="one", pods=(PodIdentity("default", "one", "uid-2"),), minimum_nodes=1, maximum_nodes=1, time_limit_minutes=5
)
WRONG = {
    "partition": replace(ONE, partition="nowhere"),
    "node_configuration": replace(ONE, memory_mib=10**9),
    "feature": replace(ONE, constraints="no-such-feature"),
    "reservation": replace(ONE, reservation="none-of-that-name"),
    "licence": replace(ONE, licenses="none:1"),
    "tres": replace(ONE, gres="GPU:V100:2"),
    "user": replace(ONE, user_id="nobody-of-that-name"),
    "group": replace(ONE, group_id="none-of-that-name"),
}
"""Submissions that Slurm refuses, by what is wrong."""


class Recorder:
    """Names the next exchange of the client and writes it."""

    def __init__(self, client: SlurmClient) -> None:
        self.client = client
        self._seen: list[dict[str, Any]] = []
        self._exchange = client._transport.exchange
        client._transport.exchange = self._noted  # type: ignore[method-assign]

    async def _noted(self, method: Any, path: str, body: bytes | None, *rest: Any, **limits: Any) -> Answer:
        answer = await self._exchange(method, path, body, *rest, **limits)
        request = None if body is None else json.loads(body)
        seen = {"method": method, "path": path, "request": request, "status": answer.status}
        self._seen.append({**seen, "answer": _trimmed(answer.body)})
        return answer

    async def recorded(self, name: str, call: Awaitable[Any]) -> Any:
        """The call's result; the last exchange that it needed is in the file. An error that is expected is none."""
        result = None
        with suppress(FluenceError):
            result = await call
        (FOLDER / f"{name}.json").write_text(json.dumps(self._seen[-1], indent=1) + "\n")
        return result


def _trimmed(body: bytes) -> Any:
    try:
        answer = json.loads(body)
    except ValueError:
        return body.decode()
    answer.pop("meta", None)
    return {key: value[:3] if isinstance(value, list) else value for key, value in answer.items()}


@asynccontextmanager
async def recorder(peer: SlurmPeer, *, version: Version = "v0.0.44", **settings: Any) -> AsyncIterator[Recorder]:
    """A client that is recorded."""
    connection = Connection(url=peer.url, token_file=str(peer.token_file), api_version=version, retries=0, **settings)
    async with SlurmClient(connection) as client:
        yield Recorder(client)


async def until(look: Callable[[], Awaitable[Job | None]], right: Callable[[Job], bool]) -> Job:
    """The job, once it is right."""
    async with asyncio.timeout(30):
        while True:
            job = await look()
            if job is not None and right(job):
                return job
            await asyncio.sleep(0.1)


async def record(peer: SlurmPeer) -> None:
    """Everything that the unit tests are served."""
    async with recorder(peer) as to:
        slurm = to.client
        await to.recorded("ping", slurm.ping())
        await to.recorded("partitions", slurm.partitions())
        peer.add_nodes(NODES[0])
        await to.recorded("node_created", slurm.create_node(_line(NODES[1])))
        await to.recorded("node_exists", slurm.create_node(_line(NODES[1])))
        await to.recorded("node_nonsense", slurm.create_node("Nonsense"))
        gang = await to.recorded("submitted", slurm.submit(GANG, FIXED, NODES))
        await until(lambda: slurm.job(gang), lambda job: job.allocated)
        await to.recorded("job_running", slurm.job(gang))
        await to.recorded("resources", slurm.resources(gang))
        await to.recorded("update_running", slurm.update(gang, replace(GANG, minimum_nodes=1), FIXED, NODES[:1]))
        await to.recorded("node_busy", slurm.delete_node(NODES[0]))
        one = await to.recorded("submitted_one", slurm.submit(ONE, FIXED, NODES))
        waiting = await until(lambda: slurm.job(one), lambda job: job.reason != "" and job.start is not None)
        await to.recorded("job_pending", slurm.job(waiting.job_id))
        await to.recorded("resources_pending", slurm.resources(one))
        await to.recorded("updated", slurm.update(one, replace(ONE, cpus_per_task=2), FIXED, NODES))
        await to.recorded("submitted_with_warning", slurm.submit(replace(ONE, cpus_per_task=100), FIXED, NODES))
        jobs = await to.recorded("jobs", slurm.jobs())
        await to.recorded("jobs_unchanged", slurm.jobs(jobs.last_update + 1000))
        for what, wrong in WRONG.items():
            await to.recorded(f"refused_{what}", slurm.submit(wrong, FIXED, NODES))
        await to.recorded("refused_node", slurm.submit(ONE, FIXED, ["k8s-63"]))
        await to.recorded("nodes", slurm.nodes())
        await to.recorded("cancelled", slurm.cancel(one))
        await to.recorded("cancel_unknown", slurm.cancel(999_999))
        await to.recorded("job_unknown", slurm.job(999_999))
        await to.recorded("update_unknown", slurm.update(999_999, ONE, FIXED, NODES))
        await to.recorded("update_ended", slurm.update(one, ONE, FIXED, NODES))
        await to.recorded("node_drained", slurm.update_node(NODES[1], state="DRAIN", reason="for the record"))
        await to.recorded("node_unknown", slurm.update_node("k8s-63", state="DRAIN", reason="for the record"))
        await to.recorded("node_unknown_deleted", slurm.delete_node("k8s-63"))
        peer.write_token(lifespan=-10)
        await to.recorded("token_expired", slurm.jobs())
        await to.recorded("ping_token_expired", slurm._call("GET", "ping/", PingAnswer))
        peer.write_token()
        with peer.without_controller():
            await to.recorded("controller_down", slurm.jobs())
            await to.recorded("controller_down_submit", slurm.submit(ONE, FIXED, NODES))
            await to.recorded("controller_down_ping", slurm._call("GET", "ping/", PingAnswer))


async def record_version(peer: SlurmPeer) -> None:
    """What a server says that does not speak a version."""
    async with recorder(peer, version="v0.0.42") as to:
        await to.recorded("version_unknown", to.client.jobs())


def _line(name: str) -> str:
    return (
        f"NodeName={name} Sockets=1 CoresPerSocket=8 ThreadsPerCore=1 CPUs=8 RealMemory=32000 State=External "
        "Feature=slurm-bridge Gres=gpu:2 GresConf=count=2,name=gpu,file=gpu-0,file=gpu-1"
    )


def main() -> None:
    """Start a Slurm, and write all files again."""
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.json"):
        old.unlink()
    with tempfile.TemporaryDirectory() as scratch:
        with SlurmPeer(Path(scratch) / "all") as peer:
            asyncio.run(record(peer))
        with SlurmPeer(Path(scratch) / "one", versions=["v0.0.44"]) as peer:
            asyncio.run(record_version(peer))


if __name__ == "__main__":
    main()
