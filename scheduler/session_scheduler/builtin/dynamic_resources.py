"""The DynamicResources plugin: rejects nodes that cannot provide the devices of a pod's claims, and allocates claims.

A session that places a pod *holds* allocations for the pod's claims, and releases them when it undoes the placement.
`prebind` writes them to the API server before the pod is bound. Nodes with equal devices in the same state are
evaluated once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
from pydantic import Field

from session_scheduler.builtin.devices.changes import Change, changes, free_devices, matching_labels
from session_scheduler.builtin.devices.claims import claim_names, pod_claims, ready, unknown_class, unusable
from session_scheduler.builtin.devices.errors import AllocationError
from session_scheduler.builtin.devices.evaluation import NONE_LEFT, DeviceEvaluator, rank_of
from session_scheduler.builtin.devices.extended import ExtendedResources, classes_of_resources, requests_for
from session_scheduler.builtin.devices.holdings import Holdings
from session_scheduler.builtin.devices.queue_limits import QueueLimits
from session_scheduler.builtin.devices.repairs import Repairs
from session_scheduler.builtin.devices.totals import DeviceTotals
from session_scheduler.builtin.devices.writing import Special, Writer
from session_scheduler.config.settings import PluginArguments
from session_scheduler.errors import AttemptError
from session_scheduler.framework import bindings
from session_scheduler.framework.bindings import Binding, Runtime
from session_scheduler.framework.callbacks import Event
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import SKIP, Gate, Normalise, Prepared, Refusal, Scope, Skip, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView
from session_scheduler.model.device_amounts import amount_name, claim_amounts, device_class_of
from session_scheduler.model.devices import (
    EXTENDED_CLAIM,
    Allocation,
    DeviceClaim,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceSlice,
)
from session_scheduler.model.events import ActionType, ClusterEvent, ClusterEventWithHint
from session_scheduler.model.groups import Phase, Task
from session_scheduler.model.meta import ObjectMeta, OwnerReference
from session_scheduler.model.objects import Node, Pod, PodGroup
from session_scheduler.model.queue_objects import Queue

_WRITING_SECONDS: Final = 30
"""Seconds for the requests themselves, in addition to the wait for devices."""
_USERS: Final = "pods with resource claims"
"""Counter key: the pods on a row that use claims."""
_encoder: Final = msgspec.json.Encoder(order="sorted")
_NOT_AVAILABLE: Final = "resourceclaim not available on the node"


class DynamicResourcesArguments(PluginArguments):
    """kube-scheduler's DynamicResourcesArgs, with limits on work in place of its `filterTimeout`."""

    binding_timeout_seconds: int = Field(default=600, ge=1, le=86_400)
    """How long a pod waits for its devices' binding conditions after the scheduler chose its node."""
    search_steps: int = Field(default=300_000, ge=1)
    """How many choices of devices an attempt tries for one pod, over all nodes."""
    selector_cost: int = Field(default=2_000_000, ge=1)
    """The CEL cost limit of a session for the pods of one namespace, in the API's units. Pods that need more wait for
    their next attempt.
    """


class _State(msgspec.Struct):
    """A class's claims in a session."""

    pod: Pod
    claims: list[ResourceClaim]
    extended: Mapping[str, DeviceClass]
    """The requested extended resources with their device classes."""
    variants: dict[frozenset[str], ResourceClaimSpec] = msgspec.field(default_factory=dict)
    """By the extended resources that a node does not offer itself: the claim that a pod gets for them there."""
    specs: bytes | None = None
    """The claims' specs, encoded; None: not asked for yet."""


class _Verdicts(msgspec.Struct):
    """The results for the rows of a view."""

    fits: BoolColumn
    scores: IntColumn
    reasons: dict[str, BoolColumn]
    """For the rows of the mask that do not fit. If two apply, the reason is that devices cannot be allocated."""


class _Opened(msgspec.Struct):
    """The state of one session."""

    session: Session | None = None
    states: dict[TaskClass, _State] = msgspec.field(default_factory=dict)
    unavailable: dict[TaskClass, dict[str, ResourceClaim]] = msgspec.field(default_factory=dict)
    """The allocated claims that are not usable on some node."""
    uses: _Uses | None = None
    nominated: tuple[int, dict[str, set[TaskClass]]] = (-1, {})
    """The version of the nominations, and by claim the classes of the nominated pods that use it."""


class _Uses(msgspec.Struct):
    """What the pods in `reservedFor` of claims mean for preemption."""

    being_freed: set[str]
    """The amounts of claims that pods no longer use, and that their controller has not deallocated yet. The scheduler
    of a partition sees the claims of other partitions, but not their pods and nodes: these claims do not count.
    """
    rows: set[int]
    """The rows of nodes where pods use claims for extended resources."""


class DynamicResources:
    """Rejects nodes that do not satisfy a claim of the pod; allocates claims and writes the allocations."""

    Arguments = DynamicResourcesArguments
    name = "DynamicResources"
    weight = 2
    filter_scope = Scope.ANY
    score_scope = Scope.ANY
    normalise = Normalise.MAX
    single = True

    def __init__(self, arguments: DynamicResourcesArguments | None = None) -> None:
        arguments = arguments or DynamicResourcesArguments()
        self.prebind_seconds = float(arguments.binding_timeout_seconds + _WRITING_SECONDS)
        self._binding_timeout = float(arguments.binding_timeout_seconds)
        self._limits = QueueLimits()
        self._holdings = Holdings(self._limits.decided)
        self._evaluator = DeviceEvaluator(self._holdings, arguments.search_steps, arguments.selector_cost)
        self._extended = ExtendedResources()
        self._special: dict[str, Special] = {}
        self._writer = Writer(self._holdings, self._binding_timeout)
        self._repairs = Repairs()
        self._opened = _Opened()
        self._totals = DeviceTotals()
        self._active = False
        """Whether a pod has had claims for devices."""

    @hookimpl
    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        """kube-scheduler's events, and the deletion or failed bind of a pod with devices, which frees them."""
        node = ActionType.ADD | ActionType.UPDATE_NODE_LABEL | ActionType.UPDATE_NODE_ALLOCATABLE
        change = ActionType.ADD | ActionType.UPDATE
        return [
            ClusterEventWithHint(Node, node),
            ClusterEventWithHint(ResourceClaim, ActionType.ALL, _claim_helps),
            ClusterEventWithHint(DeviceClass, change),
            ClusterEventWithHint(ResourceSlice, change),
            ClusterEventWithHint(ResourceSlice, ActionType.DELETE, self._limits.changed),
            ClusterEventWithHint(DeviceTaintRule, ActionType.UPDATE | ActionType.DELETE),
            ClusterEventWithHint(Pod, ActionType.UPDATE_POD_GENERATED_RESOURCE_CLAIM, _has_all_claims),
            ClusterEventWithHint(Pod, ActionType.DELETE, self._limits.freed),
            ClusterEventWithHint(Pod, ActionType.UPDATE_POD_LABEL, self._limits.changed),
            ClusterEventWithHint(PodGroup, ActionType.UPDATE | ActionType.DELETE, self._limits.changed),
            ClusterEventWithHint(Queue, ActionType.ALL, self._limits.changed),
        ]

    @hookimpl
    def footprint(self, cls: TaskClass) -> tuple[str, ...]:
        """The counter of pods that use claims."""
        return (_USERS,) if cls.claims else ()

    @hookimpl
    def pre_enqueue(self, pod: Pod, objects: Callable[[type[Any]], Mapping[str, Any]]) -> Gate | None:
        """Gate the pod until all of its claims exist and belong to it, as kube-scheduler's PreEnqueue does."""
        found = pod_claims(pod, objects(ResourceClaim)) if pod.spec.resource_claims else None
        return found if isinstance(found, Gate) else None

    @hookimpl
    def offered(
        self, requested: Collection[str], nodes: NodeView, objects: Callable[[type[Any]], Mapping[str, Any]]
    ) -> dict[str, int]:
        """The devices of each requested class, and of each extended resource in addition to what nodes advertise."""
        classes: Mapping[str, DeviceClass] = objects(DeviceClass)
        if not classes:
            return {}
        by_amount = {name: classes.get(device_class_of(name) or "") for name in requested}
        of_extended = classes_of_resources(classes, requested)
        wanted = {one.metadata.name: one for one in (*by_amount.values(), *of_extended.values()) if one is not None}
        total = self._totals.of(wanted.values(), objects(ResourceSlice)) if wanted else {}
        found = {name: total[one.metadata.name] for name, one in by_amount.items() if one is not None}
        return found | {name: total[one.metadata.name] + int(nodes.allocatable(name).sum())
                        for name, one in of_extended.items()}  # fmt: skip

    # ------------------------------------------------------------------ evaluation

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        """Hold allocations when the session places a task, and release them when it undoes that."""
        self._opened = _Opened(session)
        self._limits.open(session)
        self._evaluator.open()
        self._extended.refresh(session)
        if self._holdings.any:
            self._see(session)
        session.add_event_handler(self._hold_claims, lambda event: self._release(event.task.uid))
        session.add_trial_handler(lambda event: self._holdings.remove(event.task.uid, self._claims_of(event.task)),
                                  lambda event: self._holdings.put_back(event.task.uid, self._claims_of(event.task)),
                                  own_filter=True)  # fmt: skip

    def _see(self, session: Session) -> Mapping[str, ResourceClaim]:
        """Update the held allocations from the watched claims, which are returned."""
        known = session.objects(ResourceClaim)
        self._holdings.see(known, session.objects_version(ResourceClaim), session.newest_seen(ResourceClaim))
        return known

    def _claims_of(self, task: Task) -> list[ResourceClaim]:
        """A task's claims that exist, also the one for its extended resources."""
        session, made = self._opened.session, task.pod.status.extended_resource_claim_status
        keys = [*task.cls.claims, *([f"{task.cls.namespace}/{made.resource_claim_name}"] if made is not None else ())]
        known = session.objects(ResourceClaim) if session is not None and keys else {}
        return [self._holdings.now(known[key]) for key in keys if key in known]

    @hookimpl
    def prepare(self, session: Session, cls: TaskClass) -> Skip | Refusal | Prepared:
        """The claims' state; a refusal if no node can satisfy one of them. Skips pods without claims."""
        extended = self._extended.among(cls.requests)
        if not cls.pod.spec.resource_claims and not extended:
            return SKIP
        claims = pod_claims(cls.pod, self._see(session))
        if isinstance(claims, Gate):
            return Refusal(claims.reason)
        if not claims and not extended:
            return SKIP
        claims = list({claim.key: self._holdings.now(claim) for claim in claims}.values())  # a pod may name one twice
        classes = session.objects(DeviceClass)
        for claim in claims:
            found = self._allocation(claim)
            refusal = unusable(claim, found, cls.pod) if found is not None else unknown_class(claim, classes)
            if refusal is not None:
                return refusal
        self._active = True
        self._evaluator.start(session)
        state = self._opened.states[cls] = _State(cls.pod, claims, extended)
        ranked = any(request.first_available for claim in claims for request in claim.spec.devices.requests)
        score_scope = Scope.ANY if ranked else SKIP
        return Prepared(state, Scope.ANY, score_scope, claims_key=partial(self._claims_key, cls, state))

    def _claims_key(self, cls: TaskClass, state: _State) -> Hashable | None:
        """The specs of the pod's claims; None if one is allocated, if nominated pods of another class use one, or if
        limits of queues may apply to the devices.
        """
        if self._limits.possible:
            return None
        nominated = self._classes_of_nominated()
        if any(nominated.get(claim.key, {cls}) != {cls} for claim in state.claims):
            return None
        if any(claim.status.reserved_for or self._allocation(claim) is not None for claim in state.claims):
            return None
        if state.specs is None:
            state.specs = _encoder.encode([claim.spec for claim in state.claims])
        return state.specs

    def _classes_of_nominated(self) -> Mapping[str, set[TaskClass]]:
        """By claim (its key): the classes of the nominated pods that use it."""
        session, (version, found) = self._opened.session, self._opened.nominated
        if session is not None and version != session.nominations.version:
            found, nominated = {}, map(session.snapshot.cache.tasks.get, session.nominations.node_by_uid)
            for cls in {task.cls for task in nominated if task is not None}:
                for key in cls.claims:
                    found.setdefault(key, set()).add(cls)
            self._opened.nominated = session.nominations.version, found
        return found

    def _allocation(self, claim: ResourceClaim) -> Allocation | None:
        """The claim's allocation, in its status or held here; without the one that a simulated removal frees."""
        written = None if self._holdings.is_freed(claim) else claim.status.allocation
        return written or self._holdings.of(claim)

    @hookimpl
    def filter(self, cls: TaskClass, nodes: NodeView, mask: BoolColumn, state: _State) -> None:
        """Clear the nodes that do not satisfy a claim. Raises AttemptError for an invalid claim or class."""
        verdicts = self._verdicts(cls, nodes, mask, state)
        np.logical_and(mask, verdicts.fits, out=mask)

    @hookimpl
    def reasons(self, cls: TaskClass, nodes: NodeView, state: _State) -> Mapping[str, BoolColumn]:
        """kube-scheduler's messages."""
        return self._verdicts(cls, nodes, np.ones(len(nodes), np.bool_), state).reasons

    @hookimpl
    def unresolvable(self, session: Session, nodes: NodeView, state: _State) -> BoolColumn:
        """The nodes without pods that use claims. All nodes while devices that the pod requests are being freed: they
        are still allocated, and evicting more pods would free too many.
        """
        requested = {name for claim in state.claims for name in claim_amounts(claim)}
        requested.update(amount_name(one.metadata.name) for one in state.extended.values())
        uses = self._opened.uses = self._opened.uses or _uses_in(session)
        if requested & uses.being_freed:
            return np.ones(len(nodes), np.bool_)
        unresolvable: BoolColumn = (nodes.counter(_USERS) == 0) & ~np.isin(nodes.row_numbers, list(uses.rows))
        return unresolvable

    @hookimpl
    def fits_if(self, cls: TaskClass, nodes: NodeView, state: _State) -> Sequence[Sequence[str] | None] | None:
        """The free devices that each node needs, and the labels that allocated devices require."""
        verdicts = self._verdicts(cls, nodes, np.ones(len(nodes), np.bool_), state)
        allocated = [(claim, found) for claim in state.claims if (found := self._allocation(claim)) is not None]
        if any(claim.status.allocation is not None and self._has_failed(claim, found) for claim, found in allocated):
            return None
        unallocated = [claim for claim in state.claims if self._allocation(claim) is None]
        needed: list[Change] = [
            (np.isin(np.arange(len(nodes)), rows), free_devices(unallocated, variant, state.extended))
            for variant, rows in self._variants(nodes, np.flatnonzero(verdicts.reasons[NONE_LEFT]), state)
        ]
        needed += [(~self._evaluator.selected(found.node_selector)[nodes.row_numbers], matching_labels(claim, found))
                   for claim, found in allocated if found.node_selector is not None]  # fmt: skip
        return changes(nodes, verdicts.fits, needed)

    @hookimpl
    def score(self, cls: TaskClass, nodes: NodeView, mask: BoolColumn, state: _State) -> IntColumn:
        """The higher, the earlier in the lists of `firstAvailable` the node's alternatives come."""
        return self._verdicts(cls, nodes, mask, state).scores

    def _verdicts(self, cls: TaskClass, nodes: NodeView, mask: BoolColumn, state: _State) -> _Verdicts:
        none = np.zeros(len(nodes), np.bool_)
        verdicts = _Verdicts(none.copy(), np.zeros(len(nodes), np.int64), {NONE_LEFT: none.copy()})
        allocations = [self._allocation(claim) for claim in state.claims]
        fixed = sum(rank_of(claim.spec, {result.request for result in found.devices.results})
                    for claim, found in zip(state.claims, allocations, strict=True) if found)  # fmt: skip
        open_claims = [claim for claim, found in zip(state.claims, allocations, strict=True) if found is None]
        unusable = self._unusable(cls, nodes, mask, state.claims, allocations)
        keeps = any(found is not None and self._loses_users(claim)
                    for claim, found in zip(state.claims, allocations, strict=True))  # fmt: skip
        self._evaluator.attempt(cls.namespace)
        names: list[str] = []
        try:
            for variant, all_rows in self._variants(nodes, np.flatnonzero(mask), state):
                specs = {claim.key: claim.spec for claim in open_claims}
                if variant.devices.requests or (state.extended and specs):
                    specs[f"{cls.namespace}/<extended-resources>"] = variant
                for limits, alike in self._limits.on(cls, open_claims, nodes, all_rows):
                    for nominated, rows in self._nominated(nodes, alike, specs):
                        if nominated and keeps:
                            verdicts.reasons[NONE_LEFT][rows] = True
                            continue
                        names, left = [*specs, *nominated], [*nominated.values()]
                        numbers = nodes.row_numbers[rows]
                        outcomes, indices = self._evaluator.outcomes([*specs.values()], numbers, left, limits)
                        verdicts.fits[rows] = np.array([one.fits for one in outcomes], np.bool_)[indices]
                        verdicts.scores[rows] = np.array([fixed + one.rank for one in outcomes], np.int64)[indices]
                        if limits.listed and not verdicts.fits[rows].all():
                            self._limits.note(cls)
                        for text in dict.fromkeys(one.reason for one in outcomes if not one.fits):
                            refused = np.array([one.reason == text for one in outcomes], np.bool_)[indices]
                            verdicts.reasons.setdefault(text, none.copy())[rows] = refused
        except AllocationError as error:
            raise AttemptError(error.text_for(names)) from None
        if unusable is not None:
            verdicts.reasons[_NOT_AVAILABLE] = verdicts.fits & unusable
            verdicts.fits &= ~unusable
        return verdicts

    def _nominated(
        self, nodes: NodeView, indices: Any, own: Collection[str]
    ) -> list[tuple[dict[str, ResourceClaimSpec], Any]]:
        """The claims for which devices must be left to the nominated pods that are counted, each with its nodes'
        indices. `own`: the open claims (keys) of the pod itself, whose devices it shares with nominated pods.
        """
        session = self._opened.session
        counted = session.nominated.counted if session is not None else {}
        if not counted:
            return [({}, indices)]
        found: dict[tuple[str, ...], tuple[dict[str, ResourceClaimSpec], list[int]]] = {}
        for index in indices.tolist():
            claims = self._needed_by(counted.get(int(nodes.row_numbers[index]), ()), nodes, index, own)
            found.setdefault(tuple(claims), (claims, []))[1].append(index)
        return [(claims, np.array(rows)) for claims, rows in found.values()]

    def _needed_by(
        self, tasks: Iterable[Task], nodes: NodeView, index: int, own: Collection[str]
    ) -> dict[str, ResourceClaimSpec]:
        """The claims that pods on a node need devices for, also those for their extended resources, without `own`."""
        found: dict[str, ResourceClaimSpec] = {}
        for task in tasks:
            claims = self._claims_of(task)
            found |= {claim.key: claim.spec for claim in claims
                      if claim.key not in own and self._allocation(claim) is None}  # fmt: skip
            names = {name: one for name, one in self._extended.among(task.cls.requests).items()
                     if not nodes.allocatable(name)[index]}  # fmt: skip
            if names and not any(EXTENDED_CLAIM in claim.metadata.annotations for claim in claims):
                requests, _ = requests_for(task.pod, names)
                found[f"{task.key}/<extended-resources>"] = ResourceClaimSpec(devices=DeviceClaim(requests=requests))
        return found

    def _unusable(
        self,
        cls: TaskClass,
        nodes: NodeView,
        mask: BoolColumn,
        claims: list[ResourceClaim],
        allocations: list[Allocation | None],
    ) -> BoolColumn | None:
        """The nodes where an allocated claim is not usable; None if all claims are usable on all nodes of the mask."""
        found: BoolColumn | None = None
        for claim, allocation in zip(claims, allocations, strict=True):
            if allocation is None:
                continue
            unusable: BoolColumn | None = None
            if allocation.node_selector is not None:
                unusable = ~self._evaluator.selected(allocation.node_selector)[nodes.row_numbers]
            if claim.status.allocation is not None and self._has_failed(claim, allocation):
                unusable = np.ones(len(nodes), np.bool_)
            if unusable is not None and (unusable & mask).any():
                self._opened.unavailable.setdefault(cls, {})[claim.metadata.uid] = claim
                found = unusable if found is None else found | unusable
        return found

    def _loses_users(self, claim: ResourceClaim) -> bool:
        """Whether all pods of a claim are terminating or evicted: a further one would keep its devices allocated."""
        session, users = self._opened.session, claim.status.reserved_for
        if session is None or not users:
            return False
        tasks = session.snapshot.cache.tasks
        return all(one.uid in tasks and session.is_ending(tasks[one.uid]) for one in users)

    def _has_failed(self, claim: ResourceClaim, allocation: Allocation) -> bool:
        """Whether binding the devices failed or timed out, so that they will not become usable."""
        state = ready(claim, allocation)
        return state is not True and (isinstance(state, str) or self._writer.is_late(allocation))

    # ------------------------------------------------------------------ extended resources

    def _variants(self, nodes: NodeView, indices: Any, state: _State) -> list[tuple[ResourceClaimSpec, Any]]:
        """The claims for the extended resources that nodes do not offer themselves, each with its nodes' indices."""
        if not state.extended:
            return [(ResourceClaimSpec(), indices)]
        lacking: dict[frozenset[str], list[int]] = {}
        columns = [(name, nodes.allocatable(name)) for name in state.extended]
        for index in indices.tolist():
            lacking.setdefault(frozenset(name for name, column in columns if not column[index]), []).append(index)
        return [(self._variant(state, names), np.array(rows)) for names, rows in lacking.items()]

    def _variant(self, state: _State, names: frozenset[str]) -> ResourceClaimSpec:
        found = state.variants.get(names)
        if found is None:
            requests, _ = requests_for(state.pod, {name: state.extended[name] for name in names})
            found = state.variants[names] = ResourceClaimSpec(devices=DeviceClaim(requests=requests))
        return found

    # ------------------------------------------------------------------ held allocations

    def _hold_claims(self, event: Event) -> None:
        """Allocate the task's claims on its node, and hold the allocations."""
        task, session = event.task, self._opened.session
        state = self._opened.states.get(task.cls)
        if state is None or session is None or task.phase is not Phase.ASSUMED or task.row < 0:
            return
        open_claims = []
        for claim in state.claims:
            found = self._allocation(claim)
            if found is None:
                open_claims.append(claim)
            elif claim.status.allocation is None or self._holdings.is_freed(claim):
                self._holdings.hold(task.uid, claim, found)
            else:
                self._holdings.join(task.uid, claim)
        special = self._special_claim(session, task, state)
        if special is not None:
            open_claims.append(special)
        if not open_claims:
            return
        self._evaluator.attempt(task.cls.namespace)
        limits = self._limits.of(task.cls, open_claims if special is None else open_claims[:-1])
        expected = session.yields_to((task,), (event.node,)).get(event.node, ())
        own = [claim.key for claim in open_claims]
        left = [*self._needed_by(expected, session.table.all_rows(), task.row, own).values()] if expected else []
        classes = session.objects(DeviceClass)
        chosen = self._evaluator.allocated(open_claims, task.row, classes, limits, left)
        if chosen is None:
            return  # the task was placed without this filter: there is nothing to write
        for claim, allocation in zip(open_claims, chosen, strict=True):
            self._holdings.hold(task.uid, claim, allocation)
        if special is not None:
            self._special[task.uid].allocation = chosen[-1]

    def _special_claim(self, session: Session, task: Any, state: _State) -> ResourceClaim | None:
        """The claim for the extended resources that the pod's node does not offer itself."""
        if not state.extended:
            return None
        view = session.table.all_rows()
        names = frozenset(name for name in state.extended if not view.allocatable(name)[task.row])
        if not names:
            return None
        requests, mappings = requests_for(task.pod, {name: state.extended[name] for name in names})
        pod = task.pod.metadata
        owner = OwnerReference(api_version="v1", kind="Pod", name=pod.name, uid=pod.uid, controller=True)
        metadata = ObjectMeta(
            generate_name=f"{pod.name}-extended-resources-", namespace=pod.namespace, uid=f"extended/{pod.uid}",
            owner_references=(owner,), annotations={EXTENDED_CLAIM: "true"},
        )  # fmt: skip
        claim = ResourceClaim(metadata=metadata, spec=ResourceClaimSpec(devices=DeviceClaim(requests=requests)))
        self._special[task.uid] = Special(claim, mappings)
        return claim

    def _release(self, uid: str) -> None:
        self._holdings.release(uid)
        self._special.pop(uid, None)

    @hookimpl
    def on_session_close(self, session: Session) -> None:
        """Note the claims to deallocate: they keep a pod from all nodes, and no other pod uses them."""
        extended = {cls for cls, state in self._opened.states.items() if state.extended}
        self._repairs.note(session, self._opened.unavailable, extended)

    # ------------------------------------------------------------------ after the commit

    @hookimpl
    def prebind_needed(self, binding: Binding) -> bool:
        """Whether the pod has claims, or gets one for extended resources."""
        return bool(binding.pod.spec.resource_claims) or binding.task.uid in self._special

    @hookimpl
    async def prebind(self, binding: Binding) -> None:
        """Write the claims' allocations and reserve the claims for the pod; wait for the devices. Raises ClaimError."""
        await self._writer.write(binding, self._special.get(binding.task.uid))

    @hookimpl
    async def cancel(self, allocation: bindings.Allocation) -> None:
        """Release the held allocations of a pod that ended or was never bound."""
        self._release(allocation.uid)

    @hookimpl
    def serve(self, runtime: Runtime) -> AbstractAsyncContextManager[None]:
        """Deallocate the noted claims concurrently with the sessions."""
        return self._repairs.serve(runtime)

    @hookimpl
    def report(self, pod: Pod) -> Mapping[str, Any] | None:
        """The devices of the pod's claims, as DRIVER/POOL/DEVICE; None for all pods until one has claims."""
        if not self._active:
            return None
        found = [self._holdings.of_key(key) for key in (_claim_keys(pod) if pod.spec.node_name else ())]
        if pod.metadata.uid in self._special and pod.spec.node_name:
            found.append(self._special[pod.metadata.uid].allocation)
        return {"devices": _devices(found)}

    @hookimpl
    def shown_holding(self, pod: Pod, objects: Callable[[type[Any]], Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """The devices of the pod's claims, as DRIVER/POOL/DEVICE."""
        keys, known = _claim_keys(pod), objects(ResourceClaim)
        made = pod.status.extended_resource_claim_status
        if made is not None:
            keys.append(f"{pod.metadata.namespace}/{made.resource_claim_name}")
        return {"devices": _devices(known[key].status.allocation for key in keys if key in known)}


def _claim_keys(pod: Pod) -> list[str]:
    names = claim_names(pod)
    return [] if isinstance(names, Refusal) else [f"{pod.metadata.namespace}/{named.name}" for named in names]


def _devices(allocations: Iterable[Allocation | None]) -> list[str]:
    """The allocated devices, as DRIVER/POOL/DEVICE."""
    results = (result for one in allocations if one is not None for result in one.devices.results)
    return [f"{result.driver}/{result.pool}/{result.device}" for result in results]


def _uses_in(session: Session) -> _Uses:
    tasks, found = session.snapshot.cache.tasks, _Uses(set(), set())
    specs = (part.spec for part in session.objects(ResourceSlice).values())
    here = {(spec.driver, spec.pool.name) for spec in specs
            if not spec.node_name or spec.node_name in session.table.row_of}  # fmt: skip
    for claim in session.objects(ResourceClaim).values():
        users, allocation = claim.status.reserved_for, claim.status.allocation
        if users and not any(one.resource != "pods" or one.uid in tasks for one in users):
            results = allocation.devices.results if allocation is not None else ()
            if any((one.driver, one.pool) in here for one in results):
                found.being_freed.update(claim_amounts(claim))
        elif EXTENDED_CLAIM in claim.metadata.annotations:
            found.rows.update(tasks[one.uid].row for one in users if one.uid in tasks)
    return found


def _claim_helps(cls: TaskClass, event: ClusterEvent) -> bool:
    """Whether all of the pod's claims exist, and a claim was deallocated or one of the pod's own changed its status."""
    if isinstance(pod_claims(cls.pod, event.objects(ResourceClaim)), Gate):
        return False
    old, new = event.old, event.new
    if old is not None and old.status.allocation is not None and (new is None or new.status.allocation is None):
        return True
    return new is not None and new.key in cls.claims and (old is None or old.status != new.status)


def _has_all_claims(_: TaskClass, event: ClusterEvent) -> bool:
    """Whether the pod itself names its generated claims now and all exist; else the last claim's event requeues it."""
    return event.own and not isinstance(pod_claims(event.new, event.objects(ResourceClaim)), Gate)
