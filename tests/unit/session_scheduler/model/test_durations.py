"""Durations of pods, from deadline and annotation, and their latest ends."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from session_scheduler.model.durations import (
    DURATION_ANNOTATION,
    LONGEST,
    DurationError,
    known_end,
    known_seconds,
    parse_duration,
    problem,
)
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.objects import Pod, PodCondition, PodGroup
from session_scheduler.testing import FakeCluster, node, pod, pod_group

START = 1_767_323_045.0
"""2026-01-02T03:04:05Z."""


def lasting(name: str, text: str | None, *, deadline: int | None = None, group: str = "", bound_to: str = "") -> Pod:
    annotations = {} if text is None else {DURATION_ANNOTATION: text}
    return pod(name, annotations=annotations, group=group, bound_to=bound_to, active_deadline_seconds=deadline)


def lasting_group(name: str, text: str) -> PodGroup:
    group = pod_group(name, 2)
    return msgspec.structs.replace(
        group, metadata=msgspec.structs.replace(group.metadata, annotations={DURATION_ANNOTATION: text})
    )


def tasks_of(*objects: Pod | PodGroup) -> dict[str, Task]:
    cluster = FakeCluster()
    cluster.add(node("n1"), *objects)
    return {task.name: task for task in cluster.start().cache.tasks.values()}


def task_of(of: Pod) -> Task:
    return tasks_of(of)[of.metadata.name]


def group_of(*objects: Pod | PodGroup) -> Group:
    groups = {id(task.group): task.group for task in tasks_of(*objects).values()}
    (group,) = groups.values()
    return group


# ------------------------------------------------------------------ parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0), ("30m", 1800.0), ("2h", 7200.0), ("1h30m", 5400.0), ("1.5h", 5400.0), (".5m", 30.0),
        ("1h0m0s", 3600.0), ("250ms", 0.25), ("+90s", 90.0), ("3600", 3600.0), ("0.5", 0.5), ("2µs", 2e-6),
    ],
)  # fmt: skip
def test_a_duration_is_read_as_go_reads_it_or_as_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "two", "2 h", " 2h", "2h ", "2d", "1e3", "٣s", "h", "2h30", "PT2H", "inf", "9" * 65]
)
def test_an_invalid_duration_is_rejected_with_a_remedy(text: str) -> None:
    remedy = "is not a valid duration; write 90s, 30m, 1h30m or a number of seconds"
    with pytest.raises(DurationError, match=remedy) as caught:
        parse_duration(text)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("text", ["0", "0s", "300000000h", "9" * 60])
def test_a_duration_out_of_range_is_rejected(text: str) -> None:
    with pytest.raises(DurationError, match="expected a duration above 0 and up to 292 years, got "):
        parse_duration(text)


@pytest.mark.parametrize("text", ["-5s", "-1"])
def test_a_negative_duration_is_rejected(text: str) -> None:
    with pytest.raises(DurationError):
        parse_duration(text)


@given(st.text(max_size=80))
def test_any_text_is_a_positive_duration_or_rejected(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except DurationError:
        return
    assert 0 < seconds <= LONGEST


# ------------------------------------------------------------------ known_seconds


def test_the_shorter_of_deadline_and_annotation_counts() -> None:
    assert known_seconds(task_of(lasting("p", "90s", deadline=60))) == 60
    assert known_seconds(task_of(lasting("p", "90s", deadline=120))) == 90
    assert known_seconds(task_of(lasting("p", None, deadline=120))) == 120
    assert known_seconds(task_of(lasting("p", "90s"))) == 90
    assert known_seconds(task_of(lasting("p", None))) is None


def test_a_pod_groups_annotation_takes_precedence_over_its_pods() -> None:
    tasks = tasks_of(
        lasting_group("g", "2h"), lasting("a", "1h", group="g"), lasting("b", None, group="g", deadline=60)
    )
    assert (known_seconds(tasks["a"]), known_seconds(tasks["b"])) == (7200, 60)


def test_a_group_has_the_duration_of_its_longest_pod() -> None:
    group = group_of(pod_group("g", 2), lasting("a", "1h", group="g"), lasting("b", "2h", group="g"))
    assert known_seconds(group) == 7200


def test_a_group_with_a_pod_of_unknown_duration_is_unknown() -> None:
    assert (
        known_seconds(group_of(pod_group("g", 2), lasting("a", "1h", group="g"), lasting("b", None, group="g"))) is None
    )


def test_a_single_pod_is_its_own_group() -> None:
    assert known_seconds(group_of(lasting("p", "1h"))) == 3600


def test_a_group_without_pods_has_its_pod_groups_duration() -> None:
    group = group_of(lasting_group("g", "2h"), lasting("a", None, group="g"))
    group.tasks.clear()
    assert known_seconds(group) == 7200


# ------------------------------------------------------------------ known_end


def bound(
    *, start: str | None = None, placed: str | None = None, created: str | None = None, status: str = "True"
) -> Task:
    plain = lasting("p", "90s", bound_to="n1")
    conditions = (
        () if placed is None else (PodCondition(type="PodScheduled", status=status, last_transition_time=placed),)
    )
    return task_of(
        msgspec.structs.replace(
            plain,
            metadata=msgspec.structs.replace(plain.metadata, creation_timestamp=created),
            status=msgspec.structs.replace(plain.status, start_time=start, conditions=conditions),
        )
    )


EARLY, LATE, LATER = "2026-01-02T03:04:05Z", "2026-01-02T03:04:15Z", "2026-01-02T03:04:25Z"


def test_the_end_counts_from_the_kubelets_start() -> None:
    assert known_end(bound(start=LATER, placed=LATE, created=EARLY)) == START + 20 + 90


def test_without_a_start_it_counts_from_the_condition_pod_scheduled() -> None:
    assert known_end(bound(placed=LATE, created=EARLY)) == START + 10 + 90


def test_a_false_condition_pod_scheduled_does_not_count() -> None:
    assert known_end(bound(placed=LATE, created=EARLY, status="False")) == START + 90


def test_without_both_it_counts_from_the_creation() -> None:
    assert known_end(bound(created=EARLY)) == START + 90


@pytest.mark.parametrize("start", ["yesterday", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"])
def test_an_invalid_start_gives_no_end(start: str) -> None:
    assert known_end(bound(start=start)) is None


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.GATED, Phase.ASSUMED])
def test_a_pod_that_is_not_bound_has_no_end_yet(phase: Phase) -> None:
    task = bound(created=EARLY)
    task.phase = phase
    assert known_end(task) is None


# ------------------------------------------------------------------ problem


def test_an_invalid_annotation_is_ignored_and_reported_with_its_field() -> None:
    task = task_of(lasting("p", "2 hours"))
    assert known_seconds(task) is None
    assert problem(task) == problem(task.group) == (
        "Pod default/p: metadata.annotations[fluence.flux-framework.org/duration]: '2 hours' is not a valid duration; "
        "write 90s, 30m, 1h30m or a number of seconds"
    )  # fmt: skip


def test_a_deadline_counts_if_the_annotation_is_invalid() -> None:
    assert known_seconds(task_of(lasting("p", "2 hours", deadline=60))) == 60


def test_an_invalid_annotation_of_a_pod_group_is_reported_for_the_pod_group() -> None:
    tasks = tasks_of(lasting_group("g", "soon"), lasting("a", "1h", group="g"), lasting("b", "1h", group="g"))
    assert known_seconds(tasks["a"]) is None
    assert str(problem(tasks["a"])).startswith("PodGroup default/g: metadata.annotations")
    assert str(problem(tasks["a"].group)).startswith("PodGroup default/g: metadata.annotations")


def test_valid_annotations_have_no_problem() -> None:
    assert problem(group_of(lasting_group("g", "1h"), lasting("a", "soon", group="g"))) is None
    assert problem(task_of(lasting("p", None))) is None
