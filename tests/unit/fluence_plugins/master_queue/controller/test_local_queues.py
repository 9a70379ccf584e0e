"""A namespace gets the LocalQueues that its annotation asks for, of MasterQueues' queues, and loses no other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from fluence_plugins.master_queue.api.informer_store import ObservedLocalQueue, ObservedNamespace
from fluence_plugins.master_queue.controller.local_queues import MOST, DesiredLocalQueues, desired_local_queues
from session_scheduler.model.meta import OwnerReference

OWNERS = {
    queue: OwnerReference(api_version="vk.io/v1", kind="MasterQueue", name=name, uid=uid, controller=True)
    for queue, name, uid in (("masterqueue", "masterqueue", "m"), ("group1", "masterqueue", "m"), ("other", "o", "o"))
}
LEAVING = "2026-01-01T00:00:00Z"


def namespace(text: str | None, name: str = "one", **metadata: Any) -> ObservedNamespace:
    annotations = {} if text is None else {"vk.io/local-queues": text}
    meta = {"name": name, "uid": name, "annotations": annotations, **metadata}
    return msgspec.convert({"kind": "Namespace", "metadata": meta}, ObservedNamespace)


def there(name: str, queue: str, uid: str = "m", place: str = "one", **metadata: Any) -> ObservedLocalQueue:
    owners = [{"apiVersion": "vk.io/v1", "kind": "MasterQueue", "name": "x", "uid": uid, "controller": True}]
    meta = {"name": name, "namespace": place, "uid": f"{place}-{name}", "ownerReferences": owners if uid else []}
    content = {"kind": "LocalQueue", "metadata": {**meta, **metadata}, "spec": {"clusterQueue": queue}}
    return msgspec.convert(content, ObservedLocalQueue)


def find(*namespaces: ObservedNamespace, known: Iterable[ObservedLocalQueue] = ()) -> DesiredLocalQueues:
    return desired_local_queues(namespaces, {one.key: one for one in known}, OWNERS)


def wanted(found: DesiredLocalQueues) -> list[tuple[str, str, str]]:
    return [(one.metadata.namespace, one.metadata.name, one.spec.cluster_queue) for one in found.wanted]


def test_an_entry_is_a_name_with_its_queue_or_one_name_for_both() -> None:
    found = find(namespace(" gr1=group1,, masterqueue ,"), namespace("x=other", "two"), namespace(None, "three"))
    assert wanted(found) == [
        ("one", "gr1", "group1"), ("one", "masterqueue", "masterqueue"), ("two", "x", "other"),
    ]  # fmt: skip
    assert [one.metadata.owner_references for one in found.wanted] == [
        (OWNERS["group1"],), (OWNERS["masterqueue"],), (OWNERS["other"],),
    ]  # fmt: skip
    assert (found.gone, found.problems) == ((), ())


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ("Gr1=group1", "is not a valid queue; write NAME=CLUSTERQUEUE, or one name for both"),
        ("=group1", "is not a valid queue; write NAME=CLUSTERQUEUE, or one name for both"),
        ("a=b=c", "is not a valid queue; write NAME=CLUSTERQUEUE, or one name for both"),
        ("gr1=../x", "is not a valid queue; write NAME=CLUSTERQUEUE, or one name for both"),
        ("gr1=none", "no MasterQueue has a ClusterQueue none; use an existing one"),
        ("foreign=group1", "LocalQueue foreign does not belong to a MasterQueue; choose another name"),
    ],
)
def test_an_invalid_entry_is_one_line_and_the_others_apply(part: str, line: str) -> None:
    foreign = there("foreign", "group1", uid="")
    found = find(namespace(f"{part}, masterqueue"), known=[foreign])
    assert wanted(found) == [("one", "masterqueue", "masterqueue")]
    assert found.gone == ()
    (problem,) = found.problems
    assert problem.startswith(f"Namespace one: vk.io/local-queues: '{part}'")
    assert problem.endswith(line)


def test_a_long_text_is_truncated_in_its_line() -> None:
    (problem,) = find(namespace("x" * 100_000)).problems
    assert len(problem) < 300


def test_own_queues_that_are_no_longer_requested_are_deleted_and_no_others() -> None:
    mine, foreign, nobodys = there("a", "group1"), there("b", "group1", uid="other"), there("c", "group1", uid="")
    found = find(namespace(None), known=[mine, foreign, nobodys])
    assert found == DesiredLocalQueues(gone=(mine,))


def test_queues_of_unknown_namespaces_are_kept() -> None:
    """An API server that begins may refuse to list namespaces; of one that is gone it deletes all by itself."""
    assert find(known=[there("a", "group1")]) == DesiredLocalQueues()


def test_a_requested_queue_is_kept_while_its_cluster_queue_is_missing() -> None:
    given = there("a", "away")
    assert find(namespace("a=away, masterqueue"), known=[given]).gone == ()
    assert find(namespace("a=other2"), known=[given]).gone == (given,)
    assert find(namespace("masterqueue"), known=[given]).gone == (given,)


def test_a_queue_with_another_cluster_queue_is_deleted_and_then_created_again() -> None:
    old = there("a", "group1")
    found = find(namespace("a=masterqueue"), known=[old])
    assert (wanted(found), found.gone) == ([], (old,))
    leaving = there("a", "group1", deletionTimestamp=LEAVING)
    assert find(namespace("a=masterqueue"), known=[leaving]) == DesiredLocalQueues()
    assert wanted(find(namespace("a=masterqueue"))) == [("one", "a", "masterqueue")]


def test_a_terminating_queue_is_neither_deleted_nor_written() -> None:
    leaving = there("a", "group1", deletionTimestamp=LEAVING)
    assert find(namespace("a=group1"), known=[leaving]) == DesiredLocalQueues()
    assert find(namespace(None), known=[leaving]) == DesiredLocalQueues()


def test_a_terminating_namespace_requests_nothing() -> None:
    found = find(namespace("group1", deletionTimestamp=LEAVING))
    assert found == DesiredLocalQueues()


@pytest.mark.parametrize("known", [None, "group1", "masterqueue"])
def test_of_two_entries_with_one_name_the_first_counts(known: str | None) -> None:
    """Whatever is there already: else it would be deleted and made for ever."""
    before = [there("a", known)] if known else []
    found = find(namespace("a=group1, a=masterqueue, a=group1"), known=before)
    if known == "masterqueue":
        assert (wanted(found), found.gone) == ([], tuple(before))
    else:
        assert (wanted(found), found.gone) == ([("one", "a", "group1")], ())
    assert found.problems == (
        "Namespace one: vk.io/local-queues: 'a=masterqueue': a already points to group1; name each LocalQueue once",
    )


def test_entries_beyond_the_limit_are_ignored_and_reported() -> None:
    names = [f"q{number}" for number in range(MOST + 2)]
    found = find(namespace(", ".join(f"{name}=group1" for name in names)))
    assert [one.metadata.name for one in found.wanted] == names[:MOST]
    assert found.problems == (f"Namespace one: vk.io/local-queues: only the first {MOST} are used; request fewer",)


def test_the_result_does_not_depend_on_the_order_of_namespaces() -> None:
    spaces = [namespace("group1=none, masterqueue", name) for name in ("c", "a", "b")]
    assert find(*spaces) == find(*reversed(spaces))
