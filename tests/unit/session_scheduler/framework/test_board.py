"""Boards in extreme cases: ties, large scores, more classes than boards, capacities, and aliased arrays."""

from __future__ import annotations

import numpy as np
import pytest

from session_scheduler import Normalise, Scope, hookimpl
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.model.groups import Phase
from session_scheduler.testing import FakeCluster, check_invariants, gang, node, pod

MODES = ("naive", "board", "heap")


def session_over(*objects, plugins=(), evaluation="heap", seed=0):
    cluster = FakeCluster(evaluation=evaluation, config=SchedulerConfig(seed=seed))
    cluster.add(*objects)
    scheduler = cluster.start(*plugins)
    (calls,) = scheduler.profiles.values()
    session = scheduler.sessions.open(calls, tuple(scheduler.cache.groups.values()))
    return session, {task.name: task for task in scheduler.cache.tasks.values()}


def same_in_all_modes(objects, *plugins, cycles=1):
    answers = []
    for mode in MODES:
        cluster = FakeCluster(evaluation=mode)
        cluster.add(*objects)
        cluster.run(*(plugin() for plugin in plugins), cycles=cycles)
        answers.append(cluster.placements())
    assert answers[0] == answers[1] == answers[2]
    return answers[0]


def test_seed_and_name_not_the_row_break_ties_between_nodes():
    names = [f"n{index}" for index in range(8)]
    picked = set()
    for order in (names, names[::-1]):
        cluster = FakeCluster()
        cluster.start()
        for name in order:
            cluster.add(node(name))
            cluster.run()
        cluster.add(pod("p"))
        cluster.run()
        picked.add(cluster.node_of("p"))
    assert len(picked) == 1
    by_seed = set()
    for seed in range(8):
        session, tasks = session_over(*(node(name) for name in names), pod("p"), seed=seed)
        by_seed.add(session.board(tasks["p"]).pick(tasks["p"]))
    assert len(by_seed) > 1


LIMITS = {
    Normalise.NONE: (0, 100),
    Normalise.MAX: (0, 2**56),
    Normalise.MAX_REVERSED: (0, 2**56),
    Normalise.SPREAD: (-(2**55), 2**55),
}


def scoring(answer, how=Normalise.NONE, scope=Scope.STATIC):
    class Scoring:
        name = "scoring"
        normalise = how
        score_scope = scope

        @hookimpl
        def score(self, nodes):
            return answer(nodes)

    return Scoring


@pytest.mark.parametrize("how", list(Normalise))
@pytest.mark.parametrize("scope", list(Scope))
def test_the_lowest_and_the_highest_scores_are_ranked_alike_in_all_modes(how, scope):
    low, high = LIMITS[how]

    def answer(nodes):
        rows = nodes.row_numbers
        some = nodes.used("cpu") // 10 if scope is Scope.NODE else rows
        return np.where(rows % 3 == 0, low, np.where(rows % 3 == 1, high, -some if low < 0 else some))

    objects = [node(f"n{index}", cpu="1") for index in range(7)] + [pod(f"p{index}", cpu="300m") for index in range(25)]
    placed = same_in_all_modes(objects, scoring(answer, how, scope))
    assert sum(name is not None for name in placed.values()) == 21


@pytest.mark.parametrize("scope", list(Scope))
@pytest.mark.parametrize("how", list(Normalise))
@pytest.mark.parametrize("below", [True, False])
def test_a_score_outside_of_the_limits_fails_the_pod(how, scope, below):
    score = LIMITS[how][0] - 1 if below else LIMITS[how][1] + 1
    cluster = FakeCluster()
    cluster.nodes(2)
    cluster.node("full", cpu="0")
    cluster.pod("p")

    def answer(nodes):
        names = [nodes.node(index).metadata.name for index in range(len(nodes))]
        return np.array([1 if name == "n1" else score for name in names], np.int64)

    cluster.run(scoring(answer, how, scope)())
    low, high = LIMITS[how]
    when = "after normalizing; scale it, or declare `normalise`" if how is Normalise.NONE else "before normalizing"
    cluster.assert_pending(
        "p",
        "plugin scoring failed in score: "
        f"it returns an invalid score {score}, it should in the range of [{low}, {high}] {when}",
    )


def test_the_score_of_a_node_that_does_not_fit_is_not_checked():
    def answer(nodes):
        return np.where(nodes.allocatable("cpu") == 0, 101, 1)

    placed = same_in_all_modes([node("n1"), node("full", cpu="0"), pod("p")], scoring(answer, scope=Scope.ANY))
    assert placed == {"default/p": "n1"}


def test_a_score_is_checked_when_a_pod_needs_it_in_all_modes():
    """The heap evaluates rows with more pods than there are: the plugin fails only for a pod that needs that score."""
    objects = [node("n1"), *(pod(f"p{index}") for index in range(6))]
    placed = same_in_all_modes(objects, scoring(lambda nodes: 30 * nodes.used("pods"), scope=Scope.NODE))
    assert [placed[f"default/p{index}"] for index in range(6)] == ["n1"] * 4 + [None] * 2


def test_a_row_that_no_longer_fits_does_not_count_for_normalisation():
    """Raw 100 on n0 makes the others equal; once n0 is full, 9 and 10 differ a lot."""
    raw = {"n0": 100, "n1": 9, "n2": 10}

    def answer(nodes):
        return np.array([raw[nodes.node(index).metadata.name] for index in range(len(nodes))], np.int64)

    objects = [
        node("n0", cpu="1"),
        node("n1", cpu="8"),
        node("n2", cpu="8"),
        *(pod(f"p{i}", cpu="1") for i in range(6)),
    ]
    placed = same_in_all_modes(objects, scoring(answer, Normalise.SPREAD))
    assert list(placed.values()).count("n0") == 1
    assert list(placed.values()).count("n2") == 5


def test_unsigned_scores_are_integers_too():
    placed = same_in_all_modes(
        [node("n1"), node("n2"), pod("p")],
        scoring(
            lambda nodes: np.array(
                [50 if nodes.node(i).metadata.name == "n2" else 0 for i in range(len(nodes))], np.uint8
            )
        ),
    )
    assert placed["default/p"] == "n2"


@pytest.mark.parametrize("how", [Normalise.MAX, Normalise.NONE])
def test_the_board_does_not_write_into_a_table_column_that_a_score_returns(how):
    plugin = scoring(lambda nodes: nodes.used("cpu"), how, Scope.NODE)
    objects = [node(f"n{index}", cpu="2") for index in range(3)] + [pod(f"p{index}", cpu="500m") for index in range(9)]
    same_in_all_modes([*objects, *gang("fails", 9, cpu="1")], plugin)


def test_a_plugin_may_answer_with_the_same_array_every_time():
    kept = np.zeros(4, np.int64)

    def answer(nodes):
        kept[:] = 0
        kept[: len(nodes)] = nodes.used("cpu") // 10
        return kept[: len(nodes)]

    objects = [node(f"n{index}", cpu="2") for index in range(4)]
    pods = [pod(f"p{index}", cpu=f"{300 + 100 * (index % 3)}m") for index in range(12)]
    same_in_all_modes([*objects, *pods], scoring(answer, Normalise.MAX, Scope.ANY))


def test_more_classes_than_boards_are_placed_correctly():
    objects = [node(f"n{index}", cpu="8") for index in range(5)]
    pods = [pod(f"p{index}", cpu=f"{50 + index % 80}m") for index in range(240)]
    placed = same_in_all_modes([*objects, *pods])
    assert None not in placed.values()


def test_a_class_of_thousands_fills_the_cluster_to_the_last_place():
    cluster = FakeCluster()
    cluster.nodes(40, cpu="10", pods=60)
    cluster.add(gang("g", 2600, min_count=2400, cpu="10m"))
    cluster.run()
    assert sum(name is not None for name in cluster.placements().values()) == 2400


def test_the_capacity_is_the_number_of_tasks_that_can_be_placed():
    session, tasks = session_over(
        node("n1", cpu="1"), node("n2", cpu="350m"), node("n3", cpu="50m"), pod("p", cpu="100m", host_port=0)
    )
    room = session.board(tasks["p"]).capacity(5)
    assert {name: int(room[row]) for name, row in session.table.row_of.items()} == {"n1": 5, "n2": 3, "n3": 0}


def test_the_capacity_does_not_overflow_with_huge_requests():
    largest = str(2**56)
    session, tasks = session_over(node("n1", memory=largest), pod("p", memory=largest))
    assert session.board(tasks["p"]).capacity(10_000).tolist() == [1]


@pytest.mark.parametrize("scope", [Scope.STATIC, Scope.NODE, Scope.ANY])
def test_classes_with_equal_keys_share_answers_that_follow_every_change(scope):
    calls = []

    class AtMost:
        name = "at-most"
        filter_scope = scope

        @hookimpl
        def filter(self, cls, nodes, mask):
            calls.append(cls.index)
            if scope is not Scope.STATIC:
                mask &= nodes.used("pods") < 2
            mask &= ~nodes.named("n0")

        @hookimpl
        def filter_key(self):
            return "all"

        @hookimpl
        def reasons(self):
            return "node(s) were closed or full"

    objects = [node(f"n{index}", cpu="8") for index in range(4)]
    pods = [pod(f"p{index}", cpu=f"{100 + index}m", labels={"app": f"a{index % 3}"}) for index in range(9)]
    placed = same_in_all_modes([*objects, *pods], AtMost)
    assert sum(name is None for name in placed.values()) == (0 if scope is Scope.STATIC else 3)
    assert "default/n0" not in placed.values()
    calls.clear()
    cluster = FakeCluster()
    cluster.add(*objects, *pods)
    cluster.run(AtMost())
    if scope is Scope.STATIC:
        assert len(calls) == 1
    elif scope is Scope.NODE:
        cluster.assert_pending("p8", "0/4 nodes are available: 4 node(s) were closed or full.")


def test_a_gang_that_fails_does_not_change_shared_boards():
    objects = [node(f"n{index}", cpu="1") for index in range(6)]
    pods = [pod("a", cpu="200m"), *gang("fails", 31, cpu="200m"), pod("b", cpu="200m"), *gang("fits", 20, cpu="200m")]
    placed = same_in_all_modes([*objects, *pods])
    assert sum(name is not None for name in placed.values()) == 22


def test_a_large_gang_of_different_pods_fails_quickly():
    """It is too large for the search: the test must exhaust neither the stack nor the steps."""
    cluster = FakeCluster()
    cluster.nodes(3, cpu="1")
    scheduler = cluster.start()
    cluster.add(gang("g", 1500, cpu="1m"))
    for index in range(0, 1500, 2):
        cluster.add(pod(f"g-{index}", cpu="3m", group="g"))
    cluster.run()
    assert all(task.phase is Phase.PENDING for task in scheduler.cache.tasks.values())
    assert scheduler.cache.table.all_rows().used("pods").tolist() == [0, 0, 0]
    check_invariants(scheduler)
