"""The `fits_if` strings of the volume plugins: the changes that would let a node satisfy a pod's volumes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from session_scheduler.builtin.assumed_volumes import AssumedVolumes
from session_scheduler.builtin.csi_migration import driver_of
from session_scheduler.builtin.volume_matching import Matcher, Matching, Reach
from session_scheduler.model.columns import BoolColumn, NodeView
from session_scheduler.model.quantity import quantity_text
from session_scheduler.model.selectors import terms_text
from session_scheduler.model.storage import PersistentVolume, PersistentVolumeClaim
from session_scheduler.model.volume_offers import Offers, size_of
from session_scheduler.model.volumes import READ_ONLY, READ_WRITE, VolumeKey

Change = tuple[BoolColumn, str | None]
"""The rows that need a change, over all rows, and its text with {} for the node's name. None: the change is unknown."""


def changes(nodes: NodeView, needed: Iterable[Change]) -> list[list[str] | None]:
    """For each row the strings of all changes that it needs."""
    wanted = list(needed)
    found: list[list[str] | None] = []
    for index, row in enumerate(nodes.row_numbers.tolist()):
        name = nodes.node(index).metadata.name
        texts = [text for rows, text in wanted if rows[row]]
        found.append(None if None in texts else [text.replace("{}", name) for text in texts if text is not None])
    return found


def bound_changes(
    claims: Sequence[PersistentVolumeClaim], volumes: Mapping[str, PersistentVolume], reach: Reach
) -> Iterator[Change]:
    """The changes for bound claims: a volume that does not exist, or that a node does not reach."""
    for claim in claims:
        name = claim.spec.volume_name
        volume = volumes.get(name)
        if volume is None:
            text = f"volume {name} of claim {claim.metadata.name} existed and were reachable from {{}}"
            yield reach.selected(None), text
            continue
        driver = driver_of(volume)
        own_labels = driver is None or not driver.topology  # else nodes may use the labels of its CSI driver
        why = f"as volume {name} of claim {claim.metadata.name} requires"
        yield ~reach.of(volume), _terms_change(volume, why) if own_labels else None


def _terms_change(volume: PersistentVolume, why: str) -> str | None:
    """The text for the volume's node affinity; None if it has terms on fields, which VolumeBinding ignores."""
    if volume.required is None or any(term.match_fields for term in volume.required.node_selector_terms):
        return None
    return f"{{}} matched {terms_text(volume.required)}, {why}"


def delayed_changes(nodes: NodeView, matcher: Matcher, matched: Matching, assumed: AssumedVolumes) -> Iterator[Change]:
    """The changes for claims that wait for a node: another selected node, a volume, or free storage."""
    chosen = dict(zip((claim.key for claim in matched.claims), matched.chosen, strict=True))
    for offer in matcher.offers:
        claim = offer.claim
        allowed, enough = matcher.provisionable(claim)
        size = quantity_text(size_of(claim.spec.resources.requests))
        unserved = chosen[claim.key] < 0
        node = matcher.selected(offer, assumed)
        if node is not None:
            yield ~nodes.named(node), f"claim {claim.metadata.name} had the selected node {{}} instead of {node}"
        reserved = matcher.reserved(offer, assumed)
        yield unserved & ~allowed, None if node is not None else _volume_change(offer, size, reserved)
        text = f"a CSIStorageCapacity of class {claim.storage_class} had {size} for {{}}"
        yield unserved & allowed & ~enough, text


def _volume_change(offer: Offers, size: str, reserved: Sequence[PersistentVolume]) -> str | None:
    claim = offer.claim
    if reserved:
        name = reserved[0].key
        return _terms_change(reserved[0], f"as volume {name}, reserved for claim {claim.metadata.name}, requires")
    return f"a volume of class {claim.storage_class} with {size} were available to claim {claim.metadata.name} on {{}}"


def in_use_text(key: VolumeKey) -> str:
    """A disk for messages: its kind, then its name."""
    return " ".join(part for part in key if part and part not in (READ_ONLY, READ_WRITE))


def zone_changes(nodes: NodeView, wanted: Iterable[tuple[str, tuple[str, ...]]]) -> list[list[str] | None]:
    """For each row the zone and region labels that it lacks; None if the volumes are in different ones."""
    by_label: dict[str, set[str]] = {}
    for key, values in wanted:
        by_label[key] = by_label[key] & set(values) if key in by_label else set(values)
    if not all(by_label.values()):
        return [None] * len(nodes)
    found: list[list[str] | None] = []
    for index in range(len(nodes)):
        metadata = nodes.node(index).metadata
        found.append([
            f"{metadata.name} had the label {key}={' or '.join(sorted(values))}, which a volume of the pod has"
            for key, values in by_label.items() if metadata.labels.get(key) not in values
        ])  # fmt: skip
    return found
