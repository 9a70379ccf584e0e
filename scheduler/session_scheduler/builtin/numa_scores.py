"""Scores of NodeResourceTopologyMatch (0 to 100): how full a node's NUMA zones get, or how many of them a pod needs.

The formulas are those of kubernetes-sigs/scheduler-plugins, pkg/noderesourcetopology.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final, Literal

import numpy as np

from session_scheduler.builtin.numa_requests import Amounts, Need
from session_scheduler.builtin.numa_zones import MOST_COMPARED, RowZones, Zones
from session_scheduler.model.columns import BoolColumn, IntColumn

Strategy = Literal["LeastAllocated", "MostAllocated", "BalancedAllocation", "LeastNUMANodes"]
HIGHEST: Final = 100


def fullness(strategy: Strategy, zones: RowZones, needs: Sequence[Need], weights: Mapping[str, int]) -> IntColumn:
    """By row: the mean, over the needs, of the lowest score of a zone that fits the need."""
    total = np.zeros(zones.exists.shape[1], np.int64)
    for need in needs:
        of_zone = _of_zone(strategy, zones, need.requests, weights)
        lowest = np.where(of_zone > 0, of_zone, HIGHEST + 1).min(axis=0)
        total += np.where(lowest <= HIGHEST, lowest, 0)
    return total // max(len(needs), 1)


def _of_zone(strategy: Strategy, zones: RowZones, requests: Amounts, weights: Mapping[str, int]) -> IntColumn:
    """The score of each zone; 0 where a request does not fit."""
    columns = [(amount, weights.get(name, 1), zones.free[name]) for name, amount in requests if name in zones.free]
    if strategy == "BalancedAllocation":
        return _balance([(amount, free) for amount, _, free in columns], zones.exists)
    total, divisor = np.zeros(zones.exists.shape, np.int64), np.zeros(zones.exists.shape, np.int64)
    for amount, weight, free in columns:
        used = free - amount if strategy == "LeastAllocated" else np.full_like(free, amount)
        total += np.where((free > 0) & (free >= amount), used * HIGHEST // np.maximum(free, 1), 0) * weight
        divisor += weight * (free >= 0).any(axis=0)
    return np.where(zones.exists, total // np.maximum(divisor, 1), 0)


def _balance(columns: Sequence[tuple[int, Zones]], exists: BoolColumn) -> IntColumn:
    """100 minus the variance of the used fractions, in percent."""
    if not columns:
        return np.zeros(exists.shape, np.int64)
    fractions = np.array([np.where(free > 0, amount / np.maximum(free, 1), 1.0) for amount, free in columns])
    counted = np.array([np.broadcast_to((free >= 0).any(axis=0), free.shape) for _, free in columns])
    number = counted.sum(axis=0)
    mean = (fractions * counted).sum(axis=0) / np.maximum(number, 1)
    variance = ((fractions - mean) ** 2 * counted).sum(axis=0) / np.maximum(number - 1, 1)
    fits = exists & ((fractions <= 1) | ~counted).all(axis=0) & (number > 0)
    return np.where(fits, ((1 - variance) * HIGHEST).astype(np.int64), 0)


def zones_needed(zones: RowZones, costs: Zones, most_nodes: IntColumn, needs: Sequence[Need]) -> IntColumn:
    """By row: higher for fewer zones, by the need that takes the most, and for zones that are near each other.

    `costs` are the distances between the first zones, shape [zone, zone, row]; `most_nodes` is the kubelet's limit.
    """
    rows = zones.exists.shape[1]
    step = HIGHEST // np.maximum(most_nodes, 1)
    number, near = np.zeros(rows, np.int64), np.ones(rows, np.bool_)
    fits = zones.exists.sum(axis=0) <= MOST_COMPARED
    for need in needs:
        needed = np.zeros(rows, np.bool_)
        for name, _ in need.requests:
            if name in zones.free:
                needed |= (zones.free[name] >= 0).any(axis=0)
        if needed.any():
            chosen, is_near = _fewest(zones, costs, need.requests)
            fits &= chosen.any(axis=0) | ~needed
            near &= is_near | ~needed
            number = np.maximum(number, np.where(needed, chosen.sum(axis=0), 0))
            zones = _taken(zones, chosen, need.requests)
    score = np.where(number == 0, HIGHEST, HIGHEST - number * step + np.where(near, step // 2, 0))
    return np.where(fits, np.maximum(score, 0), 0)


def _fewest(zones: RowZones, costs: Zones, requests: Amounts) -> tuple[BoolColumn, BoolColumn]:
    """The smallest set of zones that together fit the requests, the nearest one of its size; and whether it is as near
    as any set of its size.
    """
    most, rows = zones.exists.shape
    chosen = np.zeros((most, rows), np.bool_)
    near = np.zeros(rows, np.bool_)
    few = min(most, MOST_COMPARED)
    for size in range(1, few + 1):
        open_ = ~chosen.any(axis=0)
        if not open_.any():
            break
        sets = [list(one) for one in combinations(range(few), size)]
        exist = np.array([zones.exists[one].all(axis=0) for one in sets])
        means = np.array([costs[np.ix_(one, one)].mean(axis=(0, 1)) for one in sets])
        means = np.where(exist, means, np.inf)
        fitting = np.where(np.array([_together(zones, one, requests) for one in sets]) & exist, means, np.inf)
        best = fitting.argmin(axis=0)
        lowest = fitting.min(axis=0)
        found = open_ & np.isfinite(lowest)
        near |= found & (lowest == means.min(axis=0))
        for place, one in enumerate(sets):
            chosen[one] |= found & (best == place)
    return chosen, near


def _together(zones: RowZones, one: list[int], requests: Amounts) -> BoolColumn:
    """The rows where the zones of a set together fit the requests, and each has some of every resource."""
    fits = np.ones(zones.exists.shape[1], np.bool_)
    for name, amount in requests:
        if name in zones.free:
            free = zones.free[name]
            fits &= ((free[one] >= 0).all(axis=0) & (free[one].sum(axis=0) >= amount)) | (free < 0).all(axis=0)
    return fits


def _taken(zones: RowZones, chosen: BoolColumn, requests: Amounts) -> RowZones:
    """The zones without the requests, which use up the chosen zones one after the other."""
    free = dict(zones.free)
    for name, amount in requests:
        if name not in free:
            continue
        left, column = np.full(zones.exists.shape[1], amount), free[name].copy()
        for place in range(len(column)):
            used = np.where(chosen[place] & (column[place] > 0), np.minimum(column[place], left), 0)
            column[place] -= used
            left = left - used
        free[name] = column
    return RowZones(zones.exists, free)
