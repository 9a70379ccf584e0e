"""Situations in which an old commit's scheduler is killed, and the outcome that a newer scheduler must reach.

Most clusters have exactly as many places as pods: two single pods, which the old scheduler has bound, and four pods of
a gang, which it is binding. After the kill comes a competitor, a pod of higher priority that takes any place which the
new scheduler leaves free. It stays pending only if the new scheduler counts every bound pod and every planned one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..faults.crash import FIRST, Crash, Where, acknowledgements, binds, plans
from ..faults.world import World, resources_of
from ..invariants import InvariantError, Manifest, Plan, is_bound, is_leaving, plan_of
from ..proxy import Fault, Write
from ..scheduler_process import Settings

SIZE: Final = 4
"""Number of the gang's pods."""
SINGLES: Final = ("single-0", "single-1")
URGENT: Final[dict[str, Any]] = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 2000000,
                                "metadata": {"name": "tests-preempts"}}  # fmt: skip
"""The priority class of a pod that preempts others, and comes before the competitor."""
_GANG: Final = "gang"
_NODES, _PLACES = 3, 2
_API: Final = "resource.k8s.io/v1"
_CORE: Final = {"schedulerName": "core", "plugins": [{"name": "fluence", "enabled": False}]}
SETTINGS: Final = Settings(resources=resources_of(_NODES * _PLACES), profiles=(_CORE,))
After = Callable[[Crash, Plan | None], None]
"""Waits until the running new scheduler reaches the outcome for the old one's plan. Raises AssertionError."""


@dataclass(frozen=True)
class Situation:
    """One state of a cluster in which the old scheduler was killed."""

    name: str
    crash: Callable[[Crash], None]
    """Creates the cluster, runs the old scheduler and kills it, adds the competitor."""
    after: After
    settings: Settings = SETTINGS


# ---------------------------------------------------------------------- kinds of requests


@dataclass(frozen=True)
class Way:
    """The requests of a cluster's pods, which decide what part of the scheduler chooses their nodes."""

    name: str
    device: bool = False
    """Whether each requests a device of the resource graph."""
    claim: bool = False
    """Whether each has a ResourceClaim for a device of its node."""
    cpu: str = "1"
    """The cpu that each requests."""
    spec: Manifest = field(default_factory=dict)

    def furnish(self, world: World, nodes: int = _NODES) -> None:
        """Create the nodes, and the class of their devices."""
        if self.claim:
            selectors = [{"cel": {"expression": f'device.driver == "{_driver(world)}"'}}]
            world.plane.create({"apiVersion": _API, "kind": "DeviceClass", "metadata": {"name": world.namespace},
                                "spec": {"selectors": selectors}})  # fmt: skip
        for _ in range(nodes):
            self.add_node(world, _PLACES)

    def add_node(self, world: World, places: int) -> None:
        """Create one more node for so many pods."""
        node = world.add_node(cpu=places, devices=places if self.device else 0)
        if self.claim:
            devices = [{"name": f"device-{number}"} for number in range(places)]
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            world.plane.create({"apiVersion": _API, "kind": "ResourceSlice", "metadata": {"name": node}, "spec": {
                "driver": _driver(world), "nodeName": node, "pool": pool, "devices": devices}})  # fmt: skip

    def create(self, world: World, name: str, group: str | None = None, **more: Any) -> None:
        """Create one pod and its claim."""
        spec = {"automountServiceAccountToken": False} | self.spec | more
        if self.claim:
            asked = {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": world.namespace}}]}}
            world.plane.create({"apiVersion": _API, "kind": "ResourceClaim", "spec": asked,
                                "metadata": {"name": name, "namespace": world.namespace}})  # fmt: skip
            spec["resourceClaims"] = [{"name": "own", "resourceClaimName": name}]
        world.create_pod(name, group, device=self.device, cpu=self.cpu, **spec)


def _driver(world: World) -> str:
    return f"{world.namespace}.example.com"


GRAPH: Final = Way("graph", device=True)
PLAIN: Final = Way("plain")
CLAIMS: Final = Way("claims", claim=True)
SMALL: Final = Way("small", cpu="100m")
"""Each of these pods had a whole core, the former default of `cpuAccounting`."""
CORE: Final = Way("core", spec={"schedulerName": "core"})
"""These pods do not use the plugin fluence: the core places them with filters and scores."""


def _bind_singles(crash: Crash, way: Way, nodes: int = _NODES, **spec: Any) -> None:
    """Let the old scheduler bind the single pods, and stop it."""
    world = crash.world
    way.furnish(world, nodes)
    for name in SINGLES:
        way.create(world, name, **spec)
    crash.scheduler.start()
    world.until("the single pods' nodes", lambda: all(is_bound(world.pod(name)) for name in SINGLES))
    crash.scheduler.kill()


# ---------------------------------------------------------------------- a gang in flight


def _at(way: Way, number: int, where: Where, *, bound: int, fault: Fault = Fault.CALL_AFTER,
        competes: bool = True) -> Callable[[Crash], None]:  # fmt: skip
    """Kill the old scheduler at the `number`th such write for the gang, with `bound` of its pods bound."""

    def crash(crash: Crash) -> None:
        _bind_singles(crash, way)
        crash.world.create_group(_GANG, SIZE)
        for member in range(SIZE):
            way.create(crash.world, f"{_GANG}-{member}", _GANG)
        crash.run_until(number, where, fault)
        assert len(crash.world.places(_GANG)) == bound
        if competes:
            crash.compete(device=way.device)

    return crash


def _rolled_forward(crash: Crash, plan: Plan | None) -> None:
    """The gang is bound as the plan says, and the competitor finds no place."""
    assert plan is not None
    crash.assert_rolled_forward(plan, {pod["name"]: pod["node"] for pod in plan.pods.values()})
    crash.assert_competitor_waits()


def _converted(crash: Crash, plan: Plan | None) -> None:
    """The gang's pods keep a whole core each; beside one of the single pods is room for what its core leaves."""
    _rolled_forward(crash, plan)
    crash.world.create_pod("beside", device=False, cpu="900m")
    crash.world.until("the node of a pod beside a small one", lambda: is_bound(crash.world.pod("beside")))


def _placed_anew(crash: Crash, plan: Plan | None) -> None:
    """The gang is bound with a plan of the new scheduler."""
    crash.world.wait_whole(_GANG, SIZE)
    assert crash.plan.state == "active"
    assert plan is None or crash.plan.attempt != plan.attempt


def _aborted(crash: Crash) -> None:
    """A node of the plan is cordoned; the old scheduler is killed directly after it has marked the plan as aborted."""
    world = crash.world
    _at(GRAPH, 1, plans, bound=0, competes=False)(crash)
    planned = list(crash.planned_places.values())
    world.plane.request("PATCH", f"/api/v1/nodes/{planned[0]}", {"spec": {"unschedulable": True}})
    GRAPH.add_node(world, planned.count(planned[0]))
    crash.run_until(1, plans)
    assert crash.plan.state == "abort"


# ---------------------------------------------------------------------- a preemption in flight


def _preempting(crash: Crash) -> None:
    """The node of the single pods is full; the old scheduler has nominated a pod for it, and evicts one of them."""
    world = crash.world
    _bind_singles(crash, PLAIN, nodes=1, terminationGracePeriodSeconds=3600)
    PLAIN.create(world, "preemptor", priorityClassName=URGENT["metadata"]["name"])
    crash.scheduler.start()

    def in_flight() -> bool:
        return "nominatedNodeName" in world.pod("preemptor")["status"] and bool(_victims(world))

    world.until("a nomination and an eviction", in_flight)
    crash.scheduler.kill()
    crash.compete(device=False)


def _preempted(crash: Crash, plan: Plan | None) -> None:
    """The pod gets its nominated node once the victim is gone; nothing else is evicted."""
    world = crash.world
    crash.assert_competitor_waits()
    (victim,) = _victims(world)
    nominated = world.pod("preemptor")["status"]["nominatedNodeName"]
    world.delete_pod(victim)
    world.until("the preemptor's node", lambda: is_bound(world.pod("preemptor")))
    assert world.pod("preemptor")["spec"]["nodeName"] == nominated
    crash.assert_competitor_waits()
    assert _victims(world) == []


def _victims(world: World) -> list[str]:
    return [name for name in SINGLES if is_leaving(world.pod(name))]


# ---------------------------------------------------------------------- all of them

SITUATIONS: Final = {
    situation.name: situation
    for situation in (
        *(
            each
            for way in (GRAPH, CORE, CLAIMS)
            for each in (
                Situation(f"{way.name}-planned", _at(way, 1, plans, bound=0), _rolled_forward),
                Situation(f"{way.name}-first-bound", _at(way, 1, binds, bound=1), _rolled_forward),
                Situation(f"{way.name}-half-bound", _at(way, 2, binds, bound=2), _rolled_forward),
            )
        ),
        Situation("small-planned", _at(SMALL, 1, plans, bound=0), _converted),
        Situation("small-half-bound", _at(SMALL, 2, binds, bound=2), _converted),
        Situation("claims-allocated", _at(CLAIMS, 1, plans, bound=0, fault=Fault.CALL_BEFORE, competes=False),
                  _placed_anew),
        Situation("graph-bound", _at(GRAPH, 1, acknowledgements, bound=SIZE, fault=Fault.CALL_BEFORE), _rolled_forward),
        Situation("graph-aborting", _aborted, _placed_anew),
        Situation("graph-elected", _at(GRAPH, 2, binds, bound=2), _rolled_forward, replace(SETTINGS, election=True)),
        Situation("preempting", _preempting, _preempted),
    )
}  # fmt: skip
"""The situations by name: for each kind of requests, after the plan, after the first binding and between bindings."""
PRIORITIES: Final = (FIRST, URGENT)
"""The required priority classes."""


def upgrade(crash: Crash, situation: Situation) -> None:
    """Start the new scheduler on the cluster of the old one. Raises AssertionError or TimeoutError."""
    world = crash.world
    before, sent = _pods(world), len(crash.proxy.writes)
    plan = next((plan_of(world.group(_GANG)) for pod in before.values() if "schedulingGroup" in pod["spec"]), None)
    crash.scheduler.settings = situation.settings
    crash.restart()
    situation.after(crash, plan)
    world.check()
    found = [*_changed(before, _pods(world)), *_bound_again(before, crash.proxy.writes[sent:]), *_claimed(world)]
    if found:
        raise InvariantError("\n".join(found))


def _pods(world: World) -> dict[str, Manifest]:
    items = world.plane.request("GET", f"/api/v1/namespaces/{world.namespace}/pods")[1]["items"]
    return {pod["metadata"]["name"]: pod for pod in items}


def _changed(before: dict[str, Manifest], after: dict[str, Manifest]) -> Iterable[str]:
    """Return pods that are gone, evicted or on another node, although the old scheduler had not begun to evict them."""
    for name, pod in before.items():
        now = after.get(name)
        if is_leaving(pod):
            continue
        if now is None or now["metadata"]["uid"] != pod["metadata"]["uid"] or is_leaving(now):
            yield f"pod {name}: is lost"
        elif is_bound(pod) and now["spec"]["nodeName"] != pod["spec"]["nodeName"]:
            yield f"pod {name}: was on {pod['spec']['nodeName']} and is on {now['spec']['nodeName']}"


def _bound_again(before: dict[str, Manifest], writes: Iterable[Write]) -> Iterable[str]:
    """Return the new scheduler's Bindings for pods that were bound before, and second ones for a pod."""
    bound = {name for name, pod in before.items() if is_bound(pod)}
    for write in writes:
        if binds(write.method, write.path):
            name = write.path.split("/")[-2]
            if name in bound:
                yield f"pod {name}: is bound again: {write.outcome}"
            bound.add(name)


def _claimed(world: World) -> Iterable[str]:
    """Return devices in several claims, and claims without the device of a bound pod."""
    owners: dict[tuple[str, str], str] = {}
    pods = _pods(world)
    for claim in world.plane.request("GET", f"/apis/{_API}/namespaces/{world.namespace}/resourceclaims")[1]["items"]:
        name, status = claim["metadata"]["name"], claim.get("status", {})  # a claim is named like its pod
        results = status.get("allocation", {}).get("devices", {}).get("results", [])
        for result in results:
            owner = owners.setdefault((result["pool"], result["device"]), name)
            if owner != name:
                yield f"{result['device']} of {result['pool']} is allocated to {owner} and {name}"
        pod = pods[name]
        reserved = [user["uid"] for user in status.get("reservedFor", [])]
        wanted = ([pod["metadata"]["uid"]], [pod["spec"].get("nodeName")])
        if is_bound(pod) and (reserved, [result["pool"] for result in results]) != wanted:
            yield f"claim {name}: its pod is {wanted}, and its status {status}"
