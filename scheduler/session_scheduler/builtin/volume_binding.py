"""The VolumeBinding plugin: rejects nodes where a pod's volume claims cannot be satisfied, and binds unbound claims.

A node must reach the volumes of bound claims; for each other claim it needs an available volume or a provisioner. A
session that places the pod *assumes* volumes for its claims, and releases them when it undoes the placement. `prebind`
writes them to the API server before the pod is bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from pydantic import Field

from session_scheduler.builtin import volume_hints
from session_scheduler.builtin.assumed_volumes import AssumedVolumes, PodVolumes
from session_scheduler.builtin.volume_changes import bound_changes, changes, delayed_changes
from session_scheduler.builtin.volume_claims import PodClaims, misspelt_class, pod_claims
from session_scheduler.builtin.volume_matching import Matcher, Matching, Reach, bound_nodes
from session_scheduler.builtin.volume_writing import bind_volumes
from session_scheduler.config.settings import PluginArguments
from session_scheduler.framework.bindings import Allocation, Binding
from session_scheduler.framework.callbacks import Event
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import SKIP, Prepared, Refusal, Scope, Skip, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, NodeView
from session_scheduler.model.events import ClusterEventWithHint
from session_scheduler.model.groups import Phase
from session_scheduler.model.label_selectors import SelectorError, selector_of
from session_scheduler.model.quantity import QuantityError
from session_scheduler.model.storage import PersistentVolume, PersistentVolumeClaim

_WRITING_SECONDS: Final = 30
"""Seconds for the requests themselves, in addition to the wait for the volume controller."""


class VolumeBindingArguments(PluginArguments):
    """kube-scheduler's VolumeBindingArgs, without the score's shape, which is behind a feature gate."""

    bind_timeout_seconds: int = Field(default=600, ge=0, le=86_400)
    """How long a pod waits for its volumes after the scheduler chose its node."""


class VolumeState(msgspec.Struct):
    """A class's claims in a session, evaluated for all nodes."""

    unreached: BoolColumn
    """Rows that cannot reach a bound volume."""
    missing: BoolColumn
    """Rows rejected because a bound claim's volume does not exist."""
    bound: tuple[PersistentVolumeClaim, ...]
    matcher: Matcher | None
    """For the claims that wait for a node; None if there are none."""
    matched: Matching | None = None
    version: int = -1
    """The version of the assumed volumes that `matched` was computed with."""


class _Opened(msgspec.Struct):
    """The state of one session."""

    session: Session | None = None
    states: dict[TaskClass, VolumeState] = msgspec.field(default_factory=dict)
    volumes: dict[str, list[PersistentVolume]] | None = None
    """By StorageClass, after the first use."""


class VolumeBinding:
    """Rejects nodes that do not satisfy the pod's claims; binds claims with volumeBindingMode WaitForFirstConsumer."""

    Arguments = VolumeBindingArguments
    name = "VolumeBinding"
    weight = 1
    filter_scope = Scope.ANY
    single = True

    def __init__(self, arguments: VolumeBindingArguments | None = None) -> None:
        self._timeout = (arguments or VolumeBindingArguments()).bind_timeout_seconds
        self.prebind_seconds = float(self._timeout + _WRITING_SECONDS)
        self._assumed = AssumedVolumes()
        self._opened = _Opened()
        self._reach: Reach | None = None

    # ------------------------------------------------------------------ evaluation

    @hookimpl
    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        """See `volume_hints`."""
        return volume_hints.binding_events()

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        """Assume volumes when the session places a task, and release them when it undoes that."""
        self._opened = _Opened(session)
        session.add_event_handler(self._assume, lambda event: self._assumed.drop(event.task.uid))

    @hookimpl
    def prepare(self, session: Session, cls: TaskClass) -> Skip | Refusal | Prepared:
        """The claims' state; a refusal if no node can satisfy one of them. Skips pods without claims.

        If all claims are bound, the session's placements do not change the answers.
        """
        found = pod_claims(session, cls.pod)
        if isinstance(found, Refusal):
            return found
        if found.immediate:
            misspelt = misspelt_class(session, found.immediate)
            reason = f"pod has unbound immediate PersistentVolumeClaims{f': {misspelt}' if misspelt else ''}"
            return Refusal(
                reason, fits_if=tuple(f"claim {claim.metadata.name} were bound" for claim in found.immediate)
            )
        if not (found.bound or found.delayed):
            return SKIP
        try:
            state = self._state(session, found)
        except QuantityError as error:
            return Refusal(f"a claim's spec.resources.requests.storage: {error}")
        if isinstance(state, Refusal):
            return state
        self._opened.states[cls] = state
        return Prepared(state, Scope.STATIC if state.matcher is None else Scope.ANY)

    def _state(self, session: Session, claims: PodClaims) -> VolumeState | Refusal:
        for claim in claims.delayed:
            if claim.spec.selector is not None:
                try:
                    selector_of(claim.spec.selector)
                except SelectorError as error:
                    return Refusal(f"error creating internal label selector for claim: {claim.key}: {error}")
        if self._reach is None or not self._reach.holds(session):
            self._reach = Reach(session)
        volumes = session.objects(PersistentVolume)
        unreached, missing = bound_nodes(session.table.all_rows(), claims.bound, volumes, self._reach)
        matcher = None
        if claims.delayed:
            matcher = Matcher(session, claims.delayed, self._reach, self._volumes(session))
        return VolumeState(unreached, missing, tuple(claims.bound), matcher)

    def _volumes(self, session: Session) -> dict[str, list[PersistentVolume]]:
        if self._opened.volumes is None:
            found: dict[str, list[PersistentVolume]] = {}
            for volume in session.objects(PersistentVolume).values():
                found.setdefault(volume.storage_class, []).append(volume)
            self._opened.volumes = found
        return self._opened.volumes

    def _matched(self, state: VolumeState) -> Matching | None:
        if state.matcher is not None and state.version != self._assumed.version:
            state.matched = state.matcher.match(self._assumed)
            state.version = self._assumed.version
        return state.matched

    @hookimpl
    def filter(self, nodes: NodeView, mask: BoolColumn, state: VolumeState) -> None:
        """Clear the nodes that do not satisfy a claim."""
        refused = state.unreached | state.missing
        matched = self._matched(state)
        if matched is not None:
            refused |= matched.conflict | matched.short
        np.logical_and(mask, ~refused[nodes.row_numbers], out=mask)

    @hookimpl
    def reasons(self, nodes: NodeView, state: VolumeState) -> Mapping[str, BoolColumn]:
        """All of kube-scheduler's messages that apply."""
        matched, rows = self._matched(state), nodes.row_numbers
        found = {"node(s) didn't match PersistentVolume's node affinity": state.unreached[rows]}
        if matched is not None:
            found["node(s) didn't find available persistent volumes to bind"] = matched.conflict[rows]
            found["node(s) did not have enough free storage"] = matched.short[rows]
        found["node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"] = state.missing[rows]
        return found

    @hookimpl
    def unresolvable(self, nodes: NodeView) -> BoolColumn:
        """All nodes: evicting pods frees no volumes."""
        return np.ones(len(nodes), np.bool_)

    @hookimpl
    def fits_if(self, session: Session, nodes: NodeView, state: VolumeState) -> Sequence[Sequence[str] | None] | None:
        """See `volume_changes`."""
        matched = self._matched(state)
        if self._reach is None:
            return None
        said = list(bound_changes(state.bound, session.objects(PersistentVolume), self._reach))
        if state.matcher is not None and matched is not None:
            said += delayed_changes(session.table.all_rows(), state.matcher, matched, self._assumed)
        return changes(nodes, said)

    # ------------------------------------------------------------------ assumed volumes

    def _assume(self, event: Event) -> None:
        """Assume the volumes that the task's node offers its claims."""
        task = event.task
        state = self._opened.states.get(task.cls)
        matched = self._matched(state) if state is not None else None
        if matched is None or task.phase is not Phase.ASSUMED or task.row < 0:
            return
        if matched.conflict[task.row] or matched.short[task.row]:
            return  # the task was placed without this filter
        static, provisioned = [], []
        for claim, chosen in zip(matched.claims, matched.chosen, strict=True):
            index = int(chosen[task.row])
            if index < 0:
                provisioned.append(claim.key)
            else:
                static.append((matched.volumes[index].key, claim.key))
        self._assumed.put(task.uid, PodVolumes(event.node, tuple(static), tuple(provisioned)))

    @hookimpl
    def prebind_needed(self, binding: Binding) -> bool:
        """Whether any of the pod's claims is unbound."""
        return self._assumed.of(binding.task.uid) is not None

    @hookimpl
    async def prebind(self, binding: Binding) -> None:
        """Write the volumes chosen for the pod's claims, and wait until the claims are bound. Raises VolumeError."""
        volumes = self._assumed.of(binding.task.uid)
        if volumes is not None:
            await bind_volumes(binding, volumes, float(self._timeout))

    @hookimpl
    async def cancel(self, allocation: Allocation) -> None:
        """Release the assumed volumes of a pod that ended or was never bound."""
        self._assumed.drop(allocation.uid)
