"""Pods per second of `simulate`: 1,000 and 5,000 nodes, 10,000 pods: single, in gangs, with pod affinity, with claims.

Not a test: run `make bench`. Every row is placed twice in one process: by the whole product (graph and filters) and by
the core alone (plugin `fluence` disabled). So the ratio is meaningful where the times are not.

`--large` measures the command `fluence simulate` with 10,000 nodes and 50,000 pods instead: processor seconds and the
peak of its memory. With `--other PATH`, a checkout with compiled modules, each round runs that one, too, and the table
has the median of the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from session_scheduler.config.settings import PluginConfig, Profile, SchedulerConfig
from session_scheduler.offline.simulate import place_all
from session_scheduler.offline.state import open_state, read_state


def node(index: int) -> dict[str, Any]:
    offers = {"cpu": "32", "memory": "128Gi", "pods": "110"}
    labels = {"kubernetes.io/hostname": f"n{index}", "topology.kubernetes.io/zone": f"z{index % 3}"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"n{index}", "labels": labels},
        "status": {"allocatable": offers, "capacity": offers},
    }


DRIVER = "gpu.example.com"
DEVICE_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == {DRIVER!r}"}}]},
}
DEVICES = 16
"""The devices of a node with devices. As many nodes have them as all pods need."""


def devices(index: int) -> dict[str, Any]:
    pool = {"name": f"n{index}", "generation": 1, "resourceSliceCount": 1}
    listed = [{"name": f"d{number}"} for number in range(DEVICES)]
    spec = {"driver": DRIVER, "nodeName": f"n{index}", "pool": pool, "devices": listed}
    metadata = {"name": f"n{index}-devices"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def claim(index: int) -> dict[str, Any]:
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu", "count": 1}}]
    metadata = {"name": f"c{index}", "namespace": "default"}
    spec = {"devices": {"requests": requests}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
ALIKE = {"matchLabels": {"app": "a"}}
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "claims": {},
    "soft spread": {
        "topologySpreadConstraints": [
            {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": ALIKE}
            for key, skew in ((HOSTNAME, 3), (ZONE, 5))
        ]
    },
    "anti-affinity": {
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": HOSTNAME, "labelSelector": ALIKE}]
            }
        }
    },
}
"""The constraints of the pods besides resources."""


def pod(index: int, group: str | None, shape: str = "plain") -> dict[str, Any]:
    spec: dict[str, Any] = {
        "schedulerName": "fluence",
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "100m", "memory": "500Mi"}}}],
    }
    if group is not None:
        spec["schedulingGroup"] = {"podGroupName": group}
    spec |= SHAPES[shape]
    if shape == "claims":
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": f"c{index}"}]
    metadata = {"name": f"p{index}", "labels": {"app": "a", "index": str(index)}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def pod_group(name: str, size: int) -> dict[str, Any]:
    policy = {"gang": {"minCount": size}}
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": policy},
    }


def cluster(nodes: int, pods: int, gang: int, shape: str) -> Iterator[dict[str, Any]]:
    for index in range(nodes):
        yield node(index)
    if shape == "claims":
        yield DEVICE_CLASS
        yield from (devices(index) for index in range(min(nodes, -(-pods // DEVICES))))
        yield from (claim(index) for index in range(pods))
    for index in range(min(pods, nodes) if shape == "anti-affinity" else pods):
        if gang > 1 and index % gang == 0:
            yield pod_group(f"g{index // gang}", gang)
        yield pod(index, f"g{index // gang}" if gang > 1 else None, shape)


async def measure(file: Path, config: SchedulerConfig) -> tuple[float, float, int]:
    """Returns seconds to load, seconds to place, and placed pods."""
    started = time.perf_counter()
    scheduler = await open_state(await read_state([str(file)]), config)
    loaded = time.perf_counter()
    result = await place_all(scheduler)
    return loaded - started, time.perf_counter() - loaded, result["summary"]["scheduled"]


LARGE = (10_000, 50_000)
HERE = Path(__file__).parents[2]


def command(checkout: Path, file: Path) -> tuple[float, float]:
    """Returns the processor seconds and the peak of memory in MB of a checkout's `fluence simulate`."""
    folders = ("scheduler", "plugins", "fluxion_cy/src")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(checkout / folder) for folder in folders)}
    words = [sys.executable, "-m", "session_scheduler.cli", "simulate", str(file), "-o", "json"]
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"fluence simulate of {checkout} ended with status {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def large(rounds: int, other: Path | None) -> Table:
    """Measure `fluence simulate` of this checkout, and of another one, in turn."""
    table = Table("nodes", "pods", "round", "cpu s", "MB", "other cpu s", "other MB", "cpu ×", "MB ×", box=None)
    nodes, pods = LARGE
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cluster.json"
        items = list(cluster(nodes, pods, 1, "plain"))
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        del items
        for number in range(1, rounds + 1):
            ours = command(HERE, file)
            if other is None:
                table.add_row(str(nodes), str(pods), str(number), f"{ours[0]:.1f}", f"{ours[1]:.0f}")
                continue
            theirs = command(other, file)
            ratio = (ours[0] / theirs[0], ours[1] / theirs[1])
            ratios.append(ratio)
            shown = (f"{ours[0]:.1f}", f"{ours[1]:.0f}", f"{theirs[0]:.1f}", f"{theirs[1]:.0f}")
            table.add_row(str(nodes), str(pods), str(number), *shown, *(f"{each:.2f}" for each in ratio))
    if ratios:
        medians = (f"{median(column):.2f}" for column in zip(*ratios, strict=True))
        table.add_row("", "", "median", "", "", "", "", *medians)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--large", action="store_true", help="10,000 nodes, 50,000 pods, by the command")
    parser.add_argument("--other", type=Path, metavar="PATH", help="with --large: a checkout to compare with")
    parser.add_argument("--rounds", type=int, default=3, help="of --large")
    options = parser.parse_args()
    if options.large:
        Console(width=120).print(large(options.rounds, options.other))
        return
    whole = SchedulerConfig()
    core = SchedulerConfig(profiles=(Profile(plugins=(PluginConfig(name="fluence", enabled=False),)),))
    table = Table(
        "nodes", "pods", "in gangs of", "wanting", "by", "load s", "place s", "pods/s", "us/pod", "placed", box=None
    )
    for nodes in options.nodes:
        for gang, shape in ((1, "plain"), (20, "plain"), (1, "soft spread"), (1, "anti-affinity"), (1, "claims")):
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "cluster.json"
                items = list(cluster(nodes, options.pods, gang, shape))
                file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
                for name, config in (("core", core), ("core and graph", whole)):
                    load, place, placed = asyncio.run(measure(file, config))
                    rate, cost = placed / place, 1e6 * place / max(1, placed)
                    times = (f"{load:.2f}", f"{place:.2f}", f"{rate:,.0f}", f"{cost:.0f}")
                    table.add_row(*map(str, (nodes, options.pods, gang, shape, name)), *times, str(placed))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
