"""Assignment of a job's pods to its nodes: stable, even and as complete as possible."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fluence_plugins.slurm_bridge.jobs.assignment import Assignment, JobNode, assign
from fluence_plugins.slurm_bridge.jobs.job_table import PodJob


class Pod:
    def __init__(self, number: int, cls: object = None) -> None:
        self.number = number
        self.cls = cls if cls is not None else number

    def __repr__(self) -> str:
        return f"p{self.number}"


def stand(pods: int, *nodes: str) -> PodJob:
    return PodJob(1, nodes, tuple(f"p{number}" for number in range(pods)), "")


def shown(found: dict[Any, str]) -> dict[str, str]:
    return {repr(task): node for task, node in found.items()}


def test_pods_go_to_nodes_in_turn_and_evenly() -> None:
    pods: Any = [Pod(number) for number in range(4)]
    everywhere = lambda *_: True  # noqa: E731
    four = assign(pods, stand(4, "a", "b", "c", "d"), ["a", "b", "c", "d"], (), everywhere)
    assert shown(four) == {"p0": "a", "p1": "b", "p2": "c", "p3": "d"}
    two = assign(pods, stand(4, "a", "b"), ["a", "b"], (), everywhere)
    assert shown(two) == {"p0": "a", "p1": "a", "p2": "b", "p3": "b"}


def test_assigned_pods_keep_their_node() -> None:
    pods: Any = [Pod(1), Pod(2)]
    found = assign(pods, stand(3, "a", "b", "c"), ["a", "b", "c"], ["b"], lambda *_: True)
    assert shown(found) == {"p1": "a", "p2": "c"}


def test_a_placement_does_not_keep_tasks_alive() -> None:
    one, two = Pod(1), Pod(2)
    seats: Any = Assignment({one: JobNode("a", 7), two: JobNode("b", 7)})  # type: ignore[dict-item]
    seats.undo()
    seats.redo()
    seats.release([one])
    assert (seats.nodes, seats.holds) == ({two: "b"}, {two: {"job": 7}})


@given(st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=4))
def test_as_many_pods_as_possible_are_assigned(takes: list[set[int]]) -> None:
    """Compared with all possible assignments."""
    nodes = [f"n{number}" for number in range(4)]
    pods: Any = [Pod(number) for number in range(len(takes))]
    lets = lambda pod, node: int(node[1:]) in takes[pod.number]  # noqa: E731
    found = assign(pods, stand(4, *nodes), nodes, (), lets)
    most = max(sum(lets(pod, node) for pod, node in zip(pods, way, strict=False)) for way in permutations(nodes))
    assert len(found) == most
    assert len(set(found.values())) == len(found)
    assert all(lets(pod, node) for pod, node in found.items())


def test_a_thousand_pods_are_assigned_even_if_all_move_for_the_last_one() -> None:
    nodes = [f"n{number}" for number in range(1000)]
    choosy: Any = [Pod(number) for number in range(1000)]
    asked = [0]

    def lets(pod: Any, node: str) -> bool:
        asked[0] += 1
        number = int(node[1:])
        return number in (pod.number, pod.number + 1) if pod.number < 999 else number == 0

    assert len(assign(choosy, stand(1000, *nodes), nodes, (), lets)) == 1000, "each pod moves to the next node"
    assert asked[0] < 3_000_000
    asked[0] = 0
    same: Any = [Pod(number, "one") for number in range(1000)]
    refused = assign(same, stand(1000, *nodes), nodes, (), lambda pod, node: bool(asked.append(1)))
    assert refused == {}
    assert len(asked) < 1_100_000
