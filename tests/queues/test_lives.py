"""What becomes of queues as pools, the NATS server, the MasterQueue and its controller come and go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ..controlplane.proxy import Fault, Proxy
from .controller_process import ControllerProcess, ControllerSettings
from .nats_peer import NatsServer
from .plane import CLUSTER_QUEUES, CONTROLLER, FLAVORS, LOCAL_QUEUES, MASTER_QUEUES, QueuesPlane
from .samples import master_queue

SUBJECT = "interlink.resources"
NAME = "masterqueue-interlink-"
EMPTY = "masterqueue-empty"
GRACE = 15
"""Seconds that its Deployment gives it."""
TIMEOUT = 10
"""Seconds of silence where a test waits for them, and needs a pool for less."""


def document(nats: NatsServer, *, timeout: int = 30, **flavor: Any) -> dict[str, Any]:
    """The document's MasterQueue, with other values in its flavor."""
    found = master_queue(nats.url)
    found["spec"]["flavors"][0] |= flavor
    found["spec"]["flavors"][0]["natsFlavor"]["poolTimeout"] = timeout
    return found


@contextmanager
def running(plane: QueuesPlane, folder: Path, **settings: Any) -> Iterator[ControllerProcess]:
    """`fluence master-queue`, to a clean end."""
    with ControllerProcess(folder, plane, ControllerSettings(controller=settings)) as process:
        process.start()
        process.wait_ready()
        try:
            yield process
        except BaseException:
            print(process.tail())
            raise
        ended = process.terminate()
        assert (ended.status, ended.seconds < GRACE) == (0, True)
        assert "Traceback" not in process.log.read_text()


def publish(nats: NatsServer, pool: str, **quotas: Any) -> None:
    nats.publish(f"{SUBJECT}.{pool}", {"quotas": quotas})


def publish_until(
    plane: QueuesPlane, nats: NatsServer, accepted: Callable[[dict[str, dict[str, Any]]], bool], **pools: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Each pool publishes its quotas, as often as the ClusterQueues are looked at: none falls silent meanwhile."""

    def looked_at(found: dict[str, dict[str, Any]]) -> bool:
        for pool, quotas in pools.items():
            publish(nats, pool, **quotas)
        return accepted(found)

    return plane.until(CLUSTER_QUEUES, looked_at)


def flavors(found: dict[str, dict[str, Any]], queue: str = "masterqueue") -> list[str]:
    groups = found.get(queue, {"spec": {}})["spec"].get("resourceGroups", ())
    return [flavor["name"] for group in groups for flavor in group["flavors"]]


def status(plane: QueuesPlane) -> Any:
    found = plane.item(MASTER_QUEUES, "masterqueue")
    assert found is not None
    return found.get("status", {})


def condition(plane: QueuesPlane, name: str) -> tuple[str, str]:
    (found,) = (one for one in status(plane)["conditions"] if one["type"] == name)
    return found["status"], found["message"]


def wait_condition(plane: QueuesPlane, name: str, value: str, seconds: float = 30.0) -> str:
    """The condition's message, once it has this status."""
    plane.until(
        MASTER_QUEUES,
        lambda found: any(
            (one["type"], one["status"]) == (name, value)
            for one in found["masterqueue"].get("status", {}).get("conditions", ())
        ),
        seconds,
    )
    return condition(plane, name)[1]


def test_pools_appear_change_fall_silent_and_return(plane: QueuesPlane, nats: NatsServer, tmp_path: Path) -> None:
    plane.create(document(nats, timeout=3))
    with running(plane, tmp_path):
        nats.wait_subscribed(f"{SUBJECT}.*")
        plane.until(CLUSTER_QUEUES, lambda found: flavors(found) == flavors(found, "group1") == [EMPTY])
        first, more, other = {"pods": 5, "cpu": 2}, {"pods": 7, "cpu": 2}, {"pods": 1}
        publish_until(plane, nats, lambda found: flavors(found) == flavors(found, "group1") == [NAME + "a"], a=first)
        publish_until(plane, nats, lambda found: _quota(found, "pods") == "7", a=more)
        publish_until(plane, nats, lambda found: flavors(found) == [NAME + "a", NAME + "b"], a=more, b=other)
        plane.until(CLUSTER_QUEUES, lambda found: flavors(found) == [EMPTY] and _stop_policy(found) == "Hold")
        assert wait_condition(plane, "PoolsActive", "False") == "0 of 2 pools are active"
        publish_until(
            plane,
            nats,
            lambda found: flavors(found) == flavors(found, "group1") == [NAME + "a"] and _stop_policy(found) == "None",
            a=more,
        )


def _stop_policy(found: dict[str, dict[str, Any]]) -> str:
    policy: str = found["group1"]["spec"]["stopPolicy"]
    return policy


def _quota(found: dict[str, dict[str, Any]], resource: str) -> str | None:
    (group,) = found["masterqueue"]["spec"]["resourceGroups"]
    quotas = {one["name"]: one["nominalQuota"] for one in group["flavors"][0]["resources"]}
    return quotas.get(resource)


def test_an_edit_with_live_pools_loses_nothing(plane: QueuesPlane, nats: NatsServer, tmp_path: Path) -> None:
    plane.create(document(nats))
    with running(plane, tmp_path):
        nats.wait_subscribed(f"{SUBJECT}.*")
        message = {"quotas": {"pods": 5}, "labels": ["site=one"], "taints": ["slow=yes:NoExecute"]}
        nats.publish(f"{SUBJECT}.a", message)
        plane.until(CLUSTER_QUEUES, lambda found: flavors(found) == [NAME + "a"])
        before = plane.items(FLAVORS)[NAME + "a"]
        connections = [one["cid"] for one in nats.connections()]
        lent = [{"queue": "group2", "lendingLimit": {"pods": 2}}]
        edited = document(nats, canLendTo=lent, nominalQuota={"pods": 3})
        plane.request("PATCH", f"{MASTER_QUEUES}/masterqueue", {"spec": edited["spec"]})

        def applied(found: dict[str, dict[str, Any]]) -> bool:  # each queue is written in its turn
            assert flavors(found) == [NAME + "a"]
            lends = flavors(found, "group2") == [NAME + "a"]
            return lends and _quota(found, "pods") == "3" and _stop_policy(found) == "Hold"

        plane.until(CLUSTER_QUEUES, applied)
        assert plane.items(FLAVORS)[NAME + "a"] == before
        assert [one["cid"] for one in nats.connections()] == connections
        assert [pool["state"] for pool in status(plane)["pools"]] == ["Active"]


def test_a_killed_nats_server_changes_no_queue_and_no_time_out(
    plane: QueuesPlane, nats: NatsServer, tmp_path: Path
) -> None:
    plane.create(document(nats, timeout=TIMEOUT))
    with running(plane, tmp_path) as process:
        nats.wait_subscribed(f"{SUBJECT}.*")
        publish_until(plane, nats, lambda found: flavors(found) == [NAME + "a"], a={"pods": 5})
        with nats.away():
            message = wait_condition(plane, "NatsConnected", "False")
            assert message.startswith(f"no connection for {SUBJECT}: ")
            assert nats.password not in message
            time.sleep(TIMEOUT + 1)
            assert flavors(plane.items(CLUSTER_QUEUES)) == [NAME + "a"]
        wait_condition(plane, "NatsConnected", "True")
        nats.wait_subscribed(f"{SUBJECT}.*")
        publish_until(
            plane, nats, lambda found: flavors(found) == [NAME + "a"] and _quota(found, "pods") == "6", a={"pods": 6}
        )
        plane.until(CLUSTER_QUEUES, lambda found: flavors(found) == [EMPTY])  # and then it is silent
        assert 'fluence_masterqueue_reconnects_total{connector="' in process.get("/metrics")[1]
        assert process.get("/configz")[0] == 401
        status, shown = process.get("/configz", plane.token())
        assert status == 200
        assert nats.password not in process.log.read_text() + process.get("/metrics")[1] + shown


def test_a_restart_keeps_queues_until_the_pools_own_time_out(
    plane: QueuesPlane, nats: NatsServer, tmp_path: Path
) -> None:
    plane.create(document(nats, timeout=TIMEOUT))
    with running(plane, tmp_path):
        nats.wait_subscribed(f"{SUBJECT}.*")
        publish(nats, "a", pods=5)
        plane.until(MASTER_QUEUES, lambda found: bool(found["masterqueue"].get("status", {}).get("pools")))
    time.sleep(TIMEOUT + 1)
    writes = plane.writes()
    with running(plane, tmp_path):
        nats.wait_subscribed(f"{SUBJECT}.*")
        time.sleep(3)
        assert flavors(plane.items(CLUSTER_QUEUES)) == [NAME + "a"]
        assert writes.all(CONTROLLER) == []
        plane.until(CLUSTER_QUEUES, lambda found: flavors(found) == [EMPTY])


@pytest.mark.parametrize("fault", [Fault.CALL_BEFORE, Fault.CALL_AFTER], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, 10))
def test_a_controller_killed_at_any_write_is_followed_by_one_that_ends_it(
    plane: QueuesPlane, nats: NatsServer, tmp_path: Path, number: int, fault: Fault
) -> None:
    plane.create(document(nats))
    with (
        Proxy(plane.server, plane.ca_file) as proxy,
        ControllerProcess(tmp_path, plane, url=proxy.url) as process,
    ):
        strike = proxy.at(number, fault, call=process.kill)
        process.start()
        lent = [{"queue": "group2", "lendingLimit": {"pods": 2}}]
        edited = {"spec": document(nats, canLendTo=lent)["spec"]}
        happens = {  # by the flavor that both queues have before: each causes writes of its own
            EMPTY: lambda: publish(nats, "a", pods=5),
            NAME + "a": lambda: plane.request("PATCH", f"{MASTER_QUEUES}/masterqueue", edited),
        }
        began = time.monotonic()
        while not strike.struck.wait(0.1):
            assert time.monotonic() - began < 30, f"write {number} does not come\n{process.tail()}"
            found = plane.items(CLUSTER_QUEUES)
            for flavor in list(happens):
                written = flavors(found) == flavors(found, "group1") == [flavor]
                if written and f"{SUBJECT}.*" in nats.subscriptions():
                    happens.pop(flavor)()
        for happen in happens.values():  # while it is away: no subscriber gets the message, which comes again
            happen()
        process.start()
        process.wait_ready()
        nats.wait_subscribed(f"{SUBJECT}.*")
        publish(nats, "a", pods=5)
        found = plane.until(CLUSTER_QUEUES, lambda found: flavors(found, "group2") == flavors(found) == [NAME + "a"])
        if "group1" in found:
            plane.until(CLUSTER_QUEUES, lambda found: found["group1"]["spec"]["stopPolicy"] == "Hold")
        assert set(plane.items(FLAVORS)) <= {EMPTY, NAME + "a"}
        wait_condition(plane, "Ready", "True")
        writes = plane.writes()
        publish(nats, "a", pods=5)
        time.sleep(0.5)
        assert [one for one in writes.all(CONTROLLER) if one.kind != "masterqueues/status"] == []
        assert process.terminate().status == 0


def test_bad_messages_and_bad_parts_are_dropped_counted_and_shown(
    plane: QueuesPlane, nats: NatsServer, tmp_path: Path
) -> None:
    plane.create(document(nats))
    with running(plane, tmp_path) as process:
        nats.wait_subscribed(f"{SUBJECT}.*")
        nats.publish_all([
            (f"{SUBJECT}.a", {"quotas": {"pods": 3, "cpu": -1, "memory": "1e40", "x": 1}, "labels": ["no", "k=v"],
                              "taints": ["t=1:NoSchedule", "t"]}),
            (f"{SUBJECT}.b", b"no JSON"),
            (f"{SUBJECT}.c", b'{"quotas": 7}'),
            (f"{SUBJECT}.UPPER", {"quotas": {"pods": 1}}),
            (f"{SUBJECT}.d", b"x" * (1 << 20)),
            (f"{SUBJECT}.e", b"\xff\xfe\x00"),
            (f"{SUBJECT}.f", {"quotas": {"pods": 4}}),
        ])  # fmt: skip
        found = plane.until(CLUSTER_QUEUES, lambda found: flavors(found) == [NAME + "a", NAME + "f"])
        assert _quota(found, "pods") == "3"
        flavor = plane.items(FLAVORS)[NAME + "a"]
        assert flavor["metadata"]["labels"] == {"k": "v"}
        assert [one["key"] for one in flavor["spec"]["nodeTaints"]][1:] == ["t"]
        plane.until(MASTER_QUEUES, lambda found: len(found["masterqueue"].get("status", {}).get("problems", ())) == 5)
        reported = "\n".join(status(plane)["problems"])
        for pool, word in (
            ("b", "not valid JSON"),
            ("c", "quotas"),
            ("UPPER", "pool name"),
            ("d", "1048576"),
            ("e", "not valid JSON"),
        ):
            assert any(f"'{pool}'" in line and word in line for line in reported.splitlines()), reported
        (first,) = (pool for pool in status(plane)["pools"] if pool["name"] == "a")
        assert len(first["problems"]) == 5
        assert condition(plane, "Ready")[0] == "True"
        metrics = process.get("/metrics")[1]
        for result, count in (("refused", 5), ("partial", 1), ("taken", 1)):
            assert f'fluence_masterqueue_messages_total{{result="{result}",subject="{SUBJECT}"}} {count}.0' in metrics


def test_another_owners_queue_is_left_alone_and_said(plane: QueuesPlane, nats: NatsServer, tmp_path: Path) -> None:
    first, second = document(nats), document(nats)
    second["metadata"]["name"] = "second"  # lends to group1 too
    plane.create(first)
    with running(plane, tmp_path):
        wait_condition(plane, "Ready", "True")
        made = plane.items(CLUSTER_QUEUES)["group1"]
        plane.create(second)
        plane.until(
            MASTER_QUEUES,
            lambda found: (
                found["second"].get("status", {}).get("problems")
                == ["ClusterQueue group1: has another owner; choose another name"]
            ),
        )
        assert plane.items(CLUSTER_QUEUES)["group1"] == made
        assert condition(plane, "Ready")[0] == "True"


def test_a_namespace_gets_the_local_queue_that_it_asks_for(
    plane: QueuesPlane, nats: NatsServer, tmp_path: Path
) -> None:
    plane.create(document(nats))
    namespace = plane.new_namespace()
    with running(plane, tmp_path):
        asks = {"metadata": {"annotations": {"vk.io/local-queues": "gr1=group1"}}}
        plane.request("PATCH", f"/api/v1/namespaces/{namespace}", asks)
        found = plane.until(LOCAL_QUEUES, lambda found: "gr1" in found)["gr1"]
        assert (found["metadata"]["namespace"], found["spec"]["clusterQueue"]) == (namespace, "group1")
        plane.request(
            "PATCH", f"/api/v1/namespaces/{namespace}", {"metadata": {"annotations": {"vk.io/local-queues": None}}}
        )
        plane.until(LOCAL_QUEUES, lambda found: "gr1" not in found)


def test_two_replicas_of_which_one_leads(plane: QueuesPlane, nats: NatsServer, tmp_path: Path) -> None:
    plane.create(document(nats))
    settings = ControllerSettings(election=True)
    with (
        ControllerProcess(tmp_path, plane, settings, "one") as one,
        ControllerProcess(tmp_path, plane, settings, "two") as two,
    ):
        one.start()
        one.wait_ready()
        nats.wait_subscribed(f"{SUBJECT}.*")
        two.start()
        two.wait_ready()
        assert ("standing-by" in two.get("/readyz?verbose")[1], len(nats.connections())) == (True, 1)
        publish(nats, "a", pods=5)
        plane.until(CLUSTER_QUEUES, lambda found: flavors(found) == [NAME + "a"])
        one.kill()  # the server may list its subscription for a moment longer
        publish_until(plane, nats, lambda found: _quota(found, "pods") == "6", a={"pods": 6})
        nats.wait_subscribed(f"{SUBJECT}.*")
        assert two.terminate().status == 0
