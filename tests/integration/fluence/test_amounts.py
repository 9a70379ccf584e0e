"""Cpu in millicores and kinds of gpu in a whole scheduler: placement, records, preemption and restarts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.tools.real_engine import embedded_only

from fluence_plugins.fluence.plugin import FluencePlugin
from session_scheduler.errors import FluenceError
from session_scheduler.model.objects import ContainerStatus, Pod, PodStatus, ResourceRequirements
from session_scheduler.testing import FakeCluster, gang, node, pod

from .conftest import World
from .conftest import gang as gang_manifest
from .conftest import node as node_manifest
from .conftest import pod as pod_manifest

HELD = "fluence.flux-framework.org/held"
NVIDIA, AMD = "nvidia.com/gpu", "amd.com/gpu"
AUTO, CORES, MILLICORES = ({"cpuAccounting": way} for way in ("auto", "cores", "millicores"))


def cluster_of(**arguments: Any) -> FakeCluster:
    return FakeCluster().use(FluencePlugin, {**MILLICORES, **arguments})


def held_by(cluster: FakeCluster, name: str) -> tuple[int, ...] | None:
    found = cluster.find(Pod, name)
    held: tuple[int, ...] | None = cluster.plugin("fluence").live.holdings.of_pod(
        found.metadata.uid, found.spec.node_name
    )
    return held


def test_a_node_fits_small_pods_up_to_its_millicores_and_pods() -> None:
    cluster = cluster_of().node("n1", cpu="1", pods=110).node("n2", cpu="1", pods=4)
    cluster.add(gang("g", 14, cpu="100m")).schedule()
    assert (len(cluster.pods_on("n1")), len(cluster.pods_on("n2"))) == (10, 4)
    cluster.pod("more", cpu="100m").schedule()
    assert cluster.node_of("more") is None


def test_only_the_pod_count_bounds_a_gang_without_requests() -> None:
    cluster = cluster_of().node("n1", cpu="0", memory="0", pods=3)
    cluster.add(gang("fits", 3, cpu="0", memory="0")).schedule().assert_all_bound()
    assert held_by(cluster, "fits-0") == (0, 0, 0, 0, 1)
    cluster.end("fits-0").add(gang("late", 2, cpu="0", memory="0")).advance(60).schedule()
    assert cluster.node_of("late-0") is None


@pytest.mark.parametrize("policy", ["first", "lonode", "low", "high", "hinode", "locality"])
def test_each_pod_is_allocated_its_requests_under_every_policy(policy: str) -> None:
    cluster = cluster_of(matchPolicy=policy).node("n1", cpu="3", offers={NVIDIA: 2, AMD: 2}).node("n2", cpu="1")
    cluster.add(gang("g", 2, cpu="1m", memory="1", requests={AMD: 1}), gang("h", 4, cpu="333m", memory="1Mi"))
    cluster.pod("nvidia", cpu="0", memory="0", requests={NVIDIA: 2}).schedule().assert_all_bound()
    assert {held_by(cluster, f"g-{index}") for index in range(2)} == {(1, 1, 0, 1, 1)}
    assert {held_by(cluster, f"h-{index}") for index in range(4)} == {(333, 1, 0, 0, 1)}
    assert held_by(cluster, "nvidia") == (0, 0, 2, 0, 1)


def test_a_policy_of_whole_nodes_allocates_all_pools_to_the_first_pod() -> None:
    cluster = cluster_of(matchPolicy="lonodex").node("n1", cpu="1500m", memory="1Gi", pods=9)
    cluster.add(gang("g", 2, cpu="100m", memory="100Mi")).schedule().assert_all_bound()
    assert [held_by(cluster, f"g-{index}") for index in range(2)] == [(1400, 924, 0, 0, 8), (100, 100, 0, 0, 1)]
    cluster.pod("late", cpu="1m", memory="0").schedule()
    assert cluster.node_of("late") is None
    cluster.end("g-0").end("g-1").advance(60).schedule().assert_bound("late", "n1")


def test_the_load_of_foreign_pods_is_exact() -> None:
    cluster = cluster_of().node("n1", cpu="1")
    cluster.pods(3, prefix="x", cpu="333m", memory="0", scheduler="x", bound_to="n1")
    cluster.pod("two", cpu="2m", memory="0").schedule().pod("one", cpu="1m", memory="0").schedule()
    assert cluster.node_of("two") is None
    cluster.assert_bound("one")


def resize(cluster: FakeCluster, name: str, actual: str = "", **requests: Any) -> None:
    """Resize a bound pod; with `actual`, the kubelet still reports this amount of cpu."""
    found = cluster.find(Pod, name)
    statuses: tuple[ContainerStatus, ...] = ()
    if actual:
        container = ResourceRequirements(requests={"cpu": actual})
        statuses = (ContainerStatus(name=found.spec.containers[0].name, resources=container),)
    spec = pod(name, bound_to=found.spec.node_name, **requests).spec
    cluster.add(replace(found, spec=spec, status=replace(found.status, container_statuses=statuses)))


def test_the_additional_amount_of_a_resized_pod_counts_as_load() -> None:
    cluster = cluster_of().node("n1", cpu="1")
    cluster.pod("grows", cpu="200m").schedule()
    resize(cluster, "grows", cpu="700m")
    cluster.pod("late", cpu="400m").schedule()
    assert cluster.node_of("late") is None
    cluster.pod("fits", cpu="300m").schedule().assert_bound("fits")


@pytest.mark.parametrize("accounting", ["cores", "millicores"])
@pytest.mark.parametrize("foreign", [False, True])
def test_a_pod_that_shrinks_frees_its_part_of_the_graph_once_its_status_says_so(accounting: str, foreign: bool) -> None:
    cluster = cluster_of(cpuAccounting=accounting).node("n1", cpu="4", memory="4Gi")
    if foreign:
        cluster.pod("shrinks", cpu="3", memory="3Gi", scheduler="x", bound_to="n1")
    else:
        cluster.pod("shrinks", cpu="3", memory="3Gi")
    cluster.schedule().pod("late", cpu="3", memory="3Gi").schedule()
    resize(cluster, "shrinks", actual="3", cpu="1", memory="1Gi")
    cluster.advance(60).schedule()
    assert cluster.node_of("late") is None
    resize(cluster, "shrinks", cpu="1", memory="1Gi")
    cluster.advance(60).schedule().assert_bound("late", "n1")


@pytest.mark.parametrize("accounting", ["cores", "millicores"])
def test_a_restart_recovers_what_a_resized_pod_kept(accounting: str) -> None:
    cluster = cluster_of(cpuAccounting=accounting).node("n1", cpu="4", memory="4Gi")
    cluster.pod("shrinks", cpu="3", memory="3Gi").schedule()
    resize(cluster, "shrinks", cpu="1", memory="1Gi")
    cluster.pod("late", cpu="3", memory="3Gi").schedule().assert_bound("late", "n1")
    before = [held_by(cluster, name) for name in ("shrinks", "late")]
    assert before[0] is not None
    assert before[0][:2] == ((1 if accounting == "cores" else 1000), 1024)
    cluster.restart().schedule()
    assert [held_by(cluster, name) for name in ("shrinks", "late")] == before
    assert cluster.plugin("fluence").live.holdings.missing == {}
    cluster.end("shrinks").pod("more", cpu="1", memory="1Gi").advance(60).schedule().assert_bound("more", "n1")


@pytest.mark.parametrize("accounting", ["cores", "millicores"])
def test_a_member_of_a_gang_that_shrinks_leaves_the_other_members_what_they_hold(accounting: str) -> None:
    cluster = cluster_of(cpuAccounting=accounting).node("n1", cpu="4", memory="4Gi", offers={AMD: 2})
    cluster.add(gang("g", 2, cpu="2", memory="2Gi", requests={AMD: 1})).schedule().assert_all_bound()
    other = held_by(cluster, "g-1")
    resize(cluster, "g-0", cpu="1", memory="1Gi", requests={AMD: 1})
    cluster.pod("late", cpu="1", memory="1Gi").schedule().assert_bound("late", "n1")
    assert held_by(cluster, "g-1") == other
    assert cluster.plugin("fluence").drift == {"unheld": 0, "ended": 0}
    cluster.end("g-0").end("g-1").pod("more", cpu="3", memory="3Gi", requests={AMD: 2}).advance(60).schedule()
    cluster.assert_bound("more", "n1")


def test_a_pod_that_holds_a_whole_node_keeps_it_when_it_shrinks() -> None:
    cluster = cluster_of(matchPolicy="lonodex").node("n1", cpu="2", memory="1Gi")
    cluster.pod("shrinks", cpu="2").schedule()
    before = held_by(cluster, "shrinks")
    resize(cluster, "shrinks", cpu="1")
    cluster.pod("late", cpu="1").schedule()
    assert held_by(cluster, "shrinks") == before
    assert cluster.node_of("late") is None


def test_preemption_matches_amounts_in_the_graph() -> None:
    cluster = cluster_of().node("n1", cpu="1", offers={AMD: 1})
    cluster.pod("small", cpu="300m", priority=1).pod("gpu", cpu="100m", priority=2, requests={AMD: 1})
    cluster.pod("large", cpu="600m", priority=3).schedule().assert_all_bound()
    cluster.pod("urgent", cpu="400m", priority=9).schedule().finish_deletions().schedule()
    cluster.assert_bound("urgent", "n1").assert_bound("large", "n1")
    assert sorted(cluster.pods_on("n1")) == ["default/large", "default/urgent"]


@pytest.mark.parametrize("policy", ["first", "lonodex"])
def test_a_restart_recovers_the_allocations(policy: str) -> None:
    cluster = cluster_of(matchPolicy=policy).node("n1", cpu="2", offers={NVIDIA: 1, AMD: 2})
    cluster.add(gang("g", 2, cpu="150m", requests={AMD: 1})).schedule().assert_all_bound()
    before = [held_by(cluster, f"g-{index}") for index in range(2)]
    cluster.restart()
    assert [held_by(cluster, f"g-{index}") for index in range(2)] == before
    assert cluster.plugin("fluence").live.holdings.missing == {}


async def test_small_pods_stay_within_a_rack_of_a_graph_with_levels(world: World) -> None:
    level = {"type": "rack", "label": "example.com/rack"}
    world.arguments = {**MILLICORES, "topology": [level]}
    hosts = [node_manifest(f"n{index}", "1", **{AMD: "1"}) for index in range(4)]
    for index, host in enumerate(hosts):
        host["metadata"]["labels"] = {level["label"]: "ab"[index // 2]}
    group = gang_manifest("g", 9)
    group["metadata"]["annotations"] = {"fluence.flux-framework.org/within": "rack"}
    small = [pod_manifest(f"g-{index}", {"cpu": "200m", "memory": "3Mi"}, group="g") for index in range(9)]
    await world.place(*hosts, group, *small, pod_manifest("amd", {"cpu": "150m", AMD: "1"}))
    on = {world.pod(f"g-{index}")["node"] for index in range(9)}
    assert on in ({"n0", "n1"}, {"n2", "n3"})
    before = {host: held(world.plugin, world, host) for host in ("n0", "n1", "n2", "n3")}
    assert [amounts for found in before.values() for amounts in found.values()].count((200, 3, 0, 0, 1)) == 9
    assert (150, 0, 0, 1, 1) in before[world.pod("amd")["node"]].values()
    await world.restarted()
    assert {host: held(world.plugin, world, host) for host in before} == before


def test_the_printed_graph_has_the_counted_amounts(tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    file.write_text(json.dumps(node_manifest("n1", "1500m", **{AMD: "1"})))
    counted = {
        kind: [vertex["metadata"] for vertex in printed_graph(file, "--cpu-accounting", kind)]
        for kind in ("auto", "cores", "millicores")
    }
    assert printed_graph(file) == printed_graph(file, "--cpu-accounting", "auto")
    sizes = {kind: {found["name"]: found["size"] for found in vertices} for kind, vertices in counted.items()}
    common = {"cluster": 1, "n1": 1, "gpu:amd.com:gpu-0": 1, "memory": 8192}
    pooled = {**common, "core": 1500, "pod": 110}
    assert sizes == {"auto": pooled, "cores": {**common, "core0": 1}, "millicores": pooled}


def printed_graph(*words: str | Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "session_scheduler.cli", "graph", *map(str, words)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    nodes: list[dict[str, Any]] = json.loads(answer.stdout)["graph"]["nodes"]
    return nodes


# ------------------------------------------------------------------ auto, the default

QPU = "fluxion.flux-framework.org/qpu"
QPUS = {"resourcesText": "resources: [{type: qpu, name: q, count: 4}]"}


@embedded_only
def test_by_default_gangs_and_pods_with_devices_hold_whole_cores_and_others_what_they_request() -> None:
    cluster = FakeCluster().use(FluencePlugin, QPUS).node("n1", cpu="9", offers={AMD: 1, QPU: 8})
    cluster.add(gang("g", 2, cpu="100m")).pod("single", cpu="100m").pod("idle", cpu="0")
    cluster.pod("gpu", cpu="1100m", requests={AMD: 1}).pod("qpu", cpu="0", requests={QPU: 1})
    cluster.schedule().assert_all_bound()
    found = {name: (held_by(cluster, name) or ())[0] for name in ("g-0", "g-1", "single", "idle", "gpu", "qpu")}
    assert found == {"g-0": 1000, "g-1": 1000, "single": 100, "idle": 0, "gpu": 2000, "qpu": 1000}


@embedded_only
def test_by_default_pods_alike_in_and_out_of_groups_differ() -> None:
    labels = ("scheduling.k8s.io/pod-group", "scheduling.x-k8s.io/pod-group", "fluence.flux-framework.org/group")
    cluster = FakeCluster().use(FluencePlugin).node("n1", cpu="8").pods(2, prefix="single", cpu="100m")
    cluster.add(*gang("native", 1, cpu="100m"), *gang("labelled", 1, cpu="100m")[:1])
    for number, label in enumerate(labels):
        cluster.pod(f"of-{number}", cpu="100m", labels={label: "labelled"})
    cluster.schedule().assert_all_bound()
    ours = {task.name: (held_by(cluster, task.name) or ())[0] for task in cluster.scheduler.cache.tasks.values()}
    assert ours == {
        "single-0": 100, "single-1": 100, "native-0": 1000, "of-0": 1000, "of-1": 1000, "of-2": 1000
    }  # fmt: skip


@embedded_only
def test_by_default_small_pods_share_cores_beside_a_gang() -> None:
    cluster = FakeCluster().use(FluencePlugin).node("n1", cpu="8")
    cluster.pods(12, prefix="small", cpu="100m").add(gang("g", 6, cpu="100m")).schedule().assert_all_bound()
    cluster.add(gang("late", 1, cpu="100m")).schedule()
    reason = "no node has 1 free core (a request of 100m counts as 1 whole core with cpuAccounting: auto)"
    cluster.assert_pending("late-0", f"{reason}; the only candidate node has 0.8")
    cluster.pods(8, prefix="more", cpu="100m").schedule().assert_bound("more-7", "n1")


@embedded_only
def test_a_nominated_pod_of_a_group_counts_whole_cores() -> None:
    cluster = FakeCluster(checked=False).use(FluencePlugin).node("n1", cpu="2")
    (group, waits) = gang("waits", 1, cpu="1100m", gates=["later"], priority=10)
    cluster.add(group, replace(waits, status=PodStatus(nominated_node_name="n1")))
    cluster.pod("small", cpu="100m", priority=9, preemption_policy="Never").schedule()
    assert cluster.node_of("small") is None
    cluster.pod("urgent", cpu="100m", priority=11).schedule().assert_bound("urgent", "n1")


# ------------------------------------------------------------------ another accounting after a restart


async def moved(world: World, before: dict[str, Any], after: dict[str, Any], *objects: dict[str, Any]) -> FluencePlugin:
    world.arguments = before
    await world.place(*objects)
    assert all(pod["node"] for pod in world.result["pods"])
    world.arguments = after
    await world.restarted()
    return world.plugin


def held(plugin: FluencePlugin, world: World, host: str = "n1") -> dict[str, tuple[int, ...] | None]:
    return {task.key: plugin.live.holdings.of_pod(task.uid, host) for task in world.scheduler.cache.tasks.values()}


async def test_whole_cores_become_the_pods_requests(world: World) -> None:
    pods = [pod_manifest("a", {"cpu": "1500m"}), pod_manifest("b", {"cpu": "1"}), pod_manifest("c", {"cpu": "10m"})]
    plugin = await moved(world, CORES, MILLICORES, node_manifest("n1"), *pods)
    assert held(plugin, world) == {
        "default/a": (1500, 0, 0, 0, 1), "default/b": (1000, 0, 0, 0, 1), "default/c": (10, 0, 0, 0, 1)
    }  # fmt: skip
    assert not plugin.live.holdings.missing


@embedded_only
@pytest.mark.parametrize(
    ("before", "after", "alone", "of_gang"),
    [
        (CORES, AUTO, 100, 1000), (MILLICORES, AUTO, 100, 100), (AUTO, MILLICORES, 100, 100), (AUTO, CORES, 1, 1),
        (CORES, {}, 100, 1000),
    ],
)  # fmt: skip
async def test_pods_hold_what_they_take_now_but_no_more_than_they_recorded(
    world: World, before: dict[str, Any], after: dict[str, Any], alone: int, of_gang: int
) -> None:
    pods = [pod_manifest("a", {"cpu": "100m"}), *(pod_manifest(f"g-{i}", {"cpu": "100m"}, group="g") for i in range(2))]
    plugin = await moved(world, before, after, node_manifest("n1"), gang_manifest("g", 2), *pods)
    found = {name: (amounts or ())[0] for name, amounts in held(plugin, world).items()}
    assert found == {"default/a": alone, "default/g-0": of_gang, "default/g-1": of_gang}
    assert (plugin.live.holdings.missing, sum(plugin.drift.values())) == ({}, 0)
    whole = 3 if after is CORES else 2100 if after is not MILLICORES else 300
    assert plugin.live.free_on("n1", (), plugin._loads.load_on("n1", (), ())) == tuple(
        have - used for have, used in zip(offered(plugin), (whole, 0, 0, 0, 3), strict=False)
    )


def offered(plugin: FluencePlugin) -> tuple[int, ...]:
    return plugin.live.accounting.offered(plugin.live.loaded.hosts["n1"])


@embedded_only
async def test_a_node_with_more_pods_of_gangs_than_cores_keeps_them(world: World) -> None:
    pods = [pod_manifest(f"g-{i}", {"cpu": "500m"}, group="g") for i in range(4)]
    plugin = await moved(world, MILLICORES, AUTO, node_manifest("n1", "2"), gang_manifest("g", 4), *pods)
    assert held(plugin, world) == {f"default/g-{i}": (500, 0, 0, 0, 1) for i in range(4)}
    assert (plugin.live.holdings.missing, world.free_cores()) == ({}, 0)
    for index, free in enumerate((0, 0, 1, 2)):
        await world.scheduler.event_handlers.apply("DELETED", await world.live_pod(f"g-{index}"))
        await world.scheduler.cycle()
        assert world.free_cores() == free


@embedded_only  # memory is exact
async def test_millicores_become_whole_cores_that_are_allocated_once(world: World) -> None:
    pods = [pod_manifest("a", {"cpu": "1500m"}), pod_manifest("b", {"cpu": "10m", "memory": "5Mi"})]
    plugin = await moved(world, MILLICORES, CORES, node_manifest("n1"), *pods)
    assert held(plugin, world) == {"default/a": (2, 0, 0, 0), "default/b": (1, 5, 0, 0)}
    indices = [
        core
        for share in plugin.live.holdings.shares.values()
        for on in share[next(iter(share))].hosts
        for core in on.cores
    ]
    assert sorted(indices) == [0, 1, 2]


async def test_pods_without_enough_cores_count_as_load_until_they_end(world: World) -> None:
    pods = [pod_manifest(f"p{index}", {"cpu": "500m"}) for index in range(8)]
    plugin = await moved(world, MILLICORES, CORES, node_manifest("n1"), *pods)
    assert len(plugin.live.holdings.shares) == 4
    assert len(plugin.live.holdings.missing) == 4
    assert plugin.live.foreign.held == {}
    assert sum(plugin.drift.values()) == 0
    for index in range(8):
        await world.scheduler.event_handlers.apply("DELETED", await world.live_pod(f"p{index}"))
    assert (plugin.live.holdings.shares, plugin.live.holdings.missing, plugin.live.foreign.held) == ({}, {}, {})
    assert world.free_cores() == 4


@pytest.mark.parametrize(("before", "after"), [(CORES, MILLICORES), (MILLICORES, CORES)])
async def test_a_whole_node_stays_whole(world: World, before: dict[str, Any], after: dict[str, Any]) -> None:
    whole = {"matchPolicy": "lonodex"}
    plugin = await moved(world, before | whole, after | whole, node_manifest("n1"), pod_manifest("a"))
    assert held(plugin, world) == {"default/a": (4000, 8192, 0, 0, 110) if after is MILLICORES else (4, 8192, 0, 0)}
    assert not plugin.live.holdings.missing


@embedded_only  # memory is exact
@pytest.mark.parametrize(("before", "after"), [(CORES, MILLICORES), (MILLICORES, CORES)])
async def test_pods_that_share_a_whole_node_keep_their_shares_of_it(
    world: World, before: dict[str, Any], after: dict[str, Any]
) -> None:
    whole = {"matchPolicy": "lonodex"}
    pods = [pod_manifest(f"g-{i}", {"cpu": "1500m", "memory": "1Gi", AMD: "1"}, group="g") for i in range(2)]
    host = node_manifest("n1", "8", **{AMD: "3", NVIDIA: "1"})
    plugin = await moved(world, before | whole, after | whole, host, gang_manifest("g", 2), *pods)
    first, second = (
        ((6500, 7168, 1, 2, 109), (1500, 1024, 0, 1, 1)) if after is MILLICORES else ((6, 7168, 1, 2), (2, 1024, 0, 1))
    )
    assert held(plugin, world) == {"default/g-0": first, "default/g-1": second}
    assert not plugin.live.holdings.missing


async def test_pods_keep_their_gpus_when_the_kinds_are_reordered(world: World) -> None:
    pods = [pod_manifest("a", {NVIDIA: "2"}), pod_manifest("b", {AMD: "1"}), pod_manifest("c", {"cpu": "1"})]
    host = node_manifest("n1", **{NVIDIA: "2", AMD: "3"})
    plugin = await moved(world, CORES, CORES | {"gpuResources": [AMD, "example.com/x", NVIDIA]}, host, *pods)
    assert held(plugin, world) == {
        "default/a": (1, 0, 0, 0, 2), "default/b": (1, 0, 1, 0, 0), "default/c": (1, 0, 0, 0, 0)
    }  # fmt: skip
    world.arguments = CORES | {"gpuResources": [NVIDIA]}
    await world.restarted()
    assert held(world.plugin, world) == {"default/a": (1, 0, 2), "default/b": (1, 0, 0), "default/c": (1, 0, 0)}
    assert not world.plugin.live.holdings.missing


async def test_a_record_without_a_kind_means_the_only_requested_one(world: World) -> None:
    host = node_manifest("n1", **{NVIDIA: "1", AMD: "3"})
    world.arguments = CORES
    await world.place(host, pod_manifest("b", {AMD: "2"}))
    live = await world.live_pod("b")
    record = json.loads(live.metadata.annotations[HELD])
    (part,) = record["plugins"]["fluence"]["jobs"].values()
    part["gpus"] = part.pop("otherGpus")[AMD]
    await world.scheduler.cluster.patch_metadata(live, annotations={HELD: json.dumps(record)})
    await world.restarted()
    assert held(world.plugin, world) == {"default/b": (1, 0, 0, 2)}


@pytest.mark.parametrize(
    "forged",
    [
        {"millicores": 10**30, "pods": 1}, {"millicores": -1}, {"pods": True}, {"pods": "1"}, {"otherGpus": []},
        {"otherGpus": {AMD: [-1]}}, {"otherGpus": {AMD: 3}}, {"otherGpus": {"": [0]}}, {"gpuResource": 4},
        {"cores": [0], "millicores": 5, "pods": 1}, {"otherGpus": {NVIDIA: [0]}, "gpus": [0]},
        {"otherGpus": {"core": [0], "gpu": [0]}},
    ],
)  # fmt: skip
@pytest.mark.parametrize("arguments", [AUTO, CORES, MILLICORES])
async def test_a_forged_record_neither_fails_the_start_nor_frees_resources(
    world: World, forged: dict[str, Any], arguments: dict[str, Any]
) -> None:
    world.arguments = arguments
    part = {"host": "n1", "cores": [], "gpus": [], "memory": 0, **forged}
    record = {"uid": "u", "plugins": {"fluence": {"jobs": {"1": part}}}}
    liar = pod_manifest("a", {"cpu": "4"}, nodeName="n1", annotations={HELD: json.dumps(record)})
    liar["metadata"]["uid"] = "u"
    await world.place(node_manifest("n1"), liar, pod_manifest("b", {"cpu": "1"}))
    assert world.pod("b")["node"] is None
    free = world.plugin.live.free_on("n1", (), world.plugin._loads.load_on("n1", (), ()))
    assert free is not None
    assert free[0] == 0


async def test_an_amount_that_no_host_can_have_is_refused_by_name(world: World) -> None:
    world.arguments = MILLICORES
    await world.place(node_manifest("n1"), pod_manifest("a", {"cpu": "5M"}), pod_manifest("b", {"memory": "5P"}))
    assert all("the pod requests more than 4294967295 millicores or MiB" in world.pod(name)["reason"] for name in "ab")


def test_the_error_for_a_wrong_argument_has_its_path() -> None:
    with pytest.raises(FluenceError, match=r"gpuResources\[1\]: 'cpu' is not a valid GPU resource"):
        FakeCluster().use(FluencePlugin, {"gpuResources": [NVIDIA, "cpu"]}).add(node("n1"), pod("p")).schedule()
