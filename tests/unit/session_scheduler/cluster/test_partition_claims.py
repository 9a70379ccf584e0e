"""What a scheduler serves alone: the claims on its Lease, and the lines about what another scheduler serves, too."""

from __future__ import annotations

import msgspec
import pytest
from structlog.testing import capture_logs

from session_scheduler.cluster.errors import Forbidden, Unavailable
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.cluster.partition_claims import ANNOTATION, PartitionClaims, PartitionError, are_disjoint
from session_scheduler.cluster.refused_kinds import RETRY_SECONDS
from session_scheduler.config.settings import SchedulerConfig, parse_config
from session_scheduler.model.objects import Lease, LeaseSpec, ObjectMeta

HEAD = "apiVersion: fluence.flux-framework.org/v1alpha1\nkind: SchedulerConfiguration\n"
MINE = """
profiles: [{schedulerName: mine}]
leaderElection: {name: fluence-mine}
partition: {nodeSelector: {pool: a}, devicePools: [driver/fabric]}
queues: [{name: research}, {name: default}]
"""


def config(text: str) -> SchedulerConfig:
    return parse_config(HEAD + text, "f.yaml")


def lease(claims: PartitionClaims | None, name: str = "fluence-other", holder: str | None = "x") -> Lease:
    annotations = dict(claims.annotations) if claims is not None else {ANNOTATION: "{"}
    metadata = ObjectMeta(name=name, namespace="kube-system", annotations=annotations)
    return Lease(metadata=metadata, spec=LeaseSpec(holder_identity=holder))


async def lines(own: str, *leases: Lease, resources: tuple[str, ...] = ()) -> list[str]:
    claims = PartitionClaims(config(own))
    claims.put("fluence", {"resource": resources})
    try:
        await claims.check(MemoryCluster(leases))
    except PartitionError as error:
        return list(error.messages)
    return []


def other(text: str, resources: tuple[str, ...] = ()) -> Lease:
    claims = PartitionClaims(config("leaderElection: {name: fluence-other}\n" + text))
    claims.put("fluence", {"resource": resources})
    return lease(claims)


# ---------------------------------------------------------------------- partitions that exclude each other


@pytest.mark.parametrize("selector", ["{pool: b}", "{pool: null}", "{pool: b, zone: x}"])
async def test_another_value_of_one_label_is_another_partition(selector: str) -> None:
    text = f"profiles: [{{schedulerName: other}}]\npartition: {{nodeSelector: {selector}}}"
    assert await lines(MINE, other(text)) == []


@pytest.mark.parametrize("selector", ["{pool: a}", "{zone: x}", "{pool: a, zone: null}"])
async def test_labels_that_one_node_may_have_are_an_error(selector: str) -> None:
    text = f"profiles: [{{schedulerName: other}}]\npartition: {{nodeSelector: {selector}}}"
    assert await lines(MINE, other(text)) == [
        f"f.yaml: partition.nodeSelector: {{pool: a}} may select the same nodes as {selector} of the scheduler with "
        "Lease kube-system/fluence-other; use different values of one label"
    ]


def test_selectors_are_disjoint_by_one_key() -> None:
    assert are_disjoint({"a": "1", "b": "2"}, {"b": None})
    assert not are_disjoint({"a": "1"}, {"b": "2"})
    assert not are_disjoint({"a": "1", "b": "2"}, {"a": "1"})


async def test_names_that_both_have_are_one_line_each_and_each_may_have_the_default_queue() -> None:
    text = """
profiles: [{schedulerName: another}, {schedulerName: mine}]
partition: {nodeSelector: {pool: b}, devicePools: [driver/fabric, driver/x]}
queues: [{name: default}, {name: research}]
"""
    theirs = "also belongs to the scheduler with Lease kube-system/fluence-other; remove it from one configuration"
    assert await lines(MINE, other(text, ("ibm-1", "ibm-2")), resources=("ibm-0", "ibm-1")) == [
        f"f.yaml: profiles[0].schedulerName: 'mine' {theirs}",
        f"f.yaml: queues[0].name: 'research' {theirs}",
        f"f.yaml: partition.devicePools[0]: 'driver/fabric' {theirs}",
        f"f.yaml: plugin fluence: resource 'ibm-1' {theirs}",
    ]


async def test_a_scheduler_of_the_whole_cluster_and_one_of_a_partition_exclude_each_other() -> None:
    whole = "profiles: [{schedulerName: whole}]"
    assert await lines(MINE, other(whole)) == [
        "f.yaml: partition.nodeSelector: the scheduler with Lease kube-system/fluence-other serves all nodes; set its "
        "partition.nodeSelector, too"
    ]
    mine = PartitionClaims(config(MINE))
    assert await lines(whole, lease(mine)) == [
        "f.yaml: partition: is missing, but the scheduler with Lease kube-system/fluence-other serves the nodes with "
        "{pool: a}; set partition.nodeSelector in both configurations"
    ]


async def test_schedulers_of_the_whole_cluster_are_not_compared() -> None:
    assert await lines("profiles: [{schedulerName: one}]", other("profiles: [{schedulerName: one}]")) == []


# ---------------------------------------------------------------------- which Leases count


async def test_a_released_lease_its_own_and_one_that_is_malformed_do_not_count() -> None:
    claims = PartitionClaims(config(MINE))
    assert await lines(MINE, lease(claims, holder=None)) == []
    assert await lines(MINE, lease(claims, name="fluence-mine")) == []
    assert await lines(MINE, lease(None)) == []


async def test_fields_of_a_later_version_are_ignored() -> None:
    text = msgspec.json.encode({"nodeSelector": {"pool": "b"}, "later": 1}).decode()
    metadata = ObjectMeta(name="x", namespace="kube-system", annotations={ANNOTATION: text})
    assert await lines(MINE, Lease(metadata=metadata, spec=LeaseSpec(holder_identity="x"))) == []


class Refusing(MemoryCluster):
    refuses = True

    async def list(self, kind, **options):
        if self.refuses:
            raise Forbidden("leases is forbidden")
        return await super().list(kind, **options)


async def test_a_partition_needs_the_right_to_list_leases() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    with pytest.raises(PartitionError) as refused:
        await PartitionClaims(config(MINE), sleep=sleep).check(Refusing())
    assert sum(waits) == RETRY_SECONDS
    assert refused.value.messages == (
        "f.yaml: partition: the scheduler needs permission to list Leases in kube-system, because they show the "
        "partitions of other schedulers; grant it as in the Role fluence of deploy/fluence.yaml (leases is forbidden)",
    )


async def test_an_api_server_that_does_not_know_its_rules_yet_is_asked_again() -> None:
    cluster = Refusing()

    async def sleep(_: float) -> None:
        cluster.refuses = False

    await PartitionClaims(config(MINE), sleep=sleep).check(cluster)


async def test_a_scheduler_of_the_whole_cluster_starts_without_the_right_and_logs_that() -> None:
    with capture_logs() as logs:
        await PartitionClaims(config("")).check(Refusing())
    assert [(line["log_level"], line["why"]) for line in logs] == [("warning", "leases is forbidden")]


# ---------------------------------------------------------------------- changes


async def test_changed_names_are_claimed_if_no_other_scheduler_has_them() -> None:
    cluster = MemoryCluster([other("profiles: [{schedulerName: o}]\npartition: {nodeSelector: {pool: b}}", ("ibm-1",))])
    claims = PartitionClaims(config(MINE))
    claims.put("fluence", {"resource": ["ibm-0"]})
    with pytest.raises(PartitionError, match="resource 'ibm-1' also belongs to"):
        await claims.claim(cluster, "fluence", {"resource": ["ibm-1"]})
    assert claims.own.plugins == {"plugin fluence: resource": ("ibm-0",)}
    await claims.claim(cluster, "fluence", {"resource": ["ibm-2"]})
    assert claims.own.plugins == {"plugin fluence: resource": ("ibm-2",)}


async def test_new_names_are_on_the_lease_before_the_others_are_read_and_fewer_names_need_neither() -> None:
    """So of two schedulers that claim a name at once, one sees the other."""
    shown: list[str] = []

    class Cluster(MemoryCluster):
        async def list(self, kind, **options):
            shown.append("list")
            return await super().list(kind, **options)

    async def write() -> None:
        shown.append(",".join(claims.own.plugins["plugin fluence: resource"]))

    claims = PartitionClaims(config(MINE), write)
    await claims.claim(Cluster(), "fluence", {"resource": ["ibm-1", "ibm-2"]})
    assert shown == ["ibm-1,ibm-2", "list"]
    await claims.claim(Cluster(), "fluence", {"resource": ["ibm-2"]})
    assert shown == ["ibm-1,ibm-2", "list"]
    assert claims.own.plugins == {"plugin fluence: resource": ("ibm-2",)}


async def test_names_that_cannot_be_written_are_not_claimed() -> None:
    async def write() -> None:
        raise Unavailable("no answer")

    claims = PartitionClaims(config(MINE), write)
    with pytest.raises(Unavailable):
        await claims.claim(MemoryCluster(), "fluence", {"resource": ["ibm-1"]})
    assert claims.own.plugins == {}


async def test_too_many_names_are_an_error_with_the_remedy() -> None:
    claims = PartitionClaims(config(MINE))
    claims.put("fluence", {"resource": [f"resource-{number}" for number in range(20_000)]})
    with pytest.raises(PartitionError, match="bytes in an annotation of the Lease, and the limit is 50000; use fewer"):
        await claims.check(MemoryCluster())


def test_a_scheduler_of_the_whole_cluster_shows_only_that() -> None:
    claims = PartitionClaims(config("queues: [{name: research}]"))
    claims.put("fluence", {"resource": ["ibm-1"]})
    assert claims.annotations == {ANNOTATION: '{"schedulerNames":["fluence"]}'}
