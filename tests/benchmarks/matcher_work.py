"""The workloads of bench_matcher.py: one run of one workload on one engine, in a separate process.

python tests/benchmarks/matcher_work.py ENGINE WORKLOAD NODES POLICY

prints one line of JSON: figures by name, times in ms (start-up in s), memory in MB.
"""

import argparse
import gc
import json
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

from matcher_engines import ENGINES, Engine

Figures = dict[str, float]
_BUDGET = 2.0  # seconds for one sample of matches


def host(n: int) -> Iterator[tuple[str, int, str]]:
    """(type, id, path below the node) of a host's leaves."""
    for kind, count in (("core", 32), ("gpu", 4), ("memory", 1)):
        for i in range(count):
            yield kind, i, f"/cluster0/node{n}/{kind}{i}"


def graph_text(hosts: int, devices: int = 0) -> str:
    """JGF: hosts of 32 cores, 4 GPUs and a memory; each device is a node with one core and a property of its own."""
    vertices = [_vertex(0, "cluster", 0, -1, "/cluster0")]
    edges: list[str] = []

    def add(kind: str, number: int, rank: int, path: str, parent: int, more: str = "") -> int:
        here = len(vertices)
        vertices.append(_vertex(here, kind, number, rank, path, more))
        edges.append(f'{{"source":"{parent}","target":"{here}"}}')
        return here

    for n in range(hosts):
        node = add("node", n, n, f"/cluster0/node{n}", 0)
        for kind, i, path in host(n):
            add(kind, i, n, path, node)
    for n in range(hosts, hosts + devices):
        properties = f',"properties":{{"device{n - hosts}":""}}'
        node = add("node", n, n, f"/cluster0/node{n}", 0, properties)
        add("core", 0, n, f"/cluster0/node{n}/core0", node)
    return f'{{"graph":{{"nodes":[{",".join(vertices)}],"edges":[{",".join(edges)}]}}}}'


def _vertex(here: int, kind: str, number: int, rank: int, path: str, more: str = "") -> str:
    return (
        f'{{"id":"{here}","metadata":{{"type":"{kind}","id":{number},"rank":{rank}{more},'
        f'"paths":{{"containment":"{path}"}}}}}}'
    )


def job(*resources: dict[str, Any], constraints: Any = None, command: str = "app") -> str:
    """The text of a jobspec with a duration of one hour."""
    system: dict[str, Any] = {"duration": 3600}
    if constraints is not None:
        system["constraints"] = constraints
    task = {"command": [command], "slot": "task", "count": {"per_slot": 1}}
    return json.dumps({"version": 1, "resources": resources, "tasks": [task], "attributes": {"system": system}})


def slot(count: int, **amounts: int) -> dict[str, Any]:
    """A task slot with these amounts by type."""
    below = [{"type": kind, "count": amount} for kind, amount in amounts.items()]
    return {"type": "slot", "count": count, "label": "task", "with": below}


def nodes(count: int, *below: dict[str, Any]) -> dict[str, Any]:
    """That many nodes, each with these children."""
    return {"type": "node", "count": count, "with": list(below)}


def sample(call: Callable[[], bool], most: int) -> list[float]:
    """Milliseconds of up to `most` successful calls within the budget, at least three."""
    times: list[float] = []
    until = time.perf_counter() + _BUDGET
    while len(times) < most and (len(times) < 3 or time.perf_counter() < until):
        began = time.perf_counter()
        if not call():
            break
        times.append((time.perf_counter() - began) * 1e3)
    return times


def w1(engine: Engine, size: int, policy: str) -> Figures:
    """Jobs of 4 nodes × slot{4 core, 1 gpu} at several fill levels, the failure on a full machine, cancels."""
    small, big = job(nodes(4, slot(1, core=4, gpu=1))), job(nodes(size // 10, slot(1, core=4, gpu=1)))
    rounds = 10 if policy.endswith("nodex") else 40
    figures: Figures = {}
    made = cancelled = 0
    cancel_time = 0.0
    for filled in range(rounds + 1):
        percent = filled * 100 // rounds
        if percent in (0, 10, 50, 90):
            times = sample(lambda: engine.match("allocate", small), min(200, size // 40))
            figures[f"match at {percent} %"] = statistics.median(times)
            began = time.perf_counter()
            for jobid in range(made + 1, made + len(times) + 1):
                engine.cancel(jobid)
            cancel_time += time.perf_counter() - began
            cancelled += len(times)
            made += len(times)
            if percent == 0:
                fresh = (job(nodes(4, slot(1, core=4, gpu=1)), command=f"app{i}") for i in range(200))
                times = sample(lambda specs=fresh: engine.match("allocate", next(specs)), min(100, size // 40))  # type: ignore[misc]
                figures["match of a new text"] = statistics.median(times)
                for jobid in range(made + 1, made + len(times) + 1):
                    engine.cancel(jobid)
                made += len(times)
        if filled < rounds:
            if not engine.match("allocate", big):
                raise RuntimeError(f"{policy}: job {filled} of {rounds} does not fit")
            made += 1
    failures = sample(lambda: not engine.match("allocate", small), 20)
    figures["failure when full"] = statistics.median(failures)
    figures["cancel"] = cancel_time / cancelled * 1e3
    return figures


def w2(engine: Engine, size: int, policy: str) -> Figures:
    """A device by its property, beside `size` hosts: each of the 64, several times."""
    specs = [job(nodes(1, slot(1, core=1)), constraints={"properties": [f"device{i}"]}) for i in range(64)]
    times, made = [], 0
    for _ in range(5):
        for spec in specs:
            times += sample(lambda spec=spec: engine.match("allocate", spec), 1)  # type: ignore[misc]
        for _ in specs:
            made += 1
            engine.cancel(made)
    return {"match by property": statistics.median(times[64:])}


def w3(engine: Engine, size: int, policy: str) -> Figures:
    """One gang of 512 slots of one core."""
    spec, times = job(slot(512, core=1)), []
    for jobid in range(1, 8):
        times += sample(lambda: engine.match("allocate", spec), 1)
        engine.cancel(jobid)
    return {"gang of 512": statistics.median(times)}


def fill(engine: Engine, size: int, policy: str) -> None:
    """Allocate every core and GPU for an hour; policies of whole nodes do it in one job."""
    for _ in range(1 if policy.endswith("nodex") else 4):
        if not engine.match("allocate", job(nodes(size, slot(1, core=8, gpu=1)))):
            raise RuntimeError("the machine cannot be filled")


def w4(engine: Engine, size: int, policy: str) -> Figures:
    """A request that no machine state can satisfy, on a full machine."""
    fill(engine, size, policy)
    wrong = {
        "a node too many": job(nodes(size + 1, slot(1, core=1))),
        "a core too many": job(nodes(1, slot(1, core=33))),
        "a GPU too many": job(slot(4 * size + 1, gpu=1)),
        "unknown property": job(nodes(1, slot(1, core=1)), constraints={"properties": ["nosuch"]}),
    }
    figures: Figures = {}
    for name, spec in wrong.items():
        figures[f"satisfy, {name}"] = statistics.median(sample(lambda s=spec: not engine.satisfy(s), 20))  # type: ignore[misc]
        times = sample(lambda s=spec: not engine.match("allocate", s), 20)  # type: ignore[misc]
        figures[f"allocate, {name}"] = statistics.median(times)
    return figures


def w5(engine: Engine, size: int, policy: str) -> Figures:
    """1,000 reservations on a full machine, one after the other."""
    fill(engine, size, policy)
    spec = job(nodes(4, slot(1, core=4, gpu=1)))
    began = time.perf_counter()
    for _ in range(1000):
        if not engine.match("reserve", spec):
            raise RuntimeError("a reservation does not fit")
    return {"1,000 reservations": (time.perf_counter() - began) * 1e3}


def threads(engine: Engine, size: int, policy: str) -> Figures:
    """How much more two threads on two matchers do than one thread on one.

    A small job spends most of its time writing R in Python, one thread at a time; a gang spends it searching.
    """
    engines = [engine, type(engine)(graph_text(size), policy)]  # type: ignore[call-arg]
    kinds = {"small jobs": (job(nodes(4, slot(1, core=4, gpu=1))), 400), "gangs of 512": (job(slot(512, core=1)), 20)}
    return {
        f"two threads ÷ one, {kind}": max(_together(engines, *work) / _together(engines[:1], *work) for _ in range(3))
        for kind, work in kinds.items()
    }


def _together(engines: list[Engine], spec: str, count: int) -> float:
    """Matches per second of a thread for each engine; each match is cancelled later."""
    barrier, made, cores = Barrier(len(engines) + 1), [0] * len(engines), sorted(os.sched_getaffinity(0))

    def work(which: int) -> None:
        if len(cores) > 1:  # a very short run ends before the kernel has distributed the threads
            os.sched_setaffinity(0, {cores[which % len(cores)]})
        barrier.wait()
        for _ in range(count):
            made[which] += engines[which].match("allocate", spec)

    workers = [Thread(target=work, args=(which,)) for which in range(len(engines))]
    for worker in workers:
        worker.start()
    barrier.wait()
    began = time.perf_counter()
    for worker in workers:
        worker.join()
    took = time.perf_counter() - began
    for engine in engines:
        engine.clear()
    return sum(made) / took


WORK: dict[str, Callable[[Engine, int, str], Figures]] = {
    "w1": w1, "w2": w2, "w3": w3, "w4": w4, "w5": w5, "threads": threads, "start": lambda *_: {},
}  # fmt: skip


def resident() -> float:
    """The resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def run(engine: str, workload: str, size: int, policy: str) -> Figures:
    """Start-up, memory and the workload's figures."""
    graph = graph_text(size, 64 if workload == "w2" else 0)
    gc.collect()
    before = resident()
    began = time.perf_counter()
    made = ENGINES[engine](graph, policy)
    figures = {"start-up": time.perf_counter() - began}
    figures["memory"] = resident() - before
    figures["memory at most"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6 - before
    del graph
    return figures | WORK[workload](made, size, policy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("workload", choices=WORK)
    parser.add_argument("nodes", type=int)
    parser.add_argument("policy")
    options = parser.parse_args()
    print(json.dumps(run(options.engine, options.workload, options.nodes, options.policy)))


if __name__ == "__main__":
    main()
