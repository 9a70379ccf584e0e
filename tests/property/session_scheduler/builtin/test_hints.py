"""Queueing hints of the built-in plugins: if a change lets a node pass a plugin's filter, the plugin's hint requeues.

Each plugin is tested alone, so that no other plugin's hint requeues the pod.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from session_scheduler.config.settings import DEFAULT_SCHEDULER_NAME
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.objects import Affinity, ContainerPort, Node, Pod, Taint, Toleration
from session_scheduler.testing import FakeCluster, node, pod

from ....tools.examples import first

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE, HOST = "zone", "kubernetes.io/hostname"
APPS = ("web", "db")
STEPS = 100
KINDS = ("runs", "ends", "relabel", "ending", "comes", "goes", *("change",) * 5)
FEATURE = "UserNamespacesHostNetworkSupport"
Choose = random.Random


def terms(choose: Choose, *, negative: bool) -> Affinity:
    """One or two terms over zones or nodes."""
    found = [{"topologyKey": choose.choice((ZONE, HOST)), "labelSelector": {"matchLabels": {"app": app}}}
             for app in choose.sample(APPS, choose.choice((1, 1, 2)))]  # fmt: skip
    wanted = {REQUIRED: found}
    return Affinity(pod_anti_affinity=wanted) if negative else Affinity(pod_affinity=wanted)


def spread(choose: Choose) -> dict[str, Any]:
    """One or two constraints with random policies for the nodes and pods that count."""

    def one(key: str) -> dict[str, Any]:
        return {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": choose.choice(APPS)}},
                "minDomains": choose.choice((None, 2)), "nodeTaintsPolicy": choose.choice(("Honor", "Ignore")),
                "nodeAffinityPolicy": choose.choice(("Honor", "Ignore")),
                "matchLabelKeys": choose.choice(([], ["app"]))}  # fmt: skip

    keys = choose.choice(((ZONE,), (HOST,), (ZONE, HOST)))
    options: dict[str, Any] = {"topology_spread_constraints": tuple(one(key) for key in keys)}
    return options | choose.choice(({}, {"node_selector": {"disk": "ssd"}}))


def ports(choose: Choose) -> dict[str, Any]:
    """A host port with a random address and protocol."""
    return {"port": ContainerPort(container_port=80, host_port=choose.choice((80, 81)),
                                  host_ip=choose.choice(("", "", "10.0.0.1", "10.0.0.2")),
                                  protocol=choose.choice(("TCP", "TCP", "UDP")))}  # fmt: skip


def made(name: str, *, port: ContainerPort | None = None, **options: Any) -> Pod:
    """A pod with these options."""
    one = pod(name, **options)
    if port is None:
        return one
    (container,) = one.spec.containers
    return replace(one, spec=replace(one.spec, containers=(replace(container, ports=(port,)),)))


WANTS: Mapping[str, Callable[[Choose], dict[str, Any]]] = {
    "NodeResourcesFit": lambda choose: {"cpu": choose.choice((1, 2))},
    "NodeAffinity": lambda choose: {"node_selector": {"disk": "ssd", **choose.choice(({}, {ZONE: "a"}))}},
    "NodePorts": ports,
    "TaintToleration": lambda choose: {"tolerations": (Toleration(key="t", value="1"),) * choose.choice((0, 1))},
    "NodeUnschedulable": lambda _: {},
    "NodeDeclaredFeatures": lambda _: {"host_network": True, "host_users": False},
    "InterPodAffinity": lambda choose: {"affinity": terms(choose, negative=choose.random() < 0.5)},
    "PodTopologySpread": spread,
}
"""By plugin: random needs of a pod that the plugin evaluates."""


class World:
    """Nodes and bound pods that change, and pending pods with needs that one plugin evaluates."""

    def __init__(self, seed: int, plugin: str) -> None:
        self.plugin, self.choose = plugin, random.Random(seed)
        self.cluster = FakeCluster(checked=False)
        for number in range(3):
            self.cluster.add(self.node(f"n{number}"))
        self.cluster.add(made(f"asks{number}", labels={"app": self.choose.choice(APPS)}, **WANTS[plugin](self.choose))
                         for number in range(4))  # fmt: skip
        self.cluster.start()
        self.steps = 0

    def node(self, name: str) -> Node:
        choose = self.choose
        labels = choose.choice(({}, {ZONE: "a"}, {ZONE: "a"}, {ZONE: "b"})) | choose.choice(({}, {"disk": "ssd"}))
        taints = choose.choice(((), (), (Taint(key="t", value="1", effect="NoSchedule"),),
                                (Taint(key="u", effect="NoExecute"),)))  # fmt: skip
        drawn = node(name, cpu=choose.choice((1, 2, 3)), labels=labels, taints=taints,
                    unschedulable=choose.random() < 0.3)  # fmt: skip
        return replace(drawn, status=replace(drawn.status, declared_features=choose.choice(((), (FEATURE,)))))

    def changed(self, known: Node) -> Node:
        """The node with one property of another random node."""
        drawn, label = self.node(known.metadata.name), self.choose.choice((ZONE, ZONE, "disk"))
        labels = {key: value for key, value in known.metadata.labels.items() if key != label}
        if label in drawn.metadata.labels:
            labels[label] = drawn.metadata.labels[label]
        return self.choose.choice((
            replace(known, metadata=replace(known.metadata, labels=labels)),
            replace(known, metadata=replace(known.metadata, labels=labels)),
            replace(known, spec=replace(known.spec, taints=drawn.spec.taints)),
            replace(known, spec=replace(known.spec, unschedulable=drawn.spec.unschedulable)),
            replace(known, status=drawn.status),
        ))  # fmt: skip

    def runs(self, where: str) -> Pod:
        """A new pod on a node, with random needs."""
        self.steps += 1
        options = WANTS[self.choose.choice((self.plugin, "NodeUnschedulable"))](self.choose)
        options.setdefault("cpu", 1)
        return made(f"r{self.steps}", labels=self.labels(), bound_to=where, **options)

    def labels(self) -> dict[str, str]:
        return self.choose.choice(({}, {"app": "web"}, {"app": "db"}))

    def step(self) -> None:
        """Change one thing."""
        choose, cluster = self.choose, self.cluster
        objects = list(cluster._objects().values())
        nodes = [one for one in objects if isinstance(one, Node)]
        bound = [one for one in objects if isinstance(one, Pod) and one.spec.node_name]
        kind = choose.choice(KINDS)
        if kind == "runs" and nodes and len(bound) < 6:
            cluster.add(self.runs(choose.choice(nodes).metadata.name))
        elif kind == "ends" and bound:
            cluster.delete(Pod, choose.choice(bound).metadata.name)
        elif kind == "relabel" and bound:
            one = choose.choice(bound)
            cluster.add(replace(one, metadata=replace(one.metadata, labels=self.labels())))
        elif kind == "ending" and bound:
            one = choose.choice(bound)
            cluster.add(replace(one, metadata=replace(one.metadata, deletion_timestamp="2026-01-01T00:00:00Z")))
        elif kind == "change" and nodes:
            cluster.add(self.changed(choose.choice(nodes)))
        elif kind == "comes" and len(nodes) < 4:
            self.steps += 1
            cluster.add(self.node(f"n{self.steps + 4}"))
        elif kind == "goes" and len(nodes) > 2:
            cluster.delete(Node, choose.choice(nodes).metadata.name, "")

    def requeue_fitting(self) -> None:
        """Requeue the groups that may fit freed capacity, as the next session would."""
        pending = self.cluster.scheduler.queue
        fitting = pending.fitting(DEFAULT_SCHEDULER_NAME, None)
        for queue in fitting.queues() if fitting is not None else ():
            while fitting is not None and fitting.first(queue) is not None:
                pending.requeue_next(fitting, queue)

    # ------------------------------------------------------------------ the plugin's answers

    def pending_classes(self) -> dict[str, TaskClass]:
        tasks = self.cluster.scheduler.cache.tasks.values()
        return {task.name: task.cls for task in tasks if task.name.startswith("asks")}

    def allowed(self, cls: TaskClass) -> set[str]:
        """The nodes that pass the plugin's filter."""
        scheduler = self.cluster.scheduler
        session = scheduler.sessions.open(scheduler.profiles[cls.pod.spec.scheduler_name], ())
        mask = session.table.valid()
        for filtering in session.evaluation(cls).filters:
            if filtering.plugin == self.plugin:
                filtering.run(session.table.all_rows(), mask, None)
        session.close()
        return {session.node_at(int(row)) for row in np.flatnonzero(mask)}

    def check_step(self) -> None:
        pending, wanted = self.cluster.scheduler.queue, self.pending_classes()
        before = {name: self.allowed(cls) for name, cls in wanted.items()}
        for name, cls in wanted.items():
            pending.failed(name, 0.0, frozenset({(cls, frozenset({self.plugin}))}))
        self.step()
        asyncio.run(self.cluster._deliver())
        self.requeue_fitting()
        for name, cls in self.pending_classes().items():
            if cls is wanted[name] and pending.is_unschedulable(name):
                assert self.allowed(cls) <= before[name], f"{name} stays unschedulable"
            pending.placed(name)


@pytest.mark.parametrize("plugin", WANTS)
@pytest.mark.parametrize("seed", first(range(4)))
def test_the_hint_requeues_whenever_the_filter_starts_to_pass_a_node(plugin: str, seed: int) -> None:
    world = World(seed, plugin)
    for _ in range(STEPS):
        world.check_step()
