"""PodGroups in several API versions: decoding, encoding, discovery of versions and of feature gates."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from session_scheduler.cluster.errors import NotLeading
from session_scheduler.cluster.kubernetes import KubernetesCluster
from session_scheduler.model.group_api import GROUP_VERSIONS, SCHEDULED, V1ALPHA2, V1BETA1, GroupVersion, WirePodGroup
from session_scheduler.model.objects import PodCondition, PodGroup

from .fake_api import FakeApi, refuses, says, streams

ALPHA, BETA = V1ALPHA2.api_version, V1BETA1.api_version
ABSENT = refuses(404, "NotFound")
SERVED = says({"kind": "APIResourceList", "resources": [{"name": "podgroups"}]})
WORKLOAD = {"workloadName": "w", "podGroupTemplateName": "t"}
SAID = {
    ALPHA: {
        "schedulingPolicy": {"gang": {"minCount": 3}},
        "schedulingConstraints": {"topology": [{"key": "zone"}]},
        "disruptionMode": "PodGroup",
        "podGroupTemplateRef": {"workload": WORKLOAD},
        "priority": 7,
        "priorityClassName": "high",
    },
    BETA: {
        "schedulingPolicy": {"gang": {"minCount": 3}},
        "schedulingConstraints": {"topology": [{"key": "zone"}]},
        "disruptionMode": {"all": {}},
        "workloadRef": {"workloadName": "w", "templateName": "t"},
        "preemptionPolicy": "Never",
        "priority": 7,
        "priorityClassName": "high",
    },
}
"""The same group in each API version."""
CONDITIONS = {ALPHA: "PodGroupScheduled", BETA: "PodGroupInitiallyScheduled"}


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as api:
        yield api


class Server:
    """Serves some versions of the PodGroup API with one group; stores the writes."""

    def __init__(self, *versions: str, **spec: Any) -> None:
        self.versions = versions
        self.spec = spec
        self.dry_run: Any = None
        """The response to a dry run."""

    async def __call__(self, request: Any) -> Any:
        path = request.path.removeprefix("/apis/")
        version = "/".join(path.split("/")[:2])
        if version not in self.versions:
            return await ABSENT(request)
        if path == version:
            return await SERVED(request)
        if "dryRun" in request.query:
            return await self.dry_run(request)
        if request.query.get("watch"):
            event = {"type": "MODIFIED", "object": {"apiVersion": version, "kind": "PodGroup", **self.group(version)}}
            return await streams(msgspec.json.encode(event) + b"\n")(request)
        if path.endswith("podgroups"):
            return await says({"metadata": {"resourceVersion": "9"}, "items": [self.group(version)]})(request)
        return await says({"apiVersion": version, "kind": "PodGroup", **self.group(version)})(request)

    def group(self, version: str) -> dict[str, Any]:
        said = {"type": CONDITIONS[version], "status": "True", "reason": "Scheduled"}
        metadata = {"name": "g", "namespace": "ns", "uid": "u", "resourceVersion": "8"}
        return {"metadata": metadata, "spec": {**SAID[version], **self.spec}, "status": {"conditions": [said]}}


def live(api: FakeApi, server: Server) -> KubernetesCluster:
    api.replies = [server]
    return KubernetesCluster(api.client(), instance="test")


# ---------------------------------------------------------------------- reading and writing


@pytest.mark.parametrize("version", [ALPHA, BETA])
async def test_a_group_is_decoded_alike_in_every_version(api: FakeApi, version: str) -> None:
    cluster = live(api, Server(version))
    listing = await cluster.list(PodGroup)
    (listed,) = listing.items
    fetched = await cluster.get(PodGroup, "ns", "g", api_version=version)
    event = await anext(cluster.watch(PodGroup, listing.resource_version))
    assert listed == fetched == event.object
    assert listed.api_version == version
    assert (listed.min_count, listed.topology_key, listed.disrupted_whole) == (3, "zone", True)
    assert (listed.spec.priority, listed.spec.priority_class_name) == (7, "high")
    template = listed.spec.pod_group_template_ref
    assert template is not None
    assert msgspec.to_builtins(template.workload) == WORKLOAD
    assert [(one.type, one.status) for one in listed.status.conditions] == [(SCHEDULED, "True")]


@pytest.mark.parametrize("version", [ALPHA, BETA])
async def test_a_condition_is_written_with_the_type_of_the_version(api: FakeApi, version: str) -> None:
    cluster = live(api, Server(version))
    (group,) = (await cluster.list(PodGroup)).items
    answer = await cluster.patch_status(
        group, conditions=[PodCondition(SCHEDULED, "False", "Unschedulable"), PodCondition("DisruptionTarget", "True")]
    )
    seen = api.seen[-1]
    assert seen.path == f"/apis/{version}/namespaces/ns/podgroups/g/status"
    assert [one["type"] for one in seen.body["status"]["conditions"]] == [CONDITIONS[version], "DisruptionTarget"]
    assert [one.type for one in answer.status.conditions] == [SCHEDULED]


@pytest.mark.parametrize("version", [ALPHA, BETA])
async def test_a_group_is_created_in_the_format_of_the_version(api: FakeApi, version: str) -> None:
    cluster = live(api, Server(version))
    (group,) = (await cluster.list(PodGroup)).items
    await cluster.create(replace(group, api_version=ALPHA, metadata=replace(group.metadata, resource_version="")))
    body = api.seen[-1].body
    assert body["apiVersion"] == version
    assert body["spec"] == {name: value for name, value in SAID[version].items() if name != "preemptionPolicy"}


@pytest.mark.parametrize("version", GROUP_VERSIONS, ids=lambda version: version.api_version)
@pytest.mark.parametrize("mode", ["Pod", "PodGroup", None])
def test_an_encoded_group_decodes_to_the_same_group(version: GroupVersion, mode: str | None) -> None:
    spec = msgspec.convert({**SAID[ALPHA], "disruptionMode": mode}, type(PodGroup().spec))
    group = PodGroup(api_version=version.api_version, spec=spec)
    wire = msgspec.json.decode(msgspec.json.encode(version.written(group)), type=WirePodGroup)
    assert version.read(wire) == group


@pytest.mark.parametrize(
    "spec",
    [{"schedulingPolicy": {"gang": {"minCount": "three"}}}, {"schedulingPolicy": 7}, {"schedulingConstraints": []}],
)
async def test_an_invalid_group_is_ignored(api: FakeApi, spec: dict[str, Any]) -> None:
    for version in (ALPHA, BETA):
        cluster = live(api, Server(version, **spec))
        listing = await cluster.list(PodGroup)
        assert listing.items == ()
        event = await anext(cluster.watch(PodGroup, listing.resource_version))
        assert event.object is None


@pytest.mark.parametrize(
    ("mode", "whole"), [({"single": {}}, False), ({"all": {}}, True), ({}, False), ("All", False), (None, False)]
)
async def test_an_invalid_disruption_mode_is_the_default(api: FakeApi, mode: Any, whole: bool) -> None:
    (group,) = (await live(api, Server(BETA, disruptionMode=mode)).list(PodGroup)).items
    assert group.disrupted_whole is whole


# ---------------------------------------------------------------------- which version


async def test_the_newest_served_version_is_used(api: FakeApi) -> None:
    cluster = live(api, Server(ALPHA, BETA))
    (group,) = (await cluster.list(PodGroup)).items
    assert group.api_version == BETA
    assert cluster.pod_groups.versions == (BETA,)
    await cluster.patch_metadata(replace(group, api_version=ALPHA), annotations={"a": "b"})
    assert api.seen[-1].path == f"/apis/{BETA}/namespaces/ns/podgroups/g"


async def test_after_an_update_of_the_api_server_the_next_list_uses_the_new_version(
    api: FakeApi,
) -> None:
    server = Server(ALPHA)
    cluster = live(api, server)
    with capture_logs() as logs:
        (before,) = (await cluster.list(PodGroup)).items
        server.versions = (BETA,)
        (after,) = (await cluster.list(PodGroup)).items
        await cluster.list(PodGroup)
    assert (before.api_version, after.api_version) == (ALPHA, BETA)
    assert replace(before, api_version=BETA) == after
    await cluster.patch_status(before, conditions=[PodCondition(SCHEDULED, "False")])  # with the outdated version
    assert api.seen[-1].path.startswith(f"/apis/{BETA}/")
    assert [log["api"] for log in logs] == [[ALPHA], [BETA]]


# ---------------------------------------------------------------------- gates


def gated(*off: str) -> Any:
    """Respond to a dry run without these fields."""

    async def reply(request: Any) -> Any:
        (field,) = msgspec.json.decode(await request.read())["spec"]
        if field in off:
            return await says({"kind": "PodGroup", "spec": {"schedulingPolicy": {}}})(request)
        return await refuses(422, "Invalid", message=f"spec.{field}: field is immutable")(request)

    return reply


async def found(api: FakeApi, server: Server) -> tuple[dict[str, bool], list[Any]]:
    cluster = live(api, server)
    await cluster.list(PodGroup)
    with capture_logs() as logs:
        await cluster.pod_groups.find_gates(api.time.sleep)
        await cluster.pod_groups.find_gates(api.time.sleep)
    return cluster.pod_groups.gates, logs


async def test_a_disabled_gate_that_drops_a_field_is_logged_once(api: FakeApi) -> None:
    server = Server(ALPHA)
    server.dry_run = gated("schedulingConstraints", "resourceClaims")
    gates, logs = await found(api, server)
    assert gates == {
        "TopologyAwareWorkloadScheduling": False,
        "WorkloadAwarePreemption": True,
        "DRAWorkloadResourceClaims": False,
    }
    assert [(log["gate"], log["field"], log["log_level"]) for log in logs] == [
        ("TopologyAwareWorkloadScheduling", "spec.schedulingConstraints", "warning"),
        ("DRAWorkloadResourceClaims", "spec.resourceClaims", "warning"),
    ]
    assert [seen.query for seen in api.seen if seen.method != "GET"] == 3 * [{"dryRun": "All"}]


async def test_with_every_gate_enabled_nothing_is_logged(api: FakeApi) -> None:
    server = Server(BETA)
    server.dry_run = gated()
    gates, logs = await found(api, server)
    assert set(gates.values()) == {True}
    assert logs == []


async def test_gates_stay_unknown_if_the_dry_run_is_forbidden(api: FakeApi) -> None:
    server = Server(ALPHA)
    server.dry_run = refuses(403, "Forbidden", message="denied by a policy")
    gates, logs = await found(api, server)
    assert gates == {}
    assert {log["log_level"] for log in logs} == {"info"}


async def test_the_dry_run_is_retried_if_the_server_is_busy(api: FakeApi) -> None:
    server = Server(ALPHA)
    server.dry_run = refuses(429, "TooManyRequests")
    cluster = live(api, server)
    await cluster.list(PodGroup)
    rounds = 0

    async def sleep(_: float) -> None:
        nonlocal rounds
        rounds += 1
        server.dry_run = gated("schedulingConstraints")

    await cluster.pod_groups.find_gates(sleep)
    assert rounds == 1
    assert cluster.pod_groups.gates["TopologyAwareWorkloadScheduling"] is False


async def test_gates_are_found_once_a_group_exists_and_this_replica_leads(api: FakeApi) -> None:
    server = Server(ALPHA)
    server.dry_run = gated("schedulingConstraints")
    cluster = live(api, server)
    leads: list[bool] = [False, True]

    def check() -> None:
        if not leads.pop(0) if len(leads) > 1 else False:
            raise NotLeading("not yet")

    cluster.fence_writes(check)
    rounds = 0

    async def sleep(seconds: float) -> None:
        nonlocal rounds
        rounds += 1
        assert cluster.pod_groups.gates == {}
        if rounds == 2:
            await cluster.list(PodGroup)

    await cluster.pod_groups.find_gates(sleep)
    assert rounds == 3
    assert cluster.pod_groups.gates["TopologyAwareWorkloadScheduling"] is False
