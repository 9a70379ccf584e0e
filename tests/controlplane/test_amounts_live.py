"""Cpu counted in millicores and kinds of gpu on a real control plane, with its controllers, and over restarts."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import yaml

from .invariants import Manifest
from .scenarios_world import EXAMPLES, Scenario
from .scheduler_process import SchedulerProcess, Settings

HELD = "fluence.flux-framework.org/held"


def held_of(pod: Manifest) -> Counter[str]:
    """Return the amounts of the host in a pod's record."""
    jobs = json.loads(pod["metadata"]["annotations"][HELD])["plugins"]["fluence"]["jobs"].values()
    found: Counter[str] = Counter()
    for part in jobs:
        found.update({kind: part.get(kind, 0) for kind in ("millicores", "pods", "memory")})
        found.update({kind: len(part[kind]) for kind in ("cores", "gpus")})
        found.update({kind: len(indices) for kind, indices in part.get("otherGpus", {}).items()})
    return +found


def counting(scenario: Scenario, cpu: str) -> Settings:
    return replace(scenario.settings, arguments={"cpuAccounting": cpu})


def started_anew(scheduler: SchedulerProcess, settings: Settings) -> None:
    scheduler.kill()
    scheduler.settings = settings
    scheduler.start()
    scheduler.wait_ready()


def drift(scheduler: SchedulerProcess) -> float:
    return sum(count for name, count in scheduler.metrics().items() if name.startswith("fluence_graph_drift_pods"))


def test_small_pods_fit_beside_those_of_the_former_default_after_the_upgrade(scenario: Scenario) -> None:
    """`cores` was the default: the records of that scheduler are converted, and nothing is evicted or bound again."""
    scenario.add_node(cpu=4, devices=2)
    scheduler = scenario.run(counting(scenario, "cores"))
    scenario.create_group("gang", 2)
    ours = ["single", "gang-0", "gang-1", "device"]
    scenario.create_pod("single", cpu="100m")
    for name in ours[1:3]:
        scenario.create_pod(name, "gang", cpu="100m")
    scenario.create_pod("device", device=True, cpu="100m")
    scenario.wait_bound(*ours)
    scenario.wait_whole("gang", 2)
    records = {name: scenario.pod(name)["metadata"]["annotations"][HELD] for name in ours}
    scenario.create_pod("small", cpu="100m")
    scenario.wait_refused("small", "(a request of 100m counts as 1 whole core with cpuAccounting: cores)")

    started_anew(scheduler, scenario.settings)
    scenario.wait_bound("small")
    assert held_of(scenario.pod("small")) == {"millicores": 100, "memory": 64, "pods": 1}
    scenario.create_pod("idle", cpu="800m")
    scenario.wait_bound("idle")
    scenario.create_group("late", 1)
    scenario.create_pod("late-0", "late", cpu="0")
    scenario.wait_refused(
        "late-0",
        "no node has 1 free core (a pod without a CPU request counts as 1 whole core with cpuAccounting: auto); the "
        "only candidate node has 0",
    )
    scenario.end("device")
    scenario.wait_whole("late", 1)
    assert held_of(scenario.pod("late-0")) == {"millicores": 1000, "memory": 64, "pods": 1}

    started_anew(scheduler, scenario.settings)
    assert drift(scheduler) == 0
    assert all(scenario.pod(name)["metadata"]["annotations"][HELD] == records[name] for name in ours[:3])
    scenario.check()


def test_the_example_of_small_pods_runs_whole_and_each_pod_holds_what_it_requests(scenario: Scenario) -> None:
    folder = EXAMPLES / "06-small-pods"
    nodes = yaml.safe_load((folder / "cluster.yaml").read_text())["items"]
    offers = {node["metadata"]["name"]: node["status"]["allocatable"] for node in nodes}
    for name, amounts in offers.items():
        scenario.nodes.append(f"{scenario.namespace}-{name}")
        scenario.plane.new_node(scenario.nodes[-1], **amounts)
    scheduler = scenario.new_scheduler()
    (profile,) = yaml.safe_load((folder / "config.yaml").read_text())["profiles"]
    (plugin,) = profile["plugins"]
    scheduler.settings = replace(scenario.settings, arguments=plugin["args"])
    scheduler.start()
    scheduler.wait_ready()
    scenario.apply(folder / "workloads.yaml")

    def all_bound() -> list[Manifest] | None:
        bound = [pod for pod in scenario.pods() if pod["spec"].get("nodeName")]
        return bound if len(bound) == 19 else None

    pods = {pod["metadata"]["name"]: pod for pod in scenario.until("19 bound pods", all_bound)}
    assert pods["on-nvidia"]["spec"]["nodeName"] == f"{scenario.namespace}-n1"
    assert held_of(pods["on-nvidia"]) == {"millicores": 500, "memory": 256, "gpus": 1, "pods": 1}
    assert pods["on-amd"]["spec"]["nodeName"] == f"{scenario.namespace}-n2"
    assert held_of(pods["on-amd"]) == {"millicores": 500, "memory": 256, "amd.com/gpu": 1, "pods": 1}
    assert held_of(pods["idle"]) == {"pods": 1}
    total = sum(map(held_of, pods.values()), Counter())
    assert (total["millicores"], total["pods"]) == (3500, 19)
    assert drift(scheduler) == 0
    scenario.wait_whole("trace", 6)
    scenario.check("trace")


def test_what_pods_hold_is_theirs_over_restarts_in_whichever_way_it_is_counted(scenario: Scenario) -> None:
    node = scenario.add_node(cpu=2, devices=0)
    scheduler = scenario.run(counting(scenario, "millicores"))
    scenario.occupy("foreign", node, cpu="250m")
    names = [f"small-{number}" for number in range(7)]
    for name in names:
        scenario.create_pod(name, cpu="250m")
    scenario.wait_bound(*names)
    records = {name: scenario.pod(name)["metadata"]["annotations"][HELD] for name in names}

    started_anew(scheduler, counting(scenario, "millicores"))
    scenario.create_pod("ninth", cpu="250m")
    scenario.wait_refused("ninth")
    assert drift(scheduler) == 0
    scenario.end("small-0")
    scenario.wait_bound("ninth")

    started_anew(scheduler, counting(scenario, "cores"))
    assert scheduler.metrics()["fluence_held_pods"] == 2, "as many as the node has cores; the others are load"
    scenario.create_pod("tenth", cpu="100m")
    scenario.end("small-1")
    scenario.wait_refused(
        "tenth",
        "no node has 1 free core (a request of 100m counts as 1 whole core with cpuAccounting: cores); the only "
        "candidate node has 0",
    )
    assert drift(scheduler) == 0
    for name in (*names[2:], "ninth"):  # whichever of them has a core
        scenario.end(name)
    scenario.wait_bound("tenth")
    assert held_of(scenario.pod("tenth")) == {"cores": 1, "memory": 64}

    started_anew(scheduler, counting(scenario, "millicores"))
    scenario.create_pod("rest", cpu="1650m")
    scenario.wait_bound("rest")
    assert held_of(scenario.pod("rest")) == {"millicores": 1650, "memory": 64, "pods": 1}
    assert all(scenario.pod(name)["metadata"]["annotations"][HELD] == records[name] for name in names)
    scenario.check()
