"""Preemption on a real API server, beside kube-scheduler: the same objects for each, one after the other.

Victims, nominated nodes and messages must be the same. There is no kubelet and no controller, so victims stay
terminating, and the test sets the status of disruption budgets.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterator
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.model.columns import tie_break

from .awaiting import pass_marker, running, until
from .conftest import new_control_plane
from .harness import ControlPlane
from .invariants import Manifest, condition
from .scheduler_process import SchedulerProcess, Settings

PRIORITIES: Final = (1, 2, 3, 10, 20)
NEVER: Final = "never"
SIDES: Final = ("default-scheduler", "fluence")
SEED: Final = SchedulerConfig().seed
DYNAMIC_RESOURCES: Final = "no new claims to deallocate, "
"""The message of kube-scheduler's DynamicResources in its PostFilter for every pod, with or without claims."""
PLAIN: Final = Settings(
    reconcile_seconds=5.0,
    more={
        "profiles": [{"schedulerName": "fluence", "plugins": [{"name": "fluence", "enabled": False}]}],
        # a preemptor is unschedulable while its victims terminate: compare its first message
        "backoff": {"initialSeconds": 0.2, "maxSeconds": 1},
    },
)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with new_control_plane(tmp_path_factory.mktemp("preemption-plane"), kube_scheduler=True) as found:
        for value in PRIORITIES:
            found.create({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value,
                          "metadata": {"name": f"p{value}"}})  # fmt: skip
        found.create({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 10,
                      "metadata": {"name": NEVER}, "preemptionPolicy": "Never"})  # fmt: skip
        yield found


@pytest.fixture(scope="module")
def ours(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchedulerProcess]:
    with running(plane, tmp_path_factory.mktemp("fluence"), PLAIN) as scheduler:
        yield scheduler


# ---------------------------------------------------------------------- objects


@dataclass
class Running:
    """A pod on a node; `since` is the second of the day in which it started."""

    name: str
    node: str
    cpu: str
    priority: int
    since: int
    app: str = ""
    group: str = ""


@dataclass
class Case:
    """The objects for both schedulers. `allowed` has the allowed disruptions of each app's budget."""

    nodes: dict[str, str]
    running: list[Running]
    cpu: str
    priority: int
    gang: int = 0
    allowed: dict[str, int] = field(default_factory=dict)
    whole: tuple[str, ...] = ()
    """Groups that are preempted as a whole."""
    never: bool = False
    """Whether the new pod's class forbids preemption."""

    def takes(self, gone: Container[str]) -> bool:
        """Whether the new pods fit once these pods are gone."""
        load = {node: sum(int(one.cpu) for one in self.running if one.node == node and one.name not in gone)
                for node in self.nodes}  # fmt: skip
        room = sum(max(0, int(cpu) - load[node]) // int(self.cpu) for node, cpu in self.nodes.items())
        return room >= max(1, self.gang)

    def on_nodes_of(self, name: str) -> Case:
        """Return the case with other node names, so that caches of earlier cases do not matter.

        The names keep the order of the tie-break.
        """
        own = sorted(self.nodes, key=lambda node: tie_break(SEED, node))
        for number in count():
            names = {node: f"{name.replace(' ', '-')}-{number}-{node}" for node in self.nodes}
            if own == sorted(self.nodes, key=lambda node: tie_break(SEED, names[node])):
                break
        return replace(
            self,
            nodes={names[node]: cpu for node, cpu in self.nodes.items()},
            running=[replace(one, node=names[one.node]) for one in self.running],
        )

    @property
    def helpable(self) -> bool:
        """Whether the case needs a preemption."""
        lower = [one.name for one in self.running if one.priority < self.priority]
        return not self.never and not self.takes(()) and self.takes(lower)


@dataclass(frozen=True)
class Answer:
    """The outcome for one scheduler."""

    victims: tuple[str, ...]
    nominated: dict[str, str | None]
    message: str
    reported: tuple[str, ...]
    """The condition of the victims, without the scheduler's name."""


class Side:
    """One scheduler's run."""

    def __init__(self, plane: ControlPlane, case: Case, scheduler: str) -> None:
        self.plane, self.case, self.scheduler = plane, case, scheduler
        self.namespace = plane.new_namespace()
        self.pods = f"/api/v1/namespaces/{self.namespace}/pods"

    def _pod(self, name: str, cpu: str, priority: int, scheduler: str, *, app: str = "", group: str = "") -> None:
        spec: Manifest = {
            "schedulerName": scheduler, "terminationGracePeriodSeconds": 3600,
            "priorityClassName": NEVER if self.case.never and scheduler == self.scheduler else f"p{priority}",
            "containers": [{"name": "c", "image": "none", "resources": {"requests": {"cpu": cpu}}}],
        }  # fmt: skip
        if group:
            spec["schedulingGroup"] = {"podGroupName": group}
        labels = {"app": app} if app else {}
        self.plane.create({"apiVersion": "v1", "kind": "Pod", "spec": spec,
                           "metadata": {"name": name, "namespace": self.namespace, "labels": labels}})  # fmt: skip

    def _group(self, name: str, size: int, priority: int, mode: str) -> None:
        made = self.plane.create({
            "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"schedulingPolicy": {"gang": {"minCount": size}}, "priorityClassName": f"p{priority}",
                     "disruptionMode": mode},
        })  # fmt: skip
        assert made["spec"]["priority"] == priority, "the API server serves no priority of groups"
        assert made["spec"]["disruptionMode"] == mode

    def furnish(self) -> None:
        for name, cpu in self.case.nodes.items():
            self.plane.new_node(name, cpu=cpu)
        for app, allowed in self.case.allowed.items():
            self.plane.create({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
                               "metadata": {"name": app, "namespace": self.namespace},
                               "spec": {"selector": {"matchLabels": {"app": app}}, "minAvailable": 1}})  # fmt: skip
            path = f"/apis/policy/v1/namespaces/{self.namespace}/poddisruptionbudgets/{app}/status"
            status = {"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}
            assert self.plane.request("PATCH", path, {"status": status})[0] == HTTPStatus.OK
        for group in dict.fromkeys(one.group for one in self.case.running if one.group):
            members = [one for one in self.case.running if one.group == group]
            self._group(group, len(members), members[0].priority, "PodGroup" if group in self.case.whole else "Pod")
        for one in self.case.running:
            self._pod(one.name, one.cpu, one.priority, "none", app=one.app, group=one.group)
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": one.name},
                       "target": {"kind": "Node", "name": one.node}}  # fmt: skip
            assert self.plane.request("POST", f"{self.pods}/{one.name}/binding", binding)[0] == HTTPStatus.CREATED
            since = time.strftime("2026-01-01T%H:%M:%SZ", time.gmtime(one.since))
            started = {"status": {"phase": "Running", "startTime": since}}
            assert self.plane.request("PATCH", f"{self.pods}/{one.name}/status", started)[0] == HTTPStatus.OK
        pass_marker(self.plane, self.namespace, self.scheduler, f"0/{len(self.case.nodes)} nodes")

    def ask(self) -> Answer:
        if self.case.gang:
            self._group("gang", self.case.gang, self.case.priority, "Pod")
        names = [f"new-{number}" for number in range(self.case.gang)] or ["new"]
        for name in names:
            self._pod(name, self.case.cpu, self.case.priority, self.scheduler, group="gang" if self.case.gang else "")
        until("an answer", lambda: condition(self._get(names[-1]), "PodScheduled"))
        if self.case.helpable:
            until("the end of enough pods", lambda: self.case.takes(self._ending()))
        pass_marker(self.plane, self.namespace, self.scheduler)  # wait for all further reactions
        pods = {one["metadata"]["name"]: one for one in self.plane.request("GET", self.pods)[1]["items"]}
        ending = {name: one for name, one in pods.items() if one["metadata"].get("deletionTimestamp")}
        reported = {self._told(one) for one in ending.values()}
        said = condition(pods["new"], "PodScheduled") if not self.case.gang else None
        return Answer(
            tuple(sorted(ending)),
            {name: pods[name]["status"].get("nominatedNodeName") for name in names},
            said["message"].replace(DYNAMIC_RESOURCES, "") if said is not None else "",
            tuple(sorted(reported)),
        )

    def _ending(self) -> list[str]:
        pods = self.plane.request("GET", self.pods)[1]["items"]
        return [one["metadata"]["name"] for one in pods if one["metadata"].get("deletionTimestamp")]

    def _get(self, name: str) -> Manifest:
        found: Manifest = self.plane.request("GET", f"{self.pods}/{name}")[1]
        return found

    def _told(self, victim: Manifest) -> str:
        said: Any = condition(victim, "DisruptionTarget")
        assert said is not None, victim["status"]
        return f"{said['status']} {said['reason']} {said['message'].removeprefix(self.scheduler)}"

    def clear(self) -> None:
        for one in self.plane.request("GET", self.pods)[1]["items"]:
            self.plane.request("DELETE", f"{self.pods}/{one['metadata']['name']}?gracePeriodSeconds=0")
        groups = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{self.namespace}/podgroups"
        for one in self.plane.request("GET", groups)[1]["items"]:
            path = f"{groups}/{one['metadata']['name']}"
            self.plane.request("PATCH", path, {"metadata": {"finalizers": None}})
            self.plane.request("DELETE", path)
        for name in self.case.nodes:
            self.plane.request("DELETE", f"/api/v1/nodes/{name}")
        until("the end of all pods", lambda: not self.plane.request("GET", self.pods)[1]["items"])


def answers(plane: ControlPlane, case: Case) -> tuple[Answer, Answer]:
    """The runs of kube-scheduler and of fluence."""
    found = []
    for scheduler in SIDES:
        side = Side(plane, case, scheduler)
        try:
            side.furnish()
            found.append(side.ask())
        finally:
            side.clear()
    return found[0], found[1]


# ---------------------------------------------------------------------- pods


def two_nodes(*running: Running, cpu: str = "2", priority: int = 10, **more: Any) -> Case:
    return Case({"n0": "2", "n1": "2"}, list(running), cpu, priority, **more)


PODS: Final = {
    "the lower priority ends": two_nodes(Running("a", "n0", "2", 2, 1), Running("b", "n1", "2", 1, 2)),
    "as few as suffice": two_nodes(
        Running("a", "n0", "1", 1, 1), Running("b", "n0", "1", 1, 2), Running("c", "n1", "2", 1, 3)
    ),
    "the one that started last": two_nodes(
        Running("a", "n0", "1", 1, 1), Running("b", "n0", "1", 1, 2), Running("c", "n1", "2", 20, 3), cpu="1"
    ),
    "a budget is respected": two_nodes(
        Running("a", "n0", "2", 1, 1, app="x"), Running("b", "n1", "2", 3, 2), allowed={"x": 0}
    ),
    "a budget is violated where there is no other choice": two_nodes(
        Running("a", "n0", "2", 1, 1, app="x"), Running("b", "n1", "2", 20, 2), allowed={"x": 0}
    ),
    "no pod has a lower priority": two_nodes(Running("a", "n0", "2", 10, 1), Running("b", "n1", "2", 20, 2)),
    "never": two_nodes(Running("a", "n0", "2", 1, 1), Running("b", "n1", "2", 1, 2), never=True),
    "more than there is": two_nodes(Running("a", "n0", "2", 1, 1), Running("b", "n1", "2", 1, 2), cpu="3"),
}


@pytest.mark.parametrize("name", PODS)
def test_a_pod_preempts_as_with_kube_scheduler(plane: ControlPlane, ours: SchedulerProcess, name: str) -> None:
    theirs, own = answers(plane, PODS[name].on_nodes_of(name))
    assert own == theirs


def at_random(seed: int) -> Case:
    random = Random(seed)
    seconds = random.sample(range(3600), 40)
    running = []
    for node in range(4):
        free = 4
        while free:
            cpu = min(free, random.choice([1, 1, 2]))
            free -= cpu
            name = f"r{len(running)}"
            app = random.choice(["", "x", "y"])
            running.append(Running(name, f"n{node}", str(cpu), random.choice([1, 2, 3]), seconds.pop(), app=app))
    allowed = {"x": random.choice([0, 1, 2]), "y": random.choice([0, 1])}
    return Case({f"n{number}": "4" for number in range(4)}, running, random.choice(["2", "3"]),
                random.choice([3, 10]), allowed=allowed)  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_at_random_a_pod_preempts_as_with_kube_scheduler(
    plane: ControlPlane, ours: SchedulerProcess, seed: int
) -> None:
    theirs, own = answers(plane, at_random(seed).on_nodes_of(f"random {seed}"))
    assert own == theirs


# ---------------------------------------------------------------------- gangs


GANGS: Final = {
    "all pods or none": two_nodes(Running("a", "n0", "2", 1, 1), Running("b", "n1", "2", 20, 2), gang=2),
    "victims on every node": two_nodes(Running("a", "n0", "2", 1, 1), Running("b", "n1", "2", 2, 2), gang=2),
    "the less important of two": two_nodes(
        Running("a", "n0", "1", 2, 1), Running("b", "n0", "1", 1, 2), Running("c", "n1", "1", 1, 3), cpu="1", gang=2
    ),
    "a group ends whole": two_nodes(
        Running("a", "n0", "2", 1, 1, group="old"), Running("b", "n1", "1", 1, 2, group="old"),
        cpu="2", gang=1, whole=("old",),
    ),
    "a group ends in part": two_nodes(
        Running("a", "n0", "2", 1, 1, group="old"), Running("b", "n1", "1", 1, 2, group="old"), cpu="2", gang=1,
    ),
    "a budget is respected": two_nodes(
        Running("a", "n0", "2", 1, 1, app="x"), Running("b", "n1", "2", 2, 2), gang=1, allowed={"x": 0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GANGS)
def test_a_gang_preempts_as_with_kube_scheduler(plane: ControlPlane, ours: SchedulerProcess, name: str) -> None:
    theirs, own = answers(plane, GANGS[name].on_nodes_of(f"gang {name}"))
    assert (own.victims, own.reported) == (theirs.victims, theirs.reported)
    for pod, node in theirs.nominated.items():  # kube-scheduler nominates only members that fit even before that
        assert node is None or own.nominated[pod] is not None
    assert all(own.nominated.values()) is bool(own.victims)


# ---------------------------------------------------------------------- between the end of victims and the bind


def test_a_successor_waits_for_the_victims_and_binds_the_pod_to_its_node(
    plane: ControlPlane, ours: SchedulerProcess, tmp_path: Path
) -> None:
    case = two_nodes(Running("a", "n0", "2", 20, 1), Running("b", "n1", "2", 1, 2)).on_nodes_of("successor")
    side = Side(plane, case, "fluence")
    try:
        side.furnish()
        answer = side.ask()
        ours.kill()
        with running(plane, tmp_path, PLAIN):
            side._pod("equal", "2", 10, "fluence")
            until("a refusal", lambda: condition(side._get("equal"), "PodScheduled"))
            victims = [one for one in side.case.running if side._get(one.name)["metadata"].get("deletionTimestamp")]
            assert tuple(one.name for one in victims) == answer.victims == ("b",)
            plane.request("DELETE", f"{side.pods}/b?gracePeriodSeconds=0")
            bound = until("the bind", lambda: side._get("new")["spec"].get("nodeName"))
            assert bound == answer.nominated["new"] == case.running[1].node
            assert not side._get("equal")["spec"].get("nodeName")
            assert "nominatedNodeName" not in side._get("new")["status"]
    finally:
        side.clear()
        ours.start()
        ours.wait_ready()
