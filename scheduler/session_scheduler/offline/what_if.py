"""The options --add-nodes and --without-plugin of `fluence simulate`, and the differences that they make.

Added nodes are copies of an existing one, or come from a file. They get no DaemonSet pods.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import count as numbers
from itertools import islice
from typing import Any, Final, TypeVar

from msgspec.structs import replace as changed

from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.documents import SNAPSHOT
from session_scheduler.cluster.field_validation import FieldValidation
from session_scheduler.cluster.manifests import read_manifests
from session_scheduler.cluster.workloads import made_up_uid
from session_scheduler.config.settings import Profile, SchedulerConfig
from session_scheduler.errors import InputError
from session_scheduler.model.devices import ResourceSlice
from session_scheduler.model.node_topology import NodeResourceTopology
from session_scheduler.model.objects import Node, ObjectMeta, PortObject
from session_scheduler.model.storage import CSINode
from session_scheduler.offline.decision import simulate_explained
from session_scheduler.offline.pod_selector import PodSelector
from session_scheduler.offline.simulate import simulate_state
from session_scheduler.offline.state import ClusterState
from session_scheduler.registry.registry import Registry

_COPIES: Final = re.compile(r"(?P<count>[0-9]+)(?:x(?P<template>.+))?", re.DOTALL)
_MOST: Final = 10_000
_HOSTNAME: Final = "kubernetes.io/hostname"
_DECIDED: Final = ("node", "backend", "attributes")
"""The columns of a pod that are a decision."""
_Kube = TypeVar("_Kube", Node, CSINode, NodeResourceTopology, ResourceSlice)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Changes of the state and the configuration."""

    add_nodes: Sequence[str] = ()
    """Each N, NxNODE, NxFILE or FILE."""
    without_plugins: Sequence[str] = ()
    validate: FieldValidation = FieldValidation.STRICT
    """For files with nodes."""

    def __bool__(self) -> bool:
        return bool(self.add_nodes or self.without_plugins)

    def state(self, state: ClusterState) -> ClusterState:
        """The state with the added nodes. Raises InputError."""
        for text in self.add_nodes:
            state = _with_nodes(state, text, self.validate)
        return state

    def config(self, config: SchedulerConfig) -> SchedulerConfig:
        """The configuration with the plugins disabled. Raises InputError."""
        for place, name in enumerate(self.without_plugins):
            if name in self.without_plugins[:place]:
                raise InputError(f"--without-plugin {name}: given twice; pass it once")
            config = _without_plugin(config, name)
        return config


async def simulate_what_if(
    state: ClusterState,
    config: SchedulerConfig,
    what_if: WhatIf,
    *,
    compared: bool,
    explained: PodSelector | None = None,
) -> dict[str, Any]:
    """Like `simulate_state`, with the changes. `compared` adds "diff", their effect; `explained` adds "explain".

    Raises InputError.
    """
    other_state, other_config = what_if.state(state), what_if.config(config)
    if explained is not None:
        result = await simulate_explained(other_state, other_config, explained)
    else:
        result = await simulate_state(other_state, other_config)
    if compared:
        result["diff"] = difference(await simulate_state(state, config), result)
    return result


# ------------------------------------------------------------------ plugins


def _without_plugin(config: SchedulerConfig, name: str) -> SchedulerConfig:
    defaults = Registry(BUILTIN).default_plugins()
    on = [[plugin.name for plugin in profile.effective_plugins(defaults)] for profile in config.profiles]
    if not any(name in names for names in on):
        known = sorted({known for names in on for known in names})
        near = get_close_matches(name, known, 1, 0.6) or [one for one in known if one.lower() == name.lower()]
        remedy = f"did you mean {near[0]}?" if near else f"name one of {', '.join(known)}"
        raise InputError(f"--without-plugin {name}: no profile enables this plugin; {remedy}")
    profiles = (
        _disabled(profile, name, defaults) if name in names else profile
        for profile, names in zip(config.profiles, on, strict=True)
    )
    return config.model_copy(update={"profiles": tuple(profiles)})


def _disabled(profile: Profile, name: str, defaults: Sequence[str]) -> Profile:
    """Disable a default plugin by an entry; remove the entry of another one."""
    if profile.defaults and name in defaults:
        profile = profile.with_arguments(name, {})
        plugins = [p.model_copy(update={"enabled": False}) if p.name == name else p for p in profile.plugins]
    else:
        plugins = [plugin for plugin in profile.plugins if plugin.name != name]
    return profile.model_copy(update={"plugins": tuple(plugins)})


# ------------------------------------------------------------------ nodes


def _with_nodes(state: ClusterState, text: str, validate: FieldValidation) -> ClusterState:
    where = f"--add-nodes {text}"
    match = _COPIES.fullmatch(text)
    if match is None:
        return replace(state, brought=(*state.brought, *_nodes_in(text, state, where, validate)))
    count = int(match["count"]) if len(match["count"]) <= len(str(_MOST)) else _MOST + 1
    if not 1 <= count <= _MOST:
        raise InputError(f"{where}: {match['count']} nodes is out of range; add between 1 and {_MOST}")
    template = match["template"]
    if template is None:
        return _with_copies(state, _uniform_node(state, where), count)
    nodes = {node.metadata.name: node for node in _nodes(state)}
    if template in nodes:
        return _with_copies(state, nodes[template], count)
    if not os.path.exists(template):
        near = get_close_matches(template, nodes, 1, 0.6)
        remedy = f"did you mean {near[0]}?" if near else "name a node of the cluster, or a file with one node"
        raise InputError(f"{where}: no node or file is named {template!r}; {remedy}")
    found = _nodes_in(template, state, where, validate)
    if len(found) != 1:
        raise InputError(f"{where}: {template} contains {len(found)} nodes; name a file with one node")
    return _with_copies(state, found[0], count, brought=True)


def _nodes(state: ClusterState) -> list[Node]:
    return [obj for obj in (*state.objects, *state.brought) if isinstance(obj, Node)]


def _nodes_in(file: str, state: ClusterState, where: str, validate: FieldValidation) -> tuple[Node, ...]:
    there = (*state.objects, *state.brought)
    refused = {SNAPSHOT: "contains a whole cluster; name a file with nodes only"}
    loaded = read_manifests([file], there=there, refused=refused, validate=validate)
    others = [obj for obj in (*loaded.objects, *loaded.saved) if not isinstance(obj, Node)]
    if others or not loaded.nodes:
        found = f"a {type(others[0]).__name__}" if others else "no Node"
        raise InputError(f"{where}: {file} contains {found}; name a file with nodes only")
    return loaded.nodes


def _uniform_node(state: ClusterState, where: str) -> Node:
    """The first node, if all nodes are alike. Raises InputError."""
    nodes = sorted(_nodes(state), key=lambda node: node.metadata.name)
    if not nodes:
        raise InputError(f"{where}: no node to copy; name a file with one node, as NxFILE")
    offers = (nodes[0].status.allocatable, nodes[0].spec)
    for node in nodes:
        if (node.status.allocatable, node.spec) != offers:
            names = f"{nodes[0].metadata.name} and {node.metadata.name}"
            raise InputError(f"{where}: nodes {names} differ; name the node to copy, as NxNODE")
    return nodes[0]


def _with_copies(state: ClusterState, template: Node, count: int, *, brought: bool = False) -> ClusterState:
    """The state with copies of a node, its CSINode, NodeResourceTopology and ResourceSlices, without pods."""
    name = template.metadata.name
    used = {node.metadata.name for node in _nodes(state)}
    free = (new for number in numbers(1) if (new := f"{name}-added-{number}") not in used)
    of_node = [obj for obj in (*state.objects, *state.brought) if _describes(obj, name)]
    there, added = list(state.objects), list(state.brought)
    known = {id(obj) for obj in state.objects}
    for new in islice(free, count):
        (added if brought or id(template) not in known else there).append(_copied_node(template, new))
        for obj in of_node:
            (there if id(obj) in known else added).append(_copied(obj, name, new))  # type: ignore[arg-type]
    return replace(state, objects=tuple(there), brought=tuple(added))


def _describes(obj: PortObject, node: str) -> bool:
    if isinstance(obj, CSINode | NodeResourceTopology):
        return obj.metadata.name == node
    return isinstance(obj, ResourceSlice) and obj.spec.node_name == node


def _copied_node(node: Node, name: str) -> Node:
    metadata = _renamed(node, name)
    if _HOSTNAME in metadata.labels:
        metadata = changed(metadata, labels={**metadata.labels, _HOSTNAME: name})
    return changed(node, metadata=metadata)


def _copied(
    obj: CSINode | NodeResourceTopology | ResourceSlice, node: str, name: str
) -> CSINode | NodeResourceTopology | ResourceSlice:
    """An object of a node for a copy of the node: with empty NUMA zones, and with its own pool of devices."""
    if isinstance(obj, CSINode):
        return changed(obj, metadata=_renamed(obj, name))
    if isinstance(obj, NodeResourceTopology):
        zones = tuple(changed(zone, resources=tuple(changed(one, available=one.allocatable) for one in zone.resources))
                      for zone in obj.zones)  # fmt: skip
        return changed(obj, metadata=_renamed(obj, name), zones=zones)
    own = obj.spec.pool.name
    pool = changed(obj.spec.pool, name=name if own == node else f"{own}-{name}")
    return changed(obj, metadata=_renamed(obj, f"{obj.metadata.name}-{name}"),
                   spec=changed(obj.spec, node_name=name, pool=pool))  # fmt: skip


def _renamed(obj: _Kube, name: str) -> ObjectMeta:
    return changed(obj.metadata, name=name, uid=made_up_uid(type(obj).__name__, "", name))


# ------------------------------------------------------------------ differences


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The differences between the decisions of two results of `simulate`.

    {"pods": [{namespace, name, group, before, after}], "preempted": [{namespace, name, node, before, after}],
    "moved": [{namespace, name, node, before, after}], "summary": {before, after}}. `before` and `after` are a pod's
    decision without its reason, whether it is preempted, or where it is moved (None: not moved).
    """
    first = {_key(pod): pod for pod in before["pods"]}
    pods = [
        {"namespace": pod["namespace"], "name": pod["name"], "group": pod["group"],
         "before": _decided(first[_key(pod)]), "after": _decided(pod)}
        for pod in after["pods"]
        if _decided(first[_key(pod)]) != _decided(pod)
    ]  # fmt: skip
    counts = ("scheduled", "unschedulable")
    return {
        "pods": pods,
        "preempted": _preempted(before.get("preempted", ()), after.get("preempted", ())),
        "moved": _moved(before.get("moved", ()), after.get("moved", ())),
        "summary": {
            "before": {name: before["summary"][name] for name in counts},
            "after": {name: after["summary"][name] for name in counts},
        },
    }


def _key(pod: Mapping[str, Any]) -> tuple[str, str]:
    return pod["namespace"], pod["name"]


def _decided(pod: Mapping[str, Any]) -> dict[str, Any]:
    return {name: pod[name] for name in _DECIDED}


def _preempted(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    were, are = ({_key(pod): pod for pod in pods} for pods in (before, after))
    return [
        {**pod, "before": key in were, "after": key in are}
        for key, pod in {**were, **are}.items()
        if (key in were) is not (key in are)
    ]


def _moved(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    were, are = ({_key(pod): pod for pod in pods} for pods in (before, after))
    return [
        {"namespace": pod["namespace"], "name": pod["name"], "node": pod["node"],
         "before": were[key]["to"] if key in were else None, "after": are[key]["to"] if key in are else None}
        for key, pod in {**were, **are}.items()
        if were.get(key) != are.get(key)
    ]  # fmt: skip
