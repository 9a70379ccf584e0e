"""One profile's hook implementations, resolved once, in the order of the configuration.

pluggy validates specifications and implementations; the calls themselves are made here, because pluggy calls in
last-in-first-out order, drops None and which plugin answered, stops at the first exception and costs six times as much.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from time import perf_counter
from types import coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from session_scheduler.errors import AttemptError, FluenceError
from session_scheduler.framework.answers import Normalise, Scope
from session_scheduler.framework.watchdog import Overdue, guards, running, watch
from session_scheduler.model.refusals import Refusal

if TYPE_CHECKING:
    from session_scheduler.framework.bindings import Binding
    from session_scheduler.model.classes import TaskClass
    from session_scheduler.model.cluster_view import ClusterView
    from session_scheduler.model.groups import GroupRef
    from session_scheduler.model.objects import OwnerReference, Pod

_E = TypeVar("_E", Scope, Normalise)
_T = TypeVar("_T")

PATIENCE = 30.0
"""Seconds that a plugin's asynchronous hook may take, unless the caller has less."""
_OF_EVERYTHING = frozenset({"recover", "on_nodes_changed"})
"""Hooks that may be given the whole cluster at once."""
_EVERYTHING = 12
"""How many times as long these may take."""
_BESIDE_SESSIONS = frozenset({"prebind", "prebind_needed"})
"""Hooks that are called for many pods in one go of the event loop: one that hangs is not waited for in each call."""
_CORE = "session_scheduler."
_LARGEST_WEIGHT = 2**16
"""Weights times scores times plugins stay well within 64 bits."""

_BUG = "plugin {plugin} failed in {hook}: {problem}"
_AS_KUBE_SCHEDULER: Mapping[str, str] = {
    "prepare": 'running PreFilter plugin "{plugin}": {problem}',
    "filter": 'running "{plugin}" filter plugin: {problem}',
    "score": 'running Score plugin "{plugin}": {problem}',
    "prebind_needed": 'running PreBindPreFlight "{plugin}": {problem}',
    "prebind": 'running PreBind plugin "{plugin}": {problem}',
}
"""By hook: how an AttemptError is worded."""


class PluginError(FluenceError):
    """A plugin raised, or answered with what its contract does not allow.

    `raised` is what it raised: where that is an AttemptError, it is worded as in kube-scheduler.
    """

    def __init__(self, plugin: str, hook: str, problem: str, raised: BaseException | None = None) -> None:
        text = _AS_KUBE_SCHEDULER.get(hook, _BUG) if isinstance(raised, AttemptError) else _BUG
        super().__init__(" ".join(text.format(plugin=plugin, hook=hook, problem=problem).split()))
        self.late = False
        """Whether it was interrupted, for it did not answer in time."""
        self.plugin = plugin
        self.hook = hook
        self.problem = problem


class HookCall:
    """One plugin's implementation of one hook: calls it, times it, and names it when it fails."""

    __slots__ = ("_function", "budget", "calls", "hook", "plugin", "seconds", "shut", "since")

    def __init__(self, plugin: str, hook: str, function: Callable[..., Any], budget: float | None = None) -> None:
        """`budget`: seconds after which it is interrupted; None for never."""
        self.plugin = plugin
        self.hook = hook
        self.budget = budget
        self._function = function
        self.calls = 0
        self.seconds = 0.0
        self.shut = 0.0
        """Until when it is not called again, for it was waited for in vain."""
        self.since = 0.0
        """When it was last called, for `interrupting`."""

    def __call__(self, *args: Any) -> Any:
        """The answer. Raises PluginError in place of whatever the plugin raised, or where it does not answer."""
        started = perf_counter()
        if started < self.shut:
            raise self._late()
        outer, running.call = running.call, self
        self.since = started
        try:
            return self._function(*args)
        except (Exception, SystemExit) as error:
            running.call = outer  # its text may be the plugin's code, too, and nothing here would catch Overdue
            raise self._raised(error) from error
        except Overdue:
            raise self._late() from None
        finally:
            running.call = outer
            self.calls += 1
            self.seconds += perf_counter() - started

    def _step(self, function: Callable[..., _T], *args: Any) -> _T:
        """One step of an asynchronous hook, which may hang as well. Raises Overdue, and whatever the plugin raised."""
        outer, running.call = running.call, self
        self.since = perf_counter()
        try:
            return function(*args)
        finally:
            running.call = outer

    def _late(self) -> PluginError:
        """The error for a plugin that was interrupted."""
        error = self.wrong(f"no answer within {self.budget:g} s")
        error.late = True
        if self.hook in _BESIDE_SESSIONS and self.budget is not None:
            self.shut = max(self.shut, self.since + 2 * self.budget)
        return error

    def _raised(self, error: BaseException) -> PluginError:
        """The error for what the plugin raised."""
        own = isinstance(error, AttemptError)
        return PluginError(self.plugin, self.hook, f"{'' if own else f'{type(error).__name__}: '}{error}", error)

    async def wait(self, *args: Any, patience: float = PATIENCE, limits: set[asyncio.Timeout] | None = None) -> Any:
        """The answer of an asynchronous hook. Raises PluginError for what the plugin raised, or where it hangs.

        While it is waited for, what bounds that is among `limits`: whoever has them may end it before its time.
        """
        started = perf_counter()
        limit: asyncio.Timeout | None = None
        if started < self.shut:
            raise self._late()
        try:
            work = self._step(self._function, *args).__await__()
            try:
                first = self._step(next, work)
            except StopIteration as ended:  # as most do, without having waited
                return ended.value
            async with asyncio.timeout(patience) as limit:
                if limits is not None:
                    limits.add(limit)
                return await _rest(self._step, work, first)
        except TimeoutError as error:
            late = limit is not None and limit.expired()
            problem = f"no answer within {patience:g} s" if late else f"{type(error).__name__}: {error}"
            raise PluginError(self.plugin, self.hook, problem) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # we are cancelled, not something that the plugin waits for
            raise PluginError(self.plugin, self.hook, "what it waits for was cancelled") from error
        except (Exception, SystemExit) as error:
            raise self._raised(error) from error
        except Overdue:
            raise self._late() from None
        finally:
            if limits is not None and limit is not None:
                limits.discard(limit)
            self.calls += 1
            self.seconds += perf_counter() - started

    def wrong(self, problem: str) -> PluginError:
        """The error for an answer that the contract does not allow."""
        return PluginError(self.plugin, self.hook, problem)

    def guarded(self, function: Callable[..., _T], *args: Any) -> _T:
        """The function's answer, its failure being this hook's: for what runs plugin code after the call itself.

        Raises PluginError.
        """
        answer: _T = HookCall(self.plugin, self.hook, function, self.budget)(*args)
        return answer

    def refusal(self, answer: Refusal) -> Refusal:
        """A plugin's refusal with its name. Raises PluginError where the reason is no text."""
        if not isinstance(answer.reason, str):
            raise self.wrong(f"{answer.reason!r} is no reason: give the Refusal a text")
        said = answer.fits_if
        if not isinstance(said, tuple) or not all(isinstance(text, str) for text in said):
            raise self.wrong(f"{said!r} does not say what would help: give the Refusal a tuple of texts as fits_if")
        until = answer.until
        if until is not None and (not isinstance(until, int | float) or not math.isfinite(until)):
            raise self.wrong(f"{until!r} is no time: give the Refusal seconds since 1970 as until, or None")
        return Refusal(answer.reason, self.plugin, fits_if=said, until=until)


guards.update((HookCall.__call__.__code__, HookCall._step.__code__))


@coroutine
def _rest(step: Callable[..., Any], work: Generator[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """What is left of an awaitable after its first step, which waits for that; `step` makes the others."""
    try:
        while True:
            try:
                sent = yield waits_for
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # noqa: BLE001 (a cancellation, say: it is the work's to answer)
                waits_for = step(work.throw, error)
            else:
                waits_for = step(work.send, sent)
    except StopIteration as ended:
        return ended.value


class Implementation(NamedTuple):
    """A hook of a plugin, as pluggy found it."""

    function: Callable[..., Any]
    takes: tuple[str, ...]
    """Those of the specification's arguments that it names, in its order."""
    given: tuple[str, ...]
    """The specification's arguments."""


class ResolvedPlugin(NamedTuple):
    """A plugin with its hooks, checked and in the order of the specifications."""

    name: str
    instance: object
    weight: int | None
    """None for the weight that the plugin declares."""
    implementations: Mapping[str, Implementation]


@dataclass(frozen=True, slots=True)
class ScopedCall:
    """A filter, predicate or node order, with what its answers depend on."""

    call: HookCall
    scope: Scope


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """A score with what it declares."""

    call: HookCall
    scope: Scope
    weight: int
    normalise: Normalise


@dataclass(frozen=True, slots=True)
class PrebindCall:
    """A `prebind` with what it declares, and the hook that says whether it is needed."""

    call: HookCall
    needed: HookCall | None
    patience: float | None
    """Seconds; None for what every hook has."""
    waits: bool
    """Whether it may have to wait for anything."""

    def is_needed(self, binding: Binding) -> bool:
        """Whether it is to be called for a binding. Raises PluginError."""
        if self.needed is None:
            return True
        answer = self.needed(binding)
        if answer is not None and type(answer) is not bool:
            raise self.needed.wrong(f"{answer!r} is neither True nor False")
        return answer is not False


@dataclass(frozen=True, slots=True)
class PluginCalls:
    """All hooks of one plugin that a class's evaluation needs."""

    name: str
    prepare: HookCall | None
    filter: ScopedCall | None
    score: ScoreCall | None
    why: HookCall | None
    unresolvable: HookCall | None
    fits_if: HookCall | None


class HookCalls:
    """Every hook's implementations, in order: `calls.hooks["prefilter"]`, and by plugin for the evaluation."""

    def __init__(self, plugins: Iterable[ResolvedPlugin], hook_seconds: float | None = None) -> None:
        """`plugins` are in the configured order.

        `hook_seconds`: how long a plugin that declares nothing else may take to answer; None for ever.
        """
        self.hooks: dict[str, list[HookCall]] = {}
        self.plugins: list[PluginCalls] = []
        self.instances: dict[str, object] = {}
        self.budgets: dict[str, float | None] = {}
        """By plugin: after how many seconds a call is interrupted; None for never."""
        self.placement_scores: list[ScoreCall] = []
        """What compares the topology domains that could hold a group; their scope says nothing."""
        self.prebinds: list[PrebindCall] = []
        self.http_handlers: dict[str, dict[str, HookCall]] = {}
        """By plugin and path: what sessions registered (`session.add_http_handler`)."""
        for name, plugin, weight, found in plugins:
            if name in self.instances:
                raise ValueError(f"plugin {name} is there twice")
            budget = self.budgets[name] = _budget(name, plugin, hook_seconds)
            calls = {hook: _call(name, hook, implementation, budget) for hook, implementation in found.items()}
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

    def seconds(self) -> dict[str, float]:
        """Seconds spent in each plugin so far."""
        return seconds_by_plugin(call for calls in self.hooks.values() for call in calls)

    def functions(self, hook: str) -> Sequence[HookCall]:
        """The implementations of one hook, in order."""
        return self.hooks.get(hook, ())


def seconds_by_plugin(calls: Iterable[HookCall]) -> dict[str, float]:
    """The seconds that these calls took, summed up."""
    total: dict[str, float] = {}
    for call in calls:
        total[call.plugin] = total.get(call.plugin, 0.0) + call.seconds
    return total


def _budget(name: str, plugin: object, seconds: float | None) -> float | None:
    """How long a plugin's hooks may take. The core's own bound themselves."""
    if type(plugin).__module__.startswith(_CORE):
        return None
    declared = getattr(plugin, "hook_seconds", seconds)
    if declared is None:
        return None
    if type(declared) not in (int, float) or not 0 < declared < math.inf:
        raise PluginError(name, "hook_seconds", f"{declared!r} is no time: use seconds above 0, or None")
    watch.over(declared)
    return float(declared)


def _call(name: str, hook: str, found: Implementation, budget: float | None) -> HookCall:
    if budget is not None and hook in _OF_EVERYTHING:
        budget *= _EVERYTHING
    return HookCall(name, hook, _with_arguments(found.function, found.takes, found.given), budget)


def _with_arguments(function: Callable[..., Any], takes: tuple[str, ...], given: tuple[str, ...]) -> Callable[..., Any]:
    """Lets an implementation name only some of the specification's arguments, in any order."""
    if takes == given:
        return function
    places = [given.index(name) for name in takes]
    if len(places) < 2:  # itemgetter makes a tuple of several only
        return lambda *args: function(*(args[place] for place in places))
    taken = itemgetter(*places)
    return lambda *args: function(*taken(args))


def _of_plugin(name: str, plugin: object, weight: int | None, calls: dict[str, HookCall]) -> PluginCalls:
    filtering, scoring = calls.get("filter"), calls.get("score")
    return PluginCalls(
        name=name,
        prepare=calls.get("prepare"),
        filter=ScopedCall(filtering, _declared(name, plugin, "filter_scope", Scope.ANY)) if filtering else None,
        score=_scoring(name, plugin, weight, scoring) if scoring else None,
        why=calls.get("why"),
        unresolvable=calls.get("unresolvable"),
        fits_if=calls.get("fits_if"),
    )


def _scoring(name: str, plugin: object, weight: int | None, call: HookCall) -> ScoreCall:
    declared = getattr(plugin, "weight", 1) if weight is None else weight
    if type(declared) is not int or not 0 <= declared <= _LARGEST_WEIGHT:
        raise PluginError(name, "weight", f"{declared!r} is no weight: use a whole number of 0 to {_LARGEST_WEIGHT}")
    scope = _declared(name, plugin, "score_scope", Scope.ANY)
    return ScoreCall(call, scope, declared, _declared(name, plugin, "normalise", Normalise.NONE))


def _declared(name: str, plugin: object, attribute: str, default: _E) -> _E:
    value = getattr(plugin, attribute, default)
    if not isinstance(value, type(default)):
        kind = type(default).__name__
        raise PluginError(name, attribute, f"{value!r} is no {kind}: use a member of {kind}")
    return value


# ------------------------------------------------------------------ what is asked of pods, outside of sessions


def asked_class_key(call: HookCall, view: ClusterView) -> Callable[[Pod], object]:
    """A `class_key` hook whose answers are sure to be JSON values. Raises PluginError."""

    def ask(pod: Pod) -> object:
        answer = call(pod, view)
        try:
            msgspec.json.encode(answer)
        except (TypeError, ValueError, msgspec.MsgspecError):
            raise call.wrong(f"{answer!r} is no key: return JSON values, or None") from None
        return answer

    return ask


def asked_footprint(call: HookCall) -> Callable[[TaskClass], frozenset[Hashable]]:
    """A `footprint` hook whose answers are sure to be keys. Raises PluginError."""

    def ask(cls: TaskClass) -> frozenset[Hashable]:
        answer = call(cls)
        if isinstance(answer, str | bytes):
            raise call.wrong(f"{answer!r} is no collection of keys: return a list of them, or None")
        return call.guarded(frozenset, answer) if answer is not None else frozenset()

    return ask


def asked_group(call: HookCall) -> Callable[[Pod, Sequence[OwnerReference]], GroupRef | None]:
    """A `group_of` hook whose answers are sure to name a group. Raises PluginError."""
    from session_scheduler.model.groups import GroupRef  # NumPy comes with it, which loading plugins alone can spare

    def ask(pod: Pod, owners: Sequence[OwnerReference]) -> GroupRef | None:
        answer = call(pod, owners)
        if answer is None:
            return None
        if not isinstance(answer, GroupRef):
            raise call.wrong(f"{answer!r} is no group: return a GroupRef, or None")
        texts = (answer.namespace, answer.name, answer.kind, answer.api_group)
        if not all(isinstance(text, str) for text in texts) or type(answer.min_count) is not int:
            raise call.wrong(f"{answer!r} is no group: give names as texts and minCount as a whole number")
        return answer

    return ask
