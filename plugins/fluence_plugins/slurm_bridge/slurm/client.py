"""The client of Slurm's REST API: calls in, typed values and errors out.

A call ends within its timeout, including its retries. If Slurm is unreachable or fails, the client retries reads and
deletions. It retries other writes only if Slurm cannot have executed them; otherwise the caller must check the outcome.

Tested with slurmctld and slurmrestd 26.05 in v0.0.44 and v0.0.43, and in v0.0.42 as far as it goes (tests/slurm).
Before v0.0.44 the API creates no nodes. v0.0.42 has no external jobs, so the client cannot submit jobs in it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, Self, TypeVar
from urllib.parse import quote

import msgspec
import structlog

from fluence_plugins.slurm_bridge.slurm import errors, messages
from fluence_plugins.slurm_bridge.slurm.errors import (
    DECODE_ERRORS,
    InvalidRequestError,
    SlurmError,
    TokenError,
    UnavailableError,
)
from fluence_plugins.slurm_bridge.slurm.model import Job, JobDefaults, JobList, NodeShare, SlurmNode, Unreadable
from fluence_plugins.slurm_bridge.slurm.node_shares import shares_of, shares_of_job
from fluence_plugins.slurm_bridge.slurm.placeholder import Placeholder
from fluence_plugins.slurm_bridge.slurm.transport import (
    ANSWER_BYTES,
    LIST_BYTES,
    Answer,
    Connection,
    Method,
    Sent,
    Transport,
)

__all__ = ["Connection", "SlurmClient"]

_log = structlog.get_logger(__name__)
_Answer = TypeVar("_Answer", bound=messages.Envelope)
_Item = TypeVar("_Item")
Sleep = Callable[[float], Awaitable[None]]
_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 5.0
_WITHOUT_RESOURCES: Final = frozenset({"v0.0.42", "v0.0.43"})
_WITHOUT_EXTERNAL_JOBS: Final = frozenset({"v0.0.42"})
_TOKEN_REFUSED: Final = frozenset({401, 403, 511})
_UNKNOWN: Final = 404
_NO_CONTROLLER: Final = frozenset({502, 504})


class SlurmClient:
    """The client of one Slurm, an async context manager. Calls may run concurrently.

    Every call raises UnavailableError and TokenError, and SlurmError for refusals that its docstring does not name.
    """

    def __init__(
        self, settings: Connection, *, sleep: Sleep = asyncio.sleep, chance: Callable[[], float] = random.random
    ) -> None:
        self._settings = settings
        self._transport = Transport(settings)
        self._sleep = sleep
        self._chance = chance

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.__aexit__()

    # ---------------------------------------------------------------- jobs

    async def ping(self) -> None:
        """Return if slurmctld serves requests and accepts the token."""
        answer = await self._call("GET", "ping/", messages.PingAnswer)
        if not any(ping.responding or ping.pinged == "UP" for ping in answer.pings or ()):
            # If slurmctld rejects the token, the ping reports slurmctld as down: another request distinguishes the two.
            with suppress(UnavailableError):
                await self.partitions()
            raise UnavailableError("GET ping/", "slurmctld does not respond", sent=False)

    async def jobs(self, since: int = 0) -> JobList:
        """All jobs that Slurm knows; with the `last_update` of an earlier list as `since`, none if nothing has changed.

        Slurm's times have a resolution of one second: a job may change in the second of a list, but after it. So the
        client asks for changes since one second earlier, and `changed` may be true although nothing is new.
        """
        query = f"?update_time={since - 1}" if since > 1 else ""
        answer = await self._call("GET", f"jobs/{query}", messages.JobsAnswer, limit=LIST_BYTES)
        listed = self._listed(f"GET jobs/{query}", "jobs", answer.jobs)
        if not listed and not answer.updated:
            if not query:
                raise self._odd("GET jobs/", "it has no last_update")
            return JobList((), since, changed=False)
        found, unreadable = messages.jobs_of(listed)
        self._log_unreadable("job", unreadable)
        return JobList(found, answer.updated, unreadable=unreadable)

    async def job(self, job_id: int) -> Job | None:
        """The job; None if Slurm does not know it. Slurm forgets a job some time after its end."""
        path = f"job/{job_id}"
        try:
            answer = await self._call("GET", path, messages.JobsAnswer)
        except SlurmError as refused:
            if refused.number == errors.UNKNOWN_JOB:
                return None
            raise
        found, unreadable = messages.jobs_of(self._listed(f"GET {path}", "jobs", answer.jobs))
        if unreadable:
            raise self._odd(f"GET {path}", unreadable[0].why)
        right = next((job for job in found if job.job_id == job_id), None)
        if right is None:
            raise self._odd(f"GET {path}", "it does not contain the job")
        return right

    async def submit(self, job: Placeholder, defaults: JobDefaults, candidates: Sequence[str]) -> int:
        """Submit the job and return its number. `candidates`: the nodes that Slurm chooses from.

        Raises InvalidRequestError. After an UnavailableError with `sent`, the job may exist: look for it before you
        submit it again.
        """
        body = msgspec.json.encode(messages.SubmitMessage(messages.job_message(job, defaults, candidates)))
        request = "POST job/submit"
        if self._settings.api_version in _WITHOUT_EXTERNAL_JOBS:
            what = f"{self._settings.api_version} has no external jobs; set apiVersion to a later version"
            raise InvalidRequestError(request, 0, what)
        raw = await self._send("POST", "job/submit", body)
        answer = self._decoded(request, raw, messages.SubmitAnswer)
        if not answer.job_id:
            self._raise_for(request, raw, answer)
            if not answer.warnings:
                raise self._odd(request, "it contains neither a job nor an error")
            warnings = "; ".join(warning.description or "" for warning in answer.warnings)
            raise InvalidRequestError(request, 0, f"Slurm created no job: {warnings}")
        if answer.errors:
            # Slurm created the job, but did not understand a field.
            await self.cancel(answer.job_id)
            self._raise_for(request, raw, answer)
        for warning in answer.warnings or ():
            _log.info(
                "Slurm warns about a job", job_id=answer.job_id, warning=errors.one_line(warning.description or "")
            )
        return answer.job_id

    async def update(self, job_id: int, job: Placeholder, defaults: JobDefaults, candidates: Sequence[str]) -> None:
        """Change the pending job to `job`; what `job` leaves to Slurm's defaults stays unchanged.

        Raises JobNotPendingError if it has started, has ended or is gone, or InvalidRequestError.
        """
        path = f"job/{job_id}"
        request = f"POST {path}"
        message = msgspec.structs.replace(
            messages.job_message(job, defaults, candidates), flags=(), current_working_directory=""
        )
        try:
            answer = await self._call("POST", path, messages.UpdateAnswer, msgspec.json.encode(message))
        except SlurmError as refused:
            if refused.number == errors.UNKNOWN_JOB:
                raise errors.JobNotPendingError(request, refused.number, refused.text) from None
            raise
        for result in answer.results or ():
            if result.error_code:
                text = result.why or result.error or ""
                raise errors.of_number(request, result.error_code, text, token_file=self._settings.token_file)

    async def cancel(self, job_id: int) -> None:
        """Cancel the job. Returns also if the job has ended or Slurm does not know it."""
        path = f"job/{job_id}"
        try:
            answer = await self._call("DELETE", path, messages.CancelAnswer)
        except SlurmError as refused:
            if refused.number in _ENDED:
                return
            raise
        except TokenError:
            # If slurmctld is down, slurmrestd reports that a cancellation is not permitted.
            await self.ping()
            raise
        for result in self._listed(f"DELETE {path}", "status", answer.status):
            number = result.error.code if result.error is not None else None
            if result.error is not None and number and number not in _ENDED:
                text = result.error.message or result.error.string or ""
                raise errors.of_number(f"DELETE {path}", number, text, token_file=self._settings.token_file)

    async def resources(self, job_id: int) -> tuple[NodeShare, ...]:
        """What the job has on each of its nodes; empty if it has no nodes or is gone."""
        path = f"{'job' if self._settings.api_version in _WITHOUT_RESOURCES else 'resources'}/{job_id}"
        try:
            if path.startswith("job/"):
                jobs = (await self._call("GET", path, messages.JobsAnswer, limit=LIST_BYTES)).jobs
                return tuple(share for job in self._listed(f"GET {path}", "jobs", jobs) for share in shares_of_job(job))
            nodes = (await self._call("GET", path, messages.NodesAnswer, limit=LIST_BYTES)).nodes
            return shares_of(self._listed(f"GET {path}", "nodes", nodes))
        except SlurmError as refused:
            if refused.number in (errors.UNKNOWN_JOB, errors.NOT_RUNNING):
                return ()
            raise
        except messages.UnreadableError as why:
            raise self._odd(f"GET {path}", str(why)) from None

    # ---------------------------------------------------------------- nodes

    async def nodes(self) -> tuple[SlurmNode, ...]:
        """All nodes of Slurm."""
        answer = await self._call("GET", "nodes/", messages.NodesAnswer, limit=LIST_BYTES)
        found, unreadable = messages.nodes_of(self._listed("GET nodes/", "nodes", answer.nodes))
        self._log_unreadable("node", unreadable)
        return found

    async def create_node(self, conf: str) -> None:
        """Create a node from its line of configuration: `NodeName=… State=External …`. Raises NodeExistsError."""
        await self._call("POST", "new/node/", messages.Envelope, msgspec.json.encode({"node_conf": conf}))

    async def update_node(
        self,
        name: str,
        *,
        state: str | None = None,
        reason: str | None = None,
        features: Sequence[str] | None = None,
        topology: str | None = None,
        comment: str | None = None,
        gres: str | None = None,
    ) -> None:
        """Change the given fields; state: DRAIN (with a reason), UNDRAIN, … Slurm ignores an empty list of features.

        Raises UnknownNodeError.
        """
        message = messages.NodeMessage(
            state=None if state is None else (state,),
            reason=reason,
            features=None if features is None else tuple(features),
            # Otherwise Slurm may refuse to remove features that are active.
            features_act=None if features is None else tuple(features),
            topology_str=topology,
            comment=comment,
            gres=gres,
        )
        await self._call("POST", f"node/{quote(name, safe='')}", messages.Envelope, msgspec.json.encode(message))

    async def delete_node(self, name: str) -> None:
        """Delete the node from Slurm. Returns also if Slurm does not know it. Raises NodeBusyError."""
        try:
            await self._call("DELETE", f"node/{quote(name, safe='')}", messages.Envelope)
        except errors.UnknownNodeError:
            return

    async def partitions(self) -> tuple[str, ...]:
        """The names of the partitions."""
        answer = await self._call("GET", "partitions/", messages.PartitionsAnswer, limit=LIST_BYTES)
        return tuple(found.name for found in self._listed("GET partitions/", "partitions", answer.partitions))

    # ---------------------------------------------------------------- one call

    async def _call(
        self, method: Method, path: str, kind: type[_Answer], body: bytes | None = None, *, limit: int = ANSWER_BYTES
    ) -> _Answer:
        request = f"{method} {path}"
        raw = await self._send(method, path, body, limit=limit)
        answer = self._decoded(request, raw, kind)
        self._raise_for(request, raw, answer)
        return answer

    async def _send(self, method: Method, path: str, body: bytes | None = None, *, limit: int = ANSWER_BYTES) -> Answer:
        """The response of the first attempt that got one. Raises UnavailableError or TokenError."""
        attempt = 0
        request = f"{method} {path}"
        sent = Sent()
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                while True:
                    try:
                        return await self._attempt(method, path, body, sent, limit)
                    except UnavailableError as failed:
                        if attempt == self._settings.retries or (method == "POST" and failed.sent):
                            raise
                    await self._sleep(self._wait(attempt))
                    attempt += 1
                    sent.yes = sent.yes and method != "POST"
        except TimeoutError:
            what = f"no response in {self._settings.timeout_seconds:g} s"
            raise UnavailableError(request, what, sent=sent.yes) from None

    async def _attempt(self, method: Method, path: str, body: bytes | None, sent: Sent, limit: int) -> Answer:
        answer = await self._transport.exchange(method, path, body, sent, limit=limit)
        if answer.status in _TOKEN_REFUSED or answer.status >= 500:
            # If Slurm cannot read a line of configuration, its error has no number, but is still an answer.
            unspecified = method != "POST" or path.startswith("job/")
            self._raise_unavailable(f"{method} {path}", answer, unspecified=unspecified)
        return answer

    def _raise_unavailable(self, request: str, answer: Answer, *, unspecified: bool) -> None:
        """Raise TokenError, or UnavailableError if another attempt may help. Any other error is Slurm's final answer.

        unspecified: whether an error without a number is one of these, too: slurmrestd sometimes gives no number if it
        has lost slurmctld.
        """
        try:
            found = msgspec.json.decode(answer.body, type=messages.Envelope).errors or []
        except DECODE_ERRORS:
            found = []
        first = _first(found)
        if first is not None:
            error = errors.of_number(request, first.error_number or 0, first.text, token_file=self._settings.token_file)
            if isinstance(error, TokenError | UnavailableError):
                raise error
        if answer.status in _TOKEN_REFUSED:
            raise TokenError(self._settings.token_file, f"{request}: slurmrestd rejects it ({answer.status})")
        if first is None or ((first.error_number or 0) <= 0 and unspecified):
            what = f": {first.text}" if first is not None else ""
            raise UnavailableError(request, _failed(answer.status) + what, sent=True)

    def _decoded(self, request: str, answer: Answer, kind: type[_Answer]) -> _Answer:
        try:
            return msgspec.json.decode(answer.body, type=kind)
        except DECODE_ERRORS as why:
            if answer.status == _UNKNOWN:
                raise self._no_such_path(request) from None
            raise self._odd(request, str(why)) from None

    def _raise_for(self, request: str, raw: Answer, answer: messages.Envelope) -> None:
        first = _first(answer.errors or [])
        if first is not None:
            number = first.error_number or 0
            raise errors.of_number(request, number, first.text, token_file=self._settings.token_file)
        if raw.status == _UNKNOWN:
            raise self._no_such_path(request)
        if not 200 <= raw.status < 300:
            raise UnavailableError(request, _failed(raw.status), sent=True)

        if answer.errors is None:
            raise self._odd(request, "it has no list of errors")

    def _listed(self, request: str, field: str, items: list[_Item] | None) -> list[_Item]:
        """The items. A missing list is an error: an empty list would mean that all jobs are gone."""
        if items is None:
            raise self._odd(request, f"it has no {field}")
        return items

    def _no_such_path(self, request: str) -> UnavailableError:
        version = self._settings.api_version
        return UnavailableError(
            request, f"slurmrestd does not serve this path in {version}; choose another apiVersion", sent=False
        )

    def _odd(self, request: str, why: str) -> UnavailableError:
        return UnavailableError(request, f"unexpected response: {why}", sent=True)

    def _log_unreadable(self, what: str, unreadable: Sequence[Unreadable]) -> None:
        for item in unreadable[:8]:
            _log.warning(f"cannot read a {what} in Slurm's list", key=item.key, why=item.why)

    def _wait(self, attempt: int) -> float:
        """Exponential backoff with jitter."""
        return float(min(_LONGEST_WAIT, _FIRST_WAIT * 2**attempt) * (0.5 + self._chance() / 2))


def _failed(status: int) -> str:
    return f"slurmrestd returned {status}" + (": slurmctld does not respond" if status in _NO_CONTROLLER else "")


_ENDED: Final = frozenset({errors.UNKNOWN_JOB, 2021, 2084})
"""Errors of a cancellation that mean that the job has already ended: unknown, already done, finished."""


def _first(found: Sequence[messages.ErrorItem]) -> messages.ErrorItem | None:
    """The most specific error: the first one with a number, if there is one."""
    return next((error for error in found if (error.error_number or 0) > 0), next(iter(found), None))
