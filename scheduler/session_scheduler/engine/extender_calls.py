"""Calls of HTTP extenders between sessions: asks what a session wants to know, and stores the answers.

A session that reaches a group without answers skips it (`builtin.extenders`). The group's questions are then work
in flight, so no session places it, and a later turn stores the answers. Extenders are called in kube-scheduler's order.
Source: findNodesThatPassExtenders and prioritizeNodes in pkg/scheduler/schedule_one.go, Kubernetes 1.36.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import msgspec
import structlog
from msgspec.structs import replace

from session_scheduler.base.gathering import all_of
from session_scheduler.cluster.errors import ClusterError, NotFound
from session_scheduler.cluster.extender_client import ExtenderClient, ExtenderError, MetaVictims
from session_scheduler.cluster.full_objects import FullObjects
from session_scheduler.engine.completion import BindCompletion, Bound
from session_scheduler.engine.in_flight import InFlight
from session_scheduler.framework.extender_answers import (
    NAME,
    Answer,
    ExtenderAnswers,
    Question,
    VictimAnswer,
    VictimQuestion,
)
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import PlacementResult
from session_scheduler.model.groups import Group, Phase
from session_scheduler.model.objects import Pod
from session_scheduler.model.refusals import Refusal
from session_scheduler.state.cache import Cache

_log = structlog.get_logger(__name__)
_NOT_SENT: Final = msgspec.Raw(b"null")
_AT_ONCE: Final = 32
"""Pods about which extenders are asked at the same time."""


class ExtenderCalls:
    """The extenders of a configuration, those that are not ignorable first."""

    def __init__(self, clients: Sequence[ExtenderClient], objects: FullObjects, answers: ExtenderAnswers) -> None:
        self._clients = sorted(clients, key=lambda client: client.config.ignorable)
        self._objects = objects
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.answers = answers

    async def close(self) -> None:
        """Close all connections."""
        await self._objects.close()
        for client in self._clients:
            await client.close()

    def binder_of(self, pod: Pod) -> ExtenderClient | None:
        """The extender that binds this pod; None if the scheduler does."""
        return next((one for one in self._clients if one.config.bind_verb and one.is_interested(pod)), None)

    async def ask(self, questions: Sequence[Question]) -> list[Answer | ExtenderError]:
        """The answer for each pod, or why there is none. Raises ClusterError if the pods or nodes cannot be read."""
        nodes: dict[str, msgspec.Raw] | None = None
        if not all(client.config.node_cache_capable for client in self._clients):
            known = {name: node for question in questions for name, node in question.nodes.items()}
            nodes = await self._objects.nodes(known)
        return await all_of(self._ask(question, nodes) for question in questions)

    async def _ask(self, question: Question, nodes: Mapping[str, msgspec.Raw] | None) -> Answer | ExtenderError:
        async with self._slots:
            pod = await self._objects.pod(question.pod)
            if question.nominated:
                try:
                    answer = await self._evaluate(question, pod, nodes, [question.nominated])
                    if answer.scores:
                        return answer
                except ExtenderError as error:  # as in kube-scheduler, then evaluate all nodes
                    _log.info("extenders failed for the nominated node", pod=question.pod.key, error=str(error))
            try:
                return await self._evaluate(question, pod, nodes, list(question.nodes))
            except ExtenderError as error:
                return error

    async def ask_victims(self, questions: Sequence[VictimQuestion]) -> list[tuple[VictimQuestion, VictimAnswer]]:
        """The answer about victims for each pod. Raises ClusterError if the pods cannot be read."""
        answers = await all_of(map(self._ask_victims, questions))
        return list(zip(questions, answers, strict=True))

    async def _ask_victims(self, question: VictimQuestion) -> VictimAnswer:
        """Source: callExtenders in pkg/scheduler/framework/preemption, Kubernetes 1.36."""
        known = question
        asked = [one for one in self._clients if one.config.preempt_verb and one.is_interested(question.pod)]
        async with self._slots:
            pod, pods = await self._objects.pod(question.pod), dict[str, msgspec.Raw]()
            if not all(client.config.node_cache_capable for client in asked):
                pods = await self._victims(question)
                known = _without_gone(question, pods)
            allowed = known.victims
            for client in asked:
                if not allowed:
                    break
                try:
                    allowed = _checked(client, known, await client.preempt(pod, allowed, pods))
                except ExtenderError as error:
                    if not client.config.ignorable:
                        return VictimAnswer(question.victims, str(error))
                    _skipped(client, question.pod, error)
        return VictimAnswer(question.victims, allowed)

    async def _victims(self, question: VictimQuestion) -> dict[str, msgspec.Raw]:
        """The victims that still exist, by uid."""

        async def read(uid: str, pod: Pod) -> tuple[str, msgspec.Raw] | None:
            try:
                return uid, await self._objects.pod(pod)
            except NotFound:
                return None

        return dict(filter(None, await all_of(read(uid, pod) for uid, pod in question.pods.items())))

    async def _evaluate(
        self, question: Question, pod: msgspec.Raw, nodes: Mapping[str, msgspec.Raw] | None, offered: Sequence[str]
    ) -> Answer:
        """Filter these nodes, then score those that passed. Raises ExtenderError.

        `nodes` are the objects of the nodes that still exist; None if all extenders cache them.
        """
        if nodes is not None:
            offered = [name for name in offered if name in nodes]
        interested = [client for client in self._clients if client.is_interested(question.pod)]
        passed, failed, unresolvable = offered, dict[str, str](), set[str]()
        for client in interested:
            if not passed or not client.config.filter_verb:
                continue
            try:
                result = await client.filter(pod, _some(nodes, passed))
            except ExtenderError as error:
                if not client.config.ignorable:
                    raise
                _skipped(client, question.pod, error)
                continue
            unresolvable.update(result.unresolvable)
            failed |= {**result.failed, **result.unresolvable}
            passed = result.passed
        scores: Counter[str] = Counter()
        scoring = [client for client in interested if client.config.prioritize_verb] if len(passed) > 1 else []
        for answer in await all_of(self._scores(client, question, pod, _some(nodes, passed)) for client in scoring):
            scores.update(answer)
        kept = question.nodes
        if len(offered) < len(kept):
            kept = {name: kept[name] for name in offered}
        return Answer(question.pod, kept, {name: scores[name] for name in passed}, failed, frozenset(unresolvable))

    @staticmethod
    async def _scores(
        client: ExtenderClient, question: Question, pod: msgspec.Raw, nodes: Mapping[str, msgspec.Raw]
    ) -> dict[str, int]:
        """An extender's scores; none if it fails."""
        try:
            return await client.prioritize(pod, nodes)
        except ExtenderError as error:
            _log.info("an extender returned no scores", extender=client.name, pod=question.pod.key, error=str(error))
            return {}


def _checked(
    client: ExtenderClient, question: VictimQuestion, found: Mapping[str, MetaVictims]
) -> dict[str, MetaVictims]:
    """The nodes with victims that the pods of the question contain. Raises ExtenderError."""
    for node, victims in found.items():
        for uid in victims.uids:
            if uid not in question.pods:
                raise ExtenderError(
                    f"extender: {client.name} claims to preempt pod (UID: {uid}) on node: {node}, but the pod is not "
                    "found on that node"
                )
        if not victims.uids and not client.config.ignorable:
            raise ExtenderError(f'expected at least one victim pod on node "{node}"')
    return {node: victims for node, victims in found.items() if victims.uids}


def _without_gone(question: VictimQuestion, found: Container[str]) -> VictimQuestion:
    """The question without the nodes with a victim that is not among the `found` ones (uids)."""
    victims = {node: one for node, one in question.victims.items() if all(uid in found for uid in one.uids)}
    return replace(question, victims=victims, pods={uid: pod for uid, pod in question.pods.items() if uid in found})


def _skipped(client: ExtenderClient, pod: Pod, error: ExtenderError) -> None:
    _log.info("skipping an ignorable extender", extender=client.name, pod=pod.key, error=str(error))


def _some(nodes: Mapping[str, msgspec.Raw] | None, names: Sequence[str]) -> dict[str, msgspec.Raw]:
    """These nodes; without objects if all extenders cache them."""
    return {name: nodes[name] if nodes is not None else _NOT_SENT for name in names}


class ExtenderTurns:
    """Starts the calls for groups, and stores the answers in a later turn."""

    def __init__(
        self, calls: ExtenderCalls, cache: Cache, in_flight: InFlight[Bound], completion: BindCompletion,
        retry: Callable[[str], None],
    ) -> None:  # fmt: skip
        """`retry` makes a group (its key) active."""
        self._calls = calls
        self._cache = cache
        self._in_flight = in_flight
        self._completion = completion
        self._retry = retry
        self._running: set[asyncio.Task[Any] | None] = set()

    @contextmanager
    def asking(self, session: Session) -> Iterator[None]:
        """A context for the session's actions; at its end it starts the calls for what the session asked.

        The groups without answers have no outcome. The others have used their answers.
        """
        answers = self._calls.answers
        answers.forget_bound(self._cache.tasks)
        with answers.asking() as asked:
            try:
                yield
            finally:
                for group in asked.nodes:
                    session.outcomes.pop(group, None)
        for group, questions in asked.nodes.items():
            work = self._run(partial(self._calls.ask, questions))
            self._in_flight.start(group.key, work, partial(self._complete, group, questions))
        for group, others in asked.victims.items():
            result = session.outcomes.get(group)
            if result is not None and not result.placed:
                del session.outcomes[group]
            work = self._run(partial(self._calls.ask_victims, others))
            self._in_flight.start(group.key, work, partial(self._complete_victims, group))
        for group in session.outcomes:
            answers.use(task.uid for task in group.tasks.values())

    async def _run(self, ask: Callable[[], Awaitable[object]]) -> object:
        """Ask until `stop`."""
        task = asyncio.current_task()
        self._running.add(task)
        try:
            return await ask()
        finally:
            self._running.discard(task)

    def stop(self) -> None:
        """End the calls in flight, since the scheduler stops: their groups stay as they are."""
        for task in self._running:
            if task is not None:
                task.cancel()

    async def _complete_victims(
        self, group: Group, _: str, found: list[tuple[VictimQuestion, VictimAnswer]] | BaseException
    ) -> None:
        """Store the answers about victims, and attempt the group again."""
        if self._cache.groups.get(group.key) is not group:
            return
        if isinstance(found, BaseException):
            await self._complete(group, (), "", found)
            return
        for question, answer in found:
            self._calls.answers.put_victims(question.task.uid, answer)
        self._retry(group.key)

    async def _complete(
        self, group: Group, questions: Sequence[Question], _: str,
        found: list[Answer | ExtenderError] | BaseException,
    ) -> None:  # fmt: skip
        """Store the answers; after an error the group backs off with it."""
        cache, answers = self._cache, self._calls.answers
        if cache.groups.get(group.key) is not group or isinstance(found, asyncio.CancelledError):
            return
        if isinstance(found, BaseException):
            if not isinstance(found, ClusterError):
                self._fail(group, f"calling the extenders failed: {type(found).__name__}: {found}")
                raise found
            self._fail(group, f"calling the extenders failed: {found}")
            return
        for question, answer in zip(questions, found, strict=True):
            if cache.tasks.get(question.task.uid) is question.task:
                answers.put(question.task.uid, str(answer) if isinstance(answer, ExtenderError) else answer)
        errors = [str(answer) for answer in found if isinstance(answer, ExtenderError)]
        if errors:
            self._fail(group, errors[0])

    def _fail(self, group: Group, text: str) -> None:
        reasons = dict.fromkeys(group.in_phase(Phase.PENDING), text)
        self._completion.record(
            {group: PlacementResult(group, reasons=reasons, refusal=Refusal(text, NAME, failed=True))}
        )
