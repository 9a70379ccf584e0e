"""Gangs with sub-groups: nothing of a gang starts without the minimum of each sub-group."""

from __future__ import annotations

from typing import Any

import pytest

from session_scheduler import Session, hookimpl
from session_scheduler.cli.tables import print_tables
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.engine.explain import explain_pending
from session_scheduler.model.groups import Group
from session_scheduler.model.sub_groups import SUB_GROUP_LABEL, SUB_GROUPS_ANNOTATION, SubGroupsError, minima_of
from session_scheduler.testing import FakeCluster


def crew(
    cluster: FakeCluster, minima: str, *, minimum: int = 1, cpu: str = "1", group: str = "crew", **counts: int
) -> FakeCluster:
    """A gang with this number of pods in each sub-group, named `<sub-group>-0` and so on."""
    cluster.group(group, minimum, sub_groups=minima)
    for name, count in counts.items():
        cluster.pods(count, prefix=name, group=group, sub_group=name, cpu=cpu)
    return cluster


def bound(cluster: FakeCluster) -> set[str]:
    return {key.partition("/")[2] for key, node in cluster.placements().items() if node}


# ---------------------------------------------------------------------- the annotation


def test_an_annotation_names_sub_groups_with_their_minima_in_order() -> None:
    assert list(minima_of("leader=1, worker = 3,spare=0").items()) == [("leader", 1), ("worker", 3), ("spare", 0)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has the invalid entry ''; write comma-separated name=minimum pairs"),
        ("leader", "has the invalid entry 'leader'"),
        ("leader=1,", "has the invalid entry ''"),
        ("leader=-1", "has the invalid entry 'leader=-1'"),
        ("leader=1.5", "has the invalid entry 'leader=1.5'"),
        ("leader=1=2", "has the invalid entry 'leader=1=2'"),
        ("leader=\u0663", "has the invalid entry"),
        ("Leader=1", "lower-case letters"),
        ("-=1", "has the invalid entry '-=1'"),
        ("a" * 64 + "=1", "up to 63"),
        ("leader=1234567", "a minimum has up to 6 digits"),
        ("leader=1,leader=2", "names the sub-group 'leader' twice; write it once"),
        (",".join(f"s{number}=1" for number in range(65)), "names more than 64 sub-groups; write at most 64"),
    ],
)
def test_an_invalid_annotation_is_rejected_with_the_remedy(text: str, says: str) -> None:
    with pytest.raises(SubGroupsError, match=r"write") as caught:
        minima_of(text)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 400


def test_the_maximum_number_of_sub_groups_is_accepted() -> None:
    assert len(minima_of(",".join(f"s{number}=1" for number in range(64)))) == 64


def test_a_group_with_an_invalid_annotation_is_rejected_with_name_field_and_remedy() -> None:
    cluster = crew(FakeCluster(), "worker=three", worker=1).nodes(1).schedule()
    begin = f"PodGroup default/crew: metadata.annotations[{SUB_GROUPS_ANNOTATION}] has the invalid entry 'worker=three'"
    cluster.assert_pending("worker-0", begin).assert_pending("worker-0", "write comma-separated name=minimum pairs")
    cluster.assert_pending("worker-0", "; or remove the annotation")
    cluster.group("crew", 1, sub_groups="worker=1").schedule()
    assert bound(cluster) == {"worker-0"}


# ---------------------------------------------------------------------- the start


def test_a_gang_waits_for_the_minimum_of_each_sub_group_however_many_pods_it_has() -> None:
    cluster = crew(FakeCluster(), "leader=1,worker=3", leader=3, worker=2).nodes(3, cpu="4").schedule()
    assert not bound(cluster)
    assert cluster.reasons("leader-0") == "pod group default/crew needs 3 pods of sub-group worker to start and has 2"
    cluster.pod("worker-2", group="crew", sub_group="worker", cpu="1").schedule()
    assert len(bound(cluster)) == 6


def test_the_message_names_every_incomplete_sub_group_and_pods_without_one() -> None:
    cluster = crew(FakeCluster(), "leader=1,worker=2", wroker=2).nodes(1).schedule()
    cluster.assert_pending(
        "wroker-0",
        "needs 1 pod of sub-group leader to start and has 0, and 2 pods of sub-group worker to start and has 0; 2 of "
        f"its pods name none of its sub-groups (label {SUB_GROUP_LABEL})",
    )


def test_nothing_starts_if_a_sub_group_does_not_fit_although_min_count_does() -> None:
    cluster = FakeCluster().node("n1", cpu="4")
    crew(cluster, "leader=1,worker=3", minimum=2, leader=2).pods(3, prefix="worker", group="crew", sub_group="worker",
                                                                  cpu="1500m").schedule()  # fmt: skip
    assert not bound(cluster)
    waits = "waiting for minCount pods from a gang to be scheduled, and lacks nodes for 1 pod of sub-group worker"
    cluster.assert_pending("leader-0", f"{waits}: 0/1 nodes are available: 1 Insufficient cpu")
    cluster.node("n2", cpu="2").schedule()
    assert {name for name in bound(cluster) if name.startswith("worker")} == {"worker-0", "worker-1", "worker-2"}
    assert "leader-0" in bound(cluster)


def test_the_minima_are_placed_first_if_not_all_pods_fit() -> None:
    cluster = crew(FakeCluster().node("n1", cpu="4"), "leader=1,worker=3", leader=4, worker=5).schedule()
    names = sorted(name.partition("-")[0] for name in bound(cluster))
    assert names == ["leader", "worker", "worker", "worker"]


def test_a_sub_groups_minimum_is_met_by_whichever_of_its_pods_fits() -> None:
    cluster = FakeCluster().node("n1", cpu="3").group("crew", 2, sub_groups="leader=1,worker=2")
    cluster.pod("leader-0", group="crew", sub_group="leader", cpu="9").pod("leader-1", group="crew", sub_group="leader",
                                                                          cpu="1")  # fmt: skip
    cluster.pods(2, prefix="worker", group="crew", sub_group="worker", cpu="1").schedule()
    assert bound(cluster) == {"leader-1", "worker-0", "worker-1"}


def test_min_count_applies_if_it_exceeds_the_minima() -> None:
    cluster = crew(FakeCluster().node("n1", cpu="3"), "leader=1", minimum=4, leader=1, worker=3).schedule()
    assert not bound(cluster)
    cluster.node("n1", cpu="4").advance(60).schedule()
    assert len(bound(cluster)) == 4


def test_pods_without_a_sub_group_start_with_the_others_and_count_in_none() -> None:
    cluster = crew(FakeCluster().node("n1", cpu="3"), "worker=2", worker=2)
    cluster.pods(2, prefix="helper", group="crew", cpu="1").schedule()
    assert {"worker-0", "worker-1"} < bound(cluster)
    assert len(bound(cluster)) == 3


@pytest.mark.parametrize("how", [{"coscheduling": True}, {}])
def test_both_pod_group_apis_support_the_annotation(how: dict[str, Any]) -> None:
    cluster = FakeCluster().node("n1", cpu="4").group("crew", 1, sub_groups="leader=1,worker=2", **how)
    label = {"scheduling.x-k8s.io/pod-group": "crew"} if how else {}
    named = {} if how else {"group": "crew"}
    cluster.pods(2, prefix="worker", sub_group="worker", labels=label, **named).schedule()
    assert not bound(cluster)
    cluster.pod("leader-0", sub_group="leader", labels=label, **named).schedule()
    assert bound(cluster) == {"leader-0", "worker-0", "worker-1"}


def test_a_basic_group_with_sub_groups_starts_as_a_gang() -> None:
    cluster = FakeCluster().node("n1", cpu="1").group("crew", None, sub_groups="leader=1,worker=1")
    cluster.pod("leader-0", group="crew", sub_group="leader", cpu="1")
    cluster.pod("worker-0", group="crew", sub_group="worker", cpu="1").schedule()
    assert not bound(cluster)


def test_a_gang_starts_when_a_pods_sub_group_label_is_fixed() -> None:
    cluster = crew(FakeCluster().nodes(1), "leader=1,worker=1", leader=1, wroker=1).schedule()
    assert not bound(cluster)
    cluster.pod("wroker-0", group="crew", sub_group="worker", cpu="1").schedule()
    assert bound(cluster) == {"leader-0", "wroker-0"}


def test_a_gang_starts_when_its_minima_are_lowered() -> None:
    cluster = crew(FakeCluster().nodes(1), "leader=1,worker=2", leader=1, worker=1).schedule()
    assert not bound(cluster)
    cluster.group("crew", 1, sub_groups="leader=1,worker=1").schedule()
    assert bound(cluster) == {"leader-0", "worker-0"}


# ---------------------------------------------------------------------- after the start


def test_a_started_gang_gets_its_other_pods_one_by_one() -> None:
    cluster = crew(FakeCluster().node("n1", cpu="2"), "leader=1,worker=1", leader=1, worker=3).schedule()
    assert len(bound(cluster)) == 2
    cluster.node("n2", cpu="1").schedule()
    assert len(bound(cluster)) == 3
    cluster.node("n3", cpu="1").schedule()
    assert len(bound(cluster)) == 4


def test_additional_pods_of_a_started_gang_do_not_each_scan_the_whole_gang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    short_of = Group.short_of
    monkeypatch.setattr(Group, "short_of", lambda group, tasks: asked.append(group) or short_of(group, tasks))
    cluster = crew(FakeCluster(), "leader=1,worker=2", leader=1, worker=2).nodes(2, cpu="64", pods=100).schedule()
    counts = []
    for prefix, count in (("few", 4), ("many", 40)):
        cluster.pods(count, prefix=prefix, group="crew", sub_group="worker", cpu="1")
        asked.clear()
        cluster.schedule()
        counts.append(len(asked))
    cluster.assert_all_bound()
    assert counts[0] == counts[1]


def test_the_simulation_of_moves_does_not_scan_the_whole_gang_for_each_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    short_of = Group.short_of
    monkeypatch.setattr(Group, "short_of", lambda group, tasks: asked.append(group) or short_of(group, tasks))
    counts = []
    for count in (4, 40):
        asked.clear()
        cluster = FakeCluster(config=SchedulerConfig(actions=("allocate", "consolidate")))
        cluster.node("n1", cpu=str(count), memory="1Ti", pods=100)
        crew(cluster, f"leader=1,worker={count}", leader=1, worker=count).schedule()
        assert not bound(cluster)
        counts.append(len(asked))
    assert counts[0] == counts[1]


def test_a_gang_without_its_leader_gets_no_workers_until_a_leader_is_placed() -> None:
    cluster = crew(FakeCluster().node("n1", cpu="3"), "leader=1,worker=1", leader=1, worker=2).schedule()
    assert len(bound(cluster)) == 3
    cluster.delete_pod("leader-0").pod("worker-2", group="crew", sub_group="worker", cpu="1").schedule()
    assert "worker-2" not in bound(cluster)
    cluster.assert_pending("worker-2", "needs 1 pod of sub-group leader to start and has 0")
    cluster.pod("leader-1", group="crew", sub_group="leader", cpu="1").schedule()
    assert "leader-1" in bound(cluster)
    cluster.assert_pending("worker-2", "Insufficient cpu")


def test_a_running_gang_whose_leader_fits_on_no_node_gets_no_more_workers() -> None:
    cluster = crew(FakeCluster().node("n1", cpu="3"), "leader=1,worker=1", leader=1, worker=1).schedule()
    cluster.delete_pod("leader-0").pod("leader-1", group="crew", sub_group="leader", cpu="9")
    cluster.pod("worker-1", group="crew", sub_group="worker", cpu="1").schedule()
    assert bound(cluster) == {"worker-0"}
    cluster.node("n2", cpu="9").schedule()
    assert bound(cluster) == {"leader-1", "worker-0", "worker-1"}


def test_within_a_queues_limit_the_minima_of_sub_groups_come_first() -> None:
    cluster = FakeCluster().node("n1", cpu="9").queue("team", limit={"cpu": 3})
    cluster.group("crew", 1, sub_groups="leader=1,worker=2")
    for name, count in (("leader", 4), ("worker", 2)):
        cluster.pods(count, prefix=name, group="crew", sub_group=name, cpu="1", queue="team")
    cluster.schedule()
    assert bound(cluster) == {"leader-0", "worker-0", "worker-1"}


def test_the_next_pod_of_a_sub_group_replaces_one_above_the_queues_limit() -> None:
    """Also for gangs too large for the search: the minima come first among the pods within the limit, too."""
    cluster = FakeCluster().node("n1", cpu="202", memory="1Ti", pods=1000).queue("default", limit={"cpu": 205})
    cluster.group("crew", 1, sub_groups="aide=200,worker=2")
    cluster.pods(1, prefix="worker-large", group="crew", sub_group="worker", cpu="300")
    cluster.pods(2, prefix="worker-small", group="crew", sub_group="worker", cpu="1")
    cluster.pods(202, prefix="aide", group="crew", sub_group="aide", cpu="1")
    cluster.schedule()
    assert len(bound(cluster)) == 202
    assert {"worker-small-0", "worker-small-1"} < bound(cluster)


def test_a_queues_limit_below_the_minima_starts_nothing() -> None:
    cluster = FakeCluster().node("n1", cpu="9").queue("team", limit={"cpu": 2})
    cluster.group("crew", 1, sub_groups="leader=1,worker=2")
    for name, count in (("leader", 4), ("worker", 2)):
        cluster.pods(count, prefix=name, group="crew", sub_group=name, cpu="1", queue="team")
    cluster.schedule()
    assert not bound(cluster)
    cluster.assert_pending("leader-0", "queue 'team' has reached its limit")


def test_a_gang_preempts_for_its_incomplete_sub_group() -> None:
    cluster = FakeCluster().node("n1", cpu="3").pod("low", cpu="1", priority=1).schedule()
    cluster.group("crew", 1, sub_groups="leader=1,worker=2", priority=9)
    for name, count in (("leader", 3), ("worker", 2)):
        cluster.pods(count, prefix=name, group="crew", sub_group=name, cpu="1")
    cluster.schedule().finish_deletions().advance(30).schedule()
    assert bound(cluster) == {"leader-0", "worker-0", "worker-1"}


# ---------------------------------------------------------------------- reports


def explained(cluster: FakeCluster) -> dict[str, Any]:
    (group,) = explain_pending(cluster.scheduler)["groups"]
    return dict(group)


def test_explain_reports_the_incomplete_sub_group_of_the_best_part(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = crew(FakeCluster().node("n1", cpu="4"), "leader=1,worker=3", leader=3)
    cluster.pods(3, prefix="worker", group="crew", sub_group="worker", cpu="1500m").schedule()
    group = explained(cluster)
    assert group["subGroups"] == {
        "leader": {"minimum": 1, "started": 0, "placeable": 1},
        "worker": {"minimum": 3, "started": 0, "placeable": 2},
    }
    assert set(group["placement"]) == {"leader-0", "worker-0", "worker-1"}
    print_tables(explain_pending(cluster.scheduler))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "sub-group worker: 2 can be placed now, 0 are running (minimum: 3); 1 missing" in lines
    assert "sub-group leader: 1 can be placed now, 0 are running (minimum: 1)" in lines


def test_explain_omits_sub_groups_for_a_gang_without_them() -> None:
    cluster = FakeCluster().node("n1", cpu="1").gang("g", 2, cpu="1").schedule()
    assert "subGroups" not in explained(cluster)


def test_the_refusal_names_the_sub_group_that_does_not_fit() -> None:
    cluster = crew(FakeCluster().node("n1", cpu="2"), "leader=1,worker=2", leader=1, worker=2).schedule()
    refusal = cluster.scheduler.outcomes["PodGroup default/crew"].refusal
    assert refusal is not None
    assert "and lacks nodes for 1 pod of sub-group worker" in refusal.reason


# ---------------------------------------------------------------------- binds that fail, and crashes


def test_a_gang_has_not_started_without_its_leader_although_min_count_pods_are_bound() -> None:
    cluster = crew(FakeCluster().node("n1", cpu="8"), "leader=1,worker=2", leader=1, worker=4)
    cluster.fail_binds("leader-0").schedule()
    assert bound(cluster) == {f"worker-{number}" for number in range(4)}
    cluster.mend_binds().advance(30).schedule()
    assert "leader-0" in bound(cluster)


def test_a_gang_whose_leader_cannot_be_bound_in_time_is_evicted() -> None:
    cluster = crew(FakeCluster().node("n1", cpu="8"), "leader=1,worker=2", leader=1, worker=4)
    cluster.fail_binds("leader-0").schedule()
    cluster.advance(61).schedule().finish_deletions()
    assert not bound(cluster)


@pytest.mark.parametrize("alive", ["leader-0", "worker-0"])
def test_a_crash_between_binds_leaves_no_gang_without_a_sub_groups_minimum(alive: str) -> None:
    names = ["leader-0", *(f"worker-{number}" for number in range(3))]
    cluster = crew(FakeCluster().node("n1", cpu="8"), "leader=1,worker=2", leader=1, worker=3)
    cluster.fail_binds(*(name for name in names if name != alive)).schedule()
    assert bound(cluster) == {alive}
    cluster.mend_binds().restart().schedule()
    assert bound(cluster) == set(names)


def test_after_a_restart_a_gang_without_its_leader_is_evicted_after_the_timeout() -> None:
    cluster = crew(FakeCluster().node("n1", cpu="8"), "leader=1,worker=2", leader=1, worker=3)
    cluster.fail_binds("leader-0").schedule()
    cluster.restart().schedule()
    assert bound(cluster) == {"worker-0", "worker-1", "worker-2"}
    cluster.advance(61).schedule().finish_deletions()
    assert not bound(cluster)


# ---------------------------------------------------------------------- the order


class WorkersFirst:
    """Orders sub-groups backwards by name."""

    name = "workers-first"
    api_version = "2"

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        session.add_sub_group_order(self.key)

    def key(self, group: Group, sub_group: str) -> bool:
        return sub_group != "worker"


def test_the_order_of_sub_groups_decides_which_pods_above_the_minima_are_placed() -> None:
    def left(*plugins: object) -> set[str]:
        cluster = FakeCluster().node("n1", cpu="4")
        for plugin in plugins:
            cluster.use(plugin)
        return bound(crew(cluster, "leader=1,worker=1", leader=3, worker=3).schedule())

    assert left() == {"leader-0", "leader-1", "leader-2", "worker-0"}
    assert left(WorkersFirst()) == {"leader-0", "worker-0", "worker-1", "worker-2"}
