"""The scheduler's configuration: reads a YAML file into frozen models. It knows plugins by name only.

The file is camelCase with apiVersion and kind. Every invalid field is one line: file, path in the file's spelling,
problem, remedy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from session_scheduler.config.extenders import ExtenderConfig, check_together
from session_scheduler.config.parsing import read_text, read_values, validated, without_users, wrong_value
from session_scheduler.config.partition import PartitionConfig
from session_scheduler.config.strict import Strict
from session_scheduler.errors import InputError

__all__ = [
    "LeaderElection", "PluginArguments", "PluginConfig", "Profile", "QueueConfig", "SchedulerConfig", "Serving",
    "Strict", "load_config", "without_secrets",
]  # fmt: skip

CONFIG_API_VERSION: Final = "fluence.flux-framework.org/v1alpha1"
KIND: Final = "SchedulerConfiguration"
DEFAULT_SCHEDULER_NAME: Final = "fluence"
ACTIONS: Final = ("allocate", "preempt", "backfill", "reclaim", "consolidate", "stale-gang-eviction")
"""The actions of a cycle."""


_SECRET: Final = re.compile("token|secret|password|credential|key", re.IGNORECASE)


class PluginArguments(Strict):
    """Base for a plugin's `Arguments`: its fields are the fields of `args` in a configuration."""


def _known_action(name: str) -> str:
    if name not in ACTIONS:
        raise wrong_value(f"unknown action {name!r}; use {', '.join(ACTIONS)}")
    return name


def _check_distinct(field: str, key: str, names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            first = f"{field}[{names.index(name)}]"
            at = (field, index, key) if key else (field, index)
            raise wrong_value(f"{name!r} duplicates {first}; remove one of the two", at=at)


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        raise wrong_value(f"expected a quantity such as 500m, 2 or 4Gi, got {value}")
    return value


Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Action = Annotated[str, AfterValidator(_known_action)]
Name = Annotated[str, Field(min_length=1)]
QualifiedName = Annotated[str, Field(pattern=r"^[^/]+/[^/]+$")]
Amount = Annotated[str | int | float, BeforeValidator(_finite)]
"""A quantity, as a string or a number."""


class PluginConfig(Strict):
    """One plugin of a profile. If `weight` is None, the weight that the plugin declares applies."""

    name: Name
    args: Mapping[str, Any] = {}
    weight: Annotated[int, Field(ge=0, le=65536)] | None = None
    enabled: bool = True


class Profile(Strict):
    """The plugins for the pods of one `schedulerName`.

    The file's `plugins` change the default list: an entry for a default plugin configures it in its place
    (`enabled: false` disables it), any other plugin is appended. `defaults: false` starts from an empty list.
    `plugins` is the list in the file; `effective_plugins` is the resulting list. `Registry.default_plugins()` is the
    default list.
    """

    scheduler_name: Name = DEFAULT_SCHEDULER_NAME
    defaults: bool = True
    plugins: tuple[PluginConfig, ...] = ()
    _place: tuple[str, str] = PrivateAttr(("default configuration", "profiles[0]"))

    @model_validator(mode="after")
    def _each_plugin_once(self) -> Self:
        _check_distinct("plugins", "name", [plugin.name for plugin in self.plugins])
        return self

    def effective_plugins(self, defaults: Sequence[str]) -> tuple[PluginConfig, ...]:
        """The enabled plugins in call order; `defaults` is the default list."""
        written = {plugin.name: plugin for plugin in self.plugins}
        names = [*(defaults if self.defaults else ()), *written]
        plugins = [written.get(name) or PluginConfig(name=name) for name in dict.fromkeys(names)]
        return tuple(plugin for plugin in plugins if plugin.enabled)

    def place_of(self, plugin: str) -> tuple[str, str]:
        """The file and the path of a plugin's entry, for messages."""
        source, path = self._place
        index = next((f"[{i}]" for i, entry in enumerate(self.plugins) if entry.name == plugin), "")
        return source, f"{path}.plugins{index}"

    def with_arguments(self, plugin: str, arguments: Mapping[str, Any]) -> Profile:
        """The same profile with some arguments of one plugin set, as options of the command line do."""
        known = next((entry for entry in self.plugins if entry.name == plugin), None)
        if known is None:
            return self.model_copy(update={"plugins": (*self.plugins, PluginConfig(name=plugin, args=arguments))})
        changed = known.model_copy(update={"args": {**known.args, **arguments}})
        plugins = tuple(changed if entry is known else entry for entry in self.plugins)
        return self.model_copy(update={"plugins": plugins})


class Backoff(Strict):
    """The backoff of an unschedulable group, in seconds: doubled from `initial` up to `max`.

    kube-scheduler's podInitialBackoffSeconds, podMaxBackoffSeconds and podMaxInUnschedulablePodsDuration.
    """

    initial_seconds: Seconds = 1.0
    max_seconds: Seconds = 10.0
    max_unschedulable_seconds: Seconds = 300.0
    """The scheduler retries a group that no event has requeued for this long."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_seconds < self.initial_seconds:
            problem = f"is {self.max_seconds:g}, below initialSeconds; use {self.initial_seconds:g} or more"
            raise wrong_value(problem, at=("maxSeconds",))
        return self


class LeaderElection(Strict):
    """Leader election: the replica that holds the Lease `namespace`/`name` schedules. Times are in seconds.

    The holder stops writing when its last renewal is older than `renew_seconds`. Another replica acquires the Lease
    after `lease_seconds` without a renewal. The difference covers the longest request in flight.
    """

    enabled: bool = True
    namespace: Name = "kube-system"
    name: Name = "fluence"
    lease_seconds: Annotated[int, Field(ge=1, le=3600)] = 15  # a Lease has whole seconds
    renew_seconds: Seconds = 10.0
    retry_seconds: Seconds = 2.0

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for field, value, less, more in (
            ("renewSeconds", self.renew_seconds, "leaseSeconds", self.lease_seconds),
            ("retrySeconds", self.retry_seconds, "renewSeconds", self.renew_seconds),
        ):
            if value >= more:
                problem = f"is {value:g}; use a value less than {less} ({more:g})"
                raise wrong_value(problem, at=(field,))
        return self


class ConsolidationConfig(Strict):
    """The action `consolidate`. max_moves: the limit for one group. rest_seconds: how long a controller's pods stay
    in place after one of them was moved. move_gangs: whether whole gangs move, too, and whether pods
    move for groups that need one topology domain.
    """

    max_moves: Count = 64
    rest_seconds: Seconds = 300.0
    move_gangs: bool = False


class QueueConfig(Strict):
    """One queue. Amounts are quantities by resource, as in `resources.requests`; `pods` is the number of pods.

    deserved: the guaranteed amounts; a resource without one has no guarantee. limit: what the queue and its children
    never exceed. over_quota_weight: the queue's weight when queues of its priority share what is left after each
    queue got its deserved amount. priority: queues of higher priority get their part of this rest first.
    """

    name: Name
    parent: str = ""
    deserved: Mapping[Name, Amount] = {}
    limit: Mapping[Name, Amount] = {}
    over_quota_weight: Annotated[int, Field(ge=0, le=1_000_000)] = 1
    priority: int = 0


class DeviceResourceConfig(Strict):
    """An amount in which queues count devices of one kind: `NAME.fluence.flux-framework.org/devices`.

    resources: the amounts that it sums up; parts of GPUs count as parts. node_selector: requests of pods count on nodes
    with these labels only; devices of claims count on all nodes. device_attributes: the devices of claims that have
    these values count, too. capacity: devices of claims count with their capacity of this name, as
    `NAME.fluence.flux-framework.org/capacity`.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
    resources: tuple[Name, ...] = ()
    node_selector: Mapping[Name, str] = {}
    device_attributes: Mapping[QualifiedName, bool | int | str] = {}
    capacity: QualifiedName | None = None


class Serving(Strict):
    """The HTTP server of /metrics, /healthz, /readyz and /configz. With port 0 the system chooses a free port.

    authorization: `delegated`: the API server reviews the tokens of requests for all paths except probes and metrics;
    `none`: all paths are open. audiences: those of accepted tokens; empty for the API server's. requests_per_second:
    the limit of one client; three times as many for all clients together.
    """

    enabled: bool = True
    host: Name = "0.0.0.0"  # noqa: S104 (a pod's only address; the responses contain no secrets)
    port: Annotated[int, Field(ge=0, lt=65536)] = 8080
    authorization: Literal["delegated", "none"] = "delegated"
    audiences: tuple[Name, ...] = ()
    requests_per_second: Annotated[float, Field(ge=1)] = 5.0


class SchedulerConfig(Strict):
    """The whole configuration. Times are in seconds.

    seed: breaks ties between nodes with equal scores. cycle_seconds: an action starts no new group after this long.
    hook_seconds: the timeout of a plugin's hook, unless the plugin declares another. placement_retries: how often
    one group's placement starts over. bindings_in_flight: concurrent binds. gang_bind_timeout_seconds: a gang that is
    partly bound for this long is evicted. reservations: how many gangs the action backfill reserves nodes for.
    stale_gang_seconds: the action stale-gang-eviction evicts a gang that runs below its minimum for this long.
    reconcile_seconds: the interval between full lists of the cluster. events: whether the scheduler records events.
    kube_scheduler_metrics: whether /metrics also shows kube-scheduler's names for what this scheduler measures.
    consolidation: limits of the action `consolidate`. queues: queues in addition to the Queue objects; of two with the
    same name the configuration's takes precedence. device_resources: further amounts of queues, such as the GPUs of one
    model. extenders: HTTP extenders, which are called for the pods of all profiles. partition: the part of the cluster
    that this scheduler serves; None for all of it.
    """

    api_version: Literal["fluence.flux-framework.org/v1alpha1"] = CONFIG_API_VERSION
    kind: Literal["SchedulerConfiguration"] = KIND
    profiles: Annotated[tuple[Profile, ...], Field(min_length=1)] = (Profile(),)
    actions: Annotated[tuple[Action, ...], Field(min_length=1)] = ("allocate", "preempt", "reclaim")
    backoff: Backoff = Backoff()
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    cycle_seconds: Seconds = 10.0
    hook_seconds: Seconds = 5.0
    placement_retries: Annotated[int, Field(ge=0)] = 3
    bindings_in_flight: Count = 64
    gang_bind_timeout_seconds: Seconds = 60.0
    reservations: Annotated[int, Field(ge=1, le=1000)] = 1
    stale_gang_seconds: Seconds = 60.0
    reconcile_seconds: Seconds = 60.0
    events: bool = True
    kube_scheduler_metrics: bool = False
    consolidation: ConsolidationConfig = ConsolidationConfig()
    queues: tuple[QueueConfig, ...] = ()
    device_resources: Annotated[tuple[DeviceResourceConfig, ...], Field(max_length=64)] = ()
    extenders: tuple[ExtenderConfig, ...] = ()
    leader_election: LeaderElection = LeaderElection()
    serving: Serving = Serving()
    partition: PartitionConfig | None = None

    @property
    def scheduler_names(self) -> tuple[str, ...]:
        """The schedulerNames of the pods that this scheduler places."""
        return tuple(profile.scheduler_name for profile in self.profiles)

    @property
    def source(self) -> str:
        """The configuration's file, for messages."""
        return self.profiles[0].place_of("")[0]

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        _check_distinct("actions", "", self.actions)
        if self.actions[0] != "allocate":
            problem = f"is {self.actions[0]!r}; start with allocate; the other actions work on what it could not place"
            raise wrong_value(problem, at=("actions", 0))
        _check_distinct("queues", "name", [queue.name for queue in self.queues])
        _check_distinct("deviceResources", "name", [one.name for one in self.device_resources])
        check_together(self.extenders)
        _check_distinct("profiles", "schedulerName", [profile.scheduler_name for profile in self.profiles])
        if self.partition is not None and not self.leader_election.enabled:
            problem = "needs leaderElection.enabled: the Lease shows the partition to the other schedulers"
            raise wrong_value(problem, at=("partition",))
        return self

    def profile(self, scheduler_name: str) -> Profile | None:
        """The profile of a schedulerName."""
        return next((profile for profile in self.profiles if profile.scheduler_name == scheduler_name), None)


def is_secret(name: str) -> bool:
    """Whether a plugin's argument with this name is a secret."""
    return _SECRET.search(name) is not None


def written(config: SchedulerConfig) -> dict[str, Any]:
    """The whole configuration with defaults, as plain values in the file's spelling."""
    return config.model_dump(mode="json", by_alias=True)


def shown(config: SchedulerConfig) -> dict[str, Any]:
    """Like `written`, without plugins' arguments that may be secret."""
    values = written(config)
    for profile in values["profiles"]:
        for plugin in profile["plugins"]:
            plugin["args"] = without_secrets(plugin["args"])
    values["extenders"] = without_secrets(values["extenders"])
    return values


def without_secrets(value: Any) -> Any:
    """Plain values, except those whose names suggest a secret, and without users in URLs."""
    if isinstance(value, Mapping):
        return {name: "(not shown)" if is_secret(name) else without_secrets(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_secrets(inner) for inner in value]
    return without_users(value) if isinstance(value, str) else value


def load_config(path: Path) -> SchedulerConfig:
    """Read a configuration file. Raises InputError with a line for each invalid field."""
    return parse_config(read_text(path), str(path))


def parse_config(text: str, source: str) -> SchedulerConfig:
    """Read a configuration's text, named `source` in messages. Raises InputError with a line for each invalid field."""
    values = read_values(text, source)
    if not isinstance(values, dict):
        raise InputError(
            f"{source}: expected a mapping; start with `apiVersion: {CONFIG_API_VERSION}` and `kind: {KIND}`"
        )
    missing = [
        f"{source}: {field}: is missing; add `{field}: {value}`"
        for field, value in (("apiVersion", CONFIG_API_VERSION), ("kind", KIND))
        if field not in values
    ]
    if missing:
        raise InputError(*missing)
    return config_from(values, source)


def config_from(values: Any, source: str) -> SchedulerConfig:
    """A configuration from the plain values of `written`. Raises InputError with a line for each invalid field."""
    config = validated(SchedulerConfig, values, source)
    profiles = tuple(profile.model_copy() for profile in config.profiles)  # the default profile is shared
    for index, profile in enumerate(profiles):
        profile._place = (source, f"profiles[{index}]")
    return config.model_copy(update={"profiles": profiles})
