"""Maintenance windows where the resource graph places: on the fast path, for gangs, for devices, and after changes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.tools.real_engine import embedded_only

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.plugin import FluencePlugin
from fluence_plugins.fluence.tasks.window_ends import CHECK_SECONDS, retry_after_windows
from fluence_plugins.resources.config import load_resources
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.engine.explain import explain_pending
from session_scheduler.model.objects import Pod
from session_scheduler.testing import FakeCluster, gang, node, pod

pytestmark = embedded_only  # the library's clock does not advance

DURATION = "fluence.flux-framework.org/duration"
QPU = "fluxion.flux-framework.org/qpu"
HOUR = 3600.0
FIRST = FakeCluster().clock.wall()
"""The start of each test in seconds since 1970: its second 0."""
TREES = """
resources:
  - {type: qpu, name: aurora, count: 1}
  - {type: qpu, name: below, parent: n2}
"""


def at(seconds: float) -> str:
    return f"{datetime.fromtimestamp(FIRST + seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def window(start: float, end: float, **closed: Any) -> str:
    (field, names), *named = closed.items()
    return f"  - {{{field}: [{', '.join(names)}], start: '{at(start)}', end: '{at(end)}'" + "".join(
        f", {key}: {value}" for key, value in named
    ) + "}\n"  # fmt: skip


class World:
    """Two nodes, n1 and n2, at second 0; `lines` are windows."""

    def __init__(self, folder: Path, *lines: str, policy: str = "first", cpu: str = "4") -> None:
        file = folder / "resources.yaml"
        file.write_text(TREES + ("windows:\n" + "".join(lines) if lines else ""))
        self.plugin = FluencePlugin(FluenceArguments(resources=str(file), match_policy=policy))
        self.cluster = FakeCluster(checked=False)
        self.cluster.add(*(node(name, cpu=cpu, offers={QPU: "8"}) for name in ("n1", "n2")))
        self._begun = False

    def windows(self, *lines: str) -> None:
        text = TREES + ("windows:\n" + "".join(lines) if lines else "")
        self.plugin.set_resources(load_resources(text, "resources.yaml"))

    def run(self, *objects: Any, later: float = 0.0) -> World:
        self.cluster.add(*objects)
        self.cluster.advance(later)
        self.cluster.run(*(() if self._begun else (self.plugin,)))
        self._begun = True
        return self

    def node(self, name: str) -> str | None:
        return self.cluster.node_of(name) or None

    def why(self, name: str) -> str:
        return self.cluster.reasons(name)


def lasting(name: str, seconds: float, **options: Any) -> Pod:
    return pod(name, annotations={DURATION: str(int(seconds))}, **options)


N1 = {"nodes": ["n1"]}


@pytest.mark.parametrize("policy", ["first", "high", "low", "lonodex", "locality"])
def test_a_pod_fits_before_a_window_only_if_it_ends_in_time(policy: str, tmp_path: Path) -> None:
    world = World(tmp_path, window(HOUR, 2 * HOUR, **N1), window(HOUR, 3 * HOUR, nodes=["n2"]), policy=policy)
    world.run(lasting("short", HOUR), lasting("long", HOUR + 1), pod("endless"))
    assert world.node("short")
    assert not world.node("long")
    assert not world.node("endless")
    assert f"node n1 must be free for maintenance window from {at(HOUR)} to" in world.why("endless")


def test_during_a_window_no_pod_starts_and_running_pods_stay(tmp_path: Path) -> None:
    world = World(tmp_path, window(0.0, HOUR, nodes=["n1"], name="firmware"))
    world.run(pod("runs", cpu="1", bound_to="n1"), pod("full", cpu="4", bound_to="n2"), lasting("new", 1, cpu="2"))
    assert (world.node("runs"), world.node("new")) == ("n1", None)
    assert f"node n1 is in maintenance window firmware from {at(0)} to {at(HOUR)}" in world.why("new")
    assert world.run(later=HOUR - 1).node("new") is None
    assert world.run(later=600).node("new") == "n1"


def test_a_past_window_has_no_effect(tmp_path: Path) -> None:
    world = World(tmp_path, window(0.0, HOUR, nodes=["n1", "n2"]))
    world.cluster.advance(HOUR)
    assert world.run(pod("p")).node("p")
    assert world.run(gang("g", 2)).node("g-1")


def test_a_gang_avoids_a_window_as_a_whole(tmp_path: Path) -> None:
    world = World(tmp_path, window(HOUR, 2 * HOUR, **N1))
    world.run(gang("g", 3, cpu="2"), gang("h", 2, cpu="1", annotations={DURATION: "1h"}))
    assert [world.node(f"g-{index}") for index in range(3)] == [None] * 3
    assert all(world.node(f"h-{index}") for index in range(2))
    assert "n1" in world.why("g-0")


@pytest.mark.parametrize(
    ("closed", "free"),
    [({"backends": ["aurora"]}, "below"), ({"backends": ["below"]}, "aurora"), ({"nodes": ["n2"]}, "aurora")],
)
def test_closed_devices_are_not_matched(closed: dict[str, Any], free: str, tmp_path: Path) -> None:
    world = World(tmp_path, window(0.0, HOUR, **closed))
    world.run(pod("a", cpu="1", requests={QPU: "1"}), pod("b", cpu="1", requests={QPU: "1"}))
    backends = [
        world.cluster.find(Pod, name).metadata.annotations.get("fluence.flux-framework.org/backend") for name in "ab"
    ]
    assert sorted(filter(None, backends)) == [free]
    waits = "b" if backends[0] else "a"
    assert "maintenance window from" in world.why(waits)
    assert "the pod requests 1 qpu, and 0 of 2 are free" in world.why(waits)
    world.run(later=HOUR)
    assert world.node(waits)


def test_windows_change_with_the_resources(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run(pod("first", cpu="1"))
    world.windows(window(0.0, HOUR, nodes=["n1", "n2"]))
    world.run(pod("second", cpu="1"))
    assert not world.node("second")
    world.windows()
    assert world.run(later=600).node("second")
    assert world.node("first")


def test_no_pod_is_preempted_on_a_node_in_a_window(tmp_path: Path) -> None:
    world = World(tmp_path, window(0.0, HOUR, nodes=["n1"]))
    world.run(pod("one", cpu="4", priority=1, bound_to="n1"), pod("two", cpu="4", priority=1, bound_to="n2"))
    world.run(pod("high", cpu="4", priority=10))
    assert world.cluster.scheduler.cache.nominations.node_by_uid == {world.cluster.find(Pod, "high").metadata.uid: "n2"}


def test_the_end_of_a_window_requeues_waiting_groups() -> None:
    plugin = FluencePlugin(FluenceArguments(resources_text=TREES + "windows:\n" + window(0.0, HOUR, nodes=["n1"])))
    seconds, requeued = [FIRST + HOUR - 3 * CHECK_SECONDS / 2], []

    async def sleep(length: float) -> None:
        seconds[0] += length
        if seconds[0] > FIRST + HOUR + 3 * CHECK_SECONDS:
            raise asyncio.CancelledError

    def change(work: Any) -> None:
        work()
        requeued.append(seconds[0])

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(retry_after_windows(plugin._maintenance, change, sleep=sleep, wall=lambda: seconds[0]))
    assert requeued == [FIRST + HOUR + CHECK_SECONDS / 2]


def test_a_duration_of_the_group_counts_for_its_pods(tmp_path: Path) -> None:
    world = World(tmp_path, window(HOUR, 2 * HOUR, nodes=["n1", "n2"]))
    group, *pods = gang("g", 2)
    annotated = replace(group, metadata=replace(group.metadata, annotations={DURATION: "30m"}))
    assert world.run(annotated, *pods).node("g-0")


def test_explain_shows_the_end_of_a_window_and_the_start_of_a_gang(tmp_path: Path) -> None:
    file = tmp_path / "resources.yaml"
    file.write_text(TREES + "windows:\n" + window(0.0, HOUR, nodes=["n1", "n2"]))
    nodes = [node(name, cpu="4", offers={QPU: "8"}) for name in ("n1", "n2")]
    config = SchedulerConfig(actions=("allocate", "preempt", "backfill"))
    cluster = FakeCluster(config=config, checked=False).use("fluence", {"resources": str(file)})
    cluster.add(*nodes, pod("p"), gang("g", 2))
    cluster.run()
    explained = explain_pending(cluster.scheduler)
    assert next(one for one in explained["pods"] if one["name"] == "p")["until"] == at(HOUR)
    (group,) = explained["groups"]
    assert group["reservation"]["start"] == at(HOUR)
    assert set(group["reservation"]["nodes"]) == {"g-0", "g-1"}


def test_a_nominated_pod_does_not_get_a_closed_device(tmp_path: Path) -> None:
    world = World(tmp_path, window(0.0, HOUR, backends=["aurora"]))
    world.run(pod("holds", cpu="1", priority=1, requests={QPU: "1"}))
    world.run(pod("high", cpu="1", priority=10, requests={QPU: "1"}))
    assert world.cluster.find(Pod, "holds").metadata.deletion_timestamp
    world.cluster.finish_deletions()
    world.run(pod("low", cpu="1", priority=1, requests={QPU: "1"}), later=60)
    backend = world.cluster.find(Pod, "high").metadata.annotations["fluence.flux-framework.org/backend"]
    assert (backend, world.node("low")) == ("below", None)


@pytest.mark.parametrize("devices", [False, True])
def test_a_gang_of_two_classes_gets_a_reservation_between_windows(tmp_path: Path, devices: bool) -> None:
    file = tmp_path / "resources.yaml"
    closing = window(2 * HOUR, 3 * HOUR, nodes=["n1"]) + window(0.0, HOUR / 2, backends=["aurora"])
    file.write_text("resources: [{type: qpu, name: aurora}]\nwindows:\n" + closing)
    config = SchedulerConfig(actions=("allocate", "preempt", "backfill"))
    cluster = FakeCluster(config=config, checked=False).use("fluence", {"resources": str(file)})
    cluster.add(*(node(name, cpu="4", offers={QPU: "8"}) for name in ("n1", "n2")))
    running = lasting("runs", HOUR, cpu="4", bound_to="n2")
    cluster.add(replace(running, status=replace(running.status, start_time=at(0.0))))
    requests = {QPU: "1"} if devices else {}
    group, big = gang("g", 1, cpu="4", min_count=2, annotations={DURATION: "3h"})
    small = pod("g-small", cpu="2", group="g", requests=requests, annotations={DURATION: "3h"})
    cluster.add(group, big, small)
    cluster.run()
    starts = set(cluster.scheduler.cache.nominations.starts.values())
    assert starts == {FIRST + 3 * HOUR}, "expected a start after both windows: one node does not suffice"
    reason = cluster.reasons("g-0")
    assert reason.endswith(f"and it can start at {at(3 * HOUR)}")
