"""Groups that must stay in one topology domain: the choice of the domain, and the reasons if none fits.

The domains' scores are kube-scheduler's: PodGroupPodsCount, and NodeResourcesFit by allocated resources.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from session_scheduler import Normalise, Refusal, hookimpl
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.model.objects import Pod
from session_scheduler.testing import FakeCluster, gang, node, pod, pod_group

ZONE = "zone"


def zoned(cluster, **zones):
    """Nodes a1, a2, … of each zone, with these cpus."""
    for zone, cpus in zones.items():
        cluster.add(
            node(f"{zone}{number}", cpu=str(cpu), labels={ZONE: zone}) for number, cpu in enumerate(cpus, start=1)
        )


def world(*objects, config=None, checked=True, **zones):
    cluster = FakeCluster(config=config, checked=checked)
    zoned(cluster, **zones)
    cluster.add(*objects)
    return cluster


def zones_of(cluster, name, size):
    """The zones of the group's pods; None for one that is not bound."""
    nodes = [cluster.node_of(f"{name}-{index}") for index in range(size)]
    return {where[0] if where else None for where in nodes}


def test_a_gang_goes_to_a_domain_that_fits_it():
    cluster = world(gang("g", 3, cpu="2", topology=ZONE), a=[2, 2], b=[2, 2, 2], c=[8, 1])
    cluster.run()
    assert zones_of(cluster, "g", 3) in ({"b"}, {"c"})
    cluster = world(gang("g", 3, cpu="2", topology=ZONE), a=[2, 2], b=[2, 2, 2], c=[4, 1])
    cluster.run()
    assert zones_of(cluster, "g", 3) == {"b"}


def test_a_gang_without_a_constraint_is_spread_over_domains():
    cluster = world(gang("g", 3, cpu="2"), a=[2, 2], b=[2])
    cluster.run()
    assert zones_of(cluster, "g", 3) == {"a", "b"}


def test_a_gang_that_fits_in_no_domain_waits_with_the_reasons_of_the_first_domain():
    cluster = world(gang("g", 3, cpu="2", topology=ZONE), a=[2, 2, 1], b=[2], c=[1])
    cluster.run()
    assert zones_of(cluster, "g", 3) == {None}
    refusal = cluster.scheduler.outcomes["PodGroup default/g"].refusal
    assert refusal.reason == (
        "0/3 placements are available, first placement status: pod group is unschedulable, waiting for minCount pods "
        "from a gang to be scheduled: 0/3 nodes are available: 3 Insufficient cpu."
    )
    cluster.assert_pending("g-2", "0/3 nodes are available: 3 Insufficient cpu.")
    cluster.assert_pending("g-0", "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled")
    cluster.add(node("c2", cpu="9", labels={ZONE: "c"}))
    cluster.advance(60)
    cluster.run()
    assert zones_of(cluster, "g", 3) == {"c"}


def test_the_domain_that_fits_more_of_the_pods_wins():
    """zone a would be fuller."""
    for zones in ({"a": [4], "b": [9]}, {"a": [9], "b": [4]}):
        cluster = world(gang("g", 3, min_count=2, cpu="2", topology=ZONE), **zones)
        cluster.run()
        assert zones_of(cluster, "g", 3) == {max(zones, key=lambda zone: zones[zone])}


def test_among_domains_that_fit_all_pods_the_fuller_one_wins():
    """Over all its nodes: the emptiest node is in the fuller domain."""
    there = pod("there", cpu="6", bound_to="b1")
    cluster = world(there, gang("g", 2, cpu="1", topology=ZONE), a=[8, 8], b=[8, 8])
    cluster.run()
    assert zones_of(cluster, "g", 2) == {"b"}


def test_the_seed_decides_between_equal_domains():
    chosen = {}
    for seed in range(12):
        for _ in range(2):
            cluster = world(gang("g", 2, topology=ZONE), config=SchedulerConfig(seed=seed), a=[4], b=[4])
            cluster.run()
            chosen.setdefault(seed, set()).update(zones_of(cluster, "g", 2))
    assert all(len(zones) == 1 for zones in chosen.values())
    assert set.union(*chosen.values()) == {"a", "b"}


def test_a_basic_group_stays_together_as_far_as_it_fits():
    group = pod_group("g", topology=ZONE)
    members = [pod(f"g-{index}", cpu="2", group="g") for index in range(4)]
    cluster = world(group, members, a=[2, 2], b=[2, 2, 2], c=[2])
    cluster.run()
    assert sorted(cluster.node_of(f"g-{index}") or "" for index in range(4)) == ["", "b1", "b2", "b3"]
    cluster.add(node("c9", cpu="64", labels={ZONE: "c"}))
    cluster.advance(60)
    cluster.run()
    assert zones_of(cluster, "g", 4) == {"b", None}
    cluster.assert_pending("g-3", "0/3 nodes are available: 3 Insufficient cpu.")


def test_later_pods_go_to_the_domain_of_the_group():
    cluster = world(gang("g", 2, cpu="2", topology=ZONE), a=[4, 4], b=[2, 2])
    cluster.run()
    assert zones_of(cluster, "g", 2) == {"b"}
    cluster.add(pod("g-2", cpu="1", group="g"))
    cluster.run()
    cluster.assert_pending("g-2", "0/2 nodes are available: 2 Insufficient cpu.")
    cluster.add(node("b3", cpu="1", labels={ZONE: "b"}))
    cluster.advance(60)
    cluster.run()
    cluster.assert_bound("g-2", "b3")


def test_members_bound_by_other_schedulers_pin_the_domain():
    members = [pod(f"g-{index}", cpu="2", group="g") for index in range(3)]
    bound = replace(members[0], spec=replace(members[0].spec, node_name="a1"))
    cluster = world(pod_group("g", 3, topology=ZONE), bound, *members[1:], a=[4, 2], b=[64])
    cluster.run()
    assert zones_of(cluster, "g", 3) == {"a"}


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ({"g-0": "a1", "g-1": "b1"}, "more than 1 domain found for pod group: a, b"),
        ({"g-0": "bare"}, "no topology domain found for pod default/g-0"),
        ({"g-0": "gone"}, "getting node for pod default/g-0: node 'gone' not found"),
    ],
)
def test_bound_members_without_a_common_domain_are_an_error_of_their_group_only(nodes, reason):
    members = [pod(f"g-{index}", group="g", bound_to=nodes.get(f"g-{index}", "")) for index in range(3)]
    cluster = world(pod_group("g", 3, topology=ZONE), members, pod("other"), checked=False, a=[4], b=[4])
    cluster.add(node("bare"))
    cluster.run()
    refusal = cluster.scheduler.outcomes["PodGroup default/g"].refusal
    assert refusal.failed
    assert refusal.reason == f"cannot determine domain for already scheduled pods: {reason}"
    cluster.assert_pending("g-2", refusal.reason)
    cluster.assert_bound("other")


@pytest.mark.parametrize("key", ["rack", "", "no key at all!"])
def test_a_label_that_no_node_has_rejects_its_group_only(key):
    cluster = world(gang("g", 2, topology=key), pod("other"), a=[4])
    cluster.run()
    cluster.assert_pending("g-0", f"no feasible placements found: no node has the label {key!r}")
    assert not cluster.scheduler.outcomes["PodGroup default/g"].refusal.failed
    cluster.assert_bound("other")


def test_nodes_without_the_label_are_in_no_domain():
    cluster = FakeCluster()
    cluster.nodes(5)
    cluster.add(gang("g", 2, topology=ZONE))
    zoned(cluster, a=[1])
    cluster.run()
    assert zones_of(cluster, "g", 2) == {"a"}


def test_terminating_members_still_pin_the_domain():
    """A member that is being deleted still runs beside the others."""
    cluster = world(gang("g", 2, cpu="2", topology=ZONE), a=[2, 2], b=[1])
    cluster.run()
    cluster.add(node("b9", cpu="64", labels={ZONE: "b"}))
    for index in range(2):
        bound = cluster.find(Pod, f"g-{index}")
        cluster.add(replace(bound, metadata=replace(bound.metadata, deletion_timestamp="2030-01-01T00:00:00Z")))
    cluster.add(pod("g-2", cpu="2", group="g"), pod("g-3", cpu="2", group="g"))
    cluster.run()
    assert cluster.node_of("g-2") is None
    cluster.assert_pending("g-2", "0/2 nodes are available")


class Offers:
    """Offers single nodes."""

    name = "offers"

    def __init__(self, *names):
        self._names = names

    @hookimpl
    def node_subsets(self, session, group):
        view = session.table.all_rows()
        return [view.named(name) for name in self._names]


def test_each_domain_is_combined_with_each_set_that_a_plugin_offers():
    cluster = world(gang("g", 2, topology=ZONE), pod("p"), a=[4, 4], b=[4, 4])
    cluster.run(Offers("b2"))
    assert [cluster.node_of(f"g-{index}") for index in range(2)] == ["b2", "b2"]
    cluster = world(gang("g", 2, topology=ZONE), a=[4, 4])
    cluster.add(node("bare"))
    cluster.run(Offers("bare"))
    cluster.assert_pending("g-0", "no feasible placements found: plugins offer the group no node with the label 'zone'")


class Likes:
    """Scores domains."""

    name = "likes"
    weight = 1000

    def __init__(self, answer, normalise=Normalise.NONE):
        self._answer, self.normalise = answer, normalise

    @hookimpl
    def score_placement(self, tasks, nodes):
        return self._answer(tasks, [nodes.node(index).metadata.labels[ZONE] for index in range(len(nodes))])


def test_a_plugins_weight_and_normaliser_apply_to_domains():
    for liked in ("a", "b"):
        likes = Likes(lambda tasks, zones, liked=liked: 5 if zones[0] == liked else 4, Normalise.SPREAD)
        cluster = world(gang("g", 3, cpu="2", topology=ZONE), a=[8], b=[8, 8])
        cluster.run(likes)
        assert zones_of(cluster, "g", 3) == {liked}


@pytest.mark.parametrize("answer", ["much", -1, 101, 2**80, True, 0.5])
def test_an_invalid_score_of_a_domain_fails_its_group_only(answer):
    cluster = world(gang("g", 2, topology=ZONE), pod("other"), a=[8], b=[8])
    cluster.run(Likes(lambda *_: answer))
    cluster.assert_pending("g-0", "plugin likes failed in score_placement:")
    cluster.assert_bound("other")


def test_a_missing_score_of_a_domain_counts_as_zero():
    cluster = world(gang("g", 2, topology=ZONE), a=[8], b=[8])
    cluster.run(Likes(lambda *_: None))
    assert len(zones_of(cluster, "g", 2)) == 1


class Placer:
    """Places tasks on the first nodes with free capacity, and records its calls."""

    name = "placer"

    def __init__(self, most):
        self._most, self.held, self.asked = most, {}, []

    @hookimpl
    def place_group(self, session, tasks, room):
        names = session.table.nodes
        rows = [int(row) for row in room[tasks[0].cls].nonzero()[0]]
        self.asked.append(sorted(names[row].metadata.name for row in rows))
        chosen = {task: names[row].metadata.name for task, row in zip(tasks, rows, strict=False)}
        return Share(self.held, chosen) if len(chosen) >= self._most else Refusal("the graph is full")


class Share:
    def __init__(self, book, nodes):
        self._book, self.nodes = book, nodes
        self.redo()

    @property
    def holds(self):
        return {task: {"on": name} for task, name in self.nodes.items()}

    def undo(self):
        for task in self.nodes:
            del self._book[task]

    def redo(self):
        self._book.update(self.nodes)

    def release(self, tasks):
        for task in tasks:
            del self._book[task]


def test_a_plugin_that_places_groups_gets_the_capacity_of_one_domain_at_a_time():
    placer = Placer(2)
    cluster = world(gang("g", 2, cpu="1", topology=ZONE), a=[1], b=[1, 1], c=[1, 1])
    cluster.run(placer)
    assert zones_of(cluster, "g", 2) in ({"b"}, {"c"})
    assert [asked for asked in placer.asked if len(asked) > 1] == [["b1", "b2"], ["c1", "c2"]]
    assert {task.name: where for task, where in placer.held.items()} == {
        f"g-{index}": cluster.node_of(f"g-{index}") for index in range(2)
    }


def test_the_refusal_of_a_plugin_in_every_domain_is_reported():
    cluster = world(gang("g", 2, cpu="1", topology=ZONE), a=[9], b=[9])
    cluster.run(Placer(5))
    cluster.assert_pending("g-0", "the graph is full")
    assert cluster.scheduler.outcomes["PodGroup default/g"].refusal.reason.startswith(
        "0/2 placements are available, first placement status: pod group is unschedulable"
    )
