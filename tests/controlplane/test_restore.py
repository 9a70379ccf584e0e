"""Recovery after a crash: what a scheduler finds when it starts, and does before it places anything else.

Each test kills the scheduler at an exact write. At the restart there is a competitor: a pod of higher priority than the
gang that would take every place that is not reserved.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import pytest

from ..tools.real_programs import report_on_failure
from .faults.crash import FIRST, Crash, Where, acknowledgements, binds, plans, touches
from .faults.world import SIZE, World
from .harness import ControlPlane
from .invariants import HELD, PLAN, Manifest, Plan, condition, held_jobs, is_bound, plan_of
from .proxy import Fault

BOUND = 3
"""Number of pods that are bound, of eight."""


def of_a_gang(world: World) -> Crash:
    """A gang, nodes for exactly that gang, and a scheduler that the test kills."""
    crash = Crash(world)
    world.add_room()
    world.create_gang("gang")
    return crash


@pytest.fixture(scope="session")
def _priority(fault_plane: ControlPlane) -> None:
    fault_plane.create(FIRST)


@pytest.fixture
def world(fault_plane: ControlPlane, tmp_path: Path, _priority: None) -> Iterator[World]:
    with World(fault_plane, tmp_path) as world:
        yield world


@pytest.fixture
def crash(world: World) -> Crash:
    return of_a_gang(world)


@pytest.fixture(autouse=True)
def _told(request: pytest.FixtureRequest, world: World) -> Iterator[None]:
    """Print logs if a test fails."""
    with report_on_failure(request, world.report):
        yield


# ---------------------------------------------------------------------- matched, nothing written


def test_nothing_is_kept_for_a_gang_of_which_nothing_was_written(world: World, crash: Crash) -> None:
    crash.run_until(1, plans, Fault.CALL_BEFORE)
    assert plan_of(world.group("gang")) is None
    crash.compete()
    crash.restart()
    world.until("the competitor's node", lambda: is_bound(world.pod("competitor")))
    assert world.places("gang") == {}
    world.delete_pod("competitor")
    world.wait_whole("gang")
    world.check("gang")


# ---------------------------------------------------------------------- plan, none bound


def test_a_plan_of_which_nothing_is_bound_is_carried_out(world: World, crash: Crash) -> None:
    crash.run_until(1, plans)
    plan, places = crash.plan, crash.planned_places
    assert world.places("gang") == {}
    crash.compete()
    crash.restart()
    crash.assert_rolled_forward(plan, places)
    crash.assert_competitor_waits()


def test_a_plan_whose_node_is_gone_is_aborted_and_made_anew(world: World, crash: Crash) -> None:
    crash.run_until(1, plans)
    plan, places = crash.plan, crash.planned_places
    world.delete_node(places["gang-0"])
    world.add_node()
    crash.restart()
    world.wait_whole("gang")
    assert crash.plan.attempt != plan.attempt
    assert not set(world.places("gang").values()) & world.lost_nodes
    world.check("gang")


def test_a_plan_whose_pod_is_another_by_now_is_aborted_and_made_anew(world: World, crash: Crash) -> None:
    crash.run_until(1, plans)
    plan = crash.plan
    world.delete_pod("gang-0")
    world.create_pod("gang-0", group="gang")
    crash.restart()
    world.wait_whole("gang")
    assert crash.plan.attempt != plan.attempt
    world.check("gang")


# ---------------------------------------------------------------------- some bound


def test_a_gang_that_is_bound_in_part_is_rolled_forward(world: World, crash: Crash) -> None:
    crash.run_until(BOUND, binds)
    plan, places = crash.plan, crash.planned_places
    assert len(world.places("gang")) == BOUND
    crash.compete()
    crash.restart()
    crash.assert_rolled_forward(plan, places)
    crash.assert_competitor_waits()


def test_a_pod_that_was_made_again_takes_the_vacated_place(world: World, crash: Crash) -> None:
    crash.run_until(BOUND, binds)
    places = crash.planned_places
    before = world.places("gang")
    again = sorted(before)[0]
    world.delete_pod(again)
    uid = world.create_pod(again, group="gang")["metadata"]["uid"]
    crash.compete()
    crash.restart()
    world.wait_whole("gang")
    assert world.places("gang") == places
    assert crash.plan.pods[uid]["node"] == places[again]
    crash.assert_competitor_waits()
    world.check()


def test_members_whose_node_is_gone_are_placed_anew_around_the_bound_ones(world: World, crash: Crash) -> None:
    crash.run_until(BOUND, binds)
    before = world.places("gang")
    lost = sorted(set(crash.planned_places.values()) - set(before.values()))[0]
    world.delete_node(lost)
    spare = world.add_node()
    crash.restart()
    world.wait_whole("gang")
    after = world.places("gang")
    assert before.items() <= after.items()
    assert sorted(after.values()).count(spare) == 2
    world.check()


def test_a_gang_that_cannot_become_whole_again_is_given_up_after_its_time_out(world: World) -> None:
    world.settings = replace(world.settings, gang_bind_timeout_seconds=2.0)
    crash = of_a_gang(world)
    crash.run_until(BOUND, binds)
    places, before = crash.planned_places, world.places("gang")
    world.delete_node(sorted(set(places.values()) - set(before.values()))[0])
    crash.restart()
    world.until("the end of the bound members", lambda: not world.places("gang"))
    world.check()
    world.add_node()  # it starts again once there is room, and its controller has created its pods again
    left = {pod["metadata"]["name"] for pod in world.members("gang")}
    for name in sorted(set(places) - left):
        world.create_pod(name, group="gang")
    world.wait_whole("gang")
    world.check("gang")


# ---------------------------------------------------------------------- all bound


def test_a_gang_that_is_bound_whole_is_acknowledged(world: World, crash: Crash) -> None:
    crash.run_until(1, acknowledgements, Fault.CALL_BEFORE)
    plan, places = crash.plan, world.places("gang")
    assert len(places) == SIZE
    assert (condition(world.group("gang"), "PodGroupScheduled") or {}).get("status") != "True"
    crash.compete()
    crash.restart()
    crash.assert_rolled_forward(plan, places)
    crash.assert_competitor_waits()


def test_a_running_gang_keeps_its_places(world: World, crash: Crash) -> None:
    crash.run_whole()
    plan, places = crash.plan, world.places("gang")
    crash.compete()
    crash.restart()
    crash.assert_competitor_waits()
    crash.assert_rolled_forward(plan, places)


# ---------------------------------------------------------------------- state=abort


def aborting(crash: Crash, number: int, where: Where) -> Plan:
    """Kill the scheduler directly after a write of the abort: the plan's node is gone, and there is another one."""
    crash.run_until(1, plans)
    plan = crash.plan
    crash.world.delete_node(crash.planned_places["gang-0"])
    crash.world.add_node()
    crash.run_until(number, where)
    assert (crash.plan.attempt, crash.plan.state) == (plan.attempt, "abort")
    return plan


@pytest.mark.parametrize(("number", "where"), [(1, plans), (1, touches), (SIZE // 2, touches), (SIZE, touches)])
def test_an_abort_goes_on_where_it_was(world: World, crash: Crash, number: int, where: Where) -> None:
    plan = aborting(crash, number, where)
    crash.restart()
    world.wait_whole("gang")
    assert crash.plan.attempt != plan.attempt
    assert crash.plan.state != "abort"
    world.check("gang")


def test_a_bind_that_lands_amid_an_abort_is_rolled_forward(world: World, crash: Crash) -> None:
    late = crash.proxy.at(1, Fault.HOLD, where=binds)
    crash.run_until(2, binds, Fault.CALL_BEFORE)
    plan, places = crash.plan, crash.planned_places
    assert world.places("gang") == {}
    held = next(write.path.split("/")[-2] for write in crash.proxy.writes if write.path.endswith("/binding"))
    world.delete_node(next(node for node in sorted(places.values()) if node != places[held]))
    world.add_node()
    crash.run_until(1, plans)
    assert (crash.plan.attempt, crash.plan.state) == (plan.attempt, "abort")
    crash.proxy.release(late)
    assert late.done.wait(30)
    assert world.places("gang") == {held: places[held]}
    crash.restart()
    world.wait_whole("gang")
    assert world.places("gang")[held] == places[held]
    world.check()


def test_a_bind_that_comes_after_an_abort_is_refused(world: World, crash: Crash) -> None:
    late = crash.proxy.at(1, Fault.HOLD, where=binds)
    crash.run_until(2, binds, Fault.CALL_BEFORE)
    places = crash.planned_places
    held = next(write.path.split("/")[-2] for write in crash.proxy.writes if write.path.endswith("/binding"))
    world.delete_node(next(node for node in sorted(places.values()) if node != places[held]))
    world.add_node()
    crash.run_until(SIZE, touches)
    crash.proxy.release(late)
    assert late.done.wait(30)
    assert world.places("gang") == {}
    crash.restart()
    world.wait_whole("gang")
    world.check("gang")


# ---------------------------------------------------------------------- bound, no plan


def forget_plan(world: World) -> None:
    path = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{world.namespace}/podgroups/gang"
    status, answer = world.plane.request("PATCH", path, {"metadata": {"annotations": {PLAN: None}}})
    assert status == HTTPStatus.OK, answer


def test_what_pods_hold_is_known_without_their_plan(world: World, crash: Crash) -> None:
    crash.run_whole()
    places = world.places("gang")
    forget_plan(world)
    crash.compete()
    crash.restart()
    crash.assert_competitor_waits()
    assert world.places("gang") == places
    world.check()


def test_a_gang_that_is_bound_in_part_without_a_plan_becomes_whole(world: World, crash: Crash) -> None:
    crash.run_until(BOUND, binds)
    before = world.places("gang")
    forget_plan(world)
    crash.restart()
    world.wait_whole("gang")
    assert before.items() <= world.places("gang").items()
    world.check()


# ---------------------------------------------------------------------- bound by another scheduler


def bind_as_admin(world: World, name: str, node: str, annotations: dict[str, str] | None = None) -> None:
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    body = {"apiVersion": "v1", "kind": "Binding", "target": target,
            "metadata": {"name": name, "namespace": world.namespace, "annotations": annotations or {}}}  # fmt: skip
    path = f"/api/v1/namespaces/{world.namespace}/pods/{name}/binding"
    status, answer = world.plane.request("POST", path, body)
    assert status == HTTPStatus.CREATED, answer


def test_a_member_that_another_scheduler_bound_counts(world: World, crash: Crash) -> None:
    bind_as_admin(world, "gang-0", world.nodes[0])
    crash.restart()
    world.wait_whole("gang")
    assert world.places("gang")["gang-0"] == world.nodes[0]
    crash.compete()
    crash.assert_competitor_waits()  # no core is free
    world.check()


def test_a_member_that_another_scheduler_bound_during_a_plan_stays_where_it_is(world: World, crash: Crash) -> None:
    crash.run_until(1, plans)
    places = crash.planned_places
    other = next(node for node in sorted(places.values()) if node != places["gang-0"])
    moved = next(name for name, node in sorted(places.items()) if node == other)
    bind_as_admin(world, "gang-0", other)
    crash.restart()
    world.wait_whole("gang")
    after = world.places("gang")
    assert after["gang-0"] == other
    assert after[moved], "it is somewhere, though its place may be taken"


# ---------------------------------------------------------------------- all terminal


def test_a_gang_that_ended_unheard_is_put_away(world: World, crash: Crash) -> None:
    crash.run_whole()
    world.finish(world.members("gang"))
    crash.compete()
    crash.restart()
    world.until("the competitor's node", lambda: is_bound(world.pod("competitor")))
    world.wait_without_plan("gang")
    world.check()


def test_of_a_gang_that_ended_in_part_only_the_rest_is_held(world: World, crash: Crash) -> None:
    crash.run_whole()
    ended = world.members("gang")[0]
    world.finish([ended])
    crash.compete()
    crash.restart()
    world.until("the competitor's node", lambda: is_bound(world.pod("competitor")))
    assert world.pod("competitor")["spec"]["nodeName"] == ended["spec"]["nodeName"]
    world.check()


# ---------------------------------------------------------------------- what is written in the pods


def jobids(pods: list[Manifest]) -> set[int]:
    return {int(jobid) for pod in pods for jobid in held_jobs(pod)}


def test_jobids_go_on_above_those_that_are_held(world: World, crash: Crash) -> None:
    crash.run_whole()
    world.add_node()
    crash.restart()
    world.create_pod("alone", device=False)
    world.until("the pod's node", lambda: is_bound(world.pod("alone")))
    assert min(jobids([world.pod("alone")])) > max(jobids(world.members("gang")))
    world.check()


def test_a_copied_record_holds_nothing(world: World, crash: Crash) -> None:
    crash.run_whole()
    copied = world.pod("gang-0")["metadata"]["annotations"][HELD]
    free = world.add_node(cpu=1)
    world.create_pod("forger", device=False)
    bind_as_admin(world, "forger", free, {HELD: copied})
    owner = json.loads(copied)["uid"]
    assert world.pod("forger")["metadata"]["uid"] != owner
    crash.compete()
    crash.restart()
    crash.assert_competitor_waits()
    world.finish([world.pod("forger")])
    world.create_pod("probe", device=False)
    world.until("the probe's node", lambda: is_bound(world.pod("probe")))  # so the scheduler has seen the forger's end
    assert not is_bound(world.pod("competitor")), "its end freed a device of the pod that it copied from"
    world.check()
