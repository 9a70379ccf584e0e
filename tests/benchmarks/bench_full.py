"""CPU seconds of `simulate` in a full cluster: thousands of pending pods that fit nowhere, of one or many shapes.

Not a test: run `make bench`. Shapes differ in their requests; with `--mixed`, half of them also differ in a selector,
tolerations, a topology spread or a device. With `--claims`, each pod has an equal claim of its own, and no node has a
device; with `--running 1`, devices are all that is missing. The column `to one shape` is the time divided by that of
the first number of shapes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from session_scheduler.config.settings import PluginConfig, Profile, SchedulerConfig
from session_scheduler.offline.simulate import place_all
from session_scheduler.offline.state import open_state, read_state

RUNNING = 4
"""The running pods of a full node. They request all of its cpu."""
HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
DEVICE_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]},
}


def node(index: int) -> dict[str, Any]:
    offers = {"cpu": "32", "memory": "128Gi", "pods": "110"}
    labels = {HOSTNAME: f"n{index}", ZONE: f"z{index % 3}", "rack": f"r{index % 40}"}
    taints = [{"key": "dedicated", "value": f"team{index % 5}", "effect": "NoSchedule"}] if index % 10 == 0 else []
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"n{index}", "labels": labels},
        "spec": {"taints": taints},
        "status": {"allocatable": offers, "capacity": offers},
    }


def pod(name: str, requests: dict[str, str], more: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
    spec = {"schedulerName": "fluence", "containers": [{"name": "c", "resources": {"requests": requests}}]} | more
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def with_claim(name: str) -> dict[str, Any]:
    return {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}


def constraint(shape: int, claim: str) -> dict[str, Any]:
    """What distinguishes a mixed shape besides its requests."""
    number = shape // 8
    spread = {"maxSkew": 1 + number, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
    alike = {"labelSelector": {"matchLabels": {"app": f"a{shape}"}}}
    kinds: tuple[dict[str, Any], ...] = (
        {"nodeSelector": {"rack": f"r{number % 40}"}},
        {"tolerations": [{"key": "dedicated", "value": f"team{number % 5}", "operator": "Equal"}]},
        {"topologySpreadConstraints": [spread | alike]},
        with_claim(claim),
    )
    return kinds[(shape // 2) % len(kinds)]


def resource_claim(name: str) -> dict[str, Any]:
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu", "count": 1}}]
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata,
            "spec": {"devices": {"requests": requests}}}  # fmt: skip


def cluster(
    nodes: int, pods: int, shapes: int, *, mixed: bool, claims: bool = False, running: int = RUNNING
) -> Iterator[dict[str, Any]]:
    yield DEVICE_CLASS
    for index in range(nodes):
        yield node(index)
        for number in range(running):
            there = {"nodeName": f"n{index}"}
            yield pod(f"r{index}-{number}", {"cpu": "8", "memory": "4Gi"}, there, {"app": f"a{number}"})
    for index in range(pods):
        shape = index % shapes
        more = with_claim(f"c{index}") if claims else {}
        if mixed and shape % 2:
            more |= constraint(shape, f"c{index}")
        if "resourceClaims" in more:
            yield resource_claim(f"c{index}")
        requests = {"cpu": f"{100 + shape}m", "memory": f"{500 + shape % 7}Mi"}
        yield pod(f"p{index}", requests, more, {"app": f"a{shape}"})


async def measure(file: Path, config: SchedulerConfig) -> tuple[float, float, int]:
    """Returns CPU seconds to load, CPU seconds to schedule, and unschedulable pods."""
    started = time.process_time()
    scheduler = await open_state(await read_state([str(file)]), config)
    loaded = time.process_time()
    result = await place_all(scheduler)
    return loaded - started, time.process_time() - loaded, result["summary"]["unschedulable"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--shapes", type=int, nargs="+", default=[1, 40, 150, 500])
    parser.add_argument("--mixed", action="store_true", help="let half of the shapes differ in more than requests")
    parser.add_argument("--claims", action="store_true", help="give each pod a claim for a device")
    parser.add_argument("--running", type=int, default=RUNNING, help="the running pods of a node; 4 fill it")
    parser.add_argument("--core", action="store_true", help="disable the plugin fluence")
    options = parser.parse_args()
    profiles = (Profile(plugins=(PluginConfig(name="fluence", enabled=False),)),) if options.core else None
    config = SchedulerConfig(profiles=profiles) if profiles else SchedulerConfig()
    table = Table("nodes", "pods", "shapes", "mixed", "load s", "schedule s", "to one shape", "unschedulable", box=None)
    first = 0.0
    for shapes in options.shapes:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "cluster.json"
            more = {"mixed": options.mixed, "claims": options.claims, "running": options.running}
            items = list(cluster(options.nodes, options.pods, shapes, **more))
            file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
            load, took, left = asyncio.run(measure(file, config))
        first = first or took
        numbers = (options.nodes, options.pods, shapes, "yes" if options.mixed else "no")
        table.add_row(*map(str, numbers), f"{load:.2f}", f"{took:.2f}", f"{took / first:.2f}", str(left))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
