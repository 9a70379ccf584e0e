"""Which pods hold the GPUs of a node, as far as the scheduler knows."""

from __future__ import annotations

from typing import Any

import pytest

from session_scheduler.model.gpu_reservations import RESERVATION
from session_scheduler.observation.observer import Observer
from session_scheduler.testing import FakeCluster, pod

PREFIX = "fluence.flux-framework.org/"
GPU = "nvidia.com/gpu"


def held(*pods: Any, gpus: int = 2, **node: Any) -> list[dict[str, float]]:
    """The holders of each GPU of one node, on which these pods run."""
    cluster = FakeCluster().node("n1", offers={GPU: gpus}, **node).add(*pods)
    cluster.start()
    return [dict(gpu.holders) for gpu in Observer(cluster.scheduler, "a test").observe().nodes.gpus]


def runs(name: str, annotations: dict[str, str] | None = None, **options: Any) -> Any:
    named = {PREFIX + key: text for key, text in (annotations or {}).items()}
    return pod(name, annotations=named, bound_to="n1", **options)


def test_the_annotation_says_which_gpus_a_pod_shares() -> None:
    assert held(runs("a", {"gpu-fraction": "0.5", "gpu": "1"})) == [{}, {"default/a": 0.5}]
    assert held(runs("a", {"gpu-fraction": "0.5", "gpu-count": "2", "gpu": "0,1"})) == [{"default/a": 0.5}] * 2


def test_a_pod_whose_gpus_are_unknown_counts_on_each() -> None:
    assert held(runs("a", {"gpu-fraction": "0.5"})) == [{"default/a": 0.5}] * 2


@pytest.mark.parametrize(
    ("memory", "part"), [({f"{GPU}.memory": "8192"}, 0.25), ({}, 0.0), ({f"{GPU}.memory": "x"}, 0.0)]
)
def test_a_share_of_memory_needs_the_memory_of_the_gpu(memory: dict[str, str], part: float) -> None:
    assert held(runs("a", {"gpu-memory": "2048", "gpu": "0"}), labels=memory)[0] == {"default/a": part}


def test_whole_gpus_are_those_that_no_pod_shares_in_order() -> None:
    whole, shared = runs("w", requests={GPU: 1}), runs("a", {"gpu-fraction": "0.5", "gpu": "0"})
    assert held(whole, shared, gpus=3) == [{"default/a": 0.5}, {"default/w": 1.0}, {}]


def test_more_whole_gpus_than_the_node_has_are_left_out() -> None:
    assert held(runs("w", requests={GPU: 3})) == [{"default/w": 1.0}] * 2


def test_a_reservation_pod_holds_no_gpu_itself() -> None:
    reserves = runs("r", requests={GPU: 1}, labels={RESERVATION: "0"})
    assert held(reserves, runs("a", {"gpu-fraction": "0.5", "gpu": "0"})) == [{"default/a": 0.5}, {}]


def test_invalid_annotations_hold_no_gpu() -> None:
    assert held(runs("a", {"gpu-fraction": "much", "gpu": "0"})) == [{}, {}]
