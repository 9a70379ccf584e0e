"""MasterQueues over their lives: what is in the cluster after what has happened, and how often it was written."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fluence_plugins.master_queue.controller.controller import wall_ahead
from session_scheduler.sdk.dynamic_client import Forbidden, NotFound, Unavailable

from ..virtual_time import run
from ..world import CONNECTOR, SUBJECT, Api, World, document

Life = Callable[[World], Awaitable[None]]
NAME = "masterqueue-interlink-"


def lives(life: Life, *masters: dict[str, Any], api: Api | None = None) -> None:
    """A controller's life."""

    async def whole() -> None:
        async with World(*masters, api=api) as world:
            await life(world)

    run(whole())


def test_times_in_the_status_follow_the_wall_clock_after_it_was_set() -> None:
    times = {"now": 100.0, "wall": 100.0}
    ahead = wall_ahead(lambda: times["now"], lambda: times["wall"])
    found = []
    for now, wall in ((110.0, 110.4), (120.0, 3720.4), (130.0, 3730.1), (140.0, 139.9)):
        times |= {"now": now, "wall": wall}
        found.append(round(ahead(), 6))
    assert found == [0.0, 3600.4, 3600.4, -0.1]


def test_queues_follow_a_pool_that_appears_expires_and_returns() -> None:
    async def life(world: World) -> None:
        assert world.flavors("masterqueue") == world.flavors("group1") == ["masterqueue-empty"]
        assert world.spec("clusterqueues", "group1")["stopPolicy"] == "Hold"
        world.publish("a", cpu=8, pods=10)
        await asyncio.sleep(1)
        assert world.flavors("masterqueue") == world.flavors("group1") == [NAME + "a"]
        assert (world.pools(), world.conditions()["PoolsActive"]) == ({"a": "Active"}, ("True", "Heard"))
        await asyncio.sleep(28)
        assert world.pools() == {"a": "Active"}
        await asyncio.sleep(2)
        assert world.flavors("masterqueue") == world.flavors("group1") == ["masterqueue-empty"]
        assert (world.pools(), world.conditions()["PoolsActive"]) == ({"a": "Silent"}, ("False", "NoneActive"))
        world.publish("a", cpu=4, pods=10)
        await asyncio.sleep(1)
        assert world.flavors("masterqueue") == [NAME + "a"]
        (group,) = world.spec("clusterqueues", "masterqueue")["resourceGroups"]
        assert group["flavors"][0]["resources"][0] == {"name": "cpu", "nominalQuota": "4"}

    lives(life, document())


def test_a_pool_that_falls_silent_during_a_pass_leaves_the_queues_at_once() -> None:
    async def life(world: World) -> None:
        world.publish("a", pods=10)
        await asyncio.sleep(29.99)
        world.publish("b", pods=10)  # the pass for it begins while the other pool is still active
        await asyncio.sleep(1)
        assert world.pools() == {"a": "Silent", "b": "Active"}
        assert world.flavors("masterqueue") == world.flavors("group1") == [NAME + "b"]

    lives(life, document())


def test_unchanged_objects_are_not_written() -> None:
    async def life(world: World) -> None:
        await world.publish_for(20, "a", "b", pods=3)
        world.api.counted()
        await world.publish_for(600, "a", "b", every=1, pods=3)
        assert world.api.counted() == {"masterqueues/status": 20}  # when they were heard last, each half minute
        world.publish("b", pods=4)
        await asyncio.sleep(1)
        assert world.api.counted() == {"clusterqueues": 1, "masterqueues/status": 1}

    lives(life, document())


def test_many_changes_at_once_cause_one_write_of_each_object() -> None:
    async def life(world: World) -> None:
        await world.publish_for(10, *(f"p{number}" for number in range(40)), pods=3)
        world.api.counted()
        for pods in range(50):
            for number in range(40):
                world.publish(f"p{number}", pods=pods)
        await asyncio.sleep(1)
        assert world.api.counted() == {"clusterqueues": 1, "masterqueues/status": 1}

    lives(life, document())


def test_an_edit_loses_no_pool() -> None:
    async def life(world: World) -> None:
        world.publish("a", b'{"quotas":{"pods":3},"labels":["k=v"],"taints":["t=1:NoExecute"]}')
        await asyncio.sleep(10)
        before = world.spec("resourceflavors", NAME + "a")
        world.api.counted()
        edited = document(nominalQuota={"pods": 2}, canLendTo=[{"queue": "group2", "lendingLimit": {"pods": 1}}])
        world.api.put("masterqueues", edited)
        await asyncio.sleep(1)
        assert world.spec("resourceflavors", NAME + "a") == before
        assert world.api.objects["resourceflavors", NAME + "a"]["metadata"]["labels"] == {"k": "v"}
        assert world.flavors("masterqueue") == world.flavors("group2") == [NAME + "a"]
        assert world.spec("clusterqueues", "group1")["stopPolicy"] == "Hold"  # held, not deleted
        assert world.pools() == {"a": "Active"}
        await asyncio.sleep(18)
        assert world.pools() == {"a": "Active"}
        await asyncio.sleep(2)
        assert world.pools() == {"a": "Silent"}  # thirty seconds after its message, edit or not

    lives(life, document())


def test_an_edit_that_first_appears_in_the_answer_to_a_status_write_is_not_lost() -> None:
    async def life(world: World) -> None:
        world.publish("a", pods=3)
        await asyncio.sleep(1)
        take = world.api.takes.pop()  # events come late from here on
        late: list[tuple[Any, Any]] = []
        world.api.takes.append(lambda change, obj: late.append((change, obj)))
        world.api.put("masterqueues", document(nominalQuota={"pods": 2}))
        world.publish("a", b"?")  # a bad message, which the status reports
        await asyncio.sleep(1)
        world.api.takes[:] = [take]
        for change, obj in late:
            take(change, obj)
        await asyncio.sleep(1)
        (group,) = world.spec("clusterqueues", "masterqueue")["resourceGroups"]
        assert group["flavors"][0]["resources"] == [{"name": "pods", "nominalQuota": "2"}]

    lives(life, document())


def test_while_a_spec_is_invalid_all_objects_stay_and_the_problem_is_reported() -> None:
    async def life(world: World) -> None:
        world.publish("a", pods=3)
        await asyncio.sleep(1)
        before = {key: obj for key, obj in world.api.objects.items() if key[0] != "masterqueues"}
        world.api.put("masterqueues", document(nominalQuota={"pods": -1}))
        await asyncio.sleep(1)
        await world.publish_for(60, "a", pods=5)
        assert world.conditions()["Ready"] == ("False", "InvalidSpec")
        assert {key: obj for key, obj in world.api.objects.items() if key[0] != "masterqueues"} == before
        world.api.put("masterqueues", document())
        await asyncio.sleep(1)
        assert (world.conditions()["Ready"], world.pools()) == (("True", "Applied"), {"a": "Active"})
        assert world.spec("clusterqueues", "masterqueue")["resourceGroups"][0]["flavors"][0]["resources"] == [
            {"name": "pods", "nominalQuota": "5"}
        ]

    lives(life, document())


def test_a_restart_keeps_queues_as_they_were_until_each_pools_own_time_out() -> None:
    api = Api()

    async def whole() -> None:
        async with World(document(), api=api) as world:
            world.publish("a", pods=3)
            await asyncio.sleep(1)
        await asyncio.sleep(600)
        api.counted()
        async with World(api=api) as world:
            await asyncio.sleep(25)
            assert (world.pools(), world.flavors("masterqueue")) == ({"a": "Active"}, [NAME + "a"])
            assert api.counted() == Counter()
            await asyncio.sleep(10)
            assert (world.pools(), world.flavors("masterqueue")) == ({"a": "Silent"}, ["masterqueue-empty"])

    run(whole())


def test_silence_does_not_count_while_nats_is_down() -> None:
    async def life(world: World) -> None:
        world.publish("a", pods=3)
        await asyncio.sleep(10)
        world.nats.down[CONNECTOR] = "connection refused"
        world.nats.look()
        await asyncio.sleep(3600)
        assert (world.pools(), world.flavors("group1")) == ({"a": "Active"}, [NAME + "a"])
        assert world.conditions()["NatsConnected"] == ("False", "Disconnected")
        message = next(one["message"] for one in world.status()["conditions"] if one["type"] == "NatsConnected")
        assert message == f"no connection for {SUBJECT}: connection refused; pools keep their state"
        world.nats.down.clear()
        world.nats.look()
        await asyncio.sleep(19)
        assert (world.pools(), world.conditions()["NatsConnected"]) == ({"a": "Active"}, ("True", "Connected"))
        await asyncio.sleep(2)
        assert world.pools() == {"a": "Silent"}

    lives(life, document())


def test_the_time_of_a_connection_loss_found_later_counts_for_no_pool() -> None:
    async def life(world: World) -> None:
        world.publish("a", pods=3)
        await asyncio.sleep(28)
        world.nats.down[CONNECTOR], world.nats.unheard = "the server no longer responds", 14.0
        world.nats.look()
        await asyncio.sleep(100)
        world.nats.down.clear()
        world.nats.look()
        await asyncio.sleep(15)
        assert (world.pools(), world.flavors("masterqueue")) == ({"a": "Active"}, [NAME + "a"])
        await asyncio.sleep(2)
        assert world.pools() == {"a": "Silent"}

    lives(life, document())


def test_the_flavor_of_an_expired_pool_is_deleted_once_no_object_names_it() -> None:
    held = {"status": {"admission": {"podSetAssignments": [{"flavors": {"cpu": NAME + "a"}}]}}}

    async def life(world: World) -> None:
        world.api.workloads = [held]
        world.publish("a", pods=3)
        world.publish("b", pods=3)
        await asyncio.sleep(35)
        assert world.api.named("resourceflavors") == ["masterqueue-empty", NAME + "a", NAME + "b"]  # Kueue may lag
        await asyncio.sleep(15)
        assert world.api.named("resourceflavors") == ["masterqueue-empty", NAME + "a"]
        await asyncio.sleep(600)
        assert NAME + "a" in world.api.named("resourceflavors")
        world.api.workloads = [{"status": {**held["status"], "conditions": [{"type": "Finished", "status": "True"}]}}]
        await asyncio.sleep(70)
        assert world.api.named("resourceflavors") == ["masterqueue-empty"]  # which stays

    lives(life, document())


def test_a_flavor_that_is_being_deleted_is_made_again_once_it_is_gone() -> None:
    async def life(world: World) -> None:
        world.publish("a", pods=3)
        await asyncio.sleep(1)
        world.api.put(
            "resourceflavors", {"metadata": {"name": NAME + "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
        )
        await asyncio.sleep(1)
        assert world.conditions()["Ready"] == ("False", "WriteFailed")
        assert world.flavors("masterqueue") == ["masterqueue-empty"]  # while a queue names it, Kueue does not let it go
        world.api.drop("resourceflavors", NAME + "a")
        await asyncio.sleep(1)
        assert world.conditions()["Ready"] == ("True", "Applied")
        assert "deletionTimestamp" not in world.api.objects["resourceflavors", NAME + "a"]["metadata"]
        assert world.flavors("masterqueue") == [NAME + "a"]

    lives(life, document())


def test_changes_and_deletions_by_other_clients_are_reverted() -> None:
    async def life(world: World) -> None:
        world.publish("a", pods=3)
        await asyncio.sleep(1)
        before = world.spec("clusterqueues", "group1")
        world.api.put("clusterqueues", {"metadata": {"name": "group1"}, "spec": {**before, "cohortName": "other"}})
        world.api.drop("resourceflavors", NAME + "a")
        await asyncio.sleep(1)
        assert world.spec("clusterqueues", "group1") == before
        assert NAME + "a" in world.api.named("resourceflavors")

    lives(life, document())


def test_a_queue_of_another_owner_is_not_changed_until_it_is_deleted() -> None:
    async def life(world: World) -> None:
        assert world.spec("clusterqueues", "group1") == {"cohortName": "mine"}
        assert world.conditions()["Ready"] == ("False", "Conflict")
        assert world.status()["problems"] == ["ClusterQueue group1: has another owner; choose another name"]
        world.api.drop("clusterqueues", "group1")
        await asyncio.sleep(1)
        assert world.spec("clusterqueues", "group1")["cohortName"] == "masterqueue"
        assert world.conditions()["Ready"] == ("True", "Applied")

    api = Api()

    async def whole() -> None:
        api.put("clusterqueues", {"metadata": {"name": "group1"}, "spec": {"cohortName": "mine"}})
        async with World(document(), api=api) as world:
            await life(world)

    run(whole())


def test_the_controller_waits_for_an_earlier_queue_that_jobs_still_use() -> None:
    async def life(world: World) -> None:
        assert world.status()["problems"] == [
            "ClusterQueue group1: belongs to an earlier MasterQueue; the controller replaces it once no job uses it"
        ]
        world.api.drop("clusterqueues", "group1")
        await asyncio.sleep(1)
        assert world.conditions()["Ready"] == ("True", "Applied")

    api = Api()

    async def whole() -> None:
        api.put("clusterqueues", {"metadata": {"name": "group1", "deletionTimestamp": "2026-01-01T00:00:00Z"}})
        async with World(document(), api=api) as world:
            await life(world)

    run(whole())


@pytest.mark.parametrize("plural", ["resourceflavors", "clusterqueues"])
def test_a_start_without_a_list_of_objects_removes_nothing_from_queues(plural: str) -> None:
    """An API server that starts, too, knows its roles and other kinds a moment later."""
    api, master = Api(), document()
    lent = [{"queue": "group1", "lendingLimit": {"pods": 5}}]
    local = {"name": "local-cpu", "localFlavor": {}, "nominalQuota": {"pods": 50}, "canLendTo": lent}
    master["spec"]["flavors"].append(local)

    async def whole() -> None:
        api.put("resourceflavors", {"metadata": {"name": "local-cpu"}})
        async with World(master, api=api) as world:
            world.publish("a", pods=3)
            await asyncio.sleep(1)
            assert world.flavors("masterqueue") == world.flavors("group1") == [NAME + "a", "local-cpu"]
        api.unlisted = {plural}
        api.counted()
        async with World(api=api) as world:
            await asyncio.sleep(25)
            assert set(api.counted()) == {"masterqueues/status"}
            assert world.status()["problems"] == [
                f"{plural}: the API server does not list these objects: is Kueue installed, and does this account have "
                "the ClusterRole fluence-master-queue?"
            ]
            assert (world.conditions()["Ready"], world.pools()) == (("False", "WriteFailed"), {"a": "Active"})
            api.serve_all()
            await world.publish_for(40, "a", pods=4)
            assert world.flavors("masterqueue") == world.flavors("group1") == [NAME + "a", "local-cpu"]
            assert world.conditions()["Ready"] == ("True", "Applied")

    run(whole())


def test_a_queue_that_another_client_created_meanwhile_is_not_overwritten() -> None:
    async def life(world: World) -> None:
        world.api.takes.clear()  # of this one the controller has not heard yet
        world.api.put("clusterqueues", {"metadata": {"name": "late"}, "spec": {"cohortName": "mine"}})
        edited = document(canLendTo=[{"queue": "late", "lendingLimit": {"pods": 1}}])
        world.controller._observe(*_edit(world, edited))
        await asyncio.sleep(1)
        assert world.spec("clusterqueues", "late") == {"cohortName": "mine"}
        assert world.conditions()["Ready"] == ("False", "WriteFailed")

    lives(life, document())


def _edit(world: World, content: dict[str, Any]) -> Any:
    from session_scheduler.cluster.dynamic_informer import Change

    from ..world import typed

    return Change.MODIFIED, typed("masterqueues", world.api.put("masterqueues", content))


def test_several_masterqueues_share_a_subject_independently() -> None:
    second = document(
        name="other", canLendTo=[{"queue": "group2", "lendingLimit": {"pods": 5}}], nominalQuota={"pods": 7}
    )
    second["metadata"]["name"] = "second"

    async def life(world: World) -> None:
        world.publish("a", pods=30)
        await asyncio.sleep(1)
        assert (world.flavors("masterqueue"), world.flavors("second")) == ([NAME + "a"], ["second-other-a"])
        assert world.nats.wanted == {CONNECTOR: [SUBJECT]}
        world.api.drop("masterqueues", "second")
        await asyncio.sleep(1)
        world.api.counted()
        world.publish("b", pods=1)
        await asyncio.sleep(1)
        assert world.flavors("masterqueue") == [NAME + "a", NAME + "b"]
        assert world.api.counted() == {"resourceflavors": 1, "clusterqueues": 2, "masterqueues/status": 1}
        world.api.drop("masterqueues", "masterqueue")
        await asyncio.sleep(1)
        assert world.nats.wanted == {}

    lives(life, document(), second)


@pytest.mark.parametrize(
    ("pool", "data", "where", "line"),
    [
        ("a", b"?", "pool",
         "last message: the message is not valid JSON: JSON is malformed: invalid character (byte 0)"),
        ("a", b"[]", "pool", "last message: the message is not a JSON object; write quotas, labels and taints"),
        ("a", b"x" * (1 << 20), "pool", "last message: the message has 1048576 bytes; send at most 65536"),
        ("new", b"[]", "status", "message from 'new': the message is not a JSON object; write quotas, labels "
                                    "and taints"),
        ("B_d", b'{"quotas":{}}', "status", "message from 'B_d': 'B_d' is not a valid pool name; use at most 63 "
                                            "characters (a-z, 0-9 and -), with no - at the start or end"),
    ],
)  # fmt: skip
def test_an_invalid_message_is_reported_and_changes_nothing_else(pool: str, data: bytes, where: str, line: str) -> None:
    async def life(world: World) -> None:
        world.publish("a", pods=3)
        await asyncio.sleep(1)
        world.api.counted()
        for _ in range(100):
            world.publish(pool, data)
            await asyncio.sleep(0.01)
        await asyncio.sleep(1)
        assert world.api.counted() == {"masterqueues/status": 1}
        status = world.status()
        assert (status["pools"][0] if where == "pool" else status)["problems"] == [line]
        assert world.conditions()["Ready"] == ("True", "Applied")
        samples = {tuple(one.labels.values()): one.value for one in world.meter.families()[0].samples}
        assert samples[SUBJECT, "refused"] == 100
        world.publish(pool.lower().replace("_", "-"), pods=3)
        await asyncio.sleep(601)
        assert "problems" not in world.status()

    lives(life, document())


def test_the_valid_parts_of_a_message_apply_and_the_others_are_reported() -> None:
    async def life(world: World) -> None:
        world.publish("a", b'{"quotas":{"pods":2,"cpu":-1},"labels":["x","k=v"]}')
        await asyncio.sleep(1)
        assert world.api.objects["resourceflavors", NAME + "a"]["metadata"]["labels"] == {"k": "v"}
        assert len(world.status()["pools"][0]["problems"]) == 2

    lives(life, document())


def test_a_failed_write_is_reported_and_retried() -> None:
    async def life(world: World) -> None:
        world.api.refuse = lambda kind, name: Forbidden(f"{kind} {name}: 403: no") if kind == "clusterqueues" else None
        world.publish("a", pods=3)
        await asyncio.sleep(1)
        assert world.status()["problems"] == ["clusterqueues masterqueue: 403: no", "clusterqueues group1: 403: no"]
        assert world.conditions()["Ready"] == ("False", "WriteFailed")
        assert NAME + "a" in world.api.named("resourceflavors")
        world.api.counted()
        await world.publish_for(300, "a", pods=3)
        assert world.api.counted()["clusterqueues"] <= 60  # ever more rarely
        world.api.refuse = lambda *_: None
        await world.publish_for(40, "a", pods=3)
        assert world.conditions()["Ready"] == ("True", "Applied")
        assert world.flavors("group1") == [NAME + "a"]

    lives(life, document())


@pytest.mark.parametrize("error", [Forbidden("403: no"), NotFound("404: there is no status"), Unavailable("503")])
def test_a_rejected_status_is_retried_with_backoff_however_many_messages_arrive(error: Exception) -> None:
    async def life(world: World) -> None:
        world.publish("a", pods=3)
        await asyncio.sleep(1)
        world.api.refuse = lambda kind, _: error if kind == "masterqueues/status" else None
        world.api.counted()
        await world.publish_for(600, "a", pods=3)
        assert world.api.counted().total() <= 30
        world.api.refuse = lambda *_: None
        await world.publish_for(40, "a", pods=4)
        assert (world.status()["pools"][0]["quota"], world.conditions()["Ready"][0]) == ({"pods": "4"}, "True")

    lives(life, document())


def test_a_masterqueue_that_causes_an_error_is_retried_with_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    async def life(world: World) -> None:
        world.publish("a", pods=3)
        await asyncio.sleep(40)
        passes: list[object] = []

        def broken(*arguments: object) -> None:
            passes.append(arguments)
            raise LookupError("bug")

        monkeypatch.setattr("fluence_plugins.master_queue.controller.reconciler.desired", broken)
        await world.publish_for(600, "a", pods=3)
        assert 10 <= len(passes) <= 30

    lives(life, document())


def test_frequent_messages_do_not_cause_frequent_writes() -> None:
    async def life(world: World) -> None:
        world.publish("b", pods=3)
        await asyncio.sleep(1)
        world.api.counted()
        for number in range(6000):  # a minute
            world.publish("a", pods=number)
            world.publish(f"B_{number % 100}", pods=1)
            await asyncio.sleep(0.01)
        counts = world.api.counted()
        assert 60 <= counts["clusterqueues"] <= 130
        assert 60 <= counts["masterqueues/status"] <= 130
        await asyncio.sleep(60)
        assert world.status()["pools"][0]["quota"] == {"pods": "5999"}
        world.publish("a", pods=1)
        await asyncio.sleep(0.1)
        assert world.status()["pools"][0]["quota"] == {"pods": "1"}  # at once where it is quiet

    lives(life, document(nominalQuota={}))


def test_a_flavor_that_cannot_be_created_does_not_keep_others_from_the_queues() -> None:
    async def life(world: World) -> None:
        world.publish("a", pods=3)
        await asyncio.sleep(1)
        world.api.refuse = lambda _, name: Forbidden(f"resourceflavors {name}: 403: no") if name == NAME + "b" else None
        await world.publish_for(40, "a", "b", "c", pods=3)
        assert world.flavors("masterqueue") == world.flavors("group1") == [NAME + "a", NAME + "c"]
        assert world.conditions()["Ready"] == ("False", "WriteFailed")
        assert world.status()["pools"][1]["problems"] == [
            f"ResourceFlavor {NAME}b does not exist and cannot be created yet: the queues will use it once it exists"
        ]
        world.api.refuse = lambda *_: None
        await world.publish_for(40, "a", "b", "c", pods=3)
        assert world.flavors("masterqueue") == world.flavors("group1") == [NAME + "a", NAME + "b", NAME + "c"]
        assert world.conditions()["Ready"] == ("True", "Applied")

    lives(life, document())


@pytest.mark.parametrize("write", range(12))
def test_a_successor_completes_the_writes_of_a_controller_that_ends_at_any_of_them(write: int) -> None:
    """It is killed when its write has been done and before it hears of that."""

    async def whole() -> None:
        api = Api()
        left = write

        def refuse(kind: str, name: str) -> Exception | None:
            nonlocal left
            left -= 1
            return Unavailable("killed") if left < 0 else None

        async with World(document(), api=api) as world:
            api.refuse = refuse
            world.publish("a", pods=3)
            await asyncio.sleep(0.3)
            api.put("masterqueues", document(canLendTo=[{"queue": "group2", "lendingLimit": {"pods": 1}}]))
            await asyncio.sleep(0.3)
        api.refuse = lambda *_: None
        async with World(api=api) as world:
            await world.publish_for(40, "a", pods=3)
            assert world.flavors("masterqueue") == world.flavors("group2") == [NAME + "a"]
            assert world.spec("clusterqueues", "group1")["stopPolicy"] == "Hold"
            assert (world.pools(), world.conditions()["Ready"]) == ({"a": "Active"}, ("True", "Applied"))
            api.counted()
            await world.publish_for(20, "a", pods=3)
            assert api.counted()["clusterqueues"] == 0

    run(whole())


def test_a_client_that_reverts_each_write_causes_ever_fewer_writes() -> None:
    async def life(world: World) -> None:
        world.publish("a", pods=3)
        await asyncio.sleep(1)

        def take(_: object, obj: Any) -> None:
            key = obj.key
            if key == "group1" and obj.spec["cohortName"] == "masterqueue":
                mine = {**world.spec("clusterqueues", "group1"), "cohortName": "theirs"}
                world.api.put("clusterqueues", {"metadata": {"name": "group1"}, "spec": mine})

        world.api.takes.append(take)
        world.api.put("clusterqueues", {"metadata": {"name": "group1", "labels": {"a": "b"}}})
        world.api.counted()
        await world.publish_for(600, "a", pods=3)
        assert 6 <= world.api.counted()["clusterqueues"] <= 20
        assert world.status()["problems"] == [
            "clusterqueues group1: another client (see managedFields) keeps reverting this object"
        ]
        world.api.takes.remove(take)
        await world.publish_for(80, "a", pods=3)
        assert world.spec("clusterqueues", "group1")["cohortName"] == "masterqueue"
        assert world.conditions()["Ready"] == ("True", "Applied")

    lives(life, document())


def test_namespaces_get_the_local_queues_that_they_request() -> None:
    async def life(world: World) -> None:
        asks = {"vk.io/local-queues": "gr1=group1, masterqueue, no=such, Bad_"}
        world.api.put("namespaces", {"metadata": {"name": "team", "annotations": asks}})
        await asyncio.sleep(1)
        assert world.api.named("localqueues") == ["team/gr1", "team/masterqueue"]
        assert world.spec("localqueues", "team/gr1") == {"clusterQueue": "group1"}
        world.api.put(
            "namespaces", {"metadata": {"name": "team", "annotations": {"vk.io/local-queues": "gr1=masterqueue"}}}
        )
        await asyncio.sleep(1)
        assert world.api.named("localqueues") == ["team/gr1"]
        assert world.spec("localqueues", "team/gr1") == {"clusterQueue": "masterqueue"}
        world.api.put("namespaces", {"metadata": {"name": "team", "annotations": {}}})
        await asyncio.sleep(1)
        assert world.api.named("localqueues") == []

    lives(life, document())


def test_no_local_queue_is_created_before_the_existing_ones_are_listed(caplog: pytest.LogCaptureFixture) -> None:
    """Else one that another client made, and that leads to the same queue, would be taken over without a conflict."""
    api = Api()
    api.unlisted = {"localqueues"}
    asks = {"vk.io/local-queues": "gr1=group1"}

    async def whole() -> None:
        api.put("namespaces", {"metadata": {"name": "team", "annotations": asks}})
        async with World(document(), api=api):
            await asyncio.sleep(60)
            assert api.named("localqueues") == []
            api.serve_all()
            await asyncio.sleep(6)
            assert api.named("localqueues") == ["team/gr1"]

    run(whole())
    assert (
        len([line for line in caplog.messages if "localqueues: the API server does not list these objects" in line])
        == 1
    )


def test_a_namespace_that_rejects_its_queue_blocks_no_other() -> None:
    async def life(world: World) -> None:
        world.api.refuse = lambda kind, name: Forbidden(f"{name}: 403: no") if name.startswith("a/") else None
        asks = {"vk.io/local-queues": "group1"}
        for name in ("a", "b"):
            world.api.put("namespaces", {"metadata": {"name": name, "annotations": asks}})
        await asyncio.sleep(1)
        assert world.api.named("localqueues") == ["b/group1"]
        world.api.refuse = lambda *_: None
        await asyncio.sleep(6)
        assert world.api.named("localqueues") == ["a/group1", "b/group1"]

    lives(life, document())


def test_local_queues_are_created_once_their_cluster_queue_exists() -> None:
    async def life(world: World) -> None:
        world.api.drop("clusterqueues", "group1")
        world.api.refuse = lambda _, name: Forbidden("clusterqueues: 403: no") if name == "group1" else None
        annotations = {"vk.io/local-queues": "gr1=group1"}
        world.api.put("namespaces", {"metadata": {"name": "team", "annotations": annotations}})
        await asyncio.sleep(5)
        world.api.refuse = lambda kind, _: Forbidden("no status") if kind == "masterqueues/status" else None
        await asyncio.sleep(60)
        assert world.api.named("localqueues") == ["team/gr1"]

    lives(life, document())
