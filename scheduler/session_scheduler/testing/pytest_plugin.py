"""The pytest plugin: the fixtures `cluster` and `new_cluster`, whose invariants are checked when the test has passed.

pytest loads it, by the entry-point group `pytest11`, wherever the scheduler is installed; what it needs is imported
when a test asks for a fixture. `-p no:fluence` switches it off.
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
    """`new_cluster(config=…, evaluation=…, checked=…)`: as many clusters as the test needs."""
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
    """The invariants belong to the test: it fails where they do not hold."""
    result = yield
    for made in item.stash.get(_CLUSTERS, ()):
        if made.checked:
            made.assert_invariants()
    return result
