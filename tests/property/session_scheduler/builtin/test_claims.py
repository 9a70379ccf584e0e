"""Random clusters with ResourceClaims: the modes naive, board and heap decide the same, although boards are shared."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from session_scheduler.framework.session import Session
from session_scheduler.model.devices import DeviceClass, ResourceClaim, ResourceSlice
from session_scheduler.model.groups import Phase, Task
from session_scheduler.model.objects import KubeObject, Pod
from session_scheduler.testing import FakeCluster, node, pod, pod_group

from ....tools.examples import examples
from ..worlds import Plugins, plugins

MODES = ("naive", "board", "heap")
DRIVER = "d.example.com"
FAST = {"cel": {"expression": f"device.attributes['{DRIVER}'].fast"}}
REQUESTS: Sequence[dict[str, Any]] = (
    {"exactly": {"deviceClassName": "gpu", "count": 1}},
    {"exactly": {"deviceClassName": "gpu", "count": 2}},
    {"exactly": {"deviceClassName": "fast", "count": 1}},
    {"exactly": {"deviceClassName": "gpu", "allocationMode": "All"}},
    {"exactly": {"deviceClassName": "none", "count": 1}},
    {"firstAvailable": [{"name": "fast", "deviceClassName": "fast", "count": 1},
                        {"name": "any", "deviceClassName": "gpu", "count": 1}]},
)  # fmt: skip
OFTEN = st.sampled_from([REQUESTS[0], REQUESTS[0], REQUESTS[0], *REQUESTS])
SHARED = tuple(f"shared-{number}" for number in range(2))


def made(kind: Any, name: str, namespace: str = "", **fields: Any) -> Any:
    return msgspec.convert({"kind": kind.__name__, "metadata": {"name": name, "namespace": namespace}, **fields}, kind)


def claim(name: str, request: dict[str, Any]) -> ResourceClaim:
    found: ResourceClaim = made(
        ResourceClaim, name, "default", spec={"devices": {"requests": [{"name": "r", **request}]}}
    )
    return found


@st.composite
def machines(draw: st.DrawFn) -> list[KubeObject]:
    found: list[KubeObject] = [
        made(DeviceClass, "gpu", spec={}), made(DeviceClass, "fast", spec={"selectors": [FAST]}),
    ]  # fmt: skip
    for index in range(draw(st.integers(1, 4))):
        name = f"n{index}"
        found.append(node(name, cpu=draw(st.sampled_from(["1", "2"])), memory="4Gi", labels={"kind": "a"}))
        devices = [
            {"name": f"d{number}", "attributes": {"fast": {"bool": fast}}}
            for number, fast in enumerate(draw(st.lists(st.booleans(), max_size=3)))
        ]
        if devices:
            pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": DRIVER, "nodeName": name, "devices": devices, "pool": pool}
            found.append(made(ResourceSlice, f"{name}-devices", spec=spec))
    return found


@st.composite
def users(draw: st.DrawFn, prefix: str, most: int = 5) -> list[KubeObject]:
    """Single pods and gangs, most of them with a claim of their own; runs of pods have equal claims."""
    found: list[KubeObject] = []
    for number in range(draw(st.integers(1, most))):
        name, size = f"{prefix}{number}", draw(st.integers(1, 4))
        group = draw(st.sampled_from(["", "", name]))
        if group:
            found.append(pod_group(name, draw(st.integers(1, size))))
        shape: dict[str, Any] = {
            "cpu": draw(st.sampled_from(["100m", "100m", "1"])), "priority": draw(st.sampled_from([0, 0, 5, 9])),
        }  # fmt: skip
        requests = draw(st.one_of(st.lists(OFTEN, min_size=1, max_size=2), OFTEN.map(lambda one: [one, one])))
        for index in range(size):
            own = [f"{name}-{index}-{place}" for place in range(len(requests))]
            found += map(claim, own, requests)
            names = draw(st.sampled_from([own, own, own, [own[0]], [own[0], own[0]], [SHARED[0]], [SHARED[1]], []]))
            entries = tuple({"name": f"e{place}", "resourceClaimName": one} for place, one in enumerate(names))
            found.append(pod(f"{name}-{index}", group=group, resource_claims=entries, **shape))
    return found


def started(objects: Sequence[KubeObject], chosen: Plugins, mode: str) -> FakeCluster:
    cluster = FakeCluster(evaluation=mode)
    cluster.add(objects, [claim(name, REQUESTS[place]) for place, name in enumerate(SHARED)])
    cluster.start(*chosen.build())
    return cluster


def seen(cluster: FakeCluster) -> object:
    """The placements, reasons, nominations and allocations."""
    placements, tasks = cluster.placements(), cluster.scheduler.cache.tasks.values()
    nominated = {task.key: cluster.scheduler.cache.nominations.node_of(task) for task in tasks}
    claims = cluster.memory.objects(ResourceClaim)
    allocated = {one.key: one.status.allocation.devices for one in claims if one.status.allocation is not None}
    reasons = {key: cluster.reasons(key) for key, on in placements.items() if on is None}
    return placements, reasons, nominated, allocated


def assert_usable(cluster: FakeCluster) -> None:
    """Each device is in one claim, and the claims of a pod are allocated on its node and reserved for the pod."""
    claims = {one.key: one for one in cluster.memory.objects(ResourceClaim)}
    found = [(one.pool, one.device) for each in claims.values() if each.status.allocation is not None
             for one in each.status.allocation.devices.results]  # fmt: skip
    assert len(found) == len(set(found))
    for each in cluster.memory.objects(Pod):
        for entry in each.spec.resource_claims if each.spec.node_name else ():
            status = claims[f"default/{entry['resourceClaimName']}"].status
            assert status.allocation is not None
            assert {one.pool for one in status.allocation.devices.results} == {each.spec.node_name}
            assert each.metadata.uid in {one.uid for one in status.reserved_for}


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(machines(), users("old"), users("new"), plugins())
def test_all_evaluation_modes_decide_the_same_about_claims(some, old, new, chosen):
    answers = []
    for mode in MODES:
        cluster = started([*some, *old], chosen, mode)
        cluster.run(cycles=2)
        answers.append([seen(cluster)])
        cluster.add(new)
        for _ in range(2):
            cluster.run(cycles=2)
            answers[-1].append(seen(cluster))
            assert_usable(cluster)
    assert answers[0] == answers[1]
    assert answers[0] == answers[2]


class Player:
    """Plays moves in a session of one evaluation mode and records the results."""

    def __init__(self, objects: Sequence[KubeObject], chosen: Plugins, mode: str, stack: ExitStack) -> None:
        scheduler = started(objects, chosen, mode).scheduler
        (calls,) = scheduler.profiles.values()
        self.session: Session = scheduler.sessions.open(calls, tuple(scheduler.cache.groups.values()))
        self.table = scheduler.cache.table
        group = next(iter(scheduler.cache.groups.values()))
        self.statement = stack.enter_context(self.session.ledger.statement(group))
        self.marks: list[int] = []

    def play(self, move: str, number: int) -> object:
        if move == "mark":
            self.marks.append(self.statement.checkpoint())
            return None
        if move == "rollback":
            self.statement.rollback(self.marks.pop() if self.marks else 0)
            self.marks = [mark for mark in self.marks if mark <= self.statement.checkpoint()]
            return None
        tasks = [task for group in self.session.groups() for task in group.in_phase(Phase.PENDING)]
        tasks = [task for task in tasks if self.session.evaluator.evaluation(task.cls).refusal is None]
        tasks.sort(key=lambda task: task.key)
        return self._ask(tasks[number % len(tasks)], move) if tasks else None

    def _ask(self, task: Task, move: str) -> object:
        board = self.session.board(task)
        row = board.pick(task)
        if row < 0:
            helpable = [self.session.ledger.node_at(place) for place in board.helpable(task).tolist()]
            return task.key, board.why(task), helpable
        total, fits = float(board.total[row]), sorted(n for n, place in self.table.row_of.items() if board.mask[place])
        if move == "place":
            self.statement.allocate(task, row)
            board.took(row)
        return task.key, self.session.ledger.node_at(row), total, fits


MOVES = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "place", "place", "mark", "rollback"]), st.integers(0, 60)),
    min_size=5, max_size=40,
)  # fmt: skip


@settings(max_examples=examples(120), deadline=None, derandomize=True)
@given(machines(), users("p", 3), plugins(subsets=False), MOVES)
def test_all_evaluation_modes_agree_while_pods_with_claims_are_placed_and_undone(some, pods, chosen, moves):
    with ExitStack() as stack:
        players = [Player([*some, *pods], chosen, mode, stack) for mode in MODES]
        for move, number in moves:
            found = [player.play(move, number) for player in players]
            assert found[0] == found[1], ("naive", "board", move)
            assert found[0] == found[2], ("naive", "heap", move)
