"""`make bench-live`: the binding rate of kube-scheduler and of fluence on a real API server.

See `workloads.py` for the workloads: most are scheduler_perf's. The contenders run each of them in turn, with the same
objects; the objects of the previous run are deleted first. All pods exist before the contender starts, so their
creation does not limit the rate. One observer, a watch of this process, records when it sees each pod bound. pods/s is
counted from the first sign of work (the first binding, or the first victim's deletion) to the last binding; then the
benchmark waits for the events. Workloads with groups add up to 100 more groups at the end, to measure how long each
waits. In the workload `full` a pod counts when its condition `PodScheduled=False` is seen. Then one node is emptied:
`freed` is the time until the pods that it has room for are bound.

Each second round runs in reverse order. `--other PATH` names a second checkout of this project, in which `make setup`
was run. Its scheduler runs directly after ours in the first round (A B), directly before it in the second (B A), and so
on. The API server's database grows and the machine's speed drifts, so the position in a round is an advantage or a
disadvantage; the alternation balances it. The two turns of a round are close in time, so the report compares processor
time per pod within each round, and takes the median of these ratios.

The exit status is 1 if a goal was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from .bench_report import COMPARED, Result, compared, goals, summary, table
from .bench_run import Run
from .contenders import CONTENDERS, FLUENCE, Contender, beside_dashboard, other
from .harness import ControlPlane
from .processes import StartError
from .workloads import HIGH, WORKLOADS, Turn, Workload


def run_all(
    plane: ControlPlane, folder: Path, workloads: Sequence[Workload], contenders: Sequence[Contender],
    nodes: int, pods: int, rounds: int, profiles: Path | None = None,
) -> list[Result]:  # fmt: skip
    """Run every contender with every workload in every round; `folder` is for logs. The class HIGH must exist."""
    pairs = [(workload, contender) for workload in workloads for contender in contenders if contender.takes(workload)]
    results = []
    for number in range(1, rounds + 1):
        for workload, contender in pairs if number % 2 else reversed(pairs):
            turn = Turn(contender.scheduler, plane.new_namespace(), plane.new_namespace(), nodes,
                        workload.size(nodes, pods))  # fmt: skip
            where = folder / f"{number}-{workload.name}-{contender.name}"
            where.mkdir()
            run = Run(plane, where, workload, contender, turn, profiles)
            results += asyncio.run(run.results(number))
    return results


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    workloads = {workload.name: workload for workload in WORKLOADS}
    contenders = {contender.name: contender for contender in CONTENDERS}
    parser = argparse.ArgumentParser(prog="bench_live", description="How fast pods are bound on a real API server.")
    parser.add_argument("--workload", default="all", help=f"all, or some of {', '.join(workloads)}, with commas")
    parser.add_argument("--only", default=",".join(contenders), help="some of these contenders")
    parser.add_argument("--other", type=Path, metavar="PATH", help="a checkout whose scheduler runs beside fluence")
    parser.add_argument("--dashboard", action="store_true", help="also run fluence beside a dashboard with busy users")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=2000, help="some workloads have more, or only as many as fit")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write every run and the table into this file, too")
    parser.add_argument("--profile", type=Path, help="a folder for fluence's stacks, one file a workload, by py-spy")
    options = parser.parse_args(arguments)
    chosen = list(workloads) if options.workload == "all" else options.workload.split(",")
    only = options.only.split(",")
    if set(chosen) - set(workloads) or set(only) - set(contenders):
        parser.error(f"--workload: all, or some of {', '.join(workloads)}; --only: some of {', '.join(contenders)}")
    competing = [contenders[name] for name in only]
    if options.other:
        if FLUENCE not in only:
            parser.error(f"--other: is compared with {FLUENCE}, which --only leaves out")
        try:
            competing.insert(only.index(FLUENCE) + 1, other(options.other))
        except StartError as error:
            parser.exit(2, f"--other: {error}\n")
    if options.dashboard:
        competing.append(beside_dashboard())
    if options.profile and shutil.which("py-spy") is None:
        parser.error("--profile: there is no py-spy: install it, for example with pip")
    folder = Path(tempfile.mkdtemp(prefix="bench-live-"))
    if options.profile:
        options.profile.mkdir(parents=True, exist_ok=True)
    (folder / "plane").mkdir()
    with ControlPlane(folder / "plane") as plane:
        plane.create(HIGH)
        results = run_all(plane, folder, [workloads[name] for name in chosen], competing,
                          options.nodes, options.pods, options.rounds, options.profile)  # fmt: skip
    rows = summary(results)
    print(f"{options.nodes} nodes, {options.rounds} rounds, {os.cpu_count()} processors; logs: {folder}")
    print(f"{table(rows)}\n")
    if paired := compared(results):
        print(f"Processor time per pod, here and in {options.other}:\n{table(paired, COMPARED)}\n")
    reached = list(goals(rows))
    for text, met in reached:
        print(f"{'met   ' if met else 'MISSED'} {text}")
    if options.json:
        runs = [{**asdict(result), "rate": result.rate} for result in results]
        report = {"table": rows, "compared": paired, "goals": reached, "runs": runs}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if all(met for _, met in reached) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
