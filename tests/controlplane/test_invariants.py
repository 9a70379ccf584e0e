"""The invariants of fault tests: each one finds the state that violates it."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest

from .invariants import (
    ATTEMPT,
    HELD,
    PLAN,
    SUB_GROUP,
    SUB_GROUPS,
    Manifest,
    State,
    of_one_plan,
    violations,
    violations_at_rest,
)

QPU = "fluxion.flux-framework.org/qpu"
PATH = "/cluster/qpu0"


def a_node(name: str, cpu: str = "2") -> Manifest:
    return {
        "metadata": {"name": name},
        "status": {"allocatable": {"cpu": cpu, "memory": "1Gi", "pods": "10", QPU: "9"}},
    }


def a_pod(name: str, node: str | None = "a", attempt: str = "one", uid: str | None = None, phase: str = "Running",
          **held: Any) -> Manifest:  # fmt: skip
    part = {"host": node, "cores": [], "gpus": [], "memory": 0, **held}
    record = {"uid": uid or name, "plugins": {"fluence": {"jobs": {"1": part}}}}
    devices = {QPU: str(len(held.get("devices", [])))}
    container = {"name": "main", "resources": {"requests": {"cpu": "1", "memory": "64Mi", **devices}}}
    return {
        "metadata": {"namespace": "ns", "name": name, "uid": name,
                     "annotations": {HELD: json.dumps(record), ATTEMPT: attempt} if node else {}},
        "spec": {"schedulerName": "fluence", "containers": [container], "schedulingGroup": {"podGroupName": "gang"},
                 **({"nodeName": node} if node else {})},
        "status": {"phase": phase},
    }  # fmt: skip


def a_gang(attempt: str = "one", scheduled: str = "True", bound: tuple[str, ...] = (), **nodes: str) -> Manifest:
    """Return a PodGroup with a plan by uid and node; it only marks pods that were bound before."""
    to_hold = {"plugins": {"fluence": {}}}
    pods = {
        uid: {"name": uid, "node": node} | ({"bound": True} if uid in bound else to_hold) for uid, node in nodes.items()
    }
    packed = base64.b64encode(zlib.compress(json.dumps(pods).encode())).decode()
    plan = json.dumps({"attempt": attempt, "holder": "h", "state": "active", "pods": packed})
    return {
        "metadata": {"namespace": "ns", "name": "gang", "annotations": {PLAN: plan}},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
        "status": {"conditions": [{"type": "PodGroupScheduled", "status": scheduled}]},
    }


def whole(*pods: Manifest, gang: Manifest | None = None, nodes: tuple[Manifest, ...] = ()) -> State:
    return State(list(pods), [gang or a_gang(p="a", q="a")], [*nodes] or [a_node("a"), a_node("b")])


def test_a_gang_that_runs_as_planned_is_right() -> None:
    state = whole(a_pod("p", cores=[0]), a_pod("q", cores=[1]))
    assert violations_at_rest(state) == []
    assert of_one_plan(state, state.groups[0]) == []


def test_a_gang_without_the_minimum_of_a_sub_group_is_found_and_one_with_it_is_right() -> None:
    gang = a_gang(p="a", q="a")
    gang["metadata"]["annotations"][SUB_GROUPS] = "leader=1,worker=1"
    pods = [a_pod("p", cores=[0]), a_pod("q", cores=[1])]
    for pod in pods:
        pod["metadata"]["labels"] = {SUB_GROUP: "worker"}
    assert violations_at_rest(whole(*pods, gang=gang)) == [
        "gang ns/gang: is bound without {'leader': 1} of its sub-groups"
    ]
    pods[0]["metadata"]["labels"] = {SUB_GROUP: "leader"}
    assert violations_at_rest(whole(*pods, gang=gang)) == []


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (whole(a_pod("p", cores=[0]), a_pod("q", cores=[0])), "cores a 0: is held by"),
        (whole(a_pod("p", millicores=1500), a_pod("q", millicores=900)), "a: 2400m are held of 2"),
        (whole(a_pod("p", gpus=[0]), a_pod("q", gpus=[0])), "gpus a 0: is held by"),
        (whole(a_pod("p", devices=[PATH]), a_pod("q", devices=[PATH])), f"device {PATH}: is held by"),
        (whole(a_pod("p", uid="other"), a_pod("q")), "holds by a record of uid other"),
        (whole(a_pod("p", host="b"), a_pod("q")), "holds b and is bound to a"),
        (whole(a_pod("p"), a_pod("q"), nodes=(a_node("b"),)), "is bound to a, which does not exist"),
        (whole(a_pod("p"), a_pod("q"), nodes=(a_node("a", cpu="1500m"),)), "cpu: 2 are used of 1500m"),
        (whole(a_pod("p"), a_pod("q", node="b")), "is on b, planned was a"),
    ],
)
def test_what_must_never_be_is_found(state: State, said: str) -> None:
    found = violations(state)
    assert found
    assert all(said in line for line in found)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (whole(a_pod("p"), a_pod("q", node=None)), "1 of 2 are bound"),
        (whole(a_pod("p"), a_pod("q"), gang=a_gang(scheduled="False", p="a", q="a")), "is bound whole, and its"),
    ],
)
def test_what_must_not_be_at_rest_is_found(state: State, said: str) -> None:
    assert violations(state) == []
    assert [said in line for line in violations_at_rest(state)] == [True]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (whole(a_pod("p"), a_pod("q", attempt="two")), "is mixed from the plans two and one"),
        (whole(a_pod("p"), a_pod("q"), gang=a_gang(p="a")), "knows nothing of that"),
        (whole(a_pod("p"), a_pod("q", node="b")), "knows nothing of that"),
    ],
)
def test_a_gang_of_two_plans_is_found(state: State, said: str) -> None:
    assert [said in line for line in of_one_plan(state, state.groups[0])] == [True]


def test_a_plan_that_goes_on_from_what_an_earlier_one_bound_is_right() -> None:
    gang = a_gang(p="a", q="a", bound=("q",))
    state = whole(a_pod("p"), a_pod("q", attempt="zero"), gang=gang)
    assert of_one_plan(state, gang) == []


def test_what_ended_holds_nothing() -> None:
    assert violations(whole(a_pod("p", cores=[0], phase="Succeeded"), a_pod("q", cores=[0]))) == []
