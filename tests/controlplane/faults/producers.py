"""A producer with the only device, and the consumers that wait for it until the scheduler opens their gates.

The pods are as the webhook creates them. Whatever write fails, no consumer is bound before the producer runs, each gets
the producer's backend and attributes, all are bound, each once, and then the device is free.
"""

from __future__ import annotations

from collections.abc import Callable

from fluence_plugins.env_injection.handlers import Refusal

from ...tools.admitting import admitted, handlers
from ..invariants import PREFIX, InvariantError, Manifest, annotation, is_bound
from ..quantum_world import GATE, option
from .device_pods import BACKEND, REGION, SETTINGS, wait_bound
from .world import DEVICE, World
from .writes import Life

CONSUMERS = 3
WRITES = 7
"""Minimum number of writes: the producer's binding, the removal of the consumers' gates, their bindings.

There are more if a consumer gets a condition in between.
"""
_NAMES = [f"vqe-{number}" for number in range(1, CONSUMERS + 1)]


def begin(world: World) -> None:
    """Create nodes, the right to open gates, and the pods."""
    world._stack.enter_context(option(world.plane))
    for _ in range(2):
        world.add_node(cpu=2, devices=2)
    through = handlers(None)
    for number in range(CONSUMERS + 1):
        body = admitted(_asked(world, number), through)
        if isinstance(body, Refusal):
            raise InvariantError(body.message)
        world.plane.create(body)


def _asked(world: World, number: int) -> Manifest:
    """A pod as its user would write it."""
    amounts = {"requests": {"cpu": "1", "memory": "64Mi", DEVICE: "1"}, "limits": {DEVICE: "1"}}
    container = {"name": "main", "image": "example.com/none", "resources": amounts}
    annotations = {
        "batch.kubernetes.io/job-completion-index": str(number),
        f"{PREFIX}coordination": "shared",
        f"{PREFIX}group-size": str(CONSUMERS + 1),
    }
    metadata = {"name": f"vqe-{number}", "namespace": world.namespace, "annotations": annotations,
                "labels": {f"{PREFIX}group": "vqe"}}  # fmt: skip
    spec = {"schedulerName": "fluence", "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def live(world: World, reached: Callable[[], None]) -> None:
    """The producer starts and runs, the consumers' gates open; all end, and the next pod gets the device."""
    world.schedulers[0].start()
    wait_bound(world, "vqe-0")
    reached()
    for name in _NAMES:
        gates = world.pod(name)["spec"].get("schedulingGates")
        if gates != [{"name": GATE}]:
            raise InvariantError(f"{name} has the gates {gates} before its producer runs")
    _run(world, "vqe-0")
    for name in _NAMES:
        wait_bound(world, name)
    reached()
    check(world)
    world.finish([world.pod(name) for name in ("vqe-0", *_NAMES)])
    world.create_pod("third")
    wait_bound(world, "third")
    check(world)


def check(world: World) -> None:
    """Raise InvariantError unless the invariants hold, and consumers have their attributes and were bound correctly."""
    world.check()
    for name in _NAMES:
        pod = world.pod(name)
        said = annotation(pod, f"{PREFIX}backend"), annotation(pod, f"{PREFIX}attr-region")
        if not is_bound(pod) or said != (BACKEND, REGION):
            raise InvariantError(f"{name} is on {pod['spec'].get('nodeName')} and reports {said}")


def _run(world: World, name: str) -> None:
    path = f"/api/v1/namespaces/{world.namespace}/pods/{name}/status"
    world.plane.request("PATCH", path, {"status": {"phase": "Running"}})


PRODUCER = Life(begin=begin, live=live, last=lambda world: [world.pod("third")], settings=SETTINGS)
