"""A single pod with a device: a group of one without a PodGroup. Only its Binding records its node and its device.

There is one device, and room for more pods. The first pod is bound, and a second one has to wait. When the first one
ends, the second one gets its device, and later a third one. Whatever fails, the device is never allocated twice, each
pod's annotations match its record, and each pod is bound once.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import yaml

from ..harness import DEPLOY, SCHEDULER, ControlPlane
from ..invariants import PREFIX, InvariantError, Manifest, annotation, condition, held_jobs, is_bound
from ..proxy import Fault
from ..scheduler_process import Settings
from .leaders import REPLICAS, Disturbance
from .world import LEASE, World
from .writes import Life

BACKEND, REGION = "aurora", "east"
RESOURCES = f"resources:\n  - {{type: qpu, name: {BACKEND}, attributes: {{region: {REGION}}}}}\n"
SETTINGS = Settings(resources=RESOURCES)
URGENT = "tests-urgent"
"""The priority class of a pod that comes before the others."""
_DONE = re.compile(r"\b201\b")
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"


# ---------------------------------------------------------------------- helpers


def begin(world: World) -> None:
    """Create two nodes, each with room for two pods (the device plugin would admit both), and the first pod."""
    for _ in range(2):
        world.add_node(cpu=2, devices=2)
    world.create_pod("first")


def wait_bound(world: World, name: str) -> None:
    """Wait until a pod is bound."""
    world.until(f"a node for {name}", lambda: is_bound(world.pod(name)))


def wait_told(world: World, name: str) -> None:
    """Wait until a pod, which must not be bound, has a condition that says why it waits."""

    def reported() -> bool:
        pod = world.pod(name)
        if is_bound(pod):
            raise InvariantError(f"{name} was bound to {pod['spec']['nodeName']} though the device was another's")
        scheduled = condition(pod, "PodScheduled")
        return scheduled is not None and scheduled["status"] == "False" and scheduled["reason"] == "Unschedulable"

    world.until(f"a verdict about {name}", reported)


def check(world: World) -> None:
    """Raise InvariantError unless the invariants hold, annotations match records, and each pod was bound once."""
    for pod in world.check().live:
        found = [*_untold(pod), *_bound_again(world, pod["metadata"]["name"])]
        if found:
            raise InvariantError("\n".join(found))


def _untold(pod: Manifest) -> Iterator[str]:
    """Return differences between a pod's annotations and its record."""
    jobs = held_jobs(pod)
    devices = [device for part in jobs.values() for device in part.get("devices", [])]
    jobids = set((annotation(pod, f"{PREFIX}jobid") or "").split(","))
    said = annotation(pod, f"{PREFIX}backend"), annotation(pod, f"{PREFIX}attr-region"), jobids
    if said != (BACKEND, REGION, set(jobs)) or [device.split("/")[-1] for device in devices] != [BACKEND]:
        yield f"pod {pod['metadata']['name']}: reports {said} and holds {devices} by {sorted(jobs)}"


def _bound_again(world: World, name: str) -> Iterator[str]:
    """Return Bindings of pods that were bound already, by the API server's responses."""
    sent = [write for proxy in world.proxies for write in proxy.writes if write.path.endswith(f"/{name}/binding")]
    done = sum(len(_DONE.findall(write.outcome)) for write in sent)
    if done != 1:
        yield f"pod {name}: was bound {done} times: {[write.outcome for write in sent]}"


# ---------------------------------------------------------------------- a life with a faulty write


def live(world: World, reached: Callable[[], None]) -> None:
    """Bind the first pod, let the second wait, end the first. Afterwards the device must be free for a third."""
    world.schedulers[0].start()
    wait_bound(world, "first")
    reached()
    check(world)
    world.create_pod("second")
    wait_told(world, "second")
    reached()
    world.finish([world.pod("first")])
    wait_bound(world, "second")
    reached()
    check(world)
    world.finish([world.pod("second")])
    world.create_pod("third")
    wait_bound(world, "third")
    check(world)


DEVICE_POD = Life(begin=begin, live=live, last=lambda world: [world.pod("third")], settings=SETTINGS)


# ---------------------------------------------------------------------- faults around the scheduler


def ended_unheard(plane: ControlPlane, folder: Path, *, deleted: bool) -> None:
    """The pod ends or is deleted while no scheduler runs; the next scheduler allocates its device again."""
    with World(plane, folder, SETTINGS) as world:
        begin(world)
        scheduler = world.new_scheduler()
        scheduler.start()
        wait_bound(world, "first")
        world.create_pod("second")
        wait_told(world, "second")
        world.keep_alive(False)
        scheduler.kill()
        if deleted:
            world.delete_pod("first")
        else:
            world.finish([world.pod("first")])
        scheduler.start()
        world.keep_alive(True)
        wait_bound(world, "second")
        check(world)


def ended_while_the_api_server_is_away(plane: ControlPlane, folder: Path) -> None:
    """The API server dies directly after the pod's end, so that the scheduler may not know it."""
    with World(plane, folder, SETTINGS) as world:
        begin(world)
        world.new_scheduler().start()
        wait_bound(world, "first")
        world.create_pod("second")
        wait_told(world, "second")
        world.proxies[0].refuse()
        world.finish([world.pod("first")])
        plane.kill("kube-apiserver")
        try:
            plane.compact()
        finally:
            plane.start_api_server()
        world.proxies[0].accept()
        wait_bound(world, "second")
        check(world)


def handed_on_while_watches_break(plane: ControlPlane, folder: Path, seed: int, pods: int) -> None:
    """Watches break all the time, while pods with the device come one after the other, and end or are deleted."""
    with World(plane, folder, SETTINGS) as world:
        begin(world)
        scheduler = world.new_scheduler()
        scheduler.start()
        scheduler.wait_ready()
        world.proxies[0].cut_watches_at_random(seed, mean_seconds=0.1)
        chance = random.Random(seed)
        owner = "first"
        for number in range(pods):
            wait_bound(world, owner)
            heir = f"heir-{number}"
            world.create_pod(heir)
            wait_told(world, heir)
            check(world)
            if chance.random() < 0.5:
                world.finish([world.pod(owner)])
            else:
                world.delete_pod(owner)
            owner = heir
            world.until("a broken watch", lambda number=number: world.proxies[0].watches_cut > number)  # type: ignore[misc]
        wait_bound(world, owner)
        check(world)


# ---------------------------------------------------------------------- two leaders at once


def former_leader(plane: ControlPlane, folder: Path) -> None:
    """A leader is stopped while its Binding is in flight; its successor allocates the device to a more urgent pod.

    The first pod has not changed by then, so only the fencing policy can reject the late Binding.
    """
    _make_priority(plane)
    with World(plane, folder, SETTINGS, may_exit=True) as world, fencing(plane, world):
        world.settings = world.with_election()
        world.keep_alive(False)
        begin(world)
        leader, successor = world.new_scheduler(), world.new_scheduler()
        late = world.proxies[0].at(1, Fault.HOLD, where=lambda _, path: path.endswith("/first/binding"))
        reported = world.proxies[1].at(1, Fault.HOLD, where=lambda _, path: path.endswith("/first/status"))
        leader.start()
        world.until("the first leader's Binding", late.struck.is_set)
        leader.pause()
        world.create_pod("urgent", priorityClassName=URGENT)
        successor.start()
        wait_bound(world, "urgent")
        world.proxies[0].release(late)
        world.until("the late Binding's end", late.done.is_set)
        leader.go_on()
        world.check_now()
        (sent,) = [write for write in world.proxies[0].writes if write.path.endswith("/first/binding")]
        assert str(HTTPStatus.FORBIDDEN.value) in sent.outcome, sent
        world.proxies[1].release(reported)
        world.until("the former leader's end", lambda: not leader.running)
        wait_told(world, "first")
        world.finish([world.pod("urgent")])
        wait_bound(world, "first")
        check(world)


def handed_on_by_six_leaders(plane: ControlPlane, folder: Path, seed: int, pods: int) -> str:
    """Pods get the device one after the other, while leaders are killed, stopped and continued. Return a summary."""
    chance = random.Random(seed)
    with World(plane, folder, SETTINGS, may_exit=True) as world, fencing(plane, world):
        world.settings = world.with_election()
        begin(world)
        for _ in range(REPLICAS):
            world.new_scheduler().start()
        owner = "first"
        with Disturbance(world.schedulers, seed, mean_seconds=0.7) as disturbance:
            for number in range(pods):
                wait_bound(world, owner)
                world.check_now()
                heir = f"heir-{number}"
                world.create_pod(heir)
                wait_told(world, heir)
                if chance.random() < 0.5:
                    world.finish([world.pod(owner)])
                else:
                    world.delete_pod(owner)
                owner = heir
        wait_bound(world, owner)
        check(world)
        return f"{pods} pods, {disturbance.kills} kills, {disturbance.stops} stops"


@contextmanager
def fencing(plane: ControlPlane, world: World) -> Iterator[None]:
    """Create the policy that lets only the Lease's holder bind, and wait until it is in force; later make it inactive.

    The test does not delete the policy: once an API server has dropped a policy, it never again watches the Leases that
    such a policy reads, because its informers of parameters start only once (apiserver, policy_source.go).
    """
    probe = world.create_pod("probe", device=False, schedulerName="none")["metadata"]
    path = f"/api/v1/namespaces/{probe['namespace']}/pods/{probe['name']}/binding?dryRun=All"
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": probe["name"]},
            "target": {"kind": "Node", "name": "nowhere"}}  # fmt: skip
    manifests = list(yaml.safe_load_all((DEPLOY / "options" / "fencing.yaml").read_text()))
    policy, binding = (next(each for each in manifests if each["kind"] == f"ValidatingAdmissionPolicy{kind}")
                       for kind in ("", "Binding"))  # fmt: skip
    at = f"{_ADMISSION}/validatingadmissionpolicybindings/{binding['metadata']['name']}"
    if plane.request("GET", at)[0] == HTTPStatus.NOT_FOUND:
        plane.create(policy)
        plane.create(binding)
    plane.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"holderIdentity": "none"},
                  "metadata": {"name": "fluence", "namespace": "kube-system"}})  # fmt: skip
    try:
        plane.request("PATCH", at, {"spec": {"validationActions": ["Deny"]}})
        world.until("the policy", lambda: not _lets_bind(plane, path, body))
        plane.request("DELETE", LEASE)
        yield
    finally:
        plane.request("PATCH", at, {"spec": {"validationActions": ["Audit"]}})
        plane.request("DELETE", LEASE)
        world.until("the policy's end", lambda: _lets_bind(plane, path, body))


def _lets_bind(plane: ControlPlane, path: str, body: Manifest) -> bool:
    return plane.request("POST", path, body, user=SCHEDULER)[0] != HTTPStatus.FORBIDDEN


def _make_priority(plane: ControlPlane) -> None:
    if plane.request("GET", f"/apis/scheduling.k8s.io/v1/priorityclasses/{URGENT}")[0] == HTTPStatus.NOT_FOUND:
        plane.create({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000000,
                      "preemptionPolicy": "Never", "metadata": {"name": URGENT}})  # fmt: skip


SCENARIOS: dict[str, tuple[Callable[[ControlPlane, Path, random.Random], object], int]] = {
    "device-pod, ended unheard": (lambda plane, folder, chance: ended_unheard(plane, folder, deleted=False), 3),
    "device-pod, deleted unheard": (lambda plane, folder, chance: ended_unheard(plane, folder, deleted=True), 3),
    "device-pod, ended unseen": (lambda plane, folder, chance: ended_while_the_api_server_is_away(plane, folder), 3),
    "device-pod, watches cut": (lambda plane, folder, chance: handed_on_while_watches_break(
        plane, folder, chance.randrange(1 << 30), 10), 3),
    "device-pod, former leader": (lambda plane, folder, chance: former_leader(plane, folder), 3),
    "device-pod, six leaders": (lambda plane, folder, chance: handed_on_by_six_leaders(
        plane, folder, chance.randrange(1 << 30), 12), 2),
}  # fmt: skip
"""The scenarios by name, and how often `make faults` runs each."""
