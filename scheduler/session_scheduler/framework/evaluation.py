"""The evaluation of a class: the filters and scores that remain after `prepare`, and their answers for nodes.

`board` caches the answers for the actions; `explain` re-evaluates the class. The functions here are stateless.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
from msgspec.structs import replace

from session_scheduler.framework.answers import SKIP, Normalise, Prepared, Scope, Skip
from session_scheduler.framework.hooks import HookCall, PluginCalls, ScopedCall, ScoreCall
from session_scheduler.framework.node_info import NodeInfo
from session_scheduler.framework.node_refusals import NodeRefusals, Verdict
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeTable, NodeView, rows_since
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
OBJECT_BYTES = 3000
"""The approximate memory of a board or of a filter result without its columns."""
_Call = TypeVar("_Call", ScopedCall, ScoreCall)
Spare = dict[str, IntColumn]
"""By resource, for each row of a view, how much more is free than a filter requires: negative if that is too little."""


class Filtering(Protocol):
    """A filter of a class: it may reject nodes."""

    plugin: str
    scope: Scope
    counts_nominated: bool
    """Whether it counts nominated pods on other nodes, too (`Prepared.counts_nominated`)."""

    @property
    def key(self) -> Hashable | None:
        """Filters with equal keys give equal answers; None: this one shares its answers with no other."""

    def run(self, view: NodeView, mask: BoolColumn, task: Task | None) -> None:
        """Clear the rows that the filter rejects. Raises PluginError."""

    def refusals(self, view: NodeView, task: Task | None) -> NodeRefusals:
        """Return why it rejected these rows. Raises PluginError."""

    def fits_if(self, view: NodeView) -> Sequence[Sequence[str] | None]:
        """Return what would make the rejected rows fit; None for unknown. Raises PluginError."""

    def reduce(self, spare: Spare, view: NodeView) -> bool:
        """Lower `spare` to what each row has free beyond what this filter requires, where that is less.

        Return False if it compares anything other than free amounts.
        """


class Scoring(Protocol):
    """A score of a class."""

    plugin: str
    scope: Scope
    weight: int
    normalise: Normalise

    def run(self, view: NodeView, mask: BoolColumn, task: Task | None) -> np.ndarray[Any, np.dtype[Any]]:
        """Return the raw scores. Raises PluginError."""


@dataclass(slots=True)
class Evaluation:
    """The filters and scores to run for a class in a session, or the refusal of the class."""

    cls: TaskClass
    refusal: Refusal | None
    filters: Sequence[Filtering]
    scores: Sequence[Scoring]
    claims_keys: Sequence[Callable[[], Hashable | None]] = ()
    """For each plugin that reads the pod's claims: `Prepared.claims_key`. They raise PluginError."""
    filter_plugins: frozenset[str] = field(init=False)
    """The plugins that may reject a node for the class."""
    any_filters: bool = field(init=False)
    """Whether a filter's answer for one node may change with a placement on another."""
    counts_nominated: bool = field(init=False)
    """Whether a filter counts nominated pods on other nodes, too."""
    heap_safe: bool = field(init=False)
    """Whether a pick changes the answers of its own row only, so that a heap of rows stays in order."""

    def __post_init__(self) -> None:
        self.filter_plugins = frozenset([filtering.plugin for filtering in self.filters])
        self.any_filters = any(filtering.scope is Scope.ANY for filtering in self.filters)
        self.counts_nominated = any(filtering.counts_nominated for filtering in self.filters)
        self.heap_safe = not self.any_filters and all(
            one.scope is Scope.STATIC or (one.scope is Scope.NODE and one.normalise is Normalise.NONE)
            for one in self.scores
        )

    def alike(self) -> Hashable | None:
        """Return a key of classes that get the same answers now; None if there may be no other. Raises PluginError.

        These classes differ only in their claims, and for each plugin that reads them the claims are equal.
        """
        if not self.cls.key.claims or self.refusal is not None:
            return None
        keys = [key() for key in self.claims_keys]
        return None if None in keys else (self.cls.key.constraints, self.cls.key.requests, *keys)


class Part(NamedTuple):
    """What one plugin contributes to the evaluation of a class: nothing, a refusal, or its filter and its score."""

    refusal: Refusal | None = None
    filtering: Filtering | None = None
    scoring: Scoring | None = None
    claims_key: HookCall | None = None


_NOTHING: Final = Part()


def evaluation_of(
    session: object, cls: TaskClass, plugins: Iterable[PluginCalls],
    predicates: Iterable[ScopedCall], node_orders: Iterable[ScopedCall], known: dict[str, Part],
) -> Evaluation:  # fmt: skip
    """Call `prepare` of every plugin. Keep the first refusal, but still collect the others' filters. PluginError.

    `session` is passed to hooks. `known` has the parts, by plugin, of classes that differ from this one only in their
    requests and claims: a plugin that ignores these is asked once.
    """
    parts: list[Part] = []
    for plugin in plugins:
        part = known.get(plugin.name)
        if part is None:
            part = _part(session, cls, plugin)
            if plugin.ignores_requests:
                known[plugin.name] = part
        parts.append(part)
    refusals = (part.refusal for part in parts if part.refusal)
    filters = [part.filtering for part in parts if part.filtering]
    scores = [part.scoring for part in parts if part.scoring]
    filters.extend(_PredicateFiltering(predicate) for predicate in predicates)
    scores.extend(_NodeOrderScoring(order) for order in node_orders)
    claims_keys = [part.claims_key for part in parts if part.claims_key]
    return Evaluation(cls, cls.refusal or next(refusals, None), filters, scores, claims_keys)


def _part(session: object, cls: TaskClass, plugin: PluginCalls) -> Part:
    """Call a plugin's `prepare`. Raises PluginError."""
    state = plugin.prepare(session, cls) if plugin.prepare else None
    if state is SKIP:
        return _NOTHING
    if plugin.prepare and isinstance(state, Refusal):
        return Part(plugin.prepare.refusal(state))
    filtering, scoring, required, claims_key = plugin.filter, plugin.score, None, None
    counts_nominated = isinstance(state, Prepared) and state.counts_nominated
    if isinstance(state, Prepared) and plugin.prepare:
        filtering, scoring = _narrowed(filtering, state.filter_scope), _narrowed(scoring, state.score_scope)
        if state.required_free is not None:
            required = plugin.prepare.guarded(_amounts, plugin.prepare, state.required_free)
        if state.claims_key is not None:
            claims_key = plugin.prepare.following(partial(_hashable, state.claims_key))
        state = state.state
    return Part(
        None,
        _HookFiltering(session, cls, filtering, plugin, state, required, counts_nominated) if filtering else None,
        _HookScoring(session, cls, scoring, state) if scoring else None,
        claims_key,
    )


def _hashable(find: Callable[[], Hashable | None]) -> Hashable | None:
    """Return the answer of a `claims_key`, after a check that it is hashable."""
    found = find()
    hash(found)
    return found


def _narrowed(call: _Call | None, scope: Scope | Skip) -> _Call | None:
    """Return the call with the class's scope; None if the class does not need it. Raises PluginError."""
    if call is None or scope is SKIP:
        return None
    if not isinstance(scope, Scope):
        raise call.call.wrong(f"expected a Scope or SKIP, got {scope!r}")
    return replace(call, scope=scope)


class _HookFiltering:
    """A plugin's hook `filter`, and the hooks that explain it."""

    __slots__ = (
        "_call", "_cls", "_hooks", "_required", "_session", "_state", "counts_nominated", "key", "plugin", "scope",
    )  # fmt: skip

    def __init__(
        self,
        session: object,
        cls: TaskClass,
        filtering: ScopedCall,
        hooks: PluginCalls,
        state: Any,
        required: Mapping[str, int] | None,
        counts_nominated: bool,
    ) -> None:
        """`required` is `Prepared.required_free`."""
        self.counts_nominated = counts_nominated
        self.plugin = hooks.name
        self.scope = filtering.scope
        self._call = filtering.call
        self._hooks = hooks
        self._session = session
        self._cls = cls
        self._state = state
        self._required = required
        self.key = self._key()

    def _key(self) -> Hashable | None:
        """Raises PluginError."""
        call = self._hooks.filter_key
        key = call(self._session, self._cls, self._state) if call is not None else None
        if call is not None and key is not None:
            call.guarded(hash, key)
        return None if key is None else (self.plugin, self.scope, key)

    def run(self, view: NodeView, mask: BoolColumn, _: Task | None) -> None:
        before, call = mask.copy(), self._call
        answer = call(self._session, self._cls, view, mask, self._state)
        if answer is not None:
            raise call.wrong(f"expected None, got a {type(answer).__name__}: a filter clears rows of the mask in place")
        if (mask > before).any():
            raise call.wrong("it set rows that were cleared: a filter may only clear rows")

    def refusals(self, view: NodeView, _: Task | None) -> NodeRefusals:
        unresolvable, reasons, why = self._unresolvable(view), self._hooks.reasons, self._hooks.why
        answer = self._ask(reasons, view)
        if reasons is not None and answer is not None:
            return _of_reasons(reasons, answer, unresolvable)
        answer = self._ask(why, view)
        if why is None or answer is None:
            return _of_reasons(self._call, f"node(s) were rejected by {self.plugin}", unresolvable)
        texts = why.guarded(_texts, why, answer, len(view))
        verdicts = zip(texts, unresolvable.tolist(), strict=True)
        return NodeRefusals.of_rows(Verdict(self.plugin, tuple(own), unresolvable=lasts) for own, lasts in verdicts)

    def _unresolvable(self, view: NodeView) -> BoolColumn:
        call = self._hooks.unresolvable
        answer = self._ask(call, view)
        if call is None or answer is None:
            return np.full(len(view), self.scope is Scope.STATIC)
        if getattr(answer, "shape", None) != (len(view),) or answer.dtype != np.bool_:
            raise call.wrong(f"expected a bool for each of {len(view)} rows, got {_kind(answer)}")
        found: BoolColumn = answer
        return found

    def fits_if(self, view: NodeView) -> Sequence[Sequence[str] | None]:
        call = self._hooks.fits_if
        answer = self._ask(call, view)
        if call is None or answer is None:
            return [None] * len(view)
        return call.guarded(_clauses, call, answer, len(view))

    def reduce(self, spare: Spare, view: NodeView) -> bool:
        for name, amount in (self._required or {}).items():
            own = view.allocatable(name) - view.used(name) - amount
            spare[name] = np.minimum(spare[name], own) if name in spare else own
        return self._required is not None

    def _ask(self, call: HookCall | None, view: NodeView) -> Any:
        return call(self._session, self._cls, view, self._state) if call is not None else None


def _amounts(prepare: HookCall, answer: Any) -> dict[str, int]:
    """Check the amounts of a `required_free`."""
    found = dict(answer)
    if not all(isinstance(name, str) and type(amount) is int for name, amount in found.items()):
        raise prepare.wrong(f"expected `required_free` to map resources to whole numbers, got {answer!r}")
    return found


def _of_reasons(call: HookCall, answer: object, unresolvable: BoolColumn) -> NodeRefusals:
    """Check the answer of a `reasons`, and return the refusals."""
    rows = len(unresolvable)
    if isinstance(answer, str):
        answer = {answer: np.ones(rows, np.bool_)}
    if not isinstance(answer, Mapping) or not all(isinstance(text, str) for text in answer):
        raise call.wrong(f"expected a string, or a mapping of strings to masks, got {_kind(answer)}")
    for text, mask in answer.items():
        if getattr(mask, "shape", None) != (rows,) or mask.dtype != np.bool_:
            raise call.wrong(f"expected a bool for each of {rows} rows for {text!r}, got {_kind(mask)}")
    return NodeRefusals.of_masks(call.plugin, answer, unresolvable)


def _clauses(call: HookCall, answer: Any, nodes: int) -> list[list[str] | None]:
    """Check the answer of a `fits_if`: for each row strings, or None."""
    rows = list(answer)
    texts = _texts(call, [row or () for row in rows], nodes)
    return [text or None for text in texts]


class _HookScoring:
    """A plugin's hook `score`."""

    __slots__ = ("_call", "_cls", "_session", "_state", "normalise", "plugin", "scope", "weight")

    def __init__(self, session: object, cls: TaskClass, scoring: ScoreCall, state: Any) -> None:
        self.plugin = scoring.call.plugin
        self.scope = scoring.scope
        self.weight = scoring.weight
        self.normalise = scoring.normalise
        self._call = scoring
        self._session = session
        self._cls = cls
        self._state = state

    def run(self, view: NodeView, mask: BoolColumn, _: Task | None) -> IntColumn:
        call = self._call.call
        raw = call(self._session, self._cls, view, mask, self._state)
        if raw is None:
            return np.zeros(len(view), np.int64)
        if not isinstance(raw, np.ndarray) or raw.shape != (len(view),) or raw.dtype.kind not in "iu":
            raise call.wrong(f"expected an integer for each of {len(view)} rows, got {_kind(raw)}")
        low, high = _SUMS if self._call.summed else _RAW_SCORES[self.normalise]
        if len(raw) and (raw.max() > high or raw.min() < low):
            _check_range(call, raw[mask], self.normalise, low, high)
        return raw.astype(np.int64, copy=False)


def _kind(answer: object) -> str:
    """Return an array's type and shape, or any other value's type."""
    return f"{answer.dtype}{list(answer.shape)}" if isinstance(answer, np.ndarray) else type(answer).__name__


def _texts(why: HookCall, answer: Any, nodes: int) -> list[list[str]]:
    """Check the answer of a `why`, and return lists of strings."""
    nodes_texts = list(answer)
    if any(isinstance(node, str) for node in nodes_texts):
        raise why.wrong("expected a list of strings for each node, got a string")
    texts: list[list[str]] = [list(node) for node in nodes_texts]
    if len(texts) != nodes:
        raise why.wrong(f"expected answers for {nodes} nodes, got {len(texts)}")
    if not all(isinstance(text, str) for node in texts for text in node):
        raise why.wrong("expected only strings in the lists")
    return texts


def _check_range(call: HookCall, scored: np.ndarray[Any, np.dtype[Any]], how: Normalise, low: int, high: int) -> None:
    """Reject scores outside of the limits, in kube-scheduler's words where they are not normalised."""
    for score in scored[(scored > high) | (scored < low)].tolist():
        when = "after normalizing; scale it, or declare `normalise`" if how is Normalise.NONE else "before normalizing"
        raise call.wrong(f"it returns an invalid score {score}, it should in the range of [{low}, {high}] {when}")


class _PredicateFiltering:
    """A predicate that a plugin registered for the session."""

    __slots__ = ("_call", "plugin", "scope")
    counts_nominated = False
    key = None

    def __init__(self, predicate: ScopedCall) -> None:
        self.plugin = predicate.call.plugin
        self.scope = predicate.scope
        self._call = predicate.call

    def run(self, view: NodeView, mask: BoolColumn, task: Task | None) -> None:
        for index in np.flatnonzero(mask):
            if self._reason(view, int(index), task) is not None:
                mask[index] = False

    def refusals(self, view: NodeView, task: Task | None) -> NodeRefusals:
        lasts = self.scope is Scope.STATIC
        texts = (self._reason(view, index, task) or "" for index in range(len(view)))
        return NodeRefusals.of_rows(Verdict(self.plugin, (text,), unresolvable=lasts) for text in texts)

    def fits_if(self, view: NodeView) -> Sequence[Sequence[str] | None]:
        return [None] * len(view)

    def reduce(self, _: Spare, __: NodeView) -> bool:
        return False

    def _reason(self, view: NodeView, index: int, task: Task | None) -> str | None:
        if task is None:
            return None
        answer = self._call(task, task.group, NodeInfo(view, index))
        if answer is not None and not isinstance(answer, str):
            raise self._call.wrong(f"expected a string or None as the reason, got {answer!r}")
        return answer


class _NodeOrderScoring:
    """A node order that a plugin registered for the session."""

    __slots__ = ("_call", "normalise", "plugin", "scope", "weight")

    def __init__(self, order: ScopedCall) -> None:
        self.plugin = order.call.plugin
        self.scope = order.scope
        self.weight = 1
        self.normalise = Normalise.NONE
        self._call = order.call

    def run(self, view: NodeView, mask: BoolColumn, task: Task | None) -> np.ndarray[Any, np.dtype[Any]]:
        raw = np.zeros(len(view), np.float64)
        for index in np.flatnonzero(mask):
            answer = self._call(task, NodeInfo(view, int(index)))
            number = isinstance(answer, int | float | np.integer | np.floating)
            if not number or not -_LARGEST_NODE_ORDER <= answer <= _LARGEST_NODE_ORDER:
                raise self._call.wrong(
                    f"expected a number from -{_LARGEST_NODE_ORDER} to {_LARGEST_NODE_ORDER}, got {answer!r}"
                )
            raw[index] = answer
        return raw


def spare_of(filters: Iterable[Filtering], view: NodeView) -> Spare | None:
    """Return what each row has free beyond what all these filters require, without those that ignore the pods there.
    None if one of them compares anything other than amounts.
    """
    found: Spare = {}
    known = all(filtering.reduce(found, view) for filtering in filters if filtering.scope is not Scope.STATIC)
    return found if known else None


def evaluate(evaluation: Evaluation, view: NodeView, mask: BoolColumn, task: Task | None) -> NodeRefusals:
    """Return the refusals by the first plugin in order, by place in the view; clear the mask of rejected nodes."""
    return refusals_by(evaluation.filters, view, mask, task)


def refusals_by(filters: Iterable[Filtering], view: NodeView, mask: BoolColumn, task: Task | None) -> NodeRefusals:
    """Like `evaluate`, for some filters."""
    found = NodeRefusals.none(len(view))
    for filtering in filters:
        if not mask.any():  # as in kube-scheduler, later filters do not see a rejected node
            break
        before = mask.copy()
        filtering.run(view, mask, task)
        _put_refusals(found, filtering, view, before & ~mask, task)
    return found


def _put_refusals(
    found: NodeRefusals, filtering: Filtering, view: NodeView, gone: BoolColumn, task: Task | None
) -> None:
    """Put why a filter rejected these rows."""
    places = np.flatnonzero(gone)
    if len(places):
        found.put(places, filtering.refusals(view.some(view.row_numbers[places]), task))


class SharedFilters:
    """The results of filters with equal keys, which classes share in a session: a tree of filters, one after the other.

    Classes that differ in their amounts only share the masks of all other filters; equal amounts are compared once.
    """

    def __init__(self, table: NodeTable, touched: Sequence[int]) -> None:
        """`touched` has the rows of all changes in the session, in order."""
        self._table = table
        self._touched = touched
        self._results: dict[tuple[FilterResult, Hashable] | None, FilterResult] = {}
        """By the result of the filters before, and the filter's key; that of no filters by None."""

    def after(self, filters: Sequence[Filtering]) -> tuple[FilterResult, int]:
        """Return the result of the first of these filters, and their number.

        They are as many as can be shared, until no row is left. Raises PluginError.
        """
        found = self._result(None)
        for place, filtering in enumerate(filters):
            if filtering.key is None or filtering.scope is Scope.ANY or found.is_empty:
                return found, place
            found = self._result((found, filtering))
        return found, len(filters)

    def _result(self, last: tuple[FilterResult, Filtering] | None) -> FilterResult:
        key = (last[0], last[1].key) if last is not None else None
        found = self._results.get(key)
        if found is None:
            found = self._results[key] = FilterResult(self._table, self._touched, last)
        else:
            found.catch_up()
        return found

    def keep(self, used: Iterable[FilterResult]) -> int:
        """Drop all results that these do not need. Return the memory that was counted for them."""
        kept = {each for one in used for each in one.chain()}
        dropped = sum(one.counted_bytes for one in self._results.values() if one not in kept)
        self._results = {key: one for key, one in self._results.items() if one in kept}
        return dropped


class FilterResult:
    """The rows that pass some filters, and the refusals of the last one. It follows the changes of rows."""

    def __init__(self, table: NodeTable, touched: Sequence[int], last: tuple[FilterResult, Filtering] | None) -> None:
        """`last` is the last filter, after the result of those before it; None for all rows with a node."""
        self._table = table
        self._touched = touched
        self._last = last
        self._seen, self._usage = len(touched), table.usage_version
        self._refusals: NodeRefusals | None = None
        """None: not asked for yet."""
        self._is_static: bool = last is None or (last[0]._is_static and last[1].scope is Scope.STATIC)
        self.mask: BoolColumn = table.valid() if last is None else last[0].mask.copy()
        """The rows that pass. Read only."""
        if last is not None:
            last[1].run(table.all_rows(), self.mask, None)
        self.is_empty = not self.mask.any()
        """Whether no row passes."""
        self.counted_bytes = 0
        """The memory when the evaluator counted it last."""

    @property
    def nbytes(self) -> int:
        """The approximate memory of the result now."""
        return OBJECT_BYTES + self.mask.nbytes + (self._refusals.nbytes if self._refusals is not None else 0)

    def chain(self) -> Iterator[FilterResult]:
        """Iterate over this result and those that it follows."""
        one: FilterResult | None = self
        while one is not None:
            yield one
            one = one._last[0] if one._last is not None else None

    def catch_up(self) -> None:
        """Re-evaluate the rows whose usage has changed, after the previous result. Raises PluginError."""
        if self._last is None or self._is_static or self._seen == len(self._touched):
            return
        before, filtering = self._last
        seen, usage = len(self._touched), self._table.usage_version
        rows = self._table.used_since(self._usage, rows_since(self._touched, self._seen))
        if len(rows):
            view, passed = NodeView(self._table, rows), before.mask[rows]
            mask = passed.copy()
            filtering.run(view, mask, None)
            if self._refusals is not None:
                self._refusals.put(rows, _refused(filtering, view, passed & ~mask))
            self.mask[rows] = mask
            self.is_empty = not self.mask.any()
        self._seen, self._usage = seen, usage

    def refusals(self) -> list[NodeRefusals]:
        """Return the refusals of each of the filters. Raises PluginError."""
        if self._last is None:
            return []
        before, filtering = self._last
        if self._refusals is None:
            self._refusals = _refused(filtering, self._table.all_rows(), before.mask & ~self.mask)
        return [*before.refusals(), self._refusals]


def _refused(filtering: Filtering, view: NodeView, gone: BoolColumn) -> NodeRefusals:
    """Return the refusals of a filter that rejects these rows."""
    found = NodeRefusals.none(len(view))
    _put_refusals(found, filtering, view, gone, None)
    return found


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
