"""A partially bound gang keeps the nodes of its members whose binds failed until they are placed again."""

from __future__ import annotations

from typing import Any

import pytest

from session_scheduler import hookimpl
from session_scheduler.cluster.errors import Unavailable
from session_scheduler.model.objects import Pod
from session_scheduler.testing import Answer, FakeCluster

ROOM: dict[str, Any] = {"cpu": "1", "memory": "1Mi"}
TIMEOUT = 60


def part_bound(times: int | None = 1, **options: Any) -> FakeCluster:
    """A gang of two on two nodes that fit one pod each; the bind of g-1 fails. A third pod was created later."""
    cluster = FakeCluster(**options)
    cluster.nodes(2, cpu="1")
    return cluster.gang("g", 2, **ROOM).fail_binds("g-1", times=times).pod("late", **ROOM)


def run(cluster: FakeCluster, seconds: int) -> None:
    for _ in range(seconds):
        cluster.run(cycles=2)
        cluster.advance(1)


def bound(cluster: FakeCluster) -> set[str]:
    return {key.partition("/")[2] for key, on in cluster.placements().items() if on}


def test_other_pods_do_not_use_the_node_of_a_member_whose_bind_failed() -> None:
    cluster = part_bound()
    cluster.run(cycles=4)
    assert bound(cluster) == {"g-0"}
    cluster.advance(1).schedule()
    assert bound(cluster) == {"g-0", "g-1"}
    assert not cluster.scheduler.cache.nominations.kept


def test_the_node_stays_reserved_after_a_restart() -> None:
    cluster = part_bound()
    cluster.run(cycles=2)
    cluster.restart().schedule()
    assert bound(cluster) == {"g-0", "g-1"}


def test_a_pod_of_higher_priority_can_use_the_node() -> None:
    cluster = part_bound()
    cluster.run(cycles=2)
    cluster.pod("vip", **ROOM, priority=1000).run()
    assert bound(cluster) == {"g-0", "vip"}


def test_the_node_is_free_after_the_gangs_timeout() -> None:
    cluster = part_bound(times=None)
    run(cluster, TIMEOUT - 5)
    assert bound(cluster) == {"g-0"}
    run(cluster, 20)
    assert bound(cluster) == {"g-0", "late"}
    assert cluster.find(Pod, "g-0").metadata.deletion_timestamp is not None


def test_the_node_stays_reserved_while_the_gang_is_rejected() -> None:
    """Its node is cordoned for a while; when it is schedulable again, the gang comes first."""
    cluster = part_bound()
    cluster.run()
    away = next(name for name in ("n1", "n2") if name != cluster.node_of("g-0"))
    cluster.node(away, cpu="1", unschedulable=True)
    run(cluster, 5)
    cluster.node(away, cpu="1")
    run(cluster, 15)
    assert bound(cluster) == {"g-0", "g-1"}


class FailsOnce:
    """A prefilter that fails on the second attempt of the gang."""

    name = "fails-once"
    left = 2

    @hookimpl
    def prefilter(self, session: Any, group: Any) -> None:
        if group.name == "g":
            self.left -= 1
            if not self.left:
                raise RuntimeError("it fails")


def test_the_node_stays_reserved_when_a_plugin_fails() -> None:
    cluster = part_bound()
    cluster.start(FailsOnce())
    run(cluster, 10)
    assert bound(cluster) == {"g-0", "g-1"}


def test_a_gang_with_an_ambiguous_bind_keeps_the_nodes_of_failed_binds() -> None:
    """The outcome of g-0's bind is unknown. Once the scheduler knows that it failed, all nodes are free."""
    cluster = part_bound(checked=False).fail_binds("g-0", answer=Answer.LOST)
    memory = cluster.memory
    patch = memory.patch_metadata

    async def silent(obj: Any, **options: Any) -> Any:
        if isinstance(obj, Pod):
            raise Unavailable("no answer")
        return await patch(obj, **options)

    memory.patch_metadata = silent  # type: ignore[method-assign]
    cluster.run(cycles=3)
    assert cluster.scheduler.unknown_binds
    assert cluster.scheduler.cache.nominations.kept
    assert bound(cluster) == set()
    memory.patch_metadata = patch  # type: ignore[method-assign]
    cluster.fail_binds("g-1")
    cluster.run(cycles=3)
    assert not cluster.scheduler.unknown_binds
    assert not cluster.scheduler.cache.nominations.kept
    assert "late" in bound(cluster)


def test_a_gang_without_bound_members_keeps_no_nodes() -> None:
    cluster = part_bound()
    cluster.fail_binds("g-0", times=1)
    cluster.run(cycles=2)
    assert bound(cluster) == {"late"}
    assert not cluster.scheduler.cache.nominations


def test_a_deleted_node_is_no_longer_reserved() -> None:
    cluster = part_bound(times=None)
    cluster.run()
    away = next(name for name in ("n1", "n2") if name != cluster.node_of("g-0"))
    cluster.remove_node(away).run()
    assert not cluster.scheduler.cache.nominations
    cluster.mend_binds().node("n3", cpu="1")
    run(cluster, 20)
    assert len(bound(cluster)) == 2


@pytest.mark.parametrize("members", [3, 40])
def test_every_member_keeps_its_own_node(members: int) -> None:
    cluster = FakeCluster()
    cluster.nodes(members, cpu="1")
    names = [f"g-{number}" for number in range(1, members)]
    cluster.gang("g", members, **ROOM).fail_binds(*names, times=1).pods(members, prefix="late", **ROOM)
    run(cluster, 6)
    assert bound(cluster) == {"g-0", *names}
