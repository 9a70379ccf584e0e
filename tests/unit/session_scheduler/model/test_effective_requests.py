"""The requests of a pod that is being resized in place, from its spec and its status.

Source of the cases: the table of TestPodResourceRequests in component-helpers' resource package, Kubernetes 1.36.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from session_scheduler.model.objects import Pod
from session_scheduler.model.requests import effective_spec, pod_requests

SIDECAR = "Always"
INFEASIBLE = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
DEFERRED = {"type": "PodResizePending", "status": "True", "reason": "Deferred"}


def container(spec: dict[str, str], restart: str = "", **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": spec, **more}, "restartPolicy": restart}


def status(actual: dict[str, str] | None, allocated: dict[str, str], name: str = "c") -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "allocatedResources": allocated}
    return found if actual is None else {**found, "resources": {"requests": actual}}


def pod(
    main: Any = (), statuses: Any = (), *, init: Any = (), init_statuses: Any = (), conditions: Any = (),
    node: str = "n", spec: Any = None, pod_status: Any = None,
) -> Pod:  # fmt: skip
    return msgspec.convert({
        "spec": {"nodeName": node, "containers": list(main), "initContainers": list(init), **(spec or {})},
        "status": {"containerStatuses": list(statuses), "initContainerStatuses": list(init_statuses),
                   "conditions": list(conditions), **(pod_status or {})},
    }, Pod)  # fmt: skip


ONE, TWO, THREE = {"cpu": "1"}, {"cpu": "2"}, {"cpu": "3"}
WHOLE = {"resources": {"requests": TWO}}
CASES: list[tuple[str, Pod, dict[str, int]]] = [
    ("no status yet", pod([container(THREE)]), {"cpu": 3000}),
    ("a pod shrinks: the allocated amount", pod([container(ONE)], [status(ONE, THREE)]), {"cpu": 3000}),
    ("a pod shrinks: the actual amount", pod([container(ONE)], [status(THREE, ONE)]), {"cpu": 3000}),
    ("a pod has shrunk", pod([container(ONE)], [status(ONE, ONE)]), {"cpu": 1000}),
    ("a pod grows", pod([container(THREE)], [status(ONE, TWO)]), {"cpu": 3000}),
    ("a deferred resize", pod([container(THREE)], [status(ONE, ONE)], conditions=[DEFERRED]), {"cpu": 3000}),
    ("an infeasible one", pod([container(THREE)], [status(ONE, TWO)], conditions=[INFEASIBLE]), {"cpu": 2000}),
    ("an infeasible one: the actual amount", pod([container(THREE)], [status(TWO, ONE)], conditions=[INFEASIBLE]),
     {"cpu": 2000}),
    ("infeasible, without a status", pod([container(THREE)], conditions=[INFEASIBLE]), {"cpu": 3000}),
    ("infeasible, the limits are those of the spec", pod([container(THREE, limits={"cpu": "4", "memory": "7"})],
     [status(ONE, ONE)], conditions=[INFEASIBLE]), {"cpu": 1000}),
    ("the actual amount is unknown", pod([container(ONE)], [status(None, THREE)]), {"cpu": 1000}),
    ("each resource by itself", pod([container({"cpu": "1", "memory": "9"})],
     [status({"cpu": "2", "memory": "8"}, {"memory": "7"})]), {"cpu": 2000, "memory": 9}),
    ("a resource that the spec does not name", pod([container({})], [status({}, TWO)]), {"cpu": 2000}),
    ("a limit without a request", pod([container({}, limits=ONE)], [status(TWO, TWO)]), {"cpu": 2000}),
    ("a status of another container", pod([container(ONE)], [status(THREE, THREE, "other")]), {"cpu": 1000}),
    ("a sidecar", pod(init=[container(ONE, SIDECAR)], init_statuses=[status(ONE, THREE)]), {"cpu": 3000}),
    ("an init container", pod(init=[container(ONE)], init_statuses=[status(ONE, THREE)]), {"cpu": 1000}),
    ("a pod that waits", pod([container(ONE)], [status(THREE, THREE)], node=""), {"cpu": 1000}),
    ("an invalid amount", pod([container(ONE)], [status({"cpu": "?"}, {"memory": "-1"})]), {"cpu": 1000}),
    ("the pod level shrinks", pod([container({})], spec=WHOLE,
     pod_status={"resources": {"requests": THREE}, "allocatedResources": ONE}), {"cpu": 3000}),
    ("the pod level, infeasible", pod([container({})], spec=WHOLE, conditions=[INFEASIBLE],
     pod_status={"resources": {"requests": ONE}, "allocatedResources": ONE}), {"cpu": 1000}),
    ("the pod level, infeasible and unknown", pod([container({})], spec=WHOLE, conditions=[INFEASIBLE],
     pod_status={"resources": {}}), {}),
    ("the pod level, and no actual amounts", pod([container({})], spec=WHOLE,
     pod_status={"allocatedResources": THREE}), {"cpu": 2000}),
    ("a resource that the pod level does not name", pod([container({})], spec=WHOLE,
     pod_status={"resources": {"requests": {"memory": "5"}}}), {"cpu": 2000}),
    ("no pod level", pod([container(ONE)], pod_status={"resources": {"requests": THREE}}), {"cpu": 1000}),
]  # fmt: skip


@pytest.mark.parametrize(("it", "given", "expected"), CASES, ids=[case[0] for case in CASES])
def test_a_resize_counts_as_kube_scheduler_counts_it(it: str, given: Pod, expected: dict[str, int]) -> None:
    assert pod_requests(given)[0] == expected


@pytest.mark.parametrize(
    "given",
    [
        pod([container(TWO)], [status(TWO, {"cpu": "2000m"})]),
        pod([container(TWO)], [status(ONE, {})]),
        pod([container(ONE)], [status(TWO, TWO)], node=""),
        pod([container({})], spec=WHOLE, pod_status={"resources": {"requests": {"cpu": "2000m"}}}),
    ],
)
def test_without_a_larger_amount_in_the_status_the_spec_is_the_same_object(given: Pod) -> None:
    assert effective_spec(given) is given.spec


def test_a_container_without_requests_has_the_default_only_until_the_status_names_one() -> None:
    assert pod_requests(pod([container({})], [status({}, {})]))[1]["cpu"] == 100
    assert pod_requests(pod([container({})], [status({"cpu": "0"}, {})]))[1]["cpu"] == 0
