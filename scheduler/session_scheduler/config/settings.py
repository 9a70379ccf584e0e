"""The scheduler's configuration: a YAML file in, frozen values out. A leaf: it knows no plugin, only their names.

The wire form is camelCase with a Kubernetes-like header. Every wrong field is one line: file, path in the file's own
spelling, what is wrong, what to do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator
from pydantic.alias_generators import to_camel

from session_scheduler.config.parsing import read_values, validated, without_users, wrong_value
from session_scheduler.errors import InputError

__all__ = [
    "LeaderElection", "PluginArguments", "PluginConfig", "Profile", "SchedulerConfig", "Serving", "Strict",
    "without_secrets",
]  # fmt: skip

CONFIG_API_VERSION: Final = "fluence.flux-framework.org/v1alpha1"
KIND: Final = "SchedulerConfiguration"
DEFAULT_SCHEDULER_NAME: Final = "fluence"
ACTIONS: Final = ("allocate", "preempt", "backfill", "reclaim", "consolidate", "stale-gang-eviction")
"""The actions that a cycle can have."""


_SECRET: Final = re.compile("token|secret|password|credential|key", re.IGNORECASE)


class Strict(BaseModel):
    """Base of everything that is read from a configuration: frozen, camelCase in the file, unknown fields refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        allow_inf_nan=False,
    )


class PluginArguments(Strict):
    """Base for a plugin's `Arguments`: its fields are what `args` may hold in a configuration."""


def _known_action(name: str) -> str:
    if name not in ACTIONS:
        raise wrong_value(f"{name!r} is no action: use {', '.join(ACTIONS)}")
    return name


def _refuse_twice(field: str, key: str, names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            first = f"{field}[{names.index(name)}]"
            at = (field, index, key) if key else (field, index)
            raise wrong_value(f"{name!r} is also {first}: keep one of the two", at=at)


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        raise wrong_value(f"{value} is no amount: write a number with an optional suffix, as 500m, 2 or 4Gi")
    return value


Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Action = Annotated[str, AfterValidator(_known_action)]
Name = Annotated[str, Field(min_length=1)]
Amount = Annotated[str | int | float, BeforeValidator(_finite)]
"""A quantity, as text or number."""


class PluginConfig(Strict):
    """One plugin of a profile. `weight` None is the weight that the plugin declares."""

    name: Name
    args: Mapping[str, Any] = {}
    weight: Annotated[int, Field(ge=0, le=65536)] | None = None
    enabled: bool = True


class Profile(Strict):
    """What serves the pods of one `schedulerName`.

    The file's `plugins` change the default list: an entry that names a default plugin configures it where it stands
    (`enabled: false` switches it off), any other is called after those before it. `defaults: false` starts from an
    empty list. `plugins` is the list as it is written; `effective_plugins` is the list that comes of it. The default
    list itself is `Registry.default_plugins()`.
    """

    scheduler_name: Name = DEFAULT_SCHEDULER_NAME
    defaults: bool = True
    plugins: tuple[PluginConfig, ...] = ()
    _place: tuple[str, str] = PrivateAttr(("default configuration", "profiles[0]"))

    @model_validator(mode="after")
    def _each_plugin_once(self) -> Self:
        _refuse_twice("plugins", "name", [plugin.name for plugin in self.plugins])
        return self

    def effective_plugins(self, defaults: Sequence[str]) -> tuple[PluginConfig, ...]:
        """The plugins that are switched on, in the order in which they are called; `defaults` is the default list."""
        written = {plugin.name: plugin for plugin in self.plugins}
        names = [*(defaults if self.defaults else ()), *written]
        plugins = [written.get(name) or PluginConfig(name=name) for name in dict.fromkeys(names)]
        return tuple(plugin for plugin in plugins if plugin.enabled)

    def place_of(self, plugin: str) -> tuple[str, str]:
        """The file, and the path in it, where a plugin's entry stands: for messages."""
        source, path = self._place
        index = next((f"[{i}]" for i, entry in enumerate(self.plugins) if entry.name == plugin), "")
        return source, f"{path}.plugins{index}"

    def with_arguments(self, plugin: str, arguments: Mapping[str, Any]) -> Profile:
        """The same profile with some arguments of one plugin set: what the command line's options do."""
        known = next((entry for entry in self.plugins if entry.name == plugin), None)
        if known is None:
            return self.model_copy(update={"plugins": (*self.plugins, PluginConfig(name=plugin, args=arguments))})
        changed = known.model_copy(update={"args": {**known.args, **arguments}})
        plugins = tuple(changed if entry is known else entry for entry in self.plugins)
        return self.model_copy(update={"plugins": plugins})


class Backoff(Strict):
    """How long a group that could not be placed waits: doubled from `initial` up to `max`, in seconds.

    kube-scheduler's podInitialBackoffSeconds, podMaxBackoffSeconds and podMaxInUnschedulablePodsDuration.
    """

    initial_seconds: Seconds = 1.0
    max_seconds: Seconds = 10.0
    max_unschedulable_seconds: Seconds = 300.0
    """A group that no event has requeued for so long is retried."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_seconds < self.initial_seconds:
            problem = f"is {self.max_seconds:g}, below initialSeconds: use {self.initial_seconds:g} or more"
            raise wrong_value(problem, at=("maxSeconds",))
        return self


class LeaderElection(Strict):
    """One of several replicas schedules: it holds the Lease `namespace`/`name`. Times are in seconds.

    A replica that holds it writes nothing once its last renewal is older than `renew_seconds`; another takes it over
    after it was not renewed for `lease_seconds`. Between the two lies the time of the longest request in flight.
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
                problem = f"is {value:g}, not below {less} ({more:g}): lower it"
                raise wrong_value(problem, at=(field,))
        return self


class ConsolidationConfig(Strict):
    """The action `consolidate`. max_moves: for one group. rest_seconds: how long a controller's pods are left alone
    after one of them was moved.
    """

    max_moves: Count = 64
    rest_seconds: Seconds = 300.0


class QueueConfig(Strict):
    """One queue. Amounts are quantities by resource, as in `resources.requests`, and `pods` for their number.

    deserved: what it may always have; of what it does not name nothing is guaranteed. limit: what it and those below it
    never exceed. over_quota_weight: its part of what no queue deserves, beside others of its priority. priority: whose
    turn it is first with that.
    """

    name: Name
    parent: str = ""
    deserved: Mapping[Name, Amount] = {}
    limit: Mapping[Name, Amount] = {}
    over_quota_weight: Annotated[int, Field(ge=0, le=1_000_000)] = 1
    priority: int = 0


class Serving(Strict):
    """Where /metrics, /healthz, /readyz and /configz are answered, over HTTP; port 0 is any free one."""

    enabled: bool = True
    host: Name = "0.0.0.0"  # noqa: S104 (a pod's only address; what is shown there holds no secrets)
    port: Annotated[int, Field(ge=0, lt=65536)] = 8080


class SchedulerConfig(Strict):
    """The whole configuration. Times are in seconds.

    seed: decides between nodes with equal totals. cycle_seconds: a cycle starts no new group after this long.
    hook_seconds: a plugin that does not answer for this long is interrupted, unless it says otherwise.
    placement_retries: whole new starts of one group's placement.
    bindings_in_flight: binds at once. gang_bind_timeout_seconds: a gang that is bound in part for this long is evicted.
    reservations: for how many gangs at a time the action backfill keeps nodes. stale_gang_seconds: a gang that lost
    members it needs, and is not whole again after this long, is ended by the action stale-gang-eviction.
    reconcile_seconds: how often the whole cluster is listed and compared. events: whether events are written.
    consolidation: what the action `consolidate` keeps to.
    queues: what teams share the cluster by, beside the Queue objects; a name that both have is the configuration's.
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
    consolidation: ConsolidationConfig = ConsolidationConfig()
    queues: tuple[QueueConfig, ...] = ()
    leader_election: LeaderElection = LeaderElection()
    serving: Serving = Serving()

    @property
    def source(self) -> str:
        """The file that it was read from, for messages."""
        return self.profiles[0].place_of("")[0]

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        _refuse_twice("actions", "", self.actions)
        if self.actions[0] != "allocate":
            problem = f"is {self.actions[0]!r}: begin with allocate, the others go over what that could not place"
            raise wrong_value(problem, at=("actions", 0))
        _refuse_twice("queues", "name", [queue.name for queue in self.queues])
        _refuse_twice("profiles", "schedulerName", [profile.scheduler_name for profile in self.profiles])
        return self

    def profile(self, scheduler_name: str) -> Profile | None:
        """The profile that serves a schedulerName."""
        return next((profile for profile in self.profiles if profile.scheduler_name == scheduler_name), None)


def is_secret(name: str) -> bool:
    """Whether a plugin's argument of this name holds a secret."""
    return _SECRET.search(name) is not None


def written(config: SchedulerConfig) -> dict[str, Any]:
    """The whole configuration as it is written in a file, defaults included: plain values."""
    return config.model_dump(mode="json", by_alias=True)


def shown(config: SchedulerConfig) -> dict[str, Any]:
    """The configuration as it is written, for people to see, without what may be secret of plugins' arguments."""
    values = written(config)
    for profile in values["profiles"]:
        for plugin in profile["plugins"]:
            plugin["args"] = without_secrets(plugin["args"])
    return values


def without_secrets(value: Any) -> Any:
    """Plain values without those whose names say that they are secret, and without users in addresses."""
    if isinstance(value, Mapping):
        return {name: "(not shown)" if is_secret(name) else without_secrets(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_secrets(inner) for inner in value]
    return without_users(value) if isinstance(value, str) else value


def load_config(path: Path) -> SchedulerConfig:
    """Read a configuration file. Raises InputError, with a line for each wrong field."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(f"{path}: cannot be read ({reason}): name a readable configuration file") from error
    return parse_config(text, str(path))


def parse_config(text: str, source: str) -> SchedulerConfig:
    """Read a configuration's text; `source` is its name in messages. Raises InputError, a line for each wrong field."""
    values = read_values(text, source)
    if not isinstance(values, dict):
        raise InputError(f"{source}: is no mapping: start with `apiVersion: {CONFIG_API_VERSION}` and `kind: {KIND}`")
    missing = [
        f"{source}: {field}: is missing: add `{field}: {value}`"
        for field, value in (("apiVersion", CONFIG_API_VERSION), ("kind", KIND))
        if field not in values
    ]
    if missing:
        raise InputError(*missing)
    return config_from(values, source)


def config_from(values: Any, source: str) -> SchedulerConfig:
    """A configuration of plain values, as `written` gives them. Raises InputError, a line for each wrong field."""
    config = validated(SchedulerConfig, values, source)
    profiles = tuple(profile.model_copy() for profile in config.profiles)  # the default one is everybody's
    for index, profile in enumerate(profiles):
        profile._place = (source, f"profiles[{index}]")
    return config.model_copy(update={"profiles": profiles})
