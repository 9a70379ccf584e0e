"""Sessions in random clusters with random plugins: no overcommitment, complete gangs, clean undo, determinism."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from session_scheduler import hookimpl
from session_scheduler.actions.placing import place_group
from session_scheduler.config.settings import PluginConfig, Profile, SchedulerConfig
from session_scheduler.framework.statement import PlacementResult
from session_scheduler.model.objects import Pod
from session_scheduler.offline.simulate import simulate
from session_scheduler.testing import FakeCluster, check_invariants, node

from ....tools.examples import examples
from ..actions.test_gangs_fit import FromRoom
from ..worlds import nodes, plugins, pods


class Watching:
    """Tracks the node of every task by its event handlers."""

    name = "watching"

    def __init__(self):
        self.on = {}

    @hookimpl
    def on_session_open(self, session):
        session.add_event_handler(allocate=self.placed, deallocate=self.taken)

    def placed(self, event):
        self.on[event.task.key] = event.node

    def taken(self, event):
        assert self.on.pop(event.task.key) == event.node


CHANGES = st.lists(st.tuples(st.sampled_from(["pods", "end", "wait", "node"]), st.integers(0, 30)), max_size=6)


@settings(max_examples=examples(50))
@given(nodes(), st.lists(pods(most=3), min_size=1, max_size=3), plugins(), CHANGES)
def test_no_cycle_overcommits_a_node_or_splits_a_gang(some_nodes, waves, chosen, changes):
    """FakeCluster checks the invariants after each cycle."""
    cluster = FakeCluster()
    cluster.add(some_nodes)
    cluster.start(*chosen.build())
    for wave, objects in enumerate(waves):
        cluster.add(renamed(objects, wave))
        cluster.run()
        for what, number in changes[2 * wave : 2 * wave + 2]:
            change(cluster, what, number)
            cluster.run()


def renamed(objects, wave):
    def rename(obj):
        metadata = msgspec.structs.replace(obj.metadata, namespace=f"wave-{wave}")
        return msgspec.structs.replace(obj, metadata=metadata)

    return [rename(obj) for obj in objects]


def change(cluster, what, number):
    placed = sorted(key for key, name in cluster.placements().items() if name)
    alone = [key for key in placed if cluster.scheduler.cache.groups.get(f"Pod {key}")]
    if what == "end" and alone:
        namespace, name = alone[number % len(alone)].split("/")
        cluster.delete(Pod, name, namespace)
    elif what == "node":
        cluster.add(node(f"m{number}", cpu="1", labels={"kind": "a"}))
    else:
        cluster.advance(number)


def state_of(scheduler):
    cache = scheduler.cache
    tasks = {uid: (task.phase, task.node, task.row, task.group.key) for uid, task in cache.tasks.items()}
    groups = {key: sorted(group.tasks) for key, group in cache.groups.items()}
    return cache.table.digest(), tasks, groups


@settings(max_examples=examples(60))
@given(nodes(most=5), pods(most=4), plugins(), st.sampled_from(["first", "worst"]), st.integers(1, 4), st.booleans())
def test_rollback_leaves_no_trace_and_redo_restores_the_state(some_nodes, some_pods, chosen, how, most, places):
    watching, placing = Watching(), FromRoom(how, most, False)
    cluster = FakeCluster()
    cluster.add(some_nodes, some_pods)
    scheduler = cluster.start(*chosen.build(), watching, *([placing] if places else []))
    (calls,) = scheduler.profiles.values()
    session = scheduler.sessions.open(calls, scheduler._due("fluence")[0])
    before = state_of(scheduler)
    for group in session.groups():
        with session.ledger.statement(group) as statement:
            place_group(session, statement, group, PlacementResult(group))
            placed = state_of(scheduler), dict(watching.on), dict(placing.book)
            undone = statement.rollback(0)
            assert (state_of(scheduler), watching.on, placing.book) == (before, {}, {})
            statement.redo(undone)
            assert (state_of(scheduler), watching.on, placing.book) == placed
        assert (state_of(scheduler), watching.on, placing.book) == (before, {}, {})
    check_invariants(scheduler)


def manifests(objects, order, folder):
    items = [msgspec.to_builtins(obj) for obj in objects]
    for item in items:
        item.setdefault("apiVersion", {"PodGroup": "scheduling.k8s.io/v1alpha2"}.get(item["kind"], "v1"))
    if order is not None:  # pods keep their order, which is the order of their creation
        order.shuffle(items)
    path = folder.with_suffix(".json")
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return str(path)


@settings(max_examples=examples(15))
@given(nodes(), pods(), st.integers(0, 3), st.randoms(use_true_random=False))
def test_equal_seeds_give_equal_bytes_for_every_order_of_the_nodes(
    tmp_path_factory: pytest.TempPathFactory, some_nodes, some_pods, seed, order
):
    folder = tmp_path_factory.mktemp("simulated")
    config = SchedulerConfig(seed=seed, profiles=(Profile(plugins=(PluginConfig(name="fluence", enabled=False),)),))
    answers = [
        json.dumps(
            simulate(
                [manifests(some_nodes, order, folder / "a"), manifests(some_pods, None, folder / "b")], config=config
            )
        )
        for _ in range(3)
    ]
    assert answers[0] == answers[1] == answers[2]


@settings(max_examples=examples(25))
@given(nodes(), pods(), plugins(), st.randoms(use_true_random=False))
def test_neither_the_order_of_nodes_nor_their_history_changes_a_placement(some_nodes, some_pods, chosen, order):
    answers = []
    for shuffled in (False, True):
        cluster = FakeCluster()
        if shuffled:
            cluster.nodes(2)
            cluster.start(*chosen.build())
            cluster.delete(type(some_nodes[0]), "n1", "")
            cluster.delete(type(some_nodes[0]), "n2", "")
            cluster.run()
            mixed = list(some_nodes)
            order.shuffle(mixed)
            for one in mixed:
                cluster.add(one)
                cluster.run()
        else:
            cluster.add(some_nodes)
            cluster.start(*chosen.build())
        cluster._ticks = 1000
        cluster.add(some_pods)
        cluster.run(cycles=2)
        answers.append(cluster.placements())
    assert answers[0] == answers[1]
