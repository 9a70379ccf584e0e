"""The objects for a MasterQueue are those that its document describes, field by field, and depend on nothing else."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from fluence_plugins.master_queue.api.kueue import MOST_FLAVORS, LocalQueue, LocalQueueSpec
from fluence_plugins.master_queue.api.master_queue import MasterQueue
from fluence_plugins.master_queue.controller.desired_state import ClusterView, Desired, desired
from fluence_plugins.master_queue.controller.pools import MOST_POOLS, Pools
from fluence_plugins.master_queue.messages import Message, decoded
from session_scheduler.model.meta import ObjectMeta

CONNECTOR = "nats://user:password@nats.nats:4222"
SOURCE = (CONNECTOR, "interlink.resources")
OWNER = {"apiVersion": "vk.io/v1", "kind": "MasterQueue", "name": "masterqueue", "uid": "u1", "controller": True}
PUBLISHED = decoded(
    b'{"quotas":{"cpu":"8","memory":"32Gi","pods":500},"labels":["site=firenze"],"taints":["gpu=no:PreferNoSchedule"]}'
)
TAINT = {"key": "virtual-node.interlink/no-schedule", "value": "true", "effect": "NoSchedule"}


def document(**changes: Any) -> dict[str, Any]:
    """The MasterQueue of the document."""
    flavor = {
        "name": "interlink",
        "natsFlavor": {
            "natsConnector": CONNECTOR,
            "natsSubject": "interlink.resources",
            "virtualNode": "interlink",
            "poolTimeout": 30,
            "poolRegExp": ".*",
        },
        "nominalQuota": {"pods": 100},
        "canLendTo": [{"queue": "group1", "lendingLimit": {"pods": 30}}],
    }
    return {
        "apiVersion": "vk.io/v1",
        "kind": "MasterQueue",
        "metadata": {"name": "masterqueue", "uid": "u1"},
        "spec": {"template": {"cohort": "masterqueue"}, "flavors": [{**flavor, **changes}]},
    }


def master(content: dict[str, Any] | None = None) -> MasterQueue:
    return msgspec.convert(content or document(), MasterQueue)


def heard(queue: MasterQueue, *names: str, message: Message = PUBLISHED) -> Pools:
    pools = Pools(queue.spec)
    pools.connected(CONNECTOR, 0)
    for name in names:
        assert pools.receive(SOURCE, name, message, 0) == ""
    return pools


def plain(content: object) -> Any:
    return json.loads(msgspec.json.encode(content))


def queue_of(found: Desired, name: str) -> Any:
    return plain(next(queue for queue in found.queues if queue.metadata.name == name))["spec"]


def flavors_of(spec: dict[str, Any]) -> list[str]:
    return [flavor["name"] for group in spec["resourceGroups"] for flavor in group["flavors"]]


def test_the_master_queue_of_the_documentation_has_these_objects() -> None:
    found = desired(master(), heard(master(), "podman-firenze"), 0)
    name = "masterqueue-interlink-podman-firenze"
    assert plain(found.flavors) == [
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "ResourceFlavor",
            "metadata": {"name": name, "labels": {"site": "firenze"}, "ownerReferences": [OWNER]},
            "spec": {
                "nodeLabels": {"kubernetes.io/hostname": "interlink"},
                "nodeTaints": [TAINT, {"key": "gpu", "value": "no", "effect": "PreferNoSchedule"}],
                "tolerations": [
                    {"key": "pool.vk.io", "operator": "Equal", "value": "podman-firenze", "effect": "NoSchedule"}
                ],
            },
        }
    ]
    common = {
        "cohortName": "masterqueue",
        "queueingStrategy": "BestEffortFIFO",
        "stopPolicy": "None",
        "namespaceSelector": {},
    }
    main = [
        {"name": "cpu", "nominalQuota": "8"},
        {"name": "memory", "nominalQuota": "32Gi"},
        {"name": "pods", "nominalQuota": "100"},
    ]
    branch = [{"name": "pods", "nominalQuota": "0", "borrowingLimit": "30"}]
    assert plain(found.queues) == [
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "ClusterQueue",
            "metadata": {"name": queue, "ownerReferences": [OWNER]},
            "spec": {
                **common,
                "resourceGroups": [
                    {
                        "coveredResources": [one["name"] for one in resources],
                        "flavors": [{"name": name, "resources": resources}],
                    }
                ],
            },
        }
        for queue, resources in (("masterqueue", main), ("group1", branch))
    ]
    assert plain(found.status) == {
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Applied", "lastTransitionTime": "1970-01-01T00:00:00Z",
             "message": "flavors and queues match the spec"},
            {"type": "NatsConnected", "status": "True", "reason": "Connected",
             "lastTransitionTime": "1970-01-01T00:00:00Z", "message": "all subjects are subscribed"},
            {"type": "PoolsActive", "status": "True", "reason": "Heard", "lastTransitionTime": "1970-01-01T00:00:00Z",
             "message": "1 of 1 pools are active"},
        ],
        "pools": [
            {"name": "podman-firenze", "flavor": "interlink", "state": "Active", "lastMessage": "1970-01-01T00:00:00Z",
             "quota": {"cpu": "8", "memory": "32Gi", "pods": "500"}, "labels": {"site": "firenze"},
             "taints": [{"key": "gpu", "value": "no", "effect": "PreferNoSchedule"}]},
        ],
        "activePools": 1,
        "knownPools": 1,
    }  # fmt: skip


def test_limits_apply_to_each_pool() -> None:
    found = desired(master(), heard(master(), "b", "a"), 0)
    (group,) = queue_of(found, "group1")["resourceGroups"]
    limit = [{"name": "pods", "nominalQuota": "0", "borrowingLimit": "30"}]
    assert group["flavors"] == [
        {"name": "masterqueue-interlink-a", "resources": limit},
        {"name": "masterqueue-interlink-b", "resources": limit},
    ]


def test_without_a_pool_every_queue_is_held() -> None:
    found = desired(master(), heard(master()), 0)
    zero = [{"name": name, "nominalQuota": "0"} for name in ("cpu", "memory", "pods", "nvidia.com/gpu")]
    for name in ("masterqueue", "group1"):
        spec = queue_of(found, name)
        assert spec["stopPolicy"] == "Hold"
        assert spec["resourceGroups"][0]["flavors"] == [{"name": "masterqueue-empty", "resources": zero}]
    assert [flavor.metadata.name for flavor in found.flavors] == ["masterqueue-empty"]
    assert (found.status.conditions[2].status, found.status.conditions[2].reason) == ("False", "NoneActive")


def test_an_expired_pool_is_in_no_queue_until_it_returns() -> None:
    pools = heard(master(), "a", "b")
    pools.receive(SOURCE, "b", PUBLISHED, 20)
    found = desired(master(), pools, 30)
    assert flavors_of(queue_of(found, "masterqueue")) == ["masterqueue-interlink-b"]
    assert [(pool.name, pool.state) for pool in found.status.pools] == [("a", "Silent"), ("b", "Active")]
    pools.receive(SOURCE, "a", PUBLISHED, 40)
    assert len(flavors_of(queue_of(desired(master(), pools, 41), "group1"))) == 2


def test_the_smaller_of_published_and_nominal_quota_counts() -> None:
    content = document(nominalQuota={"cpu": "1500m", "memory": "64Gi", "nvidia.com/gpu": 2})
    found = desired(master(content), heard(master(content), "a"), 0)
    (group,) = queue_of(found, "masterqueue")["resourceGroups"]
    assert {one["name"]: one["nominalQuota"] for one in group["flavors"][0]["resources"]} == {
        "cpu": "1500m",
        "memory": "32Gi",
        "pods": "500",
        "nvidia.com/gpu": "0",
    }


def test_every_flavor_has_every_resource_that_one_has() -> None:
    view = ClusterView(foreign_flavors={"local-cpu"})
    content = document(canLendTo=[{"queue": "g", "lendingLimit": {"cpu": 2}}])
    local = {
        "name": "local-cpu",
        "localFlavor": {},
        "nominalQuota": {"nvidia.com/gpu": 4},
        "canLendTo": [{"queue": "g", "lendingLimit": {"nvidia.com/gpu": 1}}],
    }
    content["spec"]["flavors"].append(local)
    found = desired(master(content), heard(master(content), "a"), 0, view)
    (main,), (branch,) = (queue_of(found, name)["resourceGroups"] for name in ("masterqueue", "g"))
    assert main["coveredResources"] == ["cpu", "memory", "pods", "nvidia.com/gpu"]
    assert [one["nominalQuota"] for one in main["flavors"][1]["resources"]] == ["0", "0", "0", "4"]
    assert branch["coveredResources"] == ["cpu", "nvidia.com/gpu"]
    assert [[one["borrowingLimit"] for one in flavor["resources"]] for flavor in branch["flavors"]] == [
        ["2", "0"],
        ["0", "1"],
    ]
    assert [flavor.metadata.name for flavor in found.flavors] == ["masterqueue-interlink-a"], (
        "the local one is not ours"
    )


def test_a_local_flavor_needs_no_pool() -> None:
    content = document(name="local-cpu", natsFlavor=None, localFlavor={})
    found = desired(master(content), heard(master(content)), 0, ClusterView(foreign_flavors={"local-cpu"}))
    assert (queue_of(found, "masterqueue")["stopPolicy"], found.flavors) == ("None", ())
    assert flavors_of(queue_of(found, "group1")) == ["local-cpu"]
    assert found.status.conditions[1].status == "True"


def test_a_missing_local_flavor_is_omitted_and_reported() -> None:
    content = document(name="local-cpu", natsFlavor=None, localFlavor={})
    found = desired(master(content), heard(master(content)), 0)
    assert flavors_of(queue_of(found, "masterqueue")) == ["masterqueue-empty"]
    assert found.status.problems == ("localFlavor local-cpu: the ResourceFlavor does not exist; create it",)
    assert found.status.conditions[0].status == "False"


def test_a_removed_branch_is_held() -> None:
    content = document(canLendTo=[{"queue": "group2", "lendingLimit": {"pods": 1}}])
    own = {"masterqueue", "group1", "group2"}
    found = desired(master(content), heard(master(content), "a"), 0, ClusterView(own_queues=own))
    assert [queue.metadata.name for queue in found.queues] == ["masterqueue", "group2", "group1"]
    assert (queue_of(found, "group1")["stopPolicy"], queue_of(found, "group2")["stopPolicy"]) == ("Hold", "None")


def test_every_queue_has_the_fields_of_the_template() -> None:
    content = document()
    content["spec"]["template"] = {
        "cohort": "c",
        "stopPolicy": "HoldAndDrain",
        "queueingStrategy": "StrictFIFO",
        "namespaceSelector": {"matchLabels": {"a": "b"}},
        "flavorFungibility": {"whenCanBorrow": "Borrow", "whenCanPreempt": "TryNextFlavor"},
        "preemption": {"reclaimWithinCohort": "Any"},
    }
    for names in (["a"], []):
        found = desired(master(content), heard(master(content), *names), 0)
        for queue in ("masterqueue", "group1"):
            spec = queue_of(found, queue)
            del spec["resourceGroups"]
            assert spec == {
                "cohortName": "c",
                "stopPolicy": "HoldAndDrain",
                "queueingStrategy": "StrictFIFO",
                "namespaceSelector": {"matchLabels": {"a": "b"}},
                "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"},
                "preemption": {"reclaimWithinCohort": "Any"},
            }


def test_objects_of_another_owner_are_not_changed() -> None:
    pools = heard(master(), "a", "b")
    view = ClusterView(foreign_queues={"group1", "other"}, foreign_flavors={"masterqueue-interlink-a"})
    found = desired(master(), pools, 0, view)
    assert [queue.metadata.name for queue in found.queues] == ["masterqueue"]
    assert flavors_of(queue_of(found, "masterqueue")) == ["masterqueue-interlink-b"]
    assert (found.status.conditions[0].status, found.status.conditions[0].reason) == ("False", "Conflict")
    assert found.status.problems == (
        "pool a: ResourceFlavor masterqueue-interlink-a has another owner; rename the pool",
        "ClusterQueue group1: has another owner; choose another name",
    )
    found = desired(master(), pools, 0, ClusterView(foreign_queues={"masterqueue"}))
    assert [queue.metadata.name for queue in found.queues] == ["group1"]


def test_the_controller_waits_for_objects_of_an_earlier_master_queue() -> None:
    names: dict[str, Any] = {"foreign_queues": {"group1"}, "foreign_flavors": {"masterqueue-interlink-a"}}
    leaving = {("ClusterQueue", "group1"), ("ResourceFlavor", "masterqueue-interlink-a")}
    found = desired(master(), heard(master(), "a"), 0, ClusterView(**names, leaving=leaving))
    assert [queue.metadata.name for queue in found.queues] == ["masterqueue"]
    assert found.status.problems == (
        "pool a: ResourceFlavor masterqueue-interlink-a belongs to an earlier MasterQueue; the controller replaces it"
        " once no job uses it",
        "ClusterQueue group1: belongs to an earlier MasterQueue; the controller replaces it once no job uses it",
    )


def test_a_pool_whose_flavor_name_is_in_use_is_reported_and_in_no_queue() -> None:
    content = document(name="a")
    second = {**content["spec"]["flavors"][0], "name": "a-b"}
    second["natsFlavor"] = {**second["natsFlavor"], "natsSubject": "second"}
    content["spec"]["flavors"].append(second)
    pools = heard(master(content), "b-c")
    pools.receive((CONNECTOR, "second"), "c", PUBLISHED, 0)
    found = desired(master(content), pools, 0)
    assert flavors_of(queue_of(found, "masterqueue")) == ["masterqueue-a-b-c"]
    wrong = "ResourceFlavor masterqueue-a-b-c is also the flavor of another pool; rename one of the two pools"
    assert [pool.problems for pool in found.status.pools] == [(), (wrong,)]


def test_a_pool_in_two_flavors_is_an_error_in_the_status() -> None:
    content = document()
    content["spec"]["flavors"].append({**content["spec"]["flavors"][0], "name": "second"})
    found = desired(master(content), heard(master(content), "a"), 0)
    assert flavors_of(queue_of(found, "masterqueue")) == ["masterqueue-interlink-a"]
    wrong = "also matches flavor second, but belongs to interlink; change one of the two flavors"
    assert (found.status.problems, found.status.pools[0].problems) == ((f"pool a: {wrong}",), (wrong,))
    assert (found.status.conditions[0].status, found.status.conditions[0].reason) == ("False", "Conflict")


def test_problems_of_a_message_are_reported_and_the_rest_applies() -> None:
    message = decoded(b'{"quotas":{"cpu":-1,"pods":2},"labels":["x"]}')
    found = desired(master(), heard(master(), "a", message=message), 0)
    assert found.status.pools[0].problems == (
        "quotas['cpu']: -1 is negative; write 0 or more",
        "labels[0]: 'x' has no '='; write key=value",
    )
    assert (found.status.problems, found.status.conditions[0].status) == ((), "True")
    (group,) = queue_of(found, "masterqueue")["resourceGroups"]
    assert group["flavors"][0]["resources"] == [{"name": "pods", "nominalQuota": "2"}]


def test_a_queue_has_no_more_flavors_than_kueue_allows() -> None:
    content = document()
    content["spec"]["flavors"].append({"name": "local", "localFlavor": {}, "nominalQuota": {"pods": 1}})
    found = desired(
        master(content),
        heard(master(content), *(f"p{number:03}" for number in range(70))),
        0,
        ClusterView(foreign_flavors={"local"}),
    )
    names = flavors_of(queue_of(found, "masterqueue"))
    assert (len(names), names[0], names[-2:]) == (
        MOST_FLAVORS,
        "masterqueue-interlink-p000",
        ["masterqueue-interlink-p062", "local"],
    )
    assert len(found.status.problems) == 7


def test_while_the_spec_is_invalid_only_the_status_changes() -> None:
    content = document()
    content["status"] = plain(desired(master(), heard(master(), "a"), 0).status)
    content["spec"]["template"]["stopPolicy"] = "Stop"
    before = master(content).status
    found = desired(master(content), heard(master()), 50)
    assert (found.flavors, found.queues, found.wrong) == ((), (), True)
    assert found.status.pools == before.pools
    ready, connected, active = found.status.conditions
    assert (ready.status, ready.reason, ready.last_transition_time) == ("False", "InvalidSpec", "1970-01-01T00:00:50Z")
    assert ready.message.startswith("spec.template.stopPolicy: 'Stop' is unknown")
    assert (connected, active) == before.conditions[1:]


def test_a_lost_connection_changes_a_condition_only() -> None:
    pools = heard(master(), "a")
    before = desired(master(), pools, 5)
    pools.lost(CONNECTOR, 5)
    after = desired(master(), pools, 5000)
    assert (after.flavors, after.queues, after.status.pools) == (before.flavors, before.queues, before.status.pools)
    assert after.status.conditions[1].message == (
        "no connection for interlink.resources: connecting; pools keep their state"
    )
    assert "password" not in str(after.status)


def test_times_in_the_status_follow_the_wall_clock_after_it_was_set() -> None:
    pools = heard(master(), "a")
    before, after = (desired(master(), pools, 5, ClusterView(ahead=ahead)) for ahead in (0.0, 3600.0))
    assert (after.flavors, after.queues) == (before.flavors, before.queues)
    assert [pool.last_message[11:13] for one in (before, after) for pool in one.status.pools] == ["00", "01"]
    for condition in after.status.conditions:
        assert condition.last_transition_time == "1970-01-01T01:00:05Z"


def test_a_restart_makes_the_same_objects() -> None:
    before = desired(master(), heard(master(), "a", "b"), 3)
    content = {**document(), "status": plain(before.status)}
    pools = Pools(master(content).spec)
    pools.restore(master(content).status.pools)
    after = desired(master(content), pools, 9000)
    assert (plain(after.queues), plain(after.flavors)) == (plain(before.queues), plain(before.flavors))
    assert after.status.pools == before.status.pools


def test_the_bytes_do_not_depend_on_the_order_of_messages() -> None:
    names = [f"p{number}" for number in range(20)]
    found = set()
    for seed in range(5):
        random.Random(seed).shuffle(names)
        found.add(msgspec.json.encode(desired(master(), heard(master(), *names), 7)))
    assert len(found) == 1


def test_a_local_queue_has_kueues_form() -> None:
    queue = LocalQueue(
        metadata=ObjectMeta(name="gr1", namespace="default"), spec=LocalQueueSpec(cluster_queue="group1")
    )
    assert plain(queue) == {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"name": "gr1", "namespace": "default"},
        "spec": {"clusterQueue": "group1"},
    }


@pytest.mark.parametrize("character", [chr(0x20AC), chr(0x1F600), "<", chr(34), chr(0)])
def test_a_status_fits_into_one_object_whatever_is_published(character: str) -> None:
    """The API server takes 1.5 MiB: a larger status would never be written, and a restart would forget its pools."""
    content = document()
    (flavor,) = content["spec"]["flavors"]
    content["spec"]["flavors"] = [{**flavor, "name": f"{number:02}{'x' * 60}"} for number in range(MOST_FLAVORS)]
    labels = [f"{number:02}{'n' * 18}={number:02}" for number in range(62)]
    wrong = [f"{number}{character * 100}={'w' * 90}" for number in range(64)]
    taints = [f"{number}{'e' * 60}/{'n' * 20}={'v' * 35}:PreferNoSchedule" for number in range(7)]
    amounts = {"cpu": "1500m", "memory": "32Gi", "pods": 10, "nvidia.com/gpu": 7}
    quotas = amounts | {f"{number}{character * 80}": 1 for number in range(9)}
    message = decoded(msgspec.json.encode({"quotas": quotas, "labels": labels + wrong, "taints": taints}))
    assert (len(message.labels), len(message.taints)) == (62, 7)
    queue = master(content)
    names = [f"p{number:03}{'q' * 59}" for number in range(MOST_POOLS)]
    pools = heard(queue, *names, message=message)
    for name in names:
        pools.refused(name, "the message is not valid JSON: " + "x" * 200, 0)
    found = desired(queue, pools, 0)
    assert all(any("more problems in this message" in line for line in pool.problems) for pool in found.status.pools)
    kept = msgspec.json.encode(found.status)
    assert len(kept) + 5 * sum(map(kept.count, b"<>&")) < 1.4 * 2**20  # as Go writes it
    assert len(found.status.problems) == 65
