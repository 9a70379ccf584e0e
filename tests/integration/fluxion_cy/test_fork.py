"""A process that forks while its threads match."""

import os
import subprocess
import sys
from pathlib import Path

GRAPHS = Path(__file__).parents[2] / "unit" / "fluxion_cy"
LONG = 120

FORKED = """
import os, sys, threading
from graphs import machine, slot, spec, want
from fluxion_cy import Matcher, NotSupported

ask = spec(slot(1, want("core", 1)))
busy, idle = Matcher(machine()), Matcher(machine())
inside, over = threading.Event(), threading.Event()


def halting():
    inside.set()
    assert over.wait(60)
    yield True


def forking():
    children.append(os.fork())
    yield True


worker = threading.Thread(target=busy.allocate, args=(ask,), kwargs={"candidates": halting()})
worker.start()
assert inside.wait(60)
children = []
own = Matcher(machine())
assert own.allocate(ask, candidates=forking()).jobid == 1  # in the child, too, it goes on with this call
if children == [0]:
    for _ in range(2):
        try:
            busy.stat()
        except NotSupported as error:
            assert "forked while another thread was in a call" in str(error), error
        else:
            os._exit(3)
    assert [idle.allocate(ask).jobid, own.allocate(ask).jobid, own.clone().allocate(ask).jobid] == [1, 2, 3]
    print("the child is well", flush=True)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
over.set()
worker.join()
assert busy.allocate(ask).jobid == 2
print("the parent is well")
"""


def test_the_child_of_a_fork_does_not_wait_for_the_parents_threads() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(GRAPHS), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], env=environment, capture_output=True, text=True, timeout=LONG
    )
    assert done.stdout.splitlines() == ["the child is well", "the parent is well"], done.stderr
