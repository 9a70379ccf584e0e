"""Queueing hints in random clusters: no group that fits stays unschedulable, and hints change no placement."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from session_scheduler.engine import scheduler as service
from session_scheduler.model.events import EVERY_EVENT
from session_scheduler.model.objects import Affinity, KubeObject, Node, Pod, Taint, Toleration
from session_scheduler.testing import FakeCluster, node, pod, pod_group

from ....tools.examples import first

ZONE = "zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
APPS = ("web", "db")
STEPS = 30
Step = tuple[str, tuple[Any, ...]]


def _term(app: str, key: str) -> dict[str, Any]:
    return {REQUIRED: [{"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}]}


CHANGES: dict[str, tuple[Any, Any]] = {
    "zone": ("a", "b"),
    "disk": ("", "ssd"),
    "tainted": (False, True),
    "cordoned": (False, True),
}
"""The properties of a node that change between two values."""
PLAIN = {name: values[0] for name, values in CHANGES.items()} | {"cpu": 4}


def a_node(name: str, properties: dict[str, Any]) -> Node:
    labels = {ZONE: properties["zone"], **({"disk": properties["disk"]} if properties["disk"] else {})}
    taints = (Taint(key="t", effect="NoSchedule"),) if properties["tainted"] else ()
    return node(name, cpu=properties["cpu"], labels=labels, taints=taints, unschedulable=properties["cordoned"])


def wants(choose: random.Random) -> dict[str, Any]:
    """The needs of a pod besides cpu."""
    app, key = choose.choice(APPS), choose.choice((ZONE, "kubernetes.io/hostname"))
    spread = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
              "labelSelector": {"matchLabels": {"app": app}},
              "nodeTaintsPolicy": choose.choice(("Honor", "Ignore"))}  # fmt: skip
    return dict(choose.choice((
        {},
        {"node_selector": {"disk": "ssd"}},
        {"tolerations": (Toleration(operator="Exists"),)},
        {"host_port": 80},
        {"affinity": Affinity(pod_affinity=_term(app, key))},
        {"affinity": Affinity(pod_anti_affinity=_term(app, key))},
        {"topology_spread_constraints": (spread,)},
    )))  # fmt: skip


def steps(seed: int) -> Iterator[Step]:
    """The steps of one run. Each pod and gang has its own priority, so that their order is unique."""
    choose = random.Random(seed)
    kinds = ("node", "node", "node", "pod", "pod", "pod", "end", "end", "gang", "label", "goes")
    for number in range(STEPS):
        kind = choose.choice(kinds)
        if kind == "node":
            yield kind, (choose.choice((1, 1, 2)), choose.choice(sorted(CHANGES)))
        elif kind == "pod":
            yield (
                kind,
                (number, {"cpu": choose.choice((1, 1, 2)), "labels": {"app": choose.choice(APPS)}, **wants(choose)}),
            )
        elif kind == "gang":
            yield kind, (number, choose.choice((2, 3)), wants(choose))
        elif kind == "label":
            yield kind, (choose.randrange(number + 1), choose.choice(APPS))
        elif kind == "goes":
            yield kind, (choose.choice((2, 2, 1)),)
        else:
            yield kind, (choose.randrange(STEPS),)


class World:
    """A cluster that applies steps and runs cycles after each until nothing more is placed."""

    def __init__(self) -> None:
        self.cluster = FakeCluster(checked=False)
        self._nodes = {1: PLAIN, 2: PLAIN | {"zone": "b", "cordoned": True, "cpu": 2}}
        self.cluster.add(a_node(f"n{number}", properties) for number, properties in self._nodes.items())
        self.cluster.start()

    def apply(self, step: Step) -> None:
        kind, what = step
        if kind == "node":
            number, name = what
            values, now = CHANGES[name], self._nodes[number][name]
            self._nodes[number] = {**self._nodes[number], name: values[now == values[0]]}
            self.cluster.add(a_node(f"n{number}", self._nodes[number]))
        elif kind == "pod":
            number, options = what
            self.cluster.add(pod(f"p{number}", priority=number, **options))
        elif kind == "gang":
            number, size, wanted = what
            self.cluster.add(pod_group(f"g{number}", size, priority=number))
            self.cluster.add(pod(f"g{number}-{i}", cpu=1, group=f"g{number}", **wanted) for i in range(size))
        elif kind == "label":
            number, app = what
            self._relabel(number, app)
        elif kind == "end":
            pods = sorted(self.cluster.placements())
            if pods:
                self.cluster.delete(Pod, pods[what[0] % len(pods)].partition("/")[2])
        else:
            self._delete(Node, f"n{what[0]}")
        self.run_until_stable()

    def _relabel(self, number: int, app: str) -> None:
        known = self._known(Pod, f"p{number}")
        if known is not None:
            labels = {**known.metadata.labels, "app": app}
            self.cluster.add(msgspec.structs.replace(known, metadata=_with_labels(known.metadata, labels)))

    def _known(self, kind: type[KubeObject], name: str) -> Any:
        try:
            return self.cluster.find(kind, name)
        except LookupError:
            return None

    def _delete(self, kind: type[KubeObject], name: str) -> None:
        if self._known(kind, name) is not None:
            self.cluster.delete(kind, name)

    def run_until_stable(self) -> None:
        """Run cycles until nothing more is placed."""
        for _ in range(8):
            self.cluster.advance(11)
            if not self.cluster.run():
                return

    def requeue_all(self) -> None:
        pending = self.cluster.scheduler.queue
        for key in list(pending._waiting):
            pending.requeue_now(key, self.cluster.clock.now())


def _with_labels(metadata: Any, labels: dict[str, str]) -> Any:
    return msgspec.structs.replace(metadata, labels=labels)


@pytest.mark.parametrize("seed", first(range(8)))
def test_no_group_that_fits_stays_unschedulable(seed: int) -> None:
    world = World()
    for step in steps(seed):
        world.apply(step)
        before = world.cluster.placements()
        world.requeue_all()
        world.run_until_stable()
        assert world.cluster.placements() == before


@pytest.mark.parametrize("seed", first(range(8, 13)))
def test_hints_place_pods_like_requeueing_all_groups_on_every_event(seed: int) -> None:
    with_hints = World()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "registered_hints", lambda *_, **__: lambda *_: EVERY_EVENT)
        with_all = World()
    for step in steps(seed):
        with_hints.apply(step)
        with_all.apply(step)
        assert with_hints.cluster.placements() == with_all.cluster.placements()
