"""The answers of HTTP extenders for pending pods, which a session reads, and the questions that it asks.

No hook of a session waits. A session that reaches a group without answers notes what to ask and skips the group.
The engine calls the extenders, stores the answers, and the next session places the group. An answer serves one attempt.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from session_scheduler.cluster.extender_client import MetaVictims, manages
from session_scheduler.config.extenders import ExtenderConfig
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.object_changes import scheduling_fields
from session_scheduler.model.objects import Node, Pod

NAME = "Extenders"
"""The plugin's name, in reasons and metrics."""


class Question(msgspec.Struct, frozen=True, eq=False):
    """A pod, and the nodes (by name) that pass the filters."""

    task: Task
    pod: Pod
    nodes: Mapping[str, Node]
    nominated: str = ""
    """The node among these for which the pod is nominated: the extenders evaluate it first."""


class Answer(msgspec.Struct, eq=False):
    """What the extenders say about a pod."""

    pod: Pod
    offered: Mapping[str, Node]
    """The nodes for which they were asked."""
    scores: Mapping[str, int]
    """The nodes that passed, each with the sum of its weighted scores."""
    failed: Mapping[str, str]
    """Why nodes did not pass, as strings; some may be empty."""
    unresolvable: Container[str] = ()
    """The nodes in `failed` that removing pods does not help."""
    used: bool = False
    """Whether an attempt has used it: the next one asks again."""

    def is_for(self, pod: Pod) -> bool:
        """Whether the pod is unchanged, apart from its status."""
        now, then = pod.metadata, self.pod.metadata
        return pod.spec == self.pod.spec and now.labels == then.labels and now.annotations == then.annotations

    def covers(self, node: Node) -> bool:
        """Whether the extenders were asked about this node as it is now."""
        known = self.offered.get(node.metadata.name)
        return known is not None and (known is node or scheduling_fields(known) == scheduling_fields(node))


class VictimQuestion(msgspec.Struct, frozen=True, eq=False):
    """A pod, and by node the victims whose eviction makes room for it."""

    task: Task
    pod: Pod
    victims: Mapping[str, MetaVictims]
    pods: Mapping[str, Pod]
    """The victims by uid."""


class VictimAnswer(msgspec.Struct, frozen=True, eq=False):
    """What the extenders say about victims: those by node that may be evicted, or an error."""

    asked: Mapping[str, MetaVictims]
    allowed: Mapping[str, MetaVictims] | str


class Asked(msgspec.Struct, frozen=True, eq=False):
    """The questions of a session."""

    nodes: dict[Group, list[Question]]
    """The session has skipped the groups in it."""
    victims: dict[Group, list[VictimQuestion]]
    """The session has rejected the groups in it, which need answers to preempt pods."""


class ExtenderAnswers:
    """Questions and answers of one scheduler."""

    def __init__(self, extenders: Iterable[ExtenderConfig]) -> None:
        extenders = tuple(extenders)
        self._managed = [one.managed for one in extenders if one.filter_verb or one.prioritize_verb]
        self._preempting = [one.managed for one in extenders if one.preempt_verb]
        self.asked: Asked | None = None
        """The questions of the open session; None if it must not ask, for example to explain a pod."""
        self._answers: dict[str, Answer] = {}
        self._errors: dict[str, str] = {}
        """Both by pod uid; a pod has an answer or an error."""
        self._victims: dict[str, VictimAnswer] = {}

    def is_interested(self, pod: Pod) -> bool:
        """Whether any extender filters or scores nodes for a pod."""
        return any(manages(resources, pod) for resources in self._managed)

    def is_interested_in_victims(self, pod: Pod) -> bool:
        """Whether any extender decides about the pods that are evicted for a pod."""
        return any(manages(resources, pod) for resources in self._preempting)

    @contextmanager
    def asking(self) -> Iterator[Asked]:
        """In this context, sessions may ask questions; it yields them."""
        self.asked = asked = Asked({}, {})
        try:
            yield asked
        finally:
            self.asked = None

    def latest(self, uid: str) -> Answer | None:
        """The last answer for a pod."""
        return self._answers.get(uid)

    def use(self, uids: Iterable[str]) -> None:
        """An attempt has used the answers for these pods."""
        for uid in uids if self._answers or self._victims else ():
            self._victims.pop(uid, None)
            answer = self._answers.get(uid)
            if answer is not None:
                answer.used = True

    def error(self, uid: str) -> str | None:
        """Why the last call for a pod failed; None if it did not."""
        return self._errors.get(uid)

    def forget_bound(self, tasks: Mapping[str, Task]) -> None:
        """Drop the answers for pods that are bound, or not among these tasks (by uid)."""
        for kept in (self._answers, self._errors, self._victims):
            for uid in [uid for uid in kept if uid not in tasks or tasks[uid].phase is Phase.BOUND]:
                del kept[uid]

    def put(self, uid: str, answer: Answer | str) -> None:
        """Store an answer or an error for a pod."""
        self._errors.pop(uid, None)
        self._answers.pop(uid, None)
        if isinstance(answer, str):
            self._errors[uid] = answer
        else:
            self._answers[uid] = answer

    def victims(self, uid: str) -> VictimAnswer | None:
        """The answer about victims for this attempt of a pod."""
        return self._victims.get(uid)

    def put_victims(self, uid: str, answer: VictimAnswer) -> None:
        """Store the answer about victims for a pod."""
        self._victims[uid] = answer
