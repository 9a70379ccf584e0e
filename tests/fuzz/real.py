"""Sessions on Fluxion's own library: `python -m tests.fuzz.real --seconds 600`, with FLUXION_REAPI_LIB set.

A session must not end or block the process. Each batch runs in a separate process. The run names a failing session by
its seed, skips it and continues. `--only SEED` repeats one session and prints every operation.
"""

import argparse
import contextlib
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from tests.fuzz.sessions import Session

BATCH = 200
LIMIT = 5
"""Seconds of processor time for one session."""
STUCK = 300
"""Seconds without output, even on a busy machine, after which a batch is ended."""
MEMORY = 4 << 30
MOST = 50
"""The number of findings after which the run ends."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.real", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="duration of the run")
    parser.add_argument("--sessions", type=int, default=sys.maxsize, help="greatest number of sessions")
    parser.add_argument("--seed", type=int, default=1, help="of the first session; the others follow in order")
    parser.add_argument("--slower", type=float, default=1, help="how much slower than usual the library is")
    parser.add_argument("--only", type=int, help="run the session of this seed alone, in this process")
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def bounded(slower: float) -> None:
    """End the process when a session exceeds its processor time, even inside the library."""
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT * slower)


def alone(seed: int, log: Callable[[str], None]) -> int:
    return Session(seed, log).run()


def batch(first: int, count: int, slower: float) -> None:
    """In the child: print each seed before its session, and at the end the number of operations."""
    if slower == 1:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    done = 0
    for seed in range(first, first + count):
        print(seed, flush=True)
        bounded(slower)
        done += alone(seed, lambda _: None)
    print(f"done {done}", flush=True)


def run(first: int, count: int, slower: float) -> tuple[int, int, str]:
    """(sessions, operations, the failure of the last session or an empty text)."""
    command = [
        sys.executable,
        "-m",
        "tests.fuzz.real",
        "--batch",
        str(count),
        "--seed",
        str(first),
        "--slower",
        str(slower),
    ]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=STUCK * slower)
        status, said, complaint = child.returncode, child.stdout, child.stderr
    except subprocess.TimeoutExpired as error:
        status, said, complaint = -signal.SIGALRM, (error.stdout or b"").decode(), "stuck"
    words = said.split()
    if status == 0:
        return count, int(words[-1]), ""
    last = int(words[-1]) if words else first
    named = signal.Signals(-status).name if status < 0 else f"status {status}"
    return last - first + 1, 0, f"session {last}: {named} {complaint.strip().splitlines()[-1:]}"


def main() -> int:
    given = options()
    if given.only is not None:
        bounded(given.slower)
        print(alone(given.only, lambda text: print(text, flush=True)), "operations")
        return 0
    if given.batch is not None:
        batch(given.seed, given.batch, given.slower)
        return 0
    end, seed, operations, found = time.monotonic() + given.seconds, given.seed, 0, []
    last = min(given.seed + given.sessions, sys.maxsize)
    while seed < last and time.monotonic() < end:
        count, done, broke = run(seed, min(BATCH, last - seed), given.slower)
        seed += count
        operations += done
        if broke:
            found.append(broke)
            print(broke, flush=True)
        if len(found) == MOST:
            break
    sessions = seed - given.seed
    print(f"real: {sessions} sessions, {operations} operations in whole batches, {len(found)} findings", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
