"""The Extenders plugin: asks HTTP extenders about pods, and filters and scores nodes by their answers.

The engine adds it as the last plugin of each profile if the configuration has extenders, and calls them between
sessions (`engine.extender_calls`). So extenders see the nodes that pass all filters, as in kube-scheduler.
Source: findNodesThatPassExtenders and prioritizeNodes in pkg/scheduler/schedule_one.go, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from session_scheduler.cluster.extender_client import MetaVictims
from session_scheduler.errors import AttemptError
from session_scheduler.framework.bindings import Binding
from session_scheduler.framework.extender_answers import NAME, Answer, ExtenderAnswers, Question, VictimQuestion
from session_scheduler.framework.hooks import PluginError
from session_scheduler.framework.session import Narrowed, Session
from session_scheduler.hookspecs import SKIP, Prepared, Refusal, Scope, Skip, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeTable, NodeView
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.objects import Pod

WAITS = "waiting for responses from the extenders"


class _State(msgspec.Struct, eq=False):
    """An answer as columns of all rows."""

    answer: Answer | None
    covered: BoolColumn
    """The rows for which the extenders were asked."""
    passed: BoolColumn
    scores: IntColumn
    closed: BoolColumn
    """The rows that became available only after the extenders were asked."""

    def forget(self) -> None:
        """Drop the answer: all rows pass."""
        self.answer = None
        for column in (self.covered, self.passed, self.closed):
            column[:] = False
        self.scores[:] = 0


class Extenders:
    """Rejects the nodes that an extender rejects. Each pod that an extender wants to see is a class of its own."""

    name = NAME
    filter_scope = Scope.STATIC
    score_scope = Scope.STATIC
    summed_scores = True
    prebind_waits = False

    def __init__(self, answers: ExtenderAnswers) -> None:
        self._answers = answers
        self._states: dict[TaskClass, _State] = {}
        """Of the open session."""

    @hookimpl
    def class_key(self, pod: Pod) -> str | None:
        """The uid of a pending pod, since an extender sees the whole pod."""
        scheduled = any(one.type == "PodScheduled" and one.status == "True" for one in pod.status.conditions)
        return None if scheduled or not self._answers.is_interested(pod) else pod.metadata.uid

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        """Forget the columns of the last session."""
        self._states.clear()
        session.narrow_preemption = self._narrowed

    @hookimpl
    def prefilter(self, session: Session, group: Group) -> Refusal | None:
        """Skip a group until there are responses for its pods; reject it after an error."""
        tasks = [task for task in group.in_phase(Phase.PENDING) if self._answers.is_interested(task.pod)]
        asked = self._answers.asked
        if asked is None:  # a pod is explained
            errors = (self._answers.error(task.uid) for task in tasks)
            return next((Refusal(error) for error in errors if error is not None), None)
        if not group.suffice([*group.in_phase(Phase.BOUND, Phase.ASSUMED, Phase.PENDING)]):
            return None  # it cannot start anyway
        try:
            questions = [question for task in tasks if (question := self._question(session, task)) is not None]
        except PluginError:  # the attempt reports it
            return None
        if not questions:
            return None
        asked.nodes[group] = questions
        return Refusal(WAITS)

    def _question(self, session: Session, task: Task) -> Question | None:
        """What to ask about a task; None if its answer still holds, or no node passes the filters."""
        evaluation = session.evaluator.evaluation_for(task)
        if evaluation.refusal is not None:
            return None
        state, fits = self._states[task.cls], session.table.valid()
        if state.answer is not None and not state.answer.is_for(task.pod):
            state.forget()
        together = task.group.needed > 1
        for filtering in evaluation.filters:
            # the gang's own pods may decide what these answer: ask for all nodes that they may allow
            if filtering.plugin != NAME and not (together and filtering.scope is Scope.ANY):
                filtering.run(session.table.all_rows(), fits, task)
        if state.answer is not None:
            state.closed = fits & ~state.covered
            if (fits & state.passed).any() or not state.closed.any():
                return None
        nodes = {node.metadata.name: node for row in np.flatnonzero(fits) if (node := session.table.nodes[row])}
        if not nodes:
            self._answers.put(task.uid, Answer(task.pod, {}, {}, {}))
            return None
        nominated = session.nominations.node_of(task) or ""
        return Question(task, task.pod, nodes, nominated if nominated in nodes else "")

    @hookimpl
    def prepare(self, session: Session, cls: TaskClass) -> Prepared | Skip:
        """The answer for the class's pod."""
        if not self._answers.is_interested(cls.pod):
            return SKIP
        answer = self._answers.latest(cls.pod.metadata.uid)
        if answer is not None and answer.used and self._answers.asked is not None:
            answer = None
        state = self._states[cls] = _columns(session.table, answer)
        return Prepared(state, Scope.STATIC, Scope.STATIC)

    @hookimpl
    def filter(self, nodes: NodeView, mask: BoolColumn, state: _State) -> None:
        """Clear the nodes that an extender rejected, and those that came too late.

        Nodes that other filters rejected stay: after a preemption the extenders are asked again.
        """
        mask &= ~((state.covered & ~state.passed) | state.closed)[nodes.row_numbers]

    @hookimpl
    def score(self, nodes: NodeView, state: _State) -> IntColumn:
        """The sum of the extenders' scores, each times its weight."""
        return state.scores[nodes.row_numbers]

    @hookimpl
    def why(self, nodes: NodeView, state: _State) -> Sequence[Sequence[str]]:
        """The extenders' messages. As in kube-scheduler, a node without one counts in the sum only."""
        answer = state.answer
        late = "node(s) became available after the extenders were called"
        return [[late] if state.closed[row] else _texts(answer, nodes.node(index).metadata.name)
                for index, row in enumerate(nodes.row_numbers.tolist())]  # fmt: skip

    @hookimpl
    def unresolvable(self, nodes: NodeView, state: _State) -> BoolColumn:
        """The nodes in FailedAndUnresolvableNodes, and those without a message."""
        names, answer = [nodes.node(index).metadata.name for index in range(len(nodes))], state.answer
        lasting = [answer is not None and (name in answer.unresolvable or name not in answer.failed) for name in names]
        return np.array(lasting, np.bool_) & ~state.closed[nodes.row_numbers]

    def _narrowed(self, task: Task, victims: Mapping[str, MetaVictims], pods: Mapping[str, Task]) -> Narrowed:
        """See `Session.narrow_preemption`."""
        if not self._answers.is_interested_in_victims(task.pod):
            return victims
        answer = self._answers.victims(task.uid)
        if answer is None or any(answer.asked.get(node) != found for node, found in victims.items()):
            asked = self._answers.asked
            if asked is None:
                return WAITS
            named = {one: pods[one].pod for found in victims.values() for one in found.uids}
            asked.victims.setdefault(task.group, []).append(VictimQuestion(task, task.pod, victims, named))
            return WAITS
        if isinstance(answer.allowed, str):
            return answer.allowed
        return {node: found for node, found in answer.allowed.items() if node in victims}

    @hookimpl
    def prebind_needed(self, binding: Binding) -> bool:
        """Whether the extenders did not accept the pod's node."""
        answer = self._answers.latest(binding.task.uid)
        return answer is not None and binding.node not in answer.scores

    @hookimpl
    async def prebind(self, binding: Binding) -> None:
        """Reject a node that became available only while the group was being placed."""
        raise AttemptError(f"node {binding.node} became available after the extenders were called")


def _texts(answer: Answer | None, node: str) -> list[str]:
    return [answer.failed[node]] if answer is not None and node in answer.failed else []


def _columns(table: NodeTable, answer: Answer | None) -> _State:
    none = np.zeros(table.size, np.bool_)
    state = _State(answer, none.copy(), none.copy(), np.zeros(table.size, np.int64), none.copy())
    for name in answer.offered if answer is not None else ():
        row = table.row_of.get(name, -1)
        node = table.nodes[row] if row >= 0 else None
        if answer is not None and node is not None and answer.covers(node):
            state.covered[row] = True
            if name in answer.scores:
                state.passed[row], state.scores[row] = True, answer.scores[name]
    return state
