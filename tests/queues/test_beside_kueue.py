"""The controller beside Kueue: neither changes what the other wrote, and jobs live on while their pool is silent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fluence_plugins.master_queue.amounts import amount_text

from .controller_process import ControllerProcess, ControllerSettings
from .nats_peer import NatsServer
from .plane import CLUSTER_QUEUES, CONTROLLER, FLAVORS, QueuesPlane
from .samples import JOB, LOCAL_QUEUE, cluster_queue, master_queue, read

SUBJECT = "interlink.resources"
POOL = "podman-firenze"
FLAVOR = f"masterqueue-interlink-{POOL}"
MESSAGE: dict[str, Any] = {
    "quotas": {"cpu": "7500m", "memory": "33000Mi", "pods": 30, "nvidia.com/gpu": 0},
    "labels": ["site=firenze"],
    "taints": ["example.com/slow=yes:PreferNoSchedule"],
}
REPEATED = 50


@pytest.fixture
def controller(kueue_plane: QueuesPlane, tmp_path: Path) -> Iterator[ControllerProcess]:
    """The controller, ready, beside Kueue. Its status shows only changes, not the time of each message."""
    with ControllerProcess(tmp_path, kueue_plane, ControllerSettings(controller={"statusSeconds": 3600})) as process:
        process.start()
        process.wait_ready()
        yield process
        assert process.terminate().status == 0


def test_kueue_leaves_amounts_as_they_were_written(kueue_plane: QueuesPlane) -> None:
    memory = (0, 1, 1000, 1024, 1500, 1024 * 1000, 33_000 * 2**20, 32 * 2**30, 10**12)
    amounts = {
        "cpu": [0, 1, 500, 1000, 1500, 10_000, 1_000_000, 1_234_567_000],
        "memory": [1000 * number for number in memory],
        "pods": [0, 1000, 999_000, 1_000_000, 1_500_000],
    }
    for resource, values in amounts.items():
        written = [amount_text(resource, value) for value in values]
        flavors = {f"f{index}": {resource: text} for index, text in enumerate(written)}
        made = kueue_plane.add(cluster_queue(resource, "cohort", flavors, flavors))
        found = [one["resources"][0] for one in made["spec"]["resourceGroups"][0]["flavors"]]
        assert [one["nominalQuota"] for one in found] == written
        assert [one["borrowingLimit"] for one in found] == written


def test_messages_that_say_nothing_new_are_not_written(
    controller: ControllerProcess, kueue_plane: QueuesPlane, nats: NatsServer
) -> None:
    kueue_plane.create(master_queue(nats.url))
    nats.wait_subscribed(f"{SUBJECT}.*")
    nats.publish(f"{SUBJECT}.{POOL}", MESSAGE)
    kueue_plane.until(CLUSTER_QUEUES, lambda found: _pods(found) == "30")
    kueue_plane.until("/apis/vk.io/v1/masterqueues", lambda found: _told(found) == "30")
    writes = kueue_plane.writes()
    nats.publish_all([(f"{SUBJECT}.{POOL}", MESSAGE)] * REPEATED)
    changed = {**MESSAGE, "quotas": {**MESSAGE["quotas"], "pods": 31}}  # what comes in order is done with after it
    nats.publish(f"{SUBJECT}.{POOL}", changed)
    kueue_plane.until("/apis/vk.io/v1/masterqueues", lambda found: _told(found) == "31")
    assert _pods(kueue_plane.items(CLUSTER_QUEUES)) == "31"
    _until(lambda: writes.counted(CONTROLLER).total() >= 2)
    counted = writes.counted(CONTROLLER)
    assert counted.pop(("masterqueues/status", "patch")) == 1
    assert counted == {("clusterqueues", "patch"): 1}


def test_a_job_runs_on_while_its_pool_is_silent_and_the_next_waits_for_the_pool(
    controller: ControllerProcess, kueue_plane: QueuesPlane, nats: NatsServer
) -> None:
    master = master_queue(nats.url)
    master["spec"]["flavors"][0]["natsFlavor"]["poolTimeout"] = 2
    kueue_plane.create(master)
    nats.wait_subscribed(f"{SUBJECT}.*")
    _until(
        lambda: _stop_policy(kueue_plane.items(CLUSTER_QUEUES)) == "None",
        lambda: nats.publish(f"{SUBJECT}.{POOL}", MESSAGE),
    )
    kueue_plane.add(read(LOCAL_QUEUE))
    first = kueue_plane.add(read(JOB))["metadata"]["name"]
    _until(lambda: _runs(kueue_plane, first), lambda: nats.publish(f"{SUBJECT}.{POOL}", MESSAGE))
    kueue_plane.until(CLUSTER_QUEUES, lambda found: _stop_policy(found) == "Hold")
    second = kueue_plane.add(read(JOB))["metadata"]["name"]
    kueue_plane.until_counted("group1", "pendingWorkloads", 1)
    assert _runs(kueue_plane, first)
    assert not _runs(kueue_plane, second)
    assert FLAVOR in kueue_plane.items(FLAVORS)
    _until(lambda: _runs(kueue_plane, second), lambda: nats.publish(f"{SUBJECT}.{POOL}", MESSAGE))
    assert _runs(kueue_plane, first)


def test_a_flavor_that_somebody_deletes_is_let_go_and_made_again(
    controller: ControllerProcess, kueue_plane: QueuesPlane, nats: NatsServer
) -> None:
    """Kueue does not let a flavor go that a queue names."""
    kueue_plane.create(master_queue(nats.url))
    nats.wait_subscribed(f"{SUBJECT}.*")
    nats.publish(f"{SUBJECT}.{POOL}", MESSAGE)
    kueue_plane.until(CLUSTER_QUEUES, lambda found: _pods(found) == "30")
    uid = kueue_plane.items(FLAVORS)[FLAVOR]["metadata"]["uid"]
    assert kueue_plane.request("DELETE", f"{FLAVORS}/{FLAVOR}")[0] == 200
    kueue_plane.until(FLAVORS, lambda found: FLAVOR in found and found[FLAVOR]["metadata"]["uid"] != uid)
    kueue_plane.until(CLUSTER_QUEUES, lambda found: _pods(found) == "30")


def _until(true: Any, before: Any = lambda: None, seconds: float = 30.0) -> None:
    """Return once it is so; `before` is done ahead of each look."""
    deadline = time.monotonic() + seconds
    while True:
        before()
        if true():
            return
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.2)


def _runs(plane: QueuesPlane, job: str) -> bool:
    return plane.request("GET", f"/apis/batch/v1/namespaces/default/jobs/{job}")[1]["spec"]["suspend"] is False


def _pods(queues: dict[str, dict[str, Any]]) -> str | None:
    """The main queue's pods of its first flavor; None while it has no pool."""
    first = queues["masterqueue"]["spec"]["resourceGroups"][0]["flavors"][0] if "masterqueue" in queues else {}
    quotas = {one["name"]: one["nominalQuota"] for one in first.get("resources", ())}
    return quotas["pods"] if first.get("name") == FLAVOR else None


def _told(masters: dict[str, dict[str, Any]]) -> str | None:
    """The pods that the status says the pool published."""
    pools = masters["masterqueue"].get("status", {}).get("pools") or [{}]
    found = pools[0].get("quota", {}).get("pods")
    return None if found is None else str(found)


def _stop_policy(queues: dict[str, dict[str, Any]]) -> str | None:
    return queues["group1"]["spec"]["stopPolicy"] if "group1" in queues else None
