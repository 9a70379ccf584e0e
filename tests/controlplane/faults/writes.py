"""One faulty write in a life: any write, with any fault.

The gang's life: eight pods, each with a device, exist when the scheduler starts. The gang is bound, its pods end, its
plan is removed. Then a second gang of the same size must fit on exactly the same nodes, so nothing of the first may
still be allocated. `device_pods` has the life of a single device pod.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from session_scheduler.binding.binder import LEADER_ANNOTATION

from ..harness import ControlPlane
from ..invariants import Manifest, annotation
from ..proxy import Fault, Proxy, Rule
from ..scheduler_process import SchedulerProcess, Settings
from .world import LEASE, SIZE, World, resources_of

_ANSWER_IS_LATE = 1.0


def _nothing(world: World, rule: Rule) -> None:
    return


@dataclass(frozen=True)
class Kind:
    """A kind of fault for a write."""

    name: str
    fault: Fault
    status: int = 500
    kills: bool = False
    in_order: bool = False
    replicas: int = 1
    elected: bool = False
    """Whether a single replica uses leader election, as shipped. Several replicas always do."""
    when_struck: Callable[[World, Rule], None] = _nothing
    """What the test does directly after the fault."""
    afterwards: Callable[[World, Rule], None] = _nothing
    """What it does once the gang has reached its goal all the same."""


def kind_id(value: object) -> str:
    """The parameter's id in the test's name."""
    return value.name.replace(" ", "-") if isinstance(value, Kind) else str(value)


def _kill(world: World, rule: Rule) -> None:
    world.schedulers[0].kill()


def _release(world: World, rule: Rule) -> None:
    world.proxies[0].release(rule)
    world.until("the end of the held write", rule.done.is_set)


def _release_soon(world: World, rule: Rule) -> None:
    time.sleep(_ANSWER_IS_LATE)  # the fault itself: a late response
    world.proxies[0].release(rule)


def _stand_still(world: World, rule: Rule) -> None:
    """Stop the leader while its write is in flight; the other replica has to wait for the end of its lease."""
    world.schedulers[0].pause()
    world.schedulers[1].start()


def _go_on(world: World, rule: Rule) -> None:
    _release(world, rule)
    world.schedulers[0].go_on()


KILLS = (
    Kind("killed before", Fault.CALL_BEFORE, kills=True, in_order=True),
    Kind("killed after", Fault.CALL_AFTER, kills=True, in_order=True),
)
ELECTED_KILLS = tuple(replace(kind, name=f"{kind.name}, election on", elected=True) for kind in KILLS)
"""All requests are fenced, each Binding has the number of its term, and the successor waits for the lease."""
OTHERS = (
    Kind("dropped before", Fault.DROP_BEFORE),
    Kind("dropped after", Fault.DROP_AFTER),
    Kind("duplicated", Fault.DUPLICATE),
    Kind("duplicated, first answer", Fault.DUPLICATE_FIRST),
    Kind("error 500", Fault.ERROR, 500),
    Kind("error 503", Fault.ERROR, 503),
    Kind("error 429", Fault.ERROR, 429),
    Kind("error 409", Fault.ERROR, 409),
    Kind("error 500 after", Fault.ERROR_AFTER, 500),
    Kind("error 409 after", Fault.ERROR_AFTER, 409),
    Kind("answered late", Fault.HOLD_AFTER, when_struck=_release_soon),
    Kind("in flight for long", Fault.HOLD, when_struck=_release_soon),
    Kind("held, killed, released", Fault.HOLD, when_struck=_kill, afterwards=_release),
)
SLOW = (
    Kind("held beyond the timeout", Fault.HOLD, afterwards=_release),
    Kind("held beyond the lease", Fault.HOLD, replicas=2, when_struck=_stand_still, afterwards=_go_on),
)


def killed_twice(apart: int, second: Fault) -> Kind:
    """Kill the scheduler after a write, and its successor so many writes later, before or after one."""

    def again(world: World, rule: Rule) -> None:
        world.proxies[0].at(apart, second, call=world.schedulers[0].kill)

    return Kind("killed twice", Fault.CALL_AFTER, kills=True, in_order=True, when_struck=again)


@dataclass(frozen=True)
class Life:
    """A life with writes that can fail."""

    begin: Callable[[World], None]
    """Creates the first objects; no scheduler has started yet."""
    live: Callable[[World, Callable[[], None]], None]
    """Runs and checks the whole life; it calls its argument when it has reached its goal."""
    last: Callable[[World], list[Manifest]]
    """The pods that are bound last."""
    settings: Settings = field(default_factory=lambda: Settings(resources=resources_of(SIZE)))


def _begin(world: World) -> None:
    world.add_room()
    world.create_gang("first")


def _live(world: World, reached: Callable[[], None]) -> None:
    """The lives of both gangs; `reached` is called when the first one is complete, and when it has ended."""
    world.schedulers[0].start()
    world.wait_whole("first")
    reached()
    world.check("first")
    world.finish(world.members("first"))
    world.wait_without_plan("first")
    reached()
    world.create_gang("second")
    world.wait_whole("second")
    world.check("second")


GANG = Life(begin=_begin, live=_live, last=lambda world: world.members("second"))


def one_write(plane: ControlPlane, folder: Path, kind: Kind, number: int, life: Life = GANG) -> None:
    """Run a life with a fault at the `number`th write. Raises AssertionError or TimeoutError."""
    with World(plane, folder, life.settings, may_exit=kind.replicas > 1) as world:
        elected = kind.elected or kind.replicas > 1
        world.settings = replace(world.settings, election=elected)
        scheduler, proxy = _ready(world, kind.replicas, life)
        proxy.in_order = kind.in_order
        rule = proxy.at(number, kind.fault, status=kind.status, call=scheduler.kill if kind.kills else lambda: None)
        afterwards = [lambda: kind.afterwards(world, rule)]
        world.once(rule.struck.is_set, lambda: kind.when_struck(world, rule))

        def reached() -> None:
            if rule.struck.is_set() and afterwards:
                afterwards.pop()()

        life.live(world, reached)
        assert rule.struck.is_set(), f"there was no write {number}"
        if elected:
            _check_terms(world, life)


def _check_terms(world: World, life: Life) -> None:
    """Check that the last pods were bound in one term, by a leader with the lease."""
    terms = {annotation(pod, LEADER_ANNOTATION) for pod in life.last(world)}
    lease = world.plane.request("GET", LEASE)[1]["spec"]
    assert terms == {f"{lease['holderIdentity']}/{lease['leaseTransitions']}"}, f"{terms} by {lease}"


def count_writes(plane: ControlPlane, folder: Path, life: Life = GANG) -> int:
    """Return the number of writes in a life without faults, up to the last `reached`."""
    with World(plane, folder, life.settings) as world:
        _, proxy = _ready(world, 1, life)
        counts: list[int] = []
        life.live(world, lambda: counts.append(proxy.count))
        return counts[-1]


def _ready(world: World, replicas: int, life: Life) -> tuple[SchedulerProcess, Proxy]:
    """Create the first objects and the schedulers, not yet started; return the first scheduler and its proxy."""
    life.begin(world)
    for _ in range(replicas):
        world.new_scheduler()
    return world.schedulers[0], world.proxies[0]
