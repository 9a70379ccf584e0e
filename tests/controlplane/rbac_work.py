"""The scheduler's work by right: how to request it, what fails without the right, and what works with it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from .faults.world import LEASE
from .invariants import condition, is_bound
from .queues_world import QUEUES
from .rbac_world import PATIENCE, RbacWorld, Right, pods_of

FILLER = 201 * 1024
"""Bytes on a PodGroup that leave no space for a plan."""
BAD_INPUT = 2
MANY = "1000"
"""Number of cores that no node has."""


class Work:
    """Work that needs a right."""

    def prepare(self, world: RbacWorld) -> None:
        """Create the initial objects, while all rights are present."""

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        """Request the work while the right `taken` is missing."""

    def fails(self, world: RbacWorld, taken: Right) -> None:
        """Assert that the work fails, and who reports it."""

    def works(self, world: RbacWorld) -> None:
        """Assert that the work succeeds with the right."""


class Binds(Work):
    """A pod is placed; without the right it stays pending."""

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        world.begin()
        self.pod = world.new_pod()

    def fails(self, world: RbacWorld, taken: Right) -> None:
        world.wait_told(self.pod, taken.refusal)
        assert not is_bound(world.pod(self.pod))
        assert world.metric('fluence_bind_errors_total{code="403"}') > 0

    def works(self, world: RbacWorld) -> None:
        world.wait_bound(self.pod)


class BindsAgain(Binds):
    """A pod that another client changes during its bind stays pending, because its state cannot be read."""

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        world.begin()
        self.pod = world.new_name("pod")
        go_on = world.hold("POST", f"/pods/{self.pod}/binding")
        world.create_pod(self.pod)
        go_on(lambda: world.label(world.pod_path(self.pod)))

    def fails(self, world: RbacWorld, taken: Right) -> None:
        world.wait_said(taken.refusal)
        assert not is_bound(world.pod(self.pod))


class Plans(Work):
    """No pod of a gang is bound before its plan is written."""

    def __init__(self, *, coscheduling: bool = False, contested: bool = False, filler: int = 0) -> None:
        """With `contested`, another client writes to the PodGroup at the same time, so that it must be read again.

        Without the right, it does so at each attempt: the next one would succeed after a moment.
        """
        self._coscheduling = coscheduling
        self._contested = contested
        self._filler = filler

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        world.begin()
        if not self._contested:
            self.gang = world.new_gang(coscheduling=self._coscheduling, filler=self._filler)
            return
        self.gang = world.new_name("gang")
        go_on = world.hold("PATCH", f"/podgroups/{self.gang}")
        if taken is not None:
            world.contest("PATCH", f"/podgroups/{self.gang}")
        world.new_gang(self.gang, coscheduling=self._coscheduling)
        go_on(lambda: world.label(world.group_path(self.gang, coscheduling=self._coscheduling)))

    def fails(self, world: RbacWorld, taken: Right) -> None:
        for pod in pods_of(self.gang):
            world.wait_told(pod, taken.refusal)
            assert not is_bound(world.pod(pod))
        world.proxies[0].forget()

    def works(self, world: RbacWorld) -> None:
        world.wait_bound(*pods_of(self.gang))
        if not self._coscheduling:
            world.wait_whole(self.gang, 2)


class DeletesPlans(Work):
    """The ConfigMap of a gang that has ended is left behind."""

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        self._place(world)
        world.finish(world.members(self.gang))

    def _place(self, world: RbacWorld) -> None:
        world.begin()
        self.gang = world.new_gang(filler=FILLER)
        world.wait_whole(self.gang, 2)
        assert world.plan_map(self.gang) is not None

    def fails(self, world: RbacWorld, taken: Right) -> None:
        world.wait_said(taken.refusal)
        assert world.plan_map(self.gang) is not None
        world.tidy()
        self._place(world)  # the scheduler deletes the first plan only before it writes another
        world.mark()

    def works(self, world: RbacWorld) -> None:
        world.finish(world.members(self.gang))
        world.until("the end of the plan", lambda: world.plan_map(self.gang) is None, PATIENCE)


class DeletesOrphans(Work):
    """The ConfigMap of a PodGroup that was deleted without a scheduler is left behind, and the next gang is placed."""

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        world.begin()
        orphan = world.new_gang(filler=FILLER)
        world.wait_whole(orphan, 2)
        self.orphan = orphan
        world.scheduler.kill()
        world.tidy()
        world.restart()
        self._place_another(world)

    def _place_another(self, world: RbacWorld) -> None:
        world.wait_whole(world.new_gang(filler=FILLER), 2)

    def fails(self, world: RbacWorld, taken: Right) -> None:
        world.wait_said(taken.refusal)
        assert world.plan_map(self.orphan) is not None

    def works(self, world: RbacWorld) -> None:
        self._place_another(world)
        assert world.plan_map(self.orphan) is None


class ReadsPlans(Work):
    """A scheduler that cannot read plans at its start ends, because it does not know what is allocated."""

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        world.begin()
        self.gang = world.new_gang(filler=FILLER)
        world.wait_bound(*pods_of(self.gang))
        world.restart()

    def fails(self, world: RbacWorld, taken: Right) -> None:
        world.until("the end of the scheduler", lambda: not world.scheduler.running, PATIENCE)
        world.wait_said(taken.refusal)
        assert world.scheduler.status == BAD_INPUT

    def works(self, world: RbacWorld) -> None:
        world.begin()
        world.wait_whole(self.gang, 2)
        world.wait_bound(world.new_pod())


class Evicts(Work):
    """A bound member stays, although the gang has timed out."""

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        world.begin()
        gang = world.new_name("gang")
        self.member, refused = pods_of(gang)
        self._guard(world, gang)
        world.refuse_binds_of(refused)
        go_on = world.hold("POST", f"/pods/{self.member}/eviction")
        world.new_gang(gang)
        go_on(lambda: world.run_pod(self.member))  # budgets do not apply to pending pods

    def _guard(self, world: RbacWorld, gang: str) -> None:
        """Prevent the eviction of its pods in another way."""

    def fails(self, world: RbacWorld, taken: Right) -> None:
        world.wait_said(taken.refusal)
        assert is_bound(world.pod(self.member))

    def works(self, world: RbacWorld) -> None:
        world.until(f"the end of {self.member}", lambda: not world.exists(self.member), PATIENCE)


class Deletes(Evicts):
    """The same if a disruption budget rejects the eviction."""

    def _guard(self, world: RbacWorld, gang: str) -> None:
        spec = {"minAvailable": 2, "selector": {"matchLabels": {"gang": gang}}}
        world.plane.create({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": spec,
                            "metadata": {"name": gang, "namespace": world.namespace}})  # fmt: skip


class Reports(Work):
    """The scheduler logs failed reports once a minute, so each test needs a new failure."""

    def _start(self, world: RbacWorld, taken: Right | None) -> None:
        if taken is not None:
            world.restart()
        world.begin()


class WritesPodStatus(Reports):
    """The condition of a pod that fits on no node is missing; its event is there."""

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        self._start(world, taken)
        self.pod = world.new_pod(cpu=MANY)

    def fails(self, world: RbacWorld, taken: Right) -> None:
        world.wait_said(taken.refusal)
        assert condition(world.pod(self.pod), "PodScheduled") is None
        assert world.metric('fluence_reports_dropped_total{kind="condition",why="Forbidden"}') > 0
        world.wait_event(self.pod, "FailedScheduling")

    def works(self, world: RbacWorld) -> None:
        world.wait_refused(self.pod, "Insufficient cpu")


class RecordsEvents(Reports):
    """The event of a pod that fits on no node is missing; its condition is there."""

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        self._start(world, taken)
        self.pod = world.new_pod(cpu=MANY)

    def fails(self, world: RbacWorld, taken: Right) -> None:
        world.wait_said(taken.refusal)
        assert world.events(self.pod, "FailedScheduling") == []
        assert world.metric('fluence_reports_dropped_total{kind="event",why="Forbidden"}') > 0
        world.wait_refused(self.pod, "Insufficient cpu")

    def works(self, world: RbacWorld) -> None:
        world.wait_event(self.pod, "FailedScheduling")


class RepeatsEvents(Reports):
    """A repeated event gets no series."""

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        self._start(world, taken)
        self.pod = world.new_pod(cpu=MANY)

    def _series(self, world: RbacWorld) -> list[Any]:
        return [event["series"] for event in world.events(self.pod, "FailedScheduling") if event.get("series")]

    def fails(self, world: RbacWorld, taken: Right) -> None:
        world.wait_said(taken.refusal)
        world.wait_event(self.pod, "FailedScheduling")
        assert self._series(world) == []

    def works(self, world: RbacWorld) -> None:
        world.until("a series", lambda: self._series(world) or None, PATIENCE)


class WritesGroupStatus(Reports):
    """The PodGroup of a bound gang gets no condition."""

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        self._start(world, taken)
        self.gang = world.new_gang()
        world.wait_bound(*pods_of(self.gang))

    def fails(self, world: RbacWorld, taken: Right) -> None:
        world.wait_said(taken.refusal)
        said = condition(world.group(self.gang), "PodGroupScheduled")
        assert said is None or said["status"] != "True"

    def works(self, world: RbacWorld) -> None:
        world.wait_whole(self.gang, 2)


class WritesQueueStatus(Reports):
    """A queue's status is missing; pods are scheduled."""

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        self._start(world, taken)
        self.queue = world.new_name("queue")
        world.plane.create({"apiVersion": QUEUES, "kind": "Queue", "metadata": {"name": self.queue}, "spec": {}})

    def fails(self, world: RbacWorld, taken: Right) -> None:
        world.wait_said(taken.refusal)
        assert "status" not in self._found(world)
        world.wait_bound(world.new_pod())

    def works(self, world: RbacWorld) -> None:
        world.until(f"the status of {self.queue}", lambda: "status" in self._found(world), PATIENCE)

    def _found(self, world: RbacWorld) -> dict[str, Any]:
        found: dict[str, Any] = world.plane.request("GET", f"/apis/{QUEUES}/queues/{self.queue}")[1]
        return found


class Lists(Work):
    """A scheduler that starts does not become ready, and places no pods."""

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        world.scheduler.kill()
        self.pod = world.new_pod()
        world.restart()

    def fails(self, world: RbacWorld, taken: Right) -> None:
        world.wait_said(taken.refusal)
        status, text = world.scheduler.get("/readyz?verbose")
        assert (status, "the cluster's objects have not been listed yet" in text) == (
            HTTPStatus.SERVICE_UNAVAILABLE,
            True,
        ), text
        assert not is_bound(world.pod(self.pod))

    def works(self, world: RbacWorld) -> None:
        world.scheduler.wait_ready()
        world.wait_bound(self.pod)


class Watches(Work):
    """Changes are found only by periodic lists."""

    def __init__(self, kind: str, *, coscheduling: bool = False) -> None:
        self._kind = kind
        self._coscheduling = coscheduling

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        world.begin()
        self._path = self._watched(world)
        self._before = world.metric(self._ends)
        world.proxies[0].cut_watches()

    def fails(self, world: RbacWorld, taken: Right) -> None:
        world.wait_said(taken.refusal)
        world.wait_metric(self._ends, above=self._before)
        events = world.metric(self._events)
        world.label(self._path)
        assert world.metric(self._events) == events

    def works(self, world: RbacWorld) -> None:
        events = world.metric(self._events)

        def reported() -> bool:
            world.label(self._path)  # repeatedly, because a list may come before the next watch
            return world.metric(self._events) > events

        world.until("an event", reported, PATIENCE)
        world.wait_bound(world.new_pod())

    @property
    def _ends(self) -> str:
        return f'fluence_watch_ends_total{{kind="{self._kind}",why="Forbidden"}}'

    @property
    def _events(self) -> str:
        return f'fluence_watch_events_total{{kind="{self._kind}"}}'

    def _watched(self, world: RbacWorld) -> str:
        """Return the path of an object of the kind."""
        if self._kind == "Node":
            return f"/api/v1/nodes/{world.nodes[0]}"
        if self._kind == "PriorityClass":
            return "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical"
        if self._kind == "Pod":
            return world.pod_path(world.new_pod(schedulerName="none"))
        return world.group_path(world.new_gang(coscheduling=self._coscheduling), coscheduling=self._coscheduling)


class Leads(Work):
    """A replica that cannot read the Lease stands by, and is not ready."""

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        world.restart()

    def fails(self, world: RbacWorld, taken: Right) -> None:
        world.wait_said(taken.refusal)
        status, text = world.scheduler.get("/readyz?verbose")
        assert (status, "see the log" in text) == (HTTPStatus.SERVICE_UNAVAILABLE, True), text
        assert world.metric("fluence_leader") == 0

    def works(self, world: RbacWorld) -> None:
        world.scheduler.wait_ready()
        world.wait_bound(world.new_pod())


class SeesOthers(Leads):
    """A leader that cannot list Leases does not see whether other schedulers serve a partition."""

    def fails(self, world: RbacWorld, taken: Right) -> None:
        world.wait_said(taken.refusal)


class Renews(Work):
    """The leader ends, because it cannot renew its lease."""

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        world.restart()

    def fails(self, world: RbacWorld, taken: Right) -> None:
        world.wait_said(taken.refusal)
        world.until("the end of the replica", lambda: not world.scheduler.running, PATIENCE)
        assert world.scheduler.status == 1
        assert any("this replica lost the lease" in line for line in world.said)

    def works(self, world: RbacWorld) -> None:
        world.begin()
        renewed = world.plane.request("GET", LEASE)[1]["spec"]["renewTime"]
        world.plane.wait_for(LEASE, lambda lease: lease["spec"]["renewTime"] != renewed)


class ServesTheRest(Work):
    """A refused kind is logged once, and pods that do not need it are placed. It is mirrored again some time later."""

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        world.restart()

    def fails(self, world: RbacWorld, taken: Right) -> None:
        world.wait_said(taken.refusal)
        world.scheduler.wait_ready()
        world.wait_bound(world.new_pod())

    def works(self, world: RbacWorld) -> None:
        world.scheduler.wait_ready()
        world.wait_bound(world.new_pod())
        world.scheduler.kill()  # otherwise it retries the kind only after half a minute


class KeepsVolumes(Work):
    """A pod whose claim waits for it is not placed: no volume can be reserved or provisioned for the claim."""

    def __init__(self, *, made: bool = False) -> None:
        self._made = made

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        world.begin()
        self.claim = world.new_claim(made=self._made)
        self.pod = world.new_pod(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": self.claim}}])

    def fails(self, world: RbacWorld, taken: Right) -> None:
        world.wait_told(self.pod, taken.refusal)
        assert not is_bound(world.pod(self.pod))

    def works(self, world: RbacWorld) -> None:  # no volume controller binds the claim
        world.until("what is written", lambda: world.decided(self.claim, made=self._made), PATIENCE)


class ClaimsDevices(Work):
    """A pod with a device claim, or with an extended resource from a DeviceClass, is not bound."""

    def __init__(self, *, extended: bool = False) -> None:
        self._extended = extended

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        world.begin()
        self.pod = world.new_device_pod(extended=self._extended)

    def fails(self, world: RbacWorld, taken: Right) -> None:
        world.wait_told(self.pod, taken.refusal)
        assert not is_bound(world.pod(self.pod))

    def works(self, world: RbacWorld) -> None:
        world.wait_bound(self.pod)


_LISTS, _LEADS, _RESTS, _VOLUMES = Lists(), Leads(), ServesTheRest(), KeepsVolumes()
_DEVICES = ClaimsDevices()
OPTIONAL = {
    "persistentvolumeclaims": "PersistentVolumeClaim", "persistentvolumes": "PersistentVolume",
    "storage.k8s.io/storageclasses": "StorageClass", "storage.k8s.io/csinodes": "CSINode",
    "storage.k8s.io/csidrivers": "CSIDriver", "storage.k8s.io/csistoragecapacities": "CSIStorageCapacity",
    "storage.k8s.io/volumeattachments": "VolumeAttachment",
    "policy/poddisruptionbudgets": "PodDisruptionBudget",
    "fluence.flux-framework.org/queues": "Queue",
    "resource.k8s.io/deviceclasses": "DeviceClass", "resource.k8s.io/resourceslices": "ResourceSlice",
    "resource.k8s.io/resourceclaims": "ResourceClaim", "resource.k8s.io/devicetaintrules": "DeviceTaintRule",
    "namespaces": "Namespace", "services": "Service", "replicationcontrollers": "ReplicationController",
    "apps/replicasets": "ReplicaSet", "apps/statefulsets": "StatefulSet",
}  # fmt: skip
"""Kinds that the scheduler can work without, by type."""


class WatchesOptional(Work):
    """Changes are found only by periodic lists, because the forbidden watch ends."""

    def __init__(self, kind: str) -> None:
        self._ends = f'fluence_watch_ends_total{{kind="{kind}",why="Forbidden"}}'

    def prepare(self, world: RbacWorld) -> None:
        world.begin()

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        world.begin()
        world.proxies[0].cut_watches()

    def fails(self, world: RbacWorld, taken: Right) -> None:
        world.wait_said(taken.refusal)
        world.wait_metric(self._ends)
        world.wait_bound(world.new_pod())

    def works(self, world: RbacWorld) -> None:
        world.wait_bound(world.new_pod())


class Reviews(Work):
    """A reader of the endpoints gets an answer; without the right no user does."""

    def begin(self, world: RbacWorld, taken: Right | None) -> None:
        world.restart()  # without cached reviews
        world.scheduler.wait_ready()
        world.mark()

    def fails(self, world: RbacWorld, taken: Right) -> None:
        assert self._status(world) == HTTPStatus.SERVICE_UNAVAILABLE
        world.wait_said(taken.refusal)

    def works(self, world: RbacWorld) -> None:
        assert self._status(world) == HTTPStatus.OK

    def _status(self, world: RbacWorld) -> int:
        return world.scheduler.get("/configz", world.plane.token())[0]


_REVIEWS = Reviews()
NEEDS: dict[str, Work] = {
    "list nodes": _LISTS,
    "watch nodes": Watches("Node"),
    "get pods": BindsAgain(),
    "list pods": _LISTS,
    "watch pods": Watches("Pod"),
    "delete pods": Deletes(),
    "create pods/binding": Binds(),
    "create pods/eviction": Evicts(),
    "patch pods/status": WritesPodStatus(),
    "get scheduling.k8s.io/podgroups": Plans(contested=True),
    "list scheduling.k8s.io/podgroups": _LISTS,
    "watch scheduling.k8s.io/podgroups": Watches("PodGroup"),
    "patch scheduling.k8s.io/podgroups": Plans(),
    "patch scheduling.k8s.io/podgroups/status": WritesGroupStatus(),
    "get scheduling.x-k8s.io/podgroups": Plans(coscheduling=True, contested=True),
    "list scheduling.x-k8s.io/podgroups": _LISTS,
    "watch scheduling.x-k8s.io/podgroups": Watches("PodGroup", coscheduling=True),
    "patch scheduling.x-k8s.io/podgroups": Plans(coscheduling=True),
    "list scheduling.k8s.io/priorityclasses": _LISTS,
    "watch scheduling.k8s.io/priorityclasses": Watches("PriorityClass"),
    "get persistentvolumeclaims": _VOLUMES,
    "patch persistentvolumeclaims": KeepsVolumes(made=True),
    "get persistentvolumes": _VOLUMES,
    "patch persistentvolumes": _VOLUMES,
    "create resource.k8s.io/resourceclaims": ClaimsDevices(extended=True),
    "patch resource.k8s.io/resourceclaims": _DEVICES,
    "patch resource.k8s.io/resourceclaims/status": _DEVICES,
    "patch resource.k8s.io/resourceclaims/binding": _DEVICES,
    **{f"list {kind}": _RESTS for kind in OPTIONAL},
    **{f"watch {kind}": WatchesOptional(name) for kind, name in OPTIONAL.items()},
    "patch fluence.flux-framework.org/queues/status": WritesQueueStatus(),
    "create authentication.k8s.io/tokenreviews": _REVIEWS,
    "create authorization.k8s.io/subjectaccessreviews": _REVIEWS,
    "create events.k8s.io/events": RecordsEvents(),
    "patch events.k8s.io/events": RepeatsEvents(),
    "create configmaps": Plans(filler=FILLER),
    "get configmaps": ReadsPlans(),
    "list configmaps": DeletesOrphans(),
    "delete configmaps": DeletesPlans(),
    "create coordination.k8s.io/leases": _LEADS,
    "get coordination.k8s.io/leases": _LEADS,
    "list coordination.k8s.io/leases": SeesOthers(),
    "update coordination.k8s.io/leases": Renews(),
}
"""The work for each right."""
