"""Faults around the scheduler: the API server, its history, its watches, nodes, the clock."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from ..harness import ControlPlane
from ..invariants import is_bound, key_of, plan_of
from ..proxy import Fault
from ..scheduler_process import SHIFTED_CLOCK, Ended
from .world import LEASE, SIZE, World

_JUMPS = (3600.0, -7200.0, 1e8, -1e8, 0.0)
"""Offsets of the wall clock in seconds, applied one after the other."""
_ABOUT = 60.0
_EXIT = 10.0
"""Seconds within which a scheduler ends after SIGTERM."""


def api_server_restarted(plane: ControlPlane, folder: Path, number: int, seconds: float) -> None:
    """The API server dies after the `number`th write, and stays away for so long; the scheduler keeps running."""
    with World(plane, folder) as world:
        _begin(world)
        strike = world.proxies[0].at(number, Fault.CALL_AFTER, call=lambda: plane.kill("kube-apiserver"))
        world.schedulers[0].start()
        world.until("the end of the API server", strike.done.is_set)
        try:
            time.sleep(seconds)  # the fault itself
        finally:
            plane.start_api_server()
        world.wait_whole("first")
        world.check("first")
        _again(world)


def history_forgotten(plane: ControlPlane, folder: Path) -> None:
    """While the scheduler is cut off, a gang ends and another comes; then no watch can be resumed."""
    with World(plane, folder) as world:
        _begin(world)
        scheduler, proxy = world.schedulers[0], world.proxies[0]
        scheduler.start()
        world.wait_whole("first")
        proxy.refuse()
        world.delete_gang("first")
        world.create_gang("second")
        plane.kill("kube-apiserver")
        try:
            plane.compact()
        finally:
            plane.start_api_server()
        proxy.accept()
        world.wait_whole("second")
        world.check("second")


def watches_cut(plane: ControlPlane, folder: Path, seed: int, gangs: int) -> None:
    """Watches break all the time; gangs come and go on the same nodes."""
    with World(plane, folder) as world:
        world.add_room()
        scheduler = world.new_scheduler()
        scheduler.start()
        scheduler.wait_ready()
        world.proxies[0].cut_watches_at_random(seed, mean_seconds=0.1)
        for number in range(gangs):
            name = f"gang-{number}"
            world.create_gang(name)
            world.wait_whole(name)
            world.check(name)
            (world.delete_gang if number % 2 else lambda name: world.finish(world.members(name)))(name)
        assert world.proxies[0].watches_cut > gangs


def node_lost_before_binds(plane: ControlPlane, folder: Path, number: int) -> None:
    """A node of the plan is removed after the `number`th write: after the plan (1), or during the bindings.

    Pods that were bound to it are deleted and replaced, as their controllers would do.
    """
    with World(plane, folder) as world:
        _begin(world)
        world.add_node()

        def lose() -> None:
            plan = plan_of(world.group("first"))
            assert plan is not None
            world.delete_node(sorted(pod["node"] for pod in plan.pods.values())[0])

        strike = world.proxies[0].at(number, Fault.CALL_AFTER, call=lose, cut=False)
        world.schedulers[0].start()
        world.until("the end of the node", strike.done.is_set)
        _whole_on_nodes_that_exist(world)
        world.check()
        world.add_node()  # replace it: the next gang needs four nodes
        _again(world)


def node_lost_after_binds(plane: ControlPlane, folder: Path) -> None:
    """The node of a running gang is removed: its pods are replaced and placed beside the others, which stay."""
    with World(plane, folder) as world:
        _begin(world)
        world.schedulers[0].start()
        world.wait_whole("first")
        before = world.places("first")
        lost = sorted(set(before.values()))[0]
        world.delete_node(lost)
        world.add_node()
        _whole_on_nodes_that_exist(world)
        world.check()
        after = world.places("first")
        assert {name: node for name, node in before.items() if node != lost}.items() <= after.items()
        _again(world)


def clock_jumps(plane: ControlPlane, folder: Path) -> None:
    """The wall clock jumps while gangs come and go; the only replica leads all the time, and does not end."""
    clock = folder / "clock"
    clock.write_text("0")
    with World(plane, folder) as world:
        world.settings = replace(world.settings, election=True, script=(SHIFTED_CLOCK, clock))
        world.add_room()
        scheduler = world.new_scheduler()
        scheduler.start()
        scheduler.wait_ready()
        for number, jump in enumerate(_JUMPS):
            name = f"gang-{number}"
            world.create_gang(name)
            clock.write_text(str(jump))
            world.until("a lease of that time", lambda jump=jump: abs(_lease_is_off(plane) - jump) < _ABOUT)  # type: ignore[misc]
            world.wait_whole(name)
            world.check(name)
            world.delete_gang(name)
        assert scheduler.running


def stopped_politely(plane: ControlPlane, folder: Path, number: int) -> Ended:
    """SIGTERM at the `number`th write: the scheduler ends in time, and leaves the gang complete or unbound."""
    with World(plane, folder) as world:
        _begin(world)
        world.keep_alive(False)
        scheduler = world.schedulers[0]
        ended: list[Ended] = []
        asked = threading.Thread(target=lambda: ended.append(scheduler.terminate()))
        strike = world.proxies[0].at(number, Fault.CALL_BEFORE, call=asked.start, cut=False)
        scheduler.start()
        world.until("the write", strike.struck.is_set)
        asked.join()
        assert ended, "it did not end"
        assert ended[0].status == 0, f"status {ended[0].status}"
        assert ended[0].seconds < _EXIT
        world.check_now()
        scheduler.start()
        world.wait_whole("first")
        world.check("first")
        _again(world)
        return ended[0]


# ---------------------------------------------------------------------- helpers


def _lease_is_off(plane: ControlPlane) -> float:
    """Return the error of the leader's clock in seconds, by what it wrote."""
    renewed = plane.request("GET", LEASE)[1]["spec"]["renewTime"]
    return (datetime.fromisoformat(renewed) - datetime.now(UTC)).total_seconds()


def _begin(world: World) -> None:
    world.add_room()
    world.create_gang("first")
    world.new_scheduler()


def _again(world: World) -> None:
    """The first gang ends, and another one fits on the same nodes."""
    world.finish(world.members("first"))
    world.create_gang("again")
    world.wait_whole("again")
    world.check("again")


def _whole_on_nodes_that_exist(world: World) -> None:
    """Act as the controllers: delete and replace pods of lost nodes until the gang is complete on other nodes."""

    def whole() -> bool:
        members = world.members("first")
        stranded = [pod for pod in members if is_bound(pod) and pod["spec"]["nodeName"] in world.lost_nodes]
        for pod in stranded:
            world.delete_pod(pod["metadata"]["name"])
            world.create_pod(pod["metadata"]["name"], group="first")
        return not stranded and sum(map(is_bound, members)) == SIZE

    try:
        world.until("gang first, whole on nodes that exist,", whole)
    except TimeoutError as error:
        error.add_note("\n".join(f"{key_of(pod)}: {pod['spec'].get('nodeName')}" for pod in world.members("first")))
        raise
    world.wait_whole("first")


SCENARIOS: dict[str, tuple[Callable[[ControlPlane, Path, random.Random], object], int]] = {
    "API server away for 30 s": (lambda plane, folder, chance: api_server_restarted(
        plane, folder, chance.randint(1, 10), 30.0), 4),
    "history forgotten": (lambda plane, folder, chance: history_forgotten(plane, folder), 3),
    "watches cut": (lambda plane, folder, chance: watches_cut(plane, folder, chance.randrange(1 << 30), 10), 3),
    "node lost before binds": (lambda plane, folder, chance: node_lost_before_binds(
        plane, folder, chance.randint(1, 9)), 10),
    "node lost after binds": (lambda plane, folder, chance: node_lost_after_binds(plane, folder), 3),
    "clock jumps": (lambda plane, folder, chance: clock_jumps(plane, folder), 2),
    "SIGTERM": (lambda plane, folder, chance: stopped_politely(plane, folder, chance.randint(1, 10)), 10),
}  # fmt: skip
"""The scenarios by name, and how often `make faults` runs each."""
