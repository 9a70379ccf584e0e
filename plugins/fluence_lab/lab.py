"""The notebook API: load a cluster, change it, schedule it in memory, compare the runs.

    lab = load("now.json")
    before = lab.run()
    after = lab.add_nodes(4, like="gpu-1").without_plugin("InterPodAffinity").run()
    compare(before, after)

Each change returns another `Lab`, so the first one stays as it is. A plugin may be a class with hooks, or a function in
a cell: `with_plugin` takes one that rejects nodes, `with_score` one that scores them.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fluence_lab import frames
from fluence_lab.comparing import Comparison, comparison
from fluence_lab.view import View
from fluence_lab.views.explained import explained
from fluence_lab.views.gangs import gangs
from fluence_lab.views.nodes import nodes
from fluence_lab.views.overview import overview
from fluence_lab.views.pending import pending
from fluence_lab.views.queues import queues
from fluence_lab.views.simulated import simulated
from session_scheduler import InputError, NodeInfo, Refusal, Session, hookimpl
from session_scheduler.config.settings import QueueConfig, SchedulerConfig, load_config
from session_scheduler.model.groups import Group, Task
from session_scheduler.model.objects import KubeObject
from session_scheduler.observation.experiment import Experiment, of_objects, read
from session_scheduler.observation.observer import Observer
from session_scheduler.observation.values import Observed

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Lab", "Run", "compare", "connect", "load", "of"]

_T = TypeVar("_T")
Settings = SchedulerConfig | str | Path | None
"""A configuration, or its file."""
Rule = Callable[..., Refusal | str | bool | None]
"""A function of any of session, task, pod, group and node, which says whether the pod may run on the node."""
Score = Callable[..., float]
_CONFIG, _RESOURCES = "config.yaml", "resources.yaml"
_GIVEN: Final = ("session", "task", "pod", "group", "node")


# ------------------------------------------------------------------ load


def load(*files: str | Path, config: Settings = None, levels: tuple[str, ...] = ()) -> Lab:
    """The cluster of manifests, directories or a snapshot. Raises InputError.

    The configuration is `config`, or config.yaml of a directory, or that of the snapshot. resources.yaml of a directory
    lists the virtual resources, as it does for the command. `levels` are the node labels of topology levels.
    """
    folders = [path for path in map(Path, files) if os.path.isdir(path)]
    settings = _settings(config or next((path for folder in folders if os.path.exists(path := folder / _CONFIG)), None))
    manifests = [str(file) for path in map(Path, files) for file in (_manifests(path) if path in folders else [path])]
    experiment = _wait(read(manifests, config=settings, levels=levels))
    for path in (folder / _RESOURCES for folder in folders):
        if os.path.exists(path):
            experiment = experiment.with_arguments("fluence", {"resources": str(path)})
    return Lab(experiment)


def _manifests(folder: Path) -> list[Path]:
    """The files of a directory that are not settings."""
    return sorted(path for path in folder.iterdir()
                  if path.suffix in (".yaml", ".yml", ".json") and path.name not in (_CONFIG, _RESOURCES))  # fmt: skip


def connect(
    kubeconfig: str | Path | None = None, context: str | None = None, *, config: Settings = None,
    levels: tuple[str, ...] = (),
) -> Lab:  # fmt: skip
    """A live cluster as it is now; nothing is written to it. Raises InputError or ClusterError."""
    path = str(kubeconfig) if kubeconfig is not None else None
    return Lab(_wait(read(kubeconfig=path, context=context, live=True, config=_settings(config), levels=levels)))


def of(*objects: KubeObject, config: Settings = None, levels: tuple[str, ...] = ()) -> Lab:
    """A cluster of objects, for example from the builders of `session_scheduler.testing`."""
    return Lab(of_objects(*objects, config=_settings(config), levels=levels))


def _settings(config: Settings) -> SchedulerConfig | None:
    return config if config is None or isinstance(config, SchedulerConfig) else load_config(Path(config))


# ------------------------------------------------------------------ the lab


class _Observing:
    """Tables and views of an observation."""

    def __init__(self, open_observer: Callable[[], Observer]) -> None:
        self._open_observer = open_observer

    @cached_property
    def _observer(self) -> Observer:
        """Opened when it is needed first."""
        return self._open_observer()

    @cached_property
    def observed(self) -> Observed:
        """All values at once."""
        return _called(self._observer.observe)

    @cached_property
    def nodes(self) -> pd.DataFrame:
        """A row for each node: its levels, state, pods, and for each resource the allocatable and allocated amount."""
        return frames.nodes(self.observed)

    @cached_property
    def pods(self) -> pd.DataFrame:
        """A row for each pod: its group, queue, node, phase, the reason why it waits, requests and times."""
        return frames.pods(self.observed)

    @cached_property
    def gangs(self) -> pd.DataFrame:
        """A row for each PodGroup."""
        return frames.gangs(self.observed)

    @cached_property
    def queues(self) -> pd.DataFrame:
        """A row for each queue, with quantities as in `fluence queues`."""
        return frames.queues(self.observed)

    @cached_property
    def gpus(self) -> pd.DataFrame:
        """A row for each GPU and pod that holds a part of it, and for each free GPU."""
        return frames.gpus(self.observed)

    def overview(self) -> View:
        """Pods by phase, and the utilisation by resource."""
        return overview(self.observed)

    def why_pending(self) -> View:
        """The pending pods by reason."""
        return pending(self.observed, verdicts=self.verdicts)

    def node_map(self) -> View:
        """Nodes by level, their fill, and their GPUs."""
        return nodes(self.observed)

    def queue_tree(self) -> View:
        """The queues with deserved, allocated and fair share."""
        return queues(self.observed.queues)

    def gang_chart(self) -> View:
        """The gangs and their members."""
        return gangs(self.observed)

    def verdicts(self, pod: str) -> dict[str, Any]:
        """Why a pending pod (NAME, or NAMESPACE/NAME) waits, node by node. Raises InputError."""
        return _wait(self._observer.verdicts(pod if "/" in pod else f"default/{pod}"))

    def explain(self, pod: str) -> View:
        """The verdicts of a pending pod as a heat map of plugins and nodes. Raises InputError."""
        answer = self.verdicts(pod)
        if answer["node"] is not None:
            raise InputError(f"pod {pod} is on node {answer['node']}; name a pending pod")
        return explained({"pods": [answer], "groups": [answer["gang"]] if answer["gang"] else [], "seconds": {}})


class Lab(_Observing):
    """A cluster and a configuration. The tables and views show it before anything is scheduled."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(lambda: _wait(experiment.observer()))
        self._experiment = experiment

    @property
    def config(self) -> SchedulerConfig:
        """The configuration."""
        return self._experiment.config

    # ------------------------------------------------------------------ changes

    def add_nodes(self, number: int, like: str | Path | None = None) -> Lab:
        """With copies of a node: one of the cluster, or the one in a file. Without `like` all nodes must be alike.

        Raises InputError.
        """
        return Lab(self._experiment.with_nodes(f"{number}" if like is None else f"{number}x{like}"))

    def add(self, *objects: KubeObject) -> Lab:
        """The lab with added or replaced objects, for example from the builders of `session_scheduler.testing`."""
        return Lab(self._experiment.with_objects(*objects))

    def with_config(self, config: Settings) -> Lab:
        """With another configuration, or that of a file. Raises InputError."""
        return Lab(self._experiment.with_config(_settings(config) or SchedulerConfig()))

    def without_plugin(self, name: str) -> Lab:
        """Without a plugin. Raises InputError."""
        return Lab(self._experiment.without_plugin(name))

    def with_plugin(
        self, plugin: str | Rule | type[object], *, weight: int | None = None, name: str = "", **args: Any
    ) -> Lab:
        """With a plugin: the name of an installed one, a class with hooks, or a function that rejects nodes.

        A function names what it needs of session, task, pod, group and node (a `NodeInfo`). It returns None if the pod
        may run on the node; otherwise a Refusal or the reason as text. It may also return True (the pod may run there)
        or False. `args` are the plugin's arguments, in the configuration's camelCase. If one is invalid, `run` raises
        the error.
        """
        if isinstance(plugin, str):
            return Lab(self._experiment.with_plugin(plugin, None, args, weight))
        if isinstance(plugin, type):
            named = name or str(getattr(plugin, "name", plugin.__name__))
            takes_arguments = bool(inspect.signature(plugin).parameters)
            builder = plugin if takes_arguments or args else lambda _: plugin()
            return Lab(self._experiment.with_plugin(named, builder, args, weight))
        if args or weight is not None:
            raise InputError(f"plugin {_named(plugin, name)}: a function cannot have args or a weight; remove them")
        return self._with_function(_Filtering(_named(plugin, name), plugin))

    def with_score(self, function: Score, *, weight: float = 1.0, name: str = "") -> Lab:
        """With a function that scores nodes, higher is better; `weight` times its number is added to each node's total.

        The function names what it needs, like a function for `with_plugin`.
        """
        return self._with_function(_Scoring(_named(function, name), function, weight))

    def _with_function(self, plugin: _FunctionPlugin) -> Lab:
        return Lab(self._experiment.with_plugin(plugin.name, lambda _args=None: plugin))

    def with_queue(self, name: str, **fields: Any) -> Lab:
        """With a queue: parent, deserved, limit, over_quota_weight, priority. `run` raises an error in them."""
        return Lab(self._experiment.with_queue(QueueConfig(name=name, **fields)))

    # ------------------------------------------------------------------ run

    def run(self, name: str = "") -> Run:
        """Schedule all pending pods in memory. `name` is for comparisons. Raises InputError."""
        result, observer = _wait(self._experiment.run())
        return Run(result, observer, name)

    def __repr__(self) -> str:
        return repr(self.overview())

    def _repr_html_(self) -> str:
        return self.overview()._repr_html_()


class Run(_Observing):
    """The decisions for a lab, and the cluster after them."""

    def __init__(self, result: Mapping[str, Any], observer: Observer, name: str = "") -> None:
        super().__init__(lambda: observer)
        self.result = result
        """The JSON of `fluence simulate`."""
        self.name = name

    @property
    def scheduled(self) -> int:
        """How many pods were placed."""
        return int(self.result["summary"]["scheduled"])

    @property
    def unschedulable(self) -> int:
        """How many pods still wait."""
        return int(self.result["summary"]["unschedulable"])

    @cached_property
    def decisions(self) -> pd.DataFrame:
        """A row for each pod that was pending: its node, or the reason why it waits, and the columns of plugins."""
        return frames.decisions(self.result)

    def view(self) -> View:
        """The decisions."""
        return simulated(self.result)

    def __repr__(self) -> str:
        return repr(self.view())

    def _repr_html_(self) -> str:
        return self.view()._repr_html_()


def compare(first: Run, second: Run) -> Comparison:
    """The pods for which two runs decide differently, and the totals of both runs."""
    names = (first.name or "first", second.name or "second")
    if names[0] == names[1]:
        names = (f"{names[0]} (1)", f"{names[1]} (2)")
    return comparison(names, (first.result, second.result), (first.observed, second.observed))


# ------------------------------------------------------------------ functions as plugins


class _FunctionPlugin:
    """Calls a function with what it names of `_GIVEN`."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self._function = function
        self._needs = tuple(inspect.signature(function).parameters)
        if unknown := sorted(set(self._needs).difference(_GIVEN)):
            raise InputError(f"plugin {name}: unknown parameter {unknown[0]!r}; a function may have the parameters "
                             f"{', '.join(_GIVEN)}")  # fmt: skip

    def call(self, session: Session, task: Task, node: NodeInfo) -> Any:
        """The function's answer for a pod and a node."""
        given = {"session": session, "task": task, "pod": task.pod, "group": task.group, "node": node}
        return self._function(**{name: given[name] for name in self._needs})


class _Filtering(_FunctionPlugin):
    @hookimpl
    def on_session_open(self, session: Session) -> None:
        """Reject nodes by the function."""

        def check(task: Task, _: Group, node: NodeInfo) -> str | None:
            answer = self.call(session, task, node)
            if answer is None or answer is True:
                return None
            if answer is False:
                return f"node(s) were rejected by {self.name}"
            if isinstance(answer, Refusal | str):
                return answer.reason if isinstance(answer, Refusal) else answer
            raise TypeError(f"{self.name}: expected None, a Refusal, a text or a bool, got {answer!r}")

        session.add_predicate(check)


class _Scoring(_FunctionPlugin):
    def __init__(self, name: str, function: Score, weight: float) -> None:
        super().__init__(name, function)
        self._weight = weight

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        """Score nodes by the function."""
        session.add_node_order(lambda task, node: self._weight * float(self.call(session, task, node)))


def _named(function: Callable[..., Any], name: str) -> str:
    found = name or getattr(function, "__name__", "")
    if not found or found == "<lambda>":
        raise InputError("a lambda has no name; pass name=…")
    return str(found)


# ------------------------------------------------------------------ the event loop


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all labs: a notebook's own one is busy with the cell."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="fluence_lab", daemon=True).start()
    return loop


def _wait(work: Coroutine[Any, Any, _T]) -> _T:
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()  # after KeyboardInterrupt
        raise


def _called(function: Callable[[], _T]) -> _T:
    """Call a function in the event loop's thread."""

    async def call() -> _T:
        return function()

    return _wait(call())
