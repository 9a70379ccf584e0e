"""One matcher used from many threads at once. Every wait has an end: what hangs fails, and says where it hung."""

import faulthandler
import random
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from fluxion_cy import Busy, FluxionError, Matcher

from ..graphs import Graph, machine, slot, spec, taken, want

LONG = 120


@pytest.fixture(autouse=True)
def hasty() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def run(*works: Callable[[], None]) -> None:
    """Runs all at once, from the same moment on; the first error of any of them is raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(works))

    def guarded(work: Callable[[], None]) -> None:
        try:
            start.wait(LONG)
            work()
        except BaseException as error:  # noqa: BLE001 - raised again below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    if any(thread.is_alive() for thread in threads):
        faulthandler.dump_traceback()
        pytest.fail(f"still at work after {LONG} s")
    if errors:
        raise errors[0]


class Owners:
    """Who has which path, as the threads themselves know it."""

    def __init__(self) -> None:
        self.by_path: dict[str, int] = {}
        self.guard = threading.Lock()

    def take(self, jobid: int, paths: dict[str, int]) -> None:
        with self.guard:
            for path in paths:
                assert self.by_path.setdefault(path, jobid) == jobid, f"{path} is held twice"

    def give_back(self, paths: dict[str, int]) -> None:
        """Call it before the matcher learns of it: from then on another thread may have them."""
        with self.guard:
            for path in paths:
                del self.by_path[path]


@pytest.mark.parametrize("policy", ["first", "low", "lonodex"])
def test_threads_that_match_cancel_and_look_never_hold_a_vertex_twice(policy: str) -> None:
    matcher = Matcher(machine(nodes=6), policy=policy, replan=True)
    free, owners, jobids = matcher.find("sched-now=free"), Owners(), list[int]()

    def work(seed: int) -> None:
        source = random.Random(seed)
        for _ in range(60):
            try:
                job = matcher.allocate(spec(slot(source.randint(1, 4), want("core", 1))))
            except Busy:
                matcher.find("sched-now=allocated")
                continue
            jobids.append(job.jobid)
            owners.take(job.jobid, taken(job.R))
            matcher.stat()
            owners.give_back(taken(job.R))
            if source.random() < 0.5:
                matcher.cancel(job.jobid)
            else:
                assert matcher.partial_cancel(job.jobid, job.R)

    run(*(partial(work, seed) for seed in range(6)))
    assert len(jobids) == len(set(jobids)), "an id was given twice"
    assert matcher.find("sched-now=free") == free
    assert matcher.stat()["jobs"]["ALLOCATED"] == 0
    assert matcher._engine.next_change(-1) is None


def test_matching_goes_on_while_the_graph_changes() -> None:
    matcher, owners = Matcher(machine(nodes=4), policy="low"), Owners()
    before, done = matcher.graph(), threading.Event()
    extra = Graph()
    node = extra.add("node", 9, extra.add("cluster", 0), rank=9)
    extra.add("fpga", 0, node, rank=9)
    document = extra.jgf()
    for vertex in document["graph"]["nodes"]:
        vertex["id"] = f"9{vertex['id']}"
    for edge in document["graph"]["edges"]:
        edge.update({end: f"9{edge[end]}" for end in edge})

    def match(seed: int) -> None:
        source = random.Random(seed)
        for _ in range(50):
            ask = spec(slot(source.randint(1, 3), want("core", 1)), constraints={"ranks": ["1-3"]})
            try:
                job = matcher.allocate(ask)
            except Busy:
                assert "fit" in matcher.why(ask) or "free core" in matcher.why(ask)
                continue
            owners.take(job.jobid, taken(job.R))
            assert not any("/node0/" in path for path in taken(job.R))
            owners.give_back(taken(job.R))
            matcher.cancel(job.jobid)

    def change() -> None:
        fpga, there = spec(slot(1, want("fpga", 1))), spec(slot(1, want("core", 1)), constraints={"ranks": ["0"]})
        for _ in range(25):
            matcher.add_subgraph(document)
            job = matcher.allocate(fpga)
            matcher.set_status("/cluster0/node0", up=False)
            with pytest.raises(Busy):
                matcher.allocate(there)
            matcher.set_status("/cluster0/node0", up=True)
            matcher.cancel(matcher.allocate(there).jobid)
            matcher.set_properties("/cluster0/node0", {"a": ""})
            matcher.set_properties("/cluster0/node0", {})
            matcher.remove_subgraph("/cluster0/node9")
            assert matcher.info(job.jobid).mode == "CANCELED"
        done.set()

    def look() -> None:
        while not done.wait(0.001):
            other = matcher.clone()
            assert other.graph()["graph"]["nodes"]
            found = other.find("sched-now=allocated")
            held = len(taken(found))
            assert (held > 0) == (other.stat()["jobs"]["ALLOCATED"] > 0)

    run(*(partial(match, seed) for seed in range(3)), change, look)
    after = matcher.graph()
    for vertex in after["graph"]["nodes"]:
        if vertex["metadata"]["paths"]["containment"] == "/cluster0/node0":
            assert vertex["metadata"].pop("properties", {}) == {}
            assert vertex["metadata"].pop("status", 0) == 0
    assert after == before


def test_matchers_of_different_threads_do_not_meet() -> None:
    """Clones of one matcher, each in its own thread, answer as one of them does alone."""
    first = Matcher(machine(nodes=5, gpus=2), policy="first")
    first.allocate(spec(slot(3, want("gpu", 1))))

    def answers(matcher: Matcher) -> list[object]:
        source, found = random.Random(7), list[object]()
        for _ in range(60):
            try:
                job = matcher.allocate_orelse_reserve(spec(slot(source.randint(1, 9), want("core", 1)), duration=5))
                found.append((job.jobid, job.at, sorted(taken(job.R))))
            except FluxionError as error:
                found.append(type(error))
        return found

    alone, clones = answers(first.clone()), [first.clone() for _ in range(4)]
    found: dict[int, list[object]] = {}

    def answer(i: int) -> None:
        found[i] = answers(clones[i])

    run(*(partial(answer, i) for i in range(4)))
    assert all(found[i] == alone for i in range(4))


class Asking:
    """A score that asks the matcher for a core when it is read, and keeps the errors that it gets."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher, self.errors = matcher, list[str]()

    def __float__(self) -> float:
        try:
            self.matcher.allocate(spec(slot(1, want("core", 1))))
        except FluxionError as error:
            self.errors.append(str(error))
        return 0.0


def test_a_call_in_the_middle_of_another_is_refused_and_changes_nothing() -> None:
    """An argument's own code, a finaliser or a signal's handler cannot wait for the call that it interrupts."""
    matcher = Matcher(machine(nodes=2), policy="low")
    score = Asking(matcher)

    def outer() -> None:
        job = matcher.allocate(spec(slot(1, want("gpu", 1))), prefer=[score, score])
        assert (job.jobid, [path.split("/")[3] for path in taken(job.R)]) == (1, ["gpu0"])

    run(outer)
    assert set(score.errors) == {"allocate: another call to this matcher is in flight in the same thread"}
    assert matcher.stat()["jobs"]["ALLOCATED"] == 1
    assert matcher.allocate(spec(slot(1, want("core", 1)))).jobid == 2
