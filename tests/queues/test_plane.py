"""The world of these tests itself: what it counts, and that it is empty for each test."""

from __future__ import annotations

import time
from collections import Counter

from .plane import CLUSTER_QUEUES, CONTROLLER, FLAVORS, MASTER_QUEUES, QueuesPlane
from .samples import LOCAL_MASTER_QUEUE, cluster_queue, flavor, read


def test_writes_are_counted_by_kind_verb_and_user(plane: QueuesPlane) -> None:
    writes = plane.writes()
    plane.create(flavor("a"))
    assert plane.request("PATCH", f"{FLAVORS}/a", {"spec": {"nodeLabels": {"a": "b"}}}, user=CONTROLLER)[0] == 200
    assert plane.request("GET", f"{FLAVORS}/a")[0] == 200
    assert plane.request("DELETE", f"{FLAVORS}/none", user=CONTROLLER)[0] == 404
    deadline = time.monotonic() + 10
    while len(writes.all()) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [(one.user, one.verb, one.name, one.status) for one in writes.all()] == [
        ("admin", "create", "a", 201),
        (CONTROLLER, "patch", "a", 200),
        (CONTROLLER, "delete", "none", 404),
    ]
    counted = Counter({("resourceflavors", "patch"): 1, ("resourceflavors", "delete"): 1})
    assert writes.counted(CONTROLLER) == counted
    assert plane.writes().all() == []


def test_what_is_cleared_is_gone_though_somebody_would_have_to_give_it_up(plane: QueuesPlane) -> None:
    kept = flavor("kept")
    kept["metadata"]["finalizers"] = ["example.com/no-controller"]
    plane.create(kept)
    plane.create(cluster_queue("main", "cohort", {"kept": {"pods": 1}}))
    plane.create(read(LOCAL_MASTER_QUEUE))
    plane.clear()
    assert [plane.items(path) for path in (MASTER_QUEUES, CLUSTER_QUEUES, FLAVORS)] == [{}, {}, {}]
