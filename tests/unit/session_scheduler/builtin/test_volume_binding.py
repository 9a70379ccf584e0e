"""Claims that wait for a node: the volume that they get, assumed volumes, and the writes before the bind."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from session_scheduler.builtin import BUILTIN
from session_scheduler.builtin.volume_binding import VolumeBinding, VolumeBindingArguments
from session_scheduler.cluster.errors import Conflict, Forbidden
from session_scheduler.hookspecs import Scope
from session_scheduler.model.storage import (
    BOUND_BY_CONTROLLER,
    SELECTED_NODE,
    PersistentVolume,
    PersistentVolumeClaim,
)
from session_scheduler.testing import FakeCluster, gang, node, pod
from session_scheduler.testing.driving import complete_in_flight

from ....tools.volumes import claim, csi_node, storage_class, using, volume

LOCAL = storage_class("local")
MADE = storage_class("made", "csi.example.com")


def a_cluster(*objects, nodes=3):
    cluster = FakeCluster()
    cluster.nodes(nodes)
    cluster.add(LOCAL, MADE, *objects)
    return cluster


def claim_now(cluster, name):
    return cluster.find(PersistentVolumeClaim, name)


def volume_now(cluster, name):
    return cluster.find(PersistentVolume, name, "")


# ---------------------------------------------------------------------- which volume


def test_a_claim_gets_a_volume_on_the_pods_node_that_is_reserved_and_bound() -> None:
    cluster = a_cluster(volume("v", on="n2"), claim("c"), pod("p", volumes=using("c")))
    cluster.run()
    cluster.assert_bound("p", "n2")
    assert claim_now(cluster, "c").spec.volume_name == "v"
    ref = volume_now(cluster, "v").spec.claim_ref
    assert (ref.namespace, ref.name, ref.uid) == ("default", "c", claim_now(cluster, "c").metadata.uid)
    assert volume_now(cluster, "v").metadata.annotations == {BOUND_BY_CONTROLLER: "yes"}


def test_a_claim_gets_the_smallest_volume_that_fits() -> None:
    volumes = [volume("large", "9Gi", on="n1"), volume("fits", "3Gi", on="n1"), volume("small", "1Gi", on="n1")]
    cluster = a_cluster(*volumes, claim("c", "2Gi"), pod("p", volumes=using("c")))
    cluster.run()
    assert claim_now(cluster, "c").spec.volume_name == "fits"


def test_a_volume_that_a_user_reserved_for_the_claim_wins_over_a_smaller_one() -> None:
    ref = {"namespace": "default", "name": "c"}
    cluster = a_cluster(volume("small", on="n1"), volume("reserved", "9Gi", on="n2", claimRef=ref), claim("c"),
                        pod("p", volumes=using("c")))  # fmt: skip
    cluster.run()
    cluster.assert_bound("p", "n2")
    assert volume_now(cluster, "reserved").metadata.annotations == {}


@pytest.mark.parametrize("unfit", [
    {"storage": "500Mi"}, {"of": "other"}, {"accessModes": ["ReadOnlyMany"]}, {"volumeMode": "Block"},
    {"labels": {"tier": "tin"}}, {"phase": "Released"}, {"claimRef": {"namespace": "default", "name": "another"}},
    {"volumeAttributesClassName": "fast"}, {"capacity": {"storage": "much"}}, {"on": "n9"},
], ids=str)  # fmt: skip
def test_a_volume_that_does_not_match_is_not_used(unfit) -> None:
    only = volume("v", **{"storage": "1Gi", "labels": {"tier": "gold"}, "on": "n1", **unfit})
    wants = claim("c", selector={"matchLabels": {"tier": "gold"}})
    cluster = a_cluster(only, wants, pod("p", volumes=using("c")))
    cluster.run()
    cluster.assert_pending("p", "3 node(s) didn't find available persistent volumes to bind")
    assert volume_now(cluster, "v").spec == only.spec


def test_two_claims_of_a_pod_never_get_the_same_volume() -> None:
    cluster = a_cluster(volume("a", on="n1"), volume("b", on="n2"), volume("c", "2Gi", on="n2"), claim("x"), claim("y"),
                        pod("p", volumes=using("x", "y")))  # fmt: skip
    cluster.run()
    cluster.assert_bound("p", "n2")
    assert {claim_now(cluster, name).spec.volume_name for name in "xy"} == {"b", "c"}


def test_a_claim_that_a_pod_names_twice_counts_once() -> None:
    cluster = a_cluster(volume("v", on="n1"), claim("c"), pod("p", volumes=using("c", "c")))
    cluster.run()
    cluster.assert_bound("p", "n1")


# ---------------------------------------------------------------------- several pods


def test_members_of_a_gang_never_get_the_same_volume() -> None:
    volumes = [volume(f"v{number}", on=f"n{number}") for number in (1, 2, 3)]
    claims = [claim(f"c{number}") for number in range(3)]
    group, *pods = gang("g", 3)
    members = [msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, volumes=using(f"c{number}")))
               for number, one in enumerate(pods)]  # fmt: skip
    cluster = a_cluster(*volumes, *claims, group, *members)
    cluster.run()
    assert set(cluster.placements().values()) == {"n1", "n2", "n3"}
    assert {claim_now(cluster, f"c{number}").spec.volume_name for number in range(3)} == {"v1", "v2", "v3"}


def test_a_gang_that_lacks_one_volume_assumes_none() -> None:
    group, *pods = gang("g", 2)
    members = [msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, volumes=using(f"c{number}")))
               for number, one in enumerate(pods)]  # fmt: skip
    cluster = a_cluster(volume("v", on="n1"), claim("c0"), claim("c1"), claim("c2"), group, *members,
                        pod("single", volumes=using("c2"), priority=-1))  # fmt: skip
    cluster.run()
    assert set(cluster.placements().values()) == {None, "n1"}
    cluster.assert_bound("single", "n1")


def test_pods_that_share_a_claim_follow_each_other_to_its_node() -> None:
    pods = [pod(f"p{number}", volumes=using("c")) for number in range(3)]
    cluster = a_cluster(volume("v", on="n3"), claim("c"), *pods)
    cluster.run()
    assert set(cluster.placements().values()) == {"n3"}


def test_pods_that_share_a_claim_to_provision_go_to_the_node_of_the_first_one() -> None:
    pods = [pod(f"p{number}", cpu="1", volumes=using("c")) for number in range(3)]
    cluster = a_cluster(claim("c", of="made"), *pods)
    cluster.run()
    (chosen,) = set(cluster.placements().values())
    assert claim_now(cluster, "c").metadata.annotations[SELECTED_NODE] == chosen


# ---------------------------------------------------------------------- provisioned volumes


def test_a_claim_to_provision_gets_the_selected_node() -> None:
    cluster = a_cluster(
        claim("c", of="made"), pod("p", volumes=using("c"), node_selector={"kubernetes.io/hostname": "n2"})
    )
    cluster.run()
    cluster.assert_bound("p", "n2")
    assert claim_now(cluster, "c").metadata.annotations[SELECTED_NODE] == "n2"
    assert claim_now(cluster, "c").bound


def test_a_claim_with_a_selected_node_fits_on_that_node_only() -> None:
    cluster = a_cluster(claim("c", of="made", annotations={SELECTED_NODE: "n2"}), pod("p", volumes=using("c")))
    cluster.run()
    cluster.assert_bound("p", "n2")


# ---------------------------------------------------------------------- unusable claims


@pytest.mark.parametrize(("objects", "reason"), [
    ([], 'persistentvolumeclaim "c" not found'),
    ([storage_class("at-once", waits=False), claim("c", of="at-once")],
     "pod has unbound immediate PersistentVolumeClaims"),
    ([storage_class("fast-ssd"), storage_class("slow"), claim("c", of="fast-sdd")],
     'pod has unbound immediate PersistentVolumeClaims: claim c names StorageClass "fast-sdd", which does not exist; '
     "did you mean fast-ssd?"),
    ([storage_class("slow"), claim("c", of="fast-sdd")], "pod has unbound immediate PersistentVolumeClaims. "),
    ([claim("c", of="")], "pod has unbound immediate PersistentVolumeClaims"),
    ([claim("c", volume="v", phase="Lost")], 'persistentvolumeclaim "c" bound to non-existent persistentvolume "v"'),
    ([claim("c", volume="v")], 'persistentvolume "v" not found'),
    ([claim("c", selector={"matchExpressions": [{"key": "a", "operator": "Odd"}]})],
     "error creating internal label selector for claim: default/c"),
    ([claim("c", "much")], "'much' is not a valid quantity"),
])  # fmt: skip
def test_an_unusable_claim_rejects_its_own_pod_only(objects, reason) -> None:
    cluster = a_cluster(*objects, pod("p", volumes=using("c")), pod("other"))
    cluster.run()
    cluster.assert_pending("p", reason)
    assert cluster.node_of("other") is not None


def test_a_claim_that_is_being_deleted_is_not_used() -> None:
    going = claim("c")
    metadata = msgspec.structs.replace(going.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    cluster = a_cluster(msgspec.structs.replace(going, metadata=metadata), pod("p", volumes=using("c")))
    cluster.run()
    cluster.assert_pending("p", 'persistentvolumeclaim "c" is being deleted')


def test_a_pod_waits_for_its_own_ephemeral_claim() -> None:
    own = ({"name": "data", "ephemeral": {"volumeClaimTemplate": {}}},)
    cluster = a_cluster(volume("v", on="n1"), pod("p", volumes=own))
    cluster.run()
    cluster.assert_pending("p", 'waiting for ephemeral volume controller to create the persistentvolumeclaim "p-data"')
    cluster.add(claim("p-data", owner="another"))
    cluster.run()
    cluster.assert_pending("p", "PVC default/p-data was not created for pod default/p (pod is not owner)")
    uid = next(iter(cluster.scheduler.cache.tasks))
    cluster.add(claim("p-data", owner=uid))
    cluster.run()
    cluster.assert_bound("p", "n1")


# ---------------------------------------------------------------------- before the bind


def waiting_cluster(timeout, *objects):
    """A cluster without a volume controller."""
    cluster = a_cluster(*objects)
    cluster.memory._binds_volumes = False
    calls = cluster.start().profiles["fluence"]
    plugin = calls.instances["VolumeBinding"]
    plugin._timeout = timeout
    return cluster


def test_a_pod_whose_volume_is_not_bound_in_time_waits_and_keeps_the_volume_reserved() -> None:
    cluster = waiting_cluster(0.05, volume("v", on="n1"), claim("c"), claim("d"), pod("p", volumes=using("c")))
    cluster.run()
    cluster.assert_pending("p", "binding volumes: not bound within 0.05 s: default/c")
    assert volume_now(cluster, "v").spec.claim_ref.name == "c"
    cluster.add(pod("q", volumes=using("d")))
    cluster.run()
    cluster.assert_pending("q", "didn't find available persistent volumes to bind")
    cluster.memory._binds_volumes = True
    cluster.advance(60)
    cluster.run()
    cluster.assert_pending("q")
    cluster.assert_bound("p", "n1")


def test_the_pod_is_bound_once_the_watch_shows_the_claim_bound() -> None:
    cluster = waiting_cluster(20, volume("v", on="n1"), claim("c"), pod("p", volumes=using("c")))

    async def cycle() -> None:
        running = asyncio.create_task(cluster.scheduler.cycle())
        while volume_now(cluster, "v").spec.claim_ref is None:  # noqa: ASYNC110 (the cluster in memory has no event for this)
            await asyncio.sleep(0)
        assert not running.done()
        uid = cluster.find(PersistentVolumeClaim, "c").metadata.uid
        bound = claim("c", volume="v")
        bound = msgspec.structs.replace(bound, metadata=msgspec.structs.replace(bound.metadata, uid=uid))
        await cluster.scheduler.event_handlers.apply("MODIFIED", cluster.memory.put(bound))
        await running

    asyncio.run(cycle())
    cluster.assert_bound("p", "n1")


def test_a_volume_reserved_by_another_claim_fails_the_attempt_and_the_retry_finds_another() -> None:
    cluster = waiting_cluster(20, volume("v", on="n1"), volume("w", "2Gi", on="n2"), claim("c"),
                              pod("p", volumes=using("c")))  # fmt: skip
    taken = volume("v", on="n1", claimRef={"namespace": "default", "name": "other", "uid": "u"})
    cluster.memory._binds_volumes = True
    cluster.memory.put(taken)  # the scheduler's watch has not shown it yet

    async def once() -> None:
        await cluster.scheduler.cycle()
        await complete_in_flight(cluster.scheduler)

    asyncio.run(once())
    cluster.assert_pending("p", "volume v is already reserved for claim default/other")
    cluster.advance(60)
    cluster.run()
    cluster.assert_bound("p", "n2")


@pytest.mark.parametrize("error", [Forbidden("403: cannot patch"), Conflict("it moved")])
def test_a_failed_write_makes_the_group_wait_and_frees_the_volume(error, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = a_cluster(volume("v", on="n1"), claim("c"), claim("d"), pod("p", volumes=using("c")))
    cluster.start()

    async def refused(*_args):
        raise error

    monkeypatch.setattr(cluster.memory, "claim_volume", refused)
    cluster.run()
    cluster.assert_pending("p", str(error))
    monkeypatch.undo()
    cluster.delete(type(pod("p")), "p")
    cluster.add(pod("q", volumes=using("d")))
    cluster.run()
    cluster.assert_bound("q", "n1")


def test_the_bind_timeout_is_configurable() -> None:
    plugin = VolumeBinding(VolumeBindingArguments(bind_timeout_seconds=120))
    assert plugin.prebind_seconds == 150
    assert VolumeBinding().prebind_seconds == 630
    assert list(BUILTIN)[7:11] == ["VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone"]


def test_assumed_volumes_are_undone_with_the_statement() -> None:
    cluster = a_cluster(volume("v", on="n1"), claim("c"), pod("p", volumes=using("c")))
    scheduler = cluster.start()
    (calls,) = scheduler.profiles.values()
    assumed = calls.instances["VolumeBinding"]._assumed
    (task,) = scheduler.cache.tasks.values()
    session = scheduler.sessions.open(calls, (task.group,))
    row = session.board(task).pick(task)
    with session.ledger.statement(task.group) as statement:
        statement.allocate(task, row)
        assert assumed.claim_of("v") == "default/c"
        undone = statement.rollback()
        assert assumed.claim_of("v") is None
        statement.redo(undone)
        assert assumed.claim_of("v") == "default/c"
    assert assumed.claim_of("v") is None
    assert assumed.of(task.uid) is None


@pytest.mark.parametrize(("bound", "scope"), [("v", Scope.STATIC), ("", Scope.ANY)])
def test_only_unbound_claims_are_evaluated_again_after_each_placement(bound: str, scope: Scope) -> None:
    cluster = a_cluster(volume("v", on="n1"), claim("c", volume=bound), pod("p", volumes=using("c")))
    scheduler = cluster.start()
    (calls,) = scheduler.profiles.values()
    (task,) = scheduler.cache.tasks.values()
    plan = scheduler.sessions.open(calls, (task.group,)).evaluation(task.cls)
    assert [one.scope for one in plan.filters if one.plugin == "VolumeBinding"] == [scope]


# ---------------------------------------------------------------------- limits and restrictions in a session


def test_members_of_a_gang_count_towards_the_same_volume_limits() -> None:
    group, *pods = gang("g", 3)
    members = [msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, volumes=using(f"c{number}")))
               for number, one in enumerate(pods)]  # fmt: skip
    claims = [claim(f"c{number}", of="made") for number in range(3)]
    limits = [csi_node(f"n{number}", **{"csi.example.com": 1}) for number in (1, 2, 3)]
    cluster = a_cluster(*claims, *limits, group, *members)
    cluster.run()
    assert set(cluster.placements().values()) == {"n1", "n2", "n3"}
    cluster.add(claim("more", of="made"), pod("late", volumes=using("more")))
    cluster.run()
    cluster.assert_pending("late", "3 node(s) exceed max volume count")


def test_only_one_pod_of_a_session_gets_a_read_write_once_pod_claim() -> None:
    alone = claim("c", accessModes=["ReadWriteOncePod"])
    cluster = a_cluster(volume("v", on="n1", accessModes=["ReadWriteOncePod"]), alone,
                        pod("a", volumes=using("c")), pod("b", volumes=using("c")))  # fmt: skip
    cluster.run()
    assert sorted(map(str, cluster.placements().values())) == ["None", "n1"]
    waiting = next(name for name, on in cluster.placements().items() if on is None).partition("/")[2]
    cluster.assert_pending(waiting, "ReadWriteOncePod access mode already in-use by another pod")


def test_pods_with_the_same_disk_go_to_different_nodes_unless_all_mount_it_read_only() -> None:
    def disk(**more):
        return ({"name": "d", "gcePersistentDisk": {"pdName": "disk", **more}},)

    cluster = a_cluster(pod("a", volumes=disk()), pod("b", volumes=disk()), nodes=2)
    cluster.run()
    assert set(cluster.placements().values()) == {"n1", "n2"}
    cluster.add(pod("c", volumes=disk()))
    cluster.run()
    cluster.assert_pending("c", "2 node(s) had no available disk")
    readers = a_cluster(pod("a", volumes=disk(readOnly=True)), pod("b", volumes=disk(readOnly=True)), nodes=1)
    readers.run()
    assert set(readers.placements().values()) == {"n1"}


def test_a_pod_goes_to_the_zone_of_its_bound_volume() -> None:
    zone = "topology.kubernetes.io/zone"
    cluster = FakeCluster()
    cluster.add(node("a", labels={zone: "za"}), node("b", labels={zone: "zb"}),
                volume("v", labels={zone: "zb__zc"}, phase="Bound"), claim("c", volume="v"), LOCAL,
                pod("p", volumes=using("c")))  # fmt: skip
    cluster.run()
    cluster.assert_bound("p", "b")
