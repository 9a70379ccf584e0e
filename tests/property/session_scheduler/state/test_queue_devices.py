"""Queues count devices as a count from scratch does, and stay within their limits at every moment of a session."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from session_scheduler.builtin.dynamic_resources import DynamicResources
from session_scheduler.config.settings import DeviceResourceConfig, QueueConfig, SchedulerConfig
from session_scheduler.framework.callbacks import Event
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import hookimpl
from session_scheduler.model.device_amounts import claim_amounts
from session_scheduler.model.devices import Allocation, DeviceClass, ResourceClaim, ResourceSlice
from session_scheduler.model.groups import Phase, Task
from session_scheduler.model.objects import Pod
from session_scheduler.model.queues import QUEUE_LABEL
from session_scheduler.state.cache import Cache
from session_scheduler.testing import FakeCluster
from session_scheduler.testing.builders import gang, pod

from ....tools.examples import examples

LEAVES = ("a", "b", "c")
CLASSES = ("gpu", "big")
AMOUNTS = {name: f"{name}.deviceclass.resource.k8s.io/devices" for name in CLASSES}
FRACTION = "fluence.flux-framework.org/gpu-fraction"
WHOLE = "nvidia.com/gpu"
MODELS = {f"{name}.fluence.flux-framework.org/devices": name for name in ("a", "b")}
"""The GPUs of each model: whole ones, parts, and for the model a also claims of the class gpu."""
ALL = "all.fluence.flux-framework.org/devices"
EVEN = "even.fluence.flux-framework.org/devices"
"""The devices of claims that have the attribute "even"; the others are odd."""
SIZE = "size.fluence.flux-framework.org/capacity"
DEVICES = (
    DeviceResourceConfig(name="a", resources=(WHOLE, FRACTION, AMOUNTS["gpu"]), node_selector={"model": "a"}),
    DeviceResourceConfig(name="b", resources=(WHOLE, FRACTION), node_selector={"model": "b"}),
    DeviceResourceConfig(name="all", resources=(WHOLE, FRACTION)),
    DeviceResourceConfig(name="even", device_attributes={"d.example.com/kind": "even"}),
    DeviceResourceConfig(name="size", capacity="d.example.com/size"),
)
KINDS = ("even", "odd")
COUNTED = ("allocated", "kept", "pending", "decided", "decided_kept", "leaving")
CLAIMS = ("c0", "c1", "c2", "c3")
Decided = Callable[[ResourceClaim], Allocation | None]
WORK = st.tuples(
    st.sampled_from(["pod", "pod", "gang", "gpus", "fraction", "end", "move", "claim", "drop", "evict", "label"]),
    st.sampled_from(LEAVES), st.integers(1, 3), st.integers(0, 3),
    st.lists(st.sampled_from(CLAIMS), max_size=2, unique=True),
)  # fmt: skip


def made(kind: Any, name: str, namespace: str = "", **spec: Any) -> Any:
    metadata = {"name": name, "namespace": namespace}
    return msgspec.convert({"kind": kind.__name__, "metadata": metadata, "spec": spec}, kind)


def requests(size: int, choice: int) -> dict[str, Any]:
    """The requests of a claim: for a number of devices of one class, all of one kind, or of one of two classes."""
    exact: dict[str, Any] = {"name": "r", "exactly": {"deviceClassName": CLASSES[choice % 2], "count": size}}
    if choice == 2:
        listed = [{"name": "x", "deviceClassName": "big", "count": 1},
                  {"name": "y", "deviceClassName": "gpu", "count": size}]  # fmt: skip
        exact = {"name": "r", "firstAvailable": listed}
    if choice == 3:
        kind = f'device.attributes["d.example.com"].kind == "{KINDS[size % 2]}"'
        exact["exactly"]["selectors"] = [{"cel": {"expression": kind}}]
    return {"devices": {"requests": [exact]}}


def with_claims(one: Pod, names: Iterable[str]) -> Pod:
    entries = tuple({"name": name, "resourceClaimName": name} for name in names)
    return replace(one, spec=replace(one.spec, resource_claims=entries))


def on_models(cache: Cache, task: Task, node: str | None) -> dict[str, int]:
    """The device resources of a task on a node, or those that it may have on any."""
    amounts = task.cls.queue_amounts
    gpus = 1000 * amounts.get(WHOLE, 0) + amounts.get(FRACTION, 0)
    labels = cache.labels(node) or {} if node is not None else task.cls.pod.spec.node_selector
    models = [name for name, model in MODELS.items()
              if labels.get("model", model if node is None else None) == model]  # fmt: skip
    return dict.fromkeys([*models, ALL], gpus) if gpus else {}


def of_claim(claim: ResourceClaim, *, possible: bool = False) -> dict[str, int]:
    """What a claim counts with; with `possible` before its allocation, what it may count with."""
    found = claim_amounts(claim)
    gpus = found.get(AMOUNTS["gpu"], 0)
    if gpus:
        found["a.fluence.flux-framework.org/devices"] = 1000 * gpus
    (request,), allocation = claim.spec.devices.requests, claim.status.allocation
    if allocation is not None:
        numbers = [int(one.device[1:]) for one in allocation.devices.results]
        found[EVEN], found[SIZE] = 1000 * sum(n % 2 == 0 for n in numbers), sum(n + 1 for n in numbers)
    elif request.first_available:
        found[EVEN] = 1000 * possible * max(one.count for one in request.first_available)
    elif request.exactly is not None:
        selectors, count = request.exactly.selectors, request.exactly.count
        even = '"even"' in str(selectors) if selectors else possible
        found[EVEN] = 1000 * count * even
    return {name: amount for name, amount in found.items() if amount}


def as_decided(claim: ResourceClaim, decided: Decided) -> ResourceClaim:
    """The claim with the allocation that the scheduler decided, unless the watch shows one."""
    allocation = decided(claim) if claim.status.allocation is None else None
    return claim if allocation is None else replace(claim, status=replace(claim.status, allocation=allocation))


def from_scratch(cache: Cache, queue: str, decided_for: Decided) -> dict[str, dict[str, int]]:
    """Each of a queue's counts, from the tasks and claims of the cache."""
    use = cache.queues
    claims = {key: as_decided(one, decided_for) for key, one in cache.objects.of(ResourceClaim).items()}
    mine = [task for task in cache.tasks.values()
            if queue in use.tree.path(task.group.queue) and use.concerns(task)]  # fmt: skip
    placed = [task for task in mine if task.node is not None]
    pending = [task for task in mine if task.node is None and task.phase is Phase.PENDING]
    decided = [task for task in placed if task.uid not in cache.preempted]
    decided += [task for task in pending if cache.nominations.comes_next(task)]
    kept = {task for task in mine if not task.group.preemptible}

    def total(
        tasks: Iterable[Task],
        without: Iterable[Task] = (),
        node_of: Callable[[Task], str | None] = lambda task: task.node,
        *,
        possible: bool = False,
    ) -> dict[str, int]:
        tasks, found = list(tasks), dict[str, int]()
        used = {claim for task in tasks for claim in task.cls.claims}
        used -= {claim for task in without for claim in task.cls.claims}
        of_claims = [of_claim(claims[claim], possible=possible) for claim in used if claim in claims]
        models = [on_models(cache, task, node_of(task)) for task in tasks]
        for amounts in (*(task.cls.queue_amounts for task in tasks), *models, *of_claims):
            for name, amount in amounts.items():
                found[name] = found.get(name, 0) + amount
        return found

    def going_to(task: Task) -> str | None:
        return task.node if task.node is not None else cache.nominations.node_of(task)

    leaving: dict[str, int] = {}
    for task in placed:
        for name, amount in on_models(cache, task, task.node).items() if task.uid in cache.preempted else ():
            leaving[name] = leaving.get(name, 0) + amount
    return {"allocated": total(placed), "kept": total(one for one in placed if one in kept),
            "pending": total(pending, without=placed, possible=True), "decided": total(decided, (), going_to),
            "decided_kept": total([one for one in decided if one in kept], (), going_to),
            "leaving": leaving}  # fmt: skip


class Watcher:
    """Compares the counts after every placement and removal in a session."""

    name = "watcher"

    plugin: DynamicResources

    def __init__(self, *, limits: bool) -> None:
        self.limits = limits

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        cache, decided = session.snapshot.cache, self.plugin._holdings.of

        def look(event: Event) -> None:
            for name in cache.queues.tree:
                found, counts = from_scratch(cache, name, decided), cache.queues.counts(name)
                assert {which: getattr(counts, which) for which in COUNTED} == found, (name, event)
                limit = cache.queues.tree.specs[name].limit
                assert not self.limits or all(found["allocated"].get(one, 0) <= most for one, most in limit.items())

        session.add_event_handler(allocate=look, deallocate=look)


def a_cluster(limits: list[dict[str, Any]], watcher: Watcher, evaluation: Any = "board") -> FakeCluster:
    queues = (QueueConfig(name="top", limit=limits[0]), QueueConfig(name="a", parent="top", limit=limits[1]),
              QueueConfig(name="b", parent="top", limit=limits[2], deserved={AMOUNTS["gpu"]: 1}),
              QueueConfig(name="c", limit=limits[3]))  # fmt: skip
    config = SchedulerConfig(bindings_in_flight=1_000, queues=queues, device_resources=DEVICES)
    cluster = FakeCluster(config=config, evaluation=evaluation)
    for number, model in ((1, "a"), (2, "b"), (3, "a")):
        cluster.node(f"n{number}", cpu="4", offers={WHOLE: 2}, labels={"model": model})
    cluster.add(*(made(DeviceClass, name) for name in CLASSES))
    for node in ("n1", "n2"):
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        devices = [{"name": f"d{number}", "attributes": {"kind": {"string": KINDS[number % 2]}},
                    "capacity": {"size": {"value": str(number + 1)}}} for number in range(4)]  # fmt: skip
        cluster.add(made(ResourceSlice, node, driver="d.example.com", nodeName=node, pool=pool, devices=devices))
    cluster.start(watcher)
    watcher.plugin = cluster.plugin("DynamicResources")
    cluster.run()
    return cluster


def play(cluster: FakeCluster, index: int, work: tuple[str, str, int, int, list[str]]) -> None:
    kind, queue, size, choice, claims = work
    options: dict[str, Any] = {"cpu": "1", "labels": {QUEUE_LABEL: queue}, "priority": 60 * choice}
    if kind == "pod":
        cluster.add(*(with_claims(pod(f"p{index}-{number}", **options), claims) for number in range(size)))
    elif kind == "fraction":
        cluster.add(pod(f"f{index}", annotations={FRACTION: f"0.{size}"}, **options))
    elif kind == "gpus":
        spec: dict[str, Any] = {"node_selector": {"model": "ab"[size % 2]}} if claims else {}
        cluster.add(*(pod(f"w{index}-{n}", requests={WHOLE: 1 + size % 2}, **spec, **options) for n in range(size)))
    elif kind == "label":
        cluster.node(f"n{size}", cpu="4", offers={WHOLE: 2}, labels={"model": "abc"[choice % 3]})
    elif kind == "gang":
        members = gang(f"g{index}", size, **options)
        cluster.add(*(with_claims(one, claims) if isinstance(one, Pod) else one for one in members))
    elif kind == "claim":  # another one of the same name, unless it is there
        there = {one.metadata.name for one in cluster.memory.objects(ResourceClaim)}
        cluster.add(*(made(ResourceClaim, name, "default", **requests(size, choice))
                      for name in CLAIMS[:size] if name not in there))  # fmt: skip
    elif kind == "drop":
        for dropped in cluster.memory.objects(ResourceClaim)[:size]:
            cluster.delete(ResourceClaim, dropped.metadata.name)
    elif kind == "evict":
        cluster.finish_deletions()
    else:
        for one in cluster.memory.objects(Pod)[:size]:
            if kind == "end":
                cluster.delete(Pod, one.metadata.name)
            else:
                labels = {**one.metadata.labels, QUEUE_LABEL: queue}
                cluster.add(replace(one, metadata=replace(one.metadata, labels=labels)))


LIMITS = st.dictionaries(
    st.sampled_from([*AMOUNTS.values(), *MODELS, *MODELS, ALL, EVEN, EVEN, SIZE, FRACTION, "pods"]),
    st.integers(0, 4),
    max_size=2,
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(LIMITS, min_size=4, max_size=4), st.lists(WORK, min_size=1, max_size=14))
def test_incremental_counts_of_devices_equal_a_count_from_scratch(
    limits: list[dict[str, int]], work: list[tuple[str, str, int, int, list[str]]]
) -> None:
    watcher = Watcher(limits=False)
    cluster = a_cluster([dict(one) for one in limits], watcher)
    cluster.add(*(made(ResourceClaim, name, "default", **requests(1 + n % 2, n)) for n, name in enumerate(CLAIMS)))
    for index, one in enumerate(work):
        play(cluster, index, one)
        cluster.run()
        cache = cluster.scheduler.cache
        cache.queues.reconcile()
        for name in cache.queues.tree:
            counts = cache.queues.counts(name)
            assert {which: getattr(counts, which) for which in COUNTED} == from_scratch(
                cache, name, watcher.plugin._holdings.of
            ), (name, one)
        used = {claim for task in cache.tasks.values() if task.node is not None for claim in task.cls.claims}
        others: dict[str, int] = {}
        for claim in cache.objects.of(ResourceClaim).values():
            if claim.status.allocation is not None and claim.key not in used:
                for name, amount in of_claim(claim).items():
                    others[name] = others.get(name, 0) + amount
        assert cache.queues.claims.others == others
        errors = [str(outcome.refusal.reason) for outcome in cluster.scheduler.outcomes.values()
                  if outcome.refusal is not None and outcome.refusal.failed]  # fmt: skip
        assert errors == []


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(LIMITS, min_size=4, max_size=4), st.lists(WORK, min_size=1, max_size=12))
def test_queues_stay_within_their_limits_on_devices_after_every_placement(
    limits: list[dict[str, int]], work: list[tuple[str, str, int, int, list[str]]]
) -> None:
    cluster = a_cluster([dict(one) for one in limits], Watcher(limits=True))
    cluster.add(*(made(ResourceClaim, name, "default", **requests(1 + n % 2, n)) for n, name in enumerate(CLAIMS)))
    for index, one in enumerate(work):
        if one[0] not in ("move", "drop", "claim", "label"):  # these change what running pods count with
            play(cluster, index, one)
            cluster.run()
        errors = [str(outcome.refusal.reason) for outcome in cluster.scheduler.outcomes.values()
                  if outcome.refusal is not None and outcome.refusal.failed]  # fmt: skip
        assert errors == []


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(LIMITS, min_size=4, max_size=4), st.lists(WORK, min_size=1, max_size=8))
def test_the_naive_evaluation_allocates_the_same_devices_within_limits(
    limits: list[dict[str, int]], work: list[tuple[str, str, int, int, list[str]]]
) -> None:
    found = []
    for evaluation in ("naive", "heap", "board"):
        cluster = a_cluster([dict(one) for one in limits], Watcher(limits=False), evaluation)
        cluster.add(*(made(ResourceClaim, name, "default", **requests(1 + n % 2, n)) for n, name in enumerate(CLAIMS)))
        for index, one in enumerate(work):
            play(cluster, index, one)
            cluster.run()
        allocations = {one.metadata.name: one.status.allocation for one in cluster.memory.objects(ResourceClaim)}
        devices = {name: one and [result.device for result in one.devices.results] for name, one in allocations.items()}
        found.append((cluster.placements(), devices))
    assert found[0] == found[1] == found[2]
