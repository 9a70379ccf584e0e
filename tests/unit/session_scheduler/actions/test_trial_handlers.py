"""Handlers that follow simulated removals, with and without the promise `own_filter`."""

from __future__ import annotations

import pytest

from session_scheduler import SKIP, Prepared, Scope, hookimpl
from session_scheduler.framework.session import Session
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.objects import Pod
from session_scheduler.testing import FakeCluster, pod

from ....tools.preempting import ended


class Seats:
    """Its own filter evaluates only pods with the annotation `seat`; records the removed pods."""

    name = "seats"
    class_key_complete = True

    def __init__(self, *, own_filter: bool) -> None:
        self.own_filter = own_filter
        self.removed: set[str] = set()

    @hookimpl
    def class_key(self, pod: Pod) -> str:
        return pod.metadata.annotations.get("seat", "")

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        session.add_trial_handler(lambda event: self.removed.add(event.task.name), lambda event: None,
                                  own_filter=self.own_filter)  # fmt: skip

    @hookimpl
    def prepare(self, cls: TaskClass) -> object:
        return Prepared(None, Scope.ANY, SKIP) if "seat" in cls.pod.metadata.annotations else SKIP

    @hookimpl
    def filter(self) -> None:
        """Fits all nodes."""


@pytest.mark.parametrize(
    ("own_filter", "annotations", "removed"),
    [(True, {}, set()), (True, {"seat": "1"}, {"low"}), (False, {}, {"low"})],
)
def test_with_own_filter_only_trials_of_classes_that_the_filter_evaluates_notify(
    own_filter: bool, annotations: dict[str, str], removed: set[str]
) -> None:
    cluster, plugin = FakeCluster(), Seats(own_filter=own_filter)
    cluster.node("n1", cpu="1").add(pod("low", cpu="1", bound_to="n1"))
    cluster.add(pod("high", cpu="1", priority=9, annotations=annotations))
    cluster.run(plugin)
    assert ended(cluster) == ["low"]
    assert plugin.removed == removed
