"""The instructions that the compiled engine needs for a match, counted by valgrind: equal on every run of one build.

python tests/benchmarks/instructions.py [--only by-property] [--record]

Each case runs in a separate process under `valgrind --tool=callgrind`, which counts only the engine's match, commit and
release. The exit status is 1 if a case needs a tenth more than instructions.json records, or if it grows with parts of
the machine that the request does not name. Another compiler gives other counts: run `--record` before the change that
you measure.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from matcher_engines import Embedded
from matcher_work import graph_text, job, nodes, slot

from fluxion_cy import Busy, Matcher

RECORDED = Path(__file__).with_suffix(".json")
#: The pattern without the common prefix is last, because callgrind ignores the patterns that follow such a one.
COUNTED = [
    "__pyx_pw_*Engine_*match(*",
    "__pyx_pw_*Engine_*commit(*",
    "__pyx_pw_*RLite_*spell(*",
    "__pyx_pw_*Planner_*release(*",
    "__pyx_f_*Engine_place_now(*",
]
WORSE = 1.1
SMALL = job(nodes(4, slot(1, core=4, gpu=1)))


def small(size: int, policy: str) -> int:
    """Jobs of four nodes, a quarter of them cancelled."""
    engine, count = Embedded(graph_text(size), policy), 20
    for jobid in range(1, count + 1):
        engine.match("allocate", SMALL)
        if jobid % 4 == 0:
            engine.cancel(jobid)
    return count


def by_property(size: int, policy: str) -> int:
    """One of 64 devices by its property, beside hosts."""
    engine = Embedded(graph_text(size, 64), policy)
    for i in range(64):
        constraints = {"properties": [f"device{i}"]}
        engine.match("allocate", job(nodes(1, slot(1, core=1)), constraints=constraints))
    return 64


def gang(size: int, policy: str) -> int:
    """Slots of one core, anywhere."""
    engine = Embedded(graph_text(size), policy)
    for _ in range(3):
        engine.match("allocate", job(slot(4 * size, core=1)))
    return 3


def occupied(size: int, policy: str) -> Matcher:
    """A machine whose resources are all allocated for an hour, without a match."""
    matcher = Matcher(graph_text(size), policy=policy, match_format="rv1_nosched")
    graph = matcher.graph()
    for node in graph["graph"]["nodes"]:
        node["metadata"]["exclusive"] = node["metadata"]["type"] in ("core", "gpu")
    held = {"R_lite": [], "nodelist": [], "starttime": 0, "expiration": 3600}
    matcher.update_allocate(1, {"version": 1, "execution": held, "scheduling": graph})
    return matcher


def full(size: int, policy: str) -> int:
    """Requests that do not fit."""
    matcher = occupied(size, policy)
    for _ in range(20):
        with suppress(Busy):
            matcher.allocate(SMALL)
    return 20


def reserve(size: int, policy: str) -> int:
    """Reservations one after the other."""
    matcher = occupied(size, policy)
    for _ in range(50):
        matcher.allocate_orelse_reserve(SMALL)
    return 50


Case = tuple[Callable[[int, str], int], int, str]
CASES: dict[str, Case] = {
    "first-100": (small, 100, "first"),
    "first-400": (small, 400, "first"),
    "firstnodex-100": (small, 100, "firstnodex"),
    "low-100": (small, 100, "low"),
    "lonodex-100": (small, 100, "lonodex"),
    "locality-100": (small, 100, "locality"),
    "locality-400": (small, 400, "locality"),
    "by-property-0": (by_property, 0, "first"),
    "by-property-400": (by_property, 400, "first"),
    "gang-low-100": (gang, 100, "low"),
    "full-100": (full, 100, "first"),
    "full-400": (full, 400, "first"),
    "reserve-100": (reserve, 100, "first"),
}
#: (case, reference case, greatest permitted ratio between the two)
GROWTH = (
    ("first-400", "first-100", 1.2),
    ("locality-400", "locality-100", 6.0),
    ("by-property-400", "by-property-0", 1.2),
    ("full-400", "full-100", 1.2),
)


def count(name: str) -> int:
    """The instructions of one match of a case."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise SystemExit("valgrind is not installed; it counts the instructions")
    command = [valgrind, "--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"]
    command += [f"--toggle-collect={function}" for function in COUNTED]
    done = subprocess.run(
        [*command, sys.executable, __file__, "--run", name], capture_output=True, text=True, check=False, timeout=600
    )
    found = re.search(r"I\s+refs:\s+([0-9,]+)", done.stderr)
    if done.returncode or found is None:
        raise SystemExit(f"{name} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return int(found.group(1).replace(",", "")) // int(done.stdout)


def regressions(found: dict[str, int], recorded: dict[str, int]) -> list[str]:
    """The cases that exceed the recorded counts or their permitted growth."""
    wrong = [
        f"{name}: {count:,} instructions a match, expected about {recorded[name]:,}"
        for name, count in found.items()
        if name in recorded and count > recorded[name] * WORSE
    ]
    for large, small_one, most in GROWTH:
        if large in found and small_one in found and found[large] > found[small_one] * most:
            wrong.append(f"{large}: {found[large] / found[small_one]:.2f} times {small_one}, expected at most {most}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only the cases whose names start with this")
    parser.add_argument("--record", action="store_true", help="write the counts to instructions.json")
    parser.add_argument("--run", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        work, size, policy = CASES[options.run]
        print(work(size, policy))
        return
    recorded: dict[str, int] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    names = [name for name in CASES if name.startswith(options.only)]
    found: dict[str, int] = {}
    print("| case | instructions a match | ÷ recorded |\n|---|---|---|")
    with ThreadPoolExecutor(2) as pool:
        for name, instructions in zip(names, pool.map(count, names), strict=True):
            found[name] = instructions
            ratio = f"{instructions / recorded[name]:.3f}" if recorded.get(name) else ""
            print(f"| {name} | {instructions:,} | {ratio} |", flush=True)
    if options.record:
        RECORDED.write_text(json.dumps(recorded | found, indent=1) + "\n")
        return
    wrong = regressions(found, recorded)
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
