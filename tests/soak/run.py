"""`make soak-sim`: an hour of random events in accelerated time on the in-memory cluster.

The events concern pods, gangs, groups by label, devices (shared ones too), queues, durations with backfill, node
changes, edited resources, failed binds and scheduler restarts, all from one seed. After each event, no resource is held
twice, no gang runs in part, no queue exceeds its limit, and graph and cluster agree. Every `--every` events, once the
cluster is at rest, no waiting pod fits, which a restarted scheduler shows. Memory does not grow.

After a failure, the run repeats with fewer and fewer events to find the few that suffice: `--only` plays just these.

`python -m tests.soak.run [--minutes 60] [--seed 1] [--every 100] [--policy first] [--json FILE] [--only 3,17]`; the
exit status is 1 if a rule was broken or memory grew.
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
"""Memory is steady if that of the last third is at most this multiple of that of the second third."""
_SLACK_MIB: Final = 16.0
_SHRINK_SECONDS: Final = 300.0
_FEW_SAMPLES: Final = 9


@dataclass(slots=True)
class Found:
    """The result of a run: times in seconds, memory in MiB."""

    seed: int
    policy: str
    minutes: float = 0.0
    """In the world's time, without rests."""
    events: int = 0
    bound: int = 0
    """The number of pods that ran on a node."""
    seconds: float = 0.0
    rests: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    """The number of evictions by the scheduler, by reason."""
    memory: list[float] = field(default_factory=list)
    """At each rest."""
    problem: str = ""
    fewest: list[int] = field(default_factory=list)
    """The events that suffice for the problem."""

    @property
    def steady(self) -> bool:
        """Whether memory is steady. A short run has too few samples and counts as steady."""
        third = len(self.memory) // 3
        if len(self.memory) < _FEW_SAMPLES:
            return True
        return median(self.memory[-third:]) <= _GROWTH * median(self.memory[third : 2 * third]) + _SLACK_MIB

    @property
    def good(self) -> bool:
        """Whether the run reached every goal."""
        return not self.problem and self.steady


def play(
    found: Found, numbers: Iterator[int], done: Callable[[World], bool], *, every: int, report: Callable[[str], None]
) -> list[int]:
    """Play events until none is left or `done`. Returns the played events; `found` names a broken rule."""
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
                    report(_progress(found, world, played, seen, time.monotonic() - began))
                if done(world):
                    break
            step = "the rest at the end"
            rest(world, rules)
        except Exception as error:  # noqa: BLE001 (any failure is a finding)
            found.problem = f"{step}: {type(error).__name__}: {error}"
        found.minutes, found.events, found.counts = world.now / 60, len(played), dict(sorted(world.counts.items()))
        found.seen = dict(sorted(world.seen.items()))
        found.bound, found.seconds = len(seen), time.monotonic() - began
    return played


def rest(world: World, rules: Rules) -> None:
    """Wait until the cluster is at rest, then check all rules."""
    world.rest()
    rules.check()
    rules.check_at_rest()


def _progress(found: Found, world: World, played: Sequence[int], seen: set[str], seconds: float) -> str:
    waiting = sum(node is None for node in world.placements().values())
    return (f"{world.now / 60:5.1f} min  {len(played):5} events  {len(seen):5} pods placed  {waiting:3} wait  "
            f"{found.memory[-1]:4.0f} MiB  {seconds:5.0f} s")  # fmt: skip


def fewest(found: Found, played: Sequence[int], *, every: int, seconds: float = _SHRINK_SECONDS) -> list[int]:
    """The fewest events after which the same rule is broken, as far as found within the seconds.

    The search leaves out parts, the larger first (delta debugging: Zeller and Hildebrandt, 2002).
    """
    began, kind = time.monotonic(), _kind(found.problem)

    def fails(numbers: Sequence[int]) -> bool:
        trial = Found(found.seed, found.policy)
        play(trial, iter(numbers), lambda _: False, every=every, report=lambda _: None)
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
    """The broken rule: the first line of the problem without the words that contain digits."""
    said = problem.partition(": ")[2].partition("\n")[0]
    return " ".join(word for word in said.split() if not any(character.isdigit() for character in word))


def resident_mib() -> float:
    """The resident memory of this process in MiB."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def counted(last: int = sys.maxsize) -> Iterator[int]:
    """Event numbers, from 0."""
    yield from range(last)


def run(given: argparse.Namespace, report: Callable[[str], None] = print) -> Found:
    """The whole run that the command line requests."""
    found = Found(given.seed, given.policy)
    numbers = counted() if given.only is None else iter(given.only)
    played = play(found, numbers, lambda world: world.now >= 60 * given.minutes, every=given.every, report=report)
    if found.problem and given.shrink:
        report(f"{found.problem}\nsearching for the fewest events that suffice, for at most {_SHRINK_SECONDS:.0f} s")
        found.fewest = fewest(found, played, every=given.every)
    return found


def summary(found: Found) -> Iterator[str]:
    """The result as lines of text."""
    yield (f"seed {found.seed}, policy {found.policy}: {found.minutes:.0f} minutes with {found.events} events in "
           f"{found.seconds:.0f} s; {found.bound} pods were placed; {found.rests} rests")  # fmt: skip
    yield ", ".join(f"{name} {count}" for name, count in found.counts.items())
    yield "evictions: " + (", ".join(f"{name} {count}" for name, count in found.seen.items()) or "none")
    if found.memory:
        yield f"memory: {found.memory[0]:.0f} to {found.memory[-1]:.0f} MiB{'' if found.steady else ': it grows'}"
    yield found.problem or "no rule was broken"
    if found.fewest:
        only = ",".join(map(str, found.fewest))
        yield f"again: python -m tests.soak.run --seed {found.seed} --policy {found.policy} --only {only}"


def options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="duration in the world's time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", default="first", help="the graph's match policy")
    parser.add_argument("--every", type=int, default=100, help="events between two rests")
    parser.add_argument("--only", type=lambda text: [int(part) for part in text.split(",")], help="just these events")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false", help="do not search for fewer events")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    return parser.parse_args(words)


def main() -> int:
    """Run the command. Returns its exit status."""
    given = options()
    logging.disable(logging.ERROR)
    found = run(given, lambda line: print(line, flush=True))
    print(*summary(found), sep="\n")
    if given.json is not None:
        given.json.write_text(json.dumps(asdict(found) | {"steady": found.steady}, indent=1) + "\n")
    return 0 if found.good else 1


if __name__ == "__main__":
    sys.exit(main())
