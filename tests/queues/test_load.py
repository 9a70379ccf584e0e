"""Many pools that publish often: what is written, how soon, and what it costs."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from .controller_process import ControllerProcess, ControllerSettings
from .nats_peer import NatsServer
from .plane import CLUSTER_QUEUES, CONTROLLER, FLAVORS, MASTER_QUEUES, QueuesPlane
from .samples import master_queue

SUBJECT = "interlink.resources"
POOLS, RATE, SECONDS = 100, 10, 60
STATUS_SECONDS = 30
CHANGES = 40


def halves(nats: NatsServer) -> list[dict[str, Any]]:
    """Two MasterQueues of fifty pools each: a queue of Kueue can have 64 flavors."""
    found = []
    for name in ("a", "b"):
        master = master_queue(nats.url)
        master["metadata"]["name"] = f"half-{name}"
        flavor = master["spec"]["flavors"][0]
        flavor["natsFlavor"]["poolRegExp"] = f"{name}-.*"
        flavor["canLendTo"][0]["queue"] = f"group-{name}"
        found.append(master)
    return found


def pools() -> list[str]:
    return [f"{'ab'[number % 2]}-{number:03}" for number in range(POOLS)]


def message(pods: int) -> dict[str, Any]:
    return {"quotas": {"cpu": "8", "memory": "32Gi", "pods": pods, "nvidia.com/gpu": 0}, "labels": ["site=one"]}


def resident(process: ControllerProcess) -> float:
    """MiB."""
    return process.metrics()["fluence_process_resident_memory_bytes"] / 2**20


def test_a_hundred_pools_that_publish_ten_times_a_second(plane: QueuesPlane, nats: NatsServer, tmp_path: Path) -> None:
    for master in halves(nats):
        plane.create(master)
    settings = ControllerSettings(controller={"statusSeconds": STATUS_SECONDS})
    with ControllerProcess(tmp_path, plane, settings) as process:
        process.start()
        process.wait_ready()
        nats.wait_subscribed(f"{SUBJECT}.*")
        everybody = [(f"{SUBJECT}.{pool}", message(50)) for pool in pools()]
        nats.publish_all(everybody)
        plane.until(FLAVORS, lambda found: len(found) >= POOLS)
        plane.until(CLUSTER_QUEUES, lambda found: all(_flavors(found, f"half-{half}") == POOLS // 2 for half in "ab"))
        plane.until(MASTER_QUEUES, lambda found: [_active(found[f"half-{half}"]) for half in "ab"] == [POOLS // 2] * 2)

        writes, before = plane.writes(), resident(process)
        began = time.monotonic()
        for turn in range(1, RATE * SECONDS + 1):
            nats.publish_all(everybody)
            time.sleep(max(0.0, began + turn / RATE - time.monotonic()))
        while _messages(process) < (RATE * SECONDS + 1) * POOLS:
            assert time.monotonic() - began < SECONDS + 60
            time.sleep(0.1)
        passed = time.monotonic() - began
        reported = writes.counted(CONTROLLER)
        assert set(reported) <= {("masterqueues/status", "patch")}
        assert reported.total() <= 2 * (passed // STATUS_SECONDS + 1)  # when they were heard last, of both
        assert _messages(process) == (RATE * SECONDS + 1) * POOLS
        assert resident(process) - before < 8

        seconds, bare = [], []
        for pods in range(100 - CHANGES, 100):
            seconds.append(changed(plane, nats, pods))
            bare.append(written(plane, pods))
        found, write = statistics.median(seconds), statistics.median(bare)
        print(f"from message to object: median {found:.3f} s, most {max(seconds):.3f} s; a write {write:.3f} s")
        assert found < 0.1 + 10 * write  # however busy the machine is
        assert process.terminate().status == 0
    assert "Traceback" not in process.log.read_text()


def changed(plane: QueuesPlane, nats: NatsServer, pods: int) -> float:
    """Seconds from a message, among those of all others, to the queue that has it."""
    nats.publish_all([(f"{SUBJECT}.{pool}", message(50)) for pool in pools()[1:]])
    began = time.monotonic()
    nats.publish(f"{SUBJECT}.{pools()[0]}", message(pods))
    while True:
        found = plane.item(CLUSTER_QUEUES, "half-a")
        assert found is not None
        first = found["spec"]["resourceGroups"][0]["flavors"][0]
        if {one["name"]: one["nominalQuota"] for one in first["resources"]}["pods"] == str(pods):
            return time.monotonic() - began
        assert time.monotonic() - began < 30
        time.sleep(0.005)


def written(plane: QueuesPlane, pods: int) -> float:
    """Seconds that writing such an object, and reading it, takes now."""
    began = time.monotonic()
    plane.request("PATCH", f"{CLUSTER_QUEUES}/half-b", {"metadata": {"annotations": {"pods": str(pods)}}})
    plane.item(CLUSTER_QUEUES, "half-b")
    return time.monotonic() - began


def _active(master: dict[str, Any]) -> Any:
    return master.get("status", {}).get("activePools")


def _flavors(queues: dict[str, dict[str, Any]], name: str) -> int:
    groups = queues[name]["spec"]["resourceGroups"] if name in queues else ()
    return sum(len(group["flavors"]) for group in groups)


def _messages(process: ControllerProcess) -> float:
    return process.metrics()[f'fluence_masterqueue_messages_total{{result="taken",subject="{SUBJECT}"}}']


def test_seventy_pools_are_more_than_a_queue_takes(plane: QueuesPlane, nats: NatsServer, tmp_path: Path) -> None:
    plane.create(master_queue(nats.url))
    with ControllerProcess(tmp_path, plane) as process:
        process.start()
        process.wait_ready()
        nats.wait_subscribed(f"{SUBJECT}.*")
        nats.publish_all([(f"{SUBJECT}.p{number:03}", message(1)) for number in range(70)])
        plane.until(MASTER_QUEUES, lambda found: len(found["masterqueue"].get("status", {}).get("problems", ())) == 6)
        assert _flavors(plane.items(CLUSTER_QUEUES), "masterqueue") == 64
