"""Groups that prefer one domain of the narrowest network level that fits them, by the annotation prefer-within."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from session_scheduler.actions import placing
from session_scheduler.actions.node_sets import NodeSet
from session_scheduler.model.objects import Pod, PodGroup
from session_scheduler.model.preferred_levels import PREFER_WITHIN, preferred_levels
from session_scheduler.testing.builders import pod, pod_group
from session_scheduler.testing.evaluations import check_evaluations
from session_scheduler.testing.fake_cluster import FakeCluster

from ..builtin.test_dynamic_resources import claim, device_class, slice_of

BLOCK, SPINE = "network.topology.nvidia.com/block", "network.topology.nvidia.com/spine"
LEVELS = f"{BLOCK},{SPINE}"


def group(name: str, count: int | None, levels: str = LEVELS, **options: Any) -> PodGroup:
    made = pod_group(name, count, **options)
    annotations = {**made.metadata.annotations, PREFER_WITHIN: levels}
    return replace(made, metadata=replace(made.metadata, annotations=annotations))


def members(name: str, count: int, cpu: int = 1, first: int = 0) -> list[Pod]:
    return [pod(f"{name}-{number}", group=name, cpu=cpu) for number in range(first, first + count)]


def network(found: FakeCluster | None = None, **labels: str) -> FakeCluster:
    """Two spines with two blocks of two nodes each; the nodes a1 to d2 have two CPUs."""
    found = found or FakeCluster()
    for block, spine in zip("abcd", "1122", strict=True):
        for number in (1, 2):
            found.node(f"{block}{number}", cpu=2, labels={BLOCK: block, SPINE: spine, **labels})
    return found


def used(found: FakeCluster, name: str) -> set[str]:
    """The blocks with pods of a group."""
    return {(node or "-")[0] for key, node in found.placements().items() if key.startswith(f"default/{name}-")}


def test_a_gang_is_placed_in_one_domain_of_the_narrowest_level() -> None:
    found = network().add(group("g", 4), members("g", 4)).schedule()
    assert len(used(found, "g")) == 1


def test_without_the_annotation_it_is_spread_over_the_emptiest_nodes() -> None:
    found = network().add(pod_group("g", 4), members("g", 4)).schedule()
    assert len(used(found, "g")) > 1


def test_the_fuller_domain_is_preferred_so_that_others_stay_whole() -> None:
    found = network().add(pod("runs", bound_to="c1", cpu=1)).add(group("g", 2), members("g", 2)).schedule()
    assert used(found, "g") == {"c"}


def test_only_sets_with_nodes_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels of hosts in a topology constraint's domains would be as many sets as the product of both."""
    built: list[NodeSet] = []

    def make(*given: Any) -> NodeSet:
        built.append(NodeSet(*given))
        return built[-1]

    monkeypatch.setattr("session_scheduler.actions.node_sets.NodeSet", make)
    network().add(group("g", 1, BLOCK, topology=BLOCK), members("g", 1)).schedule().assert_all_bound()
    assert len(built) == 8


def with_claims(count: int) -> list[Any]:
    """A gang of this size whose pods have a claim each, and the claims. Each pod is in a class of its own."""
    pods = [replace(one, spec=replace(one.spec, resource_claims=({"name": "e", "resourceClaimName": f"c{n}"},)))
            for n, one in enumerate(members("g", count))]  # fmt: skip
    return [group("g", count, BLOCK), pods, [claim(f"c{n}") for n in range(count)]]


def with_spreading(count: int) -> list[Any]:
    """A gang of this size that is spread over hosts."""
    spread = ({"maxSkew": 2, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
               "labelSelector": {"matchLabels": {"app": "g"}}},)  # fmt: skip
    pods = [pod(f"g-{n}", group="g", cpu=1, labels={"app": "g"}, topology_spread_constraints=spread)
            for n in range(count)]  # fmt: skip
    return [group("g", count, BLOCK), pods]


@pytest.mark.parametrize("gang", [with_claims(4), with_spreading(4)], ids=["claims", "spreading"])
def test_domains_without_room_are_skipped_without_an_attempt(gang: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if filters read more than one row: 50 blocks have room for 3 pods each, and 2 for 4."""
    attempts: list[object] = []
    try_ways = placing._try_ways
    monkeypatch.setattr(placing, "_try_ways", lambda request: (attempts.append(request), try_ways(request))[1])
    found = FakeCluster().add(device_class())
    for number in range(52):
        free = 2 if number in (7, 30) else 1
        for place, cpu in enumerate((2, free)):
            name = f"n{number}-{place}"
            found.node(name, cpu=cpu, labels={BLOCK: f"b{number}", "kubernetes.io/hostname": name})
            found.add(slice_of(name, "d0", "d1"))
    found.add(*gang).schedule().assert_all_bound()
    assert {str(node).partition("-")[0] for node in found.placements().values()} <= {"n7", "n30"}
    assert len(attempts) == 2


def test_a_gang_that_fits_in_no_block_is_placed_below_one_spine() -> None:
    found = network().add(group("g", 6), members("g", 6)).schedule()
    assert used(found, "g") in ({"a", "b"}, {"c", "d"})


def test_a_gang_that_fits_in_no_domain_is_placed_anywhere() -> None:
    found = network().add(group("g", 10), members("g", 10)).schedule().assert_all_bound()
    assert len(used(found, "g")) > 2


def test_all_pods_count_and_not_the_minimum_alone() -> None:
    found = network().add(group("g", 2), members("g", 6)).schedule().assert_all_bound()
    assert used(found, "g") in ({"a", "b"}, {"c", "d"})


def test_later_pods_prefer_the_domains_of_the_pods_before_them() -> None:
    found = network().add(group("g", 2), members("g", 2)).schedule()
    block = used(found, "g")
    found.add(members("g", 2, first=2)).schedule()
    assert used(found, "g") == block
    found.add(members("g", 2, first=4)).schedule().assert_all_bound()
    assert used(found, "g") in ({"a", "b"}, {"c", "d"})


def test_pods_of_a_basic_group_stay_near_each_other() -> None:
    found = network().add(group("g", None), members("g", 4)).schedule()
    assert len(used(found, "g")) == 1


def test_the_preference_holds_within_a_required_domain() -> None:
    found = network().add(group("g", 4, BLOCK, topology=SPINE), members("g", 4)).schedule()
    assert len(used(found, "g")) == 1
    found = network().add(group("g", 6, BLOCK, topology=SPINE), members("g", 6)).schedule()
    assert used(found, "g") in ({"a", "b"}, {"c", "d"})


def test_a_label_that_no_node_has_is_skipped() -> None:
    found = network().add(group("g", 4, f"x.org/none, {BLOCK}"), members("g", 4)).schedule()
    assert len(used(found, "g")) == 1
    network().add(group("g", 4, "x.org/none"), members("g", 4)).schedule().assert_all_bound()


def test_a_gang_that_preempts_is_placed_where_it_was_nominated() -> None:
    found = network()
    for block in "abcd":
        found.add(*(pod(f"low-{block}{number}", bound_to=f"{block}{number}", cpu=2, priority=1) for number in (1, 2)))
    high = [replace(one, spec=replace(one.spec, priority=9)) for one in members("g", 2, cpu=2)]
    found.add(group("g", 2, priority=9), high).schedule().finish_deletions().schedule()
    found.advance(30).schedule()
    assert "-" not in used(found, "g")


def test_the_matcher_places_the_gang_in_the_domain_too() -> None:
    found = network(FakeCluster().use("fluence")).add(group("g", 4), members("g", 4)).schedule()
    assert len(used(found, "g")) == 1
    network(FakeCluster().use("fluence")).add(group("g", 10), members("g", 10)).schedule().assert_all_bound()


def test_a_required_level_of_the_matcher_and_a_preferred_one_hold_together() -> None:
    levels = [{"type": "spine", "label": SPINE}, {"type": "block", "label": BLOCK}]
    within = "fluence.flux-framework.org/within"

    def placed(count: int) -> FakeCluster:
        found = network(FakeCluster().use("fluence", {"topology": levels}))
        made = group("g", count, BLOCK)
        annotations = {**made.metadata.annotations, within: "spine"}
        found.add(replace(made, metadata=replace(made.metadata, annotations=annotations)), members("g", count))
        return found.schedule()

    assert len(used(placed(4), "g")) == 1
    assert used(placed(6), "g") in ({"a", "b"}, {"c", "d"})
    placed(9).assert_pending("g-0", "no spine has room for 9 pods")


@pytest.mark.parametrize("count", [3, 5, 9])
def test_every_evaluation_decides_the_same(count: int) -> None:
    def scenario(found: FakeCluster) -> None:
        network(found).add(group("g", count), members("g", count), group("h", 3), members("h", 3)).schedule()

    check_evaluations(scenario)


def test_the_annotation_lists_up_to_eight_labels() -> None:
    assert preferred_levels(None) == preferred_levels(pod_group("g")) == ()
    assert preferred_levels(group("g", 1, " a , ,b,")) == ("a", "b")
    assert preferred_levels(group("g", 1, ",".join("abcdefgh"))) == tuple("abcdefgh")


@pytest.mark.parametrize(
    ("levels", "problem"),
    [
        (",".join("abcdefghi"), "names 9 labels; write at most 8; or remove the annotation"),
        (f"{BLOCK},the spine", "has the invalid entry 'the spine'; write comma-separated label keys"),
        (f"{BLOCK},example.com/", "has the invalid entry 'example.com/'; write comma-separated label keys"),
    ],
)
@pytest.mark.parametrize("minimum", [None, 2])
def test_an_invalid_annotation_rejects_the_group_until_it_is_corrected(
    minimum: int | None, levels: str, problem: str
) -> None:
    found = network().add(group("g", minimum, levels), members("g", 2)).schedule()
    for number in range(2):
        found.assert_pending(f"g-{number}", f"PodGroup default/g: metadata.annotations[{PREFER_WITHIN}] {problem}")
    found.add(group("g", minimum)).schedule().assert_all_bound()
    assert len(used(found, "g")) == 1
