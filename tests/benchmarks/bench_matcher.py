"""The matcher's workloads, compared with Fluxion's own library if FLUXION_REAPI_LIB names it.

python tests/benchmarks/bench_matcher.py [--nodes 100,1000,10000] [--only w1,w2] [--rounds 3] [--huge] [--json FILE]

Each run is a separate process, the engines take turns, and the best round counts. Without the library, the ratios
use its figures from another 2-core machine, and mean less. With the library, a missed goal exits with status 1.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

WORKER = Path(__file__).with_name("matcher_work.py")
Figures = dict[str, float]
Run = tuple[str, int, str]

#: The library's (0.54) figures on another machine: s, MB and ms.
RECORDED: dict[Run, Figures] = {
    ("w1", 100, "first"): {
        "start-up": 0.04, "memory at most": 21, "match at 0 %": 0.13, "match at 10 %": 0.12, "match at 50 %": 0.12,
        "match at 90 %": 0.11, "failure when full": 0.36, "cancel": 1 / 54,
    },
    ("w1", 1000, "first"): {
        "start-up": 0.68, "memory at most": 231, "match at 0 %": 0.18, "match at 10 %": 0.17, "match at 50 %": 0.18,
        "match at 90 %": 0.18, "failure when full": 14.2, "cancel": 1 / 15,
    },
    ("w1", 1000, "low"): {
        "start-up": 0.60, "memory at most": 231, "match at 0 %": 21.6, "match at 10 %": 21.5, "match at 50 %": 20.2,
        "match at 90 %": 12.1, "failure when full": 11.7, "cancel": 1 / 21,
    },
    ("w1", 1000, "firstnodex"): {
        "start-up": 0.64, "memory at most": 231, "match at 0 %": 0.45, "match at 10 %": 0.37, "match at 50 %": 0.22,
        "match at 90 %": 0.22, "failure when full": 0.31, "cancel": 1 / 6.2,
    },
    ("w1", 1000, "lonodex"): {
        "start-up": 0.62, "memory at most": 231, "match at 0 %": 20.9, "match at 10 %": 18.8, "match at 50 %": 9.1,
        "match at 90 %": 1.2, "failure when full": 0.23, "cancel": 1 / 6.4,
    },
    ("w1", 10000, "first"): {
        "start-up": 6.3, "memory at most": 2160, "match at 0 %": 0.34, "match at 10 %": 0.33, "match at 50 %": 0.33,
        "match at 90 %": 0.31, "failure when full": 153, "cancel": 1 / 2.7,
    },
    ("w1", 10000, "low"): {
        "start-up": 6.9, "memory at most": 2160, "match at 0 %": 247, "match at 10 %": 233, "match at 50 %": 215,
        "match at 90 %": 188, "cancel": 1 / 3.3,
    },
    ("w1", 10000, "firstnodex"): {
        "start-up": 6.3, "memory at most": 2160, "match at 0 %": 0.60, "match at 10 %": 0.52, "match at 50 %": 0.35,
        "match at 90 %": 0.33, "failure when full": 7.0, "cancel": 1 / 2.3,
    },
    ("w1", 10000, "lonodex"): {
        "start-up": 6.3, "memory at most": 2160, "match at 0 %": 253, "match at 10 %": 247, "match at 50 %": 152,
        "match at 90 %": 26, "failure when full": 5.7, "cancel": 1 / 2.8,
    },
    ("w2", 0, "first"): {"match by property": 0.07},
    ("w2", 1000, "first"): {"match by property": 0.23},
    ("w2", 10000, "first"): {"match by property": 1.2},
    ("w3", 1000, "first"): {"gang of 512": 1.1},
    ("w3", 1000, "low"): {"gang of 512": 36},
    ("w3", 1000, "high"): {"gang of 512": 36},
    ("w5", 1000, "first"): {"1,000 reservations": 12_300},
    ("w5", 1000, "lonodex"): {"1,000 reservations": 21_000},
}  # fmt: skip
_SMALL = {"start-up", "memory", "memory at most"}


def plan(sizes: list[int], huge: bool) -> Iterator[Run]:
    """All runs in order."""
    for size in sizes:
        yield from (("w1", size, policy) for policy in ("first", "firstnodex", "low", "high"))
        yield from (("w1", size, policy) for policy in ("lonode", "hinode", "lonodex", "hinodex"))
    yield from (("w2", size, "first") for size in (0, 1000, 10000))
    yield from (("w3", 1000, policy) for policy in ("first", "low", "high"))
    yield ("w4", 1000, "first")
    yield from (("w5", 1000, policy) for policy in ("first", "lonodex"))
    yield ("threads", 1000, "low")
    if huge:
        yield ("w1", 100_000, "first")


def work(engine: str, run: Run) -> Figures:
    """One run in a new process."""
    command = [sys.executable, str(WORKER), engine, run[0], str(run[1]), run[2]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[1:])} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def best(engine: str, runs: list[Figures]) -> Figures:
    """The smallest value of each figure; the largest of a throughput ratio."""
    return {name: (max if "÷" in name else min)(run[name] for run in runs) for name in runs[0]} if runs else {}


def measure(run: Run, rounds: int, real: bool) -> dict[str, Figures]:
    """Both engines in turns; without the real one for huge graphs and for threads."""
    beside = real and run[0] != "threads" and run[1] <= 10_000
    engines = ["embedded", "real"] if beside else ["embedded"]
    found: dict[str, list[Figures]] = {engine: [] for engine in engines}
    for _ in range(rounds):
        for engine in engines:
            found[engine].append(work(engine, run))
    answers = {engine: best(engine, runs) for engine, runs in found.items()}
    if not beside and not real:
        answers["recorded"] = RECORDED.get(run, {})
    return answers


def goal(run: Run, name: str) -> float | None:
    """The factor by which a figure must be better than the library's."""
    workload, size, policy = run
    if workload == "w1" and name in _SMALL:
        return 5.0 if size == 10_000 and name != "memory" else None
    if workload == "w1" and name == "failure when full" and size == 10_000 and not policy.endswith("nodex"):
        return 20.0
    if workload == "w1" and name.startswith("match"):
        return 1.0 if policy.startswith("first") else 10.0 if size == 10_000 else 1.0
    return 10.0 if workload == "w5" and name not in _SMALL else None


def rows(run: Run, answers: dict[str, Figures]) -> Iterator[tuple[str, bool]]:
    """The lines of the table, each with whether it meets its goal."""
    other = answers.get("real") or answers.get("recorded") or {}
    for name, mine in answers["embedded"].items():
        if name in _SMALL and run[0] != "w1":
            continue
        theirs, wanted = other.get(name), goal(run, name)
        ratio = theirs / mine if theirs is not None and mine else None
        met = ratio is None or wanted is None or ratio >= wanted
        shown = [run[0], f"{run[1]:,}", run[2], name, f"{mine:.4g}"]
        shown += [f"{theirs:.4g}" if theirs is not None else "", f"{ratio:,.1f}" if ratio is not None else ""]
        shown += [f"{wanted:.0f}" if wanted else "", "" if met else "MISSED"]
        yield f"| {' | '.join(shown)} |", met


def own_goals(found: dict[Run, dict[str, Figures]]) -> Iterator[tuple[str, bool]]:
    """Goals that compare the engine with itself: by property beside hosts and alone, two threads and one."""
    alone = found.get(("w2", 0, "first"), {}).get("embedded", {}).get("match by property")
    beside = found.get(("w2", 10000, "first"), {}).get("embedded", {}).get("match by property")
    if alone and beside:
        ratio = beside / alone
        yield f"by property, beside 10,000 hosts ÷ alone: {ratio:.2f} (goal: at most 1.2)", ratio <= 1.2
    for run, answers in found.items():
        if run[0] == "threads" and (os.cpu_count() or 1) > 1:
            for kind in ("small jobs", "gangs of 512"):
                ratio = answers["embedded"][f"two threads ÷ one, {kind}"]
                yield f"two threads ÷ one, {kind}: {ratio:.2f} (goal: 1.6)", ratio >= 1.6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="100,1000,10000")
    parser.add_argument("--only", default="", help="workloads or policies, separated by commas")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--huge", action="store_true", help="also 100,000 nodes, with this engine only")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    options = parser.parse_args()
    real, only = bool(os.environ.get("FLUXION_REAPI_LIB")), set(filter(None, options.only.split(",")))
    beside = "the library" if real else "figures of the library from another machine"
    print(f"compared with {beside}; ms, start-up s, memory MB")
    print("\n| work | nodes | policy | figure | here | Fluxion | × | goal | |\n|---|---|---|---|---|---|---|---|---|")
    found: dict[Run, dict[str, Figures]] = {}
    good = True
    for run in plan([int(size) for size in options.nodes.split(",")], options.huge):
        if only and not only.intersection((run[0], run[2])):
            continue
        found[run] = measure(run, options.rounds, real)
        for line, met in rows(run, found[run]):
            good = good and met
            print(line, flush=True)
    print()
    for line, met in own_goals(found):
        good = good and met
        print(line if met else f"{line} MISSED")
    if options.json:
        options.json.write_text(json.dumps([[*run, answers] for run, answers in found.items()], indent=1))
    sys.exit(0 if good or not real else 1)


if __name__ == "__main__":
    main()
