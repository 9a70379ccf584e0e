"""Queues reclaim their shares on a real API server: all of it in one cycle, without oscillation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from .awaiting import pass_marker, running, until
from .conftest import new_control_plane
from .harness import ControlPlane
from .invariants import Manifest
from .queues_world import QUEUES, install_queues
from .scheduler_process import Settings

LABEL = "fluence.flux-framework.org/queue"
PLAIN = Settings(
    reconcile_seconds=2.0,
    more={"profiles": [{"schedulerName": "fluence", "plugins": [{"name": "fluence", "enabled": False}]}]},
)


class World:
    """A node of 8 CPUs, and pods with one each. Without a kubelet, the test deletes evicted pods."""

    def __init__(self, plane: ControlPlane, **specs: Manifest) -> None:
        self.plane = plane
        self.namespace = plane.new_namespace()
        self.made: Counter[str] = Counter()
        for name, spec in specs.items():
            plane.create({"apiVersion": QUEUES, "kind": "Queue", "metadata": {"name": name}, "spec": spec})

    def pods(self, queue: str, count: int, **spec: str) -> None:
        container = {"name": "c", "image": "example.com/none", "resources": {"requests": {"cpu": "1"}}}
        for _ in range(count):
            name = f"{queue}-{self.made[queue]}"
            self.made[queue] += 1
            self.plane.create({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": name, "namespace": self.namespace, "labels": {LABEL: queue}},
                "spec": {"schedulerName": "fluence", "containers": [container], **spec},
            })  # fmt: skip

    def listed(self) -> list[Manifest]:
        found: list[Manifest] = self.plane.request("GET", f"/api/v1/namespaces/{self.namespace}/pods")[1]["items"]
        return [pod for pod in found if LABEL in pod["metadata"].get("labels", {})]

    def ending(self) -> list[str]:
        """Return the queues of the evicted pods."""
        return sorted(pod["metadata"]["labels"][LABEL] for pod in self.listed() if _ends(pod))

    def bound(self) -> Counter[str]:
        """Return by queue the number of pods that keep running."""
        there = (pod for pod in self.listed() if pod["spec"].get("nodeName") and not _ends(pod))
        return Counter(pod["metadata"]["labels"][LABEL] for pod in there)

    def finish(self) -> list[str]:
        """Delete the evicted pods; return their queues."""
        ended = [pod for pod in self.listed() if _ends(pod)]
        for pod in ended:
            path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}?gracePeriodSeconds=0"
            assert self.plane.request("DELETE", path)[0] == HTTPStatus.OK
        return [pod["metadata"]["labels"][LABEL] for pod in ended]


def _ends(pod: Manifest) -> bool:
    return "deletionTimestamp" in pod["metadata"]


@pytest.fixture
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with new_control_plane(tmp_path_factory.mktemp("reclaim-plane")) as found:
        found.new_node("n1", cpu="8")
        install_queues(found)
        yield found


def test_an_under_served_queue_has_its_share_in_one_cycle_and_two_that_want_everything_come_to_rest(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """All pods exist before the scheduler starts, so its first cycle sees them together. Evicted pods are replaced."""
    half: Manifest = {"deserved": {"cpu": "4"}}
    world = World(plane, greedy=half, poor=half)
    world.pods("greedy", 8, nodeName="n1")
    world.pods("poor", 8)
    with running(plane, tmp_path_factory.mktemp("fluence"), PLAIN):
        until("the share", lambda: len(world.ending()) >= 4)
        pass_marker(plane, world.namespace, "fluence")
        assert world.ending() == ["greedy"] * 4
        ended: Counter[str] = Counter()

        def at_rest() -> bool:
            for queue in world.finish():
                ended[queue] += 1
                world.pods(queue, 1)
            return world.bound() == {"greedy": 4, "poor": 4}

        until("both shares", at_rest)
        for _ in range(3):
            world.pods("greedy", 1)
            world.pods("poor", 1)
            pass_marker(plane, world.namespace, "fluence")
            assert at_rest()
        assert ended == {"greedy": 4}


def test_a_queue_has_what_it_deserves_from_under_the_full_limit_of_the_queue_above(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The node has room, but the limit leaves none."""
    half: Manifest = {"parent": "top", "deserved": {"cpu": "3"}}
    world = World(plane, top={"limit": {"cpu": "6"}}, greedy=half, poor=half)
    world.pods("greedy", 6, nodeName="n1")
    world.pods("poor", 3)
    with running(plane, tmp_path_factory.mktemp("fluence"), PLAIN):
        until("the share", lambda: len(world.ending()) >= 3)
        pass_marker(plane, world.namespace, "fluence")
        assert world.ending() == ["greedy"] * 3
        assert world.bound()["poor"] == 0, "the limit holds until they are gone"
        world.finish()
        until("the queue's own", lambda: world.bound() == {"greedy": 3, "poor": 3})
