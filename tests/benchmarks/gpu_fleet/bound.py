"""An upper bound on what any policy can allocate from the pods that arrived, however it orders or refuses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from .fleet import Array
from .trace import WHOLE, Run, Shape

_ROUNDS: Final = 1000
_PATIENCE: Final = 20
"""Rounds without a better bound, before the steps get smaller."""
_FARTHEST, _NEAREST = 0.05, 1e-4
"""The steps aim at this much below the best bound, as a part of it."""


def upper_bound(run: Run, pods: Sequence[Shape]) -> float:
    """Return an upper bound on the allocated GPUs, in percent of all GPUs, if `pods` are those that arrived.

    Three relaxations only add placements: cpu and memory are unlimited; a pod's GPUs may be on different nodes that
    have as many GPUs; and prices replace the limit on how many pods of a kind arrived. For prices u ≥ 0 for each GPU,
    or part of one, of the kinds k of pods,

        allocated = Σ size·placed ≤ Σ u[k]·arrived[k] + Σ over GPUs of max over contents Σ (size - u)[k]·number[k]

    because at most `arrived` pods are placed, and each GPU has one of its possible contents: one whole GPU, or parts
    that add up to at most 1, of kinds that accept its model. So all prices give a bound. A subgradient method looks for
    a low one.
    """
    kinds = Counter((pod.gpus, pod.thousandths, pod.models) for pod in pods if pod.gpus)
    if not kinds:
        return 0.0
    offers: Counter[tuple[int, str]] = Counter()
    for node in run.nodes:
        offers[node.gpus, node.model] += node.gpus
    gpus = np.array(list(offers.values()))
    arrived = np.array([number * count for (count, _, _), number in kinds.items()])
    sizes = np.array([size for _, size, _ in kinds])
    accepted = np.array(
        [[most >= count and (not models or model in models) for count, _, models in kinds] for most, model in offers]
    )
    prices, best = 0.0 * sizes, float("inf")
    distance, waited = _FARTHEST, 0
    for _ in range(_ROUNDS):
        gains = np.where(accepted, sizes - prices, 0.0)
        values, numbers = _contents(gains, sizes)
        bound = float(prices @ arrived + gpus @ values)
        waited = 0 if bound < best * (1 - 1e-5) else waited + 1
        best = min(best, bound)
        if waited == _PATIENCE:
            distance, waited = distance / 2, 0
        slope = arrived - gpus @ numbers
        if not slope.any() or distance < _NEAREST:
            break
        step = (bound - best * (1 - distance)) / float(slope @ slope)
        prices = np.clip(prices - step * slope, 0, sizes)
    return 100 * min(best, float(arrived @ sizes)) / run.capacity


def _contents(gains: Array, sizes: Array) -> tuple[Array, Array]:
    """Return the largest gain of a GPU's contents for each [offer], and how many of each kind [offer, kind] it has.

    `gains` are for [offer, kind]. It is a knapsack in which each kind may be used any number of times.
    """
    distinct = np.unique(sizes)
    of_size = np.array([np.where(sizes == size, gains, -1.0).argmax(axis=1) for size in distinct])  # [size, offer]
    rows = np.arange(len(gains))
    gain_of = np.array([gains[rows, kinds] for kinds in of_size])
    unit = int(np.gcd.reduce(np.append(distinct, WHOLE)))
    room = WHOLE // unit
    best = np.zeros((len(gains), room + 1))
    for size, gain in zip(distinct // unit, gain_of, strict=True):
        times = 1
        while size * times <= room:  # 1, 2, 4, … times, so any number of times
            taken = best[:, : room + 1 - size * times] + times * gain[:, None]
            best[:, size * times :] = np.maximum(best[:, size * times :], taken)
            times *= 2
    numbers = np.zeros_like(gains)
    for row in rows:
        left = room
        while left:
            fitting = np.flatnonzero((distinct // unit <= left) & (gain_of[:, row] > 0))
            after = left - distinct[fitting] // unit
            reached = best[row, after] + gain_of[fitting, row]
            if not len(fitting) or reached.max() < best[row, left] - 1e-6:
                left -= 1
                continue
            chosen = int(reached.argmax())
            numbers[row, of_size[fitting[chosen], row]] += 1
            left = int(after[chosen])
    return best[:, room], numbers
