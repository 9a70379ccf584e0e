"""`python -m tests.controlplane.faults.runner` (that is `make faults`): every fault at every write, and all outages.

It prints a line for each run and the counts at the end; the exit status is 1 if anything failed. A file beside the logs
has the details of failures. Words on the command line select the scenarios whose names contain one of them.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from ..harness import ControlPlane
from ..proxy import Fault
from . import device_pods, outages, producers, reserved
from .device_pods import DEVICE_POD
from .leaders import six_leaders
from .producers import PRODUCER
from .reserved import RESERVED
from .writes import ELECTED_KILLS, GANG, KILLS, OTHERS, SLOW, Kind, Life, count_writes, killed_twice, one_write

GANGS = 200
_SEED = 4
_TWICE = 40
_DEVICE_PODS_TWICE = 12
_PRODUCERS_TWICE = 12
_RESERVED_TWICE = 12
Run = tuple[str, str, Callable[[ControlPlane, Path], object]]
"""Scenario, number of the run, and the run itself."""


def _of_kind(kind: Kind, writes: int, life: Life, word: str) -> Iterator[Run]:
    for number in range(1, writes + 1):
        which = f"write {number} of {writes}"
        yield word + kind.name, which, lambda plane, at, n=number: one_write(plane, at, kind, n, life)  # type: ignore[misc]


def _of_life(life: Life, writes: int, twice: int, word: str = "") -> Iterator[Run]:
    """Yield runs for every write with every fault, and for a seeded choice of two; names begin with `word`."""
    for kind in (*KILLS, *ELECTED_KILLS, *OTHERS, *SLOW):
        yield from _of_kind(kind, writes, life, word)
    chance = random.Random(f"{_SEED} {word}killed twice")
    for _ in range(twice):
        number, apart = chance.randint(1, writes), chance.randint(1, writes)
        kind = killed_twice(apart, chance.choice([Fault.CALL_BEFORE, Fault.CALL_AFTER]))
        which = f"write {number} and {apart} later"
        yield word + kind.name, which, lambda plane, at, k=kind, n=number: one_write(plane, at, k, n, life)  # type: ignore[misc]


def all_runs(writes: int, device_pod_writes: int) -> Iterator[Run]:
    """Return all runs in a fixed order with fixed seeds; first count the writes of the first two lives."""
    yield from _of_life(GANG, writes, _TWICE)
    yield from _of_life(DEVICE_POD, device_pod_writes, _DEVICE_PODS_TWICE, "device-pod, ")
    yield from _of_life(PRODUCER, producers.WRITES, _PRODUCERS_TWICE, "producer, ")
    yield from _of_life(RESERVED, reserved.WRITES, _RESERVED_TWICE, "reserved, ")
    for name, (scenario, times) in (outages.SCENARIOS | device_pods.SCENARIOS).items():
        for time_ in range(times):
            chance = random.Random(f"{_SEED} {name} {time_}")
            yield name, f"{time_ + 1} of {times}", lambda plane, at, s=scenario, c=chance: s(plane, at, c)  # type: ignore[misc]
    for elected in (True, False):
        name = f"six leaders, election {'on' if elected else 'off'}"
        yield name, f"{GANGS} gangs", lambda plane, at, e=elected: six_leaders(  # type: ignore[misc]
            plane, at, elected=e, gangs=GANGS, seed=_SEED)  # fmt: skip


def main(words: list[str]) -> int:
    """Run the scenarios that the words select; return the exit status."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    failures = folder / "failures.txt"
    runs, passed = Counter[str](), Counter[str]()
    with ControlPlane(_made(folder / "plane")) as plane:
        gang, device_pod = (count_writes(plane, folder, life) for life in (GANG, DEVICE_POD))
        every = all_runs(gang, device_pod)
        chosen = _chosen(list(every), words)
        for number, (name, which, run) in enumerate(chosen, 1):
            began = time.monotonic()
            runs[name] += 1
            verdict = "ok"
            try:
                said = run(plane, _made(folder / f"run-{number}"))
                passed[name] += 1
                verdict += f" ({said})" if isinstance(said, str) else ""
            except Exception as error:  # noqa: BLE001 (every failure is counted and reported)
                verdict = f"FAILED: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                with failures.open("a") as file:
                    file.write(f"==== {name}, {which}\n{''.join(traceback.format_exception(error))}\n")
            print(f"{number}/{len(chosen)} {name}, {which}: {verdict} [{time.monotonic() - began:.1f} s]", flush=True)
    _print_table(runs, passed)
    if passed == runs:
        shutil.rmtree(folder)
        return 0
    print(f"the failures are in {failures}")
    return 1


def _chosen(runs: list[Run], words: list[str]) -> list[Run]:
    """Return the runs whose scenario contains one of the words; all without words. Exits if a word selects none."""
    names = sorted({name for name, _, _ in runs})
    for word in words:
        if not any(word in name for name in names):
            sys.exit(f"no scenario contains {word!r}; the scenarios are:\n  " + "\n  ".join(names))
    return [run for run in runs if not words or any(word in run[0] for word in words)]


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _print_table(runs: Counter[str], passed: Counter[str]) -> None:
    width = max(map(len, runs), default=0)
    print(f"\n{'scenario':{width}}  runs  passed")
    for name, count in runs.items():
        print(f"{name:{width}}  {count:4}  {passed[name]:6}")
    print(f"{'all':{width}}  {runs.total():4}  {passed.total():6}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
