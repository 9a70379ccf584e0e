"""The evaluation of nodes by their devices, for DynamicResources: once for each shape, within limits on work."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from session_scheduler.builtin.devices.errors import AllocationError
from session_scheduler.builtin.devices.holdings import Holdings
from session_scheduler.builtin.devices.inventory import Inventory
from session_scheduler.builtin.devices.matching import Matching, OutOfWorkError
from session_scheduler.builtin.devices.results import allocation
from session_scheduler.builtin.devices.search import NO_LIMITS, Chosen, Limits, Search
from session_scheduler.builtin.devices.shapes import Shapes
from session_scheduler.builtin.devices.taint_rules import tainted
from session_scheduler.framework.session import Session
from session_scheduler.model.columns import BoolColumn, RowIndex
from session_scheduler.model.devices import (
    FIRST_AVAILABLE_LIMIT,
    Allocation,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceSlice,
)
from session_scheduler.model.meta import NodeSelector
from session_scheduler.model.selectors import selected_nodes

_MOST_SPECS: Final = 256
NONE_LEFT: Final = "cannot allocate all claims"
_INVALID: Final = "invalid resource pools were encountered"
_encoder: Final = msgspec.json.Encoder(order="sorted")


class ShapeAnswer(msgspec.Struct, frozen=True):
    """The result for all nodes of one shape."""

    fits: bool
    reason: str = ""
    rank: int = 0
    """The higher, the earlier the chosen alternatives come in their lists."""


class _Wanted(msgspec.Struct, frozen=True):
    """What a result is for."""

    specs: Sequence[ResourceClaimSpec]
    nominated: Sequence[ResourceClaimSpec]
    limits: Limits


class DeviceEvaluator:
    """Evaluates claims on nodes. It caches results over sessions until the slices' contents or the classes change."""

    def __init__(self, holdings: Holdings, steps: int, cost: int) -> None:
        self._holdings = holdings
        self._steps = steps
        self._cost = cost
        self._left = steps
        self._left_for_reasons = steps
        self._cost_left: dict[str, int] = {}
        """By namespace: the CEL cost that its pods may still cause in this session."""
        self._namespace = ""
        self._matching = Matching()
        self._shapes = Shapes()
        self._outcomes: dict[bytes, dict[int, ShapeAnswer | AllocationError]] = {}
        self._classes: Mapping[str, DeviceClass] = {}
        self._versions: object = None
        self._class_version: object = None
        self._selected: dict[NodeSelector, BoolColumn] = {}

    def start(self, session: Session) -> None:
        """Use the slices, classes and nodes of this session."""
        table = session.table
        cache = id(session.snapshot.cache)
        classes = (cache, session.objects_version(DeviceClass))
        if classes != self._class_version or self._shapes.full:
            self._class_version, self._outcomes = classes, {}
            self._classes = session.objects(DeviceClass)
            if self._shapes.full:
                self._shapes, self._versions = Shapes(), None
        objects = session.objects_version(ResourceSlice), session.objects_version(DeviceTaintRule)
        versions = (cache, table.static_version, table.size, objects)
        if versions != self._versions:
            self._versions = versions
            self._view = table.all_rows()
            rules = session.objects(DeviceTaintRule).values()
            self._inventory = Inventory(tainted(session.objects(ResourceSlice).values(), rules), self._view)
            self._shapes.start(self._inventory, len(self._view))
            self._selected = {}

    def selected(self, selector: NodeSelector) -> BoolColumn:
        """The rows that a selector selects."""
        found = self._selected.get(selector)
        if found is None:
            if len(self._selected) >= _MOST_SPECS:
                self._selected.clear()
            found = self._selected[selector] = selected_nodes(self._view, selector)
        return found

    def open(self) -> None:
        """Reset the CEL cost limits, at the beginning of a session."""
        self._cost_left, self._namespace = {}, ""
        self._matching.left = self._cost

    def attempt(self, namespace: str) -> None:
        """Reset the limit of search steps, at the beginning of an attempt of a pod in this namespace."""
        self._left = self._left_for_reasons = self._steps
        if namespace != self._namespace:
            self._cost_left[self._namespace] = self._matching.left
            self._namespace = namespace
            self._matching.left = self._cost_left.get(namespace, self._cost)

    def outcomes(
        self,
        specs: Sequence[ResourceClaimSpec],
        rows: RowIndex,
        nominated: Sequence[ResourceClaimSpec] = (),
        limits: Limits = NO_LIMITS,
    ) -> tuple[list[ShapeAnswer], RowIndex]:
        """The distinct results for claims that are allocated together, and the index of each row's result.

        `nominated`: the claims for which devices must be left. Raises AllocationError for an error that is the same on
        every node.
        """
        if not specs or not len(rows):
            return [ShapeAnswer(fits=True)], np.zeros(len(rows), np.int64)
        wanted = _Wanted(specs, nominated, limits)
        known = self._of_specs(wanted)
        numbers = self._shapes.of(rows, self._holdings.usage)
        shapes, firsts, indices = np.unique(numbers, return_index=True, return_inverse=True)
        found = [self._outcome(known, shape, wanted, int(rows[first]))
                 for shape, first in zip(shapes.tolist(), firsts.tolist(), strict=True)]  # fmt: skip
        return found, indices

    def _of_specs(self, wanted: _Wanted) -> dict[int, ShapeAnswer | AllocationError]:
        key = _encoder.encode(wanted)
        known = self._outcomes.pop(key, None)
        if known is None:
            known = {}
            if len(self._outcomes) >= _MOST_SPECS:
                del self._outcomes[next(iter(self._outcomes))]
        self._outcomes[key] = known
        return known

    def _outcome(
        self,
        known: dict[int, ShapeAnswer | AllocationError],
        shape: int,
        wanted: _Wanted,
        row: int,
    ) -> ShapeAnswer:
        found = known.get(shape)
        if found is None:
            try:
                found = self._evaluate(wanted, row)
            except AllocationError as error:
                found = error
            except OutOfWorkError:  # the results so far stay cached, so that the next attempt gets further
                node = self._inventory.name_of(row)
                raise AllocationError(f"node {node}: timed out trying to allocate devices") from None
            known[shape] = found
        if isinstance(found, AllocationError):
            raise found
        return found

    def _evaluate(self, wanted: _Wanted, row: int) -> ShapeAnswer:
        specs, every = wanted.specs, [*wanted.specs, *wanted.nominated]
        chosen, exceeded = self._search(every, row, wanted.limits)
        if chosen is not None:
            rank = sum(rank_of(spec, {one.ask.full for one in own}) for spec, own in zip(specs, chosen, strict=False))
            return ShapeAnswer(fits=True, rank=rank)
        if exceeded and self._fits_without_limits(every, row):
            return ShapeAnswer(fits=False, reason=wanted.limits.listed[min(exceeded)].reason)
        invalid = any(pool.invalid for pool in self._inventory.of(row).pools)
        return ShapeAnswer(fits=False, reason=_INVALID if invalid else NONE_LEFT)

    def _search(
        self, specs: Sequence[ResourceClaimSpec], row: int, limits: Limits = NO_LIMITS
    ) -> tuple[list[list[Chosen]] | None, set[int]]:
        """The devices of each claim, or None; and the limits that have excluded devices."""
        search = self._new_search(row, self._left, limits)
        try:
            return search.run(specs), search.exceeded
        finally:
            self._left = max(0, search.steps)

    def _fits_without_limits(self, specs: Sequence[ResourceClaimSpec], row: int) -> bool:
        """Whether the limits are the reason that there are no devices; also if finding another one takes too long, or
        fails for devices that the limits exclude. Has its own steps, so that other nodes are still evaluated.
        """
        search = self._new_search(row, self._left_for_reasons, NO_LIMITS)
        try:
            return search.run(specs) is not None
        except (AllocationError, OutOfWorkError):
            return True
        finally:
            self._left_for_reasons = max(0, search.steps)

    def _new_search(self, row: int, steps: int, limits: Limits) -> Search:
        pools, usage = self._inventory.of(row).pools, self._holdings.usage
        return Search(row, pools, self._inventory, usage, self._classes, self._matching, steps, limits)

    def allocated(
        self,
        claims: Sequence[ResourceClaim],
        row: int,
        classes: Mapping[str, DeviceClass],
        limits: Limits = NO_LIMITS,
        nominated: Sequence[ResourceClaimSpec] = (),
    ) -> list[Allocation] | None:
        """The allocations of the claims on a node, in an attempt; None if there are none.

        They leave devices for the claims of nominated pods if possible.
        """
        specs = [claim.spec for claim in claims]
        try:
            chosen = self._search([*specs, *nominated], row, limits)[0]
            if chosen is None and nominated:
                chosen = self._search(specs, row, limits)[0]
            if chosen is None:
                return None
            node = self._inventory.name_of(row)
            return [allocation(claim, own, node, classes) for claim, own in zip(claims, chosen, strict=False)]
        except (AllocationError, OutOfWorkError):
            return None


def rank_of(spec: ResourceClaimSpec, names: Collection[str]) -> int:
    """The rank of the alternatives with these names: the higher, the earlier they come in their lists."""
    return sum(
        FIRST_AVAILABLE_LIMIT - index
        for request in spec.devices.requests
        for index, one in enumerate(request.first_available)
        if f"{request.name}/{one.name}" in names
    )
