"""`fits_if` in random clusters: after the changes that `explain` reports the plugin accepts the node."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from session_scheduler.engine.explain import explain_pending
from session_scheduler.model.objects import Affinity, Node, Pod
from session_scheduler.testing import FakeCluster, node, pod

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE, HOST = "zone", "kubernetes.io/hostname"
APPS = ("web", "db")
Choose = random.Random

_LABEL = re.compile(r"(\S+) had the label ([^ =,]+)(?:=(\S+)| with a unique value)?")
_NEAR = re.compile(r"a pod matching app=(\w+) ran (.+)")
_NONE_NEAR = re.compile(r"no pod matching app=(\w+) ran (.+)")
_NO_ANTI_AFFINITY = re.compile(r"no pod with anti-affinity to this one ran (.+)")
_FEWER = re.compile(r"at most (\d+) pods? matching app=(\w+) ran (.+) \((\d+) now\)")


def terms(choose: Choose) -> list[dict[str, Any]]:
    return [{"topologyKey": choose.choice((ZONE, HOST)), "labelSelector": {"matchLabels": {"app": app}}}
            for app in choose.sample(APPS, choose.choice((1, 1, 2)))]  # fmt: skip


def near(choose: Choose) -> dict[str, Any]:
    """Affinity, anti-affinity or both; their terms may match the same pods."""
    wanted = choose.choice(("pod_affinity", "pod_anti_affinity", "both"))
    kinds = ("pod_affinity", "pod_anti_affinity") if wanted == "both" else (wanted,)
    wants: dict[str, Any] = {kind: {REQUIRED: terms(choose)} for kind in kinds}
    return {"affinity": Affinity(**wants)}


def spread(choose: Choose) -> dict[str, Any]:
    """One or two constraints."""
    keys = choose.choice(((ZONE,), (HOST,), (ZONE, HOST)))
    return {"topology_spread_constraints": tuple(
        {"maxSkew": choose.choice((1, 2)), "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
         "labelSelector": {"matchLabels": {"app": choose.choice(APPS)}}, "minDomains": choose.choice((None, 3))}
        for key in keys)}  # fmt: skip


WANTS: Mapping[str, Callable[[Choose], dict[str, Any]]] = {"InterPodAffinity": near, "PodTopologySpread": spread}


class World:
    """Nodes and running pods by name, and a pending pod."""

    def __init__(self, choose: Choose, wants: dict[str, Any]) -> None:
        self.nodes = {name: node(name, cpu="64", labels=choose.choice(({}, {ZONE: "a"}, {ZONE: "b"})))
                      for name in ("n1", "n2", "n3", "n4")}  # fmt: skip
        self.running: dict[str, Pod] = {}
        for number in range(choose.randrange(7)):
            hates = {"affinity": Affinity(pod_anti_affinity={REQUIRED: terms(choose)})} if choose.random() < 0.3 else {}
            self.run(choose.choice(APPS), choose.choice(tuple(self.nodes)), f"r{number}", **hates)
        self.waits = pod("p", labels={"app": choose.choice(APPS)}, **wants)

    def run(self, app: str, on: str, name: str = "", **options: Any) -> None:
        name = name or f"new-{len(self.running)}"
        self.running[name] = pod(name, labels={"app": app}, bound_to=on, **options)

    def refusals(self, plugin: str) -> dict[str, list[str] | None]:
        """By node that the plugin rejects: the changes that it reports."""
        cluster = FakeCluster()
        cluster.add(*self.nodes.values(), *self.running.values(), self.waits)
        (pending,) = explain_pending(cluster.start())["pods"]
        return {name: change["changes"] for name, verdict in pending["nodes"].items() if not verdict["fits"]
                for change in verdict["fitsIf"] if change["plugin"] == plugin}  # fmt: skip

    # -------------------------------------------------------------- applying changes

    def make(self, text: str, name: str, choose: Choose) -> None:
        """Apply a reported change of a node. Raises AssertionError for an unknown text."""
        if match := _LABEL.fullmatch(text):
            self.label(match[1], match[2], match[3] or "of-its-own")
        elif match := _NEAR.fullmatch(text):
            on = choose.choice(self.within(match[2], name))
            self.run(match[1], on)
        elif match := _NONE_NEAR.fullmatch(text):
            app = match[1]
            self.end(match[2], name, lambda one: one.metadata.labels["app"] == app)
        elif match := _NO_ANTI_AFFINITY.fullmatch(text):
            self.end(match[1], name, lambda one: one.spec.affinity is not None)
        else:
            match = _FEWER.fullmatch(text)
            assert match is not None, text
            most, app, there = int(match[1]), match[2], set(self.within(match[3], name))
            found = [key for key, one in self.running.items()
                     if one.metadata.labels["app"] == app and one.spec.node_name in there]  # fmt: skip
            assert len(found) == int(match[4])
            for key in choose.sample(found, len(found) - choose.randint(0, most)):
                del self.running[key]

    def label(self, name: str, key: str, value: str) -> None:
        old: Node = self.nodes[name]
        labels = {**old.metadata.labels, key: value}
        self.nodes[name] = replace(old, metadata=replace(old.metadata, labels=labels))

    def within(self, where: str, name: str) -> list[str]:
        """The nodes of a domain: "on n1", "in zone=a", "in the same zone as n1"."""
        if where == f"on {name}":
            return [name]
        key, value = ZONE, where.removeprefix("in zone=")
        if where == f"in the same {ZONE} as {name}":
            value = self.nodes[name].metadata.labels[ZONE]
        found = [other for other, one in self.nodes.items() if one.metadata.labels.get(key) == value]
        assert name in found, where
        return found

    def end(self, where: str, name: str, which: Callable[[Pod], bool]) -> None:
        there = set(self.within(where, name))
        self.running = {
            key: one for key, one in self.running.items() if one.spec.node_name not in there or not which(one)
        }


@pytest.mark.parametrize("plugin", WANTS)
def test_the_plugin_accepts_the_node_after_the_reported_changes(plugin: str) -> None:
    choose = random.Random(plugin)
    applied = 0
    for seed in range(150):
        world = World(random.Random(f"{plugin} {seed}"), WANTS[plugin](random.Random(f"wants {plugin} {seed}")))
        for name, changes in world.refusals(plugin).items():
            if changes is None or any(is_conditional(text) for text in changes):
                continue
            other = World(random.Random(f"{plugin} {seed}"), {})
            other.waits = world.waits
            for text in changes:
                other.make(text, name, choose)
            assert name not in other.refusals(plugin), (seed, name, changes)
            applied += 1
    assert applied > 100


def is_conditional(text: str) -> bool:
    """Whether the change is a condition on other pods, which `make` cannot apply."""
    return text.endswith(("still ran there", "still held")) or "does not exclude" in text
