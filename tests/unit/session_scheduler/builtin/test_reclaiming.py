from __future__ import annotations

from typing import Any

import pytest

from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.framework.callbacks import Scenario
from session_scheduler.framework.session import Session
from session_scheduler.model.groups import Phase, Task
from session_scheduler.testing.builders import pod
from session_scheduler.testing.fake_cluster import FakeCluster

LABEL = "fluence.flux-framework.org/queue"


class World:
    """Queue `a` uses all four cores; the fair share of `b` is two of them."""

    def __init__(self, *queues: dict[str, Any], kept: bool = False) -> None:
        configured = tuple(QueueConfig(**queue) for queue in queues or ({"name": "a"}, {"name": "b"}))
        config = SchedulerConfig(bindings_in_flight=100, queues=configured, actions=("allocate",))
        self.cluster = FakeCluster(config=config)
        self.cluster.nodes(1, cpu="4")
        labels = {LABEL: "a", **({"fluence.flux-framework.org/preemptibility": "non-preemptible"} if kept else {})}
        self.cluster.add(*(pod(f"a{number}", cpu="1", labels=labels) for number in range(4)))
        self.cluster.run()
        self.cluster.add(*(pod(f"b{number}", cpu="1", labels={LABEL: "b"}) for number in range(3)))
        self.cluster.run()
        scheduler = self.cluster.scheduler
        self.session: Session = scheduler.sessions.open(scheduler.profiles["fluence"], ())

    def task(self, name: str) -> Task:
        return next(task for task in self.cluster.scheduler.cache.tasks.values() if task.name == name)

    def why_not(self, name: str, *victims: str) -> str | None:
        taker = self.task(name)
        scenario = Scenario(taker.group, {taker: "n1"}, [self.task(victim) for victim in victims])
        refusal = self.session.reclaim_refusal(scenario)
        return refusal.reason if refusal is not None else None


def test_a_queue_reclaims_its_share_and_no_more() -> None:
    world = World()
    assert world.why_not("b0", "a0") is None
    assert world.why_not("b0", "a0", "a1") is None
    assert "would have less than its share" in str(world.why_not("b0", "a0", "a1", "a2"))


def test_a_scenario_is_evaluated_as_if_removed_victims_still_ran() -> None:
    world = World()
    victims = [world.task("a0"), world.task("a1")]
    for task in victims:
        world.session.ledger.remove(task)
    assert world.why_not("b0", "a0", "a1") is None
    assert world.why_not("b0", "a0", "a1", "a2") is not None
    for task in victims:
        world.session.ledger.put_back(task, "n1", Phase.BOUND)
    assert world.why_not("b0", "a0", "a1") is None


def test_nothing_is_reclaimed_from_deserved_resources_or_for_a_queue_without_over_quota_weight() -> None:
    assert World({"name": "a", "deserved": {"cpu": 4}}, {"name": "b"}).why_not("b0", "a0") is not None
    assert World({"name": "a"}, {"name": "b", "overQuotaWeight": 0}).why_not("b0", "a0") is not None
    assert World({"name": "a", "priority": 1}, {"name": "b", "deserved": {"cpu": 2}}).why_not("b0", "a0") is None


@pytest.mark.parametrize(("kept", "names"), [(False, ["a0", "a1"]), (True, [])])
def test_only_preemptible_pods_of_other_queues_are_reclaimable(kept: bool, names: list[str]) -> None:
    world = World(kept=kept)
    taker = world.task("b0")
    running = [world.task("a0"), world.task("a1"), world.task("b1")]
    assert [task.name for task in world.session.reclaimable(taker.group, running)] == names
