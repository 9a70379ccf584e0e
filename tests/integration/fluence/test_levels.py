"""Groups within a rack, or spread over several racks, in a whole scheduler on a cluster in memory."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from fluence_plugins.fluence.plugin import FluencePlugin
from session_scheduler.model.objects import PodGroup
from session_scheduler.testing import FakeCluster, builders

from .conftest import World, device, gang, node, pod

WITHIN = "fluence.flux-framework.org/within"
SPREAD = "fluence.flux-framework.org/spread-over"
LEVELS = [{"type": "zone", "label": "topology.kubernetes.io/zone"}, {"type": "rack", "label": "example.com/rack"}]


@pytest.fixture
def racks(world: World) -> World:
    world.arguments["topology"] = LEVELS
    return world


def at(name: str, rack: str | None, zone: str | None = "a", cpu: str = "4", **more: str) -> dict[str, Any]:
    made = node(name, cpu, **more)
    made["metadata"]["labels"] = {
        level["label"]: value for level, value in zip(LEVELS, (zone, rack), strict=True) if value is not None
    }
    return made


def asking(name: str, count: int, **annotations: str) -> dict[str, Any]:
    made = gang(name, count)
    made["metadata"]["annotations"] = {f"fluence.flux-framework.org/{key}": value for key, value in annotations.items()}
    return made


def spread(name: str, count: int, over: str) -> dict[str, Any]:
    return asking(name, count, **{"spread-over": over})


def members(group: str, count: int, cpu: str = "1", **more: Any) -> list[dict[str, Any]]:
    return [pod(f"{group}-{i}", {"cpu": cpu, **more}, group=group) for i in range(count)]


def where(world: World, racks: dict[str, str], group: str) -> Counter[str | None]:
    """The number of a group's members in each rack; None: on no node."""
    return Counter(racks.get(one["node"]) for one in world.result["pods"] if one["name"].startswith(f"{group}-"))


def nodes_of(plugin: FluencePlugin) -> dict[str, list[str]]:
    """The path of each vertex of the graph, by its type."""
    found: dict[str, list[str]] = {}
    for vertex in plugin.live.matcher.graph()["graph"]["nodes"]:
        data = vertex["metadata"]
        found.setdefault(data["type"], []).append(data["paths"]["containment"])
    return found


async def test_labels_become_levels_with_their_hosts_below(racks: World) -> None:
    await racks.place(at("n1", "1"), at("n2", "1", "b"), at("n3", None), at("n4", "9", None), node("n5"))
    found = nodes_of(racks.plugin)
    assert sorted(path for path in found["node"] if path.rpartition("/")[2] in ("n1", "n2", "n3", "n4", "n5")) == [
        "/cluster/n5", "/cluster/rack=9/n4", "/cluster/zone=a/n3", "/cluster/zone=a/rack=1/n1",
        "/cluster/zone=b/rack=1/n2",
    ]  # fmt: skip
    assert len(found["rack"]) == 3, "expected two racks for one name in two zones"


async def test_a_gang_stays_within_one_rack(racks: World) -> None:
    of = {"n1": "1", "n2": "1", "n3": "2", "n4": "2", "n5": "1 of b"}
    await racks.place(
        at("n1", "1", cpu="3"), at("n2", "1", cpu="3"), at("n3", "2"), at("n4", "2"), at("n5", "1", "b"),
        asking("g", 8, within="rack"), *members("g", 8),
    )  # fmt: skip
    assert where(racks, of, "g") == {"2": 8}


async def test_if_no_rack_fits_the_reason_names_the_one_that_lacks_the_least(racks: World) -> None:
    await racks.place(
        at("n1", "rack-1"), at("n2", "rack-2"), at("n3", "rack-2", cpu="2"), asking("g", 8, within="rack"),
        *members("g", 8),
    )  # fmt: skip
    assert where(racks, {}, "g") == {None: 8}
    assert racks.pod("g-0")["reason"].startswith(
        "no rack has room for 8 pods; in rack-2 of zone a, 6 of 8 pods fit: 8 pods request 8 cores, and 2 candidate "
        "nodes have 6 even when empty."
    )


async def test_the_reason_counts_whole_cores_as_the_graph_does(racks: World) -> None:
    """Each pod uses a whole core of the graph, even if it requests less."""
    racks.arguments["cpuAccounting"] = "cores"
    await racks.place(at("n1", "r1", cpu="3"), asking("g", 4, within="rack"), *members("g", 4, cpu="100m"))
    assert racks.pod("g-0")["reason"].startswith(
        "no rack has room for 4 pods; in rack r1 of zone a, 3 of 4 pods fit: 4 pods request 4 cores (a request of 100m "
        "counts as 1 whole core with cpuAccounting: cores), and the only candidate node has 3 even when empty."
    )
    assert racks.plugin.live.holdings.shares == {}


async def test_if_the_graph_refuses_the_best_rack_another_one_is_tried(racks: World) -> None:
    tiny = members("g", 4, cpu="100m")
    await racks.place(at("n1", "1", cpu="3", memory="64Gi"), at("n2", "2", memory="8Gi"),
                      asking("g", 4, within="rack"), *tiny)  # fmt: skip
    assert where(racks, {"n1": "1", "n2": "2"}, "g") == {"2": 4}


async def test_classes_and_devices_of_a_gang_are_placed_in_one_rack(racks: World) -> None:
    of = {"n1": "1", "n2": "1", "n3": "2", "n4": "2"}
    gpu = {"nvidia.com/gpu": "2"}
    leader = pod("g-leader", {"cpu": "3", "nvidia.com/gpu": "1", **device("qpu")}, group="g")
    await racks.place(
        at("n1", "1", cpu="8", **gpu), at("n2", "1", cpu="1"), at("n3", "2", cpu="4", **gpu), at("n4", "2", cpu="8"),
        asking("g", 9, within="rack"), leader, *members("g", 8),
    )  # fmt: skip
    assert where(racks, of, "g") == {"2": 9}
    assert racks.pod("g-leader")["backend"] in ("aurora", "borealis")


async def test_a_device_below_a_node_in_a_rack_is_found_and_named_without_its_rack(racks: World) -> None:
    (racks._folder / "resources.yaml").write_text("resources: [{type: fpga, name: board, parent: n1}]")
    await racks.place(at("n1", "1"), asking("g", 2, within="rack"), *members("g", 2), pod("p", device("fpga")))
    (share,) = (s for uid, s in racks.plugin.live.holdings.shares.items() if any(part.devices for part in s.values()))
    assert [device.path for part in share.values() for device in part.devices] == ["/cluster/n1/board"]


async def test_later_members_join_the_rack_of_their_group(racks: World) -> None:
    of = {"n1": "1", "n2": "2"}
    await racks.place(at("n1", "1", cpu="3"), at("n2", "2", cpu="2"), asking("g", 2, within="rack"), *members("g", 5))
    assert where(racks, of, "g") == {"1": 3, None: 2}
    reason = next(one["reason"] for one in racks.result["pods"] if one["node"] is None)
    assert reason


async def test_pods_without_a_pod_group_use_their_own_annotations(racks: World) -> None:
    def member(name: str, within: str) -> dict[str, Any]:
        made = pod(name, {"cpu": "2"}, annotations={"fluence.flux-framework.org/group-size": "2", WITHIN: within})
        made["metadata"]["labels"] = {"fluence.flux-framework.org/group": name.partition("-")[0]}
        return made

    await racks.place(
        at("n1", "1", cpu="2"), at("n2", "2", cpu="4"),
        *(member(f"same-{i}", "rack") for i in range(2)),
        *(member(f"odd-{i}", ("rack", "zone")[i]) for i in range(2)),
    )  # fmt: skip
    assert where(racks, {"n1": "1", "n2": "2"}, "same") == {"2": 2}
    assert racks.pod("odd-0")["reason"] == (
        f"pod default/odd-1: metadata.annotations[{WITHIN}] is 'zone', but that of pod default/odd-0 in the same "
        "group is 'rack'; give all pods of the group the same value"
    )


@pytest.mark.parametrize(
    ("annotations", "says"),
    [
        ({"within": "row"}, f"[{WITHIN}]: unknown level 'row'; known levels: zone, rack"),
        ({"spread-over": "row=2"}, f"[{SPREAD}]: unknown level 'row'; known levels: zone, rack"),
        (
            {"spread-over": "rack=0"},
            f"[{SPREAD}]: expected a level, or a level and a number from 1 to 1000000, such as rack=3, got 'rack=0'; "
            "correct or remove it",
        ),
        ({"spread-over": "rack=٣"}, "such as rack=3, got"),
        ({"spread-over": "rack,zone"}, "such as rack=3, got 'rack,zone'"),
        (
            {"within": "rack", "spread-over": "zone"},
            "a group that must stay within one rack cannot be spread over level zone",
        ),
    ],
)
async def test_an_impossible_constraint_is_refused_with_object_field_and_remedy(
    racks: World, annotations: dict[str, str], says: str
) -> None:
    await racks.place(at("n1", "1"), asking("g", 2, **annotations), *members("g", 2))
    reason = racks.pod("g-0")["reason"]
    assert "PodGroup default/g: metadata.annotations[" in reason
    assert says in reason
    assert racks.pod("g-1")["node"] is None


async def test_without_configured_levels_the_refusal_names_their_argument(world: World) -> None:
    await world.place(at("n1", "1"), asking("g", 2, within="rack"), *members("g", 2), pod("p"))
    assert "known levels: none (set `topology` in the arguments of the plugin fluence)" in world.pod("g-0")["reason"]
    assert world.pod("p")["node"] == "n1"
    assert "rack" not in nodes_of(world.plugin)


async def test_the_constraint_of_the_pod_group_has_the_same_effect(racks: World) -> None:
    """Its label has one value in two zones: a single domain in the core, two domains in the graph."""
    group = gang("g", 4)
    group["spec"]["schedulingConstraints"] = {"topology": [{"key": "example.com/rack"}]}
    await racks.place(at("n1", "1", cpu="2"), at("n2", "1", "b", cpu="2"), group, *members("g", 4))
    assert where(racks, {}, "g") == {None: 4}
    assert racks.pod("g-0")["reason"] == (
        "no rack has room for 4 pods; in rack 1 of zone a, 2 of 4 pods fit: 4 pods request 4 cores, and the only "
        "candidate node has 2 even when empty"
    )


async def test_a_gang_with_anti_affinity_finds_the_rack_with_enough_nodes(racks: World) -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "g"}}}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    pods = [pod(f"g-{i}", group="g", affinity=apart) for i in range(3)]
    for one in pods:
        one["metadata"]["labels"] = {"app": "g"}
    hosts = [
        at("n1", "1", cpu="32"),
        at("n2", "1", cpu="32"),
        at("n3", "2", cpu="2"),
        at("n4", "2", cpu="2"),
        at("n5", "2", cpu="2"),
    ]
    for host in hosts:
        host["metadata"]["labels"]["kubernetes.io/hostname"] = host["metadata"]["name"]
    await racks.place(*hosts, asking("g", 3, within="rack"), *pods)
    assert {one["node"] for one in racks.result["pods"]} == {"n3", "n4", "n5"}


# ------------------------------------------------------------------ spread


async def test_a_group_is_spread_evenly_over_the_requested_number_of_racks(racks: World) -> None:
    of = {"n1": "1", "n2": "2", "n3": "3", "n4": "4"}
    hosts = [at(name, rack, cpu="16") for name, rack in of.items()]
    await racks.place(*hosts, spread("g", 8, "rack=3"), *members("g", 8))
    counts = where(racks, of, "g")
    assert sorted(counts.values()) == [2, 3, 3]


async def test_without_a_number_a_group_is_spread_over_all_racks_that_fit(racks: World) -> None:
    of = {"n1": "1", "n2": "2", "n3": "3", "n4": "4"}
    hosts = [at(name, rack, cpu="0" if name == "n4" else "16") for name, rack in of.items()]
    await racks.place(*hosts, spread("g", 6, "rack"), *members("g", 6))
    assert where(racks, of, "g") == {"1": 2, "2": 2, "3": 2}


async def test_if_even_shares_do_not_fit_the_rest_is_placed_where_it_fits(racks: World) -> None:
    of = {"n1": "1", "n2": "2", "n3": "3"}
    hosts = [at("n1", "1", cpu="1"), at("n2", "2", cpu="2"), at("n3", "3", cpu="9")]
    await racks.place(*hosts, spread("g", 9, "rack=3"), *members("g", 9))
    assert where(racks, of, "g") == {"1": 1, "2": 2, "3": 6}


async def test_a_spread_is_refused_if_too_few_racks_fit(racks: World) -> None:
    await racks.place(at("n1", "1"), at("n2", "2"), at("n3", "3", cpu="0"), spread("g", 4, "rack=3"), *members("g", 4))
    assert where(racks, {}, "g") == {None: 4}
    assert "the group must be spread over 3 racks, but only 2 of 3 have room" in racks.pod("g-0")["reason"]


async def test_a_spread_respects_the_graphs_smaller_capacity(racks: World) -> None:
    """Ten tiny pods: by requests, each rack fits all; by whole cores, two, three and nine."""
    of = {"n1": "1", "n2": "2", "n3": "3"}
    hosts = [at("n1", "1", cpu="2"), at("n2", "2", cpu="3"), at("n3", "3", cpu="9")]
    await racks.place(*hosts, spread("g", 10, "rack=3"), *members("g", 10, cpu="10m"))
    assert where(racks, of, "g") == {"1": 2, "2": 3, "3": 5}


async def test_members_created_one_by_one_are_spread_too(racks: World) -> None:
    of = {"n1": "1", "n2": "2", "n3": "3"}
    hosts = [at("n1", "1", cpu="32"), at("n2", "2"), at("n3", "3")]
    await racks.place(*hosts, spread("g", 1, "rack=3"), *members("g", 6))
    assert where(racks, of, "g") == {"1": 2, "2": 2, "3": 2}


async def test_a_group_is_spread_inside_its_own_domain(racks: World) -> None:
    of = {"n1": "a1", "n2": "a2", "n3": "b1", "n4": "b2"}
    hosts = [at("n1", "1", cpu="16"), at("n2", "2", cpu="1"), at("n3", "1", "b", cpu="2"), at("n4", "2", "b", cpu="2")]
    group = asking("g", 4, within="zone", **{"spread-over": "rack=2"})
    await racks.place(*hosts, group, *members("g", 4))
    counts = where(racks, of, "g")
    assert counts in ({"b1": 2, "b2": 2}, {"a1": 3, "a2": 1})
    assert len(counts) == 2


# ------------------------------------------------------------------ changes


async def test_a_changed_label_moves_the_host_and_keeps_its_allocations(racks: World) -> None:
    (racks._folder / "resources.yaml").write_text("resources: [{type: fpga, name: board, parent: n1}]")
    await racks.place(
        at("n1", "1"), at("n2", "1"), asking("g", 4, within="rack"), *members("g", 4), pod("p", device("fpga"))
    )
    live = racks.plugin.live
    before, jobs = dict(live.holdings.shares), sorted(live.holdings.shares.values(), key=str)
    host = live.loaded.hosts["n1"]
    moved = replace(host, levels=(("zone", "b"), ("rack", "7")))
    live.set_hosts({"n1": moved})
    assert live.holdings.missing == {}
    assert sorted(live.holdings.shares.values(), key=str) == jobs
    assert live.holdings.shares == before
    assert "/cluster/zone=b/rack=7/n1" in nodes_of(racks.plugin)["node"]
    live.set_hosts({"n2": None})
    assert nodes_of(racks.plugin)["rack"] == ["/cluster/zone=b/rack=7"], "expected empty levels to be removed"
    assert nodes_of(racks.plugin)["zone"] == ["/cluster/zone=b"]
    live.set_hosts({"n1": None})
    live.set_hosts({"n1": host})
    assert live.graph.virtual.keys() == {"/cluster/n1/board"}
    assert {uid for uid in before if any(h.name == "n1" for part in before[uid].values() for h in part.hosts)} <= set(
        live.holdings.shares
    )
    for uid in list(live.holdings.shares):
        live.allocations.free(uid)
    assert live.matcher.find("sched-now=allocated") is None


async def test_a_restart_recovers_the_allocations_of_moved_hosts(racks: World) -> None:
    (racks._folder / "resources.yaml").write_text("resources: [{type: fpga, name: board, parent: n1}]")
    await racks.place(
        at("n1", "1"), at("n2", "2"), asking("g", 4, within="rack"), *members("g", 4, "500m"), pod("p", device("fpga"))
    )
    before = racks.plugin.live.holdings.shares
    for levels in ([], LEVELS, LEVELS[:1], LEVELS[1:]):
        racks.arguments["topology"] = levels
        racks.scheduler = await racks.restarted()
        assert racks.plugin.live.holdings.shares == before
        assert racks.plugin.live.holdings.missing == {}


async def test_a_host_named_like_a_backend_is_left_out_in_a_rack_too(racks: World) -> None:
    await racks.place(at("n1", "1"))
    live = racks.plugin.live
    live.set_hosts({"aurora": type(live.loaded.hosts["n1"])("aurora", 2, 0, levels=(("rack", "1"),))})
    assert "aurora" not in live.graph.host_ranks
    assert live.graph.host_ranks.keys() == {"n1"}


@pytest.mark.parametrize("before", ["row", "rack"])
def test_a_change_of_its_pod_group_requeues_a_waiting_group(before: str) -> None:
    group = builders.pod_group("g", 2)

    def asking(within: str | None) -> PodGroup:
        annotations = {} if within is None else {WITHIN: within}
        return replace(group, metadata=replace(group.metadata, annotations=annotations))

    cluster = FakeCluster().use("fluence", {"topology": LEVELS})
    cluster.node("n1", cpu="1", labels={"example.com/rack": "1"}).node("n2", cpu="1", labels={"example.com/rack": "2"})
    cluster.add(asking(before)).pods(2, prefix="g", group="g", cpu="1").schedule()
    assert cluster.node_of("g-0") is None
    cluster.add(asking(None)).schedule().assert_all_bound()
