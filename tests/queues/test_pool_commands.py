"""`fluence pool publish` and `fluence pool list` against a real nats-server, API server and Kueue."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from fluence_plugins.master_queue.nats.client import close_connection, open_connection
from fluence_plugins.master_queue.nats.settings import ConnectorSettings
from session_scheduler.config.parsing import validated

from ..controlplane.harness import ADMIN
from ..controlplane.processes import Program
from .controller_process import ControllerProcess, ControllerSettings
from .nats_peer import Auth, NatsServer
from .plane import MASTER_QUEUES, WORKLOADS, QueuesPlane
from .samples import JOB, LOCAL_QUEUE, master_queue, read

SUBJECT = "interlink.resources"
POOL = "podman-firenze"
SECONDS = 60.0
FLUENCE = (sys.executable, "-m", "session_scheduler.cli")
PUBLISH = (*FLUENCE, "pool", "publish", "--pool", POOL, "--subject", SUBJECT)


def said(*words: str | Path) -> str:
    """What a command prints, which must succeed."""
    ended = run(*words)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=SECONDS, check=False)


def listed(plane: QueuesPlane) -> dict[str, Any]:
    """The one MasterQueue of the report."""
    text = said(*FLUENCE, "pool", "list", "--kubeconfig", plane.kubeconfig(ADMIN), "-o", "json")
    (found,) = json.loads(text)["masterQueues"]
    return dict(found)


@contextmanager
def publishing(folder: Path, nats: NatsServer, *words: str | Path) -> Iterator[Program]:
    """A pool that publishes each second, until SIGTERM; it must end with 0."""
    command = [*PUBLISH, "--server", nats.url, "--every", "1", "--log-format", "json", *words]
    program = Program("fluence pool publish", command, folder / "publish.log")
    try:
        yield program
        assert program.status is None, program.log.read_text()
        program.stop()
        assert program.status == 0, program.log.read_text()
    finally:
        program.kill()


@contextmanager
def controller(plane: QueuesPlane, folder: Path) -> Iterator[None]:
    with ControllerProcess(
        folder, plane, ControllerSettings(controller={"statusSeconds": 1}, election=False)
    ) as process:
        process.start()
        process.wait_ready()
        yield
        assert process.terminate().status == 0


@asynccontextmanager
async def heard(settings: ConnectorSettings) -> AsyncIterator[asyncio.Queue[tuple[str, dict[str, Any]]]]:
    """Subjects and messages that a subscriber receives."""
    messages: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()

    async def take(message: Any) -> None:
        messages.put_nowait((message.subject, json.loads(message.data)))

    client = await open_connection(settings, closed=print, error=print, name="test")
    try:
        await client.subscribe(f"{SUBJECT}.*", cb=take)
        await client.confirm(SECONDS)
        yield messages
    finally:
        await close_connection(client)


def connector(nats: NatsServer, **more: Any) -> ConnectorSettings:
    return validated(ConnectorSettings, {"servers": [nats.url], **more}, "test")


async def sent_once(settings: ConnectorSettings, *words: str | Path) -> tuple[str, dict[str, Any]]:
    """What is heard of one message."""
    async with heard(settings) as messages:
        await asyncio.to_thread(said, *PUBLISH, "--once", *words)
        return await asyncio.wait_for(messages.get(), SECONDS)


# ---------------------------------------------------------------------- publishing


async def test_what_is_published_is_the_message_of_the_format(nats: NatsServer) -> None:
    words = ("--quota", "cpu=8", "--quota", "memory=32Gi", "--label", "k=v", "--taint", "t=v:NoSchedule")
    subject, message = await sent_once(connector(nats), "--server", nats.url, *words)
    assert subject == f"{SUBJECT}.{POOL}"
    assert message == {"quotas": {"cpu": "8", "memory": "32Gi"}, "labels": ["k=v"], "taints": ["t=v:NoSchedule"]}


@pytest.mark.parametrize("nats", [Auth.PASSWORD, Auth.TOKEN, Auth.NKEY], indirect=True)
async def test_files_say_who_publishes(nats: NatsServer, tmp_path: Path) -> None:
    for name, text in (("user", nats.user), ("password", nats.password), ("token", nats.token), ("seed", nats.seed)):
        (tmp_path / name).write_text(text)
    ways = {
        Auth.PASSWORD: ("--user-file", tmp_path / "user", "--password-file", tmp_path / "password"),
        Auth.TOKEN: ("--token-file", tmp_path / "token"),
        Auth.NKEY: ("--nkey", tmp_path / "seed"),
    }
    listens = {"nkeySeedFile": str(tmp_path / "seed")} if nats.auth is Auth.NKEY else {}
    words = ("--server", nats.bare_url, *ways[nats.auth], "--quota", "pods=1")
    _, message = await sent_once(connector(nats, **listens), *words)
    assert message["quotas"] == {"pods": "1"}
    ended = await asyncio.to_thread(run, *PUBLISH, "--once", "--server", nats.bare_url, "--quota", "pods=1")
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"fluence: nothing was published: nats://127.0.0.1:{nats.port}: ")
    assert "credentials" in line


async def test_a_server_with_tls_is_verified(tls_nats: NatsServer) -> None:
    ca = tls_nats.ca_file
    assert ca is not None
    words = ("--server", tls_nats.url, "--quota", "pods=1")
    _, message = await sent_once(connector(tls_nats, tls={"caFile": str(ca)}), *words, "--tls-ca", ca)
    assert message["quotas"] == {"pods": "1"}
    ended = await asyncio.to_thread(run, *PUBLISH, "--once", *words)
    assert ended.returncode == 1
    assert "the server's certificate is not trusted" in ended.stderr
    assert tls_nats.password not in ended.stderr


async def logged(program: Program, text: str) -> None:
    """Return once its log has the text."""
    await asyncio.to_thread(program.wait_until, lambda: text in program.log.read_text(), SECONDS)


async def test_it_goes_on_where_the_server_was_away(nats: NatsServer, tmp_path: Path) -> None:
    with publishing(tmp_path, nats, "--quota", "pods=1") as program:
        async with heard(connector(nats)) as messages:
            await asyncio.wait_for(messages.get(), SECONDS)
            await logged(program, "publishes to")  # after the server has the message
        with nats.away():
            await asyncio.to_thread(
                program.wait_until, lambda: "publishing stops until this is fixed" in program.log.read_text(), SECONDS
            )
        async with heard(connector(nats)) as messages:
            await asyncio.wait_for(messages.get(), SECONDS)
            await logged(program, " again")
    events = [json.loads(line)["event"] for line in program.log.read_text().splitlines()]
    assert events[0] == f"[pool] NATS: publishes to {SUBJECT}.{POOL}"
    assert events[-1] == f"[pool] NATS: publishes to {SUBJECT}.{POOL} again"
    assert nats.password not in program.log.read_text()


# ---------------------------------------------------------------------- from a cluster


def pod(plane: QueuesPlane, namespace: str, name: str, node: str, cpu: str) -> None:
    container = {"name": "c", "image": "example.com/none", "resources": {"requests": {"cpu": cpu}}}
    plane.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
                  "spec": {"nodeName": node, "containers": [container]}})  # fmt: skip


def test_a_cluster_gives_what_its_nodes_have_less_what_others_pods_request(plane: QueuesPlane) -> None:
    plane.new_node("site-1", cpu="8", memory="32Gi")
    label = {"metadata": {"labels": {"site": "a"}}}
    assert plane.request("PATCH", "/api/v1/nodes/site-1", label)[0] == HTTPStatus.OK
    plane.new_node("site-2", cpu="64")
    own, others = plane.new_namespace(), plane.new_namespace()
    pod(plane, others, "busy", "site-1", "1500m")
    pod(plane, own, "offloaded", "site-1", "2")
    dry = (*PUBLISH, "--dry-run", "--from-kubeconfig", plane.kubeconfig(ADMIN), "--selector", "site=a")
    quotas = json.loads(said(*dry, "--for", own))["quotas"]
    assert (quotas["cpu"], quotas["memory"]) == ("6500m", "32Gi")
    quotas = json.loads(said(*dry, "--quota", "cpu=2", "--quota", "memory=64Gi"))["quotas"]
    assert (quotas["cpu"], quotas["memory"]) == ("2", "32Gi")
    ended = run(*dry[:-1], "a b")
    assert ended.returncode == 2
    assert ended.stderr.startswith("fluence: --selector: 'a b' is not a valid label selector")
    assert len(ended.stderr.splitlines()) == 1


# ---------------------------------------------------------------------- both together


def test_a_pool_that_publishes_is_listed_with_what_jobs_have_of_it(
    kueue_plane: QueuesPlane, nats: NatsServer, tmp_path: Path
) -> None:
    kueue_plane.create(master_queue(nats.url))
    kueue_plane.add(read(LOCAL_QUEUE))
    words = ("--quota", "pods=10", "--quota", "cpu=8", "--quota", "memory=32Gi")
    with controller(kueue_plane, tmp_path), publishing(tmp_path, nats, *words):
        kueue_plane.until(MASTER_QUEUES, lambda found: _active(found["masterqueue"]) == 1)
        kueue_plane.add(read(JOB))
        kueue_plane.until(WORKLOADS, lambda found: [_admitted(one) for one in found.values()] == [True])
        kueue_plane.until_counted("group1", "admittedWorkloads", 1)
        found = listed(kueue_plane)
        table = said(*FLUENCE, "pool", "list", "--kubeconfig", kueue_plane.kubeconfig(ADMIN))
    (one,) = found["pools"]
    assert (one["flavor"], one["pool"], one["state"]) == ("interlink", POOL, "Active")
    assert one["resources"]["pods"] == {"quota": "10", "used": "1", "lent": "1"}
    assert one["resources"]["cpu"]["quota"] == "8"
    assert one["published"] == {"cpu": "8", "memory": "32Gi", "pods": "10"}
    assert 0 <= one["ageSeconds"] < SECONDS
    queues = {each["name"]: each for each in found["queues"]}
    assert list(queues) == ["masterqueue", "group1"]
    assert (queues["group1"]["admittedWorkloads"], queues["group1"]["cohort"]) == (1, "masterqueue")
    assert (found["ready"], found["natsConnected"]) == (True, True)
    rows = [line.split() for line in table.splitlines()]
    assert rows[1][:4] == ["masterqueue", "interlink", POOL, "Active"]
    assert ["pods", "10", "1", "1"] in [row[5:] for row in rows]


def _active(master: dict[str, Any]) -> int | None:
    found: int | None = master.get("status", {}).get("activePools")
    return found


def _admitted(workload: dict[str, Any]) -> bool:
    return any(
        (one["type"], one["status"]) == ("Admitted", "True") for one in workload.get("status", {}).get("conditions", ())
    )


def test_without_a_controller_the_list_says_so(plane: QueuesPlane, nats: NatsServer) -> None:
    plane.create(master_queue(nats.url))
    table = said(*FLUENCE, "pool", "list", "--kubeconfig", plane.kubeconfig(ADMIN))
    assert "masterqueue: no controller reconciles it; start `fluence master-queue`" in table
    assert nats.password not in table
