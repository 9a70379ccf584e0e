"""The live cluster: its requests, and how it handles the responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from structlog.testing import capture_logs

from session_scheduler.cluster.errors import Gone, Invalid, TooManyRequests, Unavailable
from session_scheduler.cluster.kubernetes import KubernetesCluster
from session_scheduler.cluster.port import Event, EventSeries
from session_scheduler.model.objects import ConfigMap, Node, ObjectMeta, Pod, PodCondition, PodGroup

from .fake_api import FakeApi, Reply, refuses, says

NATIVE = "scheduling.k8s.io/v1alpha2"
COSCHEDULING = "scheduling.x-k8s.io/v1alpha1"
ABSENT = refuses(404, "NotFound")
SERVED = says({"kind": "APIResourceList", "resources": [{"name": "podgroups"}, {"name": "podgroups/status"}]})
EXPIRED = refuses(410, "Expired")
ONE = Pod(metadata=ObjectMeta(name="one", namespace="ns", uid="u", resource_version="5"))


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as fake:
        yield fake


def cluster(api: FakeApi, **options: Any) -> KubernetesCluster:
    now: Callable[[], datetime] = lambda: datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=UTC)  # noqa: E731
    return KubernetesCluster(api.client(), now=now, instance="host", **options)


def named(name: str, namespace: str = "ns", **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace, "resourceVersion": "1"}, **fields}


def page(*items: dict[str, Any], go_on: str = "", version: str = "9") -> Reply:
    return says({"metadata": {"resourceVersion": version, "continue": go_on}, "items": list(items) or None})


# ---------------------------------------------------------------------- lists


async def test_pages_become_one_list_by_namespace_and_name(api: FakeApi) -> None:
    api.replies = [page(named("b", "a-b"), named("b", "a"), go_on="t/+="), page(named("a", "a"))]
    listing = await cluster(api, page_size=2).list(Pod)
    assert [pod.key for pod in listing.items] == ["a/a", "a/b", "a-b/b"]
    assert listing.resource_version == "9"
    assert [seen.query for seen in api.seen] == [{"limit": "2"}, {"limit": "2", "continue": "t/+="}]


async def test_an_empty_list_is_null(api: FakeApi) -> None:
    api.replies = [page()]
    assert (await cluster(api).list(Node)).items == ()


async def test_a_list_that_expires_between_pages_is_fetched_again(api: FakeApi) -> None:
    first = page(named("a"), go_on="t")
    api.replies = [first, EXPIRED, first, page(named("c"), version="9")]
    listing = await cluster(api).list(Pod)
    assert [pod.metadata.name for pod in listing.items] == ["a", "c"]


async def test_a_list_that_keeps_expiring_is_fetched_in_one_page(api: FakeApi) -> None:
    first = page(named("a"), go_on="t")
    api.replies = [first, EXPIRED, first, EXPIRED, page(named("a"), named("b"))]
    assert len((await cluster(api).list(Pod)).items) == 2
    assert api.seen[-1].query == {}


async def test_a_list_that_never_lasts_is_gone(api: FakeApi) -> None:
    api.replies = [EXPIRED]
    with pytest.raises(Gone):
        await cluster(api).list(Pod)
    assert len(api.seen) == 3


async def test_a_response_that_is_not_a_list_is_unavailable(api: FakeApi) -> None:
    api.replies = [says({"metadata": {}, "items": [{"metadata": {"name": 7}}]})]
    with pytest.raises(Unavailable, match=r"pods: cannot decode the API server's response: .*items\[0\].metadata.name"):
        await cluster(api).list(Pod)


# ---------------------------------------------------------------------- PodGroups


async def test_an_invalid_group_is_ignored_and_the_others_are_listed(api: FakeApi) -> None:
    """The API server accepts everything that a custom resource's definition accepts."""
    bad = {"metadata": {"name": "bad", "namespace": "ns"}, "spec": {"minMember": "three"}}
    good = {"metadata": {"name": "good", "namespace": "ns"}, "spec": {"minMember": 3}}

    async def reply(request: Any) -> Any:
        groups = says({"metadata": {"resourceVersion": "20"}, "items": [bad, good]})
        return await (groups if request.path.endswith("podgroups") else SERVED)(request)

    api.replies = [reply]
    listing = await cluster(api).list(PodGroup)
    assert {group.metadata.name for group in listing.items} == {"good"}


async def test_the_groups_of_both_apis_are_one_list(api: FakeApi) -> None:
    async def reply(request: Any) -> Any:
        groups = page(named("same"), version="30" if COSCHEDULING in request.path else "20")
        discovery = ABSENT if request.path.endswith("v1beta1") else SERVED
        return await (groups if request.path.endswith("podgroups") else discovery)(request)

    api.replies = [reply]
    live = cluster(api)
    listing = await live.list(PodGroup)
    assert [(group.api_version, group.native) for group in listing.items] == [(NATIVE, True), (COSCHEDULING, False)]
    assert listing.resource_version == "20/30"


async def test_an_api_that_is_installed_later_is_there_from_the_next_list_on(api: FakeApi) -> None:
    api.replies = [
        ABSENT,
        SERVED,
        ABSENT,
        page(named("a"), version="20"),
        ABSENT,
        SERVED,
        SERVED,
        page(named("a"), version="20"),
        page(named("b"), version="30"),
    ]
    live = cluster(api)
    assert len((await live.list(PodGroup)).items) == 1
    assert len((await live.list(PodGroup)).items) == 2


async def test_without_one_api_the_groups_of_the_other_are_listed(api: FakeApi) -> None:
    api.replies = [ABSENT, ABSENT, SERVED, page(named("gang", spec={"minMember": 3}))]
    listing = await cluster(api).list(PodGroup)
    assert [(group.api_version, group.min_count) for group in listing.items] == [(COSCHEDULING, 3)]
    assert listing.resource_version == "9"


async def test_a_missing_pod_group_api_is_logged_once(api: FakeApi) -> None:
    api.replies = [ABSENT]
    live = cluster(api)
    with capture_logs() as logs:
        first, second = await live.list(PodGroup), await live.list(PodGroup)
    assert first.items == second.items == ()
    assert [log["looked_for"] for log in logs] == [["scheduling.k8s.io/v1beta1", NATIVE, COSCHEDULING]]


async def test_a_failed_discovery_is_not_taken_for_an_absent_api(api: FakeApi) -> None:
    api.replies = [refuses(403, "Forbidden"), ABSENT, ABSENT, SERVED, page()]
    live = cluster(api)
    with pytest.raises(Exception, match="403"):
        await live.list(PodGroup)
    assert (await live.list(PodGroup)).resource_version == "9"


async def test_a_coscheduling_group_is_found_and_patched_where_it_is(api: FakeApi) -> None:
    body = named("gang", kind="PodGroup", apiVersion=COSCHEDULING)
    api.replies = [says(body)]
    live = cluster(api)
    group = await live.get(PodGroup, "ns", "gang", api_version=COSCHEDULING)
    await live.patch_metadata(group, annotations={"plan": "x"})
    condition = PodCondition(type="PodGroupScheduled", status="True")
    assert await live.patch_status(group, conditions=[condition]) == group  # it has no conditions
    path = f"/apis/{COSCHEDULING}/namespaces/ns/podgroups/gang"
    assert [(seen.method, seen.path) for seen in api.seen] == [("GET", path), ("PATCH", path), ("GET", path)]


async def test_a_group_of_an_unknown_api_is_invalid(api: FakeApi) -> None:
    with pytest.raises(Invalid, match=r"example.com/v1.*use one of"):
        await cluster(api).get(PodGroup, "ns", "gang", api_version="example.com/v1")


@pytest.mark.parametrize("version", ["", "0", "nonsense", "7/8", "-1"])
async def test_an_invalid_version_is_never_sent(api: FakeApi, version: str) -> None:
    with pytest.raises(Invalid):
        await anext(cluster(api).watch(Pod, version))
    assert api.seen == []


# ---------------------------------------------------------------------- writes


async def test_a_binding_carries_its_preconditions_and_annotations(api: FakeApi) -> None:
    api.replies = [says({"kind": "Status", "status": "Success"}, 201)]
    await cluster(api).bind("ns", "one", node="n", uid="u", resource_version="5", annotations={"a": "b"})
    (seen,) = api.seen
    assert (seen.method, seen.path) == ("POST", "/api/v1/namespaces/ns/pods/one/binding")
    assert seen.body["metadata"] == {
        "namespace": "ns", "name": "one", "uid": "u", "resourceVersion": "5", "annotations": {"a": "b"},
    }  # fmt: skip
    assert seen.body["target"] == {"apiVersion": "v1", "kind": "Node", "name": "n"}


async def test_a_pods_annotations_are_patched_through_its_status(api: FakeApi) -> None:
    api.replies = [says(named("one", kind="Pod"))]
    await cluster(api).patch_metadata(ONE, annotations={"a": None}, labels={"l": "x"}, resource_version="5")
    (seen,) = api.seen
    assert (seen.path, seen.headers["Content-Type"]) == (
        "/api/v1/namespaces/ns/pods/one/status",
        "application/merge-patch+json",
    )
    assert seen.body == {"metadata": {"annotations": {"a": None}, "labels": {"l": "x"}, "resourceVersion": "5"}}


async def test_a_condition_is_sent_with_every_field_that_it_replaces(api: FakeApi) -> None:
    api.replies = [says(named("one", kind="Pod"))]
    await cluster(api).patch_status(ONE, conditions=[PodCondition(type="T", status="True")], nominated_node_name="")
    (seen,) = api.seen
    assert seen.headers["Content-Type"] == "application/strategic-merge-patch+json"
    condition = {"type": "T", "status": "True", "reason": None, "message": None, "lastTransitionTime": None}
    assert seen.body["status"] == {"conditions": [condition], "nominatedNodeName": None}


async def test_a_kind_without_status_gets_none(api: FakeApi) -> None:
    with pytest.raises(Invalid):
        await cluster(api).patch_status(ConfigMap(metadata=ObjectMeta(name="c", namespace="ns")))
    with pytest.raises(Invalid):
        await cluster(api).patch_status(Node(metadata=ObjectMeta(name="n")), nominated_node_name="x")
    assert api.seen == []


async def test_a_deletion_has_preconditions(api: FakeApi) -> None:
    api.replies = [says({"kind": "Status"})]
    await cluster(api).delete(ONE, grace_seconds=0, resource_version="5")
    (seen,) = api.seen
    assert (seen.method, seen.path) == ("DELETE", "/api/v1/namespaces/ns/pods/one")
    assert seen.body["preconditions"] == {"uid": "u", "resourceVersion": "5"}
    assert seen.body["gracePeriodSeconds"] == 0


async def test_an_eviction_that_a_budget_forbids_is_not_repeated(api: FakeApi) -> None:
    found = named("one", kind="Pod")
    found["metadata"]["uid"] = "u"
    api.replies = [says(found), refuses(429, "TooManyRequests", "disruption budget", Retry_After="10")]
    with pytest.raises(TooManyRequests, match="disruption budget") as caught:
        await cluster(api).evict(ONE, grace_seconds=3)
    assert caught.value.retry_after == 10.0
    assert [seen.path for seen in api.seen][1:] == ["/api/v1/namespaces/ns/pods/one/eviction"]
    assert api.seen[1].body["deleteOptions"]["preconditions"] == {"uid": "u"}
    assert api.seen[1].body["deleteOptions"]["gracePeriodSeconds"] == 3


async def test_an_event_is_written_to_the_namespace_of_its_object_with_a_unique_name(api: FakeApi) -> None:
    api.replies = [says({"kind": "Event"}, 201)]
    live = cluster(api)
    long = Node(metadata=ObjectMeta(name="n" * 253))
    for event in (Event(ONE, "FailedScheduling", "Scheduling", "no room", warning=True),
                  Event(ONE, "Scheduled", "Binding", "done"), Event(long, "Drained", "Draining", "so")):  # fmt: skip
        await live.record_event(event)
    first, second, third = (seen.body for seen in api.seen)
    assert api.seen[0].path == "/apis/events.k8s.io/v1/namespaces/ns/events"
    assert api.seen[2].path == "/apis/events.k8s.io/v1/namespaces/default/events"
    assert (first["type"], second["type"], first["note"]) == ("Warning", "Normal", "no room")
    assert (first["eventTime"], first["reportingInstance"]) == ("2026-01-02T03:04:05.000600Z", "host")
    assert first["regarding"] == {
        "apiVersion": "v1", "kind": "Pod", "namespace": "ns", "name": "one", "uid": "u", "resourceVersion": "5",
    }  # fmt: skip
    names = [body["metadata"]["name"] for body in (first, second, third)]
    assert len(set(names)) == 3
    assert len(names[2]) <= 253


async def test_an_event_keeps_its_own_name_and_time(api: FakeApi) -> None:
    api.replies = [says({"kind": "Event"}, 201)]
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    name = await cluster(api).record_event(Event(ONE, "Scheduled", "Binding", "done", time=noon, name="one.17"))
    assert (name, api.seen[0].body["metadata"]["name"]) == ("one.17", "one.17")
    assert api.seen[0].body["eventTime"] == "2026-01-01T12:00:00.000000Z"


async def test_for_a_repeated_event_only_the_series_is_sent(api: FakeApi) -> None:
    api.replies = [says({"kind": "Event"})]
    await cluster(api).repeat_event("ns", "one.17", EventSeries(3, datetime(2026, 1, 1, 12, 0, 1, 500, tzinfo=UTC)))
    (seen,) = api.seen
    assert (seen.method, seen.path) == ("PATCH", "/apis/events.k8s.io/v1/namespaces/ns/events/one.17")
    assert seen.headers["Content-Type"] == "application/merge-patch+json"
    assert seen.body == {"series": {"count": 3, "lastObservedTime": "2026-01-01T12:00:01.000500Z"}}


async def test_an_object_is_created_with_its_api_version_and_no_status(api: FakeApi) -> None:
    api.replies = [says(named("one", kind="Pod"), 201)]
    await cluster(api).create(Pod(metadata=ObjectMeta(name="one")))
    assert api.seen[0].path == "/api/v1/namespaces/default/pods"
    assert (api.seen[0].body["apiVersion"], api.seen[0].body["kind"]) == ("v1", "Pod")
    assert "status" not in api.seen[0].body
