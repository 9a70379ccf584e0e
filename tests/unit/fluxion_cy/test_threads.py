"""One matcher used from many threads at once."""

import random
import threading

from graphs import machine, slot, spec, taken, want

from fluxion_cy import Busy, Matcher


def test_threads_that_match_cancel_and_look_never_hold_a_vertex_twice() -> None:
    matcher = Matcher(machine(nodes=6), policy="low", replan=True)
    free = matcher.find("sched-now=free")
    owner: dict[str, int] = {}
    guard = threading.Lock()
    wrong: list[str] = []

    def work(seed: int) -> None:
        source = random.Random(seed)
        for _ in range(60):
            try:
                job = matcher.allocate(spec(slot(source.randint(1, 4), want("core", 1))))
            except Busy:
                matcher.find("sched-now=allocated")
                continue
            with guard:
                wrong.extend(path for path in taken(job.R) if owner.setdefault(path, job.jobid) != job.jobid)
            matcher.stat()
            with guard:  # before the cancel: from then on another thread may have them
                for path in taken(job.R):
                    owner.pop(path, None)
            matcher.cancel(job.jobid)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert matcher.find("sched-now=free") == free
    assert matcher.stat()["jobs"]["ALLOCATED"] == 0
