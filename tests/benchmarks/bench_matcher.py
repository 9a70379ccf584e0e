"""W1 of the performance goals: fill a machine with jobs of 4 nodes × slot{4 core, 1 gpu}, then cancel all.

python tests/benchmarks/bench_matcher.py [--nodes 100,1000] [--policies first,low,high]
"""

import argparse
import resource
import statistics
import time
from typing import Any

from fluxion_cy import Busy, Matcher


def machine(nodes: int) -> dict[str, Any]:
    vertices = [
        {"id": "0", "metadata": {"type": "cluster", "id": 0, "rank": -1, "paths": {"containment": "/cluster0"}}}
    ]
    edges = []
    for n in range(nodes):
        node = str(len(vertices))
        path = f"/cluster0/node{n}"
        vertices.append({"id": node, "metadata": {"type": "node", "id": n, "rank": n, "paths": {"containment": path}}})
        edges.append({"source": "0", "target": node})
        for kind, count in (("core", 32), ("gpu", 4), ("memory", 1)):
            for i in range(count):
                leaf = str(len(vertices))
                paths = {"containment": f"{path}/{kind}{i}"}
                vertices.append({"id": leaf, "metadata": {"type": kind, "id": i, "rank": n, "paths": paths}})
                edges.append({"source": node, "target": leaf})
    return {"graph": {"nodes": vertices, "edges": edges}}


def job() -> dict[str, Any]:
    slot = {
        "type": "slot",
        "count": 1,
        "label": "task",
        "with": [{"type": "core", "count": 4}, {"type": "gpu", "count": 1}],
    }
    return {
        "version": 1,
        "resources": [{"type": "node", "count": 4, "with": [slot]}],
        "tasks": [{"command": ["app"], "slot": "task", "count": {"per_slot": 1}}],
        "attributes": {"system": {"duration": 3600}},
    }


def measure(graph: dict[str, Any], nodes: int, policy: str, most: int) -> str:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    matcher = Matcher(graph, policy=policy)
    init = time.perf_counter() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    spec, times = job(), []
    try:
        while len(times) < most:
            began = time.perf_counter()
            matcher.allocate(spec)
            times.append(time.perf_counter() - began)
    except Busy:
        failed = time.perf_counter() - began
    else:
        failed = float("nan")
    began = time.perf_counter()
    for jobid in range(1, len(times) + 1):
        matcher.cancel(jobid)
    cancels = len(times) / (time.perf_counter() - began)
    marks = [statistics.median(times[int(len(times) * share) :][:20]) * 1e3 for share in (0, 0.1, 0.5, 0.9)]
    shown = "/".join(f"{mark:.3f}" for mark in marks)
    rate = len(times) / sum(times)
    row = (
        nodes,
        policy,
        f"{init:.2f}",
        f"{grown:.0f}",
        shown,
        f"{rate:,.0f}",
        f"{failed * 1e3:.2f}",
        f"{cancels:,.0f}",
    )
    return f"| {' | '.join(map(str, row))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="100,1000")
    parser.add_argument("--policies", default="first,low,high")
    parser.add_argument("--most", type=int, default=1_000_000, help="stop after so many jobs")
    options = parser.parse_args()
    print("| nodes | policy | init s | RSS, MB | ms a match at 0/10/50/90 % full | matches/s | fail, ms | cancels/s |")
    print("|---|---|---|---|---|---|---|---|")
    for nodes in map(int, options.nodes.split(",")):
        graph = machine(nodes)
        for policy in options.policies.split(","):
            print(measure(graph, nodes, policy, options.most), flush=True)


if __name__ == "__main__":
    main()
