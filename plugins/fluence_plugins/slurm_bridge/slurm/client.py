"""Slurm's REST API, as far as the plugin needs it: calls in, typed values and errors out.

A call ends within its limit of time, with its retries. What only reads or deletes is tried again where Slurm was not
reached, or failed; what writes only where it cannot have been carried out: else who called looks first.

Shown against slurmctld and slurmrestd 26.05 in v0.0.44 and v0.0.43, and in v0.0.42 what that has (tests/slurm): before
v0.0.44 no nodes are made, and v0.0.42 knows no external jobs, so that nothing is submitted in it.
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
    """Calls of one Slurm. An async context; calls may run beside each other.

    Every call raises UnavailableError and TokenError, and SlurmError where Slurm refuses it in a way not named there.
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
        """Return if slurmctld serves, and takes the token."""
        answer = await self._call("GET", "ping/", messages.PingAnswer)
        if not any(ping.responding or ping.pinged == "UP" for ping in answer.pings or ()):
            # With a token that it does not take slurmctld is said to be down: what else is asked tells the two apart.
            with suppress(UnavailableError):
                await self.partitions()
            raise UnavailableError("GET ping/", "slurmctld does not answer", sent=False)

    async def jobs(self, since: int = 0) -> JobList:
        """Every job that Slurm knows; with the `last_update` of an earlier list nothing, unless there was a change.

        Slurm counts in whole seconds, and a change in the very second of a list may have come after it. So that one is
        asked for again, and `changed` may be true though nothing is new.
        """
        query = f"?update_time={since - 1}" if since > 1 else ""
        answer = await self._call("GET", f"jobs/{query}", messages.JobsAnswer, limit=LIST_BYTES)
        listed = self._listed(f"GET jobs/{query}", "jobs", answer.jobs)
        if not listed and not answer.updated:
            if not query:
                raise self._odd("GET jobs/", "it has no time")
            return JobList((), since, changed=False)
        found, unreadable = messages.jobs_of(listed)
        self._tell("job", unreadable)
        return JobList(found, answer.updated, unreadable=unreadable)

    async def job(self, job_id: int) -> Job | None:
        """The job, or None where Slurm knows none of this number: it forgets them some time after their end."""
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
            raise self._odd(f"GET {path}", "it has another job, or none")
        return right

    async def submit(self, job: Placeholder, defaults: JobDefaults, candidates: Sequence[str]) -> int:
        """Ask for the job and return its number. `candidates`: the nodes that Slurm is to choose from.

        Raises: InvalidRequestError. After an UnavailableError that was `sent` it may be there: look, before another.
        """
        body = msgspec.json.encode(messages.SubmitMessage(messages.job_message(job, defaults, candidates)))
        request = "POST job/submit"
        if self._settings.api_version in _WITHOUT_EXTERNAL_JOBS:
            what = f"{self._settings.api_version} has no external jobs: set apiVersion to a later one"
            raise InvalidRequestError(request, 0, what)
        raw = await self._send("POST", "job/submit", body)
        answer = self._decoded(request, raw, messages.SubmitAnswer)
        if not answer.job_id:
            self._raise_for(request, raw, answer)
            if not answer.warnings:
                raise self._odd(request, "it has neither a job nor an error")
            said = "; ".join(warning.description or "" for warning in answer.warnings)
            raise InvalidRequestError(request, 0, f"Slurm has made no job: {said}")
        if answer.errors:
            # Made all the same, but not as it was asked for: some field was not understood.
            await self.cancel(answer.job_id)
            self._raise_for(request, raw, answer)
        for warning in answer.warnings or ():
            _log.info("slurm warns of a job", job_id=answer.job_id, warning=errors.one_line(warning.description or ""))
        return answer.job_id

    async def update(self, job_id: int, job: Placeholder, defaults: JobDefaults, candidates: Sequence[str]) -> None:
        """Make the pending job as `job` has it; what that leaves to Slurm's defaults stays as it is.

        Raises: JobNotPendingError, where it has started, ended or gone; InvalidRequestError.
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
        """End the job. One that has ended, or that Slurm does not know, is as good."""
        path = f"job/{job_id}"
        try:
            answer = await self._call("DELETE", path, messages.CancelAnswer)
        except SlurmError as refused:
            if refused.number in _AS_GOOD:
                return
            raise
        except TokenError:
            # Without slurmctld, slurmrestd says of a cancellation that it is not permitted.
            await self.ping()
            raise
        for result in self._listed(f"DELETE {path}", "status", answer.status):
            number = result.error.code if result.error is not None else None
            if result.error is not None and number and number not in _AS_GOOD:
                text = result.error.message or result.error.string or ""
                raise errors.of_number(f"DELETE {path}", number, text, token_file=self._settings.token_file)

    async def resources(self, job_id: int) -> tuple[NodeShare, ...]:
        """What the job has on each of its nodes; nothing where it has none, or is not there any more."""
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
        """Every node that Slurm has."""
        answer = await self._call("GET", "nodes/", messages.NodesAnswer, limit=LIST_BYTES)
        found, unreadable = messages.nodes_of(self._listed("GET nodes/", "nodes", answer.nodes))
        self._tell("node", unreadable)
        return found

    async def create_node(self, conf: str) -> None:
        """Make a node by its line of configuration: `NodeName=… State=External …`. Raises: NodeExistsError."""
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
        """Change what is given; state: DRAIN (with a reason), UNDRAIN, … No features are no change of them.

        Raises: UnknownNodeError.
        """
        message = messages.NodeMessage(
            state=None if state is None else (state,),
            reason=reason,
            features=None if features is None else tuple(features),
            # Else those that the node has as active ones may not be taken from it.
            features_act=None if features is None else tuple(features),
            topology_str=topology,
            comment=comment,
            gres=gres,
        )
        await self._call("POST", f"node/{quote(name, safe='')}", messages.Envelope, msgspec.json.encode(message))

    async def delete_node(self, name: str) -> None:
        """Take the node out of Slurm. One that it does not know is as good. Raises: NodeBusyError."""
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
        """The answer, of the first attempt that was one. Raises: UnavailableError, TokenError."""
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
            what = f"no answer in {self._settings.timeout_seconds:g} s"
            raise UnavailableError(request, what, sent=sent.yes) from None

    async def _attempt(self, method: Method, path: str, body: bytes | None, sent: Sent, limit: int) -> Answer:
        answer = await self._transport.exchange(method, path, body, sent, limit=limit)
        if answer.status in _TOKEN_REFUSED or answer.status >= 500:
            # Of a line of configuration that it cannot read Slurm says no more: that is an answer.
            unspecified = method != "POST" or path.startswith("job/")
            self._raise_unavailable(f"{method} {path}", answer, unspecified=unspecified)
        return answer

    def _raise_unavailable(self, request: str, answer: Answer, *, unspecified: bool) -> None:
        """Raise what makes another attempt sensible, or needless. Any other error has a number, and is an answer.

        unspecified: whether an error without a number is such, too: slurmrestd has none of a lost slurmctld, sometimes.
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
            raise TokenError(self._settings.token_file, f"{request}: slurmrestd does not take it ({answer.status})")
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
        """What is not there is no empty list: whose job is missing in one is taken to have none any more."""
        if items is None:
            raise self._odd(request, f"it has no {field}")
        return items

    def _no_such_path(self, request: str) -> UnavailableError:
        version = self._settings.api_version
        return UnavailableError(request, f"slurmrestd does not serve this in {version}: choose apiVersion", sent=False)

    def _odd(self, request: str, why: str) -> UnavailableError:
        return UnavailableError(request, f"the answer is not as slurmrestd's are: {why}", sent=True)

    def _tell(self, what: str, unreadable: Sequence[Unreadable]) -> None:
        for item in unreadable[:8]:
            _log.warning(f"slurm lists a {what} that cannot be read", key=item.key, why=item.why)

    def _wait(self, attempt: int) -> float:
        """Twice as long each time, and never the same for two."""
        return float(min(_LONGEST_WAIT, _FIRST_WAIT * 2**attempt) * (0.5 + self._chance() / 2))


def _failed(status: int) -> str:
    return f"slurmrestd answered {status}" + (": slurmctld does not answer" if status in _NO_CONTROLLER else "")


_AS_GOOD: Final = frozenset({errors.UNKNOWN_JOB, 2021, 2084})
"""Of a cancellation: unknown, already done, finished."""


def _first(found: Sequence[messages.ErrorItem]) -> messages.ErrorItem | None:
    """The error that says most: one with a number of Slurm's, where there is one."""
    return next((error for error in found if (error.error_number or 0) > 0), next(iter(found), None))
