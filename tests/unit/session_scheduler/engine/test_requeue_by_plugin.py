"""For each plugin: an event that can help a refused pod requeues it, and an unrelated event does not.

The events pass through the scheduler and the cluster in memory. NodeName has no case, because a pod that names its node
is already bound at its creation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from session_scheduler.builtin import BUILTIN
from session_scheduler.builtin.node_affinity import NodeAffinity
from session_scheduler.builtin.pod_topology_spread import PodTopologySpread
from session_scheduler.config.parsing import validated
from session_scheduler.config.settings import DeviceResourceConfig, QueueConfig, SchedulerConfig
from session_scheduler.model.class_table import ClassTable
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.devices import DeviceClass
from session_scheduler.model.events import ActionType, ClusterEvent
from session_scheduler.model.meta import ObjectMeta
from session_scheduler.model.node_topology import NodeResourceTopology
from session_scheduler.model.objects import Node, Pod, Toleration
from session_scheduler.model.related import Service
from session_scheduler.testing import FakeCluster, node, pod, pod_group

from ....tools.numa import guaranteed, topology
from ....tools.volumes import volume
from .requeue_claim_cases import CLAIMS
from .requeue_near_cases import NEAR
from .requeue_world import (
    DEDICATED,
    ENDS,
    LABELS,
    MINE,
    OTHER_TAINT,
    RESTARTS,
    Case,
    Change,
    World,
    devices,
    evenly,
    features,
    observed,
    resizing,
    restarting,
    running,
    tainted,
    whole,
)

ELSEWHERE = "DynamicResources"
"""The tests of claims and devices cover its events."""
PARTS = {"fluence.flux-framework.org/gpu-memory": "600"}
ON_FIRST = PARTS | {"fluence.flux-framework.org/gpu": "0"}
GPU_MIB = {"nvidia.com/gpu.memory": "1000"}
GPUS = {"nvidia.com/gpu": 1}
ONE_OF_THE_MODEL = SchedulerConfig(
    queues=(QueueConfig(name="q", limit={"a.fluence.flux-framework.org/devices": 1}),),
    device_resources=(DeviceResourceConfig(name="a", resources=("nvidia.com/gpu",), node_selector={"model": "a"}),),
)
CASES: dict[str, Case] = NEAR | CLAIMS | {

    "GpuSharing": Case(
        [node("n1", offers=GPUS, labels=GPU_MIB), node("n2", offers=GPUS), running("runs", annotations=ON_FIRST),
         running("plain"), pod("waits", annotations=PARTS)],
        {"GpuSharing"},
        {
            "a sharer ends": [ENDS],
            "a node comes": [node("n3", offers=GPUS, labels=GPU_MIB)],
            "a node has a GPU more": [node("n1", offers={"nvidia.com/gpu": 2}, labels=GPU_MIB)],
            "a node says how much memory its GPUs have": [node("n2", offers=GPUS, labels=GPU_MIB)],
        },
        {
            "a pod without GPUs ends": [(Pod, "plain")],
            "a node without GPUs comes": [node("n3")],
            "a node gets another label": [node("n2", offers=GPUS, labels={"a": "b"})],
        },
    ),
    "Proportion, by model": Case(
        [node("n1", offers={"nvidia.com/gpu": 2}, labels={"model": "a"}), running("runs", requests=GPUS, queue="q"),
         running("plain"), pod("waits", requests=GPUS, queue="q")],
        {"Proportion"},
        {
            "a pod of the queue ends": [ENDS],
            "a node of another model comes": [node("n2", offers=GPUS, labels={"model": "b"})],
            "the node has another model": [node("n1", offers={"nvidia.com/gpu": 2}, labels={"model": "b"})],
        },
        {"a pod of another queue ends": [(Pod, "plain")]},
        config=ONE_OF_THE_MODEL,
    ),
    "GpuSharing, whole GPUs": Case(
        [node("n1", offers={"nvidia.com/gpu": 2}), running("runs", annotations=ON_FIRST), running("plain"),
         pod("waits", requests=GPUS)],
        {"GpuSharing"},
        {"the last sharer ends": [ENDS], "a node comes": [node("n2", offers=GPUS)]},
        {"a pod without GPUs ends": [(Pod, "plain")]},
    ),
    "GpuSharing, beside whole GPUs": Case(
        [node("n1", offers={"nvidia.com/gpu": 2}, labels=GPU_MIB), running("runs", requests=GPUS),
         pod("waits", annotations=PARTS)],
        {"GpuSharing"},
        {"the pod with whole GPUs ends": [ENDS]},
    ),

    "NodeResourceTopologyMatch": Case(
        [node("n1", cpu=16), topology("n1", {"cpu": 8}, {"cpu": 8}), guaranteed("runs", cpu=2, bound_to="n1"),
         running("plain"), guaranteed("waits", cpu=9)],
        {"NodeResourceTopologyMatch"},
        {
            "a pod in a zone ends": [ENDS],
            "a node comes": [node("n2", cpu=1)],
            "a zone of the node has more": [topology("n1", {"cpu": 7}, {"cpu": 9})],
            "another node has a zone that fits": [topology("n2", {"cpu": 9})],
            "the node aligns no pods any more": [topology("n1", {"cpu": 8}, {"cpu": 8}, policy="none")],
            "the node has no object any more": [(NodeResourceTopology, "n1")],
        },
        {
            "a pod without zones ends": [(Pod, "plain")],
            "no zone fits": [topology("n1", {"cpu": 8}, {"cpu": 8}, used={0: {"cpu": 2}})],
            "a node offers more": [node("n1", cpu=20)],
        },
    ),

    "NodeResourcesFit": Case(
        [node("n1", offers={"x.org/gpu": 2}), running("runs", cpu=3, requests={"x.org/gpu": 1}),
         running("beside", cpu="500m"), pod("waits", cpu=2), pod("gated", cpu=3, gates=["later"])],
        {"NodeResourcesFit"},
        {
            "a pod ends": [ENDS],
            "a pod ends that leaves too little, beside one that ends after it": [(Pod, "beside"), ENDS],
            "a pod shrinks": [running("runs", cpu=1, requests={"x.org/gpu": 1})],
            "the kubelet has shrunk a pod": [
                resizing(running("runs", cpu=1, requests={"x.org/gpu": 1}), cpu=3),
                resizing(running("runs", cpu=1, requests={"x.org/gpu": 1}))],
            "a node comes": [node("n2")],
            "a node offers more": [node("n1", cpu=8, offers={"x.org/gpu": 2})],
            "the pod itself shrinks": [pod("waits", cpu=1)],
        },
        {
            "a pod ends that leaves too little": [(Pod, "beside")],
            "a node comes that is too small": [node("n2", cpu=1)],
            "a node offers more of something else": [node("n1", offers={"x.org/gpu": 4})],
            "a pod shrinks by something else": [running("runs", cpu=3)],
            "a pod shrinks by too little": [running("runs", cpu=2, requests={"x.org/gpu": 1})],
            "the kubelet has not shrunk a pod yet": [
                resizing(running("runs", cpu=2, requests={"x.org/gpu": 1}), cpu=3)],
            "a pod's labels change": [running("runs", cpu=3, requests={"x.org/gpu": 1}, labels=LABELS)],
            "a node's labels change": [node("n1", offers={"x.org/gpu": 2}, labels=LABELS)],
            "a pod is bound": [running("more")],
            "a pod comes that waits": [pod("more", cpu=9)],
            "a pod that waits goes again": [(Pod, "gated")],
            "a pod that waits shrinks": [pod("gated", cpu=1, gates=["later"])],
            "the pod itself tolerates more": [pod("waits", cpu=2, tolerations=(Toleration(operator="Exists"),))],
            "a volume comes": [volume("v")],
        },
    ),
    "NodeResourcesFit, of a kind": Case(
        [node("n1", offers={"x.org/gpu": 1}), node("n2"), running("runs", requests={"x.org/gpu": 1}),
         running("plain"), pod("waits", requests={"x.org/gpu": 1})],
        {"NodeResourcesFit"},
        {
            "a node comes that has it": [node("n3", offers={"x.org/gpu": 1})],
            "a node has more of it": [node("n1", offers={"x.org/gpu": 2})],
            "a node gets it": [node("n2", offers={"x.org/gpu": 1})],
            "a node that has it becomes large enough": [
                node("n2", offers={"x.org/gpu": 1}, memory="1Mi"), node("n2", offers={"x.org/gpu": 1})],
            "a pod gives it back": [running("runs")],
            "the pod that has it ends": [ENDS],
            "a class is named for it": [devices(DeviceClass, "g", extendedResourceName="x.org/gpu")],
            "a class comes to stand for it": [
                devices(DeviceClass, "g"), devices(DeviceClass, "g", extendedResourceName="x.org/gpu")],
            "another class stands for it": [
                devices(DeviceClass, "g", extendedResourceName="x.org/nic"),
                devices(DeviceClass, "g", extendedResourceName="x.org/gpu")],
        },
        {
            "another pod ends": [(Pod, "plain")],
            "a node comes that has another kind": [node("n3", offers={"x.org/nic": 1})],
            "a node gets another kind": [node("n2", offers={"x.org/nic": 1})],
            "a node has it, but too little else": [node("n2", offers={"x.org/gpu": 1}, memory="1Mi")],
            "a node loses it, and gets more of the rest": [node("n1", cpu=9)],
            "a class stands for nothing": [devices(DeviceClass, "g")],
            "a class stands for another kind": [devices(DeviceClass, "g", extendedResourceName="x.org/nic")],
        },
    ),
    "NodeResourcesFit, of a class": Case(
        [node("n1"), pod("waits", requests={"deviceclass.resource.kubernetes.io/g": 1})],
        {"NodeResourcesFit"},
        {"the class comes": [devices(DeviceClass, "g", extendedResourceName="x.org/gpu")]},
        {"another class comes": [devices(DeviceClass, "h", extendedResourceName="x.org/gpu")]},
    ),
    "NodeResourcesFit, for the pod as a whole": Case(
        [node("n1"), running("runs", memory=0, resources=whole(cpu=3, memory="2Gi")),
         pod("waits", memory=0, resources=whole(cpu=2))],
        {"NodeResourcesFit"},
        {
            "a pod shrinks": [running("runs", memory=0, resources=whole(cpu=2, memory="2Gi"))],
            "the pod itself shrinks": [pod("waits", memory=0, resources=whole(cpu=1))],
        },
        {"a pod shrinks by something else": [running("runs", memory=0, resources=whole(cpu=3, memory="1Gi"))]},
    ),
    "NodeUnschedulable": Case(
        [node("n1", unschedulable=True), node("other", unschedulable=True), running("runs"), pod("waits")],
        {"NodeUnschedulable"},
        {
            "it is uncordoned": [node("n1")],
            "a node comes": [node("n2")],
            "the pod tolerates it": [
                pod("waits", tolerations=(Toleration(key="node.kubernetes.io/unschedulable", operator="Exists"),))
            ],
        },
        {
            "a pod ends": [ENDS],
            "a node comes that is cordoned": [node("n2", unschedulable=True)],
            "its labels change": [node("n1", unschedulable=True, labels=LABELS)],
            "it offers more": [node("n1", unschedulable=True, cpu=9)],
            "it gets a taint": [tainted("n1", OTHER_TAINT, unschedulable=True)],
            "another pod tolerates it": [
                running("runs", tolerations=(Toleration(key="node.kubernetes.io/unschedulable", operator="Exists"),))
            ],
            "the pod tolerates something else": [pod("waits", tolerations=(Toleration(key="a", operator="Exists"),))],
        },
    ),
    "TaintToleration": Case(
        [tainted("n1", DEDICATED), running("runs"), pod("waits")],
        {"TaintToleration"},
        {
            "the taint goes": [node("n1")],
            "a node comes": [node("n2")],
            "the pod tolerates more": [pod("waits", tolerations=(Toleration(key="dedicated", operator="Exists"),))],
        },
        {
            "another taint takes its place": [tainted("n1", OTHER_TAINT)],
            "a node comes with a taint": [tainted("n2", OTHER_TAINT)],
            "its labels change": [tainted("n1", DEDICATED, labels=LABELS)],
            "it offers more": [tainted("n1", DEDICATED, cpu=9)],
            "another pod tolerates it": [
                running("runs", tolerations=(Toleration(key="dedicated", operator="Exists"),))
            ],
            "a pod ends": [ENDS],
        },
    ),
    "NodeUnschedulable, beside nodes that are not": Case(
        [node("n1", unschedulable=True, labels=LABELS), node("n2"), pod("waits", node_selector=LABELS)],
        {"NodeUnschedulable", "NodeAffinity"},
        {"it is uncordoned": [node("n1", labels=LABELS)]},
        {"another one gets a taint": [tainted("n2", OTHER_TAINT)], "another one is cordoned": [
            node("n2", unschedulable=True)]},
    ),
    "TaintToleration, of a value": Case(
        [tainted("n1", DEDICATED), pod("waits", tolerations=(Toleration(key="dedicated", value="mine"),))],
        {"TaintToleration"},
        {
            "the taint gets that value": [tainted("n1", MINE)],
            "a node comes with that value": [tainted("n2", MINE)],
        },
        {
            "a node comes with another value": [tainted("n2", DEDICATED)],
            "the node gets one more taint": [tainted("n1", DEDICATED, MINE)],
        },
    ),
    "NodeAffinity": Case(
        [node("n1"), running("runs"), pod("waits", node_selector=LABELS)],
        {"NodeAffinity"},
        {"a node gets the label": [node("n1", labels=LABELS)], "a node comes with it": [node("n2", labels=LABELS)]},
        {
            "a node gets another label": [node("n1", labels={"free": "no"})],
            "a node comes without it": [node("n2")],
            "a node offers more": [node("n1", cpu=9)],
            "a node is tainted": [tainted("n1", DEDICATED)],
            "a pod ends": [ENDS],
        },
    ),
    "NodeAffinity, beside a node that is full": Case(
        [node("n1", labels=LABELS, cpu=1), node("n2"), pod("waits", cpu=2, node_selector=LABELS)],
        {"NodeAffinity", "NodeResourcesFit"},
        {"another one is selected": [node("n2", labels=LABELS)]},
        {
            "it is selected no more": [node("n1", cpu=1)],
            "it gets another label, too": [node("n1", labels=LABELS | {"a": "b"}, cpu=1)],
            "it is tainted": [tainted("n1", DEDICATED, labels=LABELS, cpu=1)],
        },
    ),
    "NodeDeclaredFeatures": Case(
        [node("n1"), running("runs"), restarting("waits")],
        {"NodeDeclaredFeatures"},
        {
            "a node declares it": [features("n1", RESTARTS)],
            "a node comes with it": [features("n2", RESTARTS)],
            "the pod needs it no more": [pod("waits")],
            "the pod needs it no more, and is labelled": [pod("waits", labels=LABELS)],
        },
        {
            "a node declares something else": [features("n1", "Other")],
            "a node comes without it": [node("n2")],
            "a node's labels change": [node("n1", labels=LABELS)],
            "a pod ends": [ENDS],
            "another pod changes": [running("runs", labels=LABELS)],
            "another pod needs it": [restarting("runs", bound_to="n1")],
            "the pod is labelled": [restarting("waits", labels=LABELS)],
        },
    ),
    "GangScheduling, without its PodGroup": Case(
        [node("n1"), running("runs"), pod("waits", group="g")],
        {"GangScheduling"},
        {"it comes": [pod_group("g")]},
        {
            "another comes": [pod_group("h")],
            "one of another namespace comes": [pod_group("g", namespace="far")],
            "a node comes": [node("n2")],
            "a pod ends": [ENDS],
        },
        waits="g",
    ),
    "GangScheduling, without its pods": Case(
        [node("n1"), running("runs"), pod_group("g", 2), pod("waits", group="g")],
        {"GangScheduling"},
        {"one comes": [pod("more", group="g")], "it needs fewer": [pod_group("g", 1)]},
        {
            "one of another group comes": [pod_group("h"), pod("more", group="h")],
            "one of another namespace comes": [pod("more", group="g", namespace="far", gates=["later"])],
            "a node comes": [node("n2")],
            "a pod ends": [ENDS],
        },
        waits="g",
    ),
}  # fmt: skip


def listed(what: Callable[[Case], dict[str, Sequence[Change]]]) -> list[Any]:
    return [pytest.param(name, event, id=f"{name}: {event}") for name, case in CASES.items() for event in what(case)]


@pytest.mark.parametrize(("name", "event"), listed(lambda case: case.helpful))
def test_an_event_that_can_help_requeues_the_pod(name: str, event: str) -> None:
    case = CASES[name]
    assert World(case).tried_after(case.helpful[event])[-1]


@pytest.mark.parametrize(("name", "event"), listed(lambda case: case.unrelated))
def test_an_unrelated_event_does_not_requeue_the_pod(name: str, event: str) -> None:
    case = CASES[name]
    assert not any(World(case).tried_after(case.unrelated[event]))


def test_services_requeue_only_pods_with_default_constraints() -> None:
    registered = PodTopologySpread(None).events_to_register()
    hints = [one.hint for one in registered if one.resource is Service]
    classes = ClassTable(NodeTable())
    plain, own = classes.of(pod("plain")), classes.of(pod("own", topology_spread_constraints=evenly()))
    event = ClusterEvent(Service, ActionType.ADD, None, Service(metadata=ObjectMeta(name="s", namespace="default")))
    assert [(hint(plain, event), hint(own, event)) for hint in hints if hint is not None] == [(True, False)]


def test_added_affinity_decides_which_new_nodes_requeue() -> None:
    added = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}}  # fmt: skip
    (registered,) = NodeAffinity(validated(NodeAffinity.Arguments, {"addedAffinity": added}, "f")).events_to_register()
    hint, waits = registered.hint, ClassTable(NodeTable()).of(pod("waits", node_selector=LABELS))
    assert hint is not None
    assert [hint(waits, ClusterEvent(Node, ActionType.ADD, None, node("n", labels=labels)))
            for labels in (LABELS, {"zone": "a"}, LABELS | {"zone": "a"})] == [False, False, True]  # fmt: skip


def test_every_filter_has_a_case() -> None:
    filters = {name for name, plugin in BUILTIN.items() if hasattr(plugin, "filter")} - {"NodeName", ELSEWHERE}
    assert filters <= {name.partition(",")[0].partition(" ")[0] for name in CASES}


def test_every_filter_registers_its_events_and_new_nodes_are_among_them() -> None:
    for name, plugin in BUILTIN.items():
        if hasattr(plugin, "filter"):
            events = plugin(None).events_to_register()
            assert any(one.resource is Node and int(one.action) & 1 for one in events), name


def test_removing_the_last_gate_requeues_the_pod_and_one_of_two_does_not() -> None:
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("p", gates=["a", "b"]))
    tries = observed(cluster)
    cluster.run()
    cluster.add(pod("p", gates=["a"]))
    cluster.run()
    assert tries.of == {}
    cluster.add(pod("p"))
    cluster.run()
    cluster.assert_bound("p")
    assert tries.of == {"p": 1}
