"""A pod's claims must be had on its node: bound ones reached, the others bound to a volume or made there.

What a pod's node decides about its claims is *assumed*: held from the moment the pod is placed in a session, undone
with it, and written before the pod is bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from pydantic import Field

from session_scheduler.builtin import volume_hints
from session_scheduler.builtin.assumed_volumes import AssumedVolumes, PodVolumes
from session_scheduler.builtin.volume_changes import bound_changes, changes, delayed_changes
from session_scheduler.builtin.volume_claims import PodClaims, pod_claims
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
"""What the requests themselves may take beside the wait for the volume controller."""


class VolumeBindingArguments(PluginArguments):
    """kube-scheduler's VolumeBindingArgs, without the shape of a score that is behind a feature gate."""

    bind_timeout_seconds: int = Field(default=600, ge=0, le=86_400)
    """How long a pod waits for its volumes once its node is decided."""


@dataclass(slots=True)
class VolumeState:
    """A class's claims in a session, and what the nodes say of them."""

    unreached: BoolColumn
    """Rows from which a bound volume cannot be reached."""
    missing: BoolColumn
    """Rows refused because a bound claim's volume does not exist."""
    bound: tuple[PersistentVolumeClaim, ...]
    matcher: Matcher | None
    """Of the claims that wait for a node, where there are any."""
    matched: Matching | None = None
    version: int = -1
    """Of what was assumed when `matched` was computed."""


@dataclass(slots=True)
class _Opened:
    """What belongs to one session."""

    session: Session | None = None
    states: dict[TaskClass, VolumeState] = field(default_factory=dict)
    volumes: dict[str, list[PersistentVolume]] | None = None
    """By StorageClass, once they are asked for."""


class VolumeBinding:
    """Refuses nodes on which one of the pod's claims cannot be had; binds claims that wait for a node."""

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
        """Follow what the session places and takes back."""
        self._opened = _Opened(session)
        session.add_event_handler(self._placed, lambda event: self._assumed.drop(event.task.uid))

    @hookimpl
    def prepare(self, session: Session, cls: TaskClass) -> Skip | Refusal | Prepared:
        """The claims as they are; a refusal where one cannot be had on any node, skipped for pods without.

        Where all are bound nothing that a session does changes what the nodes say of them.
        """
        found = pod_claims(session, cls.pod)
        if isinstance(found, Refusal):
            return found
        if found.immediate:
            return Refusal("pod has unbound immediate PersistentVolumeClaims", fits_if=tuple(
                f"claim {claim.metadata.name} were bound" for claim in found.immediate))  # fmt: skip
        if not (found.bound or found.delayed):
            return SKIP
        try:
            state = self._state(session, found)
        except QuantityError as error:
            return Refusal(f"spec.resources.requests.storage of a claim: {error}")
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
        """Clear the nodes on which a claim cannot be had."""
        refused = state.unreached | state.missing
        matched = self._matched(state)
        if matched is not None:
            refused |= matched.conflict | matched.short
        np.logical_and(mask, ~refused[nodes.row_numbers], out=mask)

    @hookimpl
    def why(self, nodes: NodeView, state: VolumeState) -> Sequence[Sequence[str]]:
        """kube-scheduler's texts, all that hold."""
        matched = self._matched(state)
        found = [
            ("node(s) didn't match PersistentVolume's node affinity", state.unreached),
            *([
                ("node(s) didn't find available persistent volumes to bind", matched.conflict),
                ("node(s) did not have enough free storage", matched.short),
            ] if matched is not None else []),
            ("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)", state.missing),
        ]  # fmt: skip
        return [[text for text, rows in found if rows[row]] for row in nodes.row_numbers.tolist()]

    @hookimpl
    def unresolvable(self, nodes: NodeView) -> BoolColumn:
        """Everywhere: volumes are no freer when pods end."""
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

    # ------------------------------------------------------------------ what is assumed

    def _placed(self, event: Event) -> None:
        """Hold what the task's node decides about its claims."""
        task = event.task
        state = self._opened.states.get(task.cls)
        matched = self._matched(state) if state is not None else None
        if matched is None or task.phase is not Phase.ASSUMED or task.row < 0:
            return
        if matched.conflict[task.row] or matched.short[task.row]:
            return  # whoever placed it did not ask: there is nothing to hold
        kept, made = [], []
        for claim, chosen in zip(matched.claims, matched.chosen, strict=True):
            place = int(chosen[task.row])
            if place < 0:
                made.append(claim.key)
            else:
                kept.append((matched.volumes[place].key, claim.key))
        self._assumed.put(task.uid, PodVolumes(event.node, tuple(kept), tuple(made)))

    @hookimpl
    def prebind_needed(self, binding: Binding) -> bool:
        """Not where all the pod's claims are bound, or it has none."""
        return self._assumed.of(binding.task.uid) is not None

    @hookimpl
    async def prebind(self, binding: Binding) -> None:
        """Write which volumes the pod's claims are to have, and wait until they do. Raises VolumeError."""
        volumes = self._assumed.of(binding.task.uid)
        if volumes is not None:
            await bind_volumes(binding, volumes, float(self._timeout))

    @hookimpl
    async def cancel(self, allocation: Allocation) -> None:
        """The pod has ended, or was never bound: its volumes are what the cluster says they are."""
        self._assumed.drop(allocation.uid)
