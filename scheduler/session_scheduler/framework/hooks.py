"""The hook implementations of one profile, resolved once, in the order of the configuration.

pluggy validates specifications and implementations. This module makes the calls itself: pluggy would call in
last-in-first-out order, drop None and the name of the plugin, stop at the first exception, and cost six times as much.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from operator import itemgetter
from time import perf_counter
from types import coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import structlog

from session_scheduler.errors import AttemptError, FluenceError
from session_scheduler.framework.answers import Normalise, Scope
from session_scheduler.framework.failures import failure_log, place_of
from session_scheduler.framework.watchdog import Overdue, guards, running, watch
from session_scheduler.model.pod_reads import IDENTITY, reading
from session_scheduler.model.refusals import Refusal

if TYPE_CHECKING:
    from session_scheduler.framework.bindings import Binding
    from session_scheduler.model.classes import TaskClass
    from session_scheduler.model.cluster_view import ClusterView
    from session_scheduler.model.groups import GroupRef
    from session_scheduler.model.objects import OwnerReference, Pod

_E = TypeVar("_E", Scope, Normalise)
_T = TypeVar("_T")

_log = structlog.get_logger(__name__)

PATIENCE = 30.0
"""Timeout of a plugin's asynchronous hook in seconds, unless the caller has a shorter one."""
_OF_EVERYTHING = frozenset({"recover", "on_nodes_changed"})
"""Hooks that may get the whole cluster at once."""
_EVERYTHING = 12
"""Factor by which their timeout is longer."""
_CONCURRENT_WITH_SESSIONS = frozenset({"prebind", "prebind_needed"})
"""Hooks that are called for many pods in a row. After one has timed out, further calls fail without waiting."""
_OF_CLASSES = frozenset(
    {
        "footprint",
        "prepare",
        "filter",
        "filter_key",
        "score",
        "reasons",
        "why",
        "unresolvable",
        "fits_if",
        "domain_quota",
        "reservable",
    }
)
"""Hooks whose answers all pods of a class share."""
_CORE = "session_scheduler."
_LARGEST_WEIGHT = 2**16
"""With this limit weights times scores times plugins stay well within 64 bits."""

_BUG = "plugin {plugin} failed in {hook}: {problem}"
_AS_KUBE_SCHEDULER: Mapping[str, str] = {
    "prepare": 'running PreFilter plugin "{plugin}": {problem}',
    "filter": 'running "{plugin}" filter plugin: {problem}',
    "score": 'running Score plugin "{plugin}": {problem}',
    "prebind_needed": 'running PreBindPreFlight "{plugin}": {problem}',
    "prebind": 'running PreBind plugin "{plugin}": {problem}',
}
"""The message of an AttemptError by hook."""


class PluginError(FluenceError):
    """A plugin raised, timed out, or returned an invalid answer.

    `raised` is the plugin's exception. An AttemptError gets kube-scheduler's message.
    """

    def __init__(self, plugin: str, hook: str, problem: str, raised: BaseException | None = None) -> None:
        text = _AS_KUBE_SCHEDULER.get(hook, _BUG) if isinstance(raised, AttemptError) else _BUG
        super().__init__(" ".join(text.format(plugin=plugin, hook=hook, problem=problem).split()))
        self.late = False
        """Whether the plugin timed out."""
        self.plugin = plugin
        self.hook = hook
        self.problem = problem


class HookCall:
    """One plugin's implementation of one hook: calls it, measures its time, and names it in errors."""

    __slots__ = ("_function", "budget", "calls", "hook", "plugin", "seconds", "shut", "since")

    def __init__(self, plugin: str, hook: str, function: Callable[..., Any], budget: float | None = None) -> None:
        """`budget` is the timeout in seconds, None if there is none."""
        self.plugin = plugin
        self.hook = hook
        self.budget = budget
        self._function = function
        self.calls = 0
        self.seconds = 0.0
        self.shut = 0.0
        """Until when further calls fail at once after a timeout."""
        self.since = 0.0
        """When the last call began, for `watchdog`."""

    def __call__(self, *args: Any) -> Any:
        """Call the hook and return its answer. Raises PluginError if the plugin raises or times out."""
        started = perf_counter()
        if started < self.shut:
            raise self._late()
        outer, running.call = running.call, self
        self.since = started
        try:
            return self._function(*args)
        except ClassSplitError:  # of another plugin, which this one had the core call
            raise
        except (Exception, SystemExit) as error:
            running.call = outer  # str(error) may run the plugin's code, and nothing here would catch Overdue
            raise self._raised(error) from error
        except Overdue as overdue:
            raise self._interrupted(overdue) from None
        finally:
            running.call = outer
            self.calls += 1
            self.seconds += perf_counter() - started

    def _step(self, function: Callable[..., _T], *args: Any) -> _T:
        """Run one step of an asynchronous hook, which may hang as well. Raises Overdue or the plugin's exception."""
        outer, running.call = running.call, self
        self.since = perf_counter()
        try:
            return function(*args)
        finally:
            running.call = outer

    def _late(self) -> PluginError:
        """Return the error for a plugin that timed out."""
        error = self.wrong(f"no answer within {self.budget:g} s")
        error.late = True
        return error

    def _interrupted(self, overdue: Overdue) -> PluginError:
        """Return the error for a plugin that the watchdog interrupted."""
        late = self._late()
        if self.hook in _CONCURRENT_WITH_SESSIONS and self.budget is not None:
            self.shut = self.since + 2 * self.budget
        failure_log.write(self.plugin, self.hook, late.problem, overdue, place_of(overdue))
        return late

    def _raised(self, error: BaseException) -> PluginError:
        """Return the error for a plugin's exception."""
        if isinstance(error, AttemptError):
            return PluginError(self.plugin, self.hook, str(error), error)
        problem = f"{type(error).__name__}: {error}"
        if not isinstance(error, PluginError):  # of another plugin, which this one called: it has its place
            place = place_of(error)
            failure_log.write(self.plugin, self.hook, problem, error, place)
            problem = problem if place is None else f"{problem} at {place}"
        return PluginError(self.plugin, self.hook, problem, error)

    async def wait(self, *args: Any, patience: float = PATIENCE, limits: set[asyncio.Timeout] | None = None) -> Any:
        """Await an asynchronous hook and return its answer. Raises PluginError if it raises or times out.

        While it waits, its timeout is in `limits`, so that the caller can end it early.
        """
        started = perf_counter()
        limit: asyncio.Timeout | None = None
        if started < self.shut:
            raise self._late()
        try:
            work = self._step(self._function, *args).__await__()
            try:
                first = self._step(next, work)
            except StopIteration as ended:  # most hooks do not wait for anything
                return ended.value
            async with asyncio.timeout(patience) as limit:
                if limits is not None:
                    limits.add(limit)
                return await _rest(self._step, work, first)
        except TimeoutError as error:
            if limit is not None and limit.expired():
                raise self.wrong(f"no answer within {patience:g} s") from error
            raise self._raised(error) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # this task is cancelled, not the plugin's operation
            raise PluginError(self.plugin, self.hook, "the awaited operation was cancelled") from error
        except (Exception, SystemExit) as error:
            raise self._raised(error) from error
        except Overdue as overdue:
            raise self._interrupted(overdue) from None
        finally:
            if limits is not None and limit is not None:
                limits.discard(limit)
            self.calls += 1
            self.seconds += perf_counter() - started

    def wrong(self, problem: str) -> PluginError:
        """Return the error for an invalid answer."""
        return PluginError(self.plugin, self.hook, problem)

    def guarded(self, function: Callable[..., _T], *args: Any) -> _T:
        """Call a function that runs plugin code after the hook itself, and report its failure as this hook's.

        Raises PluginError.
        """
        answer: _T = self.following(function)(*args)
        return answer

    def following(self, function: Callable[..., Any]) -> HookCall:
        """Return a call of a function that runs plugin code after the hook itself, as for `guarded`."""
        return type(self)(self.plugin, self.hook, function, self.budget)

    def refusal(self, answer: Refusal) -> Refusal:
        """Return a plugin's refusal with the plugin's name. Raises PluginError for an invalid one."""
        if not isinstance(answer.reason, str):
            raise self.wrong(f"expected the Refusal's `reason` to be a string, got {answer.reason!r}")
        fits_if = answer.fits_if
        if not isinstance(fits_if, tuple) or not all(isinstance(text, str) for text in fits_if):
            raise self.wrong(f"expected the Refusal's `fits_if` to be a tuple of strings, got {fits_if!r}")
        until = answer.until
        if until is not None and (not isinstance(until, int | float) or not math.isfinite(until)):
            raise self.wrong(f"expected the Refusal's `until` to be seconds since 1970 or None, got {until!r}")
        return Refusal(answer.reason, self.plugin, fits_if=fits_if, until=until)


class ClassSplitError(PluginError):
    """A plugin read a field in which pods of the class may differ. Its answer is discarded.

    `Cache.split_classes` then makes the field a part of the class key, and the scheduler evaluates the pods again.
    """


class ObservedCall(HookCall):
    """A call whose answer is the same for all pods of a class: `cls.pod` notes what the plugin reads of it."""

    __slots__ = ()

    def __call__(self, *args: Any) -> Any:
        """Call the hook and return its answer. Raises ClassSplitError or PluginError."""
        outer, reading.beyond = reading.beyond, {}
        try:
            answer = super().__call__(*args)
        except PluginError:
            if not reading.beyond:
                raise
        finally:
            beyond, reading.beyond = reading.beyond, outer
        if not beyond:
            return answer
        if not IDENTITY.isdisjoint(beyond):
            _log.warning(
                "a plugin reads the name or uid of pods, so each pod is evaluated alone; read only fields that equal "
                "pods share",
                plugin=self.plugin, hook=self.hook,
            )  # fmt: skip
        fields = ", ".join(".".join(path) or "the whole pod" for path in beyond)
        raise ClassSplitError(self.plugin, self.hook, f"it read {fields}: the scheduler evaluates the pods again")


guards.update((HookCall.__call__.__code__, HookCall._step.__code__))


@coroutine
def _rest(step: Callable[..., Any], work: Generator[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Run the rest of an awaitable after its first step, which yielded `waits_for`; `step` runs the other steps."""
    try:
        while True:
            try:
                sent = yield waits_for
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # noqa: BLE001 (for example a cancellation, which the work handles)
                waits_for = step(work.throw, error)
            else:
                waits_for = step(work.send, sent)
    except StopIteration as ended:
        return ended.value


class Implementation(NamedTuple):
    """A plugin's implementation of a hook, as pluggy found it."""

    function: Callable[..., Any]
    takes: tuple[str, ...]
    """The specification's arguments that the implementation names, in the implementation's order."""
    given: tuple[str, ...]
    """The specification's arguments, in its order."""


class ResolvedPlugin(NamedTuple):
    """A plugin with its hooks, validated, in the order of the specifications."""

    name: str
    instance: object
    weight: int | None
    """The configured weight; None for the one that the plugin declares."""
    implementations: Mapping[str, Implementation]


class ScopedCall(msgspec.Struct, frozen=True):
    """A filter, predicate or node order with its scope."""

    call: HookCall
    scope: Scope


class ScoreCall(msgspec.Struct, frozen=True):
    """A score with its declarations."""

    call: HookCall
    scope: Scope
    weight: int
    normalise: Normalise
    summed: bool = False
    """Whether these are the core's sums of weighted scores, which may exceed 100."""


class PrebindCall(msgspec.Struct, frozen=True):
    """A `prebind` with its declarations, and the hook that decides whether it is needed."""

    call: HookCall
    needed: HookCall | None
    patience: float | None
    """Timeout in seconds; None for the default."""
    waits: bool
    """Whether it may have to wait for something."""

    def is_needed(self, binding: Binding) -> bool:
        """Whether to call it for a binding. Raises PluginError."""
        if self.needed is None:
            return True
        answer = self.needed(binding)
        if answer is not None and type(answer) is not bool:
            raise self.needed.wrong(f"expected True or False, got {answer!r}")
        return answer is not False


class PluginCalls(msgspec.Struct, frozen=True):
    """The hooks of one plugin that evaluate a class."""

    name: str
    ignores_requests: bool
    """Whether its hooks read neither the requests nor the claims of a class, and keep nothing by class."""
    prepare: HookCall | None
    filter: ScopedCall | None
    filter_key: HookCall | None
    score: ScoreCall | None
    reasons: HookCall | None
    why: HookCall | None
    unresolvable: HookCall | None
    fits_if: HookCall | None


class HookCalls:
    """The implementations of every hook, in order: `calls.hooks["prefilter"]`; by plugin for the evaluation."""

    def __init__(self, plugins: Iterable[ResolvedPlugin], hook_seconds: float | None = None) -> None:
        """`plugins` are in the configured order.

        `hook_seconds` is the default timeout of a plugin, None if there is none.
        """
        self.hooks: dict[str, list[HookCall]] = {}
        self.plugins: list[PluginCalls] = []
        self.instances: dict[str, object] = {}
        self.budgets: dict[str, float | None] = {}
        """The timeout of each plugin in seconds, None if there is none."""
        self.observed: set[str] = set()
        """The plugins whose reads of pods are observed."""
        self.placement_scores: list[ScoreCall] = []
        """Scores of topology domains. Their scope has no meaning."""
        self.prebinds: list[PrebindCall] = []
        self.http_handlers: dict[str, dict[str, HookCall]] = {}
        """The handlers that sessions registered (`session.add_http_handler`), by plugin and path."""
        for name, plugin, weight, found in plugins:
            if name in self.instances:
                raise ValueError(f"plugin {name} appears twice")
            budget = self.budgets[name] = _budget(name, plugin, hook_seconds)
            if _is_observed(plugin):
                self.observed.add(name)
            of_class = self.class_call(name)
            calls = {
                hook: _call(of_class if hook in _OF_CLASSES else HookCall, name, hook, implementation, budget)
                for hook, implementation in found.items()
            }
            for hook, call in calls.items():
                self.hooks.setdefault(hook, []).append(call)
            self.instances[name] = plugin
            self.plugins.append(_of_plugin(name, plugin, weight, calls))
            if placement := calls.get("score_placement"):
                self.placement_scores.append(_scoring(name, plugin, weight, placement))
            if prebind := calls.get("prebind"):
                patience = getattr(plugin, "prebind_seconds", None)
                waits = bool(getattr(plugin, "prebind_waits", True))
                self.prebinds.append(PrebindCall(prebind, calls.get("prebind_needed"), patience, waits))
        self.places_groups = "place_group" in self.hooks
        """Whether any plugin places groups."""

    def class_call(self, plugin: str) -> type[HookCall]:
        """Return the kind of a plugin's calls whose answers all pods of a class share."""
        return ObservedCall if plugin in self.observed else HookCall

    def seconds(self) -> dict[str, float]:
        """Return the seconds spent so far in each plugin."""
        return seconds_by_plugin(call for calls in self.hooks.values() for call in calls)

    def functions(self, hook: str) -> Sequence[HookCall]:
        """Return the implementations of one hook, in order."""
        return self.hooks.get(hook, ())


def seconds_by_plugin(calls: Iterable[HookCall]) -> dict[str, float]:
    """Return the seconds that these calls took, summed up by plugin."""
    total: dict[str, float] = {}
    for call in calls:
        total[call.plugin] = total.get(call.plugin, 0.0) + call.seconds
    return total


def _budget(name: str, plugin: object, seconds: float | None) -> float | None:
    """Return the timeout of a plugin's hooks. The core's own plugins need none."""
    if type(plugin).__module__.startswith(_CORE):
        return None
    declared = getattr(plugin, "hook_seconds", seconds)
    if declared is None:
        return None
    if type(declared) not in (int, float) or not 0 < declared < math.inf:
        raise PluginError(name, "hook_seconds", f"expected a positive number of seconds, or None, got {declared!r}")
    watch.over(declared)
    return float(declared)


def _is_observed(plugin: object) -> bool:
    """Whether a plugin may read more of a pod than its `class_key` returns."""
    return not type(plugin).__module__.startswith(_CORE) and not getattr(plugin, "class_key_complete", False)


def _call(kind: type[HookCall], name: str, hook: str, found: Implementation, budget: float | None) -> HookCall:
    if budget is not None and hook in _OF_EVERYTHING:
        budget *= _EVERYTHING
    return kind(name, hook, _with_arguments(found.function, found.takes, found.given), budget)


def _with_arguments(function: Callable[..., Any], takes: tuple[str, ...], given: tuple[str, ...]) -> Callable[..., Any]:
    """Wrap an implementation that names only some of the specification's arguments, or in another order."""
    if takes == given:
        return function
    places = [given.index(name) for name in takes]
    if len(places) < 2:  # with a single key, itemgetter returns a bare value, not a tuple
        return lambda *args: function(*(args[place] for place in places))
    taken = itemgetter(*places)
    return lambda *args: function(*taken(args))


def _of_plugin(name: str, plugin: object, weight: int | None, calls: dict[str, HookCall]) -> PluginCalls:
    filtering, scoring = calls.get("filter"), calls.get("score")
    return PluginCalls(
        name=name,
        ignores_requests=bool(getattr(plugin, "ignores_requests", False)),
        prepare=calls.get("prepare"),
        filter=ScopedCall(filtering, _declared(name, plugin, "filter_scope", Scope.ANY)) if filtering else None,
        score=_scoring(name, plugin, weight, scoring) if scoring else None,
        filter_key=calls.get("filter_key"),
        reasons=calls.get("reasons"),
        why=calls.get("why"),
        unresolvable=calls.get("unresolvable"),
        fits_if=calls.get("fits_if"),
    )


def _scoring(name: str, plugin: object, weight: int | None, call: HookCall) -> ScoreCall:
    declared = getattr(plugin, "weight", 1) if weight is None else weight
    if type(declared) is not int or not 0 <= declared <= _LARGEST_WEIGHT:
        raise PluginError(name, "weight", f"expected a whole number from 0 to {_LARGEST_WEIGHT}, got {declared!r}")
    scope = _declared(name, plugin, "score_scope", Scope.ANY)
    normalise = _declared(name, plugin, "normalise", Normalise.NONE)
    return ScoreCall(call, scope, declared, normalise, getattr(plugin, "summed_scores", False))


def _declared(name: str, plugin: object, attribute: str, default: _E) -> _E:
    value = getattr(plugin, attribute, default)
    if not isinstance(value, type(default)):
        kind = type(default).__name__
        raise PluginError(name, attribute, f"expected a member of {kind}, got {value!r}")
    return value


# ------------------------------------------------------------------ hooks about pods, outside of sessions


def asked_class_key(call: HookCall, view: ClusterView) -> Callable[[Pod], object]:
    """Return a `class_key` hook that checks that answers are JSON values. Raises PluginError."""

    def ask(pod: Pod) -> object:
        answer = call(pod, view)
        try:
            msgspec.json.encode(answer)
        except (TypeError, ValueError, msgspec.MsgspecError):
            raise call.wrong(f"expected JSON values or None as the key, got {answer!r}") from None
        return answer

    return ask


def asked_footprint(call: HookCall) -> Callable[[TaskClass], frozenset[Hashable]]:
    """Return a `footprint` hook that checks that answers are collections of keys. Raises PluginError."""

    def ask(cls: TaskClass) -> frozenset[Hashable]:
        answer = call(cls)
        if isinstance(answer, str | bytes):
            raise call.wrong(f"expected a collection of keys or None, got {answer!r}")
        return call.guarded(frozenset, answer) if answer is not None else frozenset()

    return ask


def asked_group(call: HookCall) -> Callable[[Pod, Sequence[OwnerReference]], GroupRef | None]:
    """Return a `group_of` hook that checks that answers name a group. Raises PluginError."""
    from session_scheduler.model.groups import GroupRef  # it imports NumPy, which loading plugins does not need

    def ask(pod: Pod, owners: Sequence[OwnerReference]) -> GroupRef | None:
        answer = call(pod, owners)
        if answer is None:
            return None
        if not isinstance(answer, GroupRef):
            raise call.wrong(f"expected a GroupRef or None, got {answer!r}")
        texts = (answer.namespace, answer.name, answer.kind, answer.api_group)
        if not all(isinstance(text, str) for text in texts) or type(answer.min_count) is not int:
            raise call.wrong(f"expected names as strings and min_count as a whole number, got {answer!r}")
        return answer

    return ask
