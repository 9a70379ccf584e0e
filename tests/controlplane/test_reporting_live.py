"""The scheduler's reports as users see them, on a real API server and with the scheduler's own rights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from session_scheduler.base.clock import StoppedClock
from session_scheduler.cluster.kubernetes import KubernetesCluster, connect
from session_scheduler.model.objects import (
    Container,
    GangPolicy,
    ObjectMeta,
    Pod,
    PodGroup,
    PodGroupSpec,
    PodSpec,
    SchedulingPolicy,
)
from session_scheduler.reporting.metrics import ReportMetrics
from session_scheduler.reporting.recorder import Recorder

from .harness import ADMIN, SCHEDULER, ControlPlane

PATIENCE = 60.0
NO_ROOM = "0/4 nodes are available: 4 Insufficient cpu."
GANG_WAITS = "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled"


class Meter(ReportMetrics):
    """Stores the failed writes."""

    def __init__(self) -> None:
        self.lost: list[tuple[str, str]] = []

    def written(self, kind: str) -> None:
        """Ignored."""

    def dropped(self, kind: str, why: str) -> None:
        self.lost.append((kind, why))


class Live:
    """A recorder, and the cluster as users see it."""

    def __init__(self, plane: ControlPlane, cluster: KubernetesCluster, admin: KubernetesCluster) -> None:
        self.clock = StoppedClock()
        self.meter = Meter()
        self.slept: list[float] = []
        self.recorder = Recorder(cluster, clock=self.clock, meter=self.meter, sleep=self._sleep)
        self.cluster = cluster
        self.namespace = plane.new_namespace()
        self._plane = plane
        self._admin = admin

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(seconds)

    async def pod(self, name: str) -> Pod:
        spec = PodSpec(scheduler_name="fluence", containers=(Container(name="main", image="example.com/none"),))
        return await self._admin.create(Pod(metadata=ObjectMeta(name=name, namespace=self.namespace), spec=spec))

    async def gang(self, name: str) -> PodGroup:
        spec = PodGroupSpec(scheduling_policy=SchedulingPolicy(gang=GangPolicy(min_count=2)))
        return await self._admin.create(PodGroup(metadata=ObjectMeta(name=name, namespace=self.namespace), spec=spec))

    async def bind(self, pod: Pod) -> None:
        await self.cluster.bind(self.namespace, pod.metadata.name, node="node", uid=pod.metadata.uid,
                                resource_version=pod.metadata.resource_version, annotations={})  # fmt: skip

    async def run_pending(self) -> None:
        await asyncio.wait_for(self.recorder.flush(), PATIENCE)

    def conditions(self, path: str) -> list[dict[str, Any]]:
        """Remove the times, which depend on the server's clock."""
        status = self._plane.request("GET", path.format(namespace=self.namespace))[1].get("status", {})
        left_out = ("lastTransitionTime", "lastProbeTime")
        return [
            {key: value for key, value in condition.items() if key not in left_out}
            for condition in status.get("conditions", [])
        ]

    def events(self, path: str = "/apis/events.k8s.io/v1/namespaces/{namespace}/events") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._plane.request("GET", path.format(namespace=self.namespace))[1]["items"]
        return found


POD = "/api/v1/namespaces/{namespace}/pods/one"
GROUP = "/apis/scheduling.k8s.io/v1alpha2/namespaces/{namespace}/podgroups/gang"


@pytest.fixture
async def reported(control_plane: ControlPlane) -> AsyncIterator[Live]:
    async with (
        await connect(str(control_plane.kubeconfig(SCHEDULER))) as cluster,
        await connect(str(control_plane.kubeconfig(ADMIN))) as admin,
    ):
        reported = Live(control_plane, cluster, admin)
        running = asyncio.create_task(reported.recorder.run())
        try:
            yield reported
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


async def test_an_unschedulable_pod_shows_its_condition_and_event_as_kube_scheduler_writes_them(
    reported: Live,
) -> None:
    reported.recorder.unschedulable(await reported.pod("one"), NO_ROOM)
    await reported.run_pending()
    assert reported.conditions(POD) == [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_ROOM}
    ]
    (event,) = reported.events("/api/v1/namespaces/{namespace}/events")  # the request of kubectl describe
    assert (event["type"], event["reason"], event["action"]) == ("Warning", "FailedScheduling", "Scheduling")
    assert (event["message"], event["involvedObject"]["name"]) == (NO_ROOM, "one")


async def test_a_bound_pod_shows_where_it_went(reported: Live) -> None:
    one = await reported.pod("one")
    await reported.bind(one)
    reported.recorder.scheduled(one, "node")
    await reported.run_pending()
    (event,) = reported.events()
    assert (event["type"], event["reason"], event["action"]) == ("Normal", "Scheduled", "Binding")
    assert event["note"] == f"Successfully assigned {reported.namespace}/one to node"


async def test_a_group_shows_its_condition_and_events_though_its_plan_is_written_beside(reported: Live) -> None:
    gang = await reported.gang("gang")
    reported.recorder.group(gang, "False", "Unschedulable", GANG_WAITS)
    await reported.run_pending()
    assert reported.conditions(GROUP) == [
        {"type": "PodGroupScheduled", "status": "False", "reason": "Unschedulable", "message": GANG_WAITS}
    ]
    await reported.cluster.patch_metadata(gang, annotations={"example.com/plan": "x"})
    reported.recorder.group(gang, "True", "Scheduled", "pod group is scheduled")
    await reported.run_pending()
    assert reported.conditions(GROUP) == [
        {"type": "PodGroupScheduled", "status": "True", "reason": "Scheduled", "message": "pod group is scheduled"}
    ]
    kinds = {
        (event["reason"], event["regarding"]["kind"], event["regarding"]["apiVersion"]) for event in reported.events()
    }
    version = "scheduling.k8s.io/v1alpha2"
    assert kinds == {("FailedScheduling", "PodGroup", version), ("Scheduled", "PodGroup", version)}
    assert reported.meter.lost == []


async def test_a_failure_that_repeats_shows_its_count_in_one_event(reported: Live) -> None:
    one = await reported.pod("one")
    for _ in range(4):
        reported.recorder.unschedulable(one, NO_ROOM)
        await reported.run_pending()
    assert [event["series"]["count"] for event in reported.events()] == [2]
    reported.clock.advance(360)
    reported.recorder.unschedulable(one, NO_ROOM)
    await reported.run_pending()
    (event,) = reported.events()
    assert event["series"]["count"] == 5
    assert event["series"]["lastObservedTime"] > event["eventTime"]
    assert reported.meter.lost == []


async def test_an_event_that_the_server_forgot_is_there_again_when_it_repeats(
    reported: Live, control_plane: ControlPlane
) -> None:
    one = await reported.pod("one")
    for _ in range(2):
        reported.recorder.unschedulable(one, NO_ROOM)
        await reported.run_pending()
        for event in reported.events():
            name = event["metadata"]["name"]
            control_plane.request("DELETE", f"/apis/events.k8s.io/v1/namespaces/{reported.namespace}/events/{name}")
    assert reported.events() == []
    reported.clock.advance(360)
    reported.recorder.unschedulable(one, NO_ROOM)
    await reported.run_pending()
    assert [(event["note"], event["series"]["count"]) for event in reported.events()] == [(NO_ROOM, 3)]


async def test_a_late_failure_does_not_land_on_a_pod_that_was_bound_meanwhile(reported: Live) -> None:
    late = await reported.pod("one")
    reported.recorder.unschedulable(late, NO_ROOM)
    await reported.run_pending()
    await reported.bind(await reported.cluster.get(Pod, reported.namespace, "one"))
    reported.recorder.unschedulable(late, "0/5 nodes are available.")
    await reported.run_pending()
    assert [(c["type"], c["status"]) for c in reported.conditions(POD)] == [("PodScheduled", "True")]
    assert reported.meter.lost == [("condition", "Conflict")]


async def test_conditions_asked_faster_than_the_watch_reports_are_all_written(reported: Live) -> None:
    one = await reported.pod("one")
    for number in range(3):
        reported.recorder.unschedulable(one, f"0/{number} nodes are available.")
        await reported.run_pending()
    assert [condition["message"] for condition in reported.conditions(POD)] == ["0/2 nodes are available."]
    assert reported.meter.lost == []


async def test_the_longest_note_is_taken_by_the_server_in_any_script(reported: Live) -> None:
    one = await reported.pod("one")
    for character in "xü€🦊":
        reported.recorder.unschedulable(one, character * 2000)
        await reported.run_pending()
    notes = {event["note"] for event in reported.events()}
    assert {note[0] for note in notes} == set("xü€🦊")
    assert all(note.endswith(" ...") for note in notes)
    assert reported.meter.lost == []


async def test_what_is_said_of_a_pod_that_is_gone_is_dropped(reported: Live, control_plane: ControlPlane) -> None:
    one = await reported.pod("one")
    control_plane.request("DELETE", f"/api/v1/namespaces/{reported.namespace}/pods/one")
    reported.recorder.condition(one, "PodScheduled", "False", "Unschedulable", NO_ROOM)
    await reported.run_pending()
    assert reported.meter.lost == [("condition", "NotFound")]


async def test_a_namespace_that_is_being_deleted_is_not_tried_again(
    reported: Live, control_plane: ControlPlane
) -> None:
    one = await reported.pod("one")
    control_plane.request("DELETE", f"/api/v1/namespaces/{reported.namespace}")  # no controller finishes that
    reported.recorder.event(one, "FailedScheduling", "Scheduling", NO_ROOM, warning=True)
    await reported.run_pending()
    assert reported.meter.lost == [("event", "Forbidden")]
    assert reported.slept == []
