"""Whole and shared GPUs on one node: reservation pods hold the shared ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from session_scheduler.builtin import gpu_closed_nodes, gpu_reservation_reconciler
from session_scheduler.builtin.gpu_reservation_pods import ReservationArguments, ReservationError
from session_scheduler.builtin.gpu_reservations import LAST_SHARER
from session_scheduler.cluster.errors import Forbidden, Unavailable
from session_scheduler.engine.explain import explain_pending
from session_scheduler.framework.bindings import Binding, Runtime
from session_scheduler.hookspecs import hookimpl
from session_scheduler.model.gpu_reservations import RESERVATION, RESERVED_DEVICE, SAFE_TO_EVICT
from session_scheduler.model.gpu_shares import GPU, GPU_COUNT, GPU_DEVICE, GPU_FRACTION
from session_scheduler.model.objects import EnvVar, EnvVarSource, FieldSelector, Node, Pod
from session_scheduler.testing.builders import gang, pod
from session_scheduler.testing.driving import finished
from session_scheduler.testing.fake_cluster import FakeCluster

from ....tools.fake_kubelet_gpus import NVIDIA, SYSTEM, Kubelets, reserved


def part(name: str, fraction: str, count: int = 1, **options: Any) -> Pod:
    annotations = {GPU_FRACTION: fraction, **({GPU_COUNT: str(count)} if count > 1 else {})}
    return pod(name, annotations=annotations, **options)


def whole(name: str, count: int = 1, **options: Any) -> Pod:
    return pod(name, requests={NVIDIA: count}, **options)


def world(gpus: int = 2, nodes: int = 1, **options: Any) -> tuple[FakeCluster, Kubelets]:
    cluster = reserved(**options)
    cluster.nodes(nodes, cpu="64", offers={NVIDIA: gpus})
    return cluster, Kubelets(cluster, max)


def shared(gpus: int, **options: Any) -> tuple[FakeCluster, Kubelets, Pod]:
    """A node where the pod `a` shares a GPU, and its reservation pod."""
    cluster, kubelets = world(gpus, **options)
    cluster.add(part("a", "0.5"))
    cluster.run()
    (held,) = kubelets.reservations()
    return cluster, kubelets, held


def unneeded(gpus: int, **options: Any) -> tuple[FakeCluster, Kubelets, Pod]:
    """A node with a reservation pod that no pod needs any more."""
    cluster, kubelets, held = shared(gpus, **options)
    cluster.delete_pod("a")
    cluster.run()
    return cluster, kubelets, held


def annotation(cluster: FakeCluster, name: str, key: str = GPU_DEVICE) -> str | None:
    return cluster.find(Pod, name).metadata.annotations.get(key)


def fits_if(cluster: FakeCluster, name: str, node: str = "n1") -> list[str]:
    (found,) = (one for one in explain_pending(cluster.scheduler)["pods"] if one["name"] == name)
    return [change for one in found["nodes"][node]["fitsIf"] for change in one["changes"]]


# ------------------------------------------------------------------ both kinds on a node


def test_a_node_has_whole_and_shared_gpus_at_once() -> None:
    cluster, kubelets = world(2)
    cluster.add(part("a", "0.5"), part("b", "0.5"))
    cluster.run()
    cluster.add(whole("w"))
    cluster.run()
    cluster.assert_all_bound()
    assert annotation(cluster, "a") == annotation(cluster, "b") == "GPU-n1-1"
    assert annotation(cluster, "a", GPU) == "0"
    assert kubelets.given[cluster.find(Pod, "w").metadata.uid] == ("GPU-n1-0",)
    (held,) = kubelets.reservations()
    assert held.metadata.namespace == SYSTEM
    assert held.spec.node_name == "n1"
    kubelets.check()


def test_no_more_gpus_are_used_than_the_node_has() -> None:
    cluster, kubelets = world(2)
    cluster.add(whole("w"))
    cluster.run()
    cluster.add(part("a", "0.6"), part("b", "0.6"), whole("x"))
    cluster.run()
    placed = [name for name in ("a", "b", "x") if cluster.node_of(name)]
    assert len(placed) == 1
    kubelets.check()
    cluster.assert_pending("b", "Insufficient shared GPU")


def test_the_reasons_and_changes_name_the_gpus_that_are_missing() -> None:
    cluster, _ = world(4)
    cluster.add(part("a", "0.6"), whole("w", 2))
    cluster.run()
    cluster.add(whole("x", 2), part("c", "0.5", 2))
    cluster.run()
    cluster.assert_refused("x", "n1", by="GpuSharing", reason="node(s) had GPUs shared by other pods")
    assert fits_if(cluster, "x") == ["2 GPUs of n1 were unused (1 now)"]
    cluster.assert_refused("c", "n1", by="GpuSharing", reason="Insufficient shared GPU")
    assert fits_if(cluster, "c") == [
        "0.5 of each of 2 GPUs were free on n1 (0.4 of GPU 0, 1 of GPU 1, 0 of GPU 2, 0 of GPU 3 now)"
    ]
    cluster.add(part("d", "0.6"), whole("y", 1))
    cluster.run()
    assert fits_if(cluster, "y") == ["1 GPU of n1 was unused (0 now)"]


def test_a_pod_with_several_shares_gets_the_device_of_each() -> None:
    cluster, kubelets = world(3)
    cluster.add(part("a", "0.6", 2))
    cluster.run()
    assert annotation(cluster, "a", GPU) == "0,1"
    assert annotation(cluster, "a") == "GPU-n1-2,GPU-n1-1"
    assert len(kubelets.reservations()) == 2
    kubelets.check()


def test_the_gpu_is_free_again_after_its_last_sharer() -> None:
    cluster, kubelets = world(1)
    cluster.add(part("a", "0.5"), part("b", "0.5"))
    cluster.run()
    cluster.delete_pod("a")
    cluster.run()
    kubelets.reconcile()
    assert len(kubelets.reservations()) == 1
    cluster.delete_pod("b")
    cluster.run()
    kubelets.reconcile()
    assert not kubelets.reservations()
    cluster.add(whole("w"))
    cluster.run()
    cluster.assert_bound("w")


def test_a_pod_with_whole_gpus_waits_until_unneeded_reservation_pods_are_gone() -> None:
    cluster, kubelets = world(1)
    cluster.add(part("a", "0.5"))
    cluster.run()
    cluster.delete_pod("a")
    cluster.add(whole("w"))
    cluster.run()
    cluster.assert_bound("w")
    assert not kubelets.reservations()
    kubelets.check()


def test_a_reservation_pod_that_does_not_terminate_is_named_in_the_reason() -> None:
    cluster, kubelets = world(1)
    cluster.add(part("a", "0.5"))
    cluster.run()
    cluster.memory.delete = kubelets._delete  # type: ignore[method-assign]  # with its grace period
    cluster.delete_pod("a")
    cluster.add(whole("w"))
    cluster.run()
    (held,) = kubelets.reservations()
    cluster.assert_pending("w", f"GPUs of node n1 are not free yet: reservation pods that are no longer needed have "
                                f"not terminated: {held.key}")  # fmt: skip


# ------------------------------------------------------------------ what containers see

SEES = EnvVarSource(field_ref=FieldSelector(field_path=f"metadata.annotations['{GPU_DEVICE}']"))
INDEX = EnvVarSource(field_ref=FieldSelector(field_path=f"metadata.annotations['{GPU}']"))
LIVE = Runtime(lambda *_: None, lambda: False)


def seeing(name: str, *sources: EnvVarSource | None, init: bool = False) -> Pod:
    """A sharer with this variable in its container, or in an init container before it."""
    shares = part(name, "0.5")
    (main,) = shares.spec.containers
    sees = replace(main, env=(EnvVar(name="NVIDIA_VISIBLE_DEVICES", value_from=SEES),))
    other = replace(main, name="x", env=tuple(EnvVar(name="NVIDIA_VISIBLE_DEVICES", value_from=one) for one in sources))
    spec = replace(shares.spec, init_containers=(other,), containers=(sees,)) if init else replace(
        shares.spec, containers=(other,))  # fmt: skip
    return replace(shares, spec=spec)


@pytest.mark.parametrize("init", [False, True])
@pytest.mark.parametrize("sources", [(INDEX,), (None,), (EnvVarSource(),), (SEES, None)])
def test_a_container_that_sees_other_gpus_is_rejected(sources: tuple[EnvVarSource | None, ...], init: bool) -> None:
    cluster, kubelets = world(2)
    cluster.add(seeing("good", SEES))
    cluster.run()
    cluster.add(seeing("a", *sources, init=init))
    cluster.run()
    cluster.assert_bound("good")
    cluster.assert_pending(
        "a",
        f"container 'x' does not set NVIDIA_VISIBLE_DEVICES from the annotation {GPU_DEVICE} (wholeGpus: "
        "reserved); remove the variable from the manifest, and create the pod again",
    )
    assert len(kubelets.reservations()) == 1


def test_a_container_without_the_webhooks_variable_is_rejected_except_in_a_simulation() -> None:
    cluster, _ = world(2)
    cluster.add(part("before", "0.5"))
    cluster.run()
    cluster.assert_bound("before")
    cluster.plugin("GpuSharing").serve(LIVE)
    cluster.add(seeing("a", init=True), seeing("good", SEES))
    cluster.run()
    cluster.assert_bound("good")
    cluster.assert_pending(
        "a",
        "container 'x' lacks the environment variable NVIDIA_VISIBLE_DEVICES (wholeGpus: reserved); create the pod "
        "again; the webhook fluence-webhook did not process it, or excludes its namespace",
    )


def test_without_whole_gpus_beside_shared_ones_containers_may_see_what_they_want() -> None:
    cluster = FakeCluster()
    cluster.nodes(1, cpu="64", offers={NVIDIA: 2})
    cluster.run()
    cluster.plugin("GpuSharing").serve(LIVE)
    cluster.add(seeing("a", None), seeing("b"))
    cluster.run()
    cluster.assert_all_bound()


# ------------------------------------------------------------------ preemption, gangs, nominated pods


def test_whole_gpus_and_shares_preempt_each_other() -> None:
    cluster, kubelets = world(1)
    cluster.add(part("a", "0.5", priority=1))
    cluster.run()
    cluster.add(whole("w", priority=5))
    cluster.run()
    cluster.finish_deletions()
    cluster.run()
    cluster.assert_bound("w")
    kubelets.check()
    cluster.add(part("c", "0.5", priority=9))
    cluster.run()
    cluster.finish_deletions()
    cluster.run()
    assert annotation(cluster, "c") == "GPU-n1-0"
    kubelets.check()


def test_whole_gpus_leave_the_gpu_of_a_nominated_sharer() -> None:
    cluster, kubelets = world(2)
    cluster.add(part("victim", "0.9", priority=1), whole("high", priority=9))
    cluster.run()
    cluster.add(part("mid", "0.9", priority=5))
    cluster.run()
    cluster.assert_nominated("mid", "n1")
    cluster.delete(Pod, "victim")
    cluster.add(whole("low", priority=1))
    cluster.run(cycles=2)
    cluster.assert_bound("mid")
    cluster.assert_pending("low", "node(s) had GPUs shared by other pods")
    kubelets.check()


def test_shares_leave_the_gpus_of_a_nominated_pod_with_whole_ones() -> None:
    cluster, kubelets = world(2)
    cluster.add(whole("victim", priority=1), part("high", "0.9", priority=9))
    cluster.run()
    cluster.add(whole("mid", priority=5))
    cluster.run()
    cluster.assert_nominated("mid", "n1")
    cluster.delete(Pod, "victim")
    cluster.add(part("low", "0.5", priority=1))
    cluster.run(cycles=2)
    cluster.assert_bound("mid")
    cluster.assert_pending("low", "Insufficient shared GPU")
    kubelets.check()


def test_a_gang_of_sharers_shares_reservation_pods() -> None:
    cluster, kubelets = world(2)
    cluster.add(whole("w"), gang("g", 2, annotations={GPU_FRACTION: "0.5"}))
    cluster.run()
    cluster.assert_all_bound()
    assert len(kubelets.reservations()) == 1
    kubelets.check()


def test_reservation_pods_are_not_preempted() -> None:
    cluster, kubelets = world(1)
    cluster.add(part("a", "0.5", priority=10))
    cluster.run()
    cluster.add(whole("w", priority=9))
    cluster.run()
    cluster.assert_pending("w")
    assert len(kubelets.reservations()) == 1
    assert not any(one.metadata.deletion_timestamp for one in cluster.memory.objects(Pod))


# ------------------------------------------------------------------ failures


def test_without_a_report_the_pod_stays_pending_with_the_remedy() -> None:
    cluster, kubelets = world(1)
    kubelets.reports = False
    cluster.add(part("a", "0.5"))
    cluster.run()
    (held,) = kubelets.reservations()
    late = f"no device plugin has reported the device of reservation pod {held.key}"
    remedy = "run `fluence device-plugin --report-gpus` on the node"
    cluster.assert_pending("a", f"GPU 0 of node n1 is not reserved after 1 s: {late}; {remedy}")
    finished(cluster.memory.patch_metadata(held, annotations={RESERVED_DEVICE: "GPU-n1-0"}))
    cluster.advance(60)
    cluster.run()
    assert annotation(cluster, "a") == "GPU-n1-0"
    assert [one.metadata.uid for one in kubelets.reservations()] == [held.metadata.uid]


def test_a_report_is_seen_although_it_is_no_change_of_the_node() -> None:
    cluster, _, held = shared(2)
    changes: dict[str, str | None] = {RESERVED_DEVICE: None}
    unreported = finished(cluster.memory.patch_metadata(held, annotations=changes))
    cluster.restart()
    cluster.add(part("b", "0.5"))
    cluster.run()
    cluster.assert_pending("b", "node(s) had shared GPUs without reservation pods")
    finished(cluster.memory.patch_metadata(unreported, annotations={RESERVED_DEVICE: "GPU-n1-1"}))
    cluster.advance(301)
    cluster.run()
    cluster.assert_bound("b")


def test_if_it_cannot_create_the_pod_the_reason_has_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, _ = world(1)

    async def refused(_: object) -> None:
        raise Forbidden("exceeded quota: pods")

    monkeypatch.setattr(cluster.memory, "create", refused)
    cluster.add(part("a", "0.5"))
    cluster.run()
    cluster.assert_pending("a", "cannot create a reservation pod for GPU 0 of node n1: exceeded quota: pods")


def test_a_reservation_pod_that_the_kubelet_rejects_is_deleted_and_retried() -> None:
    cluster, kubelets = world(1)
    kubelets.reports = False
    give = kubelets.give

    def reject(pod: Pod, number: int) -> None:
        cluster.memory.put(replace(pod, status=replace(pod.status, phase="Failed")))

    kubelets.give = reject  # type: ignore[method-assign]
    cluster.add(part("a", "0.5"))
    cluster.run()
    cluster.assert_pending("a", "the kubelet of node n1 rejected or terminated reservation pod")
    assert not kubelets.reservations()
    kubelets.give, kubelets.reports = give, True  # type: ignore[method-assign]
    cluster.advance(60)
    cluster.run()
    cluster.assert_bound("a")


def test_a_restart_adopts_the_reservation_pods() -> None:
    cluster, kubelets = world(2)
    cluster.add(part("a", "0.5"))
    cluster.run()
    before = kubelets.reservations()
    cluster.restart()
    kubelets.reconcile()
    assert kubelets.reservations() == before
    cluster.add(part("b", "0.5"), whole("w"))
    cluster.run()
    cluster.assert_all_bound()
    assert annotation(cluster, "b") == annotation(cluster, "a")
    kubelets.check()


@pytest.mark.parametrize("reported", [False, True])
def test_a_restart_after_a_crash_before_the_bind_uses_what_was_created(reported: bool) -> None:
    cluster, kubelets = world(1)
    kubelets.reports = reported
    cluster.add(part("a", "0.5"))
    cluster.fail_binds("a")
    cluster.run()
    cluster.mend_binds()
    (held,) = kubelets.reservations()
    cluster.restart()
    if not reported:
        finished(cluster.memory.patch_metadata(held, annotations={RESERVED_DEVICE: "GPU-n1-0"}))
    cluster.run()
    cluster.assert_bound("a")
    assert [one.metadata.uid for one in kubelets.reservations()] == [held.metadata.uid]


def test_of_two_reservation_pods_for_one_gpu_only_one_stays() -> None:
    cluster, kubelets, held = shared(3)
    again = replace(held, metadata=replace(held.metadata, name="fluence-gpu-again", uid="", resource_version="",
                                           creation_timestamp=None, annotations={}))  # fmt: skip
    finished(cluster.memory.create(again))
    cluster.run()
    kubelets.reconcile()
    assert [one.metadata.uid for one in kubelets.reservations()] == [held.metadata.uid]


def test_a_reservation_pod_that_begins_to_be_used_is_not_deleted_by_an_earlier_decision() -> None:
    cluster, kubelets, held = unneeded(1)
    plugin = cluster.plugin("GpuSharing")
    finished(cluster.memory.patch_metadata(held, annotations={"last": "another replica's"}))
    assert not finished(plugin._reservations._pods.delete(cluster.memory, held))
    assert kubelets.reservations()


# ------------------------------------------------------------------ reservation pods that disappear


def test_without_its_reservation_pod_a_shared_gpu_closes_the_node_until_a_new_one_has_the_same_device() -> None:
    cluster, kubelets, held = shared(3)
    cluster.delete_pod(held.metadata.name, SYSTEM)
    cluster.add(whole("w"), part("b", "0.1"))
    cluster.run()
    for name in ("w", "b"):
        cluster.assert_refused(name, "n1", by="GpuSharing", reason="node(s) had shared GPUs without reservation pods")
        assert fits_if(cluster, name) == ["reservation pods held all shared GPUs of n1"]
    kubelets.reconcile()
    cluster.advance(301)
    cluster.run()
    cluster.assert_all_bound()
    kubelets.check()


def test_if_a_new_reservation_pod_has_another_device_the_node_stays_closed_until_the_sharers_are_gone() -> None:
    cluster, kubelets, held = shared(3)
    cluster.delete_pod(held.metadata.name, SYSTEM)
    cluster.add(whole("w"))
    cluster.run()
    kubelets.order = min
    kubelets.reconcile()
    cluster.advance(301)
    cluster.run()
    cluster.assert_pending("w", "node(s) had shared GPUs without reservation pods")
    cluster.delete_pod("a")
    cluster.run()
    cluster.advance(301)
    cluster.run()
    cluster.assert_bound("w")
    kubelets.check()


def lose(cluster: FakeCluster, kubelets: Kubelets, count: int = 1) -> list[Pod]:
    """Delete all reservation pods."""
    found = sorted(kubelets.reservations(), key=lambda one: one.metadata.labels[RESERVATION])
    assert len(found) == count
    for held in found:
        cluster.delete_pod(held.metadata.name, SYSTEM)
    cluster.run()
    return found


def test_reservation_pods_are_created_until_one_gets_the_device_and_then_the_others_are_deleted() -> None:
    cluster, kubelets, _ = shared(4)
    lose(cluster, kubelets)
    kubelets.order = min
    held = []
    for _ in range(5):
        kubelets.reconcile()
        cluster.run()
        held.append(sorted(one.metadata.annotations[RESERVED_DEVICE] for one in kubelets.reservations()))
    assert held[:4] == [[f"GPU-n1-{index}" for index in range(count)] for count in (1, 2, 3, 4)]
    assert held[4] == [annotation(cluster, "a")] == ["GPU-n1-3"]
    cluster.add(whole("w", 3))
    cluster.run()
    cluster.assert_bound("w")
    kubelets.check()


def test_without_a_free_gpu_the_replacement_is_retried_later_only(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, kubelets, _ = shared(2)
    lose(cluster, kubelets)
    create, created = cluster.memory.create, []

    async def reject(obj: Any) -> Any:
        pod = await create(obj)
        created.append(pod)
        cluster.memory.put(replace(pod, status=replace(pod.status, phase="Failed")))
        return pod

    monkeypatch.setattr(cluster.memory, "create", reject)
    for _ in range(3):
        kubelets.reconcile()
        cluster.run()
    assert len(created) == 1
    assert not kubelets.reservations(), "the rejected one is deleted"
    monkeypatch.setattr(gpu_reservation_reconciler, "_REPLACE_SECONDS", 0.0)
    kubelets.reconcile()
    assert len(created) == 2


def test_while_a_new_reservation_pod_is_not_reported_no_further_one_is_created() -> None:
    cluster, kubelets, _ = shared(4)
    lose(cluster, kubelets)
    kubelets.reports = False
    for _ in range(3):
        kubelets.reconcile()
        cluster.run()
    assert len(kubelets.reservations()) == 1


def test_reservation_pods_whose_devices_were_swapped_hold_the_shared_gpus() -> None:
    cluster, kubelets = world(4)
    cluster.add(part("a", "0.9"), part("b", "0.9"))
    cluster.run()
    given = {name: annotation(cluster, name) for name in "ab"}
    lose(cluster, kubelets, 2)
    kubelets.order = lambda free: "GPU-n1-2" if "GPU-n1-2" in free else "GPU-n1-3"
    kubelets.reconcile()
    cluster.run()
    found = kubelets.reservations()
    assert {one.metadata.labels[RESERVATION]: one.metadata.annotations[RESERVED_DEVICE] for one in found} == {
        "0": "GPU-n1-2", "1": "GPU-n1-3"}  # fmt: skip
    assert given == {"a": "GPU-n1-3", "b": "GPU-n1-2"}
    kubelets.order = max
    cluster.add(whole("w", 2), part("c", "0.1"))
    cluster.advance(301)
    cluster.run()
    cluster.assert_all_bound()
    assert annotation(cluster, "c") in given.values()
    cluster.delete_pod("a")
    cluster.delete_pod("c")
    cluster.run()
    kubelets.reconcile()
    assert [one.metadata.annotations[RESERVED_DEVICE] for one in kubelets.reservations()] == [given["b"]]
    kubelets.check()


def test_a_reservation_pod_is_replaced_only_when_it_has_terminated() -> None:
    cluster, kubelets, held = shared(3)
    kubelets.reconcile()
    finished(kubelets._delete(held, grace_seconds=1))
    cluster.add(pod("other"))
    cluster.run()
    kubelets.reconcile()
    assert [one.metadata.uid for one in kubelets.reservations()] == [held.metadata.uid]
    cluster.finish_deletions()
    cluster.run()
    kubelets.reconcile()
    (new,) = kubelets.reservations()
    assert new.metadata.annotations[RESERVED_DEVICE] == annotation(cluster, "a")


def test_a_reservation_pod_belongs_to_its_node_so_that_a_drain_may_evict_it() -> None:
    cluster, kubelets = world(1)
    cluster.add(part("a", "0.5"))
    cluster.run()
    (held,), (node,) = kubelets.reservations(), cluster.memory.objects(Node)
    (owner,) = held.metadata.owner_references
    assert (owner.api_version, owner.kind, owner.name, owner.uid) == ("v1", "Node", "n1", node.metadata.uid)
    assert owner.controller
    assert node.metadata.uid
    assert held.metadata.annotations[SAFE_TO_EVICT] == "true"


def test_a_reservation_pod_requests_the_resource_that_its_node_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()
    arguments = {"wholeGpus": "reserved", "resources": [NVIDIA, "amd.com/gpu"], "reservations": {"seconds": 1}}
    cluster.use("GpuSharing", arguments)
    cluster.nodes(1, cpu="64", offers={"amd.com/gpu": 1})
    monkeypatch.setattr(cluster.memory, "simulated", False)
    cluster.add(part("a", "0.5"))
    cluster.run()
    (held,) = [one for one in cluster.memory.objects(Pod) if RESERVATION in one.metadata.labels]
    assert held.spec.containers[0].resources.requests["amd.com/gpu"] == "1"


def test_on_a_cordoned_node_a_lost_reservation_pod_is_replaced_after_it_is_uncordoned() -> None:
    cluster, kubelets = world(3)
    cluster.add(part("a", "0.5"))
    cluster.run()
    (node,) = cluster.memory.objects(Node)
    cluster.add(replace(node, spec=replace(node.spec, unschedulable=True)))
    lose(cluster, kubelets)
    kubelets.reconcile()
    assert not kubelets.reservations()
    cluster.add(replace(cluster.find(Node, "n1", ""), spec=node.spec))
    cluster.run()
    kubelets.reconcile()
    assert len(kubelets.reservations()) == 1


def test_a_node_that_fails_does_not_keep_others_from_being_reconciled(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, kubelets = world(1, nodes=3)
    cluster.add(*[part(name, "0.9") for name in "abc"])
    cluster.run()
    kubelets.reconcile()
    delete = cluster.memory.delete

    async def refused(obj: Any, **options: Any) -> None:
        if isinstance(obj, Pod) and RESERVATION in obj.metadata.labels and obj.spec.node_name == failing:
            raise Forbidden("no")
        await delete(obj, **options)

    monkeypatch.setattr(cluster.memory, "delete", refused)
    for name in "abc":
        cluster.delete_pod(name)
    cluster.run()
    for failing in ("n1", "n3"):
        with pytest.raises(Forbidden):
            kubelets.reconcile()
        if failing == "n1":
            assert [one.spec.node_name for one in kubelets.reservations()] == ["n1"]
            cluster.add(part("d", "0.9", node_selector={"kubernetes.io/hostname": "n3"}))
            cluster.run()
            cluster.delete_pod("d")
            cluster.run()
    assert [one.spec.node_name for one in kubelets.reservations()] == ["n3"]
    failing = ""
    kubelets.reconcile()
    assert not kubelets.reservations()


def test_a_reservation_pod_that_ended_while_no_replica_led_is_deleted() -> None:
    cluster, kubelets = world(2)
    held = pod("fluence-gpu-x", namespace=SYSTEM, requests={NVIDIA: 1}, bound_to="n1",
               labels={RESERVATION: "0", "app.kubernetes.io/managed-by": "fluence"})  # fmt: skip
    cluster.memory.put(replace(held, status=replace(held.status, phase="Failed")))
    other = pod("other", namespace=SYSTEM, labels={"app.kubernetes.io/managed-by": "fluence"}, bound_to="n1")
    cluster.memory.put(replace(other, status=replace(other.status, phase="Failed")))
    cluster.run()
    kubelets.reconcile()
    assert [one.metadata.name for one in cluster.memory.objects(Pod)] == ["other"]


def test_the_end_of_a_reservation_pod_is_handled_again_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, kubelets = world(2)
    cluster.add(part("a", "0.5"))
    cluster.run(cycles=2)
    kubelets.reconcile()
    (held,) = kubelets.reservations()
    reconciler = cluster.plugin("GpuSharing")._reservations._reconciler
    reconciler._due = asyncio.Event()
    cluster.memory.put(replace(held, status=replace(held.status, phase="Failed")))
    cluster.run()

    async def unavailable(*_: object, **__: object) -> Any:
        raise Unavailable("500")

    with monkeypatch.context() as patch:
        patch.setattr(cluster.memory, "get", unavailable)
        with pytest.raises(Unavailable):
            kubelets.reconcile()
    assert list(reconciler._disappeared) == [held.metadata.uid]
    kubelets.reconcile()
    assert held.metadata.uid not in {one.metadata.uid for one in kubelets.reservations()}
    assert not reconciler._disappeared


def test_nothing_is_kept_about_nodes_without_shared_gpus() -> None:
    cluster, kubelets = world(1, nodes=3)
    cluster.add(*[part(name, "0.9") for name in "abc"])
    cluster.run()
    for name in "abc":
        cluster.delete_pod(name)
    cluster.run()
    kubelets.reconcile()
    cluster.add(pod("another"))
    cluster.run()
    reservations = cluster.plugin("GpuSharing")._reservations
    pods, reconciler = reservations._pods, reservations._reconciler
    kept = (reservations._locks, pods._written, pods.given, reconciler._replaced)
    assert not any(kept), kept


def test_a_reservation_pod_with_the_device_of_other_sharers_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, kubelets = world(2)
    cluster.add(part("a", "0.9"))
    cluster.run()
    (held,) = kubelets.reservations()
    finished(kubelets.delete(held))
    with monkeypatch.context() as patch:  # the watch is late: the scheduler still sees the reservation pod
        objects = cluster._objects
        patch.setattr(cluster, "_objects", lambda: {**objects(), f"v1 Pod {held.key}": held})
        cluster.add(part("b", "0.9"))
        cluster.run()
    cluster.assert_pending("b", "but pod default/a uses device GPU-n1-1 as GPU 0")


def test_pods_that_shared_gpus_before_reservations_close_the_node_until_they_are_gone() -> None:
    cluster, kubelets = world(2)
    cluster.add(pod("old", annotations={GPU_FRACTION: "0.5", GPU: "0", GPU_DEVICE: "0"}, bound_to="n1"), whole("w"))
    cluster.run()
    cluster.assert_pending("w", "node(s) had shared GPUs without reservation pods")
    cluster.delete_pod("old")
    cluster.run()
    cluster.assert_bound("w")
    kubelets.check()


@pytest.mark.parametrize("gpu", [{}, {GPU: "0"}])
def test_a_pod_whose_device_is_unknown_closes_the_node_and_gets_no_reservation_pod(gpu: dict[str, str]) -> None:
    cluster, kubelets = world(2)
    cluster.add(pod("odd", annotations={GPU_FRACTION: "0.5", **gpu}, bound_to="n1"), part("a", "0.1"))
    cluster.run()
    kubelets.reconcile()
    cluster.assert_pending("a", "node(s) had shared GPUs without reservation pods")
    assert not kubelets.reservations()


async def until(holds: Callable[[], object]) -> None:
    """Wait until the background task has made something true."""
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not in 10 s")


async def first_pass(cluster: FakeCluster) -> None:
    """Wait until the background task has seen all nodes."""
    reconciler = cluster.plugin("GpuSharing")._reservations._reconciler
    await until(lambda: reconciler._listed)


def test_the_background_task_reports_replaces_and_retries_the_pods_that_waited() -> None:
    cluster, kubelets, held = shared(3)
    cluster.delete_pod(held.metadata.name, SYSTEM)
    cluster.run()
    events: list[tuple[str, str]] = []

    async def serve() -> None:
        retried = asyncio.Event()
        runtime = Runtime(
            lambda *_: None, lambda: True, cluster.memory, lambda *_: retried.set(),
            lambda about, reason, _: events.append((about.metadata.name, reason)),
        )  # fmt: skip
        async with cluster.plugin("GpuSharing").serve(runtime), asyncio.timeout(30):
            await until(kubelets.reservations)
            await cluster._deliver()
            cluster.scheduler.plugin_sync.sync_nodes()
            await retried.wait()

    finished(serve())
    assert events == [("a", "GpuUnreserved")]
    assert [one.metadata.uid for one in kubelets.reservations()] != [held.metadata.uid]


def test_a_report_that_changes_on_a_healthy_node_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_reservation_reconciler, "_CHECK_SECONDS", 0.05)
    cluster, kubelets = world(3)
    cluster.add(part("a", "0.5"))
    cluster.run(cycles=2)
    (held,) = kubelets.reservations()
    reported = asyncio.Event()

    async def serve() -> None:
        runtime = Runtime(lambda *_: None, lambda: True, cluster.memory, tell=lambda *_: reported.set())
        async with cluster.plugin("GpuSharing").serve(runtime), asyncio.timeout(30):
            await first_pass(cluster)
            await cluster.memory.patch_metadata(held, annotations={RESERVED_DEVICE: "GPU-n1-0"})
            await cluster._deliver()
            await reported.wait()

    finished(serve())
    cluster.add(whole("w"))
    cluster.run()
    cluster.assert_refused("w", "n1", by="GpuSharing", reason="node(s) had shared GPUs without reservation pods")


# ------------------------------------------------------------------ while other plugins prepare the bind


class Slow:
    """A plugin whose `prebind` for one pod takes long: meanwhile the reservation pods are lost."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.world: tuple[FakeCluster, Kubelets] | None = None

    @hookimpl
    async def prebind(self, binding: Binding) -> None:
        if binding.task.name != self._name or self.world is None:
            return
        cluster, kubelets = self.world
        for held in kubelets.reservations():
            await kubelets.delete(held)
        await cluster._deliver()


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (whole("x"), "node n1 has shared GPUs without reservation pods"),
        (part("x", "0.1"), "the reservation pod of device GPU-n1-1 of node n1 is gone"),
    ],
)
def test_a_reservation_pod_that_is_lost_during_another_prebind_stops_the_bind(second: Pod, reason: str) -> None:
    slow = Slow("x")
    cluster, kubelets = world(2)
    cluster.use(slow)
    cluster.add(part("a", "0.5"))
    cluster.run()
    slow.world = cluster, kubelets
    cluster.add(second)
    cluster.run()
    cluster.assert_pending("x", reason)
    kubelets.check()


# ------------------------------------------------------------------ several replicas


def test_a_reservation_pod_that_another_replica_has_begun_to_use_is_not_deleted_again() -> None:
    cluster, kubelets, held = unneeded(2)
    reservations = cluster.plugin("GpuSharing")._reservations
    finished(cluster.memory.patch_metadata(held, annotations={LAST_SHARER: "successor"}))
    with pytest.raises(ReservationError, match=f"another pod has begun to use reservation pod {held.key}"):
        finished(reservations._make_way(cluster.memory, "n1"))
    assert kubelets.reservations()


def test_another_change_of_a_reservation_pod_does_not_stop_its_deletion() -> None:
    cluster, kubelets, held = unneeded(2)
    finished(cluster.memory.patch_metadata(held, annotations={"other": "x"}))
    finished(cluster.plugin("GpuSharing")._reservations._make_way(cluster.memory, "n1"))
    assert not kubelets.reservations()


@pytest.mark.parametrize("seconds", [15, 40])
def test_a_reservation_pod_stays_as_long_as_the_configuration_says(seconds: int) -> None:
    cluster, kubelets, _ = unneeded(2, unused_seconds=seconds)
    now = 100.0
    cluster.plugin("GpuSharing")._reservations._reconciler._time = lambda: now
    for after, stays in ((0, 1), (seconds - 1, 1), (seconds, 0)):
        now = 100.0 + after
        kubelets.reconcile(at_once=False)
        cluster.run()
        assert len(kubelets.reservations()) == stays


@pytest.mark.parametrize("seconds", [14, 3601])
def test_the_time_that_a_reservation_pod_stays_is_bounded(seconds: int) -> None:
    """A replica may write for `renewSeconds` after it last renewed its lease."""
    with pytest.raises(ValueError, match="unused_seconds"):
        ReservationArguments(unused_seconds=seconds)


@pytest.mark.parametrize("other", ["an earlier reservation pod", "a new one"])
def test_an_unneeded_reservation_pod_that_another_replica_writes_to_is_not_deleted_for_a_while(other: str) -> None:
    """This replica does not know that it leads no longer: it sees what its successor writes, and not for which pod."""
    cluster, kubelets, held = unneeded(2)
    reconciler = cluster.plugin("GpuSharing")._reservations._reconciler
    now = 100.0
    reconciler._time = lambda: now

    def after(seconds: float) -> list[str]:
        nonlocal now
        now += seconds
        kubelets.reconcile(at_once=False)
        cluster.run()
        return sorted(one.metadata.name for one in kubelets.reservations())

    assert after(0) == after(14) == [held.metadata.name]
    if other == "a new one":
        fresh = replace(held.metadata, name="fluence-gpu-0", uid="", resource_version="", creation_timestamp=None)
        finished(cluster.memory.create(replace(held, metadata=fresh)))
        cluster.run()
        assert after(2) == after(14) == ["fluence-gpu-0"]
    else:
        finished(cluster.memory.patch_metadata(held, annotations={LAST_SHARER: "successor"}))
        cluster.run()
        assert after(2) == after(14) == [held.metadata.name]
    assert after(2) == []
    assert not reconciler._unneeded


def test_a_pass_retries_a_deletion_that_met_a_change() -> None:
    cluster, kubelets, held = shared(2)
    kubelets.reconcile()
    cluster.delete_pod("a")
    cluster.run()
    finished(cluster.memory.patch_metadata(held, annotations={"other": "x"}))
    kubelets.reconcile()
    kubelets.reconcile()
    assert not kubelets.reservations()


# ------------------------------------------------------------------ reports that fail


def test_two_gpus_with_the_same_reported_device_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, kubelets = world(3)
    give = kubelets.give

    def same(pod: Pod, number: int) -> None:
        give(pod, number)
        kubelets.given[pod.metadata.uid] = ("GPU-n1-0",)

    monkeypatch.setattr(kubelets, "give", same)
    cluster.add(part("a", "0.5", 2))
    cluster.run()
    cluster.assert_pending("a", "node n1 reported device GPU-n1-0 for two reservation pods")


def silent(cluster: FakeCluster, kubelets: Kubelets, name: str) -> None:
    """Let no device plugin report the GPUs of a node."""
    create = cluster.memory.create

    async def quiet(obj: Any) -> Any:
        kubelets.reports = obj.spec.node_name != name
        return await create(obj)

    cluster.memory.create = quiet  # type: ignore[method-assign]


@pytest.mark.parametrize("evaluation", ["naive", "board", "heap"])
def test_a_node_without_reports_gets_no_sharers_for_a_while_so_that_another_node_gets_them(evaluation: str) -> None:
    cluster, kubelets = world(1, nodes=2, evaluation=evaluation)
    silent(cluster, kubelets, "n1")
    notes: list[str] = []
    cluster.run()
    cluster.scheduler.binder._record_event = lambda pod, reason, note: notes.append(f"{pod.key} {reason} {note}")
    cluster.add(part("a", "0.5"), part("b", "0.5"))
    cluster.run()
    kubelets.reconcile()
    cluster.advance(20)
    cluster.run()
    assert cluster.node_of("a") == cluster.node_of("b") == "n2"
    (note,) = notes
    assert note.startswith(
        "default/a GpuNotReserved for 60 s, the scheduler places no further GPU-sharing pods on node n1: "
        "GPU 0 of node n1 is not"
    )
    cluster.add(part("c", "0.9"), whole("w"))
    cluster.run()
    cluster.assert_bound("w")
    cluster.delete_pod("w")
    cluster.run()
    cluster.assert_refused("c", "n1", by="GpuSharing", reason="node(s) failed to reserve shared GPUs recently")
    cluster.memory.create = kubelets.create  # type: ignore[method-assign]
    kubelets.reports = True
    cluster.advance(301)
    cluster.run()
    assert cluster.node_of("c") == "n1"
    kubelets.check()


def test_a_pod_that_is_retried_late_goes_to_another_node_in_the_end() -> None:
    cluster, kubelets = world(2, nodes=2)
    silent(cluster, kubelets, "n1")
    cluster.add(part("a", "0.5"))
    for _ in range(5):
        cluster.run()
        kubelets.reconcile()
        cluster.advance(120)
    assert cluster.node_of("a") == "n2"


def test_pods_that_a_closed_node_rejected_are_retried_when_it_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_closed_nodes, "CLOSED_SECONDS", 0.2)
    monkeypatch.setattr(gpu_reservation_reconciler, "_CHECK_SECONDS", 0.05)
    cluster, kubelets = world(1)
    kubelets.reports = False
    cluster.add(part("a", "0.5"))
    cluster.run()

    async def serve() -> None:
        retried = asyncio.Event()
        runtime = Runtime(lambda *_: None, lambda: True, cluster.memory, lambda *_: retried.set())
        async with cluster.plugin("GpuSharing").serve(runtime), asyncio.timeout(30):
            await retried.wait()

    finished(serve())


def test_pods_that_a_closed_node_rejected_are_retried_when_the_report_arrives() -> None:
    cluster, kubelets = world(1)
    kubelets.reports = False
    cluster.add(part("a", "0.5"))
    cluster.run(cycles=2)
    (held,) = kubelets.reservations()
    reservations = cluster.plugin("GpuSharing")._reservations

    async def serve() -> None:
        retried = asyncio.Event()

        def change(_: str, work: Callable[[], None]) -> None:
            work()
            retried.set()

        runtime = Runtime(lambda *_: None, lambda: True, cluster.memory, change)
        async with cluster.plugin("GpuSharing").serve(runtime), asyncio.timeout(30):
            await first_pass(cluster)
            assert reservations._closed
            await cluster.memory.patch_metadata(held, annotations={RESERVED_DEVICE: "GPU-n1-0"})
            await cluster._deliver()
            await retried.wait()
        assert not reservations._closed

    finished(serve())


# ------------------------------------------------------------------ elsewhere


def test_simulations_create_no_reservation_pods_and_give_the_same_answers() -> None:
    cluster = reserved()
    cluster.nodes(1, cpu="64", offers={NVIDIA: 2})
    cluster.add(part("a", "0.5"), whole("w"), part("b", "0.5"))
    cluster.run(cycles=2)
    cluster.assert_all_bound()
    assert [one.metadata.name for one in cluster.memory.objects(Pod)] == ["a", "b", "w"]


def test_by_default_the_devices_are_the_indices_and_a_reservation_pod_counts_as_any_pod() -> None:
    cluster = FakeCluster()
    cluster.nodes(1, cpu="64", offers={NVIDIA: 2})
    held = pod("held", namespace=SYSTEM, requests={NVIDIA: 1}, labels={RESERVATION: "0"}, bound_to="n1")
    cluster.add(held, part("a", "0.5"))
    cluster.run()
    cluster.assert_pending("a", "node(s) had whole GPUs allocated to other pods")
    cluster.delete_pod("held", SYSTEM)
    cluster.run()
    assert annotation(cluster, "a") == annotation(cluster, "a", GPU) == "0"


def test_a_pod_of_another_namespace_is_no_reservation_pod() -> None:
    cluster, _ = world(1)
    cluster.add(pod("forged", requests={NVIDIA: 1}, labels={RESERVATION: "0"}, bound_to="n1"), whole("w"))
    cluster.run()
    cluster.assert_pending("w", f"Insufficient {NVIDIA}")
