"""The store keeps the latest version of each object, in whatever order events and answers arrive."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from fluence_plugins.master_queue.api.informer_store import (
    MASTERS,
    RESOURCES,
    ObservedFlavor,
    ObservedLocalQueue,
    ObservedQueue,
    Store,
)
from session_scheduler.cluster.dynamic_informer import Change

ADDED, MODIFIED, DELETED = Change.ADDED, Change.MODIFIED, Change.DELETED


def flavor(version: int, name: str = "f", uid: str = "u", **metadata: Any) -> ObservedFlavor:
    meta = {"name": name, "uid": uid, "resourceVersion": str(version), **metadata}
    return msgspec.convert({"kind": "ResourceFlavor", "metadata": meta}, ObservedFlavor)


def owned_by(uid: str, *, controller: bool = True) -> list[dict[str, Any]]:
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "other"},
        {"apiVersion": "vk.io/v1", "kind": "MasterQueue", "name": "m", "uid": uid, "controller": controller},
    ]


def test_the_store_keeps_the_latest_object_and_returns_the_previous_one() -> None:
    store = Store()
    first, second, other = flavor(9), flavor(10), flavor(3, "g", "v")
    assert store.observe(ADDED, first) is None
    assert store.observe(ADDED, other) is None
    assert store.observe(MODIFIED, second) is first
    assert store.get(ObservedFlavor, "f") is second
    assert list(store.all(ObservedFlavor)) == [second, other]
    assert store.observe(DELETED, flavor(11)) is second
    assert store.get(ObservedFlavor, "f") is None


def test_older_versions_are_ignored_and_versions_compare_as_numbers() -> None:
    store = Store()
    latest, older = flavor(10), flavor(9)
    store.observe(ADDED, latest)
    assert store.observe(MODIFIED, older) is older
    assert store.get(ObservedFlavor, "f") is latest


def test_objects_of_two_types_are_independent() -> None:
    store = Store()
    queue = msgspec.convert({"metadata": {"name": "f", "uid": "q", "resourceVersion": "2"}}, ObservedQueue)
    store.observe(ADDED, flavor(9))
    assert store.observe(ADDED, queue) is None
    assert store.get(ObservedQueue, "f") is queue
    assert list(store.all(ObservedLocalQueue)) == []
    assert store.get(ObservedLocalQueue, "f") is None


def test_a_namespace_is_part_of_the_key() -> None:
    meta = {"name": "a", "namespace": "one", "uid": "q"}
    assert msgspec.convert({"metadata": meta}, ObservedLocalQueue).key == "one/a"
    assert flavor(1).key == "f"


def test_the_deletion_of_a_recreated_object_keeps_the_new_one() -> None:
    store = Store()
    store.observe(ADDED, flavor(5, uid="old"))
    new = flavor(8, uid="new")
    store.observe(MODIFIED, new)  # the answer to our own write, before its event
    late = flavor(7, uid="old")
    assert store.observe(DELETED, late) is late
    assert store.get(ObservedFlavor, "f") is new


def test_a_deletion_found_by_a_list_counts_although_an_answer_was_newer() -> None:
    store = Store()
    event, answer = flavor(5), flavor(9)
    store.observe(ADDED, event)
    store.observe(MODIFIED, answer)
    assert store.observe(DELETED, event) is answer
    assert store.get(ObservedFlavor, "f") is None


def test_a_late_answer_does_not_restore_a_deleted_object() -> None:
    store = Store()
    store.observe(ADDED, flavor(5))
    store.observe(DELETED, flavor(9))
    late = flavor(8)
    assert store.observe(MODIFIED, late) is late
    assert store.get(ObservedFlavor, "f") is None
    assert store.observe(ADDED, flavor(10, uid="another")) is None
    assert store.get(ObservedFlavor, "f").metadata.uid == "another"


def test_an_object_that_was_unreadable_is_stored_once_it_is_readable() -> None:
    """A follower sees it deleted, and then added."""
    store = Store()
    store.observe(ADDED, flavor(5))
    store.observe(DELETED, flavor(5))
    readable = flavor(9)
    assert store.observe(ADDED, readable) is None
    assert store.get(ObservedFlavor, "f") is readable


@pytest.mark.parametrize("seed", range(20))
def test_the_result_does_not_depend_on_the_order_of_events_and_answers(seed: int) -> None:
    """Events come in order; each answer has the content of some event, and comes before it or long after."""
    chance = random.Random(seed)
    events: list[tuple[Change, ObservedFlavor]] = []
    alive, uid = False, 0
    for version in range(1, 40):
        if alive and chance.random() < 0.3:
            events.append((DELETED, flavor(version, uid=str(uid))))
            alive = False
        else:
            uid += not alive
            events.append((MODIFIED if alive else ADDED, flavor(version, uid=str(uid))))
            alive = True
    store, waiting = Store(), list(events)
    answers = [(MODIFIED, obj) for change, obj in events if change is not DELETED and chance.random() < 0.5]
    chance.shuffle(answers)
    while waiting or answers:
        source = waiting if waiting and (not answers or chance.random() < 0.5) else answers
        store.observe(*source.pop(0))
    last, obj = events[-1]
    assert store.get(ObservedFlavor, "f") == (None if last is DELETED else obj)


def test_the_number_of_remembered_deletions_is_limited() -> None:
    store = Store()
    for number in range(10_000):
        store.observe(DELETED, flavor(number, uid=str(number)))
    store.observe(MODIFIED, flavor(1, uid="9999"))
    assert store.get(ObservedFlavor, "f") is None
    store.observe(MODIFIED, flavor(1, uid="0"))
    assert store.get(ObservedFlavor, "f").metadata.uid == "0"


def test_a_master_queue_is_read_with_any_status_that_its_definition_allows() -> None:
    pool = {"name": "a", "flavor": "b", "state": "Active", "quota": {"pods": 10, "cpu": "500m"}}
    page = {"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "m"}, "status": {"pools": [pool]}}]}
    (read,) = MASTERS.page(msgspec.json.encode(page)).items or ()
    assert read.status.pools[0].quota == {"pods": 10, "cpu": "500m"}


# ------------------------------------------------------------------ what is looked at


def test_objects_of_a_controller_are_found_by_its_uid() -> None:
    store = Store()
    mine = flavor(1, "mine", "1", ownerReferences=owned_by("m"))
    store.observe(ADDED, mine)
    store.observe(ADDED, flavor(2, "named", "2", ownerReferences=owned_by("m", controller=False)))
    store.observe(ADDED, flavor(3, "others", "3", ownerReferences=owned_by("n")))
    store.observe(ADDED, flavor(4, "nobodys", "4"))
    assert list(store.owned(ObservedFlavor, "m")) == [mine]
    assert [one.owner for one in store.all(ObservedFlavor)] == ["m", "", "n", ""]


@pytest.mark.parametrize(
    ("field", "value", "like"),
    [
        ("resourceVersion", "9", True),
        ("annotations", {"a": "b"}, True),
        ("managedFields", [{"manager": "kueue", "operation": "Update", "subresource": "status"}], True),
        ("generation", 2, False),
        ("uid", "v", False),
        ("labels", {"a": "b"}, False),
        ("deletionTimestamp", "2026-01-01T00:00:00Z", False),
        ("ownerReferences", owned_by("m"), False),
    ],
)
def test_a_change_of_the_status_alone_is_not_a_change(field: str, value: Any, like: bool) -> None:
    assert flavor(1, **{field: value}).like(flavor(1)) is like


def test_objects_of_every_kind_are_read_despite_unreadable_fields() -> None:
    for resource in RESOURCES:
        page = {"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": 5}}, {"metadata": {"name": "a"}}]}
        read = resource.page(msgspec.json.encode(page)).items or ()
        assert [one.key for one in read] == ["a"]
