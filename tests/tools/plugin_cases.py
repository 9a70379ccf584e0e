"""The plugins of `examples/plugins`, each with a cluster in which it alone changes the decision.

One test simulates these clusters, and another creates them on a real API server.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "examples" / "plugins"
NAMES: Mapping[str, str] = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]["entry-points"][
    "session_scheduler.plugins"
]


def queue(name: str) -> dict[str, Any]:
    return {QUEUE_LABEL: name}


def sub_group(name: str) -> dict[str, Any]:
    return {SUB_GROUP: name}


def a_node(name: str, cpu: str = "2", **labels: str) -> dict[str, Any]:
    size = {"cpu": cpu, "memory": "8Gi", "pods": "110"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "status": {"allocatable": size}}  # fmt: skip


def a_pod(
    name: str, cpu: str = "1", *, on: str = "", group: str = "", priority: int = 0, **labels: str
) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "schedulerName": "fluence",
        "priority": priority,
        "containers": [{"name": "c", "image": "c", "resources": {"requests": {"cpu": cpu}}}],
    }
    if on:
        spec["nodeName"] = on
    if group:
        spec["schedulingGroup"] = {"podGroupName": group}
    metadata = {"name": name, "labels": labels, "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def with_gpus(node: dict[str, Any], count: int) -> dict[str, Any]:
    node["status"]["allocatable"]["nvidia.com/gpu"] = str(count)
    return node


def a_sharer(name: str, fraction: str) -> dict[str, Any]:
    found = a_pod(name)
    found["metadata"]["annotations"] = {"fluence.flux-framework.org/gpu-fraction": fraction}
    return found


def a_group(name: str, needs: int | None = None, **annotations: str) -> dict[str, Any]:
    policy = {"basic": {}} if needs is None else {"gang": {"minCount": needs}}
    return {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
            "metadata": {"name": name, "annotations": annotations, "creationTimestamp": "2025-01-01T00:00:00Z"},
            "spec": {"schedulingPolicy": policy}}  # fmt: skip


def disrupted_singly(group: dict[str, Any]) -> dict[str, Any]:
    """The PodGroup, with a disruptionMode that lets the scheduler evict single members below the minimum."""
    return {**group, "spec": {**group["spec"], "disruptionMode": "Pod"}}


def running(*names: str, cpu: str = "1", on: str = "n1", **labels: str) -> list[dict[str, Any]]:
    return [a_pod(name, cpu, on=on, priority=1, **labels) for name in names]


def ended(answer: Mapping[str, Any]) -> set[str]:
    return {one["name"] for one in answer.get("preempted", ())}


def nodes_of(answer: Mapping[str, Any]) -> dict[str, str | None]:
    return {one["name"]: one["node"] for one in answer["pods"]}


def placed(answer: Mapping[str, Any]) -> set[str]:
    return {name for name, on in nodes_of(answer).items() if on}


QUEUES: list[dict[str, Any]] = [
    *({"name": name} for name in ("batch", "urgent", "shared", "kept")),
    *(
        {"name": name, "deserved": {"cpu": 1}}
        for name in ("production", "research", "training", "serving", "offline", "online")
    ),
]
"""No two cases share a queue, so that all cases fit into one cluster."""
NO_SHARES = {"Proportion": None}
"""Without this, Proportion orders queues and reports their share before it calls the examples."""
QUEUE_LABEL = "fluence.flux-framework.org/queue"
KEPT: dict[str, Any] = {"fluence.flux-framework.org/preemptibility": "non-preemptible"}
SPOT: dict[str, Any] = {"kai.scheduler/instance-type": "spot"}
ZONE = "topology.kubernetes.io/zone"
SUB_GROUPS: dict[str, Any] = {"fluence.flux-framework.org/sub-groups": "leader=1,worker=2"}
SUB_GROUP = "fluence.flux-framework.org/sub-group"
CASES: dict[str, tuple[list[Any], dict[str, Any], Callable[[Mapping[str, Any]], Any], Any, Any]] = {
    "leader-first": (
        [a_node("n1", "1"), a_group("g"), a_pod("a", group="g"), a_pod("z", group="g", role="leader")], {},
        placed, {"a"}, {"z"},
    ),
    "queues-in-order": (
        [a_node("n1", "1"), a_pod("a", **queue("batch")), a_pod("b", **queue("urgent"))],
        NO_SHARES,
        placed, {"a"}, {"b"},
    ),
    "workers-first": (
        [a_node("n1", "4"), a_group("g", 3, **SUB_GROUPS),
         *(a_pod(name, group="g", **sub_group("leader")) for name in "abc"),
         *(a_pod(name, group="g", **sub_group("worker")) for name in "xyz")], {},
        lambda answer: len(placed(answer) & {"a", "b", "c"}), 2, 1,
    ),
    "small-first": (
        [a_node("n1"), a_group("a", 2), a_pod("a-0", group="a"), a_pod("a-1", group="a"),
         a_pod("z")], {},
        placed, {"a-0", "a-1"}, {"z"},
    ),
    "first-by-name": (
        [*(a_node(f"n{index}") for index in range(9)), a_pod("a"), a_pod("b", "2")], {"fluence": None},
        lambda answer: set(nodes_of(answer).values()) == {"n0", "n1"}, False, True,
    ),
    "teams-only": ([a_node("n1"), a_pod("a"), a_pod("b", team="y")], {}, placed, {"a", "b"}, {"b"}),
    "licences": (
        [a_node("n1", "4"), a_pod("a", licence="x"), a_pod("b", licence="x"), a_pod("c")], {},
        lambda answer: (len(placed(answer) - {"c"}), "c" in placed(answer)), (2, True), (1, True),
    ),
    "one-rack": (
        [a_node("n1", "1", rack="a"), a_node("n2", "1", rack="b"), a_group("g", 2), a_pod("a", group="g"),
         a_pod("b", group="g")], {},
        placed, {"a", "b"}, set(),
    ),
    "kept-pods": (
        [a_node("n1", "1"), *running("low", keep="yes"), a_pod("high", priority=9)], {}, ended, {"low"}, set(),
    ),
    "few-victims": (
        [a_node("n1"), *running("x", "y"), a_pod("high", "2", priority=9)], {}, ended, {"x", "y"}, set(),
    ),
    "seats": (
        [a_node("n1", "4"), *running("low"), a_pod("high", priority=9), a_pod("z")], {},
        lambda answer: (ended(answer), placed(answer)), (set(), {"high", "z"}), ({"low"}, {"high"}),
    ),
    "zone-annotation": (
        [a_node("n1", **{ZONE: "east"}), a_pod("a")], {},
        lambda answer: answer["pods"][0].get("zone"), None, "east",
    ),
    "spread-gpus": (
        [with_gpus(a_node("n1"), 2), a_sharer("a", "0.25"), a_sharer("b", "0.25")], {},
        lambda answer: sorted(str(one["gpus"]) for one in answer["pods"]), ["0", "0"], ["0", "1"],
    ),
    "fair-share-only": (
        [a_node("n1", "6"), *(a_pod(name, **queue("shared")) for name in "abc"),
         *(a_pod(name, **queue("kept"), **KEPT) for name in "xyz")],
        NO_SHARES | {"pod-shares": {"pods": {"shared": 2, "kept": 1}}},
        lambda answer: len(placed(answer)), 6, 3,
    ),
    "most-per-team": (
        [a_node("n1", "2"), *running("low"), a_pod("a", team="x", priority=9), a_pod("b", team="x", priority=9)], {},
        lambda answer: (ended(answer), len(placed(answer))), ({"low"}, 2), (set(), 1),
    ),
    "queues-kept": (
        [a_node("n1", "3"), *running("x", "y", "z", **queue("production")),
         a_pod("a", **queue("research"))], {},
        lambda answer: len(ended(answer)), 1, 0,
    ),
    "patient": (
        [a_node("n1", "3"), *running("x", "y", "z", **queue("offline")),
         a_pod("a", patient="yes", **queue("online"))], {},
        lambda answer: len(ended(answer)), 1, 0,
    ),
    "gangs-kept-whole": (
        [a_node("n1", "3"), disrupted_singly(a_group("g", 3)),
         *(a_pod(name, on="n1", group="g", **queue("training")) for name in "xyz"),
         a_pod("a", **queue("serving"))], {},
        lambda answer: len(ended(answer)), 1, 0,
    ),
    "spot-instance-manager": (
        [a_node("n1", "1"), a_node("n2", "3", **SPOT), a_pod("a"), a_pod("b", **KEPT)], {},
        nodes_of, {"a": "n2", "b": "n2"}, {"a": "n1", "b": None},
    ),
}  # fmt: skip
"""By plugin: the objects, the other plugins, a view of the answer, and its value without and with the plugin."""
