"""HTTP extenders on a real API server: the same extenders and pods for kube-scheduler and for `fluence run`.

Nodes, messages, and the requests that the extenders see must be the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from ..unit.fluence_plugins.slurm_bridge.trusting import server_certificate
from . import binaries
from .awaiting import pass_marker, running, until
from .conftest import new_control_plane
from .extender_server import Body, ExtenderServer, Handler, names_in, passing
from .harness import GATES, ControlPlane
from .invariants import Manifest, condition
from .processes import Program
from .scheduler_process import UNTIL_HELPED, SchedulerProcess, Settings

SIDES: Final = ("default-scheduler", "fluence")
FOO: Final = "example.com/foo"
NODES: Final = ("n1", "n2", "n3")
DYNAMIC_RESOURCES: Final = "no new claims to deallocate, "
"""The message of kube-scheduler's DynamicResources in its PostFilter for every pod, with or without claims."""


@pytest.fixture(scope="module")
def server() -> Iterator[ExtenderServer]:
    with ExtenderServer() as found:
        yield found


def extenders(server: ExtenderServer) -> list[Manifest]:
    return [
        {"urlPrefix": f"{server.url}/spare/", "filterVerb": "filter", "prioritizeVerb": "prioritize", "weight": 1,
         "ignorable": True, "httpTimeout": "2s"},
        {"urlPrefix": f"{server.url}/names", "filterVerb": "filter", "prioritizeVerb": "prioritize", "weight": 3,
         "preemptVerb": "preempt", "nodeCacheCapable": True, "httpTimeout": "5s"},
        {"urlPrefix": f"{server.url}/foo", "filterVerb": "filter", "bindVerb": "bind", "nodeCacheCapable": True,
         "managedResources": [{"name": FOO, "ignoredByScheduler": True}]},
    ]  # fmt: skip


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with new_control_plane(tmp_path_factory.mktemp("extenders-plane")) as found:
        for name in NODES:
            found.new_node(name, cpu="4")
        for value in (1, 10):
            found.create({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value,
                          "metadata": {"name": f"p{value}"}})  # fmt: skip
        yield found


@pytest.fixture(scope="module")
def theirs(plane: ControlPlane, server: ExtenderServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("kube-scheduler")
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(plane.kubeconfig("system:kube-scheduler"))},
        "leaderElection": {"leaderElect": False}, "extenders": extenders(server),
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    binary = binaries.find("kube-scheduler")["kube-scheduler"]
    program = Program("kube-scheduler", [binary, f"--config={folder / 'config.yaml'}", "--secure-port=0",
                      f"--feature-gates={','.join(f'{gate}=true' for gate in GATES)}"],
                      folder / "kube-scheduler.log")  # fmt: skip
    try:
        yield
    finally:
        program.terminate()
        program.stop()


@pytest.fixture(scope="module")
def ours(
    plane: ControlPlane, server: ExtenderServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SchedulerProcess]:
    more = {
        "profiles": [{"schedulerName": "fluence", "plugins": [{"name": "fluence", "enabled": False}]}],
        "extenders": extenders(server),
    }
    with running(plane, tmp_path_factory.mktemp("fluence"), Settings(more=more | UNTIL_HELPED)) as scheduler:
        yield scheduler


@dataclass
class Case:
    """What the extenders answer for a pod, and whether it is bound."""

    handlers: dict[str, Handler] = field(default_factory=dict)
    bound: bool = True
    resources: dict[str, str] = field(default_factory=lambda: {"cpu": "1"})
    occupied: bool = False
    """Whether each node has a pod that the new one may preempt."""
    preempts: bool = False
    """Whether the new pod preempts any of them."""
    ends: bool = False
    """Whether the victims end, so that the new pod is placed on its nominated node."""


@dataclass(frozen=True)
class Result:
    """The outcome for one scheduler."""

    node: str | None
    reason: str
    message: str
    requests: list[tuple[str, tuple[str, ...], tuple[str, ...]]]
    """Path, nodes and fields of each different request, in order."""
    victims: list[str]
    nominated: str
    pods: list[Body]
    """The pod in these requests, without what differs between two pods."""
    nodes: list[Body]
    """The nodes in these requests, sorted."""


def only(*names: str, **texts: str) -> Handler:
    """A filter that these nodes pass if they are offered; the others fail with these texts."""
    return lambda body: passing(
        [name for name in names_in(body) if name in names], body,
        {name: text for name, text in texts.items() if name in names_in(body)},
    )  # fmt: skip


def unresolvable(**texts: str) -> Handler:
    return lambda body: passing([], body, FailedAndUnresolvableNodes=texts)


def scores(**by_node: int) -> Handler:
    return lambda body: [{"Host": name, "Score": by_node.get(name, 0)} for name in names_in(body)]


def allowed(*names: str) -> Handler:
    """The victims on these nodes may be preempted."""
    return lambda body: {
        "NodeNameToMetaVictims": {name: found for name, found in body["NodeNameToMetaVictims"].items() if name in names}
    }


def bound_by_it(_: Body) -> int:
    """Stands for `Side.bind`."""
    return 500


CASES: Final = {
    "a filter leaves one node": Case({"names/filter": only("n2")}),
    "each sees what the others left": Case({"names/filter": only("n1", "n3"), "spare/filter": only("n3", "n2")}),
    "scores decide": Case({"names/prioritize": scores(n1=2, n2=9, n3=1)}),
    "weighted scores are added": Case({"names/prioritize": scores(n1=3), "spare/prioritize": scores(n3=10, n1=2)}),
    "failed scores are ignored": Case({"names/prioritize": lambda _: 500, "spare/prioritize": scores(n3=5)}),
    "rejections are counted": Case({"names/filter": only(n1="no licence", n2="too hot", n3="no licence")}, bound=False),
    "some rejections have no text": Case({"names/filter": only(n1="no licence")}, bound=False),
    "rejections are unresolvable": Case({"names/filter": unresolvable(n1="a", n2="a", n3="b")}, bound=False),
    "an error is the message": Case({"names/filter": lambda _: {"Error": "the extender is tired"}}, bound=False),
    "a status is an error": Case({"names/filter": lambda _: 503}, bound=False),
    "an unknown node is an error": Case({"names/filter": lambda _: {"NodeNames": ["n9"]}}, bound=False),
    "an ignorable extender fails": Case({"spare/filter": lambda _: 500, "names/filter": only("n1")}),
    "names of fields match in any case": Case({"names/filter": lambda _: {"nodenames": ["n3"], "failednodes": {}}}),
    "a managed resource is bound by its extender": Case(
        {"foo/filter": only("n2"), "foo/bind": bound_by_it}, resources={"cpu": "1", FOO: "1"}
    ),
    "victims are narrowed": Case(
        {"names/preempt": allowed("n2")}, bound=False, resources={"cpu": "2"}, occupied=True, preempts=True
    ),
    "the nominated node comes first": Case(
        {"names/preempt": allowed("n2")}, resources={"cpu": "2"}, occupied=True, preempts=True, ends=True
    ),
    "no victims are allowed": Case({"names/preempt": allowed()}, bound=False, resources={"cpu": "2"}, occupied=True),
    "preempt fails": Case({"names/preempt": lambda _: 500}, bound=False, resources={"cpu": "2"}, occupied=True),
    "no node passes the scheduler's filters": Case(bound=False, resources={"cpu": "100"}),
}  # fmt: skip


class Side:
    """One scheduler's run of a case."""

    def __init__(self, plane: ControlPlane, server: ExtenderServer, scheduler: str) -> None:
        self.plane, self.server, self.scheduler = plane, server, scheduler
        self.namespace = plane.new_namespace()
        self.pods = f"/api/v1/namespaces/{self.namespace}/pods"

    def create(self, name: str, resources: dict[str, str], **spec: Any) -> None:
        self.plane.create({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"schedulerName": self.scheduler, "terminationGracePeriodSeconds": 3600,
                     "automountServiceAccountToken": False, **spec,
                     "containers": [{"name": "c", "image": "none", "env": [{"name": "A", "value": "b"}],
                                     "resources": {"requests": resources, "limits": resources}}]},
        })  # fmt: skip

    def pod(self, name: str = "new") -> Manifest:
        found: Manifest = self.plane.request("GET", f"{self.pods}/{name}")[1]
        return found

    def node_of(self, name: str) -> str | None:
        node: str | None = self.pod(name)["spec"].get("nodeName")
        return node

    def bind(self, body: Body) -> Any:
        """Bind a pod as an extender does."""
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": body["PodName"], "uid": body["PodUID"]},
                   "target": {"kind": "Node", "name": body["Node"]}}  # fmt: skip
        path = f"/api/v1/namespaces/{body['PodNamespace']}/pods/{body['PodName']}/binding"
        status, answer = self.plane.request("POST", path, binding)
        return {} if status == HTTPStatus.CREATED else {"Error": str(answer)}

    def occupy(self) -> None:
        """Run a pod of low priority on each node."""
        for node in NODES:
            self.create(f"on-{node}", {"cpu": "3"}, schedulerName="none", priorityClassName="p1")
            uid = self.pod(f"on-{node}")["metadata"]["uid"]
            body = {"PodName": f"on-{node}", "PodNamespace": self.namespace, "PodUID": uid, "Node": node}
            assert self.bind(body) == {}

    def _victims(self) -> list[str]:
        """Return the names of the pods that are being deleted."""
        pods = self.plane.request("GET", self.pods)[1]["items"]
        return sorted(one["metadata"]["name"] for one in pods if one["metadata"].get("deletionTimestamp"))

    def run(self, case: Case) -> Result:
        self.server.clear()
        if case.occupied:
            self.occupy()
        pass_marker(self.plane, self.namespace, self.scheduler, "0/3 nodes")
        for path, handler in case.handlers.items():
            self.server.handlers[path] = self.bind if handler is bound_by_it else handler
        self.create("new", case.resources, **({"priorityClassName": "p10"} if case.occupied else {}))
        said = until("an answer", lambda: condition(self.pod(), "PodScheduled")) or {}
        victims = until("a victim", lambda: self._victims() or None) if case.preempts else []
        for name in victims if case.ends else ():
            self.plane.request("DELETE", f"{self.pods}/{name}?gracePeriodSeconds=0")
        if case.bound:
            until(f"a node: {said}", lambda: self.pod()["spec"].get("nodeName"))
            said = condition(self.pod(), "PodScheduled") or {}
        pass_marker(self.plane, self.namespace, self.scheduler)  # after all further reactions
        shown: dict[tuple[str, tuple[str, ...], tuple[str, ...]], Body] = {}
        for path, body in self.server.requests:
            if body.get("PodName", body.get("Pod", {}).get("metadata", {}).get("name")) == "new":
                shown.setdefault((path, tuple(names_in(body)), tuple(sorted(body))), body)
        pod = self.pod()
        nodes = [item for body in shown.values() if body.get("Nodes") for item in body["Nodes"]["items"]]
        return Result(
            pod["spec"].get("nodeName"), said.get("reason", ""), said.get("message", "").replace(DYNAMIC_RESOURCES, ""),
            sorted(shown, key=_stage),
            self._victims(),
            pod["status"].get("nominatedNodeName", ""),
            [_plain(body["Pod"]) for body in shown.values() if "Pod" in body], sorted(map(_plain, nodes), key=str),
        )  # fmt: skip

    def clear(self) -> None:
        self.server.handlers.clear()
        for one in self.plane.request("GET", self.pods)[1]["items"]:
            self.plane.request("DELETE", f"{self.pods}/{one['metadata']['name']}?gracePeriodSeconds=0")


def _stage(request: tuple[str, tuple[str, ...], tuple[str, ...]]) -> tuple[int, str]:
    """Keeps the order of requests, but sorts those for scores, which are sent at the same time."""
    verb = request[0].partition("/")[2]
    return ["filter", "prioritize", "bind", "preempt"].index(verb), request[0] if verb == "prioritize" else ""


def _plain(obj: Body) -> Body:
    """An object without what differs between two pods, or two reads."""
    metadata = {
        key: value
        for key, value in obj["metadata"].items()
        if key not in ("uid", "namespace", "resourceVersion", "creationTimestamp", "managedFields", "generation")
    }
    spec = {key: value for key, value in obj["spec"].items() if key not in ("schedulerName",)}
    status = {key: value for key, value in obj["status"].items() if key != "conditions"}
    return {"metadata": metadata, "spec": spec, "status": status}


@pytest.mark.parametrize("name", CASES)
def test_both_schedulers_call_extenders_alike(
    plane: ControlPlane, server: ExtenderServer, theirs: None, ours: SchedulerProcess, name: str
) -> None:
    case, results = CASES[name], []
    for scheduler in SIDES:
        side = Side(plane, server, scheduler)
        try:
            results.append(side.run(case))
        finally:
            side.clear()
    assert results[1] == results[0]
    assert (results[0].node is not None) is case.bound


def _placed(side: Side, *names: str) -> bool:
    return all(side.node_of(name) for name in names)


def test_both_schedulers_place_a_gang_where_the_extender_allows(
    plane: ControlPlane, server: ExtenderServer, theirs: None, ours: SchedulerProcess
) -> None:
    results = []
    for scheduler in SIDES:
        side = Side(plane, server, scheduler)
        server.clear()
        server.handlers["names/filter"] = lambda body: passing(
            ["n1" if body["Pod"]["metadata"]["name"] == "g-0" else "n3"], body
        )
        try:
            plane.create({"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
                          "metadata": {"name": "g", "namespace": side.namespace},
                          "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}})  # fmt: skip
            for name in ("g-0", "g-1"):
                side.create(name, {"cpu": "1"}, schedulingGroup={"podGroupName": "g"})
            until("both nodes", partial(_placed, side, "g-0", "g-1"))
            seen = {(path, body["Pod"]["metadata"]["name"], tuple(names_in(body))) for path, body in server.requests
                    if "Pod" in body and body["Pod"]["metadata"]["name"] in ("g-0", "g-1")}  # fmt: skip
            results.append(({name: side.node_of(name) for name in ("g-0", "g-1")}, seen))
        finally:
            side.clear()
    assert results[0][0] == {"g-0": "n1", "g-1": "n3"}
    assert results[1] == results[0]


# ---------------------------------------------------------------------- fluence alone


def test_a_slow_extender_delays_only_its_own_pods_and_no_shutdown(plane: ControlPlane, tmp_path: Path) -> None:
    async def never(_: Body) -> Body:
        await asyncio.sleep(60)
        return {}

    with ExtenderServer() as slow:
        entry = {"urlPrefix": slow.url, "filterVerb": "filter", "httpTimeout": "30s", "nodeCacheCapable": True,
                 "managedResources": [{"name": FOO, "ignoredByScheduler": True}]}  # fmt: skip
        slow.handlers["filter"] = never
        profile = {"schedulerName": "other", "plugins": [{"name": "fluence", "enabled": False}]}
        with running(plane, tmp_path, Settings(more={"profiles": [profile], "extenders": [entry]})) as scheduler:
            side = Side(plane, slow, "other")
            try:
                side.create("waits", {FOO: "1", "cpu": "1"})
                until("a call", lambda: slow.requests)
                side.create("plain", {"cpu": "1"})
                until("a node", lambda: side.pod("plain")["spec"].get("nodeName"))
                assert condition(side.pod("waits"), "PodScheduled") is None
                assert scheduler.terminate().status == 0
                assert "binds are still in flight" not in scheduler.tail()
            finally:
                side.clear()


def _bound_later(side: Side, server: ExtenderServer, names: list[str], *, binds: str) -> Handler:
    """Answer the first call for each pod never, and later ones at once. Returns the handler of the later ones.

    The first call binds its pod `at once`, `later` (before the next call binds) or `never`.
    """
    late: list[Body] = []

    async def first(body: Body) -> Body:
        names.append(body["PodName"])
        if binds == "at once":
            assert await asyncio.to_thread(side.bind, body) == {}
        elif binds == "later":
            late.append(body)
        await asyncio.Event().wait()
        raise AssertionError("unreachable: the scheduler is killed before the answer")

    def again(body: Body) -> Any:
        while late:
            assert side.bind(late.pop()) == {}
        return side.bind(body)

    server.handlers["bind"] = first
    return again


@pytest.mark.parametrize("binds", ["at once", "later", "never"])
@pytest.mark.parametrize("gang", [False, True], ids=["pods", "gang"])
def test_pods_are_bound_once_if_the_scheduler_is_killed_before_the_extender_answers_a_bind(
    plane: ControlPlane, tmp_path: Path, *, gang: bool, binds: str
) -> None:
    names, asked = ["g-0", "g-1"], list[str]()
    room = {FOO: "1", "cpu": "3"}  # one pod on each node
    with ExtenderServer() as server:
        entry = {"urlPrefix": server.url, "bindVerb": "bind", "httpTimeout": "60s", "nodeCacheCapable": True,
                 "managedResources": [{"name": FOO, "ignoredByScheduler": True}]}  # fmt: skip
        profile = {"schedulerName": "killed", "plugins": [{"name": "fluence", "enabled": False}]}
        with running(plane, tmp_path, Settings(more={"profiles": [profile], "extenders": [entry]})) as scheduler:
            side = Side(plane, server, "killed")
            again = _bound_later(side, server, asked, binds=binds)
            try:
                if gang:
                    plane.create({"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
                                  "metadata": {"name": "g", "namespace": side.namespace},
                                  "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}})  # fmt: skip
                for name in names:
                    side.create(name, room, **({"schedulingGroup": {"podGroupName": "g"}} if gang else {}))
                until("both calls", lambda: sorted(asked) == names)
                if binds == "at once":
                    until("both nodes", partial(_placed, side, *names))
                scheduler.kill()
                assert _placed(side, *names) is (binds == "at once")
                server.handlers["bind"] = again
                scheduler.start()
                until("both nodes", partial(_placed, side, *names))
                scheduler.wait_ready()
                side.create("last", room)
                until("the last node", partial(_placed, side, "last"))
                assert sorted(filter(None, map(side.node_of, [*names, "last"]))) == list(NODES)
                pass_marker(plane, side.namespace, "killed", "3 Insufficient cpu")
                assert scheduler.running
            finally:
                side.clear()


def test_an_extender_is_called_over_tls_and_only_with_its_ca(plane: ControlPlane, tmp_path: Path) -> None:
    trusted = server_certificate(tmp_path, "extender.example.com")
    with ExtenderServer(trusted.context) as server:
        entry = {"urlPrefix": server.url, "filterVerb": "filter", "enableHTTPS": True,
                 "tlsConfig": {"caFile": str(trusted.ca_file), "serverName": "extender.example.com"}}  # fmt: skip
        server.handlers["filter"] = only("n2")
        profile = {"schedulerName": "secure", "plugins": [{"name": "fluence", "enabled": False}]}
        with running(plane, tmp_path, Settings(more={"profiles": [profile], "extenders": [entry]})) as scheduler:
            side = Side(plane, server, "secure")
            try:
                side.create("new", {"cpu": "1"})
                until("a node", lambda: side.pod()["spec"].get("nodeName"))
                assert side.pod()["spec"]["nodeName"] == "n2"
                name = f'{{code="200",extender="{server.url}",verb="filter"}}'
                assert scheduler.metrics()[f"fluence_extender_requests_total{name}"] >= 1
            finally:
                side.clear()
