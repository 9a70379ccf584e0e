"""A resources file that is edited a hundred times while pods come and go on a real API server: nothing is lost."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

from fluence_plugins.resources.names import without_places

from .invariants import Manifest, has_ended, is_bound
from .scenarios_world import Scenario
from .scheduler_process import QUICK_FOLLOW
from .test_resources_live import drift, holding, write

EDITS = 100
_QPU = "fluxion.flux-framework.org/qpu"


class Load:
    """Pods that come and go, and a changing resources file; it knows the file's current content."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.chance = random.Random(seed)
        self.count = 0
        self.units: dict[str, bool] = {}
        """The existing pods and gangs, and which of them are gangs."""
        self.may: dict[str, int] = {}
        """The number of pods that may share a device, by path."""

    def text(self) -> str:
        chance, trees = self.chance, list[dict[str, Any]]()
        self.may = {}
        for name in ("aurora", "borealis", "cygnus", "draco", "eridanus"):
            if chance.random() < 0.15:
                continue
            sharing, status = chance.choice([1, 1, 2, 3]), chance.choice(["up", "up", "up", "down"])
            region = chance.choice(["east", "west"])
            trees.append({"type": "qpu", "name": name, "sharing": sharing, "status": status,
                          "attributes": {"region": region}})  # fmt: skip
            self.may[f"/cluster/{name}"] = sharing
        chance.shuffle(trees)
        return json.dumps({"resources": trees or [{"type": "none"}]})

    def changes(self) -> None:
        """Create some pods, most of them with a device; delete some."""
        for _ in range(self.chance.randint(1, 3)):
            self.count += 1
            name = f"u{self.count}"
            self.units[name] = self.chance.random() < 0.3
            if self.units[name]:
                self.scenario.create_gang(name, 2, device=self.chance.random() < 0.5)
            else:
                self.scenario.create_pod(name, device=self.chance.random() < 0.8)
        for name in self.chance.sample(sorted(self.units), max(0, len(self.units) - 12)):
            if self.units.pop(name):
                self.scenario.delete_gang(name)
            else:
                self.scenario.delete_pod(name)

    def held(self) -> dict[str, list[str]]:
        """Return the devices in the record of each running pod."""
        pods = [pod for pod in self.scenario.pods() if is_bound(pod) and not has_ended(pod)]
        return {pod["metadata"]["name"]: devices for pod in pods if (devices := _devices(pod))}

    def lacking(self) -> int:
        """Return how many allocated devices the current file does not have."""
        return sum(path not in self.may for paths in self.held().values() for path in paths)


def _devices(pod: Manifest) -> list[str]:
    return [without_places(path) for paths in holding(pod).values() for path in paths]


def test_a_hundred_edits_under_load_lose_nothing_and_graph_and_cluster_agree_after_each(scenario: Scenario) -> None:
    for _ in range(3):
        scenario.add_node(cpu=12, devices=100)
    load = Load(scenario, seed=3)
    scheduler = scenario.run(replace(scenario.settings, resources=load.text(), script=(QUICK_FOLLOW,)))
    given = 0
    for number in range(EDITS):
        load.changes()
        before = load.held()
        write(scenario, scheduler, load.text())
        assert drift(scheduler) == [0, 0], f"after edit {number}"
        now = load.held()
        given += len(now.keys() - before.keys())
        assert all(now[name] == before[name] for name in before.keys() & now.keys())
        if number % 10 == 9:
            scenario.until("what is missing to be what the file lacks",
                           lambda: scheduler.metrics()["fluence_missing_parts"] == load.lacking())  # fmt: skip
    assert scheduler.metrics()["fluence_resources_changes_total"] == EDITS
    assert given >= EDITS // 4, "pods got devices all the time"
    names = sorted({path.rpartition("/")[2] for paths in load.held().values() for path in paths})
    assert names
    write(scenario, scheduler, json.dumps({"resources": [{"type": "qpu", "name": name} for name in names]}))
    scenario.until("nothing to be missing", lambda: scheduler.metrics()["fluence_missing_parts"] == 0)
    assert drift(scheduler) == [0, 0]
    scenario.check()
