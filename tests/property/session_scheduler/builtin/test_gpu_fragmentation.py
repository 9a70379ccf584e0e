"""The losses that GpuFragmentation keeps equal those that it computes from nothing, in random states."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from session_scheduler.builtin.gpu_usability import GPUS, GpuRequest, Losses, Workload
from session_scheduler.model.gpu_shares import WHOLE

NODES = 4
REQUESTS = [
    GpuRequest(1000, 0, 1, 250), GpuRequest(500, 3, 1, 810), GpuRequest(4000, 5, 1, WHOLE), GpuRequest(0, 0, 3, WHOLE),
    GpuRequest(100, 1, 2, 300), GpuRequest(200, 2, 1, 0, 700),
]  # fmt: skip
PLACED = [*REQUESTS, GpuRequest(1500, 4)]
MEMORY_OF = np.array([0, 2000, 2000, 0])

STATES = st.tuples(
    st.integers(0, 12_000), st.integers(0, 20), st.integers(0, 1), st.integers(0, 1),
    st.lists(st.sampled_from([0, 190, 300, 500, WHOLE]), min_size=4, max_size=4).map(sorted),
).map(lambda found: [*found[:4], *found[4]])  # fmt: skip
PODS = st.dictionaries(st.sampled_from(REQUESTS), st.integers(1, 9), min_size=1)
STEPS = st.lists(
    st.tuples(st.integers(0, NODES - 1), STATES, st.integers(0, len(PLACED) - 1), st.none() | PODS),
    min_size=1, max_size=12,
)  # fmt: skip


def losses(pods: dict[GpuRequest, int], states: Any, kept: Losses | None = None, *, mixed: bool) -> Losses:
    kept = kept or Losses(MEMORY_OF, GPUS + 4, mixed=mixed)
    accepted = np.array([[True] * NODES, [True, True, False, False]])
    kept.weigh({(request, number % 2): number for request, number in pods.items()}, states, accepted)
    return kept


@given(PODS, STEPS, st.booleans())
def test_kept_losses_equal_computed_ones(pods: dict[GpuRequest, int], steps: list[Any], mixed: bool) -> None:
    states = np.zeros((NODES, GPUS + 4), np.int64)
    weighed = states.copy()
    kept = losses(pods, states, mixed=mixed)
    rows = np.arange(NODES)
    for row, state, request, others in steps:
        states[row] = state
        some = np.array([row])
        kept.of(PLACED[(request + 1) % len(PLACED)], some, states[some])
        if others is not None:
            pods, weighed = others, states.copy()
            losses(pods, weighed, kept, mixed=mixed)
        found = kept.of(PLACED[request], rows, states)
        computed = losses(pods, weighed, mixed=mixed).of(PLACED[request], rows, states)
        assert found.tolist() == computed.tolist()


@given(STATES)
def test_a_request_can_use_at_most_the_free_gpus_and_some_of_them_only_if_a_pod_fits(state: Any) -> None:
    workload = Workload(REQUESTS, [2000], mixed=True)
    (usable,) = workload.usable(np.array([state], np.int64), np.array([0])).tolist()
    gpus = state[GPUS:]
    for request, amount in zip(REQUESTS, usable, strict=True):
        fits = sum(free >= request.size(2000) for free in gpus) >= request.count
        allowed = state[2] if request.thousandths == WHOLE else state[3]
        fits = fits and bool(allowed) and state[0] >= request.cpu and state[1] >= request.memory
        assert 0 <= amount <= sum(gpus)
        assert (amount > 0) is fits
