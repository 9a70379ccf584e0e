"""What would have to change for a pod's volumes to be had on a node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from session_scheduler.builtin.assumed_volumes import AssumedVolumes
from session_scheduler.builtin.csi_migration import driver_of
from session_scheduler.builtin.volume_matching import Matcher, Matching, Offers, Reach, size_of
from session_scheduler.model.columns import BoolColumn, NodeView
from session_scheduler.model.quantity import quantity_text
from session_scheduler.model.selectors import terms_text
from session_scheduler.model.storage import PersistentVolume, PersistentVolumeClaim
from session_scheduler.model.volumes import READ_ONLY, READ_WRITE, VolumeKey

Said = tuple[BoolColumn, str | None]
"""Over all rows where something is wanting; and what, with {} for the node's name. None where it cannot be said."""


def changes(nodes: NodeView, said: Iterable[Said]) -> list[list[str] | None]:
    """For each row all that is wanting there."""
    wanting = list(said)
    found: list[list[str] | None] = []
    for index, row in enumerate(nodes.row_numbers.tolist()):
        name = nodes.node(index).metadata.name
        texts = [text for rows, text in wanting if rows[row]]
        found.append(None if None in texts else [text.replace("{}", name) for text in texts if text is not None])
    return found


def bound_changes(
    claims: Sequence[PersistentVolumeClaim], volumes: Mapping[str, PersistentVolume], reach: Reach
) -> Iterator[Said]:
    """Of claims that are bound: volumes that do not exist, and those that a node does not reach."""
    for claim in claims:
        name = claim.spec.volume_name
        volume = volumes.get(name)
        if volume is None:
            there = f"volume {name}, to which claim {claim.metadata.name} is bound, existed and were reached from {{}}"
            yield reach.selected(None), there
            continue
        driver = driver_of(volume)
        written = driver is None or not driver.topology  # else its labels may be meant as those of its CSI driver
        why = f"as volume {name} of claim {claim.metadata.name} requires"
        yield ~reach.of(volume), _reached(volume, why) if written else None


def _reached(volume: PersistentVolume, why: str) -> str | None:
    """What a node must match; names of nodes that a volume requires are compared with labels, which nobody means."""
    if volume.required is None or any(term.match_fields for term in volume.required.node_selector_terms):
        return None
    return f"{{}} matched {terms_text(volume.required)}, {why}"


def delayed_changes(nodes: NodeView, matcher: Matcher, matched: Matching, assumed: AssumedVolumes) -> Iterator[Said]:
    """Of claims that wait for a node: nodes that were decided already, volumes, and storage that is left."""
    chosen = dict(zip((claim.key for claim in matched.claims), matched.chosen, strict=True))
    for offer in matcher.offers:
        claim = offer.claim
        allowed, enough = matcher.makeable(claim)
        size = quantity_text(size_of(claim.spec.resources.requests))
        unserved = chosen[claim.key] < 0
        node = matcher.selected(offer, assumed)
        if node is not None:
            yield ~nodes.named(node), f"claim {claim.metadata.name}, for which {node} is selected, had {{}} selected"
        yield unserved & ~allowed, None if node is not None else _volume(offer, size, matcher.reserved(offer, assumed))
        text = f"a CSIStorageCapacity of class {claim.storage_class} had {size} for {{}}"
        yield unserved & allowed & ~enough, text


def _volume(offer: Offers, size: str, reserved: Sequence[PersistentVolume]) -> str | None:
    claim = offer.claim
    if reserved:
        return _reached(reserved[0], f"as volume {reserved[0].key} requires, which is reserved for claim "
                        f"{claim.metadata.name}")  # fmt: skip
    return f"a volume of class {claim.storage_class} and {size} were there for claim {claim.metadata.name} on {{}}"


def in_use_text(key: VolumeKey) -> str:
    """A disk as people call it: its kind, then what names it."""
    return " ".join(part for part in key if part and part not in (READ_ONLY, READ_WRITE))


def zone_changes(nodes: NodeView, wanted: Iterable[tuple[str, tuple[str, ...]]]) -> list[list[str] | None]:
    """For each row the labels of zones and regions that it lacks; None where the volumes are in different ones."""
    by_label: dict[str, set[str]] = {}
    for key, values in wanted:
        by_label[key] = by_label[key] & set(values) if key in by_label else set(values)
    if not all(by_label.values()):
        return [None] * len(nodes)
    found: list[list[str] | None] = []
    for index in range(len(nodes)):
        metadata = nodes.node(index).metadata
        found.append([
            f"{metadata.name} had the label {key}={' or '.join(sorted(values))}, as a volume of the pod has"
            for key, values in by_label.items() if metadata.labels.get(key) not in values
        ])  # fmt: skip
    return found
