"""The environment variables, and the logs that show each step of a match."""

from __future__ import annotations

import logging

import pytest
from tests.tools.real_engine import use

from session_scheduler.errors import InputError

from .conftest import RESOURCES, World, device, node, pod


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "fluence"]


async def test_the_logs_show_devices_graph_jobspec_allocation_placement_and_cancel(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "fluence")
    await world.place(node("n1"), pod("q", device("qpu")))
    await world.scheduler.event_handlers.apply("DELETED", await world.live_pod("q"))
    found = lines(caplog)
    assert all(line.startswith("[fluence] ") for line in found)
    assert "[fluence] known devices: licence, qdevice, qpu, qubit" in found
    for start in ("graph {", "jobspec {", "allocation 1: {", "placement 1: ", "Cancel jobid: 1", "Cancel jobid: 2"):
        assert any(line.startswith(f"[fluence] {start}") for line in found), start


@pytest.mark.parametrize(("counted", "lines_found"), [({}, 1), ({"cpuAccounting": "cores"}, 0)])
async def test_with_the_library_the_log_says_that_auto_means_cores(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    counted: dict[str, str],
    lines_found: int,
) -> None:
    use("stand-in", monkeypatch)
    caplog.set_level(logging.INFO, "fluence")
    world.arguments |= {"engine": "reapi", "cpuAccounting": "auto"} | counted
    await world.place(node("n1", "1"), *(pod(name, {"cpu": "100m"}) for name in "ab"))
    assert world.result["summary"]["scheduled"] == 1
    text = "[fluence] `cpuAccounting: auto` means cores with `engine: reapi`, which has no divisible vertices"
    assert lines(caplog).count(text) == lines_found
    caplog.clear()
    del world.arguments["engine"]
    await world.place(node("n1"))
    assert text not in lines(caplog)


async def test_at_level_info_the_graph_is_not_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fluence")
    await world.place(node("n1"), pod("p"))
    assert not any(line.startswith("[fluence] graph") for line in lines(caplog))


async def test_the_environment_names_the_resources_file(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    file = f"{tmp_path}/env.yaml"
    with open(file, "w") as out:  # noqa: ASYNC230 (a test's own small file)
        out.write(RESOURCES)
    monkeypatch.setenv("FLUENCE_RESOURCES", file)
    world.arguments["resources"] = None
    await world.place(node("n1"), pod("q", device("qpu")))
    assert world.pod("q")["backend"] in ("aurora", "borealis")


async def test_the_argument_sets_the_match_policy_before_the_environment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUENCE_MATCH_POLICY", "bogus")
    with pytest.raises(InputError, match=r"FLUENCE_MATCH_POLICY.*bogus"):
        await world.place(node("n1"))
    world.arguments |= {"matchPolicy": "low", "cpuAccounting": "cores"}
    await world.place(node("n1"), pod("p"))
    held = next(iter(world.plugin.live.holdings.shares.values()))
    assert held[1].hosts[0].cores == (0,)


async def test_simulated_nodes_advertise_the_capacity(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUENCE_RESOURCE_CAPACITY", "1")
    await world.place(node("n1"), pod("two", device("qubit", 2)), pod("one", device("qubit")))
    assert world.pod("one")["node"] == "n1"
    assert "Insufficient fluxion.flux-framework.org/qubit" in world.pod("two")["reason"]


async def test_a_node_that_advertises_a_type_itself_is_unchanged(world: World) -> None:
    own = node("n1", **{"fluxion.flux-framework.org/qubit": "3"})
    await world.place(own, pod("q", device("qpu")), pod("b", device("qubit", 2)))
    assert world.pod("q")["node"] is None
    assert world.pod("b")["node"] == "n1"
