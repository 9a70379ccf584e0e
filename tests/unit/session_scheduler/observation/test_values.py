"""What a user sees who may read some namespaces: their pods, and sums of the others."""

from __future__ import annotations

from msgspec.structs import replace

from session_scheduler.observation.observer import Observer
from session_scheduler.observation.values import HIDDEN, Observed
from session_scheduler.testing import FakeCluster

SHARE = {"fluence.flux-framework.org/gpu-fraction": "0.25"}


def observed() -> Observed:
    cluster = FakeCluster().nodes(1, cpu=4, offers={"nvidia.com/gpu": 2})
    cluster.pod("a", namespace="one", annotations=SHARE).pod("b", namespace="two", annotations=SHARE)
    cluster.pod("c", namespace="two", annotations=SHARE).pod("large", namespace="two", cpu=99)
    cluster.pod("own", namespace="one", cpu=99, annotations={"fluence.flux-framework.org/duration": "never"})
    cluster.pod("other", namespace="two", cpu=99, annotations={"fluence.flux-framework.org/duration": "never"})
    cluster.gang("g", 2, namespace="two", cpu=99).gang("h", 2, namespace="one")
    cluster.schedule()
    return Observer(cluster.scheduler, "a test").observe()


def test_a_user_who_may_read_everything_sees_everything() -> None:
    whole = observed()
    assert whole.seen_by(None) is whole


def test_pods_and_gangs_of_other_namespaces_are_sums() -> None:
    whole = observed()
    seen = whole.seen_by(frozenset({"one"}))
    assert seen.pods.keys == ("one/a", "one/h-0", "one/h-1", "one/own")
    assert [gang.name for gang in seen.gangs] == ["h"]
    assert seen.hidden == {"pending": 4, "running": 2, "gangs": 1}
    rows = [whole.pods.keys.index(key) for key in seen.pods.keys]
    assert seen.pods.nodes.tolist() == whole.pods.nodes[rows].tolist()
    assert seen.pods.requests["cpu"].tolist() == whole.pods.requests["cpu"][rows].tolist()
    assert seen.pods.reasons == tuple(whole.pods.reasons[row] for row in rows)
    assert seen.nodes.allocated is whole.nodes.allocated
    assert seen.queues is whole.queues


def test_holders_of_a_gpu_in_other_namespaces_are_one_sum() -> None:
    (shared,) = [gpu for gpu in observed().nodes.gpus if gpu.holders]
    assert shared.holders == {"one/a": 0.25, "two/b": 0.25, "two/c": 0.25}
    (seen,) = [gpu for gpu in observed().seen_by(frozenset({"one"})).nodes.gpus if gpu.holders]
    assert seen.holders == {"one/a": 0.25, HIDDEN: 0.5}


def test_problems_of_objects_in_other_namespaces_are_removed() -> None:
    whole = observed()
    assert list(whole.problems) == ["Pod one/own", "Pod two/other"]
    assert list(whole.seen_by(frozenset({"one"})).problems) == ["Pod one/own"]


def test_the_text_of_a_plugins_error_is_for_readers_of_everything() -> None:
    whole = replace(observed(), problems={"Plugin P": "KeyError: 'two/b'", "Node n": "bad"})
    assert whole.seen_by(None).problems["Plugin P"] == "KeyError: 'two/b'"
    assert whole.seen_by(frozenset({"one"})).problems == {"Plugin P": "the plugin failed", "Node n": "bad"}


def test_what_is_hidden_twice_is_counted_once() -> None:
    both = observed().seen_by(frozenset({"one"})).seen_by(frozenset())
    assert both.pods.keys == ()
    assert both.hidden == {"pending": 5, "running": 5, "gangs": 2}
