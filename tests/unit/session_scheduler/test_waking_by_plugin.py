"""For each plugin: an event that can help a pod that it refused has the pod tried again, an unrelated one does not.

Through the scheduler over the cluster in memory, as events come. NodeName has no case: a pod that names its node is
bound already when it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from session_scheduler.builtin import BUILTIN
from session_scheduler.builtin.pod_topology_spread import PodTopologySpread
from session_scheduler.model.classes import ClassTable
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.devices import DeviceClass
from session_scheduler.model.events import ActionType, ClusterEvent
from session_scheduler.model.meta import ObjectMeta
from session_scheduler.model.objects import Node, Pod, Toleration
from session_scheduler.model.related import Service
from session_scheduler.model.storage import VolumeAttachment
from session_scheduler.testing import FakeCluster, node, pod, pod_group

from ...tools.volumes import claim, csi_node, storage_class, using, volume
from .waking_near_cases import NEAR
from .waking_world import (
    ALONE,
    DEDICATED,
    ENDS,
    LABELS,
    LOCAL,
    MADE,
    NOW,
    OTHER_TAINT,
    RESTARTS,
    ZONE,
    ZONED,
    Case,
    Change,
    World,
    attachment,
    capacity,
    devices,
    driver,
    evenly,
    features,
    gpu_claim,
    gpus,
    handle,
    observed,
    restarting,
    running,
    tainted,
)

ELSEWHERE = "DynamicResources"
"""Its events are held in the tests of claims and devices."""
CASES: dict[str, Case] = NEAR | {

    "NodeResourcesFit": Case(
        [node("n1", offers={"x.org/gpu": 2}), running("runs", cpu=3, requests={"x.org/gpu": 1}), pod("waits", cpu=2)],
        {"NodeResourcesFit"},
        {
            "a pod ends": [ENDS],
            "a pod shrinks": [running("runs", cpu=2, requests={"x.org/gpu": 1})],
            "a node comes": [node("n2")],
            "a node offers more": [node("n1", cpu=8, offers={"x.org/gpu": 2})],
            "the pod itself shrinks": [pod("waits", cpu=1)],
        },
        {
            "a node comes that is too small": [node("n2", cpu=1)],
            "a node offers more of something else": [node("n1", offers={"x.org/gpu": 4})],
            "a pod shrinks by something else": [running("runs", cpu=3)],
            "a pod's labels change": [running("runs", cpu=3, requests={"x.org/gpu": 1}, labels=LABELS)],
            "a node's labels change": [node("n1", offers={"x.org/gpu": 2}, labels=LABELS)],
            "a pod is bound": [running("more")],
            "a pod comes that waits": [pod("more", cpu=9)],
            "the pod itself tolerates more": [pod("waits", cpu=2, tolerations=(Toleration(operator="Exists"),))],
            "a volume comes": [volume("v")],
        },
    ),
    "NodeUnschedulable": Case(
        [node("n1", unschedulable=True), running("runs"), pod("waits")],
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
            "a pod ends": [ENDS],
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
    "DynamicResources": Case(
        there=[node("n1"), devices(DeviceClass, "gpu"), gpu_claim("own"),
               pod("waits", resource_claims=({"name": "e", "resourceClaimName": "own"},))],
        refused_by={"DynamicResources"},
        helpful={"a slice": [gpus("s")], "a class": [devices(DeviceClass, "other")], "a node": [node("n2")]},
        unrelated={"another claim": [gpu_claim("another")], "a pod": [running("x")]},
    ),
    "NodeDeclaredFeatures": Case(
        [node("n1"), running("runs"), restarting("waits")],
        {"NodeDeclaredFeatures"},
        {"a node declares it": [features("n1", RESTARTS)], "a node comes with it": [features("n2", RESTARTS)]},
        {
            "a node declares something else": [features("n1", "Other")],
            "a node comes without it": [node("n2")],
            "a node's labels change": [node("n1", labels=LABELS)],
            "a pod ends": [ENDS],
        },
    ),
    "VolumeRestrictions": Case(
        [node("n1"), LOCAL, volume("v", phase="Bound"), claim("c", volume="v", **ALONE), running("plain"),
         running("runs", volumes=using("c")), pod("waits", volumes=using("c"))],
        {"VolumeRestrictions"},
        {"the pod that has it ends": [ENDS], "a node comes": [node("n2")]},
        {
            "another pod ends": [(Pod, "plain")],
            "another claim comes": [claim("d")],
            "a node's labels change": [node("n1", labels=LABELS)],
        },
    ),
    "NodeVolumeLimits": Case(
        [node("n1"), csi_node("n1", d=1), MADE, attachment("a"), running("plain"),
         *(volume(f"v{i}", of="made", phase="Bound", **handle(str(i))) for i in (1, 2)),
         *(claim(f"c{i}", of="made", volume=f"v{i}") for i in (1, 2)),
         running("runs", volumes=using("c1")), pod("waits", volumes=using("c2"))],
        {"NodeVolumeLimits"},
        {
            "a pod with volumes ends": [ENDS],
            "the node takes more": [csi_node("n1", d=2)],
            "the node has no limit any more": [csi_node("n1", e=1)],
            "a node comes": [node("n2")],
            "a volume is detached": [(VolumeAttachment, "a")],
            "the claim changes": [claim("c2", of="made", volume="v2", annotations={"a": "b"})],
        },
        {
            "a pod without volumes ends": [(Pod, "plain")],
            "the node takes fewer": [csi_node("n1", d=0)],
            "another claim comes": [claim("d")],
            "a node's labels change": [node("n1", labels=LABELS)],
        },
    ),
    "VolumeRestrictions, without a claim": Case(
        [node("n1"), LOCAL, running("runs"), pod("waits", volumes=using("c"))],
        {"VolumeRestrictions"},
        {"the claim comes": [claim("c")]},
        {"another claim comes": [claim("d")], "a pod ends": [ENDS], "a node offers more": [node("n1", cpu=9)]},
    ),
    "VolumeBinding, to be bound": Case(
        [node("n1"), NOW, claim("c", of="now"), running("runs"), running("user", volumes=using("d")),
         pod("waits", volumes=using("c"))],
        {"VolumeBinding"},
        {
            "it is bound": [volume("v", of="now", phase="Bound"), claim("c", of="now", volume="v")],
            "a class comes": [storage_class("late")],
        },
        {
            "another claim changes": [claim("d")],
            "a pod ends": [ENDS],
            "a node is tainted": [tainted("n1", DEDICATED)],
            "a node offers more": [node("n1", cpu=9)],
        },
    ),
    "VolumeBinding, for a node": Case(
        [node("n1"), LOCAL, claim("c", "2Gi"), claim("d"), volume("small"), running("runs"),
         running("user", volumes=using("e")), pod("waits", volumes=using("c"))],
        {"VolumeBinding"},
        {
            "a volume comes": [volume("v", "2Gi")],
            "a node comes": [node("n2")],
            "a node's labels change": [node("n1", labels=LABELS)],
            "a pod with claims ends": [(Pod, "user")],
            "a CSINode comes": [csi_node("n1")],
        },
        {
            "another claim changes": [claim("d", annotations={"a": "b"})],
            "a pod without claims ends": [ENDS],
            "a node is tainted": [tainted("n1", DEDICATED)],
        },
    ),
    "VolumeBinding, by capacity": Case(
        [node("n1"), MADE, driver(asks=True), capacity("here", "1Gi"), claim("c", "2Gi", of="made"), running("runs"),
         pod("waits", volumes=using("c"))],
        {"VolumeBinding"},
        {
            "there is more": [capacity("here", "3Gi")],
            "there is some elsewhere": [capacity("there", "1Gi")],
            "it is asked for no more": [driver(asks=False)],
        },
        {"there is less": [capacity("here", "1Mi")], "a pod ends": [ENDS]},
    ),
    "VolumeZone": Case(
        [node("n1", labels={ZONE: "a"}), LOCAL, ZONED, claim("c", volume="v"), running("runs"),
         pod("waits", volumes=using("c"))],
        {"VolumeZone"},
        {
            "a node comes into the zone": [node("n1", labels={ZONE: "b"})],
            "a node comes": [node("n2", labels={ZONE: "b"})],
            "the volume comes into another zone": [volume("v", labels={ZONE: "a"})],
        },
        {
            "something else of the volume changes": [volume("v", labels={ZONE: "b"}, phase="Bound")],
            "another claim comes": [claim("d")],
            "a pod ends": [ENDS],
            "a node is tainted": [tainted("n1", DEDICATED, labels={ZONE: "a"})],
        },
    ),
    "GangScheduling, without its PodGroup": Case(
        [node("n1"), running("runs"), pod("waits", group="g")],
        {"GangScheduling"},
        {"it comes": [pod_group("g")]},
        {"another comes": [pod_group("h")], "a node comes": [node("n2")], "a pod ends": [ENDS]},
        waits="g",
    ),
    "GangScheduling, without its pods": Case(
        [node("n1"), running("runs"), pod_group("g", 2), pod("waits", group="g")],
        {"GangScheduling"},
        {"one comes": [pod("more", group="g")], "it needs fewer": [pod_group("g", 1)]},
        {
            "one of another group comes": [pod_group("h"), pod("more", group="h")],
            "a node comes": [node("n2")],
            "a pod ends": [ENDS],
        },
        waits="g",
    ),
}  # fmt: skip


def listed(what: Callable[[Case], dict[str, Sequence[Change]]]) -> list[Any]:
    return [pytest.param(name, event, id=f"{name}: {event}") for name, case in CASES.items() for event in what(case)]


@pytest.mark.parametrize(("name", "event"), listed(lambda case: case.helpful))
def test_an_event_that_can_help_has_the_pod_tried_again(name: str, event: str) -> None:
    case = CASES[name]
    assert World(case).tried_after(case.helpful[event])


@pytest.mark.parametrize(("name", "event"), listed(lambda case: case.unrelated))
def test_an_unrelated_event_leaves_it_asleep(name: str, event: str) -> None:
    case = CASES[name]
    assert not World(case).tried_after(case.unrelated[event])


def test_what_default_constraints_select_by_concerns_pods_without_constraints_alone() -> None:
    registered = PodTopologySpread(None).events_to_register()
    hints = [one.hint for one in registered if one.resource is Service]
    classes = ClassTable(NodeTable())
    plain, own = classes.of(pod("plain")), classes.of(pod("own", topology_spread_constraints=evenly()))
    event = ClusterEvent(Service, ActionType.ADD, None, Service(metadata=ObjectMeta(name="s", namespace="default")))
    assert [(hint(plain, event), hint(own, event)) for hint in hints if hint is not None] == [(True, False)]


def test_every_filter_has_a_case() -> None:
    filters = {name for name, plugin in BUILTIN.items() if hasattr(plugin, "filter")} - {"NodeName", ELSEWHERE}
    assert filters <= {name.partition(",")[0].partition(" ")[0] for name in CASES}


def test_every_filter_says_what_it_waits_for_and_a_node_that_comes_is_among_it() -> None:
    for name, plugin in BUILTIN.items():
        if hasattr(plugin, "filter"):
            events = plugin(None).events_to_register()
            assert any(one.resource is Node and int(one.action) & 1 for one in events), name


def test_a_gate_that_goes_has_the_pod_tried_and_one_of_two_does_not() -> None:
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
