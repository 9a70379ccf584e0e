"""Pod groups on a real API server, beside kube-scheduler with the same gates, and on one that lacks APIs or gates.

Each test reads gated fields back first, because without the gate an API server silently drops them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import pytest

from ..tools.real_programs import made
from .awaiting import pass_marker, running, until
from .conftest import new_control_plane
from .harness import ControlPlane
from .invariants import Manifest, condition
from .scheduler_process import SchedulerProcess, Settings

GROUPS: Final = "/apis/scheduling.k8s.io/v1alpha2"
PLAIN: Final = Settings(
    reconcile_seconds=1.0,
    more={
        "profiles": [{"schedulerName": "fluence", "plugins": [{"name": "fluence", "enabled": False}]}],
        "backoff": {"initialSeconds": 0.01, "maxSeconds": 0.01, "maxUnschedulableSeconds": 0.5},
    },
)
"""Only the core, for the comparison with kube-scheduler. Backoffs end before the next event, so that it requeues all
groups that it can help."""


# ---------------------------------------------------------------------- one group


@dataclass
class Space:
    """A namespace with its own nodes, in domains of its own label."""

    plane: ControlPlane
    scheduler: str
    namespace: str = ""
    nodes: dict[str, str] = field(default_factory=dict)
    """The zone of each node."""

    def __post_init__(self) -> None:
        self.namespace = self.plane.new_namespace()

    @property
    def key(self) -> str:
        return f"{self.namespace}.example.com/zone"

    def add_nodes(self, zones: Mapping[str, Sequence[int]]) -> None:
        for zone, cpus in zones.items():
            for number, cpu in enumerate(cpus):
                name = f"{self.namespace}-{zone}{number}"
                self.nodes[name] = zone
                self.plane.new_node(name, cpu=str(cpu))
                labels = {"labels": {self.key: zone}}
                self.plane.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": labels})

    def node(self, short: str) -> str:
        return f"{self.namespace}-{short}"

    def add_pod(self, name: str, cpu: str = "1", *, group: str = "", on: str = "", scheduler: str = "") -> Manifest:
        resources = {"requests": {"cpu": cpu, "memory": "64Mi"}}
        spec: dict[str, Any] = {
            "schedulerName": scheduler or self.scheduler, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "example.com/none", "resources": resources}],
        }  # fmt: skip
        if group:
            spec["schedulingGroup"] = {"podGroupName": group}
        if on:
            spec["nodeName"] = self.node(on)
        made = self.plane.create({"apiVersion": "v1", "kind": "Pod", "spec": spec,
                                  "metadata": {"name": name, "namespace": self.namespace}})  # fmt: skip
        assert not group or made["spec"].get("schedulingGroup") == {"podGroupName": group}, "GenericWorkload is off"
        return made

    def add_group(self, name: str, minimum: int | None, **spec: Any) -> Manifest:
        policy: dict[str, Any] = {"basic": {}} if minimum is None else {"gang": {"minCount": minimum}}
        made = self.plane.create({"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
                                  "metadata": {"name": name, "namespace": self.namespace},
                                  "spec": {"schedulingPolicy": policy, **spec}})  # fmt: skip
        for field_, value in spec.items():
            assert made["spec"].get(field_) == value, f"the API server drops spec.{field_}: its gate is off"
        return made

    def pods(self) -> list[Manifest]:
        items: list[Manifest] = self.plane.request("GET", f"/api/v1/namespaces/{self.namespace}/pods")[1]["items"]
        return items

    def group(self, name: str) -> Manifest:
        found: Manifest = self.plane.request("GET", f"{GROUPS}/namespaces/{self.namespace}/podgroups/{name}")[1]
        return found

    def first_condition(self, made: Manifest) -> Manifest:
        """The first outcome of a new group. kube-scheduler writes another one when it retries the rest of the group."""
        metadata = made["metadata"]
        path = f"{GROUPS}/namespaces/{self.namespace}/podgroups"
        with closing(self.plane.versions(path, metadata["name"], metadata["resourceVersion"])) as versions:
            return next(filter(None, (condition(version, "PodGroupScheduled") for version in versions)))

    def clear(self) -> None:
        """Delete its objects, so that they do not affect other tests."""
        for pod in self.pods():
            path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}?gracePeriodSeconds=0"
            self.plane.request("DELETE", path)
        for node in self.nodes:
            self.plane.request("DELETE", f"/api/v1/nodes/{node}")


@contextmanager
def space(plane: ControlPlane, scheduler: str = "fluence") -> Iterator[Space]:
    made = Space(plane, scheduler)
    try:
        yield made
    finally:
        made.clear()


# ---------------------------------------------------------------------- beside kube-scheduler


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with every gate enabled, kube-scheduler, and `fluence run` beside it."""
    folder = tmp_path_factory.mktemp("peers")
    with new_control_plane(folder, kube_scheduler=True) as plane, running(plane, folder, PLAIN):
        yield plane


@dataclass(frozen=True)
class Case:
    """One group; cpus by zone and node."""

    zones: Mapping[str, Sequence[int]]
    members: Sequence[str] = ()
    """The cpu of each pod of the group."""
    minimum: int | None = None
    """None for a basic group."""
    load: Mapping[str, str] = field(default_factory=dict)
    """The cpu of other pods on some nodes."""
    bound: Sequence[str] = ()
    """The nodes of the group's pods that are bound initially, with one cpu each."""
    constrained: bool = True
    key: str = ""
    zone: str | None = None
    """The group's expected nodes, so that the comparison is known to be meaningful."""


CASES: Final = {
    "without a constraint": Case({"a": [2], "b": [2]}, ["2", "2"], 2, constrained=False),
    "without a constraint, no room": Case({"a": [2], "b": [1]}, ["2", "2"], 2, constrained=False),
    "one domain holds it": Case({"a": [2, 2], "b": [2, 2, 2], "c": [3, 1]}, ["2", "2", "2"], 3, zone="b"),
    "no domain holds it": Case({"a": [2, 1], "b": [2]}, ["2", "2"], 2),
    "no node has the label": Case({"a": [4]}, ["1", "1"], 2, key="example.com/rack"),
    "more pods count more": Case({"a": [4], "b": [8]}, ["2", "2", "2"], 2, zone="b"),
    "fewer pods, though fuller": Case({"a": [4, 2], "b": [16]}, ["2", "2", "2", "2"], 2, {"a1": "1"}, zone="b"),
    "the fuller of two": Case({"a": [8, 8], "b": [8, 8]}, ["1", "1"], 2, {"b0": "5"}, zone="b"),
    "by all its nodes, not the used ones": Case({"a": [4], "b": [4, 32]}, ["1", "1"], 2, {"b0": "1"}, zone="a"),
    "a basic group, whole": Case({"a": [2, 2], "b": [2]}, ["2", "2"], zone="a"),
    "a basic group, in part": Case({"a": [2, 2], "b": [2]}, ["2", "2", "2"], zone="a"),
    "a basic group, not at all": Case({"a": [1], "b": [1]}, ["2", "2"]),
    "the rest follows": Case({"a": [2, 2], "b": [64]}, ["2"], 2, bound=["a0"], zone="a"),
    "the rest has no room there": Case({"a": [2], "b": [64]}, ["2"], 2, bound=["a0"]),
    "bound in two domains": Case({"a": [4], "b": [4]}, ["1"], 3, bound=["a0", "b0"]),
}


@dataclass(frozen=True)
class Seen:
    """The outcome for a group, in words that must be the same for both schedulers."""

    zones: frozenset[str]
    placed: int
    group: tuple[str, str, str]
    pods: tuple[tuple[str, str], ...]
    message: str = field(compare=False)


def play(plane: ControlPlane, scheduler: str, case: Case) -> Seen:
    """Let one scheduler place the group on its own nodes."""
    with space(plane, scheduler) as here:
        here.add_nodes(case.zones)
        for number, (node, cpu) in enumerate(case.load.items()):
            here.add_pod(f"load-{number}", cpu, on=node)
        for number, node in enumerate(case.bound):
            here.add_pod(f"bound-{number}", group="group", on=node)
        for number, cpu in enumerate(case.members):
            here.add_pod(f"member-{number}", cpu, group="group")
        known = f"{len(here.nodes)} Insufficient cpu"  # with the label, which is written last
        pass_marker(plane, here.namespace, scheduler, known, label=here.key)  # all pods and nodes precede the group
        topology = {"schedulingConstraints": {"topology": [{"key": case.key or here.key}]}} if case.constrained else {}
        said = here.first_condition(here.add_group("group", case.minimum, **topology))

        def evaluated() -> list[Manifest] | None:
            members = [pod for pod in here.pods() if pod["metadata"]["name"].startswith("member")]
            return members if all(condition(pod, "PodScheduled") for pod in members) else None

        members = until(f"what {scheduler} makes of the group", evaluated)
        nodes = [node for pod in members if (node := pod["spec"].get("nodeName"))]
        conditions = [condition(pod, "PodScheduled") or {} for pod in members]
        return Seen(
            zones=frozenset(here.nodes[node] for node in nodes),
            placed=len(nodes),
            group=(said["type"], said["status"], said["reason"]),
            pods=tuple(sorted((one["status"], one.get("reason", "")) for one in conditions)),
            message=said.get("message", ""),
        )


@pytest.mark.parametrize("name", CASES)
def test_a_group_goes_where_kube_scheduler_puts_it_and_the_same_is_said_of_it(peers: ControlPlane, name: str) -> None:
    case = CASES[name]
    theirs = play(peers, "default-scheduler", case)
    ours = play(peers, "fluence", case)
    assert ours == theirs
    assert case.zone is None or ours.zones == {case.zone}
    if theirs.group[1] == "False":
        said = theirs.message.partition(", workload aware preemption")[0]
        if not case.constrained:  # kube-scheduler, too, reports one tried placement: all nodes
            said = said.partition("first placement status: ")[2].partition(", ")[0]
            assert said == "pod group is unschedulable"
        assert ours.message.startswith(_in_order(said)), theirs.message


def _in_order(text: str) -> str:
    """Return kube-scheduler's message with its domains, which have no fixed order, sorted."""
    said, found, domains = text.partition("domain found for pod group: ")
    return said + found + ", ".join(sorted(domains.split(", ")))


@pytest.mark.parametrize("scheduler", ["default-scheduler", "fluence"])
def test_a_group_that_has_started_keeps_saying_so_when_more_pods_find_no_room(
    peers: ControlPlane, scheduler: str
) -> None:
    with space(peers, scheduler) as here:
        here.add_nodes({"a": [2], "b": [1]})
        here.add_group("group", 2, schedulingConstraints={"topology": [{"key": here.key}]})
        here.add_pod("one", group="group")
        here.add_pod("two", group="group")

        def started() -> Manifest | None:
            found = condition(here.group("group"), "PodGroupScheduled")
            return found if found is not None and found["status"] == "True" else None

        first = until("the start", started)
        here.add_pod("three", group="group")

        def refused() -> bool:
            pod = next(pod for pod in here.pods() if pod["metadata"]["name"] == "three")
            return (condition(pod, "PodScheduled") or {}).get("reason") == "Unschedulable"

        until("the refusal of the third", refused)
        said = condition(here.group("group"), "PodGroupScheduled")
        assert said is not None
        assert (said["status"], said["lastTransitionTime"]) == ("True", first["lastTransitionTime"])


def test_the_priority_of_a_group_is_its_class_as_the_api_server_resolves_it(peers: ControlPlane) -> None:
    """Two groups, room for one: the one of higher priority is first, whatever their order of creation."""
    for name, value in (("low-group", 10), ("high-group", 1000)):
        peers.create({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value,
                      "metadata": {"name": name}})  # fmt: skip
    with space(peers) as here:
        for name in ("low", "high"):
            made = here.add_group(name, 2, priorityClassName=f"{name}-group")
            assert made["spec"]["priority"] == {"low": 10, "high": 1000}[name]
            for number in range(2):
                here.add_pod(f"{name}-{number}", "2", group=name)
        until("both being refused", lambda: all(condition(here.group(name), "PodGroupScheduled") for name in
                                                ("low", "high")))  # fmt: skip
        here.add_nodes({"a": [4]})
        until("the start of one", lambda: any(pod["spec"].get("nodeName") for pod in here.pods()))
        placed = {pod["metadata"]["name"] for pod in here.pods() if pod["spec"].get("nodeName")}
        assert {name.partition("-")[0] for name in placed} == {"high"}


# ---------------------------------------------------------------------- missing APIs and gates


def lacking(tmp_path_factory: pytest.TempPathFactory, *gates: str) -> ControlPlane:
    """A control plane with only these gates."""
    return made(lambda: ControlPlane(tmp_path_factory.mktemp("lacking"), gates=gates))


def test_without_the_group_api_that_is_said_once_and_the_rest_is_served(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with lacking(tmp_path_factory) as plane, running(plane, tmp_path, PLAIN) as scheduler, space(plane) as here:
        assert plane.request("GET", GROUPS)[0] == HTTPStatus.NOT_FOUND
        here.add_nodes({"a": [4]})
        here.add_pod("alone")
        until("the bind of the pod", lambda: here.pods()[0]["spec"].get("nodeName"))
        time.sleep(3.0)  # several comparisons with new lists
        assert _lines(scheduler, "the API server serves no PodGroup API") == 1
        assert not [name for name in scheduler.metrics() if name.startswith("fluence_pod_group_api{")]


def test_without_a_gate_that_is_said_once_and_the_rest_is_served(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    gates = ("GenericWorkload", "GangScheduling")
    with lacking(tmp_path_factory, *gates) as plane, running(plane, tmp_path, PLAIN) as scheduler, space(plane) as here:
        here.add_nodes({"a": [1], "b": [1]})
        made = plane.create({
            "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
            "metadata": {"name": "group", "namespace": here.namespace},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 2}},
                     "schedulingConstraints": {"topology": [{"key": here.key}]}},
        })  # fmt: skip
        assert "schedulingConstraints" not in made["spec"], "the gate is to be off here"
        for number in range(2):
            here.add_pod(f"member-{number}", "1", group="group")
        until("the bind of the gang", lambda: all(pod["spec"].get("nodeName") for pod in here.pods()))
        off = [f'fluence_pod_group_gate{{gate="{gate}"}}' for gate in
               ("TopologyAwareWorkloadScheduling", "WorkloadAwarePreemption")]  # fmt: skip
        until("the gates", lambda: scheduler.metrics().keys() >= set(off))  # one request for each
        metrics = scheduler.metrics()
        assert [metrics[gate] for gate in off] == [0, 0]
        assert metrics['fluence_pod_group_api{version="scheduling.k8s.io/v1alpha2"}'] == 1
        time.sleep(3.0)
        assert _lines(scheduler, "TopologyAwareWorkloadScheduling") == 1
        assert "schedulingConstraints" not in here.group("group")["spec"]


def test_with_every_gate_no_gate_is_said_to_be_off(peers: ControlPlane, tmp_path: Path) -> None:
    with running(peers, tmp_path, PLAIN) as scheduler, space(peers, "none") as here:
        here.add_group("group", 2)
        on = 'fluence_pod_group_gate{gate="TopologyAwareWorkloadScheduling"}'
        until("the gates", lambda: on in scheduler.metrics())
        assert scheduler.metrics()[on] == 1
        assert _lines(scheduler, "TopologyAwareWorkloadScheduling") == 0
        spec = here.group("group")["spec"]
        assert not {"schedulingConstraints", "priorityClassName", "resourceClaims"} & set(spec), "a dry run was none"


def _lines(scheduler: SchedulerProcess, text: str) -> int:
    return sum(text in line for line in scheduler.log.read_text(errors="replace").splitlines())
