"""The pytest plugin: the fixtures `cluster` and `new_cluster`, which check invariants at the end of a test.

pytest loads it by the entry-point group `pytest11` wherever the scheduler is installed. It imports the scheduler when
a test uses a fixture. `-p no:fluence` disables it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from session_scheduler.testing.fake_cluster import FakeCluster

_CLUSTERS = pytest.StashKey[list[Any]]()


@pytest.fixture
def new_cluster(request: pytest.FixtureRequest) -> Callable[..., FakeCluster]:
    """`new_cluster(config=…, evaluation=…, checked=…)` creates a cluster; call it once for each cluster."""
    from session_scheduler.testing.fake_cluster import FakeCluster

    clusters = request.node.stash.setdefault(_CLUSTERS, [])

    def new(**options: Any) -> FakeCluster:
        made = FakeCluster(**options)
        clusters.append(made)
        return made

    return new


@pytest.fixture
def cluster(new_cluster: Callable[..., FakeCluster]) -> FakeCluster:
    """An empty cluster: see `session_scheduler.testing.FakeCluster`."""
    return new_cluster()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that leaves a cluster with violated invariants."""
    result = yield
    for made in item.stash.get(_CLUSTERS, ()):
        if made.checked:
            made.assert_invariants()
    return result
