"""A crash at one exact write, and checks of the state after the restart.

crash = Crash(world)                               # its scheduler is not yet started
crash.run_until(3, binds)                          # killed directly after the third Binding
crash.restart()
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, Final

from ..invariants import Plan, attempt_of, condition, is_bound, plan_of
from ..proxy import Fault, Rule
from .world import World

FIRST: Final[dict[str, Any]] = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000000,
                               "preemptionPolicy": "Never", "metadata": {"name": "tests-first"}}  # fmt: skip
"""The priority class of pods that come before the gang."""
Where = Callable[[str, str], bool]


def plans(method: str, path: str) -> bool:
    return method == "PATCH" and "/podgroups/" in path and not path.endswith("/status")


def binds(method: str, path: str) -> bool:
    return path.endswith("/binding")


def acknowledgements(method: str, path: str) -> bool:
    return method == "PATCH" and "/podgroups/" in path and path.endswith("/status")


def touches(method: str, path: str) -> bool:
    return method == "PATCH" and "/pods/" in path and path.endswith("/status")


class Crash:
    """A gang named "gang", and a scheduler that tests kill and restart."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.scheduler = world.new_scheduler()
        self.proxy = world.proxies[0]
        self.proxy.in_order = True
        world.keep_alive(False)

    def run_until(self, number: int, where: Where, fault: Fault = Fault.CALL_AFTER) -> None:
        """Start the scheduler; kill it after (CALL_AFTER) or before (CALL_BEFORE) the `number`th write of a kind."""
        rule = self.at(number, where, fault)
        self.scheduler.start()
        self.wait_for(rule)

    def at(self, number: int, where: Where, fault: Fault = Fault.CALL_AFTER) -> Rule:
        return self.proxy.at(number, fault, call=self.scheduler.kill, where=where)

    def wait_for(self, rule: Rule) -> None:
        self.world.keep_alive(False)

        def happened() -> bool:
            # The fault first kills it, and is marked as done a moment later. Any other end is an error.
            assert self.scheduler.status in (None, -signal.SIGKILL), f"status {self.scheduler.status}"
            return rule.done.is_set()

        self.world.until(f"{rule.fault.value}, write {rule.number},", happened)

    def run_whole(self) -> None:
        """Bind and acknowledge the gang, then kill the scheduler."""
        self.scheduler.start()
        self.world.wait_whole("gang")
        self.scheduler.kill()

    def restart(self) -> None:
        self.scheduler.start()
        self.world.keep_alive(True)

    def compete(self, *, device: bool = True) -> None:
        """Create a pod that takes the first free place."""
        self.world.create_pod("competitor", device=device, priorityClassName=FIRST["metadata"]["name"])

    def assert_competitor_waits(self) -> None:
        def evaluated() -> bool:
            pod = self.world.pod("competitor")
            assert not is_bound(pod), f"the competitor took {pod['spec']['nodeName']}"
            scheduled = condition(pod, "PodScheduled")
            return scheduled is not None and scheduled["status"] == "False"

        self.world.until("a verdict about the competitor", evaluated)

    @property
    def plan(self) -> Plan:
        plan = plan_of(self.world.group("gang"))
        assert plan is not None
        return plan

    @property
    def planned_places(self) -> dict[str, str]:
        return {pod["name"]: pod["node"] for pod in self.plan.pods.values()}

    def assert_rolled_forward(self, plan: Plan, places: dict[str, str]) -> None:
        """Check that the gang is bound completely, as the plan says."""
        self.world.wait_whole("gang", len(places))
        assert self.world.places("gang") == places
        assert {attempt_of(pod) for pod in self.world.members("gang")} == {plan.attempt}
        self.world.check("gang")
