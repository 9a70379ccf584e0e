"""`make soak-sim`: an hour of random events in accelerated time on the in-memory cluster; nothing is lost or grows.

Pods, gangs, groups by label, devices (shared ones too), queues, durations with backfill, nodes that change, resources
that are edited, binds that fail, and schedulers that start over, all from one seed. After each event nothing may be
held twice, no gang run in part, no limit be exceeded, and graph and cluster must agree; every so many events, once all
has come to rest, nobody may wait who fits, as a scheduler shows that starts anew.

What fails is played again with fewer and fewer events, to name the few that suffice: `--only` plays just these.

`python -m tests.soak.run [--minutes 60] [--seed 1] [--every 100] [--policy first] [--json FILE] [--only 3,17]`; the
exit status is 1 where a rule was broken or memory grew.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from .rules import Rules
from .world import World

_GROWTH: Final = 1.05
"""The memory of the last third, as a multiple of that of the second, that counts as steady."""
_SLACK_MIB: Final = 16.0
_SHRINK_SECONDS: Final = 300.0
_FEW_SAMPLES: Final = 9


@dataclass(slots=True)
class Found:
    """What came of a run: times in seconds, memory in MiB."""

    seed: int
    policy: str
    minutes: float = 0.0
    """Of the world's time, rests apart."""
    events: int = 0
    bound: int = 0
    """How many pods were seen on nodes."""
    seconds: float = 0.0
    rests: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    """How often the scheduler had pods end, and why."""
    memory: list[float] = field(default_factory=list)
    """At each rest."""
    problem: str = ""
    fewest: list[int] = field(default_factory=list)
    """The events that suffice for the problem."""

    @property
    def steady(self) -> bool:
        """Whether memory does not grow any more; of a short run nothing can be said."""
        third = len(self.memory) // 3
        if len(self.memory) < _FEW_SAMPLES:
            return True
        return median(self.memory[-third:]) <= _GROWTH * median(self.memory[third : 2 * third]) + _SLACK_MIB

    @property
    def good(self) -> bool:
        """Whether every goal was reached."""
        return not self.problem and self.steady


def play(
    found: Found, numbers: Iterator[int], done: Callable[[World], bool], *, every: int, told: Callable[[str], None]
) -> list[int]:
    """Play events until there are no more or `done`; those that were played. What breaks a rule is in `found`."""
    played: list[int] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        world = World(found.seed, Path(folder), found.policy)
        rules, seen, step = Rules(world), set[str](), ""
        try:
            for number in numbers:
                played.append(number)
                step = f"event {number}"
                step = f"event {number} ({world.happen(number)})"
                rules.check()
                seen.update(pod.metadata.uid for pod in world.pods() if pod.spec.node_name)
                if len(played) % every == 0:
                    step = f"the rest after event {number}"
                    rest(world, rules)
                    found.rests += 1
                    found.memory.append(resident_mib())
                    told(_progress(found, world, played, seen, time.monotonic() - began))
                if done(world):
                    break
            step = "the rest at the end"
            rest(world, rules)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is what was looked for)
            found.problem = f"{step}: {type(error).__name__}: {error}"
        found.minutes, found.events, found.counts = world.now / 60, len(played), dict(sorted(world.counts.items()))
        found.seen = dict(sorted(world.seen.items()))
        found.bound, found.seconds = len(seen), time.monotonic() - began
    return played


def rest(world: World, rules: Rules) -> None:
    """Let all come to rest, and look closely."""
    world.rest()
    rules.check()
    rules.check_at_rest()


def _progress(found: Found, world: World, played: Sequence[int], seen: set[str], seconds: float) -> str:
    waiting = sum(node is None for node in world.placements().values())
    return (f"{world.now / 60:5.1f} min  {len(played):5} events  {len(seen):5} pods placed  {waiting:3} wait  "
            f"{found.memory[-1]:4.0f} MiB  {seconds:5.0f} s")  # fmt: skip


def fewest(found: Found, played: Sequence[int], *, every: int, seconds: float = _SHRINK_SECONDS) -> list[int]:
    """The fewest of the events, as far as found in so many seconds, after which the same rule is broken.

    Parts are left out, the larger first (delta debugging: Zeller and Hildebrandt, 2002).
    """
    began, kind = time.monotonic(), _kind(found.problem)

    def fails(numbers: Sequence[int]) -> bool:
        trial = Found(found.seed, found.policy)
        play(trial, iter(numbers), lambda _: False, every=every, told=lambda _: None)
        return _kind(trial.problem) == kind

    left, part = list(played), max(1, len(played) // 2)
    while time.monotonic() - began < seconds:
        shorter = next(
            (
                rest
                for start in range(0, len(left), part)
                if time.monotonic() - began < seconds and (rest := left[:start] + left[start + part :]) and fails(rest)
            ),
            None,
        )
        if shorter is not None:
            left = shorter
            part = min(part, max(1, len(left) // 2))
        elif part == 1:
            break
        else:
            part = max(1, part // 2)
    return left


def _kind(problem: str) -> str:
    """Which rule was broken: the first line of what is said, without the words that name something by numbers."""
    said = problem.partition(": ")[2].partition("\n")[0]
    return " ".join(word for word in said.split() if not any(character.isdigit() for character in word))


def resident_mib() -> float:
    """What this process has in memory now."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def counted(last: int = sys.maxsize) -> Iterator[int]:
    """Numbers of events, from 0."""
    yield from range(last)


def run(given: argparse.Namespace, told: Callable[[str], None] = print) -> Found:
    """The whole run that the command line asks for."""
    found = Found(given.seed, given.policy)
    numbers = counted() if given.only is None else iter(given.only)
    played = play(found, numbers, lambda world: world.now >= 60 * given.minutes, every=given.every, told=told)
    if found.problem and given.shrink:
        told(f"{found.problem}\nlooking for the fewest events that suffice, for at most {_SHRINK_SECONDS:.0f} s")
        found.fewest = fewest(found, played, every=given.every)
    return found


def summary(found: Found) -> Iterator[str]:
    """What people read."""
    yield (f"seed {found.seed}, policy {found.policy}: {found.minutes:.0f} minutes with {found.events} events in "
           f"{found.seconds:.0f} s; {found.bound} pods were placed; {found.rests} rests")  # fmt: skip
    yield ", ".join(f"{name} {count}" for name, count in found.counts.items())
    yield "had pods end: " + (", ".join(f"{name} {count}" for name, count in found.seen.items()) or "never")
    if found.memory:
        yield f"memory: {found.memory[0]:.0f} to {found.memory[-1]:.0f} MiB{'' if found.steady else ': it grows'}"
    yield found.problem or "no rule was broken"
    if found.fewest:
        only = ",".join(map(str, found.fewest))
        yield f"again: python -m tests.soak.run --seed {found.seed} --policy {found.policy} --only {only}"


def options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of the world's time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", default="first", help="how the graph matches")
    parser.add_argument("--every", type=int, default=100, help="events between two rests")
    parser.add_argument("--only", type=lambda text: [int(part) for part in text.split(",")], help="just these events")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false", help="do not look for fewer events")
    parser.add_argument("--json", type=Path, help="write what was found to this file, too")
    return parser.parse_args(words)


def main() -> int:
    """The command's exit status."""
    given = options()
    logging.disable(logging.ERROR)
    found = run(given, lambda line: print(line, flush=True))
    print(*summary(found), sep="\n")
    if given.json is not None:
        given.json.write_text(json.dumps(asdict(found) | {"steady": found.steady}, indent=1) + "\n")
    return 0 if found.good else 1


if __name__ == "__main__":
    sys.exit(main())
