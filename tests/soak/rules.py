"""The rules that a `World` must satisfy after each event and at rest, computed each time from its current objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from operator import gt
from typing import Final

from fluence_plugins.fluence.graph.placement import overlap
from fluence_plugins.resources.names import without_places
from session_scheduler.model.objects import Node, Pod, PodGroup
from session_scheduler.model.quantity import parse_quantity
from session_scheduler.model.queue_objects import Queue
from session_scheduler.model.queues import QUEUE_LABEL

from .world import RACK_LABEL, WITHIN, World

_ENDED: Final = ("Succeeded", "Failed")


class BrokenRuleError(AssertionError):
    """The world breaks a rule."""


class Rules:
    """Remembers each queue's usage when its limit was lowered: that usage may stay but must not grow."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._before: dict[tuple[str, str], int] = {}

    def check(self) -> None:
        """Check the rules after an event. The cluster checks the core's own invariants after each cycle."""
        self._raise([*self._held_once(), *self._held_by_the_living(), *self._drift(), *self._limits(), *self._racks()])

    def check_at_rest(self) -> None:
        """Check the rules at rest: also that no waiting pod fits, which a restarted scheduler shows."""
        self._world.cluster.assert_invariants()
        self._raise([*self._missing_for_cause(), *self._held_in_the_matcher()])
        waiting = {name for name, node in self._world.placements().items() if node is None}
        self._world.restart()
        self._world.rest()
        self.check()
        stuck = sorted(name for name in waiting if self._world.placements().get(name))
        self._raise([f"{name} waited although it fits: a restarted scheduler placed it" for name in stuck])

    @staticmethod
    def _raise(problems: list[str]) -> None:
        if problems:
            raise BrokenRuleError("\n".join(problems))

    # ------------------------------------------------------------------ the graph

    def _held_once(self) -> Iterator[str]:
        """At most one pod holds a core or a device, and what contains it or is contained in it; pods hold no more of a
        host than it has.
        """
        held: Counter[str] = Counter()
        devices: list[str] = []
        for share in self._world.plugin.live.holdings.shares.values():
            for part in share.values():
                held.update(f"{host.path}/core{core}" for host in part.hosts for core in host.cores)
                devices += [device.path for device in part.devices]
        yield from (f"{path} is held {times} times" for path, times in held.items() if times > 1)
        live = self._world.plugin.live
        for name, host in live.loaded.hosts.items():
            used, has = live.holdings.used_on(name), live.accounting.offered(host)
            if any(map(gt, used, has)):
                yield f"of {name} pods hold {used}, and it has {has}"
        devices.sort(key=lambda path: path.split("/"))
        for one, other in pairwise(devices):  # in this order a nested device directly follows its outer device
            if overlap(one, other):
                yield f"{other} is held, and so is {one}"

    def _held_by_the_living(self) -> Iterator[str]:
        """A pod that holds something is on a node, and holds or misses as many devices as it requests."""
        there = {pod.metadata.uid: pod for pod in self._world.pods()}
        live = self._world.plugin.live
        for uid in {*live.holdings.shares, *live.holdings.missing}:
            pod = there.get(uid)
            if pod is None or not pod.spec.node_name:
                yield f"{uid if pod is None else pod.key} holds something and runs nowhere"
        for uid, pod in there.items():
            if not pod.spec.node_name or pod.status.phase in _ENDED:
                continue
            parts = [
                *live.holdings.shares.get(uid, {}).values(),
                *(part for _, part in live.holdings.missing.get(uid, ())),
            ]
            paths = [without_places(device.path) for part in parts for device in part.devices]
            asked = sum(amount for name, amount in _requests(pod).items() if name.startswith("fluxion."))
            if len(paths) != asked or len(set(paths)) != asked:
                yield f"{pod.key} requested {asked} devices and has {sorted(paths)}"

    def _drift(self) -> Iterator[str]:
        yield from (f"drift: {n} pods are {kind}" for kind, n in self._world.plugin.drift.items() if n)

    def _missing_for_cause(self) -> Iterator[str]:
        """A missing device is absent, or another pod holds it."""
        live = self._world.plugin.live
        held = [
            device.path for share in live.holdings.shares.values() for part in share.values() for device in part.devices
        ]
        for uid, parts in live.holdings.missing.items():
            for path in (device.path for _, part in parts for device in part.devices):
                for one in live.graph.same_device(path):
                    if not any(overlap(one, other) for other in held):
                        yield f"{uid} misses {path}, and {one} is free"

    def _held_in_the_matcher(self) -> Iterator[str]:
        """The matcher has allocated the devices that the accounting lists as held."""
        live = self._world.plugin.live
        found = live.matcher.find("sched-now=allocated") or {"graph": {"nodes": []}}
        allocated = {_without_levels(node["metadata"]["paths"]["containment"]) for node in found["graph"]["nodes"]}
        for share in live.holdings.shares.values():
            for part in share.values():
                for path in (device.path for device in part.devices):
                    if path not in allocated:
                        yield f"{path} is held, but free in the matcher"

    def _racks(self) -> Iterator[str]:
        """A gang that requested one rack is in one rack."""
        racks = {node.metadata.name: node.metadata.labels[RACK_LABEL]
                 for node in self._world.cluster.memory.objects(Node)}  # fmt: skip
        asking = {group.metadata.name for group in self._world.cluster.memory.objects(PodGroup)
                  if WITHIN in group.metadata.annotations}  # fmt: skip
        found: dict[str, set[str]] = {}
        for pod in self._world.pods():
            name = pod.metadata.name.rpartition("-")[0]
            if name in asking and pod.spec.node_name:
                found.setdefault(name, set()).add(racks[pod.spec.node_name])
        yield from (f"gang {name} is in the racks {sorted(there)}" for name, there in found.items() if len(there) > 1)

    # ------------------------------------------------------------------ queues

    def _limits(self) -> Iterator[str]:
        used: Counter[tuple[str, str]] = Counter()
        for pod in self._world.pods():
            label = pod.metadata.labels.get(QUEUE_LABEL)
            if label and pod.spec.node_name and pod.status.phase not in _ENDED:
                for name, amount in _requests(pod).items():
                    used[label, name] += amount
                    used["top", name] += amount
        for queue in self._world.cluster.memory.objects(Queue):
            for name, text in queue.spec.limit.items():
                key, limit = (queue.metadata.name, name), _amount(name, str(text))
                if used[key] > max(limit, self._before.get(key, 0)):
                    yield f"queue {key[0]} has {used[key]} of {name}, its limit is {limit}"
                self._before[key] = used[key]


def _without_levels(path: str) -> str:
    """The path as holdings name it, independent of the node's position."""
    return "/".join(part for part in path.split("/") if "=" not in part)


def _requests(pod: Pod) -> dict[str, int]:
    """The requests: cpu in thousandths, all others as integers."""
    found: Counter[str] = Counter()
    for container in pod.spec.containers:
        found.update({name: _amount(name, str(text)) for name, text in container.resources.requests.items()})
    return dict(found)


def _amount(name: str, text: str) -> int:
    return parse_quantity(text, milli=name == "cpu")
