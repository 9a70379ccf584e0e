from __future__ import annotations

from typing import Any

import msgspec
import pytest

from session_scheduler.model.objects import Pod
from session_scheduler.model.quantity import LARGEST, QuantityError
from session_scheduler.model.requests import containers_requests, is_counted, is_scalar, pod_requests

MIB = 2**20


def container(restart: str = "", limits: Any = None, **requests: str) -> dict[str, Any]:
    named = {name.replace("__", "/"): amount for name, amount in requests.items()}
    return {"name": "c", "resources": {"requests": named, "limits": limits or {}}, "restartPolicy": restart}


def sidecar(**requests: str) -> dict[str, Any]:
    return container("Always", **requests)


def pod(*containers: Any, init: Any = (), **spec: Any) -> Pod:
    return msgspec.convert({"spec": {"containers": containers, "initContainers": list(init), **spec}}, Pod)


CASES: list[tuple[str, Pod, dict[str, int]]] = [
    ("containers add up", pod(container(cpu="100m"), container(cpu="1", memory="1Mi")), {"cpu": 1100, "memory": MIB}),
    ("nothing is requested", pod(container()), {}),
    ("zeros are left out", pod(container(cpu="0", memory="0Gi")), {}),
    ("a limit is a request", pod(container(limits={"cpu": "2", "memory": "1"}, cpu="1")), {"cpu": 1000, "memory": 1}),
    ("extended resources", pod(container(example__gpu="2"), container(example__gpu="1")), {"example/gpu": 3}),
    (
        "one init container at a time",
        pod(container(cpu="1"), init=[container(cpu="3"), container(cpu="2")]),
        {"cpu": 3000},
    ),
    ("init below the containers", pod(container(cpu="4"), init=[container(cpu="3")]), {"cpu": 4000}),
    (
        "each resource has its own most",
        pod(container(cpu="1", memory="5"), init=[container(cpu="3", memory="2")]),
        {"cpu": 3000, "memory": 5},
    ),
    ("sidecars run on", pod(container(cpu="1"), init=[sidecar(cpu="2")]), {"cpu": 3000}),
    (
        "a sidecar started before an init container runs beside it",
        pod(container(cpu="1"), init=[sidecar(cpu="2"), container(cpu="4")]),
        {"cpu": 6000},
    ),
    (
        "a sidecar started after an init container does not",
        pod(container(cpu="1"), init=[container(cpu="4"), sidecar(cpu="2")]),
        {"cpu": 4000},
    ),
    (
        "sidecars start one after the other",
        pod(container(), init=[sidecar(cpu="1"), container(cpu="1"), sidecar(cpu="1"), container(cpu="1")]),
        {"cpu": 3000},
    ),
    (
        "overhead comes on top",
        pod(container(cpu="1"), overhead={"cpu": "250m", "memory": "7"}),
        {"cpu": 1250, "memory": 7},
    ),
    ("sums are rounded once", pod(container(memory="500m"), container(memory="500m")), {"memory": 1}),
    (
        "pod-level requests replace the containers'",
        pod(container(cpu="3", memory="4"), resources={"requests": {"cpu": "2"}}),
        {"cpu": 2000, "memory": 4},
    ),
    (
        "pod-level requests do not take the overhead away",
        pod(container(cpu="3"), resources={"requests": {"cpu": "2"}}, overhead={"cpu": "1"}),
        {"cpu": 3000},
    ),
    (
        "a pod-level limit is the request where containers request nothing",
        pod(container(cpu="1"), resources={"limits": {"cpu": "2", "memory": "3"}}),
        {"cpu": 1000, "memory": 3},
    ),
    (
        "pod-level huge pages count",
        pod(container(), resources={"requests": {"hugepages-2Mi": "4Mi"}}),
        {"hugepages-2Mi": 4 * MIB},
    ),
    ("pod-level extended resources do not", pod(container(), resources={"requests": {"example/gpu": "4"}}), {}),
    ("names that no scheduler counts", pod(container(pods="3", odd="1")), {}),
    (
        "absurd amounts are capped",
        pod(container(cpu="9E", memory="9E"), container(memory="9E")),
        {"cpu": LARGEST, "memory": LARGEST},
    ),
]


@pytest.mark.parametrize(("it", "given", "expected"), CASES, ids=[case[0] for case in CASES])
def test_requests_are_counted_as_kube_scheduler_does(it: str, given: Pod, expected: dict[str, int]) -> None:
    assert pod_requests(given)[0] == expected


DEFAULT = {"cpu": 100, "memory": 200 * MIB}
SCORED: list[tuple[str, Pod, tuple[int, int], tuple[int, int]]] = [
    ("every container has defaults", pod(container(), container()), (200, 400), (200, 400)),
    ("only what is not named", pod(container(cpu="1"), container(memory="1Mi")), (1100, 201), (1100, 201)),
    ("a zero is named", pod(container(cpu="0", memory="0")), (0, 0), (0, 0)),
    ("init containers and sidecars too", pod(container(), init=[sidecar(), container()]), (200, 400), (200, 400)),
    ("there are no containers", pod(), (0, 0), (0, 0)),
    ("overhead comes on top", pod(container(), overhead={"cpu": "1", "memory": "1Mi"}), (1100, 201), (1100, 201)),
    (
        "pod-level requests are enough",
        pod(container(), resources={"requests": {"cpu": "1", "memory": "1Mi"}}),
        (1000, 1),
        (100, 200),
    ),
    (
        "what neither level names has defaults",
        pod(container(), container(), resources={"requests": {"cpu": "1"}}),
        (1000, 400),
        (200, 400),
    ),
    (
        "beside pod-level requests one container that names it is enough",
        pod(container(), container(memory="1Mi"), resources={"requests": {"cpu": "1"}}),
        (1000, 1),
        (200, 201),
    ),
]


@pytest.mark.parametrize(("it", "given", "on_node", "as_new"), SCORED, ids=[case[0] for case in SCORED])
def test_scores_use_defaults_for_containers_without_requests(
    it: str, given: Pod, on_node: tuple[int, int], as_new: tuple[int, int]
) -> None:
    assert pod_requests(given)[1] == {"cpu": on_node[0], "memory": on_node[1] * MIB}
    assert containers_requests(given) == {"cpu": as_new[0], "memory": as_new[1] * MIB}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (pod(container(), container(cpu="x")), "spec.containers[1].resources.requests.cpu: 'x'"),
        (pod(container(limits={"memory": "1G1"})), "spec.containers[0].resources.limits.memory"),
        (
            pod(container(), init=[container(cpu="-1")]),
            "spec.initContainers[0].resources.requests.cpu: '-1' is negative",
        ),
        (pod(container(), overhead={"cpu": ""}), "spec.overhead.cpu"),
        (pod(container(), resources={"requests": {"cpu": "?"}}), "spec.resources.requests.cpu"),
        (pod(container(), resources={"limits": {"cpu": "?"}}), "spec.resources.limits.cpu"),
    ],
)
def test_an_invalid_quantity_is_rejected_with_its_field(given: Pod, field: str) -> None:
    with pytest.raises(QuantityError) as caught:
        pod_requests(given)
    assert field in str(caught.value)


@pytest.mark.parametrize(
    ("name", "scalar", "counted"),
    [
        ("cpu", False, True),
        ("memory", False, True),
        ("ephemeral-storage", False, True),
        ("pods", False, False),
        ("storage", False, False),
        ("example.com/gpu", True, True),
        ("hugepages-1Gi", True, True),
        ("attachable-volumes-csi", True, True),
        ("kubernetes.io/x", True, True),
        ("requests.example.com/gpu", False, False),
    ],
)
def test_resources_are_classified_by_name(name: str, scalar: bool, counted: bool) -> None:
    assert (is_scalar(name), is_counted(name)) == (scalar, counted)
