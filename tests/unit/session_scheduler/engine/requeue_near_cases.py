"""Cases of requeueing by pods and nodes nearby: NodePorts, InterPodAffinity and PodTopologySpread."""

from __future__ import annotations

from session_scheduler.model.meta import ObjectMeta
from session_scheduler.model.objects import Affinity, Node, Pod
from session_scheduler.model.related import Namespace, Service, ServiceSpec
from session_scheduler.testing import node, pod

from .requeue_world import (
    DB,
    DEDICATED,
    ENDS,
    FREE,
    HOSTNAME,
    LABELS,
    OF_DB,
    OTHER_TAINT,
    OVER_ZONES,
    REQUIRED,
    TAINTED,
    TOLERANT,
    WEB,
    ZONE,
    Case,
    away,
    ending,
    evenly,
    host_ports,
    near,
    running,
    tainted,
    term,
)

NEAR: dict[str, Case] = {
    "NodePorts": Case(
        [node("n1"), host_ports("runs", 80, bound_to="n1"), host_ports("other", 81, bound_to="n1"), running("plain"),
         host_ports("gated", 80, gates=["later"]), host_ports("waits", 80)],
        {"NodePorts"},
        {"the pod that has it ends": [ENDS], "a node comes": [node("n2")]},
        {
            "a pod with another port ends": [(Pod, "other")],
            "a pod without ports ends": [(Pod, "plain")],
            "a pod that waits goes again": [(Pod, "gated")],
            "a node's labels change": [node("n1", labels=LABELS)],
            "a node offers more": [node("n1", cpu=9)],
        },
    ),
    "NodePorts, on every address": Case(
        [node("n1"), host_ports("runs", 80, "10.0.0.1", bound_to="n1"),
         host_ports("udp", 80, "10.0.0.1", "UDP", bound_to="n1"), host_ports("waits", 80)],
        {"NodePorts"},
        {"the pod that has it on one ends": [ENDS]},
        {"a pod ends that has it of another protocol": [(Pod, "udp")]},
    ),
    "NodePorts, on one address": Case(
        [node("n1"), host_ports("runs", 80, bound_to="n1"), host_ports("same", 80, "10.0.0.1", bound_to="n1"),
         host_ports("other", 80, "10.0.0.2", bound_to="n1"), host_ports("waits", 80, "10.0.0.1")],
        {"NodePorts"},
        {"the pod that has it on every one ends": [ENDS], "the pod that has it on this one ends": [(Pod, "same")]},
        {"a pod ends that has it on another one": [(Pod, "other")]},
    ),
    "InterPodAffinity, to be near": Case(
        [node("n1"), running("runs", labels=DB), pod("waits", affinity=near("web"))],
        {"InterPodAffinity"},
        {
            "one of them is bound": [running("web", labels=WEB)],
            "ours is bound": [pod("web", labels=WEB)],
            "a pod becomes one of them": [running("runs", labels=WEB)],
            "a node comes": [node("n2")],
            "a node changes its domain": [node("n1", labels={HOSTNAME: "other"})],
        },
        {
            "another pod is bound": [running("db", labels=DB)],
            "one of them comes and waits": [pod("web", labels=WEB, gates=["later"])],
            "a pod that waits becomes one of them": [
                pod("gated", gates=["later"]), pod("gated", labels=WEB, gates=["later"])],
            "a pod gets another label": [running("runs", labels={"app": "cache"})],
            "a pod of another namespace is bound": [running("web", namespace="far", labels=WEB)],
            "a pod ends": [ENDS],
            "a node gets another label": [node("n1", labels=LABELS)],
            "a node is tainted": [tainted("n1", DEDICATED)],
            "a namespace comes": [Namespace(metadata=ObjectMeta(name="far"))],
        },
    ),
    "InterPodAffinity, in some namespaces": Case(
        [node("n1"), Namespace(metadata=ObjectMeta(name="far")), running("web", namespace="far", labels=WEB),
         Namespace(metadata=ObjectMeta(name="near", labels=LABELS)),
         pod("waits", affinity=near("web", namespaceSelector={"matchLabels": LABELS}))],
        {"InterPodAffinity"},
        {
            "the namespace becomes one": [Namespace(metadata=ObjectMeta(name="far", labels=LABELS))],
            "one of them is bound in one": [running("other", namespace="near", labels=WEB)],
        },
        {"another label of it changes": [Namespace(metadata=ObjectMeta(name="far", labels={"a": "b"}))]},
    ),
    "InterPodAffinity, to be near in a zone": Case(
        [node("n1", labels={ZONE: "a"}), running("runs", labels=DB), pod("waits", affinity=near("web", ZONE))],
        {"InterPodAffinity"},
        {
            "a node comes in a zone": [node("n2", labels={ZONE: "a"})],
            "a node changes its zone": [node("n1", labels={ZONE: "b"})],
            "a node comes into a zone": [node("n2"), node("n2", labels={ZONE: "a"})],
        },
        {
            "a node comes in none": [node("n2")],
            "a node leaves its zone": [node("n1")],
            "a node gets another label": [node("n1", labels={ZONE: "a"} | LABELS)],
            "a node in none gets another label": [node("n2"), node("n2", labels=LABELS)],
        },
    ),
    "InterPodAffinity, to be near both": Case(
        [node("n1"), running("runs", labels=DB),
         pod("waits", affinity=Affinity(pod_affinity={REQUIRED: [term("web", HOSTNAME), FREE]}))],
        {"InterPodAffinity"},
        {
            "a pod is bound that is both": [running("web", labels=WEB | LABELS)],
            "a pod becomes both": [running("runs", labels=WEB | LABELS)],
        },
        {
            "a pod is bound that is one": [running("web", labels=WEB)],
            "a pod becomes one": [running("runs", labels=WEB)],
            "a pod ceases to be one": [running("runs", labels=WEB), running("runs", labels=DB)],
        },
    ),
    "InterPodAffinity, to be near its own": Case(
        [node("n1", labels={ZONE: "a"}), node("n2", labels={ZONE: "b"}, unschedulable=True),
         running("runs", "n2", labels=WEB), running("db", labels=DB),
         pod("waits", labels=WEB, affinity=near("web", ZONE))],
        {"InterPodAffinity", "NodeUnschedulable"},
        {
            "the last of them ends": [ENDS],
            "the last of them is another": [running("runs", "n2", labels=DB)],
            "their node goes": [(Node, "n2")],
            "their node leaves its zone": [node("n2", unschedulable=True)],
        },
        {
            "another pod ends": [(Pod, "db")],
            "one of them gets another label": [running("runs", "n2", labels=WEB | LABELS)],
            "a node gets another label": [node("n1", labels={ZONE: "a"} | LABELS)],
        },
    ),
    "InterPodAffinity, to be near others": Case(
        [node("n1", labels={ZONE: "a"}), node("n2", labels={ZONE: "b"}, unschedulable=True),
         running("runs", "n2", labels=WEB), pod("waits", labels=DB, affinity=near("web", ZONE))],
        {"InterPodAffinity", "NodeUnschedulable"},
        {"the node is one of their zone": [node("n1", labels={ZONE: "b"})]},
        {
            "the last of them ends": [ENDS],
            "the last of them is another": [running("runs", "n2", labels=DB)],
            "one of them gets another label": [running("runs", "n2", labels=WEB | LABELS)],
            "their node goes": [(Node, "n2")],
            "their node leaves its zone": [node("n2", unschedulable=True)],
        },
    ),
    "InterPodAffinity, to be away from a zone": Case(
        [node("n1", labels={ZONE: "a"}), node("n2", labels={ZONE: "a"}), running("runs", labels=WEB),
         pod("waits", affinity=away("web", ZONE))],
        {"InterPodAffinity"},
        {
            "their node goes": [(Node, "n1")],
            "their node leaves the zone": [node("n1")],
            "their node changes its zone": [node("n1", labels={ZONE: "b"})],
            "a node comes in a zone": [node("n3", labels={ZONE: "b"})],
            "a node comes in none": [node("n3")],
        },
        {"a node gets another label": [node("n2", labels={ZONE: "a"} | LABELS)]},
    ),
    "InterPodAffinity, to be away from a zone that a node comes into": Case(
        [node("n1", labels={ZONE: "a"}), node("n2", unschedulable=True), running("runs", labels=WEB),
         pod("waits", affinity=away("web", ZONE))],
        {"InterPodAffinity", "NodeUnschedulable"},
        {"their node leaves the zone": [node("n1")]},
        {"it does": [node("n2", unschedulable=True, labels={ZONE: "b"})]},
    ),
    "InterPodAffinity, others away by namespaces": Case(
        [node("n1"), *(Namespace(metadata=ObjectMeta(name=name, labels=LABELS)) for name in ("default", "far")),
         running("runs", namespace="far", affinity=away("web", namespaceSelector={"matchLabels": LABELS})),
         pod("waits", labels=WEB)],
        {"InterPodAffinity"},
        {
            "the namespace is none of them any more": [Namespace(metadata=ObjectMeta(name="default"))],
            "a node changes its domain": [node("n1", labels={HOSTNAME: "other"})],
        },
        {"another namespace is none of them": [Namespace(metadata=ObjectMeta(name="far"))]},
    ),
    "InterPodAffinity, to be away": Case(
        [node("n1"), running("runs", labels=WEB), running("db", labels=DB), pod("waits", affinity=away("web"))],
        {"InterPodAffinity"},
        {
            "the pod ends": [ENDS],
            "the pod is no longer one of them": [running("runs", labels=DB)],
            "a node comes": [node("n2")],
            "a node changes its domain": [node("n1", labels={HOSTNAME: "other"})],
        },
        {
            "another pod ends": [(Pod, "db")],
            "another pod's labels change": [running("db", labels=LABELS)],
            "another pod becomes one of them": [running("db", labels=WEB)],
            "one more of them is bound": [running("web", labels=WEB)],
            "a node gets another label": [node("n1", labels=LABELS)],
            "a node offers more": [node("n1", cpu=9)],
        },
    ),
    "InterPodAffinity, others away": Case(
        [node("n1"), running("runs", affinity=away("web")), running("db", affinity=away("db")),
         pod("waits", labels=WEB)],
        {"InterPodAffinity"},
        {
            "the pod ends that wants it": [ENDS],
            "a node comes": [node("n2")],
            "a node changes its domain": [node("n1", labels={HOSTNAME: "other"})],
            "the pod itself is another": [pod("waits", labels=DB | LABELS)],
        },
        {
            "a pod ends that wants something else": [(Pod, "db")],
            "a node gets another label": [node("n1", labels=LABELS)],
        },
    ),
    "PodTopologySpread": Case(
        [node("n1"), node("n2", unschedulable=True), running("runs", labels=WEB), running("db", labels=DB),
         pod("waits", labels=WEB, topology_spread_constraints=evenly())],
        {"PodTopologySpread", "NodeUnschedulable"},
        {
            "one of them ends": [ENDS],
            "another pod becomes one": [running("db", labels=WEB)],
            "the pod itself is another": [pod("waits", labels=DB, topology_spread_constraints=evenly())],
            "one of them begins to end": [ending(running("runs", labels=WEB))],
            "one is bound elsewhere": [running("more", "n2", labels=WEB)],
            "one is another": [running("runs", labels=DB)],
            "a domain goes": [(Node, "n2")],
            "a node leaves its domain": [node("n2", unschedulable=True, labels={HOSTNAME: "n1"})],
        },
        {
            "another pod ends": [(Pod, "db")],
            "one of them gets another label": [running("runs", labels=WEB | LABELS)],
            "another pod gets another label": [running("db", labels=DB | LABELS)],
            "one that waits comes, changes and goes": [
                pod("gated", labels=WEB, gates=["later"]), pod("gated", labels=DB, gates=["later"]), (Pod, "gated")],
            "the pod itself gets another label": [
                pod("waits", labels=WEB | LABELS, topology_spread_constraints=evenly())],
            "another pod begins to end": [ending(running("db", labels=DB))],
            "another pod is bound elsewhere": [running("more", "n2", labels=DB)],
            "one of another namespace is bound": [running("more", "n2", labels=WEB, namespace="far")],
            "a node gets another label": [node("n1", labels=LABELS)],
            "a node offers more": [node("n1", cpu=9)],
        },
    ),
    "PodTopologySpread by taints": Case(
        [node("n1"), tainted("n2", DEDICATED), tainted("n3", OTHER_TAINT), running("runs", labels=WEB),
         pod("waits", labels=WEB, topology_spread_constraints=evenly(nodeTaintsPolicy="Honor", minDomains=2))],
        {"PodTopologySpread", "TaintToleration"},
        {"a node loses its taint": [node("n2")]},
        {"a node offers more": [node("n1", cpu=9)], "a service comes": [
            Service(metadata=ObjectMeta(name="s", namespace="default"), spec=ServiceSpec(selector=WEB))]},
    ),
    "PodTopologySpread over more domains": Case(
        [node("n1", labels={ZONE: "a"}), running("runs", labels=WEB),
         pod("waits", labels=WEB, topology_spread_constraints=OVER_ZONES)],
        {"PodTopologySpread"},
        {
            "a node comes in a zone": [node("n2", labels={ZONE: "b"})],
            "a node changes its zone": [node("n1", labels={ZONE: "b"})],
            "a node comes into a zone": [node("n2"), node("n2", labels={ZONE: "b"})],
            "a node gets a taint": [tainted("n1", DEDICATED, labels={ZONE: "a"})],
            "one of them ends": [ENDS],
            "one of those of the other constraint is bound": [running("more", labels=DB)],
            "a pod becomes one of those": [running("plain"), running("plain", labels=DB)],
        },
        {
            "a node comes in none": [node("n2")],
            "a node in none changes, gets a taint and goes": [
                node("n2"), node("n2", labels=LABELS), tainted("n2", DEDICATED, labels=LABELS), (Node, "n2")],
            "a node gets another label": [node("n1", labels={ZONE: "a"} | LABELS)],
            "one of them gets another label": [running("runs", labels=WEB | LABELS)],
        },
    ),
    "PodTopologySpread by what it tolerates": Case(
        [node("n1"), tainted("n2", DEDICATED, unschedulable=True), running("runs", labels=WEB),
         running("far", "n2", labels=WEB), pod("waits", labels=WEB, topology_spread_constraints=TAINTED)],
        {"PodTopologySpread", "NodeUnschedulable"},
        {"the pod tolerates more": [pod("waits", labels=WEB, topology_spread_constraints=TAINTED, **TOLERANT)]},
        {
            "another pod tolerates more": [running("runs", labels=WEB, **TOLERANT)],
            "the pod gets another label": [pod("waits", labels=WEB | LABELS, topology_spread_constraints=TAINTED)],
        },
    ),
    "PodTopologySpread whatever it tolerates": Case(
        [node("n1"), tainted("n2", DEDICATED, unschedulable=True), running("runs", labels=WEB),
         pod("waits", labels=WEB, topology_spread_constraints=evenly())],
        {"PodTopologySpread", "NodeUnschedulable"},
        {"one of them ends": [ENDS], "a node loses its taint": [node("n2", unschedulable=True)]},
        {"the pod tolerates more": [pod("waits", labels=WEB, topology_spread_constraints=evenly(), **TOLERANT)]},
    ),
    "PodTopologySpread by taints that come": Case(
        [node("n1"), node("n2", unschedulable=True), running("runs", labels=WEB),
         pod("waits", labels=WEB, topology_spread_constraints=evenly(nodeTaintsPolicy="Honor") + evenly(**OF_DB))],
        {"PodTopologySpread", "NodeUnschedulable"},
        {"a node gets a taint": [tainted("n2", DEDICATED, unschedulable=True)]},
        {"a node gets a label": [node("n2", unschedulable=True, labels={"a": "b"})]},
    ),
    "PodTopologySpread by affinity": Case(
        [node("n1", labels=LABELS), node("n2", unschedulable=True, labels=LABELS), running("runs", labels=WEB),
         pod("waits", labels=WEB, node_selector=LABELS, topology_spread_constraints=evenly())],
        {"PodTopologySpread", "NodeUnschedulable"},
        {"a node is no longer one of the pod's": [node("n2", unschedulable=True)]},
        {"a node gets a label": [node("n2", unschedulable=True, labels={**LABELS, "a": "b"})]},
    ),
}  # fmt: skip
