"""The evaluation of a class: the filters and scores that remain after `prepare`, and their answers for nodes.

`board` caches the answers for the actions; `explain` evaluates again. The functions here are stateless.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from session_scheduler.framework.answers import SKIP, Normalise, Prepared, Scope, Skip
from session_scheduler.framework.hooks import HookCall, PluginCalls, ScopedCall, ScoreCall
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView
from session_scheduler.model.gpu_shares import EVERY, MEMORY_SUFFIX, WHOLE, GpuUse
from session_scheduler.model.groups import Task
from session_scheduler.model.refusals import Refusal

_RAW_SCORES = {
    Normalise.NONE: (0, 100),
    Normalise.MAX: (0, 2**56),
    Normalise.MAX_REVERSED: (0, 2**56),
    Normalise.SPREAD: (-(2**55), 2**55),
}
"""The limits of raw scores. Normalised scores are then 0 to 100, as in kube-scheduler, and all sums fit in 64 bits."""
_SUMS = (-(2**56), 2**56)
_LARGEST_NODE_ORDER = 2**56
_Call = TypeVar("_Call", ScopedCall, ScoreCall)


class NodeInfo:
    """One node for predicates and node orders: the object, and the resources that are left on it."""

    __slots__ = ("_index", "_view")

    def __init__(self, view: NodeView, index: int) -> None:
        self._view = view
        self._index = index

    @property
    def name(self) -> str:
        """The node's name."""
        return self._view.node(self._index).metadata.name

    @property
    def labels(self) -> dict[str, str]:
        """The node's labels."""
        return self._view.node(self._index).metadata.labels

    @property
    def node(self) -> Any:
        """The Node object."""
        return self._view.node(self._index)

    def allocatable(self, resource: str) -> int:
        """Return the node's allocatable amount: cpu in millicores, all others in base units."""
        return int(self._view.allocatable(resource)[self._index])

    def idle(self, resource: str) -> int:
        """Return the amount that pods on the node do not request; this session's placements count."""
        return self.allocatable(resource) - int(self._view.used(resource)[self._index])

    def gpu_used(self, gpu: str) -> float:
        """Return the part of one GPU (by index), 0 to 1, that pods use; this session's placements count."""
        memory = next((int(text) for label, text in self.labels.items() if self._is_gpu_memory(label, text)), 0)
        used = 0.0
        for index in (int(gpu), EVERY):
            used += int(self._view.counter(GpuUse(index, in_mib=False))[self._index]) / WHOLE
            used += int(self._view.counter(GpuUse(index, in_mib=True))[self._index]) / max(memory, 1)
        return min(used, 1.0)

    def _is_gpu_memory(self, label: str, text: str) -> bool:
        resource = label.removesuffix(MEMORY_SUFFIX)
        return resource != label and text.isdecimal() and self.allocatable(resource) > 0


@dataclass(slots=True)
class Filtering:
    """A filter of a class: it may reject nodes."""

    plugin: str
    scope: Scope
    run: Callable[[NodeView, BoolColumn, Task | None], None]
    why: Callable[[NodeView, Task | None], list[list[str]]]
    unresolvable: Callable[[NodeView, Task | None], BoolColumn]
    """For rows that it rejected: those that it would reject whichever pods were removed."""
    plugins: Callable[[NodeView, Task | None], list[str]] | None = None
    """For rows that it rejected: the plugin that did, if that is not always `plugin`."""
    fits_if: Callable[[NodeView], Sequence[Sequence[str] | None]] | None = None
    """For rows that it rejects: what would make them fit; None for unknown."""


@dataclass(slots=True)
class Scoring:
    """A score of a class."""

    plugin: str
    scope: Scope
    weight: int
    normalise: Normalise
    run: Callable[[NodeView, BoolColumn, Task | None], np.ndarray[Any, np.dtype[Any]]]


@dataclass(slots=True)
class Evaluation:
    """The filters and scores to run for a class in a session, or the refusal of the class."""

    cls: TaskClass
    refusal: Refusal | None = None
    filters: list[Filtering] = field(default_factory=list)
    scores: list[Scoring] = field(default_factory=list)
    filter_plugins: frozenset[str] = frozenset()
    """The plugins that may reject a node for the class."""

    @property
    def heap_safe(self) -> bool:
        """Whether a pick changes the answers of its own row only, so that a heap of rows stays in order."""
        return all(f.scope is not Scope.ANY for f in self.filters) and all(
            s.scope is Scope.STATIC or (s.scope is Scope.NODE and s.normalise is Normalise.NONE) for s in self.scores
        )

    @property
    def any_filters(self) -> bool:
        """Whether a filter's answer for one node may change with a placement on another."""
        return any(f.scope is Scope.ANY for f in self.filters)


def evaluation_of(
    session: object, cls: TaskClass, plugins: Iterable[PluginCalls],
    predicates: Iterable[ScopedCall], node_orders: Iterable[ScopedCall],
) -> Evaluation:  # fmt: skip
    """Call `prepare` of every plugin. Keep the first refusal, but still collect the others' filters. PluginError.

    `session` is passed to hooks.
    """
    found = Evaluation(cls, cls.refusal)
    for plugin in plugins:
        state = plugin.prepare(session, cls) if plugin.prepare else None
        if state is SKIP:
            continue
        if plugin.prepare and isinstance(state, Refusal):
            found.refusal = found.refusal or plugin.prepare.refusal(state)
            continue
        filtering, scoring = plugin.filter, plugin.score
        if isinstance(state, Prepared):
            filtering, scoring = _narrowed(filtering, state.filter_scope), _narrowed(scoring, state.score_scope)
            state = state.state
        if filtering:
            found.filters.append(_hook_filtering(session, cls, filtering, plugin, state))
        if scoring:
            found.scores.append(_hook_scoring(session, cls, scoring, state))
    found.filters.extend(_predicate_filtering(predicate) for predicate in predicates)
    found.scores.extend(_node_order_scoring(order) for order in node_orders)
    found.filter_plugins = frozenset([filtering.plugin for filtering in found.filters])
    return found


def _narrowed(call: _Call | None, scope: Scope | Skip) -> _Call | None:
    """Return the call with the class's scope; None if the class does not need it. Raises PluginError."""
    if call is None or scope is SKIP:
        return None
    if not isinstance(scope, Scope):
        raise call.call.wrong(f"expected a Scope or SKIP, got {scope!r}")
    return replace(call, scope=scope)


def _hook_filtering(
    session: object, cls: TaskClass, filtering: ScopedCall, plugin: PluginCalls, state: Any
) -> Filtering:
    call, why, lasting = filtering.call, plugin.why, plugin.unresolvable

    def run(view: NodeView, mask: BoolColumn, _: Task | None) -> None:
        before = mask.copy()
        answer = call(session, cls, view, mask, state)
        if answer is not None:
            raise call.wrong(f"expected None, got a {type(answer).__name__}: a filter clears rows of the mask in place")
        if (mask > before).any():
            raise call.wrong("it set cleared rows of the mask: a filter may only clear rows")

    def reasons(view: NodeView, _: Task | None) -> list[list[str]]:
        answer = why(session, cls, view, state) if why is not None else None
        if why is None or answer is None:
            return [[f"node(s) were rejected by {call.plugin}"]] * len(view)
        return why.guarded(_texts, why, answer, len(view))

    def unresolvable(view: NodeView, _: Task | None) -> BoolColumn:
        answer = lasting(session, cls, view, state) if lasting is not None else None
        if lasting is None or answer is None:
            return np.full(len(view), filtering.scope is Scope.STATIC)
        if getattr(answer, "shape", None) != (len(view),) or answer.dtype != np.bool_:
            raise lasting.wrong(f"expected a bool for each of {len(view)} rows, got {_kind(answer)}")
        found: BoolColumn = answer
        return found

    def fits_if(view: NodeView) -> Sequence[Sequence[str] | None]:
        ask = plugin.fits_if
        answer = ask(session, cls, view, state) if ask is not None else None
        if ask is None or answer is None:
            return [None] * len(view)
        return ask.guarded(_clauses, ask, answer, len(view))

    return Filtering(call.plugin, filtering.scope, run, reasons, unresolvable, fits_if=fits_if)


def _clauses(call: HookCall, answer: Any, nodes: int) -> list[list[str] | None]:
    """Check the answer of a `fits_if`: for each row texts, or None."""
    rows = list(answer)
    texts = _texts(call, [row or () for row in rows], nodes)
    return [text or None for text in texts]


def _hook_scoring(session: object, cls: TaskClass, scoring: ScoreCall, state: Any) -> Scoring:
    call = scoring.call
    low, high = _SUMS if scoring.summed else _RAW_SCORES[scoring.normalise]

    def run(view: NodeView, mask: BoolColumn, _: Task | None) -> IntColumn:
        raw = call(session, cls, view, mask, state)
        if raw is None:
            return np.zeros(len(view), np.int64)
        if not isinstance(raw, np.ndarray) or raw.shape != (len(view),) or raw.dtype.kind not in "iu":
            raise call.wrong(f"expected an integer for each of {len(view)} rows, got {_kind(raw)}")
        if len(raw) and (raw.max() > high or raw.min() < low):
            _check_range(call, raw[mask], scoring.normalise, low, high)
        return raw.astype(np.int64, copy=False)

    return Scoring(call.plugin, scoring.scope, scoring.weight, scoring.normalise, run)


def _kind(answer: object) -> str:
    """Return an array's type and shape, or any other value's type."""
    return f"{answer.dtype}{list(answer.shape)}" if isinstance(answer, np.ndarray) else type(answer).__name__


def _texts(why: HookCall, answer: Any, nodes: int) -> list[list[str]]:
    """Check the answer of a `why`, and return lists of texts."""
    nodes_texts = list(answer)
    if any(isinstance(node, str) for node in nodes_texts):
        raise why.wrong("expected a list of texts for each node, got a text")
    texts: list[list[str]] = [list(node) for node in nodes_texts]
    if len(texts) != nodes:
        raise why.wrong(f"expected answers for {nodes} nodes, got {len(texts)}")
    if not all(isinstance(text, str) for node in texts for text in node):
        raise why.wrong("expected only texts in the lists")
    return texts


def _check_range(call: HookCall, scored: np.ndarray[Any, np.dtype[Any]], how: Normalise, low: int, high: int) -> None:
    """Reject scores outside of the limits, in kube-scheduler's words where they are not normalised."""
    for score in scored[(scored > high) | (scored < low)].tolist():
        when = "after normalizing: scale it, or declare `normalise`" if how is Normalise.NONE else "before normalizing"
        raise call.wrong(f"it returns an invalid score {score}, it should in the range of [{low}, {high}] {when}")


def _predicate_filtering(predicate: ScopedCall) -> Filtering:
    def verdict(view: NodeView, index: int, task: Task | None) -> str | None:
        if task is None:
            return None
        answer = predicate.call(task, task.group, NodeInfo(view, index))
        if answer is not None and not isinstance(answer, str):
            raise predicate.call.wrong(f"expected a text or None as the reason, got {answer!r}")
        return answer

    def run(view: NodeView, mask: BoolColumn, task: Task | None) -> None:
        for index in np.flatnonzero(mask):
            if verdict(view, int(index), task) is not None:
                mask[index] = False

    def reasons(view: NodeView, task: Task | None) -> list[list[str]]:
        return [[verdict(view, index, task) or ""] for index in range(len(view))]

    def unresolvable(view: NodeView, _: Task | None) -> BoolColumn:
        return np.full(len(view), predicate.scope is Scope.STATIC)

    return Filtering(predicate.call.plugin, predicate.scope, run, reasons, unresolvable)


def _node_order_scoring(order: ScopedCall) -> Scoring:
    def run(view: NodeView, mask: BoolColumn, task: Task | None) -> np.ndarray[Any, np.dtype[Any]]:
        raw = np.zeros(len(view), np.float64)
        for index in np.flatnonzero(mask):
            answer = order.call(task, NodeInfo(view, int(index)))
            number = isinstance(answer, int | float | np.integer | np.floating)
            if not number or not -_LARGEST_NODE_ORDER <= answer <= _LARGEST_NODE_ORDER:
                raise order.call.wrong(f"expected a number of at most ±{_LARGEST_NODE_ORDER}, got {answer!r}")
            raw[index] = answer
        return raw

    return Scoring(order.call.plugin, order.scope, 1, Normalise.NONE, run)


# ------------------------------------------------------------------ normalising


Bounds = tuple[int, int]
"""Lowest and highest raw score over the feasible nodes; (0, 0) if no node is feasible."""


def bounds(raw: IntColumn, mask: BoolColumn, how: Normalise) -> Bounds:
    """Return the bounds that `normalised` needs."""
    if how is Normalise.NONE or not mask.any():
        return (0, 0)
    highest = int(np.max(raw, initial=np.iinfo(np.int64).min, where=mask))
    if how is not Normalise.SPREAD:
        return (0, highest)
    return (int(np.min(raw, initial=np.iinfo(np.int64).max, where=mask)), highest)


def normalised(raw: IntColumn, limits: Bounds, how: Normalise) -> IntColumn:
    """Normalise raw scores to 0 to 100 (kube-scheduler's integer arithmetic)."""
    low, high = limits
    if how is Normalise.NONE:
        return raw
    if how is Normalise.MAX:
        return raw * 100 // high if high > 0 else np.zeros_like(raw)
    if how is Normalise.MAX_REVERSED:
        return 100 - raw * 100 // high if high > 0 else np.full_like(raw, 100)
    return (raw - low) * 100 // (high - low) if high > low else np.zeros_like(raw)


# ------------------------------------------------------------------ reasons


@dataclass(slots=True)
class Verdict:
    """The result for one node: the first plugin that rejected it and its texts; None if the node fits."""

    plugin: str | None = None
    reasons: list[str] = field(default_factory=list)
    unresolvable: bool = False
    """Whether the plugin would reject the node whichever pods were removed."""


def evaluate(evaluation: Evaluation, view: NodeView, mask: BoolColumn, task: Task | None) -> dict[int, Verdict]:
    """Return the rejection of each view position by the first plugin in order; clear the mask of rejected nodes."""
    refused: dict[int, Verdict] = {}
    rows = view.row_numbers
    for filtering in evaluation.filters:
        before = mask.copy()
        filtering.run(view, mask, task)
        gone = np.flatnonzero(before & ~mask)
        if not len(gone):
            continue
        some = view.some(rows[gone])
        names = [filtering.plugin] * len(gone) if filtering.plugins is None else filtering.plugins(some, task)
        lasting = filtering.unresolvable(some, task).tolist()
        for index, name, reasons, lasts in zip(gone.tolist(), names, filtering.why(some, task), lasting, strict=True):
            refused[index] = Verdict(name, reasons, unresolvable=lasts)
    return refused


def totals(
    evaluation: Evaluation, view: NodeView, mask: BoolColumn, task: Task | None
) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the weighted sum of normalised scores; undefined for cleared rows of the mask."""
    total: np.ndarray[Any, np.dtype[Any]] = np.zeros(len(view), np.int64)
    for part in score_parts(evaluation, view, mask, task):
        total = total + part.weight * part.normalised
    return total


@dataclass(frozen=True, slots=True)
class ScorePart:
    """One plugin's part of the totals: columns over the view."""

    plugin: str
    weight: int
    raw: IntColumn
    normalised: IntColumn


def score_parts(evaluation: Evaluation, view: NodeView, mask: BoolColumn, task: Task | None) -> list[ScorePart]:
    """Return the parts of `totals`, before they are multiplied by their weights."""
    parts = []
    for scoring in evaluation.scores:
        raw = scoring.run(view, mask, task)
        scored = normalised(raw, bounds(raw, mask, scoring.normalise), scoring.normalise)
        parts.append(ScorePart(scoring.plugin, scoring.weight, raw, scored))
    return parts


NO_NODES = "no nodes available to schedule pods"
"""kube-scheduler's sentence for a cluster without nodes."""


def summarise(nodes: int, reasons: Iterable[Iterable[str]], available: int = 0) -> str:
    """kube-scheduler's sentence: "0/6 nodes are available: 4 Insufficient cpu, 2 node(s) were unschedulable."."""
    if not nodes:
        return NO_NODES
    counts = Counter(text for node in reasons for text in node)
    parts = sorted(f"{count} {text}" for text, count in counts.items())
    sentence = f"{available}/{nodes} nodes are available"
    return f"{sentence}: {', '.join(parts)}." if parts else f"{sentence}."
