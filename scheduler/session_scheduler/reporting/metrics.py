"""The scheduler's metrics. To add one, define it in `Metrics`, count it in `live_observer`, and list it in the docs.

Names start with `fluence_`, units are base units, and the registry is the scheduler's own. Recording is a lookup and an
addition; a scrape reads what other modules count (hooks, pending groups, plugins). `docs/reference/metrics.md` is the
list for administrators.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Final, Literal, NamedTuple, get_args

import msgspec
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
from session_scheduler.reporting.kube_scheduler_metrics import KubeSchedulerMetrics

_log = structlog.get_logger(__name__)

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PREFIX: Final = "fluence_"

GroupResult = Literal["scheduled", "unschedulable", "error", "timeout"]
"""timeout: the gang was partly bound for too long and starts over."""
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
"""The code of a failed bind by the name of its error; any other is `other`."""
PENDING_STATES: Final = ("due", "backoff", "unschedulable", "gated", "in_flight")
"""States that are always shown, with 0 for none."""

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Bucket bounds of the histograms of the scheduler's own work."""
WAITS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0, 86400.0)
"""Bucket bounds of the histograms of waiting times."""
ATTEMPTS: Final = ((1, "1"), (4, "2-4"), (14, "5-14"))
"""The values of the label `attempts`, each with its largest number; a larger number is `15+`."""
_MOST_QUEUES: Final = 100
OTHER: Final = "other"
"""The label `queue` of all queues after the first hundred that had pods."""
_SUFFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "counter": ("_total", "_created"),
    "summary": ("", "_sum", "_count", "_created"),
    "histogram": ("_bucket", "_sum", "_count", "_created"),
    "gaugehistogram": ("_bucket", "_gsum", "_gcount"),
    "info": ("_info",),
}
"""The suffixes of sample names, by type of the metric family; other types have none."""


class Pending(NamedTuple):
    """The pending groups and pods."""

    groups: Mapping[str, int]
    """By state, like the pods."""
    pods: Mapping[str, int]
    reserved: int
    """The number of gangs with reserved nodes."""


class _Collector(msgspec.Struct, frozen=True):
    """A collector for a registry and for the writers of both formats."""

    collect: Callable[[], Iterable[Metric]]

    def describe(self) -> Iterable[Metric]:
        """The families, so that a registry rejects duplicates."""
        return self.collect()


class _Counts:
    """A counter with labels that caches its children."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        shown: Iterable[str] = (),
    ) -> None:
        """`shown`: values of the only label that start at 0, so that alerts see the first increase."""
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
    """Counts watches by the name of the type; `why` is the name of an error, never its text."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._events = _Counts(registry, "watch_events", "Watch events, including bookmarks.", ("kind",))
        self._ends = _Counts(registry, "watch_ends", "Ended watches.", ("kind", "why"))
        self._relists = _Counts(
            registry, "watch_relists", "Lists repeated because a watch could not be resumed.", ("kind", "why")
        )
        self._missed = _Counts(
            registry, "missed_events", "Changes without a watch event, found by reconciliation.", ("kind",)
        )

    def event(self, kind: str) -> None:
        """A watch sent an event or a bookmark."""
        self._events.add(kind)

    def watch_ended(self, kind: str, why: str) -> None:
        """A watch ended."""
        self._ends.add(kind, why)

    def relisted(self, kind: str, why: str) -> None:
        """A kind is listed again to restart its watch."""
        self._relists.add(kind, why)

    def missed(self, kind: str, count: int) -> None:
        """The watch sent no event for `count` changed objects."""
        self._missed.add(kind, count=count)


class ReportMetrics:
    """Counts written reports; `kind` is "condition" or "event"."""

    def __init__(self, registry: CollectorRegistry) -> None:
        kinds = ("condition", "event")
        self._written = _Counts(registry, "reports_written", "Conditions and events written.", ("kind",), kinds)
        self._dropped = _Counts(registry, "reports_dropped", "Conditions and events dropped.", ("kind", "why"))

    def written(self, kind: str) -> None:
        """A report was written."""
        self._written.add(kind)

    def dropped(self, kind: str, why: str) -> None:
        """A report was dropped; `why` is the name of an error, never its text."""
        self._dropped.add(kind, why)


class Metrics:
    """One scheduler's metrics. `exposition` is the response to a scrape.

    All methods run on the scheduler's thread.
    """

    def __init__(self, version: str = "", *, kube_scheduler: bool = False) -> None:
        """`version` is the product's, for `fluence_build_info`. `kube_scheduler`: also show kube-scheduler's names."""
        disable_created_metrics()
        registry = self._registry = CollectorRegistry()
        ProcessCollector(namespace=PREFIX.rstrip("_"), registry=registry)
        build = Gauge(PREFIX + "build_info", "Build information; always 1.", ("version", "python"), registry=registry)
        build.labels(version, platform.python_version()).set(1)
        self._cycles = _Counts(registry, "cycles", "Scheduling cycles by result.", ("result",), ("ok", "error"))
        self._cycle_seconds = _histogram(
            registry, "cycle_seconds", "Duration of a cycle: events, completed binds and sessions."
        )
        stages = _histogram(registry, "stage_seconds", "Duration of one stage of scheduling.", ("stage",))
        self._stages = {stage: stages.labels(stage) for stage in get_args(Stage)}
        self._groups = _Counts(registry, "groups", "Attempts to schedule groups.", ("result",), get_args(GroupResult))
        self._pods = _Counts(registry, "pods", "Attempts to schedule pods.", ("result",), get_args(PodResult))
        self.requeued = _Counts(
            registry, "woken_groups", "Unschedulable groups that an event requeued.", ("event", "plugin")
        )
        """Groups that an event requeued, by event and the plugin that had rejected them; empty for their own events."""
        codes = (*BIND_ERRORS.values(), "other")
        self._bind_errors = _Counts(registry, "bind_errors", "Failed bind requests.", ("code",), codes)
        self.evictions = _Counts(registry, "gang_evictions", "Evicted gangs that were incomplete for too long.")
        self._preemptions = _Counts(registry, "preemptions", "Pods and gangs that preempted others.")
        self._victims = _Counts(registry, "preemption_victims", "Preempted pods.")
        self._consolidations = _Counts(registry, "consolidations", "Pods and gangs for which other pods were moved.")
        self.filled_in = _Counts(registry, "backfilled_pods", "Pods that backfill placed on reserved nodes.")
        self._moved = _Counts(registry, "moved_pods", "Pods evicted to run on another node or GPU.")
        self._recoveries = _Counts(registry, "recoveries", "Recovered plans.", ("what",), ("rolled_forward", "aborted"))
        self._recovered_pods = _Counts(registry, "recovered_pods", "Pods of plans that were rolled forward.")
        self.watch_lag = _histogram(registry, "watch_lag_seconds", "Time from a bind's response to its watch event.")
        self.watches = WatchMetrics(registry)
        self.reports = ReportMetrics(registry)
        """The counts of a `Recorder`."""
        self._extender_requests = _Counts(
            registry, "extender_requests", "Requests to HTTP extenders.", ("extender", "verb", "code")
        )
        self._extender_seconds = _histogram(
            registry, "extender_request_seconds", "Duration of a request to an HTTP extender.", ("extender", "verb")
        )
        self._latency = _histogram(
            registry, "pod_scheduling_seconds", "Time from a pod's creation to its bind.", ("queue", "attempts"), WAITS
        )
        self._queue_wait = _histogram(
            registry, "queue_wait_seconds", "Time from a group's entry into the queue, or from its latest failed "
            "attempt, to the attempt that places it.", ("queue",), WAITS,
        )  # fmt: skip
        self._gang_start = _histogram(
            registry, "gang_start_seconds", "Time from the creation of a gang's first pod to the gang's last bind.",
            ("queue",), WAITS,
        )  # fmt: skip
        self._queues: set[str] = set()
        self.kube_scheduler = KubeSchedulerMetrics(registry) if kube_scheduler else None
        self._leader = Gauge(PREFIX + "leader", "1 if this replica leads.", registry=registry)
        self.renewal_failures = _Counts(registry, "lease_renewal_failures", "Failed renewals of the lease.")
        self._plugin_families = _PluginFamilies(registry)

    # ------------------------------------------------------------------ recording

    def cycle(self, seconds: float, *, failed: bool = False) -> None:
        """A cycle ended; `failed` if it raised an exception."""
        self._cycles.add("error" if failed else "ok")
        self._cycle_seconds.observe(seconds)

    def stage(self, stage: Stage, seconds: float) -> None:
        """A stage of a session or a group ended."""
        self._stages[stage].observe(seconds)

    @contextmanager
    def timed(self, stage: Stage) -> Iterator[None]:
        """Record the duration of the block."""
        started = perf_counter()
        try:
            yield
        finally:
            self._stages[stage].observe(perf_counter() - started)

    def groups(self, result: GroupResult, count: int = 1) -> None:
        """Attempts to schedule groups ended with this result."""
        self._groups.add(result, count=count)

    def pods(self, result: PodResult, count: int = 1) -> None:
        """Attempts to schedule pods ended with this result."""
        self._pods.add(result, count=count)

    def bind_error(self, answer: str) -> None:
        """A bind failed; `answer` is the name of the error, such as `NotFound`."""
        self._bind_errors.add(BIND_ERRORS.get(answer, "other"))

    def preempted(self, victims: int) -> None:
        """A pod or a gang preempted this many pods."""
        self._preemptions.add(count=victims > 0)
        self._victims.add(count=victims)

    def moved(self, victims: int) -> None:
        """This many pods were moved for a pod or a gang."""
        self._consolidations.add()
        self._moved.add(count=victims)

    def pod_scheduled(self, queue: str, attempts: int, seconds: float) -> None:
        """A pod was bound in this attempt, this many seconds after its creation."""
        label = next((label for most, label in ATTEMPTS if attempts <= most), "15+")
        self._latency.labels(self._queue(queue), label).observe(seconds)

    def queue_waited(self, queue: str, seconds: float) -> None:
        """A group waited for the attempt that placed it."""
        self._queue_wait.labels(self._queue(queue)).observe(seconds)

    def gang_started(self, queue: str, seconds: float) -> None:
        """A gang has started, this many seconds after the creation of its first pod."""
        self._gang_start.labels(self._queue(queue)).observe(seconds)

    def _queue(self, name: str) -> str:
        """The label of a queue: users create queues, and each one costs series forever."""
        if name not in self._queues and len(self._queues) >= _MOST_QUEUES:
            return OTHER
        self._queues.add(name)
        return name

    def recovered(self, what: str, pods: int) -> None:
        """A plan was "rolled forward", with this many unbound pods, or "aborted"."""
        self._recoveries.add(what.replace(" ", "_"))
        self._recovered_pods.add(count=pods)

    def extender_called(self, extender: str, verb: str, code: str, seconds: float) -> None:
        """A request to an HTTP extender ended with this HTTP status, `timeout` or `error`."""
        self._extender_requests.add(extender, verb, code)
        self._extender_seconds.labels(extender, verb).observe(seconds)

    # ------------------------------------------------------------------ read at a scrape

    def follow_leader(self, leads: Callable[[], bool]) -> None:
        """Call `leads` at each scrape."""
        self._leader.set_function(leads)

    def follow_pending(self, pending: Callable[[], Pending]) -> None:
        """Call `pending` at each scrape."""
        self._registry.register(_Collector(lambda: _of_pending(pending())))
        if self.kube_scheduler is not None:
            self.kube_scheduler.follow_pending(lambda: pending().pods)

    def follow_pod_groups(self, apis: GroupDiscovery) -> None:
        """Show the PodGroup APIs and feature gates of the API server."""
        self._registry.register(_Collector(lambda: _of_pod_groups(apis)))

    def follow_profiles(
        self, profiles: Mapping[str, HookCalls], in_session: Callable[[], bool] = lambda: False
    ) -> None:
        """Show the hooks' times by profile, and the results of the hook `metrics`.

        A scrape calls the hook between sessions only; `in_session` it shows the last results.
        """
        self._registry.register(_Collector(lambda: _of_hooks(profiles)))
        self._plugin_families.follow(profiles, in_session)

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The body of a scrape and its content type, for the request's Accept header."""
        wants_openmetrics = "application/openmetrics-text" in accept
        write = generate_openmetrics if wants_openmetrics else generate_latest
        families = list(self._registry.collect())
        families += self._plugin_families.collect(families, lambda family: write(_Collector(lambda: [family])))
        return write(_Collector(lambda: families)), OPENMETRICS if wants_openmetrics else TEXT


def _histogram(
    registry: CollectorRegistry, name: str, text: str, labels: Sequence[str] = (), buckets: Sequence[float] = SECONDS
) -> Histogram:
    return Histogram(PREFIX + name, text, labels, buckets=buckets, registry=registry)


def _of_pending(pending: Pending) -> Iterable[Metric]:
    """Gauges of pending groups and pods for every state."""
    none = dict.fromkeys(PENDING_STATES, 0)
    for what, counts in (("groups", pending.groups), ("pods", pending.pods)):
        yield _gauge(f"pending_{what}", f"Pending {what} by state.", "state", {**none, **counts})
    yield GaugeMetricFamily(f"{PREFIX}reserved_groups", "Gangs with reserved nodes.", value=pending.reserved)


def _of_pod_groups(apis: GroupDiscovery) -> Iterable[Metric]:
    """Gauges of the PodGroup APIs and feature gates."""
    used = dict.fromkeys(apis.versions, 1)
    yield _gauge("pod_group_api", "1 if the scheduler uses this version.", "version", used)
    yield _gauge("pod_group_gate", "1 if this feature gate is enabled.", "gate", apis.gates)


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """A gauge with a value for each value of a label."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for of, value in values.items():
        family.add_metric([of], value)
    return family


def _of_hooks(profiles: Mapping[str, HookCalls]) -> Iterable[Metric]:
    """Counters of the calls and times of hooks."""
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
    """The results of the hook `metrics`, validated so that no plugin breaks a scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._failures = _Counts(
            registry, "plugin_metrics_failures", "Invalid results of the hook `metrics`.", ("plugin",)
        )
        self._profiles: Mapping[str, HookCalls] = {}
        self._in_session: Callable[[], bool] = lambda: False
        self._last: list[tuple[str, Metric]] = []
        self._logged: dict[str, str] = {}
        """By plugin the last logged problem, so that it is not logged at every scrape."""

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
        """The families that `write` accepts and whose names are valid and not in `core`."""
        problems: dict[str, str] = {}
        if not self._in_session():
            self._last = [(call.plugin, family) for call in self._calls() for family in _called(call, problems)]
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
                _log.warning("leaving out a plugin's metrics", plugin=plugin, problem=problem)
        self._logged = problems
        return shown


def _called(call: HookCall, problems: dict[str, str]) -> list[Metric]:
    try:
        return list(call() or ())
    except Exception as error:  # noqa: BLE001 (logged; other plugins' metrics are shown)
        problems[call.plugin] = f"{type(error).__name__}: {error}"
        return []


def _problem(family: Metric, taken: set[str], write: Callable[[Metric], object]) -> str:
    """Why a family is invalid; empty if it is valid."""
    if not isinstance(family, Metric):
        return f"expected a metric family of prometheus_client.core, got {family!r}"
    if not family.name.startswith(PREFIX):
        return f"{family.name} does not start with {PREFIX}; rename it"
    names = _names(family)
    clash = sorted(names & taken)
    if clash:
        return f"{clash[0]} already exists; rename it"
    try:
        foreign = sorted({sample.name for sample in family.samples} - names)
        write(family)
    except Exception as error:  # noqa: BLE001 (the library raises any exception for invalid values)
        return f"{family.name} cannot be written: {type(error).__name__}: {error}"
    return f"{family.name} has samples named {foreign[0]}; give them a family of their own" if foreign else ""


def _names(family: Metric) -> set[str]:
    """The names of the family and its samples."""
    return {family.name, *(family.name + suffix for suffix in _SUFFIXES.get(family.type, ("",)))}
