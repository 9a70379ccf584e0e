"""Virtual resources that change while pods hold them: pods keep their allocations, and new resources are available."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.errors import GraphError
from fluence_plugins.fluence.plugin import FluencePlugin
from fluence_plugins.resources.config import load_resources
from session_scheduler.base.clock import StoppedClock
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.model.objects import KubeObject, Node, Pod
from session_scheduler.registry.registry import Registry

from .conftest import World, device, gang, node, pod
from .test_changes import arrives, change, shares

TWO = "resources: [{type: qpu, name: a}, {type: qpu, name: b}]"
OFFERS = {f"fluxion.flux-framework.org/{kind}": "9" for kind in ("qpu", "qubit", "fpga", "farm")}


def set_resources(world: World, text: str) -> None:
    world.plugin.set_resources(load_resources(text, "resources.yaml"))


def jobids(world: World) -> dict[str, set[int]]:
    """The jobids of each pod's allocations."""
    tasks = world.scheduler.cache.tasks
    return {tasks[uid].name: set(share) for uid, share in world.plugin.live.holdings.shares.items()}


def allocated(world: World) -> set[str]:
    """The virtual vertices that the matcher has allocated."""
    found = world.plugin.live.matcher.find("sched-now=allocated")
    paths = {
        vertex["metadata"]["paths"]["containment"] for vertex in (found or {"graph": {"nodes": []}})["graph"]["nodes"]
    }
    return {path for path in paths if path in world.plugin.live.graph.virtual}


async def start(world: World, text: str, *objects: dict[str, Any]) -> None:
    (world._folder / "resources.yaml").write_text(text)
    await world.place(node("n1", **OFFERS), node("n2", **OFFERS), *objects)


async def placed(world: World, name: str) -> bool:
    return bool((await world.live_pod(name)).spec.node_name)


@pytest.mark.parametrize(
    "text",
    [
        "resources: [{type: qpu, name: a, attributes: {region: east}}, {type: qpu, name: b}]",
        "resources: [{type: qpu, name: b}, {type: qpu, name: new}, {type: qpu, name: a}]",
        "resources: [{type: qpu, name: a, with: [{type: qubit, count: 4}]}, {type: qpu, name: b}]",
        "resources: [{type: qpu, name: a, status: down}, {type: qpu, name: b, status: down}]",
    ],
)
async def test_an_allocated_device_keeps_its_jobid_through_changes(world: World, text: str) -> None:
    await start(world, TWO, pod("p", device("qpu")), pod("q", device("qpu")))
    before = shares(world), jobids(world)
    set_resources(world, text)
    assert (shares(world), jobids(world)) == before
    assert {"/cluster/a", "/cluster/b"} <= allocated(world)
    assert world.plugin.live.holdings.missing == {}


async def test_a_gang_keeps_one_allocation_when_a_part_of_it_changes(world: World) -> None:
    await start(world, "resources: [{type: qpu, name: r, count: 4}]", gang("g", 3),
                *(pod(f"g{i}", device("qpu"), group="g") for i in range(3)))  # fmt: skip
    before = shares(world), jobids(world)
    devices = {path for held in before[0].values() for path in held if "/r" in path}
    for text in (
        "resources: [{type: qpu, name: r, count: 4, attributes: {x: y}}]",
        "resources: [{type: qpu, name: r, count: 5, attributes: {x: y}}]",
    ):
        set_resources(world, text)
        assert (shares(world), jobids(world)) == before
        assert allocated(world) == devices


async def test_a_gang_keeps_one_allocation_when_a_tree_changes_or_is_absent_for_a_while(world: World) -> None:
    trees = "resources: [{type: qpu, name: a}, {type: qpu, name: b}, {type: qpu, name: c}]"
    await start(world, trees, gang("g", 3), *(pod(f"g{i}", device("qpu"), group="g") for i in range(3)))
    before = shares(world), jobids(world)
    assert len({jobid for held in before[1].values() for jobid in held}) == 2, (
        "expected one jobid for the hosts and one for the devices"
    )
    for text in (
        trees.replace("name: b", "name: b, attributes: {x: y}"),
        trees.replace("{type: qpu, name: b}, ", ""),
        trees,
    ):
        set_resources(world, text)
        assert jobids(world).keys() == before[1].keys()
    assert (shares(world), jobids(world)) == before
    assert allocated(world) == {"/cluster/a", "/cluster/b", "/cluster/c"}


async def test_a_removed_device_is_missing_and_regains_its_jobid_when_it_is_back(world: World) -> None:
    await start(world, TWO, pod("p", device("qpu")), pod("q", device("qpu")))
    before = shares(world), jobids(world)
    set_resources(world, "resources: [{type: qpu, name: c}]")
    assert [len(parts) for parts in world.plugin.live.holdings.missing.values()] == [1, 1]
    assert all(not any(path in ("/cluster/a", "/cluster/b") for path in held) for held in shares(world).values())
    set_resources(world, TWO)
    assert (shares(world), jobids(world)) == before
    assert world.plugin.live.holdings.missing == {}
    await arrives(world, pod("thief", device("qpu")))
    assert not await placed(world, "thief")


async def test_the_holder_of_a_device_keeps_it_when_a_missing_part_returns(world: World) -> None:
    whole = "resources: [{type: qpu, name: a, with: [{type: qubit, count: 2}]}]"
    await start(world, whole, pod("p", device("qubit")))
    set_resources(world, "resources: [{type: qpu, name: a}]")
    await arrives(world, pod("q", device("qpu")))
    assert await placed(world, "q")
    set_resources(world, whole)
    assert "/cluster/a" in shares(world)["q"]
    assert len(world.plugin.live.holdings.missing) == 1


async def test_a_new_type_is_available_and_a_removed_one_unknown(world: World) -> None:
    await start(world, TWO, pod("p", device("fpga")))
    assert "no resource tree has type" in world.pod("p")["reason"]
    set_resources(world, "resources: [{type: fpga, name: f}]")
    world.scheduler.queue.plugin_changed("fluence")
    world.advance(60)
    await world.scheduler.cycle()
    assert await placed(world, "p")
    await arrives(world, pod("q", device("qpu")))
    group = next(key for key in world.scheduler.outcomes if key.endswith("q"))
    assert any("no resource tree has type" in reason for reason in world.scheduler.outcomes[group].reasons.values())


async def test_a_tree_moves_below_a_node_and_back(world: World) -> None:
    await start(world, TWO)
    set_resources(world, "resources: [{type: qpu, name: a, parent: n1}, {type: qpu, name: b, parent: n9}]")
    assert set(world.plugin.live.graph.virtual) == {"/cluster/n1/a"}
    await change(world, "n1", "3")
    assert set(world.plugin.live.graph.virtual) == {"/cluster/n1/a"}
    set_resources(world, TWO)
    assert set(world.plugin.live.graph.virtual) == {"/cluster/a", "/cluster/b"}
    await arrives(world, pod("p", device("qpu", 1)))
    assert await placed(world, "p")


async def test_a_tree_with_the_name_of_a_node_changes_nothing(world: World) -> None:
    await start(world, TWO, pod("p", device("qpu")))
    before = shares(world), set(world.plugin.live.graph.virtual)
    for text in ("resources: [{type: qpu, name: n2}]", "resources: [{type: qpu, name: memory, parent: n1}]"):
        with pytest.raises(GraphError):
            set_resources(world, text)
        assert (shares(world), set(world.plugin.live.graph.virtual)) == before


async def test_a_node_excluded_by_a_trees_name_is_added_when_the_tree_is_removed(world: World) -> None:
    await start(world, TWO)
    await change(world, "a", "4")
    assert "a" not in world.plugin.live.graph.host_ranks
    set_resources(world, "resources: [{type: qpu, name: b}]")
    assert "a" in world.plugin.live.graph.host_ranks


async def test_a_change_of_resources_keeps_the_foreign_load(world: World) -> None:
    foreign = pod("f", {"cpu": "3"}, schedulerName="other", nodeName="n1")
    await start(world, "resources: [{type: qpu, name: a, parent: n1}]", foreign, pod("p", device("qpu")))
    free = world.free_cores()
    for text in (TWO, "", "resources: [{type: qpu, name: a, parent: n1, attributes: {x: y}}]"):
        set_resources(world, text)
        assert world.free_cores() == free


async def test_a_replica_reads_a_changed_file_before_it_recovers_allocations(
    world: World,
) -> None:
    await start(world, TWO, pod("p", device("qpu")))
    before = shares(world), jobids(world)
    file, config = world._folder / "resources.yaml", world.config()
    file.write_text("resources: [{type: fpga, name: f}]")
    calls = Registry(BUILTIN).load_calls(config)
    file.write_text(TWO)
    objects: list[KubeObject] = [
        *(await world.scheduler.cluster.list(Node)).items,
        *(await world.scheduler.cluster.list(Pod)).items,
    ]
    world.scheduler = Scheduler(MemoryCluster(objects), config, calls, StoppedClock())
    await world.scheduler.start()
    assert (shares(world), jobids(world)) == before
    assert world.plugin.drift == {"unheld": 0, "ended": 0}


async def test_drift_counts_pods_unknown_to_the_graph_and_allocations_without_a_pod(world: World) -> None:
    await start(world, TWO, pod("p", device("qpu")), pod("q"))
    assert world.plugin.drift == {"unheld": 0, "ended": 0}
    uids = {task.name: task.uid for task in world.scheduler.cache.tasks.values()}
    held = world.plugin.live.holdings.shares[uids["q"]]
    world.plugin.live.allocations.free(uids["q"])
    world.plugin.live.allocations.replay({"ended": held})
    await world.scheduler.event_handlers.apply("MODIFIED", await world.live_pod("q"))
    await change(world, "n1", "5")
    await change(world, "n2", "5")
    assert world.plugin.drift == {"unheld": 1, "ended": 1}


# ------------------------------------------------------------------ devices that are down


async def test_a_device_that_is_down_is_not_allocated_and_the_reason_names_it(world: World) -> None:
    await start(world, "resources: [{type: qpu, name: a, status: down}, {type: qpu, name: b}]",
                pod("p", device("qpu")), pod("q", device("qpu")), pod("r", device("qpu", 2)))  # fmt: skip
    held = shares(world)
    assert [sorted(path for path in held[name] if "n" not in path) for name in sorted(held)] == [["/cluster/b"]]
    refused = next(world.pod(name)["reason"] for name in "pq" if world.pod(name)["node"] is None)
    assert "the pod requests 1 qpu, and 0 of 1 is free (1 more is down in the resources file)" in refused
    assert (
        "the pod requests 2 qpus, and 0 of 1 is free (1 more is down in the resources file)" in world.pod("r")["reason"]
    )


async def test_a_device_below_one_that_is_down_is_down(world: World) -> None:
    tree = "resources: [{type: qdevice, name: d, status: %s, with: [{type: qpu, status: up, with: [{type: qubit}]}]}]"
    await start(world, tree % "down", pod("p", device("qubit")))
    assert "every qubit is down in the resources file: qubit0 of d" in world.pod("p")["reason"]
    set_resources(world, tree % "up")
    world.scheduler.queue.plugin_changed("fluence")
    world.advance(60)
    await world.scheduler.cycle()
    assert await placed(world, "p")


async def test_the_sibling_and_the_parent_of_a_device_that_is_down_are_available(world: World) -> None:
    await start(
        world,
        "resources: [{type: qpu, name: d, with: [{type: qubit, name: x, status: down}, {type: qubit, name: y}]}]",
        pod("p", device("qubit")),
    )
    assert "/cluster/d/y" in shares(world)["p"]
    await world.scheduler.event_handlers.apply("DELETED", await world.live_pod("p"))
    await arrives(world, pod("q", device("qpu")))
    assert "/cluster/d" in shares(world)["q"]


async def test_a_freed_device_that_is_down_is_available_only_when_it_is_up(world: World) -> None:
    await start(world, "resources: [{type: qpu, name: a}]", pod("p", device("qpu")))
    set_resources(world, "resources: [{type: qpu, name: a, status: down}]")
    await world.scheduler.event_handlers.apply("DELETED", await world.live_pod("p"))
    await arrives(world, pod("q", device("qpu")))
    assert not await placed(world, "q")
    set_resources(world, "resources: [{type: qpu, name: a}]")
    world.scheduler.queue.plugin_changed("fluence")
    world.advance(60)
    await world.scheduler.cycle()
    assert await placed(world, "q")


async def test_a_restart_recovers_an_allocated_device_that_is_down(world: World) -> None:
    await start(world, TWO, pod("p", device("qpu")))
    before = shares(world), jobids(world)
    (world._folder / "resources.yaml").write_text(
        "resources: [{type: qpu, name: a, status: down}, {type: qpu, name: b, status: down}]"
    )
    await world.restarted()
    assert (shares(world), jobids(world)) == before


async def test_foreign_load_counts_as_soon_as_its_node_is_modelled(world: World) -> None:
    await start(world, "resources: [{type: qpu, name: a}, {type: qpu, name: n3}]")
    await change(world, "n3", "4")
    foreign = pod("f", {"cpu": "3"}, nodeName="n3")
    foreign["spec"]["schedulerName"] = "other"
    await arrives(world, foreign)
    assert world.free_cores() == 8
    set_resources(world, "resources: [{type: qpu, name: a}]")
    assert world.free_cores() == 9


async def test_removing_several_trees_keeps_one_with_the_same_name_prefix(world: World) -> None:
    trees = ", ".join(f"{{type: qpu, name: {name}, with: [{{type: qubit}}]}}" for name in ("a", "ab", "b"))
    await start(world, f"resources: [{trees}]", *(pod(name, device("qubit")) for name in "xyz"))
    set_resources(world, "resources: [{type: qpu, name: ab, with: [{type: qubit}]}]")
    assert sum("/cluster/ab/qubit0" in held for held in shares(world).values()) == 1
    assert [len(parts) for parts in world.plugin.live.holdings.missing.values()] == [1, 1]
    assert "/cluster/ab/qubit0" in allocated(world)
    set_resources(world, f"resources: [{trees}]")
    assert world.plugin.live.holdings.missing == {}
    assert {f"/cluster/{name}/qubit0" for name in ("a", "ab", "b")} <= allocated(world)


def standby(tmp_path: Path) -> tuple[FluencePlugin, Path]:
    """A plugin in standby, and its file."""
    file = tmp_path / "resources.yaml"
    file.write_text("resources: [{type: qpu, name: aurora}]")
    plugin = FluencePlugin(FluenceArguments(resources=str(file)))
    plugin.on_nodes_changed([])
    return plugin, file


def test_a_replica_that_stood_by_reads_the_file_again_before_it_recovers(tmp_path: Path) -> None:
    plugin, file = standby(tmp_path)
    file.write_text("resources: [{type: annealer, name: borealis}]")
    assert set(plugin.offered()) == {"fluxion.flux-framework.org/qpu"}
    plugin.recover([])
    assert set(plugin.offered()) == {"fluxion.flux-framework.org/annealer"}


# ---------------------------------------------------------------------- names of this scheduler alone


def named(world: World) -> set[str]:
    return set(world.plugin.exclusive_names()["resource"])


async def test_a_removed_resource_stays_this_schedulers_while_a_pod_holds_it(world: World) -> None:
    await start(world, TWO, *(pod(name, device("qpu")) for name in "pq"))
    (holder,) = (name for name, held in shares(world).items() if "/cluster/a" in held)
    assert named(world) == {"a", "b"}
    set_resources(world, "resources: [{type: qpu, name: b}]")
    assert named(world) == {"a", "b"}
    (world._folder / "resources.yaml").write_text("resources: [{type: qpu, name: b}]")
    await world.restarted()
    assert named(world) == {"a", "b"}
    await world.scheduler.event_handlers.apply("DELETED", await world.live_pod(holder))
    assert named(world) == {"b"}


async def test_a_removed_resource_is_named_as_its_file_did(world: World) -> None:
    """The vertices have numbers; resources of nodes, and those inside that had no name, are not named."""
    trees = ("{type: farm, name: f, with: [{type: qpu, name: inside}, {type: qubit}]}, {type: fpga, count: 2}, "
             "{type: fpga, name: local, parent: n1}")  # fmt: skip
    await start(world, f"resources: [{trees}]", pod("p", device("qpu") | device("qubit")),
                *(pod(f"p{number}", device("fpga")) for number in range(3)))  # fmt: skip
    assert len(shares(world)) == 4
    assert named(world) == {"f", "inside", "fpga"}
    set_resources(world, "")
    assert named(world) == {"f", "inside", "fpga", "fpga0", "fpga1"}
    set_resources(world, f"resources: [{trees}]")
    assert named(world) == {"f", "inside", "fpga"}


def test_a_replica_that_has_named_its_resources_recovers_with_these(tmp_path: Path) -> None:
    """No check has seen those that the file has by then."""
    plugin, file = standby(tmp_path)
    file.write_text("resources: [{type: qpu, name: borealis}]")
    assert plugin.exclusive_names() == {"resource": {"borealis"}}
    file.write_text("resources: [{type: qpu, name: canopus}]")
    plugin.recover([])
    assert plugin.exclusive_names() == {"resource": {"borealis"}}


def test_a_replica_that_has_recovered_while_it_stood_by_reads_the_file_again_before_it_leads(tmp_path: Path) -> None:
    plugin, file = standby(tmp_path)
    plugin.recover([])
    assert plugin.exclusive_names() == {"resource": {"aurora"}}
    file.write_text("resources: [{type: qpu, name: borealis}]")
    assert plugin.exclusive_names() == {"resource": {"borealis"}}
