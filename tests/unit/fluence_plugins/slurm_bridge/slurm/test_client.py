"""The client against recorded answers of a real slurmrestd, and against invalid ones."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

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
from fluence_plugins.slurm_bridge.slurm.model import Gres, JobComment, JobDefaults, NodeShare
from fluence_plugins.slurm_bridge.slurm.placeholder import Placeholder, PodIdentity
from fluence_plugins.slurm_bridge.slurm.transport import ANSWER_BYTES
from session_scheduler.errors import InputError

from ..answering import DROP, EXCHANGES, HANG, TOKEN, Answering, Exchange, Waits, client, slurmrestd, without_api
from ..trusting import server_certificate

FIXED = JobDefaults(cluster="recorded")
NODES = ("k8s-0", "k8s-1")
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
LINE = (
    "NodeName=k8s-1 Sockets=1 CoresPerSocket=8 ThreadsPerCore=1 CPUs=8 RealMemory=32000 State=External "
    "Feature=slurm-bridge Gres=gpu:2 GresConf=count=2,name=gpu,file=gpu-0,file=gpu-1"
)
Call = Callable[[SlurmClient], Awaitable[Any]]


async def replayed(name: str, folder: Path, call: Call, **settings: Any) -> Any:
    """The call's result for the recorded answer. Checks that the request equals the recorded one."""
    exchange = Exchange.of(name)
    async with Answering([exchange.raw]) as server, client(server, folder, retries=0, **settings) as slurm:
        try:
            return await call(slurm)
        finally:
            asked = server.requests[0]
            assert (asked.method, without_api(asked.path), asked.json) == (
                exchange.method,
                exchange.path,
                exchange.request,
            )


# ------------------------------------------------------------------ recorded answers


async def test_a_submission_gives_the_number_of_the_job(tmp_path: Path) -> None:
    number = Exchange.of("submitted").answer["job_id"]
    assert await replayed("submitted", tmp_path, lambda slurm: slurm.submit(GANG, FIXED, NODES)) == number


async def test_a_job_with_a_warning_is_submitted(tmp_path: Path) -> None:
    job = replace(ONE, cpus_per_task=100)
    assert await replayed("submitted_with_warning", tmp_path, lambda slurm: slurm.submit(job, FIXED, NODES)) > 0


async def test_a_running_job_is_read(tmp_path: Path) -> None:
    number = Exchange.of("submitted").answer["job_id"]
    job = await replayed("job_running", tmp_path, lambda slurm: slurm.job(number))
    assert (job.job_id, job.name, job.nodes, job.partition) == (number, "gang", NODES, "slurm-bridge")
    assert (job.allocated, job.pending, job.ended, job.external, job.exclusive) == (True, False, False, True, False)
    assert job.comment == JobComment(GANG.pods, "recorded")
    assert (job.reason, job.description) == ("", "")
    assert job.gres_detail == ("gpu:1(IDX:0)", "gpu:1(IDX:0)")
    assert job.submitted <= job.start <= job.end


async def test_a_waiting_job_has_its_reason_and_expected_start(tmp_path: Path) -> None:
    number = Exchange.of("submitted_one").answer["job_id"]
    job = await replayed("job_pending", tmp_path, lambda slurm: slurm.job(number))
    assert (job.allocated, job.pending, job.ended, job.nodes) == (False, True, False, ())
    assert (job.reason, job.exclusive, job.time_limit_minutes) == ("Resources", True, 5)
    assert job.start > job.submitted


async def test_the_list_has_every_job_and_its_time(tmp_path: Path) -> None:
    jobs = await replayed("jobs", tmp_path, lambda slurm: slurm.jobs())
    assert [job.name for job in jobs.jobs] == ["gang", "one", "one"]
    assert jobs.changed
    assert jobs.last_update > 1_700_000_000
    assert jobs.unreadable == ()


async def test_without_a_change_the_list_is_empty_and_keeps_its_time(tmp_path: Path) -> None:
    """The client asks again for changes since the second of the previous list, so it misses no later change of that
    second.
    """
    asked = int(Exchange.of("jobs_unchanged").path.partition("=")[2])
    jobs = await replayed("jobs_unchanged", tmp_path, lambda slurm: slurm.jobs(asked + 1))
    assert (jobs.changed, jobs.jobs, jobs.last_update) == (False, (), asked + 1)


async def test_the_share_of_each_node_is_read(tmp_path: Path) -> None:
    number = Exchange.of("submitted").answer["job_id"]
    gpu = Gres("gpu", "", 1, (0,))
    expected = tuple(NodeShare(node, (0, 1), (gpu,), 1000) for node in NODES)
    assert await replayed("resources", tmp_path, lambda slurm: slurm.resources(number)) == expected
    got = await replayed("job_running", tmp_path, lambda slurm: slurm.resources(number), api_version="v0.0.43")
    assert got == expected


async def test_a_job_that_waits_has_no_share(tmp_path: Path) -> None:
    number = Exchange.of("submitted_one").answer["job_id"]
    assert await replayed("resources_pending", tmp_path, lambda slurm: slurm.resources(number)) == ()
    got = await replayed("job_pending", tmp_path, lambda slurm: slurm.resources(number), api_version="v0.0.43")
    assert got == ()


async def test_an_update_of_a_waiting_job_succeeds(tmp_path: Path) -> None:
    number = Exchange.of("submitted_one").answer["job_id"]
    await replayed("updated", tmp_path, lambda slurm: slurm.update(number, replace(ONE, cpus_per_task=2), FIXED, NODES))


async def test_a_job_that_has_started_ended_or_gone_is_not_updated(tmp_path: Path) -> None:
    gang, one = (Exchange.of(name).answer["job_id"] for name in ("submitted", "submitted_one"))
    smaller = replace(GANG, minimum_nodes=1)
    calls: dict[str, Call] = {
        "update_running": lambda slurm: slurm.update(gang, smaller, FIXED, NODES[:1]),
        "update_ended": lambda slurm: slurm.update(one, ONE, FIXED, NODES),
        "update_unknown": lambda slurm: slurm.update(999_999, ONE, FIXED, NODES),
    }
    for name, call in calls.items():
        with pytest.raises(JobNotPendingError):
            await replayed(name, tmp_path, call)


async def test_cancelling_a_missing_job_succeeds(tmp_path: Path) -> None:
    one = Exchange.of("submitted_one").answer["job_id"]
    await replayed("cancelled", tmp_path, lambda slurm: slurm.cancel(one))
    await replayed("cancel_unknown", tmp_path, lambda slurm: slurm.cancel(999_999))


async def test_an_unknown_job_is_none(tmp_path: Path) -> None:
    assert await replayed("job_unknown", tmp_path, lambda slurm: slurm.job(999_999)) is None


@pytest.mark.parametrize(
    ("name", "change", "number", "slurm_name"),
    [
        ("partition", {"partition": "nowhere"}, 2000, "ESLURM_INVALID_PARTITION_NAME"),
        ("node_configuration", {"memory_mib": 10**9}, 2014, "ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE"),
        ("feature", {"constraints": "no-such-feature"}, 2029, "ESLURM_INVALID_FEATURE"),
        ("reservation", {"reservation": "none-of-that-name"}, 2053, "ESLURM_RESERVATION_INVALID"),
        ("licence", {"licenses": "none:1"}, 2048, "ESLURM_INVALID_LICENSES"),
        ("tres", {"gres": "GPU:V100:2"}, 2115, "ESLURM_INVALID_TRES"),
        ("user", {"user_id": "nobody-of-that-name"}, 2166, "ESLURM_USER_ID_UNKNOWN"),
        ("group", {"group_id": "none-of-that-name"}, 2164, "ESLURM_GROUP_ID_UNKNOWN"),
    ],
)
async def test_an_impossible_request_raises_the_error_of_its_number(
    tmp_path: Path, name: str, change: dict[str, Any], number: int, slurm_name: str
) -> None:
    wrong = replace(ONE, **change)
    with pytest.raises(InvalidRequestError) as refused:
        await replayed(f"refused_{name}", tmp_path, lambda slurm: slurm.submit(wrong, FIXED, NODES))
    assert (refused.value.number, refused.value.name) == (number, slurm_name)
    assert refused.value.text in str(refused.value)


async def test_an_unknown_candidate_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UnknownNodeError):
        await replayed("refused_node", tmp_path, lambda slurm: slurm.submit(ONE, FIXED, ["k8s-63"]))


async def test_nodes_are_read(tmp_path: Path) -> None:
    first, second = await replayed("nodes", tmp_path, lambda slurm: slurm.nodes())
    assert (first.name, first.cpus, first.memory_mib, first.gres) == ("k8s-0", 8, 32_000, "gpu:2")
    assert (first.allocated_cpus, first.allocated_memory_mib, first.gres_used) == (2, 1000, "gpu:1")
    assert (first.external, first.drained, first.reason) == (True, False, "")
    assert (second.features, second.partitions) == (("slurm-bridge",), ("slurm-bridge",))


async def drained(slurm: SlurmClient, name: str) -> None:
    await slurm.update_node(name, state="DRAIN", reason="for the record")


async def test_nodes_are_created_updated_and_deleted(tmp_path: Path) -> None:
    await replayed("node_created", tmp_path, lambda slurm: slurm.create_node(LINE))
    await replayed("node_drained", tmp_path, lambda slurm: drained(slurm, "k8s-1"))
    await replayed("node_unknown_deleted", tmp_path, lambda slurm: slurm.delete_node("k8s-63"))
    for name, kind, call in (
        ("node_exists", NodeExistsError, lambda slurm: slurm.create_node(LINE)),
        ("node_nonsense", SlurmError, lambda slurm: slurm.create_node("Nonsense")),
        ("node_busy", NodeBusyError, lambda slurm: slurm.delete_node("k8s-0")),
        (
            "node_unknown",
            UnknownNodeError,
            lambda slurm: slurm.update_node("k8s-63", state="DRAIN", reason="for the record"),
        ),
    ):
        with pytest.raises(kind):
            await replayed(name, tmp_path, call)


async def test_partitions_are_read_and_a_ping_is_answered(tmp_path: Path) -> None:
    assert await replayed("partitions", tmp_path, lambda slurm: slurm.partitions()) == ("slurm-bridge",)
    await replayed("ping", tmp_path, lambda slurm: slurm.ping())


async def test_an_expired_token_is_reported_with_its_file(tmp_path: Path) -> None:
    with pytest.raises(TokenError) as refused:
        await replayed("token_expired", tmp_path, lambda slurm: slurm.jobs())
    assert str(tmp_path / "token") in str(refused.value)


async def test_a_ping_distinguishes_a_rejected_token_from_an_unavailable_slurmctld(tmp_path: Path) -> None:
    down = Exchange.of("ping_token_expired").raw
    async with Answering([down, Exchange.of("token_expired").raw]) as server, client(server, tmp_path) as slurm:
        with pytest.raises(TokenError):
            await slurm.ping()
    lost = [Exchange.of("controller_down_ping").raw, Exchange.of("controller_down").raw]
    async with Answering(lost) as server, client(server, tmp_path) as slurm:
        with pytest.raises(UnavailableError, match="slurmctld does not respond"):
            await slurm.ping()


async def test_a_cancellation_without_permission_counts_as_an_unavailable_slurmctld(tmp_path: Path) -> None:
    """slurmrestd answers so if it cannot reach slurmctld; it answers the same for a token without permissions."""
    said = {"errors": [{"error_number": 1, "error": "Operation not permitted", "description": "Signal request failed"}]}
    refused = slurmrestd(403, json.dumps(said).encode())
    answers = [refused, Exchange.of("controller_down_ping").raw, Exchange.of("controller_down").raw]
    async with Answering(answers) as server, client(server, tmp_path) as slurm:
        with pytest.raises(UnavailableError):
            await slurm.cancel(1)
    async with Answering([refused, Exchange.of("ping").raw]) as server, client(server, tmp_path) as slurm:
        with pytest.raises(TokenError, match="not permitted"):
            await slurm.cancel(1)


async def test_without_slurmctld_a_submission_was_certainly_not_executed(tmp_path: Path) -> None:
    waits = Waits()
    exchange = Exchange.of("controller_down_submit")
    answers = [exchange.raw, exchange.raw, Exchange.of("submitted_one").raw]
    async with Answering(answers) as server, client(server, tmp_path, waits) as slurm:
        assert await slurm.submit(ONE, FIXED, NODES) > 0
    assert waits.seconds == [0.1, 0.2]
    with pytest.raises(UnavailableError) as failed:
        await replayed("controller_down_submit", tmp_path, lambda slurm: slurm.submit(ONE, FIXED, NODES))
    assert not failed.value.sent


async def test_an_unsupported_version_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"does not serve this path in v0\.0\.42"):
        await replayed("version_unknown", tmp_path, lambda slurm: slurm.jobs(), api_version="v0.0.42")


async def test_nothing_is_submitted_in_a_version_without_external_jobs(tmp_path: Path) -> None:
    async with Answering([DROP]) as server, client(server, tmp_path, api_version="v0.0.42") as slurm:
        with pytest.raises(InvalidRequestError, match="no external jobs"):
            await slurm.submit(ONE, FIXED, NODES)
        assert server.requests == []


def test_every_recorded_exchange_is_used() -> None:
    text = Path(__file__).read_text() + (Path(__file__).parent / "test_messages.py").read_text()
    names = {path.stem.removeprefix("refused_") for path in EXCHANGES.glob("*.json")}
    assert {name for name in names if f'"{name}"' not in text and f'"refused_{name}"' not in text} == set()


# ------------------------------------------------------------------ requests


async def test_the_token_is_read_for_every_request_and_sent_with_the_user(tmp_path: Path) -> None:
    exchange = Exchange.of("jobs")
    async with Answering([exchange.raw]) as server, client(server, tmp_path, user="bridge") as slurm:
        await slurm.jobs()
        (tmp_path / "token").write_text("SLURM_JWT=another.token\n")
        await slurm.jobs()
    first, second = (request.headers for request in server.requests)
    assert (first["x-slurm-user-token"], first["x-slurm-user-name"]) == (TOKEN, "bridge")
    assert second["x-slurm-user-token"] == "another.token"
    assert {request.path for request in server.requests} == {"/slurm/v0.0.44/jobs/"}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "cannot be read: No such file"),
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"SLURM_JWT=", "is empty"),
        (b"two words", "the file does not contain a valid token"),
        (b"a\r\nX-Header: b", "the file does not contain a valid token"),
        (b"\xff\xfe", "the file does not contain a valid token"),
        (b"x" * 70_000, "the file does not contain a valid token"),
    ],
)
async def test_an_invalid_token_file_is_reported_and_no_request_sent(
    tmp_path: Path, content: bytes | None, what: str
) -> None:
    async with Answering([DROP]) as server:
        slurm = client(server, tmp_path)
        token = tmp_path / "token"
        token.unlink() if content is None else token.write_bytes(content)
        async with slurm:
            with pytest.raises(TokenError, match=what) as refused:
                await slurm.jobs()
    assert str(token) in str(refused.value)
    assert "X-Header" not in str(refused.value)
    assert server.requests == []


@pytest.mark.parametrize("name", ["a/../b", "a?b", "a#b", "ä b"])
async def test_a_nodes_name_is_one_part_of_the_path(tmp_path: Path, name: str) -> None:
    async with Answering([Exchange.of("node_drained").raw]) as server, client(server, tmp_path) as slurm:
        await slurm.delete_node(name)
    path = server.requests[0].path.removeprefix("/slurm/v0.0.44/node/")
    assert not set(path) & set("/?# ")


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "slurm:6820"},
        {"url": "ftp://slurm"},
        {"url": "https://"},
        {"url": "https://user:secret@slurm"},
        {"url": "https://slurm?x=1"},
        {"user": "a\r\nb"},
        {"timeout_seconds": 0.0},
        {"api_version": "v0.0.41"},
        {"retries": -1},
    ],
)
def test_invalid_connection_settings_are_rejected(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        Connection.model_validate({"url": "https://slurm:6820", "token_file": "t", **settings})
    assert "secret" not in str(refused.value.errors(include_input=False))


# ------------------------------------------------------------------ invalid answers

HTML = b"<html><body>502 Bad Gateway</body></html>"
LIES: dict[str, bytes] = {
    "html": slurmrestd(200, HTML),
    "truncated json": slurmrestd(200, b'{"jobs": [{"job_id": 1, "job_st'),
    "a list": slurmrestd(200, b"[]"),
    "wrong type": slurmrestd(200, b'{"jobs": 7}'),
    "wrong errors": slurmrestd(200, b'{"jobs": [], "errors": [3]}'),
    "nothing": slurmrestd(200, b""),
    "an empty object": slurmrestd(200, b"{}"),
    "no list": slurmrestd(200, b'{"errors": [], "jobs": null, "status": null}'),
    "a list without its time": slurmrestd(200, b'{"errors": [], "jobs": []}'),
    "no utf-8": slurmrestd(200, b'{"jobs": "\xff\xfe"}'),
    "deep": slurmrestd(200, b'{"jobs": ' + b"[" * 100_000),
    "a gigabyte": b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n{",
    "no length": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{",
    "cut off": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
    "no http": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "a redirect": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    "compressed": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00",
    "500": slurmrestd(500, HTML),
    "503 without errors": slurmrestd(503, b"{}"),
    "404 of something else": slurmrestd(404, HTML),
    "418 without errors": slurmrestd(418, b'{"errors": []}'),
    "a lost connection": DROP,
}


@pytest.mark.parametrize("lie", LIES)
async def test_an_answer_that_slurmrestd_would_not_give_is_an_error(tmp_path: Path, lie: str) -> None:
    async with Answering([LIES[lie]]) as server, client(server, tmp_path, retries=0) as slurm:
        calls: list[Awaitable[Any]] = [slurm.jobs(), slurm.job(1), slurm.submit(ONE, FIXED, NODES), slurm.cancel(1)]
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, UnavailableError)
            assert "\n" not in str(error)
            assert len(str(error)) < 600
            assert TOKEN not in repr(error)


async def test_an_answer_is_read_up_to_its_limit(tmp_path: Path) -> None:
    body = b'{"job_id": 7, "filler": "' + b"x" * ANSWER_BYTES + b'"}'
    for answer in (slurmrestd(200, body), b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body):
        async with Answering([answer]) as server, client(server, tmp_path, retries=0) as slurm:
            with pytest.raises(UnavailableError, match=f"longer than {ANSWER_BYTES} bytes"):
                await slurm.submit(ONE, FIXED, NODES)


async def test_an_answer_in_chunks_is_read(tmp_path: Path) -> None:
    """A proxy before slurmrestd can send such an answer."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = head + b'5\r\n{"job\r\n16\r\n_id": 7, "errors": []}\r\n0\r\n\r\n'
    async with Answering([chunks]) as server, client(server, tmp_path, retries=0) as slurm:
        assert await slurm.submit(ONE, FIXED, NODES) == 7


async def test_a_call_that_is_not_answered_ends_in_time(tmp_path: Path) -> None:
    async with Answering([HANG]) as server, client(server, tmp_path, timeout_seconds=0.5) as slurm:
        for call in (slurm.jobs, lambda: slurm.submit(ONE, FIXED, NODES), lambda: slurm.cancel(1)):
            with pytest.raises(UnavailableError, match=r"no response in 0\.5 s") as failed:
                await call()
            assert failed.value.sent


async def test_waiting_between_attempts_is_part_of_the_time(tmp_path: Path) -> None:
    async def for_ever(_: float) -> None:
        await asyncio.Event().wait()

    async with Answering([DROP]) as server:
        settings = client(server, tmp_path, timeout_seconds=0.02)._settings
        async with SlurmClient(settings, sleep=for_ever) as slurm:
            with pytest.raises(UnavailableError, match=r"no response in 0\.02 s"):
                await slurm.jobs()


async def test_a_post_whose_answer_was_lost_is_not_sent_again(tmp_path: Path) -> None:
    for lost in (DROP, LIES["cut off"], LIES["500"]):
        async with Answering([lost]) as server, client(server, tmp_path) as slurm:
            with pytest.raises(UnavailableError, match="may have executed the request") as failed:
                await slurm.submit(ONE, FIXED, NODES)
        assert failed.value.sent
        assert len(server.requests) == 1


async def test_reads_and_deletes_are_retried_with_backoff(tmp_path: Path) -> None:
    waits = Waits()
    answers = [LIES["cut off"], LIES["500"], LIES["503 without errors"], Exchange.of("jobs").raw]
    async with Answering(answers) as server, client(server, tmp_path, waits) as slurm:
        assert (await slurm.jobs()).jobs
    assert waits.seconds == [0.1, 0.2, 0.4]
    waits = Waits()
    async with Answering([LIES["cut off"]]) as server, client(server, tmp_path, waits, retries=8) as slurm:
        with pytest.raises(UnavailableError):
            await slurm.cancel(1)
    assert waits.seconds == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert len(server.requests) == 9


async def test_any_request_that_was_not_sent_is_retried(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    waits = Waits()
    async with client(url, tmp_path, waits, retries=2) as slurm:
        with pytest.raises(UnavailableError, match="cannot connect to slurmrestd") as failed:
            await slurm.submit(ONE, FIXED, NODES)
    assert not failed.value.sent
    assert len(waits.seconds) == 2


async def test_an_answer_with_an_error_number_is_not_retried(tmp_path: Path) -> None:
    async with Answering([Exchange.of("job_unknown").raw]) as server, client(server, tmp_path) as slurm:
        assert await slurm.job(999_999) is None
    assert len(server.requests) == 1


async def test_a_job_that_differs_from_the_request_is_cancelled_and_reported(tmp_path: Path) -> None:
    """slurmrestd creates a job even if it did not understand one of the fields."""
    said = {"job_id": 84, "errors": [{"error_number": 9207, "error": "Unknown flag"}]}
    answers = [slurmrestd(500, json.dumps(said).encode()), Exchange.of("cancelled").raw]
    async with Answering(answers) as server, client(server, tmp_path) as slurm:
        with pytest.raises(InvalidRequestError, match="9207"):
            await slurm.submit(ONE, FIXED, NODES)
    assert [(asked.method, without_api(asked.path)) for asked in server.requests][1:] == [("DELETE", "job/84")]


async def test_an_answer_without_a_job_is_an_error(tmp_path: Path) -> None:
    said = {"errors": [], "warnings": [{"description": "Expected an integer"}]}
    async with Answering([slurmrestd(200, json.dumps(said).encode())]) as server, client(server, tmp_path) as slurm:
        with pytest.raises(InvalidRequestError, match="Expected an integer"):
            await slurm.submit(ONE, FIXED, NODES)


async def test_an_update_that_failed_in_its_results_has_failed(tmp_path: Path) -> None:
    said = {"results": [{"error_code": 2073, "why": "Job is no longer pending execution"}], "errors": []}
    async with Answering([slurmrestd(200, json.dumps(said).encode())]) as server, client(server, tmp_path) as slurm:
        with pytest.raises(JobNotPendingError):
            await slurm.update(1, ONE, FIXED, NODES)


async def test_logs_and_errors_do_not_contain_the_token(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    errors = []
    for answer in (*LIES.values(), Exchange.of("token_expired").raw, Exchange.of("submitted_with_warning").raw):
        async with Answering([answer]) as server, client(server, tmp_path, retries=1) as slurm:
            for error in await asyncio.gather(slurm.jobs(), slurm.submit(ONE, FIXED, ()), return_exceptions=True):
                errors += [repr(error), repr(error.__cause__ if isinstance(error, BaseException) else "")]
    written = capfd.readouterr()
    assert TOKEN not in "".join((written.out, written.err, caplog.text, *errors))


# ------------------------------------------------------------------ TLS


async def test_a_server_with_another_signer_or_name_is_rejected(tmp_path: Path) -> None:
    trusted = server_certificate(tmp_path, "localhost")
    async with Answering([Exchange.of("ping").raw], tls=trusted.context) as server:
        async with client(server, tmp_path, ca_file=str(trusted.ca_file)) as slurm:
            await slurm.ping()
        async with client(server, tmp_path, retries=0) as slurm:
            with pytest.raises(UnavailableError, match="not trusted") as failed:
                await slurm.ping()
            assert not failed.value.sent
        by_number = server.url.replace("localhost", "127.0.0.1")
        async with client(by_number, tmp_path, retries=0, ca_file=str(trusted.ca_file)) as slurm:
            with pytest.raises(UnavailableError, match="not trusted"):
                await slurm.ping()
        assert len(server.requests) == 1


async def test_an_invalid_ca_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("no certificate")
    for name in ("ca", "missing"):
        slurm = client("https://localhost:1", tmp_path, ca_file=str(tmp_path / name))
        with pytest.raises(InputError, match="caFile"):
            await slurm.__aenter__()
