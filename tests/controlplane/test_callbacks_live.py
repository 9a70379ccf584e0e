"""The plugins of `examples/plugins` on a real API server: each one changes the outcome, as it does in `simulate`.

All cases share one cluster; each has its own nodes, namespace and profile. All objects exist before the scheduler
starts, so that it decides each case in one session: once without the plugin and once with it.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from ..tools.plugin_cases import CASES, FOLDER, NAMES, QUEUES, a_node, a_pod
from .awaiting import PATIENCE, pass_marker, running
from .conftest import new_control_plane
from .harness import ControlPlane
from .scheduler_process import SchedulerProcess, Settings

PAGE = "placements-page"
TRACKER = "namespace-allocation-tracker"
COUNTED: tuple[list[dict[str, Any]], dict[str, Any]] = ([a_node("n1"), a_pod("a"), a_pod("b")], {})
"""Plugins that change no placement, but report them."""
OBJECTS = {name: (objects, plugins) for name, (objects, plugins, *_) in CASES.items()} | {
    PAGE: COUNTED,
    TRACKER: COUNTED,
}
PRIORITIES = (1, 9)


class World:
    """One case: its namespace, and its nodes, which have its name prefix."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.plane, self.name = plane, name
        self.namespace = plane.new_namespace()
        self.path = f"/api/v1/namespaces/{self.namespace}/pods"
        objects, _ = OBJECTS[name]
        self.nodes = [one for one in objects if one["kind"] == "Node"]
        self.groups = [one for one in objects if one["kind"] == "PodGroup"]
        pods = [one for one in objects if one["kind"] == "Pod"]
        self.running = [one for one in pods if "nodeName" in one["spec"]]
        self.waiting = [one for one in pods if "nodeName" not in one["spec"]]

    def furnish(self) -> None:
        """Create all objects except the waiting pods."""
        for node in self.nodes:
            name = f"{self.name}-{node['metadata']['name']}"
            offered = node["status"]["allocatable"]
            self.plane.new_node(name, cpu=offered["cpu"], **{one: offered[one] for one in offered if "/" in one})
            labels = {**node["metadata"]["labels"], "case": self.name}
            self.plane.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}})
        for group in self.groups:
            metadata = {key: group["metadata"][key] for key in ("name", "annotations")}
            self.plane.create({**group, "metadata": {**metadata, "namespace": self.namespace}})
        for pod in self.running:
            self.create(pod)

    def create(self, pod: Mapping[str, Any]) -> None:
        spec = dict(pod["spec"])
        priority = spec.pop("priority")
        if priority:
            spec["priorityClassName"] = f"p{priority}"
        if "nodeName" in spec:
            spec["nodeName"] = f"{self.name}-{spec['nodeName']}"
        spec |= {"schedulerName": self.name, "nodeSelector": {"case": self.name}, "terminationGracePeriodSeconds": 0}
        kept = {key: pod["metadata"][key] for key in ("name", "labels", "annotations") if key in pod["metadata"]}
        metadata = {**kept, "namespace": self.namespace}
        self.plane.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def answer(self) -> dict[str, Any]:
        """Return the outcome in the format of `simulate`."""
        found = {one["metadata"]["name"]: one for one in self.plane.request("GET", self.path)[1]["items"]}
        made = [one["metadata"]["name"] for one in (*self.running, *self.waiting)]
        waiting = [found[name] for one in self.waiting if (name := one["metadata"]["name"]) in found]
        ended = [{"name": name} for name in made if name not in found]
        return {"pods": [self.reported(one) for one in waiting], "preempted": ended}

    def reported(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        node = pod["spec"].get("nodeName")
        annotations = pod["metadata"].get("annotations", {})
        return {
            "name": pod["metadata"]["name"],
            "node": None if node is None else node.removeprefix(f"{self.name}-"),
            "zone": annotations.get("example.com/zone"),
            "gpus": annotations.get("fluence.flux-framework.org/gpu"),
        }

    def clear(self) -> None:
        for pod in (*self.running, *self.waiting):
            self.plane.request("DELETE", f"{self.path}/{pod['metadata']['name']}?gracePeriodSeconds=0")
        for node in self.nodes:
            self.plane.request("DELETE", f"/api/v1/nodes/{self.name}-{node['metadata']['name']}")


@dataclass(frozen=True)
class Side:
    """The outcomes of all cases, with or without their plugins."""

    answers: Mapping[str, Any]
    page: tuple[int, str]
    log: str
    namespaces: Mapping[str, str]


def settings(*, plugins: bool) -> Settings:
    """Return a profile for each case; without its plugin it has only the others."""
    profiles = []
    for name, (_, beside) in OBJECTS.items():
        wanted = {"fluence": None} | ({name: {}} if plugins else {}) | beside
        entries = [{"name": one, "args": args or {}, "enabled": args is not None} for one, args in wanted.items()]
        profiles.append({"schedulerName": name, "plugins": entries})
    patient = 60.0  # no case tests the timeout of gangs
    return Settings(gang_bind_timeout_seconds=patient, more={"profiles": profiles, "queues": QUEUES})


def decided(world: World, *, plugins: bool) -> Any:
    """Wait until a case has the expected outcome, or a timeout; return the outcome."""
    pass_marker(world.plane, world.namespace, world.name)
    _, _, look, *expected = CASES[world.name]
    until = time.monotonic() + PATIENCE
    while (found := look(world.answer())) != expected[plugins] and time.monotonic() < until:
        time.sleep(0.1)
    return found


def side(plane: ControlPlane, folder: Path, *, plugins: bool) -> Side:
    worlds = {name: World(plane, name) for name in OBJECTS}
    for world in worlds.values():
        world.furnish()
    for turn in range(max(len(world.waiting) for world in worlds.values())):
        time.sleep(1)  # creation times have whole seconds, and decide the order
        for world in worlds.values():
            for pod in world.waiting[turn : turn + 1]:
                world.create(pod)
    with running(plane, folder, settings(plugins=plugins)) as scheduler:
        answers = {name: decided(world, plugins=plugins) for name, world in worlds.items() if name in CASES}
        for name in (PAGE, TRACKER):
            pass_marker(plane, worlds[name].namespace, name)
        page = paged(scheduler, plane)
        log = scheduler.tail(10_000)
    for world in worlds.values():
        world.clear()
    return Side(answers, page, log, {name: world.namespace for name, world in worlds.items()})


def paged(scheduler: SchedulerProcess, plane: ControlPlane) -> tuple[int, str]:
    return scheduler.get(f"/plugins/{PAGE}/placements?node={PAGE}-n1", plane.token())


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Install the examples' distribution where the scheduler's process finds it."""
    target = tmp_path_factory.mktemp("installed")
    for file in (FOLDER / "src").glob("*.py"):
        shutil.copy(file, target)
    info = target / "fluence_example_plugins-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fluence-example-plugins\nVersion: 1\n")
    lines = [f"{name} = {place}" for name, place in NAMES.items()]
    (info / "entry_points.txt").write_text("\n".join(["[session_scheduler.plugins]", *lines, ""]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(target), os.environ.get("PYTHONPATH")])))
        yield


@pytest.fixture(scope="module")
def sides(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """Run without the plugins, and with them."""
    with new_control_plane(tmp_path_factory.mktemp("callbacks-plane")) as plane:
        for value in PRIORITIES:
            plane.create({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value,
                          "metadata": {"name": f"p{value}"}})  # fmt: skip
        folders = [tmp_path_factory.mktemp(name) for name in ("without", "with")]
        yield side(plane, folders[0], plugins=False), side(plane, folders[1], plugins=True)


@pytest.mark.parametrize("name", CASES)
def test_the_plugin_alone_changes_the_outcome(sides: tuple[Side, Side], name: str) -> None:
    *_, without, with_it = CASES[name]
    assert (sides[0].answers[name], sides[1].answers[name]) == (without, with_it)


def test_the_page_is_served_and_tells_what_was_placed(sides: tuple[Side, Side]) -> None:
    without, with_it = (one.page for one in sides)
    assert without[0] == HTTPStatus.NOT_FOUND
    assert with_it[0] == HTTPStatus.OK
    assert json.loads(with_it[1]) == {f"{PAGE}-n1": 2}


def test_the_tracker_counts_what_was_placed(sides: tuple[Side, Side]) -> None:
    without, with_it = (f"{one.namespaces[TRACKER]}: 2 pods placed" in one.log for one in sides)
    assert (without, with_it) == (False, True)
