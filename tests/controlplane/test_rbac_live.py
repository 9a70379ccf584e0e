"""Each right that deploy/ gives the scheduler, removed in turn: what fails then, where that is reported, and recovery.

The rights come from the manifest. A right without a test fails, so that no right is unnecessary.
"""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

import pytest

from ..tools.real_programs import report_on_failure
from .awaiting import until
from .conftest import new_control_plane
from .harness import OWN_PLANS, SCHEDULER, ControlPlane
from .queues_world import install_queues
from .rbac_work import NEEDS
from .rbac_world import RbacWorld, Right, Roles, refusals, rights_of
from .test_annotations_policy_live import install_coscheduling


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A separate control plane, because its rights change all the time."""
    with new_control_plane(tmp_path_factory.mktemp("rbac")) as plane:
        install_coscheduling(plane)
        install_queues(plane)
        yield plane


@pytest.fixture(scope="module")
def only_world(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RbacWorld]:
    with RbacWorld(plane, tmp_path_factory.mktemp("rbac-world")) as world:
        yield world


@pytest.fixture
def world(request: pytest.FixtureRequest, only_world: RbacWorld) -> Iterator[RbacWorld]:
    """The world without objects of earlier tests."""
    with report_on_failure(request, only_world.report):
        yield only_world
    only_world.tidy()


@pytest.fixture(scope="module")
def roles(plane: ControlPlane) -> Roles:
    return Roles(plane, "fluence")


def test_each_right_that_a_test_knows_is_given() -> None:
    assert NEEDS.keys() <= {str(given) for given in rights_of("fluence")}


@pytest.mark.parametrize("given", rights_of("fluence"), ids=str)
def test_without_it_something_fails_that_says_so_and_works_again_with_it(
    world: RbacWorld, roles: Roles, given: Right
) -> None:
    work = NEEDS.get(str(given))
    assert work is not None, f"no test knows what needs the right to {given}"
    work.prepare(world)
    with roles.without(given):
        work.begin(world, given)
        work.fails(world, given)
        roles.give_back()
        work.works(world)


def test_of_its_namespace_it_replaces_no_config_map_of_others(plane: ControlPlane) -> None:
    """Its right covers all ConfigMaps there; the policy leaves only those of its plans."""
    path = "/api/v1/namespaces/kube-system/configmaps"
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "others"}, "data": {"a": "b"}}
    assert plane.request("POST", path, made)[0] == HTTPStatus.CREATED
    new = {**made, "metadata": {"name": "new"}}
    until("the policy", lambda: plane.request("POST", f"{path}?dryRun=All", new, user=SCHEDULER)[0] == 403)
    for method, at, body in (("DELETE", f"{path}/others", None), ("POST", path, new)):
        status, answer = plane.request(method, at, body, user=SCHEDULER)
        assert (status, OWN_PLANS in answer["message"]) == (HTTPStatus.FORBIDDEN, True), answer


def test_of_other_namespaces_it_reads_and_writes_no_config_map(plane: ControlPlane) -> None:
    path, own = "/api/v1/namespaces/default/configmaps", "fluence-plan-u.a"
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": own}, "data": {"a": "b"}}
    assert plane.request("POST", path, made)[0] == HTTPStatus.CREATED
    requests = (("GET", f"{path}/{own}"), ("GET", path), ("GET", "/api/v1/configmaps"), ("DELETE", f"{path}/{own}"))
    for method, at in requests:
        status, answer = plane.request(method, at, user=SCHEDULER)
        assert (status, 'resource "configmaps"' in answer["message"]) == (HTTPStatus.FORBIDDEN, True), answer
    assert plane.request("POST", path, {**made, "metadata": {"name": f"{own}b"}}, user=SCHEDULER)[0] == 403


def test_with_all_of_its_rights_nothing_that_it_does_is_refused(world: RbacWorld) -> None:
    world.restart()
    said, before = world.scheduler.log.stat().st_size, refusals(world.plane)
    for work in dict.fromkeys(NEEDS.values()):
        work.begin(world, None)
        work.works(world)
        world.tidy()
    assert refusals(world.plane) == before
    lines = world.scheduler.log.read_bytes()[said:].decode().splitlines()
    assert [line for line in lines if "forbidden" in line] == []
