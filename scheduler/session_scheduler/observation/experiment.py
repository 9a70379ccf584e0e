"""Experiments: a cluster's state and a configuration, which code changes and schedules in memory. Public.

Each change returns another experiment, so several can be compared. Equal experiments make equal decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from session_scheduler.config.settings import PluginConfig, Profile, QueueConfig, SchedulerConfig
from session_scheduler.model.objects import KubeObject, name_of
from session_scheduler.model.times import time_text
from session_scheduler.observation.observer import Observer
from session_scheduler.offline.simulate import left_out, place_all
from session_scheduler.offline.state import ClusterState, open_state, read_state
from session_scheduler.offline.what_if import WhatIf

__all__ = ["Experiment", "of_objects", "read"]

_Kube = TypeVar("_Kube", bound=KubeObject)
_BEGIN: Final = datetime(2000, 1, 1, tzinfo=UTC)
_OBJECTS: Final = "objects of this process"


class Experiment(msgspec.Struct, frozen=True):
    """What `fluence simulate` starts from."""

    state: ClusterState
    config: SchedulerConfig
    source: str
    """Where the state comes from, for people."""
    plugins: Mapping[str, Callable[..., object]] = {}
    """By name: the class, or a function of the arguments, of each plugin of this process."""
    levels: Sequence[str] = ()
    """The node labels of topology levels, the outermost first; by default those that the cluster shows."""

    # ------------------------------------------------------------------ changes

    def with_nodes(self, text: str) -> Experiment:
        """With more nodes, as `--add-nodes` describes them: N, NxNODE, NxFILE or FILE. Raises InputError."""
        return replace(self, state=WhatIf(add_nodes=[text]).state(self.state))

    def with_objects(self, *objects: KubeObject) -> Experiment:
        """With these objects, which replace those of the same kind and name.

        Objects without a creation time are created one after the other, a second apart.
        """
        return replace(self, state=_with_objects(self.state, objects))

    def with_config(self, config: SchedulerConfig) -> Experiment:
        """With another configuration."""
        return replace(self, config=config)

    def without_plugin(self, name: str) -> Experiment:
        """Without a plugin in any profile. Raises InputError."""
        return replace(self, config=WhatIf(without_plugins=[name]).config(self.config))

    def with_plugin(
        self, name: str, builder: Callable[..., object] | None = None, args: Mapping[str, Any] | None = None,
        weight: int | None = None,
    ) -> Experiment:  # fmt: skip
        """With a plugin in every profile: an installed one, or that of `builder`.

        `builder` is a class, or a function of the arguments; it replaces an installed plugin of the same name. The
        plugin replaces the profile's entry of that name.
        """
        entry = PluginConfig(name=name, args=dict(args or {}), weight=weight)
        profiles = tuple(_enabled(profile, entry) for profile in self.config.profiles)
        plugins = self.plugins if builder is None else {**self.plugins, name: builder}
        return replace(self, config=self.config.model_copy(update={"profiles": profiles}), plugins=plugins)

    def with_arguments(self, plugin: str, args: Mapping[str, Any]) -> Experiment:
        """With some arguments of a plugin set in every profile."""
        profiles = tuple(profile.with_arguments(plugin, args) for profile in self.config.profiles)
        return replace(self, config=self.config.model_copy(update={"profiles": profiles}))

    def with_queue(self, queue: QueueConfig) -> Experiment:
        """With a queue, which replaces the configured one of that name."""
        queues = (*(one for one in self.config.queues if one.name != queue.name), queue)
        return replace(self, config=self.config.model_copy(update={"queues": queues}))

    # ------------------------------------------------------------------ runs

    async def observer(self) -> Observer:
        """The cluster before anything is scheduled. Raises InputError."""
        scheduler = await open_state(self.state, self.config, plugins=self.plugins)
        return Observer(scheduler, self.source, levels=self.levels)

    async def run(self) -> tuple[dict[str, Any], Observer]:
        """Schedule the pending pods: the JSON of `fluence simulate`, and the resulting cluster. Raises InputError."""
        scheduler = await open_state(self.state, self.config, plugins=self.plugins)
        result = {**await place_all(scheduler), **left_out(self.state, self.config)}
        return result, Observer(scheduler, self.source, levels=self.levels)


# more than five parameters: the options of the commands that read a cluster
async def read(
    files: Sequence[str] = (), *, config: SchedulerConfig | None = None, kubeconfig: str | None = None,
    context: str | None = None, live: bool = False, levels: Sequence[str] = (),
) -> Experiment:  # fmt: skip
    """An experiment that starts from manifests (paths, directories, "-"), a snapshot, or a live cluster as it is now.

    `kubeconfig` names the cluster; with `live` it is that of $KUBECONFIG, ~/.kube/config or the pod's service account.
    The configuration is that of the snapshot unless given. Raises InputError or ClusterError.
    """
    state = await read_state(files, kubeconfig, context, live=live, config=config)
    named = ["standard input" if file == "-" else file for file in files]
    if live or kubeconfig is not None:
        named.insert(0, f"the cluster of {kubeconfig}" if kubeconfig is not None else "the current cluster")
    return Experiment(state, config or state.config(), ", ".join(named), levels=tuple(levels))


def of_objects(*objects: KubeObject, config: SchedulerConfig | None = None, levels: Sequence[str] = ()) -> Experiment:
    """An experiment that starts from these objects, for example from the builders of `session_scheduler.testing`.

    Objects without a creation time are created one after the other, a second apart.
    """
    state = _with_objects(ClusterState(()), objects)
    return Experiment(state, config or SchedulerConfig(), _OBJECTS, levels=tuple(levels))


def _with_objects(state: ClusterState, objects: Sequence[KubeObject]) -> ClusterState:
    new = {(type(obj), name_of(obj)) for obj in objects}
    there = tuple(obj for obj in state.objects if (type(obj), name_of(obj)) not in new)
    brought = tuple(obj for obj in state.brought if (type(obj), name_of(obj)) not in new)
    begin = state.latest() or _BEGIN
    created = [_created(obj, begin + timedelta(seconds=place)) for place, obj in enumerate(objects, 1)]
    return ClusterState(there, (*brought, *created), state.configuration)


def _created(obj: _Kube, time: datetime) -> _Kube:
    metadata = obj.metadata
    if metadata.creation_timestamp:
        return obj
    return replace(obj, metadata=replace(metadata, creation_timestamp=time_text(time)))


def _enabled(profile: Profile, entry: PluginConfig) -> Profile:
    plugins = [one for one in profile.plugins if one.name != entry.name]
    return profile.model_copy(update={"plugins": (*plugins, entry)})
