"""The VolumeRestrictions plugin: rejects a pod whose exclusive claim or disk another pod uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from session_scheduler.builtin import volume_hints
from session_scheduler.builtin.volume_changes import in_use_text
from session_scheduler.builtin.volume_claims import not_found
from session_scheduler.builtin.without_arguments import WithoutArguments
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import SKIP, Refusal, Scope, Skip, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, NodeView
from session_scheduler.model.events import ClusterEvent, ClusterEventWithHint
from session_scheduler.model.storage import READ_WRITE_ONCE_POD, PersistentVolumeClaim
from session_scheduler.model.volumes import CLAIM, READ_ONLY, READ_WRITE, VolumeKey, claims_of

_CLAIM_IN_USE: Final = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)
_SHARED_BY_READERS: Final = frozenset({"gcePersistentDisk", "iscsi", "rbd"})


class Restrictions(msgspec.Struct, frozen=True):
    """The volumes that must not be in use: disks on the same node, claims on any node."""

    disks: tuple[VolumeKey, ...]
    claims: tuple[VolumeKey, ...]


class VolumeRestrictions(WithoutArguments):
    """Rejects nodes where a pod uses a conflicting disk, and all nodes while a ReadWriteOncePod claim is in use."""

    name = "VolumeRestrictions"
    ignores_requests = True
    filter_scope = Scope.ANY

    @hookimpl
    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        """See `volume_hints`."""
        return volume_hints.restriction_events(_frees)

    @hookimpl
    def prepare(self, session: Session, cls: TaskClass) -> Skip | Refusal | Restrictions:
        """The restricted volumes; a refusal if a claim does not exist. Skips pods without such volumes."""
        exclusive = []
        for use in claims_of(cls.pod):
            if use.ephemeral:
                continue
            claim = session.objects(PersistentVolumeClaim).get(f"{cls.namespace}/{use.name}")
            if claim is None:
                return not_found(PersistentVolumeClaim, use.name)
            if READ_WRITE_ONCE_POD in claim.spec.access_modes:
                exclusive.append((CLAIM, cls.namespace, use.name))
        disks = tuple(dict.fromkeys(other for key in cls.volumes for other in _conflicts(key)))
        return Restrictions(disks, tuple(exclusive)) if disks or exclusive else SKIP

    @hookimpl
    def filter(self, session: Session, nodes: NodeView, mask: BoolColumn, state: Restrictions) -> None:
        """Clear the nodes with one of the disks, or all nodes if a claim is in use."""
        if any(session.volume_use.nodes_of(key) for key in state.claims):
            mask[:] = False
            return
        for key in state.disks:
            for name in session.volume_use.nodes_of(key):
                mask &= ~nodes.named(name)

    @hookimpl
    def reasons(self, session: Session, nodes: NodeView, state: Restrictions) -> Mapping[str, BoolColumn]:
        """kube-scheduler's message for the disk, else for the claim."""
        in_use = np.zeros(len(nodes), np.bool_)
        for key in state.disks:
            for name in session.volume_use.nodes_of(key):
                in_use |= nodes.named(name)
        return {"node(s) had no available disk": in_use, _CLAIM_IN_USE: ~in_use}

    @hookimpl
    def fits_if(self, session: Session, nodes: NodeView, state: Restrictions) -> Sequence[Sequence[str]]:
        """The claims in use, and the conflicting disks on each node."""
        used = [f"no other pod used claim {name}" for key in state.claims if session.volume_use.nodes_of(key)
                for name in key[-1:]]  # fmt: skip
        found = []
        for index in range(len(nodes)):
            node = nodes.node(index).metadata.name
            disks = (key for key in state.disks if key in session.volume_use.on_node(node))
            found.append([*used, *dict.fromkeys(f"no other pod on {node} had {in_use_text(key)}" for key in disks)])
        return found


def _conflicts(key: VolumeKey) -> Iterator[VolumeKey]:
    """The disks that conflict with this one on the same node."""
    if key[0] == "awsElasticBlockStore":
        yield key
    elif key[0] in _SHARED_BY_READERS:
        yield (*key[:-1], READ_WRITE)
        if key[-1] == READ_WRITE:
            yield (*key[:-1], READ_ONLY)


def _frees(cls: TaskClass, event: ClusterEvent) -> bool:
    """Whether the deleted pod used a claim of the class, or a disk that conflicts with one of the class."""
    had = event.old_class.volumes if event.old_class is not None else ()
    if not volume_hints.claims_among(cls.volumes).isdisjoint(volume_hints.claims_among(had)):
        return True
    return not {other for key in cls.volumes for other in _conflicts(key)}.isdisjoint(had)
