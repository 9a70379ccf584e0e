"""The scheduler's metrics. To add one, define it in `Metrics`, count it in `live_observer`, and list it in the docs.

Everything is named `fluence_…`, in base units, in a registry of its own. Recording is a look-up and an addition; what
others count already (hooks, pending groups, plugins) is read at a scrape, by callables. `docs/reference/metrics.md` is
the list for administrators.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Final, Literal, NamedTuple, get_args

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from session_scheduler.cluster.group_discovery import GroupDiscovery
from session_scheduler.cluster.mirror import MirrorMeter
from session_scheduler.framework.hooks import HookCall, HookCalls
from session_scheduler.framework.observer import Stage

_log = structlog.get_logger(__name__)

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PREFIX: Final = "fluence_"

GroupResult = Literal["scheduled", "unschedulable", "error", "timeout"]
"""timeout: the gang was bound in part for too long and starts over."""
PodResult = Literal["scheduled", "unschedulable", "error"]
BIND_ERRORS: Final[Mapping[str, str]] = {
    "Forbidden": "403",
    "NotFound": "404",
    "Conflict": "409",
    "AlreadyExists": "409",
    "Invalid": "422",
    "TooManyRequests": "429",
    "Unavailable": "unavailable",
    "NotLeading": "not_leading",
}
"""The code of each answer to a binding request, by the name of its error; any other is `other`."""
PENDING_STATES: Final = ("due", "backoff", "unschedulable", "gated", "in_flight")
"""Always shown, so that a state without groups is 0."""

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Bucket bounds of every histogram here."""
_SUFFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "counter": ("_total", "_created"),
    "summary": ("", "_sum", "_count", "_created"),
    "histogram": ("_bucket", "_sum", "_count", "_created"),
    "gaugehistogram": ("_bucket", "_gsum", "_gcount"),
    "info": ("_info",),
}
"""What the names of a family's samples end with; of other types they are the family's own."""


class Pending(NamedTuple):
    """What waits to be scheduled."""

    groups: Mapping[str, int]
    """By state, as are the pods."""
    pods: Mapping[str, int]
    reserved: int
    """For how many gangs nodes are kept."""


@dataclass(frozen=True, slots=True)
class _Collector:
    """What a registry collects, and what the writers of both formats take."""

    collect: Callable[[], Iterable[Metric]]

    def describe(self) -> Iterable[Metric]:
        """The families that a registry refuses to register twice."""
        return self.collect()


class _Counts:
    """A counter with labels; each child is looked up in the library once."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        shown: Iterable[str] = (),
    ) -> None:
        """`shown`: values of the only label that are there from the start, at 0: alerts see the first increase then."""
        self._counter = Counter(PREFIX + name, text, labels, registry=registry)
        self._children: dict[tuple[str, ...], Counter] = {} if labels else {(): self._counter}
        for value in shown:
            self.add(value, count=0)

    def add(self, *labels: str, count: float = 1) -> None:
        child = self._children.get(labels)
        if child is None:
            child = self._children[labels] = self._counter.labels(*labels)
        child.inc(count)


class WatchMetrics(MirrorMeter):
    """What following a cluster counts, by the name of the type; `why` is the name of an error, never its text."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._events = _Counts(registry, "watch_events", "What watches told, bookmarks too.", ("kind",))
        self._ends = _Counts(registry, "watch_ends", "Watches that ended.", ("kind", "why"))
        self._relists = _Counts(registry, "watch_relists", "Lists made again to go on from.", ("kind", "why"))
        self._missed = _Counts(registry, "missed_events", "Changes that only a comparison found.", ("kind",))

    def event(self, kind: str) -> None:
        """A watch said something, if only that nothing happened."""
        self._events.add(kind)

    def watch_ended(self, kind: str, why: str) -> None:
        """A watch ended."""
        self._ends.add(kind, why)

    def relisted(self, kind: str, why: str) -> None:
        """A kind is listed again, to go on from there."""
        self._relists.add(kind, why)

    def missed(self, kind: str, count: int) -> None:
        """The watch sent no event for `count` objects that had changed."""
        self._missed.add(kind, count=count)


class ReportMetrics:
    """What is written for people; `kind` is "condition" or "event"."""

    def __init__(self, registry: CollectorRegistry) -> None:
        kinds = ("condition", "event")
        self._written = _Counts(registry, "reports_written", "Conditions and events written.", ("kind",), kinds)
        self._dropped = _Counts(registry, "reports_dropped", "Conditions and events given up.", ("kind", "why"))

    def written(self, kind: str) -> None:
        """One was written."""
        self._written.add(kind)

    def dropped(self, kind: str, why: str) -> None:
        """One was not; `why` is the name of an error, never its text."""
        self._dropped.add(kind, why)


class Metrics:
    """One scheduler's metrics. `exposition` is the answer to a scrape.

    Everything is called on the scheduler's own thread.
    """

    def __init__(self, version: str = "") -> None:
        """`version` is the product's, for `fluence_build_info`."""
        disable_created_metrics()
        registry = self._registry = CollectorRegistry()
        ProcessCollector(namespace=PREFIX.rstrip("_"), registry=registry)
        build = Gauge(PREFIX + "build_info", "1; what runs.", ("version", "python"), registry=registry)
        build.labels(version, platform.python_version()).set(1)
        self._cycles = _Counts(registry, "cycles", "Cycles, by how they ended.", ("result",), ("ok", "error"))
        self._cycle_seconds = _histogram(
            registry, "cycle_seconds", "A turn: what came in, what ended, and the sessions."
        )
        stages = _histogram(registry, "stage_seconds", "One stage of the way of a group.", ("stage",))
        self._stages = {stage: stages.labels(stage) for stage in get_args(Stage)}
        self._groups = _Counts(registry, "groups", "Attempts at groups.", ("result",), get_args(GroupResult))
        self._pods = _Counts(registry, "pods", "Attempts at pods.", ("result",), get_args(PodResult))
        self.requeued = _Counts(registry, "woken_groups", "Refused groups that an event woke.", ("event", "plugin"))
        """Groups that an event requeued, by event and the plugin that had refused them: none for their own."""
        codes = (*BIND_ERRORS.values(), "other")
        self._bind_errors = _Counts(registry, "bind_errors", "Binding requests that failed.", ("code",), codes)
        self.evictions = _Counts(registry, "gang_evictions", "Gangs that were bound in part for too long and evicted.")
        self._preemptions = _Counts(registry, "preemptions", "Pods and gangs for which others were to end.")
        self._victims = _Counts(registry, "preemption_victims", "Pods that were to end for others.")
        self._consolidations = _Counts(registry, "consolidations", "Pods and gangs for which others were moved.")
        self.filled_in = _Counts(registry, "backfilled_pods", "Pods placed in the room of a gang that starts later.")
        self._moved = _Counts(registry, "moved_pods", "Pods that were to end so as to run elsewhere.")
        self._recoveries = _Counts(
            registry, "recoveries", "Plans that were found half done.", ("what",), ("rolled_forward", "aborted")
        )
        self._recovered_pods = _Counts(registry, "recovered_pods", "Pods of plans that were rolled forward.")
        self.watch_lag = _histogram(registry, "watch_lag_seconds", "From a bind's answer to the event that shows it.")
        self.watches = WatchMetrics(registry)
        self.reports = ReportMetrics(registry)
        """What a `Recorder` counts."""
        self._leader = Gauge(PREFIX + "leader", "1 where this replica schedules.", registry=registry)
        self.renewal_failures = _Counts(registry, "lease_renewal_failures", "Renewals of the lease that failed.")
        self._plugin_families = _PluginFamilies(registry)

    # ------------------------------------------------------------------ what is recorded

    def cycle(self, seconds: float, *, failed: bool = False) -> None:
        """A cycle ended; `failed` where it raised."""
        self._cycles.add("error" if failed else "ok")
        self._cycle_seconds.observe(seconds)

    def stage(self, stage: Stage, seconds: float) -> None:
        """A stage of a session or a group ended."""
        self._stages[stage].observe(seconds)

    @contextmanager
    def timed(self, stage: Stage) -> Iterator[None]:
        """Record how long the block takes, however it ends."""
        started = perf_counter()
        try:
            yield
        finally:
            self._stages[stage].observe(perf_counter() - started)

    def groups(self, result: GroupResult, count: int = 1) -> None:
        """Attempts at groups ended so."""
        self._groups.add(result, count=count)

    def pods(self, result: PodResult, count: int = 1) -> None:
        """Attempts at pods ended so."""
        self._pods.add(result, count=count)

    def bind_error(self, answer: str) -> None:
        """A binding request failed; `answer` is the name of the error, as `NotFound`."""
        self._bind_errors.add(BIND_ERRORS.get(answer, "other"))

    def preempted(self, victims: int) -> None:
        """So many pods were to end for a pod or a gang."""
        self._preemptions.add(count=victims > 0)
        self._victims.add(count=victims)

    def moved(self, victims: int) -> None:
        """So many pods were to end for a pod or a gang, and to run elsewhere."""
        self._consolidations.add()
        self._moved.add(count=victims)

    def recovered(self, what: str, pods: int) -> None:
        """A plan that was found was "rolled forward", with so many pods that were not bound yet, or "aborted"."""
        self._recoveries.add(what.replace(" ", "_"))
        self._recovered_pods.add(count=pods)

    # ------------------------------------------------------------------ what is read at a scrape

    def follow_leader(self, leads: Callable[[], bool]) -> None:
        """Show whether this replica schedules, as this says at each scrape."""
        self._leader.set_function(leads)

    def follow_pending(self, pending: Callable[[], Pending]) -> None:
        """Show what waits, as this says at each scrape."""
        self._registry.register(_Collector(lambda: _of_pending(pending())))

    def follow_pod_groups(self, apis: GroupDiscovery) -> None:
        """Show what the API server has of pod groups, as this says at each scrape."""
        self._registry.register(_Collector(lambda: _of_pod_groups(apis)))

    def follow_profiles(
        self, profiles: Mapping[str, HookCalls], in_session: Callable[[], bool] = lambda: False
    ) -> None:
        """Show the hooks' times by profile, and what plugins answer to `metrics`.

        Plugins are asked between sessions only: while `in_session`, a scrape shows their last answers.
        """
        self._registry.register(_Collector(lambda: _of_hooks(profiles)))
        self._plugin_families.follow(profiles, in_session)

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The answer to a scrape and its content type, for the request's Accept header."""
        wants_openmetrics = "application/openmetrics-text" in accept
        write = generate_openmetrics if wants_openmetrics else generate_latest
        families = list(self._registry.collect())
        families += self._plugin_families.collect(families, lambda family: write(_Collector(lambda: [family])))
        return write(_Collector(lambda: families)), OPENMETRICS if wants_openmetrics else TEXT


def _histogram(registry: CollectorRegistry, name: str, text: str, labels: Sequence[str] = ()) -> Histogram:
    return Histogram(PREFIX + name, text, labels, buckets=SECONDS, registry=registry)


def _of_pending(pending: Pending) -> Iterable[Metric]:
    """Gauges of what waits, each state among them."""
    none = dict.fromkeys(PENDING_STATES, 0)
    for what, counts in (("groups", pending.groups), ("pods", pending.pods)):
        yield _gauge(f"pending_{what}", f"{what.capitalize()} that wait, by state.", "state", {**none, **counts})
    yield GaugeMetricFamily(f"{PREFIX}reserved_groups", "Gangs for which nodes are kept.", value=pending.reserved)


def _of_pod_groups(apis: GroupDiscovery) -> Iterable[Metric]:
    """Gauges of what the API server has of pod groups."""
    used = dict.fromkeys(apis.versions, 1)
    yield _gauge("pod_group_api", "1 where this version is used.", "version", used)
    yield _gauge("pod_group_gate", "1 where this gate is on.", "gate", apis.gates)


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """One value for each value of a label."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for of, value in values.items():
        family.add_metric([of], value)
    return family


def _of_hooks(profiles: Mapping[str, HookCalls]) -> Iterable[Metric]:
    """Counters of what hooks took, read where the calls are made: recording costs nothing here."""
    labels = ["profile", "plugin", "hook"]
    calls = CounterMetricFamily(PREFIX + "hook_calls", "Calls of plugins' hooks.", labels=labels)
    seconds = CounterMetricFamily(PREFIX + "hook_seconds", "Seconds spent in plugins' hooks.", labels=labels)
    for profile, hooks in profiles.items():
        for call in (call for implementations in hooks.hooks.values() for call in implementations):
            values = [profile, call.plugin, call.hook]
            calls.add_metric(values, call.calls)
            seconds.add_metric(values, call.seconds)
    return [calls, seconds]


class _PluginFamilies:
    """What plugins answer to the hook `metrics`, each checked: none can spoil a scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._failures = _Counts(
            registry, "plugin_metrics_failures", "Answers to the hook `metrics` that could not be shown.", ("plugin",)
        )
        self._profiles: Mapping[str, HookCalls] = {}
        self._in_session: Callable[[], bool] = lambda: False
        self._last: list[tuple[str, Metric]] = []
        self._logged: dict[str, str] = {}
        """By plugin, the problem that was logged last: a scrape comes every few seconds."""

    def follow(self, profiles: Mapping[str, HookCalls], in_session: Callable[[], bool]) -> None:
        self._profiles, self._in_session = profiles, in_session
        for plugin in {call.plugin for call in self._calls()}:
            self._failures.add(plugin, count=0)

    def _calls(self) -> list[HookCall]:
        """The hook's implementations, each plugin once."""
        found: dict[int, HookCall] = {}
        for hooks in self._profiles.values():
            for call in hooks.hooks.get("metrics", ()):
                found.setdefault(id(hooks.instances[call.plugin]), call)
        return list(found.values())

    def collect(self, core: Iterable[Metric], write: Callable[[Metric], object]) -> list[Metric]:
        """The families that `write` can write and whose names are allowed and not among those of `core`."""
        problems: dict[str, str] = {}
        if not self._in_session():
            self._last = [(call.plugin, family) for call in self._calls() for family in _asked(call, problems)]
        taken = {name for family in core for name in _names(family)}
        shown = []
        for plugin, family in self._last:
            problem = _problem(family, taken, write)
            if problem:
                problems[plugin] = problem
            else:
                taken |= _names(family)
                shown.append(family)
        for plugin, problem in problems.items():
            self._failures.add(plugin)
            if self._logged.get(plugin) != problem:
                _log.warning("a plugin's metrics are left out", plugin=plugin, problem=problem)
        self._logged = problems
        return shown


def _asked(call: HookCall, problems: dict[str, str]) -> list[Metric]:
    try:
        return list(call() or ())
    except Exception as error:  # noqa: BLE001 (whatever a plugin raises is logged, and the others are shown)
        problems[call.plugin] = f"{type(error).__name__}: {error}"
        return []


def _problem(family: Metric, taken: set[str], write: Callable[[Metric], object]) -> str:
    """Why a family cannot be shown; empty where it can."""
    if not isinstance(family, Metric):
        return f"{family!r} is no metric family: answer with those of prometheus_client.core"
    if not family.name.startswith(PREFIX):
        return f"{family.name} does not start with {PREFIX}: rename it"
    names = _names(family)
    clash = sorted(names & taken)
    if clash:
        return f"{clash[0]} is there already: rename it"
    try:
        foreign = sorted({sample.name for sample in family.samples} - names)
        write(family)
    except Exception as error:  # noqa: BLE001 (the library raises whatever comes of wrong values)
        return f"{family.name} cannot be written: {type(error).__name__}: {error}"
    return f"{family.name} has samples named {foreign[0]}: give them a family of their own" if foreign else ""


def _names(family: Metric) -> set[str]:
    """Every name that the family's samples can have, and its own."""
    return {family.name, *(family.name + suffix for suffix in _SUFFIXES.get(family.type, ("",)))}
