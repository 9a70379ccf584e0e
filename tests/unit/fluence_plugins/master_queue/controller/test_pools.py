"""Pools are known from their messages, fall silent after their timeout, and outlive edits and restarts."""

from __future__ import annotations

from typing import Any

import msgspec

from fluence_plugins.master_queue.api.master_queue import MasterQueueSpec, PoolStatus
from fluence_plugins.master_queue.controller.pools import MOST_POOLS, Pools, PoolState, time_text
from fluence_plugins.master_queue.messages import Message
from session_scheduler.model.objects import Taint

NATS = "nats://nats:4222"
SOURCE = (NATS, "s")
REPORTED = Message(quotas={"cpu": "1"}, labels={"a": "b"}, taints=(Taint(key="t", effect="NoExecute"),))


def spec(**flavors: dict[str, Any]) -> MasterQueueSpec:
    whole = {"natsConnector": NATS, "natsSubject": "s", "virtualNode": "v", "poolTimeout": 30}
    named = [{"name": name, "natsFlavor": {**whole, **one}} for name, one in flavors.items()]
    return msgspec.convert({"template": {"cohort": "c"}, "flavors": named}, MasterQueueSpec)


def every(**more: Any) -> dict[str, Any]:
    return {"poolRegExp": ".*", **more}


def connected(*specs: MasterQueueSpec) -> Pools:
    pools = Pools(specs[0])
    pools.connected(NATS, 0)
    return pools


def states(pools: Pools, now: float) -> dict[str, str]:
    return {pool.name: str(pool.state) for pool in pools.at(now)}


def test_a_pool_expires_without_messages_and_returns_with_one() -> None:
    pools = connected(spec(f=every()))
    assert pools.receive(SOURCE, "a", REPORTED, 10) == ""
    assert (states(pools, 39.9), pools.next_silent(20)) == ({"a": "Active"}, 40)
    assert (states(pools, 40), pools.next_silent(40)) == ({"a": "Silent"}, None)
    pools.receive(SOURCE, "a", REPORTED, 100)
    (pool,) = pools.at(110)
    assert (pool.state, pool.heard_at, pool.message) == (PoolState.ACTIVE, 100, REPORTED)


def test_silence_does_not_count_while_the_connection_is_down() -> None:
    pools = connected(spec(f=every()))
    pools.receive(SOURCE, "a", REPORTED, 0)
    pools.lost(NATS, 10)
    assert (states(pools, 1000), pools.next_silent(1000)) == ({"a": "Active"}, None)
    assert pools.disconnected() == (SOURCE,)
    pools.connected(NATS, 1000)
    pools.connected(NATS, 1005)
    assert (states(pools, 1019), pools.next_silent(1010)) == ({"a": "Active"}, 1020)
    assert (states(pools, 1020), pools.disconnected()) == ({"a": "Silent"}, ())


def test_a_clock_that_goes_back_changes_nothing() -> None:
    pools = connected(spec(f=every()))
    pools.receive(SOURCE, "a", REPORTED, 50)
    assert states(pools, 1) == {"a": "Active"}
    assert states(pools, 80) == {"a": "Silent"}


def test_each_connection_has_a_clock_of_its_own() -> None:
    pools = connected(spec(f=every(), g=every(natsConnector="nats://other")))
    pools.receive(SOURCE, "a", REPORTED, 0)
    pools.receive(("nats://other", "s"), "b", REPORTED, 0)
    assert states(pools, 100) == {"a": "Silent", "b": "Active"}


def test_an_edit_keeps_the_pools_that_still_match() -> None:
    pools = connected(spec(f=every()))
    for name in ("pod-a", "pod-b", "slurm"):
        pools.receive(SOURCE, name, REPORTED, 5)
    pools.follow(spec(f=every(poolRegExp="pod-.*", poolTimeout=60, virtualNode="other")), 20)
    assert states(pools, 64) == {"pod-a": "Active", "pod-b": "Active"}
    assert [pool.message for pool in pools.at(64)] == [REPORTED, REPORTED]
    pools.follow(spec(f={"pools": ["pod-b", "new"]}), 34)
    assert states(pools, 34) == {"new": "Waiting", "pod-b": "Active"}
    assert states(pools, 35) == {"new": "Waiting", "pod-b": "Silent"}
    pools.follow(spec(g=every(natsSubject="other")), 36)
    assert states(pools, 36) == {}


def test_a_pool_keeps_its_age_under_another_connector() -> None:
    pools = connected(spec(f=every()))
    pools.receive(SOURCE, "a", REPORTED, 5)
    pools.follow(spec(f=every(natsConnector="nats://other")), 25)
    assert states(pools, 500) == {"a": "Active"}, "the other is not connected yet"
    pools.connected("nats://other", 500)
    assert (states(pools, 509), states(pools, 510)) == ({"a": "Active"}, {"a": "Silent"})


def test_a_pool_keeps_its_age_in_another_flavor_of_its_subject() -> None:
    pools = connected(spec(f=every(pools=["a", "b"], poolRegExp=None)))
    for name in ("a", "b"):
        pools.receive(SOURCE, name, REPORTED, 5)
    edited = spec(f=every(pools=["a"], poolRegExp=None), g=every(pools=["b"], poolRegExp=None))
    pools.follow(edited, 20)
    assert [(pool.name, pool.flavor) for pool in pools.at(30)] == [("a", "f"), ("b", "g")]
    assert states(pools, 34) == {"a": "Active", "b": "Active"}
    assert states(pools, 36) == {"a": "Silent", "b": "Silent"}


def test_a_connector_that_an_edit_restores_does_not_count_as_connected() -> None:
    pools = connected(spec(f=every()))
    pools.receive(SOURCE, "a", REPORTED, 0)
    pools.follow(spec(f=every(natsConnector="nats://wrong")), 10)
    pools.follow(spec(f=every()), 20)
    assert pools.disconnected() == (SOURCE,)
    assert states(pools, 1000) == {"a": "Active"}
    pools.connected(NATS, 1000)
    assert (states(pools, 1019), states(pools, 1021)) == ({"a": "Active"}, {"a": "Silent"})


def test_a_restart_keeps_pools_until_their_own_time_out() -> None:
    statuses = [
        PoolStatus(name="a", flavor="f", state="Active", last_message="1970-01-01T00:01:00Z", quota={"cpu": "1"},
                   labels={"a": "b"}, taints=(Taint(key="t", effect="NoExecute"),)),
        PoolStatus(name="b", flavor="f", state="Silent", last_message="soon", quota={"cpu": "x"}),
        PoolStatus(name="c", flavor="f", state="Waiting"),
        PoolStatus(name="d", flavor="gone", state="Active"),
        PoolStatus(name="E", flavor="f", state="Active"),
    ]  # fmt: skip
    pools = Pools(spec(f=every()))
    pools.restore(statuses)
    a, b = pools.at(5000)
    assert (a.name, a.state, a.heard_at, a.message) == ("a", PoolState.ACTIVE, 60, REPORTED)
    assert (b.name, b.state, b.heard_at, b.message.quotas) == ("b", PoolState.SILENT, None, {})
    assert b.message.problems == (
        "quotas['cpu']: 'x' is not a valid quantity; write a number with an optional suffix, such as 500m, 2 or 4Gi",
    )
    pools.connected(NATS, 6000)
    assert states(pools, 6029) == {"a": "Active", "b": "Silent"}
    assert states(pools, 6030) == {"a": "Silent", "b": "Silent"}


def test_a_pool_in_two_flavors_counts_for_the_first_and_is_reported() -> None:
    pools = connected(spec(f=every(poolRegExp="a.*"), g=every()))
    pools.receive(SOURCE, "ab", REPORTED, 0)
    pools.receive(SOURCE, "b", REPORTED, 0)
    ab, b = pools.at(1)
    assert (ab.flavor, ab.conflicts) == (
        "f",
        ("also matches flavor g, but belongs to f; change one of the two flavors",),
    )
    assert (b.flavor, b.conflicts) == ("g", ())


def test_a_name_published_for_two_flavors_counts_for_the_active_one() -> None:
    pools = connected(spec(f=every(), g=every(natsSubject="t")))
    pools.receive(SOURCE, "a", REPORTED, 0)
    assert "and a pool of that name also publishes for g; rename one of the two pools" in pools.receive(
        (NATS, "t"), "a", REPORTED, 1
    )
    (pool,) = pools.at(2)
    assert (pool.flavor, pool.conflicts) == (
        "f",
        ("also matches flavor g, but belongs to f; change one of the two flavors",),
    )
    assert pools.receive((NATS, "t"), "a", REPORTED, 40) == "", "the first is silent by now"
    (pool,) = pools.at(41)
    assert (pool.flavor, pool.conflicts) == ("g", ())


def test_a_flavor_without_further_messages_of_a_pool_is_no_longer_reported() -> None:
    pools = connected(spec(f=every(), g=every(natsSubject="t", poolTimeout=40)))
    pools.receive(SOURCE, "a", REPORTED, 0)
    pools.receive((NATS, "t"), "a", REPORTED, 1)
    for now in (20, 40):
        pools.receive(SOURCE, "a", REPORTED, now)
    assert len(pools.at(40)[0].conflicts) == 1
    assert pools.next_forgotten(40) == 41
    assert (pools.at(41)[0].conflicts, pools.next_forgotten(41)) == ((), None)


def test_a_pool_that_matches_no_flavor_is_rejected() -> None:
    pools = connected(spec(f={"pools": ["a"]}))
    for source, name in ((SOURCE, "b"), ((NATS, "other"), "a"), (("x", "s"), "a")):
        assert (
            pools.receive(source, name, REPORTED, 0)
            == f"{name} matches no flavor of this subject; add it to pools or poolRegExp"
        )
    assert states(pools, 0) == {"a": "Waiting"}


def test_the_number_of_pools_is_limited() -> None:
    pools = connected(spec(f=every()))
    for number in range(MOST_POOLS):
        assert pools.receive(SOURCE, f"p{number}", REPORTED, number / 100) == ""
    refusal = pools.receive(SOURCE, "late", REPORTED, 10)
    assert "exceeds the limit of 256 pools, none of which is silent" in refusal  # codespell:ignore
    assert pools.receive(SOURCE, "late", REPORTED, 31) == ""
    names = states(pools, 31)
    assert (len(names), "p0" in names, "p1" in names) == (MOST_POOLS, False, True)


def test_times_are_written_as_in_kubernetes_objects() -> None:
    assert (time_text(None), time_text(60.9)) == ("", "1970-01-01T00:01:00Z")
