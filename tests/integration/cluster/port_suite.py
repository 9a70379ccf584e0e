"""The tests that every port to a cluster must pass. A port's test module subclasses PortSuite and provides a `harness`.

No test waits for time to pass; PATIENCE only bounds how long a live cluster may take to answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

import pytest
from msgspec.structs import replace

from session_scheduler.cluster.errors import AlreadyExists, ClusterError, Conflict, Gone, Invalid, NotFound
from session_scheduler.cluster.port import EVENT_NOTE_LIMIT, Change, Cluster, Event, EventSeries, WatchEvent, event_name
from session_scheduler.model.meta import OwnerReference
from session_scheduler.model.objects import (
    ConfigMap,
    Container,
    GangPolicy,
    KubeObject,
    Lease,
    LeaseSpec,
    Node,
    NodeSpec,
    ObjectMeta,
    Pod,
    PodCondition,
    PodGroup,
    PodGroupSpec,
    PodSpec,
    PodStatus,
    SchedulingGate,
    SchedulingPolicy,
    Taint,
)
from session_scheduler.model.related import ReplicaSet, StatefulSet
from session_scheduler.model.workload_objects import WORKLOAD_KINDS, Job, JobSet, JobSpec, LeaderWorkerSet, Workload

PATIENCE = 30.0
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
Kube = TypeVar("Kube", bound=KubeObject)
HOLD = "example.com/hold"
OTHER_HOLD = "example.com/other-hold"
REFUSED = PodCondition(type="PodScheduled", status="False", reason="Unschedulable", message="no room",
                       last_transition_time="2026-01-01T00:00:00Z")  # fmt: skip


class Harness(Protocol):
    """A port under test, with a separate namespace for each test."""

    cluster: Cluster
    namespace: str

    async def too_old(self, kind: type[KubeObject]) -> str:
        """A resourceVersion from which the cluster can no longer watch."""

    async def make(self, manifest: dict[str, Any]) -> None:
        """Create an object with more fields than the port knows."""


class PortSuite:
    """Subclass this, and define a fixture `harness`."""

    # ------------------------------------------------------------------ reading and creating

    async def test_a_gate_is_opened_together_with_annotations(self, harness: Harness) -> None:
        gates = ("example.com/a", "example.com/b")
        made = a_pod(harness, "gated", annotations={"example.com/old": "x"}, gates=gates)
        pod = await harness.cluster.create(made)
        changes = {"example.com/new": "y", "example.com/old": None, "example.com/none": None}
        opened = await harness.cluster.open_gate(pod, "example.com/a", changes)
        assert [gate.name for gate in opened.spec.scheduling_gates] == ["example.com/b"]
        assert opened.metadata.annotations == {"example.com/new": "y"}
        with pytest.raises(Conflict):  # the object has a newer version
            await harness.cluster.open_gate(pod, "example.com/b", {})
        assert (await harness.cluster.open_gate(opened, "example.com/b", {})).spec.scheduling_gates == ()
        with pytest.raises(Invalid):
            await harness.cluster.open_gate(made, "example.com/b", {})
        await harness.cluster.delete(opened, grace_seconds=0)
        with pytest.raises((NotFound, Conflict)):
            await harness.cluster.open_gate(opened, "example.com/b", {})

    async def test_a_created_object_has_its_own_identity(self, harness: Harness) -> None:
        made = await harness.cluster.create(a_pod(harness, "one"))
        found = await harness.cluster.get(Pod, harness.namespace, "one")
        assert found.metadata.uid == made.metadata.uid != ""
        assert found.metadata.resource_version != ""
        assert found.metadata.creation_timestamp is not None
        assert found.spec.scheduler_name == "fluence"

    async def test_a_created_pod_is_pending_whatever_its_status_was(self, harness: Harness) -> None:
        wanted = a_pod(harness, "one")
        pod = Pod(metadata=wanted.metadata, spec=wanted.spec, status=PodStatus(phase="Running"))
        made = await harness.cluster.create(pod)
        assert made.status.phase == "Pending"

    async def test_a_name_is_generated_from_generate_name(self, harness: Harness) -> None:
        pod = a_pod(harness, "", generate_name="job-")
        names = {(await harness.cluster.create(pod)).metadata.name for _ in range(3)}
        assert len(names) == 3
        assert all(name.startswith("job-") for name in names)

    async def test_a_second_object_of_the_same_name_is_refused(self, harness: Harness) -> None:
        await harness.cluster.create(a_pod(harness, "one"))
        with pytest.raises(AlreadyExists):
            await harness.cluster.create(a_pod(harness, "one"))

    @pytest.mark.parametrize("name", ["", "Upper", "a_b"])
    async def test_an_object_without_a_valid_name_is_refused(self, harness: Harness, name: str) -> None:
        with pytest.raises(Invalid):
            await harness.cluster.create(a_pod(harness, name))

    async def test_an_object_with_a_resource_version_is_not_created(self, harness: Harness) -> None:
        with pytest.raises(Invalid):
            await harness.cluster.create(a_pod(harness, "one", resource_version="7"))

    async def test_every_operation_on_a_missing_pod_is_not_found(self, harness: Harness) -> None:
        missing = a_pod(harness, "missing")
        attempts: list[Callable[[], object]] = [
            lambda: harness.cluster.get(Pod, harness.namespace, "missing"),
            lambda: harness.cluster.patch_metadata(missing, annotations={"a": "b"}),
            lambda: harness.cluster.patch_status(missing, conditions=[REFUSED]),
            lambda: harness.cluster.delete(missing),
            lambda: harness.cluster.evict(missing),
            lambda: bind(harness, missing, uid="u", resource_version="1"),
        ]
        for attempt in attempts:
            with pytest.raises(NotFound):
                await attempt()  # type: ignore[misc]

    async def test_a_list_has_all_objects_by_name(self, harness: Harness) -> None:
        for name in ("b", "c", "a"):
            await harness.cluster.create(a_pod(harness, name))
        assert [pod.metadata.name for pod in await ours(harness, Pod)] == ["a", "b", "c"]

    async def test_a_later_change_does_not_alter_an_object_that_was_read(self, harness: Harness) -> None:
        before = await harness.cluster.create(a_pod(harness, "one"))
        await harness.cluster.patch_metadata(before, annotations={"a": "b"})
        assert before.metadata.annotations == {}

    async def test_a_large_plan_is_kept_in_a_config_map(self, harness: Harness) -> None:
        name, labels = f"fluence-plan-{harness.namespace}.a", {"app.kubernetes.io/managed-by": "fluence"}
        metadata = ObjectMeta(name=name, namespace="kube-system", labels=labels)
        plan = ConfigMap(metadata=metadata, data={"plan": "x" * 300_000})
        made = await harness.cluster.create(plan)
        assert (await harness.cluster.get(ConfigMap, "kube-system", name)).data == plan.data
        assert made in (await harness.cluster.list(ConfigMap, namespace="kube-system")).items
        await harness.cluster.delete(made)
        with pytest.raises(NotFound):
            await harness.cluster.get(ConfigMap, "kube-system", name)

    async def test_a_list_of_one_namespace_contains_no_objects_of_another(self, harness: Harness) -> None:
        pod = await harness.cluster.create(a_pod(harness, "one"))
        assert (await harness.cluster.list(Pod, namespace=harness.namespace)).items == (pod,)
        assert pod not in (await harness.cluster.list(Pod, namespace="kube-system")).items

    # ------------------------------------------------------------------ watching

    async def test_a_watch_reports_every_change_after_the_list_in_order(self, harness: Harness) -> None:
        version = (await harness.cluster.list(Pod)).resource_version
        pod = await harness.cluster.create(a_pod(harness, "one"))
        await harness.cluster.patch_metadata(pod, annotations={"a": "b"})
        await harness.cluster.delete(pod, grace_seconds=0)
        events = await changes_until_deleted(harness, Pod, version)
        assert [event.change for event in events] == [Change.ADDED, Change.MODIFIED, Change.DELETED]
        assert [event.object.metadata.annotations for event in events if event.object] == [{}, {"a": "b"}, {"a": "b"}]
        after = await changes_until_deleted(harness, Pod, events[1].resource_version)
        assert after == events[2:]

    async def test_a_watch_waits_for_later_changes(self, harness: Harness) -> None:
        version = (await harness.cluster.list(Pod)).resource_version
        waiting = asyncio.ensure_future(changes(harness, Pod, version, 1))
        await asyncio.sleep(0)
        await harness.cluster.create(a_pod(harness, "one"))
        assert [event.change for event in await waiting] == [Change.ADDED]

    async def test_a_watch_continues_after_the_last_seen_event(self, harness: Harness) -> None:
        version = (await harness.cluster.list(Pod)).resource_version
        await harness.cluster.create(a_pod(harness, "one"))
        (first,) = await changes(harness, Pod, version, 1)
        await harness.cluster.create(a_pod(harness, "two"))
        (second,) = await changes(harness, Pod, first.resource_version, 1)
        assert second.object is not None
        assert second.object.metadata.name == "two"

    async def test_all_watchers_see_the_same(self, harness: Harness) -> None:
        version = (await harness.cluster.list(Pod)).resource_version
        watchers = [asyncio.ensure_future(changes(harness, Pod, version, 2)) for _ in range(3)]
        await harness.cluster.create(a_pod(harness, "one"))
        await harness.cluster.create(a_pod(harness, "two"))
        seen = await asyncio.gather(*watchers)
        assert seen[0] == seen[1] == seen[2]

    async def test_a_watch_reports_no_change_of_another_kind(self, harness: Harness) -> None:
        version = (await harness.cluster.list(PodGroup)).resource_version
        await harness.cluster.create(a_pod(harness, "one"))
        await harness.cluster.create(a_group(harness, "gang"))
        (event,) = await changes(harness, PodGroup, version, 1)
        assert isinstance(event.object, PodGroup)

    async def test_watching_from_an_expired_version_is_gone(self, harness: Harness) -> None:
        version = await harness.too_old(Pod)
        with pytest.raises(Gone):
            await first_event(harness, version)

    async def test_watching_from_a_malformed_version_is_invalid(self, harness: Harness) -> None:
        with pytest.raises(Invalid):
            await first_event(harness, "nonsense")

    # ------------------------------------------------------------------ leases

    async def test_a_lease_is_replaced_only_with_its_latest_version(self, harness: Harness) -> None:
        made = await harness.cluster.create(a_lease(harness, "leader", holder_identity="first", lease_transitions=0))
        times = {"acquire_time": "2026-01-01T00:00:00.000001Z", "renew_time": "2026-01-01T00:00:00.000002Z"}
        spec = LeaseSpec(holder_identity="second", lease_duration_seconds=5, lease_transitions=1, **times)
        written = await harness.cluster.replace(replace(made, spec=spec))
        assert written.spec == spec
        assert written.metadata.uid == made.metadata.uid
        assert written.metadata.resource_version != made.metadata.resource_version
        assert await harness.cluster.get(Lease, harness.namespace, "leader") == written
        with pytest.raises(Conflict):
            await harness.cluster.replace(replace(made, spec=LeaseSpec(holder_identity="third")))
        assert await harness.cluster.get(Lease, harness.namespace, "leader") == written

    async def test_one_of_many_lease_replacements_wins(self, harness: Harness) -> None:
        made = await harness.cluster.create(a_lease(harness, "leader"))
        wanted = [replace(made, spec=LeaseSpec(holder_identity=f"replica-{number}")) for number in range(6)]
        answers = await asyncio.gather(*map(harness.cluster.replace, wanted), return_exceptions=True)
        won = [answer for answer in answers if isinstance(answer, Lease)]
        assert len(won) == 1
        assert sum(isinstance(answer, Conflict) for answer in answers) == 5
        assert await harness.cluster.get(Lease, harness.namespace, "leader") == won[0]

    async def test_a_replaced_lease_loses_omitted_fields(self, harness: Harness) -> None:
        made = await harness.cluster.create(a_lease(harness, "leader", holder_identity="first", lease_transitions=3))
        written = await harness.cluster.replace(replace(made, spec=LeaseSpec(lease_transitions=3)))
        assert written.spec == LeaseSpec(lease_transitions=3)

    async def test_replacing_a_deleted_lease_does_not_create_it(self, harness: Harness) -> None:
        made = await harness.cluster.create(a_lease(harness, "leader"))
        gone = replace(made, metadata=replace(made.metadata, name="gone"))
        with pytest.raises((NotFound, Conflict)):
            await harness.cluster.replace(gone)
        with pytest.raises(NotFound):
            await harness.cluster.get(Lease, harness.namespace, "gone")

    async def test_a_recreated_lease_is_not_replaced(self, harness: Harness) -> None:
        made = await harness.cluster.create(a_lease(harness, "leader"))
        other = replace(made, metadata=replace(made.metadata, uid="11111111-2222-3333-4444-555555555555"))
        with pytest.raises(Conflict):
            await harness.cluster.replace(replace(other, spec=LeaseSpec(holder_identity="me")))

    async def test_a_lease_is_not_replaced_without_a_version(self, harness: Harness) -> None:
        await harness.cluster.create(a_lease(harness, "leader"))
        with pytest.raises(Invalid):
            await harness.cluster.replace(a_lease(harness, "leader", holder_identity="me"))

    # ------------------------------------------------------------------ binding

    async def test_a_binding_writes_node_annotations_and_condition_at_once(self, harness: Harness) -> None:
        pod = await harness.cluster.create(a_pod(harness, "one", annotations={"kept": "1", "replaced": "old"}))
        pod = await harness.cluster.patch_status(pod, conditions=[REFUSED], nominated_node_name="elsewhere")
        version = (await harness.cluster.list(Pod)).resource_version
        await bind(harness, pod, annotations={"replaced": "new", "added": "2"})
        (event,) = await changes(harness, Pod, version, 1)
        bound = event.object
        assert bound is not None
        assert bound == await harness.cluster.get(Pod, harness.namespace, "one")
        assert bound.spec.node_name == "node"
        assert bound.metadata.annotations == {"kept": "1", "replaced": "new", "added": "2"}
        assert [c.status for c in bound.status.conditions if c.type == "PodScheduled"] == ["True"]
        assert bound.status.nominated_node_name == ""
        assert bound.metadata.resource_version != pod.metadata.resource_version

    async def test_a_bound_pod_is_not_bound_again_even_to_its_own_node(self, harness: Harness) -> None:
        pod = await harness.cluster.create(a_pod(harness, "one"))
        await bind(harness, pod)
        bound = await harness.cluster.get(Pod, harness.namespace, "one")
        for node in ("node", "other"):
            with pytest.raises(Conflict):
                await bind(harness, bound, node=node)

    async def test_one_of_two_concurrent_bindings_wins_with_its_annotations(self, harness: Harness) -> None:
        pod = await harness.cluster.create(a_pod(harness, "one"))
        answers = await asyncio.gather(
            *(bind(harness, pod, node=node, annotations={"by": node}) for node in ("left", "right")),
            return_exceptions=True,
        )
        assert sorted(type(answer).__name__ for answer in answers) == ["Conflict", "NoneType"]
        bound = await harness.cluster.get(Pod, harness.namespace, "one")
        assert bound.metadata.annotations == {"by": bound.spec.node_name}

    async def test_a_pod_that_changed_since_it_was_read_is_not_bound(self, harness: Harness) -> None:
        read = await harness.cluster.create(a_pod(harness, "one"))
        touched = await harness.cluster.patch_metadata(read, annotations={"touched": "yes"})
        with pytest.raises(Conflict):
            await bind(harness, read)
        assert await harness.cluster.get(Pod, harness.namespace, "one") == touched

    async def test_a_recreated_pod_is_not_bound(self, harness: Harness) -> None:
        old = await harness.cluster.create(a_pod(harness, "one"))
        await harness.cluster.delete(old, grace_seconds=0)
        new = await harness.cluster.create(a_pod(harness, "one"))
        assert new.metadata.uid != old.metadata.uid
        with pytest.raises(Conflict):
            await bind(harness, new, uid=old.metadata.uid)

    async def test_a_gated_pod_is_not_bound(self, harness: Harness) -> None:
        gated = await harness.cluster.create(a_pod(harness, "one", gates=("example.com/wait",)))
        assert [c.reason for c in gated.status.conditions if c.type == "PodScheduled"] == ["SchedulingGated"]
        with pytest.raises(Conflict):
            await bind(harness, gated)

    async def test_a_pod_that_is_being_deleted_is_not_bound(self, harness: Harness) -> None:
        pod = await harness.cluster.create(a_pod(harness, "one", finalizers=(HOLD,)))
        await harness.cluster.delete(pod, grace_seconds=0)
        deleting = await harness.cluster.get(Pod, harness.namespace, "one")
        assert deleting.metadata.deletion_timestamp is not None
        with pytest.raises(Conflict):
            await bind(harness, deleting)

    async def test_a_binding_without_node_or_preconditions_is_never_sent(self, harness: Harness) -> None:
        pod = await harness.cluster.create(a_pod(harness, "one"))
        with pytest.raises(Invalid):
            await bind(harness, pod, node="")
        with pytest.raises(Invalid):
            await bind(harness, pod, uid="")
        with pytest.raises(Invalid):
            await bind(harness, pod, resource_version="")
        assert (await harness.cluster.get(Pod, harness.namespace, "one")).spec.node_name == ""

    # ------------------------------------------------------------------ patching

    async def test_a_patch_merges_and_none_removes(self, harness: Harness) -> None:
        group = await harness.cluster.create(a_group(harness, "gang"))
        await harness.cluster.patch_metadata(group, annotations={"a": "1", "b": "2"}, labels={"l": "x"})
        patched = await harness.cluster.patch_metadata(group, annotations={"a": None, "c": "3"})
        assert patched.metadata.annotations == {"b": "2", "c": "3"}
        assert patched.metadata.labels == {"l": "x"}
        assert patched == await harness.cluster.get(PodGroup, harness.namespace, "gang")

    async def test_a_patch_that_changes_nothing_does_not_move_the_version(self, harness: Harness) -> None:
        pod = await harness.cluster.create(a_pod(harness, "one", annotations={"a": "1"}))
        pod = await harness.cluster.patch_status(pod, conditions=[REFUSED])
        same = await harness.cluster.patch_metadata(pod, annotations={"a": "1", "absent": None})
        assert (await harness.cluster.patch_status(same, conditions=[REFUSED])) == pod

    async def test_one_of_many_swaps_of_a_plan_wins(self, harness: Harness) -> None:
        group = await harness.cluster.create(a_group(harness, "gang"))
        version = group.metadata.resource_version
        swaps = (
            harness.cluster.patch_metadata(group, annotations={"plan": str(i)}, resource_version=version)
            for i in range(8)
        )
        answers = await asyncio.gather(*swaps, return_exceptions=True)
        won = [answer for answer in answers if not isinstance(answer, BaseException)]
        assert len(won) == 1
        assert sum(isinstance(answer, Conflict) for answer in answers) == 7
        assert await harness.cluster.get(PodGroup, harness.namespace, "gang") == won[0]

    @pytest.mark.parametrize("annotations", [{"no key": "x"}, {"large": "x" * 262_144}])
    async def test_invalid_annotations_are_refused(self, harness: Harness, annotations: dict[str, str]) -> None:
        pod = await harness.cluster.create(a_pod(harness, "one"))
        with pytest.raises(Invalid):
            await harness.cluster.patch_metadata(pod, annotations=annotations)

    async def test_a_condition_replaces_the_one_of_its_type_only(self, harness: Harness) -> None:
        pod = await harness.cluster.create(a_pod(harness, "one"))
        other = PodCondition(type="DisruptionTarget", status="True", last_transition_time="2026-01-01T00:00:00Z")
        await harness.cluster.patch_status(pod, conditions=[other, REFUSED])
        worse = PodCondition(type="PodScheduled", status="False", reason="SchedulerError", message="broken",
                             last_transition_time="2026-01-01T00:00:01Z")  # fmt: skip
        patched = await harness.cluster.patch_status(pod, conditions=[worse])
        reasons = {condition.type: condition.reason for condition in patched.status.conditions}
        assert reasons == {"PodScheduled": "SchedulerError", "DisruptionTarget": ""}

    async def test_a_nominated_node_is_set_cleared_and_left_unchanged(self, harness: Harness) -> None:
        pod = await harness.cluster.create(a_pod(harness, "one"))
        nominated = await harness.cluster.patch_status(pod, nominated_node_name="node")
        kept = await harness.cluster.patch_status(pod, conditions=[REFUSED])
        cleared = await harness.cluster.patch_status(pod, nominated_node_name="")
        names = [p.status.nominated_node_name for p in (nominated, kept, cleared)]
        assert names == ["node", "node", ""]

    async def test_a_group_gets_a_scheduled_condition(self, harness: Harness) -> None:
        group = await harness.cluster.create(a_group(harness, "gang"))
        done = PodCondition(type="PodGroupScheduled", status="True", reason="Scheduled", message="all placed",
                            last_transition_time="2026-01-01T00:00:00Z")  # fmt: skip
        patched = await harness.cluster.patch_status(group, conditions=[done])
        assert patched.status.conditions == (done,)
        assert patched.metadata.annotations == group.metadata.annotations

    async def test_a_status_swap_loses_against_an_earlier_write(self, harness: Harness) -> None:
        pod = await harness.cluster.create(a_pod(harness, "one"))
        await harness.cluster.patch_metadata(pod, annotations={"a": "b"})
        with pytest.raises(Conflict):
            await harness.cluster.patch_status(
                pod, conditions=[REFUSED], resource_version=pod.metadata.resource_version
            )

    async def test_finalizers_and_labels_are_written_together(self, harness: Harness) -> None:
        pod = await harness.cluster.create(a_pod(harness, "one", finalizers=(HOLD,)))
        both = await hold(harness, pod, HOLD, OTHER_HOLD, labels={"l": "x"})
        assert (both.metadata.finalizers, both.metadata.labels) == ((HOLD, OTHER_HOLD), {"l": "x"})
        assert await hold(harness, both, HOLD, OTHER_HOLD) == both
        with pytest.raises(Conflict):  # the object has a newer version
            await hold(harness, pod)
        with pytest.raises(Invalid):
            await harness.cluster.patch_metadata(both, finalizers=())
        assert (await hold(harness, both)).metadata.finalizers == ()
        assert await ours(harness, Pod) != []

    async def test_owners_are_replaced_and_kept_by_a_patch_without_them(self, harness: Harness) -> None:
        owner = OwnerReference(api_version="v1", kind="Pod", name="one", uid="f5e8f5b8-0000-0000-0000-000000000000")
        group = await harness.cluster.create(a_group(harness, "gang"))
        owned = await harness.cluster.patch_metadata(group, owner_references=(owner,))
        assert owned.metadata.owner_references == (owner,)
        assert await harness.cluster.patch_metadata(owned, owner_references=(owner,)) == owned
        labelled = await harness.cluster.patch_metadata(owned, labels={"l": "x"})
        assert labelled.metadata.owner_references == (owner,)

    async def test_a_terminating_object_is_deleted_with_its_last_finalizer(self, harness: Harness) -> None:
        made: list[Pod | PodGroup] = [a_pod(harness, "one", finalizers=(HOLD, OTHER_HOLD))]
        group = a_group(harness, "gang")
        made.append(replace(group, metadata=replace(group.metadata, finalizers=(HOLD, OTHER_HOLD))))
        for each in made:
            await harness.cluster.delete(await harness.cluster.create(each))
            (ending,) = await ours(harness, type(each))
            with pytest.raises(Invalid):
                await hold(harness, ending, HOLD, OTHER_HOLD, "example.com/more")
            left = await hold(harness, ending, OTHER_HOLD)
            assert await ours(harness, type(each)) == [left]
            await hold(harness, left)
            assert await ours(harness, type(each)) == []

    async def test_a_bound_pod_without_finalizers_keeps_its_grace_period(self, harness: Harness) -> None:
        pod = await harness.cluster.create(a_pod(harness, "one", finalizers=(HOLD,)))
        await bind(harness, pod)
        await seen_bound(harness, pod)
        await harness.cluster.delete(pod)
        (ending,) = await ours(harness, Pod)
        free = await hold(harness, ending)
        assert await ours(harness, Pod) == [free]
        await harness.cluster.delete(free, grace_seconds=0)
        assert await ours(harness, Pod) == []

    async def test_a_bound_pod_past_its_grace_period_is_deleted_with_its_last_finalizer(self, harness: Harness) -> None:
        pod = await harness.cluster.create(a_pod(harness, "one", finalizers=(HOLD,)))
        await bind(harness, pod)
        await seen_bound(harness, pod)
        await harness.cluster.delete(pod)
        await harness.cluster.delete(pod, grace_seconds=0)
        (ending,) = await ours(harness, Pod)
        await hold(harness, ending)
        assert await ours(harness, Pod) == []

    async def test_a_node_gets_taints_and_keeps_its_own(self, harness: Harness) -> None:
        first, second = Taint(key="a", value="1", effect="NoExecute"), Taint(key="a", effect="NoSchedule")
        third = Taint(key="example.com/c", value="x", effect="NoExecute")
        made = Node(metadata=ObjectMeta(name=f"tainted-{harness.namespace}"), spec=NodeSpec(taints=(first, second)))
        node = await harness.cluster.create(made)
        node = replace(node, spec=replace(node.spec, taints=(await at(harness, node)).spec.taints))
        own = tuple(taint for taint in node.spec.taints if taint not in (first, second))  # the API server's own taints
        tainted = await harness.cluster.set_taints(node, (third, *node.spec.taints))
        assert tainted.spec.taints == (*node.spec.taints, third)
        assert await harness.cluster.set_taints(tainted, tainted.spec.taints) == tainted
        with pytest.raises(Conflict):  # the object has a newer version
            await harness.cluster.set_taints(node, ())
        less = await harness.cluster.set_taints(tainted, (third, second, *own))
        assert less.spec.taints == tuple(taint for taint in tainted.spec.taints if taint != first)
        changed = Taint(key="a", value="2", effect="NoSchedule")
        none = await harness.cluster.set_taints(await harness.cluster.set_taints(less, (changed,)), ())
        assert none.spec.taints == ()
        assert (await harness.cluster.set_taints(none, (first, second))).spec.taints == (first, second)
        await harness.cluster.delete(await at(harness, node))
        with pytest.raises((NotFound, Conflict)):
            await harness.cluster.set_taints(none, (first,))

    async def test_invalid_taints_are_refused(self, harness: Harness) -> None:
        made = Node(metadata=ObjectMeta(name=f"untainted-{harness.namespace}"))
        node = await harness.cluster.create(made)
        good = Taint(key="a", value="1", effect="NoExecute")
        bad = [
            (Taint(key="a b", effect="NoExecute"),),
            (Taint(key="a", value="no value", effect="NoExecute"),),
            (Taint(key="a", effect="Never"),),
            (good, Taint(key="a", value="2", effect="NoExecute")),
        ]
        for taints in bad:
            with pytest.raises(Invalid):
                await harness.cluster.set_taints(node, taints)
        with pytest.raises(Invalid):
            await harness.cluster.set_taints(made, (good,))
        with pytest.raises(Invalid):  # other taints could be lost
            await harness.cluster.set_taints(replace(node, unreadable="spec.taints"), (good,))
        await harness.cluster.delete(await at(harness, node))

    # ------------------------------------------------------------------ workloads

    async def test_workloads_are_read_by_name(self, harness: Harness) -> None:
        owner = {"apiVersion": "example.com/v1", "kind": "Root", "name": "root", "uid": "uid-1", "controller": True}
        said = {"annotations": {"a": "1"}, "labels": {"l": "x"}, "ownerReferences": [owner]}
        containers = [{"name": "main", "image": "example.com/none"}]
        template: dict[str, Any] = {"metadata": {"labels": {"l": "x"}}, "spec": {"containers": containers}}
        once = {**template, "spec": {**template["spec"], "restartPolicy": "Never"}}
        numbers = {"parallelism": 2, "completions": 3, "activeDeadlineSeconds": 90}
        selected = {"selector": {"matchLabels": {"l": "x"}}, "template": template}
        gang = {"name": "t", "schedulingPolicy": {"gang": {"minCount": 2}}}
        apps: list[tuple[type[ReplicaSet | StatefulSet | Job | Workload], str, dict[str, Any]]] = [
            (ReplicaSet, "apps/v1", selected),
            (StatefulSet, "apps/v1", {**selected, "serviceName": "none"}),
            (Job, "batch/v1", {**numbers, "template": once}),
            (Workload, "scheduling.k8s.io/v1alpha2", {"podGroupTemplates": [gang]}),
        ]
        for kind, api_version, spec in apps:
            metadata = {"name": "maker", "namespace": harness.namespace, **said}
            manifest = {"apiVersion": api_version, "kind": kind.__name__, "metadata": metadata, "spec": spec}
            await harness.make(manifest)
            found = await harness.cluster.get(kind, harness.namespace, "maker")
            assert found.metadata.uid != ""
            assert (found.metadata.annotations, found.metadata.labels) == ({"a": "1"}, {"l": "x"})
            assert [(one.kind, one.name, one.uid) for one in found.metadata.owner_references] == [
                ("Root", "root", "uid-1")
            ]
        job = await harness.cluster.get(Job, harness.namespace, "maker")
        assert job.spec == JobSpec(parallelism=2, completions=3, active_deadline_seconds=90)

    @pytest.mark.parametrize("kind", WORKLOAD_KINDS)
    async def test_a_missing_workload_is_not_found(
        self, harness: Harness, kind: type[Job | JobSet | LeaderWorkerSet | Workload]
    ) -> None:
        with pytest.raises(NotFound, match=f"{kind.__name__} {harness.namespace}/maker"):
            await harness.cluster.get(kind, harness.namespace, "maker")

    # ------------------------------------------------------------------ deletion

    async def test_an_unbound_pod_is_deleted_at_once(self, harness: Harness) -> None:
        for name, end in (("deleted", harness.cluster.delete), ("evicted", harness.cluster.evict)):
            await end(await harness.cluster.create(a_pod(harness, name)))
        assert await ours(harness, Pod) == []

    async def test_a_bound_pod_gets_its_grace_period(self, harness: Harness) -> None:
        pod = await harness.cluster.create(a_pod(harness, "one"))
        await bind(harness, pod)
        await seen_bound(harness, pod)
        await harness.cluster.delete(pod)
        ending = await harness.cluster.get(Pod, harness.namespace, "one")
        assert ending.metadata.deletion_timestamp is not None
        assert ending.spec.node_name == "node"
        await harness.cluster.delete(pod, grace_seconds=0)
        assert await ours(harness, Pod) == []

    async def test_a_finalizer_keeps_a_terminating_object(self, harness: Harness) -> None:
        pod = await harness.cluster.create(a_pod(harness, "one", finalizers=(HOLD,)))
        await harness.cluster.delete(pod, grace_seconds=0)
        assert [p.metadata.deletion_timestamp is not None for p in await ours(harness, Pod)] == [True]

    async def test_a_recreated_pod_is_neither_deleted_nor_evicted(self, harness: Harness) -> None:
        old = await harness.cluster.create(a_pod(harness, "one"))
        await harness.cluster.delete(old)
        new = await harness.cluster.create(a_pod(harness, "one"))
        for end in (harness.cluster.delete, harness.cluster.evict):
            with pytest.raises(Conflict):
                await end(old)
        assert await ours(harness, Pod) == [new]

    async def test_a_deletion_with_a_version_loses_against_an_earlier_write(self, harness: Harness) -> None:
        pod = await harness.cluster.create(a_pod(harness, "one"))
        await harness.cluster.patch_metadata(pod, annotations={"a": "b"})
        with pytest.raises(Conflict):
            await harness.cluster.delete(pod, resource_version=pod.metadata.resource_version)

    # ------------------------------------------------------------------ events and errors

    async def test_an_event_is_recorded_and_a_malformed_one_refused(self, harness: Harness) -> None:
        pod = await harness.cluster.create(a_pod(harness, "one"))
        note = "x" * EVENT_NOTE_LIMIT
        await harness.cluster.record_event(Event(pod, "Scheduled", "Binding", note))
        await harness.cluster.record_event(Event(pod, "Scheduled", "Binding", "ü" * (EVENT_NOTE_LIMIT // 2)))
        wide = "ü" * (EVENT_NOTE_LIMIT // 2) + "x"
        for action, text in (("Binding", note + "x"), ("Binding", wide), ("", "note")):
            with pytest.raises(Invalid):
                await harness.cluster.record_event(Event(pod, "Scheduled", action, text))

    async def test_each_event_has_its_own_name(self, harness: Harness) -> None:
        pod = await harness.cluster.create(a_pod(harness, "one"))
        names = {await harness.cluster.record_event(Event(pod, "Scheduled", "Binding", "so")) for _ in range(3)}
        assert len(names) == 3

    async def test_an_event_with_the_same_name_is_recorded_once(self, harness: Harness) -> None:
        pod = await harness.cluster.create(a_pod(harness, "one"))
        event = Event(pod, "Scheduled", "Binding", "so", name=event_name(pod, "17"))
        assert await harness.cluster.record_event(event) == event.name
        with pytest.raises(AlreadyExists):
            await harness.cluster.record_event(event)

    async def test_a_repeated_event_has_a_count(self, harness: Harness) -> None:
        pod = await harness.cluster.create(a_pod(harness, "one"))
        name = await harness.cluster.record_event(Event(pod, "Failed", "Scheduling", "no room", warning=True))
        for count in (2, 9):
            await harness.cluster.repeat_event(harness.namespace, name, EventSeries(count, NOON))
        with pytest.raises(Invalid):
            await harness.cluster.repeat_event(harness.namespace, name, EventSeries(1, NOON))

    async def test_an_expired_event_is_not_repeated(self, harness: Harness) -> None:
        with pytest.raises(NotFound):
            await harness.cluster.repeat_event(harness.namespace, "forgotten.1", EventSeries(2, NOON))

    async def test_an_error_names_the_object(self, harness: Harness) -> None:
        with pytest.raises(ClusterError, match="absent"):
            await harness.cluster.get(Pod, harness.namespace, "absent")


# ---------------------------------------------------------------------- helpers


def a_pod(
    harness: Harness,
    name: str,
    *,
    gates: tuple[str, ...] = (),
    annotations: dict[str, str] | None = None,
    **metadata: object,
) -> Pod:
    """A pending pod of our scheduler."""
    fields = {"name": name, "namespace": harness.namespace, "annotations": annotations or {}, **metadata}
    return Pod(
        metadata=ObjectMeta(**fields),  # type: ignore[arg-type]
        spec=PodSpec(
            scheduler_name="fluence",
            containers=(Container(name="main", image="example.com/none"),),
            scheduling_gates=tuple(SchedulingGate(name=gate) for gate in gates),
        ),
    )


def a_group(harness: Harness, name: str) -> PodGroup:
    """A gang of two."""
    policy = SchedulingPolicy(gang=GangPolicy(min_count=2))
    return PodGroup(
        metadata=ObjectMeta(name=name, namespace=harness.namespace), spec=PodGroupSpec(scheduling_policy=policy)
    )


def a_lease(harness: Harness, name: str, **spec: Any) -> Lease:
    """A Lease without a holder, unless a holder is given."""
    return Lease(metadata=ObjectMeta(name=name, namespace=harness.namespace), spec=LeaseSpec(**spec))


async def bind(
    harness: Harness,
    pod: Pod,
    *,
    node: str = "node",
    uid: str | None = None,
    resource_version: str | None = None,
    annotations: dict[str, str] | None = None,
) -> None:
    """Bind the pod as it was read, unless other preconditions are given."""
    await harness.cluster.bind(
        pod.metadata.namespace,
        pod.metadata.name,
        node=node,
        uid=pod.metadata.uid if uid is None else uid,
        resource_version=pod.metadata.resource_version if resource_version is None else resource_version,
        annotations=annotations or {},
    )


async def hold(harness: Harness, obj: Kube, *finalizers: str, labels: dict[str, str | None] | None = None) -> Kube:
    """Set the finalizers of the object, as it was read."""
    return await harness.cluster.patch_metadata(
        obj, labels=labels, finalizers=finalizers, resource_version=obj.metadata.resource_version
    )


async def at(harness: Harness, node: Node) -> Node:
    """The current node."""
    return await harness.cluster.get(Node, "", node.metadata.name)


async def seen_bound(harness: Harness, pod: Pod) -> None:
    """Wait for the event of the pod's bind. Before it, an API server may delete the pod at once, as if unbound."""
    events = harness.cluster.watch(Pod, pod.metadata.resource_version)
    async with asyncio.timeout(PATIENCE), aclosing(events):
        async for event in events:
            seen = event.object
            if seen is not None and seen.metadata.uid == pod.metadata.uid and seen.spec.node_name:
                return


async def ours(harness: Harness, kind: type[Kube]) -> list[Kube]:
    """The objects of a kind in this test's namespace."""
    items = (await harness.cluster.list(kind)).items
    return [obj for obj in items if obj.metadata.namespace == harness.namespace]


async def changes(harness: Harness, kind: type[Kube], version: str, count: int) -> list[WatchEvent[Kube]]:
    """The next `count` changes in this test's namespace."""
    return await changes_until(harness, kind, version, lambda seen: len(seen) == count)


async def changes_until_deleted(harness: Harness, kind: type[Kube], version: str) -> list[WatchEvent[Kube]]:
    """The next changes up to a deletion, without the preceding MODIFIED event of some clusters."""
    seen = await changes_until(harness, kind, version, lambda seen: seen[-1].change is Change.DELETED)
    return [e for e in seen if e.change is Change.DELETED or (e.object and not e.object.metadata.deletion_timestamp)]


async def changes_until(
    harness: Harness, kind: type[Kube], version: str, enough: Callable[[list[WatchEvent[Kube]]], bool]
) -> list[WatchEvent[Kube]]:
    """The next changes in this test's namespace, until they suffice."""

    async def collect() -> list[WatchEvent[Kube]]:
        seen: list[WatchEvent[Kube]] = []
        watch = harness.cluster.watch(kind, version)
        try:
            async for event in _here(harness, watch):
                seen.append(event)
                if enough(seen):
                    break
        finally:
            await watch.aclose()
        return seen

    return await asyncio.wait_for(collect(), PATIENCE)


async def _here(harness: Harness, watch: AsyncIterator[WatchEvent[Kube]]) -> AsyncIterator[WatchEvent[Kube]]:
    async for event in watch:
        if event.object is not None and event.object.metadata.namespace == harness.namespace:
            yield event


async def first_event(harness: Harness, version: str) -> WatchEvent[Pod]:
    """The first event of a watch of pods from this version."""
    return await asyncio.wait_for(anext(harness.cluster.watch(Pod, version)), PATIENCE)
