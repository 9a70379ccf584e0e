"""Why a pod or a gang waits: each kind of shortage in the full text of the refusal."""

from __future__ import annotations

from typing import Any

import pytest
from tests.tools.real_engine import embedded_only, use

from fluence_plugins.fluence.graph.allocations import Allocations
from fluxion_cy import Busy
from fluxion_cy.embedded.matcher import EmbeddedMatcher
from fluxion_cy.wording import Shortage
from session_scheduler.engine.explain import explain_pending

from .conftest import World, device, gang, node, pod

PREFIX = "fluence.flux-framework.org/"
NVIDIA = "nvidia.com/gpu"
PORT = {"ports": [{"hostPort": 80, "containerPort": 80}]}


def foreign(name: str, on: str, cpu: str, **more: str) -> dict[str, Any]:
    """A pod of another scheduler that runs on a node."""
    return pod(name, {"cpu": cpu, **more}, nodeName=on, schedulerName="other")


def members(number: int, cpu: str = "1", **more: str) -> list[dict[str, Any]]:
    return [gang("g", number), *(pod(f"g{i}", {"cpu": cpu, **more}, group="g") for i in range(number))]


def tainted(name: str, cpu: str) -> dict[str, Any]:
    return {**node(name, cpu), "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}


async def why(world: World, *objects: dict[str, Any]) -> str:
    """The one reason of all pods that wait, without what preemption adds."""
    result = await world.place(*objects)
    reasons = {entry["reason"].partition(". preemption:")[0] for entry in result["pods"] if not entry["node"]}
    assert len(reasons) == 1, reasons
    return reasons.pop()


@pytest.mark.parametrize(
    ("objects", "text"),
    [
        ([node("n1", "4"), node("n2", "4"), foreign("a", "n1", "1100m"), foreign("b", "n2", "1100m"),
          pod("p", {"cpu": "2900m"})],
         "no node has 3 free cores (a request of 2900m counts as 3 whole cores with cpuAccounting: cores); the most "
         "any of 2 candidate nodes has is 2"),
        ([*(node(f"n{i}", "3500m") for i in range(6)), node("n6", "5"), node("n7", "5"), foreign("a", "n6", "1500m"),
          foreign("b", "n7", "1500m"), pod("p", {"cpu": "3500m"})],
         "no node has 4 free cores (a request of 3500m counts as 4 whole cores with cpuAccounting: cores); the most "
         "any of 8 candidate nodes has is 3 (6 nodes are too small even when empty)"),
        ([node("n1", "3500m"), node("n2", "3500m"), pod("p", {"cpu": "3500m"})],
         "no node has 4 cores even when empty (a request of 3500m counts as 4 whole cores with cpuAccounting: cores); "
         "the most any of 2 candidate nodes has is 3"),
        ([node("n1", "1"), *(pod(f"p{i}", {"cpu": "100m"}) for i in range(2))],
         "no node has 1 free core (a request of 100m counts as 1 whole core with cpuAccounting: cores); the only "
         "candidate node has 0"),
        ([node("n1", "1"), *(pod(f"p{i}", {"cpu": "0"}) for i in range(2))],
         "no node has 1 free core (a pod without a CPU request counts as 1 whole core with cpuAccounting: cores); the "
         "only candidate node has 0"),
        ([node("n1", "3"), *(pod(f"p{i}", {"cpu": "500m"}) for i in range(2)), pod("q", {"cpu": "2"})],
         "no node has 2 free cores; the only candidate node has 1"),
        ([node("n1", "4"), tainted("n2", "8"), tainted("n3", "8"), tainted("n4", "2"), foreign("a", "n1", "1001m"),
          pod("p", {"cpu": "2900m"})],
         "no candidate node has 3 free cores (a request of 2900m counts as 3 whole cores with cpuAccounting: cores); "
         "the only candidate node has 2; 2 other nodes have enough, but other filters exclude them"),
    ],
)  # fmt: skip
async def test_a_pod_that_no_node_has_enough_cores_for(world: World, objects: list[dict[str, Any]], text: str) -> None:
    world.arguments["cpuAccounting"] = "cores"
    assert await why(world, *objects) == text


@embedded_only  # the library's chunks of memory are larger
@pytest.mark.parametrize(
    ("objects", "text"),
    [
        ([node("n1", "8", "1002000Ki"), foreign("a", "n1", "1", memory="1Ki"), pod("p", {"memory": "1000900Ki"})],
         "no node has 978 MiB of free memory; the only candidate node has 977 MiB"),
        ([node("n1", "8", "2097153Ki"), node("n2", "8", "2097151Ki"), pod("p", {"memory": "2097150Ki"}),
          foreign("a", "n1", "1", memory="1Ki")],
         "no node has 2 GiB of free memory; the most any of 2 candidate nodes has is 2047 MiB (1 node is too small "
         "even when empty)"),
        ([node("n1", "3500m"), node("n2", "8", "1000900Ki"), pod("p", {"cpu": "3500m", "memory": "1000700Ki"})],
         "no node has 4 cores and 978 MiB of memory at the same time even when empty (a request of 3500m counts as 4 "
         "whole cores with cpuAccounting: cores); of 2 candidate nodes, 1 has enough cores and 1 has enough memory"),
        ([node("n1", "3500m", "1000900Ki"), pod("p", {"cpu": "3500m", "memory": "1000700Ki"})],
         "no node has 4 cores or 978 MiB of memory even when empty (a request of 3500m counts as 4 whole cores with "
         "cpuAccounting: cores); the only candidate node has 3 cores and 977 MiB of memory"),
    ],
)  # fmt: skip
async def test_memory_is_counted_in_whole_mib(world: World, objects: list[dict[str, Any]], text: str) -> None:
    world.arguments["cpuAccounting"] = "cores"
    assert await why(world, *objects) == text


async def test_with_fluxions_library_memory_is_counted_in_chunks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    use("stand-in", monkeypatch)
    world.arguments["engine"] = "reapi"
    big = pod("a", {"memory": "5632Mi"})
    assert await why(world, node("n1"), big, pod("p", {"memory": "2500Mi"})) == (
        "no node has 3 GiB of free memory (a request of 2500 MiB takes 3 GiB); the only candidate node has 2 GiB"
    )
    assert await why(world, node("n1", memory="3800Mi"), *members(2, memory="1500Mi")) == (
        "1 of 2 pods fit: 2 pods request 4 GiB of memory (a request of 1500 MiB takes 2 GiB), and the only candidate "
        "node has 3 GiB even when empty"
    )


@pytest.mark.parametrize(
    ("objects", "text"),
    [
        ([node("n1", "4"), node("n2", "3"), *members(8)],
         "7 of 8 pods fit: 8 pods request 8 cores, and 2 candidate nodes have 7 even when empty"),
        ([node("n1", "8"), foreign("a", "n1", "100m"), *members(8, "500m")],
         "7 of 8 pods fit: 8 pods request 8 cores (a request of 500m counts as 1 whole core with cpuAccounting: "
         "cores), and the only candidate node has 7 of 8 free"),
        ([node("n1", "3900m"), node("n2", "3900m"), *members(3, "1900m")],
         "2 of 3 pods fit: no node has 2 cores for the next even when empty (a request of 1900m counts as 2 whole "
         "cores with cpuAccounting: cores); the most any of 2 candidate nodes has left is 1"),
        ([node("n1", "4900m"), node("n2", "4900m"), foreign("a", "n1", "1"), foreign("b", "n2", "1"),
          *members(3, "1900m")],
         "2 of 3 pods fit: no node has 2 free cores for the next (a request of 1900m counts as 2 whole cores with "
         "cpuAccounting: cores); the most any of 2 candidate nodes has left is 1"),
        ([node("n1", "8", **{NVIDIA: "1"}), node("n2", "8", **{NVIDIA: "1"}), *members(3, **{NVIDIA: "1"})],
         f"2 of 3 pods fit: 3 pods request 3 {NVIDIA}, and 2 candidate nodes have 2 even when empty"),
        ([node("n1", "8", "4Gi"), node("n2", "8", "3Gi"), *members(4, memory="2Gi")],
         "3 of 4 pods fit: 4 pods request 8 GiB of memory, and 2 candidate nodes have 7 GiB even when empty"),
        ([node("n1"), node("n2"), gang("g", 3), *(pod(f"g{i}", group="g", container=PORT) for i in range(3))],
         "2 of 3 pods fit: other filters allow no more pods on 2 candidate nodes"),
        ([node("n1", "6"), gang("g", 5), *(pod(f"a{i}", {"cpu": "2"}, group="g") for i in range(2)),
          *(pod(f"b{i}", {"cpu": "600m"}, group="g") for i in range(3))],
         "4 of 5 pods fit: 3 pods request 3 cores (a request of 600m counts as 1 whole core with cpuAccounting: "
         "cores), and the only candidate node has 2 of 6 free"),
    ],
)  # fmt: skip
async def test_a_gang_that_the_nodes_have_too_little_for(
    world: World, objects: list[dict[str, Any]], text: str
) -> None:
    world.arguments["cpuAccounting"] = "cores"
    assert await why(world, *objects) == text


@embedded_only  # with the library, auto means cores
@pytest.mark.parametrize(
    ("objects", "text"),
    [
        ([node("n1", "8"), foreign("a", "n1", "100m"), *members(8, "500m")],
         "7 of 8 pods fit: 8 pods request 8 cores (a request of 500m counts as 1 whole core with cpuAccounting: auto), "
         "and the only candidate node has 7.9 of 8 free"),
        ([node("n1", "3900m"), node("n2", "3900m"), *members(3, "1900m")],
         "2 of 3 pods fit: no node has 2 cores for the next even when empty (a request of 1900m counts as 2 whole "
         "cores with cpuAccounting: auto); the most any of 2 candidate nodes has left is 1.9"),
        ([node("n1", "900m"), pod("p", {"cpu": "0", **device("qpu")})],
         "no node has 1 core even when empty (a pod without a CPU request counts as 1 whole core with cpuAccounting: "
         "auto); the only candidate node has 0.9"),
        ([node("n1", "2", **{NVIDIA: "1"}), foreign("a", "n1", "300m"), pod("p", {"cpu": "1100m", NVIDIA: "1"})],
         "no node has 2 free cores (a request of 1100m counts as 2 whole cores with cpuAccounting: auto); the only "
         "candidate node has 1.7"),
    ],
)  # fmt: skip
async def test_gangs_and_pods_with_devices_get_whole_cores(
    world: World, objects: list[dict[str, Any]], text: str
) -> None:
    assert await why(world, *objects) == text


@embedded_only
async def test_other_pods_are_exact(world: World) -> None:
    small = [pod(f"p{i:02}", {"cpu": "100m"}) for i in range(11)]
    reason = "Insufficient cpu"
    result = await world.place(node("n1", "1"), *small, pod("idle", {"cpu": "0"}))
    assert [entry["name"] for entry in result["pods"] if not entry["node"]] == ["p10"]
    assert reason in world.pod("p10")["reason"]
    assert "whole core" not in world.pod("p10")["reason"]


@pytest.mark.parametrize(
    ("cpu", "text"),
    [
        ("1500m", "3 of 4 pods fit: 4 pods request 6000m of cpu, and 2 candidate nodes have 5900m even when empty"),
        ("1510m", "2 of 4 pods fit: 4 pods request 6040m of cpu, and 2 candidate nodes have 5900m even when empty"),
        ("1", "5 of 6 pods fit: 6 pods request 6 cores, and 2 candidate nodes have 5.9 even when empty"),
    ],
)
async def test_cpu_counted_in_millicores_has_the_unit_of_the_request(world: World, cpu: str, text: str) -> None:
    world.arguments["cpuAccounting"] = "millicores"
    pods = members(6 if cpu == "1" else 4, cpu)
    assert await why(world, node("n1", "3"), node("n2", "2900m"), *pods) == text


async def test_whole_nodes_are_in_use(world: World) -> None:
    world.arguments["matchPolicy"] = "lonodex"
    assert await why(world, node("n1"), node("n2"), *(pod(f"p{i}") for i in range(3))) == (
        "no node is entirely free; matchPolicy allocates whole nodes, and both candidate nodes are in use"
    )
    assert await why(world, node("n1"), node("n2", "2"), pod("a", {"cpu": "2100m"}), *members(3)) == (
        "2 of 3 pods fit: 3 pods request 3 cores, and the only candidate node that is entirely free has 2 of 2 free"
    )


@embedded_only
async def test_nodes_closed_by_a_window_are_named_first(world: World) -> None:
    window = "windows: [{nodes: [n1], start: 1970-01-01T00:00:00Z, end: 2099-01-01T00:00:00Z}]"
    (world._folder / "resources.yaml").write_text(window)
    closed = "node n1 is in maintenance window from 1970-01-01T00:00:00Z to 2099-01-01T00:00:00Z"
    assert await why(world, node("n1"), pod("p")) == closed
    assert await why(world, node("n1"), node("n2", "1"), *members(2, "900m")) == (
        f"{closed}. 1 of 2 pods fit: 2 pods request 2 cores (a request of 900m counts as 1 whole core with "
        "cpuAccounting: auto), and the only candidate node has 1 even when empty"
    )


VENDOR_B = {PREFIX + "require-vendor": "b"}


@pytest.mark.parametrize(
    ("pods", "text"),
    [
        ([pod(f"p{i}", device("qpu"), annotations=VENDOR_B) for i in range(3)],
         "the pod requests 1 qpu with vendor=b, and 0 of 2 are free"),
        ([pod(f"p{i}", device("qdevice"), annotations={PREFIX + "require-backend": "aurora"}) for i in range(2)],
         "the pod requests 1 qdevice of backend aurora, and 0 of 1 is free"),
        (members(4, **device("qpu")), "3 of 4 pods fit: 4 pods request 4 qpus, and 3 of 3 are free"),
        ([pod("a", device("qpu"), annotations=VENDOR_B), pod("p", device("qpu", 2))],
         "no resource tree has 2 free qpus that one pod can use at the same time; 2 of 3 are free, at most 1 in one "
         "resource tree (1 of 2 resource trees has fewer than 2)"),
        ([pod("p", device("qpu", 3))],
         "no resource tree has 3 free qpus that one pod can use at the same time; 3 of 3 are free, at most 2 in one "
         "resource tree (no resource tree has 3)"),
        (members(2, **device("qpu", 2)), "1 of 2 pods fit: 2 pods request 4 qpus, and 3 of 3 are free"),
    ],
)  # fmt: skip
async def test_devices_are_named_with_what_is_required_of_them(
    world: World, pods: list[dict[str, Any]], text: str
) -> None:
    assert await why(world, node("n1", "16"), *pods) == text


async def test_devices_that_are_down_are_counted_beside_the_others(world: World) -> None:
    (world._folder / "resources.yaml").write_text(
        "resources: [{type: qpu, name: a}, {type: qpu, name: b, status: down}, {type: qpu, name: c, status: down}]"
    )
    assert await why(world, node("n1"), *(pod(f"p{i}", device("qpu")) for i in range(2))) == (
        "the pod requests 1 qpu, and 0 of 1 is free (2 more are down in the resources file)"
    )


def classes(big: str, small: str) -> list[dict[str, Any]]:
    """A gang of four: two pods of each of two classes."""
    pods = [pod(f"{name}{i}", {"cpu": cpu}, group="g") for name, cpu in (("a", big), ("b", small)) for i in range(2)]
    return [gang("g", 4), *pods]


def placeable(world: World) -> tuple[int, str]:
    """How many pods of the gang `fluence explain` says can be placed, and why not the others."""
    (group,) = explain_pending(world.scheduler)["groups"]
    return group["placeable"], group["reason"]


@pytest.mark.parametrize(
    ("nodes", "cpu", "fit", "text"),
    [
        (("4", "2"), ("4", "1"), 3, "2 pods request 8 cores, and the only candidate node has 4 even when empty"),
        (("4", "2"), ("1", "4"), 3, "2 pods request 8 cores, and the only candidate node has 4 even when empty"),
        (("4", "3"), ("3", "1"), 3, "2 pods request 2 cores, and 2 candidate nodes have 1 of 7 free"),
        (("4", "3"), ("1", "3"), 3, "2 pods request 2 cores, and 2 candidate nodes have 1 of 7 free"),
        (("3", "1"), ("3", "1"), 2, "2 pods request 6 cores, and the only candidate node has 3 even when empty"),
    ],
)  # fmt: skip
async def test_a_gang_of_two_classes_counts_the_pods_of_both(
    world: World, nodes: tuple[str, str], cpu: tuple[str, str], fit: int, text: str
) -> None:
    found = await why(world, node("n1", nodes[0]), node("n2", nodes[1]), *classes(*cpu))
    assert found == f"{fit} of 4 pods fit: {text}"
    assert placeable(world) == (fit, found)


async def test_a_level_counts_the_pods_of_all_classes(world: World) -> None:
    nodes = [node("n1", "4"), node("n2", "2")]
    for one in nodes:
        one["metadata"]["labels"] = {"topology.kubernetes.io/rack": "r1"}
    group, *pods = classes("4", "1")
    group["metadata"]["annotations"] = {PREFIX + "within": "rack"}
    world.arguments["topology"] = [{"type": "rack", "label": "topology.kubernetes.io/rack"}]
    assert await why(world, *nodes, group, *pods) == (
        "rack r1 has no room for 4 pods; 3 of 4 pods fit: 2 pods request 8 cores, and the only candidate node has 4 "
        "even when empty"
    )


async def test_pods_that_get_no_devices_do_not_count_as_fitting(world: World) -> None:
    found = await why(world, node("n1", "8"), *members(3, "4", **device("qpu", 2)))
    assert found == "1 of 3 pods fit: 3 pods request 12 cores, and the only candidate node has 8 even when empty"
    assert placeable(world) == (1, found)


@pytest.mark.parametrize(("counts", "text"), [(0, "{}"), (1, "at most 3 of 4 pods fit: {}")])
async def test_without_a_count_the_reason_has_no_exact_number(
    world: World, counts: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `engine: reapi`, where the library finds no match although the ledger has enough."""
    left = [Shortage("of too few cores", 4, 3, at_most=True)] * counts
    refuse = Allocations.match

    def match(self: Allocations, *arguments: Any) -> Any:
        if not arguments[0].count("core"):
            return refuse(self, *arguments)
        raise Busy("the library finds none")

    monkeypatch.setattr(Allocations, "match", match)
    monkeypatch.setattr(EmbeddedMatcher, "shortage", lambda *_, **__: left.pop() if left else None)
    monkeypatch.setattr(EmbeddedMatcher, "why", lambda *_, **__: "the library finds none")
    reason = "of too few cores" if counts else "the library finds none"
    assert await why(world, node("n1", "8"), *members(4)) == text.format(reason)
