"""Misbehaving plugins: only their own group fails, with the plugin's name; the cycle continues and nothing leaks."""

from __future__ import annotations

import numpy as np
import pytest

from session_scheduler import SKIP, Prepared, Refusal, Scope, hookimpl
from session_scheduler.model.groups import GroupRef
from session_scheduler.testing import FakeCluster, gang, node, pod

BAD = "bad"
"""The label of pods for which a plugin misbehaves."""


def is_bad(of):
    return BAD in of.metadata.labels


class Counting:
    """Counts notifications; the count must be zero after an undo."""

    name = "counting"

    def __init__(self):
        self.on = {}
        self.opened = self.closed = 0

    @hookimpl
    def on_session_open(self, session):
        self.opened += 1
        session.add_event_handler(allocate=self.placed, deallocate=self.taken)

    def placed(self, event):
        self.on[event.task.name] = self.on.get(event.task.name, 0) + 1

    def taken(self, event):
        self.on[event.task.name] -= 1

    @hookimpl
    def on_session_close(self, session):
        self.closed += 1


class Misbehaving:
    """One hook or callback that misbehaves for bad pods."""

    name = "misbehaving"
    class_key_complete = True

    @hookimpl
    def class_key(self, pod):
        return is_bad(pod)


class PlacementStub:
    def __init__(self, nodes):
        self.nodes, self.undone = nodes, 0
        self.holds = {}

    def undo(self):
        self.undone += 1

    def redo(self):
        self.undone -= 1

    def release(self, tasks):
        for task in tasks:
            del self.nodes[task]


def hook(name, function, **attributes):
    """A plugin with one hook (beside `class_key`), which calls `function` for bad pods."""
    return type("Plugin", (Misbehaving,), {name: hookimpl(function), **attributes})()


def boom(*_):
    raise ValueError("boom\nand more")


def filter_hook(answer):
    return hook("filter", lambda self, cls, nodes, mask: answer(nodes, mask) if is_bad(cls.pod) else None)


def score_hook(answer):
    return hook("score", lambda self, cls, nodes: answer(nodes) if is_bad(cls.pod) else None)


def why_hook(answer):
    def filter(self, cls, mask):  # noqa: A001
        if is_bad(cls.pod):
            mask[:] = False

    plugin = hook("why", lambda self, nodes: answer(nodes))
    return type("Plugin", (type(plugin),), {"filter": hookimpl(filter)})()


def required_hook(amounts):
    """It returns these amounts as `Prepared.required_free`."""
    plugin = hook("prepare", lambda self, cls: Prepared(None, Scope.NODE, SKIP, amounts) if is_bad(cls.pod) else SKIP)
    return type("Plugin", (type(plugin),), {"filter": hookimpl(lambda self, mask: None)})()


def reasons_hook(answer):
    plugin = hook("reasons", lambda self, nodes: answer(nodes))
    return type("Plugin", (type(plugin),), {"filter": type(why_hook(answer)).filter})()


def key_hook(answer):
    plugin = hook("filter_key", lambda self, cls: answer() if is_bad(cls.pod) else None)
    return type("Plugin", (type(plugin),), {"filter": hookimpl(lambda self: None)})()


def prepare_hook(answer):
    return hook("prepare", lambda self, cls: answer() if is_bad(cls.pod) else None)


def place_hook(answer):
    def place_group(self, session, group, tasks):
        return answer(session, tasks) if is_bad(tasks[0].pod) else None

    return hook("place_group", place_group)


def reserve_hook(answer):
    def reserve(self, session, task, node):
        return answer(session, [task]) if is_bad(task.pod) else None

    def place_group(self):
        return None

    plugin = hook("reserve", reserve)
    return type("Plugin", (type(plugin),), {"place_group": hookimpl(place_group)})()


def subsets_hook(answer):
    def node_subsets(self, session, group):
        return answer(session) if any(is_bad(task.pod) for task in group.tasks.values()) else None

    return hook("node_subsets", node_subsets)


def callback(register):
    return hook("on_session_open", lambda self, session: register(session))


def raising_subsets(session):
    yield session.table.valid()
    raise ValueError("boom")


def raising_nodes(session, tasks):
    stub = type("Stub", (PlacementStub,), {"nodes": property(boom, lambda self, value: None)})
    return stub({})


def stranger(session, tasks):
    other = next(task for task in session.snapshot.cache.tasks.values() if task not in tasks)
    return PlacementStub({other: "n1"})


def for_bad(function):
    return lambda first, *others: function(first, *others) if is_bad(getattr(first, "pod", first)) else None


CASES = {
    "filter raises": (filter_hook(boom), "filter"),
    "filter sets its mask": (filter_hook(lambda nodes, mask: mask.__setitem__(0, True)), "set rows that were cleared"),
    "filter returns a mask": (filter_hook(lambda nodes, mask: mask & True), "in place"),
    "score raises": (score_hook(boom), "score"),
    "score of wrong length": (
        score_hook(lambda nodes: np.zeros(len(nodes) + 1, np.int64)), "expected an integer for each of 4 rows",
    ),
    "score of floats": (score_hook(lambda nodes: np.zeros(len(nodes))), "float64"),
    "score as a list": (score_hook(lambda nodes: [1] * len(nodes)), "an integer for each of 4 rows, got list"),
    "score too large": (score_hook(lambda nodes: np.full(len(nodes), 101)), "it returns an invalid score 101"),
    "score negative": (score_hook(lambda nodes: np.full(len(nodes), -1)), "it returns an invalid score -1"),
    "why raises": (why_hook(boom), "why"),
    "why of wrong length": (why_hook(lambda nodes: [["x"]] * (len(nodes) + 1)), "expected answers for"),
    "why of strings": (why_hook(lambda nodes: ["x"] * len(nodes)), "expected a list of strings for each node"),
    "why of numbers": (why_hook(lambda nodes: [[1]] * len(nodes)), "expected only strings in the lists"),
    "why no sequence": (why_hook(lambda nodes: 5), "why"),
    "reasons raises": (reasons_hook(boom), "reasons"),
    "reasons as lists": (reasons_hook(lambda nodes: [["x"]] * len(nodes)), "a mapping of strings to masks, got list"),
    "reasons by number": (
        reasons_hook(lambda nodes: {1: np.ones(len(nodes), np.bool_)}),
        "expected a string, or a mapping of strings to masks",
    ),
    "reasons of wrong length": (
        reasons_hook(lambda nodes: {"x": np.ones(len(nodes) + 1, np.bool_)}), "each of 3 rows for 'x', got bool[4]",
    ),
    "reasons of numbers": (reasons_hook(lambda nodes: {"x": np.ones(len(nodes))}), "got float64[3]"),
    "filter_key raises": (key_hook(boom), "filter_key"),
    "filter_key not hashable": (key_hook(lambda: []), "unhashable type: 'list'"),
    "prepare raises": (prepare_hook(boom), "prepare"),
    "required amounts as text": (
        required_hook({"cpu": "1"}), "expected `required_free` to map resources to whole numbers, got {'cpu': '1'}",
    ),
    "required amounts no mapping": (required_hook(5), "'int' object is not iterable"),
    "prepare refuses without a string": (
        prepare_hook(lambda: Refusal(5)), "expected the Refusal's `reason` to be a string, got 5",  # type: ignore[arg-type]
    ),
    "prefilter raises": (hook("prefilter", lambda self, group: boom() if bad_group(group) else None), "prefilter"),
    "prefilter answers a string": (
        hook("prefilter", lambda self, group: "no" if bad_group(group) else None),
        "expected a Refusal or None, got 'no'",
    ),
    "place_group raises": (place_hook(boom), "place_group"),
    "place_group answers a string": (place_hook(lambda *_: "no"), "expected a Placement, a Refusal or None, got str"),
    "placement of strangers": (place_hook(stranger), "placements of the requested tasks only"),
    "placement on no node": (
        place_hook(lambda s, tasks: PlacementStub({tasks[0]: "n99"})),
        "expected a node name for default/bad, got 'n99'",
    ),
    "placement on a number": (
        place_hook(lambda s, tasks: PlacementStub({tasks[0]: 7})), "expected a node name for default/bad, got 7",
    ),
    "placement that cannot be read": (place_hook(raising_nodes), "boom"),
    "placement of a list": (place_hook(lambda s, tasks: PlacementStub([1, 2])), "place_group"),
    "reserve raises": (reserve_hook(boom), "reserve"),
    "reserve answers a string": (reserve_hook(lambda *_: "no"), "expected a Placement, a Refusal or None, got str"),
    "share of strangers": (reserve_hook(stranger), "expected a placement of"),
    "share on another node": (
        reserve_hook(lambda s, tasks: PlacementStub({tasks[0]: "n99"})),
        "expected a placement of default/bad on 'n1', got",
    ),
    "subsets raise": (subsets_hook(boom), "node_subsets"),
    "subsets raise on the way": (subsets_hook(raising_subsets), "node_subsets"),
    "subsets are none": (subsets_hook(lambda session: 5), "node_subsets"),
    "a subset of indices": (subsets_hook(lambda session: [np.ones(1, np.int64)]), "expected each subset to be a bool"),
    "a subset of numbers": (
        subsets_hook(lambda session: [session.table.valid().astype(np.int64)]), "expected each subset to be a bool",
    ),
    "predicate raises": (callback(lambda s: s.add_predicate(for_bad(boom))), "predicate"),
    "predicate answers False": (callback(lambda s: s.add_predicate(for_bad(lambda *_: False))), "expected a string or"),
    "pre-predicate answers False": (
        callback(lambda s: s.add_pre_predicate(for_bad(lambda *_: False))), "expected a string or None as the reason",
    ),
    "node order of infinity": (callback(lambda s: s.add_node_order(lambda t, n: inf_for(t))), "expected a number"),
    "node order of a huge number": (
        callback(lambda s: s.add_node_order(lambda t, n: huge_for(t))), "expected a number",
    ),
    "job order raises": (callback(lambda s: s.add_job_order(lambda g: boom() if bad_group(g) else 0)), "job order"),
    "job order of NaN": (callback(lambda s: s.add_job_order(lambda g: nan_for(g))), "expected a key"),
    "task order raises": (callback(lambda s: s.add_task_order(lambda t: boom() if is_bad(t.pod) else 0)), "task order"),
    "allocate handler raises": (
        callback(lambda s: s.add_event_handler(allocate=lambda e: boom() if is_bad(e.task.pod) else None)),
        "allocate handler",
    ),
    "group_of raises": (hook("group_of", lambda self, pod: boom() if is_bad(pod) else None), "group_of"),
    "group_of answers a string": (
        hook("group_of", lambda self, pod: "g" if is_bad(pod) else None), "expected a GroupRef or None",
    ),
    "group_of without a number": (
        hook("group_of", lambda self, pod: GroupRef("default", "x", "2") if is_bad(pod) else None),  # type: ignore[arg-type]
        "expected names as strings and min_count as a whole number",
    ),
    "class_key raises": (hook("class_key", lambda self, pod: boom() if is_bad(pod) else None), "class_key"),
    "class_key of an object": (hook("class_key", lambda self, pod: object() if is_bad(pod) else None), "JSON values"),
    "footprint raises": (hook("footprint", lambda self, cls: boom() if is_bad(cls.pod) else None), "footprint"),
    "footprint of lists": (hook("footprint", lambda self, cls: [[1]] if is_bad(cls.pod) else None), "footprint"),
    "footprint a string": (
        hook("footprint", lambda self, cls: "ab" if is_bad(cls.pod) else None), "expected a collection of keys",
    ),
}  # fmt: skip


def bad_group(group):
    return any(is_bad(task.pod) for task in group.tasks.values())


def inf_for(task):
    return float("inf") if is_bad(task.pod) else 0


def huge_for(task):
    return 10**400 if is_bad(task.pod) else 0


def nan_for(group):
    return float("nan") if bad_group(group) else 0.0


@pytest.mark.parametrize("case", CASES)
def test_only_the_group_of_a_misbehaving_plugin_fails(case):
    plugin, part = CASES[case]
    counting = Counting()
    cluster = FakeCluster()
    cluster.nodes(3)
    cluster.add(node("n0", unschedulable=True))  # so that the first row of the mask is cleared
    cluster.add(pod("first"), pod("bad", labels={BAD: "1"}), pod("last"))
    scheduler = cluster.start(plugin, counting)
    empty = scheduler.cache.table.digest()
    cluster.run()
    cluster.assert_bound("first")
    cluster.assert_bound("last")
    cluster.assert_pending("bad", "plugin misbehaving failed in")
    cluster.assert_pending("bad", part)
    assert "\n" not in cluster.reasons("bad")
    assert {name: count for name, count in counting.on.items() if count} == {"first": 1, "last": 1}
    assert counting.opened == counting.closed == 1
    for name in ("first", "last"):
        cluster.delete(type(pod("x")), name)
    cluster.run()
    assert scheduler.cache.table.digest() == empty


class RefusesUnprepared(Misbehaving):
    """Rejects groups of bad pods before their class, which it cannot handle, is prepared."""

    @hookimpl
    def prefilter(self, group):
        return Refusal("not now") if bad_group(group) else None

    @hookimpl
    def prepare(self, cls):
        if is_bad(cls.pod):
            boom()


def test_no_class_of_a_gang_that_prefilter_rejects_is_prepared():
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(gang("g", 2, labels={BAD: "1"}), pod("late", cpu=8))
    cluster.run(RefusesUnprepared())
    cluster.assert_pending("g-0", "not now")
    cluster.assert_pending("late", "Insufficient cpu")
    assert cluster.scheduler.queue.is_unschedulable("Pod default/late")


class Handlers:
    """Its handler fails at the second task of a gang."""

    name = "handlers"

    @hookimpl
    def on_session_open(self, session):
        session.add_event_handler(allocate=self.placed)

    def placed(self, event):
        if event.task.name == "g-1":
            raise RuntimeError("no")


def test_every_handler_is_notified_of_an_allocation_and_of_its_undo():
    before, after = Counting(), Counting()
    after.name = "counting-after"
    cluster = FakeCluster()
    cluster.nodes(3)
    cluster.add(gang("g", 3), pod("p"))
    cluster.run(before, Handlers(), after)
    cluster.assert_pending("g-0", "plugin handlers failed in allocate handler")
    cluster.assert_bound("p")
    for counting in (before, after):
        assert {name: count for name, count in counting.on.items() if count} == {"p": 1}


class Broken:
    name = "broken"

    def __init__(self, **hooks):
        self.failing = True
        for name, function in hooks.items():
            setattr(self, name, function)


def failing_at(hook_name):
    def call(self):
        if self.failing:
            raise RuntimeError("down")

    return type("Plugin", (Broken,), {hook_name: hookimpl(call)})()


@pytest.mark.parametrize("hook_name", ["facts", "on_session_open", "on_nodes_changed", "on_session_close"])
def test_a_plugin_that_fails_the_whole_session_is_called_again_in_the_next(hook_name):
    counting, plugin = Counting(), failing_at(hook_name)
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("p"))
    if hook_name == "on_nodes_changed":
        plugin.failing = False
        cluster.start(counting, plugin)
        cluster.add(node("n2"))
        plugin.failing = True
    cluster.run(*() if hook_name == "on_nodes_changed" else (counting, plugin))
    if hook_name != "on_session_close":
        cluster.assert_pending("p", f"plugin broken failed in {hook_name}: RuntimeError: down")
    assert counting.opened == counting.closed
    plugin.failing = False
    cluster.advance(60)
    cluster.run()
    cluster.assert_bound("p")


def test_keys_that_cannot_be_compared_fail_the_groups_of_their_queue():
    plugin = callback(lambda session: session.add_job_order(lambda group: None if group.name == "a" else 1))
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("a"), pod("b"))
    cluster.run(plugin)
    cluster.assert_pending("a", "plugin misbehaving failed in job order: TypeError")
    cluster.assert_pending("b", "plugin misbehaving failed in job order: TypeError")


def test_a_queue_order_that_raises_fails_the_groups_of_that_queue():
    plugin = callback(lambda session: session.add_queue_order(lambda queue: boom() if queue == "q" else 0))
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("a"), pod("b"))
    scheduler = cluster.start(plugin)
    scheduler.cache.groups["Pod default/a"].queue = "q"
    cluster.run()
    cluster.assert_pending("a", "plugin misbehaving failed in queue order: ValueError: boom")
    cluster.assert_bound("b")


def test_a_placement_is_undone_when_the_rest_of_its_plugin_fails():
    taken = []

    def answer(session, tasks):
        taken.append(PlacementStub({tasks[0]: "n1", tasks[1]: "n99"}))
        return taken[-1]

    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(gang("g", 2, labels={BAD: "1"}))
    cluster.run(place_hook(answer))
    cluster.assert_pending("g-0", "expected a node name for default/g-1, got 'n99'")
    assert [stub.undone for stub in taken] == [1]
