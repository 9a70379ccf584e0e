"""On any cluster: victims are less important, none is needless, groups end as a whole, budgets hold if possible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from session_scheduler.model.meta import LabelSelector, ObjectMeta
from session_scheduler.model.objects import Pod, PodStatus
from session_scheduler.model.policy import PodDisruptionBudget, PodDisruptionBudgetSpec
from session_scheduler.testing import FakeCluster, gang, node, pod, pod_group

from ....tools.examples import examples

GUARDED = {"guarded": "yes"}
SPEC = PodDisruptionBudgetSpec(selector=LabelSelector(match_labels=GUARDED))
ROOM = 4


@dataclass(frozen=True)
class Running:
    name: str
    node: int
    cpu: int
    priority: int
    since: int
    guarded: bool
    group: str


@dataclass(frozen=True)
class World:
    """Nodes of 4 cores, the running pods, and the preemptor: a pod or a gang."""

    nodes: int
    running: tuple[Running, ...]
    cpu: int
    priority: int
    size: int

    def units(self) -> list[frozenset[str]]:
        """Names that are evicted together."""
        groups = {one.group for one in self.running if one.group}
        return [frozenset(o.name for o in self.running if o.group == group) for group in sorted(groups)] + [
            frozenset([one.name]) for one in self.running if not one.group
        ]

    def free(self, where: int, gone: frozenset[str]) -> int:
        return ROOM - sum(one.cpu for one in self.running if one.node == where and one.name not in gone)

    def fits(self, gone: frozenset[str], where: int | None = None) -> bool:
        """Whether the pod fits (on that node), or all of the gang, after these are gone."""
        nodes = range(self.nodes) if where is None else [where]
        return sum(max(0, self.free(n, gone)) // self.cpu for n in nodes) >= max(1, self.size)

    def priority_of(self, unit: frozenset[str]) -> int:
        return max(one.priority for one in self.running if one.name in unit)

    def is_guarded(self, unit: frozenset[str]) -> bool:
        return any(one.guarded for one in self.running if one.name in unit)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    nodes = draw(st.integers(1, 4))
    running: list[Running] = []
    groups = {name: draw(st.integers(1, 3)) for name in ("", "g1", "g2")}
    for where in range(nodes):
        free = ROOM
        while free and draw(st.integers(0, 5)):
            cpu = draw(st.integers(1, free))
            free -= cpu
            group = draw(st.sampled_from(["", "", "g1", "g2"]))
            priority = groups[group] if group else draw(st.integers(1, 4))
            since, guarded = draw(st.integers(0, 59)), draw(st.booleans())
            running.append(Running(f"r{len(running)}", where, cpu, priority, since, guarded, group))
    return World(nodes, tuple(running), draw(st.integers(1, 4)), draw(st.integers(2, 5)), draw(st.integers(0, 3)))


def carried_out(world: World) -> tuple[frozenset[str], dict[str, int]]:
    """The victims, and the nominated nodes of the preemptor."""
    cluster = FakeCluster()
    cluster.add(*(node(f"n{number}", cpu=str(ROOM)) for number in range(world.nodes)))
    for group in sorted({one.group for one in world.running if one.group}):
        members = [one for one in world.running if one.group == group]
        cluster.add(pod_group(group, len(members), disruption_mode="PodGroup"))
    cluster.add(PodDisruptionBudget(metadata=ObjectMeta(name="b", namespace="default"),
                                    spec=SPEC))  # fmt: skip
    for one in world.running:
        made = pod(one.name, cpu=str(one.cpu), memory="1Mi", priority=one.priority, bound_to=f"n{one.node}",
                   labels=GUARDED if one.guarded else {}, group=one.group)  # fmt: skip
        started = PodStatus(phase="Running", start_time=f"2026-01-01T00:00:{one.since:02}Z")
        cluster.add(replace(made, status=started))
    asked: dict[str, Any] = {"cpu": str(world.cpu), "memory": "1Mi", "priority": world.priority}
    cluster.add(gang("new", world.size, **asked) if world.size else pod("new", **asked))
    cluster.run()
    pods = cluster.memory.objects(Pod)
    nominated = {p.metadata.name: int(p.status.nominated_node_name[1:]) for p in pods if p.status.nominated_node_name}
    placed = [p for p in pods if p.metadata.name.startswith("new") and p.spec.node_name]
    assert len(placed) in (0, max(1, world.size))
    assert bool(placed) is world.fits(frozenset())
    return frozenset(p.metadata.name for p in pods if p.metadata.deletion_timestamp), nominated


ONE_GROUP = World(2, (Running("r0", 0, 4, 1, 0, False, "g1"), Running("r1", 1, 4, 1, 0, False, "g1")), 4, 5, 0)


@settings(max_examples=examples(150))
@given(worlds())
@example(ONE_GROUP)
def test_victims_are_less_important_and_necessary_and_groups_are_whole(world: World) -> None:
    victims, nominated = carried_out(world)
    units = [unit for unit in world.units() if unit & victims]
    assert all(unit <= victims for unit in units), "expected the group to end as a whole"
    assert all(world.priority_of(unit) < world.priority for unit in units)
    lower = frozenset().union(*(unit for unit in world.units() if world.priority_of(unit) < world.priority))
    if not victims:
        helpful = [n for n in range(world.nodes) if world.fits(lower, n)] if not world.size else [0]
        assert world.fits(frozenset()) or not world.fits(lower) or not helpful
        assert nominated == {}
        return
    where = None if world.size else nominated["new"]
    assert len(nominated) == max(1, world.size)
    assert world.fits(victims, where)
    for unit in units:
        assert not world.fits(victims - unit, where), f"{unit} is a needless victim"


@settings(max_examples=examples(150))
@given(worlds())
def test_no_budget_is_violated_if_there_is_another_choice(world: World) -> None:
    victims, _ = carried_out(world)
    units = world.units()
    if not any(world.is_guarded(unit) for unit in units if unit & victims):
        return
    others = [u for u in units if not world.is_guarded(u) and world.priority_of(u) < world.priority]
    if world.size:
        assert not world.fits(frozenset().union(*others))
        return
    for where in range(world.nodes):
        here = {one.name for one in world.running if one.node == where}
        assert not world.fits(frozenset().union(*(unit for unit in others if unit & here)), where)


@settings(max_examples=examples(30))
@given(worlds())
def test_equal_clusters_have_equal_victims(world: World) -> None:
    assert carried_out(world) == carried_out(world)
