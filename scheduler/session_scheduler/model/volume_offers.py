"""The volumes that match a claim, on any node. Source: FindMatchingVolume of k8s.io/component-helpers/storage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from session_scheduler.model.label_selectors import selector_of
from session_scheduler.model.quantity import QuantityError, parse_quantity
from session_scheduler.model.storage import PersistentVolume, PersistentVolumeClaim


def size_of(amounts: Mapping[str, str | int | float]) -> int:
    """The storage in bytes; 0 if it is absent. Raises QuantityError."""
    return parse_quantity(amounts.get("storage", 0))


class Offers(msgspec.Struct, frozen=True):
    """The volumes that match a claim, by size and name: those reserved for it, and the free ones."""

    claim: PersistentVolumeClaim
    reserved: tuple[PersistentVolume, ...]
    free: tuple[PersistentVolume, ...]


def offers(claim: PersistentVolumeClaim, volumes: Iterable[PersistentVolume]) -> Offers:
    """The volumes of a claim's class that match it, on any node. Raises QuantityError or SelectorError."""
    wanted = size_of(claim.spec.resources.requests)
    reserved, free = [], []
    for volume in volumes:
        size = _size(volume)
        if size is None or size < wanted or not _is_compatible(claim, volume):
            continue
        if volume.spec.claim_ref is not None:
            if volume.is_for(claim):
                reserved.append((0, volume.key, volume))
        elif _is_available(claim, volume):
            free.append((size, volume.key, volume))
    return Offers(claim, _in_order(reserved), _in_order(free))


def _in_order(found: list[tuple[int, str, PersistentVolume]]) -> tuple[PersistentVolume, ...]:
    return tuple(volume for _, _, volume in sorted(found, key=lambda entry: entry[:2]))


def _size(volume: PersistentVolume) -> int | None:
    try:
        return size_of(volume.spec.capacity)
    except QuantityError:
        return None


def _is_compatible(claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
    """Whether volume mode and attributes class match, and the volume is not being deleted."""
    modes = (claim.spec.volume_mode or "Filesystem", volume.spec.volume_mode or "Filesystem")
    attributes = (claim.spec.volume_attributes_class_name or "", volume.spec.volume_attributes_class_name or "")
    return modes[0] == modes[1] and attributes[0] == attributes[1] and volume.metadata.deletion_timestamp is None


def _is_available(claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
    selector = claim.spec.selector
    return (
        volume.status.phase == "Available"
        and (selector is None or selector_of(selector).matches(volume.metadata.labels))
        and set(claim.spec.access_modes) <= set(volume.spec.access_modes)
    )
